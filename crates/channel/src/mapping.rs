//! Shared mappings of sealed memfds.

use core::ffi::CStr;
use core::fmt;
use core::mem::{self, ManuallyDrop};
use core::ops::Range;
use core::ptr::{self, NonNull};
use core::slice;
use core::sync::atomic::Ordering::Relaxed;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};

use crate::sync::{AtomicU32, AtomicU64};

/// A shared, writable mapping of a memfd. Everyone who has the descriptor may write
/// to it at any time.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

/// Why a descriptor cannot be mapped.
#[derive(Debug)]
#[non_exhaustive]
pub enum MapError {
    /// Its size is not sealed against shrinking, so that touching it could raise SIGBUS.
    NotSealed,
    /// It holds nothing.
    Empty,
    /// A system call failed.
    Io(io::Error),
}

// SAFETY: the memory is not tied to a thread, and is only reached through atomics and raw
// copies.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// A zeroed memfd of `len` bytes, mapped. It is close-on-exec, and its size is sealed.
    ///
    /// # Errors
    /// What the system calls report: no descriptors or no address space left.
    pub fn create(name: &CStr, len: usize) -> io::Result<(Self, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
            // Before Linux 6.3 the flag is unknown.
            Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
            fd => fd?,
        };
        rustix::fs::ftruncate(&fd, len as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = Self::map(fd.as_fd(), len)?;
        Ok((mapping, fd))
    }

    /// Maps a memfd that someone else made.
    ///
    /// # Errors
    /// [`MapError`] says which condition does not hold.
    pub fn from_fd(fd: BorrowedFd<'_>) -> Result<Self, MapError> {
        Self::first_of(fd, |len| len).map(|(mapping, _)| mapping)
    }

    /// Maps as many of its first bytes as `part` makes of its length. Returns the length too.
    pub(crate) fn first_of(fd: BorrowedFd<'_>, part: impl FnOnce(usize) -> usize) -> Result<(Self, usize), MapError> {
        let seals = match rustix::fs::fcntl_get_seals(fd) {
            // Not a memfd at all.
            Err(Errno::INVAL) => return Err(MapError::NotSealed),
            seals => seals.map_err(MapError::from)?,
        };
        if !seals.contains(SealFlags::SHRINK) {
            return Err(MapError::NotSealed);
        }
        let size = rustix::fs::fstat(fd)?.st_size;
        let len = usize::try_from(size).map_err(|_| Errno::OVERFLOW)?;
        if len == 0 {
            return Err(MapError::Empty);
        }
        Ok((Self::map(fd, part(len).clamp(1, len))?, len))
    }

    /// Maps the first `len` bytes of the same memfd once more, which may be more of it; the memfd must be as long.
    pub(crate) fn again(&self, len: usize) -> Option<Self> {
        // SAFETY: no bytes of this mapping are moved, since it is shared and an old length of 0 asks for a second one
        // (mremap(2)), at an address of the kernel's choice, which overlaps nothing.
        let base = unsafe { rustix::mm::mremap(self.base.as_ptr().cast(), 0, len, MremapFlags::MAYMOVE) };
        Some(Self {
            base: NonNull::new(base.ok()?.cast())?,
            len,
        })
    }

    fn map(fd: BorrowedFd<'_>, len: usize) -> Result<Self, Errno> {
        let mapping = if is_locked() {
            Self::map_unlocked(fd, len)?
        } else {
            Self::map_plainly(fd, len)?
        };
        // A core dump of the program would take all of its memory.
        // SAFETY: the whole mapping, whose contents the advice does not change.
        let _ = unsafe { rustix::mm::madvise(mapping.base.as_ptr().cast(), len, Advice::LinuxDontDump) };
        Ok(mapping)
    }

    fn map_plainly(fd: BorrowedFd<'_>, len: usize) -> Result<Self, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe { rustix::mm::mmap(ptr::null_mut(), len, access, MapFlags::SHARED, fd, 0)? };
        Ok(Self {
            base: NonNull::new(base.cast()).ok_or(Errno::NOMEM)?,
            len,
        })
    }

    /// Where the kernel locks what is mapped, fills it and counts it against the program's limit: that happens to a
    /// page only. A mapping that is unlocked stays so when it grows.
    fn map_unlocked(fd: BorrowedFd<'_>, len: usize) -> Result<Self, Errno> {
        let page = Self::map_plainly(fd, len.min(rustix::param::page_size()))?;
        // SAFETY: the whole mapping, which nobody uses yet.
        let base = unsafe {
            rustix::mm::munlock(page.base.as_ptr().cast(), page.len)?;
            rustix::mm::mremap(page.base.as_ptr().cast(), page.len, len, MremapFlags::MAYMOVE)?
        };
        // It is part of the other now.
        mem::forget(page);
        Ok(Self {
            base: NonNull::new(base.cast()).ok_or(Errno::NOMEM)?,
            len,
        })
    }

    /// The mapped bytes as words; a remainder of less than a word is left out.
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, lives as long as `self`, holds that many
        // words, and is only reached through atomics and raw copies.
        unsafe { slice::from_raw_parts(self.base.as_ptr().cast(), self.len / size_of::<AtomicU64>()) }
    }

    /// Takes memory for a range of bytes now, so that touching them later cannot fail.
    /// `false` when the system has none. Touches nothing outside the mapping.
    #[must_use]
    pub fn populate(&self, range: Range<usize>) -> bool {
        let from = range.start.min(self.len);
        let to = range.end.min(self.len);
        // SAFETY: the range lies in the mapping.
        from >= to || unsafe { take_memory(self.base.as_ptr().add(from), to - from) }
    }

    /// Leaves it mapped for good.
    pub fn leak(self) -> &'static [AtomicU64] {
        let mapping = ManuallyDrop::new(self);
        // SAFETY: as in `words`, for a mapping that is never unmapped.
        unsafe { slice::from_raw_parts(mapping.base.as_ptr().cast(), mapping.len / size_of::<AtomicU64>()) }
    }

    /// Gives the memory of a range of bytes back, whole pages of it; the bytes are zeros when they are next touched,
    /// whoever has mapped them. Where that cannot be, nothing happens. Touches nothing outside the mapping.
    pub fn forget(&self, range: Range<usize>) {
        let page = rustix::param::page_size();
        let from = range.start.min(self.len).next_multiple_of(page);
        let to = range.end.min(self.len) / page * page;
        if from < to {
            // SAFETY: the range lies in the mapping, whose bytes may be written by others at any time.
            let _ = unsafe { rustix::mm::madvise(self.base.as_ptr().add(from).cast(), to - from, Advice::LinuxRemove) };
        }
    }

    /// Bytes mapped.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is mapped, which is never so.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte.
    #[inline]
    pub(crate) const fn base(&self) -> NonNull<u8> {
        self.base
    }
}

