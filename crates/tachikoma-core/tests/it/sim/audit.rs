//! Independent check of the journal: verifies each record against the rules, without the code of the core.

use std::collections::BTreeSet;
use std::time::Duration;

use super::attendance::Attendance;
use super::books::Books;
use tachikoma_core::policy::completion::CompletionRules;
use tachikoma_core::policy::context::{Level, level};
use tachikoma_core::policy::timeout;
use tachikoma_core::{
    Autocommit, AutocommitPurpose, CommitStatus, Context, Generation, IterationOutcome,
    LimitedAttempt, LoopEvent, LoopStats, OperatorEvent, Outcome, Policy, RebootReason, Record,
    Seq, SessionNo, Timestamp,
};

use super::forward::Forward;
use super::proof::Proof;

#[derive(Default)]
pub struct Audit {
    seq: Seq,
    time: Timestamp,
    live: bool,
    paused: bool,
    stopping: bool,
    /// Whether a sufficient claim of completion was made, so that the loop has to end as done.
    done: bool,
    proof: Proof,
    /// When the current attempt began; `None` between attempts.
    open: Option<Timestamp>,
    /// Time of the last sign of activity of the agent.
    heard: Timestamp,
    iteration: u32,
    attempt: u32,
    cut: bool,
    generation: Generation,
    /// The launch number of the running agent process; `None` if none runs.
    agent: Option<Generation>,
    context: Option<Context>,
    advised: BTreeSet<u32>,
    reboots: Vec<Timestamp>,
    last_failure: Option<Timestamp>,
    failures: u32,
    session: SessionNo,
    session_iterations: u32,
    rebooting: bool,
    waits_its_turn: bool,
    /// Set while an auto-commit runs. The inner value is the outcome with which the loop ends after it.
    keeping: Option<Option<Outcome>>,
    /// Whether an attempt has ended and its changes were not surveyed yet.
    unseen: bool,
    uncommitted: u32,
    hurried: bool,
    tried_at_the_end: bool,
    streak: u32,
    forward: Forward,
    books: Books,
    attendance: Attendance,
    pub stats: LoopStats,
}

