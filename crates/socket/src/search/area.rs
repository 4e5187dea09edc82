//! Where holes live: in anonymous memory that a process and its forked children share, out of the peer's reach.

use super::holders::Holders;
use crate::lock;
use crate::sys::memory::Buffer;
use crate::sys::{self, raw};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64};
use viaduct_stream::Holes;

/// Connections of a family of processes that can be searched at one time.
///
/// Their memory is address space of every process that forks, which some limit (vsftpd: 200 MiB).
const AREAS: usize = 2048;

/// What is kept of one receiving direction that is searched. Used while the direction is owned.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Area {
    used: AtomicU32,
    /// Ownership word, where there is no record of the connection with one.
    pub(crate) owner: AtomicU32,
    /// Differs for each connection that has had the area.
    pub(crate) generation: AtomicU64,
    /// What tells the socket from all others, and the descriptors by which it is known, where there is no record of the connection.
    pub(crate) identity: AtomicU64,
    pub(crate) holders: Holders,
    /// Stream position of the first byte that the kernel or the lane still has.
    pub(crate) base: AtomicU64,
    /// Stream position up to which the kernel was last found to hold bytes.
    pub(crate) there: AtomicU64,
    /// The socket's buffer has been made as large as it may be for so many bytes.
    pub(crate) ample: AtomicU64,
    /// Calls that wait for bytes of the kernel's.
    pub(crate) waiters: AtomicU32,
    /// What they have set `SO_RCVLOWAT` to; 0: not from its usual 1.
    pub(crate) mark: AtomicU64,
    /// 1: `SO_PEEK_OFF` of the socket is set.
    pub(crate) peeks_behind: AtomicU32,
    /// What the next call is to report: the kernel tells an error once, and a call that had received something by then did not.
    pub(crate) error: AtomicI32,
    pub(crate) holes: Holes,
}

/// The front of a connection's stream as this process has peeked it. Bytes at a position never change, so it stays true however
/// the stream moves on.
#[derive(Debug)]
pub(crate) struct Peeked {
    pub(crate) buffer: Buffer,
    generation: AtomicU64,
    from: AtomicU64,
    len: AtomicU64,
}

static REGION: AtomicPtr<Area> = AtomicPtr::new(core::ptr::null_mut());
static GENERATION: AtomicU64 = AtomicU64::new(1);
static PEEKED: [Peeked; AREAS] = [const {
    Peeked {
        buffer: Buffer::unmapped(),
        generation: AtomicU64::new(0),
        from: AtomicU64::new(0),
        len: AtomicU64::new(0),
    }
}; AREAS];

/// Makes the memory there is to share, if it has not been made. It takes none before it is used.
pub(crate) fn share() {
    let _ = region();
}

fn region() -> Option<*mut Area> {
    let known = REGION.load(Acquire);
    if !known.is_null() {
        return Some(known);
    }
    let fresh = raw::anonymous_shared((AREAS + 1) * size_of::<Area>())
        .ok()?
        .cast::<Area>();
    // Release pairs with the acquire above. A loser's region is never used; it costs address space only.
    Some(
        match REGION.compare_exchange(core::ptr::null_mut(), fresh, Release, Acquire) {
            Ok(_) => fresh,
            Err(winner) => winner,
        },
    )
}

/// How many areas have ever been used. The place behind the last one counts them, so that nobody touches memory of the others.
fn used(region: *mut Area) -> &'static AtomicU32 {
    &sys::shared_record(region, AREAS).used
}

/// The area with a number from [`claim`]; `None` for 0.
#[inline]
pub(crate) fn numbered(number: u32) -> Option<&'static Area> {
    let index = (number as usize).checked_sub(1).filter(|index| *index < AREAS)?;
    let region = REGION.load(Acquire);
    (!region.is_null()).then(|| sys::shared_record(region, index))
}

/// What this process has peeked of the area's connection.
pub(crate) fn peeked(number: u32) -> Option<&'static Peeked> {
    PEEKED.get((number as usize).checked_sub(1)?)
}

/// Takes an area nobody uses into use, for a direction without holes, and answers its number.
pub(crate) fn claim() -> Option<u32> {
    let region = region()?;
    let used = used(region);
    let known = used.load(Acquire) as usize;
    for index in 0..(known + 1).min(AREAS) {
        let area = sys::shared_record(region, index);
        if area.used.load(Relaxed) == 0 && area.used.compare_exchange(0, 1, AcqRel, Relaxed).is_ok() {
            area.holes.clear();
            area.base.store(0, Relaxed);
            area.identity.store(0, Relaxed);
            area.holders.clear();
            area.there.store(0, Relaxed);
            area.ample.store(0, Relaxed);
            area.waiters.store(0, Relaxed);
            area.mark.store(0, Relaxed);
            area.peeks_behind.store(0, Relaxed);
            area.error.store(0, Relaxed);
            // Processes that share the region draw from different numbers by way of their own.
            used.fetch_max(u32::try_from(index + 1).unwrap_or(0), AcqRel);
            let own = GENERATION.fetch_add(1, Relaxed);
            area.generation.store(own << 32 | u64::from(lock::tid()), Relaxed);
            return u32::try_from(index + 1).ok();
        }
    }
    None
}

/// The number of the area in use for the socket with this identity.
pub(crate) fn find(identity: u64) -> Option<u32> {
    let region = REGION.load(Acquire);
    if region.is_null() {
        return None;
    }
    (0..used(region).load(Acquire) as usize)
        .find(|index| {
            let area = sys::shared_record(region, *index);
            area.used.load(Acquire) != 0 && area.identity.load(Relaxed) == identity
        })
        .and_then(|index| u32::try_from(index + 1).ok())
}

/// The process is about to have a child, which will know what it knows.
pub(crate) fn expect_child(pid: u32) {
    each(|area| area.holders.expect_child(pid));
}

/// Frees the areas of sockets that only processes knew which are no more.
pub(crate) fn free_orphans() {
    each(|area| {
        if area.identity.load(Relaxed) != 0 && area.holders.are_gone() {
            area.identity.store(0, Relaxed);
            area.used.store(0, Release);
        }
    });
}

fn each(mut act: impl FnMut(&'static Area)) {
    let region = REGION.load(Acquire);
    if region.is_null() {
        return;
    }
    for index in 0..used(region).load(Acquire) as usize {
        let area = sys::shared_record(region, index);
        if area.used.load(Acquire) != 0 {
            act(area);
        }
    }
}

/// Gives up the area whose number stands in `place`, if one does.
pub(crate) fn release(place: &AtomicU32) {
    if place.load(Relaxed) == 0 {
        return;
    }
    let number = place.swap(0, AcqRel);
    if let Some(peeked) = peeked(number) {
        peeked.forget();
        peeked.buffer.unmap();
    }
    if let Some(area) = numbered(number) {
        area.used.store(0, Release);
    }
}

impl Peeked {
    /// The positions it covers.
    #[inline]
    pub(crate) fn range(&self, area: &Area) -> (u64, u64) {
        if self.generation.load(Relaxed) != area.generation.load(Relaxed) {
            return (0, 0);
        }
        let from = self.from.load(Relaxed);
        (from, from + self.len.load(Relaxed))
    }

    pub(crate) fn set(&self, area: &Area, from: u64, len: u64) {
        self.generation.store(area.generation.load(Relaxed), Relaxed);
        self.from.store(from, Relaxed);
        self.len.store(len, Relaxed);
    }

    pub(crate) fn forget(&self) {
        self.len.store(0, Relaxed);
        self.generation.store(0, Relaxed);
    }
}
