//! Which kind of stores puts long messages on a lane. Where the two ends run on processors that share no cache, and on
//! some that do, a receiver reads bytes faster when the sender's stores went past the sender's cache; elsewhere slower.
//! No description of the machine tells which, and threads move. So both kinds are timed now and then, on the program's
//! own bytes.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU8, AtomicU64};

use crate::sys;
use viaduct_channel::{Geometry, Stores};

/// Shorter messages are left in the cache, where their receiver most likely finds them, and are not counted.
pub(crate) const LONG: usize = 16 << 10;
/// Bytes of a step of a trial: as many as a lane holds, so that what is timed is not what the step before has left on
/// it.
const STEP: u64 = Geometry::DEFAULT.capacity() as u64;
/// Bytes before the first trial. Short transfers are not worth one.
const FIRST: u64 = STEP;
/// Bytes between trials.
const BETWEEN: u64 = 512 * STEP;
/// Kinds take turns, each first unmeasured, then measured.
const STEPS: u8 = 8;
/// No trial is on.
const REST: u8 = STEPS;

/// What a sender knows of its long messages. Used by who owns the sending direction.
#[derive(Debug)]
pub(crate) struct Choice {
    /// 1: the usual kind goes past the cache.
    past: AtomicU8,
    step: AtomicU8,
    /// Bytes that remain of the step.
    left: AtomicU64,
    began_ns: AtomicU64,
    /// Shortest measured step of the usual kind and of the other in this trial, in nanoseconds; 0: none yet.
    shortest_ns: [AtomicU64; 2],
}

impl Choice {
    /// To be reset before it is used.
    pub(crate) const fn unused() -> Self {
        Self {
            past: AtomicU8::new(0),
            step: AtomicU8::new(0),
            left: AtomicU64::new(0),
            began_ns: AtomicU64::new(0),
            shortest_ns: [const { AtomicU64::new(0) }; 2],
        }
    }

    pub(crate) fn reset(&self) {
        self.past.store(0, Relaxed);
        self.rest(FIRST);
    }

    /// The stores for what is sent next.
    pub(crate) fn stores(&self) -> Stores {
        let usual = self.past.load(Relaxed);
        let other = match self.step.load(Relaxed) {
            REST.. => 0,
            step => kind(step),
        };
        if (usual ^ other) == 0 {
            Stores::Cached
        } else {
            Stores::PastCache
        }
    }

    /// So many bytes have been put on the lane with these stores.
    #[inline]
    pub(crate) fn count(&self, bytes: usize) {
        self.count_at(bytes as u64, sys::now_ns);
    }

    #[inline]
    fn count_at(&self, bytes: u64, now_ns: impl FnOnce() -> u64) {
        match self.left.load(Relaxed).checked_sub(bytes) {
            Some(left @ 1..) => self.left.store(left, Relaxed),
            _ => self.step_ends(now_ns()),
        }
    }

    #[cold]
    fn step_ends(&self, now_ns: u64) {
        let step = self.step.load(Relaxed);
        if step >= REST {
            self.shortest_ns.iter().for_each(|shortest| shortest.store(0, Relaxed));
            self.begin(0, now_ns);
            return;
        }
        if step % 2 == 1 {
            let shortest = &self.shortest_ns[usize::from(kind(step))];
            let took = now_ns.saturating_sub(self.began_ns.load(Relaxed)).max(1);
            let before = shortest.load(Relaxed);
            shortest.store(if before == 0 { took } else { before.min(took) }, Relaxed);
        }
        if step + 1 < STEPS {
            self.begin(step + 1, now_ns);
            return;
        }
        let [usual, other] = [0, 1].map(|kind: usize| self.shortest_ns[kind].load(Relaxed));
        // Kept where the difference is small, so that chance does not change it.
        if other.saturating_mul(10) < usual.saturating_mul(9) {
            self.past.store(self.past.load(Relaxed) ^ 1, Relaxed);
        }
        self.rest(BETWEEN);
    }

    fn begin(&self, step: u8, now_ns: u64) {
        self.step.store(step, Relaxed);
        self.left.store(STEP, Relaxed);
        self.began_ns.store(now_ns, Relaxed);
    }

    fn rest(&self, bytes: u64) {
        self.step.store(REST, Relaxed);
        self.left.store(bytes, Relaxed);
    }
}

/// The kind that a step of a trial uses: 0 the usual one, 1 the other.
const fn kind(step: u8) -> u8 {
    step / 2 % 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun() -> Choice {
        let choice = Choice::unused();
        choice.reset();
        choice
    }

    /// Sends `bytes` in pieces on a machine where a step takes so many nanoseconds with each kind. Answers how many
    /// pieces went past the cache.
    fn send(choice: &Choice, clock: &mut u64, bytes: u64, cached_ns: u64, past_ns: u64) -> u64 {
        let piece = STEP / 16;
        let mut past = 0;
        for _ in 0..bytes / piece {
            let stores = choice.stores();
            past += u64::from(stores == Stores::PastCache);
            *clock += match stores {
                Stores::Cached => cached_ns,
                Stores::PastCache => past_ns,
            } / 16;
            choice.count_at(piece, || *clock);
        }
        past
    }

    #[test]
    fn the_faster_kind_is_used_and_given_up_when_it_no_longer_is() {
        let (choice, mut clock) = (begun(), 0);
        let trial = u64::from(STEPS) * STEP;
        assert_eq!(
            send(&choice, &mut clock, FIRST, 800, 160),
            0,
            "short transfers make no trial"
        );
        assert_eq!(send(&choice, &mut clock, trial, 800, 160), 64, "half of a trial");
        assert_eq!(choice.stores(), Stores::PastCache);
        assert_eq!(send(&choice, &mut clock, BETWEEN, 800, 160), BETWEEN / STEP * 16);
        assert_eq!(send(&choice, &mut clock, trial, 160, 800), 64);
        assert_eq!(choice.stores(), Stores::Cached);
        choice.reset();
        assert_eq!(send(&choice, &mut clock, FIRST, 160, 800), 0);
    }

    #[test]
    fn small_differences_change_nothing() {
        let (choice, mut clock) = (begun(), 0);
        let trial = u64::from(STEPS) * STEP;
        send(&choice, &mut clock, FIRST + trial, 160, 150);
        assert_eq!(choice.stores(), Stores::Cached);
        send(&choice, &mut clock, BETWEEN + trial, 320, 160);
        assert_eq!(choice.stores(), Stores::PastCache);
        send(&choice, &mut clock, BETWEEN + trial, 150, 160);
        assert_eq!(choice.stores(), Stores::PastCache);
    }

    #[test]
    fn a_pause_in_one_step_does_not_decide() {
        let (choice, mut clock) = (begun(), 0);
        send(&choice, &mut clock, FIRST + STEP, 160, 320);
        // The program was busy with something else within a measured step of the usual kind.
        clock += 1_000_000;
        send(&choice, &mut clock, u64::from(STEPS - 1) * STEP, 160, 320);
        assert_eq!(choice.stores(), Stores::Cached);
    }
}
