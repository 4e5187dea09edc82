//! The records of epoll sets and their members.

use crate::conn::{Conn, SHUT_READ, records};
use crate::descriptors::table;
use crate::epoll::list::{Links, List};
use crate::epoll::place::Place;
use crate::lock::turns::Turns;
use crate::lock::{self, Guard};
use crate::process::own_waits;
use crate::sys::raw;
use crate::wait::bell::{self, BY_BELL, BY_SOCKET, Bell};
use crate::{kernel, ready};
use core::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};
use libc::{EPOLLET, EPOLLIN, EPOLLPRI, EPOLLRDHUP};

pub(crate) const SETS: usize = 4096;
pub(crate) const MEMBERS: u32 = 1 << 17;

/// Lower half of a tag of ours that is no member's.
pub(crate) const NOBODY: u64 = u32::MAX as u64;
/// Likewise: that of the set's outer bell.
const OUTER: u32 = u32::MAX - 1;
/// Likewise, with a set's index: that of an inner set.
pub(crate) const INNER: u32 = 1 << 31;

/// [`Member::flags`]: the kernel registration is ours.
pub(crate) const EMULATED: u32 = 1 << 0;
/// [`Member::flags`]: in the hot list.
pub(crate) const HOT: u32 = 1 << 1;
/// [`Member::flags`]: a one-shot registration has fired.
pub(crate) const FIRED: u32 = 1 << 2;
/// [`Member::flags`]: added or modified; an edge is due for whatever is ready.
pub(crate) const FRESH: u32 = 1 << 3;
/// [`Member::flags`]: the kernel has signalled; ask it before believing the connection idle.
pub(crate) const KERNEL: u32 = 1 << 4;
/// [`Member::flags`], with [`KERNEL`]: all that it has signalled is that there are bytes, or room.
pub(crate) const BYTES: u32 = 1 << 9;
/// [`Member::flags`]: the kernel signalled since the last report (an edge).
pub(crate) const EDGE: u32 = 1 << 5;

/// [`Member::flags`]: the program has taken the registration back. The record stays, and with [`EMULATED`] our
/// registration too, since many programs register and deregister around every message.
pub(crate) const PARKED: u32 = 1 << 6;
/// [`Member::flags`]: the kernel has signalled what the program's interest left out so far.
pub(crate) const UNSEEN: u32 = 1 << 7;
/// [`Member::flags`]: the program knows that there was no room, so an edge is due when there is.
pub(crate) const ROOM: u32 = 1 << 8;

/// [`Member::flags`]: the ends of directions, and the error, that have been told of; such an event's bits so far up.
const ENDS: u32 = 16;
/// Among them, for the end of the peer's direction. No event of a socket's.
const PEERS: u32 = libc::EPOLLMSG.cast_unsigned();

/// The registration of one connection in one set. What `epoll_ctl` looks at is together in one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Member {
    pub(crate) connection: AtomicU64,
    pub(crate) data: AtomicU64,
    pub(crate) set: AtomicU32,
    pub(crate) fd: AtomicI32,
    pub(crate) events: AtomicU32,
    pub(crate) flags: AtomicU32,
    pub(crate) next_of_connection: AtomicU32,
    pub(crate) used: AtomicBool,
    pub(crate) in_set: Links,
    pub(crate) in_hot: Links,
    /// Lane position up to which an edge has been reported.
    pub(crate) reported: AtomicU64,
    pub(crate) idle: AtomicU32,
}

