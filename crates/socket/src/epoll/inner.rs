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
//! noted of an inner set is changed by who owns it, and which sets are in an outer one by who owns both; order: outer
//! before inner.

use crate::conn::records;
use crate::descriptors::table;
use crate::epoll::ctl::Asked;
use crate::epoll::place::index_of;
use crate::epoll::set::{INNER, PARKED, SET, Set, member, set, set_links, tag};
use crate::epoll::{arm, back, lone, unregister};
use crate::lock::{self, Guard};
use crate::ready;
use crate::sys::{self, Errno, Events, raw};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use libc::{EPOLLET, EPOLLEXCLUSIVE, EPOLLONESHOT, EPOLLWAKEUP};

/// What an outer set may not ask for an inner one, if that is to be ours.
const NOT_OURS: u32 = (EPOLLET | EPOLLEXCLUSIVE | EPOLLWAKEUP).cast_unsigned();

/// Owned, before any set, by who puts one into another, and by who forks. So the latter knows which sets are outer
/// ones, and owns them first.
static LINKS: AtomicU32 = AtomicU32::new(0);

impl Set {
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
        let Some(owner) = self.own_inside() else { return false };
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
            && let Some(outer) = self.outer()
            && !self.is_kernels()
        {
            self.be_counted(outer);
            if !self.place.ours.load(Relaxed) && !self.place.is_oneshot() {
                self.take_over(outer);
            }
        }
    }

    /// The first member has come onto a lane: who polls the set, or waits for a registration of it that is not ours
    /// yet, is to look there. The set is owned.
    pub(crate) fn tell_outside(&self) {
        if self.watched.load(Relaxed) && !self.place.ours.load(Relaxed) {
            self.ring();
        }
    }

    /// Who waits in the outer set does so by us.
    fn be_counted(&self, outer: &Self) {
        if !self.place.counted.swap(true, Relaxed) {
            outer.emulates_one_more();
        }
    }

    /// Takes the outer set's registration of this one over; false if it cannot be changed. The set is owned.
    fn take_over(&self, outer: &Self) -> bool {
        let place = &self.place;
        place.ours.store(true, Relaxed);
        let events = place.events.load(Relaxed);
        let taken = self.register_outside(outer, libc::EPOLL_CTL_MOD, events).is_ok();
        place.ours.store(taken, Relaxed);
        taken
    }

    fn be_counted_no_more(&self, outer: &Self) {
        self.place.ours.store(false, Relaxed);
        if self.place.counted.swap(false, Relaxed) {
            let one_less = |count: u32| count.checked_sub(1);
            let _ = outer.emulated.fetch_update(Relaxed, Relaxed, one_less);
        }
    }

    /// The outer set is to tell of this one by a tag of ours.
    fn register_outside(&self, outer: &Self, operation: i32, events: u32) -> Result<(), Errno> {
        let data = tag() | u64::from(INNER | index_of(self));
        let fd = self.place.fd.load(Relaxed);
        if !self.is_named_outside() {
            return Err(libc::EBADF);
        }
        raw::epoll_ctl(outer.fd(), operation, fd, events, data)
    }

    /// Who sleeps in the outer set has not armed this one if it was not asked for it then; who polls that set may do so
    /// without us.
    fn tell_sleepers_outside(&self, outer: &Self, owner: &Guard<'_>) {
        if self.has_sleepers_outside() && arm::arm_for_others(self, owner)
            || outer.watched.load(Relaxed) && self.may_ring()
        {
            self.ring();
        }
    }
}

/// Tells of inner sets that have something to tell. `outer` is owned.
pub(crate) fn report(outer: &'static Set, events: &mut Events) {
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
        // Everyone gets a turn, even where the program takes few events at a time.
        outer.place.turn.store(index_of(inner) + 1, Relaxed);
    }
}

