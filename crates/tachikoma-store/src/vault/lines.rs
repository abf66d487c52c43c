//! Files that grow, sealed line by line: a first line with the key of the file, wrapped by age, and then one line for each
//! piece that was written. One write adds one line, as without sealing.
//!
//! Nonces are drawn at random from 24 bytes, so that whoever goes on with a file under its key need not know which were used.

use std::cell::Cell;
use std::io::{self, BufRead, ErrorKind, Read, Write as _};
use std::rc::Rc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chacha20poly1305::aead::{Aead as _, AeadCore as _, KeyInit as _, OsRng, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use serde::{Deserialize, Serialize};
use tachikoma_core::Timestamp;

use super::Vault;
use crate::checked_line::{self, Remainder};

/// How the first line begins.
pub const BEGINNING: &[u8] = b"{\"sealed\":";

/// The format that this version writes, and the newest it reads.
const FORMAT: u32 = 1;

/// A first line has some hundred bytes for each key that can open it.
pub const HEADER_BYTES_MAX: u64 = 1 << 20;

const NONCE_BYTES: usize = 24;
const KEY_BYTES: u64 = 32;

/// How many bytes of a file what was read so far takes.
pub type Place = Rc<Cell<u64>>;

/// What a reader does about a line that does not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDamage {
    /// It passes it on as it is, for one who looks at each line himself.
    Pass,
    /// It fails.
    Fail,
}

/// The first line.
#[derive(Serialize, Deserialize)]
struct Header {
    sealed: u32,
    /// What it is the key of.
    of: String,
    /// When the file was begun.
    time: Timestamp,
    /// An age file with the key, in base64.
    key: String,
}

/// Any other line.
#[derive(Serialize, Deserialize)]
struct Sealed {
    seq: u64,
    #[serde(rename = "box")]
    sealed: String,
}

/// What seals the lines of one file.
pub struct Sealer {
    cipher: XChaCha20Poly1305,
    of: String,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Sealer")
    }
}

impl Sealer {
    /// Returns what seals a new file, and its first line; none where nothing is sealed.
    pub fn begin(
        vault: &Vault,
        of: String,
        time: Timestamp,
    ) -> io::Result<Option<(Self, Vec<u8>)>> {
        if !vault.seals() {
            return Ok(None);
        }
        let key = XChaCha20Poly1305::generate_key(&mut OsRng);
        let mut wrapped = vault.age_writer(Vec::new())?;
        wrapped.write_all(&key)?;
        let header = Header {
            sealed: FORMAT,
            of: of.clone(),
            time,
            key: STANDARD.encode(wrapped.finish()?),
        };
        let mut line = Vec::new();
        checked_line::encode(&header, &mut line);
        let cipher = XChaCha20Poly1305::new(&key);
        Ok(Some((Self { cipher, of }, line)))
    }

    /// Returns what seals on a file that was begun; none where it is not sealed line by line.
    pub fn resume(vault: &Vault, source: impl Read) -> io::Result<Option<Self>> {
        let mut source = io::BufReader::new(source);
        if !source.fill_buf()?.starts_with(BEGINNING) {
            return Ok(None);
        }
        let line = read_header(&mut source)?;
        Self::open(vault, &line).map(Some)
    }

    fn open(vault: &Vault, line: &[u8]) -> io::Result<Self> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        if !checked_line::is_whole(line) {
            return Err(odd("the line with its key is damaged"));
        }
        let header: Header =
            serde_json::from_slice(line).map_err(|_| odd("the line with its key is damaged"))?;
        if header.sealed > FORMAT {
            return Err(io::Error::other(format!(
                "it is sealed in format {}, and this version reads up to {FORMAT}",
                header.sealed
            )));
        }
        let wrapped = STANDARD
            .decode(&header.key)
            .map_err(|_| odd("its key is damaged"))?;
        let mut key = Vec::new();
        let opened = vault.open_age(io::Cursor::new(wrapped))?;
        opened.take(KEY_BYTES + 1).read_to_end(&mut key)?;
        let cipher = XChaCha20Poly1305::new_from_slice(&key);
        Ok(Self {
            cipher: cipher.map_err(|_| odd("its key is damaged"))?,
            of: header.of,
        })
    }

    /// Adds a line with a piece to `buffer`.
    pub fn seal(&self, seq: u64, plain: &[u8], buffer: &mut Vec<u8>) {
        let nonce = XChaCha20Poly1305::generate_nonce(&mut OsRng);
        let aad = self.about(seq);
        let payload = Payload {
            msg: plain,
            aad: aad.as_bytes(),
        };
        let mut sealed = nonce.to_vec();
        let closed = self.cipher.encrypt(&nonce, payload);
        sealed.extend(closed.expect("a piece is far smaller than the cipher's bound"));
        let sealed = STANDARD.encode(sealed);
        checked_line::encode(&Sealed { seq, sealed }, buffer);
    }

    /// Returns the number of a line and its piece.
    fn unseal(&self, line: &[u8]) -> Option<(u64, Vec<u8>)> {
        let line: Sealed = serde_json::from_slice(line).ok()?;
        let sealed = STANDARD.decode(&line.sealed).ok()?;
        let (nonce, closed) = sealed.split_at_checked(NONCE_BYTES)?;
        let aad = self.about(line.seq);
        let payload = Payload {
            msg: closed,
            aad: aad.as_bytes(),
        };
        let piece = self.cipher.decrypt(XNonce::from_slice(nonce), payload);
        Some((line.seq, piece.ok()?))
    }

    /// What a piece is bound to: neither another file nor another place in this one takes it.
    fn about(&self, seq: u64) -> String {
        format!("{}\n{seq}", self.of)
    }
}

