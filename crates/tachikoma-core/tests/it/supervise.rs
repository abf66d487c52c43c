//! One test for each rule of the server's supervisor.

mod memory;
mod started;

use std::time::Duration;

use tachikoma_core::supervise::{
    Answered, Jitter, Level, RestartBackoff, RestartPolicy, ServerEffect, ServerEvent, ServerInput,
    ServerPhase, ServerPolicy, ServerState, ServerStep, StartedBy, StayReason, apply, messages,
    step,
};
use tachikoma_core::{Exit, StopSignal, Ticket, Timestamp};

/// A simulated server with its supervisor. Time passes only when a test advances it.
pub struct Play {
    pub policy: ServerPolicy,
    pub state: ServerState,
    pub now: Timestamp,
    pub log: Vec<String>,
    pub effects: Vec<ServerEffect>,
}

impl Play {
    fn new(policy: ServerPolicy) -> Self {
        let mut play = Self {
            policy,
            state: ServerState::default(),
            now: Timestamp::from_millis(1_000_000),
            log: Vec::new(),
            effects: Vec::new(),
        };
        play.supervised(StartedBy::Command);
        play
    }

    fn supervised(&mut self, by: StartedBy) -> &mut Self {
        self.tell(ServerInput::Supervise { pid: 7, by })
    }

    fn tell(&mut self, input: ServerInput) -> &mut Self {
        let before = self.state.clone();
        let stepped = step(&self.policy, &mut self.state, self.now, Jitter(0), input);
        self.check_replay(before, &stepped);
        for record in &stepped.records {
            let lines = messages(&record.event).into_iter();
            let heard = lines.filter(|(level, _)| *level >= Level::Info);
            self.log.extend(heard.map(|(_, line)| line));
        }
        self.effects = stepped.effects;
        self
    }

    fn check_replay(&self, mut replayed: ServerState, stepped: &ServerStep) {
        for record in &stepped.records {
            let text = serde_json::to_string(record).expect("a record can be written");
            apply(
                &mut replayed,
                &serde_json::from_str(&text).expect("a record can be read"),
            );
        }
        replayed.pulse = self.state.pulse.clone();
        assert_eq!(replayed, self.state, "the records give the same state");
    }

    fn passes(&mut self, duration: Duration) -> &mut Self {
        self.now = self.now.after(duration);
        self.tell(ServerInput::Wake)
    }

    fn comes_up(&mut self) -> &mut Self {
        let generation = self.state.generation;
        self.tell(ServerInput::Spawned {
            generation,
            pid: 4711,
        });
        let answered = Answered::Healthy {
            url: "http://127.0.0.1:4096".into(),
            version: Some("1.18.33".into()),
        };
        self.tell(ServerInput::Answered {
            generation,
            answered,
        })
    }

    fn dies(&mut self, exit: Exit) -> &mut Self {
        let generation = self.state.generation;
        self.tell(ServerInput::Exited {
            generation,
            exit,
            leftovers: Vec::new(),
        })
    }

    fn silent(&mut self) -> &mut Self {
        let generation = self.state.generation;
        let what = "no answer within 2 s".into();
        self.tell(ServerInput::Answered {
            generation,
            answered: Answered::Silent { what },
        })
    }

    fn log(&mut self) -> String {
        std::mem::take(&mut self.log).join("\n")
    }

    fn delay(&self) -> Option<Duration> {
        match self.state.phase {
            ServerPhase::Waiting { until } => Some(until.since(self.now)),
            ServerPhase::Idle
            | ServerPhase::Starting { .. }
            | ServerPhase::Ready { .. }
            | ServerPhase::Ending { .. }
            | ServerPhase::Gone
            | ServerPhase::Down { .. }
            | ServerPhase::GaveUp { .. } => None,
        }
    }

    fn is_started(&self) -> bool {
        let generation = self.state.generation;
        self.effects.contains(&ServerEffect::Start { generation })
    }
}

const SECOND: Duration = Duration::from_secs(1);
const CRASH: Exit = Exit::Signal(9);

fn policy(change: impl FnOnce(&mut ServerPolicy)) -> ServerPolicy {
    let mut policy = ServerPolicy::default();
    change(&mut policy);
    policy
}

