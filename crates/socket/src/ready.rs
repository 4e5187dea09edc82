//! Readiness of an attached connection as its program sees it, in epoll's terms.

use crate::conn::pace::Bound;
use crate::conn::{self, Conn};
use crate::epoll::{BYTES, EDGE, FIRED, FRESH, KERNEL, Member, ROOM, Set, UNSEEN};
use crate::lock::Guard;
use crate::path::{behind, marks, recall, switch};
use crate::receive::{self, Found};
use crate::send;
use crate::sys::raw;
use crate::wait::bell;
use core::sync::atomic::Ordering::Relaxed;
use libc::{EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLPRI, EPOLLRDHUP};
use viaduct_channel::{Segment, Sender};
use viaduct_control::Reason;
use viaduct_stream::{Incoming, Mode, Outgoing, Source};

pub(crate) const IN: u32 = (EPOLLIN | libc::EPOLLRDNORM).cast_unsigned();
pub(crate) const OUT: u32 = (EPOLLOUT | libc::EPOLLWRNORM).cast_unsigned();
pub(crate) const RDHUP: u32 = EPOLLRDHUP.cast_unsigned();
pub(crate) const ALWAYS: u32 = (EPOLLERR | EPOLLHUP).cast_unsigned();
const PRI: u32 = EPOLLPRI.cast_unsigned();
const ERR: u32 = EPOLLERR.cast_unsigned();
const HUP: u32 = EPOLLHUP.cast_unsigned();
/// With any of these, as with TCP, bytes that come are an event, whatever it then tells of.
const TOLD_OF_BYTES: u32 = IN | PRI | libc::EPOLLRDBAND.cast_unsigned();
/// All but room.
const NEWS_IN: u32 = IN | RDHUP | PRI | ALWAYS;

/// What the kernel may know more than the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    Nothing,
    /// It has told that there are bytes, marks mostly, and of nothing else: a lane with bytes of its own says all.
    Bytes,
    /// Anything: it is to be asked.
    Anything,
}

/// What `conn` is ready for among `interest`. As with TCP, the end is not told of without what there is to receive
/// before it, so that is looked for last.
#[inline]
pub(crate) fn look<P>(conn: &'static Conn, proof: &P, interest: u32, knows: Kernel) -> u32 {
    let mut kernel = knows == Kernel::Anything;
    let Some(segment) = conn.segment(proof) else { return 0 };
    conn.learn_what_has_ended();
    let mut mask = 0;
    let ends = || Incoming::new(segment.receiver(conn.side())).sender_ends();
    // Behind an end only the kernel knows what else there is to tell.
    kernel |= conn.flag(conn::PEER_FIN | conn::DEAD | conn::SHUT_READ) || ends();
    if interest & OUT != 0 {
        let lane = segment.sender(conn.side());
        let out = Outgoing::new(lane);
        let has_room = out.mode() == Mode::Lane && roomy(&lane);
        if !has_room && out.mode() == Mode::Lane && out.peer_wants_raw() {
            switch::serve(conn);
        }
        if has_room || conn.flag(conn::DEAD | conn::SHUT_WRITE) {
            mask |= OUT;
        } else if out.mode() != Mode::Lane && !recall::is_peers_turn(conn, &out) {
            let events = u32::from(raw::poll_now(conn.fd(), libc::POLLOUT | libc::POLLWRNORM).cast_unsigned());
            mask |= events & OUT;
            kernel |= events & ALWAYS != 0;
        }
    }
    if kernel || knows == Kernel::Bytes {
        switch::serve(conn);
    }
    if kernel {
        let asked = libc::POLLRDHUP | libc::POLLPRI;
        let events = u32::from(raw::poll_now(conn.fd(), asked).cast_unsigned());
        if events & ALWAYS != 0 {
            conn.look_soon();
            if let Err(errno) = marks::learn_of_error(conn)
                && errno != libc::EPIPE
            {
                conn.set_error(errno);
            }
        }
        conn.set_flag(conn::PEER_FIN, events & RDHUP != 0 || conn.flag(conn::PEER_FIN));
        mask |= events & (RDHUP | PRI | ALWAYS);
        if events & HUP != 0 {
            // As with TCP, nobody waits for room any more.
            mask |= OUT;
        }
    }
    if interest & IN != 0 {
        let lane = segment.receiver(conn.side());
        if Incoming::new(lane).source() == Source::Lane && lane.published() != lane.head() {
            mask |= IN;
        } else if kernel || knows == Kernel::Bytes || conn.flag(conn::PEER_FIN) || conn.has_error() {
            mask |= look_closely(conn);
        }
    }
    if conn.flag(conn::PEER_FIN) {
        mask |= RDHUP;
        if conn.flag(conn::SHUT_WRITE) {
            mask |= HUP | OUT;
        }
    }
    if conn.has_error() {
        // Which the kernel tells no more.
        mask |= ERR | u32::from(raw::poll_now(conn.fd(), 0).cast_unsigned());
    }
    if conn.flag(conn::QUIET_END) {
        // Both directions are over only where this end's was already.
        mask &= if conn.flag(conn::SHUT_WRITE) { !ERR } else { !ALWAYS };
    }
    if mask & (RDHUP | HUP) != 0 {
        // The end itself can be received.
        mask |= IN;
    }
    mask & (interest | ALWAYS)
}

