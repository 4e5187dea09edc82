//! This process's counters region: see [`viaduct_control::counters`].

use crate::conn::{Conn, FORKED, records};
use crate::descriptors::table;
use crate::process::{self, unseen};
use crate::sys::{self, raw};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
use std::os::fd::{AsRawFd, IntoRawFd};
use viaduct_channel::Mapping;
use viaduct_control::Reason;
use viaduct_control::counters::{self as layout, HEADER_WORDS, REGION_WORDS, SLOT_WORDS, SLOTS, slot};

type Region = [AtomicU64; REGION_WORDS];

/// The region, which stays mapped; null for none. Nothing of it is on the heap: a forked child begins its own in the
/// middle of a send, and the heap may have been another thread's when it was forked.
static REGION: AtomicPtr<Region> = AtomicPtr::new(core::ptr::null_mut());
static REGION_FD: AtomicI32 = AtomicI32::new(-1);
/// The region to whose sums this process's are added when it ends: its parent's, or that of the nearest process before
/// with one. It stays mapped in children. Null for none, or once that is done.
static FOREBEAR: AtomicPtr<Region> = AtomicPtr::new(core::ptr::null_mut());
/// Slots whose memory is known to exist.
static POPULATED: AtomicUsize = AtomicUsize::new(0);
/// 0: not tried; 1: being made; [`SETTLED`].
static STARTED: AtomicU32 = AtomicU32::new(0);

/// Slots populated in one step: four pages' worth.
const STEP: usize = 64;

fn words() -> Option<&'static Region> {
    // Acquire pairs with the release in `make`.
    sys::leaked_record(REGION.load(Acquire))
}

/// What is shown of one connection.
pub(crate) type Slot = [AtomicU64; SLOT_WORDS];

/// The slot of `conn`, if it has one.
#[inline]
pub(crate) fn slot_of(conn: &Conn) -> Option<&'static Slot> {
    // Acquire pairs with the release in `publish`.
    sys::leaked_record(conn.counters.load(Acquire))
}

/// The region's header.
pub(crate) fn header() -> Option<&'static [AtomicU64]> {
    words()?.get(..HEADER_WORDS)
}

/// The region's memfd, to be shown to viaductd; -1 for none.
pub(crate) fn fd() -> i32 {
    REGION_FD.load(Relaxed)
}

/// Adds to a word of the slot of `conn`. Only one thread at a time counts in a word, so it need not be indivisible.
#[inline]
pub(crate) fn add(conn: &Conn, word: usize, amount: u64) {
    if let Some(words) = slot_of(conn).or_else(|| begin_slot(conn))
        && let Some(word) = words.get(word)
    {
        word.store(word.load(Relaxed).wrapping_add(amount), Relaxed);
    }
}

/// The slot of a connection that has none yet: one that was inherited gets its own when it is first used.
#[cold]
fn begin_slot(conn: &Conn) -> Option<&'static Slot> {
    if !conn.flag(FORKED) || conn.is_early() || process::is_confined() {
        return None;
    }
    start();
    publish(conn)
}

/// Begins what connections that this process has inherited will need, since it cannot later.
pub(crate) fn begin_inherited() {
    for conn in records::all().filter(|conn| slot_of(conn).is_none()) {
        begin_slot(conn);
    }
}

/// Adds to a word of the header.
pub(crate) fn add_total(word: usize, amount: u64) {
    if amount != 0
        && let Some(word) = header().and_then(|words| words.get(word))
    {
        word.fetch_add(amount, Relaxed);
    }
}

/// [`STARTED`]: the region is there, or cannot be had.
const SETTLED: u32 = 2;

/// Makes the region, once, before the first connection.
fn start() {
    if STARTED.compare_exchange(0, 1, AcqRel, Acquire).is_ok() {
        make();
        STARTED.store(SETTLED, Release);
    }
}

fn make() {
    let len = REGION_WORDS * 8;
    // A longer file is not refused only: the kernel kills the program.
    if sys::limit_of(libc::RLIMIT_FSIZE) < len as u64 {
        return;
    }
    let Ok((mapping, fd)) = Mapping::create(c"viaduct-counters", len) else {
        return;
    };
    if !mapping.populate(0..HEADER_WORDS * 8) {
        return;
    }
    let Ok(words): Result<&'static Region, _> = mapping.leak().try_into() else {
        return;
    };
    let put = |index: usize, value: u64| {
        if let Some(word) = words.get(index) {
            word.store(value, Relaxed);
        }
    };
    put(layout::PID, raw::getpid().into());
    put(layout::INSTANCE, crate::agent::policy::instance());
    for (index, chunk) in program_name().chunks_exact(8).enumerate() {
        put(
            layout::PROGRAM + index,
            u64::from_ne_bytes(chunk.try_into().unwrap_or_default()),
        );
    }
    put(layout::BARRED, bar());
    put(layout::INODE, raw::inode(fd.as_raw_fd()).unwrap_or(0));
    // Acquire pairs with the release in `after_fork`.
    if let Some(forebear) = sys::leaked_record(FOREBEAR.load(Acquire)) {
        put(layout::FOREBEAR, forebear[layout::INODE].load(Relaxed));
        forebear[layout::CHILDREN].fetch_add(1, Relaxed);
    }
    put(layout::MAGIC_WORD, layout::MAGIC);
    let fd = crate::agent::hide(fd.into_raw_fd());
    REGION_FD.store(fd, Relaxed);
    REGION.store(core::ptr::from_ref(words).cast_mut(), Release);
    // What has been inherited is most often not used.
    let own = |conn: &&Conn| !conn.is_early() && !conn.flag(FORKED);
    records::all().filter(own).for_each(show);
}

