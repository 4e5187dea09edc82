//! Bells: what peers ring to wake this process.
//!
//! A bell is an eventfd, and for peers that may not have that, since who holds it can silence it, an outer bell beside
//! it: a Unix socket that rings by a byte. It belongs to one epoll set or to one thread. A connection's peer is told of
//! one bell, that of the set the socket is in or of the thread that offered it; a waiter with another bell asks to be
//! woken by a mark on the kernel connection instead.

use crate::conn::{Conn, Phase, records};
use crate::extent::Extent;
use crate::process::{self, thread};
use crate::sys::{outer, raw};
use crate::wait::peer_bells;
use crate::{agent, epoll};
use core::cell::Cell;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};
use viaduct_control::message::{PAIR_IS_RUNG_OUTSIDE, Pair};

/// Wait bit: ring the bell.
pub(crate) const BY_BELL: u32 = 1;
/// Wait bit: send a mark on the kernel connection.
pub(crate) const BY_SOCKET: u32 = 2;
/// Wait bit: likewise, for a program that may wait where it is not seen, see `crate::path::announce`.
pub(crate) const ANNOUNCED: u32 = 4;

/// [`Conn::rung`](crate::conn::Conn::rung): the peer has no bell of this end.
pub(crate) const RUNG_BY_NONE: u32 = 0;
/// [`Conn::rung`](crate::conn::Conn::rung): it has the eventfd. Larger numbers: the outer bell of that generation.
pub(crate) const RUNG_BY_EVENTFD: u32 = 1;

/// Bells in one process. Waiters beyond them are woken by marks.
const BELLS: usize = 1024;

/// Wakes by an outer bell after which it is asked what has happened since as many before.
const WAKES: u32 = 256;

/// One bell.
#[derive(Debug)]
pub(crate) struct Bell {
    /// One more than its eventfd; 0: it has none. So a table of them that nobody has used is all zeroes, and takes no
    /// memory.
    descriptor: AtomicI32,
    used: AtomicBool,
    /// Whether viaductd holds it.
    given: AtomicBool,
    number: AtomicU32,
    /// One more than the receiving end of its outer bell, for good; 0: it has had none.
    outer: AtomicI32,
    /// Tells its outer bells from each other, which come one after another; 0: none is to be counted on.
    generation: AtomicU32,
    /// How often an outer one has woken somebody,
    wakes: AtomicU32,
    /// and what had been sent when it was last asked why.
    traffic: AtomicU64,
}

/// Connections that have been given a lane. They come and go, and each begins at nought.
static PAIRS: AtomicU64 = AtomicU64::new(0);
static GENERATIONS: AtomicU32 = AtomicU32::new(RUNG_BY_EVENTFD);

static BELL: [Bell; BELLS] = [const {
    Bell {
        descriptor: AtomicI32::new(0),
        used: AtomicBool::new(false),
        given: AtomicBool::new(false),
        number: AtomicU32::new(0),
        outer: AtomicI32::new(0),
        generation: AtomicU32::new(0),
        wakes: AtomicU32::new(0),
        traffic: AtomicU64::new(0),
    }
}; BELLS];

static EXTENT: Extent = Extent::none();

/// One more than the eventfd of [`common`]; 0: there is none.
static COMMON: AtomicI32 = AtomicI32::new(0);

thread_local! {
    static OWN: Cell<u32> = const { Cell::new(0) };
}

