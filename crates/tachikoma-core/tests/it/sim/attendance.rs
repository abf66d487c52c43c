//! Independent check of the journal: the operator was asked where required, and the answers were followed.

use tachikoma_core::{
    AnsweredBy, Choice, LoopEvent, OperatorEvent, Policy, QuestionKind, RebootReason,
};

#[derive(Default)]
pub struct Attendance {
    /// Attended mode as set by the operator since the loop started; `None` if the policy decides.
    attended: Option<bool>,
    open: Option<u32>,
    asked: u32,
    agreed: bool,
    /// Whether the operator was asked about the next iteration since the last one started.
    put: bool,
    yes: bool,
    /// Whether a rollback of the work tree is running. Nothing else starts or ends until it has finished.
    rolling: bool,
    /// Whether the operator refused the pending reboot.
    pub said_no: bool,
    ended: bool,
    rebooting: bool,
    agent_gone: bool,
    unheard: u32,
}

impl Attendance {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "events that do not concern the operator are checked elsewhere"
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
            "nothing starts or ends during a rollback"
        );
        match event {
            LoopEvent::Started { .. } if self.ended => {
                self.ended = false;
                self.attended = None;
                self.agreed = false;
                self.put = false;
            }
            LoopEvent::Operator(event) => self.operator(event),
            // Resuming from a pause counts as consent only if a question was asked.
            LoopEvent::Resumed => self.agreed |= self.put,
            LoopEvent::AgentExited { .. } => self.agent_gone = true,
            LoopEvent::IterationStarted { attempt, .. } => {
                let again = gone && *attempt > 1;
                let asks = self.attended.unwrap_or(policy.attended);
                assert!(
                    !asks || self.agreed || again,
                    "an attended iteration needs the operator's consent"
                );
                self.agreed = false;
                self.put = false;
                self.open = None;
            }
            LoopEvent::RebootStarted { reason, .. } => {
                let asks = policy.reboot.confirm.is_some() && *reason != RebootReason::Manual;
                assert!(
                    !asks || self.yes || self.rebooting,
                    "the operator has confirmed the reboot"
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
                assert!(question.id > self.asked, "question numbers increase");
                assert!(
                    question.choices.contains(&question.default),
                    "the default can be chosen"
                );
                assert_eq!(
                    question.default,
                    Choice::Pause,
                    "without an answer the loop pauses"
                );
                self.asked = question.id;
                self.put |= question.kind != QuestionKind::ConfirmReboot;
                self.open = Some(question.id);
            }
            OperatorEvent::Answered { id, choice, by, .. } => {
                assert_eq!(
                    self.open.take(),
                    Some(*id),
                    "only the open question is answered"
                );
                let default = *by == AnsweredBy::Default;
                assert!(!default || *choice == Choice::Pause);
                let goes_on = [Choice::Continue, Choice::Skip, Choice::Reboot, Choice::Edit];
                self.rolling |= *choice == Choice::Rollback;
                self.agreed |= goes_on.contains(choice);
                self.yes |= *choice == Choice::Yes;
                self.said_no |= *choice == Choice::No;
            }
            OperatorEvent::Held { id, .. } => {
                assert_eq!(
                    self.open,
                    Some(*id),
                    "only the timeout of the open question is extended"
                );
            }
            OperatorEvent::Attended { on } => self.attended = Some(*on),
            OperatorEvent::MessageQueued { number, .. } => {
                assert_eq!(
                    *number,
                    self.unheard + 1,
                    "messages are numbered without gaps"
                );
                self.unheard = *number;
            }
            OperatorEvent::MessagesDelivered { through } => {
                assert!(
                    *through <= self.unheard,
                    "only queued messages are delivered"
                );
            }
            OperatorEvent::RolledBack { .. } => self.rolling = false,
            OperatorEvent::Reloaded { .. } => {}
        }
    }
}
