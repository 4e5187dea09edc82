//! The record of one connection end in this process.
//!
//! Records live in a static array and are never freed, only recycled, so that a thread may look at one while another closes
//! it; [`Conn::id`] tells whether it is still the same connection. What the segment holds is only touched while a direction is
//! owned ([`crate::lock`]), or while the epoll set the connection is a member of is.

use crate::lock::{self, Guard, Locks};
use crate::sys::{self, Errno, SegmentCell, raw};
use crate::{agent, counters, epoll, kernel, table};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64};
use viaduct_channel::{Segment, Side};
use viaduct_control::Reason;
use viaduct_control::counters::{Path, State, Wanted, slot};
use viaduct_control::policy::{OfferPolicy, PathPolicy};
use viaduct_stream::Incoming;

/// Connections that have a record at one time. Later ones stay plain.
pub(crate) const RECORDS: usize = 1 << 16;

static RECORD: [Conn; RECORDS] = [const { Conn::unused() }; RECORDS];
/// One bit a record: in use.
static USED: [AtomicU64; RECORDS / 64] = [const { AtomicU64::new(0) }; RECORDS / 64];
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

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

/// [`Conn::flag`]: `TCP_NODELAY` is off as far as the program knows.
pub(crate) const NAGLE: u32 = 1 << 0;
/// [`Conn::flag`]: the peer has shut down its sending direction, or is gone.
pub(crate) const PEER_FIN: u32 = 1 << 1;
/// [`Conn::flag`]: the kernel connection is dead (error or both directions down).
pub(crate) const DEAD: u32 = 1 << 2;
/// [`Conn::flag`]: the record was copied by `fork`; another process may hold the socket.
pub(crate) const FORKED: u32 = 1 << 3;
/// [`Conn::flag`]: attached, but the peer has not been told that promotions may come.
pub(crate) const READY_OWED: u32 = 1 << 4;
/// [`Conn::flag`]: never to be offered (again).
pub(crate) const BANNED: u32 = 1 << 5;
/// [`Conn::flag`]: a wait of the program's was seen for this socket.
pub(crate) const SEEN_WAIT: u32 = 1 << 6;
/// [`Conn::flag`]: this end called connect.
pub(crate) const ACTIVE: u32 = 1 << 7;
/// [`Conn::flag`]: the program shut down its receiving direction.
pub(crate) const SHUT_READ: u32 = 1 << 8;
/// [`Conn::flag`]: the connection is known to be established.
pub(crate) const ESTABLISHED: u32 = 1 << 9;

/// [`Conn::flag`]: the program shut down its sending direction.
pub(crate) const SHUT_WRITE: u32 = 1 << 11;
/// [`Conn::flag`]: given to somebody who may not know of lanes.
pub(crate) const HANDED_OVER: u32 = 1 << 12;
/// [`Conn::flag`]: this process no longer counts among the holders.
pub(crate) const LEFT: u32 = 1 << 14;
/// [`Conn::flag`]: a receive found nothing; an edge is due once there is something.
pub(crate) const IN_WANTED: u32 = 1 << 13;
/// [`Conn::flag`]: a send found no room; an edge is due once there is some.
pub(crate) const OUT_WANTED: u32 = 1 << 10;

/// One connection end.
#[derive(Debug)]
#[repr(align(128))]
pub struct Conn {
    id: AtomicU64,
    locks: AtomicPtr<Locks>,
    phase: AtomicU8,
    side: AtomicU8,
    sending: AtomicU8,
    receiving: AtomicU8,
    nonblocking: AtomicU8,
    reason: AtomicU16,
    flags: AtomicU32,
    references: AtomicU32,
    fd: AtomicI32,
    /// Calls inside the kernel that receive or send stream bytes without owning the direction.
    direct_receives: AtomicU32,
    direct_sends: AtomicU32,
    messages: AtomicU32,
    offered_in: AtomicU32,
    volume: AtomicU64,
    retry_at_ns: AtomicU64,
    checked_at: AtomicU64,
    stalled_at: AtomicU64,
    stuck_at: AtomicU64,
    segment: SegmentCell,
    segment_name: AtomicU64,
    /// Eventfd of the peer's bell, -1 for none.
    peer_bell: AtomicI32,
    /// One more than the index of the bell the peer was told to ring; 0 for none.
    own_bell: AtomicU32,
    pending_error: AtomicI32,
    pub(crate) receive_timeout_ns: AtomicU64,
    pub(crate) send_timeout_ns: AtomicU64,
    /// One more than the index of the first epoll membership.
    pub(crate) memberships: AtomicU32,
}

