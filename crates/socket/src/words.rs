//! Where the ownership words of connections live: in anonymous memory that a process and its forked children share.

use crate::lock::{Locks, SEARCHED};
use crate::recent::Recent;
use crate::sys::{self, raw};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32};

/// The region of this process's words; null before the first record and after fork.
static REGION: AtomicPtr<Locks> = AtomicPtr::new(core::ptr::null_mut());
/// Where to look first for free words.
static HINT: AtomicU32 = AtomicU32::new(0);
/// Words that were given up lately.
static FREED: Recent = Recent::new();

/// Takes words that no process of the family holds, of `count` in all; `None` if there are none or there is no memory for them.
pub(crate) fn claim(count: usize) -> Option<&'static Locks> {
    let mut region = REGION.load(Acquire);
    if region.is_null() {
        let fresh = raw::anonymous_shared(count * size_of::<Locks>()).ok()?.cast::<Locks>();
        // Release pairs with the acquire above. A loser's region is never used; it costs address space only.
        region = match REGION.compare_exchange(core::ptr::null_mut(), fresh, Release, Acquire) {
            Ok(_) => fresh,
            Err(winner) => winner,
        };
    }
    let known = |number: u32| sys::shared_record(region, (number as usize - 1) % count);
    if let Some(locks) = FREED.take().map(known).filter(|locks| take(locks)) {
        return Some(locks);
    }
    let from = HINT.fetch_add(1, Relaxed) as usize;
    (0..count)
        .map(|step| sys::shared_record(region, (from + step) % count))
        .find(|locks| take(locks))
}

/// Takes words if no process holds them.
fn take(locks: &Locks) -> bool {
    if locks.holders.load(Relaxed) != 0 || locks.holders.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
        return false;
    }
    // The words are free already, or held for a moment by a thread that came too late for the last connection.
    crate::search::area::release(&locks.area);
    locks.forget_sleepers();
    let _ = locks.receive.compare_exchange(SEARCHED, 0, Relaxed, Relaxed);
    true
}

/// The connection that had these words has ended.
pub(crate) fn give_up(locks: &Locks) {
    let from = REGION.load(Relaxed).addr();
    let index = core::ptr::from_ref(locks).addr().wrapping_sub(from) / size_of::<Locks>();
    // Words of a connection from before a fork are in the parent's region.
    if let Ok(number) = u32::try_from(index + 1) {
        FREED.put(number);
    }
}

/// In a forked child: it has a region of its own for new connections.
pub(crate) fn after_fork() {
    REGION.store(core::ptr::null_mut(), Relaxed);
    while FREED.take().is_some() {}
}
