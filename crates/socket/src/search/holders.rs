//! Which processes know a socket that there is no record of: a forked child knows what its parent knew.

use crate::sys::raw;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Processes that are told apart.
const PROCESSES: usize = 8;

/// The processes, each with the number of its descriptors. One that ends, or becomes another program and ends, is found missing.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Holders {
    /// A process in the upper half, its descriptors in the lower; 0 for none.
    known: [AtomicU64; PROCESSES],
    /// Children that have not told who they are, and those there was no place for: while there is one, the socket is known.
    unknown: AtomicU32,
}

const fn process(entry: u64) -> u32 {
    (entry >> 32) as u32
}

impl Holders {
    pub(super) fn clear(&self) {
        for entry in &self.known {
            entry.store(0, Relaxed);
        }
        self.unknown.store(0, Relaxed);
    }

    fn of(&self, pid: u32) -> Option<&AtomicU64> {
        self.known.iter().find(|entry| process(entry.load(Relaxed)) == pid)
    }

    /// One more descriptor of this process.
    pub(super) fn add(&self, pid: u32) {
        if let Some(entry) = self.of(pid) {
            entry.fetch_add(1, AcqRel);
            return;
        }
        let fresh = u64::from(pid) << 32 | 1;
        let taken = |entry: &AtomicU64| entry.compare_exchange(0, fresh, AcqRel, Relaxed).is_ok();
        if self.known.iter().any(taken) {
            return;
        }
        self.forget_the_dead();
        if !self.known.iter().any(taken) {
            self.unknown.fetch_add(1, AcqRel);
        }
    }

    /// One descriptor less. True if nobody knows the socket any more.
    pub(super) fn remove(&self, pid: u32) -> bool {
        if let Some(entry) = self.of(pid)
            && entry.fetch_sub(1, AcqRel) & u64::from(u32::MAX) == 1
        {
            entry.store(0, Relaxed);
        }
        self.are_gone()
    }

    fn forget_the_dead(&self) {
        for entry in &self.known {
            let known = entry.load(Acquire);
            if known != 0 && !raw::thread_alive(process(known)) {
                let _ = entry.compare_exchange(known, 0, AcqRel, Relaxed);
            }
        }
    }

    /// Whether no process that knows the socket is left.
    pub(super) fn are_gone(&self) -> bool {
        self.forget_the_dead();
        self.unknown.load(Acquire) == 0 && self.known.iter().all(|entry| entry.load(Acquire) == 0)
    }

    /// A child of this process is about to be made.
    pub(super) fn expect_child(&self, pid: u32) {
        if self.of(pid).is_some() {
            self.unknown.fetch_add(1, AcqRel);
        }
    }

    /// This process is the child of one that had announced it, and has so many descriptors: called once for each.
    pub(super) fn arrive(&self, pid: u32) {
        let first = self.of(pid).is_none();
        self.add(pid);
        if first {
            self.unknown.fetch_sub(1, AcqRel);
        }
    }
}
