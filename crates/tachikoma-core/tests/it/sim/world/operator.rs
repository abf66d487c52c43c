//! The operator of a simulated loop: gives valid and invalid answers, late or never.

use tachikoma_core::{Choice, EditedPrompt, Input, Launch, OperatorRequest, Ticket};

use super::super::Coverage;
use super::World;

impl World {
    /// Answers the open question, or a question that does not exist.
    pub(super) fn answer(&mut self, coverage: &mut Coverage) {
        let open = self.state.question().map(|question| question.id);
        let stale = self.dice.one_in(10);
        let id = match (open, stale) {
            (_, true) => Some(self.state.operator.asked.saturating_sub(1)),
            (open, false) => open.filter(|_| self.dice.one_in(2)),
        };
        let offered = self.state.question().map(|question| &question.choices);
        let rollback = offered.is_some_and(|choices| choices.contains(&Choice::Rollback));
        let choice = match rollback && !self.dice.one_in(4) {
            true => Choice::Rollback,
            false => self.dice.pick(&Choice::ALL),
        };
        let edits = choice == Choice::Edit && !self.dice.one_in(10);
        let prompt = edits.then(|| EditedPrompt {
            hash: "1f".to_owned(),
            bytes: 7,
        });
        self.request(coverage, OperatorRequest::Answer { id, choice, prompt });
    }

    /// Makes a request other than an answer.
    pub(super) fn request_something(&mut self, coverage: &mut Coverage) {
        let open = self.state.question().map(|question| question.id);
        let request = match self.dice.below(9) {
            0 => OperatorRequest::Attend { on: true },
            1 => OperatorRequest::Attend { on: false },
            2 => OperatorRequest::Reload {
                launch: Box::new(Launch {
                    config_hash: "another".to_owned(),
                    ..Launch::default()
                }),
                later: vec!["agent.name".to_owned()],
                limits: self.policy.limits(),
            },
            3 => OperatorRequest::StopAfterHooks,
            4 => OperatorRequest::Hold {
                id: open.unwrap_or(self.state.operator.asked),
                writing: self.dice.one_in(2),
            },
            _ => OperatorRequest::Tell {
                text: "look at b first".to_owned(),
            },
        };
        self.request(coverage, request);
    }

    fn request(&mut self, coverage: &mut Coverage, request: OperatorRequest) {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.feed(coverage, Input::OperatorRequest { ticket, request });
    }

    /// Schedules the result of a rollback of the work tree: it succeeds, fails, or takes too long.
    pub(super) fn roll_back(&mut self, iteration: u32) {
        let after = self.dice.pick(&[10, 10, 2_000, 2_000_000]);
        let result = match self.dice.below(4) {
            0 => Err("a file is in the way".to_owned()),
            _ => Ok("the work tree was brought back".to_owned()),
        };
        let input = Input::RolledBack { iteration, result };
        self.schedule(self.now + after, input);
    }
}
