//! Keeping the work in the repository around it: what the desk is asked, what it answers, and the iteration that waits for the
//! snapshot before it.

use std::time::Duration;

use tachikoma_agents::Agent;
use tachikoma_core::policy::{AutocommitRules, Timeouts};
use tachikoma_core::{
    AgentEvent, AutocommitResult, CommitFacts, CommitMessage, CommitOrder, Effect, Generation,
    Input, LoopChanges, Phase, Policy, Rung, State, TurnEnd,
};
use tokio::time::Instant;

use super::LoopRunner;
use super::desk::{Commit, Desk, DeskOptions, NotBack, Taken, Told, Untaken};
use super::effects::{Begin, Ordered};
use super::failure::Cut;
use crate::clock;
use crate::config::LoopConfig;
use crate::git::present::Bounds;
use crate::git::{KeeperOptions, Whose};
use crate::store::loops;
use crate::worktree;

/// How long an iteration waits for the snapshot before it. A large tree on a slow disk takes seconds; without one the loop
/// is still worth running.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(20);

/// How long the first iteration waits for the opening look: what an agent did meanwhile would pass for somebody else's. Longer
/// than it takes to read a gigabyte from a slow disk.
const OPENING_TIMEOUT: Duration = Duration::from_secs(300);

/// What is known of keeping the work in this run.
#[derive(Debug, Default)]
pub(super) struct Keeping {
    desk: Option<Desk>,
    /// Whether the opening look is over.
    opened: bool,
    /// A turn that begins when the work tree before it is kept.
    deferred: Option<Deferred>,
    /// The iteration whose snapshot is there, as far as this run knows: a later attempt at it does not replace it.
    had: Option<u32>,
}

#[derive(Debug)]
struct Deferred {
    generation: Generation,
    turn: Ordered,
    begin: Begin,
    due: Instant,
}

impl LoopConfig {
    /// Returns how the work is kept, or looked at where there is no repository to keep it in.
    pub(super) fn keep_rules(&self, repository: bool) -> AutocommitRules {
        let git = &self.settings.git;
        AutocommitRules {
            repository,
            commit: repository && git.auto_commit,
            on_failure: git.commit_on_failure,
            timeout: git.commit_timeout.get(),
        }
    }

    /// Returns the rules of the loop for an agent, in a repository or not.
    pub(crate) fn policy_in(&self, agent: &Agent, repository: bool) -> Policy {
        let mut policy = self.policy(agent);
        set_keep_rules(&mut policy, Some(self.keep_rules(repository)));
        policy
    }
}

impl Keeping {
    /// Returns when the turn that waits begins without its snapshot.
    pub fn due(&self) -> Option<Instant> {
        self.deferred.as_ref().map(|deferred| deferred.due)
    }

    /// Returns whether the opening look is under way.
    pub fn is_opening(&self) -> bool {
        self.desk.is_some() && !self.opened
    }

    /// The loop itself is about to change the work tree, outside of an iteration.
    pub fn owe_a_look(&self) {
        if let Some(desk) = &self.desk {
            desk.owe_a_look();
        }
    }

    /// Waits for what the desk has to say. Cancel-safe.
    pub async fn next(&mut self) -> Told {
        match &mut self.desk {
            Some(desk) => desk.next().await,
            None => std::future::pending().await,
        }
    }

    /// Gives up whatever is under way. Makes the references that are still owed, or removes all if nothing is to be left.
    pub async fn finish(&mut self, stays: bool) {
        self.deferred = None;
        if let Some(desk) = self.desk.take() {
            desk.finish(stays).await;
        }
    }
}

/// The clock of a file system may be so much behind.
const FILE_CLOCK_LAG: Duration = Duration::from_millis(20);

fn whose_are(changes: LoopChanges) -> Whose {
    match changes {
        LoopChanges::All => Whose::Loop,
        LoopChanges::None => Whose::Others,
        LoopChanges::Since(time) => {
            let time = clock::system_time_of(time);
            Whose::LoopSince(time.checked_sub(FILE_CLOCK_LAG).unwrap_or(time))
        }
    }
}

