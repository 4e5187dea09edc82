//! Which processes know a socket that is searched: a forked child knows what its parent knew. One that is killed tells
//! nobody, so processes have places of their own, and those of the dead are found where room is needed.

use crate::lock::{self, Guard};
use crate::process::{apart, is_confined, thread};
use crate::sys::{coarse_now_ns, listing, raw};
use core::cell::Cell;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// Processes that are told apart.
const PROCESSES: usize = 512;

/// Bits of a place with the number of its process: none is larger (`PID_MAX_LIMIT`, linux/threads.h).
const NUMBER: u32 = (1 << SEEN) - 1;
/// In a place: the process with this number has a child that has not come to itself.
const EXPECTED: u32 = 1 << 31;
/// The first of the bits between with the second, from 1 to [`CYCLE`], in which that process was found dead; 0: it was
/// not.
const SEEN: u32 = 22;
const CYCLE: u32 = (EXPECTED >> SEEN) - 1;
/// Seconds that its child has from then on to come to itself.
const PATIENCE: u32 = 10;

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
/// Whether this process's parent had no place for it, and counted it among the unknown.
static UNKNOWN_HERE: AtomicBool = AtomicBool::new(false);

/// What a thread knows of the children that it makes: of more than one where a handler forks that has interrupted a
/// fork. Each child has a copy.
#[derive(Debug)]
pub(crate) struct Forking {
    /// Forks that have begun.
    depth: Cell<usize>,
    notes: [Note; DEEPEST],
}

/// Children of forks within more than these have no places.
const DEEPEST: usize = 3;

/// Of one child.
#[derive(Debug)]
struct Note {
    /// One more than the place for it; 0: none is needed. [`NO_ROOM`]: there was none.
    place: Cell<u32>,
    /// What stands there.
    content: Cell<u32>,
    /// Number of the thread's latest child before it; 0: none. [`UNTOLD`]: it cannot be asked for.
    before: Cell<u32>,
}

const NO_ROOM: u32 = u32::MAX;
const UNTOLD: u32 = u32::MAX;

impl Forking {
    pub(crate) const fn none() -> Self {
        Self {
            depth: Cell::new(0),
            notes: [const {
                Note {
                    place: Cell::new(0),
                    content: Cell::new(0),
                    before: Cell::new(0),
                }
            }; DEEPEST],
        }
    }

    /// The note of the fork that has begun last.
    fn note(&self) -> Option<&Note> {
        self.notes.get(self.depth.get().saturating_sub(1))
    }

    pub(super) fn begin(&self) {
        // The latest child may be this fork's from now on.
        for outer in self.notes.iter().take(self.depth.get()) {
            outer.before.set(UNTOLD);
        }
        self.depth.set(self.depth.get() + 1);
        if let Some(note) = self.note() {
            note.place.set(0);
        }
    }

    /// In the parent: the fork that has begun last has ended. Its note is another's from now on, even a handler's.
    fn end(&self) {
        // Saturating: a handler may have been the first to search.
        self.depth.set(self.depth.get().saturating_sub(1));
    }

    /// In the child: a fork that was interrupted by the one that has made it, and that it goes on with, is its own.
    fn forget(&self) {
        self.depth.set(0);
        for note in &self.notes {
            note.place.set(0);
        }
    }
}

impl Note {
    fn place(&self) -> Option<usize> {
        let place = self.place.get();
        (place as usize).checked_sub(1).filter(|_| place != NO_ROOM)
    }
}

