//! The command line of a server, and its address.

use tachikoma_config::OpenCodeSettings;

use crate::client::{Address, AddressError};

/// Default of `opencode.serve_command`: the program.
const PROGRAM: &str = "opencode";

/// The argument that makes OpenCode run as a server.
const SERVE: &str = "serve";

/// Returns the words of the command line that starts the server.
///
/// # Errors
/// The configured command line cannot be parsed.
pub fn argv(settings: &OpenCodeSettings) -> Result<Vec<String>, String> {
    let mut words = match &settings.serve_command {
        None => vec![PROGRAM.to_owned()],
        Some(line) => split(line)
            .map_err(|what| format!("`opencode.serve_command` {line:?} cannot be read: {what}"))?,
    };
    if words.is_empty() {
        return Err("`opencode.serve_command` is empty; remove it to run `opencode`".to_owned());
    }
    if !words.iter().any(|word| word == SERVE) {
        words.push(SERVE.to_owned());
    }
    let port = settings.serve_port.to_string();
    let host = host(&settings.serve_hostname);
    words.extend(["--port", &port, "--hostname", host].map(str::to_owned));
    Ok(words)
}

/// Returns the host that the server listens on. `localhost` becomes 127.0.0.1, because it could also mean `::1`.
pub(super) fn host(configured: &str) -> &str {
    match configured {
        "localhost" => "127.0.0.1",
        other => other,
    }
}

/// Returns whether a server at this host can only be reached from this machine.
pub(super) fn is_loopback(configured: &str) -> bool {
    match host(configured).parse::<std::net::IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => false,
    }
}

/// Returns the address of a server on this machine that listens at a host and a port.
pub(super) fn address(configured: &str, port: u16) -> Result<Address, AddressError> {
    let authority = match host(configured).parse::<std::net::IpAddr>() {
        Ok(address) if address.is_unspecified() && address.is_ipv6() => format!("[::1]:{port}"),
        Ok(address) if address.is_unspecified() => format!("127.0.0.1:{port}"),
        Ok(std::net::IpAddr::V6(address)) => format!("[{address}]:{port}"),
        Ok(std::net::IpAddr::V4(_)) | Err(_) => format!("{}:{port}", host(configured)),
    };
    Address::parse(&format!("http://{authority}"))
}

/// Returns the port in the line that a server prints when it listens.
pub(super) fn listening_port(line: &str) -> Option<u16> {
    let (_, url) = line.split_once("listening on http")?;
    let digits = url.trim_end().trim_end_matches('/').rsplit(':').next()?;
    digits.parse().ok()
}

/// Splits a command line into words as a shell does, without expansions.
fn split(line: &str) -> Result<Vec<String>, &'static str> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\'' | '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match letters.next().ok_or("a quotation mark is not closed")? {
                        end if end == letter => break,
                        '\\' if letter == '"' => {
                            word.push(letters.next().ok_or("it ends with a backslash")?);
                        }
                        other => word.push(other),
                    }
                }
            }
            '\\' => {
                let next = letters.next().ok_or("it ends with a backslash")?;
                word.get_or_insert_default().push(next);
            }
            blank if blank.is_whitespace() => words.extend(word.take()),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(command: Option<&str>, hostname: &str, port: u16) -> Result<String, String> {
        let settings = OpenCodeSettings {
            serve_command: command.map(Into::into),
            serve_hostname: hostname.into(),
            serve_port: port,
            ..OpenCodeSettings::default()
        };
        argv(&settings).map(|words| words.join("|"))
    }

    #[test]
    fn command_line_gets_port_and_hostname() {
        let ok = |text: &str| Ok(text.to_owned());
        assert_eq!(
            line(None, "localhost", 4096),
            ok("opencode|serve|--port|4096|--hostname|127.0.0.1")
        );
        assert_eq!(
            line(Some("nice -n 5 'my open code' --x=\"a b\""), "::1", 0),
            ok("nice|-n|5|my open code|--x=a b|serve|--port|0|--hostname|::1")
        );
        assert_eq!(
            line(Some("opencode serve --print-logs"), "0.0.0.0", 1),
            ok("opencode|serve|--print-logs|--port|1|--hostname|0.0.0.0"),
            "`serve` is added once"
        );
        for bad in ["", "  ", "a 'b", "a \"b", "a\\"] {
            let refused = line(Some(bad), "localhost", 1).unwrap_err();
            assert!(
                refused.starts_with("`opencode.serve_command` "),
                "{refused}"
            );
        }
        assert_eq!(
            split(r#"a\ b "c\"d" '' e"#).unwrap(),
            ["a b", "c\"d", "", "e"]
        );
    }

    #[test]
    fn address_is_derived_from_the_configured_hostname() {
        let address = |host, port| address(host, port).unwrap().authority();
        assert_eq!(address("localhost", 7), "127.0.0.1:7");
        assert_eq!(address("0.0.0.0", 7), "127.0.0.1:7");
        assert_eq!(address("::", 7), "[::1]:7");
        assert_eq!(address("::1", 7), "[::1]:7");
        assert_eq!(address("box.local", 7), "box.local:7");
        let loopback = ["localhost", "127.0.0.1", "127.9.9.9", "::1"];
        assert!(loopback.into_iter().all(is_loopback));
        let open = ["0.0.0.0", "::", "192.168.1.5", "box.local", ""];
        assert!(!open.into_iter().any(is_loopback));
    }

    #[test]
    fn port_is_read_from_the_output_of_the_server() {
        let port = listening_port("opencode server listening on http://127.0.0.1:40961\n");
        assert_eq!(port, Some(40961));
        assert_eq!(listening_port("listening on http://[::1]:80/"), Some(80));
        for other in ["", "listening on http", "listening on http://x:99999"] {
            assert_eq!(listening_port(other), None, "{other}");
        }
    }
}
