//! Where sets are that are inside others.

use crate::epoll::ctl::Asked;
use crate::epoll::set::{SET, Set, set};
use crate::lock::{self, Guard};
use crate::ready;
use crate::sys::raw;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};
use libc::EPOLLONESHOT;

/// How often an inner set is looked at that another thread owns, before it is left alone, and how often at first
/// without giving the processor away.
const GLANCES: u32 = 2048;
const GLANCES_WITHOUT_YIELDING: u32 = 128;

/// What an outer set has of an inner one, and where its inner ones are.
#[derive(Debug)]
pub(crate) struct Place {
    /// The outer set's generation.
    pub(super) generation: AtomicU32,
    pub(super) fd: AtomicI32,
    pub(super) events: AtomicU32,
    pub(super) data: AtomicU64,
    /// The outer set counts it among what is ours.
    pub(super) counted: AtomicBool,
    /// The kernel's registration has a tag of ours.
    pub(super) ours: AtomicBool,
    /// A one-shot registration has fired.
    pub(super) fired: AtomicBool,
    /// The kernel has told of it since it was last looked at.
    pub(super) told: AtomicBool,
    /// The least and the greatest index that an inner set of this one has had, and where the next turn begins.
    pub(super) least: AtomicU32,
    pub(super) greatest: AtomicU32,
    pub(super) turn: AtomicU32,
    /// Whether inner sets come before lanes next time.
    inner_first: AtomicBool,
}

impl Place {
    pub(crate) const fn none() -> Self {
        Self {
            generation: AtomicU32::new(0),
            fd: AtomicI32::new(0),
            events: AtomicU32::new(0),
            data: AtomicU64::new(0),
            counted: AtomicBool::new(false),
            ours: AtomicBool::new(false),
            fired: AtomicBool::new(false),
            told: AtomicBool::new(false),
            least: AtomicU32::new(0),
            greatest: AtomicU32::new(0),
            turn: AtomicU32::new(0),
            inner_first: AtomicBool::new(false),
        }
    }

    /// Whether inner sets come before lanes.
    pub(super) fn are_inner_sets_first(&self) -> bool {
        self.inner_first.load(Relaxed)
    }

    /// It is the others' turn.
    pub(super) fn take_turn(&self) {
        self.inner_first.fetch_not(Relaxed);
    }

    /// What the program registers.
    pub(super) fn note(&self, asked: Asked) {
        self.fd.store(asked.fd, Relaxed);
        self.events.store(asked.events, Relaxed);
        self.data.store(asked.data, Relaxed);
        self.fired.store(false, Relaxed);
    }

    pub(super) fn is_oneshot(&self) -> bool {
        self.events.load(Relaxed) & EPOLLONESHOT.cast_unsigned() != 0
    }
}

pub(super) fn index_of(set: &Set) -> u32 {
    let offset = core::ptr::from_ref(set).addr() - SET.as_ptr().addr();
    u32::try_from(offset / size_of::<Set>()).unwrap_or(0)
}

impl Set {
    /// A new set, which is in no other.
    pub(crate) fn begin_outside(&self) {
        self.watched.store(false, Relaxed);
        self.outer.store(0, Relaxed);
        self.inner_sets.store(0, Relaxed);
        self.place.counted.store(false, Relaxed);
        self.place.ours.store(false, Relaxed);
    }

    /// Whether the kernel may have something to tell of it that is no event of the program's: it has, or has had, a
    /// member on a lane.
    pub(crate) fn may_ring(&self) -> bool {
        self.emulated.load(Relaxed) != 0 || self.bell_number() != 0
    }

    /// Whether there are sets in this one.
    #[inline]
    pub(crate) fn has_inner_sets(&self) -> bool {
        self.inner_sets.load(Relaxed) != 0
    }

    /// The set that this one is in.
    #[inline]
    pub(crate) fn outer(&self) -> Option<&'static Self> {
        let index = (self.outer.load(Relaxed) as usize).checked_sub(1)?;
        // Else its place is another's: it has been closed by a handler amid a call on it.
        set(index).filter(|outer| outer.generation.load(Relaxed) == self.place.generation.load(Relaxed))
    }

    pub(super) fn is_in(&self, outer: &Self) -> bool {
        self.outer().is_some_and(|of| core::ptr::eq(of, outer))
    }

    /// The sets in this one, from the one on whose turn it is.
    pub(super) fn inner_sets(&self) -> impl Iterator<Item = &'static Self> {
        let place = &self.place;
        let [least, greatest, turn] = [&place.least, &place.greatest, &place.turn].map(|index| index.load(Relaxed));
        // Who puts a set there may be changing them just now.
        let turn = turn.max(least).min(greatest);
        let all = (turn..=greatest).chain(least..turn);
        all.take(if self.has_inner_sets() { usize::MAX } else { 0 })
            .filter_map(|index| set(index as usize))
            .filter(|inner| inner.is_in(self))
    }

    /// Those of which who waits in this one is told by us.
    pub(crate) fn asked_sets(&self) -> impl Iterator<Item = &'static Self> {
        self.inner_sets().filter(|inner| inner.is_asked())
    }

    /// And those of which the kernel tells who waits in this one, once a bell has rung.
    pub(crate) fn armed_sets(&self) -> impl Iterator<Item = &'static Self> {
        self.inner_sets().filter(|inner| inner.is_armed())
    }

    /// Whether who waits in the outer set is told of this one, by us.
    pub(crate) fn is_asked(&self) -> bool {
        let place = &self.place;
        let is_asked = place.events.load(Relaxed) & ready::IN != 0;
        is_asked && place.ours.load(Relaxed) && !place.fired.load(Relaxed)
    }

    fn is_armed(&self) -> bool {
        let place = &self.place;
        place.counted.load(Relaxed) && (!place.ours.load(Relaxed) || self.is_asked())
    }

    /// Owns it, for who owns the outer set; not waited for without end: whoever owns it may have been interrupted by a
    /// handler that forks, and so waits for the outer one.
    pub(super) fn own_inside(&'static self) -> Option<Guard<'static>> {
        for glance in 0..GLANCES {
            if let Some(owner) = lock::try_acquire(&self.owner) {
                return Some(owner);
            }
            if lock::owner(self.owner.load(Relaxed)) == lock::name() {
                // By what a handler has interrupted.
                return None;
            }
            if glance < GLANCES_WITHOUT_YIELDING {
                core::hint::spin_loop();
            } else {
                raw::sched_yield();
            }
        }
        // Its owner may be no more.
        lock::take_over(&self.owner)
    }

    /// Whether threads sleep in the outer set that are to be told of this one.
    #[inline]
    pub(crate) fn has_sleepers_outside(&self) -> bool {
        self.outer()
            .is_some_and(|outer| self.is_armed() && outer.sleepers.load(SeqCst) > 0)
    }
}
