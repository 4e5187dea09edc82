//! The one place that says what shared memory is made of: the real thing, or loom's.
//!
//! Three kinds of shared memory exist.
//!
//! * Atomic words, by which the two sides synchronise.
//! * [`PlainU8`] and its kin: words that only one side uses, or that an atomic word's
//!   release and acquire hand over. They are relaxed atomics, so that a hostile peer's
//!   writes are no undefined behaviour; loom checks that honest sides never race on them.
//! * [`Pool`]: the payload, reached by raw copies. Rust has no atomic copy of many bytes
//!   yet, and copying by single atomic bytes would cost several times the throughput. An
//!   honest peer never touches the bytes that this side copies (loom checks this byte by
//!   byte). A hostile one may; then the copy, which looks at no byte, brings garbled
//!   payload, which a peer could have sent anyway. Nothing of the payload is ever
//!   interpreted in place.

pub use imp::AtomicU64;
pub(crate) use imp::{Arc, AtomicU32, PlainU8, PlainU16, PlainU32, PlainU64, Pool, fence};

/// A release store, then a full fence.
#[inline(always)]
pub(crate) fn store_and_fence(word: &AtomicU64, value: u64) {
    #[cfg(all(not(loom), target_arch = "x86_64"))]
    // One locked instruction is both there, and costs half of a store and MFENCE.
    word.swap(value, core::sync::atomic::Ordering::SeqCst);
    #[cfg(not(all(not(loom), target_arch = "x86_64")))]
    {
        word.store(value, core::sync::atomic::Ordering::Release);
        fence(core::sync::atomic::Ordering::SeqCst);
    }
}

/// After stores past the cache, which no other order holds for: whoever sees a store made after this sees them.
#[inline(always)]
pub(crate) fn order_past_cache() {
    #[cfg(all(not(loom), target_arch = "x86_64"))]
    // SAFETY: a fence touches no memory; each processor of the architecture has it.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
}

#[cfg(not(loom))]
mod imp {
    use core::marker::PhantomData;
    use core::sync::atomic::{AtomicU8, AtomicU16, Ordering};

    pub use core::sync::atomic::AtomicU64;
    pub(crate) use core::sync::atomic::{AtomicU32, fence};
    pub(crate) use std::sync::Arc;

    use crate::buffer::{Dest, Source, Stores};
    use crate::copy::{copy, copy_past_cache};
    use crate::geometry::Geometry;

    macro_rules! plain {
        ($name:ident, $atomic:ty, $value:ty) => {
            /// A word that needs no ordering of its own.
            #[derive(Debug)]
            #[repr(transparent)]
            pub(crate) struct $name($atomic);

            impl $name {
                #[inline(always)]
                pub(crate) fn get(&self) -> $value {
                    self.0.load(Ordering::Relaxed)
                }

                /// Stores. Release keeps the order of stores, which is what makes a kill
                /// between two of them harmless; on x86 it is a plain store.
                #[inline(always)]
                pub(crate) fn set(&self, value: $value) {
                    self.0.store(value, Ordering::Release);
                }
            }
        };
    }
    plain!(PlainU8, AtomicU8, u8);
    plain!(PlainU16, AtomicU16, u16);
    plain!(PlainU32, AtomicU32, u32);
    plain!(PlainU64, AtomicU64, u64);

