//! Deserializes TOML values into [`Settings`]. Errors use the terms of the configuration instead of Rust types.

use std::fmt;

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{self, Deserializer, Expected, IntoDeserializer, Unexpected, Visitor};
use serde::forward_to_deserialize_any;
use serde_path_to_error::Segment;
use toml::{Table, Value};

use super::Settings;
use super::keys::{self, AGENTS_NOT_BUILT, Key};

/// An error in a value, and the place of the value.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    /// Place of the value, with list items numbered from 0: `gate[1].timeout`.
    pub(super) place: String,
    /// The key as the user writes it: `gate.timeout`.
    pub(super) key: String,
    pub(super) what: String,
    pub(super) hint: Option<String>,
}

/// Converts `table` to settings. Its values were already checked one by one.
pub(super) fn settings(table: Table) -> Result<Settings, Finding> {
    decode(table).map_err(|(path, fault)| fault.at(&path))
}

/// Returns all errors in `value` at `key`.
pub(super) fn check(key: &Key, value: &Value) -> Vec<Finding> {
    let Err((path, fault)) = decode(nest(key, value.clone())) else {
        return Vec::new();
    };
    match value {
        Value::Array(items) if path.len() > key.0.len() => items
            .iter()
            .enumerate()
            .flat_map(|(index, item)| check_item(key, index, item.clone()))
            .collect(),
        _ => vec![fault.at(&path)],
    }
}

/// Checks one item of a list. serde stops at the first error, so each invalid field is removed and the rest is checked again. An invalid
/// required field hides a later missing one.
fn check_item(key: &Key, index: usize, mut item: Value) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut taken_out = Vec::new();
    // This loop ends, because every pass returns or removes a field.
    loop {
        let list = Value::Array(vec![item.clone()]);
        let Err((mut path, fault)) = decode(nest(key, list)) else {
            return findings;
        };
        if matches!(&fault, Fault::Missing(field) if taken_out.iter().any(|taken| taken == field)) {
            return findings;
        }
        if let Some(segment) = path.get_mut(key.0.len()) {
            *segment = Segment::Seq { index };
        }
        let field = match (&fault, path.get(key.0.len() + 1)) {
            (Fault::Unknown { field, .. }, _) => Some(field.clone()),
            (_, Some(Segment::Map { key })) => Some(key.clone()),
            (_, _) => None,
        };
        findings.push(fault.at(&path));
        let Some((field, _)) = field.and_then(|field| item.as_table_mut()?.remove_entry(&field))
        else {
            return findings;
        };
        taken_out.push(field);
    }
}

/// Returns a table that contains only `value`, at `key`.
fn nest(key: &Key, value: Value) -> Table {
    let mut table = Table::new();
    insert(&mut table, &key.0, value);
    table
}

/// Inserts `value` at `path`, and creates missing tables.
pub(super) fn insert(table: &mut Table, path: &[String], value: Value) {
    match path {
        [] => (),
        [name] => {
            table.insert(name.clone(), value);
        }
        [name, rest @ ..] => {
            let child = table
                .entry(name.clone())
                .or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(child) = child {
                insert(child, rest, value);
            }
        }
    }
}

fn decode(table: Table) -> Result<Settings, (Vec<Segment>, Fault)> {
    serde_path_to_error::deserialize(Strict(Value::Table(table)))
        .map_err(|error| (error.path().iter().cloned().collect(), error.into_inner()))
}

/// An error of serde, without the place of the value.
#[derive(Debug)]
enum Fault {
    /// A message that is printed after the name of the key.
    Wrong {
        says: String,
        hint: Option<String>,
    },
    Unknown {
        field: String,
        known: &'static [&'static str],
    },
    Missing(&'static str),
}

impl Fault {
    fn at(self, path: &[Segment]) -> Finding {
        let (place, key) = (place_text(path), key_text(path));
        match self {
            Self::Wrong { says, hint } => Finding {
                what: format!("`{key}` {says}"),
                place,
                key,
                hint,
            },
            Self::Unknown { field, known } => {
                let table = key.strip_suffix(&format!(".{field}")).unwrap_or(&key);
                let known: Vec<String> =
                    known.iter().map(|name| format!("{table}.{name}")).collect();
                let known: Vec<&str> = known.iter().map(String::as_str).collect();
                let key = format!("{table}.{field}");
                let place = place.strip_suffix(&format!(".{field}")).unwrap_or(&place);
                Finding {
                    place: format!("{place}.{field}"),
                    what: format!("unknown key `{key}`"),
                    hint: keys::hint_for_name(&key, &known)
                        .or_else(|| Some(format!("known keys are {}", one_of(&known, "and")))),
                    key,
                }
            }
            Self::Missing(field) => {
                let table = key.split('[').next().unwrap_or(&key);
                Finding {
                    what: format!("`{table}` lacks `{field}`"),
                    hint: Some(format!("every `[[{table}]]` needs one")),
                    key: table.into(),
                    place,
                }
            }
        }
    }
}

fn place_text(path: &[Segment]) -> String {
    path.iter()
        .fold(String::new(), |text, segment| match segment {
            Segment::Map { key } if text.is_empty() => Key(vec![key.clone()]).to_string(),
            Segment::Map { key } => format!("{text}.{}", Key(vec![key.clone()])),
            Segment::Seq { index } => format!("{text}[{index}]"),
            // All enums of the configuration are plain strings, so they add nothing to the key.
            Segment::Enum { .. } | Segment::Unknown => text,
        })
}

