//! Threads inside epoll sets: asleep there, or being told by the kernel what has come. They need not come back: they
//! are cancelled, or jump out of a signal handler. Then who else waits in the set has to look for what they were told.

use crate::epoll::inner;
use crate::epoll::set::{BYTES, EDGE, EMULATED, KERNEL, PARKED, Set, member, set_links, tag};
use crate::lock::jump::Jump;
use crate::process::thread;
use crate::sys::{self, raw};
use crate::wait::bell;
use core::cell::Cell;
use core::sync::atomic::Ordering::{AcqRel, Relaxed, SeqCst};
use libc::{EPOLLET, EPOLLIN};

/// The set that a thread sleeps in, or takes the kernel's events of, and where on the stack. Threads need not come back
/// from there: they are cancelled, or jump out of a signal handler.
#[derive(Debug)]
pub(crate) struct Asleep {
    within: Cell<Option<&'static Set>>,
    /// Whether it is counted among the set's sleepers.
    counted: Cell<bool>,
    frame: Cell<usize>,
}

impl Asleep {
    /// Of a thread that is in none.
    pub(crate) const fn new() -> Self {
        Self {
            within: Cell::new(None),
            counted: Cell::new(false),
            frame: Cell::new(0),
        }
    }

    #[inline]
    fn begin(&self, set: &'static Set, counted: bool) {
        self.frame.set(sys::stack_pointer());
        self.counted.set(counted);
        self.within.set(Some(set));
    }

    fn uncount(&self, set: &Set) {
        if self.counted.take() {
            set.one_sleeper_less();
        }
    }

    /// The thread is not in any set, though it may have left one without saying so: what it was told there, and that
    /// peers have rung, nobody else knows then.
    #[inline]
    fn leave(&self) {
        if let Some(set) = self.within.take() {
            self.uncount(set);
            // SeqCst pairs with `fall_asleep` and `has_been_left`, as in `emulates_one_more`.
            set.unheard.store(true, SeqCst);
            if set.is_emulated_now() {
                set.nudge();
            }
        }
    }
}

/// The calling thread is not in any set, though it may have left one without saying so.
pub(crate) fn wake_elsewhere() {
    thread::this().asleep.leave();
}

/// The calling thread is about to jump, perhaps out of a set.
pub(crate) fn jumping(jump: &Jump) {
    let asleep = &thread::this().asleep;
    if asleep.within.get().is_some() && jump.leaves(asleep.frame.get()) {
        asleep.leave();
    }
}

impl Set {
    /// The calling thread goes to sleep in the set.
    pub(crate) fn fall_asleep(&'static self) {
        let thread = thread::this();
        thread.asleep.leave();
        thread.watch();
        self.sleepers.fetch_add(1, SeqCst);
        thread.asleep.begin(self, true);
    }

    /// The set may be another by now, with no sleepers.
    pub(crate) fn one_sleeper_less(&self) {
        let _ = self
            .sleepers
            .fetch_update(AcqRel, Relaxed, |count| count.checked_sub(1));
    }

    /// The calling thread is awake again, and has yet to note what the kernel has told it. Answers whether others
    /// sleep.
    pub(crate) fn wake_up(&self) -> bool {
        let asleep = &thread::this().asleep;
        if asleep.within.get().is_some_and(|set| core::ptr::eq(set, self)) {
            asleep.uncount(self);
        }
        self.has_sleepers()
    }

    /// The calling thread asks what the kernel has to tell, without sleeping.
    pub(crate) fn begin_to_hear(&'static self) {
        let asleep = &thread::this().asleep;
        asleep.leave();
        asleep.begin(self, false);
    }

    /// The calling thread has noted what the kernel has told it.
    pub(crate) fn has_heard(&self) {
        thread::this().asleep.within.set(None);
    }

    /// Whether a thread has left it amid what the kernel told, for who has fallen asleep.
    pub(crate) fn has_been_left(&self) -> bool {
        self.unheard.load(SeqCst)
    }

