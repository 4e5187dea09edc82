//! Segments: creation, mapping, and the handles on their lanes.

#[cfg(not(loom))]
mod gate;
#[cfg_attr(loom, path = "segment/watched.rs")]
mod heap;

#[cfg(not(loom))]
pub use gate::set_gate;
#[cfg(not(loom))]
pub use mapped::SegmentError;

use core::fmt;
#[cfg(not(loom))]
use core::ops::Range;
#[cfg(not(loom))]
use core::sync::atomic::Ordering::Relaxed;

use crate::geometry::Geometry;
#[cfg(not(loom))]
use crate::layout::{HEAD_BYTES, HEADER_BYTES, LARGE_BYTES};
use crate::layout::{Header, Lane};
use crate::numbers::Large;
use crate::receiver::Receiver;
#[cfg(not(loom))]
use crate::returns::Returns;
use crate::sender::Sender;
#[cfg(not(loom))]
use crate::sync::AtomicU32;
use crate::sync::{Arc, Pool};

/// The two sides of a segment. Which end of a connection is which is for the layer above
/// to say, as long as both ends agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Sends on lane 0.
    First,
    /// Sends on lane 1.
    Second,
}

/// A segment in this process's memory.
pub struct Segment {
    memory: Memory,
    geometry: Geometry,
    id: u64,
}

enum Memory {
    #[cfg(not(loom))]
    Mapped(crate::mapping::Mapping),
    Heap(Arc<heap::Heap>),
}

impl Side {
    /// The other side.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    /// Number of the lane this side sends on.
    #[inline(always)]
    pub(crate) const fn lane(self) -> usize {
        match self {
            Self::First => 0,
            Self::Second => 1,
        }
    }
}

impl Segment {
    /// A segment on the heap, in the hands of both sides: for tests, models and benches.
    pub fn heap(geometry: Geometry) -> (Self, Self) {
        let heap = Arc::new(heap::Heap::new(geometry));
        let side = |heap| Self {
            memory: Memory::Heap(heap),
            geometry,
            id: 0,
        };
        (side(heap.clone()), side(heap))
    }

