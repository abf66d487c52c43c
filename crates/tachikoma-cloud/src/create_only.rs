//! Large objects are created only, as small ones are.
//!
//! The library puts a small object with `If-None-Match: *`, but completes one that was sent in parts without a condition. This stands
//! between the library and its client and adds it there. A server that does not know the header ignores it.

use std::future::Future;
use std::pin::Pin;

use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};
use object_store::{ClientOptions, HeaderValue};

/// How the request begins that completes an object: `POST /bucket/name?uploadId=...`. One that begins it has `uploads` instead.
const COMPLETES: &str = "uploadId=";

/// Makes clients whose objects are created only.
#[derive(Debug, Default)]
pub(crate) struct CreateOnly;

impl HttpConnector for CreateOnly {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Conditional(client)))
    }
}

#[derive(Debug)]
struct Conditional(HttpClient);

type Answer<'a> = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>;

impl HttpService for Conditional {
    fn call<'a, 'b>(&'a self, mut request: HttpRequest) -> Answer<'b>
    where
        'a: 'b,
        Self: 'b,
    {
        let query = request.uri().query().unwrap_or_default();
        if request.method().as_str() == "POST" && query.starts_with(COMPLETES) {
            let headers = request.headers_mut();
            headers.insert("if-none-match", HeaderValue::from_static("*"));
        }
        Box::pin(self.0.execute(request))
    }
}
