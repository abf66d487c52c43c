//! Checks of values and combinations of values that TOML types cannot express.

use std::fmt::Display;

use tachikoma_core::{CommitMessage, PER_HOUR_MAX};

use super::Settings;
use super::agents::AgentSettings;
use super::keys;
use super::loaded::Loaded;
use super::notify::NotifyTarget;
use super::problem::{Origin, Problem};
use super::scalars::Secret;
use crate::protected::Protected;
use tachikoma_test_results::ReportPattern;

/// A rule that the settings violate.
struct Broken {
    keys: Vec<String>,
    what: String,
    hint: &'static str,
}

/// Collects violated rules.
#[derive(Default)]
struct BrokenRules(Vec<Broken>);

impl BrokenRules {
    fn add(&mut self, keys: &[&str], what: String, hint: &'static str) {
        self.0.push(Broken {
            keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            what,
            hint,
        });
    }

    /// Adds a broken rule about one key. The message is the name of the key followed by `what`.
    fn add_key(&mut self, key: &str, what: impl Display, hint: &'static str) {
        self.add(&[key], format!("`{key}`{what}"), hint);
    }
}

/// Returns the violated rules, except for keys that already have a problem.
pub(super) fn broken(loaded: &Loaded, known: &[Problem]) -> Vec<Problem> {
    let mut rules = BrokenRules::default();
    for check in [
        ranges,
        percents,
        patterns,
        reboots,
        models,
        allowed_commands,
        encryption,
        cloud,
        gates,
        scripts,
        git,
        notify_needs,
        notify_values,
        hooks,
        masks,
    ] {
        check(&loaded.settings, &mut rules);
    }
    let has_problem = |key: &String| {
        known
            .iter()
            .any(|problem| problem.key.as_ref() == Some(key))
    };
    let broken = rules.0.into_iter();
    broken
        .filter(|broken| !broken.keys.iter().any(has_problem))
        .map(|broken| {
            let mut keys = broken.keys.iter();
            let set = keys.find(|key| *loaded.origin_of(key) != Origin::Default);
            Problem {
                origin: set.map_or(Origin::Default, |key| loaded.origin_of(key).clone()),
                key: set.or(broken.keys.first()).cloned(),
                what: broken.what,
                hint: Some(broken.hint.into()),
            }
        })
        .collect()
}

fn ranges(settings: &Settings, broken: &mut BrokenRules) {
    for (key, path) in [
        ("working_dir", &settings.working_dir),
        ("prompt_path", &settings.prompt_path),
        ("session.state_dir", &settings.session.state_dir),
        ("state.state_path", &settings.state.state_path),
        ("state.backup_dir", &settings.state.backup_dir),
    ] {
        let hint = "remove the key to get its default";
        match path.to_str() {
            Some("") => broken.add_key(key, " must not be empty", hint),
            Some(path) if path.contains(char::is_control) => {
                broken.add_key(key, " must not contain control characters", hint);
            }
            Some(_) | None => {}
        }
    }
    let conditions = &settings.stop_conditions;
    let objectives = conditions.objectives.as_ref();
    if objectives.is_some_and(|path| path.as_os_str().is_empty()) {
        broken.add_key(
            "stop_conditions.objectives",
            " must not be empty",
            "name a Markdown file with check boxes, or remove the key",
        );
    }
    if conditions.completion_promise.trim().contains(['\n', '\r']) {
        broken.add_key(
            "stop_conditions.completion_promise",
            " must be one line",
            "the agent has to print it on a line of its own",
        );
    }
    if conditions.confirmations == 0 {
        broken.add_key(
            "stop_conditions.confirmations",
            " must be at least 1, not 0",
            "with 1 the first claim of completion is accepted",
        );
    }
}

