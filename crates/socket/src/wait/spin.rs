//! How long a waiter polls before it sleeps.
//!
//! A thread keeps a budget of twice what the waits take that polling ends, and halves it where fewer than every third
//! is one. Between short bursts it gives the core up: where both ends were put on one core, that is what lets the peer
//! run at all. A yield that took long let somebody else run; when that happens again and again without anything
//! arriving, there are more runnable threads than cores and the waiter sleeps. One that took as long as a turn of a
//! busy program ends polling for a while. `--spin always` goes by none of this: each wait polls for the longest budget.

use crate::agent::policy;
use crate::sys::{self, raw};
use core::cell::Cell;
use viaduct_control::policy::SpinPolicy;

/// The budget never exceeds this many microseconds.
const LONGEST_US: u32 = 100;
/// A wait that polling did not end shrinks nothing if one was ended by it before, and so many of them at most: a budget
/// of less than most waits take is worth nothing.
const FORGIVEN_MOST: u32 = 4;
/// With a spent budget, one wait in this many tries again.
const PROBE_EVERY: u32 = 16;
/// A core that nobody wanted when it was last given up is given up after so many microseconds of looking,
const BURST_US: u64 = 1;
/// and after so many where nobody has wanted it for a while: giving it up takes a good part of the shorter time by
/// itself.
const LONG_BURST_US: u64 = 8;
/// Glances from one reading of the clock to the next.
const LOOKS: u32 = 4;
/// A yield longer than this let somebody else run.
const CONTENDED_US: u64 = 2;
/// So many contended yields in one wait are enough.
const CONTENDED_MOST: u32 = 2;
/// A yield longer than this gave a whole turn to somebody with work of its own.
const LOST_US: u64 = 400;
/// More than this is not a turn that was lost: the process was stopped.
const STOPPED_US: u64 = 10_000;
/// After a lost turn there is no polling for so many times its length: beside programs that use all there is of the
/// processors, sleeping costs microseconds and each yield milliseconds.
const LOST_SHARE: u64 = 32;

/// Nobody moves more bytes in a nanosecond.
const FASTEST: u64 = 16;
/// A wait of so many microseconds is a long one.
const LONG_US: u64 = 5;
/// Between two looks it rests no longer, in nanoseconds.
const LONGEST_REST_NS: u64 = BURST_US * 1000;

thread_local! {
    static BUDGET_US: Cell<u32> = const { Cell::new(LONGEST_US) };
    static SKIPPED: Cell<u32> = const { Cell::new(0) };
    static FORGIVEN: Cell<u32> = const { Cell::new(0) };
    /// How long a burst may be now.
    static PATIENCE_US: Cell<u64> = const { Cell::new(BURST_US) };
    /// No polling before this moment, in ticks; 0: at once.
    static NOT_BEFORE: Cell<u64> = const { Cell::new(0) };
}

/// A wait ended with its rest: that of a wait which polling does not end later is forgiven.
#[inline]
pub(crate) fn was_short() {
    FORGIVEN.set(FORGIVEN_MOST.min(FORGIVEN.get() + 1));
}

/// Whether a wait of this thread's would poll, as far as can be told without beginning one.
#[inline]
pub(crate) fn has_budget() -> bool {
    BUDGET_US.get() != 0
}

/// Whether a wait of this thread's would mostly sleep at once.
#[inline]
pub(crate) fn is_off() -> bool {
    match policy::policy().spin {
        SpinPolicy::Never => true,
        SpinPolicy::Always => false,
        SpinPolicy::Auto => !has_budget(),
    }
}

/// One wait's polling.
#[derive(Debug)]
pub(crate) struct Spinner {
    /// When the wait began, in ticks, or as much later as others have run meanwhile. What has passed since is asked for
    /// by differences: a clock that was set back has gone far on.
    began: u64,
    /// How long it may last, in ticks; 0: no longer.
    budget: u64,
    looks: u32,
    /// When the core was last given up, in ticks.
    yielded: u64,
    /// How long it may be kept, in ticks.
    patience: u64,
    contended: u32,
    always: bool,
    /// When the caller last looked, in ticks.
    looked: u64,
    /// The next time that it is said how long the wait has become, in ticks since it began.
    long: u64,
}

impl Spinner {
    /// Begins a wait.
    #[inline]
    pub(crate) fn new() -> Self {
        let budget = match policy::policy().spin {
            SpinPolicy::Never => 0,
            SpinPolicy::Always => LONGEST_US,
            SpinPolicy::Auto if Self::lost_lately() => 0,
            SpinPolicy::Auto => match BUDGET_US.get() {
                0 => {
                    let skipped = SKIPPED.get() + 1;
                    SKIPPED.set(if skipped < PROBE_EVERY { skipped } else { 0 });
                    if skipped < PROBE_EVERY { 0 } else { LONGEST_US }
                }
                budget => budget,
            },
        };
        let now = if budget == 0 { 0 } else { sys::ticks() };
        Self {
            began: now,
            budget: u64::from(budget) * sys::ticks_per_us(),
            looks: 0,
            yielded: now,
            patience: PATIENCE_US.get().min(budget.max(1).into()) * sys::ticks_per_us(),
            contended: 0,
            always: policy::policy().spin == SpinPolicy::Always,
            looked: now,
            long: LONG_US * sys::ticks_per_us(),
        }
    }

