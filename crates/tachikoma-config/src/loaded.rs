//! The merged settings, with the origin of each value.

use std::collections::BTreeMap;

use serde_json::Value;

use super::guarded::Guarded;
use super::problem::Origin;
use super::{Settings, keys};

/// The merged settings, with the origin of each value.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The merged settings.
    pub settings: Settings,
    /// Origins of the keys that are set, by dotted key. Other keys have their default.
    origins: BTreeMap<String, Origin>,
    /// Settings of the project's file that name programs or loosen permissions.
    pub guarded: Guarded,
}

/// One line of `tachikoma config show`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The dotted key.
    pub key: String,
    /// The value as TOML, with secrets as `***`; `None` if the key has no value.
    pub value: Option<String>,
    /// Origin of the value.
    pub origin: &'a Origin,
}

impl Loaded {
    pub(super) fn new(
        settings: Settings,
        origins: BTreeMap<String, Origin>,
        guarded: Guarded,
    ) -> Self {
        Self {
            settings,
            origins,
            guarded,
        }
    }

    /// Returns the origin of the value of `key`; the default if it is not set.
    #[must_use]
    pub fn origin_of(&self, key: &str) -> &Origin {
        self.origins.get(key).unwrap_or(&Origin::Default)
    }

    /// Returns every key with its value and origin, in the order of the documentation.
    pub fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        keys::leaves(&self.settings)
            .into_iter()
            .map(|(key, value)| Entry {
                origin: self.origin_of(&key),
                value: toml_text(&value),
                key,
            })
    }

    /// Returns the settings that differ from the defaults, by key, as TOML with secrets as `***`. A missing value is empty.
    #[must_use]
    pub fn not_defaults(&self) -> BTreeMap<String, String> {
        not_defaults(&self.settings)
    }

    /// Returns a hash of the values, independent of their origin. Secrets are not included, because the hash is stored and could be used
    /// to guess them.
    #[must_use]
    pub fn hash(&self) -> u32 {
        hash(&self.settings)
    }

    /// Returns the keys that are set but have no effect yet, with their origin.
    #[must_use]
    pub fn not_built(&self) -> Vec<(String, &Origin)> {
        let keys = self.origins.iter().filter(|(key, _)| !keys::is_built(key));
        keys.map(|(key, origin)| (key.clone(), origin)).collect()
    }
}

/// Returns a value as TOML; `None` if there is no value.
pub(super) fn toml_text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        // A whole number is shown without decimals: 85 and not 85.0.
        Value::Number(number) => Some(match number.as_f64() {
            Some(float) if number.is_f64() => float.to_string(),
            Some(_) | None => number.to_string(),
        }),
        Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
            toml::Value::try_from(value)
                .ok()
                .map(|value| value.to_string())
        }
    }
}

pub(super) fn not_defaults(settings: &Settings) -> BTreeMap<String, String> {
    let defaults: BTreeMap<_, _> = keys::LEAVES
        .iter()
        .map(|(key, value)| (key, value))
        .collect();
    keys::leaves(settings)
        .into_iter()
        .filter(|(key, value)| defaults.get(key) != Some(&value))
        .map(|(key, value)| (key, toml_text(&value).unwrap_or_default()))
        .collect()
}

pub(super) fn hash(settings: &Settings) -> u32 {
    let text = serde_json::to_vec(settings).expect("settings can be serialized");
    crc32c::crc32c(&text)
}
