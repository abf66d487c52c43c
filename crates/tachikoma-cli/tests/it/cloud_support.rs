//! A server for uploads, and loops that upload to it.

use std::path::Path;

use serde_json::Value;
use tachikoma_testkit::s3::{BUCKET, S3};
use tachikoma_testkit::{Scratch, Tool};

use crate::support::{journals, tachikoma};

/// An S3 server with the directory of its objects.
pub struct Server {
    pub s3: S3,
    _dir: tempfile::TempDir,
}

impl Server {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self {
            s3: S3::start(dir.path()),
            _dir: dir,
        }
    }

    /// Returns the address of a prefix. It is short, because the server's file names are longer than object names.
    pub fn url(&self) -> String {
        format!("s3://{BUCKET}/a/b")
    }

    /// Returns the binary with the credentials of the server.
    pub fn tool<'a>(&self, scratch: &'a Scratch) -> Tool<'a> {
        let env = self.s3.env().into_iter();
        env.fold(tachikoma(scratch), |tool, (name, value)| {
            tool.env(name, value)
        })
    }

    #[track_caller]
    pub fn say(&self, scratch: &Scratch, words: &[&str], code: i32) -> String {
        let ran = self.tool(scratch).run(words);
        assert_eq!(ran.code(), Some(code), "{}", ran.snapshot());
        format!("{}{}", ran.stdout, ran.stderr)
    }

    /// Returns the names of the uploaded backups, oldest first.
    pub fn copies(&self) -> Vec<String> {
        let mut copies = self.s3.objects();
        copies.retain(|name| name.contains(".tar"));
        copies
    }
}

/// Returns settings that upload backups.
pub fn settings(url: &str, more: &str) -> String {
    format!("[state]\ncloud_url = \"{url}\"\n{more}\n")
}

/// Returns the upload events of one kind in all journals.
pub fn incidents(scratch: &Scratch, kind: &str) -> Vec<Value> {
    let journals = journals(scratch);
    let texts = journals
        .iter()
        .filter(|(path, _)| path.extension().is_some_and(|end| end == "jsonl"))
        .map(|(_, bytes)| String::from_utf8_lossy(bytes).into_owned());
    let lines: Vec<String> = texts
        .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let records = lines.iter().filter_map(|line| {
        let record: Value = serde_json::from_str(line).ok()?;
        Some(record["event"].clone())
    });
    records
        .filter(|event| event["type"] == "incident" && event["kind"] == kind)
        .collect()
}

/// Arguments of a run up to the given iteration, with an agent that appends a line in each iteration.
pub fn up_to(iterations: &str) -> [&str; 8] {
    [
        "run",
        "--quiet",
        "--allow-dirty",
        "--delay",
        "0s",
        "--max-iterations",
        iterations,
        "--",
    ]
}

/// Returns a repository on a branch, with a prompt and settings that upload backups.
pub fn repository(server: &Server, more: &str) -> Scratch {
    let scratch = Scratch::with_git();
    scratch.write("prompt.md", "go\n");
    scratch.write("tachikoma.toml", settings(&server.url(), more));
    scratch.git(&["add", "-A"]);
    scratch.git(&["commit", "--quiet", "-m", "before"]);
    scratch
}

/// Sets an author for commits in the new directory.
pub fn with_identity(scratch: &Scratch) {
    let settings = "[user]\n\tname = Scratch\n\temail = scratch@example.invalid\n";
    std::fs::write(scratch.home().join(".gitconfig"), settings).unwrap();
}

/// Returns the start of the SHA-256 of a file, computed by another program.
pub fn sha256(path: &Path) -> String {
    let output = std::process::Command::new("sha256sum").arg(path).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    text[..32].to_owned()
}
