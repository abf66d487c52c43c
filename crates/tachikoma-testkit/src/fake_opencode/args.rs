//! The command line of `opencode serve`.

/// The parsed arguments.
pub(super) struct Args {
    pub port: u16,
    pub hostname: String,
}

impl Args {
    /// Parses the arguments. Arguments before `serve` belong to a wrapper and are ignored.
    pub fn parse(words: &[String]) -> Result<Self, String> {
        let serve = words.iter().position(|word| word == "serve");
        let mut words =
            words[serve.ok_or("only the subcommand `serve` is supported")? + 1..].iter();
        let mut args = Self {
            port: 4096,
            hostname: "127.0.0.1".to_owned(),
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} wants a value"));
            match word.as_str() {
                "--port" => {
                    args.port = value()?.parse().map_err(|_| "--port wants a number")?;
                }
                "--hostname" => args.hostname = value()?.clone(),
                "--print-logs" => {}
                other => return Err(format!("unknown argument {other}")),
            }
        }
        Ok(args)
    }
}
