//! Which processes have a set from before a fork. As long as others may, whoever has inherited it leaves its
//! registrations to the kernel: another process that waits there would take the edge of one that is ours, and know
//! nothing of its tag.
//!
//! A set has a list of them in memory that the family shares. A forking process enters its child before there is one;
//! the child says then who it is. Who closes the set's last descriptor leaves the list, who ends is found dead. What
//! such a list cannot tell is marked in it for good, and everything stays as it is: a program that has the set from
//! `exec` or `posix_spawn`, a process that was passed it or whose number means nothing here, one too many, and tags of
//! ours that another process may have left in the kernel's set.

use crate::conn::Conn;
use crate::epoll::registrations;
use crate::epoll::set::{GUEST, Set};
use crate::epoll::share::all_sets;
use crate::process::{apart, is_confined, shared};
use crate::sys::{self, coarse_now_ns, raw};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, fence};

/// Lists of a family of processes. Sets beyond these stay as they are.
const LISTS: usize = 1024;
/// Processes on a list.
const PLACES: usize = 14;

/// Bits of a reference with the number of its list, from 1; those above tell it from others that have had its place.
const NUMBER: u32 = (1 << 11) - 1;
const _: () = assert!(LISTS <= NUMBER as usize);
/// [`Set::sharers`]: it has been shared without a list.
const UNKNOWN: u32 = u32::MAX;
/// In [`Sharers::used`]: not known by a reference yet.
const TAKEN: u32 = u32::MAX;

/// In a place: the process with this number has a child that has not come to itself.
const EXPECTED: u32 = 1 << 31;

/// In [`Sharers::marks`]: others may have the set, of which nobody can tell when they have it no more.
const STRAYED: u32 = 1 << 0;
/// In [`Sharers::marks`]: one of the processes has or had registrations of ours in it.
const TAGGED: u32 = 1 << 1;

/// After a look that found others, the next one waits for so long.
const PAUSE_NS: u64 = 20_000_000;

/// Between two searches for lists that nobody needs any more.
const SELDOM_NS: u64 = 1_000_000_000;

/// The processes that have one set.
#[derive(Debug)]
#[repr(C, align(64))]
struct Sharers {
    /// The reference by which it is known; 0: it is free.
    used: AtomicU32,
    marks: AtomicU32,
    /// Their numbers, or 0.
    places: [AtomicU32; PLACES],
}

/// What processes share.
#[derive(Debug)]
#[repr(C)]
struct Lists {
    turn: AtomicU32,
    all: [Sharers; LISTS],
}

static REGION: AtomicPtr<Lists> = AtomicPtr::new(core::ptr::null_mut());

fn known() -> Option<&'static Lists> {
    let region = REGION.load(Acquire);
    (!region.is_null()).then(|| sys::shared_record(region, 0))
}

/// The memory, made for this process and its children if there is none.
fn lists() -> Option<&'static Lists> {
    known().or_else(|| {
        let fresh = shared::memory(size_of::<Lists>()).ok()?;
        // Release pairs with the acquire in `known`. A loser's region is never used; it costs address space only.
        let _ = REGION.compare_exchange(core::ptr::null_mut(), fresh.cast(), Release, Relaxed);
        known()
    })
}

/// The list with this reference, if there is one.
fn numbered(reference: u32) -> Option<&'static Sharers> {
    let index = ((reference & NUMBER) as usize).checked_sub(1)?;
    let list = known()?.all.get(index)?;
    (list.used.load(Acquire) == reference).then_some(list)
}

/// The reference of a new list, with this process on it.
fn claim(own: u32) -> Option<u32> {
    let lists = lists()?;
    let take = || {
        let free = |list: &Sharers| list.used.compare_exchange(0, TAKEN, AcqRel, Relaxed).is_ok();
        (1_u32..).zip(&lists.all).find(|(_, list)| free(list))
    };
    let (number, list) = take().or_else(|| {
        lists.free_orphans();
        take()
    })?;
    list.begin(own);
    let turn = lists.turn.fetch_add(1, Relaxed) % (UNKNOWN >> NUMBER.count_ones());
    let reference = turn << NUMBER.count_ones() | number;
    list.used.store(reference, Release);
    Some(reference)
}

