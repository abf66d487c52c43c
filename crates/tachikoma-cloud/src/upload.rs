//! An upload in parts. An unfinished upload is aborted, because the provider charges for stored parts.

use std::time::Duration;

use object_store::MultipartUpload;

/// Timeout of an abort. If it fails, only the store's own rules can delete the parts.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);

pub struct Upload(Option<Box<dyn MultipartUpload>>);

impl Upload {
    pub fn new(parts: Box<dyn MultipartUpload>) -> Self {
        Self(Some(parts))
    }

    pub fn parts(&mut self) -> &mut dyn MultipartUpload {
        self.0.as_deref_mut().expect("the upload is not finished")
    }

    /// Marks the upload as finished, so that dropping it does not abort it.
    pub fn keep(mut self) {
        self.0 = None;
    }

    pub async fn abort(mut self) {
        if let Some(parts) = self.0.take() {
            abort(parts).await;
        }
    }
}

/// Aborts an upload that the caller drops unfinished, for example after a timeout.
impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(parts) = self.0.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(abort(parts));
        }
    }
}

async fn abort(mut parts: Box<dyn MultipartUpload>) {
    let _ = tokio::time::timeout(ABORT_TIMEOUT, parts.abort()).await;
}