    /// Whether it polls at all.
    #[inline]
    pub(crate) fn polls(&self) -> bool {
        self.budget != 0
    }

    fn lost_lately() -> bool {
        let not_before = NOT_BEFORE.get();
        if not_before == 0 {
            return false;
        }
        // A clock that was set back meanwhile does not keep it for ever.
        let left = not_before.saturating_sub(sys::ticks());
        let lately = left != 0 && left <= STOPPED_US * LOST_SHARE * sys::ticks_per_us();
        if !lately {
            NOT_BEFORE.set(0);
        }
        lately
    }

    /// Before the first look, where messages follow each other without an answer in between: see
    /// [`rest`](crate::receive::rest). `ns` is asked only where there is a rest at all.
    pub(crate) fn rest_first(&self, ns: impl FnOnce() -> u64) {
        if self.budget != 0 {
            self.rest_until(self.yielded, ns());
        }
    }

    /// Before another look, where so many bytes are missing, or in the way: nobody moves them sooner.
    pub(crate) fn rest(&self, missing: u64) {
        self.rest_until(sys::ticks(), (missing / FASTEST).min(LONGEST_REST_NS));
    }

    fn rest_until(&self, from: u64, ns: u64) {
        if self.budget != 0 {
            let length = (ns * sys::ticks_per_us() / 1000).min(self.budget);
            while sys::ticks().wrapping_sub(from) < length {
                core::hint::spin_loop();
            }
        }
    }

    /// Whether the wait has lasted, and then each time that it has lasted twice as long: what only the kernel knows is
    /// worth a system call, such as that the connection has ended.
    #[inline]
    pub(crate) fn is_long(&mut self) -> bool {
        let lasted = self.looked.wrapping_sub(self.began);
        let long = lasted >= self.long;
        if long {
            self.long = lasted.saturating_mul(2);
        }
        long
    }

    /// Whether to look again; false: go to sleep.
    #[inline]
    pub(crate) fn again(&mut self) -> bool {
        if self.budget == 0 {
            return false;
        }
        self.looks += 1;
        let now = sys::ticks();
        self.looked = now;
        if now.wrapping_sub(self.yielded) < self.patience {
            core::hint::spin_loop();
            return true;
        }
        self.pause(now)
    }

    /// Whether to look again at once, without any more trouble; else [`again`](Self::again) is to be asked.
    #[inline]
    pub(crate) fn glances_again(&mut self) -> bool {
        if self.budget == 0 {
            return false;
        }
        self.looks = self.looks.wrapping_add(1);
        core::hint::spin_loop();
        !self.looks.is_multiple_of(LOOKS) || sys::ticks().wrapping_sub(self.yielded) < self.patience
    }

    fn pause(&mut self, before: u64) -> bool {
        raw::sched_yield();
        self.come_back(before, sys::ticks())
    }

    /// The core was given up from `before` to `after`, in ticks.
    fn come_back(&mut self, before: u64, after: u64) -> bool {
        self.yielded = after;
        self.looked = after;
        let away = after.saturating_sub(before);
        // Whoever polls on the same core has used all that was left to it: what is waited for comes from there, most
        // likely.
        let contended = away > CONTENDED_US * sys::ticks_per_us();
        let patience = if contended {
            0
        } else if away > BURST_US * sys::ticks_per_us() {
            // A slow yield, or somebody who had little to do.
            BURST_US
        } else {
            (PATIENCE_US.get() * 2).clamp(BURST_US, LONG_BURST_US)
        };
        PATIENCE_US.set(patience);
        if contended && !self.always {
            self.contended += 1;
            // Time in which somebody else ran was not spent polling.
            self.began = self.began.wrapping_add(away);
        }
        let left = self.budget.saturating_sub(after.wrapping_sub(self.began));
        self.patience = (patience * sys::ticks_per_us()).min(left);
        if self.always {
            // The whole budget, whoever else wants the core; then a look at what only the kernel knows.
            if after.wrapping_sub(self.began) >= self.budget {
                self.budget = 0;
            }
            return self.budget != 0;
        }
        if away > LOST_US * sys::ticks_per_us() {
            BUDGET_US.set(0);
            NOT_BEFORE.set(after + away.min(STOPPED_US * sys::ticks_per_us()) * LOST_SHARE);
            self.budget = 0;
            return false;
        }
        let go_on = after.wrapping_sub(self.began) < self.budget && self.contended < CONTENDED_MOST;
        if !go_on {
            self.failed();
            self.budget = 0;
        }
        go_on
    }

    fn failed(&self) {
        let forgiven = FORGIVEN.get();
        if self.contended > 0 {
            // Where others want the core, polling is worse than useless.
            BUDGET_US.set(BUDGET_US.get() / 4);
        } else if forgiven > 0 {
            FORGIVEN.set(forgiven - 1);
        } else {
            BUDGET_US.set(BUDGET_US.get() / 2);
        }
    }

