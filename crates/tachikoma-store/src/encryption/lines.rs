//! Files that grow are encrypted line by line. The first line contains the key of the file, encrypted with age. Each write adds one line.
//!
//! Nonces are 24 random bytes, so that a later process does not have to know which ones were used.

use std::cell::Cell;
use std::io::{self, BufRead, ErrorKind, Read, Write as _};
use std::rc::Rc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chacha20poly1305::aead::{Aead as _, AeadCore as _, KeyInit as _, OsRng, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use serde::{Deserialize, Serialize};
use tachikoma_core::Timestamp;

use super::Encryption;
use crate::checked_line::{self, Remainder};

/// Start of the first line of a file that is encrypted line by line.
pub const BEGINNING: &[u8] = b"{\"sealed\":";

/// Format version that this program writes, and the newest one that it reads.
const FORMAT: u32 = 1;

/// Maximum length of the first line in bytes. It has some hundred bytes for each recipient.
pub const HEADER_BYTES_MAX: u64 = 1 << 20;

const NONCE_BYTES: usize = 24;
const KEY_BYTES: u64 = 32;

/// Position of a reader in the file.
pub type Place = Rc<Cell<u64>>;

/// What a reader does with a line that cannot be decrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDamage {
    /// The reader returns the line unchanged, because the caller checks each line.
    Pass,
    /// The reader returns an error.
    Fail,
}

/// The first line of an encrypted file.
#[derive(Serialize, Deserialize)]
struct Header {
    /// Version of the format.
    #[serde(rename = "sealed")]
    format: u32,
    /// Name under which the file was created.
    of: String,
    /// When the file was created.
    time: Timestamp,
    /// An age file that contains the key, in base64.
    key: String,
}

impl Header {
    /// Parses the first line, with or without a line end. `None` if the line is damaged.
    fn parse(line: &[u8]) -> Option<Self> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let whole = Some(line).filter(|line| checked_line::is_whole(line))?;
        serde_json::from_slice(whole).ok()
    }
}

/// A line after the first one.
#[derive(Serialize, Deserialize)]
struct EncryptedLine {
    seq: u64,
    #[serde(rename = "box")]
    text: String,
}

/// Encrypts the lines of one file.
pub struct LineEncryptor {
    cipher: XChaCha20Poly1305,
    of: String,
}

impl std::fmt::Debug for LineEncryptor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("LineEncryptor")
    }
}

impl LineEncryptor {
    /// Returns the encryption of a new file and its first line; `None` if encryption is off.
    pub fn begin(
        encryption: &Encryption,
        of: String,
        time: Timestamp,
    ) -> io::Result<Option<(Self, Vec<u8>)>> {
        if !encryption.encrypts() {
            return Ok(None);
        }
        let key = XChaCha20Poly1305::generate_key(&mut OsRng);
        let mut wrapped = encryption.age_writer(Vec::new())?;
        wrapped.write_all(&key)?;
        let header = Header {
            format: FORMAT,
            of: of.clone(),
            time,
            key: STANDARD.encode(wrapped.finish()?),
        };
        let mut line = Vec::new();
        checked_line::encode(&header, &mut line);
        let cipher = XChaCha20Poly1305::new(&key);
        Ok(Some((Self { cipher, of }, line)))
    }

    /// Returns the encryption of an existing file; `None` if it is not encrypted line by line.
    pub fn resume(encryption: &Encryption, source: impl Read) -> io::Result<Option<Self>> {
        let mut source = io::BufReader::new(source);
        if !source.fill_buf()?.starts_with(BEGINNING) {
            return Ok(None);
        }
        let line = read_header(&mut source)?;
        Self::open(encryption, &line).map(Some)
    }

    fn open(encryption: &Encryption, line: &[u8]) -> io::Result<Self> {
        let header = Header::parse(line).ok_or(damaged("the line with its key is damaged"))?;
        if header.format > FORMAT {
            return Err(io::Error::other(format!(
                "it is encrypted in format {}, and this version reads up to {FORMAT}",
                header.format
            )));
        }
        let wrapped = STANDARD
            .decode(&header.key)
            .map_err(|_| damaged("its key is damaged"))?;
        let mut key = Vec::new();
        let opened = encryption.open_age(io::Cursor::new(wrapped))?;
        opened.take(KEY_BYTES + 1).read_to_end(&mut key)?;
        let cipher = XChaCha20Poly1305::new_from_slice(&key);
        Ok(Self {
            cipher: cipher.map_err(|_| damaged("its key is damaged"))?,
            of: header.of,
        })
    }

    /// Encrypts `plain` and appends it as a line to `buffer`.
    pub fn encrypt(&self, seq: u64, plain: &[u8], buffer: &mut Vec<u8>) {
        let nonce = XChaCha20Poly1305::generate_nonce(&mut OsRng);
        let aad = self.about(seq);
        let payload = Payload {
            msg: plain,
            aad: aad.as_bytes(),
        };
        let mut encrypted = nonce.to_vec();
        let closed = self.cipher.encrypt(&nonce, payload);
        encrypted.extend(closed.expect("a piece is far smaller than the cipher's bound"));
        let text = STANDARD.encode(encrypted);
        checked_line::encode(&EncryptedLine { seq, text }, buffer);
    }

