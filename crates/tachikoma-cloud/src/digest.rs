//! SHA-256 digests of files.

use std::fs::File;
use std::io::{self, Read as _};

use sha2::{Digest as _, Sha256};

/// Number of bytes that are read at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// SHA-256 of a file, in hexadecimal, and its size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digest {
    /// The digest as 64 hexadecimal digits.
    pub hex: String,
    /// Size of the file in bytes.
    pub bytes: u64,
}

/// Computes a digest piece by piece.
#[derive(Default)]
pub(crate) struct Sum {
    hash: Sha256,
    bytes: u64,
}

impl Sum {
    pub fn add(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    pub fn finish(self) -> Digest {
        let hex = self.hash.finalize();
        Digest {
            hex: hex.iter().map(|byte| format!("{byte:02x}")).collect(),
            bytes: self.bytes,
        }
    }
}

/// Reads a file from its current position to its end and returns the digest.
///
/// # Errors
/// The file cannot be read.
pub fn digest_of(file: &mut File) -> io::Result<Digest> {
    let mut sum = Sum::default();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok(sum.finish()),
            Ok(read) => sum.add(&chunk[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek as _, Write as _};

    use super::*;

    #[test]
    fn digest_of_abc_matches_the_published_value() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"abc").unwrap();
        file.rewind().unwrap();
        let digest = digest_of(&mut file).unwrap();
        assert_eq!(digest.bytes, 3);
        assert_eq!(
            digest.hex,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
