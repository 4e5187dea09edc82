//! Threads that sleep until a mark tells of bytes, noted with the connections they wait for. Who takes a mark while
//! others sleep must arm the lane again on their behalf, since their wait bit went with it.
//!
//! A thread need not come back from its sleep: it is cancelled, jumps out of a signal handler, or its process is
//! killed. So connections know their sleepers by name.

use crate::conn::Conn;
use crate::epoll::Set;
use crate::lock::jump::Jump;
use crate::lock::{self, Locks};
use crate::process::thread;
use crate::sys;
use core::cell::Cell;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::SeqCst;

/// Sleepers that a connection knows by name; more are only counted.
pub(crate) const NAMES: usize = 8;
/// A thread is noted with no more connections at a time: several threads seldom wait for one connection, and then not
/// for many.
const MOST: usize = 8;

/// Where a thread has been noted.
#[derive(Clone, Copy, Debug)]
enum Place {
    Name(&'static AtomicU32),
    /// With the others that there was no room for, at a connection that had this number.
    Count(&'static Conn, u64),
    /// With all who sleep in an epoll set, or poll it, which had this generation.
    Set(&'static Set, u32),
}

thread_local! {
    static NOTED: Cell<[Option<Place>; MOST]> = const { Cell::new([None; MOST]) };
    /// Where on the stack the thread sleeps, if it is noted.
    static FRAME: Cell<usize> = const { Cell::new(0) };
}

/// The calling thread goes to sleep until marks tell of bytes of `conns`. To be said before they are armed: who takes a
/// mark meanwhile must know.
pub(crate) fn fall_asleep(conns: impl Iterator<Item = &'static Conn>) {
    let _ = fall_asleep_polling(conns, core::iter::empty());
}

/// The same, or until epoll `sets` that it polls have something to tell, which who changes them meanwhile must know.
/// Answers whether all sets know.
pub(crate) fn fall_asleep_polling(
    conns: impl Iterator<Item = &'static Conn>,
    sets: impl Iterator<Item = &'static Set>,
) -> bool {
    wake_up();
    let mut noted = [None; MOST];
    let mut places = noted.iter_mut();
    let mut all_known = true;
    for set in sets {
        match places.next() {
            Some(place) => {
                *place = Some(Place::Set(set, set.generation.load(SeqCst)));
                set.sleepers.fetch_add(1, SeqCst);
            }
            None => all_known = false,
        }
    }
    for (place, conn) in places.zip(conns) {
        let id = conn.id();
        *place = conn.locks().map(|locks| note(conn, id, locks));
    }
    if noted.iter().any(Option::is_some) {
        thread::this().watch();
        FRAME.set(sys::stack_pointer());
        NOTED.set(noted);
    }
    all_known
}

fn note(conn: &'static Conn, id: u64, locks: &'static Locks) -> Place {
    let name = lock::name();
    let take = |place: &&'static AtomicU32| place.compare_exchange(0, name, SeqCst, SeqCst).is_ok();
    // Where all places are taken, some may be those of threads that are no more.
    let free = || locks.sleepers.iter().find(take);
    match free().or_else(|| locks.forget_the_gone().then(free).flatten()) {
        Some(place) => Place::Name(place),
        None => {
            locks.more_sleepers.fetch_add(1, SeqCst);
            Place::Count(conn, id)
        }
    }
}

/// The calling thread is awake, though it may have left its sleep without saying so.
pub(crate) fn wake_up() {
    for place in NOTED.take().into_iter().flatten() {
        match place {
            // The record may be another connection's by now, with other sleepers.
            Place::Name(place) => drop(place.compare_exchange(lock::name(), 0, SeqCst, SeqCst)),
            Place::Count(conn, id) if conn.id() == id => {
                if let Some(locks) = conn.locks() {
                    let one_less = |count: u32| count.checked_sub(1);
                    let _ = locks.more_sleepers.fetch_update(SeqCst, SeqCst, one_less);
                }
            }
            Place::Count(..) => {}
            Place::Set(set, generation) if set.generation.load(SeqCst) == generation => set.one_sleeper_less(),
            Place::Set(..) => {}
        }
    }
}

/// The calling thread is about to jump, perhaps out of its sleep.
pub(crate) fn jumping(jump: &Jump) {
    let noted = NOTED.get().iter().any(Option::is_some);
    if noted && jump.leaves(FRAME.get()) {
        wake_up();
    }
}

/// In a forked child, whose parent sleeps on.
pub(crate) fn after_fork() {
    NOTED.set([None; MOST]);
}

impl Locks {
    /// Strikes threads that are no more off the sleepers; answers whether there were any.
    fn forget_the_gone(&self) -> bool {
        let forget = |place: &AtomicU32| {
            let name = place.load(SeqCst);
            name != 0 && !lock::lives(name) && place.compare_exchange(name, 0, SeqCst, SeqCst).is_ok()
        };
        // All of them, not only the first.
        self.sleepers.iter().filter(|place| forget(place)).count() > 0
    }

    /// Nobody sleeps.
    pub(crate) fn forget_sleepers(&self) {
        // Mostly nobody does, and a store costs more than a look.
        let noted = |place: &&AtomicU32| place.load(SeqCst) != 0;
        let places = self.sleepers.iter().chain([&self.more_sleepers]);
        places.filter(noted).for_each(|place| place.store(0, SeqCst));
    }

    /// Whether anybody sleeps but the thread called `name`.
    fn has_sleepers(&self, name: u32) -> bool {
        let known = || {
            self.sleepers
                .iter()
                .any(|place| ![0, name].contains(&place.load(SeqCst)))
        };
        self.more_sleepers.load(SeqCst) > 0 || known() && (!self.forget_the_gone() || known())
    }
}

impl Conn {
    /// Whether threads sleep until a mark tells of bytes, other than in epoll sets.
    pub(crate) fn has_sleepers(&self) -> bool {
        self.has_sleepers_beside(0)
    }

    /// The same, but for the thread called `name`.
    pub(crate) fn has_sleepers_beside(&self, name: u32) -> bool {
        self.locks().is_some_and(|locks| locks.has_sleepers(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering::Relaxed;

    fn conn() -> &'static Conn {
        let conn: &'static Conn = Box::leak(Box::new(Conn::unused()));
        let locks: &'static Locks = Box::leak(Box::default());
        conn.locks.store(core::ptr::from_ref(locks).cast_mut(), Relaxed);
        conn
    }

    /// Whether the connection has sleepers while a new thread does `work`, and when it has ended.
    fn seen(conn: &'static Conn, work: impl FnOnce() + Send + 'static) -> (bool, bool) {
        let thread = std::thread::spawn(move || {
            fall_asleep([conn].into_iter());
            work();
            conn.has_sleepers()
        });
        let during = thread.join().unwrap();
        (during, conn.has_sleepers())
    }

    #[test]
    fn a_thread_sleeps_until_it_wakes_up_or_ends() {
        assert_eq!(seen(conn(), wake_up), (false, false));
        assert_eq!(seen(conn(), || ()), (true, false));
    }

    #[test]
    fn who_jumps_out_of_a_sleep_does_not_sleep() {
        let here = sys::stack_pointer;
        assert_eq!(
            seen(conn(), move || crate::lock::jump::jumping(here() + 65536)),
            (false, false)
        );
        assert_eq!(
            seen(conn(), move || crate::lock::jump::jumping(here() - 4096)),
            (true, false)
        );
    }

    #[test]
    fn who_is_killed_in_its_sleep_does_not_sleep_for_ever() {
        let conn = conn();
        let locks = conn.locks().unwrap();
        // No thread has this number.
        locks.sleepers[3].store((1 << 22) - 1, Relaxed);
        assert!(!conn.has_sleepers());
        assert_eq!(locks.sleepers[3].load(Relaxed), 0);
    }

    #[test]
    fn more_sleepers_than_names_are_counted() {
        let conn = conn();
        let locks = conn.locks().unwrap();
        let name = lock::name();
        locks.sleepers.iter().for_each(|place| place.store(name, Relaxed));
        fall_asleep([conn].into_iter());
        assert_eq!(locks.more_sleepers.load(Relaxed), 1);
        wake_up();
        assert_eq!(locks.more_sleepers.load(Relaxed), 0);
        // One place is a thread's that is no more.
        locks.sleepers[5].store((1 << 22) - 1, Relaxed);
        fall_asleep([conn].into_iter());
        assert_eq!(
            (locks.more_sleepers.load(Relaxed), locks.sleepers[5].load(Relaxed)),
            (0, name)
        );
        wake_up();
        assert_eq!(locks.sleepers[5].load(Relaxed), 0);
    }
}
