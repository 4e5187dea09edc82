//! Epoll sets that are looked at from outside: *inner* ones, inside another, their *outer* set, and ones that are
//! polled.
//!
//! Such a set is ready while it has something to tell, which only we know of its members on lanes. So whoever waits in
//! the outer set, or polls, looks at these members too, and arms them before it sleeps. What rings then is the inner
//! set's bell, and the kernel's sets, one inside the other, wake the sleeper.
//!
//! The outer set's registration of an inner one is the program's until the inner set has a member on a lane. Then its
//! data is a tag of ours, and what the kernel tells by it is only that the inner set is to be looked at: its bell may
//! have rung for a change of interest. A one-shot one stays as it is until the program arms it again, since only the
//! kernel knows whether it has fired.
//!
//! A set has one outer set at most, and no set in the middle: what goes beyond that is the kernel's (`back`). What is
//! noted of an inner set is changed by who owns it, and an outer set's list by who owns that; order: outer before
//! inner.

use crate::conn::records;
use crate::descriptors::table;
use crate::epoll::ctl::Asked;
use crate::epoll::set::{INNER, PARKED, SET, Set, member, set, set_links, tag};
use crate::epoll::{arm, back, lone, unregister};
use crate::lock::Guard;
use crate::ready;
use crate::sys::{self, Errno, Events, raw};
use core::sync::atomic::Ordering::{AcqRel, Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};
use libc::{EPOLLET, EPOLLEXCLUSIVE, EPOLLONESHOT, EPOLLWAKEUP};

/// What an outer set may not ask for an inner one, if that is to be ours.
const NOT_OURS: u32 = (EPOLLET | EPOLLEXCLUSIVE | EPOLLWAKEUP).cast_unsigned();

/// What an outer set has of an inner one.
#[derive(Debug)]
pub(crate) struct Place {
    /// The outer set's next inner one: its index, and one more; 0: none.
    next: AtomicU32,
    fd: AtomicI32,
    events: AtomicU32,
    data: AtomicU64,
    /// The kernel's registration has a tag of ours.
    ours: AtomicBool,
    /// A one-shot registration has fired.
    fired: AtomicBool,
    /// The kernel has told of it since it was last looked at.
    told: AtomicBool,
}

impl Place {
    pub(crate) const fn none() -> Self {
        Self {
            next: AtomicU32::new(0),
            fd: AtomicI32::new(0),
            events: AtomicU32::new(0),
            data: AtomicU64::new(0),
            ours: AtomicBool::new(false),
            fired: AtomicBool::new(false),
            told: AtomicBool::new(false),
        }
    }

    /// What the program registers.
    fn note(&self, asked: Asked) {
        self.fd.store(asked.fd, Relaxed);
        self.events.store(asked.events, Relaxed);
        self.data.store(asked.data, Relaxed);
        self.fired.store(false, Relaxed);
    }

    fn is_oneshot(&self) -> bool {
        self.events.load(Relaxed) & EPOLLONESHOT.cast_unsigned() != 0
    }
}

fn number(set: &Set) -> u32 {
    let offset = core::ptr::from_ref(set).addr() - SET.as_ptr().addr();
    u32::try_from(offset / size_of::<Set>() + 1).unwrap_or(0)
}

fn numbered(number: u32) -> Option<&'static Set> {
    set((number as usize).checked_sub(1)?)
}

impl Set {
    /// A new set, which is in no other.
    pub(crate) fn begin_outside(&self) {
        self.watched.store(false, Relaxed);
        self.outer.store(0, Relaxed);
        self.first_inner.store(0, Relaxed);
    }

    /// Whether the kernel may have something to tell of it that is no event of the program's: it has, or has had, a
    /// member on a lane.
    pub(crate) fn may_ring(&self) -> bool {
        self.emulated.load(Relaxed) != 0 || self.bell_number() != 0
    }

