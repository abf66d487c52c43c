//! Converts data of earlier format versions. Each step converts one version to the next, so the newest version is the number of
//! steps plus one.
//!
//! A new format version is needed only if a new field with a default value is not enough.

use serde_json::Value;

/// Converts one record or one snapshot, as JSON, to the next format version. Fails with a description.
pub type Step = fn(Value) -> Result<Value, String>;

/// The conversion steps of one kind of file.
#[derive(Clone, Copy, Debug)]
pub struct Chain {
    /// The steps in order. The first one converts version 1 to version 2.
    steps: &'static [Step],
}

/// Steps for the journal. Each converts one record.
pub const JOURNAL: Chain = Chain::new(&[]);

/// Steps for the snapshot.
pub const SNAPSHOT: Chain = Chain::new(&[]);

impl Chain {
    /// Returns a chain of steps, oldest first.
    #[must_use]
    pub const fn new(steps: &'static [Step]) -> Self {
        Self { steps }
    }

    /// Returns the newest format version, in which new files are written.
    pub const fn latest(self) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "steps are written by hand")]
        let steps = self.steps.len() as u32;
        steps + 1
    }

    /// Converts a value from the given format version to the newest one.
    pub fn upgrade(self, format: u32, value: Value) -> Result<Value, String> {
        let done = usize::try_from(format).ok().and_then(|n| n.checked_sub(1));
        let left = done.and_then(|done| self.steps.get(done..));
        let left = left.ok_or_else(|| format!("there is no format {format}"))?;
        left.iter().try_fold(value, |value, step| step(value))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[expect(clippy::unnecessary_wraps, reason = "a step may fail")]
    fn rename(mut value: Value) -> Result<Value, String> {
        value["new"] = value["old"].take();
        Ok(value)
    }

    fn double(mut value: Value) -> Result<Value, String> {
        let number = value["new"].as_u64().ok_or("`new` is no number")?;
        value["new"] = json!(number * 2);
        Ok(value)
    }

    const THREE: Chain = Chain::new(&[rename, double]);

    #[test]
    fn upgrade_applies_the_missing_steps() {
        assert_eq!(THREE.latest(), 3);
        let from = |format, value| THREE.upgrade(format, value).unwrap()["new"].clone();
        assert_eq!(from(1, json!({"old": 4})), 8);
        assert_eq!(from(2, json!({"new": 4})), 8);
        assert_eq!(from(3, json!({"new": 4})), 4);
    }

    #[test]
    fn failed_upgrade_is_described() {
        let failed = |format, value| THREE.upgrade(format, value).unwrap_err();
        assert_eq!(failed(1, json!({"old": "x"})), "`new` is no number");
        assert_eq!(failed(0, json!({})), "there is no format 0");
        assert_eq!(failed(4, json!({})), "there is no format 4");
    }
}
