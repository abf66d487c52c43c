//! Sends one message as an HTTP request. Errors name the cause and never the address, which can be a secret.

use std::error::Error;
use std::io;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode, Url};
use tachikoma_cloud::Proxies;

use super::Attempt;
use crate::settings::Secret;

/// Timeout of the connection. It is half of the timeout of a request, so that there is time for the answer.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A POST request. Its address and its headers can contain secrets.
#[derive(Debug)]
pub(super) struct HttpRequest {
    pub url: Secret,
    pub headers: Vec<(&'static str, Secret)>,
    pub body: String,
}

/// Sends a request once. The body of the response is not read.
pub(super) async fn post(request: HttpRequest, proxies: &Proxies) -> Attempt {
    let Ok(url) = request.url.expose().parse::<Url>() else {
        return Attempt::Failed("the address is not valid".to_owned());
    };
    let headers = match headers(&request.headers) {
        Ok(headers) => headers,
        Err(error) => return Attempt::Failed(error),
    };
    // The connection to a proxy may use TLS even if the target does not.
    let has_tls = url.scheme() == "https" || !proxies.is_empty();
    let client = match client(has_tls, proxies.clone()).await {
        Ok(client) => client,
        Err(error) => return Attempt::Failed(error),
    };
    let request = client.post(url).headers(headers).body(request.body);
    match request.send().await {
        Ok(response) => outcome(response.status()),
        Err(error) => failure(&error),
    }
}

async fn client(has_tls: bool, proxies: Proxies) -> Result<Client, String> {
    let build = move || {
        let builder = Client::builder();
        let builder = match has_tls {
            true => builder.http1_only(),
            false => tachikoma_cloud::plain_http(builder),
        };
        let builder = proxies.apply(builder).map_err(|_| {
            "the address of a proxy in the environment is not valid (`http_proxy`, `https_proxy`, `all_proxy`)".to_owned()
        })?;
        builder
            .user_agent(concat!("tachikoma/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            // Redirects are not followed: another host must not get the message and its secrets.
            .redirect(Policy::none())
            .build()
            .map_err(|_| "the HTTP client cannot be built: no certificates were found".to_owned())
    };
    tachikoma_cloud::install_provider();
    // Building the client reads the certificates of the system, which takes some milliseconds.
    let built = tokio::task::spawn_blocking(build).await;
    built.unwrap_or_else(|_| Err("the HTTP client cannot be built".to_owned()))
}

fn headers(pairs: &[(&'static str, Secret)]) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let mut value = HeaderValue::from_str(value.expose())
            .map_err(|_| format!("the value of the header `{name}` has invalid characters"))?;
        value.set_sensitive(true);
        headers.insert(HeaderName::from_static(name), value);
    }
    Ok(headers)
}

fn outcome(status: StatusCode) -> Attempt {
    let code = status.as_u16();
    match code {
        200..300 => Attempt::Delivered,
        300..400 => Attempt::Failed(format!(
            "the service answered with a redirect ({code}), and redirects are not followed"
        )),
        408 | 429 | 500.. => Attempt::Retry(format!("the service answered with status {code}")),
        _ => Attempt::Failed(format!("the service answered with status {code}")),
    }
}

fn failure(error: &reqwest::Error) -> Attempt {
    if error.is_builder() {
        return Attempt::Failed("the address is not valid".to_owned());
    }
    if error.is_timeout() {
        return Attempt::Retry("no answer in time".to_owned());
    }
    if error.is_dns() {
        return Attempt::Retry("the host name cannot be resolved".to_owned());
    }
    if let Some(failed) = connection_failure(error) {
        return failed;
    }
    if error.is_connect() {
        return Attempt::Retry("no connection".to_owned());
    }
    Attempt::Retry("the connection was closed before an answer came".to_owned())
}

/// Finds a TLS or connection error among the causes of an error; `None` if there is neither.
pub(super) fn connection_failure(error: &(dyn Error + 'static)) -> Option<Attempt> {
    let tls = error.downcast_ref::<rustls::Error>();
    if let Some(rustls::Error::InvalidCertificate(_)) = tls {
        let what = "the TLS certificate of the server is not accepted";
        return Some(Attempt::Failed(what.to_owned()));
    }
    if tls.is_some() {
        return Some(Attempt::Failed("the TLS handshake failed".to_owned()));
    }
    match error.downcast_ref::<io::Error>() {
        Some(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Some(Attempt::Retry("connection refused".to_owned()))
        }
        // `source` skips the inner error of an I/O error, so it is checked here.
        Some(error) => connection_failure(error.get_ref()?),
        None => connection_failure(error.source()?),
    }
}
