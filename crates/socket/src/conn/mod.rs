//! The record of one connection end in this process.
//!
//! Records live in a static array and are never freed, only recycled, so that a thread may look at one while another
//! closes it; [`Conn::id`] tells whether it is still the same connection. What the segment holds is only touched while
//! a direction is owned (`crate::lock`), or while the epoll set the connection is a member of is.

pub(crate) mod common;
mod ending;
pub(crate) mod flags;
pub(crate) mod owning;
pub(crate) mod pace;
pub(crate) mod records;
mod rung;

use crate::agent::{self, counters};
pub(crate) use crate::conn::flags::{
    ACTIVE, ASKED, BANNED, CAME, CORK, COUNTED, DEAD, EARLY, FIN_PROBED, FORKED, GIVEN_AWAY, HANDED_OVER, HELD_BACK,
    IN_WANTED, LEFT, LOW_WATER, MARK_OWED, NAGLE, NONBLOCKING, OPTIONS_OWED, OUT_WANTED, PEER_FIN, QUIET_END,
    READY_OWED, SEARCHED, SHUT_READ, SHUT_WRITE,
};
use crate::conn::records::{id_of, index_of};
use crate::conn::rung::Rung;
use crate::epoll::lone::Lone;
use crate::lock::Locks;
use crate::path::wish;
use crate::receive::rest::Rest;
use crate::send::stores;
use crate::sys::{self, SegmentCell, raw};
use crate::wait::bell;
use crate::wait::peer_bells::Ringer;
use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64};
use viaduct_channel::{Segment, Side};
use viaduct_control::Reason;
use viaduct_control::counters::{Path, State, Wanted, slot};

/// How far a connection has come on its way to a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Phase {
    /// Plain TCP, not offered.
    Plain = 0,
    /// Offered to viaductd.
    Offered = 1,
    /// The segment is mapped; directions switch as their senders choose.
    Attached = 2,
}

/// One connection end. What calls on plain connections look at is together in one cache line.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Conn {
    pub(crate) id: AtomicU64,
    pub(crate) locks: AtomicPtr<Locks>,
    pub(crate) phase: AtomicU8,
    pub(crate) side: AtomicU8,
    sending: AtomicU8,
    receiving: AtomicU8,
    reason: AtomicU16,
    pub(crate) flags: AtomicU32,
    pub(crate) fd: AtomicI32,
    /// Calls inside the kernel that receive or send stream bytes without owning the direction.
    pub(crate) direct_receives: AtomicU32,
    pub(crate) direct_sends: AtomicU32,
    /// One more than the index of the first epoll membership.
    pub(crate) memberships: AtomicU32,
    pub(crate) messages: AtomicU32,
    pub(crate) volume: AtomicU64,
    /// See [`counters::slot_of`].
    pub(crate) counters: AtomicPtr<counters::Slot>,
    pub(crate) segment: SegmentCell,
    /// How many connections the record has been.
    generation: AtomicU64,
    /// The words in which a child to come was counted last, see `crate::process::forks`.
    pub(crate) counted: AtomicPtr<Locks>,
    pub(crate) references: AtomicU32,
    /// Calls inside the kernel that take nothing: of searches that wait.
    pub(crate) peeks: AtomicU32,
    pub(crate) retry_at_ns: AtomicU64,
    pub(crate) lone: Lone,
    pub(crate) offered_in: AtomicU32,
    pub(crate) checked_at: AtomicU64,
    pub(crate) heard_at: AtomicU64,
    /// Checks left out since, and how many may be.
    pub(crate) unchecked: AtomicU32,
    /// Receives since the last send, both on the lane.
    pub(crate) streak: AtomicU32,
    pub(crate) rest: Rest,
    pub(crate) stores: stores::Choice,
    /// Where the lane stood when it was last asked whether it is idle, see `crate::memory::idle`.
    pub(crate) idle_at: AtomicU64,
    /// See `crate::path::announce`.
    pub(crate) announcer: AtomicU32,
    pub(crate) stalled_at: AtomicU64,
    pub(crate) stuck_at: AtomicU64,
    /// Since when, in nanoseconds, and when the peer was asked last whether it is there.
    pub(crate) stuck_since: AtomicU64,
    pub(crate) probed_at: AtomicU64,
    /// When a mark was put behind the peer's FIN, or was not to be put after a look, in ticks.
    pub(crate) marked_at: AtomicU64,
    /// What the peer's kernel had taken when its FIN had been seen, and one more; 0 if that is not known.
    pub(crate) taken_at_fin: AtomicU64,
    /// Since when, in nanoseconds, a sender has waited for what a peer gives back.
    pub(crate) rest_awaited_since: AtomicU64,
    pub(crate) segment_name: AtomicU64,
    /// The peer's bell, a [`Ringer`].
    peer_bell: AtomicI32,
    /// By what the peer rings the bell of this end, see [`Conn::known_bell`].
    pub(crate) rung: Rung,
    /// One more than the index of the bell the peer was told to ring; 0 for none.
    pub(crate) own_bell: AtomicU32,
    pending_error: AtomicI32,
}