impl Audit {
    pub fn take(&mut self, policy: &Policy, record: &Record) {
        assert_eq!(record.seq, self.seq.next(), "records have no gaps");
        assert!(record.time >= self.time, "record times never decrease");
        self.seq = record.seq;
        self.time = record.time;
        if !self.live {
            let between_runs = super::books::is_between_runs(&record.event);
            let early = self.iteration == 0 && matches!(record.event, LoopEvent::Stopped { .. });
            assert!(
                between_runs || early,
                "a loop that has ended records nothing more"
            );
        }
        let (event, now) = (&record.event, record.time);
        self.forward.take(policy, event);
        self.attendance.take(policy, event);
        self.stats.no_progress_count = self.forward.streak;
        self.books.take(&policy.budgets, event, now, self.stopping);
        self.stats.cost_microusd = self.books.cost();
        self.stats.tokens = self.books.tokens();
        self.stats.on_subscription = self.books.on_subscription();
        match &record.event {
            LoopEvent::Started { .. } => {
                self.agent = None;
                if !self.live {
                    self.stats.test_failure_streak = 0;
                }
                self.paused &= self.live;
                self.live = true;
                self.stopping = false;
                self.hurried = false;
                self.keeping = None;
                // A new runner surveys the work tree before it does anything else.
                self.unseen = false;
                self.tried_at_the_end = false;
                // Without `persist_sessions`, a new runner replaces the session at once, which also ends a pending reboot.
                self.waits_its_turn &= policy.persist_sessions;
            }
            LoopEvent::PauseRequested => {
                assert!(!self.stopping, "a loop that is stopping does not pause");
            }
            LoopEvent::Paused { .. } => self.paused = true,
            LoopEvent::Resumed | LoopEvent::PauseWithdrawn => self.paused = false,
            LoopEvent::HooksStarted(start) => {
                let goes_on = start.outcome.is_none();
                self.paused &= goes_on;
                self.rebooting &= goes_on;
            }
            // A stop while hooks run ends the loop at once. The next run accepts the claim.
            LoopEvent::HooksRan(end) => self.done &= end.given_up.is_none(),
            LoopEvent::StopRequested { urgent, .. } => {
                self.stopping = true;
                self.hurried |= *urgent;
            }
            LoopEvent::SessionStarted { session, .. } => {
                assert_eq!(
                    *session,
                    self.session.next(),
                    "session numbers have no gaps"
                );
                self.session = *session;
                self.session_iterations = 0;
                self.context = None;
            }
            LoopEvent::IterationStarted {
                iteration,
                attempt,
                session,
                generation,
            } => {
                assert_eq!(*session, self.session);
                let up = self.agent == Some(*generation);
                assert!(
                    up || *generation > self.generation,
                    "a launch has its own number"
                );
                self.generation = *generation;
                self.agent = Some(*generation);
                let full = self.context.is_some_and(|context| {
                    level(policy, &tachikoma_core::Session::default(), &context) == Level::Hard
                });
                assert!(!full, "no prompt is sent at the hard limit");
                self.iteration_started(policy, *iteration, *attempt);
            }
            LoopEvent::AttemptCut {
                iteration,
                attempt,
                agent_lives,
                ..
            } => {
                assert_eq!((*iteration, *attempt), (self.iteration, self.attempt));
                // The attempt may also be over already, because its agent exited before it got the prompt.
                let open = self.open.take().is_some() || self.cut;
                assert!(open, "only an open attempt is cut");
                self.cut = true;
                self.agent = self.agent.filter(|_| *agent_lives);
                self.proof.claimed = false;
            }
            LoopEvent::IterationLimited(LimitedAttempt {
                iteration,
                attempt,
                agent_lives,
                ..
            }) => {
                assert_eq!((*iteration, *attempt), (self.iteration, self.attempt));
                assert!(
                    self.open.take().is_some(),
                    "only an open attempt is limited"
                );
                self.cut = true;
                self.agent = self.agent.filter(|_| *agent_lives);
            }
            LoopEvent::AgentExited { .. } => {
                assert!(self.agent.take().is_some(), "only a running agent exits");
                // The process exited before it got its prompt, so the iteration is repeated.
                self.cut |= self.open.take().is_some();
            }
            LoopEvent::SessionOpening { generation, .. } => {
                assert_eq!(self.agent, None, "two agents never share a work tree");
                assert!(self.rebooting && *generation > self.generation);
                self.generation = *generation;
                self.agent = Some(*generation);
            }
            LoopEvent::ContextMeasured { context, .. } => {
                self.context = Some(*context);
                self.heard = self.time;
            }
            LoopEvent::FileTouched { .. } => self.proof.worked = true,
            LoopEvent::ToolEnded { error, .. } => {
                self.proof.worked |= error.is_none();
                self.heard = self.time;
            }
            LoopEvent::AgentLaunched { .. }
            | LoopEvent::OutputSeen
            | LoopEvent::ToolDenied(_)
            | LoopEvent::ToolStarted { .. } => self.heard = self.time,
            LoopEvent::Suspended { duration_ms } => {
                self.heard = self.heard.after(Duration::from_millis(*duration_ms));
            }
            LoopEvent::SilenceChecked { .. } | LoopEvent::AgentBusy { .. } => {
                assert!(self.open.is_some(), "only a working agent is sampled");
                // Sampling takes time, and output is not recorded more often than once per interval.
                let slack = timeout::output_step(policy) + Duration::from_secs(20);
                let most = policy.timeouts.tool;
                assert!(
                    most.is_zero() || self.time <= self.heard.after(most + slack),
                    "no agent counts as busy for longer than tool_timeout"
                );
            }
            LoopEvent::WrapUpAdvised { .. } => {
                assert!(
                    self.advised.insert(self.session.0),
                    "the agent is asked to finish once per session"
                );
            }
            LoopEvent::IterationCompleted {
                report,
                agent_lives,
            } => {
                assert_eq!(report.iteration, self.iteration);
                self.agent = self.agent.filter(|_| *agent_lives);
                self.proof.claimed |= report.claimed;
                let unproven = policy.completion == CompletionRules::default();
                let blind = policy.autocommit.is_none() && !policy.agent.event_stream;
                self.done = report.claimed && unproven && (self.proof.worked || blind);
                self.finished(report.outcome, report.duration_ms);
            }
            LoopEvent::IterationFailed {
                iteration,
                duration_ms,
                streak,
                agent_lives,
                ..
            } => {
                assert_eq!(*iteration, self.iteration);
                self.agent = self.agent.filter(|_| *agent_lives);
                self.finished(IterationOutcome::Failed, *duration_ms);
                assert_eq!(
                    *streak, self.streak,
                    "the streak of failed iterations is right"
                );
            }
            LoopEvent::RebootRequested { reason, .. } => {
                self.rebooting = false;
                assert!(!self.stopping, "a loop that is stopping does not reboot");
                let counted = matches!(reason, RebootReason::IterationLimit { .. });
                assert!(
                    !(counted && self.open.is_some()),
                    "a limit of iterations does not interrupt an iteration"
                );
            }
            LoopEvent::RebootStarted { reason, from, .. } => {
                assert_eq!(*from, self.session);
                let allowed = policy.reboot.max_reboots;
                assert!(
                    *reason == RebootReason::Manual
                        || allowed.is_none_or(|max| self.stats.reboots < max),
                    "max_restarts = N means N reboots"
                );
                assert!(self.open.is_none(), "a reboot waits for the turn's end");
                let urgent = matches!(
                    reason,
                    RebootReason::Manual | RebootReason::ErrorRecovery { .. }
                );
                // Only an automatic reboot has to wait for the rate limit. It may request the hand-off earlier.
                self.waits_its_turn = !urgent;
                self.rebooting = true;
            }
            LoopEvent::RebootCompleted { to, .. } => {
                let early = self.waits_its_turn && self.may_not_reboot(policy);
                assert!(
                    self.rebooting && !early,
                    "automatic reboots obey the rate limit"
                );
                self.rebooting = false;
                self.stats.reboots += 1;
                self.reboots.push(self.time);
                self.failures = 0;
                assert_eq!(*to, self.session);
            }
            LoopEvent::RebootFailed { .. } => {
                assert!(self.rebooting);
                self.rebooting = false;
                self.last_failure = Some(self.time);
                self.failures += 1;
            }
            LoopEvent::Completed { outcome, stats } => {
                self.ended(policy, outcome, stats, "completed");
            }
            LoopEvent::Stopped { outcome, stats, .. } => {
                self.ended(policy, outcome, stats, "stopped");
            }
            LoopEvent::Error { outcome, stats } => self.ended(policy, outcome, stats, "error"),
            LoopEvent::AutocommitStarted(Autocommit {
                purpose,
                commit,
                outcome,
                ..
            }) => {
                // The paused loop is being stopped. If its runner dies during this commit, the next runner is not paused.
                self.paused &= outcome.is_none();
                self.autocommit_started(policy, *purpose, *commit, outcome.as_ref());
            }
            LoopEvent::AutocommitCanceled { .. } => {
                assert!(
                    self.keeping.is_some(),
                    "only a running auto-commit is canceled"
                );
            }
            LoopEvent::AutocommitFinished { result, .. } => {
                self.proof.worked |= result.changed > 0;
                assert!(
                    self.keeping.is_some(),
                    "only a running auto-commit finishes"
                );
                self.uncommitted = result.uncommitted;
            }
            LoopEvent::AutocommitGivenUp { .. } => {
                assert!(
                    self.keeping.is_some(),
                    "only a running auto-commit is abandoned"
                );
                self.proof.worked = true;
            }
            LoopEvent::SnapshotTaken { uncommitted, .. } => self.uncommitted = *uncommitted,
            LoopEvent::Claimed { .. } => {
                assert!(
                    self.open.is_some(),
                    "only a working agent claims completion"
                );
                self.proof.claimed = true;
            }
            LoopEvent::CheckStarted { .. } => {
                assert!(self.open.is_none() && !self.stopping && !self.rebooting);
                assert!(
                    !self.unseen || policy.autocommit.is_none(),
                    "an iteration is committed before it is checked"
                );
            }
            LoopEvent::ConditionsAnswered { answers } => self.proof.answered(answers),
            LoopEvent::GatesRan { results, iteration } => {
                // Gates that run before the first iteration do not change the streak of test failures.
                let failed = *iteration > 0 && results.iter().any(|gate| !gate.passed());
                let streak = &mut self.stats.test_failure_streak;
                *streak = if failed { *streak + 1 } else { 0 };
                self.proof.gates = results.clone();
            }
            // After the question, the operator may stop the loop or withdraw the claim.
            LoopEvent::Operator(OperatorEvent::Asked(_)) => self.done = false,
            LoopEvent::CheckGivenUp { .. } => {
                self.proof.gates.clear();
                // Without gates, only a rollback cancels a check. It cancels the claim too.
                self.done = false;
            }
            LoopEvent::ClaimRefused(_) => {
                assert!(self.proof.claimed, "only an existing claim is refused");
                assert!(!self.done, "a sufficient claim is not refused");
                self.proof.refused();
            }
            _ => {}
        }
    }