    /// The set that this one is in.
    #[inline]
    pub(crate) fn outer(&self) -> Option<&'static Self> {
        match self.outer.load(Relaxed) {
            0 => None,
            number => numbered(number),
        }
    }

    fn is_in(&self, outer: &Self) -> bool {
        self.outer().is_some_and(|of| core::ptr::eq(of, outer))
    }

    /// The sets in this one. It is owned.
    fn inner_sets(&self) -> impl Iterator<Item = &'static Self> + use<> {
        let mut next = self.first_inner.load(Relaxed);
        core::iter::from_fn(move || {
            let found = numbered(next)?;
            next = found.place.next.load(Relaxed);
            Some(found)
        })
    }

    /// Those of which who waits in this one is told by us.
    pub(crate) fn asked_sets(&self) -> impl Iterator<Item = &'static Self> + use<> {
        self.inner_sets().filter(|inner| inner.is_asked())
    }

    /// Whether who waits in the outer set is told of this one, by us.
    fn is_asked(&self) -> bool {
        let place = &self.place;
        let is_asked = place.events.load(Relaxed) & ready::IN != 0;
        is_asked && place.ours.load(Relaxed) && !place.fired.load(Relaxed)
    }

    /// Whether threads sleep in the outer set that are to be told of this one.
    #[inline]
    pub(crate) fn has_sleepers_outside(&self) -> bool {
        self.outer()
            .is_some_and(|outer| self.is_asked() && outer.sleepers.load(SeqCst) > 0)
    }

    /// Whether the descriptor by which the outer set has this one still leads to it.
    fn is_named_outside(&self) -> bool {
        let named = table::epoll_set(self.place.fd.load(Relaxed));
        named.is_some_and(|index| SET.get(index).is_some_and(|named| core::ptr::eq(named, self)))
    }

    /// Whether the kernel has told of it, by the outer set, since it was last looked at.
    pub(crate) fn has_been_told_of(&self) -> bool {
        self.place.told.load(Relaxed)
    }

    /// Whether who waits in the outer set is to be told of this one. That set is owned.
    pub(crate) fn is_ready_inside(&'static self, outer: &Self) -> bool {
        let Some(owner) = self.own() else { return true };
        let place = &self.place;
        if !self.has_been_told_of() {
            return self.is_due(&owner);
        }
        let is_ready = self.is_ready(&owner);
        place.told.store(is_ready, Relaxed);
        if !is_ready && place.is_oneshot() {
            // Which the kernel has told of once.
            let _ = self.register_outside(outer, libc::EPOLL_CTL_MOD, place.events.load(Relaxed));
        }
        is_ready
    }

    /// Before the kernel has anything of ours to tell in the set: the outer set's registration becomes ours, unless
    /// only the kernel knows whether it has fired. The set is owned.
    pub(crate) fn prepare_outside(&self) {
        if self.watched.load(Relaxed)
            && !self.place.ours.load(Relaxed)
            && !self.place.is_oneshot()
            && let Some(outer) = self.outer()
            && !self.is_kernels()
        {
            self.take_over(outer);
        }
    }

    /// The first member has come onto a lane: who polls the set, or waits for a registration of it that is not ours
    /// yet, is to look there. The set is owned.
    pub(crate) fn tell_outside(&self) {
        if self.watched.load(Relaxed) && !self.place.ours.load(Relaxed) {
            self.ring();
        }
    }

    /// Takes the outer set's registration of this one over; false if it cannot be changed. The set is owned.
    fn take_over(&self, outer: &Self) -> bool {
        let place = &self.place;
        place.ours.store(true, Relaxed);
        outer.note_tags();
        outer.emulates_one_more();
        let events = place.events.load(Relaxed);
        let taken = self.register_outside(outer, libc::EPOLL_CTL_MOD, events).is_ok();
        if !taken {
            self.give_back(outer);
        }
        taken
    }

    fn give_back(&self, outer: &Self) {
        if self.place.ours.swap(false, Relaxed) {
            outer.emulated.fetch_sub(1, Relaxed);
        }
    }

    /// The outer set is to tell of this one by a tag of ours.
    fn register_outside(&self, outer: &Self, operation: i32, events: u32) -> Result<(), Errno> {
        let data = tag() | u64::from(INNER | (number(self) - 1));
        let fd = self.place.fd.load(Relaxed);
        if !self.is_named_outside() {
            return Err(libc::EBADF);
        }
        raw::epoll_ctl(outer.fd(), operation, fd, events, data)
    }

    /// Who sleeps in the outer set has not armed this one if it was not asked for it then.
    fn tell_sleepers_outside(&self, owner: &Guard<'_>) {
        if self.has_sleepers_outside() && arm::arm_for_others(self, owner) {
            self.ring();
        }
    }
}

