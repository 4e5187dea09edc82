//! What a peer can be caught at.

use core::fmt;

/// A word in the segment that no honest peer would have written. The lane is of no more
/// use; the layer above closes it as if the connection had been reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// The sender's tail is behind the head, or further ahead of it than a lane reaches.
    Tail {
        /// Bytes consumed, as this side has it.
        head: u64,
        /// Bytes published, as the sender has it.
        tail: u64,
    },
    /// The receiver's head is ahead of the tail, or further behind it than a lane reaches.
    Head {
        /// Bytes consumed, as the receiver has it.
        head: u64,
        /// Bytes published, as this side has it.
        tail: u64,
    },
    /// The receiver has given back more blocks than there are.
    Credits {
        /// Credits taken so far, modulo 2^32, as this side has it.
        taken: u32,
        /// Credits given so far, as the receiver has it.
        given: u64,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tail { head, tail } => {
                write!(f, "peer's tail {tail} is out of reach of head {head}")
            }
            Self::Head { head, tail } => {
                write!(f, "peer's head {head} is out of reach of tail {tail}")
            }
            Self::Credits { taken, given } => {
                write!(
                    f,
                    "peer gave {given} credits, of which {taken} (modulo 2^32) were taken"
                )
            }
        }
    }
}

impl core::error::Error for Violation {}
