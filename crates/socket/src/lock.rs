//! Ownership words: who uses a direction of a connection now.
//!
//! The words live in anonymous shared memory, so that a process and its forked children exclude each other, and out of the
//! peer's reach. A word holds the number of the thread that owns it. A thread that finds its own number there has
//! been interrupted by a signal whose handler uses the same direction; it must not wait. A word held by a thread that no
//! longer exists, or has left the call by a jump out of a handler, is taken over: the channel's stores are ordered so that a user killed
//! midway does no harm.
//!
//! No word is held while waiting.

use crate::sys::{self, raw};
use core::cell::Cell;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

/// The two ownership words of a connection end, on a cache line of their own. Whoever takes both takes `send` first.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Locks {
    pub(crate) send: AtomicU32,
    pub(crate) receive: AtomicU32,
    /// Processes that hold the connection: a forked child counts until it lets go. One that was killed counts for ever, which only
    /// keeps the connection from being offered again.
    pub(crate) holders: AtomicU32,
    /// Threads that sleep in a receive or a poll until a mark comes, see [`crate::asleep`]. One of a process that was killed counts for ever.
    pub(crate) asleep: AtomicU32,
    /// One more than the number of the [`Area`](crate::search::area::Area) with the holes of the receiving direction; 0 for none.
    pub(crate) area: AtomicU32,
    /// See [`crate::conn::Conn::position`].
    pub(crate) position: AtomicU64,
}

/// Bits of a word with the number of its thread: none is larger (`PID_MAX_LIMIT`, linux/threads.h).
const NUMBER: u32 = (1 << 22) - 1;
/// Bits of a word that tell how often its thread had jumped when it took the word.
const JUMPS: u32 = !(NUMBER | SEARCHED);
/// The first of them.
const JUMP: u32 = NUMBER + 1;

thread_local! {
    /// What this thread writes into words.
    static OWNER: Cell<u32> = const { Cell::new(0) };
}

/// What threads that have jumped write into words since; one place serves many threads.
static JUMPERS: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];

fn jumper(owner: u32) -> Option<&'static AtomicU32> {
    JUMPERS.get((owner & NUMBER) as usize % JUMPERS.len())
}

/// The calling thread's number.
#[inline]
pub(crate) fn tid() -> u32 {
    owner() & NUMBER
}

#[inline]
fn owner() -> u32 {
    let known = OWNER.get();
    if known != 0 {
        return known;
    }
    let tid = raw::gettid();
    // Another thread of this number may have jumped, and ended.
    let known = jumper(tid).map_or(tid, |jumper| jumper.load(Relaxed));
    let owner = if known & NUMBER == tid { known } else { tid };
    OWNER.set(owner);
    owner
}

/// The calling thread is about to leave functions by a jump, perhaps calls of ours that its handler has interrupted.
pub fn jumping() {
    let known = OWNER.get();
    if known != 0 {
        let next = known & NUMBER | known.wrapping_add(JUMP) & JUMPS;
        OWNER.set(next);
        if let Some(jumper) = jumper(next) {
            jumper.store(next, Relaxed);
        }
    }
}

/// Whether the thread that has written `owner` into a word has jumped since, as far as is known.
fn has_jumped(owner: u32) -> bool {
    let now = jumper(owner).map_or(owner, |jumper| jumper.load(Relaxed));
    now & NUMBER == owner & NUMBER && now != owner
}

/// In a forked child: the thread has another number now, and its parent's jumps go unseen.
pub(crate) fn after_fork() {
    OWNER.set(0);
    for jumper in &JUMPERS {
        jumper.store(0, Relaxed);
    }
    REGION.store(core::ptr::null_mut(), Relaxed);
}

/// In a word that nobody owns: the direction is searched. Then taking it fails the fast way, so that who never searches pays nothing.
const SEARCHED: u32 = 1 << 31;

/// Ownership of one direction, given up on drop.
#[derive(Debug)]
pub(crate) struct Guard<'a> {
    word: &'a AtomicU32,
    /// What the word is when nobody owns it.
    idle: u32,
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
        // At once: a thread that is killed never gives the word up.
        self.word.store(owner() | self.idle, Release);
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release pairs with the acquire in `acquire`.
        self.word.store(self.idle, Release);
    }
}

/// Takes a word; `None` if this very thread holds it already.
#[inline]
pub(crate) fn acquire(word: &AtomicU32) -> Option<Guard<'_>> {
    let own = owner();
    if word.compare_exchange(0, own, Acquire, Relaxed).is_ok() {
        return Some(Guard { word, idle: 0 });
    }
    acquire_contended(word, own)
}

/// Takes the word of a direction that has been searched, most likely; `None` if this very thread holds it already.
#[inline]
pub(crate) fn acquire_searched(word: &AtomicU32) -> Option<Guard<'_>> {
    let (own, idle) = (owner(), SEARCHED);
    if word.compare_exchange(idle, own | idle, Acquire, Relaxed).is_ok() {
        return Some(Guard { word, idle });
    }
    acquire_contended(word, own)
}

