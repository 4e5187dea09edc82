//! Descriptors of sockets that were made for direct search: only on these is an offset looked for among control
//! messages.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// Descriptors at or above this number are of no type.
const DESCRIPTORS: usize = 1 << 20;

/// One bit a descriptor.
static MARKED: [AtomicU64; DESCRIPTORS / 64] = [const { AtomicU64::new(0) }; DESCRIPTORS / 64];

#[inline]
fn locate(fd: i32) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((MARKED.get(fd / 64)?, 1 << (fd % 64)))
}

/// Whether `fd` is such a socket.
#[inline]
pub fn is(fd: i32) -> bool {
    locate(fd).is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0)
}

pub(crate) fn set(fd: i32) {
    if let Some((word, bit)) = locate(fd) {
        word.fetch_or(bit, Relaxed);
    }
}

pub(crate) fn clear(fd: i32) {
    if is(fd)
        && let Some((word, bit)) = locate(fd)
    {
        word.fetch_and(!bit, Relaxed);
    }
}
