//! Makes the Unix sockets that the operator's commands connect to.

use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tachikoma_fs::FsError;
use tachikoma_fs::owner::make_private_dir;
use tokio::net::UnixListener;

/// The longest path that fits into a socket's address.
const PATH_BYTES_MAX: usize = 107;

/// Why a control socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Its path does not fit into a socket's address.
    #[error("the path of the control socket is longer than {PATH_BYTES_MAX} bytes: {}", .0.display())]
    TooLong(PathBuf),
    /// Its directory cannot be created, or other users can write to it.
    #[error(transparent)]
    Directory(#[from] FsError),
    /// It cannot be bound.
    #[error("make control socket {}", path.display())]
    Bind {
        /// Path of the socket.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
}

/// Identifies a socket's file, so that a file that replaced it is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketFile {
    device: u64,
    inode: u64,
}

impl SocketFile {
    /// Reads the identity of the file at a path.
    ///
    /// # Errors
    /// The file is missing or cannot be read.
    pub fn at(path: &Path) -> io::Result<Self> {
        let metadata = std::fs::symlink_metadata(path)?;
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        })
    }
}

/// Listens at a path in a private directory. Replaces a socket that is there.
///
/// # Errors
/// The directory or the socket cannot be made.
pub fn listen(runtime_dir: &Path, path: &Path) -> Result<(UnixListener, SocketFile), ListenError> {
    if path.as_os_str().len() > PATH_BYTES_MAX {
        return Err(ListenError::TooLong(path.to_owned()));
    }
    let failed = |source: io::Error| ListenError::Bind {
        path: path.to_owned(),
        source,
    };
    make_private_dir(runtime_dir)?;
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    let file = SocketFile::at(path).map_err(failed)?;
    Ok((listener, file))
}
