//! What must hold between values that are each right by themselves.

use tachikoma_core::{CommitMessage, PER_HOUR_MAX};

use super::Settings;
use super::keys;
use super::loaded::Loaded;
use super::notify::NotifyTarget;
use super::problem::{Origin, Problem};
use super::scalars::Secret;
use crate::protected::Protected;
use tachikoma_test_results::ReportPattern;

/// A rule that does not hold, with the keys it is about.
struct Broken {
    keys: Vec<String>,
    what: String,
    hint: &'static str,
}

/// Returns the rules that do not hold, leaving out those about keys that already have a problem.
pub(super) fn broken(loaded: &Loaded, known: &[Problem]) -> Vec<Problem> {
    let settings = &loaded.settings;
    let has_problem = |key: &String| {
        known
            .iter()
            .any(|problem| problem.key.as_ref() == Some(key))
    };
    [
        ranges(settings),
        percents(settings),
        patterns(settings),
        reboots(settings),
        models(settings),
        allowed_commands(settings),
        encryption(settings),
        cloud(settings),
        gates(settings),
        git(settings),
        notify(settings),
        hooks(settings),
        masks(settings),
    ]
    .into_iter()
    .flatten()
    .filter(|broken| !broken.keys.iter().any(has_problem))
    .map(|broken| {
        let set = broken
            .keys
            .iter()
            .find(|key| *loaded.origin_of(key) != Origin::Default);
        Problem {
            origin: set.map_or(Origin::Default, |key| loaded.origin_of(key).clone()),
            key: set.or(broken.keys.first()).cloned(),
            what: broken.what,
            hint: Some(broken.hint.into()),
        }
    })
    .collect()
}

fn ranges(settings: &Settings) -> Vec<Broken> {
    let paths = [
        ("working_dir", &settings.working_dir),
        ("prompt_path", &settings.prompt_path),
        ("session.state_dir", &settings.session.state_dir),
        ("state.state_path", &settings.state.state_path),
        ("state.backup_dir", &settings.state.backup_dir),
    ];
    let mut broken: Vec<Broken> = paths
        .into_iter()
        .filter_map(|(key, path)| {
            let path = path.to_str()?;
            let fault = match path {
                "" => "must not be empty",
                _ if path.contains(char::is_control) => "must not contain control characters",
                _ => return None,
            };
            Some(Broken {
                keys: vec![key.into()],
                what: format!("`{key}` {fault}"),
                hint: "remove the key to get its default",
            })
        })
        .collect();
    let conditions = &settings.stop_conditions;
    if conditions
        .objectives
        .as_ref()
        .is_some_and(|path| path.as_os_str().is_empty())
    {
        broken.push(Broken {
            keys: vec!["stop_conditions.objectives".into()],
            what: "`stop_conditions.objectives` must not be empty".into(),
            hint: "name a Markdown file with check boxes, or remove the key",
        });
    }
    if conditions.completion_promise.trim().contains(['\n', '\r']) {
        broken.push(Broken {
            keys: vec!["stop_conditions.completion_promise".into()],
            what: "`stop_conditions.completion_promise` must be one line".into(),
            hint: "it is looked for on a line of its own",
        });
    }
    if settings.stop_conditions.confirmations == 0 {
        broken.push(Broken {
            keys: vec!["stop_conditions.confirmations".into()],
            what: "`stop_conditions.confirmations` must be at least 1, not 0".into(),
            hint: "1 believes the first claim of completion",
        });
    }
    broken
}

fn percents(settings: &Settings) -> Vec<Broken> {
    let (warning, hard_limit) = (
        settings.context.warning_percent,
        settings.context.hard_limit_percent,
    );
    let thresholds = [
        ("context_redline_percent", settings.context_redline_percent),
        ("context.warning_percent", warning),
        ("context.hard_limit_percent", hard_limit),
    ];
    // A fresh session already uses more than one percent, so every iteration would be cut. 0.5 is meant as a fraction.
    let too_low = thresholds
        .into_iter()
        .filter(|(_, value)| value.get() < 1.0);
    let mut broken: Vec<Broken> = too_low
        .map(|(key, value)| Broken {
            keys: vec![key.into()],
            what: format!("`{key}` must be a percentage from 1 to 100, not {value}"),
            hint: "write 50 for one half of the window; 100 switches the threshold off",
        })
        .collect();
    // 100 turns the warning off.
    if warning <= hard_limit || warning.get() == 100.0 || !broken.is_empty() {
        return broken;
    }
    broken.push(Broken {
        keys: vec![
            "context.warning_percent".into(),
            "context.hard_limit_percent".into(),
        ],
        what: format!(
            "`context.warning_percent` ({warning}) must not be above `context.hard_limit_percent` ({hard_limit})"
        ),
        hint: "a warning comes before the limit; 100 switches it off",
    });
    broken
}

