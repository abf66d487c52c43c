//! Merges files, environment variables and flags. Later layers override earlier ones.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::Path;

use tachikoma_fs::owner;
use toml::{Table, Value};

use super::decode::{self, Finding};
use super::guarded::Guarded;
use super::keys::{self, Key, Place};
use super::loaded::Loaded;
use super::problem::{Origin, Problem, SettingsError};
use super::rules;
use super::source::{self, line_at};

/// Maximum size of a configuration file. A larger file is not a configuration.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Variables with the prefix `TACHIKOMA_` that are not settings: a loop sets them for its child processes, or the program reads them before the
/// configuration. These are full names: `TACHIKOMA_SESSION` does not include `TACHIKOMA_SESSION__STATE_DIR`.
pub(super) const NOT_SETTINGS: &[&str] = &[
    "TACHIKOMA_LOOP_ID",
    "TACHIKOMA_INSIDE",
    "TACHIKOMA_SESSION",
    "TACHIKOMA_ITERATION",
    "TACHIKOMA_ATTEMPT",
    "TACHIKOMA_DIR",
    "TACHIKOMA_HOOK",
    "TACHIKOMA_GATE_NAME",
    "TACHIKOMA_OUTCOME",
    "TACHIKOMA_REASON",
    "TACHIKOMA_TEST",
    "TACHIKOMA_LOG",
    "TACHIKOMA_CONFIG",
    tachikoma_core::TRUST_VARIABLE,
    tachikoma_core::PASSPHRASE_VARIABLE,
];

/// Prefix of environment variables for the demo agent.
const DEMO_PREFIX: &str = "TACHIKOMA_DEMO";

/// Layers of configuration over the defaults. Later layers override earlier ones. The usual order is the user's file, the working
/// directory's `tachikoma.toml`, the variables, the recorded launch, the flags.
///
/// Problems are collected until [`Layers::load`], which returns all of them.
///
/// ```
/// use std::path::Path;
/// use tachikoma_config::Layers;
///
/// let mut layers = Layers::new();
/// layers.text(Path::new("tachikoma.toml"), "max_iteration = 3");
/// let error = layers.load().unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "tachikoma.toml:1: unknown key `max_iteration`\n  hint: did you mean `max_iterations`?"
/// );
/// ```
// No `Debug`: the raw values may be secrets.
#[derive(Default)]
pub struct Layers {
    assigned: BTreeMap<String, Assignment>,
    problems: Vec<Problem>,
    /// Settings of the project's files that need the user's agreement.
    guarded: Guarded,
}

/// The owner of a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOf {
    /// The user's own file, below the home directory. It is trusted.
    User,
    /// A project's file. It may come from a cloned repository, so it needs the user's agreement.
    Project,
    /// A project's file that may be owned by any user.
    ProjectOfAnyOwner,
}

struct Assignment {
    key: Key,
    value: Value,
    origin: Origin,
}

impl Layers {
    /// Returns layers that only contain the defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file. Returns whether it exists. A missing file is accepted. A file of another user is a problem.
    pub fn file(&mut self, path: &Path, of: FileOf) -> bool {
        let whole = |what: String| Problem {
            origin: file_origin(path, None),
            key: None,
            what,
            hint: None,
        };
        match read(path, of) {
            Ok(bytes) if bytes.len() as u64 > FILE_BYTES_MAX => {
                self.problems
                    .push(whole(format!("is larger than {FILE_BYTES_MAX} bytes")));
            }
            Ok(bytes) => match str::from_utf8(&bytes) {
                Ok(text) if of == FileOf::User => self.text_of(path, text, false),
                Ok(text) => self.text(path, text),
                Err(error) => {
                    let good = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
                    self.problems.push(Problem {
                        origin: file_origin(path, Some(line_at(&good, good.len()))),
                        ..whole("is not UTF-8".into())
                    });
                }
            },
            Err(error) if is_absent(&error) => return false,
            Err(error) => self
                .problems
                .push(whole(format!("cannot be read: {error}"))),
        }
        true
    }

