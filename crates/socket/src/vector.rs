//! The program's buffers, as the scatter and gather lists that every call comes down to.

use libc::iovec;
use viaduct_channel::{Dest, Source};

/// A list of buffers of the program's.
///
/// Nothing here looks at the bytes; like the kernel, it takes the program's word that they may be read or written.
#[derive(Clone, Copy, Debug)]
pub struct Vector<'a> {
    parts: &'a [iovec],
}

impl<'a> Vector<'a> {
    /// The empty list.
    pub const NONE: Self = Self { parts: &[] };

    /// A list over buffers of our own, which outlive the call they are used for.
    pub(crate) fn own(parts: &'a [iovec]) -> Self {
        Self { parts }
    }

    /// A list over buffers the program handed in.
    ///
    /// # Safety
    /// Each part must be readable (for sends) or writable (for receives) until the call it came with returns.
    #[inline]
    pub unsafe fn new(parts: &'a [iovec]) -> Self {
        Self { parts }
    }

    /// Bytes in all, as far as one call moves them.
    #[inline]
    pub fn len(&self) -> usize {
        self.asked().min(MOST)
    }

    /// Bytes in all, however many.
    #[inline]
    pub(crate) fn asked(&self) -> usize {
        if let [only] = self.parts {
            return only.iov_len;
        }
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.iov_len))
    }

    /// Whether a part with bytes lies in the first page, where nothing is: what a null pointer comes to. The kernel
    /// would say so of any address that is not mapped; of the others we learn by touching them.
    #[inline]
    pub fn is_nowhere(&self) -> bool {
        self.parts
            .iter()
            .any(|part| is_nowhere(part.iov_base) && part.iov_len > 0)
    }

    /// Whether the first byte does, so that none is moved.
    pub(crate) fn begins_nowhere(&self) -> bool {
        let first = self.parts.iter().find(|part| part.iov_len > 0);
        first.is_some_and(|part| is_nowhere(part.iov_base))
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes from `skip` on, at most `limit` of them, part by part.
    #[inline]
    pub fn sources(&self, skip: usize, limit: usize) -> impl Iterator<Item = Source<'a>> {
        // SAFETY: `new`'s caller vouches that the part is readable.
        Pieces::new(self.parts, skip, limit).map(|(at, len)| unsafe { Source::from_raw(at, len) })
    }

    /// The room from `skip` on, at most `limit` bytes of it, part by part.
    #[inline]
    pub fn dests(&self, skip: usize, limit: usize) -> impl Iterator<Item = Dest<'a>> {
        // SAFETY: `new`'s caller vouches that the part is writable.
        Pieces::new(self.parts, skip, limit).map(|(at, len)| unsafe { Dest::from_raw(at, len) })
    }

    /// All bytes if they are in one part, as most are.
    #[inline]
    pub(crate) fn only_source(&self) -> Option<Source<'a>> {
        let [only] = self.parts else { return None };
        // SAFETY: `new`'s caller vouches that the part is readable.
        Some(unsafe { Source::from_raw(only.iov_base.cast(), self.len()) })
    }

    /// All room if it is in one part.
    #[inline]
    pub(crate) fn only_dest(&self) -> Option<Dest<'a>> {
        let [only] = self.parts else { return None };
        // SAFETY: `new`'s caller vouches that the part is writable.
        Some(unsafe { Dest::from_raw(only.iov_base.cast(), self.len()) })
    }

    /// Copies the list from `skip` on, cut to `limit` bytes, into `parts`; answers how many parts it used.
    pub fn copy_parts(&self, skip: usize, limit: usize, parts: &mut [iovec]) -> usize {
        let mut used = 0;
        for ((at, len), place) in Pieces::new(self.parts, skip, limit).zip(parts) {
            *place = iovec {
                iov_base: at.cast(),
                iov_len: len,
            };
            used += 1;
        }
        used
    }
}

/// Whether a pointer points into the first page.
#[inline]
pub fn is_nowhere<T>(pointer: *const T) -> bool {
    const PAGE: usize = 4096;
    pointer.addr() < PAGE
}

/// The kernel moves no more bytes in one call (`MAX_RW_COUNT`, linux/fs.h).
pub(crate) const MOST: usize = 0x7fff_f000;

struct Pieces<'a> {
    parts: core::slice::Iter<'a, iovec>,
    skip: usize,
    limit: usize,
}

impl<'a> Pieces<'a> {
    #[inline]
    fn new(parts: &'a [iovec], skip: usize, limit: usize) -> Self {
        Self {
            parts: parts.iter(),
            skip,
            limit: limit.min(MOST.saturating_sub(skip)),
        }
    }
}

impl Iterator for Pieces<'_> {
    type Item = (*mut u8, usize);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        while self.limit > 0 {
            let part = self.parts.next()?;
            if self.skip >= part.iov_len {
                self.skip -= part.iov_len;
                continue;
            }
            let at = part.iov_base.cast::<u8>().wrapping_add(self.skip);
            let len = (part.iov_len - self.skip).min(self.limit);
            self.skip = 0;
            self.limit -= len;
            return Some((at, len));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_moves_more_than_the_kernel_would() {
        let part = iovec {
            iov_base: core::ptr::null_mut(),
            iov_len: 0x5000_0000,
        };
        let parts = [part; 3];
        let vector = Vector::own(&parts);
        assert_eq!(vector.len(), MOST);
        let mut copied = parts;
        let used = vector.copy_parts(0x4000_0000, usize::MAX, &mut copied);
        let bytes: usize = copied.iter().take(used).map(|part| part.iov_len).sum();
        assert_eq!((used, bytes), (2, MOST - 0x4000_0000));
        assert_eq!(vector.copy_parts(MOST, usize::MAX, &mut copied), 0);
    }
}
