//! Attended loops with misbehaving hooks, notifications and answers end correctly and with a complete journal.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::thread;

use tachikoma_testkit::{Scratch, Tool, await_until};

use crate::attended_support::await_question;
use crate::hooks::hook;
use crate::live_support::{
    SOON, await_nobody, await_status, events, obey, seconds, socket, status, tool,
};
use crate::notify_support::{Answer, Service};

/// Invalid answers that are sent over the socket.
const GARBAGE: [&[u8]; 6] = [
    b"",
    b"\xff\xfe\x00\n",
    b"{\"kind\":\"answer\",\"id\":\n",
    b"{\"kind\":\"answer\",\"id\":-1,\"choice\":\"continue\"}\n",
    b"{\"kind\":\"answer\",\"id\":4294967296,\"choice\":\"yes\"}\n",
    b"[[[[[[[[[[[[[[[[\n",
];

/// Sends all invalid answers. None of them closes the open question.
fn garbage(scratch: &Scratch, tool: &Tool<'_>) {
    for bytes in GARBAGE {
        let mut stream = UnixStream::connect(socket(scratch)).unwrap();
        // The runner may close the connection before everything is written.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let huge = "c".repeat(100_000);
    for words in [
        &["answer", "YES"][..],
        &["answer", ""],
        &["answer", "-1", "continue"],
        &["answer", "99", "continue"],
        &["answer", &huge],
        &["answer", "edit", "--prompt-file", "not there"],
    ] {
        assert_ne!(tool.run(words).code(), Some(0), "{words:?}");
    }
}

/// Sends many answers at the same time and checks that exactly one is accepted.
fn at_once(scratch: &Scratch, id: u32, choices: [&str; 2]) {
    let id = id.to_string();
    let accepted = thread::scope(|scope| {
        let answers = choices.map(|choice| {
            let id = &id;
            scope.spawn(move || tool(scratch).run(["answer", id, choice]).code() == Some(0))
        });
        let heard = answers.map(|answer| answer.join().unwrap());
        heard.into_iter().filter(|heard| *heard).count()
    });
    assert_eq!(
        accepted, 1,
        "exactly one answer to question {id} is accepted"
    );
}

#[test]
fn a_loop_with_misbehaving_question_hooks_ends_correctly() {
    let scratch = Scratch::with_git();
    let long = seconds();
    let hangs = format!("trap '' TERM; sleep {long}");
    let quick = "timeout = '200ms'";
    let broken = Service::new(&[Answer::Status(500)]);
    let hung = Service::new(&[Answer::Hang]);
    let cut = Service::new(&[Answer::Cut]);
    let everything = "on = ['question', 'iteration_end', 'error', 'loop_end']";
    let message = |to: &str, service: &Service| {
        format!(
            "[[notify]]\nto = '{to}'\nurl = '{}'\n{everything}\n",
            service.url()
        )
    };
    let tables = [
        "question_timeout = '10s'\niteration_delay = '0s'\n".to_owned(),
        hook("question", &hangs, quick),
        hook(
            "question",
            "echo '{\"custom\": 7}'; echo '{\"custom\": {\"a\"'; exit 1",
            "",
        ),
        hook("iteration_start", &hangs, quick),
        hook(
            "iteration_end",
            "echo '{\"custom\": {\"n\": 1}} trailing'; kill -9 $$",
            "",
        ),
        hook("error", "exec 0<&- 1>&- 2>&-; exit 3", ""),
        hook("loop_end", &hangs, quick),
        message("webhook", &broken),
        message("slack", &hung),
        message("discord", &cut),
        "[reboot]\nmode = \"confirm\"\nmin_reboot_interval = \"0s\"\nconfirm_timeout = \"1m\"\n\
         [reboot.triggers]\nafter_iterations = 2\n"
            .to_owned(),
    ];
    scratch.write("tachikoma.toml", tables.concat());
    scratch.write("prompt.md", "work\n");
    scratch.write(
        "agent.sh",
        "echo \"$TACHIKOMA_ITERATION\" >file; [ $TACHIKOMA_ITERATION != 1 ]\n",
    );
    scratch.git(&["add", "."]);
    scratch.git(&["commit", "-qm", "begin"]);
    let tool = tool(&scratch);
    let mut live = tool.spawn(["run", "--attended", "--", "sh", "agent.sh"]);

    // Invalid answers are sent first, then two valid ones at the same time.
    await_question(&tool, 1);
    garbage(&scratch, &tool);
    assert_eq!(
        status(&tool)["question"]["id"],
        1,
        "the question is still open"
    );
    at_once(&scratch, 1, ["continue", "continue"]);
    // The iteration fails, its question times out, and the loop pauses.
    await_question(&tool, 2);
    await_status(&tool, "paused", |it| it["state"] == "paused");
    assert_ne!(tool.run(["answer", "2", "continue"]).code(), Some(0));
    obey(&tool, &["resume"]);
    // A reboot is due. Two answers are sent at the same time, one of them is `yes`.
    assert_eq!(await_question(&tool, 3)["kind"], "confirm_reboot");
    at_once(&scratch, 3, ["yes", "no"]);
    // Two answers that request a rollback are sent at the same time.
    let id = await_status(&tool, "asked", |it| {
        it["question"]["kind"] == "after_iteration"
    })["question"]["id"]
        .as_u64()
        .unwrap();
    let id = u32::try_from(id).unwrap();
    at_once(&scratch, id, ["rollback", "rollback"]);
    await_question(&tool, id + 1);
    garbage(&scratch, &tool);
    at_once(&scratch, id + 1, ["stop", "stop"]);
    await_until("it has stopped", SOON, || {
        let last = events(&tool).pop();
        last.is_some_and(|it| {
            ["stopped", "incident"].contains(&it["event"]["type"].as_str().unwrap())
        })
    });
    // The loop does not wait for the notifications.
    live.signal(rustix::process::Signal::INT);
    let ran = live.wait(SOON);
    assert_eq!(ran.code(), Some(5), "{}", ran.snapshot());
    assert_eq!(status(&tool)["outcome"]["kind"], "operator");
    await_nobody(&long);

    let records = events(&tool);
    let numbers = records.iter().map(|it| it["seq"].as_u64().unwrap());
    let first = records[0]["seq"].as_u64().unwrap();
    assert!(numbers.zip(first..).all(|(seq, expected)| seq == expected));
    let what = |what: &str| {
        let events = records.iter().map(|it| &it["event"]);
        events.filter(|it| it["what"] == what).count()
    };
    assert_eq!(
        what("asked"),
        what("answered"),
        "each question has one answer"
    );
    assert_eq!(what("rolled_back"), 1);
    let count = |kind: &str| {
        let events = records.iter().map(|it| &it["event"]);
        events.filter(|it| it["type"] == kind).count()
    };
    assert_eq!(
        count("custom_set"),
        0,
        "an incomplete answer is not recorded"
    );
    let verified = tool.run(["state", "verify"]);
    assert_eq!(verified.code(), Some(0), "{}", verified.snapshot());
    await_until("each receiver was tried", SOON, || {
        [&broken, &hung, &cut]
            .iter()
            .all(|it| !it.came().is_empty())
    });
}