const _: () = assert!(
    core::mem::offset_of!(Conn, segment) <= 64 && core::mem::offset_of!(Conn, lone) % 64 <= 64 - size_of::<Lone>()
);

impl Conn {
    /// All zeroes, or every program would map the records from the library's file. What else a connection begins with
    /// is for `reset`.
    pub(crate) const fn unused() -> Self {
        Self {
            id: AtomicU64::new(0),
            locks: AtomicPtr::new(core::ptr::null_mut()),
            phase: AtomicU8::new(0),
            side: AtomicU8::new(0),
            sending: AtomicU8::new(0),
            receiving: AtomicU8::new(0),
            reason: AtomicU16::new(0),
            flags: AtomicU32::new(0),
            counted: AtomicPtr::new(core::ptr::null_mut()),
            references: AtomicU32::new(0),
            generation: AtomicU64::new(0),
            fd: AtomicI32::new(0),
            direct_receives: AtomicU32::new(0),
            direct_sends: AtomicU32::new(0),
            peeks: AtomicU32::new(0),
            messages: AtomicU32::new(0),
            offered_in: AtomicU32::new(0),
            volume: AtomicU64::new(0),
            counters: AtomicPtr::new(core::ptr::null_mut()),
            retry_at_ns: AtomicU64::new(0),
            checked_at: AtomicU64::new(0),
            heard_at: AtomicU64::new(0),
            unchecked: AtomicU32::new(0),
            streak: AtomicU32::new(0),
            rest: Rest::new(),
            stores: stores::Choice::unused(),
            idle_at: AtomicU64::new(0),
            announcer: AtomicU32::new(0),
            stalled_at: AtomicU64::new(0),
            stuck_at: AtomicU64::new(0),
            stuck_since: AtomicU64::new(0),
            probed_at: AtomicU64::new(0),
            marked_at: AtomicU64::new(0),
            taken_at_fin: AtomicU64::new(0),
            rest_awaited_since: AtomicU64::new(0),
            segment: SegmentCell::empty(),
            segment_name: AtomicU64::new(0),
            peer_bell: AtomicI32::new(0),
            rung: Rung::none(),
            own_bell: AtomicU32::new(0),
            pending_error: AtomicI32::new(0),
            memberships: AtomicU32::new(0),
            lone: Lone::none(),
        }
    }

    pub(crate) fn reset(&self, fd: i32, flags: u32) {
        self.phase.store(Phase::Plain as u8, Relaxed);
        self.sending.store(Path::Tcp as u8, Relaxed);
        self.receiving.store(Path::Tcp as u8, Relaxed);
        self.reason.store(Reason::NotYet as u16, Relaxed);
        self.flags.store(flags, Relaxed);
        self.references.store(1, Relaxed);
        self.fd.store(fd, Relaxed);
        self.rest.reset();
        self.rung.begin(bell::RUNG_BY_NONE);
        self.stores.reset();
        self.idle_at.store(u64::MAX, Relaxed);
        for word in [
            &self.direct_receives,
            &self.direct_sends,
            &self.peeks,
            &self.messages,
            &self.offered_in,
            &self.own_bell,
            &self.announcer,
            &self.unchecked,
            &self.streak,
        ] {
            word.store(0, Relaxed);
        }
        for word in [
            &self.volume,
            &self.retry_at_ns,
            &self.checked_at,
            &self.heard_at,
            &self.stalled_at,
            &self.stuck_at,
            &self.stuck_since,
            &self.probed_at,
            &self.marked_at,
            &self.taken_at_fin,
            &self.rest_awaited_since,
            &self.segment_name,
        ] {
            word.store(0, Relaxed);
        }
        self.counters.store(core::ptr::null_mut(), Relaxed);
        self.set_peer_bell(Ringer::NONE);
        self.pending_error.store(0, Relaxed);
        self.memberships.store(0, Relaxed);
        self.lone.reset();
    }

