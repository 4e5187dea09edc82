//! Where holes live: in anonymous memory that a process and its forked children share, out of the peer's reach.

use super::holders::{Family, Holders, Member, Places};
use crate::lock;
use crate::process::{shared, thread};
use crate::sys::memory::{self, Buffer};
use crate::sys::{self, Errno};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64};
use viaduct_stream::Holes;

/// Connections of a family of processes that can be searched at one time.
const AREAS: usize = 2048;

/// How many of them have a place in every process that forks, though nothing may ever be searched: all take 128 MiB of
/// address space, which some programs limit. The others get one in the processes that need them.
const FIRST: usize = 32;

/// What is kept of one receiving direction that is searched. Used while the direction is owned.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Area {
    /// The reference by which it is known; 0: it is free. [`TAKEN`]: not yet.
    used: AtomicU32,
    /// Differs in each reference to the area.
    turn: AtomicU32,
    /// Ownership word, where there is no record of the connection with one.
    pub(crate) owner: AtomicU32,
    /// Differs for each connection that has had the area.
    pub(crate) generation: AtomicU64,
    /// What tells the socket from all others, where there is no record of the connection.
    pub(crate) identity: AtomicU64,
    pub(super) holders: Holders,
    /// Stream position of the first byte that the kernel or the lane still has.
    pub(crate) base: AtomicU64,
    /// Kernel position at which stream position 0 stands, noted before anything is thrown away; [`UNKNOWN`],
    /// [`UNTOLD`].
    pub(crate) origin: AtomicU64,
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
    /// What the next call is to report: the kernel tells an error once, and a call that had received something by then
    /// did not.
    pub(crate) error: AtomicI32,
    pub(crate) holes: Holes,
}

/// What processes share.
#[derive(Debug)]
#[repr(C)]
struct Shared {
    /// How many areas have ever been used, so that nobody touches memory of the others.
    reach: AtomicU32,
    /// What the trees of holes are drawn by; 0 until the first is needed.
    seed: AtomicU64,
    /// Owned by who looks for the area of a socket that has no record, and claims one if there is none.
    claiming: AtomicU32,
    family: Family,
    first: [Area; FIRST],
}

/// All of it.
#[derive(Debug)]
#[repr(C)]
struct Whole {
    shared: Shared,
    others: [Area; AREAS - FIRST],
}

/// The front of a connection's stream as this process has peeked it. Bytes at a position never change, so it stays true
/// however the stream moves on.
#[derive(Debug)]
pub(crate) struct Peeked {
    pub(crate) buffer: Buffer,
    generation: AtomicU64,
    from: AtomicU64,
    len: AtomicU64,
    /// Descriptors by which this process knows the socket, where there is no record of the connection.
    pub(super) descriptors: AtomicU32,
}

/// Bits of a reference with the number of its area, from 1; those above tell who has it from others that have had it.
const NUMBER: u32 = (1 << 12) - 1;
const _: () = assert!(AREAS <= NUMBER as usize);
/// In [`Area::origin`].
pub(super) const UNKNOWN: u64 = u64::MAX;
/// In [`Area::origin`]: the connection has ended, and it never will be known.
pub(super) const UNTOLD: u64 = u64::MAX - 1;
/// In [`Area::used`].
const TAKEN: u32 = u32::MAX;

static REGION: AtomicPtr<Shared> = AtomicPtr::new(core::ptr::null_mut());
/// The same memory once more, where this process has needed more than is at [`REGION`].
static WHOLE: AtomicPtr<Whole> = AtomicPtr::new(core::ptr::null_mut());
static GENERATION: AtomicU64 = AtomicU64::new(1);
static PEEKED: [Peeked; AREAS] = [const {
    Peeked {
        buffer: Buffer::unmapped(),
        generation: AtomicU64::new(0),
        from: AtomicU64::new(0),
        len: AtomicU64::new(0),
        descriptors: AtomicU32::new(0),
    }
}; AREAS];

/// Makes the memory there is to share, if it has not been made. It takes none before it is used.
pub(crate) fn share() {
    if known().is_some() {
        return;
    }
    let Ok(fresh) = shared::memory(size_of::<Whole>()) else {
        return;
    };
    memory::give_up_rest(fresh, size_of::<Shared>(), size_of::<Whole>());
    // Release pairs with the acquire in `known`. A loser's region is never used; it costs address space only.
    let _ = REGION.compare_exchange(core::ptr::null_mut(), fresh.cast(), Release, Relaxed);
}

#[inline]
fn known() -> Option<&'static Shared> {
    let region = REGION.load(Acquire);
    (!region.is_null()).then(|| sys::shared_record(region, 0))
}

