//! This process's dealings with viaductd.
//!
//! The connection to it is opened when the first TCP connection has shown itself worth it. Everything here is done
//! without waiting, but for the one answer that opens the connection, which is awaited for at most
//! [`welcome::WELCOME_MS`]. Where viaductd is absent, slow or gone, connections stay as they are.

mod away;
pub(crate) mod counters;
mod mail;
mod offer;
pub(crate) mod policy;
mod welcome;
pub(crate) mod worth;

pub(crate) use crate::agent::away::asks_again_at;
pub(crate) use crate::agent::mail::{deliver, has_mail};
pub(crate) use crate::agent::offer::Way;
use crate::agent::policy::{directory, policy};
use crate::conn::{self, Conn, Phase};
use crate::descriptors::{lifecycle, predecessors, table};
use crate::epoll;
use crate::process::unseen;
use crate::sys::{self, raw};
use crate::wait::{bell, peer_bells};
use crate::{lock, options};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64};
use viaduct_control::message::{
    Body, Detach, Hello, MODE_TICKET, OFFER_CAME, OFFER_HAS_BELL, OFFER_HAS_TICKET, Offer, Packet, TICKET_LEVEL,
    Withdraw,
};
use viaduct_control::policy::{OfferPolicy, PathPolicy};
use viaduct_control::{PROTOCOL_VERSION, Reason, counters as layout, runtime};

/// An offer that finds viaductd behind with reading is followed by no other for so long.
const BEHIND_NS: u64 = 200_000;

/// How often it is looked whether viaductd still has what was offered, in ticks: a tenth of a second, more or less.
const LOOK_TICKS: u64 = 1 << 28;

/// Owner of the connection to viaductd, as in [`lock`].
static OWNER: AtomicU32 = AtomicU32::new(0);
/// Counts connections made to viaductd.
static GENERATION: AtomicU32 = AtomicU32::new(0);
static MODE: AtomicU32 = AtomicU32::new(0);
static NONCE: AtomicU32 = AtomicU32::new(0);
/// Until then viaductd is known to be behind with reading.
static BEHIND_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
/// When it was last looked whether viaductd is there, in ticks.
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);
static TICKETS: AtomicU32 = AtomicU32::new(0);

/// What every call looks at: on one cache line, with what it leads to on another.
#[derive(Debug)]
#[repr(C, align(64))]
struct Mailbox {
    /// The connection to viaductd; -1 while none stands.
    fd: AtomicI32,
    /// Counted up by viaductd when it tells of what it has written; null before the first connection to it.
    told: AtomicPtr<AtomicU64>,
    /// What it was when it was last read.
    seen: AtomicU64,
}

static MAILBOX: Mailbox = Mailbox {
    fd: AtomicI32::new(-1),
    told: AtomicPtr::new(core::ptr::null_mut()),
    seen: AtomicU64::new(0),
};

/// Descriptors of ours have numbers from here on: above most programs' own, and below FD_SETSIZE as far as they find
/// room there, since the kernel's table of descriptors, which programs inherit from us, is how far it looks into sets
/// that are said to be longer than they are.
const PRIVATE_FROM: usize = 768;

/// Moves a descriptor of ours out of the program's way and hides it.
pub(crate) fn hide(fd: i32) -> i32 {
    let limit = usize::try_from(sys::limit_of(libc::RLIMIT_NOFILE))
        .unwrap_or(1024)
        .min(1 << 20);
    let high = (limit / 2).min(PRIVATE_FROM);
    let moved = raw::fcntl(fd, libc::F_DUPFD_CLOEXEC, high)
        .ok()
        .and_then(|fd| i32::try_from(fd).ok());
    let fd = match moved {
        Some(moved) => {
            raw::close(fd);
            moved
        }
        None => fd,
    };
    table::set_private(fd);
    fd
}

pub(crate) fn unhide(fd: i32) {
    if fd >= 0 {
        table::take(fd);
        raw::close(fd);
    }
}

/// Whether it is time to ask [`probe`] of an offer of that generation: its connection to viaductd is not there any
/// more, or nobody has looked for a while.
#[inline]
pub(crate) fn is_due_for_look(offered_in: u32) -> bool {
    let is_lost = MAILBOX.fd.load(Relaxed) < 0 || GENERATION.load(Relaxed) != offered_in;
    is_lost || sys::ticks().wrapping_sub(LOOKED_AT.load(Relaxed)) > LOOK_TICKS
}