/// Returns the key without the index of an array of tables, because the message also names the line.
fn key_text(path: &[Segment]) -> String {
    let end = match path.last() {
        Some(Segment::Seq { .. }) => path.len() - 1,
        Some(_) | None => path.len(),
    };
    let inner = path[..end]
        .iter()
        .filter(|segment| !matches!(segment, Segment::Seq { .. }));
    let shown: Vec<Segment> = inner.chain(&path[end..]).cloned().collect();
    place_text(&shown)
}

fn one_of(names: &[&str], conjunction: &str) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} {conjunction} {last}", first.join(", ")),
    }
}

/// Returns a readable name of the type that serde expected.
fn expected_text(expected: &dyn Expected) -> String {
    let name = expected.to_string();
    match name.as_str() {
        "u16" | "u32" | "u64" => "a whole number".into(),
        "f64" => "a number".into(),
        "a boolean" => "true or false".into(),
        "path string" => "a string".into(),
        "a sequence" => "a list".into(),
        "a map" => "a table".into(),
        text if text.starts_with("struct ") => "a table".into(),
        _ => name,
    }
}

fn kind(unexpected: &Unexpected<'_>) -> String {
    match unexpected {
        Unexpected::Bool(value) => value.to_string(),
        Unexpected::Unsigned(_) | Unexpected::Signed(_) => "a whole number".into(),
        Unexpected::Float(_) => "a number with a fraction".into(),
        Unexpected::Str(_) => "a string".into(),
        Unexpected::Seq => "a list".into(),
        Unexpected::Map => "a table".into(),
        other => other.to_string(),
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wrong { says, .. } => f.write_str(says),
            Self::Unknown { field, .. } => write!(f, "unknown key `{field}`"),
            Self::Missing(field) => write!(f, "lacks `{field}`"),
        }
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(says: T) -> Self {
        Self::Wrong {
            says: says.to_string(),
            hint: None,
        }
    }

    fn invalid_type(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let hint = match (unexpected, expected.to_string().as_str()) {
            (Unexpected::Signed(number @ 0..), text) if text.starts_with("a duration") => {
                Some(format!("did you mean \"{number}s\"?"))
            }
            (Unexpected::Str(_), "a sequence") => {
                Some("a list is written as [\"one\", \"two\"]".into())
            }
            (Unexpected::Map, "a sequence") => {
                Some("a list of tables is written with [[ ]]".into())
            }
            (_, _) => None,
        };
        Self::Wrong {
            says: format!(
                "must be {}, not {}",
                expected_text(expected),
                kind(&unexpected)
            ),
            hint,
        }
    }

    fn invalid_value(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let says = match (unexpected, expected.to_string().as_str()) {
            (Unexpected::Signed(number @ ..0), "u16" | "u32" | "u64") => {
                format!("must be 0 or more, not {number}")
            }
            (Unexpected::Signed(number), "u16") => {
                format!("must be at most {}, not {number}", u16::MAX)
            }
            (Unexpected::Signed(number), "u32") => {
                format!("must be at most {}, not {number}", u32::MAX)
            }
            (unexpected, _) => return Self::invalid_type(unexpected, expected),
        };
        Self::Wrong { says, hint: None }
    }

    fn unknown_variant(variant: &str, known: &'static [&'static str]) -> Self {
        let built = known.iter().filter(|name| !AGENTS_NOT_BUILT.contains(name));
        let built: Vec<&str> = built.copied().collect();
        Self::Wrong {
            says: format!("must be {}, not `{variant}`", one_of(&built, "or")),
            hint: keys::hint_for_name(variant, &built),
        }
    }

    fn unknown_field(field: &str, known: &'static [&'static str]) -> Self {
        Self::Unknown {
            field: field.into(),
            known,
        }
    }

    fn missing_field(field: &'static str) -> Self {
        Self::Missing(field)
    }
}

/// A TOML value without implicit conversions: a list is not accepted as a table, and a date is not accepted as a string.
struct Strict(Value);

impl Strict {
    fn unexpected(&self) -> Unexpected<'_> {
        match &self.0 {
            Value::String(text) => Unexpected::Str(text),
            Value::Integer(number) => Unexpected::Signed(*number),
            Value::Float(number) => Unexpected::Float(*number),
            Value::Boolean(value) => Unexpected::Bool(*value),
            Value::Datetime(_) => Unexpected::Other("a date"),
            Value::Array(_) => Unexpected::Seq,
            Value::Table(_) => Unexpected::Map,
        }
    }
}

impl<'de> Deserializer<'de> for Strict {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.0 {
            Value::String(text) => visitor.visit_string(text),
            Value::Integer(number) => visitor.visit_i64(number),
            Value::Float(number) => visitor.visit_f64(number),
            Value::Boolean(value) => visitor.visit_bool(value),
            Value::Datetime(_) => Err(de::Error::invalid_type(self.unexpected(), &visitor)),
            Value::Array(items) => {
                visitor.visit_seq(SeqDeserializer::new(items.into_iter().map(Strict)))
            }
            Value::Table(table) => visitor.visit_map(MapDeserializer::new(
                table.into_iter().map(|(name, value)| (name, Self(value))),
            )),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        match self.0 {
            Value::Table(_) => self.deserialize_any(visitor),
            _ => Err(de::Error::invalid_type(self.unexpected(), &visitor)),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        match self.0 {
            Value::String(text) => visitor.visit_enum(text.into_deserializer()),
            _ => Err(de::Error::custom(format!(
                "must be {}, not {}",
                one_of(known, "or"),
                kind(&self.unexpected()),
            ))),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        unit unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

impl IntoDeserializer<'_, Fault> for Strict {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}