/// Adds what the repository asks for to the rules.
pub(super) fn set_keep_rules(policy: &mut Policy, rules: Option<AutocommitRules>) {
    // The snapshot before an iteration is no part of its launch.
    let waits = rules.map_or(Duration::ZERO, |_| OPENING_TIMEOUT + SNAPSHOT_TIMEOUT);
    policy.timeouts.launch = Timeouts::default().launch + waits;
    policy.autocommit = rules;
}

impl LoopRunner {
    /// Opens the desk, and has it look at what changed since this loop last ran.
    pub(super) fn open_desk(&mut self) {
        let repository = worktree::may_be_in_a_repository(&self.config.working_dir);
        set_keep_rules(&mut self.policy, Some(self.config.keep_rules(repository)));
        self.keeping.had = had_snapshot(&self.state);
        let whose = self.whose();
        let root = self.config.store_root(self.state.loop_id);
        let bounds = Bounds::of(&self.config.settings, &self.config.working_dir);
        let rules = match repository.then(|| bounds.rules()).transpose() {
            Ok(rules) => rules,
            // Rather nothing is kept than what is protected.
            Err(error) => return self.go_blind(&error.to_string()),
        };
        let keeper = rules.map(|rules| KeeperOptions {
            hidden: self.secret_names(),
            working_dir: self.config.working_dir.clone(),
            loop_dir: loops::dir(&root, self.state.loop_id),
            loop_id: self.state.loop_id,
            search_path: self.config.search_path.clone(),
            protected: rules.protected,
            max_file_bytes: rules.max_file_bytes,
            own: rules.own,
        });
        let options = DeskOptions {
            keeper,
            working_dir: self.config.working_dir.clone(),
            own: bounds.own,
        };
        match Desk::open(options, whose) {
            Ok(desk) => self.keeping.desk = Some(desk),
            Err(error) => self.go_blind(&format!("no thread for it: {error}")),
        }
    }

    /// Returns whose the changes are that nobody has looked at.
    pub(super) fn whose(&self) -> Whose {
        let owed = self.state.owes_a_look();
        match owed && self.keeping.opened {
            true => Whose::Loop,
            false => Whose::since_the_last_look(owed, self.lock.died(), self.ran_until),
        }
    }

    fn keeps_in_a_repository(&self) -> bool {
        self.policy.autocommit.is_some_and(|rules| rules.repository)
    }

    /// Returns whether something is done because of what was decided, which must not be forgotten then. A look at files is not.
    pub(super) fn acts(&self, effects: &[Effect]) -> bool {
        let looks = |effect: &Effect| matches!(effect, Effect::Autocommit { commit: None, .. });
        (self.keeps_in_a_repository() && !effects.is_empty()) || !effects.iter().all(looks)
    }

    /// Goes on without a repository.
    fn close_desk(&mut self, why: &str) {
        self.policy.autocommit = Some(self.config.keep_rules(false));
        let warning = format!(
            "nothing is committed, no snapshots are kept, and what an iteration changed is told by its files alone: {why}"
        );
        self.queue.push_back(Input::Warning { warning });
    }

    /// Goes on without a look at what changes.
    fn go_blind(&mut self, why: &str) {
        self.policy.autocommit = None;
        let warning = format!(
            "nobody knows what an iteration changes, so that no lack of progress ends the loop: {why}"
        );
        self.queue.push_back(Input::Warning { warning });
    }

    /// Begins a turn: when the work tree before it is kept, where there is a repository.
    pub(super) async fn begin_turn(&mut self, generation: Generation, turn: Ordered, begin: Begin) {
        let keeping = &mut self.keeping;
        let iteration = turn.iteration;
        let only_look = keeping.had == Some(iteration);
        let asked = self.policy.autocommit.is_some()
            && keeping
                .desk
                .as_mut()
                .is_some_and(|desk| desk.snapshot(iteration, only_look));
        if !asked {
            return self.perform_turn(generation, turn, begin).await;
        }
        keeping.deferred = Some(Deferred {
            generation,
            turn,
            begin,
            due: due_in(if keeping.opened {
                SNAPSHOT_TIMEOUT
            } else {
                OPENING_TIMEOUT
            }),
        });
    }

