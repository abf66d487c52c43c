//! Object stores: opens a store, and puts, lists, gets and deletes objects. Knows nothing of loops and reads no environment.
//!
//! This is the only crate that uses the `object_store` library (`docs/decisions.md`), and the one that configures HTTP clients: TLS and proxies.
//! The caller passes the environment variables.

mod credentials;
mod digest;
mod directory;
mod error;
mod http;
mod object;
mod open;
mod proxies;
mod store;
mod tls;
mod upload;

pub use credentials::CloudEnvironment;
pub use digest::{Digest, digest_of};
pub use error::CloudError;
pub use object::{Object, PART_BYTES, Put};
pub use open::{check, open};
pub use proxies::Proxies;
pub use store::Store;
pub use tls::{install_provider, plain_http};
