//! Packets between a guest process and viaductd.
//!
//! The socket is `SOCK_SEQPACKET`, so a packet is one message: a [`Header`] followed by one fixed-layout body.
//! Descriptors travel beside it as `SCM_RIGHTS`, in the order the body's documentation gives. Integers are in host
//! order: both parties are on one machine.

use crate::Reason;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First word of every packet.
pub const MAGIC: u32 = 0x5649_4144;

/// The longest packet, in bytes.
pub const MAX_PACKET: usize = 256;

/// Private `getsockopt` level of the ticket; the low 16 bits carry [`Offer::ticket_sequence`]. In place of a length the
/// caller gives the descriptor's number.
pub const TICKET_LEVEL: u32 = 0x5641_0000;

/// What a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// [`Hello`], guest to viaductd, first packet.
    Hello = 1,
    /// [`Welcome`], the answer to it.
    Welcome = 2,
    /// [`Offer`], guest to viaductd.
    Offer = 3,
    /// [`Withdraw`], guest to viaductd.
    Withdraw = 4,
    /// [`Pair`], viaductd to guest.
    Pair = 5,
    /// [`Refuse`], viaductd to guest.
    Refuse = 6,
    /// [`Detach`], guest to viaductd.
    Detach = 7,
    /// [`Query`], command line to viaductd.
    Query = 8,
    /// [`Stats`], the answer to it.
    Stats = 9,
}

impl Kind {
    /// The kind numbered `number`, if there is one.
    pub fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            1 => Self::Hello,
            2 => Self::Welcome,
            3 => Self::Offer,
            4 => Self::Withdraw,
            5 => Self::Pair,
            6 => Self::Refuse,
            7 => Self::Detach,
            8 => Self::Query,
            9 => Self::Stats,
            _ => return None,
        })
    }
}

/// Precedes every body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: u32,
    /// A [`Kind`] as number.
    pub kind: u32,
}

/// A body that has a kind of its own.
pub trait Body: FromBytes + IntoBytes + Immutable + KnownLayout + Copy {
    /// Its number on the wire.
    const KIND: Kind;
}

macro_rules! body {
    ($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident : $type:ty),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $($(#[$field_meta])* pub $field: $type),* }

        impl Body for $name {
            const KIND: Kind = Kind::$name;
        }
    };
}

/// An IP address and port. IPv4 is held as a v4-mapped IPv6 address, so that both spellings of one end compare equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Address {
    /// IPv6 or v4-mapped address in network order; all zero when unknown.
    pub ip: [u8; 16],
    /// Port in host order.
    pub port: u16,
    /// Padding.
    pub reserved: u16,
    /// IPv6 scope, else 0.
    pub scope: u32,
}

impl Address {
    /// The address as the standard library has it; v4-mapped becomes IPv4.
    pub fn to_socket_addr(self) -> std::net::SocketAddr {
        std::net::SocketAddr::new(std::net::Ipv6Addr::from(self.ip).to_canonical(), self.port)
    }
}

impl From<std::net::SocketAddr> for Address {
    fn from(address: std::net::SocketAddr) -> Self {
        let (ip, scope) = match address {
            std::net::SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
            std::net::SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
        };
        Self {
            ip: ip.octets(),
            port: address.port(),
            reserved: 0,
            scope,
        }
    }
}

body! {
    /// A guest introduces itself. Descriptor: its counters region (a memfd sealed against shrinking), in whose header
    /// viaductd counts the mail it sends.
    Hello {
        /// [`crate::PROTOCOL_VERSION`].
        version: u32,
        /// Its process number in its own namespace, for display; viaductd takes the kernel's word for the rest.
        pid: u32,
        /// Its name, zero-padded.
        program: [u8; 64],
    }
}

/// [`Welcome::mode`]: the kernel's ticket proves who is paired.
pub const MODE_TICKET: u32 = 1;
/// [`Welcome::mode`]: one user's processes trust each other.
pub const MODE_SAME_USER: u32 = 2;

body! {
    /// viaductd accepts a guest.
    Welcome {
        /// [`crate::PROTOCOL_VERSION`] of viaductd; a guest of another version closes the connection and stays plain.
        version: u32,
        /// [`MODE_TICKET`] or [`MODE_SAME_USER`].
        mode: u32,
        /// `optname` for the ticket's `getsockopt`, this process's secret; 0 in same-user mode.
        nonce: u32,
        /// Padding.
        reserved: u32,
        /// This run of viaductd.
        instance: u64,
    }
}