/// The areas beyond the first, to which this process gives a place if they have none; `None` if there is no room for
/// them.
fn others() -> Option<&'static [Area]> {
    let mut whole = WHOLE.load(Acquire);
    if whole.is_null() {
        let region = REGION.load(Acquire);
        let fresh = memory::whole(region.cast(), size_of::<Whole>()).ok()?.cast();
        // As in `share`.
        whole = match WHOLE.compare_exchange(core::ptr::null_mut(), fresh, AcqRel, Acquire) {
            Ok(_) => fresh,
            Err(other) => other,
        };
    }
    Some(&sys::shared_record(whole, 0).others)
}

/// The program is about to forbid itself system calls: where something has been searched, what it may need is mapped
/// before.
pub(crate) fn confining() {
    if known().is_some_and(|shared| reach(shared) > 0) {
        let _ = others();
    }
}

impl Shared {
    #[inline(always)]
    fn area(&'static self, index: usize) -> Option<&'static Area> {
        self.first.get(index).or_else(|| further(index))
    }
}

/// An area beyond the first.
#[cold]
fn further(index: usize) -> Option<&'static Area> {
    others()?.get(index - FIRST)
}

const fn index(reference: u32) -> Option<usize> {
    ((reference & NUMBER) as usize).checked_sub(1)
}

/// The area with a reference from [`claim`]; `None` for 0.
#[inline(always)]
pub(crate) fn numbered(reference: u32) -> Option<&'static Area> {
    known()?.area(index(reference)?)
}

/// What this process has peeked of the area's connection.
#[inline]
pub(crate) fn peeked(reference: u32) -> Option<&'static Peeked> {
    PEEKED.get(index(reference)?)
}

/// Takes an area nobody uses into use, for a direction without holes that this process knows, and answers its
/// reference.
pub(crate) fn claim() -> Option<u32> {
    share();
    let shared = known()?;
    let own = shared.family.member(|dead| forget(shared, dead));
    take(shared, own).or_else(|| {
        free_orphans(shared);
        take(shared, own)
    })
}

fn take(shared: &'static Shared, own: Member) -> Option<u32> {
    let free =
        |area: &Area| area.used.load(Relaxed) == 0 && area.used.compare_exchange(0, TAKEN, AcqRel, Relaxed).is_ok();
    let beyond = core::iter::once_with(others).flatten().flatten();
    let (index, area) = (1_u32..)
        .zip(shared.first.iter().chain(beyond))
        .find(|(_, area)| free(area))?;
    // At once: should this process be killed now, others are to find those behind.
    shared.reach.fetch_max(index, AcqRel);
    // Processes that share the region draw from different numbers by way of their own.
    let generation = GENERATION.fetch_add(1, Relaxed) << 32 | u64::from(lock::tid());
    area.generation.store(generation, Relaxed);
    area.holes.clear(seed(shared) ^ generation);
    area.base.store(0, Relaxed);
    area.origin.store(UNKNOWN, Relaxed);
    area.identity.store(0, Relaxed);
    area.holders.begin(own);
    area.there.store(0, Relaxed);
    area.ample.store(0, Relaxed);
    area.waiters.store(0, Relaxed);
    area.mark.store(0, Relaxed);
    area.peeks_behind.store(0, Relaxed);
    area.error.store(0, Relaxed);
    let turn = area.turn.load(Relaxed).wrapping_add(1) % (TAKEN >> NUMBER.count_ones());
    area.turn.store(turn, Relaxed);
    let reference = turn << NUMBER.count_ones() | index;
    area.used.store(reference, Release);
    Some(reference)
}

/// A number that no peer knows. Drawn once: some programs forbid themselves system calls later.
fn seed(shared: &Shared) -> u64 {
    let drawn = shared.seed.load(Relaxed);
    if drawn != 0 {
        return drawn;
    }
    let fresh = sys::random() | 1;
    shared.seed.store(fresh, Relaxed);
    fresh
}

fn reach(shared: &Shared) -> usize {
    shared.reach.load(Acquire) as usize
}

/// The areas in use, with their references.
fn all(shared: &'static Shared) -> impl Iterator<Item = (u32, &'static Area)> {
    let used = |index| shared.area(index).map(|area| (area.used.load(Acquire), area));
    let areas = (0..reach(shared)).filter_map(used);
    areas.filter(|(reference, _)| !matches!(*reference, 0 | TAKEN))
}

/// The reference of the area in use for the socket with this identity.
pub(super) fn find(identity: u64) -> Option<u32> {
    let same = |(_, area): &(u32, &Area)| area.identity.load(Relaxed) == identity;
    all(known()?).find(same).map(|(reference, _)| reference)
}

