//! What the processes of an agent were seen doing while it said nothing.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What all processes of an agent did together between two looks at them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// Length of the sample, in milliseconds.
    pub over_ms: u64,
    /// CPU time that they used.
    pub cpu_ms: u64,
    /// Bytes that came and went over their connections.
    pub network_bytes: u64,
    /// Bytes that they read and wrote otherwise: files, pipes.
    pub file_bytes: u64,
}

/// An agent that was seen busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Busy {
    /// Time of the sample.
    pub time: crate::Timestamp,
    /// What the processes did during the sample.
    pub activity: Activity,
}

impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            (self.cpu_ms, "ms of CPU time"),
            (self.network_bytes, "bytes over the network"),
            (self.file_bytes, "bytes of files and pipes"),
        ];
        let seen = parts.iter().filter(|(amount, _)| *amount > 0);
        let words: Vec<String> = seen
            .map(|(amount, unit)| format!("{amount} {unit}"))
            .collect();
        let words = match words.is_empty() {
            true => "nothing".to_owned(),
            false => words.join(", "),
        };
        write!(f, "{words} in {} ms", self.over_ms)
    }
}
