//! What a connection's record remembers in single bits.

/// `TCP_NODELAY` is off as far as the program knows.
pub(crate) const NAGLE: u32 = 1 << 0;
/// the peer has shut down its sending direction, or is gone.
pub(crate) const PEER_FIN: u32 = 1 << 1;
/// the kernel connection is dead (error or both directions down).
pub(crate) const DEAD: u32 = 1 << 2;
/// the record was copied by `fork`; another process may hold the socket.
pub(crate) const FORKED: u32 = 1 << 3;
/// attached, but the peer has not been told that promotions may come.
pub(crate) const READY_OWED: u32 = 1 << 4;
/// never to be offered (again).
pub(crate) const BANNED: u32 = 1 << 5;

/// The peer has been asked to send by TCP, because `viaduct path` wants it.
pub(crate) const ASKED: u32 = 1 << 6;
/// `TCP_CORK` is on as far as the program knows.
pub(crate) const CORK: u32 = 1 << 15;
/// the peer's kernel has been asked what its FIN meant.
pub(crate) const FIN_PROBED: u32 = 1 << 16;
/// the program shut down its receiving direction.
pub(crate) const SHUT_READ: u32 = 1 << 17;
/// the program shut down its sending direction.
pub(crate) const SHUT_WRITE: u32 = 1 << 11;
/// given to somebody who may not know of lanes.
pub(crate) const HANDED_OVER: u32 = 1 << 12;
/// what the program has set is not the kernel's yet, though the connection is given away.
pub(crate) const OPTIONS_OWED: u32 = 1 << 9;
/// this process no longer counts among the holders.
pub(crate) const LEFT: u32 = 1 << 14;
/// a receive found nothing; an edge is due once there is something.
pub(crate) const IN_WANTED: u32 = 1 << 13;
/// a send found no room; an edge is due once there is some.
pub(crate) const OUT_WANTED: u32 = 1 << 10;
/// This end called connect.
pub(crate) const ACTIVE: u32 = 1 << 7;
/// [`Conn::flags`]: it came from another process, which may still hold it: viaductd is to say that nobody does.
///
/// [`Conn::flags`]: crate::conn::Conn::flags
pub(crate) const CAME: u32 = 1 << 31;
/// Direct search has been used: receives may have holes to mind.
pub(crate) const SEARCHED: u32 = 1 << 18;
/// The kernel's counts of what this end sends have been seen to agree.
pub(crate) const COUNTED: u32 = 1 << 8;
/// The record is older than the connection: not offered and not shown until that stands.
pub(crate) const EARLY: u32 = 1 << 30;
/// The hand-over that was begun last is done.
pub(crate) const GIVEN_AWAY: u32 = 1 << 19;
/// The program has asked for the times when bytes come.
pub(crate) const STAMPED: u32 = 1 << 21;
/// It has given a receive room for control messages, which such times come in.
pub(crate) const CONTROLLED: u32 = 1 << 22;
/// A look has found a lane that can hold no more, and nothing has been consumed since.
pub(crate) const LOOKED: u32 = 1 << 23;
/// The program wants each receive to tell what is left (`TCP_INQ`).
pub(crate) const TELLS_REST: u32 = 1 << 24;
/// The kernel has said that it is a stream, which datagram sockets that have been connected are not.
pub(crate) const STREAM: u32 = 1 << 25;
/// The kernel has met RST where TCP would have met FIN: of a peer that was killed when nothing but marks was unread.
/// Until the program sends.
pub(crate) const QUIET_END: u32 = 1 << 26;
/// Its offer waits for a wait that is seen.
pub(crate) const HELD_BACK: u32 = 1 << 28;
/// The program wants to hear of no fewer bytes than it has said (`SO_RCVLOWAT`).
pub(crate) const LOW_WATER: u32 = 1 << 27;
/// The program has set `O_NONBLOCK`, as far as its calls were seen.
pub(crate) const NONBLOCKING: u32 = 1 << 29;
/// [`Conn::flags`]: bytes have gone out behind the peer's FIN without a mark that tells whether it is there; whoever is
/// about to sleep puts one.
pub(crate) const MARK_OWED: u32 = 1 << 20;