/// An epoll set. What calls look at while none of its members is on a lane is together in one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Set {
    pub(crate) used: AtomicBool,
    pub(crate) owner: AtomicU32,
    pub(crate) fd: AtomicI32,
    pub(crate) references: AtomicU32,
    /// How many sets have been in this place.
    pub(crate) generation: AtomicU32,
    /// Number of its bell; 0 for none.
    pub(crate) bell: AtomicU32,
    pub(crate) emulated: AtomicU32,
    pub(crate) sleepers: AtomicU32,
    pub(crate) waits: AtomicU32,
    /// The set that it is in: its index, and one more; 0: none.
    pub(crate) outer: AtomicU32,
    /// How many sets are in it.
    pub(crate) inner_sets: AtomicU32,
    /// By a call that was seen.
    pub(crate) waited: AtomicBool,
    /// Polled, or in another set.
    pub(crate) watched: AtomicBool,
    /// Waited for in a way that cannot be looked into.
    pub(crate) nested: AtomicBool,
    /// Another process has the set too, and must not find registrations in it that no program made.
    pub(crate) shared: AtomicBool,
    /// Shared with the parent since a fork. The parent would not know what to make of a registration that this process
    /// takes over.
    pub(crate) inherited: AtomicBool,
    /// Owned by a thread that forks.
    pub(crate) forks: AtomicBool,
    /// The kernel's events have filled the program's buffer: it is the lanes' turn.
    pub(crate) crowded: AtomicBool,
    /// A thread has left it amid what the kernel told: who waits in it next is to ask of all members.
    pub(crate) unheard: AtomicBool,
    /// The kernel has been asked to tell once of what is no connection.
    pub(crate) foreign_edges: AtomicBool,
    pub(crate) kernel_looked: AtomicU64,
    pub(crate) members: List,
    pub(crate) hot: List,
    /// How often its bell has been heard, by whichever thread.
    pub(crate) rings: AtomicU32,
    /// What the set that it is in has of it, and where those in it are.
    pub(crate) place: Place,
}

pub(crate) static SET: [Set; SETS] = [const {
    Set {
        used: AtomicBool::new(false),
        owner: AtomicU32::new(0),
        fd: AtomicI32::new(0),
        references: AtomicU32::new(0),
        generation: AtomicU32::new(0),
        bell: AtomicU32::new(0),
        members: List::new(),
        hot: List::new(),
        emulated: AtomicU32::new(0),
        sleepers: AtomicU32::new(0),
        outer: AtomicU32::new(0),
        inner_sets: AtomicU32::new(0),
        watched: AtomicBool::new(false),
        waited: AtomicBool::new(false),
        nested: AtomicBool::new(false),
        shared: AtomicBool::new(false),
        inherited: AtomicBool::new(false),
        forks: AtomicBool::new(false),
        crowded: AtomicBool::new(false),
        unheard: AtomicBool::new(false),
        foreign_edges: AtomicBool::new(false),
        kernel_looked: AtomicU64::new(0),
        waits: AtomicU32::new(0),
        rings: AtomicU32::new(0),
        place: Place::none(),
    }
}; SETS];

pub(crate) static MEMBER: [Member; MEMBERS as usize] = [const {
    Member {
        used: AtomicBool::new(false),
        set: AtomicU32::new(0),
        connection: AtomicU64::new(0),
        fd: AtomicI32::new(0),
        events: AtomicU32::new(0),
        data: AtomicU64::new(0),
        flags: AtomicU32::new(0),
        next_of_connection: AtomicU32::new(0),
        in_set: Links::new(),
        in_hot: Links::new(),
        reported: AtomicU64::new(0),
        idle: AtomicU32::new(0),
    }
}; MEMBERS as usize];
pub(crate) static MEMBER_TURNS: Turns = Turns::among(256);

/// Upper half of our tags: drawn once, so that no program's data is mistaken for one.
pub(crate) static TAG: AtomicU64 = AtomicU64::new(0);

pub(crate) fn tag() -> u64 {
    let known = TAG.load(Relaxed);
    if known != 0 {
        return known;
    }
    let drawn = (crate::sys::random() | 1) << 32;
    match TAG.compare_exchange(0, drawn, Relaxed, Relaxed) {
        Ok(_) => drawn,
        Err(winner) => winner,
    }
}

/// What an event of the kernel's is about.
#[derive(Debug)]
pub(crate) enum Tagged {
    /// The program's own registration.
    Foreign,
    /// The set's bell.
    Bell,
    /// Its outer bell.
    OuterBell,
    /// The inner set with this index, whose registration is ours.
    Inner(usize),
    /// A member whose registration is ours.
    Member(u32),
}

/// Tells our registrations from the program's.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the lower half is wanted")]
pub(crate) fn whose(data: u64) -> Tagged {
    match (data >> 32 == tag() >> 32, data as u32) {
        (false, _) => Tagged::Foreign,
        (true, 0) => Tagged::Bell,
        (true, OUTER) => Tagged::OuterBell,
        (true, number) if number & INNER != 0 && number != u32::MAX => Tagged::Inner((number & !INNER) as usize),
        (true, number) => Tagged::Member(number),
    }
}