/// The record numbered `index`.
#[inline]
pub(crate) fn record(index: usize) -> Option<&'static Conn> {
    RECORD.get(index)
}

/// The records in use.
pub(crate) fn all() -> impl Iterator<Item = &'static Conn> {
    USED.iter()
        .enumerate()
        .flat_map(|(word, bits)| {
            let mut bits = bits.load(Acquire);
            core::iter::from_fn(move || {
                let bit = bits.trailing_zeros() as usize;
                (bit < 64).then(|| {
                    bits &= bits - 1;
                    word * 64 + bit
                })
            })
        })
        .filter_map(record)
        .filter(|conn| conn.id() != 0)
}

/// The record that `id` names.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "masked to the number of records")]
fn index_of(id: u64) -> usize {
    (id & (RECORDS as u64 - 1)) as usize
}

/// The connection that was given `id`, if it still lives.
pub(crate) fn by_id(id: u64) -> Option<&'static Conn> {
    record(index_of(id)).filter(|conn| conn.id() == id)
}

fn claim() -> Option<usize> {
    for (index, word) in USED.iter().enumerate() {
        let mut bits = word.load(Relaxed);
        while bits != u64::MAX {
            let bit = (!bits).trailing_zeros();
            let before = word.fetch_or(1 << bit, AcqRel);
            if before & (1 << bit) == 0 {
                return Some(index * 64 + bit as usize);
            }
            bits = before | 1 << bit;
        }
    }
    None
}

fn disclaim(index: usize) {
    if let Some(word) = USED.get(index / 64) {
        word.fetch_and(!(1 << (index % 64)), AcqRel);
    }
}

/// Begins a record for the TCP socket `fd`, which the program has just got. `None`: it stays plain and unshown.
pub(crate) fn open(fd: i32, flags: u32) -> Option<&'static Conn> {
    let index = claim()?;
    let (Some(conn), Some(locks)) = (record(index), lock::claim(RECORDS)) else {
        disclaim(index);
        return None;
    };
    let id = NEXT_ID.fetch_add(1, Relaxed).wrapping_mul(RECORDS as u64) | index as u64;
    conn.reset(fd, flags);
    conn.locks.store(core::ptr::from_ref(locks).cast_mut(), Relaxed);
    // Release pairs with the acquire in `id`.
    conn.id.store(id, Release);
    if !table::set_connection(fd, index) {
        conn.id.store(0, Release);
        disclaim(index);
        return None;
    }
    counters::open(conn);
    Some(conn)
}

impl Conn {
    const fn unused() -> Self {
        Self {
            id: AtomicU64::new(0),
            locks: AtomicPtr::new(core::ptr::null_mut()),
            phase: AtomicU8::new(0),
            side: AtomicU8::new(0),
            sending: AtomicU8::new(0),
            receiving: AtomicU8::new(0),
            nonblocking: AtomicU8::new(0),
            reason: AtomicU16::new(0),
            flags: AtomicU32::new(0),
            references: AtomicU32::new(0),
            fd: AtomicI32::new(0),
            direct_receives: AtomicU32::new(0),
            direct_sends: AtomicU32::new(0),
            messages: AtomicU32::new(0),
            offered_in: AtomicU32::new(0),
            volume: AtomicU64::new(0),
            retry_at_ns: AtomicU64::new(0),
            checked_at: AtomicU64::new(0),
            stalled_at: AtomicU64::new(0),
            stuck_at: AtomicU64::new(0),
            segment: SegmentCell::empty(),
            segment_name: AtomicU64::new(0),
            peer_bell: AtomicI32::new(0),
            own_bell: AtomicU32::new(0),
            pending_error: AtomicI32::new(0),
            receive_timeout_ns: AtomicU64::new(0),
            send_timeout_ns: AtomicU64::new(0),
            memberships: AtomicU32::new(0),
        }
    }

