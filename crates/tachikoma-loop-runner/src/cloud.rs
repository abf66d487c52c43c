//! Backups in an object store: their names, their list, and which of them are deleted. `docs/backups.md` describes them.

use std::fs::File;
use std::io::{ErrorKind, Seek as _};
use std::path::{Path, PathBuf};

use tachikoma_cloud::{CloudError, Digest, Object, Put, Store, digest_of};
use tachikoma_core::{LoopId, Seq};
use tachikoma_fs::{atomic_file, make_dir, private};

use crate::store::backup::{Listed, by_name};
use crate::store::{StoreError, encryption};

pub use tachikoma_cloud::{CloudEnvironment, CloudError as Error, Proxies, check};

/// Separates the name of a backup from its digest in the name of an object.
const DIGEST: &str = ".sha256-";

/// Comes before the digest in the names of backups that contain the work, so that a list of names shows it.
const WORK: &str = ".work";

/// Number of hex digits of the digest in a name. 128 bits identify the file, and the name stays short enough for file systems.
const DIGEST_CHARS: usize = 32;

/// Maximum size of a download. It is larger than any backup: journal and bundle of 256 MiB each, and 88 MiB of other files.
const COPY_BYTES_MAX: u64 = 640 << 20;

/// The object store for the backups of loops.
#[derive(Clone, Debug)]
pub struct Cloud {
    /// Address of the object store, without secrets.
    pub url: String,
    /// Where the credentials of the object store are searched.
    pub cloud_environment: CloudEnvironment,
    /// Maximum number of backups per loop; older ones are deleted. 0 keeps all.
    pub max: u32,
}

/// A backup in the object store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Copied {
    /// Parts of the backup's name; the path is only the name. This is the first field, so that newer backups compare as greater.
    listed: Listed,
    /// Whether the backup contains the work.
    pub has_work: bool,
    /// The first hex digits of the SHA-256 of the backup.
    pub digest: String,
    /// Size of the backup in bytes.
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

    /// Returns the file name of the backup in a local backup directory.
    #[must_use]
    pub fn name(&self) -> String {
        self.listed.path.display().to_string()
    }

    /// Returns whether the backup is encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.name().ends_with(encryption::SUFFIX)
    }

    /// Returns the name of the object in the store.
    #[must_use]
    pub fn object(&self) -> String {
        object_name(&self.name(), self.has_work, &self.digest)
    }

    /// Returns the loop of the backup.
    #[must_use]
    pub fn loop_id(&self) -> LoopId {
        self.listed.loop_id
    }

    /// Returns the number of the last record in the backup.
    #[must_use]
    pub fn seq(&self) -> Seq {
        self.listed.seq
    }

    /// Returns when the backup was taken, for example `20261115T054715Z`.
    #[must_use]
    pub fn taken_at(&self) -> &str {
        &self.listed.taken_at
    }
}

/// The result of uploading a backup.
#[derive(Debug)]
pub struct UploadedBackup {
    /// Size of the backup in bytes.
    pub bytes: u64,
    /// Whether the store already had the backup.
    pub was_there: bool,
    /// The remote backup; `None` if the file does not have the name of a backup.
    copied: Option<Copied>,
}

/// Why a backup was not uploaded.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The file was deleted, because a newer backup replaced it.
    #[error("the backup no longer exists")]
    Gone,
    /// The store or the file failed.
    #[error(transparent)]
    Cloud(#[from] CloudError),
}

fn object_name(name: &str, has_work: bool, digest: &str) -> String {
    let begins: String = digest.chars().take(DIGEST_CHARS).collect();
    let work = if has_work { WORK } else { "" };
    format!("{name}{work}{DIGEST}{begins}")
}

impl Cloud {
    /// Returns whether the store is a local directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.url.starts_with("file:")
    }

    fn open(&self) -> Result<Store, CloudError> {
        tachikoma_cloud::open(&self.url, &self.cloud_environment)
    }

    /// Uploads a backup. Does not retry.
    ///
    /// # Errors
    /// The file was deleted or cannot be read, or the store refuses the upload.
    pub async fn send(&self, path: &Path, has_work: bool) -> Result<UploadedBackup, SendError> {
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
        Ok(UploadedBackup {
            bytes,
            was_there: put == Put::WasThere,
            copied: Copied::of(&Object {
                name: object,
                bytes,
            }),
        })
    }

    /// Deletes the oldest backups of a loop after an upload. Files with other names are kept, and so is the newest backup with the work.
    ///
    /// # Errors
    /// The store refuses to list or delete them.
    pub async fn prune(&self, sent: &UploadedBackup) -> Result<(), CloudError> {
        let Some(newest) = sent.copied.as_ref().filter(|_| self.max > 0) else {
            return Ok(());
        };
        let store = self.open()?;
        let mut copies = copies(&store, Some(newest.loop_id())).await?;
        // The backup that was just sent is the newest, even if the clock was set back.
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

    /// Lists the backups of one loop or of all loops, newest first.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn list(&self, of: Option<LoopId>) -> Result<Vec<Copied>, CloudError> {
        copies(&self.open()?, of).await
    }

    /// Downloads a backup into a new file in `dir`, and checks its digest. The caller removes the file.
    ///
    /// # Errors
    /// The download fails, the file cannot be written, or its digest is wrong. No file is left then.
    pub async fn fetch(&self, copied: &Copied, dir: &Path) -> Result<PathBuf, FetchError> {
        make_dir(dir).map_err(StoreError::from)?;
        let path = atomic_file::temporary(dir);
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

/// Why a backup was not downloaded.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The store failed, or the downloaded backup is damaged.
    #[error(transparent)]
    Cloud(#[from] CloudError),
    /// The downloaded file cannot be written.
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
    fn only_names_with_a_digest_are_remote_backups() {
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
