//! How long a receiver that only receives leaves the lane alone once it has emptied it.
//!
//! Each look takes the cache line that the sender writes with every message, and the line of the last bytes. A receiver
//! as fast as its sender would make both wait for these lines all the time. How much is saved by looking less often
//! depends on what a line costs from one processor to the other, and on what both programs do besides: longer and
//! shorter rests are tried now and then, on the program's own stream, and kept where more comes through.
//!
//! The shortest rest follows a look that found nothing, longer ones come before the look where a call has one buffer: a
//! receiver that is faster than its sender would else look again and again, each time at fewer bytes, before it finds
//! none.

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
const BETWEEN: u32 = 128;
/// How often a trial compares another level with the usual one: two measurements of the same differ by a tenth now and
/// then.
const PAIRS: u32 = 5;
/// By so many more comparisons a longer rest must do better than the usual one to be taken,
const MAJORITY: u32 = 3;
/// and by so many than a shorter one to be kept.
const MAJORITY_TO_STAY: u32 = 2;
/// What differs by less than this part makes no difference.
const PART: u64 = 32;
/// Where so many rests take so many microseconds, it is not for them that no more comes through,
const SLOW_US: u64 = 1000;
/// unless each of them brings so many receives: then the lane has not been empty for a while.
const MANY: u64 = 4;
/// Receives are counted together with their bytes, in units of this.
const RECEIVE: u64 = 1 << 40;

/// What a receiver knows of its rests. Threads that receive at once may spoil a measurement, and no more than that.
#[derive(Debug)]
pub(crate) struct Rest {
    level: AtomicU8,
    /// The level of this measurement.
    now: AtomicU8,
    /// A trial is of a shorter rest.
    shorter: AtomicBool,
    /// Rests of this measurement.
    rests: AtomicU32,
    /// Measurements since the last trial, with those of this one.
    step: AtomicU32,
    /// Comparisons of this trial in which the usual level did better.
    better: AtomicU32,
    /// Those in which it did worse.
    worse: AtomicU32,
    /// Bytes received in this measurement, and receives.
    volume: AtomicU64,
    /// When it began, in ticks.
    began: AtomicU64,
    /// What came through at the usual level, in bytes in 2^20 ticks.
    usual: AtomicU64,
}

impl Rest {
    pub(crate) const fn new() -> Self {
        Self {
            level: AtomicU8::new(0),
            now: AtomicU8::new(0),
            shorter: AtomicBool::new(false),
            rests: AtomicU32::new(0),
            step: AtomicU32::new(0),
            better: AtomicU32::new(0),
            worse: AtomicU32::new(0),
            volume: AtomicU64::new(0),
            began: AtomicU64::new(0),
            usual: AtomicU64::new(0),
        }
    }

    /// As a new one.
    pub(crate) fn reset(&self) {
        self.go_on(0, BETWEEN);
        self.shorter.store(false, Relaxed);
        // None has begun yet: the first ends at once, and says nothing.
        self.rests.store(TOGETHER, Relaxed);
        self.volume.store(0, Relaxed);
        self.began.store(0, Relaxed);
    }

    /// At this level; so many measurements count as done since the last trial.
    fn go_on(&self, level: u8, step: u32) {
        self.level.store(level, Relaxed);
        self.now.store(level, Relaxed);
        self.step.store(step, Relaxed);
        self.better.store(0, Relaxed);
        self.worse.store(0, Relaxed);
    }

    /// So many bytes have been received at once.
    #[inline(always)]
    pub(crate) fn count(&self, bytes: usize) {
        let before = self.volume.load(Relaxed);
        self.volume.store(before.wrapping_add(bytes as u64 + RECEIVE), Relaxed);
    }

    /// Whether to rest before the first look.
    #[inline(always)]
    pub(crate) fn comes_first(&self) -> bool {
        self.now.load(Relaxed) != 0
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
        SHORTEST_NS << self.now.load(Relaxed)
    }