impl Lists {
    /// Frees the lists of sets that nobody has any more. Seldom: it asks for many.
    fn free_orphans(&self) {
        static LAST_NS: AtomicU64 = AtomicU64::new(0);
        let now = coarse_now_ns();
        if now.saturating_sub(LAST_NS.load(Relaxed)) >= SELDOM_NS {
            LAST_NS.store(now, Relaxed);
            self.all.iter().for_each(Sharers::free_if_orphaned);
        }
    }
}

fn is_gone(content: u32) -> bool {
    content & EXPECTED == 0 && content != 0 && !raw::thread_alive(content)
}

impl Sharers {
    fn begin(&self, own: u32) {
        self.marks.store(0, Relaxed);
        for (index, place) in self.places.iter().enumerate() {
            place.store(if index == 0 { own } else { 0 }, Relaxed);
        }
    }

    fn mark(&self, what: u32) {
        self.marks.fetch_or(what, SeqCst);
    }

    fn contents(&self) -> [u32; PLACES] {
        core::array::from_fn(|index| self.places.get(index).map_or(0, |place| place.load(Acquire)))
    }

    /// Has a place that holds what is `known` hold this instead; false if there is none.
    fn replace(&self, known: impl Fn(u32) -> bool, content: u32) -> bool {
        self.places.iter().any(|place| {
            let seen = place.load(Acquire);
            known(seen) && place.compare_exchange(seen, content, AcqRel, Relaxed).is_ok()
        })
    }

    /// This process is about to make a child.
    fn expect(&self, own: u32) {
        let child = EXPECTED | own;
        if self.marks.load(Acquire) & STRAYED != 0 {
            // There is nothing to be told any more.
            return;
        }
        if !self.replace(|content| content == 0, child) && !self.replace(is_gone, child) {
            self.mark(STRAYED);
        }
    }

    /// It has not made one.
    fn withdraw(&self, own: u32) {
        self.replace(|content| content == EXPECTED | own, 0);
    }

    /// This process is a child of `parent`: which, does not matter.
    fn arrive(&self, parent: u32, own: u32) {
        if !self.replace(|content| content == EXPECTED | parent, own) {
            self.mark(STRAYED);
        }
    }

    /// This process may have it again.
    fn come_back(&self, own: u32) {
        if !self.contents().contains(&own) && !self.replace(|content| content == 0, own) {
            self.mark(STRAYED);
        }
    }

    /// This process has the set no more.
    fn leave(&self, reference: u32, own: u32) {
        self.replace(|content| content == own, 0);
        // With nobody on it, nobody comes any more.
        if self.contents() == [0; PLACES] {
            let _ = self.used.compare_exchange(reference, 0, AcqRel, Relaxed);
        }
    }

    fn free_if_orphaned(&self) {
        let reference = self.used.load(Acquire);
        let is_left = |content: u32| content != 0 && !is_gone(content);
        if reference != TAKEN && !self.contents().into_iter().any(is_left) {
            let _ = self.used.compare_exchange(reference, 0, AcqRel, Relaxed);
        }
    }

    /// Whether nobody but this process has the set, which does not make a child meanwhile.
    fn is_alone(&self, own: u32) -> bool {
        let seen = self.contents();
        let others = || seen.into_iter().filter(|content| *content != 0 && *content != own);
        if self.marks.load(Acquire) != 0 || !seen.contains(&own) || !others().all(is_gone) {
            return false;
        }
        // One of them may have made a child and ended since it was looked for.
        fence(SeqCst);
        if self.marks.load(Acquire) != 0
            || !self
                .contents()
                .iter()
                .all(|content| *content == 0 || seen.contains(content))
        {
            return false;
        }
        // Their numbers will be others'.
        others().for_each(|dead| _ = self.replace(|content| content == dead, 0));
        true
    }
}

/// Whether processes can be told by their numbers, and asked for.
fn are_told() -> bool {
    !apart::is_apart() && !is_confined()
}