/// The member numbered `number` (one more than its index).
#[inline]
pub(crate) fn member(number: u32) -> Option<&'static Member> {
    MEMBER.get((number as usize).checked_sub(1)?)
}

/// The set with this index.
#[inline]
pub(crate) fn set(index: usize) -> Option<&'static Set> {
    SET.get(index).filter(|set| set.used.load(Relaxed))
}

const _: () = assert!(core::mem::offset_of!(Member, in_hot) <= 64 && core::mem::offset_of!(Set, members) <= 64);

impl Set {
    /// Owns the set's lists.
    #[inline]
    pub(crate) fn own(&'static self) -> Option<Guard<'static>> {
        lock::acquire_local(&self.owner)
    }

    pub(crate) fn fd(&self) -> i32 {
        self.fd.load(Relaxed)
    }

    /// The place is free for another set. This one is owned if it can be.
    pub(crate) fn end(&self, owner: Option<Guard<'static>>) {
        self.generation.fetch_add(1, Relaxed);
        // First: whoever forks keeps only places that are used, and would leave the child a free one that is owned.
        drop(owner);
        self.used.store(false, Release);
    }

    pub(crate) fn bell_number(&self) -> u32 {
        self.bell.load(Relaxed)
    }

    pub(crate) fn ensure_bell(&self) -> Option<&'static Bell> {
        if let Some(bell) = bell::numbered(self.bell.load(Relaxed)) {
            return Some(bell);
        }
        // Who waits in it would find registrations that no program made.
        if self.nested.load(Relaxed) {
            return None;
        }
        self.prepare_outside();
        let Some(bell) = bell::claim() else {
            // While there may be a descriptor for it.
            let _ = bell::common();
            return None;
        };
        if raw::epoll_ctl(
            self.fd(),
            libc::EPOLL_CTL_ADD,
            bell.fd(),
            (EPOLLIN | EPOLLET).cast_unsigned(),
            tag(),
        )
        .is_err()
        {
            bell.abandon();
            return None;
        }
        // SeqCst pairs with `epoll::hear_outside`: either this sees the outer bell, or that sees the set.
        self.bell.store(bell.number(), SeqCst);
        self.hear_outside(bell);
        Some(bell)
    }

    /// Adds the outer bell of the set's bell to it, if there is one. The set is owned.
    pub(crate) fn hear_outside(&self, bell: &Bell) {
        let Some(fd) = bell.outer_fd() else { return };
        let events = (EPOLLIN | EPOLLRDHUP | EPOLLET).cast_unsigned();
        let added = raw::epoll_ctl(self.fd(), libc::EPOLL_CTL_ADD, fd, events, tag() | u64::from(OUTER));
        if added.is_err_and(|errno| errno != libc::EEXIST) {
            bell.lose_outer();
        }
    }

    /// Takes what rings for the set out of it. The set is owned.
    pub(crate) fn give_up_bell(&self) {
        if let Some(fd) = bell::known_common() {
            let _ = raw::epoll_ctl(self.fd(), libc::EPOLL_CTL_DEL, fd, 0, 0);
        }
        if let Some(bell) = bell::numbered(self.bell.swap(0, SeqCst)) {
            for fd in bell.registered() {
                let _ = raw::epoll_ctl(self.fd(), libc::EPOLL_CTL_DEL, fd, 0, 0);
            }
            bell.abandon();
        }
    }

    /// Whether the kernel has something to tell of the set, perhaps that its bell has been rung.
    pub(crate) fn has_tidings(&self) -> bool {
        raw::poll_now(self.fd(), libc::POLLIN) != 0
    }

    /// The hot members, in order.
    pub(crate) fn hot_members(&self) -> impl Iterator<Item = (u32, &'static Member)> {
        self.hot
            .iter(hot_links)
            .filter_map(|number| Some((number, member(number)?)))
    }

    /// The hot member after `number`.
    pub(crate) fn hot_after(&self, number: u32) -> Option<u32> {
        self.hot.after(number, hot_links)
    }

    /// Whether no wait has been seen in it yet, or none in the set that it is in.
    pub(crate) fn is_unseen(&self) -> bool {
        !self.waited.load(Relaxed) || self.outer().is_some_and(Self::is_unseen)
    }

