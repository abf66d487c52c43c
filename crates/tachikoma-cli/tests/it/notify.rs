//! Notifications: what is delivered, what is retried, and that the loop never waits for a delivery.

use std::time::Instant;

use serde_json::Value;
use tachikoma_testkit::{Scratch, await_until};

use crate::live_support::{await_nobody, seconds};
use crate::notify_support::{Answer, Service};
use crate::support::{CLAIMS, SOON, events, journals, run, tachikoma};

pub(crate) fn configure(scratch: &Scratch, tables: &[&str]) {
    let tables = tables.iter().map(|table| format!("[[notify]]\n{table}\n"));
    scratch.write("tachikoma.toml", tables.collect::<String>());
}

/// Returns the target, the error and the number of attempts of each message that was not delivered.
pub(crate) fn failures(scratch: &Scratch) -> Vec<(String, String, u64)> {
    let incidents = events(scratch, "incident");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let failed = incidents.iter().filter(|it| it["kind"] == "notify_failed");
    failed
        .map(|it| {
            (
                text(&it["target"]),
                text(&it["error"]),
                it["attempts"].as_u64().unwrap_or(0),
            )
        })
        .collect()
}

/// Asserts that no file of the loop contains a secret.
pub(crate) fn assert_no_secret(scratch: &Scratch) {
    for (path, bytes) in journals(scratch) {
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("hunter"), "{}", path.display());
    }
}

#[test]
fn a_webhook_gets_a_signed_message_about_the_end() {
    let scratch = Scratch::new();
    let service = Service::new(&[Answer::Status(200)]);
    configure(
        &scratch,
        &["to = 'webhook'\nurl_env = 'HOOK'\nsecret_env = 'KEY'"],
    );
    let ran = tachikoma(&scratch)
        .env("HOOK", service.url())
        .env("KEY", "hunter3")
        .run(run(&[], &format!("env > environment; {CLAIMS}")));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let came = service.came();
    assert_eq!(came.len(), 1, "{came:?}");
    let told: Value = serde_json::from_str(&came[0].body).expect("an object");
    assert_eq!(told["point"], "loop_end");
    assert_eq!(told["outcome"], "done");
    let text = told["text"].as_str().expect("a text");
    assert!(
        text.ends_with(": the loop ends: the work is complete"),
        "{text}"
    );
    let time = came[0].header("X-Tachikoma-Timestamp").expect("a time");
    let signature = came[0]
        .header("X-Tachikoma-Signature")
        .expect("a signature");
    let signed = scratch.write("signed", format!("{time}.{}", came[0].body));
    let openssl = std::process::Command::new("openssl")
        .args(["dgst", "-sha256", "-hmac", "hunter3", "-r"])
        .arg(&signed)
        .output();
    if let Ok(output) = openssl {
        let expected = String::from_utf8_lossy(&output.stdout);
        let expected = expected.split(' ').next().unwrap_or_default();
        assert_eq!(signature, format!("sha256={expected}"));
    }
    assert_eq!(failures(&scratch), []);
    assert!(!ran.snapshot().contains("hunter"));
    assert!(
        !scratch.read("environment").contains("hunter"),
        "the agent does not get the variables"
    );
    assert_no_secret(&scratch);
}

#[test]
fn a_temporary_failure_is_retried() {
    let scratch = Scratch::new();
    let service = Service::new(&[Answer::Status(500), Answer::Cut, Answer::Status(204)]);
    configure(
        &scratch,
        &[&format!("to = 'slack'\nurl = '{}'", service.url())],
    );
    let ran = tachikoma(&scratch).run(run(&[], CLAIMS));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(service.came().len(), 3);
    assert_eq!(failures(&scratch), []);
}

#[test]
fn redirects_are_not_followed_and_rejections_are_not_retried() {
    let scratch = Scratch::new();
    let elsewhere = Service::new(&[Answer::Status(200)]);
    let redirect = Service::new(&[Answer::Redirect(elsewhere.port)]);
    let refusal = Service::new(&[Answer::Status(403)]);
    configure(
        &scratch,
        &[
            &format!("to = 'discord'\nurl = '{}'", redirect.url()),
            &format!("to = 'ntfy'\nurl = '{}'", refusal.url()),
        ],
    );
    let ran = tachikoma(&scratch).run(run(&[], CLAIMS));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(
        (
            redirect.came().len(),
            refusal.came().len(),
            elsewhere.came().len()
        ),
        (1, 1, 0)
    );
    let mut failed = failures(&scratch);
    failed.sort();
    assert_eq!(
        failed,
        [
            (
                "discord (notify 1)".to_owned(),
                "the service answered with a redirect (302), and redirects are not followed"
                    .to_owned(),
                1
            ),
            (
                "ntfy (notify 2)".to_owned(),
                "the service answered with status 403".to_owned(),
                1
            ),
        ]
    );
    assert!(!ran.snapshot().contains("hunter"), "{}", ran.snapshot());
    assert_no_secret(&scratch);
}