/// Excludes others that look for a socket's area, lest two get one each for the same. `None`: there is no memory, or no
/// room to look at it.
pub(super) fn claiming() -> Option<&'static AtomicU32> {
    let shared = known()?;
    let all_seen = reach(shared) <= FIRST || others().is_some();
    all_seen.then_some(&shared.claiming)
}

/// The references of areas whose sockets this process knows by descriptors. Touches no others, which would be faults of
/// each child.
pub(super) fn known_by_descriptors() -> impl Iterator<Item = u32> {
    let places = (1_u32..).zip(&PEEKED);
    let ours = places.filter(|(_, peeked)| peeked.descriptors.load(Relaxed) != 0);
    ours.filter_map(|(number, _)| Some(numbered(number)?.used.load(Acquire)))
}

/// Frees the areas of sockets that only processes knew which are no more.
fn free_orphans(shared: &'static Shared) {
    shared.family.forget_the_dead(|dead| forget(shared, dead));
    for (reference, area) in all(shared).filter(|(_, area)| area.holders.are_gone()) {
        let _ = area.used.compare_exchange(reference, 0, AcqRel, Relaxed);
    }
}

fn forget(shared: &'static Shared, dead: &Places) {
    all(shared).for_each(|(_, area)| area.holders.forget(dead));
}

/// A child that is about to be made.
#[derive(Debug)]
pub(crate) struct Child(Option<Member>);

impl Child {
    pub(crate) fn begin() -> Self {
        // Else nobody would tell of its end.
        if known().is_some() {
            thread::this().forking.begin();
        }
        Self(None)
    }

    /// It will know the socket with this area, if it is one.
    pub(crate) fn expect(&mut self, reference: u32) {
        if let Some(shared) = known()
            && let Some(area) = numbered(reference)
        {
            let place = || shared.family.expect(|dead| forget(shared, dead));
            area.holders.add(*self.0.get_or_insert_with(place));
        }
    }
}

/// In a process that has made a child, or could not.
pub(crate) fn after_fork_in_parent() {
    if let Some(shared) = known() {
        shared.family.made(|dead| forget(shared, dead));
    }
}

/// In a forked child, before it says which sockets it knows.
pub(crate) fn after_fork_in_child() {
    if let Some(shared) = known() {
        shared.family.arrive(|dead| forget(shared, dead));
    }
}

/// A forked child, which was expected, knows the socket with this area, if it is one. It counts itself, in the place
/// that it has, unless its parent has counted it among the unknown.
pub(crate) fn arrive(reference: u32) {
    if !Family::is_unknown() {
        add(reference);
    }
}

/// This process knows the socket with this area, if it is one.
pub(crate) fn add(reference: u32) {
    if let Some(shared) = known()
        && let Some(area) = numbered(reference)
    {
        area.holders.add(shared.family.member(|dead| forget(shared, dead)));
    }
}

/// So many others, who have no places, know the socket with this area.
pub(crate) fn add_unknown(reference: u32, others: u32) {
    if let Some(area) = numbered(reference) {
        area.holders.add_unknown(others);
    }
}

/// This process knows it no more.
#[inline]
pub(crate) fn leave(reference: u32) {
    if let Some(area) = numbered(reference) {
        area.holders.remove(Family::known());
    }
}

/// Gives up the area whose reference stands in `place`, if one does.
pub(crate) fn release(place: &AtomicU32) {
    if place.load(Relaxed) == 0 {
        return;
    }
    let reference = place.swap(0, AcqRel);
    // It may have been freed, and be another's, since all who knew the socket were dead.
    if let Some(area) = numbered(reference)
        && let Some(peeked) = peeked(reference)
        && area.used.load(Acquire) == reference
    {
        peeked.give_back();
        let _ = area.used.compare_exchange(reference, 0, AcqRel, Relaxed);
    }
}

impl Area {
    /// Has `take` take bytes that have been received off the front of what the kernel or the lane has, and counts them.
    /// Whoever is killed in between, or jumps away, leaves the holes damaged: how many have gone nobody can say.
    #[inline(always)]
    pub(super) fn consume(&self, take: impl FnOnce() -> Result<usize, Errno>) -> Result<usize, Errno> {
        self.holes.begin_change();
        let taken = take();
        if let Ok(bytes) = taken {
            self.base.store(self.base.load(Relaxed) + bytes as u64, Relaxed);
        }
        self.holes.end_change();
        taken
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

    /// Its memory is not needed.
    pub(crate) fn give_back(&self) {
        self.forget();
        self.buffer.unmap();
    }

    pub(crate) fn forget(&self) {
        self.len.store(0, Relaxed);
        self.generation.store(0, Relaxed);
    }
}
