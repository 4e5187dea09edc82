//! What each descriptor number of the process is to Viaduct.

use crate::conn::{Conn, records};
use crate::process::forks;
use crate::sys::listing;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};

/// Descriptors at or above this number are not looked after: they stay plain.
const DESCRIPTORS: usize = 1 << 20;

const KIND_SHIFT: u32 = 28;
const INDEX: u32 = (1 << KIND_SHIFT) - 1;
const CONNECTION: u32 = 1;
const EPOLL: u32 = 2;
const PRIVATE: u32 = 3;
const SOCKET: u32 = 4;

/// One word a descriptor: the kind in the upper bits, an index in the lower, or of a socket the forks so far. Untouched
/// pages cost nothing.
static TABLE: [AtomicU32; DESCRIPTORS] = [const { AtomicU32::new(0) }; DESCRIPTORS];

/// The highest number of which anything has been noted. Not the limit that the process runs under: it may be lowered to
/// less than what is open.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

/// Whether a descriptor of Viaduct's own has had a number beyond those of ordinary sets.
static HIGH: AtomicBool = AtomicBool::new(false);

/// What a descriptor is.
#[derive(Clone, Copy, Debug)]
pub enum Entry {
    /// Nothing of ours.
    Unknown,
    /// A TCP connection.
    Connection(&'static Conn),
    /// An epoll set, by its index.
    Epoll(usize),
    /// A descriptor of Viaduct's own, hidden from the program.
    Private,
    /// A TCP socket that the program has made, which is not known to have been connected.
    Socket,
}

#[inline]
fn word(fd: i32) -> Option<&'static AtomicU32> {
    TABLE.get(usize::try_from(fd).ok()?)
}

fn decode(word: u32) -> Entry {
    match word >> KIND_SHIFT {
        CONNECTION => records::record((word & INDEX) as usize).map_or(Entry::Unknown, Entry::Connection),
        EPOLL => Entry::Epoll((word & INDEX) as usize),
        PRIVATE => Entry::Private,
        SOCKET => Entry::Socket,
        _ => Entry::Unknown,
    }
}

/// What `fd` is.
#[inline]
pub fn lookup(fd: i32) -> Entry {
    // Acquire pairs with the release in `set_connection`: who sees the entry sees the record.
    word(fd).map_or(Entry::Unknown, |word| match word.load(Acquire) {
        0 => Entry::Unknown,
        known => decode(known),
    })
}

/// The connection behind `fd`, if it is one.
#[inline]
pub fn connection(fd: i32) -> Option<&'static Conn> {
    let word = word(fd)?.load(Acquire);
    if word >> KIND_SHIFT == CONNECTION {
        records::record((word & INDEX) as usize)
    } else {
        None
    }
}

/// The index of the epoll set behind `fd`, if it is one.
#[inline]
pub fn epoll_set(fd: i32) -> Option<usize> {
    let word = word(fd)?.load(Acquire);
    (word >> KIND_SHIFT == EPOLL).then_some((word & INDEX) as usize)
}

/// Whether `fd` is Viaduct's own.
#[inline]
pub fn is_private(fd: i32) -> bool {
    word(fd).is_some_and(|word| word.load(Relaxed) >> KIND_SHIFT == PRIVATE)
}

fn set(fd: i32, kind: u32, index: usize) -> bool {
    let (Some(word), Ok(index)) = (word(fd), u32::try_from(index)) else {
        return false;
    };
    reaches(fd);
    word.store(kind << KIND_SHIFT | (index & INDEX), Release);
    true
}

/// Something is about to be noted of `fd`.
fn reaches(fd: i32) {
    let fd = usize::try_from(fd).unwrap_or(0);
    if fd > HIGHEST.load(Relaxed) {
        HIGHEST.fetch_max(fd, Relaxed);
    }
}

/// Notes that `fd` is connection record `index`; false if the number is too high.
pub(crate) fn set_connection(fd: i32, index: usize) -> bool {
    set(fd, CONNECTION, index)
}

/// Notes that `fd` is epoll set `index`; false if the number is too high.
pub(crate) fn set_epoll(fd: i32, index: usize) -> bool {
    set(fd, EPOLL, index)
}

/// Notes that `fd` is Viaduct's own.
pub(crate) fn set_private(fd: i32) {
    set(fd, PRIVATE, 0);
    if usize::try_from(fd).is_ok_and(|fd| fd >= libc::FD_SETSIZE) {
        HIGH.store(true, Relaxed);
    }
}

