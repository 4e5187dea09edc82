//! Epoll sets whose members may be on lanes.
//!
//! The program's set stays a kernel set with the program's registrations. When a member is attached to a segment, its kernel registration
//! is replaced by an edge-triggered one whose data is a tag of ours, so that the kernel still tells us of marks, FIN, RST
//! and room for raw bytes, and readiness as the program sees it is computed here: [`crate::ready`]. A bell is added to the set, so that
//! peers can wake whoever sleeps in it.
//!
//! Members with recent traffic are *hot*: they are looked at by polling and, before sleeping, armed to ring the bell. A
//! member without traffic for a while becomes *cold*: it is armed for a mark on its kernel connection, which costs its next message a
//! system call and everybody else nothing.
//!
//! A set is owned (as in [`crate::lock`]) while its lists are used, never while waiting. Order: a set before a direction.

use crate::bell::{self, BY_BELL, BY_SOCKET, Bell};
use crate::conn::{self, Conn, Phase};
use crate::list::{Links, List};
use crate::lock::{self, Guard};
use crate::sys::raw;
use crate::{demote, ready, table};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};
use libc::{EPOLLET, EPOLLEXCLUSIVE, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLPRI, EPOLLRDHUP};
use viaduct_control::Reason;

const SETS: usize = 4096;
const MEMBERS: usize = 1 << 17;

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
/// [`Member::flags`]: the kernel signalled since the last report (an edge).
pub(crate) const EDGE: u32 = 1 << 5;

/// The registration of one connection in one set.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Member {
    used: AtomicBool,
    set: AtomicU32,
    pub(crate) connection: AtomicU64,
    fd: AtomicI32,
    pub(crate) events: AtomicU32,
    data: AtomicU64,
    pub(crate) flags: AtomicU32,
    next_of_connection: AtomicU32,
    in_set: Links,
    in_hot: Links,
    /// Lane position up to which an edge has been reported.
    pub(crate) reported: AtomicU64,
    idle: AtomicU32,
}

/// An epoll set.
#[derive(Debug)]
pub(crate) struct Set {
    used: AtomicBool,
    owner: AtomicU32,
    fd: AtomicI32,
    references: AtomicU32,
    /// Number of its bell; 0 for none.
    bell: AtomicU32,
    members: List,
    pub(crate) hot: List,
    pub(crate) emulated: AtomicU32,
    pub(crate) sleepers: AtomicU32,
    /// Waited for through another set, which cannot be seen into.
    nested: AtomicBool,
    pub(crate) kernel_looked: AtomicU64,
    pub(crate) waits: AtomicU32,
}

static SET: [Set; SETS] = [const {
    Set {
        used: AtomicBool::new(false),
        owner: AtomicU32::new(0),
        fd: AtomicI32::new(0),
        references: AtomicU32::new(0),
        bell: AtomicU32::new(0),
        members: List::new(),
        hot: List::new(),
        emulated: AtomicU32::new(0),
        sleepers: AtomicU32::new(0),
        nested: AtomicBool::new(false),
        kernel_looked: AtomicU64::new(0),
        waits: AtomicU32::new(0),
    }
}; SETS];

static MEMBER: [Member; MEMBERS] = [const {
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
}; MEMBERS];
static MEMBER_HINT: AtomicU32 = AtomicU32::new(0);

/// Upper half of our tags: drawn once, so that no program's data is mistaken for one.
static TAG: AtomicU64 = AtomicU64::new(0);