/// Bytes that must be free before whoever found no room in a lane is told of some: as with TCP a third of what it can
/// hold, so that a program that waits before each write seldom blocks in it, and a sender that sleeps does not wake for
/// every block.
pub(crate) fn share(lane: &Sender<'_>) -> usize {
    lane.capacity() / 3
}

/// Whether a lane counts as writable: with its [`share`] free, or any room at all for a peer that needs more before it
/// receives anything.
pub(crate) fn roomy(lane: &Sender<'_>) -> bool {
    // More than it takes to be granted all there is, whatever a hostile peer makes of it.
    for _ in 0..8 {
        let space = lane.space();
        if space != 0 && (space >= share(lane) || lane.is_wanted()) {
            return true;
        }
        if !lane.grant() {
            break;
        }
    }
    false
}

/// Readiness to receive, with the marks looked at and stretches entered and left.
fn look_closely(conn: &'static Conn) -> u32 {
    match receive::look(conn, conn.id()) {
        Ok(Found::Bytes(_)) => IN,
        Ok(Found::Nothing) => 0,
        Ok(Found::End) => IN | RDHUP,
        Err(errno) => {
            conn.set_error(errno);
            IN | ERR | HUP
        }
    }
}

/// What to report of a member now, in the mode it was registered with; 0 for nothing. The set is owned.
#[inline]
pub(crate) fn report(owner: &Guard<'_>, member: &Member, conn: &'static Conn) -> u32 {
    // Before the look: what is published after it must count as new next time.
    let position = published(conn, owner);
    let mask = due(owner, member, conn, position);
    if mask == 0 {
        return 0;
    }
    let interest = member.events.load(Relaxed);
    if interest & EPOLLET.cast_unsigned() != 0 {
        member.reported.store(position, Relaxed);
        // As with TCP, an event that does not speak of room promises another that does.
        let promised = if interest & OUT & !mask != 0 { ROOM } else { 0 };
        member.change(FRESH | EDGE | ROOM, promised);
        member.ends(conn, mask);
        if mask & NEWS_IN != 0 {
            conn.set_flag(conn::IN_WANTED, false);
        }
        if mask & OUT != 0 {
            conn.set_flag(conn::OUT_WANTED, false);
        }
    }
    if interest & EPOLLONESHOT.cast_unsigned() != 0 {
        member.change(0, FIRED);
    }
    mask
}