    fn reset(&self, fd: i32, flags: u32) {
        self.phase.store(Phase::Plain as u8, Relaxed);
        self.nonblocking.store(0, Relaxed);
        self.sending.store(Path::Tcp as u8, Relaxed);
        self.receiving.store(Path::Tcp as u8, Relaxed);
        self.reason.store(Reason::NotYet as u16, Relaxed);
        self.flags.store(flags, Relaxed);
        self.references.store(1, Relaxed);
        self.fd.store(fd, Relaxed);
        for word in [
            &self.direct_receives,
            &self.direct_sends,
            &self.messages,
            &self.offered_in,
            &self.own_bell,
        ] {
            word.store(0, Relaxed);
        }
        for word in [
            &self.volume,
            &self.retry_at_ns,
            &self.checked_at,
            &self.stalled_at,
            &self.stuck_at,
            &self.segment_name,
            &self.receive_timeout_ns,
            &self.send_timeout_ns,
        ] {
            word.store(0, Relaxed);
        }
        self.peer_bell.store(-1, Relaxed);
        self.pending_error.store(0, Relaxed);
        self.memberships.store(0, Relaxed);
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
        if self.phase.compare_exchange(offered, plain, SeqCst, SeqCst).is_ok() {
            agent::withdraw(self.id());
        }
    }

    #[inline]
    pub(crate) fn flag(&self, flag: u32) -> bool {
        self.flags.load(Relaxed) & flag != 0
    }

    pub(crate) fn set_flag(&self, flag: u32, on: bool) {
        if on {
            self.flags.fetch_or(flag, Relaxed);
        } else {
            self.flags.fetch_and(!flag, Relaxed);
        }
    }

    /// Whether the program set `O_NONBLOCK`, as far as its calls were seen.
    #[inline]
    pub(crate) fn nonblocking(&self) -> bool {
        self.nonblocking.load(Relaxed) != 0
    }

    pub(crate) fn set_nonblocking(&self, on: bool) {
        self.nonblocking.store(on.into(), Relaxed);
    }

    /// Asks the kernel whether `O_NONBLOCK` is set, for a call that is about to wait: another process may have changed it.
    pub(crate) fn refresh_nonblocking(&self) -> bool {
        let flags = raw::fcntl(self.fd(), libc::F_GETFL, 0).unwrap_or(0);
        let on = flags & libc::O_NONBLOCK.cast_unsigned() as usize != 0;
        self.set_nonblocking(on);
        on
    }

    pub(crate) fn reason(&self) -> Reason {
        Reason::from_number(self.reason.load(Relaxed)).unwrap_or(Reason::NotYet)
    }

    pub(crate) fn set_reason(&self, reason: Reason) {
        self.reason.store(reason as u16, Relaxed);
        self.show();
    }

    /// One more descriptor refers to the socket.
    pub(crate) fn hold(&self) {
        self.references.fetch_add(1, Relaxed);
    }

