//! Words lent to signal handlers.
//!
//! A thread that polls owns the direction nearly all the time, so a handler that interrupts it finds it owned by its own thread, nearly always. While
//! nothing is done but looking, the handler may have the direction, and the thread finds out afterwards that it has lost it.

use super::{Guard, MOST, Own, SEARCHED};
use core::cell::Cell;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicU32, compiler_fence};

/// Of a thread's words, by their places in [`Own::held`].
#[derive(Debug)]
pub(super) struct Lent {
    /// Those that it only looks with now.
    lent: Cell<u32>,
    /// Those of them that a handler has taken.
    taken: Cell<u32>,
}

impl Lent {
    pub(super) const fn nothing() -> Self {
        Self {
            lent: Cell::new(0),
            taken: Cell::new(0),
        }
    }

    /// A handler has what all that are lent stand for.
    pub(super) fn take_all(&self) {
        self.taken.set(self.taken.get() | self.lent.get());
    }

    /// Nothing is lent from place `kept` on.
    pub(super) fn cut(&self, kept: usize) {
        let mask = bit(kept).wrapping_sub(1);
        self.lent.set(self.lent.get() & mask);
        self.taken.set(self.taken.get() & mask);
    }

    pub(super) fn is_taken(&self, place: usize) -> bool {
        self.taken.get() & bit(place) != 0
    }
}

const _: () = assert!(MOST <= 32);

/// None beyond the places that there are.
fn bit(place: usize) -> u32 {
    if place < MOST { 1 << place } else { 0 }
}

impl Own {
    /// The places of a word that is lent.
    fn places_of(&self, word: &AtomicU32) -> u32 {
        let held = self.held.get(..self.count.get()).unwrap_or(&self.held);
        let same = held.iter().enumerate().filter(|(_, held)| {
            let known = held.word.get();
            known.is_some_and(|known| core::ptr::eq(known, word))
        });
        same.fold(0, |places, (place, _)| places | bit(place)) & self.lent.lent.get()
    }

    /// Has a handler take a word that holds `seen` and belongs to the thread that it interrupts; `None` unless it is lent, and to nobody yet.
    pub(super) fn borrow(&'static self, word: &'static AtomicU32, seen: u32) -> Option<Guard<'static>> {
        let places = self.places_of(word) & !self.lent.taken.get();
        if places == 0 {
            return None;
        }
        // A handler that interrupts this one from here on finds it owned. One that came before has given it up.
        self.lent.taken.set(self.lent.taken.get() | places);
        compiler_fence(SeqCst);
        let before = self.note(word);
        Some(Guard {
            word,
            idle: seen & SEARCHED,
            owned: seen,
            own: self,
            before,
        })
    }

    /// Whether the thread has lent the word and will look once more, however often handlers have taken it.
    pub(super) fn has_lent(&self, word: &AtomicU32) -> bool {
        self.places_of(word) != 0
    }
}

impl Guard<'_> {
    /// Looks while a handler that interrupts the thread may have the direction, though no other thread. `None` if one had it: then the word is
    /// no longer this guard's, and it is to be [kept](Self::keep) from giving it up. `look` changes nothing; should the handler close the
    /// connection, what it looks at stays mapped (see [`is_lent`](super::is_lent)).
    #[inline]
    pub(crate) fn lend<R>(&self, look: impl FnOnce() -> R) -> Option<R> {
        let (lent, place) = (&self.own.lent, bit(self.before));
        compiler_fence(SeqCst);
        lent.lent.set(lent.lent.get() | place);
        compiler_fence(SeqCst);
        let found = look();
        compiler_fence(SeqCst);
        lent.lent.set(lent.lent.get() & !place);
        compiler_fence(SeqCst);
        let taken = lent.taken.get() & place != 0;
        if taken {
            lent.taken.set(lent.taken.get() & !place);
        }
        (!taken).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{acquire, after_fork, is_lent};
    use super::*;
    use crate::{sys, thread};
    use core::sync::atomic::Ordering::Relaxed;

    fn word() -> &'static AtomicU32 {
        Box::leak(Box::default())
    }

    #[test]
    fn a_handler_has_what_is_lent_and_nothing_else() {
        let (word, other) = (word(), word());
        let owner = acquire(word).unwrap();
        let second = acquire(other).unwrap();
        assert!(acquire(word).is_none());
        let lent = owner.lend(|| {
            assert!(is_lent(word) && !is_lent(other));
            assert!(acquire(other).is_none());
            7
        });
        assert_eq!(lent, Some(7));
        assert!(!is_lent(word));
        drop(second);
        assert_eq!(
            owner.lend(|| {
                let handlers = acquire(word).unwrap();
                assert!(acquire(word).is_none(), "a handler that interrupts the handler");
                drop(handlers);
                assert_eq!(word.load(Relaxed), 0);
            }),
            None
        );
        owner.keep();
        assert_eq!(thread::this().locks.count.get(), 0);
        drop(acquire(word).unwrap());
    }

    #[test]
    fn what_a_handler_gave_up_may_be_anothers_when_the_thread_looks() {
        let word = word();
        let owner = acquire(word).unwrap();
        let lent = owner.lend(|| {
            drop(acquire(word).unwrap());
            std::thread::scope(|scope| {
                scope.spawn(|| core::mem::forget(acquire(word).unwrap()));
            });
        });
        assert_eq!(lent, None);
        let others = word.load(Relaxed);
        owner.keep();
        assert_eq!(word.load(Relaxed), others);
    }

    #[test]
    fn a_child_that_a_handler_forks_does_not_look_with_its_parents_word() {
        let word = word();
        let owner = acquire(word).unwrap();
        let parents = word.load(Relaxed);
        assert_eq!(owner.lend(after_fork), None);
        owner.keep();
        assert_eq!(word.load(Relaxed), parents);
    }

    #[test]
    fn a_handler_that_jumps_within_itself_leaves_the_word_free() {
        let word = word();
        let owner = acquire(word).unwrap();
        let lent = owner.lend(|| {
            let within = sys::stack_pointer() - 4096;
            core::mem::forget(acquire(word).unwrap());
            thread::this().locks.held[1].frame.set(within - 1);
            crate::jump::jumping(within);
        });
        assert_eq!((lent, word.load(Relaxed)), (None, 0));
        owner.keep();
    }

    #[test]
    fn a_jump_out_of_a_look_leaves_nothing_lent() {
        let word = word();
        let owner = acquire(word).unwrap();
        thread::this().locks.lent.lent.set(1);
        core::mem::forget(owner);
        crate::jump::jumping(sys::stack_pointer() + (1 << 20));
        assert_eq!(word.load(Relaxed), 0);
        assert!(!is_lent(word));
        let owner = acquire(word).unwrap();
        assert!(!is_lent(word));
        drop(owner);
    }
}
