//! What most calls on a lane come down to: one buffer, and nothing but moving its bytes to be done. This takes a
//! fraction of the instructions of [`send::attached`](crate::send::attached) and
//! [`receive::attached`](crate::receive::attached), which find out what else there may be to do, and go on where this
//! leaves off.

use crate::conn::{self, Conn};
use crate::receive::lane::take;
use crate::receive::waiting::begin_to_poll;
use crate::send::stores::LONG;
use crate::send::{CHECK_US, PLAIN_FLAGS, sent_on_lane, turn_to_lane};
use crate::vector::is_nowhere;
use crate::wait::spin::{self, Spinner};
use libc::c_int;
use viaduct_channel::{Dest, Sender, Source as Bytes, Violation};
use viaduct_stream::{Incoming, Mode, Outgoing, Source};

/// Flags of receives that are heeded here.
const RECEIVE_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_NOSIGNAL;

/// Sends what there is room for. Answers how many bytes; 0: nothing has been done.
#[inline(never)]
pub(crate) fn send(conn: &'static Conn, id: u64, bytes: Bytes<'_>, flags: c_int) -> usize {
    let len = bytes.len();
    if flags & !PLAIN_FLAGS != 0 || len == 0 || len >= LONG || is_nowhere(bytes.as_ptr()) {
        return 0;
    }
    append(conn, id, |lane| lane.append(bytes))
}

/// Sends up to `len` bytes that `fill` puts where they belong (see [`Sender::append_by`]), with the direction owned.
/// Answers how many bytes; 0: there is something else to be done first, or to be sent.
pub(crate) fn send_by(conn: &'static Conn, id: u64, len: usize, fill: impl FnOnce(&[Dest<'_>]) -> usize) -> usize {
    append(conn, id, |lane| lane.append_by(len, fill))
}

#[inline(always)]
fn append(conn: &'static Conn, id: u64, append: impl FnOnce(&Sender<'_>) -> Result<usize, Violation>) -> usize {
    let Some(guard) = conn.own_send(id) else { return 0 };
    // Only now: until then another thread, or process, may have shut it down.
    conn.learn_what_has_ended();
    if conn.flag(conn::SHUT_WRITE | conn::DEAD | conn::PEER_FIN | conn::OUT_WANTED) {
        return 0;
    }
    let Some(segment) = conn.segment(&guard) else { return 0 };
    let lane = segment.sender(conn.side());
    let out = Outgoing::new(lane);
    if out.mode() == Mode::Lane
        && !out.peer_wants_raw()
        && !out.peer_closes(|| Incoming::new(segment.receiver(conn.side())))
        && conn.wants_lane()
        && conn.may_go_unchecked(CHECK_US)
    {
        turn_to_lane(conn, &guard, &lane);
        if let Ok(sent @ 1..) = append(&lane) {
            sent_on_lane(conn, &guard, &lane, sent);
            return sent;
        }
    }
    0
}

/// Receives what is there. Answers how many bytes; 0: nothing has been done. A call that waits polls for a moment, and
/// `polling` keeps how it did.
#[inline(never)]
pub(crate) fn receive(
    conn: &'static Conn,
    id: u64,
    dest: Dest<'_>,
    flags: c_int,
    polling: &mut Option<Spinner>,
) -> usize {
    if flags & !RECEIVE_FLAGS != 0
        || dest.is_empty()
        || is_nowhere(dest.as_mut_ptr())
        || conn.common_flag(conn::LOW_WATER)
    {
        return 0;
    }
    let waits = flags & libc::MSG_DONTWAIT == 0 && !conn.nonblocking();
    // Each look is all of a receive: nothing is owned between two, and what the last one finds it has.
    let mut has_looked = false;
    while !conn.searched() {
        match look(conn, id, dest, flags, waits && polling.is_none()) {
            Look::Found(bytes) => {
                if let Some(spinner) = polling {
                    if has_looked {
                        spinner.paid();
                    } else {
                        // It may have been there before the rest, which says nothing of how long waits are.
                        spin::was_short();
                    }
                }
                return bytes;
            }
            Look::Nothing if !waits => return 0,
            Look::Nothing => has_looked = true,
            Look::Rest => {}
            Look::Elsewhere => break,
        }
        if !polling.get_or_insert_with(|| begin_to_poll(conn)).glances_again() {
            break;
        }
    }
    0
}

/// What came of a look.
enum Look {
    Found(usize),
    Nothing,
    /// A rest is to come first.
    Rest,
    /// Another look will not do.
    Elsewhere,
}

/// `may_rest`: there has been no look yet.
#[inline(always)]
fn look(conn: &'static Conn, id: u64, dest: Dest<'_>, flags: c_int, may_rest: bool) -> Look {
    let Some(guard) = conn.own_receive(id) else {
        return Look::Elsewhere;
    };
    let Some(segment) = conn.segment(&guard) else {
        return Look::Elsewhere;
    };
    let lane = segment.receiver(conn.side());
    if guard.searched() || Incoming::new(lane).source() != Source::Lane {
        return Look::Elsewhere;
    }
    if may_rest && conn.rest.comes_first() && conn.only_receives() && lane.found().is_empty() && spin::has_budget() {
        return Look::Rest;
    }
    let Ok(there) = lane.find(dest.len()) else {
        return Look::Elsewhere;
    };
    if there.is_empty() {
        return Look::Nothing;
    }
    if !conn.only_receives() {
        // An answer comes next, most likely, and whoever sent this has read what we sent last: the line is fetched
        // while the program works.
        segment.sender(conn.side()).prefetch();
    }
    if there.len() < dest.len() && (flags & libc::MSG_WAITALL != 0 || Incoming::new(lane).sender_leaves()) {
        return Look::Elsewhere;
    }
    let bytes = take(conn, &lane, there, dest);
    conn.received_again(bytes);
    Look::Found(bytes)
}
