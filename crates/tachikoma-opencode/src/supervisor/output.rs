//! What a server writes: into the log, and the line in which it says where it listens.

use std::time::Duration;

use tachikoma_agents::line::LineSplitter;
use tachikoma_core::Generation;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::{mpsc, oneshot};

use super::SupervisorEvent;
use super::command_line::listening_port;
use super::log::ServerLog;

/// What one read takes.
const CHUNK_BYTES: usize = 16 * 1024;

/// The line that is looked for is short.
const LINE_BYTES_MAX: usize = 4 * 1024;

/// What may wait for the log's disk; then the server waits.
pub(super) const CHUNKS_MAX: usize = 64;

/// What was written before the end is in the pipe already; only a stranger holds it open longer.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);

/// Writes the log until nobody has anything to say.
pub(super) async fn write(mut log: ServerLog, mut chunks: mpsc::Receiver<Vec<u8>>) {
    while let Some(chunk) = chunks.recv().await {
        // A full disk must not end the server: what cannot be written is lost.
        let _ = log.write(&chunk);
    }
}

/// Reads both streams of a server until they end. When `gone` says so, or is dropped, what is left is read and no more.
pub(super) async fn read(
    generation: Generation,
    (stdout, stderr): (Receiver, Receiver),
    news: mpsc::Sender<SupervisorEvent>,
    log: mpsc::Sender<Vec<u8>>,
    gone: oneshot::Receiver<()>,
) {
    let mut lines = LineSplitter::new(LINE_BYTES_MAX);
    let mut found = None;
    let listening = async {
        let mut chunk = vec![0; CHUNK_BYTES];
        while let Some(read) = next(&stdout, &mut chunk).await {
            let bytes = chunk.get(..read).unwrap_or_default();
            let before = found;
            lines.push(bytes, &mut |line| {
                found = found.or_else(|| listening_port(&line.text));
            });
            let _ = log.send(bytes.to_vec()).await;
            if let (None, Some(port)) = (before, found) {
                let _ = news
                    .send(SupervisorEvent::Listening { generation, port })
                    .await;
            }
        }
    };
    let complaints = async {
        let mut chunk = vec![0; CHUNK_BYTES];
        while let Some(read) = next(&stderr, &mut chunk).await {
            let bytes = chunk.get(..read).unwrap_or_default();
            let _ = log.send(bytes.to_vec()).await;
        }
    };
    let both = async { tokio::join!(listening, complaints) };
    tokio::pin!(both);
    tokio::select! {
        _ = &mut both => return,
        _ = gone => {}
    }
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, both).await;
}

/// Returns how much was read; none at the end.
async fn next(pipe: &Receiver, chunk: &mut [u8]) -> Option<usize> {
    loop {
        pipe.readable().await.ok()?;
        match pipe.try_read(chunk) {
            Ok(0) => return None,
            Ok(read) => return Some(read),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            // A pipe has no other errors that pass.
            Err(_) => return None,
        }
    }
}
