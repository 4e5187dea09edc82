//! Numbers of records that were given up lately, to be used again while their records are in the cache and their pages in memory: one that is
//! taken in turn from a large array is in neither.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

/// Numbers from 1 on; 0 stands for none. A number is a hint: whoever takes one still has to claim its record.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Recent([AtomicU32; 16]);

impl Recent {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicU32::new(0) }; 16])
    }

    /// The record `number` is free. Where there is no place for it, it is found in its turn.
    pub(crate) fn put(&self, number: u32) {
        let empty = |place: &&AtomicU32| place.load(Relaxed) == 0;
        if let Some(place) = self.0.iter().find(empty) {
            place.store(number, Relaxed);
        }
    }

    /// The number of a record that was free when it was put here.
    pub(crate) fn take(&self) -> Option<u32> {
        let place = self.0.iter().rev().find(|place| place.load(Relaxed) != 0)?;
        Some(place.swap(0, Relaxed)).filter(|number| *number != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_numbers_come_first_and_no_number_twice() {
        let recent = Recent::new();
        assert_eq!(recent.take(), None);
        (1..=20).for_each(|number| recent.put(number));
        let taken: Vec<u32> = core::iter::from_fn(|| recent.take()).collect();
        assert_eq!(taken, (1..=16).rev().collect::<Vec<_>>(), "there is room for so many");
    }
}