    /// Owns the sending direction; `None` if this thread owns it already, or the connection is closed.
    #[inline]
    pub(crate) fn own_send(&self, id: u64) -> Option<Guard<'static>> {
        self.own(id, |locks| &locks.send)
    }

    /// Owns the receiving direction; `None` if this thread owns it already, or the connection is closed.
    #[inline]
    pub(crate) fn own_receive(&self, id: u64) -> Option<Guard<'static>> {
        self.own(id, |locks| &locks.receive)
    }

    #[inline]
    fn own(&self, id: u64, word: impl FnOnce(&'static Locks) -> &'static AtomicU32) -> Option<Guard<'static>> {
        let guard = lock::acquire(word(self.locks()?))?;
        (self.id() == id).then_some(guard)
    }

    /// Owns the sending direction if nobody does.
    pub(crate) fn try_own_send(&self) -> Option<Guard<'static>> {
        lock::try_acquire(&self.locks()?.send)
    }

    #[inline]
    fn locks(&self) -> Option<&'static Locks> {
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
    pub(crate) fn peer_bell(&self) -> i32 {
        self.peer_bell.load(Relaxed)
    }

    /// One more than the index of the bell the peer rings for this end; 0 for none.
    #[inline]
    pub(crate) fn own_bell(&self) -> u32 {
        self.own_bell.load(Relaxed)
    }

    pub(crate) fn set_own_bell(&self, bell: u32) {
        self.own_bell.store(bell, Relaxed);
    }

    /// An error the kernel reported before the program could be told, taken; 0 for none.
    pub(crate) fn take_error(&self) -> Errno {
        if self.pending_error.load(Relaxed) == 0 {
            0
        } else {
            self.pending_error.swap(0, AcqRel)
        }
    }

    pub(crate) fn has_error(&self) -> bool {
        self.pending_error.load(Relaxed) != 0
    }

    pub(crate) fn set_error(&self, errno: Errno) {
        self.pending_error.store(errno, Release);
    }

    /// Whether the kernel connection was last looked at longer than `us` microseconds ago; if so, now counts as a look.
    #[inline]
    pub(crate) fn due_for_check(&self, us: u64) -> bool {
        let now = sys::ticks();
        let due = now.wrapping_sub(self.checked_at.load(Relaxed)) > us * sys::ticks_per_us();
        if due {
            self.checked_at.store(now, Relaxed);
        }
        due
    }

    /// Notes that the lane was full too long; promotions wait a while.
    pub(crate) fn note_stall(&self) {
        self.stalled_at.store(sys::now_ns(), Relaxed);
        self.set_reason(Reason::LaneStall);
    }

    /// Whether nothing has left the full lane since the last call.
    pub(crate) fn stuck_at(&self, in_flight: usize, tail: u64) -> bool {
        let head = tail.wrapping_sub(in_flight as u64);
        let mark = head.wrapping_add(1);
        self.stuck_at.swap(mark, Relaxed) == mark
    }

    /// Whether the last stall is long enough ago to try the lane again.
    pub(crate) fn stall_over(&self) -> bool {
        let stalled = self.stalled_at.load(Relaxed);
        if stalled == 0 {
            return true;
        }
        let over = sys::now_ns().saturating_sub(stalled) > 2_000_000;
        if over {
            self.stalled_at.store(0, Relaxed);
        }
        over
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
        self.wanted() != Wanted::Tcp && !self.flag(BANNED)
    }

    /// Counts traffic of a connection that is not attached and offers it when it has shown itself worth it.
    #[inline]
    pub(crate) fn note_traffic(&self, bytes: usize) {
        let messages = self.messages.fetch_add(1, Relaxed).wrapping_add(1);
        let volume = self.volume.fetch_add(bytes as u64, Relaxed) + bytes as u64;
        if self.flag(BANNED) {
            return;
        }
        match self.phase() {
            Phase::Plain => self.consider_offer(messages, volume),
            // viaductd is gone, and the offer with it.
            Phase::Offered if messages.is_multiple_of(256) && agent::probe() != self.offered_in.load(Relaxed) => {
                self.end_offer();
            }
            _ => {}
        }
    }

    #[inline]
    fn consider_offer(&self, messages: u32, volume: u64) {
        let policy = agent::policy();
        // A connection that has carried this much has paid for an offer; rules may say otherwise, and need addresses.
        let eager = policy.offer != OfferPolicy::Auto || policy.path == PathPolicy::Shm || policy.has_rules();
        if eager || messages >= 16 || volume >= 64 << 10 || self.wanted() == Wanted::Shm {
            self.offer(messages, volume);
        }
    }

    #[cold]
    fn offer(&self, messages: u32, volume: u64) {
        let now = sys::now_ns();
        if now < self.retry_at_ns.load(Relaxed) {
            return;
        }
        self.retry_at_ns.store(now + 1_000_000_000, Relaxed);
        let wanted = self.wanted();
        if wanted == Wanted::Tcp {
            return;
        }
        if !self.alone() {
            return self.set_reason(Reason::SharedEnd);
        }
        match agent::offer(self, (messages, volume)) {
            Ok(Some(generation)) => {
                self.offered_in.store(generation, Relaxed);
                // A limit stays the reason until it is overcome.
                let limits = [
                    Reason::LimitSegments,
                    Reason::LimitMemory,
                    Reason::NoMemory,
                    Reason::NoDescriptors,
                ];
                if !limits.contains(&self.reason()) {
                    self.set_reason(Reason::Offered);
                }
            }
            // Not yet worth it: ask again soon.
            Ok(None) => self.retry_at_ns.store(0, Relaxed),
            Err(reason) => self.set_reason(reason),
        }
    }

    /// The offer was refused; it may be repeated after `retry_ms`, or never if that is 0.
    pub(crate) fn refused(&self, reason: Reason, retry_ms: u32) {
        let (offered, plain) = (Phase::Offered as u8, Phase::Plain as u8);
        if self.phase.compare_exchange(offered, plain, SeqCst, SeqCst).is_err() {
            return;
        }
        if retry_ms == 0 {
            self.set_flag(BANNED, true);
        } else {
            self.retry_at_ns
                .store(sys::now_ns() + u64::from(retry_ms) * 1_000_000, Relaxed);
        }
        self.set_reason(reason);
    }

    /// The pair stands: takes the segment in.
    pub(crate) fn attach(&self, segment: Segment, name: u64, side: Side, peer_bell: i32, peer_pid: u32) -> bool {
        let id = self.id();
        let (Some(_send), Some(receive)) = (self.own_send(id), self.own_receive(id)) else {
            return false;
        };
        if !self.may_attach() {
            return false;
        }
        self.side.store(u8::from(side == Side::Second), Relaxed);
        self.segment.fill(segment);
        self.segment_name.store(name, Relaxed);
        self.peer_bell.store(peer_bell, Relaxed);
        self.set_flag(READY_OWED, true);
        let (offered, attached) = (Phase::Offered as u8, Phase::Attached as u8);
        if self.phase.compare_exchange(offered, attached, SeqCst, SeqCst).is_err() {
            self.segment.clear();
            return false;
        }
        // Marks may not be held back.
        let (zero, one): (i32, i32) = (0, 1);
        let _ = raw::setsockopt(self.fd(), libc::IPPROTO_TCP, libc::TCP_CORK, &zero);
        let _ = raw::setsockopt(self.fd(), libc::IPPROTO_TCP, libc::TCP_NODELAY, &one);
        if let Some(words) = counters::slot_of(self) {
            words[slot::PEER_PID].store(peer_pid.into(), Relaxed);
        }
        self.pay_ready(&receive);
        self.set_reason(Reason::Pairing);
        true
    }

    /// Tells the peer that promotions may come, unless a call of ours is inside the kernel and might take a mark for data.
    pub(crate) fn pay_ready(&self, receive: &Guard<'_>) {
        // SeqCst pairs with `DirectCall::begin`: either we see the call, or it sees the phase and turns back.
        if self.flag(READY_OWED)
            && self.direct_receives.load(SeqCst) == 0
            && let Some(segment) = self.segment(receive)
            && let Some(locks) = self.locks()
            && let Some(position) = kernel::receive_position(self.fd())
        {
            locks.position.store(position, Relaxed);
            self.set_flag(READY_OWED, false);
            Incoming::new(segment.receiver(self.side())).set_ready();
        }
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
        self.show();
    }

    /// Whether a pair that viaductd has made is still wanted.
    pub(crate) fn may_attach(&self) -> bool {
        self.phase() == Phase::Offered && !self.flag(BANNED) && self.alone()
    }

    /// Whether no other process holds the connection, whose calls on the kernel connection would not be seen here.
    fn alone(&self) -> bool {
        !self.flag(FORKED) || self.locks().is_some_and(|locks| locks.holders.load(Relaxed) == 1)
    }

    /// This process lets go of the connection, once.
    pub(crate) fn leave(&self) {
        if self.flags.fetch_or(LEFT, AcqRel) & LEFT == 0
            && let Some(locks) = self.locks()
        {
            locks.holders.fetch_sub(1, AcqRel);
        }
    }

    /// This process holds the connection after all.
    pub(crate) fn stay(&self) {
        if self.flags.fetch_and(!LEFT, AcqRel) & LEFT != 0
            && let Some(locks) = self.locks()
        {
            locks.holders.fetch_add(1, AcqRel);
        }
    }

    /// Kernel position of the next byte to be received, counted since the pair stood. The receiving direction is owned.
    pub(crate) fn position(&self) -> u64 {
        self.locks().map_or(0, |locks| locks.position.load(Relaxed))
    }

    /// So many bytes, of the stream or marks, have been taken from the kernel connection. The receiving direction is owned.
    pub(crate) fn advance(&self, bytes: usize) {
        if let Some(locks) = self.locks() {
            locks
                .position
                .store(self.position().wrapping_add(bytes as u64), Relaxed);
        }
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
        if state.sending == Path::Shm && state.receiving == Path::Shm {
            state.reason = Reason::Accelerated;
        }
        words[slot::STATE].store(state.pack(), Relaxed);
    }

    /// A descriptor that referred to the socket is about to go (`fd`), or, if `stale`, has gone unseen and the number may stand for another
    /// socket by now. With the last one the record ends.
    pub(crate) fn release(&'static self, fd: i32, stale: bool) {
        if self.references.fetch_sub(1, AcqRel) != 1 {
            if self.fd() == fd
                && let Some(other) = table::find(self)
            {
                self.fd.store(other, Relaxed);
                self.show();
            }
            return;
        }
        self.end(stale);
    }

    fn end(&'static self, stale: bool) {
        let id = self.id();
        let index = self.index();
        epoll::forget(self);
        self.end_offer();
        {
            let send = self.own_send(id);
            let receive = self.own_receive(id);
            if self.phase() == Phase::Attached {
                let (Some(_), Some(receive)) = (&send, &receive) else {
                    // Closed by a signal handler that interrupted a call on this very connection: that call still needs the
                    // segment and the record, which are given up.
                    self.fd.store(-1, Relaxed);
                    return counters::close(self);
                };
                if !stale {
                    crate::marks::settle(self, receive);
                }
                self.segment.clear();
                agent::detached(self.segment_name());
                agent::release_bell(self.peer_bell());
            }
            self.leave();
            self.set_phase(Phase::Plain);
            counters::close(self);
            self.id.store(0, Release);
        }
        disclaim(index);
    }
}

