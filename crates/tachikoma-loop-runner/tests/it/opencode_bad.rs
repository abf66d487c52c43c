//! Error messages for an OpenCode server with invalid answers, a port in use, a wrong password or a missing command.

use std::net::TcpListener;
use std::time::Duration;

use tachikoma_loop_runner::opencode::server_file::Condition;
use tachikoma_loop_runner::opencode::supervisor::{SupervisorClient, SupervisorError};
use tachikoma_loop_runner::settings::Secret;
use tachikoma_testkit::fake_opencode::Misbehavior;
use tokio::io::AsyncReadExt as _;

use crate::opencode_support::{Bed, ready, until};
use crate::support::{PATIENCE, example, kill, run};

/// Runs a server that fails at every start. Returns the reason with which the supervisor gives up.
fn gives_up(bed: Bed) -> String {
    let bed = bed.with(|opencode| {
        opencode.max_restart_attempts = 1;
        opencode.restart_delay_ms = 0;
    });
    run(async {
        let handle = bed.start().await;
        let file = until(&handle, "it gives up", |file| {
            file.state == Condition::GaveUp
        })
        .await;
        bed.stop(&handle).await;
        file.why.unwrap()
    })
}

fn misbehaving(change: impl FnOnce(&mut Misbehavior)) -> Bed {
    let mut misbehavior = Misbehavior::default();
    change(&mut misbehavior);
    Bed::always(misbehavior)
}

fn masked(text: &str) -> String {
    let mut words = text.split(' ').map(|word| {
        match word
            .trim_start_matches("http://")
            .strip_prefix("127.0.0.1:")
        {
            Some(rest) => format!("[ADDRESS]{}", rest.trim_start_matches(char::is_numeric)),
            None => word.to_owned(),
        }
    });
    let first = words.next().unwrap_or_default();
    words.fold(first, |text, word| format!("{text} {word}"))
}