/// What is kept of `fd`, to be held against what is kept later.
pub(crate) fn word_of(fd: i32) -> u32 {
    word(fd).map_or(0, |word| word.load(Acquire))
}

/// Notes that `fd` is connection record `index` unless something else than `before` has been noted meanwhile; false
/// also if the number is too high.
pub(crate) fn become_connection(fd: i32, before: u32, index: usize) -> bool {
    change(fd, before, CONNECTION, index)
}

fn change(fd: i32, before: u32, kind: u32, index: usize) -> bool {
    let (Some(word), Ok(index)) = (word(fd), u32::try_from(index)) else {
        return false;
    };
    reaches(fd);
    // Release pairs with the acquire in `lookup`.
    let now = kind << KIND_SHIFT | (index & INDEX);
    word.compare_exchange(before, now, AcqRel, Relaxed).is_ok()
}

/// Notes that `fd` is a TCP socket that is not known to have been connected.
pub(crate) fn set_socket(fd: i32) {
    set(fd, SOCKET, forks::so_far() as usize);
}

/// The same of a socket that was not seen to be made, unless something else has been noted meanwhile.
pub(crate) fn become_socket(fd: i32) {
    change(fd, 0, SOCKET, forks::so_far() as usize);
}

/// Whether what is kept says that a socket is older than a fork, so that another process may have it.
pub(crate) fn is_older_than_a_fork(word: u32) -> bool {
    word >> KIND_SHIFT == SOCKET && word & INDEX != forks::so_far() & INDEX
}

/// Forgets `fd`; answers what it was.
pub(crate) fn take(fd: i32) -> Entry {
    word(fd).map_or(Entry::Unknown, |word| match word.load(Relaxed) {
        0 => Entry::Unknown,
        _ => decode(word.swap(0, AcqRel)),
    })
}

/// The first known descriptor at or after `from` and not after `last`, for closing ranges.
pub(crate) fn next_known(from: i32, last: i32) -> Option<i32> {
    let from = usize::try_from(from).ok()?;
    let last = usize::try_from(last).unwrap_or(0).min(HIGHEST.load(Relaxed));
    (from..=last)
        .find(|fd| TABLE.get(*fd).is_some_and(|word| word.load(Relaxed) != 0))
        .and_then(|fd| i32::try_from(fd).ok())
}

/// Every known descriptor.
fn known() -> impl Iterator<Item = i32> {
    let words = TABLE.iter().take(HIGHEST.load(Relaxed) + 1).enumerate();
    words
        .filter(|(_, word)| word.load(Relaxed) != 0)
        .filter_map(|(fd, _)| i32::try_from(fd).ok())
}

/// Every descriptor that refers to a TCP socket.
pub(crate) fn sockets() -> impl Iterator<Item = i32> {
    known().filter(|fd| matches!(lookup(*fd), Entry::Connection(_) | Entry::Socket))
}

/// Every descriptor that refers to a connection, with it.
pub(crate) fn connections() -> impl Iterator<Item = (i32, &'static Conn)> {
    known().filter_map(|fd| Some((fd, connection(fd)?)))
}

/// How many descriptors the kernel would look for in sets of `count` if there were none of ours: programs say more than
/// their sets hold, and the kernel stops where its table of descriptors ends, which grows with the highest of them.
pub fn reach(count: usize) -> usize {
    let theirs = |fd: usize| i32::try_from(fd).is_ok_and(|fd| !is_private(fd) && crate::sys::is_open(fd));
    if count <= libc::FD_SETSIZE || theirs(count - 1) {
        return count;
    }
    // None of ours has made it larger than it is at least.
    if !HIGH.load(Relaxed)
        && let Some(room) = listing::room()
    {
        return count.min(room.max(libc::FD_SETSIZE));
    }
    let highest = listing::open_descriptors().filter(|fd| !is_private(*fd)).max();
    let highest = highest.and_then(|fd| usize::try_from(fd).ok()).unwrap_or(0);
    // The table's size is always a power of two.
    count.min((highest + 1).next_power_of_two().max(libc::FD_SETSIZE))
}

/// A descriptor that refers to the epoll set with this index.
pub(crate) fn find_set(index: usize) -> Option<i32> {
    known().find(|fd| epoll_set(*fd) == Some(index))
}

/// A descriptor that refers to `conn`.
pub(crate) fn find(conn: &'static Conn) -> Option<i32> {
    connections()
        .find(|(_, other)| core::ptr::eq(*other, conn))
        .map(|(fd, _)| fd)
}
