//! When a connection has shown itself worth a lane.
//!
//! To match a connection takes viaductd and both ends some 0.4 ms, in which TCP carries more than twenty messages. One
//! that ends soon after has paid it for nothing. So a connection is offered early only if those before it went on for
//! long enough; else it first carries as much on TCP as that price is worth.

use crate::agent::counters;
use crate::conn::{self, Conn};
use crate::process::shared;
use crate::sys;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32};
use viaduct_control::counters::slot;

/// Messages, sent and received, of the least connection that is offered.
const LEAST: u32 = 16;
/// Bytes that count as much as a message.
const LARGE: u64 = 4 << 10;
/// A connection that has gone on for so many messages after the first [`LEAST`] has been worth its price.
const PRICE: u64 = 28;
/// What is asked for doubles with each step of doubt. After so many no connection is offered that is not worth it.
const MOST: u32 = 2;

/// How often more connections than not have ended too soon. A program begins with some: many have a short life and one
/// connection.
static DOUBT: AtomicU32 = AtomicU32::new(1);
/// The same for a process that has forked since its first connection, and its children, which learn together: many
/// servers make one for each connection. Null before.
static SHARED: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());

#[inline]
fn doubt() -> &'static AtomicU32 {
    // Acquire pairs with the release in `share`.
    let shared = SHARED.load(Acquire);
    if shared.is_null() {
        &DOUBT
    } else {
        sys::shared_record(shared, 0)
    }
}

/// Before a fork: what has been learned is the child's too.
pub(crate) fn share() {
    if SHARED.load(Acquire).is_null()
        && let Ok(fresh) = shared::memory(size_of::<AtomicU32>())
    {
        let fresh = fresh.cast::<AtomicU32>();
        sys::shared_record(fresh, 0).store(DOUBT.load(Relaxed), Relaxed);
        // Only one thread forks at a time.
        SHARED.store(fresh, Release);
    }
}

/// Whether a connection that has carried so many messages, and so many bytes, is to be offered.
#[inline]
pub(crate) fn is_shown(messages: u32, bytes: u64) -> bool {
    let least = LEAST << doubt().load(Relaxed).min(MOST);
    messages >= least || bytes >= u64::from(least) * LARGE
}

/// Learns from a connection that ends, unless other processes go on with it.
pub(crate) fn learn(conn: &Conn) {
    let never = conn.flag(conn::BANNED) && conn.segment_name() == 0;
    if never || conn.flag(conn::LEFT) || !conn.alone() {
        return;
    }
    let by_lane = counters::slot_of(conn).map_or(0, |words| {
        let [sent, received] = [slot::FAST_BYTES_SENT, slot::FAST_BYTES_RECEIVED].map(|word| words[word].load(Relaxed));
        sent.saturating_add(received)
    });
    let messages = carried(conn.messages.load(Relaxed), conn.volume.load(Relaxed), by_lane);
    if messages >= u64::from(LEAST) + PRICE {
        note(true);
    } else if conn.offered_in.load(Relaxed) != 0 {
        note(false);
    }
}

/// The messages of a connection. On a lane they are not counted: its bytes are taken for messages as large as the
/// `messages` of `bytes` on TCP.
fn carried(messages: u32, bytes: u64, by_lane: u64) -> u64 {
    let size = (bytes / u64::from(messages.max(1))).clamp(1, LARGE);
    let counted = u64::from(messages).max(bytes / LARGE);
    counted.saturating_add(by_lane / size)
}

fn note(worth_it: bool) {
    // Two that learn at once may count as one.
    let doubt = doubt();
    let known = doubt.load(Relaxed);
    let known = if worth_it {
        known.saturating_sub(1)
    } else {
        known.saturating_add(1).min(MOST)
    };
    doubt.store(known, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_before_tells_how_much_is_asked_for() {
        DOUBT.store(1, Relaxed);
        assert!(is_shown(32, 0) && is_shown(0, 128 << 10) && !is_shown(31, (128 << 10) - 1));
        note(true);
        note(true);
        assert!(is_shown(16, 0) && is_shown(0, 64 << 10) && !is_shown(15, (64 << 10) - 1));
        (0..20).for_each(|_| note(false));
        assert!(is_shown(64, 0) && !is_shown(63, 0));
        // With the children of a fork.
        share();
        assert!(is_shown(64, 0) && !is_shown(63, 0));
        note(true);
        assert!(is_shown(32, 0) && !is_shown(31, 0));
        assert_eq!(DOUBT.load(Relaxed), MOST, "only what is shared goes on");
    }

    #[test]
    fn messages_on_a_lane_are_counted_by_their_size() {
        // A database's client: twenty requests, then twice as many by lane.
        assert_eq!(carried(40, 4000, 0), 40);
        assert_eq!(carried(40, 4000, 8000), 40 + 80);
        // A download: few calls, many bytes.
        assert_eq!(carried(10, 10 << 16, 0), 160);
        assert_eq!(carried(10, 10 << 16, 1 << 20), 160 + 256);
        // Accelerated from the first byte.
        assert_eq!(carried(0, 0, u64::MAX), u64::MAX);
    }
}