/// Whether there is something to report of a member.
pub(crate) fn is_due(owner: &Guard<'_>, member: &Member, conn: &'static Conn) -> bool {
    due(owner, member, conn, published(conn, owner)) != 0
}

/// What is to be reported of a member in whose lane so much is published.
#[inline]
fn due(owner: &Guard<'_>, member: &Member, conn: &'static Conn, position: u64) -> u32 {
    let flags = member.flags.load(Relaxed);
    if flags & FIRED != 0 {
        return 0;
    }
    let interest = member.events.load(Relaxed);
    // Before the look, which takes marks.
    let was_raw = flags & EDGE != 0 && receives_raw(conn, owner);
    let knows = match flags & (KERNEL | BYTES) {
        0 | BYTES => Kernel::Nothing,
        KERNEL => Kernel::Anything,
        _ => Kernel::Bytes,
    };
    behind::put_owed_now_and_then(conn);
    let mask = look(conn, owner, interest, knows);
    if flags & KERNEL != 0 && mask & NEWS_IN == 0 {
        member.change(KERNEL | BYTES, if interest & IN == 0 { UNSEEN } else { 0 });
    }
    if mask == 0 || interest & EPOLLET.cast_unsigned() == 0 {
        return mask;
    }
    let tells = interest & TOLD_OF_BYTES != 0;
    let mut came = tells && position != member.reported.load(Relaxed);
    if flags & EDGE != 0 && !came {
        came = mask & (PRI | ALWAYS) != 0 || tells && (was_raw || marks::hide_bytes(conn));
        if !came {
            member.change(EDGE, 0);
        }
    }
    let arrived = flags & FRESH != 0 || came || tells && conn.flag(conn::IN_WANTED);
    // As with TCP, bytes that have come and have been received meanwhile leave an event that tells of all else there
    // is.
    let roomy = flags & (FRESH | ROOM) != 0 || came;
    let news = mask & NEWS_IN != 0 && arrived || mask & OUT != 0 && roomy;
    if news { mask } else { 0 }
}

/// Whether a look at the lane tells all there is to know of bytes to receive.
pub(crate) fn receives_on_lane<P>(conn: &Conn, proof: &P) -> bool {
    conn.segment(proof).is_some_and(|segment| {
        let incoming = Incoming::new(segment.receiver(conn.side()));
        incoming.source() == Source::Lane && !incoming.sender_leaves()
    })
}

/// Whether what the kernel connection carries are bytes of the stream.
fn receives_raw<P>(conn: &Conn, proof: &P) -> bool {
    conn.segment(proof).is_some_and(|segment| {
        let source = Incoming::new(segment.receiver(conn.side())).source();
        matches!(source, Source::Raw | Source::RawUntil(_))
    })
}

fn published<P>(conn: &Conn, proof: &P) -> u64 {
    conn.segment(proof)
        .map_or(0, |segment| segment.receiver(conn.side()).published())
}

/// How long a sleep for room in `conn`'s lane may be, whose receiver has been asked to ring by `bit`. One that has to
/// ring by a mark can only do so while its own direction is on the lane.
pub(crate) fn bound_of_room(conn: &Conn, segment: &Segment, bit: u32) -> Bound {
    let incoming = Incoming::new(segment.receiver(conn.side()));
    if bit == bell::BY_BELL || incoming.source() == Source::Lane {
        Bound::Room
    } else {
        Bound::UnrungRoom
    }
}

/// After a sleep for room that might not last for ever; it `rang` unless nothing else than that has ended it, and
/// `rings` where somebody has rung since. Whoever makes room takes the wait `bit` and rings. A bell that has not rung
/// for it twice running is one that the peer cannot ring, having no place for it or a sending end that is full, and is
/// not to be counted on for this connection, for a while.
pub(crate) fn mind_bell(conn: &'static Conn, bit: u32, rang: bool, rings: impl Fn() -> bool) {
    if rang && !conn.rung.is_doubted() {
        return;
    }
    if let Some(guard) = conn.own_send(conn.id())
        && let Some(segment) = conn.segment(&guard)
        && let lane = segment.sender(conn.side())
        && Outgoing::new(lane).mode() == Mode::Lane
    {
        mind_bell_of(conn, &lane, bit, rang, rings);
    }
}

