//! A second opinion on the journal: what any reader may rely on, checked record by record without asking the core.

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
    /// A claim that suffices was made, so the loop is owed its end.
    done: bool,
    proof: Proof,
    /// When the attempt under way began.
    open: Option<Timestamp>,
    /// When the agent was last heard of.
    heard: Timestamp,
    iteration: u32,
    attempt: u32,
    cut: bool,
    generation: Generation,
    /// The process that lives.
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
    /// What is being kept, with the outcome that follows it.
    keeping: Option<Option<Outcome>>,
    /// Whether an attempt ended that was not looked at.
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
        assert!(record.time >= self.time, "time never falls");
        self.seq = record.seq;
        self.time = record.time;
        if !self.live {
            let between_runs = super::books::is_between_runs(&record.event);
            let early = self.iteration == 0 && matches!(record.event, LoopEvent::Stopped { .. });
            assert!(
                between_runs || early,
                "nothing happens in a loop that ended"
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
                // A runner looks before it does anything.
                self.unseen = false;
                self.tried_at_the_end = false;
                // A new runner replaces the session then, and a reboot under way is over with it.
                self.waits_its_turn &= policy.persist_sessions;
            }
            LoopEvent::PauseRequested => {
                assert!(!self.stopping, "a loop that stops will not pause");
            }
            LoopEvent::Paused { .. } => self.paused = true,
            LoopEvent::Resumed | LoopEvent::PauseWithdrawn => self.paused = false,
            LoopEvent::HooksStarted(start) => {
                let goes_on = start.outcome.is_none();
                self.paused &= goes_on;
                self.rebooting &= goes_on;
            }
            // A stop while hooks run ends the loop at once. The next run believes the claim.
            LoopEvent::HooksRan(end) => self.done &= end.given_up.is_none(),
            LoopEvent::StopRequested { urgent, .. } => {
                self.stopping = true;
                self.hurried |= *urgent;
            }
            LoopEvent::SessionStarted { session, .. } => {
                assert_eq!(*session, self.session.next(), "sessions are counted");
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
                assert!(!full, "nothing is prompted at the hard limit");
                self.iteration_started(policy, *iteration, *attempt);
            }
            LoopEvent::AttemptCut {
                iteration,
                attempt,
                agent_lives,
                ..
            } => {
                assert_eq!((*iteration, *attempt), (self.iteration, self.attempt));
                // Or an attempt with an agent that exited before it got its prompt.
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
                assert!(self.agent.take().is_some(), "only what lives ends");
                // A process that was gone before it heard its prompt: the iteration is repeated.
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
                assert!(self.open.is_some(), "only an agent at work is looked at");
                // A look takes its time, and output is recorded in steps.
                let slack = timeout::output_step(policy) + Duration::from_secs(20);
                let most = policy.timeouts.tool;
                assert!(
                    most.is_zero() || self.time <= self.heard.after(most + slack),
                    "nobody is busy for longer than tool_timeout"
                );
            }
            LoopEvent::WrapUpAdvised { .. } => {
                assert!(self.advised.insert(self.session.0), "once per session");
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
                assert_eq!(*streak, self.streak, "failures in a row are counted");
            }
            LoopEvent::RebootRequested { reason, .. } => {
                self.rebooting = false;
                assert!(!self.stopping, "a loop that stops has no use for a reboot");
                let counted = matches!(reason, RebootReason::IterationLimit { .. });
                assert!(
                    !(counted && self.open.is_some()),
                    "a count of iterations is no reason to cut one"
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
                // One that comes too early asks for the hand-off, and is put off.
                self.waits_its_turn = !urgent;
                self.rebooting = true;
            }
            LoopEvent::RebootCompleted { to, .. } => {
                let early = self.waits_its_turn && self.may_not_reboot(policy);
                assert!(self.rebooting && !early, "reboots keep their distance");
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
                assert!(self.keeping.is_some(), "what is under way is called off");
            }
            LoopEvent::AutocommitFinished { kept, .. } => {
                self.proof.worked |= kept.changed > 0;
                assert!(self.keeping.is_some(), "only what was asked is answered");
                self.uncommitted = kept.uncommitted;
            }
            LoopEvent::AutocommitGivenUp { .. } => {
                assert!(self.keeping.is_some(), "only what is under way is given up");
                self.proof.worked = true;
            }
            LoopEvent::SnapshotTaken { uncommitted, .. } => self.uncommitted = *uncommitted,
            LoopEvent::Claimed { .. } => {
                assert!(self.open.is_some(), "who is not at work claims nothing");
                self.proof.claimed = true;
            }
            LoopEvent::CheckStarted { .. } => {
                assert!(self.open.is_none() && !self.stopping && !self.rebooting);
                assert!(
                    !self.unseen || policy.autocommit.is_none(),
                    "the work is kept before it is checked"
                );
            }
            LoopEvent::ConditionsAnswered { answers } => self.proof.answered(answers),
            LoopEvent::GatesRan { results, iteration } => {
                // Before the first iteration they count for nothing.
                let failed = *iteration > 0 && results.iter().any(|gate| !gate.passed());
                let streak = &mut self.stats.test_failure_streak;
                *streak = if failed { *streak + 1 } else { 0 };
                self.proof.gates = results.clone();
            }
            // An operator who is asked after it may stop the loop or withdraw the claim.
            LoopEvent::Operator(OperatorEvent::Asked(_)) => self.done = false,
            LoopEvent::CheckGivenUp { .. } => {
                self.proof.gates.clear();
                // Without gates only a rollback gives a check up, and the claim with it.
                self.done = false;
            }
            LoopEvent::ClaimRefused(_) => {
                assert!(self.proof.claimed, "only what is claimed is refused");
                assert!(!self.done, "what suffices is not refused");
                self.proof.refused();
            }
            _ => {}
        }
    }

    /// Returns whether the loop may have changed something since it was last looked at.
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
            "max_iterations is kept over the life of the loop"
        );
        assert!(!self.paused, "a paused loop launches nothing");
        assert!(!self.stopping, "no launch follows a stop");
        assert!(!self.done, "no iteration follows a believed claim");
        assert!(
            !self.proof.claimed || self.cut,
            "no iteration follows a claim that nobody judged"
        );
        self.proof.began();
        assert!(self.open.is_none(), "one iteration at a time");
        assert!(!self.rebooting, "no iteration during a reboot");
        assert!(
            !self.unseen || policy.autocommit.is_none(),
            "what an attempt did is looked at before the next one"
        );
        self.keeping = None;
        let rules = &policy.reboot;
        let due = rules.enabled
            && rules.max_reboots != Some(0)
            && rules
                .after_iterations
                .is_some_and(|most| self.session_iterations >= most);
        // A lost prompt is given again, and does not count as another iteration.
        assert!(
            !due || self.cut || self.may_not_reboot(policy) || self.attendance.said_no,
            "a session has no more iterations than it may, unless its reboot failed or has to wait"
        );
        (self.iteration, self.attempt) = expected;
        self.cut = false;
        self.heard = self.time;
        self.open = Some(self.time);
    }

    /// Returns whether an automatic reboot has to wait.
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
        let rules = policy.autocommit.expect("there is where to keep it");
        assert!(self.open.is_none(), "nothing is kept while an agent works");
        assert!(
            commit.is_none() || (rules.commit && !self.hurried),
            "nothing is committed that is not to be, nor by one in a hurry"
        );
        assert!(
            commit != Some(CommitStatus::Failed) || rules.on_failure,
            "failed iterations are committed where that is wanted"
        );
        assert_eq!(purpose == AutocommitPurpose::End, outcome.is_some());
        assert_eq!(purpose == AutocommitPurpose::Checkpoint, self.rebooting);
        self.unseen = false;
        self.keeping = Some(outcome.cloned());
        self.tried_at_the_end |= purpose == AutocommitPurpose::End;
        // The request to stop dies with its runner, and who runs the loop again wants it to go on.
        self.paused &= purpose != AutocommitPurpose::End;
    }

    fn finished(&mut self, outcome: IterationOutcome, duration_ms: u64) {
        self.proof.ended = Some(outcome == IterationOutcome::Succeeded);
        let started = self.open.take().expect("an iteration ends once");
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
        assert!(clean, "what is left is committed at the end");
        assert_eq!(outcome.state().to_string(), event, "the state is derived");
        assert_eq!(*stats, self.stats, "the numbers close");
        assert!(
            self.open.is_none(),
            "every iteration that began is accounted for before the end"
        );
        let stuck =
            matches!(outcome, Outcome::Error { reason } if reason.contains("stuck in the kernel"));
        assert!(
            !self.done || *outcome == Outcome::Done || stuck,
            "a believed claim is Done, whatever else is due"
        );
        if *outcome == Outcome::Done {
            self.proof.suffices(policy);
        }
        self.live = false;
        self.agent = None;
        self.rebooting = false;
        // A new run counts its failures anew.
        (self.streak, self.failures) = (0, 0);
    }
}