impl Bell {
    /// One more than its index; never 0.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.number.load(Relaxed)
    }

    /// Its eventfd; -1 if it has none.
    #[inline]
    pub(crate) fn fd(&self) -> i32 {
        self.descriptor.load(Relaxed) - 1
    }

    /// The receiving end of its outer bell, if it has one that works.
    #[inline]
    pub(crate) fn outer_fd(&self) -> Option<i32> {
        // SeqCst pairs with `hear`: whoever puts the bell into a set sees the outer one, or is seen.
        (self.generation.load(SeqCst) != RUNG_BY_NONE).then(|| self.outer.load(Relaxed) - 1)
    }

    /// Whether the outer bell that works is of this generation.
    pub(crate) fn outer_is(&self, generation: u32) -> bool {
        self.generation.load(Acquire) == generation
    }

    /// What there is to wait for, in a sleep that is no epoll set's.
    pub(crate) fn descriptors(&self) -> [i32; 2] {
        [self.fd(), self.outer_fd().unwrap_or(-1)]
    }

    /// Whether it has been rung and nobody has heard it yet. Of a thread's bell: a set hears edges, and leaves what has
    /// rung there.
    fn rings(&self) -> bool {
        self.descriptors()
            .iter()
            .any(|fd| raw::poll_now(*fd, libc::POLLIN) != 0)
    }

    /// `fd`, one of [`Bell::descriptors`], has become readable.
    pub(crate) fn heard(&self, fd: i32) {
        if fd == self.fd() {
            raw::eventfd_reset(fd);
        } else if self.outer_fd() == Some(fd) {
            // Of an end behind the bytes `fd` tells again.
            self.heard_outside(false);
        }
    }

    /// The outer bell has rung, or somebody has broken it; `ends`: the kernel has told of an end, perhaps of one that
    /// another has taken the place of since.
    pub(crate) fn heard_outside(&self, ends: bool) {
        // Before anything is found out, of whichever it is.
        let generation = self.generation.load(SeqCst);
        if let Some(fd) = self.outer_fd()
            && (!outer::drain(fd) || ends && outer::has_ended(fd) || self.wakes_in_vain())
        {
            self.lose(generation);
        }
    }

    /// Whether as many wakes as there are between two looks have brought nothing, though others may have brought it
    /// before: whoever has had a sending end once can ring without end, one byte at a time. Peers ring after they have
    /// sent, or made room for what this end sends next.
    fn wakes_in_vain(&self) -> bool {
        let wakes = self.wakes.fetch_add(1, Relaxed).wrapping_add(1);
        wakes.is_multiple_of(WAKES)
            && traffic_of(self.number()).is_some_and(|traffic| self.traffic.swap(traffic, Relaxed) == traffic)
    }

    /// The outer bell is not to be counted on any more: whoever sleeps is to look again, whoever rings learns of it,
    /// and both go on by marks.
    pub(crate) fn lose_outer(&self) {
        self.lose(self.generation.load(SeqCst));
    }

    /// The same, if it is still the one of this generation.
    fn lose(&self, generation: u32) {
        let fd = self.outer.load(Relaxed) - 1;
        let lose = || {
            self.generation
                .compare_exchange(generation, RUNG_BY_NONE, SeqCst, SeqCst)
        };
        if generation == RUNG_BY_NONE || lose().is_err() {
            return;
        }
        // What a program has forbidden itself is not tried. Then it rings unheard, until it is full.
        if !process::is_confined() {
            outer::end(fd);
        }
        let _ = raw::eventfd_ring(self.fd());
    }

    /// What it may be registered in a set by: its eventfd, and the outer bell, though that may be lost.
    pub(crate) fn registered(&self) -> [i32; 2] {
        [self.fd(), self.outer.load(Relaxed) - 1]
    }

    /// Whether the bell must accompany the offer that names it: only the first time.
    pub(crate) fn give(&self) -> bool {
        !self.given.swap(true, Relaxed)
    }

    /// The offer did not go out.
    pub(crate) fn take_back(&self) {
        self.given.store(false, Relaxed);
    }

    /// Gives the bell up for another owner.
    pub(crate) fn abandon(&self) {
        self.used.store(false, Release);
    }
}

/// A bell that nobody has, if there is one and the program can spare a descriptor for it.
pub(crate) fn claim() -> Option<&'static Bell> {
    for (number, bell) in (1..).zip(&BELL) {
        if bell.used.load(Relaxed) {
            continue;
        }
        EXTENT.reach(number as usize - 1);
        if bell.used.swap(true, AcqRel) {
            continue;
        }
        if bell.fd() < 0 {
            if !peer_bells::may_have(number as usize) {
                bell.abandon();
                return None;
            }
            match raw::eventfd() {
                Ok(fd) => bell.descriptor.store(agent::hide(fd) + 1, Relaxed),
                Err(_) => {
                    bell.abandon();
                    return None;
                }
            }
        }
        bell.number.store(number, Relaxed);
        return Some(bell);
    }
    None
}

/// An eventfd that always rings, for the sets for which there is no bell: no peer has it, and one does for all.
pub(crate) fn common() -> Option<i32> {
    known_common().or_else(make_common)
}

/// The same, if there is one.
pub(crate) fn known_common() -> Option<i32> {
    Some(COMMON.load(Acquire) - 1).filter(|fd| *fd >= 0)
}

#[cold]
fn make_common() -> Option<i32> {
    if process::is_confined() {
        return None;
    }
    let fd = agent::hide(raw::eventfd().ok()?);
    let _ = raw::eventfd_ring(fd);
    let Err(known) = COMMON.compare_exchange(0, fd + 1, Release, Acquire) else {
        return Some(fd);
    };
    // Another thread was faster.
    agent::unhide(fd);
    Some(known - 1)
}

