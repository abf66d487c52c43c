//! The output of an agent during one iteration, stored in a file of limited size: raw bytes in the order of arrival.
//!
//! The first half of the limit is written to the head file. Later bytes are written to two tail files in turn: when both are full, the older one is
//! overwritten. Closing joins head and tails into one file, with a line that says how many bytes are missing. Before that, the files may take a
//! quarter more than the limit.

use std::fs::File;
use std::io::{self, BufRead as _, ErrorKind, Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};
use tachikoma_core::Timestamp;
use tachikoma_fs::RALPH_DIR;

use crate::clock::Clock;
use crate::store::compressed;
use crate::store::encryption::lines::{LineEncryptor, OnDamage};
use crate::store::encryption::{self, Encryption};

/// Maximum number of files for one attempt. An attempt has a second file only if its record was lost, so more files are a mistake.
const REPEATS_MAX: u32 = 100;

/// Maximum length of a label in a file name.
const LABEL_CHARS_MAX: usize = 40;

/// The suffixes of the two tail files.
pub(super) const TAIL_SUFFIXES: [&str; 2] = [".tail-a", ".tail-b"];

/// The transcript of one attempt. No file is created before the first byte.
#[derive(Debug)]
pub struct Transcript {
    directory: PathBuf,
    iteration: u64,
    attempt: u32,
    /// Label in the file name: the name of a gate; `None` for an agent.
    label: Option<String>,
    head_bytes_max: u64,
    tail_bytes_max: u64,
    encryption: Encryption,
    open: Option<Box<Open>>,
}

/// The open files of a transcript.
#[derive(Debug)]
struct Open {
    directory: OwnedFd,
    name: String,
    encryption: Encryption,
    head: TranscriptFile,
    head_bytes: u64,
    /// The two tails. Output is written to the second one; the first one is older.
    tails: [Option<TranscriptTail>; 2],
    /// Number of bytes in overwritten tails.
    omitted_bytes: u64,
}

#[derive(Debug)]
struct TranscriptTail {
    suffix: &'static str,
    sink: TranscriptFile,
    bytes: u64,
}

/// A transcript file, either encrypted line by line or plain text.
#[derive(Debug)]
struct TranscriptFile {
    file: File,
    form: Form,
}

#[derive(Debug)]
enum Form {
    Encrypted {
        line_encryptor: LineEncryptor,
        /// Number of pieces that were encrypted so far.
        pieces: u64,
        /// Bytes that are not encrypted yet. They become part of the next piece.
        buffer: Vec<u8>,
    },
    Clear {
        /// First bytes of the output while they could still look like an encrypted file; `None` once that is decided.
        begins: Option<Vec<u8>>,
    },
}

impl TranscriptFile {
    fn new(file: File, encryption: &Encryption, name: &str) -> io::Result<Self> {
        let begun = LineEncryptor::begin(
            encryption,
            name.to_owned(),
            Clock::starting_after(Timestamp::default()).now(),
        )?;
        let form = match begun {
            Some((line_encryptor, buffer)) => Form::Encrypted {
                line_encryptor,
                pieces: 0,
                buffer,
            },
            None => Form::Clear {
                begins: Some(Vec::new()),
            },
        };
        Ok(Self { file, form })
    }

    /// Appends bytes to the file with one write.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.form {
            Form::Encrypted { .. } if bytes.is_empty() => Ok(()),
            Form::Encrypted {
                line_encryptor,
                pieces,
                buffer,
            } => {
                *pieces += 1;
                line_encryptor.encrypt(*pieces, bytes, buffer);
                let written = self.file.write_all(buffer);
                buffer.clear();
                written
            }
            Form::Clear { begins } => {
                if let Some(mut text) = begins.take() {
                    text.extend_from_slice(bytes);
                    match encryption::looks_encrypted(&text) {
                        None => *begins = Some(text),
                        Some(false) => {}
                        Some(true) => {
                            self.file.set_len(0)?;
                            self.file.rewind()?;
                            return self.file.write_all(&[encryption::APART, &text].concat());
                        }
                    }
                }
                self.file.write_all(bytes)
            }
        }
    }

    /// Appends the content of another file.
    fn add(&mut self, mut other: File, encryption: &Encryption) -> io::Result<()> {
        other.rewind()?;
        let mut content = encryption.decrypt(other, OnDamage::Fail)?.content;
        loop {
            let piece = content.fill_buf()?;
            let length = piece.len();
            if length == 0 {
                return Ok(());
            }
            self.write(piece)?;
            content.consume(length);
        }
    }
}

