//! Memory that lanes have grown to, given back once nothing has moved on them for a while.
//!
//! Only who sends on a lane may make it smaller, and no thread is ours. So whoever is about to sleep in a wait looks
//! after the lanes that the process sends on, and sleeps no longer than until the next look is due. Where nothing has
//! grown since all lanes were found small, that costs two loads. What another process has grown that shares an end is
//! for it to give back.

use crate::conn::{Conn, Phase, records};
use crate::sys::{self, raw};
use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use viaduct_channel::growths;

/// A lane on which nothing has moved from one look to the next, so many nanoseconds later, is idle.
const IDLE_NS: u64 = 2_000_000_000;
/// Looks that find nothing to do are further and further apart: what is left may belong to a peer that reads nothing.
const SELDOM_NS: u64 = 32 * IDLE_NS;
/// So long goes one look on without a sleep in between,
const MOST_NS: u64 = 100_000;
/// and so long is that sleep.
const SOON_NS: u64 = 1_000_000;

/// [`growths`] when all lanes were found small.
static SMALL: AtomicU32 = AtomicU32::new(0);
/// The same at the last look.
static LOOKED: AtomicU32 = AtomicU32::new(0);
static NEXT_NS: AtomicU64 = AtomicU64::new(0);
static PERIOD_NS: AtomicU64 = AtomicU64::new(IDLE_NS);

/// The record at which the next look goes on; 0: a look begins.
static GOES_ON_AT: AtomicUsize = AtomicUsize::new(0);
/// Of the look that goes on: whether lanes were left, and whether some were given back.
static LEFT: AtomicBool = AtomicBool::new(false);
static DONE: AtomicBool = AtomicBool::new(false);

/// The caller is about to sleep: gives back what is due, and answers for how many nanoseconds at most the caller is to
/// sleep before it comes here again; `None`: as long as it likes. Takes a millisecond at most. Nothing may be owned.
#[inline]
pub(crate) fn tend() -> Option<u64> {
    let grown = growths();
    if grown == SMALL.load(Relaxed) {
        return None;
    }
    tend_at(sys::now_ns(), grown)
}

#[cold]
fn tend_at(now: u64, grown: u32) -> Option<u64> {
    let known = NEXT_NS.load(Relaxed);
    let soon = now.saturating_add(IDLE_NS);
    // What has grown since the last look does not wait for a seldom one.
    let new = LOOKED.load(Relaxed) != grown;
    let next = if new { known.min(soon) } else { known };
    if next > now {
        NEXT_NS.fetch_min(next, Relaxed);
        return Some(next - now);
    }
    // Whoever comes meanwhile leaves it to this thread.
    if NEXT_NS.compare_exchange(known, soon, AcqRel, Relaxed).is_err() {
        return Some(IDLE_NS);
    }
    // A handler that interrupted this would find connections owned that the program is not using.
    let masked = raw::block_signals();
    let ended = look(now);
    raw::restore_signals(masked);
    let wait = match ended {
        false => SOON_NS,
        true => {
            let left = LEFT.swap(false, Relaxed);
            let done = DONE.swap(false, Relaxed);
            let period = match LOOKED.swap(grown, Relaxed) == grown && !done {
                true => (PERIOD_NS.load(Relaxed) * 2).min(SELDOM_NS),
                false => IDLE_NS,
            };
            PERIOD_NS.store(period, Relaxed);
            if !left {
                SMALL.store(grown, Relaxed);
                return None;
            }
            period
        }
    };
    NEXT_NS.store(now.saturating_add(wait), Relaxed);
    Some(wait)
}

/// Looks at connections until one has been made smaller or enough time has passed; true at the last.
fn look(now: u64) -> bool {
    let from = GOES_ON_AT.load(Relaxed);
    let mut seen = 0_u32;
    for conn in records::all().skip_while(|conn| conn.index() < from) {
        let shrunk = conn.phase() == Phase::Attached && tend_to(conn);
        seen += 1;
        if shrunk || seen.is_multiple_of(64) && sys::now_ns().saturating_sub(now) > MOST_NS {
            GOES_ON_AT.store(conn.index() + 1, Relaxed);
            return false;
        }
    }
    GOES_ON_AT.store(0, Relaxed);
    true
}

/// Gives back what one connection's lane has grown to, if it is idle; true if so.
fn tend_to(conn: &'static Conn) -> bool {
    let id = conn.id();
    let Some(guard) = conn.try_own_send() else {
        // Who owns it is not idle.
        LEFT.store(true, Relaxed);
        return false;
    };
    // It may have been closed, and the record be another connection's, whose direction this is not.
    if id == 0 || conn.id() != id {
        return false;
    }
    let Some(lane) = conn.segment(&guard).map(|segment| segment.sender(conn.side())) else {
        return false;
    };
    if !lane.is_grown() {
        return false;
    }
    let tail = lane.tail();
    let shrunk = conn.idle_at.swap(tail, Relaxed) == tail && lane.shrink();
    if shrunk {
        DONE.store(true, Relaxed);
    } else {
        LEFT.store(true, Relaxed);
    }
    shrunk
}