/// [`Offer::flags`]: a bell (eventfd) accompanies the offer as a descriptor.
pub const OFFER_HAS_BELL: u32 = 1;
/// [`Offer::flags`]: a ticket with [`Offer::ticket_sequence`] has been taken for this offer.
pub const OFFER_HAS_TICKET: u32 = 2;
/// [`Offer::flags`]: the socket came from another process, so the end is matched only if nobody else holds it.
pub const OFFER_CAME: u32 = 4;

body! {
    /// One end of a connection asks to be matched. Descriptor: its bell, the first time this process names that bell.
    Offer {
        /// The guest's own name for the end, unique within its process for all time.
        offer: u64,
        /// `SO_COOKIE` of the socket.
        cookie: u64,
        /// `SO_NETNS_COOKIE` of the socket.
        netns: u64,
        /// Names the bell this end listens to, unique within its process; 0 for none.
        bell: u64,
        /// Own address.
        local: Address,
        /// Peer's address.
        remote: Address,
        /// Low 16 bits of the `level` with which the ticket was taken.
        ticket_sequence: u32,
        /// `OFFER_*`.
        flags: u32,
    }
}

body! {
    /// The end is closed or no longer wants to be matched.
    Withdraw {
        /// As in [`Offer`].
        offer: u64,
    }
}

/// [`Pair::flags`]: the peer's bell accompanies the segment as second descriptor.
pub const PAIR_HAS_BELL: u32 = 1;
/// [`Pair::flags`]: the peer's bell is an outer one: a Unix stream socket that rings by a byte.
pub const PAIR_BELL_IS_OUTER: u32 = 2;
/// [`Pair::flags`]: the peer rings this end's outer bell.
pub const PAIR_IS_RUNG_OUTSIDE: u32 = 4;
/// [`Pair::flags`]: the receiving end of this end's own outer bell accompanies the segment as last descriptor.
pub const PAIR_HAS_OWN_OUTER: u32 = 8;
/// [`Pair::flags`]: by the kernel's tickets this end's SYN counts one in its `bytes_acked`, as it does where the end
/// opened the connection.
pub const PAIR_COUNTS_SYN: u32 = 16;

/// `SO_PASSRIGHTS`, for which the C library's headers have no name yet: whether descriptors can be sent to a Unix
/// socket. Off in the receiving end of an outer bell.
pub const SO_PASSRIGHTS: core::ffi::c_int = 83;

body! {
    /// Two ends have been matched. Descriptors: the segment, then the peer's bell if [`PAIR_HAS_BELL`], then the
    /// receiving end of the own outer bell if [`PAIR_HAS_OWN_OUTER`].
    ///
    /// An eventfd is only given to a peer that runs as the same user in the same user and network namespaces: whoever
    /// holds it can also silence it, and have others wait for it. For other peers viaductd makes an outer bell beside
    /// it, a pair of Unix sockets, of which they get one end and its owner the other. Who has neither rings by a byte
    /// on the kernel connection. A bell that this process was given before is named, not sent again.
    Pair {
        /// As in [`Offer`].
        offer: u64,
        /// Names the segment within this viaductd.
        segment: u64,
        /// Names the peer's bell, unique within this viaductd; 0 for none.
        bell: u64,
        /// The bell of this end that the peer rings, as in [`Offer`]; 0 for none.
        own_bell: u64,
        /// 0: this end is the segment's first side, 1: its second.
        side: u32,
        /// `PAIR_*`.
        flags: u32,
        /// Peer's process number in viaductd's namespace.
        peer_pid: u32,
        /// Peer's user in viaductd's namespace.
        peer_uid: u32,
    }
}

body! {
    /// An offer came to nothing, or a hello did.
    Refuse {
        /// As in [`Offer`]; 0 for a hello.
        offer: u64,
        /// A [`crate::Reason`] as number.
        reason: u32,
        /// Milliseconds after which it may be offered again; 0: not at all.
        retry_ms: u32,
    }
}

impl Refuse {
    /// Why, if the reason is one that this version knows.
    pub fn reason(&self) -> Option<Reason> {
        u16::try_from(self.reason).ok().and_then(Reason::from_number)
    }
}

body! {
    /// This process has unmapped a segment.
    Detach {
        /// As in [`Pair`].
        segment: u64,
    }
}

