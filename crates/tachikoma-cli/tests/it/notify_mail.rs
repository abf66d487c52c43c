//! Notifications by mail and over TLS: what is sent, and in which cases the password is not sent.

use tachikoma_testkit::Scratch;

use crate::notify::{assert_no_secret, configure, failures};
use crate::notify_support::{Answer, MailRules, Mailbox, Service, trusted_ca};
use crate::support::{CLAIMS, run, tachikoma};

fn table(scheme: &str, mailbox: &Mailbox, more: &str) -> String {
    format!(
        "to = 'email'\nurl = '{scheme}://127.0.0.1:{}'\nfrom = 'loop@example.org'\nrecipients = ['a@example.org', 'b@example.org']\n{more}",
        mailbox.port
    )
}

const LOGIN: &str = "user = 'me'\nsecret_env = 'PASSWORD'";

/// Login line of AUTH PLAIN: `\0me\0hunter3` in base64.
const PLAIN_LOGIN: &str = "AUTH PLAIN AG1lAGh1bnRlcjM=";

/// Sends a test mail. Returns the output of `notify test` and the lines that the mail server received.
fn send(scratch: &Scratch, rules: MailRules, scheme: &str) -> (String, Vec<String>) {
    let mailbox = Mailbox::new(rules);
    configure(scratch, &[&table(scheme, &mailbox, LOGIN)]);
    let ran = tachikoma(scratch)
        .env("PASSWORD", "hunter3")
        .env("SSL_CERT_FILE", trusted_ca(scratch))
        .run(["notify", "test"]);
    assert!(!ran.snapshot().contains("hunter"), "{}", ran.snapshot());
    let said = ran.stdout.strip_prefix("email (notify 1): ");
    (
        said.unwrap_or(&ran.stderr).trim_end().to_owned(),
        mailbox.lines(),
    )
}

#[test]
fn mail_without_a_password_is_sent_to_a_local_server_without_tls() {
    let scratch = Scratch::new();
    let mailbox = Mailbox::new(MailRules {
        // The certificate of this server is not trusted, as on most local mail servers.
        starttls: Some(220),
        ..MailRules::default()
    });
    configure(&scratch, &[&table("smtp", &mailbox, "")]);
    let ran = tachikoma(&scratch).run(run(&[], CLAIMS));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(failures(&scratch), []);
    // Long lines of the mail are wrapped as quoted-printable.
    let mail = mailbox.lines().join("\n").replace("=\n", "");
    for part in [
        "MAIL FROM:<loop@example.org>",
        "RCPT TO:<a@example.org>",
        "RCPT TO:<b@example.org>",
        "Subject: [tachikoma] ",
        "the loop ends: the work is complete",
        "\"outcome\":\"done\"",
        "\nQUIT",
    ] {
        assert!(mail.contains(part), "{part}: {mail}");
    }
}

#[test]
fn a_password_is_sent_over_starttls_if_the_server_offers_it() {
    let rules = MailRules {
        starttls: Some(220),
        login: Some(235),
        ..MailRules::default()
    };
    let (said, lines) = send(&Scratch::new(), rules, "smtp");
    assert_eq!(said, "sent", "{lines:?}");
    assert!(lines.contains(&format!("tls: {PLAIN_LOGIN}")), "{lines:?}");
    assert!(!lines.contains(&PLAIN_LOGIN.to_owned()), "{lines:?}");
}

#[test]
fn a_password_is_not_sent_when_starttls_is_offered_and_fails() {
    let rules = MailRules {
        starttls: Some(454),
        login: Some(235),
        ..MailRules::default()
    };
    let (said, lines) = send(&Scratch::new(), rules, "smtp");
    assert_eq!(said, "the mail server answered with 454");
    let sent = lines
        .iter()
        .any(|line| line.contains("AUTH") || line.contains("MAIL"));
    assert!(!sent, "{lines:?}");
}

#[test]
fn a_password_is_sent_without_tls_to_this_machine_only_if_there_is_no_starttls() {
    let rules = MailRules {
        login: Some(535),
        ..MailRules::default()
    };
    let (said, lines) = send(&Scratch::new(), rules, "smtp");
    assert_eq!(said, "the mail server rejects the user or the password");
    assert!(lines.contains(&PLAIN_LOGIN.to_owned()), "{lines:?}");
}

#[test]
fn smtps_uses_tls_from_the_first_byte() {
    let rules = MailRules {
        implicit_tls: true,
        login: Some(235),
        ..MailRules::default()
    };
    let (said, lines) = send(&Scratch::new(), rules, "smtps");
    assert_eq!(said, "sent", "{lines:?}");
    assert!(lines.contains(&format!("tls: {PLAIN_LOGIN}")), "{lines:?}");
}

#[test]
fn an_endless_answer_of_the_mail_server_is_an_error() {
    let rules = MailRules {
        endless: true,
        ..MailRules::default()
    };
    let (said, _) = send(&Scratch::new(), rules, "smtp");
    assert_eq!(said, "the connection was closed before an answer came");
}

#[test]
fn a_webhook_with_tls_needs_a_certificate_that_the_system_accepts() {
    let scratch = Scratch::new();
    let service = Service::with_tls(&[Answer::Status(200)]);
    configure(&scratch, &["to = 'webhook'\nurl_env = 'HOOK'"]);
    let tool = tachikoma(&scratch).env("HOOK", service.url());
    let ran = tool.run(["notify", "test"]);
    assert_eq!(
        ran.stdout,
        "webhook (notify 1): the TLS certificate of the server is not accepted\n",
        "{}",
        ran.snapshot()
    );
    assert_eq!(service.came().len(), 0);
    let ran = tachikoma(&scratch)
        .env("HOOK", service.url())
        .env("SSL_CERT_FILE", trusted_ca(&scratch))
        .run(["notify", "test"]);
    assert_eq!(
        ran.stdout,
        "webhook (notify 1): sent\n",
        "{}",
        ran.snapshot()
    );
    assert_eq!(service.came().len(), 1);
}

#[test]
fn requests_go_through_the_proxy_that_the_environment_names() {
    let scratch = Scratch::new();
    let proxy = Service::new(&[Answer::Status(200)]);
    configure(
        &scratch,
        &[
            "to = 'slack'\nurl = 'http://service.example/hunter2'",
            "to = 'slack'\nurl = 'http://127.0.0.1:1/hunter2'",
        ],
    );
    let ran = tachikoma(&scratch)
        .env("http_proxy", format!("127.0.0.1:{}", proxy.port))
        .env("NO_PROXY", "127.0.0.1")
        .run(["notify", "test"]);
    assert_eq!(
        ran.stdout,
        "slack (notify 1): sent\nslack (notify 2): connection refused\n",
        "{}",
        ran.snapshot()
    );
    let came = proxy.came();
    assert_eq!(came.len(), 1, "{came:?}");
    assert_eq!(came[0].path, "http://service.example/hunter2");
    assert_no_secret(&scratch);
}
