//! Sleeping until something happens to one connection, the way a blocking call does.

pub(crate) mod asleep;
pub(crate) mod bell;
pub mod cancel;
pub(crate) mod direct;
pub(crate) mod peer_bells;
pub mod signals;
pub(crate) mod spin;

use crate::conn::Conn;
use crate::memory::idle;
use crate::real;
use crate::sys::{self, Errno};
use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDHUP, pollfd};

/// Why a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// Something may have happened.
    Look,
    /// Time is up.
    TimedOut,
    /// A signal handler ran, and the call must say so.
    Interrupted,
    /// A signal handler ran, and the call goes on, unless it has moved bytes already.
    Restarted,
}

/// Until when a call may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at_ns: u64,
}

impl Deadline {
    /// `timeout_ns` from now; 0 is for ever.
    pub(crate) fn after(timeout_ns: u64) -> Self {
        Self {
            at_ns: if timeout_ns == 0 {
                u64::MAX
            } else {
                sys::now_ns().saturating_add(timeout_ns)
            },
        }
    }

    /// Nanoseconds that are left; `None`: for ever.
    pub(crate) fn left_ns(self) -> Option<u64> {
        (self.at_ns != u64::MAX).then(|| self.at_ns.saturating_sub(sys::now_ns()))
    }
}

/// The wait bit with which the calling thread is woken for `conn`: by its bell if that is the one the peer knows. Asked
/// once a wait: the answer changes when another thread installs a signal handler.
pub(crate) fn bit_for(conn: &Conn) -> u32 {
    if signals::mixed() {
        return bell::BY_SOCKET;
    }
    match bell::known_of_thread() {
        Some(bell) if bell.number() == conn.known_bell() => bell::BY_BELL,
        _ => bell::BY_SOCKET,
    }
}

/// Whether who sleeps for bytes of `conn`, armed with `bit`, may be woken by a mark: an outer bell may be broken, or
/// have no room, and a mark comes instead.
pub(crate) fn may_be_marked(conn: &Conn, bit: u32) -> bool {
    bit == bell::BY_SOCKET || conn.rung.by() > bell::RUNG_BY_EVENTFD
}

/// Sleeps until the kernel connection shows one of `events` (or is broken), the thread's bell rings, or time is up.
/// `bit` is the wait bit that the lane was armed with: what it was chosen by may have changed since, but the peer wakes
/// the thread by that means and no other. `cap_ns` bounds the sleep without counting as the program's timeout. No
/// direction may be owned.
///
/// This is a cancellation point, and nothing in it needs dropping.
pub(crate) fn sleep(conn: &Conn, bit: u32, events: i16, deadline: Deadline, cap_ns: Option<u64>) -> Woken {
    nap(conn, bit, events, deadline, cap_ns).unwrap_or(Woken::Look)
}

/// The same; `None`: nothing has ended the sleep but its bound.
pub(crate) fn nap(conn: &Conn, bit: u32, events: i16, deadline: Deadline, cap_ns: Option<u64>) -> Option<Woken> {
    let bell = (bit == bell::BY_BELL).then(bell::known_of_thread).flatten();
    let [by_eventfd, outside] = bell.map_or([-1, -1], bell::Bell::descriptors);
    let entry = |fd, events| pollfd { fd, events, revents: 0 };
    let mut all = [
        entry(conn.fd(), events),
        entry(by_eventfd, POLLIN),
        entry(outside, POLLIN),
    ];
    let [its_own, ..] = all;
    if its_own.fd < 0 {
        // A signal handler closed it within this call.
        return Some(Woken::Look);
    }
    let entries = if outside < 0 { &mut all[..2] } else { &mut all[..] };
    let left = deadline.left_ns();
    if left == Some(0) {
        return Some(Woken::TimedOut);
    }
    if bit == bell::BY_SOCKET && events == FOR_INPUT && left.is_none() && cap_ns.is_none() && signals::mixed() {
        let errno = sys::errno();
        let woken = if real::peek_wait(conn.fd()) {
            Woken::Look
        } else {
            Woken::Interrupted
        };
        sys::set_errno(errno);
        return Some(woken);
    }
    let bound = [left, cap_ns, idle::tend()].into_iter().flatten().min();
    let errno = sys::errno();
    let before = signals::before_sleep();
    let result = real::ppoll_wait(entries, bound.map(sys::timespec).as_ref());
    let woken = match result {
        Ok(0) if bound == left && left.is_some() => Some(Woken::TimedOut),
        Ok(0) => None,
        Err(libc::EINTR) if before.goes_on(deadline.left_ns().is_some()) => Some(Woken::Restarted),
        Err(libc::EINTR) => Some(Woken::Interrupted),
        Ok(_) | Err(_) => Some(Woken::Look),
    };
    sys::set_errno(errno);
    if let Some(bell) = bell {
        entries
            .iter()
            .skip(1)
            .filter(|entry| entry.revents != 0)
            .for_each(|entry| bell.heard(entry.fd));
    }
    woken
}

/// What a receiver waits for on the kernel connection.
pub(crate) const FOR_INPUT: i16 = POLLIN | POLLRDHUP;
/// What a raw sender waits for.
pub(crate) const FOR_OUTPUT: i16 = POLLOUT;
/// What a sender on the lane waits for: only that the connection breaks.
pub(crate) const FOR_CREDIT: i16 = POLLERR | POLLHUP;

/// The error number of a call that was interrupted or ran out of time.
pub(crate) fn errno_of(woken: Woken) -> Errno {
    if woken == Woken::TimedOut {
        libc::EAGAIN
    } else {
        libc::EINTR
    }
}
