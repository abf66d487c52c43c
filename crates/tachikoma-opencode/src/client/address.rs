//! Where a server is.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use reqwest::Url;
use tachikoma_config::without_password;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(Box<Url>);

/// Why something is no address of a server.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// It is no address at all.
    #[error("`{text}` is no address of a server, such as http://127.0.0.1:4096")]
    NoAddress {
        /// What was given, without a password.
        text: String,
    },
    /// It is encrypted, or something else altogether.
    #[error(
        "`{text}`: only http is spoken; for a server on another machine, forward its port through ssh"
    )]
    NotHttp {
        /// What was given, without a password.
        text: String,
    },
    /// It is more than an address.
    #[error("`{text}` has more than a host and a port; give user and password as variables")]
    More {
        /// What was given, without a password.
        text: String,
    },
}

impl Address {
    /// Reads an address.
    ///
    /// # Errors
    /// It is none, or none that can be used.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let shown_owned = || without_password(text).into_owned();
        let Ok(mut url) = Url::parse(text) else {
            return Err(AddressError::NoAddress {
                text: shown_owned(),
            });
        };
        if url.scheme() != "http" {
            return Err(AddressError::NotHttp {
                text: shown_owned(),
            });
        }
        let bare = url.username().is_empty() && url.password().is_none();
        if !bare || url.query().is_some() || url.fragment().is_some() || url.path() != "/" {
            return Err(AddressError::More {
                text: shown_owned(),
            });
        }
        if url.host_str() == Some("localhost") {
            // Whoever listens on 127.0.0.1 only is not found under the other address that the name may have.
            let _ = url.set_host(Some("127.0.0.1"));
        }
        Ok(Self(Box::new(url)))
    }

    /// Returns whether it is on this machine.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.loopback().is_some()
    }

    /// Returns where on this machine it is.
    #[must_use]
    pub fn loopback(&self) -> Option<SocketAddr> {
        let host = self.0.host_str().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let ip = host.parse::<IpAddr>().ok().filter(IpAddr::is_loopback)?;
        Some((ip, self.0.port_or_known_default()?).into())
    }

    /// Returns the whole address of a request.
    pub(super) fn url(&self, path: &str, directory: &str, query: &[(&str, &str)]) -> Url {
        let mut url = Url::clone(&self.0);
        url.set_path(path);
        let mut pairs = url.query_pairs_mut();
        pairs.append_pair("directory", directory);
        pairs.extend_pairs(query);
        drop(pairs);
        url
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
    fn only_plain_addresses_are_taken_and_no_password_is_shown() {
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
    fn a_directory_is_quoted() {
        let address = Address::parse("http://127.0.0.1:1").expect("an address");
        let url = address.url("/event", "/a b&c", &[("limit", "1")]);
        assert_eq!(
            url.as_str(),
            "http://127.0.0.1:1/event?directory=%2Fa+b%26c&limit=1"
        );
    }
}
