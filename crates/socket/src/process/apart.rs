//! Processes in other namespaces of processes than the one their family began in, where numbers mean others.
//!
//! What they write into memory that the family shares are the numbers that they have there, as the kernel's files tell
//! where these are still the family's. Elsewhere nobody can ask for them, nor they for others.

use crate::process::is_confined;
use crate::sys::{self, listing, raw};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32};

/// Whether this process, or one it descends from, was forked into another namespace.
static APART: AtomicBool = AtomicBool::new(false);
/// Its number where the family began; 0 if it is not known.
static OUTSIDE: AtomicU32 = AtomicU32::new(0);
/// What tells its threads from those of other processes whose numbers are not known.
static TAG: AtomicU32 = AtomicU32::new(0);

/// Bits of such a name with the thread, and as many more with the process.
const THREAD: u32 = (1 << 14) - 1;
const PROCESS: u32 = ((1 << 29) - 1) & !THREAD;

const OWN_STATUS: &core::ffi::CStr = c"/proc/self/status";
/// The first process of a namespace is always there: who is shown it is shown all.
const FIRST_STATUS: &core::ffi::CStr = c"/proc/1/status";

/// Whether the numbers of this process's namespace are not those of its family.
pub(crate) fn is_apart() -> bool {
    APART.load(Relaxed)
}

/// In a forked child of `parent`.
pub(crate) fn after_fork(parent: u32) {
    // A parent in another namespace cannot be seen.
    let is_first = !is_apart() && !is_confined() && raw::getppid() == 0;
    if !is_apart() && !is_first {
        return;
    }
    let parent = if is_first { parent } else { OUTSIDE.load(Relaxed) };
    APART.store(true, Relaxed);
    OUTSIDE.store(number_outside(parent).unwrap_or(0), Relaxed);
    // Nanoseconds tell processes apart well enough, and cannot be refused.
    let tag = sys::now_ns().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    TAG.store(u32::try_from(tag).unwrap_or(0) & PROCESS, Relaxed);
}

/// This process's number where its parent's is `parent`, if the kernel's files are of there.
fn number_outside(parent: u32) -> Option<u32> {
    let are_of_there = parent != 0 && !is_confined() && told(OWN_STATUS, b"PPid:") == Some(parent);
    are_of_there.then(|| told(OWN_STATUS, b"Tgid:")).flatten()
}

fn told(path: &core::ffi::CStr, word: &[u8]) -> Option<u32> {
    u32::try_from(listing::number(path, word).ok()??).ok()
}

/// Whether the kernel's files are those of where the family began.
fn sees_outside() -> bool {
    let number = OUTSIDE.load(Relaxed);
    number != 0 && !is_confined() && told(listing::STATUS, b"Tgid:") == Some(number)
}

/// The calling thread's number where the family began; or an error: what else tells it from all other threads.
pub(crate) fn thread_number() -> Result<u32, u32> {
    if sees_outside()
        && let Some(number) = told(listing::STATUS, b"Pid:")
    {
        return Ok(number);
    }
    Err(TAG.load(Relaxed) | raw::gettid() & THREAD)
}

/// Whether the thread that has this number where the family began may run again, as far as can be told.
pub(crate) fn thread_alive(number: u32) -> bool {
    // Not where processes of others are hidden.
    if !sees_outside() || told(FIRST_STATUS, b"Pid:") != Some(1) {
        return true;
    }
    match listing::thread_state(number) {
        Err(errno) => errno != libc::ENOENT && errno != libc::ESRCH,
        Ok(state) => !matches!(state, b'Z' | b'X'),
    }
}

/// Whether this is a thread of this process, by what [`thread_number`] has told it.
pub(crate) fn thread_is_ours(number: Result<u32, u32>) -> bool {
    match number {
        // Where it cannot be known, as without a free descriptor, it is not to lose what it owns.
        Ok(number) => !sees_outside() || listing::is_own_thread(number),
        Err(name) => name & PROCESS == TAG.load(Relaxed),
    }
}