/// A call of the program's that is inside the kernel with its own buffers, on a connection that was not attached when it began.
#[derive(Debug)]
pub(crate) struct DirectCall<'a> {
    count: &'a AtomicU32,
}

impl<'a> DirectCall<'a> {
    /// Begins a receive; `None` if the connection has been attached meanwhile.
    #[inline]
    pub(crate) fn receive(conn: &'a Conn) -> Option<Self> {
        Self::begin(conn, &conn.direct_receives)
    }

    /// Begins a send; `None` if the connection has been attached meanwhile.
    #[inline]
    pub(crate) fn send(conn: &'a Conn) -> Option<Self> {
        Self::begin(conn, &conn.direct_sends)
    }

    #[inline]
    fn begin(conn: &Conn, count: &'a AtomicU32) -> Option<Self> {
        // SeqCst pairs with `Conn::pay_ready` and `Conn::sending_directly`.
        count.fetch_add(1, SeqCst);
        if conn.phase() == Phase::Attached {
            count.fetch_sub(1, SeqCst);
            return None;
        }
        Some(Self { count })
    }

    /// The call has returned. Not a destructor: a cancelled thread must find nothing to run.
    #[inline]
    pub(crate) fn end(self) {
        self.count.fetch_sub(1, SeqCst);
    }
}

