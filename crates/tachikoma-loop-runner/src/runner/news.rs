//! What the guard and the launch under way have to say, as inputs of the core.

use tachikoma_core::{Generation, Input, Leftover, News};

use super::LoopRunner;
use super::upkeep::Task;
use crate::process::GuardNews;
use crate::session::process::LaunchNews;

impl LoopRunner {
    pub(super) fn guard_news(&mut self, news: GuardNews) -> Option<Input> {
        match news {
            GuardNews::Spawned { generation, pid } => {
                let pid = u32::try_from(pid).unwrap_or_default();
                Some(Input::Agent {
                    generation: Generation(generation),
                    news: News::Launched { pid },
                })
            }
            GuardNews::SpawnFailed {
                generation,
                subject,
                errno,
                message,
            } => {
                let reason = self.not_launched(subject, errno, &message);
                self.give_up_launch(Generation(generation));
                self.queue.push_back(Input::Agent {
                    generation: Generation(generation),
                    news: News::NotLaunched { reason },
                });
                None
            }
            GuardNews::Exited {
                generation,
                exit,
                leftovers,
                leftovers_unnamed,
            } => {
                let launch = self
                    .launch
                    .as_mut()
                    .filter(|launch| launch.generation.0 == generation)?;
                launch.exit = Some((exit, leftovers));
                launch.drain();
                (leftovers_unnamed > 0).then(|| Input::Trouble {
                    warning: format!("{leftovers_unnamed} more processes were left behind and ended than are named"),
                })
            }
            GuardNews::Lost { survivors } => {
                self.guard = None;
                self.give_up_launch(self.state.generation);
                if !survivors.is_empty() {
                    let names: Vec<String> = survivors
                        .iter()
                        .map(|left| format!("{} (pid {})", left.name, left.pid))
                        .collect();
                    let warning = format!(
                        "processes that cannot be killed are left: {}",
                        names.join(", ")
                    );
                    self.queue.push_back(Input::Trouble { warning });
                }
                Some(Input::Agent {
                    generation: self.state.generation,
                    news: News::GuardLost,
                })
            }
        }
    }

    pub(super) async fn launch_news(&mut self, news: LaunchNews) -> Option<Input> {
        let launch = self.launch.as_mut()?;
        let generation = launch.generation;
        let output = match news {
            LaunchNews::Agent(news) => return Some(Input::Agent { generation, news }),
            LaunchNews::FinalText(text) => {
                launch.final_text = Some(text);
                return None;
            }
            LaunchNews::Drained(output) => output,
            LaunchNews::Broken(reason) => return Some(Input::Broken { reason }),
        };
        let mut launch = self.launch.take()?;
        let exit = launch.exit.take();
        let final_text = launch.final_text.take().unwrap_or(output.final_text);
        if let Some(reason) = launch.join().await {
            return Some(Input::Broken { reason });
        }
        if let Some(path) = output.transcript {
            self.upkeep.leave(Task::CompressTranscript(path));
        }
        if let Some(error) = output.transcript_error {
            let warning = format!(
                "the transcript of iteration {} is incomplete: {error}",
                self.state.iteration
            );
            self.queue.push_back(Input::Trouble { warning });
        }
        let (exit, leftovers) = exit?;
        let promise = &self.config.settings.stop_conditions.completion_promise;
        let claimed = tachikoma_agents::claims(&final_text, promise);
        self.queue.push_back(Input::Agent {
            generation,
            news: News::Exited {
                exit,
                claimed,
                leftovers,
            },
        });
        None
    }
}

/// Names what an earlier runner left behind, if it left anything.
pub(super) fn left_behind(leftovers: &[Leftover]) -> Option<String> {
    let name = |left: &Leftover| format!("{} (pid {})", left.name, left.pid);
    let names: Vec<String> = leftovers.iter().map(name).collect();
    (!names.is_empty()).then(|| {
        format!(
            "ended what an earlier runner had left behind: {}",
            names.join(", ")
        )
    })
}