/// [`layout::BARRED`].
fn bar() -> u64 {
    unseen::bar().map_or(0, |reason| reason as u64)
}

/// Shows that no connection will be offered, though there may be none yet, or none that is seen.
pub(crate) fn tell_bar() {
    ensure();
    if let Some(word) = header().and_then(|words| words.get(layout::BARRED)) {
        word.store(bar(), Relaxed);
    }
}

/// The name the program was called by, zero-padded. Asked for first when the library is loaded, since programs
/// overwrite their arguments.
pub(crate) fn program_name() -> [u8; 64] {
    static NAME: AtomicPtr<[u8; 64]> = AtomicPtr::new(core::ptr::null_mut());
    if let Some(name) = sys::leaked_record(NAME.load(Acquire)) {
        return *name;
    }
    let mut name = [0; 64];
    sys::program_name(&mut name);
    NAME.store(Box::leak(Box::new(name)), Release);
    name
}

/// Begins the slot of a new connection.
pub(crate) fn open(conn: &Conn) {
    if STARTED.load(Relaxed) == 0 {
        start();
    } else {
        show(conn);
    }
}

/// For how long the connection has been shown.
pub(crate) fn age_ns(conn: &Conn) -> Option<u64> {
    slot_of(conn).map(|words| sys::coarse_now_ns().saturating_sub(words[slot::CREATED_NS].load(Relaxed)))
}

/// The bytes that the program has sent and received by the kernel connection; `None` where nobody counts.
pub(crate) fn by_kernel(conn: &Conn) -> Option<[u64; 2]> {
    let words = slot_of(conn)?;
    let ways = [
        (slot::BYTES_SENT, slot::FAST_BYTES_SENT),
        (slot::BYTES_RECEIVED, slot::FAST_BYTES_RECEIVED),
    ];
    // In this order: what is counted meanwhile, in all first, is not taken for the kernel's.
    Some(ways.map(|(all, fast)| {
        let all = words[all].load(Relaxed);
        all.saturating_sub(words[fast].load(Relaxed))
    }))
}

/// Shows a connection, or counts it among those for which there is no room.
fn show(conn: &Conn) {
    if publish(conn).is_none() {
        add_total(layout::UNSHOWN, 1);
    }
}

/// The slot of `conn`, begun; `None` if there is no region, or no room.
fn publish(conn: &Conn) -> Option<&'static Slot> {
    let index = conn.index();
    if index >= SLOTS || !populate(index) {
        return None;
    }
    let base = layout::slot_base(index);
    let words: &'static Slot = words()?.get(base..base + SLOT_WORDS)?.try_into().ok()?;
    let (plain, more) = words.split_at(slot::SLEEPS);
    clear(plain);
    if words[slot::SLEEPS].load(Relaxed) | words[slot::LOCAL + 2].load(Relaxed) != 0 {
        clear(more);
    }
    words[slot::CREATED_NS].store(sys::coarse_now_ns(), Relaxed);
    conn.counters.store(core::ptr::from_ref(words).cast_mut(), Release);
    conn.show();
    words[slot::CONNECTION].store(conn.id(), Release);
    let slots = index as u64 + 1;
    if let Some(used) = header().and_then(|words| words.get(layout::SLOTS_USED))
        && used.load(Relaxed) < slots
    {
        used.fetch_max(slots, Relaxed);
    }
    Some(words)
}

fn clear(words: &[AtomicU64]) {
    words.iter().for_each(|word| word.store(0, Relaxed));
}

fn populate(index: usize) -> bool {
    index < POPULATED.load(Relaxed) || populate_more(index)
}

#[cold]
fn populate_more(index: usize) -> bool {
    let have = POPULATED.load(Relaxed);
    let want = (index / STEP + 1) * STEP;
    let range = layout::slot_base(have)..layout::slot_base(want).min(REGION_WORDS);
    let done = words()
        .and_then(|words| words.get(range))
        .is_some_and(viaduct_channel::populate);
    if done {
        POPULATED.fetch_max(want, Relaxed);
    }
    done
}

/// What the end of a connection adds to words of the header.
fn carried(words: &Slot) -> impl Iterator<Item = (usize, u64)> {
    let fast = words[slot::FAST_BYTES_SENT].load(Relaxed) | words[slot::FAST_BYTES_RECEIVED].load(Relaxed);
    let traffic = slot::TRAFFIC.into_iter().enumerate();
    let traffic = traffic.map(|(place, word)| (layout::ENDED_TRAFFIC + place, words[word].load(Relaxed)));
    traffic.chain([(layout::ENDED_FAST, u64::from(fast != 0)), (layout::ENDED, 1)])
}

