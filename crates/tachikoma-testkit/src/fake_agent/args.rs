//! Parses the command line of the real agent, as far as a runner uses it. Arguments that the real agent rejects are rejected.

use super::sessions::microusd;

/// Options with a value that the fake agent ignores.
const WITH_VALUE: [&str; 10] = [
    "--append-system-prompt",
    "--append-system-prompt-file",
    "--autocompact",
    "--fallback-model",
    "--max-turns",
    "--mcp-config",
    "--permission-mode",
    "--permission-prompt-tool",
    "--settings",
    "--system-prompt-file",
];

/// Options that take every argument up to the next option.
const WITH_WORDS: [&str; 3] = ["--add-dir", "--allowedTools", "--disallowedTools"];

/// Options without a value that are accepted and ignored.
const ALONE: [&str; 7] = [
    "--bare",
    "--continue",
    "--dangerously-skip-permissions",
    "--include-hook-events",
    "--replay-user-messages",
    "--safe-mode",
    "-c",
];

/// The parsed arguments.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Args {
    pub print: bool,
    /// Whether prompts are read as JSON lines.
    pub json_in: bool,
    pub json_out: bool,
    pub verbose: bool,
    pub partial: bool,
    pub version: bool,
    pub fork: bool,
    pub model: Option<String>,
    pub resume: Option<String>,
    pub session_id: Option<String>,
    pub prompt: Option<String>,
    /// Budget of the process in millionths of a dollar; `None` = no budget.
    pub budget_microusd: Option<u64>,
}

impl Args {
    pub(super) fn parse(words: &[String]) -> Result<Self, String> {
        let mut args = Self::default();
        let mut words = words.iter().map(String::as_str).peekable();
        while let Some(word) = words.next() {
            let mut value = || {
                let value = words.next().map(str::to_owned);
                value.ok_or_else(|| format!("error: option '{word}' argument missing"))
            };
            match word {
                "-p" | "--print" => args.print = true,
                "-v" | "--version" => args.version = true,
                "--verbose" => args.verbose = true,
                "--include-partial-messages" => args.partial = true,
                "--fork-session" => args.fork = true,
                "--input-format" => args.json_in = value()? == "stream-json",
                "--output-format" => args.json_out = value()? == "stream-json",
                "--model" => args.model = Some(value()?),
                "-r" | "--resume" => args.resume = Some(value()?),
                "--session-id" => args.session_id = Some(value()?),
                "--max-budget-usd" => args.budget_microusd = Some(budget(&value()?)?),
                word if WITH_VALUE.contains(&word) => drop(value()?),
                word if WITH_WORDS.contains(&word) => {
                    while words.next_if(|word| !word.starts_with('-')).is_some() {}
                }
                word if ALONE.contains(&word) => {}
                word if word.starts_with('-') => {
                    return Err(format!("error: unknown option '{word}'"));
                }
                word => args.prompt = Some(word.to_owned()),
            }
        }
        if args.version {
            return Ok(args);
        }
        if !args.print || !args.json_out {
            let why = "only -p with --output-format stream-json is known to the fake agent";
            return Err(format!("error: {why}"));
        }
        if !args.verbose {
            let why = "When using --print, --output-format=stream-json requires --verbose";
            return Err(format!("Error: {why}"));
        }
        Ok(args)
    }
}

fn budget(word: &str) -> Result<u64, String> {
    let refused = || format!("error: option '--max-budget-usd': {word} is no amount");
    let usd: f64 = word.parse().map_err(|_| refused())?;
    Ok(microusd(usd))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args, String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        Args::parse(&words)
    }

    #[test]
    fn the_command_line_of_a_runner_is_parsed() {
        let line = "-p --input-format stream-json --output-format stream-json --verbose \
                    --allowedTools Bash Write --model m --resume ID";
        let args = parse(line).expect("the real agent accepts these arguments");
        assert!(args.json_in && args.print);
        assert_eq!(args.resume.as_deref(), Some("ID"));
        assert_eq!((args.model.as_deref(), args.prompt), (Some("m"), None));
    }

    #[test]
    fn arguments_that_the_real_agent_rejects_are_rejected() {
        let refused = |line: &str| parse(line).expect_err("the real agent rejects these arguments");
        assert_eq!(
            refused("-p --no-such-flag"),
            "error: unknown option '--no-such-flag'"
        );
        assert!(refused("-p --output-format stream-json").contains("requires --verbose"));
    }
}
