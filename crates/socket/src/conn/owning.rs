//! Who uses a direction of a connection now: see `crate::lock`.

use crate::conn::{Conn, records};
use crate::kernel;
use crate::lock::{self, COUNTS, ENDS_STRETCH, Guard, Locks, PEEKS_BEHIND};
use crate::path::marks;
use crate::receive::{needs, plain};
use crate::search;
use crate::send;
use crate::sys::raw;
use core::ptr;
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
        kernel::end_counts(self.fd(), locks);
        if amid & PEEKS_BEHIND != 0 {
            self.peek_from(locks, -1);
        }
        if amid & COUNTS != 0 {
            search::peek_at_front(self);
            plain::count_anew(self, locks);
        }
        if amid & ENDS_STRETCH != 0 {
            marks::finish_stretch(self, locks, guard);
        }
    }

    /// Has the next peek begin so many bytes behind the kernel's first, or at the front (-1), and notes it for who owns
    /// the receiving direction next; false where the kernel cannot. The direction is owned.
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

    /// Owns a direction that was not free at once. An owner that was killed may have taken the peer's wait bits and
    /// rung for none, so `ring` does.
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

/// The owner of this word has jumped away. If it is one of a connection's, it may have taken the peer's wait bits and
/// rung for none.
#[cold]
pub(crate) fn ring_for_left(word: &AtomicU32) {
    for conn in records::all() {
        let Some(locks) = conn.locks() else { continue };
        let id = conn.id();
        if ptr::eq(word, &raw const locks.send)
            && let Some(guard) = conn.own_send(id)
        {
            send::ring_for_killed(conn, &guard);
        } else if ptr::eq(word, &raw const locks.receive)
            && let Some(guard) = conn.own_receive(id)
        {
            needs::ring_for_killed(conn, &guard);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::Phase;
    use crate::lock::{IN_LINE, TELLS_REST};
    use crate::path::switch;
    use crate::sys::raw;
    use crate::wait::peer_bells::Ringer;
    use std::io::Write;
    use std::net::Shutdown;
    use viaduct_stream::MARK_BACK;

    /// As a killed thread does that took so many bytes and had not counted them.
    fn take_uncounted(conn: &Conn, bytes: usize) {
        conn.locks().unwrap().begin(COUNTS);
        assert_eq!(raw::recv(conn.fd(), &mut [0; 64][..bytes], 0), Ok(bytes));
    }

    #[test]
    fn what_the_killed_have_taken_is_counted_by_who_is_next() {
        let (conn, [_own, mut peer]) = records::on_the_heap();
        peer.write_all(b"0123456789").unwrap();
        take_uncounted(conn, 3);
        drop(conn.own_receive(conn.id()).unwrap());
        // The kernel does not tell any more.
        records::reset(peer);
        while raw::poll_now(conn.fd(), libc::POLLERR) == 0 {}
        assert_eq!(plain::position(conn), Some(3));
        // But as long as there are bytes, it tells of a FIN.
        take_uncounted(conn, 4);
        drop(conn.own_receive(conn.id()).unwrap());
        assert_eq!(plain::position(conn), Some(7));
        take_uncounted(conn, 3);
        drop(conn.own_receive(conn.id()).unwrap());
        assert_eq!(plain::position(conn), None);
        assert_eq!(
            kernel::take_error(conn.fd()),
            Err(libc::ECONNRESET),
            "nobody has taken it"
        );
    }

    #[test]
    fn a_stretch_that_the_killed_were_ending_ends_behind_its_mark() {
        for (is_taken, ends) in [(false, false), (true, false), (false, true), (true, true)] {
            let (conn, [own, mut peer]) = records::on_the_heap();
            conn.set_phase(Phase::Attached);
            records::receive_on_the_lane(conn);
            peer.write_all(&[MARK_BACK, b'a', b'b']).unwrap();
            let locks = conn.locks().unwrap();
            locks.behind_mark.store(1, Relaxed);
            locks.begin(ENDS_STRETCH);
            if is_taken {
                take_uncounted(conn, 1);
            }
            if ends {
                drop(peer);
                own.shutdown(Shutdown::Write).unwrap();
                while raw::poll_now(conn.fd(), libc::POLLHUP) == 0 {}
            }
            drop(conn.own_receive(conn.id()).unwrap());
            assert_eq!(locks.amid.load(Relaxed), 0);
            let mut left = [0; 3];
            assert_eq!(raw::recv(conn.fd(), &mut left, 0), Ok(2), "{is_taken} {ends}");
            assert_eq!(&left, b"ab\0");
        }
    }

    #[test]
    fn options_of_the_killed_are_off_again() {
        let (conn, _sockets) = records::on_the_heap();
        let locks = conn.locks().unwrap();
        let options = [
            (IN_LINE, libc::SOL_SOCKET, libc::SO_OOBINLINE),
            (TELLS_REST, libc::IPPROTO_TCP, libc::TCP_INQ),
        ];
        for (note, level, name) in options {
            let value = || {
                let mut value: c_int = -1;
                raw::getsockopt(conn.fd(), level, name, &mut value).unwrap();
                value
            };
            locks.begin(note);
            raw::setsockopt(conn.fd(), level, name, &1).unwrap();
            assert_eq!(value(), 1);
            drop(conn.own_receive(conn.id()).unwrap());
            assert_eq!((value(), locks.amid.load(Relaxed)), (0, 0));
        }
    }

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
