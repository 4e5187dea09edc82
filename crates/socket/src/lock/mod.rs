//! Ownership words: who uses a direction of a connection now.
//!
//! The words live in anonymous shared memory, so that a process and its forked children exclude each other, and out of
//! the peer's reach. A word holds the name of the thread that owns it. A thread that finds its own name there has been
//! interrupted by a signal whose handler uses the same direction; it must not wait. A thread that leaves its stretch by
//! a jump out of a handler gives its words up as it jumps, see `crate::lock::jump`. A word held by a thread that no
//! longer exists is taken over: the channel's stores are ordered so that a user killed midway does no harm.
//!
//! No word is held while waiting.

pub(crate) mod jump;
mod turn;
pub(crate) mod turns;

use crate::conn::common::Common;
use crate::lock::jump::Jump;
use crate::lock::turns::Turns;
use crate::process::{apart, shared, thread};
use crate::sys::{self, raw};
use crate::wait::asleep;
use core::cell::Cell;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, compiler_fence};

/// The two ownership words of a connection end, on a cache line of their own. Whoever takes both takes `send` first.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Locks {
    pub(crate) send: AtomicU32,
    pub(crate) receive: AtomicU32,
    /// Processes that hold the connection: a forked child counts until it lets go. One that was killed counts for ever,
    /// which only keeps the connection from being offered again.
    pub(crate) holders: AtomicU32,
    /// Threads that sleep in a receive or a poll until a mark comes, see [`crate::wait::asleep`].
    pub(crate) sleepers: [AtomicU32; asleep::NAMES],
    pub(crate) more_sleepers: AtomicU32,
    /// The reference of the [`Area`](crate::search::area::Area) with the holes of the receiving direction; 0 for none.
    pub(crate) area: AtomicU32,
    /// What who owns the receiving direction is amid: [`PEEKS_BEHIND`], [`ENDS_STRETCH`], [`COUNTS`], [`IN_LINE`],
    /// [`TELLS_REST`].
    pub(crate) amid: AtomicU32,
    pub(crate) common: Common,
    /// See `Conn::position` in `crate::receive::plain`.
    pub(crate) position: AtomicU64,
    /// See `Conn::surely_raw` in `crate::receive::plain`.
    pub(crate) surely_raw: AtomicU64,
    /// Kernel position behind the mark of [`ENDS_STRETCH`].
    pub(crate) behind_mark: AtomicU64,
}

impl Locks {
    /// Notes, before it is begun, what is done next; see [`Locks::amid`]. The receiving direction is owned.
    pub(crate) fn begin(&self, what: u32) {
        compiler_fence(SeqCst);
        self.amid.store(self.amid.load(Relaxed) | what, Relaxed);
        compiler_fence(SeqCst);
    }

    /// It has been done.
    pub(crate) fn end(&self, what: u32) {
        compiler_fence(SeqCst);
        self.amid.store(self.amid.load(Relaxed) & !what, Relaxed);
    }
}

/// In [`Locks::amid`]: `SO_PEEK_OFF` of the socket is set, for one peek.
pub(crate) const PEEKS_BEHIND: u32 = 1;
/// In [`Locks::amid`]: a lane stretch is noted as ended, and its mark taken, in two steps.
pub(crate) const ENDS_STRETCH: u32 = 2;
/// In [`Locks::amid`]: bytes are taken off the kernel connection, and counted in [`Locks::position`].
pub(crate) const COUNTS: u32 = 4;
/// In [`Locks::amid`]: `SO_OOBINLINE` of the socket is set, for one count.
pub(crate) const IN_LINE: u32 = 8;
/// In [`Locks::amid`]: `TCP_INQ` of the socket is set, for one count.
pub(crate) const TELLS_REST: u32 = 16;

/// Bits of a word with the number of its thread: none is larger (`PID_MAX_LIMIT`, linux/threads.h).
const NUMBER: u32 = (1 << 22) - 1;
/// In a word: the direction is searched. Then taking it fails the fast way, so that who never searches pays nothing.
const SEARCHED: u32 = 1 << 31;
/// In a word that is owned: somebody may sleep until it is given up.
const AWAITED: u32 = 1 << 30;
/// In a name: the rest says nothing of its thread but which it is, see `crate::process::apart`.
const UNTOLD: u32 = 1 << 29;
/// Bits of a name that tell its thread from others that have had the same number.
const GENERATION: u32 = !(NUMBER | SEARCHED | AWAITED | UNTOLD);
/// The first of them.
const ONE_GENERATION: u32 = NUMBER + 1;

