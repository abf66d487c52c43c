//! Generates the JSON schema and `docs/configuration.md`.

use serde_json::{Value, json};

use super::loaded::toml_text;
use super::{Settings, keys};

/// Returns the JSON schema of `tachikoma.toml`.
#[must_use]
pub fn schema() -> Value {
    let mut schema = schemars::schema_for!(Settings).to_value();
    for (alias, key) in keys::ALIASES {
        let mut property = schema["properties"][key].clone();
        property["description"] = json!(format!("The same as `{key}`; give one of them."));
        schema["properties"][alias] = property;
    }
    schema
}

/// Returns the text of `docs/configuration.md`.
#[must_use]
pub fn reference() -> String {
    let schema = schemars::schema_for!(Settings).to_value();
    let mut page = String::from(INTRODUCTION);
    for section in sections(&schema) {
        page.push_str(&section.text(&schema));
    }
    page
}

const INTRODUCTION: &str = r#"# Configuration

<!-- Written by `UPDATE_DOCS=1 cargo test -p tachikoma-config`; do not edit. -->

Every key has a default, and an empty file is valid. Values come from these layers; a later one overrides an earlier one:

1. the defaults below,
2. the user's file: `$XDG_CONFIG_HOME/tachikoma/tachikoma.toml`, or `~/.config/tachikoma/tachikoma.toml`,
3. the project's file: `tachikoma.toml` in the current directory, or the file that `TACHIKOMA_CONFIG` names. Programs and permissions in it need your
   [trust](trust.md),
4. variables: `TACHIKOMA_` and the key in capitals, tables joined by two underscores,
5. flags of earlier runs of the loop, until a file or a variable changes the same key,
6. flags.

`tachikoma init` writes a first `tachikoma.toml`, a prompt and a plan for the project in the current directory. It keeps existing files, and the
configuration that it writes is [trusted](trust.md). `--yes` takes all defaults. The first line of the file names the
[JSON Schema](tachikoma.schema.json), with which editors check and complete keys.

`tachikoma doctor` checks the agents, the configuration, the gates, git and the machine. It sends no request to a model. Exit code 1 means that a check
found an error. `doctor --json` prints one object: `errors` and `warnings` are counts, and `checks` is a list of objects with `status` (`ok`, `warning`
or `error`), `subject`, `message` and `fix` (`null` if there is nothing to fix).

```sh
TACHIKOMA_MAX_ITERATIONS=20
TACHIKOMA_SESSION__SESSION_TIMEOUT=2h
TACHIKOMA_AGENTS__COMMAND__PROGRAM='["sh", "agent.sh"]'
```

`tachikoma config show` prints every value with its origin, and secrets as `***`. Unknown keys and wrong values are errors with their place and the nearest valid
key. Tables are merged key by key; lists are replaced. The value of a variable is TOML or plain text.

Durations are text with a unit: `"5s"`, `"10m"`, `"1h 30m"`. Relative paths start at `working_dir`. 0 means *no limit* for counts and timeouts, *none* for
delays and grace periods, *off* for thresholds. Thresholds in percent are off at 100. For `reboot.max_restarts`, absent means no limit and 0 means never.

These variables set no key: `TACHIKOMA_LOOP_ID`, `TACHIKOMA_INSIDE`, `TACHIKOMA_SESSION`, `TACHIKOMA_ITERATION`, `TACHIKOMA_ATTEMPT`, `TACHIKOMA_DIR`,
`TACHIKOMA_HOOK`, `TACHIKOMA_OUTCOME`, `TACHIKOMA_REASON`, `TACHIKOMA_TEST`, `TACHIKOMA_GATE_NAME`, `TACHIKOMA_LOG`, `TACHIKOMA_CONFIG`, `TACHIKOMA_TRUST`, and all
that begin with `TACHIKOMA_DEMO`. Agents get `TACHIKOMA_DIR` and `TACHIKOMA_SESSION`. Agents with one process per turn also get `TACHIKOMA_ITERATION` and
`TACHIKOMA_ATTEMPT`.
"#;

/// A section of the configuration page. Tables with the same keys share a section if all or none of them are implemented.
struct Section {
    headings: Vec<String>,
    /// Name of one of the tables. Its keys are listed.
    table: String,
    is_list: bool,
    keys: Vec<String>,
}

fn sections(schema: &Value) -> Vec<Section> {
    let mut sections: Vec<(Value, Section)> = Vec::new();
    for (leaf, _) in keys::LEAVES.iter() {
        let (table, name) = leaf.rsplit_once('.').unwrap_or(("", leaf));
        let items = &property(schema, leaf)["items"]["$ref"];
        let (table, is_list) = if items.is_string() {
            (leaf.as_str(), true)
        } else {
            (table, false)
        };
        let node = property(schema, table);
        let kind = if is_list { items } else { &node["$ref"] };
        let keys = if is_list {
            list_keys(resolve(schema, &node["items"]))
        } else {
            vec![name.into()]
        };
        let same = |section: &Section| {
            section.table == table || keys::is_built(&section.table) == keys::is_built(table)
        };
        match sections
            .iter_mut()
            .find(|(known, section)| known == kind && same(section))
        {
            Some((_, section)) if section.table == table => section.keys.extend(keys),
            Some((_, section)) => {
                let heading = heading(table, is_list);
                if !section.headings.contains(&heading) {
                    section.headings.push(heading);
                }
            }
            None => {
                let section = Section {
                    headings: vec![heading(table, is_list)],
                    table: table.into(),
                    is_list,
                    keys,
                };
                sections.push((kind.clone(), section));
            }
        }
    }
    sections.into_iter().map(|(_, section)| section).collect()
}