    /// Polling paid off.
    #[inline]
    pub(crate) fn paid(&self) {
        if self.looks == 0 || self.budget == 0 {
            return;
        }
        was_short();
        let budget = BUDGET_US.get();
        // The last burst, of which nothing is known, as well.
        let burst = LONG_BURST_US * sys::ticks_per_us();
        let took = self.looked.wrapping_sub(self.began).saturating_add(burst);
        if budget < LONGEST_US && took > u64::from(budget) * sys::ticks_per_us() / 2 {
            Self::raise(took);
        }
    }

    /// Waits of so many ticks are to be within the budget, however little it has become.
    #[cold]
    fn raise(ticks: u64) {
        let us = u32::try_from(ticks / sys::ticks_per_us()).map_or(LONGEST_US, |us| us.min(LONGEST_US));
        BUDGET_US.set(LONGEST_US.min(us * 2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that may poll, whatever the policy.
    fn spinner() -> Spinner {
        let now = sys::ticks();
        Spinner {
            budget: u64::MAX / 2,
            always: true,
            yielded: now,
            began: now,
            looked: now,
            ..Spinner::new()
        }
    }

    #[test]
    fn nobody_glances_without_a_budget() {
        let mut spinner = Spinner { budget: 0, ..spinner() };
        assert!(!spinner.glances_again());
        assert!(!spinner.again());
    }

    #[test]
    fn the_clock_is_read_with_some_glances_only() {
        let mut spinner = Spinner {
            patience: 0,
            ..spinner()
        };
        for _ in 0..3 {
            let glances = core::iter::from_fn(|| spinner.glances_again().then_some(())).count();
            assert_eq!(glances, LOOKS as usize - 1);
        }
    }

    #[test]
    fn the_core_is_given_up_although_the_clock_was_set_back() {
        let mut spinner = spinner();
        spinner.yielded = sys::ticks() + (1 << 60);
        let glances = core::iter::from_fn(|| spinner.glances_again().then_some(())).count();
        assert!(glances < LOOKS as usize);
        assert!(spinner.again());
        assert!(sys::ticks().wrapping_sub(spinner.yielded) < 1 << 60);
    }

    #[test]
    fn a_wait_is_long_each_time_that_it_has_doubled() {
        let mut spinner = spinner();
        let long = LONG_US * sys::ticks_per_us();
        let said = (0..=40).filter(|quarters| {
            spinner.looked = spinner.began + quarters * long / 4;
            spinner.is_long()
        });
        assert_eq!(said.collect::<Vec<_>>(), [4, 8, 16, 32]);
    }

    #[test]
    fn time_in_which_others_ran_makes_no_wait_long() {
        let mut spinner = Spinner {
            always: false,
            ..spinner()
        };
        let now = spinner.began;
        assert!(spinner.come_back(now, now + 2 * LONG_US * sys::ticks_per_us()));
        assert!(!spinner.is_long());
        assert!(spinner.contended == 1 && spinner.patience == 0);
    }

    #[test]
    fn the_budget_is_what_waits_take_while_every_third_pays() {
        let wait = |us: u64| {
            let mut spinner = Spinner {
                always: false,
                looks: 1,
                ..Spinner::new()
            };
            let budget = spinner.budget / sys::ticks_per_us();
            let (pays, us) = (us < budget, us.min(budget));
            spinner.began = spinner.looked.wrapping_sub(us * sys::ticks_per_us());
            if pays {
                spinner.paid();
            } else if budget > 0 {
                let now = spinner.looked;
                assert!(!spinner.come_back(now, now));
            }
            pays
        };
        BUDGET_US.set(0);
        let most = (0..99).filter(|turn| wait(if turn % 3 == 0 { 30 } else { 1000 }));
        assert!(most.count() > 24, "thirty waits or so could have been paid");
        (0..9).for_each(|_| assert!(!wait(1000)));
        assert_eq!(BUDGET_US.get(), 0, "none pays");
        let rare = (0..160).filter(|turn| wait(if turn % 8 == 0 { 30 } else { 1000 }));
        assert!(rare.count() < 15, "one in eight does not");
    }

    #[test]
    fn waits_that_paid_are_within_the_budget_again() {
        BUDGET_US.set(0);
        let mut spinner = spinner();
        spinner.looks = 1;
        spinner.looked = spinner.began + 30 * sys::ticks_per_us();
        spinner.paid();
        assert_eq!(BUDGET_US.get(), 2 * (30 + u32::try_from(LONG_BURST_US).unwrap()));
        spinner.looked = spinner.began;
        spinner.paid();
        assert_eq!(BUDGET_US.get(), 76, "shorter waits have room");
    }

    #[test]
    fn a_small_budget_is_not_overdrawn() {
        BUDGET_US.set(3);
        PATIENCE_US.set(LONG_BURST_US);
        let spinner = Spinner::new();
        assert!(spinner.patience <= 3 * sys::ticks_per_us());
    }
}
