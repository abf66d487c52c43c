//! Copies of files in an object store. `docs/backups.md` says what for, `docs/decisions/0013` why with this library.
//!
//! Small on purpose, so that the library and all that it brings stay behind it: open, put, list, get, delete. Nothing here reads
//! the environment: whoever opens a store says what is in it.

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

pub use credentials::Surroundings;
pub use digest::{Digest, digest_of};
pub use error::CloudError;
pub use object::{Object, PART_BYTES, Put};
pub use open::{check, open};
pub use proxies::Proxies;
pub use store::Store;
pub use tls::{install_provider, plain_http};