/// Before a fork: there will be one more process that holds each connection.
pub(crate) fn before_fork() {
    for conn in all() {
        if let Some(locks) = conn.locks() {
            locks.holders.fetch_add(1, AcqRel);
        }
    }
}

/// In a forked child: every record is a copy, offers belong to the parent.
pub(crate) fn after_fork_in_child() {
    for conn in all() {
        conn.set_flag(FORKED, true);
        let direct = conn.direct_receives.load(Relaxed) != 0 || conn.direct_sends.load(Relaxed) != 0;
        if conn.flag(READY_OWED) || direct {
            // The parent has a call inside the kernel that this process will not see return.
            conn.set_flag(READY_OWED, false);
            conn.set_flag(BANNED, true);
        }
        conn.direct_receives.store(0, Relaxed);
        conn.direct_sends.store(0, Relaxed);
        conn.own_bell.store(0, Relaxed);
        if conn.phase() == Phase::Offered {
            conn.set_phase(Phase::Plain);
        }
    }
}

/// In a process that has forked: offers are taken back, since the child may be the one to use the socket.
pub(crate) fn after_fork_in_parent() {
    for conn in all() {
        conn.set_flag(FORKED, true);
        if conn.phase() == Phase::Offered {
            conn.end_offer();
            conn.retry_at_ns.store(sys::now_ns() + 20_000_000, Relaxed);
        }
    }
}
