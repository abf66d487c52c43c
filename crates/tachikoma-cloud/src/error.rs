//! Errors of operations on a store. The messages contain no secrets.

use std::error::Error as _;
use std::io;
use std::path::{Path, PathBuf};

/// Maximum length of the store's text in a message. A store can answer with a whole page.
const WORDS_CHARS_MAX: usize = 300;

/// How many characters of a longer text are kept from its start and from its end.
const BEGIN_CHARS: usize = 100;
const END_CHARS: usize = 195;

/// Addresses at which the S3 library asks for the role of a machine or a container if it has no credentials.
const ROLE_ADDRESSES: [&str; 2] = ["http://169.254.169.254/", "http://169.254.170.2/"];

/// Why an operation on a store failed.
#[derive(Debug, thiserror::Error)]
pub enum CloudError {
    /// The address of the store is not valid, or its scheme is not supported.
    #[error("{0}")]
    Address(String),
    /// There are credentials, but they cannot be read or used.
    #[error("{0}")]
    Credentials(String),
    /// The store rejects the request. A retry cannot help.
    #[error("{store} rejected the request: {words}")]
    Refused {
        /// Address of the store.
        store: String,
        /// The store's message.
        words: String,
    },
    /// The object or its container does not exist.
    #[error("{what} is not in {store}")]
    Missing {
        /// Address of the store.
        store: String,
        /// Name of the object.
        what: String,
    },
    /// The store did not answer, or its answer was not valid. A retry may help.
    #[error("{store}: {words}")]
    Failed {
        /// Address of the store.
        store: String,
        /// Cause of the failure.
        words: String,
    },
    /// The store has another object with the same name.
    #[error("{name} is in {store} already and has {there} bytes instead of {ours}")]
    Other {
        /// Address of the store.
        store: String,
        /// Name of the object.
        name: String,
        /// The size of the object in the store, in bytes.
        there: u64,
        /// The size of the local file in bytes.
        ours: u64,
    },
    /// The content does not match the digest in the name.
    #[error("{name} is not what its name says: its SHA-256 is {found}")]
    Changed {
        /// Name of the object or file with the wrong content.
        name: String,
        /// The digest of the content.
        found: String,
    },
    /// A local file could not be used.
    #[error("{action} {}", path.display())]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// Path of the local file.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
}

impl CloudError {
    /// Returns whether a retry can help.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Failed { .. } => true,
            Self::Io { source, .. } => !is_for_good(source),
            Self::Address(_)
            | Self::Credentials(_)
            | Self::Refused { .. }
            | Self::Missing { .. }
            | Self::Other { .. }
            | Self::Changed { .. } => false,
        }
    }

    /// Returns whether the object does not exist.
    #[must_use]
    pub const fn is_missing(&self) -> bool {
        matches!(self, Self::Missing { .. })
    }

    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }

    /// Converts an error of the library. `secrets` are removed from its text, because a store may repeat parts of a request.
    pub(crate) fn of(
        store: &str,
        name: &str,
        secrets: &[String],
        error: &object_store::Error,
    ) -> Self {
        let words = describe(error, name, secrets);
        let store = store.to_owned();
        if ROLE_ADDRESSES.iter().any(|address| words.contains(address)) {
            return Self::Credentials(format!(
                "{store}: no credentials were found, neither in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) nor in \
                 ~/.aws/credentials, and this machine has no role of its own"
            ));
        }
        let mut cause = error.source();
        while let Some(inner) = cause {
            if inner.downcast_ref().is_some_and(is_for_good) {
                return Self::Refused { store, words };
            }
            cause = inner.source();
        }
        match error {
            object_store::Error::NotFound { .. } if !words.contains("NoSuchBucket") => {
                Self::Missing {
                    store,
                    what: name.to_owned(),
                }
            }
            object_store::Error::PermissionDenied { .. }
            | object_store::Error::Unauthenticated { .. }
            | object_store::Error::NotFound { .. }
            | object_store::Error::NotSupported { .. }
            | object_store::Error::InvalidPath { .. } => Self::Refused { store, words },
            // The library may add kinds of errors in later versions. An unknown error may be temporary, so the caller retries.
            _ => Self::Failed { store, words },
        }
    }
}

