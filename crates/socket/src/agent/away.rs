//! How long viaductd is left alone after it could not be reached.
//!
//! Where nobody listens it is about as long as nobody has: a viaductd that is restarted listens again after some
//! 100 ms, and one that nobody starts is looked for once a second. Whoever listens and refuses, or holds programs up,
//! is asked seldom from the first time on.

use crate::sys;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};
use viaduct_control::Reason;

const SHORTEST_NS: u64 = 10_000_000;
const LONGEST_NS: u64 = 1_000_000_000;
const REFUSED_NS: u64 = 500_000_000;

/// Written to by the owner of the dealings with viaductd alone.
static RETRY_AT_NS: AtomicU64 = AtomicU64::new(0);
/// The pause before that; 0 if nobody has been missed yet.
static PAUSE_NS: AtomicU64 = AtomicU64::new(0);
static LAST_REFUSAL: AtomicU32 = AtomicU32::new(Reason::NoDaemon as u32);

/// Why viaductd is left alone now; nothing if it may be asked.
pub(super) fn last_refusal() -> Option<Reason> {
    (sys::now_ns() < asks_again_at()).then(|| {
        u16::try_from(LAST_REFUSAL.load(Relaxed))
            .ok()
            .and_then(Reason::from_number)
            .unwrap_or(Reason::NoDaemon)
    })
}

/// It could not be reached; `listens`: somebody has taken the call, and hung up.
pub(super) fn note(reason: Reason, listens: bool) {
    let is_missing = reason == Reason::NoDaemon && !listens;
    let pause = if is_missing {
        (2 * PAUSE_NS.load(Relaxed)).clamp(SHORTEST_NS, LONGEST_NS)
    } else {
        REFUSED_NS
    };
    PAUSE_NS.store(if is_missing { pause } else { 0 }, Relaxed);
    LAST_REFUSAL.store(reason as u32, Relaxed);
    RETRY_AT_NS.store(sys::now_ns() + pause, Relaxed);
}

/// It has been reached and has left, or was never asked by this process.
pub(super) fn forget() {
    PAUSE_NS.store(0, Relaxed);
    RETRY_AT_NS.store(0, Relaxed);
}

/// When this process may ask again.
pub(crate) fn asks_again_at() -> u64 {
    RETRY_AT_NS.load(Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::OWNER;
    use crate::lock;

    /// The pause that follows `reason`, in milliseconds.
    fn pause(reason: Reason, listens: bool) -> u64 {
        let before = sys::now_ns();
        note(reason, listens);
        assert_eq!(last_refusal(), Some(reason));
        (asks_again_at() - before) / 1_000_000
    }

    #[test]
    fn who_has_just_gone_is_looked_for_at_once_and_who_stays_away_seldom() {
        let _owner = lock::acquire(&OWNER).unwrap();
        forget();
        assert_eq!(last_refusal(), None);
        let mut gone = 0;
        for round in 0..12 {
            let next = pause(Reason::NoDaemon, false);
            // Somewhat later on a busy machine.
            assert!(next <= gone.min(1000) + 500, "round {round}: {next} ms after {gone} ms");
            assert!(
                next >= 10.max(gone).min(1000),
                "round {round}: {next} ms after {gone} ms"
            );
            gone += next;
        }
        forget();
        assert!(pause(Reason::NoDaemon, false) < 500);
        forget();
        // A slow one has held a thread up for as long as it may.
        assert!(pause(Reason::SlowDaemon, true) >= 500);
        // One that turns this process away would do so again.
        assert!(pause(Reason::NoDaemon, true) >= 500);
        assert!(pause(Reason::NoDaemon, false) < 500);
        forget();
    }
}