impl Transcript {
    /// Returns the transcript of an attempt, with at most `bytes_max` bytes; 0 means no limit.
    #[must_use]
    pub fn new(directory: PathBuf, iteration: u64, attempt: u32, bytes_max: u64) -> Self {
        let (head_bytes_max, tail_bytes_max) = match bytes_max {
            0 => (u64::MAX, 0),
            limit => (limit.div_ceil(2), limit / 4),
        };
        Self {
            directory,
            iteration,
            attempt,
            label: None,
            head_bytes_max,
            tail_bytes_max,
            encryption: Encryption::plain(),
            open: None,
        }
    }

    /// Sets the encryption of the file.
    #[must_use]
    pub fn kept_in(mut self, encryption: &Encryption) -> Self {
        self.encryption = encryption.clone();
        self
    }

    /// Adds a label to the name of the file. Characters other than ASCII letters and digits become `-`.
    pub(crate) fn labelled(mut self, label: &str) -> Self {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        self.label = Some(label.chars().map(plain).take(LABEL_CHARS_MAX).collect());
        self
    }

    /// Appends output of the agent.
    ///
    /// # Errors
    /// The file cannot be written. Earlier output is kept in the file.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let open = match &mut self.open {
            Some(open) => open,
            None => {
                let opened = Open::create(&self.directory, &self.stem(), &self.encryption)?;
                self.open.insert(Box::new(opened))
            }
        };
        open.write(bytes, self.head_bytes_max, self.tail_bytes_max)
    }

    fn stem(&self) -> String {
        let (iteration, attempt) = (self.iteration, self.attempt);
        match &self.label {
            Some(label) => format!("{iteration:06}.{attempt}-{label}"),
            None => format!("{iteration:06}.{attempt}"),
        }
    }

    /// Joins the parts and closes the transcript. Returns the path of the file; `None` if the agent wrote nothing.
    ///
    /// # Errors
    /// The parts cannot be joined. They are left unchanged.
    pub fn close(self) -> io::Result<Option<PathBuf>> {
        match self.open {
            Some(open) => {
                let path = self.directory.join(&open.name);
                open.join()?;
                Ok(Some(path))
            }
            None => Ok(None),
        }
    }
}