/// An invalid expression would never match, and the user would not notice.
fn patterns(settings: &Settings) -> Vec<Broken> {
    let lists = [
        (
            "stop_conditions.stop_on_patterns",
            &settings.stop_conditions.stop_on_patterns,
        ),
        (
            "reboot.triggers.on_patterns",
            &settings.reboot.triggers.on_patterns,
        ),
    ];
    let mut broken = Vec::new();
    for (key, patterns) in lists {
        for pattern in patterns {
            let (what, hint) = match regex::Regex::new(pattern) {
                // It would match every answer.
                Ok(regex) if regex.is_match("") && regex.is_match("x\n\u{1}") => (
                    "matches every text".to_owned(),
                    "name at least one character that has to be there",
                ),
                Ok(_) => continue,
                Err(error) => {
                    let why = error.to_string();
                    let why = why.lines().last().unwrap_or_default().trim();
                    (
                        format!("is no regular expression: {why}"),
                        "write a backslash before characters that are meant as they are",
                    )
                }
            };
            broken.push(Broken {
                keys: vec![key.into()],
                what: format!("`{key}`: `{pattern}` {what}"),
                hint,
            });
        }
    }
    broken
}

/// Characters with a meaning in the agents' permission rules or in a shell.
const NOT_IN_COMMANDS: [char; 13] = [
    '(', ')', ',', '*', '?', ';', '&', '|', '<', '>', '$', '`', '"',
];

/// A model is an argument of the agent: it must not be taken for one of its flags.
fn models(settings: &Settings) -> Vec<Broken> {
    let agents = &settings.agents;
    let models = [
        ("agents.claude.model", &agents.claude.model),
        ("agents.opencode.model", &agents.opencode.model),
        ("agents.codex.model", &agents.codex.model),
        ("agents.gemini.model", &agents.gemini.model),
        ("agents.acp.model", &agents.acp.model),
        ("agents.demo.model", &agents.demo.model),
    ];
    let is_no_model = |model: &str| {
        model.is_empty() || model.starts_with('-') || model.contains(char::is_control)
    };
    let wrong = models
        .into_iter()
        .filter(|(_, model)| model.as_deref().is_some_and(is_no_model));
    wrong
        .map(|(key, model)| Broken {
            keys: vec![key.into()],
            what: format!(
                "`{key}`: {model:?} is not the name of a model",
                model = model.as_deref().unwrap_or_default()
            ),
            hint: "write it as the agent names it, such as \"opus\"",
        })
        .collect()
}

fn allowed_commands(settings: &Settings) -> Vec<Broken> {
    let agents = &settings.agents;
    let others = [
        ("agents.codex.allow", &agents.codex),
        ("agents.gemini.allow", &agents.gemini),
        ("agents.acp.allow", &agents.acp),
        ("agents.demo.allow", &agents.demo),
    ];
    let others = others.into_iter().filter(|(_, own)| !own.allow.is_empty());
    let others = others.map(|(key, _)| Broken {
        keys: vec![key.into()],
        what: format!("`{key}` is not supported"),
        hint: "remove the key; `permission = \"bypass\"` allows every command",
    });
    let known = [
        ("agents.claude.allow", &agents.claude),
        ("agents.opencode.allow", &agents.opencode),
    ];
    let wrong = known.into_iter().flat_map(|(key, own)| {
        let odd = |letter: char| letter.is_control() || NOT_IN_COMMANDS.contains(&letter);
        let wrong = own.allow.iter().filter(move |command| {
            command.trim().is_empty() || command.trim() != command.as_str() || command.contains(odd)
        });
        wrong.map(move |command| Broken {
            keys: vec![key.into()],
            what: format!("`{key}`: {command:?} is not the beginning of one command"),
            hint: "write a program and its first words, such as \"cargo test\"",
        })
    });
    others.chain(wrong).collect()
}

fn reboots(settings: &Settings) -> Vec<Broken> {
    let mut broken = Vec::new();
    if settings.reboot.max_reboots_per_hour > PER_HOUR_MAX {
        broken.push(Broken {
            keys: vec!["reboot.max_reboots_per_hour".into()],
            what: format!(
                "`reboot.max_reboots_per_hour` must be at most {PER_HOUR_MAX}, not {}",
                settings.reboot.max_reboots_per_hour
            ),
            hint: "0 means no limit",
        });
    }
    broken
}