    /// The lane that `side` sends on, for its sender.
    #[inline]
    pub fn sender(&self, side: Side) -> Sender<'_> {
        let lane = side.lane();
        Sender::new(self, self.lane(lane), self.pool(lane), lane)
    }

    /// The lane that `side` receives on, for its receiver.
    #[inline]
    pub fn receiver(&self, side: Side) -> Receiver<'_> {
        let lane = side.other().lane();
        Receiver::new(self, self.lane(lane), self.pool(lane), lane)
    }

    /// The room for bytes of the lane that `side` sends on which its receiver gives back.
    ///
    /// `None` if the process has no address space left: only who uses it maps it.
    #[cfg(not(loom))]
    pub fn returns(&self, side: Side) -> Option<Returns<'_>> {
        let from = pool_offset(self.geometry, RETURNS, side.lane());
        Some(match &self.memory {
            Memory::Mapped(mapping) => {
                Returns::mapped(mapping.again(self.geometry.segment_len())?, from, self.geometry)
            }
            // SAFETY: a heap segment has the geometry's segment length too, of which this is inside.
            Memory::Heap(heap) => Returns::on_heap(unsafe { heap.base().add(from) }, self.geometry),
        })
    }

    /// The number its maker gave it.
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Its division into blocks.
    #[inline(always)]
    pub const fn geometry(&self) -> Geometry {
        self.geometry
    }

    #[inline]
    fn lane(&self, lane: usize) -> &Lane {
        &self.header().lanes[lane]
    }

    #[inline]
    fn header(&self) -> &Header {
        match &self.memory {
            #[cfg(not(loom))]
            // SAFETY: `map` checked that the mapping is longer than a header; it is
            // page-aligned, lives as long as `self`, and a header is atomics throughout.
            Memory::Mapped(mapping) => unsafe { mapping.base().cast().as_ref() },
            Memory::Heap(heap) => heap.header(),
        }
    }

    /// A lane's larger tables.
    #[cfg(not(loom))]
    #[inline]
    pub(crate) fn large(&self, lane: usize) -> &Large {
        let base = match &self.memory {
            Memory::Mapped(mapping) => mapping.base(),
            Memory::Heap(heap) => heap.base(),
        };
        // SAFETY: both kinds of memory are longer than what is before the pools, of which
        // this is inside and a multiple of the page size; they are atomics throughout.
        unsafe { base.add(large_offset(lane)).cast().as_ref() }
    }

    #[cfg(loom)]
    pub(crate) fn large(&self, lane: usize) -> &Large {
        let Memory::Heap(heap) = &self.memory;
        heap.large(lane)
    }

    #[cfg(not(loom))]
    #[inline]
    fn pool(&self, lane: usize) -> Pool<'_> {
        let base = match &self.memory {
            Memory::Mapped(mapping) => mapping.base(),
            Memory::Heap(heap) => heap.base(),
        };
        // SAFETY: both kinds of memory have the geometry's segment length, of which all
        // places of a pool are inside; pools are only ever reached through `Pool`.
        unsafe {
            let base = base.as_ptr().add(pool_offset(self.geometry, LANES, lane));
            Pool::new(base, self.geometry)
        }
    }

    #[cfg(loom)]
    fn pool(&self, lane: usize) -> Pool<'_> {
        let Memory::Heap(heap) = &self.memory;
        Pool::new(heap.pool(lane), self.geometry)
    }

    /// Lets each lane of a heap segment grow to no more than `blocks` blocks, as if the
    /// system had memory for no more.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn limit_memory(&self, blocks: usize) {
        if let Memory::Heap(heap) = &self.memory {
            heap.limit.store(blocks as u64, core::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Takes memory for `count` blocks of a lane's pool from block `first` on, or for fewer. Returns for how many: the
    /// rest the system does not have, or the layer above wants it left to others.
    #[cold]
    pub(crate) fn populate(&self, lane: usize, first: usize, count: usize) -> usize {
        match &self.memory {
            #[cfg(not(loom))]
            Memory::Mapped(mapping) => {
                let mut taken = 0;
                // Bit by bit: what others are taking at this moment, nobody sees.
                for place in self.places(lane, first..first + count) {
                    let more = place.len();
                    let all = ((first + taken) << self.geometry.block_shift()) + more;
                    if !gate::take(all, more, &mut || mapping.populate(place.clone())) {
                        break;
                    }
                    taken += more >> self.geometry.block_shift();
                }
                taken
            }
            Memory::Heap(heap) => heap.populate(lane, first, count),
        }
    }

    /// Gives back the memory of `count` blocks of a lane's pool from block `first` on, and with it what they hold.
    #[cold]
    pub(crate) fn forget(&self, lane: usize, first: usize, count: usize) {
        match &self.memory {
            #[cfg(not(loom))]
            Memory::Mapped(mapping) => self
                .places(lane, first..first + count)
                .for_each(|place| mapping.forget(place)),
            // Where nothing can be given back, what they hold goes all the same, so that tests see who still reads it.
            #[cfg(any(test, loom))]
            Memory::Heap(_) => {
                let nothing = vec![0xDD; self.geometry.block_size()];
                for block in first..first + count {
                    let pool = self.pool(lane);
                    pool.write(block, 0, nothing.as_slice().into(), crate::buffer::Stores::Cached);
                }
            }
            #[cfg(not(any(test, loom)))]
            Memory::Heap(_) => {}
        }
    }

    /// Where blocks of a lane's pool lie in the segment, those beside each other together.
    #[cfg(not(loom))]
    fn places(&self, lane: usize, mut blocks: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let geometry = self.geometry;
        core::iter::from_fn(move || {
            let beside = geometry.chunk() - blocks.start % geometry.chunk();
            let count = beside.min(blocks.len());
            let from = pool_offset(geometry, LANES, lane) + geometry.place(blocks.start);
            blocks.start += count;
            (count != 0).then(|| from..from + count * geometry.block_size())
        })
    }

    /// Takes memory for a lane's larger tables. `false` when the system has none.
    pub(crate) fn populate_large(&self, lane: usize) -> bool {
        match &self.memory {
            #[cfg(not(loom))]
            Memory::Mapped(mapping) => mapping.populate(large_offset(lane)..large_offset(lane + 1)),
            // As if they lay with the first block that needs them.
            Memory::Heap(heap) => heap.populate(lane, crate::layout::SMALL_BLOCKS, 1) == 1,
        }
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment")
            .field("id", &self.id)
            .field("geometry", &self.geometry)
            .finish_non_exhaustive()
    }
}

#[cfg(not(loom))]
static GROWTHS: AtomicU32 = AtomicU32::new(0);

/// How often lanes have grown in this process to more than one with little traffic has, modulo 2^32. While it stays the
/// same, there is nothing new for [`Sender::shrink`] to do.
#[cfg(not(loom))]
pub fn growths() -> u32 {
    GROWTHS.load(Relaxed)
}

#[cfg(not(loom))]
pub(crate) fn note_growth() {
    GROWTHS.fetch_add(1, Relaxed);
}

/// The pair of pools that are the lanes'.
#[cfg(not(loom))]
const LANES: usize = 0;
/// The pair of pools that hold returns.
#[cfg(not(loom))]
const RETURNS: usize = 1;

/// Where a lane's pool of a pair begins in its segment.
#[cfg(not(loom))]
const fn pool_offset(geometry: Geometry, pair: usize, lane: usize) -> usize {
    HEAD_BYTES + pair * 2 * geometry.capacity() + lane * geometry.chunk() * geometry.block_size()
}

/// Where a lane's larger tables begin.
#[cfg(not(loom))]
const fn large_offset(lane: usize) -> usize {
    HEADER_BYTES + lane * LARGE_BYTES
}

#[cfg(not(loom))]
mod mapped {
    use core::fmt;
    use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
    use std::io;
    use std::os::fd::{BorrowedFd, OwnedFd};

    use super::{Geometry, HEAD_BYTES, HEADER_BYTES, Memory, Segment};
    use crate::layout::{MAGIC, VERSION};
    use crate::mapping::{MapError, Mapping};

    /// Why a descriptor is not a segment that can be used.
    #[derive(Debug)]
    #[non_exhaustive]
    pub enum SegmentError {
        /// It cannot be mapped.
        Map(MapError),
        /// It does not begin as a segment does.
        NotASegment,
        /// It follows rules of another version.
        Version(u32),
        /// Its geometry is out of range or does not fit its length.
        Geometry {
            /// Block size as a power of two.
            block_shift: u32,
            /// Blocks a lane.
            blocks: u32,
            /// Bytes of the memfd.
            len: usize,
        },
    }

    impl Segment {
        /// Makes a segment: a sealed memfd, of which only the header page takes memory.
        ///
        /// # Errors
        /// What the system calls report: no descriptors, address space or memory left.
        pub fn create(id: u64, geometry: Geometry) -> io::Result<OwnedFd> {
            let (mapping, fd) = Mapping::create(c"viaduct-segment", geometry.segment_len())?;
            if !mapping.populate(0..HEADER_BYTES) {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            let segment = Self {
                memory: Memory::Mapped(mapping),
                geometry,
                id,
            };
            let header = segment.header();
            header.version.store(VERSION, Relaxed);
            header.block_shift.store(geometry.block_shift(), Relaxed);
            header.blocks.store(geometry.block_count(), Relaxed);
            header.id.store(id, Relaxed);
            // Pairs with the acquire load in `map`.
            header.magic.store(MAGIC, Release);
            Ok(fd)
        }

        /// Maps a segment made by [`create`](Self::create), here or in another process.
        ///
        /// # Errors
        /// [`SegmentError`] says what is wrong with the descriptor.
        pub fn map(fd: BorrowedFd<'_>) -> Result<Self, SegmentError> {
            // All before the returns; whether they are, the geometry will tell.
            let used = |len: usize| len - len.saturating_sub(HEAD_BYTES) / 2;
            let (mapping, len) = Mapping::first_of(fd, used).map_err(SegmentError::Map)?;
            if mapping.len() < HEAD_BYTES {
                return Err(SegmentError::NotASegment);
            }
            let mut segment = Self {
                memory: Memory::Mapped(mapping),
                geometry: Geometry::DEFAULT,
                id: 0,
            };
            let header = segment.header();
            // Pairs with the release store in `create`.
            if header.magic.load(Acquire) != MAGIC {
                return Err(SegmentError::NotASegment);
            }
            let version = header.version.load(Relaxed);
            if version != VERSION {
                return Err(SegmentError::Version(version));
            }
            let block_shift = header.block_shift.load(Relaxed);
            let blocks = header.blocks.load(Relaxed);
            let id = header.id.load(Relaxed);
            match Geometry::new(block_shift, blocks) {
                Some(geometry) if geometry.segment_len() == len => segment.geometry = geometry,
                _ => {
                    return Err(SegmentError::Geometry {
                        block_shift,
                        blocks,
                        len,
                    });
                }
            }
            segment.id = id;
            Ok(segment)
        }
    }

    impl fmt::Display for SegmentError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self {
                Self::Map(error) => write!(f, "cannot map the segment: {error}"),
                Self::NotASegment => f.write_str("memory is not a segment"),
                Self::Version(version) => write!(f, "segment has unknown version {version}"),
                Self::Geometry {
                    block_shift,
                    blocks,
                    len,
                } => write!(
                    f,
                    "segment of {len} bytes claims {blocks} blocks of 2^{block_shift} bytes"
                ),
            }
        }
    }

    impl core::error::Error for SegmentError {}
}