/// Whether the kernel locks, and so fills, all that the process maps.
static LOCKED: AtomicU32 = AtomicU32::new(0);

/// Says whether the process has the kernel lock all that it maps from now on (`mlockall`), and answers what was said
/// before. Mappings of ours are to be left out: most of each is never used.
pub fn set_locked(on: bool) -> bool {
    LOCKED.swap(on.into(), Relaxed) != 0
}

/// Whether it has.
pub fn is_locked() -> bool {
    LOCKED.load(Relaxed) != 0
}

/// Takes memory for words of a mapping now, as [`Mapping::populate`] does. `false` when the system has none.
#[must_use]
pub fn populate(words: &[AtomicU64]) -> bool {
    // SAFETY: all of it is mapped.
    words.is_empty() || unsafe { take_memory(words.as_ptr().cast(), size_of_val(words)) }
}

/// Takes memory for the pages of a range; `false` when the system has none.
///
/// # Safety
/// The range is mapped.
unsafe fn take_memory(start: *const u8, len: usize) -> bool {
    let before = start.addr() % rustix::param::page_size();
    let from = start.wrapping_sub(before).cast_mut().cast();
    // SAFETY: whole pages of which parts are mapped; taking memory changes no contents.
    let done = unsafe { rustix::mm::madvise(from, before + len, Advice::LinuxPopulateWrite) };
    // Before Linux 5.14 the advice is unknown, and memory is taken at the first touch.
    matches!(done, Ok(()) | Err(Errno::INVAL))
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let base = self.base.as_ptr().cast();
        // The kernel notes each page of a mapping that goes as used just now, which takes longer than all
        // the rest; not so where no order of use is expected.
        // SAFETY: made by `map`; the advice changes no contents.
        let _ = unsafe { rustix::mm::madvise(base, self.len, Advice::Random) };
        // SAFETY: made by `map`, unmapped only here; what borrowed from it is gone. An
        // error is impossible for a whole mapping and could not be acted upon.
        let _ = unsafe { rustix::mm::munmap(base, self.len) };
    }
}

impl From<Errno> for MapError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSealed => f.write_str("memory is not sealed against shrinking"),
            Self::Empty => f.write_str("memory is empty"),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for MapError {}
