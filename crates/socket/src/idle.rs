//! Memory that lanes have grown to, given back once nothing has moved on them for a while.
//!
//! Only who sends on a lane may make it smaller, and no thread is ours. So whoever is about to sleep in a wait looks after the lanes that the
//! process sends on, and sleeps no longer than until the next look is due. Where nothing has grown since all lanes were found small, both cost
//! one load.

use crate::conn::Phase;
use crate::{records, sys};
use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use core::sync::atomic::{AtomicU32, AtomicU64};
use viaduct_channel::growths;

/// A lane on which nothing has moved from one look to the next, so many nanoseconds later, is idle.
const IDLE_NS: u64 = 2_000_000_000;
/// Looks that find nothing to do are further and further apart: what is left may belong to a peer that reads nothing.
const SELDOM_NS: u64 = 32 * IDLE_NS;

/// [`growths`] when all lanes were found small.
static SMALL: AtomicU32 = AtomicU32::new(0);
/// The same at the last look.
static LOOKED: AtomicU32 = AtomicU32::new(0);
static NEXT_NS: AtomicU64 = AtomicU64::new(0);
static PERIOD_NS: AtomicU64 = AtomicU64::new(IDLE_NS);

/// The caller is about to sleep: gives back what is due, and answers for how many nanoseconds at most the caller is to sleep before it comes
/// here again; `None`: as long as it likes.
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
    let next = NEXT_NS.load(Relaxed);
    if next > now {
        return Some(next - now);
    }
    let new = LOOKED.swap(grown, Relaxed) != grown;
    let period = if new { IDLE_NS } else { PERIOD_NS.load(Relaxed) };
    if NEXT_NS
        .compare_exchange(next, now.saturating_add(period), AcqRel, Relaxed)
        .is_err()
    {
        // Another thread looks.
        return Some(period);
    }
    let (mut left, mut done) = (false, false);
    for conn in records::all().filter(|conn| conn.phase() == Phase::Attached) {
        // Who owns it is not idle.
        let Some(guard) = conn.try_own_send() else {
            left = true;
            continue;
        };
        let Some(lane) = conn.segment(&guard).map(|segment| segment.sender(conn.side())) else {
            continue;
        };
        if lane.is_grown() {
            let tail = lane.tail();
            let idle = conn.idle_at.swap(tail, Relaxed) == tail;
            let shrunk = idle && lane.shrink();
            done |= shrunk;
            left |= !shrunk;
        }
    }
    let period = if new || done {
        IDLE_NS
    } else {
        (period * 2).min(SELDOM_NS)
    };
    PERIOD_NS.store(period, Relaxed);
    if left {
        return Some(period);
    }
    SMALL.store(grown, Relaxed);
    None
}
