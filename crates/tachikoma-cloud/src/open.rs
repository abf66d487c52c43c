//! Opens a store from its address.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, RetryConfig};
use reqwest::Url;

use crate::http::Connector;
use crate::{CloudEnvironment, CloudError, Store, tls};

/// Maximum number of retries of one request by the library, after a broken connection or if the server is busy. The caller also retries.
const REQUEST_RETRIES: usize = 2;

/// Maximum time in which the library retries one request.
const REQUEST_RETRY_TIMEOUT: Duration = Duration::from_secs(30);

/// The kind of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    S3,
    Directory,
    /// A store that the library supports, but that was never tested with this program.
    Unproven,
}

/// Checks an address without connecting to it.
///
/// # Errors
/// The address is not valid, its kind is not supported, or it contains a part that must not be in a configuration.
pub fn check(url: &str) -> Result<(), CloudError> {
    parse(url).map(drop)
}

fn parse(text: &str) -> Result<(Url, Kind), CloudError> {
    let wrong = |what: &str| Err(CloudError::Address(what.to_owned()));
    let Ok(url) = Url::parse(text) else {
        return wrong("it must be an address such as `s3://bucket/prefix` or `file:///directory`");
    };
    // This check comes first, so that no other message contains the password.
    if !url.username().is_empty() || url.password().is_some() {
        return wrong(
            "it must not contain a user name or a password; credentials come from the environment or from `~/.aws/credentials`",
        );
    }
    if url.query().is_some() || url.fragment().is_some() {
        return wrong("it must not have a query (`?`) or a fragment (`#`)");
    }
    let kind = match url.scheme() {
        "s3" | "s3a" => Kind::S3,
        "file" => Kind::Directory,
        "gs" | "az" | "adl" | "azure" | "abfs" | "abfss" => Kind::Unproven,
        _ => {
            return wrong(
                "it must begin with `s3://` or `file:///` (`gs://`, `az://` and `abfss://` are accepted, but not tested)",
            );
        }
    };
    match (kind, url.host_str().is_some_and(|host| !host.is_empty())) {
        (Kind::S3 | Kind::Unproven, false) => wrong("it does not name a bucket"),
        (Kind::Directory, true) => {
            wrong("a directory is written `file:///directory`, with three slashes")
        }
        (Kind::S3 | Kind::Unproven, true) | (Kind::Directory, false) => Ok((url, kind)),
    }
}

/// Opens a store. Does not connect to it yet.
///
/// # Errors
/// The address cannot be used, the credentials cannot be read, or the directory does not exist.
pub fn open(url: &str, cloud_environment: &CloudEnvironment) -> Result<Store, CloudError> {
    let shown = url.to_owned();
    let (url, kind) = parse(url)?;
    let retry = RetryConfig {
        max_retries: REQUEST_RETRIES,
        retry_timeout: REQUEST_RETRY_TIMEOUT,
        ..RetryConfig::default()
    };
    match kind {
        Kind::Directory => {
            let path = url.to_file_path().unwrap_or_else(|()| PathBuf::new());
            // The directory is not created: if its disk is not mounted, another disk would fill up.
            if !path.is_dir() {
                let what = format!("{} is not a directory", path.display());
                return Err(CloudError::Address(what));
            }
            let store = LocalFileSystem::new_with_prefix(&path)
                .map_err(|error| CloudError::of(&shown, &shown, &[], &error))?;
            let store = Arc::new(store.with_fsync(true));
            let store = Store::new(store, ObjectPath::default(), shown, Vec::new());
            Ok(store.in_directory(path))
        }
        Kind::S3 => {
            tls::install_provider();
            let told = cloud_environment.aws()?;
            check_endpoint(&told)?;
            let secrets: Vec<String> = [
                "aws_secret_access_key",
                "aws_session_token",
                "aws_access_key_id",
            ]
            .iter()
            .filter_map(|key| told.get(*key).cloned())
            .collect();
            let failed = |error| CloudError::of(&shown, &shown, &secrets, &error);
            let mut builder = AmazonS3Builder::new()
                .with_http_connector(Connector::new(cloud_environment.proxies()))
                .with_retry(retry);
            for (key, value) in &told {
                // Variables that the library does not know are ignored.
                if let Ok(key) = key.parse() {
                    builder = builder.with_config(key, value);
                }
            }
            let bucket = url.host_str().unwrap_or_default();
            let store = builder.with_bucket_name(bucket).build().map_err(failed)?;
            let prefix = prefix_of(&url)?;
            Ok(Store::new(Arc::new(store), prefix, shown, secrets))
        }
        Kind::Unproven => {
            tls::install_provider();
            let told = cloud_environment.variables.iter();
            let told = told.map(|(name, value)| (name.to_ascii_lowercase(), value.clone()));
            let secrets = cloud_environment.variables.iter().filter(|(name, _)| {
                name.contains("KEY") || name.contains("SECRET") || name.contains("TOKEN")
            });
            let secrets: Vec<String> = secrets.map(|(_, value)| value.clone()).collect();
            let (store, prefix) = object_store::parse_url_opts(&url, told)
                .map_err(|error| CloudError::of(&shown, &shown, &secrets, &error))?;
            let store: Arc<dyn ObjectStore> = Arc::from(store);
            Ok(Store::new(store, prefix, shown, secrets))
        }
    }
}

/// Rejects an endpoint without TLS. The library would only do so at the first request, and without naming the variable.
fn check_endpoint(told: &BTreeMap<String, String>) -> Result<(), CloudError> {
    let endpoint = ["aws_endpoint_url", "aws_endpoint"]
        .iter()
        .find_map(|name| told.get(*name));
    let allowed = told.get("aws_allow_http").map(|value| value.to_lowercase());
    let is_allowed = matches!(allowed.as_deref(), Some("true" | "1" | "on" | "yes" | "y"));
    match endpoint.filter(|url| url.starts_with("http://") && !is_allowed) {
        Some(url) => Err(CloudError::Credentials(format!(
            "the endpoint {url} is without TLS; AWS_ALLOW_HTTP=true allows that"
        ))),
        None => Ok(()),
    }
}

fn prefix_of(url: &Url) -> Result<ObjectPath, CloudError> {
    ObjectPath::from_url_path(url.path())
        .map_err(|error| CloudError::Address(format!("its path cannot be used: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_address_is_rejected_with_the_reason() {
        for good in [
            "s3://bucket",
            "s3://bucket/a/b",
            "file:///tmp/x",
            "gs://bucket/a",
        ] {
            check(good).unwrap();
        }
        for (url, why) in [
            ("bucket/prefix", "it must be an address"),
            ("ftp://host/x", "it must begin with"),
            ("https://bucket.s3.amazonaws.com/x", "it must begin with"),
            (
                "s3://id:hunter2@bucket/x",
                "it must not contain a user name or a password",
            ),
            (
                "s3://id@bucket/x",
                "it must not contain a user name or a password",
            ),
            ("s3://bucket/x?key=hunter2", "a query (`?`)"),
            ("s3:///x", "it does not name a bucket"),
            ("file://tmp/x", "with three slashes"),
        ] {
            let error = check(url).unwrap_err().to_string();
            assert!(error.contains(why), "{url}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_missing_directory_is_not_created() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("file://{}/missing", dir.path().display());
        let error = open(&url, &CloudEnvironment::default()).unwrap_err();
        assert!(
            error.to_string().ends_with("missing is not a directory"),
            "{error}"
        );
        assert!(!dir.path().join("missing").exists());
    }
}
