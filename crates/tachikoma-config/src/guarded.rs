//! Settings that name programs or loosen permissions. A project's file may set them only after the user has agreed.

use std::fmt;
use std::path::{Component, Path};

use sha2::{Digest as _, Sha256};
use toml::Value;

use super::keys::is_guarded;
use super::problem::Origin;

/// Returns whether a path may point outside of the project's directory.
fn is_outside_project(path: &str) -> bool {
    let inside = |component| matches!(component, Component::Normal(_) | Component::CurDir);
    !Path::new(path).components().all(inside)
}

/// The settings of a project's file that name programs or loosen permissions, in the order of their keys.
// No derived `Debug`: the values may be secrets.
#[derive(Clone, Default, PartialEq)]
pub struct Guarded(Vec<(String, Value, Origin)>);

impl fmt::Debug for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|(key, ..)| key))
            .finish()
    }
}

impl Guarded {
    /// Adds a setting if it needs the user's agreement.
    pub(super) fn add(&mut self, key: &str, value: &Value, origin: &Origin) {
        // The strictest values of these keys do not need the user's agreement.
        let is_strictest = match key {
            "state.encrypt" | "opencode.require_password" => value.as_bool() == Some(true),
            key => key.ends_with(".permission") && value.as_str() == Some("safe"),
        };
        // A prompt outside of the project needs agreement, because the content of the file is sent to the model's provider.
        let reads_elsewhere = matches!(key, "prompt_path" | "stop_conditions.objectives")
            && value.as_str().is_some_and(is_outside_project);
        if (is_guarded(key) && !is_strictest) || reads_elsewhere {
            self.0.push((key.to_owned(), value.clone(), origin.clone()));
            self.0.sort_by(|(one, ..), (other, ..)| one.cmp(other));
        }
    }

    /// Returns whether no setting needs the user's agreement.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a digest of the settings, including secrets. A changed value changes the digest.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        let pairs = self
            .0
            .iter()
            .map(|(key, value, _)| [key.clone(), value.to_string()]);
        digest(pairs.flatten())
    }

    pub(super) fn settings(&self) -> &[(String, Value, Origin)] {
        &self.0
    }
}

/// Returns a digest of texts. Their order and boundaries are part of it.
pub fn digest(texts: impl IntoIterator<Item = impl AsRef<[u8]>>) -> [u8; 32] {
    let mut hash = Sha256::new();
    for text in texts {
        let text = text.as_ref();
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::keys::{HARMLESS, Key, LEAVES, Place, place};

    fn guarded(text: &str) -> Guarded {
        let mut layers = crate::Layers::new();
        layers.text(Path::new("tachikoma.toml"), text);
        layers.load().unwrap().guarded
    }

    #[test]
    fn list_of_keys_that_need_agreement_is_complete() {
        // A new key appears in this snapshot until it is listed as harmless.
        let keys: Vec<&str> = LEAVES.iter().map(|(key, _)| key.as_str()).collect();
        let guarded: Vec<&str> = keys.iter().copied().filter(|key| is_guarded(key)).collect();
        insta::assert_snapshot!(guarded.join("\n"));
        for key in HARMLESS {
            assert_ne!(
                place(&Key::dotted(key)),
                Place::Unknown,
                "{key} is not a key"
            );
        }
    }

    #[test]
    fn digest_changes_only_with_values_that_need_agreement() {
        let text = "max_iterations = 3\n[[hook]]\non = 'error'\ncommand = 'a'\n";
        let one = guarded(text);
        assert_eq!(one.digest(), guarded(&text.replace('3', "4")).digest());
        assert_ne!(one.digest(), guarded(&text.replace("'a'", "'b'")).digest());
        let secret =
            |value: &str| guarded(&format!("agents.claude.env.LD_PRELOAD = '{value}'")).digest();
        assert_ne!(secret("a"), secret("b"));
    }

    #[test]
    fn guarded_settings_are_listed_item_by_item_without_secrets() {
        let text = "agents.claude.env.KEY = 'hunter2'\nagents.claude.permission = 'bypass'\nagents.opencode.permission = 'safe'\n\
                    [[hook]]\non = 'error'\ncommand = 'a'\n[[hook]]\non = 'loop_end'\ncommand = 'b'\n";
        insta::assert_snapshot!(crate::guarded_lines(&guarded(text)).join("\n"));
        assert!(!format!("{:?}", guarded(text)).contains("hunter2"));
    }

    #[test]
    fn a_prompt_outside_of_the_project_needs_agreement() {
        assert!(guarded("prompt_path = './docs/prompt.md'").is_empty());
        for path in ["/etc/passwd", "../prompt.md", "a/../../prompt.md"] {
            assert!(
                !guarded(&format!("prompt_path = '{path}'")).is_empty(),
                "{path}"
            );
        }
    }

    #[test]
    fn settings_from_environment_variables_and_flags_do_not_need_the_users_agreement() {
        let mut layers = crate::Layers::new();
        layers.variables([("TACHIKOMA_SESSION__CLAUDE_COMMAND".into(), "x".into())]);
        layers.set(
            "session.claude_command",
            Value::from("y"),
            Origin::Flag("--x".to_owned()),
        );
        assert!(layers.load().unwrap().guarded.is_empty());
    }
}
