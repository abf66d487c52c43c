//! A store and its operations. Each operation uses limited memory. The caller limits its time.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::TryStreamExt as _;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload};

use crate::CloudError;
use crate::digest::{Digest, Sum};
use crate::directory;
use crate::object::{LISTED_MAX, Object, PART_BYTES, Put, check_digest, part, too_many};
use crate::upload::Upload;

/// Maximum number of parts of one object in S3.
const PARTS_MAX: u64 = 10_000;

/// An object store, or a directory that is used as one.
pub struct Store {
    inner: Arc<dyn ObjectStore>,
    prefix: ObjectPath,
    /// Path of the directory; `None` if the store is an object store.
    directory: Option<PathBuf>,
    shown: String,
    secrets: Vec<String>,
}

/// Hides credentials in debug output.
impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Store").field(&self.shown).finish()
    }
}

impl Store {
    pub(crate) fn new(
        inner: Arc<dyn ObjectStore>,
        prefix: ObjectPath,
        shown: String,
        secrets: Vec<String>,
    ) -> Self {
        Self {
            inner,
            prefix,
            directory: None,
            shown,
            secrets,
        }
    }

    pub(crate) fn in_directory(mut self, directory: PathBuf) -> Self {
        self.directory = Some(directory);
        self
    }

    /// Returns the address of the store. It contains no secret.
    #[must_use]
    pub fn shown(&self) -> &str {
        &self.shown
    }

    fn path(&self, name: &str) -> ObjectPath {
        self.prefix.clone().join(name)
    }

    fn failed(&self, name: &str) -> impl Fn(object_store::Error) -> CloudError {
        move |error| CloudError::of(&self.shown, name, &self.secrets, &error)
    }

    /// Uploads a file under a name that contains its digest. An object with the same name is never overwritten. At most
    /// two times [`PART_BYTES`] are held in memory.
    ///
    /// # Errors
    /// The file cannot be read, it does not match `digest`, or the store rejects it. The parts that were sent are deleted.
    pub async fn put(
        &self,
        name: &str,
        file: &mut File,
        from: &Path,
        digest: &Digest,
    ) -> Result<Put, CloudError> {
        tracing::info!(name, bytes = digest.bytes, "upload started");
        let put = self.upload(name, file, from, digest).await;
        match &put {
            Ok(_) => tracing::info!(name, "upload ended"),
            Err(_) => tracing::warn!(name, "upload failed"),
        }
        put
    }

    async fn upload(
        &self,
        name: &str,
        file: &mut File,
        from: &Path,
        digest: &Digest,
    ) -> Result<Put, CloudError> {
        let unread = || CloudError::io("read", from);
        if let Some(directory) = &self.directory {
            return self.put_into(directory, name, file, from, digest).await;
        }
        if digest.bytes > PARTS_MAX * PART_BYTES as u64 {
            return Err(CloudError::Address(format!(
                "{name} has {} bytes, more than a store takes in parts",
                digest.bytes
            )));
        }
        let mut sum = Sum::default();
        let first = part(file, &mut sum).map_err(unread())?;
        if first.len() < PART_BYTES {
            check_digest(sum.finish(), digest, name)?;
            let options = PutOptions::from(PutMode::Create);
            let path = self.path(name);
            let put = self.inner.put_opts(&path, first.into(), options).await;
            return match put {
                Ok(_) => Ok(Put::Created),
                Err(error) if is_there(&error) => self.existing_object(name, digest).await,
                Err(error) => Err(self.failed(name)(error)),
            };
        }
        // This is checked before the upload, so that an existing object is not sent again.
        match self.existing_object(name, digest).await {
            Err(error) if error.is_missing() => {}
            known => return known,
        }
        let path = self.path(name);
        let begun = self.inner.put_multipart(&path).await;
        let mut upload = Upload::new(begun.map_err(self.failed(name))?);
        let mut bytes = first;
        let mut sent: Result<(), CloudError> = Ok(());
        while sent.is_ok() && !bytes.is_empty() {
            sent = upload
                .parts()
                .put_part(PutPayload::from(std::mem::take(&mut bytes)))
                .await
                .map_err(self.failed(name));
            if sent.is_ok() {
                match part(file, &mut sum) {
                    Ok(next) => bytes = next,
                    Err(error) => sent = Err(unread()(error)),
                }
            }
        }
        let whole = sent.and_then(|()| check_digest(sum.finish(), digest, name));
        let completed = match whole {
            Ok(()) => upload.parts().complete().await.map_err(|error| {
                let was_there = is_there(&error);
                (was_there, self.failed(name)(error))
            }),
            Err(error) => Err((false, error)),
        };
        match completed {
            Ok(_) => {
                upload.keep();
                Ok(Put::Created)
            }
            Err((was_there, error)) => {
                upload.abort().await;
                match was_there {
                    true => self.existing_object(name, digest).await,
                    false => Err(error),
                }
            }
        }
    }