body! {
    /// The command line asks how viaductd is.
    Query {
        /// [`crate::PROTOCOL_VERSION`].
        version: u32,
        /// Padding.
        reserved: u32,
    }
}

body! {
    /// How viaductd is.
    Stats {
        /// [`crate::PROTOCOL_VERSION`].
        version: u32,
        /// [`MODE_TICKET`] or [`MODE_SAME_USER`].
        mode: u32,
        /// viaductd's process number.
        pid: u32,
        /// Processes connected now.
        processes: u32,
        /// Seconds since start.
        uptime_s: u64,
        /// Offers waiting for their peer.
        offers_waiting: u64,
        /// Offers seen in all.
        offers: u64,
        /// Pairs made in all.
        pairs: u64,
        /// Offers refused in all.
        refused: u64,
        /// Segments in use now.
        segments: u64,
        /// Bytes these segments may grow to.
        segment_bytes: u64,
        /// Most segments one user may hold.
        segments_per_user: u64,
        /// Why viaductd takes no tickets: UTF-8, zero-padded; empty in ticket mode.
        mode_reason: [u8; 120],
    }
}

/// A packet as bytes on the stack.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    bytes: [u8; MAX_PACKET],
    len: usize,
}

impl Packet {
    /// Encodes `body`.
    pub fn new<B: Body>(body: &B) -> Self {
        const { assert!(size_of::<Header>() + size_of::<B>() <= MAX_PACKET) };
        let header = Header {
            magic: MAGIC,
            kind: B::KIND as u32,
        };
        let mut bytes = [0; MAX_PACKET];
        let (head, rest) = bytes.split_at_mut(size_of::<Header>());
        head.copy_from_slice(header.as_bytes());
        if let Some(place) = rest.get_mut(..size_of::<B>()) {
            place.copy_from_slice(body.as_bytes());
        }
        Self {
            bytes,
            len: size_of::<Header>() + size_of::<B>(),
        }
    }

    /// The encoded bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}

/// The kind of a received packet, or `None` if it is not one of ours.
pub fn kind_of(packet: &[u8]) -> Option<Kind> {
    let (header, _) = Header::read_from_prefix(packet).ok()?;
    (header.magic == MAGIC)
        .then_some(header.kind)
        .and_then(Kind::from_number)
}

/// Decodes a received packet as `B`; `None` if it is of another kind or of the wrong length.
pub fn decode<B: Body>(packet: &[u8]) -> Option<B> {
    if kind_of(packet)? != B::KIND {
        return None;
    }
    B::read_from_bytes(packet.get(size_of::<Header>()..)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_survives_the_wire() {
        let offer = Offer {
            offer: 7,
            cookie: 8,
            netns: 9,
            bell: 10,
            local: "127.0.0.1:80".parse::<std::net::SocketAddr>().unwrap().into(),
            remote: "[::1]:81".parse::<std::net::SocketAddr>().unwrap().into(),
            ticket_sequence: 11,
            flags: OFFER_HAS_BELL,
        };
        let packet = Packet::new(&offer);
        assert_eq!(kind_of(packet.as_bytes()), Some(Kind::Offer));
        assert_eq!(decode::<Offer>(packet.as_bytes()), Some(offer));
        assert_eq!(decode::<Hello>(packet.as_bytes()), None);
    }

    #[test]
    fn damaged_packets_are_refused() {
        let packet = Packet::new(&Withdraw { offer: 1 });
        let bytes = packet.as_bytes();
        assert_eq!(decode::<Withdraw>(&bytes[..bytes.len() - 1]), None);
        let mut longer = bytes.to_vec();
        longer.push(0);
        assert_eq!(decode::<Withdraw>(&longer), None);
        let mut foreign = bytes.to_vec();
        foreign[0] ^= 1;
        assert_eq!(kind_of(&foreign), None);
        assert_eq!(kind_of(&[]), None);
    }

    #[test]
    fn both_spellings_of_an_ipv4_end_are_one() {
        let plain: std::net::SocketAddr = "10.0.0.1:5".parse().unwrap();
        let mapped: std::net::SocketAddr = "[::ffff:10.0.0.1]:5".parse().unwrap();
        assert_eq!(Address::from(plain), Address::from(mapped));
        assert_eq!(Address::from(mapped).to_socket_addr(), plain);
    }
}