    /// Returns whether the loop may have changed files since the last survey.
    pub fn needs_survey(&self) -> bool {
        self.unseen || self.open.is_some()
    }

    fn iteration_started(&mut self, policy: &Policy, iteration: u32, attempt: u32) {
        let expected = if self.cut {
            (self.iteration, self.attempt + 1)
        } else {
            (self.iteration + 1, 1)
        };
        assert_eq!((iteration, attempt), expected, "iterations are contiguous");
        let limit = policy.max_iterations;
        assert!(
            limit == 0 || iteration <= limit,
            "max_iterations applies to all runs of the loop"
        );
        assert!(!self.paused, "a paused loop launches nothing");
        assert!(!self.stopping, "no launch follows a stop");
        assert!(!self.done, "no iteration follows an accepted claim");
        assert!(
            !self.proof.claimed || self.cut,
            "no iteration follows a claim that was not judged"
        );
        self.proof.began();
        assert!(self.open.is_none(), "one iteration at a time");
        assert!(!self.rebooting, "no iteration during a reboot");
        assert!(
            !self.unseen || policy.autocommit.is_none(),
            "the changes of an attempt are surveyed before the next one"
        );
        self.keeping = None;
        let rules = &policy.reboot;
        let due = rules.enabled
            && rules.max_reboots != Some(0)
            && rules
                .after_iterations
                .is_some_and(|most| self.session_iterations >= most);
        // An iteration that is repeated because its prompt was lost does not count again.
        assert!(
            !due || self.cut || self.may_not_reboot(policy) || self.attendance.said_no,
            "a session has at most after_iterations iterations, unless its reboot failed or has to wait"
        );
        (self.iteration, self.attempt) = expected;
        self.cut = false;
        self.heard = self.time;
        self.open = Some(self.time);
    }