/// Number of the calling thread's latest child, 0 if it has none; `None` where that is not told.
fn latest_child() -> Option<u32> {
    let mut latest = 0;
    let told = !is_confined() && listing::children(|child| latest = child);
    told.then_some(latest)
}

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

    fn content(&self, place: usize) -> u32 {
        self.places.get(place).map_or(0, |place| place.load(Acquire))
    }

    fn put(&self, place: usize, content: u32) {
        if let Some(place) = self.places.get(place) {
            place.store(content, Release);
        }
    }

    /// A free place gets this content, if need be one of the dead, which `forget` is told to forget. Owned by the
    /// caller.
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
        if known.0.is_some() || apart::is_apart() {
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

    /// Whether this process is counted among the unknown of each socket that its parent knew as it was made.
    pub(super) fn is_unknown() -> bool {
        UNKNOWN_HERE.load(Relaxed)
    }

    /// A place for the child that this thread is about to make.
    pub(super) fn expect(&'static self, forget: impl Fn(&Places)) -> Member {
        let Some(note) = thread::this().forking.note() else {
            return Member(None);
        };
        let content = EXPECTED | raw::getpid();
        note.before.set(latest_child().unwrap_or(UNTOLD));
        let place = match self.own().filter(|_| !apart::is_apart()) {
            Some(_guard) => self.join(content, forget),
            None => Member(None),
        };
        note.content.set(content);
        note.place.set(match place.number() {
            0 => NO_ROOM,
            number => number,
        });
        place
    }

    /// In a child: takes the place that its parent has for it, or another if the parent took it for dead.
    pub(super) fn arrive(&'static self, forget: impl Fn(&Places)) {
        let forking = &thread::this().forking;
        let note = forking.note();
        UNKNOWN_HERE.store(note.is_none_or(|note| note.place.get() == NO_ROOM), Relaxed);
        let expected = note.and_then(|note| Some((note, note.place()?)));
        forking.forget();
        OWN.store(0, Relaxed);
        let Some((note, place)) = expected.filter(|_| !apart::is_apart()) else {
            // Or nothing that it knows is searched.
            return;
        };
        let pid = raw::getpid();
        let _guard = self.own();
        // Who cannot ask who the child is keeps the places of those that were killed on the way: the first of them is
        // as good, and few add up.
        let untold = note.before.get() == UNTOLD;
        let place = self.find(note.content.get()).filter(|_| untold).unwrap_or(place);
        let content = self.content(place);
        let own = if content == pid || content & (EXPECTED | NUMBER) == note.content.get() {
            self.put(place, pid);
            Member(Some(place))
        } else {
            self.join(pid, forget)
        };
        own.is_this_process();
    }

    /// In a parent: says who the child is, lest it be killed before it does. If there is none, its place is free again.
    pub(super) fn made(&'static self, forget: impl Fn(&Places)) {
        let forking = &thread::this().forking;
        let noted = forking
            .note()
            .map(|note| (note.place(), note.content.get(), note.before.get()));
        forking.end();
        let Some((expected, content, before)) = noted else {
            return;
        };
        let has_not_arrived = |place: &usize| self.content(*place) == content;
        // Asked without the table, which the child needs.
        let Some(place) = expected.filter(has_not_arrived) else {
            return;
        };
        // Who could not ask before cannot tell which child is new.
        let Some(latest) = latest_child().filter(|_| before != UNTOLD) else {
            return;
        };
        let Some(_guard) = self.own().filter(|_| has_not_arrived(&place)) else {
            return;
        };
        // No new one: it could not be made, or has ended and is forgotten.
        if latest == before || self.find(latest).is_some() {
            forget(&only(place));
            self.put(place, 0);
        } else {
            self.put(place, latest);
        }
    }

    /// Frees the places of the dead.
    pub(super) fn forget_the_dead(&'static self, forget: impl Fn(&Places)) {
        if let Some(_guard) = self.own().filter(|_| !apart::is_apart()) {
            self.bury(forget);
        }
    }

    fn bury(&self, forget: impl Fn(&Places)) {
        let seconds = coarse_now_ns() / 1_000_000_000;
        self.bury_at(u32::try_from(seconds % u64::from(CYCLE)).unwrap_or(0) + 1, forget);
    }

    /// `second`: as [`SEEN`] has it.
    fn bury_at(&self, second: u32, forget: impl Fn(&Places)) {
        let mut all: Places = [0; _];
        for index in 0..PROCESSES {
            let content = self.content(index);
            let (number, seen) = (content & NUMBER, content >> SEEN & CYCLE);
            if number == 0 || raw::thread_alive(number) {
                continue;
            }
            if content & EXPECTED != 0 && seen == 0 {
                self.put(index, content | second << SEEN);
            } else if content & EXPECTED == 0 || (second + CYCLE - seen) % CYCLE >= PATIENCE {
                all[index / 64] |= bit(index);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::sync::Barrier;

    const NONE: Places = [0; _];

    fn family() -> &'static Family {
        Box::leak(Box::new(Family {
            owner: AtomicU32::new(0),
            places: [const { AtomicU32::new(0) }; PROCESSES],
        }))
    }

    fn contents(family: &Family) -> Vec<u32> {
        let all = family.places.iter().map(|place| place.load(Relaxed));
        all.filter(|content| *content != 0).collect()
    }

    #[test]
    fn an_older_child_gets_no_place_of_one_that_could_not_be_made() {
        let mut older = Command::new("sleep").arg("60").spawn().unwrap();
        let (family, forgotten) = (family(), Cell::new(None));
        let place = family.expect(|_| ()).0.unwrap();
        family.made(|places| forgotten.set(Some(*places)));
        assert_eq!(contents(family), [0_u32; 0]);
        assert_eq!(forgotten.get(), Some(only(place)));
        older.kill().unwrap();
        older.wait().unwrap();
    }

    #[test]
    fn a_child_that_has_been_made_gets_its_place() {
        let family = family();
        assert!(family.expect(|_| ()).0.is_some());
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        family.made(|_| unreachable!("there is a child"));
        assert_eq!(contents(family), [child.id()]);
        child.kill().unwrap();
        child.wait().unwrap();
        family.bury(|_| ());
        assert_eq!(contents(family), [0_u32; 0]);
    }

    #[test]
    fn a_fork_within_another_leaves_the_place_of_the_outer_child() {
        let (family, forking) = (family(), &thread::this().forking);
        forking.begin();
        let outer = family.expect(|_| ());
        forking.begin();
        let inner = family.expect(|_| ());
        assert!(outer.0.is_some() && inner.0.is_some() && outer.0 != inner.0);
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        family.made(|_| unreachable!("there is a child"));
        // It is not taken for the outer one, which has its place.
        let waits = EXPECTED | raw::getpid();
        assert_eq!(contents(family), [waits, child.id()]);
        assert_eq!(forking.note().and_then(Note::place), outer.0);
        family.made(|_| unreachable!("there may be a child"));
        assert_eq!((contents(family), forking.depth.get()), (vec![waits, child.id()], 0));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn forks_within_many_others_have_no_places() {
        let (family, forking) = (family(), &thread::this().forking);
        let expect = || {
            forking.begin();
            family.expect(|_| ()).0
        };
        let places: Vec<_> = core::iter::repeat_with(expect).take(DEEPEST + 2).collect();
        assert_eq!(places, [Some(0), Some(1), Some(2), None, None]);
        places.iter().for_each(|_| family.made(|_| ()));
        assert_eq!(forking.depth.get(), 0);
    }

    #[test]
    fn threads_make_children_at_a_time() {
        let (family, both) = (family(), Barrier::new(2));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    family.expect(|_| ());
                    both.wait();
                    family.made(|_| ());
                });
            }
        });
        assert_eq!(contents(family), [0_u32; 0]);
    }

    #[test]
    fn a_dead_parents_child_is_waited_for_a_while() {
        for seen in [100, CYCLE - 3] {
            let (family, forgotten) = (family(), Cell::new(NONE));
            let mut parent = Command::new("true").spawn().unwrap();
            let living = EXPECTED | raw::getpid();
            family.put(2, living);
            family.put(3, EXPECTED | parent.id());
            parent.wait().unwrap();
            let bury = |later: u32| {
                family.bury_at((seen + later - 1) % CYCLE + 1, |places| forgotten.set(*places));
            };
            bury(0);
            bury(PATIENCE - 1);
            assert_eq!((contents(family).len(), forgotten.get()), (2, NONE));
            bury(PATIENCE);
            assert_eq!((contents(family), forgotten.get()), (vec![living], only(3)));
        }
    }
}