/// How far the lanes have come, in both directions, of all connections whose peers ring bell `number`, and how many
/// connections there have been; `None`: one of them is in use just now.
fn traffic_of(number: u32) -> Option<u64> {
    let rings = |conn: &&Conn| conn.own_bell() == number && conn.phase() == Phase::Attached;
    records::all()
        .filter(rings)
        .try_fold(PAIRS.load(Relaxed) << 48, |sum, conn| {
            let guard = conn.try_own_send()?;
            let sent = conn.segment(&guard).map_or(0, |segment| {
                let (lane, own) = (segment.receiver(conn.side()), segment.sender(conn.side()));
                lane.published().wrapping_add(own.tail())
            });
            Some(sum.wrapping_add(sent))
        })
}

/// The bell numbered `number`.
pub(crate) fn numbered(number: u32) -> Option<&'static Bell> {
    BELL.get((number as usize).checked_sub(1)?)
}

/// viaductd has made an outer bell beside bell `number`, and its receiving end, `fresh`, has come, or was lost on the
/// way. There may be one from an earlier viaductd, which no new connection rings. No set may be owned.
pub(crate) fn hear(number: u64, fresh: Option<i32>) {
    let bell = u32::try_from(number)
        .ok()
        .and_then(numbered)
        .filter(|bell| bell.fd() >= 0);
    if let Some(bell) = bell {
        bell.lose_outer();
    }
    let Some(fresh) = fresh else { return };
    // What a program has forbidden itself is not tried.
    if process::is_confined() {
        agent::hide(fresh);
        return;
    }
    let Some(bell) = bell.filter(|_| outer::is_sealed(fresh)) else {
        return outer::dispose(fresh);
    };
    // The number stays the same: other threads may be waiting for it.
    let known = bell.outer.load(Relaxed) - 1;
    if known < 0 {
        bell.outer.store(agent::hide(fresh) + 1, Relaxed);
    } else if !outer::replace(known, fresh) {
        return;
    }
    bell.generation.store(GENERATIONS.fetch_add(1, Relaxed) + 1, SeqCst);
    epoll::hear_outside(bell);
}

/// By what the peer rings the end that rings with bell `own`, as viaductd says.
pub(crate) fn rung_by(pair: &Pair, own: u32) -> u32 {
    PAIRS.fetch_add(1, Relaxed);
    if pair.own_bell == 0 || pair.own_bell != own.into() {
        return RUNG_BY_NONE;
    }
    if pair.flags & PAIR_IS_RUNG_OUTSIDE == 0 {
        return RUNG_BY_EVENTFD;
    }
    numbered(own).map_or(RUNG_BY_NONE, |bell| bell.generation.load(Acquire))
}

/// The calling thread's bell, if it has one.
pub(crate) fn known_of_thread() -> Option<&'static Bell> {
    numbered(OWN.get())
}

/// Whether the calling thread's bell has been rung and nobody has heard it yet.
pub(crate) fn rings_for_thread() -> bool {
    known_of_thread().is_some_and(Bell::rings)
}

/// The calling thread's bell.
pub(crate) fn of_thread() -> Option<&'static Bell> {
    if let Some(bell) = numbered(OWN.get()) {
        return Some(bell);
    }
    let bell = claim()?;
    OWN.set(bell.number());
    thread::this().watch();
    Some(bell)
}

/// The calling thread ends.
pub(crate) fn thread_ends() {
    if let Some(bell) = numbered(OWN.take()) {
        bell.abandon();
    }
}

/// Wakes the thread that bell `number` belongs to, unless it is the caller: the connection that it may sleep on has
/// been closed.
pub(crate) fn wake_other_thread(number: u32) {
    if let Some(bell) = numbered(number)
        && OWN.get() != number
    {
        let _ = raw::eventfd_ring(bell.fd());
    }
}

/// viaductd is a new one: it has no bells yet.
pub(crate) fn reset_given() {
    for bell in EXTENT.of(&BELL).iter().filter(|bell| bell.given.load(Relaxed)) {
        bell.given.store(false, Relaxed);
    }
}

