//! What has become of a peer whose FIN has been seen, and of what is sent to it behind that.

use crate::conn::{self, Conn};
use crate::kernel;
use crate::lock::Guard;
use crate::path::marks::found_broken;
use crate::send;
use crate::sys::raw;
use viaduct_stream::{Incoming, MARK_BELL, Mode, Outgoing};

/// When the peer's FIN has been seen, and behind what is sent after it: is it gone without having received all that was
/// sent to it on the lane? TCP would have ended with RST then; but a peer that was killed, or whose last holder did not
/// know that it was the last, leaves its kernel unaware of lane bytes. One that has only closed its own direction still
/// reads. Its kernel tells which it is: it answers a bell with RST. So it does where the program has shut both
/// directions down, and may still read: a peer that says so itself is not asked, and resets by itself when it closes.
/// One that is killed between the two is found out by the second send only.
pub(crate) fn look_behind_fin(conn: &Conn) {
    if let Some(guard) = conn.try_own_send() {
        look_behind(conn, &guard);
    }
}

/// Before a sleep: the last bytes may have gone out behind the FIN without a mark, and the peer may have been killed
/// with them.
pub(crate) fn put_owed(conn: &Conn) {
    if conn.common_flag(conn::MARK_OWED)
        && let Some(guard) = conn.try_own_send()
    {
        conn.set_common_flag(conn::MARK_OWED | conn::FIN_PROBED, false);
        look_behind(conn, &guard);
    }
}

/// The same for who does not sleep but asks what there is to tell, no more often than sends put marks. It is not
/// counted as theirs: where nothing is unread none is put, and the next bytes are to be the first that are refused.
pub(crate) fn put_owed_now_and_then(conn: &Conn) {
    if conn.common_flag(conn::MARK_OWED) && conn.may_mark(send::CHECK_US) {
        put_owed(conn);
    }
}

/// The same as [`look_behind_fin`] for who owns the sending direction.
pub(crate) fn look_behind(conn: &Conn, owner: &Guard<'_>) {
    conn.learn_what_has_ended();
    let is_over = || conn.flag(conn::SHUT_WRITE | conn::DEAD) || conn.common_flag(conn::FIN_PROBED);
    if !conn.flag(conn::PEER_FIN) || is_over() {
        return;
    }
    let Some(segment) = conn.segment(owner) else { return };
    // Who finds it probed is to know behind what.
    conn.set_common_flag(conn::PEER_FIN | conn::FIN_PROBED, true);
    let lane = segment.sender(conn.side());
    let (out, incoming) = (Outgoing::new(lane), || Incoming::new(segment.receiver(conn.side())));
    if out.mode() == Mode::Lane && lane.in_flight() > 0 && !out.peer_closes(incoming) {
        let is_gone = || raw::poll_now(conn.fd(), 0) & libc::POLLHUP != 0;
        // Behind a FIN of the peer's program receives find the end, and sends and waits what the kernel tells, once.
        let knows = incoming().sender_ends();
        if !(knows && is_gone())
            && let Err(errno) = send::mark(conn, MARK_BELL)
        {
            found_broken(conn, errno);
        }
        if is_gone() {
            conn.set_flag(conn::DEAD, true);
            if !knows {
                conn.set_error(libc::ECONNRESET);
                // What the kernel calls it would be told once more behind that.
                let _ = kernel::take_error(conn.fd());
            }
        }
    }
}
