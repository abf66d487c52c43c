//! Keeps the end of an output as text.

/// Maximum length of the last line when it becomes part of a message.
const LINE_BYTES_MAX: usize = 200;

/// Collects output and keeps its end.
#[derive(Debug)]
pub(crate) struct OutputTail {
    bytes: Vec<u8>,
    bytes_max: usize,
    left_out: usize,
}

impl OutputTail {
    /// Creates a tail that keeps the last `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes: Vec::new(),
            bytes_max,
            left_out: 0,
        }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        // The start is removed only when the buffer is twice as long, because removing moves all other bytes.
        if self.bytes.len() > 2 * self.bytes_max {
            self.cut();
        }
    }

    /// Returns whether the output was longer than the kept part.
    pub fn is_cut(&self) -> bool {
        self.left_out > 0 || self.bytes.len() > self.bytes_max
    }

    fn cut(&mut self) {
        let too_many = self.bytes.len().saturating_sub(self.bytes_max);
        self.bytes.drain(..too_many);
        self.left_out += too_many;
    }

    /// Returns the last line with a letter or digit, shortened; without such a line, the last line that is not empty.
    pub fn last_line(&self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.bytes);
        let mut lines = text.lines().map(str::trim);
        let says = |line: &&str| line.contains(char::is_alphanumeric);
        let line = lines
            .clone()
            .rfind(says)
            .or_else(|| lines.rfind(|line| !line.is_empty()))?;
        let end = line.floor_char_boundary(LINE_BYTES_MAX);
        line.get(..end).map(str::to_owned)
    }

    /// Returns the kept text and how many bytes were left out before it.
    pub fn end(&mut self) -> (String, usize) {
        self.cut();
        // If the first character was cut, its remaining bytes are not valid UTF-8.
        let continues = |byte: &&u8| **byte & 0b1100_0000 == 0b1000_0000;
        let torn = match self.left_out {
            0 => 0,
            _ => self.bytes.iter().take(3).take_while(continues).count(),
        };
        self.bytes.drain(..torn);
        self.left_out += torn;
        let text = String::from_utf8_lossy(&self.bytes).into_owned();
        (text, self.left_out)
    }

    /// Removes all collected output.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.left_out = 0;
    }

    /// Returns the kept text, with a first line that says how many bytes are missing; `None` if there was no output.
    pub fn text(mut self) -> Option<String> {
        let (text, left_out) = self.end();
        let text = text.trim_end();
        match left_out {
            0 => (!text.is_empty()).then(|| text.to_owned()),
            left_out => Some(format!("[{left_out} bytes before]\n{text}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(text: &str) -> OutputTail {
        let mut tail = OutputTail::new(4096);
        tail.push(text.as_bytes());
        tail
    }

    #[test]
    fn last_line_is_the_last_one_with_text() {
        let last = |text: &str| tail(text).last_line();
        assert_eq!(last("a\n b \n\n").as_deref(), Some("b"));
        assert_eq!(last(" \n"), None);
        assert_eq!(last("why\n}\n-----\n").as_deref(), Some("why"));
        assert_eq!(last("{\n}\n").as_deref(), Some("}"));
        assert_eq!(last(&"x".repeat(999)), Some("x".repeat(LINE_BYTES_MAX)));
    }

    #[test]
    fn output_tail_keeps_the_end_and_counts_omitted_bytes() {
        assert_eq!(tail("").text(), None);
        assert_eq!(tail(" said\n\n").text().as_deref(), Some(" said"));
        let mut tail = tail("");
        for _ in 0..5000 {
            tail.push("é".as_bytes());
        }
        tail.push(b".");
        let text = tail.text().unwrap();
        let (before, kept) = text.split_once('\n').unwrap();
        assert_eq!(
            before, "[5906 bytes before]",
            "one omitted byte is the rest of a character"
        );
        assert_eq!(kept, "é".repeat(2047) + ".");
        assert_eq!(kept.len() + 5906, 10_001);
    }
}