    /// Adds the text of a project's file. Messages name it `path`.
    pub fn text(&mut self, path: &Path, toml: &str) {
        self.text_of(path, toml, true);
    }

    fn text_of(&mut self, path: &Path, toml: &str, is_guarded: bool) {
        match source::parse(toml) {
            Ok((table, lines)) => {
                let origin = |place: &str| file_origin(path, lines.of(place));
                let before = self.problems.len();
                let mut layer = self.layer(&origin);
                layer.is_guarded = is_guarded;
                layer.table(&Key::default(), table);
                self.problems[before..].sort_by_key(|problem| problem.origin.line());
            }
            Err(errors) => self
                .problems
                .extend(errors.into_iter().map(|error| Problem {
                    origin: file_origin(path, error.line),
                    key: None,
                    what: error.what,
                    hint: None,
                })),
        }
    }

    /// Adds the environment variables with the prefix `TACHIKOMA_`: `TACHIKOMA_MAX_ITERATIONS`, `TACHIKOMA_SESSION__SESSION_TIMEOUT`.
    pub fn variables(&mut self, variables: impl IntoIterator<Item = (OsString, OsString)>) {
        let mut ours: Vec<(String, OsString)> = variables
            .into_iter()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value))
            .filter(|(name, _)| is_setting(name))
            .collect();
        ours.sort();
        let mut given = BTreeMap::new();
        for (name, value) in ours {
            let origin = |_: &str| Origin::Variable(name.clone());
            let mut layer = self.layer(&origin);
            layer.given = given;
            layer.variable(&name, value);
            given = layer.given;
        }
    }

    /// Sets one value from a flag or from the recorded launch of the loop. `key` is dotted, such as `agent.name`.
    pub fn set(&mut self, key: &str, value: Value, origin: Origin) {
        let origin = move |_: &str| origin.clone();
        self.layer(&origin).value(&Key::dotted(key), value);
    }

    /// Adds one value as text. The text is parsed as TOML if the result fits the key, and used as a string otherwise. `key` is dotted.
    pub fn set_text(&mut self, key: &str, text: &str, origin: Origin) {
        let origin = move |_: &str| origin.clone();
        self.layer(&origin).text_value(&Key::dotted(key), text);
    }

    /// Merges the layers into settings.
    ///
    /// # Errors
    /// Returns every problem of every layer, even of values that a later layer replaces.
    pub fn load(self) -> Result<Loaded, SettingsError> {
        let mut table = Table::new();
        let mut origins = BTreeMap::new();
        for (text, Assignment { key, value, origin }) in self.assigned {
            decode::insert(&mut table, &key.0, value);
            origins.insert(text, origin);
        }
        let mut problems = self.problems;
        match decode::settings(table) {
            Ok(settings) => {
                let loaded = Loaded::new(settings, origins, self.guarded);
                problems.extend(rules::broken(&loaded, &problems));
                if problems.is_empty() {
                    return Ok(loaded);
                }
            }
            // Every value was checked alone. If the values are text_value together, this is reported as a problem and does not panic.
            Err(finding) => problems.push(finding_at(Origin::Default, finding)),
        }
        Err(SettingsError { problems })
    }

    fn layer<'a>(&'a mut self, origin: &'a dyn Fn(&str) -> Origin) -> Layer<'a> {
        Layer {
            layers: self,
            given: BTreeMap::new(),
            origin,
            is_guarded: false,
        }
    }
}

