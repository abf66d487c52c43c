//! Token counts of one message.

use super::scan::{Raw, Walk};

/// Token counts of one message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    input: u64,
    cache_read: u64,
    cache_creation: u64,
    output: u64,
}

impl Usage {
    /// Takes the reported fields; other fields stay unchanged.
    pub fn update(&mut self, usage: Raw<'_>) {
        let mut found = 0;
        // A value that is not an object has no fields.
        let _ = usage.scan().object(|key, scan| {
            let field = match key {
                b"input_tokens" => &mut self.input,
                b"cache_read_input_tokens" => &mut self.cache_read,
                b"cache_creation_input_tokens" => &mut self.cache_creation,
                b"output_tokens" => &mut self.output,
                _ => return scan.skip(),
            };
            if let Some(count) = scan.value()?.count() {
                *field = count;
            }
            found += 1;
            Some(if found == 4 { Walk::Done } else { Walk::On })
        });
    }

    /// Returns how many tokens of the context the message uses.
    pub fn tokens(self) -> u64 {
        self.input + self.cache_read + self.cache_creation + self.output
    }
}
