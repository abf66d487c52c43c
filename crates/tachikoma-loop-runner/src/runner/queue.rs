//! Queue of inputs that the runner itself produces. The core handles them before the runner waits for other events.

use std::collections::VecDeque;

use tachikoma_core::Input;

/// Inputs in the order in which the core handles them.
#[derive(Debug, Default)]
pub(super) struct InputQueue(VecDeque<Input>);

impl InputQueue {
    pub fn push(&mut self, input: Input) {
        self.0.push_back(input);
    }

    /// Puts an input before all others.
    pub fn push_front(&mut self, input: Input) {
        self.0.push_front(input);
    }

    /// Queues a warning to be recorded.
    pub fn warn(&mut self, warning: impl Into<String>) {
        self.push(warning_input(warning));
    }

    pub fn extend(&mut self, inputs: impl IntoIterator<Item = Input>) {
        self.0.extend(inputs);
    }

    pub fn pop(&mut self) -> Option<Input> {
        self.0.pop_front()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// Returns the input that records a warning.
pub(super) fn warning_input(warning: impl Into<String>) -> Input {
    Input::Warning {
        warning: warning.into(),
    }
}