/// The process ends in order: what it has carried is counted on where it was forked from, and no longer shown here.
pub(crate) fn bequeath() {
    let Some(own) = words() else { return };
    let Some(forebear) = sys::leaked_record(FOREBEAR.swap(core::ptr::null_mut(), AcqRel)) else {
        return;
    };
    let add = |(word, amount): (usize, u64)| {
        if amount != 0 {
            forebear[word].fetch_add(amount, Relaxed);
        }
    };
    let open = records::all().filter_map(slot_of);
    open.flat_map(carried).for_each(add);
    for word in layout::SUMS {
        add((word, own[word].load(Relaxed)));
    }
    add((layout::CHILDREN_ENDED, 1));
    own[layout::MAGIC_WORD].store(0, Release);
}

/// Ends the slot of a connection; what it has carried stays in the totals.
pub(crate) fn close(conn: &Conn) {
    // A connection that found no room is in no total either.
    let Some(words) = slot_of(conn) else { return };
    for (word, amount) in carried(words) {
        add_total(word, amount);
    }
    conn.counters.store(core::ptr::null_mut(), Relaxed);
    words[slot::CONNECTION].store(0, Release);
    if conn.segment_name() != 0 {
        // One that was inherited has counted without an address.
        clear(&words[slot::SLEEPS..]);
    }
}

/// In a forked child: the region is the parent's; the child begins its own with the first connection that it makes or
/// uses.
pub(crate) fn after_fork() {
    let parents = REGION.swap(core::ptr::null_mut(), Relaxed);
    if !parents.is_null() {
        FOREBEAR.store(parents, Release);
    }
    POPULATED.store(0, Relaxed);
    for conn in records::all() {
        conn.counters.store(core::ptr::null_mut(), Relaxed);
    }
    let fd = REGION_FD.swap(-1, Relaxed);
    if fd >= 0 {
        table::take(fd);
        raw::close(fd);
    }
    STARTED.store(0, Relaxed);
}

/// Makes sure the region exists, or waits for the thread that is making it.
pub(crate) fn ensure() {
    start();
    // Bounded, since that thread may have been interrupted by the very signal handler that calls us.
    let until = sys::now_ns() + 50_000_000;
    while STARTED.load(Acquire) != SETTLED && sys::now_ns() < until {
        raw::sched_yield();
    }
}

/// Why there is no region after [`ensure`]. On a busy machine the thread that makes it may not have got that far.
pub(crate) fn why_none() -> Reason {
    match STARTED.load(Acquire) {
        SETTLED if fd() < 0 => Reason::NoMemory,
        _ => Reason::SlowDaemon,
    }
}

/// Notes what the offer says about a connection.
pub(crate) fn addresses(conn: &Conn, offer: &viaduct_control::message::Offer) {
    let Some(words) = slot_of(conn) else { return };
    words[slot::COOKIE].store(offer.cookie, Relaxed);
    words[slot::NETNS].store(offer.netns, Relaxed);
    for (base, address) in [(slot::LOCAL, &offer.local), (slot::REMOTE, &offer.remote)] {
        let (high, low) = address.ip.split_at(8);
        words[base].store(u64::from_ne_bytes(high.try_into().unwrap_or_default()), Relaxed);
        words[base + 1].store(u64::from_ne_bytes(low.try_into().unwrap_or_default()), Relaxed);
        words[base + 2].store(address.port.into(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use viaduct_control::message::{Address, Offer};

    #[test]
    fn a_slot_shows_nothing_of_the_connection_before() {
        let conn = records::record(records::RECORDS / 8).unwrap();
        let begin = || {
            conn.reset(0, 0);
            conn.id.store(conn.next_id(records::RECORDS / 8), Release);
            ensure();
            publish(conn).unwrap()
        };
        let address = Address {
            ip: [7; 16],
            port: 9,
            reserved: 0,
            scope: 0,
        };
        let offer = Offer {
            offer: conn.id(),
            cookie: 1,
            netns: 2,
            bell: 0,
            local: address,
            remote: address,
            ticket_sequence: 0,
            flags: 0,
        };
        let all = || (0..SLOT_WORDS).filter(|word| ![slot::CONNECTION, slot::STATE, slot::CREATED_NS].contains(word));
        begin();
        addresses(conn, &offer);
        all().for_each(|word| add(conn, word, 5));
        close(conn);
        let words = begin();
        assert!(all().all(|word| words[word].load(Relaxed) == 0));
        // Slept, but never offered.
        add(conn, slot::SLEEPS, 1);
        close(conn);
        assert_eq!(begin()[slot::SLEEPS].load(Relaxed), 0);
        // Inherited with its lane.
        conn.segment_name.store(1, Relaxed);
        add(conn, slot::BELLS_SENT, 1);
        close(conn);
        assert_eq!(begin()[slot::BELLS_SENT].load(Relaxed), 0);
        close(conn);
        conn.id.store(0, Release);
    }
}