    /// Returns the number and the content of a line; `None` if it cannot be decrypted.
    fn decrypt(&self, line: &[u8]) -> Option<(u64, Vec<u8>)> {
        let line: EncryptedLine = serde_json::from_slice(line).ok()?;
        let encrypted = STANDARD.decode(&line.text).ok()?;
        let (nonce, closed) = encrypted.split_at_checked(NONCE_BYTES)?;
        let aad = self.about(line.seq);
        let payload = Payload {
            msg: closed,
            aad: aad.as_bytes(),
        };
        let piece = self.cipher.decrypt(XNonce::from_slice(nonce), payload);
        Some((line.seq, piece.ok()?))
    }

    /// Returns the associated data of a line, which makes it invalid in another file or at another position.
    fn about(&self, seq: u64) -> String {
        format!("{}\n{seq}", self.of)
    }
}

/// Returns the encrypted key of a file; `None` if its first line is damaged.
pub fn wrapped_key(source: &mut impl BufRead) -> Option<Vec<u8>> {
    let line = read_header(source).ok()?;
    let header = Header::parse(&line).filter(|_| line.ends_with(b"\n"))?;
    STANDARD.decode(&header.key).ok()
}

/// Returns when a file was created. The first line can be read without a key.
pub fn begun(line: &[u8]) -> Option<Timestamp> {
    let header: Header = serde_json::from_slice(line).ok()?;
    Some(header.time)
}

fn read_header(source: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    source.take(HEADER_BYTES_MAX).read_until(b'\n', &mut line)?;
    Ok(line)
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

/// Reader of the decrypted lines of a file.
pub struct Lines<R> {
    source: R,
    /// Decrypts the lines; `None` if the first line is damaged.
    line_encryptor: Option<LineEncryptor>,
    on_damage: OnDamage,
    /// Decrypted content of the line that was read last.
    piece: Vec<u8>,
    read: usize,
    /// Number of the last decrypted line; `None` before the first one.
    last: Option<u64>,
    /// Number of bytes that were read from the file.
    raw: u64,
    place: Place,
}

impl<R: BufRead> Lines<R> {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// The file cannot be read or decrypted.
    pub fn new(mut source: R, encryption: &Encryption, on_damage: OnDamage) -> io::Result<Self> {
        let header = read_header(&mut source)?;
        let is_ended = header.ends_with(b"\n");
        let mut lines = Self {
            source,
            line_encryptor: None,
            on_damage,
            piece: Vec::new(),
            read: 0,
            last: None,
            raw: header.len() as u64,
            place: Rc::default(),
        };
        match LineEncryptor::open(encryption, &header) {
            Ok(line_encryptor) if is_ended => lines.line_encryptor = Some(line_encryptor),
            Err(error) if super::is_locked(&error) => return Err(error),
            // The first line is incomplete or damaged.
            Ok(_) | Err(_) if on_damage == OnDamage::Pass => lines.piece = header,
            Ok(_) => {}
            Err(error) => return Err(error),
        }
        Ok(lines)
    }

    /// Returns the number of the first line that is passed on: 2, or 1 if the first line is damaged and passed on, too.
    pub fn first_line(&self) -> usize {
        match self.line_encryptor {
            Some(_) => 2,
            None => 1,
        }
    }

    /// Returns the name under which the file was created; `None` if the first line is damaged.
    pub fn of(&self) -> Option<String> {
        self.line_encryptor
            .as_ref()
            .map(|line_encryptor| line_encryptor.of.clone())
    }

    /// Returns the position in the file.
    pub fn place(&self) -> Place {
        Rc::clone(&self.place)
    }

    /// Reads and decrypts the next line.
    fn next(&mut self) -> io::Result<()> {
        self.piece.clear();
        self.read = 0;
        let mut line = Vec::new();
        let read = self.source.read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(());
        }
        self.raw += read as u64;
        let ended = line.strip_suffix(b"\n");
        let is_ended = ended.is_some();
        let text = ended.unwrap_or(&line);
        let is_whole = is_ended && checked_line::is_whole(text);
        let is_unended = !is_ended && matches!(checked_line::remainder(text), Remainder::Record);
        let opened = (is_whole || is_unended)
            .then(|| self.line_encryptor.as_ref()?.decrypt(text))
            .flatten();
        // A missing or repeated line makes this line invalid, too.
        let follows = |seq: u64| self.last.is_none_or(|last| seq == last + 1);
        if let Some((seq, _)) = opened
            && !follows(seq)
            && self.on_damage == OnDamage::Fail
        {
            return Err(damaged("a line is missing or in the wrong place"));
        }
        let opened = opened.map(|(seq, piece)| {
            self.last = Some(seq);
            piece
        });
        self.piece = match (opened, self.on_damage) {
            (Some(mut piece), OnDamage::Pass) if is_unended => {
                piece.pop_if(|byte| *byte == b'\n');
                piece
            }
            (Some(piece), OnDamage::Pass | OnDamage::Fail) => piece,
            // An unencrypted line with a valid checksum is replaced by a text that is not a valid record, so that the caller rejects it.
            (None, OnDamage::Pass) if is_whole => b"a line that is not encrypted\n".to_vec(),
            (None, OnDamage::Pass) => line,
            // The process died while it wrote the last line, so the line is dropped.
            (None, OnDamage::Fail) if !is_ended => Vec::new(),
            (None, OnDamage::Fail) => return Err(damaged("a line cannot be decrypted")),
        };
        self.place.set(self.raw);
        Ok(())
    }
}

impl<R: BufRead> Read for Lines<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut piece = self.fill_buf()?;
        let read = piece.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

impl<R: BufRead> BufRead for Lines<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.read >= self.piece.len() {
            self.next()?;
        }
        Ok(&self.piece[self.read..])
    }

    fn consume(&mut self, read: usize) {
        self.read += read;
    }
}
