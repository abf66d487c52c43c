//! Creates the Unix sockets that the operator's commands connect to.

use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tachikoma_fs::FsError;
use tachikoma_fs::owner::make_private_dir;
use tokio::net::UnixListener;

/// Maximum length of a path in the address of a Unix socket.
const PATH_BYTES_MAX: usize = 107;

/// Why a control socket could not be created.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The path of the socket is too long for a socket address.
    #[error("the path of the control socket is longer than {PATH_BYTES_MAX} bytes: {}", .0.display())]
    TooLong(PathBuf),
    /// The directory of the socket cannot be created, or other users can write to it.
    #[error(transparent)]
    Directory(#[from] FsError),
    /// The socket cannot be bound to its path.
    #[error("make control socket {}", path.display())]
    Bind {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
}

/// Identity of a socket's file, to notice that another file replaced it.
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

/// Listens on a socket in a private directory. Replaces a socket that exists at this path.
///
/// # Errors
/// The directory or the socket cannot be created.
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
