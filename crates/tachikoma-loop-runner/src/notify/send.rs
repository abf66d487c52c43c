//! A message to see whether it arrives.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use tachikoma_core::{HookPoint, LoopId, State, Timestamp};
use tokio::sync::mpsc;

use super::{Address, Message, deliver};
use crate::clock::Clock;
use crate::hooks::HookEvent;
use crate::process::{Adoption, GuardOptions};
use crate::settings::{Notify, Secret};
use crate::shell::Shell;

/// How a message fared that was sent by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The target, as records name it.
    pub target: String,
    /// Why it did not arrive, if it did not.
    pub error: Option<String>,
}

/// Sends a message to all targets of the settings, or to the one of a number, from 1, once each: who waits for the answer can send
/// it again. Each result is told as soon as it is there. `guard` is the program whose main is
/// [`serve`](crate::process::serve), with the arguments that make it one.
pub async fn test(
    settings: &[Notify],
    secrets: &BTreeMap<String, Secret>,
    working_dir: &Path,
    guard: &[OsString],
    number: Option<usize>,
    mut told: impl FnMut(Sent),
) {
    let addresses = Address::all(settings, secrets);
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
        let mut words = guard.iter().cloned();
        let shell = Shell::new(GuardOptions {
            program: words.next().unwrap_or_default().into(),
            args: words.collect(),
            marker: loop_id.to_string(),
            lock: None,
            cgroup: true,
            adoption: Adoption::Marked,
            hidden: hidden.clone(),
            commands: false,
        });
        // Nobody stops it but whoever drops this future.
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
        told(Sent {
            target,
            error: delivered.error,
        });
    }
}
