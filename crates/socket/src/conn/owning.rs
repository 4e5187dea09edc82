//! Who uses a direction of a connection now: see `crate::lock`.

use crate::conn::Conn;
use crate::lock::{self, ENDS_STRETCH, Guard, Locks, PEEKS_BEHIND};
use crate::path::marks;
use crate::receive::needs;
use crate::send;
use crate::sys::raw;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use libc::c_int;

impl Conn {
    /// Owns the sending direction; `None` if this thread owns it already, or the connection is closed.
    #[inline]
    pub(crate) fn own_send(&self, id: u64) -> Option<Guard<'static>> {
        let word = &self.locks()?.send;
        let guard = lock::try_acquire(word).or_else(|| self.await_word(id, word, send::ring_for_killed))?;
        (self.id() == id && id != 0).then_some(guard)
    }

    /// Owns the receiving direction; `None` if this thread owns it already, or the connection is closed.
    #[inline]
    pub(crate) fn own_receive(&self, id: u64) -> Option<Guard<'static>> {
        self.own_receive_by(id, lock::try_acquire)
    }

    /// The same where it most likely has been searched.
    #[inline]
    pub(crate) fn own_searched(&self, id: u64) -> Option<Guard<'static>> {
        self.own_receive_by(id, lock::try_acquire_searched)
    }

    /// The same if nobody owns it.
    #[inline(always)]
    pub(crate) fn try_own_searched(&self, id: u64) -> Option<Guard<'static>> {
        let guard = lock::try_acquire_searched(&self.locks()?.receive)?;
        if self.id() != id || id == 0 {
            return None;
        }
        Some(guard)
    }

    #[inline]
    fn own_receive_by(
        &self,
        id: u64,
        take: impl FnOnce(&'static AtomicU32) -> Option<Guard<'static>>,
    ) -> Option<Guard<'static>> {
        let locks = self.locks()?;
        let word = &locks.receive;
        let guard = take(word).or_else(|| self.await_word(id, word, needs::ring_for_killed))?;
        if self.id() != id || id == 0 {
            return None;
        }
        if locks.amid.load(Relaxed) != 0 {
            self.finish(locks, &guard);
        }
        Some(guard)
    }

    /// Who owned the receiving direction before was killed amid what it did, or has jumped away.
    #[cold]
    fn finish(&self, locks: &Locks, guard: &Guard<'static>) {
        let amid = locks.amid.load(Relaxed);
        if amid & PEEKS_BEHIND != 0 {
            self.peek_from(locks, -1);
        }
        if amid & ENDS_STRETCH != 0 {
            marks::finish_stretch(self, locks, guard);
        }
    }

    /// Has the next peek begin so many bytes behind the kernel's first, or at the front (-1), and notes it for who owns the receiving direction next;
    /// false where the kernel cannot. The direction is owned.
    #[cold]
    pub(crate) fn peek_from(&self, locks: &Locks, at: c_int) -> bool {
        let behind = at >= 0;
        if behind {
            // First: who is killed in between leaves it to others to set the option back.
            locks.begin(PEEKS_BEHIND);
        }
        let done = raw::setsockopt(self.fd(), libc::SOL_SOCKET, libc::SO_PEEK_OFF, &at).is_ok();
        if done != behind {
            locks.end(PEEKS_BEHIND);
        }
        done
    }

    /// Owns a direction that was not free at once. An owner that was killed may have taken the peer's wait bits and rung for none, so
    /// `ring` does.
    #[cold]
    fn await_word(
        &self,
        id: u64,
        word: &'static AtomicU32,
        ring: fn(&Self, &Guard<'static>),
    ) -> Option<Guard<'static>> {
        let awaited = lock::acquire_contended(word)?;
        if awaited.orphaned && self.id() == id && id != 0 {
            ring(self, &awaited.guard);
        }
        Some(awaited.guard)
    }

    /// Owns the sending direction if nobody does.
    pub(crate) fn try_own_send(&self) -> Option<Guard<'static>> {
        lock::try_acquire(&self.locks()?.send)
    }

    /// Owns the sending direction if nobody does who lives: for who will sleep for what comes after it.
    pub(crate) fn try_own_or_inherit_send(&self) -> Option<Guard<'static>> {
        self.try_own_send().or_else(|| {
            let guard = lock::take_over(&self.locks()?.send)?;
            send::ring_for_killed(self, &guard);
            Some(guard)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::records;
    use crate::path::switch;
    use crate::sys::raw;
    use crate::wait::peer_bells::Ringer;

    #[test]
    fn who_takes_a_direction_over_from_the_killed_rings_once() {
        let (conn, _sockets) = records::on_the_heap();
        let bell = raw::eventfd().unwrap();
        conn.set_peer_bell(Ringer::eventfd(bell));
        let rung = || {
            let rung = raw::poll_now(bell, libc::POLLIN) != 0;
            raw::eventfd_reset(bell);
            rung
        };
        // A thread that has been joined may be there for a moment longer.
        let gone = |thread: std::thread::JoinHandle<u32>| {
            let tid = thread.join().unwrap();
            while raw::thread_exists(tid) {
                std::thread::yield_now();
            }
        };
        let id = conn.id();
        for own in [Conn::own_send, Conn::own_receive, Conn::own_searched] {
            gone(std::thread::spawn(move || {
                own(conn, id).unwrap().keep();
                lock::tid()
            }));
            assert!(!rung(), "the first owner");
            assert!(own(conn, id).is_some());
            assert!(rung(), "the killed one's successor");
            assert!(own(conn, id).is_some());
            assert!(!rung(), "and the next");
        }
        gone(std::thread::spawn(move || {
            conn.own_send(id).unwrap().keep();
            lock::tid()
        }));
        switch::serve(conn);
        assert!(rung(), "who only receives");
        switch::serve(conn);
        assert!(!rung(), "and again");
    }
}
