//! The HTTP client below the S3 library. It adds three things that the library does not have.
//!
//! - Large objects are never overwritten, like small ones: the library completes a multipart upload without a condition, so this
//!   client adds `If-None-Match: *`. A server that does not know the header ignores it.
//! - Redirects are not followed: the session token would go to the host that the server names.
//! - Answers that the library reads into memory as a whole, such as listings and errors, are bounded.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use http_body_util::{BodyExt as _, Limited};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions, HeaderValue};
use reqwest::redirect::Policy;

use crate::proxies::Proxies;

/// Timeout of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout for sending a part, or for receiving the next piece of an object. For a part it is a rate of 43 KiB per second.
const READ_TIMEOUT: Duration = Duration::from_secs(120);

/// Start of the query of the request that completes an upload. The request that begins an upload has `uploads` instead.
const COMPLETES: &str = "uploadId=";

/// Maximum size of an answer. A page of a listing has at most 1,000 names of at most 1 KiB each.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Makes the HTTP clients of the library.
#[derive(Debug)]
pub(crate) struct Connector {
    proxies: Proxies,
}

impl Connector {
    pub fn new(proxies: Proxies) -> Self {
        Self { proxies }
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let allows_http = options.get_config_value(&ClientConfigKey::AllowHttp);
        let failed = |error| object_store::Error::Generic {
            store: "HTTP client",
            source: Box::new(error),
        };
        let builder = self.proxies.apply(reqwest::Client::builder());
        let client = builder
            .map_err(failed)?
            .redirect(Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .https_only(allows_http.as_deref() != Some("true"))
            .http1_only()
            .build()
            .map_err(failed)?;
        Ok(HttpClient::new(Client(HttpClient::new(client))))
    }
}

#[derive(Debug)]
struct Client(HttpClient);

type Answer<'a> = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>;

impl HttpService for Client {
    fn call<'a, 'b>(&'a self, mut request: HttpRequest) -> Answer<'b>
    where
        'a: 'b,
        Self: 'b,
    {
        let method = request.method().as_str().to_owned();
        let query = request.uri().query().unwrap_or_default().to_owned();
        if method == "POST" && query.starts_with(COMPLETES) {
            let headers = request.headers_mut();
            headers.insert("if-none-match", HeaderValue::from_static("*"));
        }
        Box::pin(async move {
            let response = self.0.execute(request).await?;
            // The size of an object's content is not limited here: it is read piece by piece, and its reader has its own limit.
            let is_content = method == "GET" && query.is_empty() && response.status().is_success();
            Ok(match is_content {
                true => response,
                false => response.map(bounded),
            })
        })
    }
}

fn bounded(body: HttpResponseBody) -> HttpResponseBody {
    let body = Limited::new(body, ANSWER_BYTES_MAX)
        .map_err(|error| HttpError::new_boxed(HttpErrorKind::Decode, error));
    HttpResponseBody::new(body)
}
