//! The static array of connection records.

use crate::conn::{BANNED, Conn, EARLY, Phase};
use crate::descriptors::table;
use crate::lock;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use viaduct_control::Reason;

/// Connections that have a record at one time. Later ones stay plain.
pub(crate) const RECORDS: usize = 1 << 16;

static RECORD: [Conn; RECORDS] = [const { Conn::unused() }; RECORDS];
/// One bit a record: in use.
static USED: [AtomicU64; RECORDS / 64] = [const { AtomicU64::new(0) }; RECORDS / 64];

/// The record numbered `index`.
#[inline]
pub(crate) fn record(index: usize) -> Option<&'static Conn> {
    RECORD.get(index)
}

/// The records in use.
pub(crate) fn all() -> impl Iterator<Item = &'static Conn> {
    marked(&USED).filter(|conn| conn.id() != 0)
}

/// The records whose bits are set.
pub(crate) fn marked(bits: &'static [AtomicU64; RECORDS / 64]) -> impl Iterator<Item = &'static Conn> {
    bits.iter()
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
}

/// What names the connection that is the record's `generation`th.
pub(crate) fn id_of(generation: u64, index: usize) -> u64 {
    generation.wrapping_mul(RECORDS as u64) | index as u64
}

/// The record that `id` names.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "masked to the number of records")]
pub(crate) fn index_of(id: u64) -> usize {
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

pub(crate) fn disclaim(index: usize) {
    if let Some(word) = USED.get(index / 64) {
        word.fetch_and(!(1 << (index % 64)), AcqRel);
    }
}

/// Where the record stands, whatever connection it is.
pub(crate) fn place_of(conn: &Conn) -> usize {
    core::ptr::from_ref(conn).addr().wrapping_sub(RECORD.as_ptr().addr()) / size_of::<Conn>()
}

/// In a forked child: the record is a copy of what is not this process's. One with a segment is given up.
pub(crate) fn forget(conn: &Conn) {
    if conn.id.swap(0, AcqRel) != 0 && conn.phase() == Phase::Plain {
        disclaim(place_of(conn));
    }
}

/// Begins a record for the connection `fd`, which the program has just got. `None`: it stays plain and unshown.
pub(crate) fn open(fd: i32) -> Option<&'static Conn> {
    let conn = begin(fd, EARLY)?;
    conn.stands();
    Some(conn)
}

/// The same with these flags, of which `EARLY` is one, so that it is not shown yet; or the record that another thread
/// has begun meanwhile.
pub(crate) fn begin(fd: i32, flags: u32) -> Option<&'static Conn> {
    let before = table::word_of(fd);
    if let Some(known) = table::connection(fd) {
        return Some(known);
    }
    let index = claim()?;
    let (Some(conn), Some(locks)) = (record(index), lock::claim(RECORDS)) else {
        disclaim(index);
        return None;
    };
    let id = conn.next_id(index);
    conn.reset(fd, flags);
    conn.locks.store(core::ptr::from_ref(locks).cast_mut(), Relaxed);
    // Release pairs with the acquire in `id`.
    conn.id.store(id, Release);
    if !table::become_connection(fd, before, index) {
        conn.id.store(0, Release);
        conn.leave();
        disclaim(index);
        return table::connection(fd);
    }
    if table::is_older_than_a_fork(before) {
        // The other process does not know of the connection.
        conn.set_flag(BANNED, true);
        conn.set_reason(Reason::SharedEnd);
    }
    Some(conn)
}

/// For tests: an end whose segment is on the heap, with its socket and the peer's.
#[cfg(test)]
pub(crate) fn on_the_heap() -> (&'static Conn, [std::net::TcpStream; 2]) {
    use std::os::fd::AsRawFd;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let own = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    // By a number that no other test's had: a socket that is closed unseen leaves its record behind.
    static NUMBER: core::sync::atomic::AtomicI32 = core::sync::atomic::AtomicI32::new(400);
    let own = std::net::TcpStream::from(rustix::io::fcntl_dupfd_cloexec(own, NUMBER.fetch_add(1, Relaxed)).unwrap());
    let (peer, _) = listener.accept().unwrap();
    let conn = begin(own.as_raw_fd(), 0).unwrap();
    let segment = viaduct_channel::Segment::heap(viaduct_channel::Geometry::DEFAULT).0;
    conn.segment.fill(segment);
    (conn, [own, peer])
}

/// For tests: an end is closed, without an end of its stream.
#[cfg(test)]
pub(crate) fn reset(end: std::net::TcpStream) {
    rustix::net::sockopt::set_socket_linger(&end, Some(core::time::Duration::ZERO)).unwrap();
}

/// For tests: what the peer sends comes on the lane from now on.
#[cfg(test)]
pub(crate) fn receive_on_the_lane(conn: &'static Conn) {
    use viaduct_stream::{Incoming, Outgoing};
    let segment = conn.segment(&conn).unwrap();
    let incoming = Incoming::new(segment.receiver(conn.side()));
    incoming.set_ready();
    assert!(Outgoing::new(segment.sender(conn.side().other())).promote(0));
    incoming.enter_lane();
}
