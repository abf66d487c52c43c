//! How a new supervisor, new settings and stop signals affect a server that is down or waits for a restart.

use std::time::Duration;

use tachikoma_core::Exit;
use tachikoma_core::supervise::{
    RestartBackoff, RestartPolicy, ServerInput, ServerPhase, ServerPolicy, StartedBy, StayReason,
    StopSignals,
};

use super::{CRASH, Play, SECOND};

/// A tool in a loop's own server can send a signal to that server. No user stops this server with a signal.
#[test]
fn a_stop_signal_to_a_loops_own_server_is_a_crash() {
    let mut play = Play::new(ServerPolicy {
        signals: StopSignals::Crash,
        max_restart_attempts: 1,
        ..ServerPolicy::default()
    });
    play.comes_up().dies(Exit::Signal(15));
    assert_eq!(play.delay(), Some(SECOND));
    play.passes(SECOND);
    assert!(play.is_started());
    play.comes_up().dies(Exit::Signal(2));
    assert!(matches!(play.state.phase, ServerPhase::GaveUp { .. }));
    let mut shared = Play::new(ServerPolicy::default());
    shared.comes_up().dies(Exit::Signal(15));
    assert!(matches!(shared.state.phase, ServerPhase::Down { .. }));
}

#[test]
fn a_command_starts_a_server_that_is_down_and_a_service_manager_does_not() {
    let down = |exit: Exit| {
        let mut play = Play::new(ServerPolicy {
            max_restart_attempts: 1,
            backoff: RestartBackoff {
                base: Duration::ZERO,
            },
            ..ServerPolicy::default()
        });
        play.comes_up().dies(exit);
        if play.is_started() {
            play.comes_up().dies(exit);
        }
        play
    };
    for exit in [Exit::Signal(15), CRASH] {
        let mut play = down(exit);
        play.supervised(StartedBy::Service);
        assert!(!play.is_started(), "{exit}");
        play.supervised(StartedBy::Command);
        assert!(play.is_started(), "{exit}");
        assert_eq!((play.state.attempts, play.state.crashes.len()), (0, 0));
    }
    let mut waits = Play::new(ServerPolicy::default());
    waits.comes_up().dies(CRASH);
    waits.supervised(StartedBy::Service);
    assert!(!waits.is_started());
    waits.supervised(StartedBy::Command);
    assert!(waits.is_started());
}

/// The last record, `closed`, of an orderly shutdown may be incomplete, because it was not written in full.
#[test]
fn supervisor_starts_the_server_if_the_record_of_the_orderly_shutdown_is_missing() {
    for by in [StartedBy::Command, StartedBy::Service] {
        let mut play = Play::new(ServerPolicy::default());
        play.comes_up().tell(ServerInput::Stop { ticket: None });
        let mut torn = play.state.clone();
        play.dies(Exit::Signal(15));
        assert_eq!(play.state.phase, ServerPhase::Idle);
        torn.last_end = play.state.last_end.clone();
        torn.phase = ServerPhase::Gone;
        play.state = torn;
        play.supervised(by);
        assert!(play.is_started(), "{by:?}");
    }
}

#[test]
fn settings_reloaded_during_a_backoff_apply_at_once() {
    let waits = || {
        let mut play = Play::new(ServerPolicy {
            backoff: RestartBackoff { base: 30 * SECOND },
            ..ServerPolicy::default()
        });
        play.comes_up().dies(CRASH);
        assert_eq!(play.delay(), Some(30 * SECOND));
        play
    };
    let mut shorter = waits();
    shorter.policy.backoff.base = SECOND;
    shorter.tell(ServerInput::Reloaded).passes(SECOND);
    assert!(shorter.is_started());
    let mut longer = waits();
    longer.policy.backoff.base = 60 * SECOND;
    longer.tell(ServerInput::Reloaded).passes(30 * SECOND);
    assert!(
        longer.is_started(),
        "new settings do not make a running delay longer"
    );
    let mut off = waits();
    off.policy.restart = RestartPolicy::Never;
    off.tell(ServerInput::Reloaded).passes(60 * SECOND);
    assert!(!off.is_started());
    let reason = StayReason::NoRestarts;
    assert_eq!(off.state.phase, ServerPhase::Down { reason });
}
