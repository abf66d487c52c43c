//! Tests which messages are queued, dropped and sent, and that no secret is shown.

use std::path::Path;

use tachikoma_core::{LoopId, State};

use super::*;
use crate::settings::NotifyTarget;

fn notify(to: NotifyTarget) -> Notify {
    let table = format!("to = '{}'", to.word());
    toml::from_str(&table).expect("the settings of a target are valid")
}

fn queue(settings: Notify) -> Queue {
    let address = Address::all(&[settings], &BTreeMap::new(), &Proxies::default()).remove(0);
    let mut notifier = Notifier::new(vec![address], None);
    notifier.queues.remove(0)
}

fn message(point: HookPoint) -> Message {
    let state = State::new(LoopId::from_u128(1));
    Message {
        event: HookEvent::new(point, None, &state, Path::new("/home/me/here")),
        time: Timestamp::from_millis(1_700_000_000_123),
        left_out: 0,
    }
}

#[test]
fn messages_beyond_the_limit_are_left_out_unless_they_are_critical() {
    let mut queue = queue(Notify {
        max_per_hour: 2,
        ..notify(NotifyTarget::Desktop)
    });
    let now = clock::monotonic();
    for _ in 0..5 {
        queue.take(message(HookPoint::IterationEnd), now);
    }
    assert_eq!((queue.waiting.len(), queue.left_out), (2, 3));
    queue.take(message(HookPoint::LoopEnd), now);
    let last = queue.waiting.back().expect("a message is queued");
    assert_eq!(last.left_out, 3);
    assert!(
        last.text()
            .ends_with("(3 messages before it were left out)"),
        "{}",
        last.text()
    );
    // After an hour messages are queued again.
    queue.take(message(HookPoint::IterationEnd), now + HOUR);
    assert_eq!(queue.waiting.len(), 4);
}

#[test]
fn full_queue_keeps_the_message_about_the_end_of_the_loop() {
    let mut queue = queue(Notify {
        max_per_hour: 0,
        ..notify(NotifyTarget::Desktop)
    });
    let now = clock::monotonic();
    for _ in 0..WAITING_MAX * 2 {
        queue.take(message(HookPoint::Error), now);
    }
    queue.take(message(HookPoint::LoopEnd), now);
    queue.take(message(HookPoint::IterationEnd), now);
    assert_eq!(queue.waiting.len(), WAITING_MAX);
    let last = queue.waiting.back().expect("a message is queued");
    assert_eq!(last.event.point, HookPoint::LoopEnd);
}

#[test]
fn critical_messages_are_bounded_and_dropped_ones_are_reported() {
    let mut queue = queue(Notify {
        max_per_hour: 0,
        ..notify(NotifyTarget::Desktop)
    });
    let now = clock::monotonic();
    let mut gone = Vec::new();
    gone.extend(queue.take(message(HookPoint::Error), now));
    gone.extend(queue.take(message(HookPoint::LoopEnd), now));
    for _ in 0..WAITING_MAX * 2 {
        gone.extend(queue.take(message(HookPoint::Question), now));
    }
    assert_eq!(queue.waiting.len(), WAITING_MAX);
    assert_eq!(queue.waiting[0].event.point, HookPoint::LoopEnd);
    assert_eq!(gone[0], HookPoint::Error, "errors are dropped first");
    assert_eq!(gone.len(), WAITING_MAX + 2);
    let questions = gone.iter().filter(|it| **it == HookPoint::Question);
    assert_eq!(questions.count(), WAITING_MAX + 1);
}

#[tokio::test]
async fn messages_that_were_never_tried_have_no_attempts() {
    let settings = Notify {
        on: vec![HookPoint::LoopEnd, HookPoint::Question],
        ..notify(NotifyTarget::Desktop)
    };
    let addresses = Address::all(&[settings], &BTreeMap::new(), &Proxies::default());
    let mut notifier = Notifier::new(addresses, None);
    let queue = &mut notifier.queues[0];
    for point in [HookPoint::Question, HookPoint::LoopEnd] {
        queue.take(message(point), clock::monotonic());
    }
    let attempts: Vec<u32> = notifier
        .shutdown()
        .await
        .into_iter()
        .map(|incident| match incident {
            Incident::NotifyFailed { attempts, .. } => attempts,
            Incident::CloudCopied { .. }
            | Incident::CloudFailed { .. }
            | Incident::AccessRefused { .. } => panic!("{incident}"),
        })
        .collect();
    assert_eq!(attempts, [0, 0]);
}

#[test]
fn target_gets_only_its_configured_events() {
    let settings = Notify {
        on: vec![HookPoint::TestsChanged],
        ..notify(NotifyTarget::Desktop)
    };
    let address = &Address::all(&[settings], &BTreeMap::new(), &Proxies::default())[0];
    assert!(address.hears(HookPoint::TestsChanged));
    assert!(!address.hears(HookPoint::LoopEnd));
}

#[test]
fn a_signature_covers_time_and_body() {
    // The expected value is the output of `printf '1700000000.{}' | openssl dgst -sha256 -hmac key`.
    let signature = format::signature("key", 1_700_000_000, "{}").expect("a signature");
    assert_eq!(
        signature,
        "9d713ed406bb7076d4123f0dc2c39d2df5c654ed4b0cd56b52c8b4c940bd63ae"
    );
    // HMAC hashes a key first if it is longer than a block.
    let long = format::signature(&"k".repeat(100), 1, "x").expect("a signature");
    assert_eq!(
        long,
        "8dc72019a8a249d8f2d36e36fac06f4497511f4f50cfee8600a5d97fb8a91da5"
    );
}

#[test]
fn debug_output_and_names_show_no_secret() {
    let targets = [
        (NotifyTarget::Webhook, "https://hunter2.example/x"),
        (NotifyTarget::Slack, "https://hunter2.example/x"),
        (NotifyTarget::Discord, "https://hunter2.example/x"),
        (NotifyTarget::Telegram, "https://hunter2.example/x"),
        (NotifyTarget::Ntfy, "https://hunter2.example/x"),
        (NotifyTarget::Email, "smtps://hunter2.example"),
    ];
    for (to, url) in targets {
        let secrets = [("URL", url), ("KEY", "hunter3")];
        let secrets: BTreeMap<String, Secret> = secrets
            .map(|(name, value)| (name.to_owned(), value.to_owned().into()))
            .into();
        let settings = Notify {
            url_env: Some("URL".to_owned()),
            secret_env: Some("KEY".to_owned()),
            chat: Some("7".to_owned()),
            user: Some("me".to_owned()),
            from: Some("me@example.org".to_owned()),
            recipients: vec!["you@example.org".to_owned()],
            ..notify(to)
        };
        let address = Address::all(&[settings], &secrets, &Proxies::default()).remove(0);
        let delivery = format::delivery(&address, &message(HookPoint::LoopEnd));
        let delivery = delivery.expect("the message can be converted");
        let shown = format!("{delivery:?} {address:?} {}", address.name());
        assert!(!shown.contains("hunter"), "{shown}");
    }
}

#[test]
fn line_break_in_a_mail_address_is_rejected() {
    let settings = Notify {
        from: Some("me@example.org\r\nBcc: all".to_owned()),
        recipients: vec!["you@example.org".to_owned()],
        url: Some("smtp://127.0.0.1".to_owned().into()),
        ..notify(NotifyTarget::Email)
    };
    let address = Address::all(&[settings], &BTreeMap::new(), &Proxies::default()).remove(0);
    let error = format::delivery(&address, &message(HookPoint::Error))
        .expect_err("an address with a line break is rejected");
    assert_eq!(error, "`from` is not a mail address");
}
