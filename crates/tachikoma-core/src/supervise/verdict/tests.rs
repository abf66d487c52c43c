//! Truth table: which ends of a server cause a restart under which policy.

use super::*;
use crate::exit::Exit;

const POLICIES: [RestartPolicy; 3] = [
    RestartPolicy::Always,
    RestartPolicy::OnCrash,
    RestartPolicy::Never,
];

fn policy(restart: RestartPolicy) -> ServerPolicy {
    ServerPolicy {
        restart,
        ..ServerPolicy::default()
    }
}

/// Returns the verdict of each of the three policies about an unexpected exit.
fn unexpected(exit: Exit) -> [&'static str; 3] {
    let end = ServerEnd::of(exit, None);
    POLICIES.map(
        |restart| match verdict(&policy(restart), &end, History::default()) {
            Verdict::Restart { attempt: 1 } => "restart",
            Verdict::Restart { .. } => "wrong attempt",
            Verdict::Replace => "replace",
            Verdict::Stay { reason } => match reason {
                StayReason::Stopped => "stopped",
                StayReason::ByUser => "by user",
                StayReason::NoRestarts => "off",
                StayReason::NormalExit => "normal exit",
                StayReason::Unknown => "unknown",
            },
            Verdict::GiveUp { .. } => "give up",
        },
    )
}

#[test]
fn verdict_on_an_unexpected_exit_depends_on_exit_code_and_policy() {
    let crash = ["restart", "restart", "off"];
    for code in [1, 2, 9, 15, 126, 127, 129, 137, 139, 255, -1] {
        assert_eq!(unexpected(Exit::Code(code)), crash, "code {code}");
    }
    for signal in [1, 3, 4, 6, 8, 9, 11, 13, 31] {
        assert_eq!(unexpected(Exit::Signal(signal)), crash, "signal {signal}");
    }
    for exit in [
        Exit::Signal(2),
        Exit::Signal(15),
        Exit::Code(130),
        Exit::Code(143),
    ] {
        assert_eq!(unexpected(exit), ["by user"; 3], "{exit}");
    }
    assert_eq!(
        unexpected(Exit::Code(0)),
        ["restart", "normal exit", "off"],
        "exit 0 that was not requested"
    );
    assert_eq!(
        unexpected(Exit::Unknown),
        ["unknown"; 3],
        "an unknown end may have been requested"
    );
}

/// After a requested stop the server may exit with 0, 1 or 143.
#[test]
fn purpose_of_the_supervisor_overrides_the_exit_code() {
    let exits = [Exit::Code(0), Exit::Code(1), Exit::Signal(9), Exit::Unknown];
    for exit in exits {
        for restart in POLICIES {
            let judge = |purpose: Purpose| {
                let end = ServerEnd::of(exit, Some(&purpose));
                verdict(
                    &policy(restart),
                    &end,
                    History {
                        attempts: 99,
                        healthy: true,
                    },
                )
            };
            let stopped = Verdict::Stay {
                reason: StayReason::Stopped,
            };
            assert_eq!(judge(Purpose::Stop), stopped);
            assert_eq!(judge(Purpose::Restart), Verdict::Replace);
            assert_eq!(judge(Purpose::Memory { rss_bytes: 1 }), Verdict::Replace);
        }
    }
}

/// A server that cannot be started, hangs or never answers counts as crashed.
#[test]
fn failures_to_start_and_hangs_are_crashes() {
    let why = String::new;
    let hung = |purpose: &Purpose| ServerEnd::of(Exit::Signal(9), Some(purpose));
    for end in [
        ServerEnd::NotStarted { why: why() },
        ServerEnd::LostWithGuard,
        hung(&Purpose::Hung { why: why() }),
        hung(&Purpose::NotReady { why: why() }),
    ] {
        assert!(end.is_crash(), "{end}");
        let judge = |restart| verdict(&policy(restart), &end, History::default());
        assert_eq!(
            judge(RestartPolicy::OnCrash),
            Verdict::Restart { attempt: 1 }
        );
        let off = Verdict::Stay {
            reason: StayReason::NoRestarts,
        };
        assert_eq!(judge(RestartPolicy::Never), off, "{end}");
    }
}

#[test]
fn supervisor_gives_up_after_the_allowed_attempts_and_never_without_a_limit() {
    let end = ServerEnd::of(Exit::Code(1), None);
    let judge = |max_restart_attempts, attempts| {
        let policy = ServerPolicy {
            max_restart_attempts,
            ..ServerPolicy::default()
        };
        verdict(
            &policy,
            &end,
            History {
                attempts,
                healthy: false,
            },
        )
    };
    assert_eq!(judge(5, 4), Verdict::Restart { attempt: 5 });
    assert_eq!(judge(5, 5), Verdict::GiveUp { attempts: 5 });
    assert_eq!(judge(1, 1), Verdict::GiveUp { attempts: 1 });
    assert_eq!(judge(0, 4_000), Verdict::Restart { attempt: 4_001 });
    let unexpected = ServerEnd::of(Exit::Code(0), None);
    let history = History {
        attempts: 5,
        healthy: false,
    };
    assert_eq!(
        verdict(&ServerPolicy::default(), &unexpected, history),
        Verdict::GiveUp { attempts: 5 },
        "restarts after exits with code 0 are limited too"
    );
}

/// The decision about an ended server has no side effects: the same input always gives the same decision.
#[test]
fn verdict_on_an_ended_server_is_the_same_for_repeated_calls() {
    let end = ServerEnd::of(Exit::Signal(9), None);
    let ask = || {
        verdict(
            &ServerPolicy::default(),
            &end,
            History {
                attempts: 2,
                healthy: false,
            },
        )
    };
    assert_eq!(ask(), ask());
}