    #[cold]
    fn end_measurement(&self, now: u64) {
        let took = now.wrapping_sub(self.began.load(Relaxed)).max(1);
        let volume = self.volume.load(Relaxed);
        let rate = (volume % RECEIVE).saturating_mul(1 << 20) / took;
        let is_slow = took > SLOW_US * sys::ticks_per_us() && volume / RECEIVE < MANY * u64::from(TOGETHER);
        if is_slow || self.began.load(Relaxed) == 0 {
            self.reset();
        } else {
            self.judge(rate);
        }
        self.rests.store(0, Relaxed);
        self.volume.store(0, Relaxed);
        self.began.store(now, Relaxed);
    }

    /// So much has come through in this measurement.
    fn judge(&self, rate: u64) {
        let step = self.step.load(Relaxed);
        self.step.store(step.saturating_add(1), Relaxed);
        let Some(of_trial) = step.checked_sub(BETWEEN) else {
            return;
        };
        let level = self.level.load(Relaxed);
        if of_trial.is_multiple_of(2) {
            self.usual.store(rate, Relaxed);
            self.now.store(self.other(level), Relaxed);
            return;
        }
        let usual = self.usual.load(Relaxed);
        if rate > usual.saturating_add(usual / PART) {
            self.worse.fetch_add(1, Relaxed);
        } else if rate < usual.saturating_sub(usual / PART) {
            self.better.fetch_add(1, Relaxed);
        }
        self.now.store(level, Relaxed);
        if of_trial / 2 + 1 >= PAIRS {
            self.decide(level);
        }
    }

    fn decide(&self, level: u8) {
        let other = self.other(level);
        // Where it makes little difference, the shorter one.
        let (better, worse) = (self.better.load(Relaxed), self.worse.load(Relaxed));
        let kept = if other > level {
            worse >= better + MAJORITY
        } else {
            better < worse + MAJORITY_TO_STAY
        };
        self.shorter.store((other < level) == kept, Relaxed);
        if kept {
            self.go_on(other, BETWEEN);
        } else {
            self.go_on(level, 0);
        }
    }

    /// The level that is tried beside this one.
    fn other(&self, level: u8) -> u8 {
        match level {
            0 => 1,
            LONGEST => LONGEST - 1,
            _ if self.shorter.load(Relaxed) => level - 1,
            _ => level + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receives for so many measurements where `rate` says how many bytes come in a microsecond, by the length of the
    /// rests in nanoseconds. Answers the level.
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
        let dear_lines = |ns: u64| 10_000 - 1_000_000 / (ns + 250);
        assert_eq!(receive(&rest, &mut clock, 50, dear_lines), 3, "2 % more are too little");
        assert!(rest.comes_first());
        assert_eq!(receive(&rest, &mut clock, 500, dear_lines), 3);
        let (rest, mut clock) = fresh();
        assert_eq!(receive(&rest, &mut clock, 50, |ns| ns), LONGEST);
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
        receive(&rest, &mut clock, 50, |ns| ns);
        assert_eq!(
            receive(&rest, &mut clock, 250, |_| 500),
            0,
            "the sender has become slow"
        );
        receive(&rest, &mut clock, 50, |ns| ns);
        clock += 2 * SLOW_US * sys::ticks_per_us();
        assert_eq!(receive(&rest, &mut clock, 2, |_| 500), 0, "nothing came for a while");
    }

    #[test]
    fn a_lane_that_was_not_empty_for_a_while_changes_nothing() {
        let (rest, mut clock) = fresh();
        assert_eq!(receive(&rest, &mut clock, 50, |ns| ns), LONGEST);
        clock += 2 * SLOW_US * sys::ticks_per_us();
        for _ in 0..MANY * u64::from(TOGETHER) {
            rest.count(1000);
        }
        assert_eq!(receive(&rest, &mut clock, 2, |ns| ns), LONGEST);
    }

    #[test]
    fn what_was_received_before_the_first_rest_is_no_measurement() {
        let (rest, clock) = fresh();
        for _ in 0..MANY * u64::from(TOGETHER) {
            rest.count(1000);
        }
        rest.next_at(|| clock);
        assert_eq!(rest.usual.load(Relaxed), 0);
        assert_eq!(rest.step.load(Relaxed), BETWEEN, "the trial has not begun");
        assert!(!rest.comes_first());
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
