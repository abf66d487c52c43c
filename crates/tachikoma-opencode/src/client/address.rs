//! The address of a server.

use std::fmt;
use std::net::SocketAddr;

use tachikoma_config::without_password;
use url::Url;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(Box<Url>);

/// Why a text is not the address of a server.
#[derive(Debug, thiserror::Error)]
#[error("`{text}` {problem}")]
pub struct AddressError {
    /// The invalid text, without a password.
    text: String,
    problem: &'static str,
}

const NO_ADDRESS: &str = "is not the address of a server, such as http://127.0.0.1:4096";

const NOT_HTTP: &str = "does not begin with http://, and no other protocol is supported; for a server on another machine, \
                        forward its port through ssh";

const MORE_THAN_ADDRESS: &str = "has more than a host and a port; set OPENCODE_SERVER_USERNAME and \
                                 OPENCODE_SERVER_PASSWORD for user and password";

impl Address {
    /// Parses an address.
    ///
    /// # Errors
    /// The text is not an address, or the address cannot be used.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let refused = |problem| AddressError {
            text: without_password(text).into_owned(),
            problem,
        };
        let mut url = Url::parse(text).map_err(|_| refused(NO_ADDRESS))?;
        if url.scheme() != "http" {
            return Err(refused(NOT_HTTP));
        }
        let bare = url.username().is_empty() && url.password().is_none();
        if !bare || url.query().is_some() || url.fragment().is_some() || url.path() != "/" {
            return Err(refused(MORE_THAN_ADDRESS));
        }
        if url.host_str() == Some("localhost") {
            // `localhost` may also mean `::1`, where a server at 127.0.0.1 does not listen.
            let _ = url.set_host(Some("127.0.0.1"));
        }
        Ok(Self(Box::new(url)))
    }

    /// Returns whether the server is on this machine.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.loopback().is_some()
    }

    /// Returns the socket address of a server on this machine; `None` for other servers.
    #[must_use]
    pub fn loopback(&self) -> Option<SocketAddr> {
        let address: SocketAddr = self.authority().parse().ok()?;
        address.ip().is_loopback().then_some(address)
    }

    /// Returns host and port.
    pub(crate) fn authority(&self) -> String {
        let port = self.0.port_or_known_default().unwrap_or_default();
        format!("{}:{port}", self.0.host_str().unwrap_or_default())
    }

    /// Returns path and query of a request.
    pub(super) fn target(
        &self,
        path: &str,
        directory: Option<&str>,
        query: &[(&str, &str)],
    ) -> String {
        let mut url = Url::clone(&self.0);
        url.set_path(path);
        let directory = directory.map(|directory| ("directory", directory));
        let pairs: Vec<_> = directory.iter().chain(query).collect();
        if !pairs.is_empty() {
            url.query_pairs_mut()
                .extend_pairs(pairs.into_iter().copied());
        }
        url[url::Position::BeforePath..].to_owned()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str().trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_host_and_port_are_accepted_and_errors_hide_passwords() {
        for (text, shown, loopback) in [
            ("http://127.0.0.1:4096", "http://127.0.0.1:4096", true),
            ("http://localhost:4096/", "http://127.0.0.1:4096", true),
            ("http://[::1]:4096", "http://[::1]:4096", true),
            ("http://10.0.0.7:4096", "http://10.0.0.7:4096", false),
            ("http://box.lan:4096", "http://box.lan:4096", false),
        ] {
            let address = Address::parse(text).expect("an address");
            assert_eq!(address.to_string(), shown);
            assert_eq!(address.is_loopback(), loopback, "{text}");
        }
        for text in [
            "",
            "4096",
            "127.0.0.1:4096",
            "https://127.0.0.1:4096",
            "http://127.0.0.1:4096/app",
            "http://127.0.0.1:4096?x=1",
            "http://me:hunter2@127.0.0.1:4096",
            "https://me:hunter2@127.0.0.1:1",
            "http://me:hunter2@127.0.0.1:4096/?x#y",
            "http://me:hunter2@127.0.0.1:x",
            "http://me:hun/hunter2@127.0.0.1",
            "http://me:hun@hunter2@127.0.0.1",
            "me:hunter2@127.0.0.1:4096",
            "hunter2://x@127.0.0.1:4096",
        ] {
            let error = Address::parse(text).expect_err(text).to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
        assert_eq!(
            without_password("https://me:hunter2@box:1/a"),
            "https://box:1/a"
        );
    }

    #[test]
    fn directory_is_percent_encoded_in_the_query() {
        let address = Address::parse("http://127.0.0.1:1").expect("an address");
        let target = address.target("/event", Some("/a b&c"), &[("limit", "1")]);
        assert_eq!(target, "/event?directory=%2Fa+b%26c&limit=1");
        assert_eq!(address.target("/event", None, &[]), "/event");
        assert_eq!(address.authority(), "127.0.0.1:1");
    }
}
