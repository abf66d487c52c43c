//! The desk at which the work is kept: a thread that owns the keeper of the repository and does one order after another, so
//! that nobody waits for git who need not.

mod plain;
mod rollback;
mod told;

pub(super) use rollback::NotBack;
pub(super) use told::{Taken, Told, Untaken};

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tachikoma_core::{AutocommitResult, Committed};
use tokio::sync::mpsc;

use crate::error::chain;
use crate::git::{
    CallOff, CommitError, GitError, Keeper, KeeperOptions, Opened, Own, Plain, RepoPath, Whose,
    relative_to,
};
use crate::task::panicked;

/// Orders that may wait: one snapshot and one commit at a time, and those before them that were given up.
const ORDERS_MAX: usize = 16;

/// At the end of a run: for what is called off to end, and for the last references to be made.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);
const CALL_OFF_TIMEOUT: Duration = Duration::from_secs(1);

/// Names of changed files that one record has; the rest is counted.
const FILES_NAMED_MAX: usize = 20;

/// How much of each name is recorded.
const FILE_NAME_BYTES_MAX: usize = 200;

/// For a look at the work tree behind an iteration, whatever a commit may take: longer than a large tree on a slow disk needs.
#[cfg(not(test))]
const LOOK_TIMEOUT: Duration = Duration::from_secs(300);

/// So that tests need not wait for it.
#[cfg(test)]
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);

/// What the desk is asked.
enum Order {
    /// The work tree before an iteration; only a look if it is kept already.
    Snapshot {
        iteration: u32,
        only_look: bool,
        call_off: CallOff,
    },
    Keep {
        number: u64,
        commit: Option<Commit>,
        whose: Whose,
        look: CallOff,
        call_off: CallOff,
    },
    /// The work tree as it was before an iteration.
    RollBack {
        iteration: u32,
        again: bool,
        call_off: CallOff,
    },
    /// What changes from here on is the loop's own doing, and is looked at before the next iteration.
    OweALook,
    Settle {
        /// Whether anything of the loop is to be left.
        stays: bool,
        call_off: CallOff,
    },
}

/// What a desk is told before it opens.
#[derive(Debug)]
pub(super) struct DeskOptions {
    /// How the work is kept; none where there is no repository.
    pub keeper: Option<KeeperOptions>,
    /// Where the loop works.
    pub working_dir: PathBuf,
    /// What it writes there itself.
    pub own: Own,
}

/// What is to be committed, and how.
#[derive(Debug)]
pub(super) struct Commit {
    pub message: String,
    /// None = as long as it likes.
    pub limit: Option<Duration>,
}

/// The desk of one run.
#[derive(Debug)]
pub(super) struct Desk {
    orders: Option<SyncSender<Order>>,
    told: mpsc::UnboundedReceiver<Told>,
    thread: Option<JoinHandle<()>>,
    opening: CallOff,
    snapshot: CallOff,
    look: CallOff,
    commit: CallOff,
    rollback: CallOff,
}

impl Desk {
    /// Opens the desk, with a look at all that changed since the last one.
    pub fn open(options: DeskOptions, whose: Whose) -> std::io::Result<Self> {
        let (orders, waiting) = sync_channel(ORDERS_MAX);
        let (say, told) = mpsc::unbounded_channel();
        let opening = CallOff::new();
        let call_off = opening.clone();
        let thread = std::thread::Builder::new()
            .name("git".to_owned())
            .spawn(move || Clerk { say }.serve(options, whose, &call_off, &waiting))?;
        Ok(Self {
            orders: Some(orders),
            told,
            thread: Some(thread),
            opening,
            snapshot: CallOff::new(),
            look: CallOff::new(),
            commit: CallOff::new(),
            rollback: CallOff::new(),
        })
    }

    /// Returns whether the order was taken.
    fn order(&self, order: Order) -> bool {
        let orders = self.orders.as_ref();
        orders.is_some_and(|orders| orders.try_send(order).is_ok())
    }

    /// Asks for the work tree before an iteration. Returns whether an answer will come.
    pub fn snapshot(&mut self, iteration: u32, only_look: bool) -> bool {
        self.snapshot = CallOff::new();
        self.order(Order::Snapshot {
            iteration,
            only_look,
            call_off: self.snapshot.clone(),
        })
    }

    /// The loop itself is about to change the work tree, outside of an iteration. A full desk has a look in it.
    pub fn owe_a_look(&self) {
        self.order(Order::OweALook);
    }

    /// Has the work tree before an iteration be given up: an agent is about to change it.
    pub fn call_off_snapshot(&self) {
        self.snapshot.call_off();
    }

    /// Has the opening look be given up, and with it the keeping of the work.
    pub fn call_off_opening(&self) {
        self.opening.call_off();
    }

