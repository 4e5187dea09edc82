//! Doubly linked lists of records in static arrays, by number (one more than the index; 0 is none). A list is used by
//! one party at a time; links are atomic only so that the arrays can be static.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

/// The links of one record in one list.
#[derive(Debug)]
pub(crate) struct Links {
    next: AtomicU32,
    previous: AtomicU32,
}

impl Links {
    pub(crate) const fn new() -> Self {
        Self {
            next: AtomicU32::new(0),
            previous: AtomicU32::new(0),
        }
    }
}

/// A list.
#[derive(Debug)]
pub(crate) struct List {
    first: AtomicU32,
    last: AtomicU32,
    len: AtomicU32,
}

impl List {
    pub(crate) const fn new() -> Self {
        Self {
            first: AtomicU32::new(0),
            last: AtomicU32::new(0),
            len: AtomicU32::new(0),
        }
    }

    pub(crate) fn clear(&self) {
        self.first.store(0, Relaxed);
        self.last.store(0, Relaxed);
        self.len.store(0, Relaxed);
    }

    pub(crate) fn len(&self) -> u32 {
        self.len.load(Relaxed)
    }

    /// The first record.
    pub(crate) fn first(&self) -> Option<u32> {
        Some(self.first.load(Relaxed)).filter(|number| *number != 0)
    }

    /// The record after `number`.
    pub(crate) fn after(&self, number: u32, links: impl Fn(u32) -> Option<&'static Links>) -> Option<u32> {
        links(number)
            .map(|links| links.next.load(Relaxed))
            .filter(|number| *number != 0)
    }

    /// All records; the list must not change meanwhile.
    pub(crate) fn iter(&self, links: impl Fn(u32) -> Option<&'static Links>) -> impl Iterator<Item = u32> {
        let mut left = self.len();
        let mut next = self.first.load(Relaxed);
        core::iter::from_fn(move || {
            let number = next;
            left = left.checked_sub(1)?;
            next = links(number)?.next.load(Relaxed);
            Some(number)
        })
    }

    /// Appends a record that is not in the list.
    pub(crate) fn push(&self, number: u32, links: impl Fn(u32) -> Option<&'static Links>) {
        let Some(own) = links(number) else { return };
        let last = self.last.load(Relaxed);
        own.next.store(0, Relaxed);
        own.previous.store(last, Relaxed);
        match links(last) {
            Some(last) => last.next.store(number, Relaxed),
            None => self.first.store(number, Relaxed),
        }
        self.last.store(number, Relaxed);
        self.len.store(self.len() + 1, Relaxed);
    }

    /// Takes a record out that is in the list.
    pub(crate) fn remove(&self, number: u32, links: impl Fn(u32) -> Option<&'static Links>) {
        let Some(own) = links(number) else { return };
        let (previous, next) = (own.previous.load(Relaxed), own.next.load(Relaxed));
        match links(previous) {
            Some(previous) => previous.next.store(next, Relaxed),
            None => self.first.store(next, Relaxed),
        }
        match links(next) {
            Some(next) => next.previous.store(previous, Relaxed),
            None => self.last.store(previous, Relaxed),
        }
        self.len.store(self.len().saturating_sub(1), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static LINKS: [Links; 4] = [const { Links::new() }; 4];

    fn links(number: u32) -> Option<&'static Links> {
        LINKS.get((number as usize).checked_sub(1)?)
    }

    #[test]
    fn records_leave_from_anywhere() {
        let list = List::new();
        for number in 1..=4 {
            list.push(number, links);
        }
        list.remove(2, links);
        list.remove(4, links);
        list.remove(1, links);
        assert_eq!(list.iter(links).collect::<Vec<_>>(), [3]);
        list.push(1, links);
        assert_eq!(list.iter(links).collect::<Vec<_>>(), [3, 1]);
        list.remove(3, links);
        list.remove(1, links);
        assert_eq!((list.len(), list.first()), (0, None));
    }
}
