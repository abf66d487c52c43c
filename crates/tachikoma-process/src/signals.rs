//! Signals to this process, and who sent them.

use std::io;

use nix::libc;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithRawSiginfo;

use super::spawn;

/// Who sent a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The system: a terminal, or a process outside of this container.
    System,
    /// A process, as the kernel says.
    Process(i32),
    /// Unknown. On Linux this means `sigqueue`, `F_SETSIG` or a timer, where the sender chooses what is written beside the signal.
    Unknown,
}

/// Signals that are listened to.
#[derive(Debug)]
pub struct Signals(SignalsInfo<WithRawSiginfo>);

impl Signals {
    /// Starts to listen. The signals no longer have their default effect.
    ///
    /// # Errors
    /// One of them cannot be listened to.
    pub fn listen(signals: &[i32]) -> io::Result<Self> {
        SignalsInfo::new(signals).map(Self)
    }

    /// Calls `each` for every signal with its sender. Blocks, and never returns.
    pub fn hear(mut self, mut each: impl FnMut(i32, Sender)) {
        for info in self.0.forever() {
            each(info.si_signo, sender(&info));
        }
    }
}

fn sender(info: &libc::siginfo_t) -> Sender {
    match info.si_code {
        libc::SI_USER | SI_TKILL => {
            match spawn::sender_of(info) {
                pid @ 1.. => Sender::Process(pid),
                // Seen from another namespace of processes, above ours.
                _ => Sender::System,
            }
        }
        // The kernel's own: a key of the terminal, or its end. Other signals of the kernel can be requested by any process.
        SI_KERNEL => Sender::System,
        // A sender may write what it likes beside these.
        _ => Sender::Unknown,
    }
}

/// `si_code` of what the kernel sends by itself.
const SI_KERNEL: i32 = 0x80;

#[cfg(target_os = "linux")]
const SI_TKILL: i32 = libc::SI_TKILL;
/// Elsewhere a thread is signalled as a process is.
#[cfg(not(target_os = "linux"))]
const SI_TKILL: i32 = libc::SI_USER;
