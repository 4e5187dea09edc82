//! The counters of a process: shared words that only the process writes and anybody allowed may read.
//!
//! The region is a memfd named [`MEMFD_NAME`], sealed against shrinking, which the process keeps open; a reader finds
//! it in `/proc/PID/fd` and reads it with `pread`, so a dying or hostile process cannot make the reader fault. The
//! region is an array of 64-bit words: a header of [`HEADER_WORDS`], then [`SLOTS`] slots of [`SLOT_WORDS`], one per
//! connection end. A page is only touched, and so only costs memory, when a slot in it is first used.
//!
//! [`MAGIC_WORD`] and [`INSTANCE`] are where they are in every version, so that programs of one whose counters cannot
//! be read are at least told of.
//!
//! Two words are written by others: [`MAIL`] by viaductd, [`slot::WANTED`] by `viaduct path`.

use crate::Reason;

/// Name of the memfd, as `readlink /proc/PID/fd/N` shows it after `/memfd:`.
pub const MEMFD_NAME: &str = "viaduct-counters";

/// First word of the region: a magic number and the layout's version.
pub const MAGIC: u64 = 0x5649_4143_4e54_0002;

/// How many low bits of [`MAGIC`] are the version.
pub const MAGIC_VERSION_BITS: u32 = 16;

/// Words before the first slot.
pub const HEADER_WORDS: usize = 64;

/// Words of one slot.
pub const SLOT_WORDS: usize = 32;

/// Slots in a region. A connection beyond them is accelerated like any other, but not shown.
pub const SLOTS: usize = 16384;

/// Words of the whole region.
pub const REGION_WORDS: usize = HEADER_WORDS + SLOTS * SLOT_WORDS;

/// Header word: [`MAGIC`].
pub const MAGIC_WORD: usize = 0;
/// Header word: packets viaductd has told this process of, which has been sent them. The process looks here instead of
/// asking the kernel.
pub const MAIL: usize = 1;
/// Header word: process number in its own namespace.
pub const PID: usize = 2;
/// Header word: [`crate::runtime::instance_id`] of the runtime directory.
pub const INSTANCE: usize = 3;
/// Header word: one more than the highest slot ever used.
pub const SLOTS_USED: usize = 4;
/// Header word: offers made.
pub const OFFERS: usize = 5;
/// Header word: pairs attached.
pub const PAIRS: usize = 6;
/// Header word: connections that got no slot.
pub const UNSHOWN: usize = 7;
/// Header words 8..16: the program's name, zero-padded.
pub const PROGRAM: usize = 8;
/// Header word: connection ends that had a slot and have ended.
pub const ENDED: usize = 16;
/// Header word: of these, ends of which a fast path carried bytes.
pub const ENDED_FAST: usize = 17;
/// Header words 18..22: what the ended ones had in [`slot::TRAFFIC`], added up.
pub const ENDED_TRAFFIC: usize = 18;
/// Header word: number of the [`Reason`] for which all of the process's connections stay on TCP; 0: none.
pub const BARRED: usize = 22;
/// Header word: the inode of this region's memfd.
pub const INODE: usize = 23;
/// Header word: the inode of the region to whose [`SUMS`] this one's are added when its process ends in order: that of
/// the process it was forked from, or of the nearest one before that has a region. 0: none.
pub const FOREBEAR: usize = 24;
/// Header word: processes that have begun a region with this one as their [`FOREBEAR`].
pub const CHILDREN: usize = 25;
/// Header word: of these, processes that have ended in order, and are in the sums.
pub const CHILDREN_ENDED: usize = 26;

/// Header words that are sums, in which ended children are counted.
pub const SUMS: [usize; 9] = [
    OFFERS,
    PAIRS,
    UNSHOWN,
    ENDED,
    ENDED_FAST,
    ENDED_TRAFFIC,
    ENDED_TRAFFIC + 1,
    ENDED_TRAFFIC + 2,
    ENDED_TRAFFIC + 3,
];

