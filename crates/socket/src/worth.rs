//! When a connection has shown itself worth a lane.
//!
//! To match a connection takes viaductd and both ends some 0.4 ms, as long as some 24 messages take on TCP. One that ends soon after has paid it for
//! nothing. So a connection first carries as much on TCP as would be worth that price, if those before it tell that most do not go on
//! for long; where most do, it is offered as soon as it has gone beyond a single request.

use crate::conn::Conn;
use crate::counters;
use crate::sys::{self, raw};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32};
use viaduct_control::counters::slot;

/// Messages, sent and received, of the least connection that is offered.
const LEAST: u32 = 16;
/// Bytes that count as much as a message.
const LARGE: u64 = 4 << 10;
/// A connection that has gone on for so many messages after the first [`LEAST`] has been worth its price.
const PRICE: u64 = 32;
/// What is asked for doubles with each step of doubt, so often at most.
const MOST: u32 = 6;

/// How often more connections than not have ended too soon. A program begins with some: many have a short life and one connection.
static DOUBT: AtomicU32 = AtomicU32::new(1);
/// The same for a process that has forked, and its children, which learn together: many servers make one for each connection. Null before.
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
        && let Ok(fresh) = raw::anonymous_shared(size_of::<AtomicU32>())
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
    let (messages, bytes) = (conn.messages.load(Relaxed), conn.volume.load(Relaxed));
    if messages < LEAST && bytes < u64::from(LEAST) * LARGE {
        // It would never have been offered.
        return;
    }
    if !conn.alone() {
        return;
    }
    let carried = counters::slot_of(conn).map_or(0, |words| {
        let [sent, received] = [slot::BYTES_SENT, slot::BYTES_RECEIVED].map(|word| words[word].load(Relaxed));
        sent.saturating_add(received)
    });
    if went_on_for(messages, bytes, carried) >= PRICE {
        note(true);
    } else if is_shown(messages, bytes) {
        note(false);
    }
}

/// Messages after the first [`LEAST`], of a connection that has `carried` so many bytes. Once it has a lane only bytes are counted: they are taken for
/// messages as large as the `messages` of `bytes` before.
fn went_on_for(messages: u32, bytes: u64, carried: u64) -> u64 {
    let size = (bytes / u64::from(messages.max(1))).clamp(1, LARGE);
    let counted = u64::from(messages).max(bytes / LARGE);
    let uncounted = carried.saturating_sub(bytes) / size;
    counted.saturating_add(uncounted).saturating_sub(LEAST.into())
}

fn note(worth_it: bool) {
    // Two that learn at once may count as one.
    let doubt = doubt();
    let known = doubt.load(Relaxed);
    let known = if worth_it {
        known.saturating_sub(1)
    } else {
        (known + 1).min(MOST)
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
        assert!(is_shown(1024, 0) && !is_shown(1023, 0));
        // A child knows it too.
        share();
        assert!(is_shown(1024, 0) && !is_shown(1023, 0));
        (0..6).for_each(|_| note(true));
        assert!(is_shown(16, 0));
    }

    #[test]
    fn messages_on_a_lane_are_counted_by_their_size() {
        // A database's client: twenty requests, then twice as many by lane.
        assert_eq!(went_on_for(40, 4000, 4000), 40 - 16);
        assert_eq!(went_on_for(40, 4000, 12_000), 40 + 80 - 16);
        // A download: few calls, many bytes.
        assert_eq!(went_on_for(10, 10 << 16, 10 << 16), 160 - 16);
        assert_eq!(went_on_for(10, 10 << 16, (10 << 16) + (1 << 20)), 160 + 256 - 16);
        // What was asked to be sent may not have been.
        assert_eq!(went_on_for(20, 4000, 0), 20 - 16);
        assert_eq!(went_on_for(0, 0, u64::MAX), u64::MAX - 16);
    }
}
