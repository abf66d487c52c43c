//! No process that the loop starts can read the secrets of notifications: neither in its environment nor in that of its
//! ancestors.

use std::fs;

use tachikoma_testkit::Scratch;

use crate::git_support::repository;
use crate::hooks::hook;
use crate::notify_support::{Answer, Service};
use crate::support::{CLAIMS, run, tachikoma};

pub const CANARY: &str = "canary-4711";

/// Creates a program that records its environment and everything it can read of its ancestor processes.
pub fn spy(scratch: &Scratch) -> String {
    let script = "#!/bin/sh\n{ env; p=$$\nwhile [ \"$p\" -gt 1 ]; do echo \"[$p]\"; tr '\\0' '\\n' < /proc/$p/environ\n\
        p=$(sed -n 's/^PPid:[^0-9]*//p' /proc/$p/status); done; } >> \"$(dirname \"$0\")/found.$1\" 2>&1\n";
    let path = scratch.write_script(scratch.home().join("spy"), script);
    path.display().to_string()
}

#[track_caller]
pub fn assert_clean(scratch: &Scratch, who: &str) {
    let found = scratch.home().join(format!("found.{who}"));
    let found = fs::read_to_string(found).unwrap_or_else(|error| panic!("{who}: {error}"));
    assert!(found.matches("PATH=").count() > 2, "{who}: {found}");
    assert!(!found.contains(CANARY), "{who}: {found}");
}

#[test]
fn no_started_process_can_read_the_secrets_of_notifications() {
    let scratch = repository();
    let service = Service::new(&[Answer::Status(200)]);
    let spy = spy(&scratch);
    let url = format!("{}/{CANARY}", service.url());
    let settings = [
        "[[notify]]\nto = 'webhook'\nurl_env = 'MY_HOOK'\nsecret_env = 'MY_KEY'\n".to_owned(),
        format!("[[notify]]\nto = 'command'\ncommand = '{spy} message'\n"),
        format!(
            "[[gate]]\nname = 'tests'\ncommand = '''{spy} gate; test -e .git/hooks/pre-commit || printf 'not '
            printf 'ok 1 - a\\n1..1\\n' '''\n"
        ),
        hook("iteration_start", &format!("{spy} frame"), ""),
        hook("tests_changed", &format!("{spy} beside"), ""),
    ];
    scratch.write("tachikoma.toml", settings.concat());
    scratch.git(&["add", "-A"]);
    scratch.git(&["commit", "--quiet", "-m", "configured"]);
    let script = format!(
        "{spy} agent; printf '#!/bin/sh\\n{spy} git\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; {CLAIMS}"
    );
    let ran = tachikoma(&scratch)
        .env("MY_HOOK", url)
        .env("MY_KEY", format!("{CANARY}-key"))
        .run(run(&[], &script));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    for who in ["agent", "git", "gate", "frame", "message", "beside"] {
        assert_clean(&scratch, who);
    }
    assert_eq!(service.came().len(), 1, "the message contains the secrets");
}

#[test]
fn a_detached_loop_keeps_the_secrets_of_notifications_private() {
    let scratch = Scratch::new();
    let service = Service::new(&[Answer::Status(200)]);
    let spy = spy(&scratch);
    scratch.write(
        "tachikoma.toml",
        "[[notify]]\nto = 'webhook'\nurl_env = 'MY_HOOK'\n",
    );
    let tool = tachikoma(&scratch).env("MY_HOOK", format!("{}/{CANARY}", service.url()));
    let script = format!("{spy} agent; tachikoma reload; {CLAIMS}");
    let ran = tool.run(run(&["--detach"], &script));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    tachikoma_testkit::await_until("told of the end", crate::support::SOON, || {
        service.came().len() == 1
    });
    assert_clean(&scratch, "agent");
}
