//! An upload in parts. One that does not come to its end is taken back: its parts would be paid for.

use std::time::Duration;

use object_store::MultipartUpload;

/// A store that does not answer in this time forgets the parts by its own rules.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);

pub struct Upload(Option<Box<dyn MultipartUpload>>);

impl Upload {
    pub fn new(parts: Box<dyn MultipartUpload>) -> Self {
        Self(Some(parts))
    }

    pub fn parts(&mut self) -> &mut dyn MultipartUpload {
        self.0.as_deref_mut().expect("it is not over")
    }

    /// Nothing of it is to be taken back.
    pub fn keep(mut self) {
        self.0 = None;
    }

    pub async fn abort(mut self) {
        if let Some(parts) = self.0.take() {
            abort(parts).await;
        }
    }
}

/// Whoever waited for it does not any more: it took too long.
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