fn tag() -> u64 {
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

impl Set {
    /// Owns the set's lists.
    #[inline]
    pub(crate) fn own(&self) -> Option<Guard<'_>> {
        lock::acquire(&self.owner)
    }

    pub(crate) fn fd(&self) -> i32 {
        self.fd.load(Relaxed)
    }

    pub(crate) fn bell_number(&self) -> u32 {
        self.bell.load(Relaxed)
    }

    fn ensure_bell(&self) -> Option<&'static Bell> {
        if let Some(bell) = bell::numbered(self.bell.load(Relaxed)) {
            return Some(bell);
        }
        let bell = bell::claim()?;
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
        self.bell.store(bell.number(), Relaxed);
        Some(bell)
    }

    /// Makes whoever sleeps in the set look again.
    fn nudge(&self) {
        if self.sleepers.load(Acquire) > 0
            && let Some(bell) = bell::numbered(self.bell.load(Relaxed))
        {
            let _ = raw::eventfd_ring(bell.fd());
        }
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

    /// Makes a member hot.
    pub(crate) fn heat(&self, number: u32, member: &Member) {
        member.idle.store(0, Relaxed);
        if member.flags.fetch_or(HOT, Relaxed) & HOT == 0 {
            self.hot.push(number, hot_links);
        }
    }

    /// Puts a hot member that has been served behind the others.
    pub(crate) fn serve(&self, number: u32, member: &Member) {
        member.idle.store(0, Relaxed);
        self.hot.remove(number, hot_links);
        self.hot.push(number, hot_links);
    }

    fn cool(&self, number: u32, member: &Member) {
        if member.flags.fetch_and(!HOT, Relaxed) & HOT != 0 {
            self.hot.remove(number, hot_links);
        }
    }

    /// The wait bit by which `conn` wakes a sleeper of this set.
    pub(crate) fn bit_for(&self, conn: &Conn) -> u32 {
        if self.bell_number() != 0 && self.bell_number() == conn.own_bell() {
            BY_BELL
        } else {
            BY_SOCKET
        }
    }

    /// After a sleep in which `member` did not stir: cools it once that has happened often. False if it had bytes after all.
    pub(crate) fn grow_idle(&self, number: u32, member: &Member, crowded: bool) {
        let idle = member.idle.fetch_add(1, Relaxed) + 1;
        if idle > if crowded { 4 } else { 64 } {
            self.cool(number, member);
        }
    }
}

fn hot_links(number: u32) -> Option<&'static Links> {
    member(number).map(|member| &member.in_hot)
}

fn set_links(number: u32) -> Option<&'static Links> {
    member(number).map(|member| &member.in_set)
}

impl Member {
    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags.load(Relaxed) & flag != 0
    }

    /// The connection, if it still lives.
    #[inline]
    pub(crate) fn conn(&self) -> Option<&'static Conn> {
        conn::by_id(self.connection.load(Relaxed))
    }

    /// The program's data.
    #[inline]
    pub(crate) fn data(&self) -> u64 {
        self.data.load(Relaxed)
    }

    fn set(&self) -> Option<&'static Set> {
        set((self.set.load(Relaxed) as usize).checked_sub(1)?)
    }
}

/// A new epoll set `fd`.
pub fn created(fd: i32) {
    for (index, set) in SET.iter().enumerate() {
        if set.used.load(Relaxed) || set.used.swap(true, AcqRel) {
            continue;
        }
        set.fd.store(fd, Relaxed);
        set.references.store(1, Relaxed);
        set.bell.store(0, Relaxed);
        set.members.clear();
        set.hot.clear();
        set.emulated.store(0, Relaxed);
        set.sleepers.store(0, Relaxed);
        set.nested.store(false, Relaxed);
        set.kernel_looked.store(0, Relaxed);
        if !table::set_epoll(fd, index) {
            set.used.store(false, Release);
        }
        return;
    }
}

/// One more descriptor for the set.
pub(crate) fn hold(index: usize) {
    if let Some(set) = set(index) {
        set.references.fetch_add(1, Relaxed);
    }
}

/// One descriptor less; with the last the set is gone.
pub(crate) fn release(index: usize) {
    let Some(set) = set(index) else { return };
    if set.references.fetch_sub(1, AcqRel) != 1 {
        return;
    }
    if let Some(_owner) = set.own() {
        while let Some(number) = set.members.first() {
            remove(set, number);
        }
        if let Some(bell) = bell::numbered(set.bell.swap(0, Relaxed)) {
            bell.abandon();
        }
    }
    set.used.store(false, Release);
}

/// Takes a member out of its set and its connection's list. The set is owned.
fn remove(set: &Set, number: u32) {
    let Some(gone) = member(number) else { return };
    set.cool(number, gone);
    set.members.remove(number, set_links);
    if gone.has(EMULATED) {
        set.emulated.fetch_sub(1, Relaxed);
    }
    if let Some(conn) = gone.conn() {
        let mut place = &conn.memberships;
        while let Some(other) = member(place.load(Relaxed)) {
            if core::ptr::eq(other, gone) {
                place.store(gone.next_of_connection.load(Relaxed), Relaxed);
                break;
            }
            place = &other.next_of_connection;
        }
    }
    gone.connection.store(0, Relaxed);
    gone.used.store(false, Release);
}