impl Set {
    fn list(&self) -> Option<&'static Sharers> {
        numbered(self.sharers.load(Relaxed))
    }

    /// Others may have the set from now on, nobody knows for how long.
    pub(crate) fn strays(&self) {
        match self.list() {
            Some(list) => list.mark(STRAYED),
            None => self.sharers.store(UNKNOWN, Relaxed),
        }
    }

    /// Before registrations of ours are in the kernel's set. The set is owned.
    pub(crate) fn note_tags(&self) {
        // By now it may be this process's alone, and does not become so any more.
        let _ = self.is_inherited();
        self.tagged.store(true, Relaxed);
        if let Some(list) = self.list() {
            list.mark(TAGGED);
        }
    }

    /// Whether the process has the set from before a fork and others may still have it. The set is owned.
    pub(crate) fn is_inherited(&self) -> bool {
        if !self.inherited.load(Relaxed) {
            return false;
        }
        let now = coarse_now_ns();
        if now.saturating_sub(self.asked_ns.load(Relaxed)) < PAUSE_NS {
            return true;
        }
        self.asked_ns.store(now, Relaxed);
        if are_told() && self.list().is_some_and(|list| list.is_alone(raw::getpid())) {
            self.shared.store(false, Relaxed);
            self.inherited.store(false, Relaxed);
            return false;
        }
        true
    }

    /// Before a fork that shares the set. The set is owned.
    pub(crate) fn expect_sharer(&self) {
        if !are_told() {
            return self.strays();
        }
        let own = raw::getpid();
        if !self.shared.load(Relaxed) && self.sharers.load(Relaxed) == 0 {
            self.sharers.store(claim(own).unwrap_or(UNKNOWN), Relaxed);
        }
        if let Some(list) = self.list() {
            list.expect(own);
            if self.tagged.load(Relaxed) {
                list.mark(TAGGED);
            }
        }
    }

    /// In a child of `parent`, which has the set from it.
    pub(crate) fn arrive(&self, parent: u32) {
        self.inherited.store(true, Relaxed);
        self.asked_ns.store(0, Relaxed);
        match self.list() {
            // Else the child that was expected never comes.
            Some(list) if are_told() => list.arrive(parent, raw::getpid()),
            _ => self.sharers.store(UNKNOWN, Relaxed),
        }
    }

    /// Its last descriptor in this process goes.
    pub(crate) fn leave_sharers(&self) {
        // Who sleeps there sleeps on in the kernel's set.
        if let Some(list) = self.list().filter(|_| !self.has_sleepers()) {
            list.leave(self.sharers.load(Relaxed), raw::getpid());
        }
    }

    /// Whether a program that the process becomes, or makes, has the set as well.
    fn is_kept(&self) -> bool {
        let flags = raw::fcntl(self.fd(), libc::F_GETFD, 0);
        // Of several descriptors any may be.
        self.references.load(Relaxed) != 1 || flags.is_ok_and(|flags| flags & libc::FD_CLOEXEC as usize == 0)
    }
}

/// There is no child after all.
pub(crate) fn fork_failed() {
    let own = raw::getpid();
    all_sets().filter_map(Set::list).for_each(|list| list.withdraw(own));
}

/// The process makes one that becomes another program, by a call that is no fork: sets that go to it may go anywhere.
/// `stays`: the new process may also stay what it is.
pub(crate) fn spawning(stays: bool) {
    all_sets().filter(|set| stays || set.is_kept()).for_each(Set::strays);
}

/// The process is about to become another program: the sets that do not go to it are others' alone.
pub(crate) fn executing() {
    for set in all_sets() {
        if set.is_kept() {
            set.strays();
        } else {
            set.leave_sharers();
        }
    }
}

/// It has not. Another process that has taken a set for its own since keeps it.
pub(crate) fn executing_failed() {
    let own = raw::getpid();
    all_sets().filter_map(Set::list).for_each(|list| list.come_back(own));
}