    /// Takes in what the desk has to say.
    pub(super) async fn desk_told(&mut self, told: Told) -> Result<Option<Input>, Cut> {
        Ok(match told {
            Told::Closed(why) => {
                self.close_desk(&why);
                None
            }
            Told::Blind(why) => {
                self.go_blind(&why);
                None
            }
            Told::Opened => {
                self.keeping.opened = true;
                self.run_gates_after_opening();
                if let Some(deferred) = &mut self.keeping.deferred {
                    deferred.due = due_in(SNAPSHOT_TIMEOUT);
                }
                None
            }
            Told::Warning(warning) => Some(Input::Warning { warning }),
            Told::Broken(reason) => Some(Input::Broken { reason }),
            Told::Kept { number, kept } => Some(Input::AutocommitFinished { number, kept }),
            Told::RolledBack { iteration, result } => Some(match result {
                Ok(note) => Input::RolledBack {
                    iteration,
                    result: Ok(note),
                },
                Err(NotBack::AsItWas(why)) => Input::RolledBack {
                    iteration,
                    result: Err(why),
                },
                // Nothing is built on that, nor committed: the loop ends.
                Err(NotBack::Half(why)) => Input::Broken {
                    reason: format!(
                        "the rollback is half done: {why}; mend the work tree before you go on"
                    ),
                },
            }),
            Told::Snapshot { iteration, taken } => {
                if let Some(news) = self.snapshot_news(iteration, taken) {
                    self.take(news).await?;
                }
                self.begin_deferred().await;
                None
            }
        })
    }

    /// Has the work tree brought back to what it was before an iteration.
    pub(super) fn roll_back(&mut self, iteration: u32, again: bool) {
        let desk = self.keeping.desk.as_mut();
        if !desk.is_some_and(|desk| desk.roll_back(iteration, again)) {
            let result = Err("nobody keeps the work tree".to_owned());
            self.queue
                .push_back(Input::RolledBack { iteration, result });
        }
    }

    /// A loop that is to end need not bring its work tree back. What has begun is undone.
    pub(super) fn hurry_rollback(&self) {
        if let (Some(desk), Some(_), Some(_)) = (
            &self.keeping.desk,
            &self.state.stop,
            self.state.rolling_back(),
        ) {
            desk.call_off_rollback();
        }
    }

    fn snapshot_news(&mut self, iteration: u32, taken: Result<Taken, Untaken>) -> Option<Input> {
        match taken {
            Ok(Taken {
                commit,
                uncommitted,
            }) => {
                self.keeping.had = Some(iteration);
                let before = self.state.kept.snapshot.as_ref();
                let commit = commit.or_else(|| before.map(|before| before.commit.clone()))?;
                Some(Input::SnapshotTaken {
                    iteration,
                    commit,
                    uncommitted,
                })
            }
            Err(Untaken::CalledOff) => None,
            Err(Untaken::Failed(why)) => Some(unkept(iteration, &why)),
        }
    }

    /// Begins the turn that waits, without the work tree before it: that took too long.
    pub(super) async fn snapshot_late(&mut self) -> Input {
        if let Some(desk) = &self.keeping.desk {
            desk.call_off_snapshot();
            if !self.keeping.opened {
                desk.call_off_opening();
            }
        }
        self.begin_deferred().await;
        let limit = match self.keeping.opened {
            true => SNAPSHOT_TIMEOUT,
            false => OPENING_TIMEOUT,
        };
        let seconds = limit.as_secs();
        if !self.keeps_in_a_repository() {
            let warning = format!(
                "what was changed before iteration {} passes for its work: a look at the files took more than {seconds} s",
                self.state.iteration
            );
            return Input::Warning { warning };
        }
        unkept(
            self.state.iteration,
            &format!("git took more than {seconds} s"),
        )
    }

    async fn begin_deferred(&mut self) {
        if let Some(waited) = self.keeping.deferred.take() {
            self.perform_turn(waited.generation, waited.turn, waited.begin)
                .await;
        }
    }

