//! Activity of the agent's processes while it is silent.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Activity of all processes of an agent during a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// Length of the sample, in milliseconds.
    pub over_ms: u64,
    /// CPU time in milliseconds.
    pub cpu_ms: u64,
    /// Bytes sent and received over the network.
    pub network_bytes: u64,
    /// Bytes read from and written to files and pipes.
    pub file_bytes: u64,
}

/// A sample that found a silent agent busy.
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
