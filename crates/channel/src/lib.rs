//! Viaduct's channel: segments of shared memory and the lanes in them.
//!
//! A *segment* is a memory region that the two ends of a connection map. It holds two
//! *lanes*, one a direction. A lane is a byte stream kept in a pool of blocks: the
//! [`Sender`] appends bytes and publishes them with one release store, the [`Receiver`]
//! copies them out and gives whole blocks back, in any order, as *credits*. What a receiver
//! wants sent another way it puts into the lane's room for [`Returns`]. The channel
//! knows no sockets and makes no system call once a segment is mapped, but for those
//! that take memory when a lane grows and give it back when it shrinks.
//!
//! # What holds
//!
//! * All state of both ends lives in the segment, so that processes that share an end
//!   after `fork` share its state. A handle is a base pointer and the geometry copied at
//!   map time.
//! * **The other side may write anything anywhere in the segment.** Each word is read
//!   once, masked or checked, and used from the local copy. A lying peer can garble the
//!   bytes of the stream or cause a [`Violation`]; it cannot cause a panic, an access
//!   outside the segment, or a loop longer than the number of logical blocks.
//! * One user at a time holds each side of a lane. The layer above sees to that; where it
//!   fails, bytes are garbled as by a lying peer, and no worse.
//! * No operation on a lane allocates, blocks, panics or holds a lock. A process killed
//!   between any two stores can at most leak blocks of the lane it was using.
//!
//! `docs/memory-layout.md` gives the layout, `docs/memory-model.md` the orderings.

mod buffer;
#[cfg(not(loom))]
mod copy;
mod geometry;
mod layout;
#[cfg(not(loom))]
mod mapping;
mod numbers;
mod receiver;
#[cfg(not(loom))]
mod returns;
mod segment;
mod sender;
mod sync;
mod violation;

pub use buffer::{Dest, Source, Stores};
pub use geometry::Geometry;
#[cfg(not(loom))]
pub use mapping::{MapError, Mapping, is_locked, populate, set_locked};
pub use receiver::{Found, Receiver};
#[cfg(not(loom))]
pub use returns::Returns;
pub use segment::{Segment, Side};
#[cfg(not(loom))]
pub use segment::{SegmentError, growths, set_gate};
pub use sender::Sender;
pub use sync::AtomicU64;
pub use violation::Violation;

/// Words that the layer above may use in each side's signal line.
pub const WORDS: usize = layout::WORDS;

#[cfg(all(test, not(loom)))]
mod tests;
