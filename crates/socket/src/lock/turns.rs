//! Whose turn it is among the places of an array that come and go.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32};

/// Gives places out in turn, so that one that has been freed is not soon used again: a thread that came too late may
/// still look at it. But in turn among about twice as many as were ever needed at a time, since places that were never
/// used cost memory, and others the caches.
#[derive(Debug)]
pub(crate) struct Turns {
    next: AtomicU32,
    /// How many places are used, from the first.
    reach: AtomicU32,
    /// How many were found taken since it was the first one's turn.
    taken: AtomicU32,
    over: AtomicBool,
}

impl Turns {
    /// At first among `reach` places.
    pub(crate) const fn among(reach: u32) -> Self {
        Self {
            next: AtomicU32::new(0),
            reach: AtomicU32::new(reach),
            taken: AtomicU32::new(0),
            over: AtomicBool::new(false),
        }
    }

    /// From now on no place is given out, or again.
    pub(crate) fn end(&self, over: bool) {
        self.over.store(over, SeqCst);
    }

    /// The first free place of `all`, by `claim`, which answers whether it has taken the place of that number. `None`
    /// if none is free.
    #[inline]
    pub(crate) fn claim(&self, all: u32, claim: impl Fn(u32) -> bool) -> Option<u32> {
        // At worst up to the end, and then from the first; other threads take turns too.
        for _ in 0..all.saturating_mul(3) {
            if self.over.load(SeqCst) {
                return None;
            }
            let place = self.next.fetch_add(1, Relaxed);
            if place >= self.reach.load(Relaxed).min(all) {
                self.begin_again(all, place);
            } else if claim(place) {
                return Some(place);
            } else {
                self.taken.fetch_add(1, Relaxed);
            }
        }
        None
    }

    /// All places in reach have had their turn, which was `place`'s now: it is the first one's again, or those' beyond
    /// if half of them were taken.
    #[cold]
    fn begin_again(&self, all: u32, place: u32) {
        let reach = self.reach.load(Relaxed).min(all);
        let more = reach < all && self.taken.load(Relaxed) > reach / 2;
        let first = if more { reach } else { 0 };
        // Else another thread is about to, or has.
        if place >= reach
            && self
                .next
                .compare_exchange(place.wrapping_add(1), first, Relaxed, Relaxed)
                .is_ok()
        {
            self.taken.store(0, Relaxed);
            if more {
                self.reach.fetch_max(reach.saturating_mul(2), Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u32 = 1000;

    fn claim(turns: &Turns, used: &[AtomicBool]) -> Option<u32> {
        turns.claim(ALL, |place| {
            used.get(place as usize).is_some_and(|used| !used.swap(true, Relaxed))
        })
    }

    fn free(used: &[AtomicBool], place: u32) {
        used[place as usize].store(false, Relaxed);
    }

    #[test]
    fn every_place_is_given_out_once() {
        let (turns, used) = (Turns::among(16), [const { AtomicBool::new(false) }; ALL as usize]);
        let mut places: Vec<u32> = (0..ALL).filter_map(|_| claim(&turns, &used)).collect();
        places.sort_unstable();
        assert_eq!(places, (0..ALL).collect::<Vec<_>>());
        assert_eq!(claim(&turns, &used), None);
        free(&used, 777);
        assert_eq!(claim(&turns, &used), Some(777));
    }

    #[test]
    fn a_freed_place_waits_its_turn_but_few_are_used() {
        let (turns, used) = (Turns::among(64), [const { AtomicBool::new(false) }; ALL as usize]);
        let first = claim(&turns, &used).unwrap();
        free(&used, first);
        for round in 1..10_000 {
            let place = claim(&turns, &used).unwrap();
            assert_eq!(place, round % 64);
            free(&used, place);
        }
    }

    #[test]
    fn more_places_are_used_where_those_before_are_taken() {
        let (turns, used) = (Turns::among(64), [const { AtomicBool::new(false) }; ALL as usize]);
        let held: Vec<u32> = (0..100).filter_map(|_| claim(&turns, &used)).collect();
        assert_eq!(held, (0..100).collect::<Vec<_>>());
        let mut reached = 0;
        for _ in 0..10_000 {
            let place = claim(&turns, &used).unwrap();
            assert!(!held.contains(&place));
            reached = reached.max(place);
            free(&used, place);
        }
        assert_eq!(
            reached, 255,
            "twice as many as are held, and a power of two times the first"
        );
    }

    #[test]
    fn several_threads_need_no_more_places() {
        let (turns, used) = (Turns::among(64), [const { AtomicBool::new(false) }; ALL as usize]);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..100_000 {
                        let place = claim(&turns, &used).unwrap();
                        assert!(place < 128, "{place}");
                        free(&used, place);
                    }
                });
            }
        });
    }

    #[test]
    fn nothing_is_given_out_once_it_is_over() {
        let (turns, used) = (Turns::among(64), [const { AtomicBool::new(false) }; ALL as usize]);
        turns.end(true);
        assert_eq!(claim(&turns, &used), None);
        turns.end(false);
        assert_eq!(claim(&turns, &used), Some(0));
    }
}