/// In a forked child: the bells are the parent's.
pub(crate) fn after_fork() {
    OWN.set(0);
    agent::unhide(COMMON.swap(0, Relaxed) - 1);
    // A store takes memory.
    for bell in EXTENT
        .of(&BELL)
        .iter()
        .filter(|bell| bell.used.load(Relaxed) || bell.fd() >= 0)
    {
        agent::unhide(bell.descriptor.swap(0, Relaxed) - 1);
        let outer = bell.outer.swap(0, Relaxed) - 1;
        if outer >= 0 {
            bell.generation.store(RUNG_BY_NONE, Relaxed);
            agent::unhide(outer);
        }
        bell.used.store(false, Relaxed);
        bell.given.store(false, Relaxed);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::epoll::set::{SET, SETS};
    use crate::wait::peer_bells::Ringer;
    use rustix::net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, send,
        sendmsg, shutdown, socketpair,
    };
    use std::io::IoSlice;
    use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
    use viaduct_control::message::SO_PASSRIGHTS;

    /// What viaductd does for a bell whose connection goes to another user.
    pub(crate) fn make_outer(bell: &Bell) -> OwnedFd {
        let (receiver, sender) = sockets();
        for (name, value) in [(SO_PASSRIGHTS, 0_i32), (libc::SO_OOBINLINE, 1)] {
            raw::setsockopt(receiver.as_raw_fd(), libc::SOL_SOCKET, name, &value).unwrap();
        }
        hear(bell.number().into(), Some(receiver.into_raw_fd()));
        sender
    }

    /// That of the outer bell which works.
    pub(crate) fn generation(bell: &Bell) -> u32 {
        bell.generation.load(SeqCst)
    }

    fn sockets() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap()
    }

    fn pair(bell: &Bell, flags: u32) -> Pair {
        Pair {
            offer: 1,
            segment: 1,
            bell: 0,
            own_bell: bell.number().into(),
            side: 0,
            flags,
            peer_pid: 0,
            peer_uid: 0,
        }
    }

    fn rang(fd: i32) -> bool {
        raw::poll_now(fd, libc::POLLIN) != 0
    }

    #[test]
    fn an_outer_bell_is_heard_until_somebody_breaks_it() {
        let bell = claim().unwrap();
        let sender = make_outer(bell);
        let ringer = Ringer::outer(sender.as_raw_fd());
        let generation = rung_by(&pair(bell, PAIR_IS_RUNG_OUTSIDE), bell.number());
        assert!(generation > RUNG_BY_EVENTFD && bell.outer_is(generation));
        assert_eq!(rung_by(&pair(bell, 0), bell.number()), RUNG_BY_EVENTFD);
        assert_eq!(rung_by(&pair(bell, 0), bell.number() + 1), RUNG_BY_NONE);
        let [eventfd, outside] = bell.descriptors();
        bell.heard(eventfd);
        assert!(!rang(eventfd) && !rang(outside));

        // However often it rings, it is quiet afterwards.
        for _ in 0..3 {
            assert!(ringer.ring());
        }
        assert!(rang(outside));
        bell.heard(outside);
        assert!(!rang(outside));
        // What is urgent is taken by itself, if at all.
        send(&sender, b"!", SendFlags::OOB).unwrap();
        bell.heard(outside);
        bell.heard(outside);
        assert!(!rang(outside) && bell.outer_is(generation));
        // Nobody waits for one who does not listen.
        assert!((0..100_000).any(|_| !ringer.ring()));
        bell.heard(outside);
        assert!(!rang(outside) && ringer.ring() && bell.outer_is(generation));

        shutdown(&sender, Shutdown::Both).unwrap();
        assert!(!ringer.ring());
        // First the byte, then the end.
        bell.heard(outside);
        bell.heard(outside);
        // Whoever counted on it is woken, and counts on marks from now on.
        assert!(rang(eventfd) && !bell.outer_is(generation));
        assert_eq!(bell.descriptors(), [eventfd, -1]);
        assert_eq!(rung_by(&pair(bell, PAIR_IS_RUNG_OUTSIDE), bell.number()), RUNG_BY_NONE);

        // Another viaductd makes another, in the same place.
        let sender = make_outer(bell);
        assert_eq!(bell.descriptors(), [eventfd, outside]);
        assert!(!rang(outside) && Ringer::outer(sender.as_raw_fd()).ring() && rang(outside));
        assert!(!bell.outer_is(generation));
        // If the next one is lost on the way, this one is not counted on for it.
        hear(bell.number().into(), None);
        assert_eq!(rung_by(&pair(bell, PAIR_IS_RUNG_OUTSIDE), bell.number()), RUNG_BY_NONE);
        assert!(!Ringer::outer(sender.as_raw_fd()).ring());
        bell.abandon();
    }

    #[test]
    fn who_pours_into_an_outer_bell_is_not_listened_to() {
        let bell = claim().unwrap();
        let sender = make_outer(bell);
        let [_, outside] = bell.descriptors();
        send(&sender, &[0; 65536], SendFlags::empty()).unwrap();
        bell.heard(outside);
        assert_eq!(bell.descriptors()[1], -1);
        assert!(!Ringer::outer(sender.as_raw_fd()).ring());
        bell.abandon();
    }

    #[test]
    fn who_rings_an_outer_bell_without_end_is_not_listened_to() {
        let bell = claim().unwrap();
        let sender = make_outer(bell);
        let [_, outside] = bell.descriptors();
        let (conn, _sockets) = records::on_the_heap();
        conn.set_phase(Phase::Attached);
        conn.set_own_bell(bell.number());
        let segment = conn.segment(&conn).unwrap();
        let (peer, lane) = (segment.sender(conn.side().other()), segment.receiver(conn.side()));
        let ring = || {
            assert!(Ringer::outer(sender.as_raw_fd()).ring());
            bell.heard(outside);
        };
        // Somebody else has received it, each time.
        for _ in 0..4 * WAKES {
            peer.append(b"!".as_slice().into()).unwrap();
            lane.consume(lane.readable().unwrap());
            ring();
        }
        // For room that this end has filled.
        let own = segment.sender(conn.side());
        for _ in 0..4 * WAKES {
            own.append(b"!".as_slice().into()).unwrap();
            ring();
        }
        // For connections that come and go, each of which is found to have come as far.
        for _ in 0..4 * WAKES {
            let _ = rung_by(&pair(bell, PAIR_IS_RUNG_OUTSIDE), bell.number());
            ring();
        }
        assert!(bell.outer_fd().is_some());
        assert!((0..2 * WAKES).any(|_| {
            ring();
            bell.outer_fd().is_none()
        }));
        assert!(!Ringer::outer(sender.as_raw_fd()).ring());
        bell.abandon();
    }

    #[test]
    fn an_event_of_the_outer_bell_before_does_not_end_the_next() {
        let bell = claim().unwrap();
        let first = make_outer(bell);
        shutdown(&first, Shutdown::Both).unwrap();
        let second = make_outer(bell);
        // Another thread has had the event from before the exchange.
        bell.heard_outside(true);
        assert!(bell.outer_fd().is_some() && Ringer::outer(second.as_raw_fd()).ring());
        let stale = generation(bell);
        let third = make_outer(bell);
        bell.lose(stale);
        assert!(bell.outer_fd().is_some() && Ringer::outer(third.as_raw_fd()).ring());
        // The end stands behind bytes.
        shutdown(&third, Shutdown::Both).unwrap();
        bell.heard_outside(true);
        assert!(bell.outer_fd().is_none());
        bell.abandon();
    }

    /// To close the last one of a socket may take as long as its sender has said.
    #[test]
    fn what_may_hold_descriptors_is_neither_heard_nor_closed() {
        let bell = claim().unwrap();
        let (receiver, sender) = sockets();
        let (watched, on_its_way) = std::io::pipe().unwrap();
        send(&sender, b"a", SendFlags::empty()).unwrap();
        // Looks end before what is urgent.
        send(&sender, b"b", SendFlags::OOB).unwrap();
        let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let sent = [on_its_way.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&sent));
        sendmsg(&sender, &[IoSlice::new(b"c")], &mut control, SendFlags::empty()).unwrap();
        hear(bell.number().into(), Some(receiver.into_raw_fd()));
        assert!(bell.outer_fd().is_none());
        assert!(!Ringer::outer(sender.as_raw_fd()).ring());
        drop((sender, on_its_way));
        assert_eq!(raw::poll_now(watched.as_raw_fd(), 0) & libc::POLLHUP, 0);
        bell.abandon();
    }

    #[test]
    fn an_outer_bell_that_cannot_be_put_into_its_set_is_not_counted_on() {
        // No other test uses it, and the kernel does not have it.
        let set = &SET[SETS - 9];
        epoll::reach(SETS - 9);
        set.used.store(true, Relaxed);
        set.fd.store(-1, Relaxed);
        let bell = claim().unwrap();
        set.bell.store(bell.number(), Relaxed);
        // A signal handler has interrupted its thread's wait there.
        let interrupted = set.own();
        let _sender = make_outer(bell);
        assert!(bell.outer_fd().is_none());
        drop(interrupted);
        let _sender = make_outer(bell);
        assert!(bell.outer_fd().is_none());
        set.used.store(false, Relaxed);
        bell.abandon();
    }
}