#[test]
fn a_hanging_service_does_not_delay_the_loop_or_its_end() {
    let scratch = Scratch::new();
    let service = Service::new(&[Answer::Hang]);
    let table = format!(
        "to = 'webhook'\nurl = '{}'\non = ['iteration_end']",
        service.url()
    );
    configure(&scratch, &[&table]);
    let script = format!("[ $TACHIKOMA_ITERATION = 1 ] && exit 0; {CLAIMS}");
    let mut live = tachikoma(&scratch).spawn(run(&[], &script));
    await_until("the loop to end in the journal", SOON, || {
        let journals = journals(&scratch);
        journals
            .values()
            .any(|bytes| String::from_utf8_lossy(bytes).contains("\"type\":\"completed\""))
    });
    // After its end, the loop waits for its messages, unless another signal arrives.
    let began = Instant::now();
    live.signal(rustix::process::Signal::INT);
    let ran = live.wait(SOON);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert!(began.elapsed().as_secs() < 8, "{:?}", began.elapsed());
    let failed = failures(&scratch);
    assert_eq!(failed.len(), 2, "{failed:?}");
    assert_eq!(
        failed[0].1,
        "the loop ended before the message was delivered"
    );
}

#[test]
fn a_command_gets_the_message_on_stdin_and_is_killed_when_it_hangs() {
    let scratch = Scratch::new();
    let long = seconds();
    configure(
        &scratch,
        &[
            "to = 'command'\ncommand = 'cat > told; echo $TACHIKOMA_OUTCOME > outcome'",
            "to = 'command'\ncommand = 'echo hunter2 >&2; exit 7'\non = ['loop_start']",
            &format!("to = 'command'\ncommand = 'sleep {long}'"),
        ],
    );
    let ran = tachikoma(&scratch).run(run(&[], CLAIMS));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let told: Value = serde_json::from_str(&scratch.read("told")).expect("an object");
    assert_eq!(told["point"], "loop_end");
    assert_eq!(scratch.read("outcome"), "done\n");
    let failed = failures(&scratch);
    let errors: Vec<_> = failed.iter().map(|it| it.1.as_str()).collect();
    assert_eq!(
        errors,
        [
            "the program ended with exit 7",
            "the loop ended before the message was delivered"
        ]
    );
    await_nobody(&long);
    assert!(
        !ran.snapshot().contains("hunter"),
        "the output of a program is not repeated"
    );
}