/// Returns the age file with the key of a file that is sealed line by line, if its first line is whole.
pub fn wrapped_key(source: &mut impl BufRead) -> Option<Vec<u8>> {
    let line = read_header(source).ok()?;
    let line = line
        .strip_suffix(b"\n")
        .filter(|line| checked_line::is_whole(line))?;
    let header: Header = serde_json::from_slice(line).ok()?;
    STANDARD.decode(&header.key).ok()
}

/// Returns when a file was begun that is sealed line by line: its first line says so to anyone.
pub fn begun(line: &[u8]) -> Option<Timestamp> {
    let header: Header = serde_json::from_slice(line).ok()?;
    Some(header.time)
}

fn read_header(source: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    source.take(HEADER_BYTES_MAX).read_until(b'\n', &mut line)?;
    Ok(line)
}

fn odd(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

/// The pieces of a file, one behind the other.
pub struct Lines<R> {
    source: R,
    /// None where the first line is damaged.
    sealer: Option<Sealer>,
    on_damage: OnDamage,
    /// What the last line held.
    piece: Vec<u8>,
    read: usize,
    /// The number of the last line that opened.
    last: Option<u64>,
    /// How many bytes of the file were read.
    raw: u64,
    place: Place,
}

impl<R: BufRead> Lines<R> {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// The file cannot be read or decrypted.
    pub fn new(mut source: R, vault: &Vault, on_damage: OnDamage) -> io::Result<Self> {
        let header = read_header(&mut source)?;
        let is_ended = header.ends_with(b"\n");
        let mut lines = Self {
            source,
            sealer: None,
            on_damage,
            piece: Vec::new(),
            read: 0,
            last: None,
            raw: header.len() as u64,
            place: Rc::default(),
        };
        match Sealer::open(vault, &header) {
            Ok(sealer) if is_ended => lines.sealer = Some(sealer),
            Err(error) if super::is_locked(&error) => return Err(error),
            // A writer died over its first line, or it was damaged.
            Ok(_) | Err(_) if on_damage == OnDamage::Pass => lines.piece = header,
            Ok(_) => {}
            Err(error) => return Err(error),
        }
        Ok(lines)
    }

    /// The line of the file with the first piece: behind that with the key, unless that is damaged, and passed on too.
    pub fn first_line(&self) -> usize {
        match self.sealer {
            Some(_) => 2,
            None => 1,
        }
    }

    /// What the file was begun as.
    pub fn of(&self) -> Option<String> {
        self.sealer.as_ref().map(|sealer| sealer.of.clone())
    }

    /// Returns the position in the file.
    pub fn place(&self) -> Place {
        Rc::clone(&self.place)
    }

    /// Reads the next line.
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
            .then(|| self.sealer.as_ref()?.unseal(text))
            .flatten();
        // Whoever looks at each line himself sees it too.
        let follows = |seq: u64| self.last.is_none_or(|last| seq == last + 1);
        if let Some((seq, _)) = opened
            && !follows(seq)
            && self.on_damage == OnDamage::Fail
        {
            return Err(odd("a line of it is missing, or not in its place"));
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
            // Its checksum would vouch for it.
            (None, OnDamage::Pass) if is_whole => b"a line that was not sealed here\n".to_vec(),
            (None, OnDamage::Pass) => line,
            // Its writer died.
            (None, OnDamage::Fail) if !is_ended => Vec::new(),
            (None, OnDamage::Fail) => return Err(odd("a line of it does not open")),
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
