//! Which processes know a socket that is searched: a forked child knows what its parent knew. One that is killed tells nobody, so processes have
//! places of their own, and those of the dead are found where room is needed.

use crate::lifecycle::is_confined;
use crate::lock::{self, Guard};
use crate::sys::{listing, raw};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Processes that are told apart.
const PROCESSES: usize = 512;

/// In a place: the process with this number has a child that has not come to itself.
const EXPECTED: u32 = 1 << 31;

/// Places of a family of processes, one bit each.
pub(super) type Places = [u64; PROCESSES / 64];

/// The processes of a family that know searched sockets, each by its number; 0 for none. In memory that they share.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Family {
    /// Owned by who gives places out or takes them back.
    owner: AtomicU32,
    places: [AtomicU32; PROCESSES],
}

/// One more than the place of this process; 0: none.
static OWN: AtomicU32 = AtomicU32::new(0);
/// The process whose place that is: a child that was made unseen has none.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// The process that makes a child, if it has a place for it. In the child: its parent.
static PARENT: AtomicU32 = AtomicU32::new(0);

/// A place, or none where there was no room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member(Option<usize>);

impl Family {
    fn own(&'static self) -> Option<Guard<'static>> {
        lock::acquire(&self.owner)
    }

    fn find(&self, content: u32) -> Option<usize> {
        self.places.iter().position(|place| place.load(Relaxed) == content)
    }

    fn put(&self, place: usize, content: u32) {
        if let Some(place) = self.places.get(place) {
            place.store(content, Release);
        }
    }

    /// A free place gets this content, if need be one of the dead, which `forget` is told to forget. Owned by the caller.
    fn join(&self, content: u32, forget: impl Fn(&Places)) -> Member {
        let place = self.find(0).or_else(|| {
            self.bury(forget);
            self.find(0)
        });
        if let Some(place) = place {
            self.put(place, content);
        }
        Member(place)
    }

    /// This process's place.
    pub(super) fn member(&'static self, forget: impl Fn(&Places)) -> Member {
        let known = Self::known();
        if known.0.is_some() {
            return known;
        }
        let Some(_guard) = self.own() else {
            return Member(None);
        };
        // Another thread may have been first.
        let known = Self::known();
        if known.0.is_some() {
            return known;
        }
        let own = self.join(raw::getpid(), forget);
        own.is_this_process();
        own
    }

    /// The same, if it has one.
    pub(super) fn known() -> Member {
        let own = (OWN.load(Relaxed) as usize).checked_sub(1);
        Member(own.filter(|_| OWNER.load(Relaxed) == raw::getpid()))
    }

    /// A place for the child that this process is about to make.
    pub(super) fn expect(&'static self, forget: impl Fn(&Places)) -> Member {
        let pid = raw::getpid();
        PARENT.store(pid, Relaxed);
        match self.own() {
            Some(_guard) => self.join(EXPECTED | pid, forget),
            None => Member(None),
        }
    }

    /// In a child: takes the place that its parent has for it. Where several threads make children at a time, any of theirs.
    pub(super) fn arrive(&'static self) -> Member {
        OWN.store(0, Relaxed);
        let parent = PARENT.swap(0, Relaxed);
        if parent == 0 {
            // Nothing that it knows is searched.
            return Member(None);
        }
        let (pid, expected) = (raw::getpid(), EXPECTED | parent);
        let _guard = self.own();
        // The parent may have been faster.
        let own = Member(self.find(pid).or_else(|| self.find(expected)));
        if let Some(place) = own.0 {
            self.put(place, pid);
        }
        own.is_this_process();
        own
    }

    /// In a parent: says who the child is, lest it be killed before it does. If there is none, its place is free again.
    pub(super) fn made(&'static self, forget: impl Fn(&Places)) {
        let parent = PARENT.swap(0, Relaxed);
        let expected = EXPECTED | parent;
        if parent == 0 || is_confined() || self.find(expected).is_none() {
            return;
        }
        // The last is the latest, unless it has arrived, or has ended and is forgotten. Asked without the table, which the child needs.
        let mut latest = 0;
        let told = listing::children(|child| {
            if self.find(child).is_none() {
                latest = child;
            }
        });
        let Some(_guard) = self.own().filter(|_| told) else {
            return;
        };
        if latest != 0 && self.find(latest).is_some() {
            // It has arrived meanwhile.
            return;
        }
        if let Some(place) = self.find(expected) {
            if latest == 0 {
                forget(&only(place));
            }
            self.put(place, latest);
        }
    }

    /// Frees the places of the dead.
    pub(super) fn forget_the_dead(&'static self, forget: impl Fn(&Places)) {
        if let Some(_guard) = self.own() {
            self.bury(forget);
        }
    }

    fn bury(&self, forget: impl Fn(&Places)) {
        let dead = |place: &AtomicU32| {
            let pid = place.load(Acquire);
            pid != 0 && pid & EXPECTED == 0 && !raw::thread_alive(pid)
        };
        let mut all: Places = [0; _];
        for (index, _) in self.places.iter().enumerate().filter(|(_, place)| dead(place)) {
            for (word, one) in all.iter_mut().zip(only(index)) {
                *word |= one;
            }
        }
        forget(&all);
        for index in (0..PROCESSES).filter(|index| all[index / 64] & bit(*index) != 0) {
            self.put(index, 0);
        }
    }
}

const fn bit(place: usize) -> u64 {
    1 << (place % 64)
}

fn only(place: usize) -> Places {
    let mut all: Places = [0; _];
    all[place / 64] = bit(place);
    all
}

impl Member {
    fn is_this_process(self) {
        OWNER.store(raw::getpid(), Relaxed);
        OWN.store(self.number(), Relaxed);
    }