#[test]
fn each_service_gets_its_own_format() {
    let scratch = Scratch::new();
    let service = Service::new(&[Answer::Status(200)]);
    let url = service.url();
    configure(
        &scratch,
        &[
            &format!("to = 'slack'\nurl = '{url}/slack'"),
            &format!("to = 'discord'\nurl = '{url}/discord'"),
            &format!("to = 'telegram'\nurl = '{url}'\nsecret_env = 'KEY'\nchat = '7'"),
            &format!("to = 'ntfy'\nurl = '{url}/ntfy'\nsecret_env = 'KEY'"),
        ],
    );
    let ran = tachikoma(&scratch)
        .env("KEY", "hunter3")
        .run(["notify", "test"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(
        ran.stdout,
        "slack (notify 1): sent\ndiscord (notify 2): sent\ntelegram (notify 3): sent\nntfy (notify 4): sent\n"
    );
    let came = service.came();
    let at = |path: &str| {
        came.iter()
            .find(|it| it.path.ends_with(path))
            .expect("the request arrived")
    };
    let body = |path: &str| -> Value { serde_json::from_str(&at(path).body).expect("JSON") };
    let text = |value: &Value| {
        value
            .as_str()
            .is_some_and(|it| it.ends_with("a test of this notification"))
    };
    assert!(text(&body("/slack")["text"]));
    assert!(text(&body("/discord")["content"]));
    assert!(text(&body("/hunter2/bothunter3/sendMessage")["text"]));
    assert_eq!(body("/sendMessage")["chat_id"], "7");
    assert_eq!(at("/ntfy").header("Authorization"), Some("Bearer hunter3"));
    assert_eq!(at("/ntfy").header("Priority"), Some("high"));
    // A program that gets the message can distinguish a test message from one about the end of the loop.
    configure(
        &scratch,
        &["to = 'command'\ncommand = 'cat >told; echo $TACHIKOMA_TEST >test'"],
    );
    let ran = tachikoma(&scratch).run(["notify", "test"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let told: Value = serde_json::from_str(&scratch.read("told")).expect("JSON");
    assert_eq!(told["test"], true);
    assert_eq!(scratch.read("test"), "1\n");
}

#[test]
fn notify_test_names_failures_without_addresses() {
    let scratch = Scratch::new();
    let service = Service::new(&[Answer::Status(404)]);
    configure(
        &scratch,
        &[
            &format!("to = 'webhook'\nurl = '{}'", service.url()),
            "to = 'webhook'\nurl = 'http://[hunter2'",
        ],
    );
    let ran = tachikoma(&scratch).run(["notify", "test"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    assert_eq!(
        ran.stdout,
        "webhook (notify 1): the service answered with status 404\nwebhook (notify 2): the address is not valid\n"
    );
    assert!(!ran.snapshot().contains("hunter"));
    // Invalid settings of other targets do not matter.
    configure(
        &scratch,
        &[
            "to = 'command'\ncommand = 'echo ${OTHER-hidden} > told'",
            "to = 'webhook'\nurl_env = 'OTHER'\nsecret_env = 'NOT_SET'",
        ],
    );
    let tool = tachikoma(&scratch).env("OTHER", "http://127.0.0.1:1/hunter2");
    let one = tool.run(["notify", "test", "1"]);
    assert_eq!(one.code(), Some(0), "{}", one.snapshot());
    assert_eq!(scratch.read("told"), "hidden\n");
    // A test message is sent without retries.
    let broken = Service::new(&[Answer::Status(503), Answer::Status(200)]);
    let table = format!("to = 'webhook'\nurl = '{}'", broken.url());
    configure(&scratch, &[&table]);
    let once = tachikoma(&scratch).run(["notify", "test"]);
    assert_eq!(once.code(), Some(1), "{}", once.snapshot());
    assert_eq!(broken.came().len(), 1);
    let one = tachikoma(&scratch).run(["notify", "test", "3"]);
    assert_eq!(one.code(), Some(2), "{}", one.snapshot());
    for words in [
        vec!["run", "--dry-run", "--", "true"],
        vec!["notify", "test"],
    ] {
        configure(&scratch, &["to = 'slack'\nurl_env = 'ODD'"]);
        let odd = tachikoma(&scratch).env("ODD", "hunter2").run(words);
        assert_eq!(odd.code(), Some(2), "{}", odd.snapshot());
        assert!(
            odd.stderr
                .contains("the value of the variable `ODD` is not a valid address"),
            "{}",
            odd.stderr
        );
        assert!(!odd.snapshot().contains("hunter"));
    }
    configure(&scratch, &["to = 'slack'\nurl_env = 'NOT_SET'"]);
    let unset = tachikoma(&scratch).run(run(&[], CLAIMS));
    assert_eq!(unset.code(), Some(2), "{}", unset.snapshot());
    assert!(
        unset.stderr.contains("the variable `NOT_SET` is not set"),
        "{}",
        unset.stderr
    );
}

#[test]
fn an_error_that_ends_the_loop_is_sent_once() {
    let scratch = Scratch::new();
    let service = Service::new(&[Answer::Status(200)]);
    let table = format!(
        "to = 'slack'\nurl = '{}'\n[stop_conditions]\nmax_consecutive_failures = 1",
        service.url()
    );
    configure(&scratch, &[&table]);
    let ran = tachikoma(&scratch).run(run(&[], "exit 3"));
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    let came = service.came();
    let texts: Vec<_> = came.iter().map(|it| it.body.clone()).collect();
    assert_eq!(came.len(), 2, "the iteration and the loop: {texts:?}");
    assert!(texts[0].contains("iteration 1 failed"), "{texts:?}");
    assert!(texts[1].contains("the loop ends: "), "{texts:?}");
}

#[test]
fn a_hanging_message_is_canceled_for_the_message_about_the_end() {
    let scratch = Scratch::new();
    let long = seconds();
    let hangs = format!("[ $TACHIKOMA_HOOK = loop_end ] || sleep {long}; cat > told");
    let table = format!("to = 'command'\ncommand = '{hangs}'\non = ['iteration_end', 'loop_end']");
    configure(&scratch, &[&table]);
    // A hanging background hook does not delay the message.
    let hook = format!("[[hook]]\non = 'no_progress'\ncommand = 'sleep {long}'\n");
    let before = scratch.read("tachikoma.toml");
    scratch.write("tachikoma.toml", before + &hook);
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "2"], "true"));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let told: Value = serde_json::from_str(&scratch.read("told")).expect("an object");
    assert_eq!(told["point"], "loop_end");
    let failed = failures(&scratch);
    let errors: Vec<_> = failed.iter().map(|it| it.1.as_str()).collect();
    assert_eq!(errors[0], "canceled", "{failed:?}");
    await_nobody(&long);
}