/// The same for who owns the sending direction.
pub(crate) fn mind_bell_of(conn: &Conn, lane: &Sender<'_>, bit: u32, rang: bool, rings: impl Fn() -> bool) {
    if bit != bell::BY_BELL || lane.awaits_credit(bit) {
        return;
    }
    // On a busy machine it is a while ago that the sleep ended.
    if rang || rings() {
        conn.rung.rang();
    } else {
        conn.rung.went_unrung();
    }
}

/// Whether it is to be woken by room.
pub(crate) fn asks_for_room(member: &Member) -> bool {
    let interest = member.events.load(Relaxed);
    let edge = interest & EPOLLET.cast_unsigned() != 0;
    interest & OUT != 0 && !member.has(FIRED) && (!edge || member.has(FRESH | ROOM))
}

/// Arms a hot member for a sleep; true if it turns out to be ready. `bound` is raised to what the sleep must not
/// exceed.
pub(crate) fn arm(set: &Set, owner: &Guard<'_>, member: &Member, conn: &'static Conn, bound: &mut Bound) -> bool {
    if member.has(FIRED) {
        return false;
    }
    behind::put_owed(conn);
    let interest = member.events.load(Relaxed);
    let edge = interest & EPOLLET.cast_unsigned() != 0;
    let Some(segment) = conn.segment(owner) else {
        return false;
    };
    let out = Outgoing::new(segment.sender(conn.side()));
    if recall::is_pending(conn, &out) {
        *bound = Bound::UnrungRoom;
    }
    let bit = set.bit_for(conn);
    if interest & IN != 0 {
        let lane = segment.receiver(conn.side());
        // In a raw stretch too: another waiter may take the mark that tells of the lane's.
        if Incoming::new(lane).source() != Source::LaneThenRaw {
            lane.arm(bit);
        }
        if Incoming::new(lane).source() == Source::Lane && has_news(member, conn, &lane, edge) {
            return true;
        }
    }
    if asks_for_room(member) {
        let lane = segment.sender(conn.side());
        if out.mode() != Mode::Lane {
            if recall::is_peers_turn(conn, &out) {
                return false;
            }
            // Moved since it was last looked at; the kernel tells of changes only.
            return raw::poll_now(conn.fd(), libc::POLLOUT) != 0;
        }
        if !roomy(&lane) {
            lane.arm_credit_for(bit, share(&lane));
            *bound = (*bound).max(bound_of_room(conn, segment, bit));
        }
        return roomy(&lane);
    }
    false
}

/// Whether the lane has bytes that are to be reported: any in level mode, unreported ones in edge mode.
#[inline]
fn has_news(member: &Member, conn: &Conn, lane: &viaduct_channel::Receiver<'_>, edge: bool) -> bool {
    let published = lane.published();
    published != lane.head() && (!edge || published != member.reported.load(Relaxed) || conn.flag(conn::IN_WANTED))
}

/// When the peer's thread turned to the lane from another connection, in ticks; 0: not yet.
pub(crate) fn turned_at<P>(proof: &P, conn: &Conn) -> u64 {
    conn.segment(proof)
        .map_or(0, |segment| segment.receiver(conn.side()).sent_at())
}

/// Whether the sender has said that its stream ends.
pub(crate) fn has_ended<P>(proof: &P, conn: &Conn) -> bool {
    conn.segment(proof)
        .is_some_and(|segment| Incoming::new(segment.receiver(conn.side())).sender_ends())
}