impl Open {
    fn create(path: &Path, stem: &str, encryption: &Encryption) -> io::Result<Self> {
        let directory = open_directory(path)?;
        for repeat in 1..=REPEATS_MAX {
            let name = match repeat {
                1 => format!("{stem}.log"),
                _ => format!("{stem}.{repeat}.log"),
            };
            match create_file(&directory, &name) {
                // This is checked after the file was created: while an earlier file is compressed, either its plain or its compressed name exists.
                Ok(_) if is_there(&directory, &format!("{name}{}", compressed::SUFFIX)) => {
                    rustix::fs::unlinkat(&directory, &name, AtFlags::empty())?;
                }
                Ok(head) => {
                    return Ok(Self {
                        head: TranscriptFile::new(head, encryption, &name)?,
                        encryption: encryption.clone(),
                        directory,
                        name,
                        head_bytes: 0,
                        tails: [None, None],
                        omitted_bytes: 0,
                    });
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => (),
                Err(error) => return Err(error),
            }
        }
        Err(ErrorKind::AlreadyExists.into())
    }

    fn write(&mut self, bytes: &[u8], head_max: u64, tail_max: u64) -> io::Result<()> {
        let (for_head, mut rest) = split(bytes, head_max.saturating_sub(self.head_bytes));
        self.head.write(for_head)?;
        self.head_bytes += for_head.len() as u64;
        if tail_max == 0 {
            self.omitted_bytes += rest.len() as u64;
            return Ok(());
        }
        while !rest.is_empty() {
            let tail = match &mut self.tails {
                [_, Some(tail)] if tail.bytes < tail_max => tail,
                [_, Some(_) | None] => self.turn()?,
            };
            let (part, after) = split(rest, tail_max - tail.bytes);
            tail.sink.write(part)?;
            tail.bytes += part.len() as u64;
            rest = after;
        }
        Ok(())
    }

    /// Starts a new tail, which replaces the older one.
    fn turn(&mut self) -> io::Result<&mut TranscriptTail> {
        let [older, newer] = &mut self.tails;
        let fresh = match older.take() {
            Some(mut tail) => {
                tail.sink.file.set_len(0)?;
                tail.sink.file.rewind()?;
                self.omitted_bytes += tail.bytes;
                let name = format!("{}{}", self.name, tail.suffix);
                TranscriptTail {
                    suffix: tail.suffix,
                    sink: TranscriptFile::new(tail.sink.file, &self.encryption, &name)?,
                    bytes: 0,
                }
            }
            None => {
                let [first, second] = TAIL_SUFFIXES;
                let suffix = if newer.is_none() { first } else { second };
                let name = format!("{}{suffix}", self.name);
                let file = create_file(&self.directory, &name)?;
                TranscriptTail {
                    suffix,
                    sink: TranscriptFile::new(file, &self.encryption, &name)?,
                    bytes: 0,
                }
            }
        };
        *older = newer.take();
        Ok(newer.insert(fresh))
    }

    fn join(mut self) -> io::Result<()> {
        if self.omitted_bytes > 0 {
            let omitted = self.omitted_bytes;
            let words = format!("\n[tachikoma: {omitted} bytes left out here]\n");
            self.head.write(words.as_bytes())?;
        }
        for tail in self.tails.into_iter().flatten() {
            self.head.add(tail.sink.file, &self.encryption)?;
            let name = format!("{}{}", self.name, tail.suffix);
            rustix::fs::unlinkat(&self.directory, name, AtFlags::empty())?;
        }
        Ok(())
    }
}

/// Opens the directory, and creates it if it does not exist. Its parent must exist: a deleted working directory must not be created
/// again by output of the agent.
///
/// The agent can replace any directory below `.ralph` with a symbolic link, so links below `.ralph` are refused.
fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let ours = path.ancestors().find(|part| part.ends_with(RALPH_DIR));
    let base = ours.unwrap_or(path).parent().unwrap_or(path);
    let below = path.strip_prefix(base).unwrap_or(Path::new(""));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut directory = rustix::fs::open(base, flags, Mode::empty())?;
    let mut parts = below.components().peekable();
    while let Some(part) = parts.next() {
        let name = part.as_os_str();
        let open = || rustix::fs::openat(&directory, name, flags | OFlags::NOFOLLOW, Mode::empty());
        let next = match open() {
            Err(rustix::io::Errno::NOENT) if parts.peek().is_none() => {
                rustix::fs::mkdirat(&directory, name, Mode::RWXU)?;
                open()?
            }
            opened => opened?,
        };
        directory = next;
    }
    Ok(directory)
}

fn is_there(directory: &OwnedFd, name: &str) -> bool {
    rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

fn create_file(directory: &OwnedFd, name: &str) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    Ok(rustix::fs::openat(directory, name, flags, mode)?.into())
}