    /// A lane's blocks. All indices are masked here, so no argument leads outside.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Pool<'a> {
        base: *mut u8,
        geometry: Geometry,
        life: PhantomData<&'a AtomicU8>,
    }

    // SAFETY: the pool is only ever copied to and from, see the module's law on payload.
    unsafe impl Send for Pool<'_> {}
    // SAFETY: as above.
    unsafe impl Sync for Pool<'_> {}

    impl Pool<'_> {
        /// # Safety
        /// All places of the geometry ([`Geometry::place`]) from `base` on must stay mapped for the life of the
        /// value, and no reference to them may exist.
        #[inline(always)]
        pub(crate) const unsafe fn new(base: *mut u8, geometry: Geometry) -> Self {
            Self {
                base,
                geometry,
                life: PhantomData,
            }
        }

        /// Address of a byte and the number of bytes from there to the end of its block.
        #[inline(always)]
        fn locate(&self, block: usize, offset: usize) -> (*mut u8, usize) {
            let offset = offset & (self.geometry.block_size() - 1);
            // SAFETY: `place` masks the block, so this is in one of the pool's.
            let at = unsafe { self.base.add(self.geometry.place(block) + offset) };
            (at, self.geometry.block_size() - offset)
        }

        /// Copies into a block, up to its end. Returns the bytes copied. After stores past the cache
        /// [`order_past_cache`](super::order_past_cache) is due before anybody is told of the bytes.
        #[inline(always)]
        pub(crate) fn write(&self, block: usize, offset: usize, from: Source<'_>, stores: Stores) -> usize {
            let (at, room) = self.locate(block, offset);
            let n = from.len().min(room);
            // SAFETY: `n` bytes are readable by the contract of `Source` and lie in the
            // block by `locate`; the caller's memory and the pool are different mappings.
            unsafe {
                match stores {
                    Stores::Cached => copy(from.as_ptr(), at, n),
                    Stores::PastCache => copy_past_cache(from.as_ptr(), at, n),
                }
            }
            n
        }

        /// Room for at most `len` bytes in a block, up to its end.
        #[inline]
        pub(crate) fn room(&self, block: usize, offset: usize, len: usize) -> Dest<'_> {
            let (at, room) = self.locate(block, offset);
            // SAFETY: so many bytes lie in the block by `locate`, and no references to the pool's bytes are ever made.
            unsafe { Dest::from_raw(at, len.min(room)) }
        }

        /// Copies out of a block, up to its end. Returns the bytes copied.
        #[inline(always)]
        pub(crate) fn read(&self, block: usize, offset: usize, into: Dest<'_>) -> usize {
            let (at, room) = self.locate(block, offset);
            let n = into.len().min(room);
            // SAFETY: `n` bytes are writable by the contract of `Dest` and lie in the
            // block by `locate`; the caller's memory and the pool are different mappings.
            unsafe { copy(at, into.as_mut_ptr(), n) };
            n
        }

        /// Has the processor fetch bytes of a block, up to its end. Returns how many.
        #[inline(always)]
        pub(crate) fn prefetch(&self, block: usize, offset: usize, len: usize) -> usize {
            let (at, room) = self.locate(block, offset);
            let n = len.min(room);
            #[cfg(target_arch = "x86_64")]
            for line in (0..n).step_by(64) {
                use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                // SAFETY: a hint, which no address makes fail.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(line).cast()) };
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = at;
            n
        }

        /// Has the processor take the cache line of a byte for itself, which is about to be written.
        #[inline(always)]
        pub(crate) fn prefetch_to_write(&self, block: usize, offset: usize) {
            let (at, _) = self.locate(block, offset);
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: a hint, which no address makes fail, and which processors that do not know it pass over. The
            // intrinsic becomes a hint to read unless all of the program is compiled for processors that do.
            unsafe {
                core::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
            }
            #[cfg(not(all(target_arch = "x86_64", not(miri))))]
            let _ = at;
        }
    }
}

#[cfg(loom)]
mod imp {
    use loom::cell::UnsafeCell;

    pub(crate) use loom::sync::Arc;
    pub use loom::sync::atomic::AtomicU64;
    pub(crate) use loom::sync::atomic::{AtomicU32, fence};

    use crate::buffer::{Dest, Source, Stores};
    use crate::geometry::Geometry;

    macro_rules! plain {
        ($name:ident, $value:ty) => {
            /// A word that needs no ordering of its own: loom reports any race on it.
            #[derive(Debug, Default)]
            pub(crate) struct $name(UnsafeCell<$value>);

            // SAFETY: loom checks each access.
            unsafe impl Sync for $name {}

            impl $name {
                pub(crate) fn get(&self) -> $value {
                    // SAFETY: loom has checked that no write is concurrent.
                    self.0.with(|at| unsafe { *at })
                }

                pub(crate) fn set(&self, value: $value) {
                    // SAFETY: loom has checked that no access is concurrent.
                    self.0.with_mut(|at| unsafe { *at = value });
                }
            }
        };
    }
    plain!(PlainU8, u8);
    plain!(PlainU16, u16);
    plain!(PlainU32, u32);
    plain!(PlainU64, u64);

    /// A lane's blocks, as bytes that loom watches one by one.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Pool<'a> {
        bytes: &'a [PlainU8],
        geometry: Geometry,
    }

    impl<'a> Pool<'a> {
        pub(crate) fn new(bytes: &'a [PlainU8], geometry: Geometry) -> Self {
            Self { bytes, geometry }
        }

        fn locate(&self, block: usize, offset: usize) -> (usize, usize) {
            let block = block & (self.geometry.blocks() - 1);
            let offset = offset & (self.geometry.block_size() - 1);
            let at = (block << self.geometry.block_shift()) | offset;
            (at, self.geometry.block_size() - offset)
        }

        /// Loom knows one kind of stores.
        pub(crate) fn write(&self, block: usize, offset: usize, from: Source<'_>, _stores: Stores) -> usize {
            let (at, room) = self.locate(block, offset);
            let n = from.len().min(room);
            for i in 0..n {
                // SAFETY: `i` is below the length of the source.
                self.bytes[at + i].set(unsafe { *from.as_ptr().add(i) });
            }
            n
        }

        pub(crate) fn read(&self, block: usize, offset: usize, into: Dest<'_>) -> usize {
            let (at, room) = self.locate(block, offset);
            let n = into.len().min(room);
            for i in 0..n {
                // SAFETY: `i` is below the length of the destination.
                unsafe { *into.as_mut_ptr().add(i) = self.bytes[at + i].get() };
            }
            n
        }

        /// A hint, which models need not heed.
        pub(crate) fn prefetch(&self, _block: usize, _offset: usize, len: usize) -> usize {
            len
        }

        /// As above.
        pub(crate) fn prefetch_to_write(&self, _block: usize, _offset: usize) {}
    }
}
