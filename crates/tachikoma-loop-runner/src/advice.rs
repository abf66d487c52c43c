//! Messages of the runner to an agent.

/// Asks a session that is about to be replaced for its hand-off to the next session.
pub(crate) const ASK_HAND_OFF: &str = "\
Your context is almost full, and a fresh session will take over from here. It sees the files, and nothing of this \
conversation. Do not call any tool and do not change anything now. Write its hand-off, in at most 400 words:\n\
\n\
1. what is done, and how you know that it works;\n\
2. what you were in the middle of, down to the file and the function;\n\
3. what comes next, in order;\n\
4. what you tried that did not work, and why;\n\
5. anything that is not in the files and must not be forgotten.\n";

/// Returns the message to an agent during its turn that its context is almost full.
pub(crate) fn wrap_up(percent: u8) -> String {
    format!(
        "Your context is {percent} % full. Soon this session will be replaced by a fresh one that sees the files and \
         nothing of this conversation. Bring the step you are at to an end and leave the work tree in a good state; begin \
         nothing large. Write down what the next session must know with `tachikoma note \"...\"`: what is done, what is \
         next, what did not work. Then end your turn."
    )
}

/// Returns a message of the operator to an agent during its turn.
pub(crate) fn from_operator(words: &str) -> String {
    format!("The operator says:\n\n{words}")
}
