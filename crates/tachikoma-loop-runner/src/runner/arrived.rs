//! What arrives at the runner, and from where.

use std::path::PathBuf;

use tachikoma_core::{HookResult, Input};

use super::desk::Told;
use super::upkeep::Upkeep;
use crate::control::Server;
use crate::gates::Found as Checked;
use crate::handle::Request;
use crate::notify::Delivered;
use crate::process::GuardNews;
use crate::session::process::{LaunchNews, LiveLaunch};
use crate::shell::{Errand, Ran};

pub(super) enum Arrived {
    Input(Input),
    /// A segment of the journal is damaged, so that no backup could be made of it.
    Damaged {
        segment: PathBuf,
        why: String,
    },
    SaveDue,
    Request(Request),
    Guard(GuardNews),
    Desk(Told),
    SnapshotLate,
    Hooks(Ran<Vec<HookResult>>),
    Beside(Ran<Vec<HookResult>>),
    Notice(usize, Ran<Delivered>),
    Check(Ran<Checked>),
    Launch(LaunchNews),
}

pub(super) async fn until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Returns which part of the runner panicked beside the launch, and how, or what it has to say; does not return as long as there
/// is nothing. Cancel-safe.
pub(super) async fn beside(control: Option<&mut Server>, upkeep: &mut Upkeep) -> Arrived {
    let control = async {
        match control {
            Some(control) => control.broken().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        reason = control => Arrived::Input(Input::Broken { reason }),
        arrived = upkeep.next() => arrived,
    }
}

pub(super) async fn ended<T: Send + 'static>(errand: Option<&mut Errand<T>>) -> Ran<T> {
    match errand {
        Some(errand) => errand.ended().await,
        None => std::future::pending().await,
    }
}

pub(super) async fn launch_news(launch: Option<&mut LiveLaunch>) -> LaunchNews {
    match launch {
        Some(launch) => launch.next().await,
        None => std::future::pending().await,
    }
}