fn read(path: &Path, of: FileOf) -> io::Result<Vec<u8>> {
    // `open_file` rejects named pipes. Reading one would block, even in `tachikoma stop`.
    let file = tachikoma_fs::user_file::open_file(path)?;
    if of != FileOf::ProjectOfAnyOwner {
        owner::check(&file.metadata()?)?;
    }
    tachikoma_fs::user_file::read_head(file, FILE_BYTES_MAX)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn is_setting(name: &str) -> bool {
    name.starts_with(keys::VARIABLE_PREFIX)
        && !name.starts_with(DEMO_PREFIX)
        && !NOT_SETTINGS.contains(&name)
}

fn file_origin(path: &Path, line: Option<usize>) -> Origin {
    Origin::File {
        path: path.into(),
        line,
    }
}

fn finding_at(origin: Origin, finding: Finding) -> Problem {
    Problem {
        origin,
        key: Some(finding.key),
        what: finding.what,
        hint: finding.hint,
    }
}

/// One layer while its values are added.
struct Layer<'a> {
    layers: &'a mut Layers,
    /// For each key, the name under which this layer set it. It may be an alias.
    given: BTreeMap<String, String>,
    /// Function that returns the origin of a place in this layer.
    origin: &'a dyn Fn(&str) -> Origin,
    /// Whether settings of this layer that name programs or loosen permissions need the user's agreement.
    is_guarded: bool,
}

impl Layer<'_> {
    fn table(&mut self, key: &Key, table: Table) {
        for (name, value) in table {
            self.value(&key.child(&name), value);
        }
    }

    fn value(&mut self, key: &Key, value: Value) {
        let meant = keys::canonical(key);
        match (keys::place(&meant), value) {
            (Place::Table | Place::OpenTable, Value::Table(table)) => self.table(key, table),
            (Place::Table | Place::OpenTable | Place::Value, value) => {
                let findings = decode::check(&meant, &value);
                if findings.is_empty() {
                    self.assign(key, meant, value);
                } else {
                    self.found(key, &meant, findings);
                }
            }
            (Place::Unknown, _) => {
                let text = key.to_string();
                let hint = keys::hint_for_key(key);
                self.problem(&text, format!("unknown key `{text}`"), Some(hint));
            }
        }
    }

    fn assign(&mut self, key: &Key, meant: Key, value: Value) {
        let (text, meant_text) = (key.to_string(), meant.to_string());
        if let Some(other) = self.given.get(&meant_text) {
            let what = format!("`{text}` and `{other}` are the same setting");
            self.problem(&text, what, Some(format!("keep `{meant_text}`")));
            return;
        }
        let origin = (self.origin)(&text);
        if self.is_guarded {
            self.layers.guarded.add(&meant_text, &value, &origin);
        }
        self.given.insert(meant_text.clone(), text);
        let assignment = Assignment {
            key: meant,
            value,
            origin,
        };
        self.layers.assigned.insert(meant_text, assignment);
    }

    /// Reports findings with the key that the user wrote, which may be an alias.
    fn found(&mut self, key: &Key, meant: &Key, findings: Vec<Finding>) {
        let (given, meant) = (key.to_string(), meant.to_string());
        for finding in findings {
            let origin = (self.origin)(&finding.place.replacen(&meant, &given, 1));
            let what = finding
                .what
                .replacen(&format!("`{meant}`"), &format!("`{given}`"), 1);
            self.layers.problems.push(Problem {
                what,
                ..finding_at(origin, finding)
            });
        }
    }

    fn variable(&mut self, name: &str, value: OsString) {
        let Some(key) = keys::of_variable(name) else {
            let what = format!("unknown variable `{name}`");
            return self.problem(name, what, Some(keys::hint_for_variable(name)));
        };
        let Ok(text) = value.into_string() else {
            return self.problem(&key.to_string(), format!("`{key}` must be UTF-8"), None);
        };
        self.text_value(&key, &text);
    }

    fn text_value(&mut self, key: &Key, text: &str) {
        let meant = keys::canonical(key);
        let string = Value::String(text.to_owned());
        let fits = |value: &Value| decode::check(&meant, value).is_empty();
        match text.parse::<Value>() {
            Ok(value) if fits(&value) || !fits(&string) => self.value(key, value),
            Ok(_) | Err(_) => self.value(key, string),
        }
    }

    fn problem(&mut self, key: &str, what: String, hint: Option<String>) {
        self.layers.problems.push(Problem {
            origin: (self.origin)(key),
            key: Some(key.into()),
            what,
            hint,
        });
    }
}