fn heading(table: &str, is_list: bool) -> String {
    match (table, is_list) {
        ("", _) => "Top level".into(),
        (table, true) => format!("`[[{table}]]`"),
        (table, false) => format!("`[{table}]`"),
    }
}

/// Returns the keys of a table in order. Required keys come first, because the schema only keeps their order.
fn list_keys(items: &Value) -> Vec<String> {
    let required: Vec<String> = items["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|name| name.as_str().map(Into::into))
        .collect();
    let properties = items["properties"].as_object().into_iter().flatten();
    let optional: Vec<String> = properties
        .map(|(name, _)| name.clone())
        .filter(|name| !required.contains(name))
        .collect();
    [required, optional].concat()
}

impl Section {
    fn text(&self, schema: &Value) -> String {
        let node = property(schema, &self.table);
        let table = if self.is_list {
            resolve(schema, &node["items"])
        } else {
            resolve(schema, node)
        };
        let mut text = format!("\n## {}\n", self.headings.join(", "));
        if !self.table.is_empty() {
            let description = if self.headings.len() > 1 {
                &table["description"]
            } else {
                &node["description"]
            };
            text.push_str(&format!("\n{}", description.as_str().unwrap_or_default()));
            if self.is_list && !keys::is_built(&self.table) {
                text.push_str(NOT_BUILT_YET);
            }
            text.push('\n');
        }
        text.push_str("\n| Key | Type | Default | Meaning |\n|---|---|---|---|\n");
        for name in &self.keys {
            text.push_str(&self.row(name, &table["properties"][name]));
        }
        text
    }

    fn row(&self, name: &str, node: &Value) -> String {
        let key = if self.table.is_empty() {
            name.into()
        } else {
            format!("{}.{name}", self.table)
        };
        let default = match (node.get("default").map(toml_text), self.is_list) {
            (Some(Some(text)), _) => format!("`{text}`"),
            (None, true) if node["type"] == "array" => "`[]`".into(),
            (None, true) if !is_nullable(node) => "required".into(),
            (Some(None) | None, _) => "absent".into(),
        };
        let mut meaning = node["description"].as_str().unwrap_or_default().to_owned();
        if !self.is_list && !keys::is_built(&key) {
            meaning.push_str(NOT_BUILT_YET);
        }
        format!(
            "| `{name}` | {} | {default} | {meaning} |\n",
            type_words(node)
        )
    }
}

const NOT_BUILT_YET: &str = " *No effect yet.*";

/// Returns the schema of the value at a dotted key, or the whole schema for an empty key.
fn property<'a>(schema: &'a Value, key: &str) -> &'a Value {
    key.split('.')
        .filter(|segment| !segment.is_empty())
        .fold(schema, |node, segment| {
            &resolve(schema, node)["properties"][segment]
        })
}

/// Resolves a reference. Other schemas are returned unchanged.
fn resolve<'a>(schema: &'a Value, node: &'a Value) -> &'a Value {
    match node["$ref"]
        .as_str()
        .and_then(|path| path.strip_prefix('#'))
    {
        Some(pointer) => schema.pointer(pointer).unwrap_or(node),
        None => node,
    }
}

fn is_nullable(node: &Value) -> bool {
    node["type"]
        .as_array()
        .is_some_and(|types| types.contains(&json!("null")))
}

fn type_words(node: &Value) -> String {
    if let Some(variants) = node["oneOf"].as_array() {
        let names: Vec<String> = variants
            .iter()
            .filter_map(|variant| Some(format!("`\"{}\"`", variant["const"].as_str()?)))
            .collect();
        return names.join(", ");
    }
    let types = &node["type"];
    let name = types
        .as_str()
        .or_else(|| types[0].as_str())
        .unwrap_or_default();
    match (name, node["format"].as_str()) {
        ("string", Some("human-duration")) => "duration".into(),
        ("string", Some("secret")) => "secret".into(),
        ("string", _) => "text".into(),
        ("number", Some("percent")) => "percent".into(),
        ("number", Some("usd")) => "US dollars".into(),
        ("integer", _) => "whole number".into(),
        ("boolean", _) => "true or false".into(),
        ("array", _) => format!("list of {}", type_words(&node["items"])),
        ("object", _) => format!("table of {}s", type_words(&node["additionalProperties"])),
        (other, _) => other.into(),
    }
}