#[test]
fn invalid_server_answers_have_different_errors() {
    let page = gives_up(misbehaving(|server| server.html = Some("<html>".into())));
    let json = gives_up(misbehaving(|server| {
        server.health = Some("{\"ok\":1}".into());
    }));
    let text = gives_up(misbehaving(|server| server.health = Some("fine".into())));
    let secret = misbehaving(|server| server.password = Some("x".into()));
    let secret = gives_up(secret.with(|opencode| opencode.require_password = false));
    let mut other = misbehaving(|server| server.password = Some("x".into()));
    other.settings.password = Some(Secret::from("y".to_owned()));
    let refused = gives_up(other);
    let all = [page, json, text, secret, refused].map(|why| masked(&why));
    insta::assert_snapshot!(all.join("\n"), @r#"
    it did not become ready: GET /global/health: [ADDRESS] answered with a web page: this is not an OpenCode server, or its version is not supported
    it did not become ready: GET /global/health: [ADDRESS] answered with JSON ({"ok":1}): this is not an OpenCode server, or its version is not supported
    it did not become ready: GET /global/health: [ADDRESS] answered with invalid JSON (fine): this is not an OpenCode server, or its version is not supported
    it did not become ready: GET /global/health: [ADDRESS] wants a password: set OPENCODE_SERVER_PASSWORD
    it did not become ready: GET /global/health: [ADDRESS] wants another password: set OPENCODE_SERVER_PASSWORD
    "#);
}

#[test]
fn port_in_use_is_a_clear_error() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let foreign = gives_up(Bed::new(Vec::new()).with(|opencode| opencode.serve_port = port));
    insta::assert_snapshot!(masked(&foreign), @r#"it could not be started: another program already listens at [ADDRESS]; stop it, or set another `opencode.serve_port`"#);
    drop(listener);
    let first = Bed::new(Vec::new());
    run(async {
        let handle = first.start().await;
        let url = ready(&handle, 1).await.url.unwrap();
        let port = url.rsplit(':').next().unwrap().parse().unwrap();
        let second = Bed::new(Vec::new()).with(|opencode| {
            opencode.serve_port = port;
            opencode.max_restart_attempts = 1;
            opencode.restart_delay_ms = 0;
        });
        let other = second.start().await;
        let file = until(&other, "it gives up", |file| {
            file.state == Condition::GaveUp
        })
        .await;
        insta::assert_snapshot!(masked(&file.why.unwrap()), @r#"it could not be started: a server that requires a password (probably another OpenCode server) already listens at [ADDRESS]; stop it, or set another `opencode.serve_port`"#);
        assert_eq!(
            second.starts().len(),
            0,
            "the second supervisor starts no server"
        );
        second.stop(&other).await;
        assert_eq!(
            ready(&handle, 1).await.generation,
            1,
            "the first server was not restarted"
        );
        first.stop(&handle).await;
    });
}

#[test]
fn missing_server_command_is_retried_and_given_up() {
    let bed = Bed::new(Vec::new())
        .with(|opencode| opencode.serve_command = Some("no-such-opencode --fast".into()));
    insta::assert_snapshot!(gives_up(bed), @r#"it could not be started: `no-such-opencode`: No such file or directory (os error 2); install OpenCode, or set `opencode.serve_command` to the command that starts it"#);
    let mut gone = Bed::new(Vec::new());
    gone.settings.working_dir = gone.scratch.path().join("gone");
    insta::assert_snapshot!(gives_up(gone), @r#"it could not be started: the working directory cannot be used: No such file or directory (os error 2)"#);
}

#[test]
fn invalid_server_settings_are_refused_before_the_start() {
    run(async {
        let open = Bed::new(Vec::new()).with(|opencode| opencode.serve_hostname = "0.0.0.0".into());
        let refused = open.try_start().await.unwrap_err();
        insta::assert_snapshot!(refused, @r#"`opencode.serve_hostname` is "0.0.0.0", which other machines may reach: set OPENCODE_SERVER_PASSWORD, or use "localhost""#);
        let torn =
            Bed::new(Vec::new()).with(|opencode| opencode.serve_command = Some("a 'b".into()));
        let refused = torn.try_start().await.unwrap_err();
        insta::assert_snapshot!(refused, @r#"`opencode.serve_command` "a 'b" cannot be read: a quotation mark is not closed"#);
    });
}

#[test]
fn password_is_passed_to_the_server_and_not_written_to_files() {
    let mut bed = Bed::new(Vec::new());
    bed.settings.password = Some(Secret::from("correct horse".to_owned()));
    bed.settings.user = Some("somebody".to_owned());
    run(async {
        let handle = bed.start().await;
        ready(&handle, 1).await;
        bed.stop(&handle).await;
        for entry in std::fs::read_dir(&bed.settings.dir).unwrap() {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            let text = String::from_utf8_lossy(&bytes);
            assert!(!text.contains("correct"), "{text}");
        }
        let shown = format!("{:?}", bed.settings);
        assert!(!shown.contains("correct"), "{shown}");
    });
}

#[test]
fn second_supervisor_is_refused() {
    let bed = Bed::new(Vec::new());
    run(async {
        let handle = bed.start().await;
        ready(&handle, 1).await;
        let refused = bed.try_start().await.unwrap_err();
        assert!(matches!(
            refused,
            SupervisorError::Held {
                holder: Some(_),
                ..
            }
        ));
        bed.stop(&handle).await;
        let error = SupervisorClient::find(&bed.settings.dir).unwrap_err();
        assert!(
            error.to_string().starts_with("no supervisor runs in "),
            "{error}"
        );
    });
}

#[test]
fn stop_during_a_restart_delay_is_immediate() {
    let bed = Bed::new(Vec::new()).with(|opencode| opencode.restart_delay_ms = 50_000);
    run(async {
        let handle = bed.start().await;
        let up = ready(&handle, 1).await;
        kill("-9", up.pid.unwrap());
        let waiting = until(&handle, "it waits", |file| file.until.is_some()).await;
        assert_eq!(waiting.state, Condition::Restarting);
        let stopping = tokio::time::timeout(Duration::from_secs(10), bed.stop(&handle)).await;
        stopping.expect("the stop does not wait for the restart delay");
        assert_eq!(bed.starts().len(), 1);
    });
}

#[test]
fn reloaded_settings_apply_at_the_next_server_start() {
    let bed = Bed::new(Vec::new());
    run(async {
        let handle = bed.start().await;
        let up = ready(&handle, 1).await;
        let mut changed = bed.settings.opencode.clone();
        let fake = example("fake-server");
        changed.serve_command = Some(format!("{} serve --print-logs", fake.display()));
        handle.reload(changed.clone()).await.unwrap();
        changed.serve_hostname = "0.0.0.0".into();
        let refused = handle.reload(changed).await.unwrap_err();
        assert!(
            refused.ends_with("; the earlier settings stay in effect"),
            "{refused}"
        );
        kill("-9", up.pid.unwrap());
        ready(&handle, 2).await;
        let starts = bed.starts();
        assert_eq!(starts[0]["args"][1], "--port");
        assert_eq!(starts[1]["args"][1], "--print-logs");
        bed.stop(&handle).await;
    });
}

/// All output of the server is logged, and the size of the log is limited.
#[test]
fn server_output_is_in_the_log() {
    let bed = Bed::always(Misbehavior {
        noise_bytes: 3 << 20,
        ..Misbehavior::default()
    });
    run(async {
        let handle = bed.start().await;
        for generation in 2..10 {
            ready(&handle, generation - 1).await;
            handle.restart().await.unwrap();
        }
        ready(&handle, 9).await;
        let log = bed.stop(&handle).await;
        assert!(log.contains("\nopencode server listening on http://127.0.0.1:"));
        assert!(log.len() < 20 << 20, "{}", log.len());
    });
}

#[test]
fn server_that_ignores_sigterm_is_killed() {
    let bed = Bed::always(Misbehavior {
        ignore_sigterm: true,
        ..Misbehavior::default()
    });
    run(async {
        let handle = bed.start().await;
        let pid = ready(&handle, 1).await.pid.unwrap();
        let began = std::time::Instant::now();
        bed.stop(&handle).await;
        assert!(!crate::support::is_alive(pid));
        let took = began.elapsed();
        assert!(
            took >= Duration::from_secs(4) && took < PATIENCE,
            "{took:?}"
        );
    });
}

/// The server never listens on its port, and another process listens there instead.
#[test]
fn password_is_not_sent_to_another_process_on_the_port() {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let mut bed = misbehaving(|server| server.mute = true).with(|opencode| {
        opencode.serve_port = port;
        opencode.max_restart_attempts = 1;
        opencode.restart_delay_ms = 0;
    });
    bed.settings.password = Some(Secret::from("correct horse".to_owned()));
    run(async {
        let handle = bed.start().await;
        until(&handle, "its process", |file| file.pid.is_some()).await;
        let thief = TcpListener::bind(("127.0.0.1", port)).unwrap();
        thief.set_nonblocking(true).unwrap();
        let thief = tokio::net::TcpListener::from_std(thief).unwrap();
        let heard = tokio::spawn(async move {
            let mut heard = Vec::new();
            while let Ok((mut stream, _)) = thief.accept().await {
                let mut bytes = Vec::new();
                // The supervisor closes the connection without sending anything.
                let _ = stream.read_to_end(&mut bytes).await;
                heard.push(String::from_utf8_lossy(&bytes).into_owned());
                if heard.iter().any(|said| said.contains("uthorization")) {
                    break;
                }
            }
            heard
        });
        let wrong = until(&handle, "it is not ready", |file| {
            let why = file.why.as_deref().unwrap_or_default();
            why.contains("has the port, so no password is sent") || heard.is_finished()
        });
        let file = wrong.await;
        assert!(!heard.is_finished(), "{:?}", heard.await.unwrap());
        insta::assert_snapshot!(masked(&file.why.unwrap()), @"it did not become ready: GET /global/health: [ADDRESS] is not the OpenCode server: another process of yours has the port, so no password is sent");
        heard.abort();
        bed.stop(&handle).await;
    });
}

#[test]
fn generated_password_is_removed_with_the_server() {
    use std::os::unix::fs::PermissionsExt as _;
    let bed = Bed::new(Vec::new());
    let path = bed.settings.dir.join("login.json");
    run(async {
        let mut passwords = Vec::new();
        for generation in 1..=2 {
            let handle = bed.start().await;
            ready(&handle, generation).await;
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            passwords.push(std::fs::read_to_string(&path).unwrap());
            bed.stop(&handle).await;
            assert!(!path.exists());
        }
        assert_ne!(passwords[0], passwords[1]);
    });
}