    /// A turn that is to end need not wait for its snapshot.
    pub(super) fn hurry_deferred(&self) {
        let ending = match &self.state.phase {
            Phase::Working { work } => work.ending.is_some(),
            Phase::Idle
            | Phase::Waiting { .. }
            | Phase::Autocommitting { .. }
            | Phase::Checking { .. }
            | Phase::Hooking { .. }
            | Phase::Rebooting { .. }
            | Phase::Paused { .. }
            | Phase::Ended { .. } => true,
        };
        if let (Some(_), Some(desk), true) = (&self.keeping.deferred, &self.keeping.desk, ending) {
            desk.call_off_snapshot();
        }
    }

    /// Ends a turn that has not begun. Returns whether that is all there is to do.
    pub(super) fn end_deferred(&mut self, generation: Generation, rung: Rung) -> bool {
        let waits = |deferred: &mut Deferred| deferred.generation == generation;
        let Some(deferred) = self.keeping.deferred.take_if(waits) else {
            return false;
        };
        // The desk has something else to do now.
        if let Some(desk) = &self.keeping.desk {
            desk.call_off_snapshot();
        }
        let reason = "it was ended before it began".to_owned();
        let (news, over) = match deferred.begin {
            Begin::Launch { .. } => (AgentEvent::NotLaunched { reason }, true),
            Begin::Prompt => {
                let end = TurnEnd {
                    reason: Some(reason),
                    ..TurnEnd::default()
                };
                // The process of the session is there all the same.
                (AgentEvent::TurnEnded(end), rung == Rung::Interrupt)
            }
        };
        if over {
            self.queue.push_back(Input::Agent {
                generation,
                event: news,
            });
        }
        over
    }

    pub(super) fn keep(&mut self, number: u64, order: Option<CommitOrder>, changes: LoopChanges) {
        let git = &self.config.settings.git;
        let limit = Some(git.commit_timeout.get()).filter(|limit| !limit.is_zero());
        let commit = order.map(|order| Commit {
            message: self.commit_message(&order),
            limit,
        });
        let asked = match &mut self.keeping.desk {
            Some(desk) => desk.keep(number, commit, whose_are(changes)),
            None => {
                // That there is none was said.
                let kept = Ok(AutocommitResult::default());
                return self
                    .queue
                    .push_back(Input::AutocommitFinished { number, kept });
            }
        };
        if !asked {
            let kept = Err("git has not answered what it was asked before".to_owned());
            self.queue
                .push_back(Input::AutocommitFinished { number, kept });
        }
    }

    fn commit_message(&self, order: &CommitOrder) -> String {
        let text = &self.config.settings.git.commit_message;
        let facts = CommitFacts {
            iteration: order.iteration,
            status: &order.status.to_string(),
            context: order.context,
            session: order.session,
            loop_id: self.state.loop_id,
        };
        // It was checked with the settings.
        let message = text.parse::<CommitMessage>();
        message.map_or_else(|_| text.clone(), |message| message.fill(&facts))
    }

    pub(super) fn call_off_keep(&self) {
        if let Some(desk) = &self.keeping.desk {
            desk.call_off_commit();
        }
    }
}

fn due_in(time: Duration) -> Instant {
    Instant::from_std(clock::monotonic() + time)
}

fn unkept(iteration: u32, why: &str) -> Input {
    Input::Warning {
        warning: format!(
            "the work tree before iteration {iteration} is not kept, so that `tachikoma rollback {iteration}` cannot bring it back: {why}"
        ),
    }
}

/// Returns the iteration that is repeated and whose snapshot was taken before its agent began.
fn had_snapshot(state: &State) -> Option<u32> {
    let begun = match &state.phase {
        Phase::Working { work } => work.launched.is_some(),
        Phase::Idle
        | Phase::Waiting { .. }
        | Phase::Autocommitting { .. }
        | Phase::Checking { .. }
        | Phase::Hooking { .. }
        | Phase::Rebooting { .. }
        | Phase::Paused { .. }
        | Phase::Ended { .. } => state.cut,
    };
    begun.then_some(state.iteration)
}
