//! `select`, by `poll`.

use crate::wait::{Waited, from_timespec, wait_without_lanes};
use core::ffi::{c_int, c_long};
use libc::{fd_set, pollfd, sigset_t, timespec, timeval};
use viaduct_socket::descriptors::table;
use viaduct_socket::poll::{self, Wait};
use viaduct_socket::{is_nowhere, real, sys};

/// The three sets of a `select`, as bits.
struct Sets {
    sets: [*mut c_long; 3],
    count: usize,
}

/// What each set waits for, and what makes a descriptor count in it.
const ASKED: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
const COUNTS: [i16; 3] = [
    libc::POLLIN | libc::POLLHUP | libc::POLLERR,
    libc::POLLOUT | libc::POLLERR,
    libc::POLLPRI,
];
const BITS: usize = c_long::BITS as usize;
/// Words of a set of the usual size (`FD_SETSIZE`).
const WORDS: usize = libc::FD_SETSIZE / BITS;

impl Sets {
    fn new(count: c_int, sets: [*mut fd_set; 3]) -> Self {
        Self {
            sets: sets.map(<*mut fd_set>::cast),
            count: usize::try_from(count).unwrap_or(0),
        }
    }

    /// Whether a set lies where the kernel would say that nothing is.
    fn nowhere(&self) -> bool {
        self.sets.iter().any(|set| !set.is_null() && is_nowhere(*set))
    }

    fn has(&self, set: usize, fd: usize) -> bool {
        let set = self.sets[set];
        // SAFETY: the program's set reaches to its highest descriptor.
        !set.is_null() && unsafe { *set.add(fd / BITS) } >> (fd % BITS) & 1 != 0
    }

    fn put(&self, set: usize, fd: usize, on: bool) {
        let set = self.sets[set];
        if !set.is_null() {
            let bit = 1 << (fd % BITS);
            // SAFETY: as in `has`.
            unsafe {
                let word = set.add(fd / BITS);
                *word = if on { *word | bit } else { *word & !bit };
            }
        }
    }

    /// What they hold, if they are of the usual size.
    fn kept(&self) -> Option<[[c_long; WORDS]; 3]> {
        let words = self.count.div_ceil(BITS);
        let mut kept = [[0; WORDS]; 3];
        for (kept, set) in kept.iter_mut().zip(self.sets) {
            let kept = kept.get_mut(..words)?;
            for (number, word) in kept.iter_mut().enumerate().filter(|_| !set.is_null()) {
                // SAFETY: as in `has`.
                *word = unsafe { *set.add(number) };
            }
        }
        Some(kept)
    }

    fn put_back(&self, kept: &[[c_long; WORDS]; 3]) {
        for (kept, set) in kept.iter().zip(self.sets) {
            let words = kept.iter().take(self.count.div_ceil(BITS)).enumerate();
            for (number, word) in words.filter(|_| !set.is_null()) {
                // SAFETY: as in `has`.
                unsafe { *set.add(number) = *word };
            }
        }
    }

    fn asked(&self, fd: usize) -> i16 {
        (0..3)
            .filter(|set| self.has(*set, fd))
            .fold(0, |asked, set| asked | ASKED[set])
    }

    fn descriptors(&self) -> impl Iterator<Item = usize> {
        (0..self.count).filter(|fd| self.asked(*fd) != 0)
    }
}

/// The number of descriptors in a program's sets, if it says more than it has.
fn reached(count: c_int) -> c_int {
    usize::try_from(count).map_or(count, |told| table::reach(told) as c_int)
}

/// Selects; `Err`: what the program's own call `direct` answered, where no lane is concerned.
unsafe fn select_with(
    sets: &Sets,
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
    direct: impl Fn() -> c_int,
) -> Result<c_int, c_int> {
    if sets.nowhere() {
        return Err(direct());
    }
    let fds = || sets.descriptors().filter_map(|fd| c_int::try_from(fd).ok());
    // Where they are kept, since the call writes its answer over them.
    let left = if let Some(asked) = sets.kept() {
        match wait_without_lanes(fds, timeout_ns, &direct) {
            Waited::Ended(result) => return Err(result),
            Waited::Left(left) => {
                sets.put_back(&asked);
                left
            }
        }
    } else if poll::concerns(fds()) {
        timeout_ns
    } else {
        return Err(direct());
    };
    Ok(select_by_poll(sets, Wait { timeout_ns: left, mask }))
}