/// Takes back what [`arm`] left, where it was the set's bell.
pub(crate) fn disarm(set: &Set, owner: &Guard<'_>, conn: &'static Conn) {
    if set.bit_for(conn) == bell::BY_BELL {
        disarm_for(owner, conn, bell::BY_BELL);
    }
}

/// Arms a member that nobody polls any more to be woken by a mark; true if it has bytes after all.
pub(crate) fn arm_cold<P>(proof: &P, conn: &'static Conn) -> bool {
    arm_for(proof, conn, bell::BY_SOCKET)
}

/// Leaves the wait bit `bit` where bytes come by the lane, now or next; true if it has bytes after all.
pub(crate) fn arm_for<P>(proof: &P, conn: &'static Conn, bit: u32) -> bool {
    let Some(segment) = conn.segment(proof) else {
        return false;
    };
    let lane = segment.receiver(conn.side());
    if Incoming::new(lane).source() != Source::LaneThenRaw {
        lane.arm(bit);
    }
    Incoming::new(lane).source() == Source::Lane && lane.published() != lane.head()
}

/// Takes the wait bit `bit` back.
pub(crate) fn disarm_for<P>(proof: &P, conn: &'static Conn, bit: u32) {
    if let Some(segment) = conn.segment(proof) {
        segment.receiver(conn.side()).disarm(bit);
    }
}

/// After a sleep for room: a member whose peer asks for it, or has taken nothing off a full lane, goes back to the
/// kernel's buffers.
pub(crate) fn relieve(conn: &'static Conn) {
    switch::serve(conn);
    let id = conn.id();
    let Some(guard) = conn.own_send(id) else { return };
    let Some(segment) = conn.segment(&guard) else { return };
    let lane = segment.sender(conn.side());
    let out = Outgoing::new(lane);
    if out.mode() == Mode::Lane && !roomy(&lane) {
        // A peer that has closed will never make room; its kernel says so when asked.
        if let Err(errno) = marks::probe_peer(conn, &guard) {
            marks::found_broken(conn, errno);
        }
    }
    if out.mode() == Mode::Lane && !roomy(&lane) && send::may_overflow(conn, &lane) && conn.stuck_at(out.progress()) {
        switch::demote(conn, &out, Reason::LaneStall);
        conn.note_stall();
        // The mark that ends the stretch; if the kernel's buffer is full, the next send makes up for it.
        let _ = switch::send_back(conn, &out);
    } else if out.mode() == Mode::Lane && !roomy(&lane) && conn.stuck_at(out.progress()) {
        marks::probe_behind_bytes(conn, &out);
    }
}

/// Whether a hot member's lane has moved since it was last looked at.
#[inline]
pub(crate) fn stirs(owner: &Guard<'_>, member: &Member, conn: &'static Conn) -> bool {
    let Some(segment) = conn.segment(owner) else {
        return false;
    };
    let interest = member.events.load(Relaxed);
    let edge = interest & EPOLLET.cast_unsigned() != 0;
    if interest & IN != 0 {
        let lane = segment.receiver(conn.side());
        if has_news(member, conn, &lane, edge) {
            return !member.has(FIRED);
        }
    }
    interest & OUT != 0 && member.flags.load(Relaxed) & (ROOM | FIRED) == ROOM && roomy(&segment.sender(conn.side()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::records;
    use std::io::Write;
    use std::net::Shutdown;

    #[test]
    fn the_end_is_not_told_of_without_what_comes_before() {
        let (conn, [stream, mut peer]) = records::on_the_heap();
        peer.write_all(b"last").unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        while raw::poll_now(conn.fd(), 0) == 0 {}
        // All of them are natively reported together, whoever has looked at what before.
        let all = OUT | IN | RDHUP;
        assert_eq!(look(conn, &conn, all, Kernel::Nothing), all | HUP);
        assert_eq!(look(conn, &conn, IN | RDHUP, Kernel::Anything), IN | RDHUP | HUP);
    }
}