/// Tells of inner sets that have something to tell. `outer` is owned.
pub(crate) fn report(outer: &'static Set, events: &mut Events) {
    if outer.first_inner.load(Relaxed) == 0 {
        return;
    }
    let mut served = None;
    for inner in outer.asked_sets() {
        if events.room() == 0 {
            break;
        }
        if !inner.is_ready_inside(outer) {
            continue;
        }
        let place = &inner.place;
        place.told.store(false, Relaxed);
        place.fired.store(place.is_oneshot(), Relaxed);
        events.push(place.events.load(Relaxed) & ready::IN, place.data.load(Relaxed));
        served = Some(inner);
    }
    // Everyone gets a turn, even where the program takes few events at a time.
    if let Some(served) = served.filter(|_| events.room() == 0) {
        take_out(outer, served);
        put_last(outer, served);
    }
}

/// The kernel tells of the inner set with this index.
pub(crate) fn told(outer: &Set, index: usize) {
    if let Some(inner) = set(index).filter(|inner| inner.is_in(outer)) {
        inner.place.told.store(true, Relaxed);
    }
}

/// A thread has left the set amid what the kernel told. It is owned.
pub(crate) fn hear_again(outer: &Set) {
    outer
        .asked_sets()
        .for_each(|inner| inner.place.told.store(true, Relaxed));
}

fn take_out(outer: &Set, inner: &Set) {
    let mut link = &outer.first_inner;
    while let Some(found) = numbered(link.load(Relaxed)) {
        if core::ptr::eq(found, inner) {
            link.store(inner.place.next.load(Relaxed), Relaxed);
            return;
        }
        link = &found.place.next;
    }
}

fn put_last(outer: &Set, inner: &Set) {
    let mut link = &outer.first_inner;
    while let Some(found) = numbered(link.load(Relaxed)) {
        link = &found.place.next;
    }
    inner.place.next.store(0, Relaxed);
    link.store(number(inner), Relaxed);
}

/// What the program asks of a set inside another; `direct` is its own call.
pub(crate) fn control(asked: Asked, index: usize, direct: impl Fn() -> i32) -> i32 {
    let (outer, inner) = (set(asked.set), set(index));
    let known =
        inner.filter(|inner| inner.place.fd.load(Relaxed) == asked.fd && outer.is_some_and(|outer| inner.is_in(outer)));
    let ours = match (asked.operation, outer, inner) {
        (libc::EPOLL_CTL_ADD, Some(outer), Some(inner)) => {
            watch(index);
            put_into(outer, inner, asked, &direct)
        }
        (libc::EPOLL_CTL_MOD, Some(outer), Some(inner)) if known.is_some() => change(outer, inner, asked, &direct),
        _ => None,
    };
    if let Some(result) = ours {
        return result;
    }
    let result = direct();
    if result == 0 && asked.operation == libc::EPOLL_CTL_DEL {
        known.inspect(|_| leave(index, false));
    } else if result == 0 {
        known.inspect(|inner| inner.place.note(asked));
        back::nest(index);
    }
    result
}

/// As `epoll_ctl`.
fn answer(result: Result<(), Errno>) -> i32 {
    result.map_or_else(sys::fail, |()| 0)
}

/// The program registers an inner set anew; `None`: it is to be the kernel's.
fn change(outer: &'static Set, inner: &'static Set, asked: Asked, direct: impl Fn() -> i32) -> Option<i32> {
    let _outer = outer.own()?;
    let owner = inner.own()?;
    let place = &inner.place;
    if asked.events & NOT_OURS != 0 || !inner.is_in(outer) {
        return None;
    }
    let result = if place.ours.load(Relaxed) {
        answer(inner.register_outside(outer, libc::EPOLL_CTL_MOD, asked.events))
    } else {
        direct()
    };
    if result != 0 {
        return Some(result);
    }
    place.note(asked);
    if inner.may_ring() && (place.ours.load(Relaxed) || inner.take_over(outer)) {
        inner.tell_sleepers_outside(&owner);
    }
    Some(0)
}