    /// Returns whether the rate limit or a failed reboot delays the next automatic reboot.
    fn may_not_reboot(&self, policy: &Policy) -> bool {
        let rules = &policy.reboot;
        let after = |time: Option<Timestamp>, wait| time.is_some_and(|t| self.time < t.after(wait));
        let hour = Duration::from_secs(3600);
        let recent = |time: &&Timestamp| self.time.since(**time) < hour;
        let per_hour = self.reboots.iter().filter(recent).count();
        after(self.reboots.last().copied(), rules.min_interval)
            || after(self.last_failure, rules.failure_cooldown * self.failures)
            || (rules.max_per_hour > 0 && per_hour >= rules.max_per_hour as usize)
    }

    fn autocommit_started(
        &mut self,
        policy: &Policy,
        purpose: AutocommitPurpose,
        commit: Option<CommitStatus>,
        outcome: Option<&Outcome>,
    ) {
        let rules = policy.autocommit.expect("auto-commit is configured");
        assert!(self.open.is_none(), "no auto-commit during an attempt");
        assert!(
            commit.is_none() || (rules.commit && !self.hurried),
            "commits follow the configuration, and an urgent stop makes none"
        );
        assert!(
            commit != Some(CommitStatus::Failed) || rules.on_failure,
            "failed iterations are committed only if configured"
        );
        assert_eq!(purpose == AutocommitPurpose::End, outcome.is_some());
        assert_eq!(purpose == AutocommitPurpose::Checkpoint, self.rebooting);
        self.unseen = false;
        self.keeping = Some(outcome.cloned());
        self.tried_at_the_end |= purpose == AutocommitPurpose::End;
        // The request to stop is lost with its runner, and a new run is not paused.
        self.paused &= purpose != AutocommitPurpose::End;
    }

    fn finished(&mut self, outcome: IterationOutcome, duration_ms: u64) {
        self.proof.ended = Some(outcome == IterationOutcome::Succeeded);
        let started = self.open.take().expect("an attempt was open");
        assert_eq!(
            u128::from(duration_ms),
            self.time.since(started).as_millis()
        );
        self.unseen = true;
        self.session_iterations += 1;
        self.stats.iterations += 1;
        self.stats.execution_ms += duration_ms;
        match outcome {
            IterationOutcome::Succeeded => {
                self.stats.successful += 1;
                self.streak = 0;
            }
            IterationOutcome::Failed => {
                self.stats.failed += 1;
                self.streak += 1;
            }
            IterationOutcome::HandedOver => self.stats.handed_over += 1,
            IterationOutcome::Skipped => self.stats.skipped += 1,
            IterationOutcome::Interrupted => self.stats.interrupted += 1,
        }
    }

    fn ended(&mut self, policy: &Policy, outcome: &Outcome, stats: &LoopStats, event: &str) {
        let commits = policy.autocommit.is_some_and(|rules| rules.commit);
        let by_itself = matches!(outcome, Outcome::Done | Outcome::LimitReached { .. });
        let excused = self.tried_at_the_end || !commits || !by_itself || self.hurried;
        let clean = excused || self.uncommitted == 0;
        assert!(
            clean,
            "a loop that completes has tried to commit all changes"
        );
        assert_eq!(
            outcome.state().to_string(),
            event,
            "the recorded event matches the state of the outcome"
        );
        assert_eq!(
            *stats, self.stats,
            "the recorded totals match the sum of the records"
        );
        assert!(
            self.open.is_none(),
            "the last iteration has ended before the loop ends"
        );
        let stuck =
            matches!(outcome, Outcome::Error { reason } if reason.contains("stuck in the kernel"));
        assert!(
            !self.done || *outcome == Outcome::Done || stuck,
            "a loop with a sufficient claim ends as done"
        );
        if *outcome == Outcome::Done {
            self.proof.suffices(policy);
        }
        self.live = false;
        self.agent = None;
        self.rebooting = false;
        // A new run starts with an empty failure streak.
        (self.streak, self.failures) = (0, 0);
    }
}
