//! Whose turn it is among the places of an array that come and go.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

/// Gives places out in turn, so that one that has been freed is not soon used again: a thread that came too late may still look at it. But in
/// turn among about twice as many as are needed at a time, since places that were never used cost memory, and others the caches.
#[derive(Debug)]
pub(crate) struct Turns {
    next: AtomicU32,
    /// How many places are used, from the first.
    reach: AtomicU32,
    /// How many have been given out since it was the first one's turn. Of these three another thread may miss a change, which does no harm.
    given: AtomicU32,
}

impl Turns {
    /// At first among `reach` places.
    pub(crate) const fn among(reach: u32) -> Self {
        Self {
            next: AtomicU32::new(0),
            reach: AtomicU32::new(reach),
            given: AtomicU32::new(0),
        }
    }

    /// The first free place of `all`, by `claim`, which answers whether it has taken the place of that number. `None` if none is free.
    #[inline]
    pub(crate) fn claim(&self, all: u32, claim: impl Fn(u32) -> bool) -> Option<u32> {
        let mut place = self.next.load(Relaxed);
        // At worst up to the end, and then from the first.
        for _ in 0..all.saturating_mul(2) {
            if place >= self.reach.load(Relaxed).min(all) {
                place = self.begin_again(all);
            }
            if claim(place) {
                self.next.store(place + 1, Relaxed);
                self.given.store(self.given.load(Relaxed).wrapping_add(1), Relaxed);
                return Some(place);
            }
            place += 1;
        }
        None
    }

    /// All places in reach have had their turn: goes on with the first, or beyond if half of them were taken.
    #[cold]
    fn begin_again(&self, all: u32) -> u32 {
        let reach = self.reach.load(Relaxed).min(all);
        let given = self.given.swap(0, Relaxed);
        if given >= reach / 2 || reach == all {
            return 0;
        }
        self.reach.fetch_max(reach.saturating_mul(2), Relaxed);
        reach
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;

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
}