/// The kernel tells of the inner set with this index; whether that is news.
pub(crate) fn told(outer: &Set, index: usize) -> bool {
    set(index).is_some_and(|inner| inner.is_in(outer) && !inner.place.told.swap(true, Relaxed))
}

/// A thread has left the set amid what the kernel told. It is owned.
pub(crate) fn hear_again(outer: &Set) {
    outer
        .asked_sets()
        .for_each(|inner| inner.place.told.store(true, Relaxed));
}

/// The same for threads that have looked into inner sets from outside.
pub(crate) fn hear_left_again(outer: &Set) {
    if outer.has_inner_sets() {
        outer.inner_sets().for_each(Set::hear_again);
    }
}

/// What the program asks of a set inside another; `direct` is its own call.
pub(crate) fn control(asked: Asked, index: usize, direct: impl Fn() -> i32) -> i32 {
    let (Some(outer), Some(inner)) = (set(asked.set), set(index)) else {
        let result = direct();
        if result == 0 && asked.operation == libc::EPOLL_CTL_ADD {
            back::nest(index);
        }
        return result;
    };
    let generations = [outer, inner].map(|set| set.generation.load(Relaxed));
    let is_known = inner.place.fd.load(Relaxed) == asked.fd && inner.is_in(outer);
    let ours = match asked.operation {
        libc::EPOLL_CTL_ADD => {
            watch(index);
            put_into([outer, inner], generations, asked, &direct)
        }
        libc::EPOLL_CTL_MOD if is_known => change(outer, inner, asked, &direct),
        _ => None,
    };
    if let Some(result) = ours {
        return result;
    }
    let result = direct();
    if result == 0 && asked.operation != libc::EPOLL_CTL_DEL {
        if is_known {
            inner.place.note(asked);
        }
        back::nest(index);
    } else if result == 0 && is_known {
        leave(index, false);
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
    let owner = inner.own_inside()?;
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
    if inner.may_ring() && !inner.is_kernels() {
        inner.be_counted(outer);
        if !place.ours.load(Relaxed) {
            inner.take_over(outer);
        }
        inner.tell_sleepers_outside(outer, &owner);
    }
    Some(0)
}

/// The set is looked at from outside: the kernel's registrations are as the program made them, and all members of it
/// are known.
pub(crate) fn watch(index: usize) {
    let Some(set) = set(index).filter(|set| !set.watched.load(Relaxed)) else {
        return;
    };
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

/// The program puts a set into another; `None`: it is to be the kernel's. `generations`: what they were when it asked.
fn put_into(
    [outer, inner]: [&'static Set; 2],
    generations: [u32; 2],
    asked: Asked,
    direct: impl Fn() -> i32,
) -> Option<i32> {
    let _links = lock::acquire_local(&LINKS)?;
    let is_simple = inner.outer().is_none()
        && !inner.has_inner_sets()
        && outer.outer().is_none()
        && !core::ptr::eq(outer, inner)
        && asked.events & NOT_OURS == 0;
    if !is_simple {
        return None;
    }
    let _outer = outer.own_inside()?;
    let owner = inner.own_inside()?;
    let is_open = |(set, generation): (&Set, u32)| {
        set.references.load(Relaxed) != 0 && set.generation.load(Relaxed) == generation
    };
    if ![outer, inner].into_iter().zip(generations).all(is_open) {
        // Another thread has closed it meanwhile, and its place may be another's.
        return Some(direct());
    }
    let is_kernels = |set: &Set| set.nested.load(Relaxed) || set.inherited.load(Relaxed);
    if is_kernels(outer) || is_kernels(inner) {
        return None;
    }
    let place = &inner.place;
    place.note(asked);
    [&place.told, &place.counted, &place.ours]
        .into_iter()
        .for_each(|flag| flag.store(false, Relaxed));
    place.generation.store(outer.generation.load(Relaxed), Relaxed);
    inner.outer.store(index_of(outer) + 1, Relaxed);
    let is_ours = inner.may_ring();
    if is_ours && inner.is_kernels() {
        inner.outer.store(0, Relaxed);
        return None;
    }
    let (index, others) = (index_of(inner), outer.inner_sets.load(Relaxed) != 0);
    let least = if others { outer.place.least.load(Relaxed) } else { index };
    let greatest = if others {
        outer.place.greatest.load(Relaxed)
    } else {
        index
    };
    outer.place.least.store(least.min(index), Relaxed);
    outer.place.greatest.store(greatest.max(index), Relaxed);
    outer.inner_sets.fetch_add(1, Relaxed);
    place.ours.store(is_ours, Relaxed);
    let result = if is_ours {
        inner.be_counted(outer);
        answer(inner.register_outside(outer, libc::EPOLL_CTL_ADD, asked.events))
    } else {
        direct()
    };
    if result == 0 {
        inner.tell_sleepers_outside(outer, &owner);
    } else {
        take_out(outer, inner);
    }
    Some(result)
}

/// Both are owned.
fn take_out(outer: &Set, inner: &Set) {
    inner.be_counted_no_more(outer);
    inner.outer.store(0, Relaxed);
    outer.inner_sets.fetch_sub(1, Relaxed);
}

/// The set is in its outer set no more, or only for the kernel: then, to `hand_back`, that has the program's
/// registration again.
pub(crate) fn leave(index: usize, hand_back: bool) {
    let Some(inner) = set(index) else { return };
    let (outer, _owned) = loop {
        let Some(outer) = inner.outer() else { return };
        let Some(owner) = outer.own() else { return };
        if let Some(owner_inside) = inner.own_inside() {
            break (outer, (owner, owner_inside));
        }
        // Waited for while nothing is owned.
        drop(owner);
        if inner.own().is_none() {
            return;
        }
    };
    if !inner.is_in(outer) {
        return;
    }
    let place = &inner.place;
    if hand_back && place.ours.load(Relaxed) {
        if !inner.is_named_outside() {
            // The descriptor was closed unseen, and the kernel keeps the registration, with our tag.
            return;
        }
        let events = if place.fired.load(Relaxed) {
            EPOLLONESHOT.cast_unsigned()
        } else {
            place.events.load(Relaxed)
        };
        let (fd, data) = (place.fd.load(Relaxed), place.data.load(Relaxed));
        let _ = raw::epoll_ctl(outer.fd(), libc::EPOLL_CTL_MOD, fd, events, data);
    }
    take_out(outer, inner);
}

/// A descriptor of the set is about to be closed: what an outer set has by it nobody can name any more, though the
/// kernel keeps it as long as this process, or another, has the set by another one.
pub(crate) fn descriptor_goes(index: usize, fd: i32) {
    let stays = |set: &&Set| set.references.load(Relaxed) > 1 || set.shared.load(Relaxed);
    // What a child has from before its fork is its parent's.
    let named = |set: &&Set| set.place.fd.load(Relaxed) == fd && !set.inherited.load(Relaxed);
    if set(index).filter(named).filter(stays).and_then(Set::outer).is_some() {
        back::nest(index);
    }
}

/// All sets in the one with this index [`leave`] it; `each` is done with them then.
pub(crate) fn empty(index: usize, hand_back: bool, each: impl Fn(usize)) {
    let Some(outer) = set(index) else { return };
    for inner in outer.inner_sets() {
        let index = index_of(inner) as usize;
        leave(index, hand_back);
        each(index);
    }
}

/// Before a fork: sets are not put into one another until [`release_links`]. False: this very thread was about to, or
/// forks already.
pub(crate) fn keep_links() -> bool {
    lock::acquire_local(&LINKS).map(Guard::keep).is_some()
}

/// After it, or in the child.
pub(crate) fn release_links() {
    // Release pairs with the acquire of the next owner.
    LINKS.store(0, Release);
}