    /// Asks for the work to be kept. Returns whether an answer will come.
    pub fn keep(&mut self, number: u64, commit: Option<Commit>, whose: Whose) -> bool {
        self.look = CallOff::new();
        self.commit = CallOff::new();
        self.order(Order::Keep {
            number,
            commit,
            whose,
            look: self.look.clone(),
            call_off: self.commit.clone(),
        })
    }

    /// Has the commit under way end at once. The look is not called off: it is what tells the loop's work from that of others.
    pub fn call_off_commit(&self) {
        self.commit.call_off();
    }

    /// Waits for the next thing that the desk has to say. Cancel-safe.
    pub async fn next(&mut self) -> Told {
        if let Some(told) = self.told.recv().await {
            return told;
        }
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(payload)) => Told::Broken(panicked("git desk", payload.as_ref())),
            Some(Ok(())) | None => std::future::pending().await,
        }
    }

    fn call_off_all(&self) {
        for call_off in [
            &self.opening,
            &self.snapshot,
            &self.look,
            &self.commit,
            &self.rollback,
        ] {
            call_off.call_off();
        }
    }

    /// Closes the desk. What it does not do within a while stays undone.
    pub async fn finish(mut self, stays: bool) {
        self.call_off_all();
        let call_off = CallOff::new();
        self.order(Order::Settle {
            stays,
            call_off: call_off.clone(),
        });
        self.orders = None;
        let told = &mut self.told;
        let over = async { while told.recv().await.is_some() {} };
        tokio::pin!(over);
        let mut ended = tokio::time::timeout(FINISH_TIMEOUT, &mut over).await;
        if ended.is_err() {
            call_off.call_off();
            ended = tokio::time::timeout(CALL_OFF_TIMEOUT, over).await;
        }
        if let (Ok(()), Some(thread)) = (ended, self.thread.take()) {
            // It has ended, and the run is over: how is nobody's concern.
            let _ = thread.join();
        }
    }
}

/// A runner that is dropped in the middle leaves no git behind.
impl Drop for Desk {
    fn drop(&mut self) {
        self.call_off_all();
    }
}

/// Who sits at the desk.
struct Clerk {
    say: mpsc::UnboundedSender<Told>,
}

impl Clerk {
    fn serve(
        &self,
        options: DeskOptions,
        whose: Whose,
        call_off: &CallOff,
        waiting: &Receiver<Order>,
    ) {
        let repository = options.keeper.clone();
        let mut work = self.open(options, whose, call_off);
        self.tell(Told::Opened);
        for order in waiting {
            match order {
                Order::Snapshot {
                    iteration,
                    only_look,
                    call_off,
                } => {
                    let taken = match &mut work {
                        Work::Kept(books) => self.snapshot(books, iteration, only_look, &call_off),
                        Work::Plain(plain) => plain::before(plain, &call_off),
                        Work::Unseen => Err(Untaken::CalledOff),
                    };
                    self.tell(Told::Snapshot { iteration, taken });
                }
                Order::Keep {
                    number,
                    commit,
                    whose,
                    look,
                    call_off,
                } => {
                    let kept = match &mut work {
                        Work::Kept(books) => self.keep(books, commit, whose, &look, &call_off),
                        Work::Plain(plain) => self.plain_after(plain, &look),
                        // That it is so was said when the desk opened.
                        Work::Unseen => Err("nobody looks at the files".to_owned()),
                    };
                    self.tell(Told::Kept { number, kept });
                }
                Order::RollBack {
                    iteration,
                    again,
                    call_off,
                } => {
                    let result = match (&mut work, &repository) {
                        (Work::Kept(books), Some(options)) => {
                            let wanted = rollback::Wanted { iteration, again };
                            self.roll_back(books, options, wanted, &call_off)
                        }
                        (Work::Kept(_) | Work::Plain(_) | Work::Unseen, _) => {
                            Err("there is no repository to bring it back from"
                                .to_owned()
                                .into())
                        }
                    };
                    self.tell(Told::RolledBack { iteration, result });
                }
                Order::OweALook => {
                    if let Work::Kept(books) = &mut work {
                        books.unseen = true;
                    }
                }
                Order::Settle { stays, call_off } => {
                    if let Work::Kept(books) = &mut work {
                        // What is not named is found by the name before it, and what is not removed is in nobody's way.
                        let _ = if stays {
                            books.keeper.settle_refs(&call_off)
                        } else {
                            books.keeper.forget_refs()
                        };
                    }
                }
            }
        }
    }

