//! A server that uses too much memory.

use super::*;

#[test]
fn too_large_server_is_replaced_when_no_session_is_busy() {
    let mut play = Play::new(policy(|policy| policy.max_rss_bytes = 1000));
    play.comes_up().passes(5 * SECOND);
    let generation = play.state.generation;
    assert!(play.effects.contains(&ServerEffect::Measure { generation }));
    play.tell(ServerInput::Boundary { generation });
    assert_eq!(play.effects, [], "the server is not too large yet");
    play.tell(ServerInput::Measured {
        generation,
        rss_bytes: 1001,
    });
    assert_eq!(play.effects, [ServerEffect::AskIdle { generation }]);
    play.passes(5 * SECOND);
    assert!(
        play.effects.contains(&ServerEffect::AskIdle { generation }),
        "the supervisor asks again until no session is busy"
    );
    play.tell(ServerInput::Boundary { generation });
    assert_eq!(play.effects, [ServerEffect::Release { generation }]);
    play.passes(60 * SECOND)
        .tell(ServerInput::Released { generation })
        .dies(Exit::Signal(15));
    assert!(
        play.is_started(),
        "the server is started again without a delay"
    );
    assert_eq!((play.state.attempts, play.state.crashes_total), (0, 0));
}

#[test]
fn server_that_is_always_too_large_is_not_replaced_without_end() {
    let mut play = Play::new(policy(|policy| policy.max_rss_bytes = 1000));
    for attempt in 1..=6 {
        play.comes_up().passes(5 * SECOND);
        let generation = play.state.generation;
        play.tell(ServerInput::Measured {
            generation,
            rss_bytes: 1001,
        })
        .tell(ServerInput::Boundary { generation })
        .tell(ServerInput::Released { generation })
        .dies(Exit::Signal(15));
        assert!(!play.is_started(), "the next start has a delay");
        assert_eq!(play.state.attempts, attempt.min(5));
        play.passes(100 * SECOND);
    }
    assert!(matches!(play.state.phase, ServerPhase::GaveUp { .. }));
    assert_eq!(
        play.state.crashes_total, 0,
        "a server that is too large has not crashed"
    );
}