/// The set is looked at from outside: the kernel's registrations are as the program made them, and all members of it
/// are known.
pub(crate) fn watch(index: usize) {
    let Some(set) = set(index) else { return };
    // A handler that has interrupted a call on the set leaves it to the next one that asks.
    let Some(owner) = set.own() else { return };
    if set.watched.swap(true, AcqRel) {
        return;
    }
    // Those that have begun before this may want the set.
    drop(owner);
    records::all()
        .filter(|conn| conn.lone.may_be_in(set))
        .for_each(|conn| _ = lone::settle(conn));
    let Some(_owner) = set.own() else { return };
    for member in set.members.iter(set_links).filter_map(member) {
        if member.has(PARKED) {
            unregister(set, member);
        }
    }
}

/// The program puts a set into another; `None`: it is to be the kernel's.
fn put_into(outer: &'static Set, inner: &'static Set, asked: Asked, direct: impl Fn() -> i32) -> Option<i32> {
    let _outer = outer.own()?;
    let owner = inner.own()?;
    let is_kernels = |set: &Set| set.nested.load(Relaxed) || set.is_inherited();
    let is_simple = inner.outer.load(Relaxed) == 0
        && inner.first_inner.load(Relaxed) == 0
        && outer.outer.load(Relaxed) == 0
        && asked.events & NOT_OURS == 0;
    if !is_simple || is_kernels(outer) || is_kernels(inner) {
        return None;
    }
    let place = &inner.place;
    place.note(asked);
    place.told.store(false, Relaxed);
    inner.outer.store(number(outer), Relaxed);
    let is_ours = inner.may_ring();
    if is_ours && inner.is_kernels() {
        inner.outer.store(0, Relaxed);
        return None;
    }
    place.ours.store(is_ours, Relaxed);
    let result = if is_ours {
        outer.note_tags();
        outer.emulates_one_more();
        answer(inner.register_outside(outer, libc::EPOLL_CTL_ADD, asked.events))
    } else {
        direct()
    };
    if result == 0 {
        put_last(outer, inner);
        inner.tell_sleepers_outside(&owner);
    } else {
        inner.give_back(outer);
        inner.outer.store(0, Relaxed);
    }
    Some(result)
}

/// The set is in its outer set no more, or only for the kernel: then, to `hand_back`, that has the program's
/// registration again.
pub(crate) fn leave(index: usize, hand_back: bool) {
    let Some(inner) = set(index) else { return };
    let Some(outer) = inner.outer() else { return };
    let (Some(_outer), Some(_inner)) = (outer.own(), inner.own()) else {
        return;
    };
    if !inner.is_in(outer) {
        return;
    }
    let place = &inner.place;
    if hand_back && place.ours.load(Relaxed) && inner.is_named_outside() {
        let events = if place.fired.load(Relaxed) {
            EPOLLONESHOT.cast_unsigned()
        } else {
            place.events.load(Relaxed)
        };
        let (fd, data) = (place.fd.load(Relaxed), place.data.load(Relaxed));
        let _ = raw::epoll_ctl(outer.fd(), libc::EPOLL_CTL_MOD, fd, events, data);
    }
    inner.give_back(outer);
    take_out(outer, inner);
    inner.outer.store(0, Relaxed);
}

/// The same for all sets in the one with this index; `each` is done with them then.
pub(crate) fn empty(index: usize, hand_back: bool, each: impl Fn(usize)) {
    let first = || (set(index)?.first_inner.load(Relaxed) as usize).checked_sub(1);
    while let Some(inner) = first() {
        leave(inner, hand_back);
        each(inner);
        if first() == Some(inner) {
            // A handler has interrupted a call on it.
            return;
        }
    }
}
