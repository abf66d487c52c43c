//! The proxies that environment variables name, for HTTP clients. No client reads the environment itself.

use std::collections::BTreeMap;

use reqwest::{ClientBuilder, NoProxy, Proxy};

/// The environment variables that name proxies.
const VARIABLES: [&str; 7] = [
    "http_proxy",
    "https_proxy",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "no_proxy",
    "NO_PROXY",
];

/// The proxies for HTTP clients.
///
/// As in curl, `http_proxy` is only read in lower case, because a web server sets `HTTP_PROXY` from a request header.
#[derive(Clone, Default)]
pub struct Proxies {
    http: Option<String>,
    https: Option<String>,
    all: Option<String>,
    exceptions: Option<String>,
}

/// Hides the addresses of proxies, which can contain passwords.
impl std::fmt::Debug for Proxies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Proxies")
    }
}

impl Proxies {
    /// Returns whether a variable with this name configures proxies.
    #[must_use]
    pub fn has_variable(name: &str) -> bool {
        VARIABLES.contains(&name)
    }

    /// Reads the proxies from variables of the environment.
    #[must_use]
    pub fn from_variables(variables: &BTreeMap<String, String>) -> Self {
        let first = |names: &[&str]| {
            let mut values = names.iter().filter_map(|name| variables.get(*name));
            values.find(|value| !value.is_empty()).cloned()
        };
        Self {
            http: first(&["http_proxy"]),
            https: first(&["https_proxy", "HTTPS_PROXY"]),
            all: first(&["all_proxy", "ALL_PROXY"]),
            exceptions: first(&["no_proxy", "NO_PROXY"]),
        }
    }

    /// Returns whether there is no proxy, so that every request goes directly to its host.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.http.is_none() && self.https.is_none() && self.all.is_none()
    }

    /// Makes a client use these proxies and no others.
    ///
    /// # Errors
    /// The address of a proxy is not valid.
    pub fn apply(&self, builder: ClientBuilder) -> Result<ClientBuilder, reqwest::Error> {
        // Without this call the client reads the environment itself.
        let mut builder = builder.no_proxy();
        let exceptions = self.exceptions.as_deref().and_then(NoProxy::from_string);
        let http = self.http.as_deref().map(Proxy::http);
        let https = self.https.as_deref().map(Proxy::https);
        let all = self.all.as_deref().map(Proxy::all);
        for proxy in [http, https, all].into_iter().flatten() {
            builder = builder.proxy(proxy?.no_proxy(exceptions.clone()));
        }
        Ok(builder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_shows_no_proxy_address() {
        let variables = [("all_proxy".to_owned(), "http://me:hunter2@host".to_owned())];
        let proxies = Proxies::from_variables(&variables.into());
        assert!(proxies.all.is_some());
        assert_eq!(format!("{proxies:?}"), "Proxies");
    }

    #[test]
    fn lower_case_variables_win_and_upper_case_http_proxy_is_ignored() {
        let variables = [
            ("HTTP_PROXY", "http://a"),
            ("HTTPS_PROXY", "http://b"),
            ("https_proxy", "http://c"),
            ("no_proxy", ""),
            ("NO_PROXY", "d"),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let proxies = Proxies::from_variables(&variables.into());
        assert_eq!(proxies.http, None);
        assert_eq!(proxies.https.as_deref(), Some("http://c"));
        assert_eq!(proxies.exceptions.as_deref(), Some("d"));
    }
}