/// The number of the connection to viaductd that stands now; 0 if none does, and all mail that came by it has been seen
/// to.
pub(crate) fn probe() -> u32 {
    match lock::try_acquire(&OWNER) {
        Some(_owner) => {
            LOOKED_AT.store(sys::ticks(), Relaxed);
            standing()
        }
        // Whoever deals with viaductd may be about to attach what it said last.
        None => GENERATION.load(Acquire),
    }
}

/// The same for who owns the dealings.
fn standing() -> u32 {
    let fd = MAILBOX.fd.load(Acquire);
    if fd < 0 || !look_after(fd) {
        return 0;
    }
    GENERATION.load(Acquire)
}

/// Whether the connection stands, or has mail left that viaductd told of: it tells of a pair once both ends have it.
/// Else it is given up. [`OWNER`] is owned: whoever reads mail now has no other connection put in its place.
fn look_after(fd: i32) -> bool {
    let peek = || raw::recv(fd, &mut [0; 1], libc::MSG_PEEK | libc::MSG_DONTWAIT);
    // That it left something of ours unread is told first, and once.
    let found = peek().or_else(|errno| if errno == libc::ECONNRESET { peek() } else { Err(errno) });
    // In this order: what a viaductd that is gone has told is seen.
    let stands = || raw::poll_now(fd, 0) & libc::POLLHUP == 0 || has_mail();
    if found == Err(libc::EAGAIN) || found.is_ok_and(|len| len > 0) && stands() {
        return true;
    }
    disconnect(fd);
    false
}

fn disconnect(fd: i32) {
    if MAILBOX.fd.compare_exchange(fd, -1, AcqRel, Relaxed).is_ok() {
        away::forget();
        unhide(fd);
    }
}

/// Opens the connection to viaductd if none stands.
fn connect() -> Result<i32, Reason> {
    let fd = MAILBOX.fd.load(Acquire);
    if fd >= 0 {
        return Ok(fd);
    }
    match away::last_refusal() {
        Some(reason) => Err(reason),
        None => open_connection().map_err(|(reason, listens)| {
            away::note(reason, listens);
            reason
        }),
    }
}

/// An error comes with whether somebody listens.
fn open_connection() -> Result<i32, (Reason, bool)> {
    counters::ensure();
    let mut path = [0_u8; 108];
    let mut len = 0;
    for part in [directory(), "/", runtime::SOCKET_NAME] {
        let place = path.get_mut(len..len + part.len()).ok_or((Reason::NoDaemon, false))?;
        place.copy_from_slice(part.as_bytes());
        len += part.len();
    }
    let fd = sys::connect_packet_socket(path.get(..len).unwrap_or(&[])).map_err(|errno| match errno {
        libc::EMFILE | libc::ENFILE => (Reason::NoDescriptors, false),
        libc::EAGAIN => (Reason::SlowDaemon, true), // Its queue is full.
        _ => (Reason::NoDaemon, false),
    })?;
    let region = counters::fd();
    if region < 0 {
        raw::close(fd);
        return Err((counters::why_none(), true));
    }
    // Mail from an earlier viaductd does not count.
    let written = counters::header().and_then(|words| words.get(layout::MAIL));
    MAILBOX
        .seen
        .store(written.map_or(0, |written| written.load(Relaxed)) + 1, Relaxed);
    let hello = Hello {
        version: PROTOCOL_VERSION,
        pid: raw::getpid(),
        program: counters::program_name(),
    };
    let welcome = sys::send_packet(fd, Packet::new(&hello).as_bytes(), Some(region))
        .map_err(|_| Reason::NoDaemon)
        .and_then(|()| welcome::await_on(fd));
    match welcome {
        Ok(welcome) => {
            MODE.store(welcome.mode, Relaxed);
            NONCE.store(welcome.nonce, Relaxed);
            bell::reset_given();
            peer_bells::orphan(fd);
            let fd = hide(fd);
            GENERATION.fetch_add(1, Relaxed);
            let written = written.map_or(core::ptr::null(), core::ptr::from_ref);
            MAILBOX.told.store(written.cast_mut(), Relaxed);
            MAILBOX.fd.store(fd, Release);
            Ok(fd)
        }
        Err(reason) => {
            raw::close(fd);
            Err((reason, true))
        }
    }
}

fn send<B: Body>(body: &B, descriptor: Option<i32>) -> Result<(), Reason> {
    let fd = MAILBOX.fd.load(Acquire);
    if fd < 0 {
        return Err(Reason::NoDaemon);
    }
    match sys::send_packet(fd, Packet::new(body).as_bytes(), descriptor) {
        Ok(()) => Ok(()),
        // viaductd is behind with reading: ask again later.
        Err(libc::EAGAIN | libc::ENOBUFS) => Err(Reason::NotYet),
        Err(_) => Err(Reason::NoDaemon),
    }
}

