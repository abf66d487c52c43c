//! Known mistakes in a configuration, each a function of the settings.

use tachikoma_loop_runner::settings::{AgentName, AgentSettings, Gate, Permission, Settings};

use super::check::Check;

/// Commands of gates that always pass.
const ALWAYS_PASS: [&str; 4] = ["true", ":", "exit 0", "exit"];

/// A known mistake. The function returns what is wrong and how to fix it; `None` if the settings do not have the mistake.
type Mistake = (&'static str, fn(&Settings) -> Option<(String, String)>);

const MISTAKES: [Mistake; 7] = [
    ("gates", no_gate),
    ("gates", gate_that_always_passes),
    ("permission", gate_denied_to_the_agent),
    ("limits", no_limit),
    ("cost limit", no_cost_limit),
    ("timeouts", silence_longer_than_session),
    ("context", redline_above_hard_limit),
];

/// Returns a warning for each known mistake in the settings.
pub fn mistakes(settings: &Settings) -> Vec<Check> {
    let found = MISTAKES.iter().filter_map(|(subject, find)| {
        let (what, fix) = find(settings)?;
        Some(Check::warning(*subject, what, fix))
    });
    found.collect()
}

/// Returns the settings of the selected agent if it asks for permissions; `None` for other agents.
pub fn restricted_agent(settings: &Settings) -> Option<&AgentSettings> {
    let agent = match settings.agent.name {
        AgentName::Claude => &settings.agents.claude,
        AgentName::OpenCode => &settings.agents.opencode,
        _ => return None,
    };
    (agent.permission == Permission::Safe).then_some(agent)
}

/// Returns whether an entry of `allow` permits a command.
pub fn is_allowed(agent: &AgentSettings, command: &str) -> bool {
    agent.allow.iter().any(|allowed| {
        let rest = command.trim().strip_prefix(allowed.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    })
}

/// Returns the line of the configuration that permits one more command.
pub fn allow_line(settings: &Settings, agent: &AgentSettings, command: &str) -> String {
    let commands = agent.allow.iter().map(String::as_str).chain([command]);
    let commands: Vec<String> = commands.map(|command| format!("{command:?}")).collect();
    let name = settings.agent.name;
    format!("allow = [{}] in [agents.{name}]", commands.join(", "))
}

fn no_gate(settings: &Settings) -> Option<(String, String)> {
    settings.gate.is_empty().then(|| {
        let what = "no gate: the loop ends when the agent says that the work is complete";
        let fix = "add a [[gate]] that runs your tests, for example `command = \"cargo test\"`";
        (what.to_owned(), fix.to_owned())
    })
}

fn gate_that_always_passes(settings: &Settings) -> Option<(String, String)> {
    let passes = |gate: &&Gate| ALWAYS_PASS.contains(&gate.command.trim());
    let gate = settings.gate.iter().find(passes)?;
    let what = format!("gate {}: `{}` always passes", gate.name, gate.command);
    Some((
        what,
        "use a command that fails while the work is not done".to_owned(),
    ))
}

fn gate_denied_to_the_agent(settings: &Settings) -> Option<(String, String)> {
    let agent = restricted_agent(settings)?;
    let is_denied = |gate: &&Gate| {
        !is_allowed(agent, &gate.command) && !ALWAYS_PASS.contains(&gate.command.trim())
    };
    let gate = settings.gate.iter().find(is_denied)?;
    let (name, command) = (&gate.name, gate.command.trim());
    let what = format!("the agent may not run `{command}`, so it cannot see why gate {name} fails");
    Some((what, allow_line(settings, agent, command)))
}

fn no_limit(settings: &Settings) -> Option<(String, String)> {
    let stop = &settings.stop_conditions;
    let is_limited = settings.max_iterations > 0
        || stop.max_duration.limit().is_some()
        || stop.max_cost_usd.get() > 0.0
        || stop.max_tokens > 0;
    (!is_limited).then(|| {
        let what = "iterations, time, cost and tokens have no limit";
        (
            what.to_owned(),
            "set max_iterations or stop_conditions.max_duration".to_owned(),
        )
    })
}

fn no_cost_limit(settings: &Settings) -> Option<(String, String)> {
    let stop = &settings.stop_conditions;
    let tells_cost = matches!(settings.agent.name, AgentName::Claude | AgentName::OpenCode);
    let is_limited = stop.max_cost_usd.get() > 0.0 || stop.max_tokens > 0;
    (tells_cost && !is_limited).then(|| {
        let what = format!(
            "agent {} reports its cost, but the cost has no limit",
            settings.agent.name
        );
        (what, "max_cost_usd = 20 in [stop_conditions]".to_owned())
    })
}

fn silence_longer_than_session(settings: &Settings) -> Option<(String, String)> {
    let silence = settings.session.silence_timeout.limit()?;
    let session = settings.session.session_timeout.limit()?;
    (silence > session).then(|| {
        let what =
            "session.silence_timeout is longer than session.session_timeout and has no effect";
        (
            what.to_owned(),
            "set a shorter session.silence_timeout, such as \"10m\"".to_owned(),
        )
    })
}

fn redline_above_hard_limit(settings: &Settings) -> Option<(String, String)> {
    let redline = settings.context_redline_percent.get();
    let hard_limit = settings.context.hard_limit_percent.get();
    (redline < 100.0 && redline > hard_limit).then(|| {
        let what = format!(
            "context_redline_percent ({redline}) is above context.hard_limit_percent ({hard_limit})"
        );
        (
            what,
            "set context_redline_percent below the hard limit, such as 85".to_owned(),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Settings without a mistake.
    const GOOD: &str = "\
        stop_conditions = { max_cost_usd = 5.0 }\n\
        agents.claude.allow = ['cargo test']\n\
        [[gate]]\nname = 'tests'\ncommand = 'cargo test --all'\n";

    fn found(text: &str) -> Vec<String> {
        let settings: Settings = toml::from_str(text).unwrap();
        let checks = mistakes(&settings);
        checks.into_iter().map(|check| check.message).collect()
    }

    #[test]
    fn settings_without_mistakes_have_no_warning() {
        assert_eq!(found(GOOD), Vec::<String>::new());
    }

    #[test]
    fn each_known_mistake_is_one_warning() {
        let cases = [
            (
                "[[gate]]\nname = 'tests'\ncommand = 'cargo test --all'\n",
                "",
                "no gate",
            ),
            ("cargo test --all", "exit 0", "always passes"),
            ("cargo test --all", "true", "always passes"),
            ("cargo test --all", " : ", "always passes"),
            (
                "['cargo test']",
                "['cargo tes']",
                "may not run `cargo test --all`",
            ),
            (
                "max_cost_usd = 5.0",
                "max_duration = '1h'",
                "cost has no limit",
            ),
            (
                "stop_conditions = {",
                "session = { silence_timeout = '2h', session_timeout = '1h' }\nstop_conditions = {",
                "silence_timeout is longer",
            ),
            (
                "stop_conditions = {",
                "context_redline_percent = 97\nstop_conditions = {",
                "is above context.hard_limit_percent",
            ),
        ];
        for (from, to, expected) in cases {
            let text = GOOD.replacen(from, to, 1);
            assert_ne!(text, GOOD, "{from}");
            let found = found(&text);
            assert_eq!(found.len(), 1, "{to}: {found:?}");
            assert!(found[0].contains(expected), "{to}: {found:?}");
        }
        let unlimited = GOOD.replace(
            "stop_conditions = { max_cost_usd = 5.0 }",
            "max_iterations = 0\nagent.name = 'command'\nstop_conditions = { max_duration = '0s' }",
        );
        assert_eq!(
            found(&unlimited),
            ["iterations, time, cost and tokens have no limit"]
        );
    }
}