fn claim() -> Option<(u32, &'static Member)> {
    let from = MEMBER_HINT.fetch_add(1, Relaxed) as usize;
    for step in 0..MEMBERS {
        let index = (from + step) % MEMBERS;
        if let Some(member) = MEMBER.get(index)
            && !member.used.load(Relaxed)
            && !member.used.swap(true, AcqRel)
        {
            return Some((u32::try_from(index + 1).ok()?, member));
        }
    }
    None
}

fn find(conn: &Conn, set_index: usize, fd: i32) -> Option<(u32, &'static Member)> {
    let mut number = conn.memberships.load(Relaxed);
    while let Some(found) = member(number) {
        if found.set.load(Relaxed) as usize == set_index + 1 && found.fd.load(Relaxed) == fd {
            return Some((number, found));
        }
        number = found.next_of_connection.load(Relaxed);
    }
    None
}

/// The program's `epoll_ctl(set, operation, fd, {events, data})`; `direct` is its own call.
pub fn control(
    set_index: usize,
    operation: i32,
    fd: i32,
    events: u32,
    data: u64,
    direct: impl FnOnce() -> isize,
) -> isize {
    if table::is_private(fd) {
        return crate::sys::fail(libc::EBADF);
    }
    let (Some(set), Some(conn)) = (set(set_index), table::connection(fd)) else {
        let result = direct();
        if result == 0
            && operation == libc::EPOLL_CTL_ADD
            && let Some(inner) = table::epoll_set(fd)
        {
            nest(inner);
        }
        return result;
    };
    let Some(_owner) = set.own() else { return direct() };
    let known = find(conn, set_index, fd);
    if operation == libc::EPOLL_CTL_MOD
        && let Some((number, member)) = known
        && (member.has(EMULATED) || conn.phase() == Phase::Attached && !set.nested.load(Relaxed))
    {
        member.events.store(events, Relaxed);
        member.data.store(data, Relaxed);
        member.flags.fetch_and(!FIRED, Relaxed);
        member.flags.fetch_or(FRESH | KERNEL, Relaxed);
        if !member.has(EMULATED) {
            emulate(set, number, member);
        }
        set.heat(number, member);
        set.nudge();
        return 0;
    }
    let result = direct();
    if result != 0 {
        return result;
    }
    match (operation, known) {
        (libc::EPOLL_CTL_ADD, None) => add(set, set_index, conn, fd, events, data),
        (libc::EPOLL_CTL_MOD, Some((_, member))) => {
            member.events.store(events, Relaxed);
            member.data.store(data, Relaxed);
        }
        (libc::EPOLL_CTL_DEL, Some((number, _))) => remove(set, number),
        _ => {}
    }
    result
}

fn add(set: &'static Set, set_index: usize, conn: &'static Conn, fd: i32, events: u32, data: u64) {
    conn.set_flag(conn::SEEN_WAIT, true);
    let (Some((number, member)), Ok(set_number)) = (claim(), u32::try_from(set_index + 1)) else {
        demote::ban(conn, Reason::Resources);
        return;
    };
    member.set.store(set_number, Relaxed);
    member.connection.store(conn.id(), Relaxed);
    member.fd.store(fd, Relaxed);
    member.events.store(events, Relaxed);
    member.data.store(data, Relaxed);
    member.flags.store(0, Relaxed);
    member.reported.store(0, Relaxed);
    member.idle.store(0, Relaxed);
    member.next_of_connection.store(conn.memberships.load(Relaxed), Relaxed);
    conn.memberships.store(number, Relaxed);
    set.members.push(number, set_links);
    if set.nested.load(Relaxed) {
        demote::ban(conn, Reason::UnseenWait);
    } else if conn.phase() == Phase::Attached {
        emulate(set, number, member);
    }
}

/// Takes the kernel registration over. The set is owned.
fn emulate(set: &Set, number: u32, member: &'static Member) {
    let fd = member.fd.load(Relaxed);
    let events = (EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI | EPOLLET).cast_unsigned();
    let data = tag() | u64::from(number);
    set.ensure_bell();
    let mut result = raw::epoll_ctl(set.fd(), libc::EPOLL_CTL_MOD, fd, events, data);
    if result == Err(libc::EINVAL) && member.events.load(Relaxed) & EPOLLEXCLUSIVE.cast_unsigned() != 0 {
        result = raw::epoll_ctl(set.fd(), libc::EPOLL_CTL_DEL, fd, 0, 0)
            .and_then(|()| raw::epoll_ctl(set.fd(), libc::EPOLL_CTL_ADD, fd, events, data));
    }
    if result.is_err() {
        // The kernel knows no such registration: the descriptor was closed and opened unseen.
        return remove(set, number);
    }
    member.flags.fetch_or(EMULATED | FRESH | KERNEL, Relaxed);
    set.emulated.fetch_add(1, Relaxed);
    set.heat(number, member);
    set.nudge();
}

