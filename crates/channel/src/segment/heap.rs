//! Memory of a segment without a memfd.

use core::ptr::NonNull;
use std::alloc::{self, Layout};

use crate::geometry::Geometry;
use crate::layout::{HEADER_BYTES, Header};

/// A segment's memory without a memfd.
#[derive(Debug)]
pub(super) struct Heap {
    base: NonNull<u8>,
    layout: Layout,
    /// Blocks of each lane that may be populated.
    #[cfg(test)]
    pub(super) limit: crate::sync::AtomicU64,
}

// SAFETY: as for a mapping, the memory is not tied to a thread, and is only reached
// through atomics and raw copies.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl Heap {
    pub(super) fn new(geometry: Geometry) -> Self {
        let layout = Layout::from_size_align(geometry.segment_len(), HEADER_BYTES).unwrap_or(Layout::new::<Header>());
        // SAFETY: the layout is not of size zero.
        let base = unsafe { alloc::alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else {
            alloc::handle_alloc_error(layout)
        };
        Self {
            base,
            layout,
            #[cfg(test)]
            limit: crate::sync::AtomicU64::new(u64::MAX),
        }
    }

    pub(super) const fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) fn header(&self) -> &Header {
        // SAFETY: the memory is longer than a header, aligned for it, zeroed when it
        // was made, lives as long as `self`, and a header is atomics throughout.
        unsafe { self.base.cast().as_ref() }
    }

    #[cfg(not(test))]
    pub(super) fn populate(&self, _lane: usize, _first: usize, count: usize) -> usize {
        count
    }

    #[cfg(test)]
    pub(super) fn populate(&self, _lane: usize, first: usize, count: usize) -> usize {
        let limit = self.limit.load(core::sync::atomic::Ordering::Relaxed);
        usize::try_from(limit).map_or(count, |limit| limit.saturating_sub(first).min(count))
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { alloc::dealloc(self.base.as_ptr(), self.layout) };
    }
}
