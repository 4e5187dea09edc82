//! How long a receiver that only receives leaves the lane alone once it has emptied it.
//!
//! Each look takes the cache line that the sender writes with every message, and the line of the last bytes. A receiver as fast as its sender
//! would make both wait for these lines all the time. How much is saved by looking less often depends on what a line costs from one processor
//! to the other, and on what both programs do besides: longer and shorter rests are tried now and then, on the program's own stream, and
//! kept where more comes through.

use crate::sys;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};

/// The shortest rest, in nanoseconds. Each level doubles it.
const SHORTEST_NS: u64 = 250;
/// The highest level, of 4 us.
const LONGEST: u8 = 4;
/// Rests that are measured together.
const TOGETHER: u32 = 64;
/// Measurements from one trial to the next.
const BETWEEN: u32 = 32;
/// Where so many rests take so many microseconds, it is not for them that no more comes through.
const SLOW_US: u64 = 1000;

/// What a receiver knows of its rests. Threads that receive at once may spoil a measurement, and no more than that.
#[derive(Debug)]
pub(crate) struct Rest {
    level: AtomicU8,
    /// The level that is tried, or the same.
    tried: AtomicU8,
    /// The next trial is of a shorter rest.
    shorter: AtomicBool,
    /// Rests of this measurement.
    rests: AtomicU32,
    /// Measurements until the next trial.
    left: AtomicU32,
    /// Bytes received in this measurement.
    bytes: AtomicU64,
    /// When it began, in ticks.
    began: AtomicU64,
    /// What came through at the usual level, in bytes in 2^20 ticks.
    usual: AtomicU64,
}

impl Rest {
    pub(crate) const fn new() -> Self {
        Self {
            level: AtomicU8::new(0),
            tried: AtomicU8::new(0),
            shorter: AtomicBool::new(false),
            rests: AtomicU32::new(0),
            left: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            began: AtomicU64::new(0),
            usual: AtomicU64::new(0),
        }
    }

    /// As a new one.
    pub(crate) fn reset(&self) {
        self.set_level(0);
        self.shorter.store(false, Relaxed);
        self.left.store(0, Relaxed);
        // None has begun yet: the first ends at once, and is a slow one.
        self.rests.store(TOGETHER, Relaxed);
        self.began.store(0, Relaxed);
    }

    fn set_level(&self, level: u8) {
        self.level.store(level, Relaxed);
        self.tried.store(level, Relaxed);
    }

    /// So many bytes have been received.
    #[inline(always)]
    pub(crate) fn count(&self, bytes: usize) {
        let before = self.bytes.load(Relaxed);
        self.bytes.store(before.wrapping_add(bytes as u64), Relaxed);
    }

    /// The lane has been emptied: for how many nanoseconds to leave it alone.
    #[inline]
    pub(crate) fn next_ns(&self) -> u64 {
        self.next_at(sys::ticks)
    }

    #[inline]
    fn next_at(&self, now: impl FnOnce() -> u64) -> u64 {
        let rests = self.rests.load(Relaxed);
        if rests < TOGETHER {
            self.rests.store(rests + 1, Relaxed);
        } else {
            self.end_measurement(now());
        }
        SHORTEST_NS << self.tried.load(Relaxed)
    }

    #[cold]
    fn end_measurement(&self, now: u64) {
        let took = now.wrapping_sub(self.began.load(Relaxed)).max(1);
        let rate = self.bytes.load(Relaxed).saturating_mul(1 << 20) / took;
        if took > SLOW_US * sys::ticks_per_us() {
            self.reset();
        } else {
            self.judge(rate);
        }
        self.rests.store(0, Relaxed);
        self.bytes.store(0, Relaxed);
        self.began.store(now, Relaxed);
    }

    /// So much has come through at the level that was tried.
    fn judge(&self, rate: u64) {
        let (level, tried) = (self.level.load(Relaxed), self.tried.load(Relaxed));
        let usual = self.usual.load(Relaxed);
        if tried == level {
            self.usual.store(rate, Relaxed);
            match self.left.load(Relaxed).checked_sub(1) {
                Some(left) => self.left.store(left, Relaxed),
                None => self.try_another(level),
            }
            return;
        }
        // Where it makes little difference, the shorter one.
        let kept = if tried > level {
            rate > usual.saturating_add(usual / 16)
        } else {
            rate >= usual.saturating_sub(usual / 32)
        };
        if kept {
            self.set_level(tried);
            self.usual.store(rate, Relaxed);
            self.try_another(tried);
        } else {
            self.tried.store(level, Relaxed);
            self.shorter.store(tried > level, Relaxed);
            self.left.store(BETWEEN, Relaxed);
        }
    }

    /// Begins a trial of a level beside this one.
    fn try_another(&self, level: u8) {
        let shorter = match level {
            0 => false,
            LONGEST => true,
            _ => self.shorter.load(Relaxed),
        };
        self.shorter.store(shorter, Relaxed);
        self.tried.store(if shorter { level - 1 } else { level + 1 }, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receives for so many measurements where `rate` says how many bytes come in a microsecond, by the length of the rests in nanoseconds. Answers the level.
    fn receive(rest: &Rest, clock: &mut u64, measurements: u32, rate: impl Fn(u64) -> u64) -> u8 {
        for _ in 0..measurements * (TOGETHER + 1) {
            let ns = rest.next_at(|| *clock);
            let took = ns + 100;
            rest.count(usize::try_from(rate(ns) * took / 1000).unwrap());
            *clock += took * sys::ticks_per_us() / 1000;
        }
        rest.level.load(Relaxed)
    }

    fn fresh() -> (Rest, u64) {
        let rest = Rest::new();
        rest.reset();
        (rest, 1 << 40)
    }

    #[test]
    fn rests_get_longer_as_long_as_that_brings_more() {
        let (rest, mut clock) = fresh();
        let dear_lines = |ns: u64| 10_000 - 2_000_000 / (ns + 250);
        assert_eq!(receive(&rest, &mut clock, 20, dear_lines), 3, "6 % more is too little");
        assert_eq!(receive(&rest, &mut clock, 500, dear_lines), 3);
        let (rest, mut clock) = fresh();
        assert_eq!(receive(&rest, &mut clock, 20, |ns| ns), LONGEST);
    }

    #[test]
    fn rests_that_bring_nothing_stay_short() {
        let (rest, mut clock) = fresh();
        assert_eq!(receive(&rest, &mut clock, 500, |_| 1000), 0);
        assert_eq!(receive(&rest, &mut clock, 500, |ns| 1_000_000 / ns), 0);
    }

    #[test]
    fn they_get_shorter_once_they_bring_nothing_any_more() {
        let (rest, mut clock) = fresh();
        receive(&rest, &mut clock, 20, |ns| ns);
        assert_eq!(
            receive(&rest, &mut clock, 100, |_| 500),
            0,
            "the sender has become slow"
        );
        receive(&rest, &mut clock, 20, |ns| ns);
        clock += 2 * SLOW_US * sys::ticks_per_us();
        assert_eq!(receive(&rest, &mut clock, 2, |_| 500), 0, "nothing came for a while");
    }

    #[test]
    fn trials_are_few() {
        let (rest, mut clock) = fresh();
        receive(&rest, &mut clock, 20, |_| 1000);
        let mut longer = 0;
        for _ in 0..1000 * TOGETHER {
            longer += u32::from(rest.next_at(|| clock) > SHORTEST_NS);
            rest.count(350);
            clock += 350 * sys::ticks_per_us() / 1000;
        }
        assert!(longer > 0 && longer < 40 * TOGETHER, "{longer}");
    }
}
