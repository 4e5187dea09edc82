//! Memory of a segment that loom watches.

use crate::geometry::Geometry;
use crate::layout::Header;
use crate::numbers::Large;
use crate::sync::PlainU8;

/// A segment's memory made of what loom watches.
pub(super) struct Heap {
    header: Header,
    large: [Large; 2],
    pools: [Vec<PlainU8>; 2],
}

impl Heap {
    pub(super) fn new(geometry: Geometry) -> Self {
        let pool = || (0..geometry.capacity()).map(|_| PlainU8::default()).collect();
        Self {
            header: Header::default(),
            large: Default::default(),
            pools: [pool(), pool()],
        }
    }

    pub(super) fn header(&self) -> &Header {
        &self.header
    }

    pub(super) fn large(&self, lane: usize) -> &Large {
        &self.large[lane]
    }

    pub(super) fn pool(&self, lane: usize) -> &[PlainU8] {
        &self.pools[lane]
    }

    pub(super) fn populate(&self, _lane: usize, _first: usize, count: usize) -> usize {
        count
    }
}