/// Whether the connection is to stay on TCP, having been registered in a set that others may have. Nothing may be
/// owned.
pub(crate) fn hold_back(conn: &Conn) -> bool {
    registrations(conn)
        .filter(|member| member.has(GUEST))
        .filter_map(|member| member.set())
        .any(|set| set.inherited.load(Relaxed) && set.own().is_none_or(|_owner| set.is_inherited()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn own() -> u32 {
        raw::getpid()
    }

    fn list() -> Sharers {
        let list = Sharers {
            used: AtomicU32::new(1),
            marks: AtomicU32::new(STRAYED),
            places: [const { AtomicU32::new(7) }; PLACES],
        };
        list.begin(own());
        list
    }

    fn living() -> Child {
        Command::new("sleep").arg("60").spawn().unwrap()
    }

    fn end(mut process: Child) {
        process.kill().unwrap();
        process.wait().unwrap();
    }

    #[test]
    fn who_lives_or_is_expected_has_the_set() {
        let (list, parent) = (list(), living());
        assert!(list.is_alone(own()));
        list.expect(parent.id());
        assert!(!list.is_alone(own()), "a child is on its way");
        list.arrive(parent.id(), parent.id());
        assert!(!list.is_alone(own()));
        assert!(!list.is_alone(own() + 1), "who is not on it knows nothing");
        end(parent);
        assert!(list.is_alone(own()));
        assert_eq!(list.contents().iter().filter(|content| **content != 0).count(), 1);
    }

    #[test]
    fn a_process_that_has_ended_and_is_not_waited_for_is_gone() {
        let (list, mut other) = (list(), living());
        list.expect(other.id());
        list.arrive(other.id(), other.id());
        other.kill().unwrap();
        while !list.is_alone(own()) {
            std::thread::yield_now();
        }
        other.wait().unwrap();
    }

    #[test]
    fn of_several_children_each_is_one() {
        let (list, parent, other) = (list(), living(), living());
        list.expect(parent.id());
        list.expect(parent.id());
        list.arrive(parent.id(), other.id());
        list.leave(1, other.id());
        end(other);
        end(parent);
        assert!(!list.is_alone(own()), "the other has not come");
        assert_eq!(list.marks.load(Relaxed), 0);
    }

    #[test]
    fn who_has_no_place_is_marked() {
        let list = list();
        (1..PLACES).for_each(|_| list.expect(own()));
        assert_eq!(list.marks.load(Relaxed), 0);
        list.withdraw(own());
        list.expect(own());
        assert_eq!(list.marks.load(Relaxed), 0);
        list.expect(own());
        (1..PLACES).for_each(|_| list.withdraw(own()));
        assert!(!list.is_alone(own()));
    }

    #[test]
    fn the_places_of_the_dead_are_given_to_others() {
        let (list, other) = (list(), living());
        list.expect(other.id());
        list.arrive(other.id(), other.id());
        (2..PLACES).for_each(|_| list.expect(own()));
        end(other);
        list.expect(own());
        assert_eq!(list.marks.load(Relaxed), 0);
        list.expect(own());
        assert_eq!(list.marks.load(Relaxed), STRAYED);
    }

    #[test]
    fn a_child_that_nobody_has_expected_is_marked() {
        let (list, parent) = (list(), living());
        list.arrive(parent.id(), own() + 1);
        assert!(!list.is_alone(own()));
        end(parent);
    }

    #[test]
    fn who_has_not_become_another_program_has_the_set() {
        let (list, other) = (list(), living());
        list.expect(other.id());
        list.arrive(other.id(), other.id());
        list.leave(1, other.id());
        list.come_back(other.id());
        assert!(!list.is_alone(own()));
        end(other);
        list.come_back(own());
        assert!(list.is_alone(own()));
        assert_eq!(list.contents().iter().filter(|content| **content == own()).count(), 1);
    }

    #[test]
    fn the_list_of_a_set_that_nobody_has_is_free() {
        let list = list();
        list.expect(own());
        list.leave(1, own());
        assert_eq!(list.used.load(Relaxed), 1, "a child is to come");
        list.arrive(own(), own() + 1);
        list.leave(1, own() + 1);
        assert_eq!(list.used.load(Relaxed), 0);
    }
}