fn percents(settings: &Settings, broken: &mut BrokenRules) {
    let warning = settings.context.warning_percent;
    let hard_limit = settings.context.hard_limit_percent;
    let mut are_valid = true;
    for (key, value) in [
        ("context_redline_percent", settings.context_redline_percent),
        ("context.warning_percent", warning),
        ("context.hard_limit_percent", hard_limit),
    ] {
        // A fresh session already uses more than one percent, so every iteration would be interrupted. A user who writes 0.5 means a fraction.
        if value.get() < 1.0 {
            are_valid = false;
            broken.add_key(
                key,
                format!(" must be a percentage from 1 to 100, not {value}"),
                "write 50 for one half of the window; 100 turns the threshold off",
            );
        }
    }
    // A warning at 100 percent is off, so it may exceed the hard limit.
    if are_valid && warning > hard_limit && warning.get() != 100.0 {
        broken.add(
            &["context.warning_percent", "context.hard_limit_percent"],
            format!(
                "`context.warning_percent` ({warning}) must not be above `context.hard_limit_percent` ({hard_limit})"
            ),
            "the warning must come before the limit; 100 turns it off",
        );
    }
}

/// Checks the patterns. An invalid one would never match, and the user would not notice.
fn patterns(settings: &Settings, broken: &mut BrokenRules) {
    let stop = &settings.stop_conditions.stop_on_patterns;
    let reboot = &settings.reboot.triggers.on_patterns;
    let stop = stop
        .iter()
        .map(|it| ("stop_conditions.stop_on_patterns", it));
    let reboot = reboot.iter().map(|it| ("reboot.triggers.on_patterns", it));
    for (key, pattern) in stop.chain(reboot) {
        match regex::Regex::new(pattern) {
            // A pattern that matches every text is rejected.
            Ok(regex) if regex.is_match("") && regex.is_match("x\n\u{1}") => broken.add_key(
                key,
                format!(": `{pattern}` matches every text"),
                "the pattern must contain at least one required character",
            ),
            Ok(_) => {}
            Err(error) => {
                let why = error.to_string();
                let why = why.lines().last().unwrap_or_default().trim();
                broken.add_key(
                    key,
                    format!(": `{pattern}` is not a regular expression: {why}"),
                    "put a backslash before characters that are meant literally",
                );
            }
        }
    }
}

fn reboots(settings: &Settings, broken: &mut BrokenRules) {
    let limit = settings.reboot.max_reboots_per_hour;
    if limit > PER_HOUR_MAX {
        broken.add_key(
            "reboot.max_reboots_per_hour",
            format!(" must be at most {PER_HOUR_MAX}, not {limit}"),
            "0 means no limit",
        );
    }
}