    /// Whether only the kernel's registrations may be in it: it is waited for in a way that cannot be looked into; it
    /// is in a set that other processes may wait in; or no wait has been seen, and the program may wait by system calls
    /// of its own. To be asked where a connection has a lane: it may search the program's file.
    pub(crate) fn is_kernels(&self) -> bool {
        self.nested.load(Relaxed)
            || self.outer().is_some_and(|outer| outer.inherited.load(Relaxed))
            || self.is_unseen() && own_waits::are_made()
    }

    /// Makes a member hot.
    pub(crate) fn heat(&self, number: u32, member: &Member) {
        member.idle.store(0, Relaxed);
        if member.change(0, HOT) & HOT == 0 {
            self.hot.push(number, hot_links);
        }
    }

    /// Puts a hot member that has been served behind the others.
    pub(crate) fn serve(&self, number: u32, member: &Member) {
        member.idle.store(0, Relaxed);
        self.hot.remove(number, hot_links);
        self.hot.push(number, hot_links);
    }

    pub(crate) fn cool(&self, number: u32, member: &Member) {
        if member.has(HOT) {
            member.change(HOT, 0);
            self.hot.remove(number, hot_links);
        }
    }

    /// The wait bit by which `conn` wakes a sleeper of this set.
    pub(crate) fn bit_for(&self, conn: &Conn) -> u32 {
        if self.bell_number() != 0 && self.bell_number() == conn.known_bell() {
            BY_BELL
        } else {
            BY_SOCKET
        }
    }

    /// After a sleep in which `member` did not stir: cools it once that has happened often.
    pub(crate) fn grow_idle(&self, number: u32, member: &Member, crowded: bool) {
        let idle = member.idle.fetch_add(1, Relaxed) + 1;
        if idle > if crowded { 4 } else { 64 } {
            self.cool(number, member);
        }
    }
}

pub(crate) fn hot_links(number: u32) -> Option<&'static Links> {
    member(number).map(|member| &member.in_hot)
}

pub(crate) fn set_links(number: u32) -> Option<&'static Links> {
    member(number).map(|member| &member.in_set)
}

impl Member {
    /// Takes the flags `gone` away and adds `come`; answers what they were. The set is owned, so this need not be
    /// indivisible.
    pub(crate) fn change(&self, gone: u32, come: u32) -> u32 {
        let before = self.flags.load(Relaxed);
        self.flags.store(before & !gone | come, Relaxed);
        before
    }

    /// Notes what the program registers. Our own registration asks for everything, so what the kernel has to say is
    /// known already, but for what nobody wanted to know until now.
    pub(crate) fn register(&self, events: u32, data: u64) {
        self.events.store(events, Relaxed);
        self.data.store(data, Relaxed);
        let asks = events & EPOLLPRI.cast_unsigned() != 0 || events & ready::IN != 0 && self.has(UNSEEN);
        let (gone, come) = if asks {
            (FIRED | UNSEEN | BYTES, FRESH | KERNEL)
        } else {
            (FIRED, FRESH)
        };
        self.change(gone, come);
    }

    /// Whether `events` tell of an end that has not been told of. The set is owned.
    pub(crate) fn ends(&self, conn: &Conn, events: u32) -> bool {
        let mut ends = events & (ready::RDHUP | ready::ALWAYS);
        // Where the program receives no more, the kernel tells of an end whether or not there is one.
        if ends & ready::RDHUP != 0 && (!conn.flag(SHUT_READ) || kernel::peer_has_ended(conn.fd())) {
            ends |= PEERS;
        }
        self.change(0, ends << ENDS) & (ends << ENDS) != ends << ENDS
    }

    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags.load(Relaxed) & flag != 0
    }

    /// The connection, if it still lives.
    #[inline]
    pub(crate) fn conn(&self) -> Option<&'static Conn> {
        records::by_id(self.connection.load(Relaxed))
    }

    /// The program's data.
    #[inline]
    pub(crate) fn data(&self) -> u64 {
        self.data.load(Relaxed)
    }

    /// Whether the descriptor that it was registered by still leads to the connection.
    pub(crate) fn is_named(&self) -> bool {
        let named = table::connection(self.fd.load(Relaxed));
        named.is_some_and(|named| self.conn().is_some_and(|conn| core::ptr::eq(named, conn)))
    }

    pub(crate) fn set(&self) -> Option<&'static Set> {
        set(self.set_index()?)
    }

    pub(crate) fn set_index(&self) -> Option<usize> {
        (self.set.load(Relaxed) as usize).checked_sub(1)
    }
}
