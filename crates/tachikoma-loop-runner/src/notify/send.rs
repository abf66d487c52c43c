//! Sends a test message to configured targets.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use tachikoma_cloud::Proxies;
use tachikoma_core::{HookPoint, LoopId, State, Timestamp};
use tokio::sync::mpsc;

use super::{Address, Message, deliver};
use crate::clock::Clock;
use crate::hooks::HookEvent;
use crate::process::GuardOptions;
use crate::settings::{Notify, Secret};
use crate::shell::Shell;

/// The result of a test message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestDelivery {
    /// Name of the target in records.
    pub target: String,
    /// Why the message was not delivered; `None` if it was delivered.
    pub error: Option<String>,
}

/// Sends a test message to all targets, or only to target `number` (from 1). Each is tried once, and `report` gets each result immediately.
/// `guard` is a program that calls [`serve`](crate::process::serve), with its arguments.
pub async fn test(
    settings: &[Notify],
    secrets: &BTreeMap<String, Secret>,
    working_dir: &Path,
    guard: &[OsString],
    proxies: &Proxies,
    number: Option<usize>,
    mut report: impl FnMut(TestDelivery),
) {
    let addresses = Address::all(settings, secrets, proxies);
    let wanted = |address: &Address| number.is_none_or(|number| number == address.number);
    let names = settings.iter().flat_map(Notify::variables);
    let hidden: Vec<OsString> = names.map(Into::into).collect();
    for address in addresses.into_iter().filter(wanted) {
        let loop_id = LoopId::from_u128(0);
        let state = State::new(loop_id);
        let mut event = HookEvent::new(HookPoint::LoopEnd, None, &state, working_dir);
        event.test = true;
        event.reason_text = "a test of this notification".to_owned();
        let message = Message {
            event,
            time: Clock::starting_after(Timestamp::default()).now(),
            left_out: 0,
        };
        let shell = Shell::new(GuardOptions {
            hidden: hidden.clone(),
            ..GuardOptions::new(guard, loop_id.to_string())
        });
        // No command is ever sent: the caller cancels the delivery by dropping this future.
        let (_orders, ordered) = mpsc::channel(1);
        let target = address.name();
        let delivered = deliver::deliver(
            address,
            message,
            shell,
            ordered,
            Arc::new(AtomicU32::new(0)),
            1,
        )
        .await;
        report(TestDelivery {
            target,
            error: delivered.error,
        });
    }
}
