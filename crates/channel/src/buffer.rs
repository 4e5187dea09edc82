//! The caller's memory, seen as raw bytes.
//!
//! The buffers belong to an unmodified program, which may share them with threads and
//! other processes, leave them uninitialised, or overlap them. So no reference to them is
//! ever made: they are an address and a length, read and written by raw copies only.

use core::marker::PhantomData;

/// Bytes to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    at: *const u8,
    len: usize,
    life: PhantomData<&'a [u8]>,
}

/// How bytes are put into a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stores {
    /// By plain stores, which leave them in the sender's cache.
    Cached,
    /// By stores that go past the cache, where the processor has any.
    PastCache,
}

/// Room for received bytes.
#[derive(Clone, Copy, Debug)]
pub struct Dest<'a> {
    at: *mut u8,
    len: usize,
    life: PhantomData<&'a mut [u8]>,
}

impl Source<'_> {
    /// A source over raw memory.
    ///
    /// # Safety
    /// `len` bytes at `at` must be readable for as long as the value is used. They may
    /// change meanwhile; what is sent then is any mixture of old and new.
    #[inline(always)]
    pub const unsafe fn from_raw(at: *const u8, len: usize) -> Self {
        Self {
            at,
            len,
            life: PhantomData,
        }
    }

    /// Bytes in it.
    #[inline(always)]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no bytes.
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte.
    #[inline(always)]
    pub const fn as_ptr(&self) -> *const u8 {
        self.at
    }

    /// The bytes from `from` on, at most `len` of them; out of range is empty.
    #[inline(always)]
    #[must_use]
    pub fn slice(self, from: usize, len: usize) -> Self {
        let from = from.min(self.len);
        Self {
            at: self.at.wrapping_add(from),
            len: len.min(self.len - from),
            life: PhantomData,
        }
    }
}

impl Dest<'_> {
    /// Room for nothing.
    pub const NOWHERE: Self = Self {
        at: core::ptr::null_mut(),
        len: 0,
        life: PhantomData,
    };

    /// A destination over raw memory.
    ///
    /// # Safety
    /// `len` bytes at `at` must be writable for as long as the value is used, and no
    /// reference to them may be in use then. They need not be initialised.
    #[inline(always)]
    pub const unsafe fn from_raw(at: *mut u8, len: usize) -> Self {
        Self {
            at,
            len,
            life: PhantomData,
        }
    }

    /// Bytes it has room for.
    #[inline(always)]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no room.
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte.
    #[inline(always)]
    pub const fn as_mut_ptr(&self) -> *mut u8 {
        self.at
    }

    /// The room from `from` on, at most `len` bytes; out of range is empty.
    #[inline(always)]
    #[must_use]
    pub fn slice(self, from: usize, len: usize) -> Self {
        let from = from.min(self.len);
        Self {
            at: self.at.wrapping_add(from),
            len: len.min(self.len - from),
            life: PhantomData,
        }
    }

    /// Copies what there is room for. Returns how many bytes.
    ///
    /// # Safety
    /// The two do not overlap.
    #[cfg(not(loom))]
    pub unsafe fn fill(self, from: Source<'_>) -> usize {
        let len = self.len.min(from.len);
        // SAFETY: so many bytes are readable and writable by the contracts of the two; and by this function's they are
        // not the same.
        unsafe { crate::copy::copy(from.at, self.at, len) };
        len
    }
}

impl<'a> From<&'a [u8]> for Source<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self {
            at: bytes.as_ptr(),
            len: bytes.len(),
            life: PhantomData,
        }
    }
}

impl<'a> From<&'a mut [u8]> for Dest<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        Self {
            at: bytes.as_mut_ptr(),
            len: bytes.len(),
            life: PhantomData,
        }
    }
}