    async fn put_into(
        &self,
        directory: &Path,
        name: &str,
        file: &File,
        from: &Path,
        digest: &Digest,
    ) -> Result<Put, CloudError> {
        let mut file = file.try_clone().map_err(CloudError::io("read", from))?;
        let (directory, name_, from) = (directory.to_owned(), name.to_owned(), from.to_owned());
        let digest_ = digest.clone();
        // The file is written on another thread, because a disk can hang and the caller must not.
        let put = tokio::task::spawn_blocking(move || {
            directory::put(&directory, &name_, &mut file, &from, &digest_)
        });
        match put.await {
            Ok(Ok(Put::WasThere)) => self.existing_object(name, digest).await,
            Ok(put) => put,
            Err(error) => Err(self.broken(&error)),
        }
    }

    /// Returns the error for a panic of a blocking task.
    fn broken(&self, error: &tokio::task::JoinError) -> CloudError {
        CloudError::Failed {
            store: self.shown.clone(),
            words: error.to_string(),
        }
    }

    /// Checks that an existing object has the right size.
    async fn existing_object(&self, name: &str, digest: &Digest) -> Result<Put, CloudError> {
        let there = self.inner.head(&self.path(name)).await;
        let there = there.map_err(self.failed(name))?;
        if there.size != digest.bytes {
            return Err(CloudError::Other {
                store: self.shown.clone(),
                name: name.to_owned(),
                there: there.size,
                ours: digest.bytes,
            });
        }
        Ok(Put::WasThere)
    }

    /// Lists the objects directly below the prefix of the store.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn list(&self) -> Result<Vec<Object>, CloudError> {
        if let Some(directory) = self.directory.clone() {
            let shown = self.shown.clone();
            let listed = tokio::task::spawn_blocking(move || directory::list(&directory, &shown));
            return listed
                .await
                .unwrap_or_else(|error| Err(self.broken(&error)));
        }
        let prefix = (!self.prefix.as_ref().is_empty()).then_some(&self.prefix);
        let mut stream = self.inner.list(prefix);
        let mut listed = Vec::new();
        let mut seen = 0;
        while let Some(meta) = stream.try_next().await.map_err(self.failed("the list"))? {
            seen += 1;
            if seen > LISTED_MAX {
                return Err(too_many(&self.shown));
            }
            let parts = meta.location.prefix_match(&self.prefix);
            let mut parts = parts.into_iter().flatten();
            if let (Some(name), None) = (parts.next(), parts.next()) {
                listed.push(Object {
                    name: name.as_ref().to_owned(),
                    bytes: meta.size,
                });
            }
        }
        Ok(listed)
    }

    /// Downloads an object of at most `bytes_max` bytes. Returns its digest.
    ///
    /// # Errors
    /// The object does not exist, cannot be read or is larger, or the file cannot be written.
    pub async fn get(
        &self,
        name: &str,
        file: &mut File,
        to: &Path,
        bytes_max: u64,
    ) -> Result<Digest, CloudError> {
        let unwritten = || CloudError::io("write", to);
        let got = self.inner.get(&self.path(name)).await;
        let mut stream = got.map_err(self.failed(name))?.into_stream();
        let mut sum = Sum::default();
        let mut left = bytes_max;
        while let Some(bytes) = stream.try_next().await.map_err(self.failed(name))? {
            left = left.checked_sub(bytes.len() as u64).ok_or_else(|| {
                let words = format!("{name} has more than {bytes_max} bytes");
                let store = self.shown.clone();
                CloudError::Refused { store, words }
            })?;
            sum.add(&bytes);
            file.write_all(&bytes).map_err(unwritten())?;
        }
        file.sync_all().map_err(unwritten())?;
        Ok(sum.finish())
    }

    /// Deletes an object. An object that does not exist is not an error.
    ///
    /// # Errors
    /// The store refuses to delete the object.
    pub async fn delete(&self, name: &str) -> Result<(), CloudError> {
        match self.inner.delete(&self.path(name)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed(name)(error)),
        }
    }
}

const fn is_there(error: &object_store::Error) -> bool {
    matches!(
        error,
        object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }
    )
}

#[cfg(test)]
mod tests;