/// Words that one thread can own at a time and give up by a jump: four, and as many again for each handler that
/// interrupts another.
const MOST: usize = 16;

/// What a thread knows of its words. Most calls use one: up to the first that is held it is on one line, see
/// [`thread::Thread`].
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Own {
    /// What the thread writes into words; 0 before the first.
    name: Cell<u32>,
    /// How many words it owns or is about to take.
    count: Cell<u32>,
    /// The connection that it last sent on.
    sent_on: Cell<u64>,
    held: [Held; MOST],
}

/// A word, and where on the stack its owner works.
#[derive(Debug)]
struct Held {
    word: Cell<Option<&'static AtomicU32>>,
    frame: Cell<usize>,
}

/// Who waits for a word looks so often before it sleeps. Most words are free by then, if their owner runs at all.
const GLANCES: u32 = 256;
/// So long it sleeps at a time, unless it is woken, and then asks whether the owner still is.
const NAP_NS: u64 = 2_000_000;

/// Threads of this process that have a name.
static NAMED: AtomicU32 = AtomicU32::new(0);

/// The calling thread's number.
#[inline]
pub(crate) fn tid() -> u32 {
    name() & NUMBER
}

/// What the calling thread writes into words, unlike any other thread's as far as can be.
#[inline]
pub(crate) fn name() -> u32 {
    thread::this().locks.name()
}

/// Whether the thread of this name lives, as far as this process may see: who cannot be asked for does. An earlier one
/// of the caller's number does not.
pub(crate) fn lives(name: u32) -> bool {
    let own = self::name();
    if name == own || (name | own) & UNTOLD != 0 {
        return true;
    }
    let (number, own_number) = (name & NUMBER, own & NUMBER);
    let alive = if apart::is_apart() {
        apart::thread_alive
    } else {
        raw::thread_alive
    };
    number != own_number && alive(number)
}

/// The name in a word; 0 if nobody owns it.
pub(crate) fn owner(word: u32) -> u32 {
    word & !(SEARCHED | AWAITED)
}

/// Whether the name may be that of a thread of this process, not of its parent.
pub(crate) fn is_ours(name: u32) -> bool {
    match name & UNTOLD {
        0 if !apart::is_apart() => raw::thread_is_ours(name & NUMBER),
        0 => apart::thread_is_ours(Ok(name & NUMBER)),
        _ => apart::thread_is_ours(Err(name & !UNTOLD)),
    }
}

impl Own {
    /// Of a thread that has taken nothing yet.
    pub(crate) const fn new() -> Self {
        Self {
            name: Cell::new(0),
            count: Cell::new(0),
            sent_on: Cell::new(0),
            held: [const {
                Held {
                    word: Cell::new(None),
                    frame: Cell::new(0),
                }
            }; MOST],
        }
    }

    #[inline]
    fn name(&self) -> u32 {
        match self.name.get() {
            0 => self.choose_name(),
            known => known,
        }
    }

    #[cold]
    fn choose_name(&self) -> u32 {
        let generation = NAMED.fetch_add(1, Relaxed).wrapping_mul(ONE_GENERATION) & GENERATION;
        let number = if apart::is_apart() {
            apart::thread_number()
        } else {
            Ok(raw::gettid())
        };
        self.name.set(match number {
            Ok(number) => number | generation,
            Err(name) => name | UNTOLD,
        });
        self.name.get()
    }

    /// Before the word is taken: from then on a handler may interrupt the thread and jump. Answers how many there were
    /// before.
    #[inline]
    fn note(&self, word: &'static AtomicU32) -> u32 {
        let before = self.count.get();
        // The fences are for handlers of this thread: none uses an entry that is being written, and a word that is
        // owned has one. What stood in the entry before is no harm: a word that the thread does not own, or has in
        // another entry.
        self.count.set(before + 1);
        compiler_fence(SeqCst);
        if let Some(held) = self.held.get(before as usize) {
            held.frame.set(sys::stack_pointer());
            held.word.set(Some(word));
        }
        compiler_fence(SeqCst);
        before
    }

