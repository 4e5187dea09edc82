//! How much of a static array has ever been used. What is behind is as it was at first: a walk through all of it would
//! be a fault for each page, in every process that makes one.

use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::SeqCst;

/// The places of one array that have been used, counted from the first.
#[derive(Debug)]
pub(crate) struct Extent(AtomicUsize);

impl Extent {
    pub(crate) const fn none() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// Before the place `index` is used for the first time. SeqCst pairs with [`Extent::of`]: whoever uses it then sees
    /// what was stored before a walk, or is seen by it.
    pub(crate) fn reach(&self, index: usize) {
        if self.0.load(SeqCst) <= index {
            self.0.fetch_max(index + 1, SeqCst);
        }
    }

    /// That much of `array`.
    pub(crate) fn of<'a, T>(&self, array: &'a [T]) -> &'a [T] {
        array.get(..self.0.load(SeqCst)).unwrap_or(array)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_only_grows() {
        let (extent, array) = (Extent::none(), [1, 2, 3]);
        assert!(extent.of(&array).is_empty());
        extent.reach(1);
        extent.reach(0);
        assert_eq!(extent.of(&array), [1, 2]);
        extent.reach(9);
        assert_eq!(extent.of(&array), array);
    }
}
