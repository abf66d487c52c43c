//! A second opinion on whether the operator was asked, and what they answered was done.

use tachikoma_core::{
    AnsweredBy, Choice, LoopEvent, OperatorEvent, Policy, QuestionKind, RebootReason,
};

#[derive(Default)]
pub struct Attendance {
    /// What was said since the loop was taken up.
    attended: Option<bool>,
    open: Option<u32>,
    asked: u32,
    agreed: bool,
    /// Whether it was asked what follows the iteration that is over.
    put: bool,
    yes: bool,
    /// Whether the work tree is being brought back: nothing else is begun, and nothing ends, before that is over.
    rolling: bool,
    /// Whether the reboot that is due was refused.
    pub said_no: bool,
    ended: bool,
    rebooting: bool,
    agent_gone: bool,
    unheard: u32,
}

impl Attendance {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "what has nothing to do with the operator is checked elsewhere"
    )]
    pub fn take(&mut self, policy: &Policy, event: &LoopEvent) {
        let gone = std::mem::take(&mut self.agent_gone);
        let moves_on = matches!(
            event,
            LoopEvent::IterationStarted { .. }
                | LoopEvent::RebootStarted { .. }
                | LoopEvent::Paused { .. }
                | LoopEvent::AutocommitStarted(_)
                | LoopEvent::WaitStarted { .. }
        ) || event.is_terminal();
        assert!(
            !(self.rolling && moves_on),
            "the work tree is being brought back"
        );
        match event {
            LoopEvent::Started { .. } if self.ended => {
                self.ended = false;
                self.attended = None;
                self.agreed = false;
                self.put = false;
            }
            LoopEvent::Operator(event) => self.operator(event),
            // Resuming from a pause is a yes only if a question was asked.
            LoopEvent::Resumed => self.agreed |= self.put,
            LoopEvent::AgentExited { .. } => self.agent_gone = true,
            LoopEvent::IterationStarted { attempt, .. } => {
                let again = gone && *attempt > 1;
                let asks = self.attended.unwrap_or(policy.attended);
                assert!(!asks || self.agreed || again, "nobody has agreed to it");
                self.agreed = false;
                self.put = false;
                self.open = None;
            }
            LoopEvent::RebootStarted { reason, .. } => {
                let asks = policy.reboot.confirm.is_some() && *reason != RebootReason::Manual;
                assert!(
                    !asks || self.yes || self.rebooting,
                    "a reboot without a yes"
                );
                self.rebooting = true;
                self.said_no = false;
                self.open = None;
            }
            LoopEvent::RebootCompleted { .. } | LoopEvent::RebootFailed { .. } => {
                self.yes = false;
                self.rebooting = false;
            }
            LoopEvent::Paused { .. } => self.open = None,
            LoopEvent::Completed { .. } | LoopEvent::Stopped { .. } | LoopEvent::Error { .. } => {
                self.ended = true;
                self.open = None;
                self.yes = false;
                self.rebooting = false;
            }
            _ => {}
        }
    }

    fn operator(&mut self, event: &OperatorEvent) {
        match event {
            OperatorEvent::Asked(question) => {
                assert!(question.id > self.asked, "questions are counted");
                assert!(
                    question.choices.contains(&question.default),
                    "the default can be chosen"
                );
                assert_eq!(question.default, Choice::Pause, "nobody there is no yes");
                self.asked = question.id;
                self.put |= question.kind != QuestionKind::ConfirmReboot;
                self.open = Some(question.id);
            }
            OperatorEvent::Answered { id, choice, by, .. } => {
                assert_eq!(self.open.take(), Some(*id), "only what is open is answered");
                let default = *by == AnsweredBy::Default;
                assert!(!default || *choice == Choice::Pause);
                let goes_on = [Choice::Continue, Choice::Skip, Choice::Reboot, Choice::Edit];
                self.rolling |= *choice == Choice::Rollback;
                self.agreed |= goes_on.contains(choice);
                self.yes |= *choice == Choice::Yes;
                self.said_no |= *choice == Choice::No;
            }
            OperatorEvent::Held { id, .. } => {
                assert_eq!(self.open, Some(*id), "only what is open is held");
            }
            OperatorEvent::Attended { on } => self.attended = Some(*on),
            OperatorEvent::MessageQueued { number, .. } => {
                assert_eq!(*number, self.unheard + 1, "words are counted");
                self.unheard = *number;
            }
            OperatorEvent::MessagesDelivered { through } => {
                assert!(*through <= self.unheard, "only what was told is passed on");
            }
            OperatorEvent::RolledBack { .. } => self.rolling = false,
            OperatorEvent::Reloaded { .. } => {}
        }
    }
}