    /// The word noted when there were `before` is no longer owned.
    #[inline]
    fn strike_off(&self, before: u32) {
        compiler_fence(SeqCst);
        // Guards are dropped in any order; one that outlives an earlier one is not noted any more.
        self.count.set(self.count.get().min(before));
    }

    /// Gives up what was taken in functions that `jump` leaves, and then tells `left_word` of each.
    #[cold]
    fn give_up(&self, jump: &Jump, left_word: impl Fn(&AtomicU32)) {
        let held = self.held.get(..self.count.get() as usize).unwrap_or(&self.held);
        let kept = held.iter().take_while(|held| !jump.leaves(held.frame.get())).count();
        let (kept, left) = held.split_at(kept);
        let mut words = [None; MOST];
        for (word, given_up) in left.iter().filter_map(|held| held.word.get()).zip(&mut words) {
            // A handler may have been about to ask for a word that the thread has owned since before.
            let owned_before = |held: &Held| held.word.get().is_some_and(|kept| core::ptr::eq(kept, word));
            if owner(word.load(Relaxed)) == self.name.get() && !kept.iter().any(owned_before) {
                give_up(word);
                *given_up = Some(word);
            }
        }
        self.strike_off(u32::try_from(kept.len()).unwrap_or(u32::MAX));
        words.into_iter().flatten().for_each(left_word);
    }
}

/// The calling thread is about to jump: what it owns in functions that it leaves is free for others, and `left` is told
/// of each word.
pub(crate) fn jumping(jump: &Jump, left: impl Fn(&AtomicU32)) {
    let own = &thread::this().locks;
    if own.count.get() > 0 {
        own.give_up(jump, left);
    }
}

/// In a forked child: the thread has another number now.
pub(crate) fn after_fork() {
    let own = &thread::this().locks;
    own.name.set(0);
    own.sent_on.set(0);
    REGION.store(core::ptr::null_mut(), Relaxed);
    TURNS.end(false);
}

/// Ownership of one direction, given up on drop.
#[derive(Debug)]
pub(crate) struct Guard<'a> {
    word: &'a AtomicU32,
    /// What the word is when nobody owns it.
    idle: u32,
    /// What it is now.
    owned: u32,
    own: &'a Own,
    /// See [`Own::note`].
    before: u32,
}

impl Guard<'_> {
    /// Whether the direction may have holes.
    #[inline]
    pub(crate) fn searched(&self) -> bool {
        self.idle != 0
    }

    /// From now on the direction may have holes, or no longer.
    pub(crate) fn set_searched(&mut self, searched: bool) {
        self.idle = if searched { SEARCHED } else { 0 };
        self.owned = self.owned & !SEARCHED | self.idle;
        // At once: a thread that is killed never gives the word up. Others may say meanwhile that they wait.
        if searched {
            self.word.fetch_or(SEARCHED, Release);
        } else {
            self.word.fetch_and(!SEARCHED, Release);
        }
    }

    /// Keeps the word owned, for others to give up: through a fork.
    pub(crate) fn keep(self) {
        self.own.strike_off(self.before);
        core::mem::forget(self);
    }
}

impl Drop for Guard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Nobody takes a word from a thread that lives. Should it be another's all the same, that one's it stays.
        let seen = self.word.load(Relaxed);
        if seen == self.owned {
            // Release pairs with the acquire in `take`. Who says in between that it waits does not sleep, since the
            // word has changed, or wakes by itself: a store costs a fraction of what an exchange does.
            self.word.store(self.idle, Release);
        } else if seen == self.owned | AWAITED {
            give_up(self.word);
        }
        self.own.strike_off(self.before);
    }
}

