//! Copies of backups in an object store: how they are called, which there are, and which go. `docs/backups.md` describes them.

use std::fs::File;
use std::io::{ErrorKind, Seek as _};
use std::path::{Path, PathBuf};

use tachikoma_cloud::{CloudError, Digest, Object, Put, Store, digest_of};
use tachikoma_core::{LoopId, Seq};
use tachikoma_fs::{make_dir, private, whole};

use crate::store::backup::{Listed, by_name};
use crate::store::{StoreError, vault};

pub use tachikoma_cloud::{CloudError as Error, Proxies, Surroundings, check};

/// What stands between the name of a backup and its digest.
const DIGEST: &str = ".sha256-";

/// What stands before that where the backup has the work in it: whoever lists names knows.
const WORK: &str = ".work";

/// The digits of a digest that a name has: 128 bits say which file it is, and names stay below what file systems take.
const DIGEST_CHARS: usize = 32;

/// More than all that a backup may have: journal and bundle of 256 MiB each, 88 MiB of the rest. Whoever fetches one has room for it or fails.
const COPY_BYTES_MAX: u64 = 640 << 20;

/// Where copies go, and how many stay.
#[derive(Clone, Debug)]
pub struct Cloud {
    /// The address, without a secret.
    pub url: String,
    /// Where credentials are looked for.
    pub surroundings: Surroundings,
    /// How many of a loop are kept; 0 keeps all.
    pub max: u32,
}

/// A copy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Copied {
    /// What its name says; the path is its name alone. First: newer ones are greater.
    listed: Listed,
    /// Whether the work is in it.
    pub has_work: bool,
    /// How the SHA-256 of what is in it begins.
    pub digest: String,
    /// Its size.
    pub bytes: u64,
}

impl Copied {
    fn of(object: &Object) -> Option<Self> {
        let (name, digest) = object.name.split_once(DIGEST)?;
        let (name, has_work) = match name.strip_suffix(WORK) {
            Some(name) => (name, true),
            None => (name, false),
        };
        let is_digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        if digest.len() != DIGEST_CHARS || !digest.chars().all(is_digit) {
            return None;
        }
        Some(Self {
            listed: by_name(name)?,
            has_work,
            digest: digest.to_owned(),
            bytes: object.bytes,
        })
    }

    /// Returns the name that the backup has in its directory.
    #[must_use]
    pub fn name(&self) -> String {
        self.listed.path.display().to_string()
    }

    /// Returns whether it can be read only with a key.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.name().ends_with(vault::SUFFIX)
    }

    /// Returns the name of the object.
    #[must_use]
    pub fn object(&self) -> String {
        object_name(&self.name(), self.has_work, &self.digest)
    }

    /// Returns the loop.
    #[must_use]
    pub fn loop_id(&self) -> LoopId {
        self.listed.loop_id
    }

    /// Returns the last record in it.
    #[must_use]
    pub fn seq(&self) -> Seq {
        self.listed.seq
    }

    /// Returns when it was taken, as `20261115T054715Z`.
    #[must_use]
    pub fn taken_at(&self) -> &str {
        &self.listed.taken_at
    }
}

/// What came of sending a backup.
#[derive(Debug)]
pub struct Sent {
    /// Its size.
    pub bytes: u64,
    /// Whether it had been there already.
    pub was_there: bool,
    /// It, where its name is that of a backup.
    copied: Option<Copied>,
}

/// Why a backup was not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// It is not there any more: a newer one took its place.
    #[error("the backup is not there any more")]
    Gone,
    /// The store, or the file.
    #[error(transparent)]
    Cloud(#[from] CloudError),
}

fn object_name(name: &str, has_work: bool, digest: &str) -> String {
    let begins: String = digest.chars().take(DIGEST_CHARS).collect();
    let work = if has_work { WORK } else { "" };
    format!("{name}{work}{DIGEST}{begins}")
}