/// Offers a connection that has carried `messages` messages and `volume` bytes. `Ok(false)`: it is not worth it yet, or
/// viaductd is busy.
pub(crate) fn offer(conn: &Conn, (messages, volume): (u32, u64)) -> Result<bool, Reason> {
    let policy = policy();
    if policy.path == PathPolicy::Tcp {
        conn.set_flag(conn::BANNED, true);
        return Err(policy.why_tcp);
    }
    let Some((local, remote)) = sys::addresses(conn.fd()) else {
        return Ok(false);
    };
    let Some(when) = policy.offer_for(&local, &remote) else {
        conn.set_flag(conn::BANNED, true);
        return Err(Reason::RuleTcp);
    };
    let asked_for = when != OfferPolicy::Auto || policy.path == PathPolicy::Shm || conn.wanted() == layout::Wanted::Shm;
    if !asked_for && !worth::is_shown(messages, volume) {
        return Ok(false);
    }
    if is_behind() {
        return Ok(false);
    }
    if let Some(reason) = unseen::objection(conn.fd()) {
        conn.set_flag(conn::BANNED, true);
        return Err(reason);
    }
    if let Err(reason) = lifecycle::recall_options(conn) {
        if !options::are_undecided(conn) {
            conn.set_flag(conn::BANNED, true);
        }
        return Err(reason);
    }
    if conn.flag(conn::CAME)
        && let Some(reason) = predecessors::objection(conn.fd())
    {
        conn.set_flag(conn::BANNED, true);
        return Err(reason);
    }
    // A signal handler that interrupted this very work leaves it to the next call.
    let Some(_owner) = lock::acquire(&OWNER) else {
        return Ok(false);
    };
    if conn.phase() != Phase::Plain {
        return Ok(false);
    }
    if !conn.is_counted() {
        conn.set_flag(conn::BANNED, true);
        return Err(Reason::Uncounted);
    }
    let mut daemon = connect()?;
    // Asked before the ticket is taken: viaductd keeps only so many that no offer follows.
    let mut state = raw::poll_now(daemon, libc::POLLOUT);
    if state & libc::POLLHUP != 0 {
        if look_after(daemon) {
            // Its last mail is read first.
            return Ok(false);
        }
        // Another may be there by now.
        daemon = connect()?;
        state = raw::poll_now(daemon, libc::POLLOUT);
    }
    if state == 0 {
        BEHIND_UNTIL_NS.store(sys::now_ns() + BEHIND_NS, Relaxed);
        return Ok(false);
    }
    let mut offer = Offer {
        offer: conn.id(),
        cookie: raw::cookie(conn.fd()).unwrap_or(0),
        netns: 0,
        bell: 0,
        local,
        remote,
        ticket_sequence: 0,
        flags: if conn.flag(conn::CAME) { OFFER_CAME } else { 0 },
    };
    // SO_NETNS_COOKIE; the C library's headers have no name for it yet.
    let _ = raw::getsockopt(conn.fd(), libc::SOL_SOCKET, 71, &mut offer.netns);
    counters::addresses(conn, &offer);
    let bell = epoll::bell_of(conn).or_else(bell::of_thread);
    let mut descriptor = None;
    if let Some(bell) = bell {
        conn.set_own_bell(bell.number());
        offer.bell = bell.number().into();
        if bell.give() {
            descriptor = Some(bell.fd());
            offer.flags |= OFFER_HAS_BELL;
        }
    }
    if MODE.load(Relaxed) == MODE_TICKET {
        let sequence = TICKETS.fetch_add(1, Relaxed) & 0xffff;
        let level = (TICKET_LEVEL | sequence).cast_signed();
        if sys::take_ticket(conn.fd(), level, NONCE.load(Relaxed).cast_signed()).is_err() {
            if let Some(bell) = bell.filter(|_| descriptor.is_some()) {
                bell.take_back();
            }
            // A viaductd that is gone gives no tickets; with the next one the offer is worth repeating.
            return if standing() == 0 {
                Ok(false)
            } else {
                Err(Reason::NoTicket)
            };
        }
        offer.ticket_sequence = sequence;
        offer.flags |= OFFER_HAS_TICKET;
    }
    // Before anybody can compare it.
    let before = conn.offered_in.swap(GENERATION.load(Relaxed), Relaxed);
    conn.set_phase(Phase::Offered);
    match send(&offer, descriptor) {
        Ok(()) => {
            counters::add_total(layout::OFFERS, 1);
            Ok(true)
        }
        Err(reason) => {
            conn.set_phase(Phase::Plain);
            conn.offered_in.store(before, Relaxed);
            if let Some(bell) = bell {
                bell.take_back();
            }
            if reason == Reason::NotYet {
                return Ok(false);
            }
            look_after(daemon);
            Err(reason)
        }
    }
}

