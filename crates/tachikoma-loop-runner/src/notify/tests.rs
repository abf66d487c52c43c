//! What is told, and how often.

use std::path::Path;

use tachikoma_core::{LoopId, State};

use super::*;
use crate::settings::{Moment, NotifyTarget};

fn notify(to: NotifyTarget) -> Notify {
    let table = format!("to = '{}'", to.word());
    toml::from_str(&table).expect("a table")
}

fn queue(settings: Notify) -> Queue {
    let address = Address::all(&[settings], &BTreeMap::new()).remove(0);
    let mut notices = Notices::new(vec![address]);
    notices.queues.remove(0)
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
fn too_many_are_left_out_and_counted_but_never_those_that_matter() {
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
    let last = queue.waiting.back().expect("the end is told");
    assert_eq!(last.left_out, 3);
    assert!(
        last.text()
            .ends_with("(3 messages before it were left out)"),
        "{}",
        last.text()
    );
    // An hour later others may come again.
    queue.take(message(HookPoint::IterationEnd), now + HOUR);
    assert_eq!(queue.waiting.len(), 4);
}

#[test]
fn a_full_queue_keeps_the_end() {
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
    let last = queue.waiting.back().expect("something waits");
    assert_eq!(last.event.point, HookPoint::LoopEnd);
}

#[test]
fn what_matters_has_a_bound_too_and_what_goes_for_it_is_said() {
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
    assert_eq!(gone[0], HookPoint::Error, "it goes first");
    assert_eq!(gone.len(), WAITING_MAX + 2);
    let questions = gone.iter().filter(|it| **it == HookPoint::Question);
    assert_eq!(questions.count(), WAITING_MAX + 1);
}

#[tokio::test]
async fn what_was_not_tried_is_not_said_to_have_been() {
    let settings = Notify {
        on: vec![Moment::LoopEnd, Moment::Question],
        ..notify(NotifyTarget::Desktop)
    };
    let mut notices = Notices::new(Address::all(&[settings], &BTreeMap::new()));
    let queue = &mut notices.queues[0];
    for point in [HookPoint::Question, HookPoint::LoopEnd] {
        queue.take(message(point), clock::monotonic());
    }
    let attempts: Vec<u32> = notices
        .end()
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
fn one_hears_of_what_it_is_to_hear_of() {
    let settings = Notify {
        on: vec![Moment::TestsChanged],
        ..notify(NotifyTarget::Desktop)
    };
    let address = &Address::all(&[settings], &BTreeMap::new())[0];
    assert!(address.hears(HookPoint::TestsChanged));
    assert!(!address.hears(HookPoint::LoopEnd));
}

#[test]
fn a_signature_is_that_of_time_and_body() {
    // From `printf '1700000000.{}' | openssl dgst -sha256 -hmac key`.
    let signature = format::signature("key", 1_700_000_000, "{}");
    assert_eq!(
        signature,
        "9d713ed406bb7076d4123f0dc2c39d2df5c654ed4b0cd56b52c8b4c940bd63ae"
    );
    // A key that is longer than a block is hashed first.
    let long = format::signature(&"k".repeat(100), 1, "x");
    assert_eq!(
        long,
        "8dc72019a8a249d8f2d36e36fac06f4497511f4f50cfee8600a5d97fb8a91da5"
    );
}

#[test]
fn secrets_are_in_no_argument_and_no_variable() {
    let secrets = [("URL", "https://hunter2.example/x"), ("KEY", "hunter3")];
    let secrets: BTreeMap<String, Secret> = secrets
        .map(|(name, value)| (name.to_owned(), value.to_owned().into()))
        .into();
    let targets = [
        NotifyTarget::Webhook,
        NotifyTarget::Slack,
        NotifyTarget::Discord,
        NotifyTarget::Telegram,
        NotifyTarget::Ntfy,
        NotifyTarget::Email,
    ];
    for to in targets {
        let settings = Notify {
            url_env: Some("URL".to_owned()),
            secret_env: Some("KEY".to_owned()),
            chat: Some("7".to_owned()),
            user: Some("me".to_owned()),
            from: Some("me@example.org".to_owned()),
            recipients: vec!["you@example.org".to_owned()],
            ..notify(to)
        };
        let address = Address::all(&[settings], &secrets).remove(0);
        let order = format::order(&address, &message(HookPoint::LoopEnd)).expect("an order");
        let seen = format!(
            "{:?} {:?} {:?} {}",
            order.program,
            order.args,
            order.env,
            address.name()
        );
        assert!(!seen.contains("hunter"), "{seen}");
        assert!(String::from_utf8_lossy(&order.input).contains("hunter2"));
        assert!(!format!("{address:?}").contains("hunter"));
    }
}

#[test]
fn no_line_break_gets_into_a_header_or_out_of_a_setting() {
    let settings = Notify {
        from: Some("me@example.org\r\nBcc: all".to_owned()),
        recipients: vec!["you@example.org".to_owned()],
        url: Some("smtp://127.0.0.1".to_owned().into()),
        ..notify(NotifyTarget::Email)
    };
    let address = Address::all(&[settings], &BTreeMap::new()).remove(0);
    let mut message = message(HookPoint::Error);
    message.event.reason_text = "a\"\nurl = \"http://elsewhere".to_owned();
    let order = format::order(&address, &message).expect("an order");
    let input = String::from_utf8(order.input).expect("text");
    let urls = input
        .lines()
        .filter(|line| line.trim_start().starts_with("url"));
    assert_eq!(urls.collect::<Vec<_>>(), ["url = \"smtp://127.0.0.1\""]);
    assert!(!input.lines().any(|line| line.starts_with("Bcc")));
}