/// Takes a word if it is free.
#[inline]
pub(crate) fn try_acquire(word: &AtomicU32) -> Option<Guard<'_>> {
    // Made only on success: a guard that is dropped gives up a word, whoever owns it.
    word.compare_exchange(0, owner(), Acquire, Relaxed)
        .ok()
        .map(|_| Guard { word, idle: 0 })
}

#[cold]
fn acquire_contended(word: &AtomicU32, own: u32) -> Option<Guard<'_>> {
    let mut rounds = 0_u32;
    loop {
        let owner = word.load(Relaxed);
        let (owner, idle) = (owner & !SEARCHED, owner & SEARCHED);
        if owner == own {
            return None;
        }
        let gone = || has_jumped(owner) || !raw::thread_alive(owner & NUMBER);
        let free = owner == 0 || owner & NUMBER == own & NUMBER || rounds % 1024 == 1023 && gone();
        if free
            && word
                .compare_exchange(owner | idle, own | idle, Acquire, Relaxed)
                .is_ok()
        {
            return Some(Guard { word, idle });
        }
        rounds = rounds.wrapping_add(1);
        if rounds < 64 {
            core::hint::spin_loop();
        } else {
            raw::sched_yield();
        }
    }
}

/// The region of this process's words; null before the first connection and after fork.
static REGION: AtomicPtr<Locks> = AtomicPtr::new(core::ptr::null_mut());

/// Takes words that no process of the family holds, of `count` in all; `None` if there are none or there is no memory for them.
pub(crate) fn claim(count: usize) -> Option<&'static Locks> {
    let mut region = REGION.load(Acquire);
    if region.is_null() {
        let fresh = raw::anonymous_shared(count * size_of::<Locks>()).ok()?.cast::<Locks>();
        // Release pairs with the acquire above. A loser's region is never used; it costs address space only.
        region = match REGION.compare_exchange(core::ptr::null_mut(), fresh, Release, Acquire) {
            Ok(_) => fresh,
            Err(winner) => winner,
        };
    }
    let from = HINT.fetch_add(1, Relaxed) as usize;
    for step in 0..count {
        let locks = sys::shared_record(region, (from + step) % count);
        if locks.holders.load(Relaxed) == 0 && locks.holders.compare_exchange(0, 1, Acquire, Relaxed).is_ok() {
            // The words are free already, or held for a moment by a thread that came too late for the last connection.
            crate::search::area::release(&locks.area);
            locks.asleep.store(0, Relaxed);
            let _ = locks.receive.compare_exchange(SEARCHED, 0, Relaxed, Relaxed);
            return Some(locks);
        }
    }
    None
}

/// Where to look first for free words.
static HINT: AtomicU32 = AtomicU32::new(0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_attempt_leaves_the_word_to_its_owner() {
        let word = AtomicU32::new(0);
        let owner = acquire(&word);
        assert!(owner.is_some());
        assert!(try_acquire(&word).is_none());
        assert!(acquire(&word).is_none(), "this thread owns it already");
        assert_eq!(word.load(Relaxed), super::owner());
        drop(owner);
        assert!(try_acquire(&word).is_some());
        assert_eq!(word.load(Relaxed), 0);
    }

    #[test]
    fn a_searched_direction_stays_so_until_it_is_told() {
        let word = AtomicU32::new(0);
        let mut owner = acquire(&word).unwrap();
        assert!(!owner.searched());
        owner.set_searched(true);
        assert!(acquire(&word).is_none(), "this thread owns it already");
        drop(owner);
        assert_eq!(word.load(Relaxed), SEARCHED);
        let mut owner = acquire(&word).unwrap();
        assert!(owner.searched());
        assert!(acquire(&word).is_none(), "this thread owns it already");
        owner.set_searched(false);
        drop(owner);
        assert_eq!(word.load(Relaxed), 0);
    }

    #[test]
    fn a_direction_is_searched_even_if_its_first_searcher_is_killed() {
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut owner = acquire(&word).unwrap();
                owner.set_searched(true);
                core::mem::forget(owner);
            });
        });
        assert!(acquire(&word).unwrap().searched());
    }

    #[test]
    fn a_word_left_by_a_jump_is_free_for_everybody() {
        let word = AtomicU32::new(0);
        core::mem::forget(acquire(&word).unwrap());
        assert!(acquire(&word).is_none(), "a handler that interrupts the owner");
        jumping();
        drop(acquire(&word).unwrap());
        core::mem::forget(acquire(&word).unwrap());
        jumping();
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(acquire(&word).is_some()));
        });
    }

    #[test]
    fn a_word_excludes_other_threads() {
        let (word, inside) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for number in 0..4 {
                let (word, inside) = (&word, &inside);
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
