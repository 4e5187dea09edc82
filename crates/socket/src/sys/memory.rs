//! Memory of our own for direct search: what has been peeked off a kernel connection.

use super::{Errno, raw};
use core::ffi::c_int;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicUsize};
use viaduct_channel::{Dest, Source};

/// Bytes of a [`Buffer`].
pub(crate) const BUFFER: usize = 256 << 10;

/// Buffers that are not needed just now: to map one and touch its pages takes longer than to search a short connection.
/// Few, since they stay.
static SPARE: [AtomicPtr<u8>; 4] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 4];

/// Buffers that are mapped, of [`SPARE`] or not.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// How many buffers take memory.
pub(crate) fn mapped() -> usize {
    MAPPED.load(Relaxed)
}

/// A buffer of [`BUFFER`] bytes that is mapped when it is first needed. One user at a time.
#[derive(Debug)]
pub(crate) struct Buffer(AtomicPtr<u8>);

impl Buffer {
    pub(crate) const fn unmapped() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()))
    }

    /// Where it is; `None` if there is no memory.
    fn map(&self) -> Option<*mut u8> {
        let known = self.0.load(Acquire);
        if !known.is_null() {
            return Some(known);
        }
        let spare = SPARE
            .iter()
            .map(|place| place.swap(core::ptr::null_mut(), AcqRel))
            .find(|spare| !spare.is_null());
        if let Some(spare) = spare {
            self.0.store(spare, Release);
            return Some(spare);
        }
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
        // SAFETY: a new mapping where the kernel likes.
        let fresh = unsafe { raw::call(libc::SYS_mmap, [0, BUFFER, protection, flags, usize::MAX, 0]) }.ok()?;
        MAPPED.fetch_add(1, Relaxed);
        let fresh = core::ptr::with_exposed_provenance_mut(fresh);
        self.0.store(fresh, Release);
        Some(fresh)
    }

    /// Gives the memory back, or keeps it for another.
    pub(crate) fn unmap(&self) {
        let at = self.0.swap(core::ptr::null_mut(), AcqRel);
        let free = |place: &AtomicPtr<u8>| {
            place
                .compare_exchange(core::ptr::null_mut(), at, AcqRel, Relaxed)
                .is_ok()
        };
        if !at.is_null() && !SPARE.iter().any(free) {
            // SAFETY: the mapping made by `map`, of which nobody keeps an address.
            let _ = unsafe { raw::call(libc::SYS_munmap, [at.expose_provenance(), BUFFER, 0, 0, 0, 0]) };
            MAPPED.fetch_sub(1, Relaxed);
        }
    }

    /// Its bytes from place `from` up to `to`, for a call that is to fill them; `None` if there is no memory.
    pub(crate) fn part(&self, from: usize, to: usize) -> Option<libc::iovec> {
        let (from, to) = (from.min(BUFFER), to.min(BUFFER));
        Some(libc::iovec {
            iov_base: self.map()?.wrapping_add(from).cast(),
            iov_len: to.saturating_sub(from),
        })
    }

    /// Peeks at most `len` bytes from the front of a socket's stream into it.
    pub(crate) fn peek(&self, fd: c_int, len: usize) -> Result<usize, Errno> {
        let at = self.map().ok_or(libc::ENOBUFS)?;
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: at most BUFFER bytes of the mapping are written.
        unsafe {
            raw::call(
                libc::SYS_recvfrom,
                [
                    fd as usize,
                    at.expose_provenance(),
                    len.min(BUFFER),
                    flags as usize,
                    0,
                    0,
                ],
            )
        }
    }

    /// Where the first byte of this value is among those from place `from` up to `to`.
    pub(crate) fn find(&self, byte: u8, from: usize, to: usize) -> Option<usize> {
        let at = self.0.load(Acquire);
        if at.is_null() {
            return None;
        }
        // SAFETY: within the mapping.
        (from..to.min(BUFFER)).find(|place| unsafe { at.add(*place).read() } == byte)
    }

    /// Copies bytes from place `from` on to the program; answers how many: what both sides have.
    pub(crate) fn copy_out(&self, from: usize, dest: Dest<'_>) -> usize {
        let at = self.0.load(Acquire);
        if at.is_null() {
            return 0;
        }
        let from = from.min(BUFFER);
        // SAFETY: within the mapping; the program vouches for its buffer, which is not ours.
        unsafe { dest.fill(Source::from_raw(at.add(from), BUFFER - from)) }
    }
}

/// Larger than any page, and a multiple of it.
const PAGES: usize = 64 << 10;

/// Gives the place up that all but the first bytes of a new mapping have, which nobody knows yet. They stay in its
/// memory.
pub(crate) fn give_up_rest(mapping: *mut u8, first: usize, len: usize) {
    let first = first.next_multiple_of(PAGES);
    let rest = mapping.wrapping_add(first).expose_provenance();
    // SAFETY: within the mapping, of which there are no references.
    let _ = unsafe { raw::call(libc::SYS_munmap, [rest, len - first, 0, 0, 0, 0]) };
}

/// A place for all of the memory that is mapped, in part, from `mapping` on.
pub(crate) fn whole(mapping: *mut u8, len: usize) -> Result<*mut u8, Errno> {
    let at = mapping.expose_provenance();
    // SAFETY: nothing is moved of a mapping that is said to have no length; a new one of the same memory is made where
    // the kernel likes.
    let fresh = unsafe { raw::call(libc::SYS_mremap, [at, 0, len, libc::MREMAP_MAYMOVE as usize, 0, 0]) }?;
    Ok(core::ptr::with_exposed_provenance_mut(fresh))
}

/// Throws the first `len` bytes of a socket's stream away; answers how many were there.
///
/// # Errors
/// `EOPNOTSUPP` for a socket whose bytes are not TCP's own to throw away: of a map of sockets of BPF, or decrypted by
/// the kernel.
pub(crate) fn discard(fd: c_int, len: usize) -> Result<usize, Errno> {
    let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    // SAFETY: nowhere is where the kernel is told to write, if it does not do without.
    let gone = unsafe { raw::call(libc::SYS_recvfrom, [fd as usize, 0, len, flags as usize, 0, 0]) };
    gone.map_err(|errno| if errno == libc::EFAULT { libc::EOPNOTSUPP } else { errno })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_keeps_what_has_no_place() {
        const ALL: usize = 4 * PAGES;
        let part = raw::anonymous_shared(ALL).unwrap();
        give_up_rest(part, 1, ALL);
        let place = |all: *mut u8, index: usize| all.cast::<AtomicUsize>().wrapping_byte_add(index);
        let (one, other) = (whole(part, ALL).unwrap(), whole(part, ALL).unwrap());
        let last = |all| crate::sys::shared_record(place(all, ALL - 8), 0);
        last(one).store(7, Relaxed);
        assert_eq!(last(other).load(Relaxed), 7);
        crate::sys::shared_record(place(part, 0), 0).store(5, Relaxed);
        assert_eq!(crate::sys::shared_record(place(one, 0), 0).load(Relaxed), 5);
    }
}