/// Takes a word; `None` if this very thread holds it already.
#[inline]
pub(crate) fn acquire(word: &'static AtomicU32) -> Option<Guard<'static>> {
    acquire_idle(word, 0).or_else(|| Some(acquire_contended(word)?.guard))
}

/// Takes a word that only this process has, as [`acquire`] does.
#[inline]
pub(crate) fn acquire_local(word: &'static AtomicU32) -> Option<Guard<'static>> {
    if !sys::single_threaded() {
        return acquire(word);
    }
    let own = &thread::this().locks;
    let before = own.note(word);
    // A signal handler that comes in between gives up what it takes.
    if word.load(Relaxed) == 0 {
        let owned = own.name();
        word.store(owned, Relaxed);
        // As far as handlers are concerned, what follows comes after.
        compiler_fence(SeqCst);
        return Some(Guard {
            word,
            idle: 0,
            owned,
            own,
            before,
        });
    }
    own.strike_off(before);
    Some(acquire_contended(word)?.guard)
}

/// Takes the word of a direction that has been searched, if nobody owns it.
#[inline(always)]
pub(crate) fn try_acquire_searched(word: &'static AtomicU32) -> Option<Guard<'static>> {
    acquire_idle(word, SEARCHED)
}

/// Takes a word if it is free.
#[inline]
pub(crate) fn try_acquire(word: &'static AtomicU32) -> Option<Guard<'static>> {
    acquire_idle(word, 0)
}

/// Takes a word whose owner is gone; `None` if it has none, or one that lives.
#[cold]
pub(crate) fn take_over(word: &'static AtomicU32) -> Option<Guard<'static>> {
    let seen = word.load(Relaxed);
    if owner(seen) == 0 || lives(owner(seen)) {
        return None;
    }
    take(&thread::this().locks, word, seen, seen & SEARCHED, 0)
}

/// Takes a word that is `idle` when nobody owns it, if nobody does.
#[inline(always)]
fn acquire_idle(word: &'static AtomicU32, idle: u32) -> Option<Guard<'static>> {
    let own = &thread::this().locks;
    take(own, word, idle, idle, 0)
}

/// Takes a word that holds `seen`, and may be [`AWAITED`] by others.
#[inline(always)]
fn take(own: &'static Own, word: &'static AtomicU32, seen: u32, idle: u32, awaited: u32) -> Option<Guard<'static>> {
    let owned = own.name() | idle;
    let before = own.note(word);
    if word.compare_exchange(seen, owned | awaited, Acquire, Relaxed).is_ok() {
        // Made only on success: a guard that is dropped gives up its word.
        return Some(Guard {
            word,
            idle,
            owned,
            own,
            before,
        });
    }
    own.strike_off(before);
    None
}

/// A word that was not free at once.
#[derive(Debug)]
pub(crate) struct Awaited {
    pub(crate) guard: Guard<'static>,
    /// Whether its owner went without giving it up.
    pub(crate) orphaned: bool,
}

/// Takes a word when its owner gives it up or is gone; `None` if this very thread holds it already.
///
/// Nobody gives the core up while it waits: where others want it, that costs a turn of each of them, and the owner may
/// be the one that has lost the core for as long. Who sleeps until it is woken goes first.
#[cold]
pub(crate) fn acquire_contended(word: &'static AtomicU32) -> Option<Awaited> {
    let own = &thread::this().locks;
    let name = own.name();
    let mut glances = 0;
    let (mut ask, mut awaited) = (false, 0);
    loop {
        let seen = word.load(Relaxed);
        let owner = owner(seen);
        if owner == name {
            return None;
        }
        // At once if it was a thread of this number.
        ask |= owner & NUMBER == name & NUMBER;
        if (owner == 0 || ask && !lives(owner))
            && let Some(guard) = take(own, word, seen, seen & SEARCHED, awaited)
        {
            return Some(Awaited {
                guard,
                orphaned: owner != 0,
            });
        }
        ask = false;
        if glances < GLANCES {
            glances += 1;
            core::hint::spin_loop();
        } else if owner != 0 && is_awaited(word, seen) {
            // Others may sleep as well, and only one is woken.
            awaited = AWAITED;
            ask = raw::sleep_while(word, seen | AWAITED, NAP_NS);
        }
    }
}

/// Says that somebody waits for the owner of a word that holds `seen`; false if it has changed.
fn is_awaited(word: &AtomicU32, seen: u32) -> bool {
    seen & AWAITED != 0 || word.compare_exchange(seen, seen | AWAITED, Relaxed, Relaxed).is_ok()
}

/// Gives up a word of the calling thread's that others may wait for.
#[cold]
fn give_up(word: &AtomicU32) {
    let seen = word.load(Relaxed);
    let seen = word.swap(seen & SEARCHED, Release);
    if seen & AWAITED != 0 {
        raw::wake_one(word);
    }
}

/// The region of this process's words; null before the first record and after fork.
static REGION: AtomicPtr<Locks> = AtomicPtr::new(core::ptr::null_mut());
pub(crate) static TURNS: Turns = Turns::among(256);

/// Takes words that no process of the family holds, of `count` in all; `None` if there are none or there is no memory
/// for them.
pub(crate) fn claim(count: usize) -> Option<&'static Locks> {
    let mut region = REGION.load(Acquire);
    if region.is_null() {
        let fresh = shared::memory(count * size_of::<Locks>()).ok()?.cast::<Locks>();
        // Release pairs with the acquire above. A loser's region is never used; it costs address space only.
        region = match REGION.compare_exchange(core::ptr::null_mut(), fresh, Release, Acquire) {
            Ok(_) => fresh,
            Err(winner) => winner,
        };
    }
    let at = |place: u32| sys::shared_record(region, place as usize);
    let free = |count: &AtomicU32| count.load(Relaxed) == 0 && count.compare_exchange(0, 1, Acquire, Relaxed).is_ok();
    let all = u32::try_from(count).unwrap_or(0);
    let locks = at(TURNS.claim(all, |place| free(&at(place).holders))?);
    // The words are free already, or held for a moment by a thread that came too late for the last connection.
    crate::search::area::release(&locks.area);
    locks.amid.store(0, Relaxed);
    locks.common.forget();
    locks.forget_sleepers();
    if locks.receive.load(Relaxed) == SEARCHED {
        let _ = locks.receive.compare_exchange(SEARCHED, 0, Relaxed, Relaxed);
    }
    Some(locks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word() -> &'static AtomicU32 {
        Box::leak(Box::default())
    }

    #[test]
    fn a_failed_attempt_leaves_the_word_to_its_owner() {
        let word = word();
        let owner = acquire(word);
        assert!(owner.is_some());
        assert!(try_acquire(word).is_none());
        assert!(acquire(word).is_none(), "this thread owns it already");
        assert_eq!(word.load(Relaxed), thread::this().locks.name());
        drop(owner);
        assert!(try_acquire(word).is_some());
        assert_eq!(word.load(Relaxed), 0);
    }

    #[test]
    fn a_searched_direction_stays_so_until_it_is_told() {
        let word = word();
        let mut owner = acquire(word).unwrap();
        assert!(!owner.searched());
        owner.set_searched(true);
        assert!(acquire(word).is_none(), "this thread owns it already");
        drop(owner);
        assert_eq!(word.load(Relaxed), SEARCHED);
        let mut owner = acquire(word).unwrap();
        assert!(owner.searched());
        assert!(acquire(word).is_none(), "this thread owns it already");
        owner.set_searched(false);
        drop(owner);
        assert_eq!(word.load(Relaxed), 0);
    }

    #[test]
    fn a_direction_is_searched_even_if_its_first_searcher_is_killed() {
        let word = word();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut owner = acquire(word).unwrap();
                owner.set_searched(true);
                core::mem::forget(owner);
            });
        });
        assert!(acquire(word).unwrap().searched());
    }

    /// Takes a word in a function of its own, and leaves it as a jump does; answers where the stack was.
    #[inline(never)]
    fn take_and_leave(word: &'static AtomicU32) -> usize {
        core::mem::forget(acquire(word).unwrap());
        sys::stack_pointer()
    }

    #[test]
    fn a_word_left_by_a_jump_is_free_for_everybody() {
        let word = word();
        let above = take_and_leave(word) + 1;
        assert!(acquire(word).is_none(), "a handler that interrupts the owner");
        crate::lock::jump::jumping(above);
        drop(acquire(word).unwrap());
        let above = take_and_leave(word) + 1;
        crate::lock::jump::jumping(above);
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(acquire(word).is_some()));
        });
    }

    #[test]
    fn a_word_stays_with_its_owner_when_a_handler_jumps_within_itself() {
        let (owned, left) = (word(), word());
        let owner = acquire(owned).unwrap();
        // As far below as a handler is.
        let within = sys::stack_pointer() - 4096;
        // Deeper still, another handler has taken one.
        core::mem::forget(acquire(left).unwrap());
        let own = &thread::this().locks;
        own.held[1].frame.set(within - 1);
        // And is about to ask for the first.
        own.note(owned);
        own.held[2].frame.set(within - 2);
        crate::lock::jump::jumping(within);
        assert_eq!(left.load(Relaxed), 0);
        assert_eq!(owned.load(Relaxed), own.name());
        assert_eq!(own.count.get(), 1);
        drop(owner);
        assert_eq!((owned.load(Relaxed), own.count.get()), (0, 0));
    }

    #[test]
    fn a_guard_gives_up_no_other_owners_word() {
        let word = word();
        let owner = acquire(word).unwrap();
        word.store(1, Relaxed);
        drop(owner);
        assert_eq!(word.load(Relaxed), 1);
    }

    #[test]
    fn a_word_of_an_earlier_thread_of_the_same_number_is_free() {
        let word = word();
        let name = thread::this().locks.name();
        word.store((name ^ ONE_GENERATION) | SEARCHED, Relaxed);
        assert!(acquire(word).unwrap().searched());
        assert_eq!(word.load(Relaxed), SEARCHED);
    }

    #[test]
    fn threads_of_one_number_have_different_names() {
        let own = &thread::this().locks;
        let first = own.name();
        own.name.set(0);
        assert_eq!(own.name() & NUMBER, first & NUMBER);
        assert_ne!(own.name(), first);
    }

    #[test]
    fn a_word_that_is_kept_is_no_longer_noted() {
        let word = word();
        acquire(word).unwrap().keep();
        let own = &thread::this().locks;
        assert_eq!((word.load(Relaxed), own.count.get()), (own.name(), 0));
    }

    #[test]
    fn who_waits_for_an_owner_that_does_not_run_does_not_run_either() {
        // The first figure is the thread's processor time (Documentation/scheduler/sched-stats.rst).
        let cpu_ns = || {
            let figures = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
            let spent = figures.split(' ').next().unwrap();
            spent.parse::<u64>().unwrap()
        };
        let word = word();
        // What interrupts a thread counts as its own, so that now and then one has a millisecond more.
        let mut spent = core::array::from_fn::<_, 9, _>(|_| {
            let owner = acquire(word).unwrap();
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| {
                    let before = cpu_ns();
                    drop(acquire(word).unwrap());
                    cpu_ns() - before
                });
                std::thread::sleep(std::time::Duration::from_millis(20));
                drop(owner);
                waiter.join().unwrap()
            })
        });
        spent.sort_unstable();
        assert!(spent[4] < 700_000, "{spent:?} ns of processor time in 20 ms each");
    }

    #[test]
    fn who_sleeps_until_a_word_is_given_up_is_woken() {
        let word = word();
        let wait = |_| {
            let owner = acquire(word).unwrap();
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| {
                    drop(acquire(word).unwrap());
                    std::time::Instant::now()
                });
                while word.load(Relaxed) & AWAITED == 0 {
                    std::thread::yield_now();
                }
                // It sleeps for much longer than this, unless it is woken.
                std::thread::sleep(std::time::Duration::from_nanos(NAP_NS / 10));
                let given_up = std::time::Instant::now();
                drop(owner);
                waiter.join().unwrap().saturating_duration_since(given_up)
            })
        };
        // A busy machine runs who is woken late as well, but not most of the time.
        let mut waits = core::array::from_fn::<_, 45, _>(wait);
        waits.sort_unstable();
        assert!(waits[22].as_nanos() < u128::from(NAP_NS / 2), "{waits:?}");
        assert_eq!(word.load(Relaxed), 0);
    }

    #[test]
    fn an_awaited_word_is_given_up_by_jumps_and_keeps_that_it_is_searched() {
        let word = word();
        let above = take_and_leave(word) + 1;
        word.fetch_or(AWAITED | SEARCHED, Relaxed);
        assert!(acquire(word).is_none(), "a handler that interrupts the owner");
        crate::lock::jump::jumping(above);
        assert_eq!(word.load(Relaxed), SEARCHED);
        let mut owner = acquire(word).unwrap();
        word.fetch_or(AWAITED, Relaxed);
        owner.set_searched(false);
        assert_ne!(word.load(Relaxed) & AWAITED, 0, "whoever waits is not forgotten");
        drop(owner);
        assert_eq!(word.load(Relaxed), 0);
    }

    #[test]
    fn a_word_excludes_other_threads() {
        let (word, inside) = (word(), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for number in 0..4 {
                let inside = &inside;
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        let guard = if number % 2 == 0 {
                            acquire(word)
                        } else {
                            try_acquire(word)
                        };
                        if guard.is_some() {
                            assert_eq!(inside.fetch_add(1, Relaxed), 0, "two owners");
                            inside.fetch_sub(1, Relaxed);
                        }
                    }
                });
            }
        });
    }
}