impl Cloud {
    /// Returns whether it is a directory of this machine.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.url.starts_with("file:")
    }

    fn open(&self) -> Result<Store, CloudError> {
        tachikoma_cloud::open(&self.url, &self.surroundings)
    }

    /// Sends a backup, once.
    ///
    /// # Errors
    /// It is gone, cannot be read, or the store does not take it.
    pub async fn send(&self, path: &Path, has_work: bool) -> Result<Sent, SendError> {
        let io = |action, source| CloudError::Io {
            action,
            path: path.to_owned(),
            source,
        };
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(SendError::Gone),
            Err(error) => return Err(io("open", error).into()),
        };
        let digest = digest_of(&mut file).map_err(|error| io("read", error))?;
        file.rewind().map_err(|error| io("read", error))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let object = object_name(&name, has_work, &digest.hex);
        let store = self.open()?;
        let put = store.put(&object, &mut file, path, &digest).await?;
        let bytes = digest.bytes;
        Ok(Sent {
            bytes,
            was_there: put == Put::WasThere,
            copied: Copied::of(&Object {
                name: object,
                bytes,
            }),
        })
    }

    /// Removes the oldest copies of a loop beyond the number that is kept, when one was sent. What has another name stays, and the newest
    /// that has the work.
    ///
    /// # Errors
    /// The store does not list or remove them.
    pub async fn prune(&self, sent: &Sent) -> Result<(), CloudError> {
        let Some(newest) = sent.copied.as_ref().filter(|_| self.max > 0) else {
            return Ok(());
        };
        let store = self.open()?;
        let mut copies = copies(&store, Some(newest.loop_id())).await?;
        // The one that was just sent is the newest, whatever the clock says.
        copies.sort_by_key(|copied| copied != newest);
        let max = usize::try_from(self.max).unwrap_or(usize::MAX);
        let with_work = copies.iter().position(|copied| copied.has_work);
        for (at, old) in copies.iter().enumerate().skip(max) {
            if Some(at) == with_work {
                continue;
            }
            store.delete(&old.object()).await?;
        }
        Ok(())
    }

    /// Lists the copies, newest first; of one loop, or of all.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn list(&self, of: Option<LoopId>) -> Result<Vec<Copied>, CloudError> {
        copies(&self.open()?, of).await
    }

    /// Brings a copy here, into a file of its own in `dir`, and checks that it is what its name says. Whoever calls removes the file.
    ///
    /// # Errors
    /// It does not come, cannot be written, or is another: then nothing is left.
    pub async fn fetch(&self, copied: &Copied, dir: &Path) -> Result<PathBuf, FetchError> {
        make_dir(dir).map_err(StoreError::from)?;
        let path = whole::temporary(dir);
        let fetched = self.fetch_to(copied, &path).await;
        fetched
            .map(|()| path.clone())
            .inspect_err(|_| drop(std::fs::remove_file(&path)))
    }

    async fn fetch_to(&self, copied: &Copied, path: &Path) -> Result<(), FetchError> {
        if copied.bytes > COPY_BYTES_MAX {
            return Err(FetchError::Cloud(CloudError::Refused {
                store: self.url.clone(),
                words: format!("{} has more bytes than any backup", copied.object()),
            }));
        }
        let store = self.open()?;
        let mut file = private()
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(StoreError::io("create", path))?;
        let object = copied.object();
        let Digest { hex, bytes } = store.get(&object, &mut file, path, copied.bytes).await?;
        if hex.starts_with(&copied.digest) && bytes == copied.bytes {
            return Ok(());
        }
        Err(FetchError::Cloud(CloudError::Changed {
            name: object,
            found: hex,
        }))
    }
}

/// Why a copy was not brought here.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The store, or what is in it.
    #[error(transparent)]
    Cloud(#[from] CloudError),
    /// The disk here.
    #[error(transparent)]
    Store(#[from] StoreError),
}

async fn copies(store: &Store, of: Option<LoopId>) -> Result<Vec<Copied>, CloudError> {
    let listed = store.list().await?;
    let mut copies: Vec<Copied> = listed.iter().filter_map(Copied::of).collect();
    copies.retain(|copied| of.is_none_or(|loop_id| loop_id == copied.loop_id()));
    copies.sort();
    copies.reverse();
    Ok(copies)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str =
        "loop_00000000-0000-0000-0000-000000000007-00000000000000000012-20251115T050444Z.tar";

    #[test]
    fn only_a_name_of_ours_with_a_digest_is_a_copy() {
        let digest = "0123456789abcdef".repeat(2);
        let object = |name: String| Object { name, bytes: 5 };
        let with_work = Copied::of(&object(object_name(NAME, true, &digest))).unwrap();
        assert_eq!(
            (with_work.name(), with_work.has_work),
            (NAME.to_owned(), true)
        );
        assert_eq!(with_work.object(), format!("{NAME}.work.sha256-{digest}"));
        let copied = Copied::of(&object(object_name(NAME, false, &digest))).unwrap();
        assert_eq!((copied.name(), copied.has_work), (NAME.to_owned(), false));
        assert_eq!((copied.seq(), copied.bytes), (Seq(12), 5));
        assert_eq!(copied.object(), format!("{NAME}.sha256-{digest}"));
        for other in [
            NAME.to_owned(),
            format!("{NAME}.sha256-{}", &digest[1..]),
            format!("{NAME}.sha256-{}", digest.to_uppercase()),
            format!("my-{NAME}.sha256-{digest}"),
            format!("notes.tar.sha256-{digest}"),
        ] {
            assert_eq!(Copied::of(&object(other.clone())), None, "{other}");
        }
    }
}
