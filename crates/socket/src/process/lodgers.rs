//! Children that run on this process's memory, until they become other programs: as `vfork` and `posix_spawn` make
//! them, by `clone`.
//!
//! They find its records and must leave them alone: what such a child closes, copies or opens in a table of descriptors
//! of its own changes nothing for its parent.

use crate::process;
use crate::sys::threads;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

/// There may be some.
const ANY: u32 = 1;
/// With tables of descriptors of their own.
const OWN_TABLE: u32 = 2;

static LODGERS: AtomicU32 = AtomicU32::new(0);

/// The program makes a child, or a thread, with these flags of `clone`.
pub fn expect(flags: u64) {
    let has = |flag: i32| flags & u64::from(flag.cast_unsigned()) != 0;
    if has(libc::CLONE_VM) {
        threads::several();
    }
    if has(libc::CLONE_VM) && !has(libc::CLONE_THREAD) {
        // So that who the records belong to is known, and forked children begin without.
        process::start_with_sockets();
        LODGERS.fetch_or(if has(libc::CLONE_FILES) { ANY } else { ANY | OWN_TABLE }, Relaxed);
    }
}

/// Whether the caller is one.
pub(crate) fn is_one() -> bool {
    is_of(ANY)
}

/// Whether the caller is one whose descriptors are not its parent's.
#[inline]
pub(crate) fn has_own_table() -> bool {
    is_of(OWN_TABLE)
}

#[inline]
fn is_of(kind: u32) -> bool {
    // The system call only where there is need: programs forbid themselves some.
    LODGERS.load(Relaxed) & kind != 0 && !process::owns_records()
}

/// In a forked child, which has memory of its own.
pub(crate) fn after_fork() {
    LODGERS.store(0, Relaxed);
}
