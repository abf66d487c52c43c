//! Commands and answers of the operator in a played loop.

use tachikoma_core::{Choice, EditedPrompt, Input, LoopCommand, OperatorRequest, Ticket, Urgency};

use super::Play;

impl Play {
    pub fn command(&mut self, name: &str, command: LoopCommand) -> &mut Self {
        let ticket = Ticket(1);
        self.input(name, Input::Command { ticket, command })
    }

    pub fn request(&mut self, name: &str, request: OperatorRequest) -> &mut Self {
        let ticket = Ticket(1);
        self.input(name, Input::OperatorRequest { ticket, request })
    }

    /// The operator answers the open question.
    pub fn answer(&mut self, choice: Choice) -> &mut Self {
        self.answer_to(None, choice)
    }

    pub fn answer_to(&mut self, id: Option<u32>, choice: Choice) -> &mut Self {
        let prompt = (choice == Choice::Edit).then(|| EditedPrompt {
            hash: "1f".to_owned(),
            bytes: 7,
        });
        let request = OperatorRequest::Answer { id, choice, prompt };
        self.request(&format!("answer {choice}"), request)
    }

    pub fn tell(&mut self, text: &str) -> &mut Self {
        let text = text.to_owned();
        self.request("tell", OperatorRequest::Tell { text })
    }

    pub fn stop(&mut self, urgency: Urgency) -> &mut Self {
        self.command("stop", LoopCommand::Stop(urgency))
    }

    pub fn pause(&mut self, urgency: Urgency) -> &mut Self {
        self.command("pause", LoopCommand::Pause(urgency))
    }

    pub fn resume(&mut self) -> &mut Self {
        self.command("resume", LoopCommand::Resume)
    }

    pub fn reboot(&mut self) -> &mut Self {
        self.command("reboot", LoopCommand::ForceReboot)
    }

    pub fn skip(&mut self) -> &mut Self {
        self.command("skip", LoopCommand::SkipIteration)
    }

    pub fn shutdown(&mut self, signal: i32, urgency: Urgency) -> &mut Self {
        let name = format!("signal {signal}");
        self.input(&name, Input::Shutdown { signal, urgency })
    }
}