/// Words within a slot. The first eight, a cache line, are all that the calls of a plain connection use.
pub mod slot {
    /// 0: free; else the number of the connection, unique within the process.
    pub const CONNECTION: usize = 0;
    /// Descriptor (low 32 bits), sending path (8 bits), receiving path (8 bits), reason (16 bits).
    pub const STATE: usize = 1;
    /// Stream bytes the program has sent.
    pub const BYTES_SENT: usize = 2;
    /// Stream bytes the program has received.
    pub const BYTES_RECEIVED: usize = 3;
    /// Of those sent, bytes that went by a fast path.
    pub const FAST_BYTES_SENT: usize = 4;
    /// Likewise, received.
    pub const FAST_BYTES_RECEIVED: usize = 5;
    /// What `viaduct path` wants: a [`super::Wanted`] as number.
    pub const WANTED: usize = 6;
    /// `CLOCK_MONOTONIC` nanoseconds at which the connection was first seen, to some milliseconds.
    pub const CREATED_NS: usize = 7;
    /// How often a receiver or sender of this end went to sleep.
    pub const SLEEPS: usize = 8;
    /// Local address: two words of IPv6 or v4-mapped address in memory order, then the port. Zero while unknown, before
    /// the first offer, and then so is all that follows, but on a lane that a forked child has inherited.
    pub const LOCAL: usize = 9;
    /// Remote address, likewise.
    pub const REMOTE: usize = 12;
    /// `SO_COOKIE`, 0 while unknown.
    pub const COOKIE: usize = 15;
    /// `SO_NETNS_COOKIE`, 0 while unknown.
    pub const NETNS: usize = 16;
    /// Peer's process number as viaductd sees it, 0 while unknown.
    pub const PEER_PID: usize = 17;
    /// How often a direction has changed its path.
    pub const SWITCHES: usize = 18;
    /// Bells rung, of either kind.
    pub const BELLS_SENT: usize = 19;
    /// Of these, bells rung by a byte on the kernel connection.
    pub const BELLS_BY_SOCKET: usize = 20;

    /// The words that tell what the end has carried.
    pub const TRAFFIC: [usize; 4] = [BYTES_SENT, BYTES_RECEIVED, FAST_BYTES_SENT, FAST_BYTES_RECEIVED];
}

/// What carries bytes now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Path {
    /// The kernel connection.
    Tcp = 0,
    /// A lane in shared memory.
    Shm = 1,
}

impl Path {
    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Shm => "shm",
        }
    }

    /// The path numbered `number`, if there is one.
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Tcp),
            1 => Some(Self::Shm),
            _ => None,
        }
    }
}

/// Which path `viaduct path` wants a connection on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Wanted {
    /// Viaduct chooses.
    Auto = 0,
    /// Both directions on TCP.
    Tcp = 1,
    /// Both directions on shared memory as soon as possible.
    Shm = 2,
}

impl Wanted {
    /// The wish numbered `number`; anything unknown is [`Wanted::Auto`].
    pub fn from_number(number: u64) -> Self {
        match number {
            1 => Self::Tcp,
            2 => Self::Shm,
            _ => Self::Auto,
        }
    }
}

/// The fields of [`slot::STATE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Descriptor in the process.
    pub fd: i32,
    /// What carries the bytes this end sends.
    pub sending: Path,
    /// What carries the bytes this end receives.
    pub receiving: Path,
    /// Why not faster.
    pub reason: Reason,
}

impl State {
    /// As the slot's word.
    pub fn pack(self) -> u64 {
        u64::from(self.fd.cast_unsigned())
            | (self.sending as u64) << 32
            | (self.receiving as u64) << 40
            | (self.reason as u64) << 48
    }

    /// From the slot's word; `None` if a field has no meaning.
    #[expect(clippy::cast_possible_truncation, reason = "each field is cut out at its own width")]
    pub fn unpack(word: u64) -> Option<Self> {
        Some(Self {
            fd: (word as u32).cast_signed(),
            sending: Path::from_number((word >> 32) as u8)?,
            receiving: Path::from_number((word >> 40) as u8)?,
            reason: Reason::from_number((word >> 48) as u16)?,
        })
    }
}

/// Index of the first word of slot `slot`.
pub const fn slot_base(slot: usize) -> usize {
    HEADER_WORDS + slot * SLOT_WORDS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_survives_packing() {
        let state = State {
            fd: 1023,
            sending: Path::Shm,
            receiving: Path::Tcp,
            reason: Reason::LaneStall,
        };
        assert_eq!(State::unpack(state.pack()), Some(state));
        assert_eq!(State::unpack(u64::MAX), None);
    }
}