fn encryption(settings: &Settings) -> Vec<Broken> {
    let state = &settings.state;
    let mut broken: Vec<Broken> = state
        .encrypt_recipients
        .iter()
        .filter(|key| key.parse::<age::x25519::Recipient>().is_err())
        .map(|key| Broken {
            keys: vec!["state.encrypt_recipients".into()],
            what: format!("`state.encrypt_recipients`: `{key}` is no public key of age"),
            hint: "one looks like `age1...`; `age-keygen -y FILE` shows that of an identity",
        })
        .collect();
    if state.encrypt
        && !state.encrypt_recipients.is_empty()
        && state.encrypt_identity_file.is_none()
    {
        broken.push(Broken {
            keys: vec![
                "state.encrypt".into(),
                "state.encrypt_recipients".into(),
                "state.encrypt_identity_file".into(),
            ],
            what: "`state.encrypt` with `state.encrypt_recipients` needs `state.encrypt_identity_file`"
                .into(),
            hint: "the loop reads its own state when it is taken up again: name the file with one of the private keys",
        });
    }
    broken
}

fn cloud(settings: &Settings) -> Vec<Broken> {
    let url = settings.state.cloud_url.as_deref();
    let wrong = url.and_then(|url| tachikoma_cloud::check(url).err());
    let broken = wrong.map(|error| Broken {
        keys: vec!["state.cloud_url".into()],
        what: format!("`state.cloud_url` cannot be used: {error}"),
        hint: "see `docs/backups.md`",
    });
    broken.into_iter().collect()
}

/// Each gate is run one after the other behind an iteration; who has more of them has scripts that should be one.
const GATES_MAX: usize = 32;

/// Each script is a process of its own at the same time.
const SCRIPTS_MAX: usize = 16;

fn gates(settings: &Settings) -> Vec<Broken> {
    let gate = |what: String, hint| Broken {
        keys: vec!["gate".into()],
        what,
        hint,
    };
    let mut broken = Vec::new();
    let mut names = std::collections::BTreeSet::new();
    for own in &settings.gate {
        if own.name.trim().is_empty() {
            let what = format!("`gate.name` of `{}` must not be empty", own.command);
            broken.push(gate(
                what,
                "it is what the agent is told of a gate that failed",
            ));
        } else if !names.insert(own.name.as_str()) {
            let what = format!("`gate.name` is `{}` twice", own.name);
            broken.push(gate(what, "give each gate a name of its own"));
        }
        if own.command.trim().is_empty() {
            let what = format!("`gate.command` of `{}` must not be empty", own.name);
            broken.push(gate(what, "give the command line that must exit 0"));
        }
        let report = own.report.as_deref().map(ReportPattern::new);
        if let Some(Err(why)) = report {
            let what = format!("`gate.report` of `{}` is no pattern: {why}", own.name);
            broken.push(gate(
                what,
                "give a path, or a pattern such as `build/**/TEST-*.xml`",
            ));
        }
    }
    if settings.gate.len() > GATES_MAX {
        let what = format!(
            "there are {} gates, at most {GATES_MAX} may be",
            settings.gate.len()
        );
        broken.push(gate(what, "let one script run several checks"));
    }
    let scripts = &settings.stop_conditions.custom_scripts;
    let key = "stop_conditions.custom_scripts";
    let mut script = |what: String, hint| {
        broken.push(Broken {
            keys: vec![key.into()],
            what,
            hint,
        });
    };
    if scripts.len() > SCRIPTS_MAX {
        let what = format!(
            "`{key}` has {} programs, at most {SCRIPTS_MAX} may be",
            scripts.len()
        );
        script(what, "let one script ask several things");
    }
    if scripts.iter().any(|path| path.as_os_str().is_empty()) {
        script(
            format!("`{key}` has an empty path"),
            "name the program, such as \"./stop.sh\"",
        );
    }
    broken
}

fn git(settings: &Settings) -> Vec<Broken> {
    let git = &settings.git;
    let message = git.commit_message.parse::<CommitMessage>().err();
    let message = message.map(|problem| Broken {
        keys: vec!["git.commit_message".into()],
        what: format!("`git.commit_message` {:?}: {problem}", git.commit_message),
        hint: CommitMessage::ALLOWED,
    });
    let protected = Protected::check(&git.protected).err();
    let protected = protected.map(|problem| Broken {
        keys: vec!["git.protected".into()],
        what: format!("`git.protected`: {problem}"),
        hint: "* and ? stand for what is in one name, ** for any directories, [ab] for a choice; a slash at its start means the top",
    });
    message.into_iter().chain(protected).collect()
}