/// A connection has been attached: takes over its registrations. A one-shot registration is left until the program arms it again,
/// since only the kernel knows whether it has fired.
pub(crate) fn attached(conn: &'static Conn) {
    for_each_membership(conn, |set, number, member| {
        if member.events.load(Relaxed) & EPOLLONESHOT.cast_unsigned() == 0 && !set.nested.load(Relaxed) {
            emulate(set, number, member);
        }
    });
}

/// A connection ends: leaves its sets. The kernel removes the registrations by itself.
pub(crate) fn forget(conn: &'static Conn) {
    for_each_membership(conn, |set, number, _| remove(set, number));
}

fn for_each_membership(conn: &'static Conn, mut visit: impl FnMut(&'static Set, u32, &'static Member)) {
    let mut number = conn.memberships.load(Relaxed);
    while let Some(found) = member(number) {
        let next = found.next_of_connection.load(Relaxed);
        if let Some(set) = found.set()
            && let Some(_owner) = set.own()
            && found.connection.load(Relaxed) == conn.id()
        {
            visit(set, number, found);
        }
        number = next;
    }
}

/// Whether every wait for the connection that is known of looks at its lane: if not, its next bytes must announce themselves on the
/// kernel connection.
pub(crate) fn covers(conn: &Conn) -> bool {
    let mut number = conn.memberships.load(Relaxed);
    let mut any = false;
    while let Some(found) = member(number) {
        if !found.has(EMULATED) {
            return false;
        }
        any = true;
        number = found.next_of_connection.load(Relaxed);
    }
    any
}

/// The bell of the set the connection is in, if it is in one.
pub(crate) fn bell_of(conn: &Conn) -> Option<&'static Bell> {
    let set = member(conn.memberships.load(Relaxed))?.set()?;
    let _owner = set.own()?;
    set.ensure_bell()
}

/// The set is waited for in a way that Viaduct cannot look into (through another set, or by poll): its members stay on TCP.
pub fn nest(index: usize) {
    let Some(set) = set(index) else { return };
    if set.nested.swap(true, AcqRel) {
        return;
    }
    let Some(_owner) = set.own() else { return };
    for member in set.members.iter(set_links).filter_map(member) {
        if member.flags.fetch_and(!EMULATED, Relaxed) & EMULATED != 0 {
            set.emulated.fetch_sub(1, Relaxed);
            let (events, data) = (member.events.load(Relaxed), member.data());
            let _ = raw::epoll_ctl(set.fd(), libc::EPOLL_CTL_MOD, member.fd.load(Relaxed), events, data);
        }
        if let Some(conn) = member.conn() {
            demote::ban(conn, Reason::UnseenWait);
        }
    }
}

/// Notes what the kernel said of a member. The set is owned.
pub(crate) fn signalled(set: &Set, number: u32) {
    if let Some(member) = member(number)
        && member.has(EMULATED)
        && member.set().is_some_and(|of| core::ptr::eq(of, set))
    {
        member.flags.fetch_or(KERNEL | EDGE, Relaxed);
        set.heat(number, member);
    }
}

/// Arms every hot member for a sleep; answers whether one is ready after all. The set is owned.
pub(crate) fn arm(set: &Set, owner: &Guard<'_>, capped: &mut bool) -> bool {
    let crowded = set.hot.len() > 64;
    let mut number = set.hot.first();
    while let Some(current) = number {
        number = set.hot.after(current, hot_links);
        let Some(member) = member(current) else { break };
        let Some(conn) = member.conn() else { continue };
        let mut room = false;
        let ready = ready::arm(set, owner, member, conn, &mut room);
        *capped |= room;
        if ready {
            return true;
        }
        if room {
            // A bell that rings for room does not say for whom: only looking finds out.
            continue;
        }
        set.grow_idle(current, member, crowded);
        if !member.has(HOT) && ready::arm_cold(owner, conn) {
            set.heat(current, member);
            return true;
        }
    }
    false
}

/// In a forked child: the sets are shared with the parent, the bells are not.
pub(crate) fn after_fork() {
    for set in SET.iter().filter(|set| set.used.load(Relaxed)) {
        set.owner.store(0, Relaxed);
        set.bell.store(0, Relaxed);
        set.sleepers.store(0, Relaxed);
    }
}
