//! What Viaduct's processes say to each other, and the counters they show.
//!
//! * [`message`]: the fixed-layout packets between a guest process and viaductd.
//! * [`counters`]: the shared words in which a process counts what its connections do; `viaduct status` reads them
//!   without viaductd.
//! * [`policy`]: what `viaduct run` tells the preload, as environment variables.
//! * [`reason`]: why a connection is not accelerated, and what to do about it.
//! * [`runtime`]: the runtime directory of an instance.
//!
//! Nothing here makes a system call or allocates on a guest's data path.
#![forbid(unsafe_code)]

pub mod counters;
#[expect(
    unnameable_types,
    missing_debug_implementations,
    reason = "zerocopy's derive makes a type for each field"
)]
pub mod message;
pub mod policy;
pub mod reason;
pub mod runtime;

pub use reason::Reason;

/// Version of everything in this crate that two processes share. Processes of different versions do not pair.
pub const PROTOCOL_VERSION: u32 = 3;
