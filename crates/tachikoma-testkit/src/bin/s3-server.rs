//! The S3 server as a program: prints the environment variables for its clients, and serves a directory until its stdin is closed.
#![expect(
    clippy::print_stdout,
    reason = "the caller reads variables from stdout"
)]

use std::io::Read as _;
use std::path::PathBuf;

use tachikoma_testkit::s3::S3;

fn main() {
    let dir = std::env::args_os().nth(1).map(PathBuf::from);
    let server = S3::start(&dir.unwrap_or_else(|| "s3".into()));
    for (name, value) in server.env() {
        println!("{name}={value}");
    }
    println!();
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}