/// Whether viaductd was found to have no room for an offer a moment ago.
fn is_behind() -> bool {
    let until = BEHIND_UNTIL_NS.load(Relaxed);
    until != 0 && sys::now_ns() < until
}

/// Takes an offer back.
pub(crate) fn withdraw(id: u64) {
    let _ = send(&Withdraw { offer: id }, None);
}

/// Tells viaductd that a segment is unmapped.
pub(crate) fn detached(segment: u64) {
    if segment != 0 {
        let _ = send(&Detach { segment }, None);
    }
}

/// For `--offer wait`: offers a fresh connection and waits until it is attached at both ends, or refused, or time is
/// up.
pub(crate) fn offer_and_wait(conn: &'static Conn, until: u64) {
    conn.note_traffic(Way::Sent, 0);
    let id = conn.id();
    while conn.id() == id {
        deliver();
        let done = match conn.phase() {
            Phase::Plain => true,
            Phase::Offered => false,
            Phase::Attached => conn.own_receive(id).is_none_or(|guard| {
                conn.segment(&guard)
                    .is_none_or(|segment| viaduct_stream::Outgoing::new(segment.sender(conn.side())).may_promote())
            }),
        };
        let left = until.saturating_sub(sys::now_ns());
        if done || left == 0 {
            return;
        }
        if conn.phase() == Phase::Offered {
            sys::wait_quietly(MAILBOX.fd.load(Relaxed), libc::POLLIN, left);
        }
        // For the peer, or for viaductd to tell of what it has written.
        raw::sched_yield();
    }
}

/// The thread that forks and has [`OWNER`] meanwhile; 0 for none.
static FORKER: AtomicU32 = AtomicU32::new(0);

/// Before a fork: waits until no other thread deals with viaductd, and keeps it so, or the child would inherit a
/// segment half taken in or an offer half made. A signal handler that forks amidst such a dealing of its own thread
/// leaves its child that.
pub(crate) fn before_fork() {
    if let Some(owner) = lock::acquire(&OWNER) {
        owner.keep();
        FORKER.store(lock::tid(), Relaxed);
    }
}

/// In a process that has forked.
pub(crate) fn after_fork_in_parent() {
    if FORKER.load(Relaxed) == lock::tid() {
        FORKER.store(0, Relaxed);
        // Release pairs with the acquire of the next owner.
        OWNER.store(0, Release);
    }
}

/// In a forked child: the connection to viaductd and the bells are the parent's.
pub(crate) fn after_fork() {
    let fd = MAILBOX.fd.swap(-1, Relaxed);
    MAILBOX.told.store(core::ptr::null_mut(), Relaxed);
    unhide(fd);
    FORKER.store(0, Relaxed);
    OWNER.store(0, Relaxed);
    away::forget();
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
    use std::os::fd::IntoRawFd;

    #[test]
    fn mail_of_a_viaductd_that_is_gone_counts_if_it_was_told_of() {
        static TOLD: AtomicU64 = AtomicU64::new(0);
        let owner = lock::acquire(&OWNER).unwrap();
        MAILBOX.told.store((&raw const TOLD).cast_mut(), Relaxed);
        GENERATION.store(7, Relaxed);
        for is_told in [true, false] {
            let ends = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
            let (guest, viaductd) = ends.unwrap();
            MAILBOX.fd.store(guest.into_raw_fd(), Relaxed);
            assert_eq!(standing(), 7, "viaductd lives");
            send(&viaductd, b"a pair", SendFlags::empty()).unwrap();
            assert_eq!(standing(), 7, "and may be about to tell of it");
            MAILBOX.seen.store(1, Relaxed);
            TOLD.store(1 + u64::from(is_told), Relaxed);
            drop(viaductd);
            // Who owns the dealings may be attaching what came last.
            assert_eq!(std::thread::spawn(probe).join().unwrap(), 7);
            assert_eq!(standing(), if is_told { 7 } else { 0 });
            disconnect(MAILBOX.fd.load(Relaxed));
            assert_eq!(standing(), 0);
        }
        drop(owner);
        assert_eq!(probe(), 0);
    }
}