fn split(bytes: &[u8], at: u64) -> (&[u8], &[u8]) {
    let at = usize::try_from(at).unwrap_or(usize::MAX);
    bytes.split_at(bytes.len().min(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn written(directory: &Path, bytes_max: u64, pieces: &[&[u8]]) -> Option<String> {
        let mut transcript = Transcript::new(directory.to_owned(), 12, 1, bytes_max);
        for piece in pieces {
            transcript.write(piece).unwrap();
        }
        let path = transcript.close().unwrap()?;
        Some(String::from_utf8(fs::read(path).unwrap()).unwrap())
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn no_output_leaves_no_file() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("transcripts");
        assert_eq!(written(&directory, 100, &[b""]), None);
        assert!(!directory.exists(), "the directory is not created");
    }

    #[test]
    fn transcript_files_and_directories_are_private() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("a/b");
        let mut homeless = Transcript::new(directory.clone(), 12, 1, 100);
        assert!(
            homeless.write(b"x").is_err(),
            "only one directory level is created"
        );
        fs::create_dir(place.path().join("a")).unwrap();
        written(&directory, 100, &[b"x"]).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&directory), 0o700);
        assert_eq!(mode(&directory.join("000012.1.log")), 0o600);
    }

    #[test]
    fn transcript_is_not_written_through_symbolic_links_below_ralph() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        fs::create_dir_all(path("elsewhere/loop")).unwrap();
        fs::create_dir_all(path("w/.ralph")).unwrap();
        symlink(path("elsewhere"), path("w/.ralph/sessions")).unwrap();
        let mut transcript = Transcript::new(path("w/.ralph/sessions/loop"), 12, 1, 100);
        transcript.write(b"x").unwrap_err();
        assert_eq!(names(&path("elsewhere/loop")), [""; 0]);
        symlink(path("w"), path("link")).unwrap();
        fs::remove_file(path("w/.ralph/sessions")).unwrap();
        fs::create_dir(path("w/.ralph/sessions")).unwrap();
        written(&path("link/.ralph/sessions/loop"), 100, &[b"x"]).unwrap();
    }

    #[test]
    fn short_output_is_stored_unchanged_in_any_chunks() {
        let text = b"abcdefghijklmnopqrstuvwxyz";
        for bytes_max in [0, 26, 35, 40, 52, 1000] {
            for size in 1..=text.len() {
                let place = tempfile::tempdir().unwrap();
                let pieces: Vec<&[u8]> = text.chunks(size).collect();
                let found = written(place.path(), bytes_max, &pieces).unwrap();
                let kept = found.replace(|c: char| !c.is_ascii_lowercase(), "");
                assert!(found.starts_with("abcdefghijklm"), "the head is kept");
                assert!(kept.ends_with("uvwxyz"), "the tail is kept");
                if bytes_max == 0 || bytes_max >= 35 {
                    assert_eq!(
                        found.as_bytes(),
                        text,
                        "limit {bytes_max}, pieces of {size}"
                    );
                }
                assert_eq!(
                    names(place.path()),
                    ["000012.1.log"],
                    "the parts were joined and deleted"
                );
            }
        }
    }

    #[test]
    fn output_that_looks_encrypted_gets_a_line_before_it() {
        let text = b"age-encryption.org/v1 and more";
        for size in 1..=text.len() {
            let place = tempfile::tempdir().unwrap();
            let pieces: Vec<&[u8]> = text.chunks(size).collect();
            let found = written(place.path(), 0, &pieces).unwrap();
            assert_eq!(
                found, "\nage-encryption.org/v1 and more",
                "pieces of {size}"
            );
        }
    }

    #[test]
    fn long_output_keeps_head_and_tail_and_counts_missing_bytes() {
        let place = tempfile::tempdir().unwrap();
        let found = written(place.path(), 16, &[b"0123456789", b"abcdefghijklmnopqrst"]).unwrap();
        assert_eq!(
            found, "01234567\n[tachikoma: 16 bytes left out here]\nopqrst",
            "eight bytes are in the head, the tails have four bytes each"
        );
    }

    #[test]
    fn earlier_attempt_is_never_overwritten() {
        let place = tempfile::tempdir().unwrap();
        written(place.path(), 100, &[b"first"]).unwrap();
        assert_eq!(written(place.path(), 100, &[b"again"]).unwrap(), "again");
        assert_eq!(names(place.path()), ["000012.1.2.log", "000012.1.log"]);
        let first = fs::read(place.path().join("000012.1.log")).unwrap();
        assert_eq!(first, b"first");
    }

    #[test]
    fn compressed_earlier_attempt_is_never_overwritten() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("000012.1.log.zst"), "first").unwrap();
        written(place.path(), 100, &[b"again"]).unwrap();
        assert_eq!(names(place.path()), ["000012.1.2.log", "000012.1.log.zst"]);
    }

    #[test]
    fn symbolic_link_in_place_of_a_transcript_is_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let victim = place.path().join("victim");
        let directory = place.path().join("transcripts");
        fs::create_dir(&directory).unwrap();
        symlink(&victim, directory.join("000012.1.log")).unwrap();
        written(&directory, 100, &[b"x"]).unwrap();
        assert!(!victim.exists(), "the link is not followed");
        let link = place.path().join("link");
        symlink(&directory, &link).unwrap();
        let mut transcript = Transcript::new(link, 1, 1, 100);
        assert!(
            transcript.write(b"x").is_err(),
            "a link in place of the directory is refused"
        );
    }
}