fn notify(settings: &Settings) -> Vec<Broken> {
    let lacks = |target: &str, key: &str, hint| Broken {
        keys: vec!["notify".into()],
        what: format!("`notify.to` is `{target}`, which needs `notify.{key}`"),
        hint,
    };
    let lacking = settings.notify.iter().filter_map(|notify| {
        let has_url = notify.url.is_some() || notify.url_env.is_some();
        let url = |target| {
            let hint = "give the address the message is sent to, or with `url_env` the variable that has it";
            (!has_url).then(|| lacks(target, "url", hint))
        };
        let secret = |target, hint| {
            let lacking = notify.secret_env.is_none();
            lacking.then(|| lacks(target, "secret_env", hint))
        };
        match notify.to {
            NotifyTarget::Command => {
                let hint = "give the command line that is run";
                notify
                    .command
                    .is_none()
                    .then(|| lacks("command", "command", hint))
            }
            NotifyTarget::Webhook => url("webhook"),
            NotifyTarget::Slack => url("slack"),
            NotifyTarget::Discord => url("discord"),
            NotifyTarget::Ntfy => url("ntfy"),
            NotifyTarget::Telegram if notify.chat.is_none() => {
                let hint = "give the chat that the bot writes to";
                Some(lacks("telegram", "chat", hint))
            }
            NotifyTarget::Telegram => {
                secret("telegram", "name the variable that has the bot's token")
            }
            NotifyTarget::Email if notify.from.is_none() => {
                Some(lacks("email", "from", "give the sender's address"))
            }
            NotifyTarget::Email if notify.recipients.is_empty() => {
                let hint = "give the receivers' addresses";
                Some(lacks("email", "recipients", hint))
            }
            NotifyTarget::Email if notify.user.is_some() && notify.secret_env.is_none() => {
                secret("email", "name the variable that has the password")
            }
            NotifyTarget::Email => url("email"),
            NotifyTarget::Desktop => None,
        }
    });
    let broken = |what: String, hint| Broken {
        keys: vec!["notify".into()],
        what,
        hint,
    };
    let numbered = settings.notify.iter().zip(1..);
    let wrong = numbered.flat_map(|(notify, number)| {
        let deaf = notify.on.is_empty().then(|| {
            let what = format!("`on` of notify {number} has no moment: nothing would be told");
            broken(what, "name moments, or leave `on` out for the usual ones")
        });
        let empty = notify
            .command
            .as_ref()
            .is_some_and(|it| it.trim().is_empty());
        let empty = empty.then(|| {
            let what = format!("`command` of notify {number} is empty");
            broken(what, "give the command line that is run")
        });
        let url = notify.url.as_ref();
        let url = url.filter(|url| url.expose() != Secret::MASK && !notify.to.takes(url));
        let url = url.map(|_| {
            let to = notify.to.word();
            let what =
                format!("`url` of notify {number} is none that a message to `{to}` can be sent to");
            broken(what, ADDRESSES)
        });
        [deaf, empty, url].into_iter().flatten()
    });
    lacking.chain(wrong).collect()
}

/// What addresses look like.
const ADDRESSES: &str = "services have one that begins with `https://` or `http://`, mail has `smtp://host:port` or `smtps://host`";

fn hooks(settings: &Settings) -> Vec<Broken> {
    let numbered = settings.hook.iter().zip(1..);
    let empty = numbered.filter(|(hook, _)| hook.command.trim().is_empty());
    empty
        .map(|(_, number)| Broken {
            keys: vec!["hook".into()],
            what: format!("`command` of hook {number} is empty"),
            hint: "give the command line that is run",
        })
        .collect()
}

/// A recorded or copied mask would otherwise be used as the secret itself.
fn masks(settings: &Settings) -> Vec<Broken> {
    let agents = &settings.agents;
    let environments = [
        ("claude", &agents.claude.env),
        ("opencode", &agents.opencode.env),
        ("codex", &agents.codex.env),
        ("gemini", &agents.gemini.env),
        ("acp", &agents.acp.env),
        ("command", &agents.command.env),
        ("demo", &agents.demo.env),
    ];
    let variables = environments.into_iter().flat_map(|(agent, env)| {
        env.iter().map(move |(name, secret)| {
            let key = keys::Key(vec![
                "agents".into(),
                agent.into(),
                "env".into(),
                name.clone(),
            ]);
            (key.to_string(), secret)
        })
    });
    let urls = settings
        .notify
        .iter()
        .filter_map(|notify| Some(("notify".into(), notify.url.as_ref()?)));
    variables
        .chain(urls)
        .filter(|(_, secret)| secret.expose() == Secret::MASK)
        .map(|(key, _)| Broken {
            what: format!("`{key}` has `{}` where a secret belongs", Secret::MASK),
            keys: vec![key],
            hint: "that is how secrets are shown; give the secret itself",
        })
        .collect()
}