    /// Has the kernel asked of all members where a thread has left the set amid what it told.
    pub(crate) fn hear_again(&'static self) {
        if !self.has_been_left() {
            return;
        }
        let Some(_owner) = self.own() else { return };
        self.unheard.store(false, SeqCst);
        for (number, member) in self
            .members
            .iter(set_links)
            .filter_map(|number| Some((number, member(number)?)))
            .filter(|(_, member)| member.has(EMULATED) && !member.has(PARKED))
        {
            member.change(BYTES, KERNEL | EDGE);
            self.heat(number, member);
        }
        inner::hear_again(self);
    }

    /// Whether threads sleep in the set, or in the one that it is in, and are to be told of it.
    pub(crate) fn has_sleepers(&self) -> bool {
        self.sleepers.load(SeqCst) > 0 || self.has_sleepers_outside()
    }

    /// One more registration is ours: whoever falls asleep without having seen that is seen by [`Set::nudge`].
    pub(crate) fn emulates_one_more(&self) {
        // SeqCst, here and below, pairs with `fall_asleep` and `is_emulated_now`: a store and then a look at what the
        // other has stored.
        self.emulated.fetch_add(1, SeqCst);
    }

    /// Whether registrations are ours, for who has fallen asleep.
    pub(crate) fn is_emulated_now(&self) -> bool {
        self.emulated.load(SeqCst) != 0
    }

    /// Makes whoever sleeps in the set look again.
    pub(crate) fn nudge(&self) {
        if self.has_sleepers() {
            self.ring();
        }
    }

    /// Makes the kernel tell whoever is asleep in the set, or outside it, to look again.
    pub(crate) fn ring(&self) {
        match bell::numbered(self.bell.load(Relaxed)) {
            Some(bell) => drop(raw::eventfd_ring(bell.fd())),
            None => self.ring_without_bell(),
        }
    }

    /// The same of a set without a bell of its own: the kernel tells of what rings already to who registers it anew.
    #[cold]
    fn ring_without_bell(&self) {
        // Who waits in it would find registrations that no program made.
        if self.nested.load(Relaxed) {
            return;
        }
        if let Some(fd) = bell::common() {
            let events = (EPOLLIN | EPOLLET).cast_unsigned();
            let control = |operation| raw::epoll_ctl(self.fd(), operation, fd, events, tag());
            if control(libc::EPOLL_CTL_MOD) == Err(libc::ENOENT) {
                let _ = control(libc::EPOLL_CTL_ADD);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoll::set::{SET, SETS};

    fn sleepers(set: &Set) -> u32 {
        set.sleepers.load(Relaxed)
    }

    #[test]
    fn who_does_not_come_back_from_a_sleep_is_not_counted_for_ever() {
        let (one, other) = (&SET[SETS - 1], &SET[SETS - 2]);
        std::thread::spawn(|| {
            one.fall_asleep();
            assert_eq!(sleepers(one), 1);
            crate::lock::jump::jumping(sys::stack_pointer() - 4096);
            assert_eq!(
                sleepers(one),
                1,
                "a handler that interrupts the sleep has jumped within itself"
            );
            crate::lock::jump::jumping(sys::stack_pointer() + 4096);
            assert_eq!(sleepers(one), 0);
            assert!(one.has_been_left(), "what it was told there nobody knows");
            one.hear_again();
            assert!(!one.has_been_left());
            one.fall_asleep();
            // Unwound, it sleeps elsewhere.
            other.fall_asleep();
            assert_eq!((sleepers(one), sleepers(other)), (0, 1));
            assert!(!other.wake_up(), "nobody else sleeps there");
            other.has_heard();
            assert!(!one.wake_up() && one.has_been_left() && !other.has_been_left());
            one.hear_again();
            one.begin_to_hear();
            crate::lock::jump::jumping(sys::stack_pointer() + 4096);
            assert!(one.has_been_left(), "it took what the kernel told");
            // Cancelled, it ends.
            one.fall_asleep();
        })
        .join()
        .unwrap();
        one.fall_asleep();
        assert_eq!(sleepers(one), 1);
        one.wake_up();
        one.has_heard();
        assert_eq!((sleepers(one), sleepers(other)), (0, 0));
    }
}