    fn number(self) -> u32 {
        self.0.and_then(|place| u32::try_from(place + 1).ok()).unwrap_or(0)
    }
}

/// The processes that know one socket.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Holders {
    known: [AtomicU64; PROCESSES / 64],
    /// Those there was no place for, or that knew it before it was searched: while there is one, the socket is known.
    unknown: AtomicU32,
}

impl Holders {
    /// This process alone.
    pub(super) fn begin(&self, own: Member) {
        for word in &self.known {
            word.store(0, Relaxed);
        }
        self.unknown.store(0, Relaxed);
        self.add(own);
    }

    pub(super) fn add(&self, process: Member) {
        match process.0 {
            Some(place) => drop(self.known[place / 64].fetch_or(bit(place), AcqRel)),
            None => drop(self.unknown.fetch_add(1, AcqRel)),
        }
    }

    /// A child has a place, which may not be the one that was expected to be its.
    pub(super) fn arrive(&self, own: Member) {
        if own.0.is_some() {
            self.add(own);
        }
    }

    /// So many others that have no place.
    pub(super) fn add_unknown(&self, others: u32) {
        self.unknown.fetch_add(others, AcqRel);
    }

    pub(super) fn remove(&self, process: Member) {
        let known = |place: usize| self.known[place / 64].fetch_and(!bit(place), AcqRel) & bit(place) != 0;
        if !process.0.is_some_and(known) {
            let less = |unknown: u32| unknown.checked_sub(1);
            let _ = self.unknown.fetch_update(AcqRel, Acquire, less);
        }
    }

    pub(super) fn forget(&self, dead: &Places) {
        for (word, dead) in self.known.iter().zip(dead).filter(|(_, dead)| **dead != 0) {
            word.fetch_and(!dead, AcqRel);
        }
    }

    /// Whether no process that knows the socket is left.
    pub(super) fn are_gone(&self) -> bool {
        self.unknown.load(Acquire) == 0 && self.known.iter().all(|word| word.load(Acquire) == 0)
    }
}