    /// A number for the record's next connection, its index being `index`. Nobody else has claimed the record.
    pub(crate) fn next_id(&self, index: usize) -> u64 {
        let generation = self.generation.load(Relaxed).wrapping_add(1);
        self.generation.store(generation, Relaxed);
        id_of(generation, index)
    }

    /// Unique for all time within the process; 0 when the record is unused.
    #[inline]
    pub fn id(&self) -> u64 {
        self.id.load(Acquire)
    }

    /// Number of the record, and of its slot in the counters.
    #[inline]
    pub(crate) fn index(&self) -> usize {
        index_of(self.id())
    }

    /// A descriptor of the socket.
    #[inline]
    pub(crate) fn fd(&self) -> i32 {
        self.fd.load(Relaxed)
    }

    #[inline]
    pub(crate) fn phase(&self) -> Phase {
        // SeqCst pairs with `attach`: see `DirectCall`.
        match self.phase.load(SeqCst) {
            0 => Phase::Plain,
            1 => Phase::Offered,
            _ => Phase::Attached,
        }
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, SeqCst);
    }

    /// Takes the offer back, if there is one that has not led to a pair.
    pub(crate) fn end_offer(&self) {
        let (offered, plain) = (Phase::Offered as u8, Phase::Plain as u8);
        if self.phase() == Phase::Offered && self.phase.compare_exchange(offered, plain, SeqCst, SeqCst).is_ok() {
            agent::withdraw(self.id());
        }
    }

    #[inline]
    pub(crate) fn flag(&self, flag: u32) -> bool {
        self.flags.load(Relaxed) & flag != 0
    }

    pub(crate) fn set_flag(&self, flag: u32, on: bool) {
        let set = self.flags.load(Relaxed) & flag;
        if on && set != flag {
            self.flags.fetch_or(flag, Relaxed);
        } else if !on && set != 0 {
            self.flags.fetch_and(!flag, Relaxed);
        }
    }

    /// Whether the program set `O_NONBLOCK`, as far as its calls were seen.
    #[inline]
    pub(crate) fn nonblocking(&self) -> bool {
        self.common_flag(NONBLOCKING)
    }

    /// Whether a call with these flags may wait. Another process that has the socket may have changed that.
    #[inline]
    pub fn may_wait(&self, flags: i32) -> bool {
        flags & libc::MSG_DONTWAIT == 0 && !(self.nonblocking() && self.alone())
    }

    pub(crate) fn set_nonblocking(&self, on: bool) {
        self.set_common_flag(NONBLOCKING, on);
    }

    /// Asks the kernel whether `O_NONBLOCK` is set, for a call that is about to wait: another process may have changed
    /// it.
    pub(crate) fn refresh_nonblocking(&self) -> bool {
        let flags = raw::fcntl(self.fd(), libc::F_GETFL, 0).unwrap_or(0);
        let on = flags & libc::O_NONBLOCK.cast_unsigned() as usize != 0;
        self.set_nonblocking(on);
        on
    }

    /// The same for one that may have `asked` before: as with TCP, what is set while a call waits is for later ones.
    pub(crate) fn refresh_nonblocking_once(&self, asked: &mut bool) -> bool {
        !core::mem::replace(asked, true) && self.refresh_nonblocking()
    }

    pub(crate) fn reason(&self) -> Reason {
        Reason::from_number(self.reason.load(Relaxed)).unwrap_or(Reason::NotYet)
    }

    pub(crate) fn set_reason(&self, reason: Reason) {
        self.reason.store(reason as u16, Relaxed);
        self.show();
    }

    /// Gives another reason, unless it has changed meanwhile.
    pub(crate) fn change_reason(&self, from: Reason, to: Reason) {
        let changed = self.reason.compare_exchange(from as u16, to as u16, Relaxed, Relaxed);
        if changed.is_ok() {
            self.show();
        }
    }

    /// One more descriptor refers to the socket.
    pub(crate) fn hold(&self) {
        self.references.fetch_add(1, Relaxed);
    }

    #[inline]
    pub(crate) fn locks(&self) -> Option<&'static Locks> {
        sys::leaked_record(self.locks.load(Relaxed))
    }

    /// Which side of the segment this end is.
    #[inline]
    pub(crate) fn side(&self) -> Side {
        if self.side.load(Relaxed) == 0 {
            Side::First
        } else {
            Side::Second
        }
    }

    /// The segment; see [`SegmentCell::get`].
    #[inline]
    pub(crate) fn segment<'a, P>(&'a self, proof: &'a P) -> Option<&'a Segment> {
        self.segment.get(proof)
    }

    pub(crate) fn segment_name(&self) -> u64 {
        self.segment_name.load(Relaxed)
    }

    #[inline]
    pub(crate) fn peer_bell(&self) -> Ringer {
        Ringer::from_bits(self.peer_bell.load(Relaxed))
    }

    pub(crate) fn set_peer_bell(&self, bell: Ringer) {
        self.peer_bell.store(bell.bits(), Relaxed);
    }

    /// Rings the peer's bell. False if there is none that works: whoever sleeps there may be woken by a mark.
    pub(crate) fn ring_peer(&self) -> bool {
        self.peer_bell().ring()
    }

    /// One more than the index of the bell the peer rings for this end; 0 for none.
    #[inline]
    pub(crate) fn own_bell(&self) -> u32 {
        self.own_bell.load(Relaxed)
    }

    /// The same, if the peer has it: the eventfd, or the outer bell that is there now.
    #[inline]
    pub(crate) fn known_bell(&self) -> u32 {
        match self.rung.by() {
            bell::RUNG_BY_NONE => 0,
            bell::RUNG_BY_EVENTFD => self.own_bell(),
            outer if bell::numbered(self.own_bell()).is_some_and(|bell| bell.outer_is(outer)) => self.own_bell(),
            _ => 0,
        }
    }

    pub(crate) fn set_own_bell(&self, bell: u32) {
        self.own_bell.store(bell, Relaxed);
    }

    /// What `viaduct path` wants.
    #[inline]
    pub(crate) fn wanted(&self) -> Wanted {
        counters::slot_of(self).map_or(Wanted::Auto, |words| {
            Wanted::from_number(words[slot::WANTED].load(Relaxed))
        })
    }

    /// Whether this end keeps its directions on the lane, given the chance.
    #[inline]
    pub(crate) fn wants_lane(&self) -> bool {
        // A peer that may be gone is not bothered with a change: its kernel would answer the mark with RST.
        let may_be_gone = || self.flag(PEER_FIN) && self.taken_at_fin.load(Relaxed) == 0;
        (self.wanted() != Wanted::Tcp || may_be_gone()) && !self.is_banned()
    }

    /// Whether a call is inside the kernel sending raw bytes without owning the direction.
    pub(crate) fn sending_directly(&self) -> bool {
        self.direct_sends.load(SeqCst) != 0
    }

    /// The sending direction has changed its path.
    pub(crate) fn sends_on(&self, path: Path) {
        self.sending.store(path as u8, Relaxed);
        self.show();
    }

    /// The receiving direction has changed its path.
    pub(crate) fn receives_on(&self, path: Path) {
        self.receiving.store(path as u8, Relaxed);
        // Where there are holes to mind, a receive ends with the stretch though more may have been told of: who takes
        // it for all waits for an edge.
        if self.searched() {
            self.set_flag(IN_WANTED, true);
        }
        wish::note_peers_receiving(self);
        self.show();
    }

    /// Whether a pair that viaductd has made is still wanted.
    pub(crate) fn may_attach(&self) -> bool {
        self.phase() == Phase::Offered && !self.flag(EARLY) && !self.is_banned() && self.alone()
    }

    /// Notes in the counters what carries which direction, and why.
    pub(crate) fn show(&self) {
        let Some(words) = counters::slot_of(self) else { return };
        let mut state = State {
            fd: self.fd(),
            sending: Path::Tcp,
            receiving: Path::Tcp,
            reason: self.reason(),
        };
        if self.phase() == Phase::Attached {
            state.sending = Path::from_number(self.sending.load(Relaxed)).unwrap_or(Path::Tcp);
            state.receiving = Path::from_number(self.receiving.load(Relaxed)).unwrap_or(Path::Tcp);
        }
        match (state.sending == Path::Shm, state.receiving == Path::Shm) {
            (true, true) => state.reason = Reason::Accelerated,
            // Many programs never send the other way.
            (true, false) | (false, true) if state.reason == Reason::Pairing => state.reason = Reason::OneWay,
            _ => {}
        }
        words[slot::STATE].store(state.pack(), Relaxed);
    }
}
