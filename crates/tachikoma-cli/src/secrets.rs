//! Removes secret variables (of notifications, and the passphrase of the state) from the environment before this program starts others: on Linux
//! a process can read in `/proc` the environment of its ancestors.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::OnceLock;

use rustix::io::{FdFlags, fcntl_setfd};
use tachikoma_core::PASSPHRASE_VARIABLE;
use tachikoma_loop_runner::process::handed;
use tachikoma_loop_runner::settings::{Notify, Secret, Settings};

use crate::failure::Failure;

/// First argument that announces secrets. A descriptor number and the user's arguments follow.
pub const WITH_SECRETS: &str = "with-secrets";

/// Maximum size of all secrets together. It is smaller than a pipe buffer.
const BYTES_MAX: usize = 32 << 10;

/// The secrets that this program passed to itself.
static HANDED: OnceLock<BTreeMap<String, Secret>> = OnceLock::new();

/// Returns the value of a secret variable: one that was passed by this program, or one of the environment.
pub fn value(name: &str) -> Option<Secret> {
    let handed = HANDED.get().and_then(|handed| handed.get(name).cloned());
    handed.or_else(|| std::env::var(name).ok().map(Secret::from))
}

/// Returns the names of all secret variables: those of notifications, and the passphrase of the state.
pub fn secret_names(settings: &Settings) -> Vec<OsString> {
    let names = settings.notify.iter().flat_map(Notify::variables);
    let names = names.map(Into::into);
    names.chain([PASSPHRASE_VARIABLE.into()]).collect()
}

/// Reads the secrets that this program passed to itself through a descriptor.
pub fn take_over(descriptor: Option<&OsStr>) -> Result<(), Failure> {
    let failed = || Failure::usage(format!("`{WITH_SECRETS}` is for this program itself"));
    let number = descriptor.and_then(OsStr::to_str);
    let number = number.and_then(|number| number.parse().ok());
    let bytes = handed(number.ok_or_else(failed)?, BYTES_MAX).map_err(|_| failed())?;
    let secrets: BTreeMap<String, String> = serde_json::from_slice(&bytes).map_err(|_| failed())?;
    let secrets = secrets.into_iter();
    let secrets = secrets.map(|(name, value)| (name, Secret::from(value)));
    // This cannot fail, because the value is set only here.
    let _ = HANDED.set(secrets.collect());
    Ok(())
}

/// Removes the passphrase of the state from the environment, and keeps its value in memory.
pub fn remove_passphrase() -> Result<(), Failure> {
    remove_except_passphrase_value(&[PASSPHRASE_VARIABLE.into()])
}

/// Removes variables from the environment. Only the value of the passphrase is kept.
pub fn remove_except_passphrase_value(names: &[OsString]) -> Result<(), Failure> {
    let passphrase = value(PASSPHRASE_VARIABLE);
    let needed = passphrase.map(|value| (PASSPHRASE_VARIABLE.to_owned(), value));
    remove_from_environment(names, &needed.into_iter().collect())
}

/// Removes variables from the environment: executes this program again, with the same arguments in the same process, and passes the
/// needed values to it. Returns only if none of the variables is in the environment.
pub fn remove_from_environment(
    names: &[OsString],
    needed: &BTreeMap<String, Secret>,
) -> Result<(), Failure> {
    if !names.iter().any(|name| std::env::var_os(name).is_some()) {
        return Ok(());
    }
    let failed = |error: std::io::Error| {
        Failure::new(format!(
            "the variables that have secrets cannot be hidden from the agent: {error}"
        ))
    };
    let before = HANDED.get().into_iter().flatten();
    let exposed: BTreeMap<&String, &str> = before
        .chain(needed)
        .map(|(name, value)| (name, value.expose()))
        .collect();
    let bytes = serde_json::to_vec(&exposed).map_err(|error| failed(error.into()))?;
    if bytes.len() > BYTES_MAX {
        let what = format!("the variables that have secrets are longer than {BYTES_MAX} bytes");
        return Err(Failure::usage(what));
    }
    let (reader, mut writer) = std::io::pipe().map_err(failed)?;
    writer.write_all(&bytes).map_err(failed)?;
    fcntl_setfd(&reader, FdFlags::empty()).map_err(|errno| failed(errno.into()))?;
    let program = std::env::current_exe().map_err(failed)?;
    // These are not the user's arguments: the name of the program, and arguments that an earlier call of this function added.
    let not_the_users = if HANDED.get().is_some() { 3 } else { 1 };
    let mut ourselves = Command::new(program);
    ourselves
        .arg(WITH_SECRETS)
        .arg(reader.as_raw_fd().to_string())
        .args(std::env::args_os().skip(not_the_users));
    for name in names {
        ourselves.env_remove(name);
    }
    Err(failed(ourselves.exec()))
}
