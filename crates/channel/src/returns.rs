//! Room in a segment for bytes that a receiver gives back.

use core::marker::PhantomData;
use core::ptr::NonNull;

use crate::buffer::{Dest, Source, Stores};
use crate::geometry::Geometry;
use crate::mapping::Mapping;
use crate::sync::Pool;

/// Room for bytes of a lane's direction that its receiver has taken and wants sent another
/// way, as large as the lane's pool. The receiver writes, the sender reads; which positions
/// hold bytes is for the layer above to say. Memory is taken when they are written.
#[derive(Debug)]
pub struct Returns<'a> {
    base: NonNull<u8>,
    geometry: Geometry,
    /// Where `base` lies in the mapping made for it; a heap segment needs none.
    mapping: Option<(Mapping, usize)>,
    life: PhantomData<&'a u8>,
}

impl Returns<'_> {
    /// From byte `from` of a mapping on, which must hold all places of a pool behind it.
    pub(crate) fn mapped(mapping: Mapping, from: usize, geometry: Geometry) -> Self {
        debug_assert!(from + geometry.place(usize::MAX) + geometry.block_size() <= mapping.len());
        Self {
            // SAFETY: inside the mapping.
            base: unsafe { mapping.base().add(from) },
            geometry,
            mapping: Some((mapping, from)),
            life: PhantomData,
        }
    }

    /// At an address of a heap segment that has all places of a pool there.
    pub(crate) fn on_heap(base: NonNull<u8>, geometry: Geometry) -> Self {
        Self {
            base,
            geometry,
            mapping: None,
            life: PhantomData,
        }
    }

    fn pool(&self) -> Pool<'_> {
        // SAFETY: all places of a pool lie behind `base`, in a mapping that this value owns or on a heap that it
        // borrows; it is only reached through `Pool`.
        unsafe { Pool::new(self.base.as_ptr(), self.geometry) }
    }

    /// Bytes of room at `at`, up to the next edge of a block; none behind the last.
    fn room(&self, at: u64) -> usize {
        if at >= self.geometry.capacity() as u64 {
            return 0;
        }
        self.geometry.block_size() - self.geometry.offset_of(at)
    }

    fn block(&self, at: u64) -> usize {
        usize::try_from(self.geometry.block_of(at)).unwrap_or(0)
    }

    /// Takes memory for a block. `false` when the system has none.
    fn populate(&self, block: usize) -> bool {
        self.mapping.as_ref().is_none_or(|(mapping, from)| {
            let from = from + self.geometry.place(block);
            mapping.populate(from..from + self.geometry.block_size())
        })
    }

    /// Writes at position `at`, as far as there are room and memory. Returns the bytes
    /// written.
    pub fn write(&self, at: u64, from: Source<'_>) -> usize {
        let mut done = 0;
        while done < from.len() {
            let at = at.saturating_add(done as u64);
            let room = self.room(at);
            if room == 0 || !self.populate(self.block(at)) {
                break;
            }
            let part = from.slice(done, room);
            done += self
                .pool()
                .write(self.block(at), self.geometry.offset_of(at), part, Stores::Cached);
        }
        done
    }

    /// Copies bytes from position `at` on. Returns how many, which is fewer than `into`
    /// holds only at the end of the room.
    pub fn copy_out(&self, at: u64, into: Dest<'_>) -> usize {
        let mut done = 0;
        while done < into.len() {
            let at = at.saturating_add(done as u64);
            let room = self.room(at);
            if room == 0 {
                break;
            }
            let part = into.slice(done, room);
            done += self.pool().read(self.block(at), self.geometry.offset_of(at), part);
        }
        done
    }
}
