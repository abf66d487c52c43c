//! Limits of the loop's custom data. All of it is part of every snapshot and of the first record of every segment.

use std::collections::BTreeMap;

use serde_json::Value;

/// Maximum size of a key of the custom data, in bytes.
pub const KEY_BYTES_MAX: usize = 128;

/// Maximum size of a value in bytes. A request on the control socket has at most 64 KiB.
pub const VALUE_BYTES_MAX: usize = 16 << 10;

/// Maximum number of keys. With the largest values they make a snapshot of a megabyte, which is written after every iteration.
pub const KEYS_MAX: usize = 64;

/// Maximum nesting of a value. Records and states contain values, and JSON parsers give up at a depth of 128.
pub const DEPTH_MAX: usize = 32;

/// Why a key cannot be set to a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The key is empty, or has control characters.
    #[error("a key must not be empty or contain control characters")]
    BadKey,
    /// The key is too long.
    #[error(
        "a key of the custom data may have at most {KEY_BYTES_MAX} bytes; put longer text into the value"
    )]
    LongKey,
    /// The value is too large.
    #[error(
        "a value may have {VALUE_BYTES_MAX} bytes, and this one has {bytes}; write it into a file, and set the name of the file"
    )]
    LargeValue {
        /// Size of the value as JSON.
        bytes: usize,
    },
    /// The value has too many levels of arrays and objects.
    #[error("a value may have {DEPTH_MAX} levels of arrays and objects")]
    DeepValue,
    /// There are too many keys already.
    #[error(
        "there are {KEYS_MAX} keys already; set one of them to null, or put several values into one object"
    )]
    TooManyKeys,
}

/// Checks one key and its value, but not the number of keys.
///
/// Fails if a limit is exceeded.
pub fn check(key: &str, value: &Value) -> Result<(), Refusal> {
    if key.is_empty() || key.chars().any(char::is_control) {
        return Err(Refusal::BadKey);
    }
    if key.len() > KEY_BYTES_MAX {
        return Err(Refusal::LongKey);
    }
    if depth(value) > DEPTH_MAX {
        return Err(Refusal::DeepValue);
    }
    let bytes = value.to_string().len();
    if bytes > VALUE_BYTES_MAX {
        return Err(Refusal::LargeValue { bytes });
    }
    Ok(())
}

/// Returns what setting a key to a value does, for the caller. A null value removes the key.
///
/// Fails if a limit is exceeded.
pub fn verdict(
    custom: &BTreeMap<String, Value>,
    key: &str,
    value: &Value,
) -> Result<String, Refusal> {
    check(key, value)?;
    match (custom.contains_key(key), value.is_null()) {
        (true, true) => Ok(format!("{key} is removed")),
        (false, true) => Ok(format!("{key} was not set")),
        (false, false) if custom.len() >= KEYS_MAX => Err(Refusal::TooManyKeys),
        (true | false, false) => Ok(format!("{key} is set")),
    }
}

/// Counts the levels of arrays and objects without recursion, because callers of the library may pass any value.
fn depth(value: &Value) -> usize {
    let mut deepest = 0;
    let mut open = vec![(value, 1_usize)];
    while let Some((value, level)) = open.pop() {
        match value {
            Value::Array(values) => open.extend(values.iter().map(|value| (value, level + 1))),
            Value::Object(values) => open.extend(values.values().map(|value| (value, level + 1))),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => continue,
        }
        deepest = deepest.max(level);
        if deepest > DEPTH_MAX {
            break;
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn nested(levels: usize) -> Value {
        (0..levels).fold(json!(1), |value, _| json!([value]))
    }

    #[test]
    fn custom_data_limits_are_inclusive() {
        let long = |length: usize| "k".repeat(length);
        assert_eq!(check(&long(KEY_BYTES_MAX), &json!(1)), Ok(()));
        assert_eq!(
            check(&long(KEY_BYTES_MAX + 1), &json!(1)),
            Err(Refusal::LongKey)
        );
        for bad in ["", "a\nb", "\u{1b}[31m"] {
            assert_eq!(check(bad, &json!(1)), Err(Refusal::BadKey), "{bad:?}");
        }
        // The quotes count toward the size.
        assert_eq!(check("k", &json!(long(VALUE_BYTES_MAX - 2))), Ok(()));
        let bytes = VALUE_BYTES_MAX + 1;
        assert_eq!(
            check("k", &json!(long(VALUE_BYTES_MAX - 1))),
            Err(Refusal::LargeValue { bytes })
        );
        assert_eq!(check("k", &nested(DEPTH_MAX)), Ok(()));
        for deep in [DEPTH_MAX + 1, 100] {
            assert_eq!(check("k", &nested(deep)), Err(Refusal::DeepValue), "{deep}");
        }
    }

    #[test]
    fn full_custom_data_rejects_new_keys_only() {
        let full: BTreeMap<_, _> = (0..KEYS_MAX)
            .map(|number| (format!("k{number}"), json!(1)))
            .collect();
        assert_eq!(verdict(&full, "new", &json!(1)), Err(Refusal::TooManyKeys));
        let said = |key, value| verdict(&full, key, &value).expect("the key can be set");
        assert_eq!(said("k1", json!(2)), "k1 is set");
        assert_eq!(said("k1", Value::Null), "k1 is removed");
        assert_eq!(said("new", Value::Null), "new was not set");
    }
}