    /// Opens the books of the repository; without one, looks at the files.
    fn open(&self, options: DeskOptions, whose: Whose, call_off: &CallOff) -> Work {
        if let Some(keeper) = options.keeper {
            let why = match Keeper::open(keeper, whose, call_off) {
                Opened::Ready { keeper, survey } => {
                    self.warn(survey.warnings);
                    return Work::Kept(Books {
                        keeper,
                        // Git names the top of the work tree without symbolic links.
                        working_dir: options.working_dir.canonicalize().unwrap_or_default(),
                        unseen: false,
                    });
                }
                // There is a `.git`, or nobody would have asked.
                Opened::NoRepository => "git finds no repository here".to_owned(),
                Opened::Unusable { reason } => reason,
            };
            self.tell(Told::Closed(why));
        }
        match Plain::open(&options.working_dir, &options.own, call_off) {
            Ok(plain) => Work::Plain(Box::new(plain)),
            Err(error) => {
                self.tell(Told::Blind(chain(&error)));
                Work::Unseen
            }
        }
    }

    fn tell(&self, told: Told) {
        // Nobody may be listening any more.
        let _ = self.say.send(told);
    }

    fn warn(&self, warnings: Vec<String>) {
        for warning in warnings {
            self.tell(Told::Warning(warning));
        }
    }

    fn snapshot(
        &self,
        work: &mut Books,
        iteration: u32,
        only_look: bool,
        call_off: &CallOff,
    ) -> Result<Taken, Untaken> {
        if work.unseen {
            self.look(work, Whose::Loop, call_off)?;
        }
        let commit = if only_look {
            self.look(work, Whose::Others, call_off)?;
            None
        } else {
            let taken = work.keeper.snapshot(iteration, call_off)?;
            self.warn(taken.warnings);
            Some(taken.commit)
        };
        Ok(Taken {
            commit,
            uncommitted: count(work.keeper.left()),
        })
    }

    /// Looks at the work tree, and returns what is known of it then.
    fn look(
        &self,
        work: &mut Books,
        whose: Whose,
        call_off: &CallOff,
    ) -> Result<AutocommitResult, GitError> {
        let ours = whose != Whose::Others;
        work.unseen |= ours;
        let survey = work.keeper.survey(whose, call_off)?;
        work.unseen &= !ours;
        self.warn(survey.warnings);
        Ok(AutocommitResult {
            changed: count(survey.changed.len()),
            files: first_names(
                &survey.changed,
                |path| work.keeper.top().join(path.as_path()),
                &work.working_dir,
            ),
            head_moved: survey.head_moved,
            uncommitted: count(survey.uncommitted),
            withheld: count(work.keeper.withheld()),
            ..AutocommitResult::default()
        })
    }

    fn keep(
        &self,
        work: &mut Books,
        commit: Option<Commit>,
        whose: Whose,
        look: &CallOff,
        call_off: &CallOff,
    ) -> Result<AutocommitResult, String> {
        let look = look.within(LOOK_TIMEOUT);
        let whose = match work.unseen {
            true => Whose::Loop,
            false => whose,
        };
        let before = work.keeper.tree().to_owned();
        let mut kept = self
            .look(work, whose, &look)
            .map_err(|error| match look.is_overdue() {
                true => format!(
                    "the look at the work tree took more than {} s; the next one takes in what changed",
                    LOOK_TIMEOUT.as_secs()
                ),
                false => chain(&error),
            })?;
        let files = usize::try_from(kept.changed).unwrap_or(usize::MAX);
        kept.lines = work.keeper.lines_since(&before, files, &look);
        let Some(commit) = commit.filter(|_| kept.uncommitted > 0) else {
            return Ok(kept);
        };
        match work.keeper.commit(&commit.message, commit.limit, call_off) {
            Ok(made) => {
                kept.commit = made.map(|made| Committed {
                    id: made.id,
                    files: count(made.files),
                });
            }
            Err(CommitError::Git(GitError::CalledOff { .. })) => {
                kept.error = Some(CALLED_OFF.to_owned());
            }
            Err(error) => kept.error = Some(chain(&error)),
        }
        kept.uncommitted = count(work.keeper.left());
        Ok(kept)
    }
}

/// What is said of a commit that nobody waited for.
const CALLED_OFF: &str =
    "it was called off; what was done stays in the work tree, and the next commit takes it";

/// What the desk has before it.
enum Work {
    /// A repository.
    Kept(Books),
    /// Files.
    Plain(Box<Plain>),
    /// Nothing.
    Unseen,
}

/// The keeper, and what it is owed.
struct Books {
    keeper: Box<Keeper>,
    /// Where the loop works.
    working_dir: PathBuf,
    /// Whether a look at what the loop did was cut: then the next one takes that in.
    unseen: bool,
}

/// Returns the names of the first files, relative to a directory.
fn first_names(
    files: &[RepoPath],
    place: impl Fn(&RepoPath) -> PathBuf,
    dir: &Path,
) -> Vec<String> {
    let first = files.iter().take(FILES_NAMED_MAX);
    let names = first.map(|file| relative_to(dir, &place(file)));
    let cut = |mut name: String| {
        name.truncate(name.floor_char_boundary(FILE_NAME_BYTES_MAX));
        name
    };
    names.map(cut).collect()
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