/// The same where lanes are concerned. Not inlined, so that other calls use less of the stack.
#[inline(never)]
fn select_by_poll(sets: &Sets, how: Wait) -> c_int {
    let count = sets.descriptors().count();
    let mut small = [poll::NONE; poll::ENTRIES];
    match small.get_mut(..count) {
        Some(entries) => select_among(entries, sets, how),
        None => select_among(&mut vec![poll::NONE; count], sets, how),
    }
}

/// The same with an entry for each descriptor.
fn select_among(entries: &mut [pollfd], sets: &Sets, how: Wait) -> c_int {
    for (entry, fd) in entries.iter_mut().zip(sets.descriptors()) {
        entry.fd = fd as c_int;
        entry.events = sets.asked(fd);
    }
    // Polls say the same of some that are open (`O_PATH`).
    let is_closed = |entry: &pollfd| entry.revents & libc::POLLNVAL != 0 && !sys::is_open(entry.fd);
    let counts = |entry: &pollfd| {
        let mut sets_of = COUNTS.iter().enumerate();
        is_closed(entry) || sets_of.any(|(set, counts)| entry.revents & counts != 0 && sets.has(set, entry.fd as usize))
    };
    if let Err(errno) = poll::poll_until(entries, how, counts) {
        sys::set_errno(errno);
        return -1;
    }
    if entries.iter().any(is_closed) {
        // As with the kernel, the sets stay as they are.
        sys::set_errno(libc::EBADF);
        return -1;
    }
    let mut count = 0;
    for entry in entries {
        let fd = entry.fd as usize;
        for (set, counts) in COUNTS.iter().enumerate() {
            if sets.has(set, fd) {
                let on = entry.revents & counts != 0;
                sets.put(set, fd, on);
                count += c_int::from(on);
            }
        }
    }
    count
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let count = reached(count);
    // SAFETY: the program's own call.
    let direct = move || unsafe { real::select(count, read, write, except, timeout) };
    let sets = Sets::new(count, [read, write, except]);
    // SAFETY: null or the program's time.
    let ns = match unsafe { timeout.as_ref() } {
        None => None,
        Some(time) => match (u64::try_from(time.tv_sec), u64::try_from(time.tv_usec)) {
            (Ok(seconds), Ok(us)) => Some(
                seconds
                    .saturating_mul(1_000_000_000)
                    .saturating_add(us.saturating_mul(1000)),
            ),
            _ => return direct(),
        },
    };
    let from = sys::now_ns();
    // SAFETY: the program's sets.
    let result = match unsafe { select_with(&sets, ns, core::ptr::null(), direct) } {
        Ok(result) => result,
        Err(result) => return result,
    };
    if let Some(ns) = ns {
        // Linux tells how much of the time was left.
        let left = ns.saturating_sub(sys::now_ns().saturating_sub(from));
        // SAFETY: the program's time, which is not null.
        unsafe {
            (*timeout).tv_sec = i64::try_from(left / 1_000_000_000).unwrap_or(0);
            (*timeout).tv_usec = i64::try_from(left % 1_000_000_000 / 1000).unwrap_or(0);
        }
    }
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let count = reached(count);
    let sets = Sets::new(count, [read, write, except]);
    // SAFETY: the program's own call.
    let direct = || unsafe { real::pselect(count, read, write, except, timeout, mask) };
    // SAFETY: the program's timeout.
    match unsafe { from_timespec(timeout) } {
        // SAFETY: the program's sets and mask.
        Ok(ns) => unsafe { select_with(&sets, ns, mask, direct) }.unwrap_or_else(core::convert::identity),
        Err(()) => direct(),
    }
}
