//! Lets processes that somebody has stopped go on when he is gone: a process that is stopped hears no request to end.

use anyhow::Result;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io::{BufRead, stdin};

/// Reads process numbers, one a line, and has all of them go on when there are no more.
///
/// # Errors
/// Standard input cannot be read.
pub(super) fn resume() -> Result<()> {
    let mut stopped = Vec::new();
    for line in stdin().lock().lines() {
        let pid = line?.trim().parse().ok().and_then(Pid::from_raw);
        // Held by descriptor: a number may be another process's by then.
        stopped.extend(pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()));
    }
    for process in stopped {
        // It may have ended.
        let _ = pidfd_send_signal(&process, Signal::CONT);
    }
    Ok(())
}