/// Returns whether a file error is permanent, so that a retry would fail in the same way.
fn is_for_good(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
    )
}

/// Returns the messages of all causes, the innermost last. An XML error page is reduced to its message.
fn describe(error: &object_store::Error, name: &str, secrets: &[String]) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        source = cause.source();
    }
    if let Some(code) = tag(&text, "Code") {
        let message = tag(&text, "Message").filter(|message| !message.is_empty());
        text = match message {
            Some(message) => format!("{code}: {message}"),
            None => code.to_owned(),
        };
    }
    for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
        text = text.replace(secret.as_str(), "***");
    }
    // The address is replaced, because it is long and the message already names the store.
    let text = text.replace(name, "...");
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let plain: String = plain.collect();
    let words: Vec<char> = plain
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .chars()
        .collect();
    if words.len() <= WORDS_CHARS_MAX {
        return words.into_iter().collect();
    }
    // The end of a long text is kept, because it contains the cause.
    let (begin, end) = (&words[..BEGIN_CHARS], &words[words.len() - END_CHARS..]);
    begin
        .iter()
        .chain(&[' ', '.', '.', '.', ' '])
        .chain(end)
        .collect()
}

fn tag<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, behind) = text.split_once(&format!("<{name}>"))?;
    let (inside, _) = behind.split_once(&format!("</{name}>"))?;
    Some(inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(body: &str, secrets: &[&str]) -> String {
        let error = object_store::Error::Generic {
            store: "S3",
            source: body.to_owned().into(),
        };
        let secrets: Vec<_> = secrets.iter().map(|&s| s.to_owned()).collect();
        CloudError::of("s3://bucket", "name", &secrets, &error).to_string()
    }

    #[test]
    fn xml_error_page_becomes_one_line_without_secrets() {
        let page = "<?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>later</Message>\
                    <StringToSign>x</StringToSign></Error>";
        assert_eq!(described(page, &[]), "s3://bucket: SlowDown: later");
        let repeats = "you sent hunter2 and\nit is wrong";
        let told = described(repeats, &["hunter2"]);
        assert!(told.contains("you sent *** and it is wrong"), "{told}");
        let long = described(&format!("{}, hence: refused", "long ".repeat(1_000)), &[]);
        assert!(
            long.len() < 400 && long.ends_with("hence: refused"),
            "{long}"
        );
        let no_credentials = described(
            "Error performing PUT http://169.254.169.254/latest/api/token",
            &[],
        );
        assert!(
            no_credentials.contains("no credentials were found"),
            "{no_credentials}"
        );
        let red = described("\u{1b}[31mred\u{7}", &[]);
        assert!(!red.contains(char::is_control), "{red:?}");
    }

    #[test]
    fn a_missing_bucket_is_not_a_missing_object() {
        let of = |code: &str| {
            let path = "a/name".to_owned();
            let source = format!("<Error><Code>{code}</Code><Message>no</Message></Error>").into();
            let error = object_store::Error::NotFound { path, source };
            CloudError::of("s3://bucket", "name", &[], &error)
        };
        assert!(of("NoSuchKey").is_missing());
        let error = of("NoSuchBucket");
        assert!(!error.is_missing() && !error.may_pass(), "{error}");
    }

    #[test]
    fn missing_permission_and_read_only_disk_are_not_retried() {
        let of = |kind: io::ErrorKind| {
            let source = Box::new(io::Error::from(kind));
            let store = "LocalFileSystem";
            let error = object_store::Error::Generic { store, source };
            CloudError::of("file:///disk", "name", &[], &error).may_pass()
        };
        assert!(!of(io::ErrorKind::PermissionDenied));
        assert!(!of(io::ErrorKind::ReadOnlyFilesystem));
        assert!(of(io::ErrorKind::StorageFull));
    }
}