#[test]
fn crash_of_the_server_is_followed_by_a_delay_and_a_restart() {
    let mut play = Play::new(ServerPolicy::default());
    play.comes_up().passes(5 * SECOND).dies(Exit::Code(1));
    assert_eq!(play.delay(), Some(SECOND));
    assert!(!play.is_started(), "no start before the delay has passed");
    play.passes(Duration::from_millis(999));
    assert!(!play.is_started(), "no start a millisecond too early");
    play.passes(Duration::from_millis(1));
    assert!(play.is_started());
    insta::assert_snapshot!(play.log(), @r"
    starting OpenCode (start 1)
    OpenCode 1.18.33 is ready at http://127.0.0.1:4096
    OpenCode has ended: it crashed (exit 1), after 5.0 s of service
    restarting OpenCode in 1.0 s (attempt 1)
    starting OpenCode (start 2)
    ");
}

#[test]
fn unexpected_exit_causes_a_restart_unless_only_crashes_do() {
    let mut play = Play::new(ServerPolicy::default());
    play.comes_up().dies(Exit::Code(0));
    assert_eq!(play.delay(), Some(SECOND));
    assert!(
        play.log()
            .contains("\nRestarting OpenCode after unexpected exit\n")
    );
    let mut play = Play::new(policy(|policy| policy.restart = RestartPolicy::OnCrash));
    play.comes_up().dies(Exit::Code(0));
    let reason = StayReason::NormalExit;
    assert_eq!(play.state.phase, ServerPhase::Down { reason });
    play.tell(ServerInput::Restart { ticket: None }).comes_up();
    play.dies(CRASH);
    assert_eq!(play.delay(), Some(SECOND), "a crash causes a restart");
}

#[test]
fn server_stopped_by_a_user_is_not_restarted() {
    for exit in [
        Exit::Signal(15),
        Exit::Signal(2),
        Exit::Code(143),
        Exit::Code(130),
    ] {
        let mut play = Play::new(ServerPolicy::default());
        play.comes_up().dies(exit);
        let reason = StayReason::ByUser;
        assert_eq!(play.state.phase, ServerPhase::Down { reason }, "{exit}");
        let log = play.log();
        assert!(
            log.ends_with("\nOpenCode stopped by user, not restarting"),
            "{log}"
        );
        play.passes(1000 * SECOND);
        assert_eq!(play.effects, [], "the server stays stopped");
    }
}

#[test]
fn without_auto_restart_a_crash_is_only_logged() {
    let mut play = Play::new(policy(|policy| policy.restart = RestartPolicy::Never));
    play.comes_up().dies(CRASH).passes(1000 * SECOND);
    assert_eq!(play.effects, []);
    insta::assert_snapshot!(play.log(), @r"
    starting OpenCode (start 1)
    OpenCode 1.18.33 is ready at http://127.0.0.1:4096
    OpenCode has ended: it crashed (signal 9)
    OpenCode is not restarted: `opencode.auto_restart` is false
    ");
}

#[test]
fn crash_loop_causes_growing_delays_warnings_and_finally_no_restart() {
    let mut play = Play::new(ServerPolicy::default());
    let mut delays = Vec::new();
    for _ in 0..5 {
        play.comes_up().dies(CRASH);
        let delay = play.delay().expect("a restart is scheduled");
        delays.push(delay.as_secs());
        play.passes(delay);
    }
    assert_eq!(delays, [1, 2, 4, 8, 16]);
    assert_eq!(play.state.crashes_in_a_row, 5);
    let log = play.log();
    let warnings = log
        .matches("OpenCode crash loop detected, backing off")
        .count();
    assert_eq!(
        warnings, 3,
        "each crash from the third on has a warning:\n{log}"
    );
    play.comes_up().dies(CRASH);
    assert!(matches!(play.state.phase, ServerPhase::GaveUp { .. }));
    play.passes(1000 * SECOND);
    assert_eq!(play.effects, [], "the supervisor does not try again");
    play.tell(ServerInput::Restart {
        ticket: Some(Ticket(3)),
    });
    assert!(play.is_started(), "a command starts the server again");
    assert_eq!(play.state.attempts, 0);
}

#[test]
fn crashes_far_apart_are_not_a_crash_loop() {
    let mut play = Play::new(policy(|policy| policy.max_restart_attempts = 0));
    play.policy.backoff = RestartBackoff { base: SECOND };
    for _ in 0..6 {
        play.comes_up().passes(31 * SECOND).dies(CRASH);
        let delay = play.delay().expect("a restart is scheduled");
        play.passes(delay);
    }
    assert!(!play.log().contains("crash loop"));
}

/// The uptime is measured when the server exits.
#[test]
fn one_minute_of_healthy_uptime_resets_the_backoff() {
    for (uptime, expected) in [(59_999, 4), (60_000, 1)] {
        let mut play = Play::new(ServerPolicy::default());
        for _ in 0..2 {
            play.comes_up().dies(CRASH);
            let delay = play.delay().expect("a restart is scheduled");
            play.passes(delay);
        }
        play.comes_up();
        play.now = play.now.after(Duration::from_millis(uptime));
        play.dies(CRASH);
        assert_eq!(play.delay(), Some(expected * SECOND), "{uptime} ms");
    }
}

/// Time before the server is ready does not count as healthy uptime.
#[test]
fn server_that_never_becomes_ready_counts_as_crashed_with_its_last_problem() {
    let mut play = Play::new(ServerPolicy::default());
    let generation = play.state.generation;
    play.tell(ServerInput::Spawned { generation, pid: 1 })
        .silent();
    play.passes(60 * SECOND);
    let signal = StopSignal::Kill;
    assert_eq!(play.effects, [ServerEffect::Signal { generation, signal }]);
    play.dies(CRASH);
    assert_eq!((play.state.attempts, play.state.crashes_in_a_row), (1, 1));
    let log = play.log();
    assert!(
        log.contains("it did not become ready: no answer within 2 s"),
        "{log}"
    );
}

#[test]
fn server_that_cannot_start_is_retried_until_the_attempts_are_used_up() {
    let mut play = Play::new(ServerPolicy::default());
    for _ in 0..6 {
        let generation = play.state.generation;
        let why = "no program `opencode`".into();
        play.tell(ServerInput::NotStarted { generation, why });
        if let Some(delay) = play.delay() {
            play.passes(delay);
        }
    }
    assert!(matches!(play.state.phase, ServerPhase::GaveUp { .. }));
    let log = play.log();
    assert!(
        log.contains(
            "gave up on OpenCode after 5 restarts: it could not be started: no program `opencode`"
        ),
        "{log}"
    );
}

#[test]
fn stop_cancels_the_delay_before_a_restart_at_once() {
    let mut play = Play::new(ServerPolicy::default());
    play.comes_up().dies(CRASH);
    play.tell(ServerInput::Stop { ticket: None });
    assert_eq!(play.effects, [ServerEffect::Finish]);
    assert_eq!(play.state.phase, ServerPhase::Idle);
}

/// The stop is recorded before the first signal, and the signals escalate.
#[test]
fn stop_ends_tools_then_terminates_then_kills() {
    let mut play = Play::new(ServerPolicy::default());
    play.comes_up().tell(ServerInput::Stop { ticket: None });
    let generation = play.state.generation;
    assert_eq!(play.effects, [ServerEffect::Release { generation }]);
    let signal = |signal| ServerEffect::Signal { generation, signal };
    play.tell(ServerInput::Released { generation });
    assert_eq!(play.effects, [signal(StopSignal::Terminate)]);
    play.passes(5 * SECOND);
    assert_eq!(play.effects, [signal(StopSignal::Kill)]);
    play.dies(CRASH);
    assert_eq!(play.effects, [ServerEffect::Finish]);
    assert_eq!(
        play.state.crashes_total, 0,
        "a requested stop is not a crash"
    );
}

#[test]
fn server_that_misses_three_health_checks_is_killed_and_restarted() {
    let mut play = Play::new(ServerPolicy::default());
    play.comes_up();
    for _ in 0..2 {
        play.passes(5 * SECOND).silent();
    }
    play.passes(5 * SECOND).comes_up();
    for _ in 0..3 {
        assert_eq!(
            play.state.phase.purpose(),
            None,
            "an answer in between resets the count"
        );
        play.passes(5 * SECOND).silent();
    }
    play.dies(CRASH);
    assert_eq!(play.delay(), Some(SECOND));
    let log = play.log();
    assert!(
        log.contains("it hung: 3 health checks in a row failed (no answer within 2 s)"),
        "{log}"
    );
}

/// The counters are read from the journal of the dead supervisor.
#[test]
fn counters_survive_a_dead_supervisor_and_a_manual_start_clears_them() {
    let mut play = Play::new(ServerPolicy::default());
    play.comes_up().dies(CRASH).passes(SECOND);
    play.supervised(StartedBy::Service);
    assert!(play.is_started(), "the server died with the supervisor");
    assert_eq!((play.state.attempts, play.state.crashes_in_a_row), (1, 1));
    play.comes_up().dies(CRASH);
    assert_eq!(play.delay(), Some(2 * SECOND));
    play.supervised(StartedBy::Service);
    assert_eq!(
        play.delay(),
        Some(2 * SECOND),
        "the delay of the restart continues"
    );
    play.tell(ServerInput::Stop { ticket: None });
    play.supervised(StartedBy::Service);
    assert!(play.is_started());
    assert_eq!((play.state.attempts, play.state.crashes.len()), (0, 0));
}

/// A health check that came too early is repeated when the server prints that it listens.
#[test]
fn listening_line_triggers_a_health_check() {
    let mut play = Play::new(ServerPolicy::default());
    let generation = play.state.generation;
    let probe = ServerEffect::Probe { generation };
    // A fast server may listen before the guard reports its start.
    play.tell(ServerInput::Listening { generation });
    assert_eq!(play.effects, []);
    play.tell(ServerInput::Spawned { generation, pid: 1 });
    assert_eq!(play.effects, std::slice::from_ref(&probe));
    play.tell(ServerInput::Listening { generation });
    assert_eq!(play.effects, std::slice::from_ref(&probe));
    play.silent();
    assert_eq!(play.effects, []);
    play.passes(Duration::from_millis(50));
    assert_eq!(play.effects, [probe]);
}

/// An HTML page or a wrong password is not waited for as long as a slow start.
#[test]
fn wrong_answers_end_a_start_early() {
    let mut play = Play::new(ServerPolicy::default());
    let generation = play.state.generation;
    play.tell(ServerInput::Spawned { generation, pid: 1 });
    let mut asked = 0;
    while play.state.phase.purpose().is_none() {
        asked += 1;
        let what = "it answers with a page".into();
        let answered = Answered::Wrong { what };
        play.tell(ServerInput::Answered {
            generation,
            answered,
        });
        play.passes(Duration::from_millis(50));
    }
    assert_eq!(asked, 20);
}

#[test]
fn suspension_extends_the_start_timeout() {
    let mut play = Play::new(ServerPolicy::default());
    play.now = play.now.after(3600 * SECOND);
    play.tell(ServerInput::Suspended {
        duration: 3600 * SECOND,
    });
    play.tell(ServerInput::Wake);
    assert_eq!(play.state.phase.purpose(), None);
}

#[test]
fn events_of_an_earlier_server_are_dropped() {
    let mut play = Play::new(policy(|policy| policy.backoff.base = Duration::ZERO));
    let old = play.state.generation;
    play.comes_up().dies(CRASH);
    assert!(
        play.is_started(),
        "the server starts in the same step, without a delay"
    );
    let before = play.state.clone();
    play.tell(ServerInput::Exited {
        generation: old,
        exit: CRASH,
        leftovers: Vec::new(),
    });
    assert_eq!(play.state, before);
}

#[test]
fn restart_is_recorded_before_the_start() {
    let mut state = ServerState::default();
    let policy = policy(|policy| policy.backoff.base = Duration::ZERO);
    let mut tell = |input| {
        step(
            &policy,
            &mut state,
            Timestamp::from_millis(1),
            Jitter(9),
            input,
        )
    };
    let first = tell(ServerInput::Supervise {
        pid: 1,
        by: StartedBy::Command,
    });
    let Some(ServerEvent::Started { generation, .. }) = first.records.last().map(|r| &r.event)
    else {
        panic!("{first:?}");
    };
    let death = tell(ServerInput::Exited {
        generation: *generation,
        exit: CRASH,
        leftovers: Vec::new(),
    });
    let kinds = death.records.iter().map(|record| {
        let value = serde_json::to_value(&record.event).expect("an event can be written");
        value["kind"].as_str().unwrap_or_default().to_owned()
    });
    assert_eq!(
        kinds.collect::<Vec<_>>(),
        ["stopped", "restarting", "started"]
    );
}