/// Returns the settings of each agent that is not a plain command.
fn agents(settings: &Settings) -> [(&'static str, &AgentSettings); 6] {
    let agents = &settings.agents;
    [
        ("claude", &agents.claude),
        ("opencode", &agents.opencode),
        ("codex", &agents.codex),
        ("gemini", &agents.gemini),
        ("acp", &agents.acp),
        ("demo", &agents.demo),
    ]
}

/// Checks the models. A model is an argument of the agent, so it must not look like a flag.
fn models(settings: &Settings, broken: &mut BrokenRules) {
    for (agent, own) in agents(settings) {
        let Some(model) = own.model.as_deref() else {
            continue;
        };
        if model.is_empty() || model.starts_with('-') || model.contains(char::is_control) {
            broken.add_key(
                &format!("agents.{agent}.model"),
                format!(": {model:?} is not the name of a model"),
                "write it as the agent names it, such as \"opus\"",
            );
        }
    }
}

/// Characters with a meaning in the agents' permission rules or in a shell.
const NOT_IN_COMMANDS: [char; 13] = [
    '(', ')', ',', '*', '?', ';', '&', '|', '<', '>', '$', '`', '"',
];

fn allowed_commands(settings: &Settings, broken: &mut BrokenRules) {
    let odd = |letter: char| letter.is_control() || NOT_IN_COMMANDS.contains(&letter);
    let (mut unsupported, mut wrong) = (Vec::new(), Vec::new());
    for (agent, own) in agents(settings) {
        let key = format!("agents.{agent}.allow");
        if matches!(agent, "claude" | "opencode") {
            let is_wrong = |command: &&String| {
                let trimmed = command.trim();
                trimmed.is_empty() || trimmed != command.as_str() || command.contains(odd)
            };
            let commands = own.allow.iter().filter(is_wrong);
            wrong.extend(commands.map(|command| (key.clone(), command)));
        } else if !own.allow.is_empty() {
            unsupported.push(key);
        }
    }
    for key in unsupported {
        let hint = "remove the key; `permission = \"bypass\"` allows every command";
        broken.add_key(&key, " is not supported", hint);
    }
    for (key, command) in wrong {
        let what = format!(": {command:?} must be the first words of a single command");
        let hint = "write a program and its first words, such as \"cargo test\"";
        broken.add_key(&key, what, hint);
    }
}

fn encryption(settings: &Settings, broken: &mut BrokenRules) {
    let state = &settings.state;
    for key in &state.encrypt_recipients {
        if key.parse::<age::x25519::Recipient>().is_err() {
            broken.add_key(
                "state.encrypt_recipients",
                format!(": `{key}` is not an age public key"),
                "a public key starts with `age1`; `age-keygen -y FILE` prints the one of an identity file",
            );
        }
    }
    let has_recipients = !state.encrypt_recipients.is_empty();
    if state.encrypt && has_recipients && state.encrypt_identity_file.is_none() {
        broken.add(
            &[
                "state.encrypt",
                "state.encrypt_recipients",
                "state.encrypt_identity_file",
            ],
            "`state.encrypt` with `state.encrypt_recipients` needs `state.encrypt_identity_file`"
                .into(),
            "the loop has to read its own state when it is resumed: name the file with one of the private keys",
        );
    }
}

fn cloud(settings: &Settings, broken: &mut BrokenRules) {
    let url = settings.state.cloud_url.as_deref();
    if let Some(error) = url.and_then(|url| tachikoma_cloud::check(url).err()) {
        let what = format!(" cannot be used: {error}");
        broken.add_key("state.cloud_url", what, "see `docs/backups.md`");
    }
}

/// Maximum number of gates. They run one after another. A user with more of them should combine them in a script.
const GATES_MAX: usize = 32;

/// Maximum number of stop scripts. All of them run at the same time, each in its own process.
const SCRIPTS_MAX: usize = 16;

fn gates(settings: &Settings, broken: &mut BrokenRules) {
    let mut gate = |what: String, hint| broken.add(&["gate"], what, hint);
    let mut names = std::collections::BTreeSet::new();
    for own in &settings.gate {
        if own.name.trim().is_empty() {
            gate(
                format!("`gate.name` of `{}` must not be empty", own.command),
                "the name identifies the gate in messages and in the prompt",
            );
        } else if !names.insert(own.name.as_str()) {
            gate(
                format!("`gate.name` is `{}` twice", own.name),
                "give each gate a unique name",
            );
        }
        if own.command.trim().is_empty() {
            gate(
                format!("`gate.command` of `{}` must not be empty", own.name),
                "give the command line that must exit 0",
            );
        }
        if let Some(Err(why)) = own.report.as_deref().map(ReportPattern::new) {
            gate(
                format!("`gate.report` of `{}` is not a pattern: {why}", own.name),
                "give a path, or a pattern such as `build/**/TEST-*.xml`",
            );
        }
    }
    let count = settings.gate.len();
    if count > GATES_MAX {
        gate(
            format!("there are {count} gates; the maximum is {GATES_MAX}"),
            "combine several checks in one script",
        );
    }
}

fn scripts(settings: &Settings, broken: &mut BrokenRules) {
    let scripts = &settings.stop_conditions.custom_scripts;
    let key = "stop_conditions.custom_scripts";
    let count = scripts.len();
    if count > SCRIPTS_MAX {
        let what = format!(" has {count} programs; the maximum is {SCRIPTS_MAX}");
        broken.add_key(key, what, "combine several checks in one script");
    }
    if scripts.iter().any(|path| path.as_os_str().is_empty()) {
        let hint = "name the program, such as \"./stop.sh\"";
        broken.add_key(key, " has an empty path", hint);
    }
}

fn git(settings: &Settings, broken: &mut BrokenRules) {
    let message = &settings.git.commit_message;
    if let Err(problem) = message.parse::<CommitMessage>() {
        let what = format!(" {message:?}: {problem}");
        broken.add_key("git.commit_message", what, CommitMessage::ALLOWED);
    }
    if let Err(problem) = Protected::check(&settings.git.protected) {
        let hint = "* and ? match within a name, ** matches any directories, [ab] matches one of the characters; a leading slash means the top of the repository";
        broken.add_key("git.protected", format!(": {problem}"), hint);
    }
}

/// Checks that each notification has the keys that its target needs.
fn notify_needs(settings: &Settings, broken: &mut BrokenRules) {
    for notify in &settings.notify {
        let no_url = notify.url.is_none() && notify.url_env.is_none();
        let no_secret = notify.secret_env.is_none();
        let url = (
            no_url,
            "url",
            "set the address, or name the variable with the address in `url_env`",
        );
        let needs = match notify.to {
            NotifyTarget::Desktop => Vec::new(),
            NotifyTarget::Command => {
                let hint = "set `command` to the command line to run";
                vec![(notify.command.is_none(), "command", hint)]
            }
            NotifyTarget::Webhook
            | NotifyTarget::Slack
            | NotifyTarget::Discord
            | NotifyTarget::Ntfy => vec![url],
            NotifyTarget::Telegram => vec![
                (
                    notify.chat.is_none(),
                    "chat",
                    "give the chat that the bot writes to",
                ),
                (
                    no_secret,
                    "secret_env",
                    "name the variable that has the bot's token",
                ),
            ],
            NotifyTarget::Email => vec![
                (notify.from.is_none(), "from", "give the sender's address"),
                (
                    notify.recipients.is_empty(),
                    "recipients",
                    "give the receivers' addresses",
                ),
                (
                    notify.user.is_some() && no_secret,
                    "secret_env",
                    "name the variable that has the password",
                ),
                url,
            ],
        };
        // Only the first missing key is reported, because it often shows the mistake.
        if let Some((_, key, hint)) = needs.into_iter().find(|(is_missing, ..)| *is_missing) {
            let to = notify.to.word();
            let what = format!("`notify.to` is `{to}`, which needs `notify.{key}`");
            broken.add(&["notify"], what, hint);
        }
    }
}

fn notify_values(settings: &Settings, broken: &mut BrokenRules) {
    for (notify, number) in settings.notify.iter().zip(1..) {
        let mut add = |what: String, hint| broken.add(&["notify"], what, hint);
        if notify.on.is_empty() {
            add(
                format!("`on` of notify {number} is empty: nothing would be sent"),
                "name events, or remove `on` to get the default",
            );
        }
        let command = notify.command.as_ref();
        if command.is_some_and(|command| command.trim().is_empty()) {
            add(
                format!("`command` of notify {number} is empty"),
                "set `command` to the command line to run",
            );
        }
        let is_wrong = |url: &Secret| url.expose() != Secret::MASK && !notify.to.accepts(url);
        if notify.url.as_ref().is_some_and(is_wrong) {
            let to = notify.to.word();
            add(
                format!("`url` of notify {number} is not an address that `{to}` can use"),
                "services need an address with `https://` or `http://`, mail needs `smtp://host:port` or `smtps://host`",
            );
        }
    }
}

fn hooks(settings: &Settings, broken: &mut BrokenRules) {
    for (hook, number) in settings.hook.iter().zip(1..) {
        if hook.command.trim().is_empty() {
            let what = format!("`command` of hook {number} is empty");
            broken.add(&["hook"], what, "set `command` to the command line to run");
        }
    }
}

/// Rejects `***` as the value of a secret: the user copied it from output that masks secrets.
fn masks(settings: &Settings, broken: &mut BrokenRules) {
    let command = [("command", &settings.agents.command.env)];
    let environments = agents(settings).map(|(agent, own)| (agent, &own.env));
    let variables = environments.into_iter().chain(command);
    let variables = variables.flat_map(|(agent, env)| {
        env.iter().map(move |(name, secret)| {
            let path = ["agents", agent, "env", name].map(str::to_owned);
            (keys::Key(path.into()).to_string(), secret)
        })
    });
    let urls = settings.notify.iter();
    let urls = urls.filter_map(|notify| Some(("notify".to_owned(), notify.url.as_ref()?)));
    for (key, secret) in variables.chain(urls) {
        if secret.expose() == Secret::MASK {
            broken.add_key(
                &key,
                format!(" has `{}` where a secret belongs", Secret::MASK),
                "secrets are shown this way in output; set the secret itself",
            );
        }
    }
}
