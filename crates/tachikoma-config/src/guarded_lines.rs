//! Shows settings that need the user's agreement as lines of text.

use toml::Value;

use super::guarded::Guarded;
use super::layers::Layers;

/// Returns one line for each setting and each item of a list, with its origin and with secrets as `***`.
#[must_use]
pub fn guarded_lines(guarded: &Guarded) -> Vec<String> {
    let mut lines = Vec::new();
    for (key, value, origin) in guarded.settings() {
        let mut layers = Layers::new();
        layers.set(key, value.clone(), origin.clone());
        let loaded = layers.load();
        let entry = loaded.ok().and_then(|loaded| {
            let mut entries = loaded.entries();
            entries.find(|entry| entry.key == *key)?.value
        });
        // A setting that is only valid together with others is masked, because it may contain a secret.
        let shown = entry.unwrap_or_else(|| "***".to_owned());
        let parsed = format!("value = {shown}").parse::<toml::Table>();
        let items = parsed
            .ok()
            .and_then(|mut table| match table.remove("value") {
                Some(Value::Array(items)) if items.iter().all(Value::is_table) => Some(items),
                Some(_) | None => None,
            });
        match items {
            Some(items) => lines.extend(
                items
                    .iter()
                    .map(|item| format!("{key}: {item}  # {origin}")),
            ),
            None => lines.push(format!("{key} = {shown}  # {origin}")),
        }
    }
    lines
}
