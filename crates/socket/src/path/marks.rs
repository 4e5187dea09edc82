//! The marks on the kernel connection of a direction that is on the lane, and what becomes of the peer.

use crate::conn::{self, Conn};
use crate::lock::{self, ENDS_STRETCH, Guard, Locks};
use crate::path::behind::{look_behind, look_behind_fin, put_owed_now_and_then};
use crate::receive::plain;
use crate::sys::{Errno, raw};
use crate::wait::bell;
use crate::{epoll, kernel, send};
use core::sync::atomic::Ordering::Relaxed;
use viaduct_channel::{Receiver, Segment};
use viaduct_stream::{Incoming, MARK_BACK, MARK_BELL, Mode, Outgoing, Source};

/// What the marks on the kernel connection said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marks {
    /// Nothing new.
    None,
    /// There were marks, or the lane has bytes: look again.
    Changed,
    /// The connection has ended, and the lane is empty.
    End,
}

/// Which marks stay where they are while the lane has bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leave {
    None,
    /// Bells, as long as they are all there is.
    Bells,
    All,
}

/// Takes the marks off the kernel connection of a direction that is on the lane. The receiving direction is owned.
pub(crate) fn look_at_marks(conn: &Conn, incoming: &Incoming<'_>, lane: &Receiver<'_>) -> Result<Marks, Errno> {
    look(conn, incoming, lane, Leave::None, 0)
}

/// The same for a search that finds too little in the lane and leaves what there is: bells stay for those who sleep
/// until one tells of it. Also how many bytes of the kernel's are no news.
pub(crate) fn look_behind_bells(
    conn: &Conn,
    incoming: &Incoming<'_>,
    lane: &Receiver<'_>,
) -> Result<(Marks, u64), Errno> {
    // The end stands behind bells too, and wakes everybody by itself.
    if !conn.has_sleepers() || raw::poll_now(conn.fd(), libc::POLLRDHUP) != 0 {
        return Ok((look(conn, incoming, lane, Leave::None, 0)?, 0));
    }
    // Counted before the look, so that what comes after it is news.
    let queued = kernel::queued(conn.fd());
    Ok((look(conn, incoming, lane, Leave::Bells, 0)?, queued as u64))
}

/// The same, but leaves all marks while the lane has bytes: others who sleep on the kernel connection, threads and
/// processes, would not find there what woke them, and sleep on.
pub(crate) fn look_past_bells(conn: &Conn, incoming: &Incoming<'_>, lane: &Receiver<'_>) -> Result<Marks, Errno> {
    look(conn, incoming, lane, Leave::All, 0)
}

/// The same for who has armed the lane and is about to sleep, and noted for that already: it would go on to be woken by
/// marks, each of which it takes here.
pub(crate) fn look_before_sleep(conn: &Conn, incoming: &Incoming<'_>, lane: &Receiver<'_>) -> Result<Marks, Errno> {
    look(conn, incoming, lane, Leave::All, lock::name())
}

/// Whether a look would find nothing on the kernel connection, and nothing else to do: known before anything is owned.
/// A thread may lose the core as it leaves a system call, and whoever wants what it owns then waits for as long.
pub(crate) fn is_quiet(conn: &Conn) -> bool {
    !has_news(conn) && raw::poll_now(conn.fd(), NEWS) == 0
}

/// What a poll of the kernel connection tells where a look would find something.
pub(crate) const NEWS: i16 = libc::POLLIN | libc::POLLPRI | libc::POLLRDHUP;

/// Whether a look may find something of which a poll of the kernel connection does not tell.
pub(crate) fn has_news(conn: &Conn) -> bool {
    let known = conn::PEER_FIN | conn::DEAD | conn::SHUT_READ;
    // The kernel keeps what is below the low-water mark to itself.
    conn.flag(known) || conn.common_flag(conn::LOW_WATER) || conn.has_error() || crate::path::wish::is_news(conn)
}

/// `sleeper`: who need not be told of what comes next.
fn look(conn: &Conn, incoming: &Incoming<'_>, lane: &Receiver<'_>, leave: Leave, sleeper: u32) -> Result<Marks, Errno> {
    crate::path::wish::heed(conn, incoming);
    let mut marks = [0; 64];
    let mut changed = false;
    // Bounded: a hostile peer may send marks faster than they are taken.
    for _ in 0..16 {
        match raw::recv(conn.fd(), &mut marks, libc::MSG_PEEK | libc::MSG_DONTWAIT) {
            Ok(0) => {
                conn.set_flag(conn::PEER_FIN, true);
                look_behind_fin(conn);
                return last_bytes_first(conn, lane, Ok(Marks::End));
            }
            Ok(seen) => {
                changed = true;
                // Where they fill the room, others may follow.
                let all_seen = seen < marks.len();
                let marks = marks.get(..seen).unwrap_or(&[]);
                let stay = match leave {
                    Leave::None => false,
                    Leave::Bells => all_seen && marks.iter().all(|mark| *mark == MARK_BELL),
                    Leave::All => true,
                };
                let has_bytes = || lane.published() != lane.head();
                // A bell is put after its bytes, so none of these is for bytes that come after this look at the lane.
                if stay && has_bytes() {
                    return Ok(Marks::Changed);
                }
                let for_others = conn.has_sleepers_beside(sleeper) || set_may_miss_edge(conn);
                if for_others {
                    // The mark may have been for another, whose wait bit went with it. Armed before it is taken: of
                    // bytes that come in between nobody else would be told.
                    lane.arm(bell::BY_SOCKET);
                    if stay && has_bytes() {
                        return Ok(Marks::Changed);
                    }
                }
                if let Err(errno) = take_seen(conn, incoming, marks) {
                    return last_bytes_first(conn, lane, Err(errno));
                }
                if incoming.source() != Source::Lane || for_others && has_bytes() {
                    return Ok(Marks::Changed);
                }
            }
            Err(libc::EAGAIN | libc::EINTR) => {
                let errno = conn.take_error();
                if errno != 0 {
                    return last_bytes_first(conn, lane, Err(errno));
                }
                return Ok(if changed { Marks::Changed } else { Marks::None });
            }
            Err(errno) => {
                conn.set_flag(conn::PEER_FIN | conn::DEAD, true);
                let quiet = note_quiet_end(conn, incoming, errno);
                return last_bytes_first(conn, lane, if quiet { Ok(Marks::End) } else { Err(errno) });
            }
        }
    }
    Ok(Marks::Changed)
}

/// Whether the kernel may drop the edge that a mark made in a set, the mark being taken. As a rule it does not: our
/// registrations ask for room, too, and there is some as long as this end's own bytes go by the lane. The program's own
/// need not.
fn set_may_miss_edge(conn: &Conn) -> bool {
    let raw = |segment: &Segment| Outgoing::new(segment.sender(conn.side())).mode() != Mode::Lane;
    conn.memberships.load(Relaxed) != 0 && (conn.segment(&conn).is_some_and(raw) || epoll::is_left_to_kernel(conn))
}

/// Whether the kernel holds bytes of the stream, behind marks or the rest of a lane stretch; also where that cannot be
/// told now.
#[cold]
pub(crate) fn hide_bytes(conn: &Conn) -> bool {
    let Some(guard) = conn.own_receive(conn.id()) else {
        return true;
    };
    let Some(segment) = conn.segment(&guard) else {
        return true;
    };
    let incoming = Incoming::new(segment.receiver(conn.side()));
    if incoming.source() != Source::Lane {
        return raw::poll_now(conn.fd(), libc::POLLIN | libc::POLLPRI) != 0;
    }
    let mut marks = [0; 64];
    incoming.sender_leaves()
        && match raw::recv(conn.fd(), &mut marks, libc::MSG_PEEK | libc::MSG_DONTWAIT) {
            Ok(seen) => match marks
                .get(..seen)
                .unwrap_or(&[])
                .iter()
                .position(|mark| *mark == MARK_BACK)
            {
                // The look ends before urgent data, behind which there may be more.
                Some(back) => {
                    let queued = |locks| kernel::queued_in_all(conn.fd(), locks);
                    conn.locks().map_or(0, queued) > back + 1
                }
                None => seen == marks.len(),
            },
            Err(errno) => errno != libc::EAGAIN,
        }
}

/// Takes these marks, which have been seen, off the kernel connection, up to one that ends the stretch.
fn take_seen(conn: &Conn, incoming: &Incoming<'_>, marks: &[u8]) -> Result<(), Errno> {
    let Some(bells) = marks.iter().position(|mark| *mark == MARK_BACK) else {
        return take(conn, marks.len());
    };
    take(conn, bells)?;
    let Some(locks) = conn.locks() else { return Ok(()) };
    // Who is killed in between leaves it to others to tell by this whether the mark is still there: what follows is
    // data.
    let position = plain::own_position(conn).ok_or(libc::ECONNRESET)?;
    locks.behind_mark.store(position.wrapping_add(1), Relaxed);
    locks.begin(ENDS_STRETCH);
    incoming.marks(&[MARK_BACK]);
    let taken = take(conn, 1);
    locks.end(ENDS_STRETCH);
    taken
}

/// Does what is left of that. Where nobody can tell how far it has come, the connection is broken: what the kernel has
/// left is not received.
#[cold]
pub(crate) fn finish_stretch(conn: &Conn, locks: &Locks, guard: &Guard<'_>) {
    if let Some(segment) = conn.segment(guard) {
        Incoming::new(segment.receiver(conn.side())).marks(&[MARK_BACK]);
    }
    let done = match plain::own_position(conn) {
        Some(position) if position < locks.behind_mark.load(Relaxed) => take(conn, 1),
        Some(_) => Ok(()),
        None => {
            kernel::give_up(conn.fd());
            match raw::poll_now(conn.fd(), 0) & libc::POLLERR {
                0 => Err(libc::ECONNRESET),
                _ => Ok(()),
            }
        }
    };
    if let Err(errno) = done {
        conn.set_error(errno);
    }
    locks.end(ENDS_STRETCH);
}

/// Takes `count` marks that have been seen off the kernel connection.
pub(crate) fn take(conn: &Conn, count: usize) -> Result<(), Errno> {
    let mut bytes = [0; 64];
    let mut left = count;
    while let Some(room) = bytes.get_mut(..left.min(64))
        && left > 0
    {
        take_into(conn, room)?;
        left -= left.min(64);
    }
    Ok(())
}

/// Takes as many bytes as there is `room`, which have been seen, off the kernel connection. Read rather than discarded:
/// what stays behind would be taken for data later.
pub(crate) fn take_into(conn: &Conn, mut room: &mut [u8]) -> Result<(), Errno> {
    while !room.is_empty() {
        match conn.take_counted(|| raw::recv(conn.fd(), room, libc::MSG_DONTWAIT)) {
            Ok(0) => return Ok(()),
            Ok(taken) => room = room.get_mut(taken..).unwrap_or_default(),
            Err(libc::EINTR) => {}
            // Another process took them, which knows no better.
            Err(libc::EAGAIN) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// A connection has ended: what the peer published before still counts, and comes first.
fn last_bytes_first(conn: &Conn, lane: &Receiver<'_>, ending: Result<Marks, Errno>) -> Result<Marks, Errno> {
    match lane.readable() {
        Ok(0) => ending,
        Ok(_) => {
            if let Err(errno) = ending {
                conn.set_error(errno);
            }
            Ok(Marks::Changed)
        }
        Err(_) => Err(send::violated(conn)),
    }
}

/// Puts a mark by `put`, though no bytes follow it, unless the peer is closing: its kernel would answer with RST and
/// forget what it has still to deliver.
pub(crate) fn unless_closing<T>(conn: &Conn, out: &Outgoing<'_>, put: impl FnOnce() -> T) -> Option<T> {
    let segment = conn.segment(&conn)?;
    let may = out.begin_mark(&Incoming::new(segment.receiver(conn.side())));
    let done = may.then(put);
    out.end_mark();
    done
}

/// Puts a mark; `None`: the peer has left, or is about to, and whoever receives there would take it for data. The
/// sending direction is owned, and not raw.
pub(crate) fn put(conn: &Conn, out: &Outgoing<'_>, mark: u8) -> Option<Result<usize, Errno>> {
    let done = out
        .begin_put()
        .then(|| raw::send(conn.fd(), &[mark], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL));
    out.end_put(matches!(done, Some(Ok(1..))));
    done
}

/// A mark could not be sent. The kernel tells a broken connection's error once, so it is kept for the program's next
/// call.
pub(crate) fn found_broken(conn: &Conn, errno: Errno) {
    let quiet = conn.segment(&conn).is_some_and(|segment| {
        let incoming = Incoming::new(segment.receiver(conn.side()));
        note_quiet_end(conn, &incoming, errno)
    });
    // Nobody but senders is ever told of a broken pipe.
    if errno != libc::EPIPE && !quiet {
        conn.set_error(errno);
    }
}

/// Notes if the peer was killed after it had received all that was sent to it, and answers whether. TCP would have
/// ended with FIN then, and so does the connection from now on; the RST only says that the peer's kernel held marks of
/// ours that nobody took.
fn note_quiet_end(conn: &Conn, incoming: &Incoming<'_>, errno: Errno) -> bool {
    // Behind the peer's FIN the kernel calls it a broken pipe.
    let reset = errno == libc::ECONNRESET || errno == libc::EPIPE && conn.flag(conn::PEER_FIN);
    let killed = reset && !incoming.peer_means_reset();
    let quiet = killed && peer_took_all(conn);
    if quiet {
        conn.set_flag(conn::QUIET_END, true);
    }
    quiet
}

/// The kernel tells waits of an error: finds out whether the program is to be told. Left to the kernel where it is in
/// any case.
///
/// # Errors
/// The program is to be told of this one, which the kernel has forgotten.
#[cold]
pub(crate) fn learn_of_error(conn: &Conn) -> Result<(), Errno> {
    let Some(segment) = conn.segment(&conn).filter(|_| !conn.flag(conn::DEAD)) else {
        return Ok(());
    };
    let incoming = Incoming::new(segment.receiver(conn.side()));
    if incoming.peer_means_reset() || !peer_took_all(conn) {
        return Ok(());
    }
    kernel::take_error(conn.fd()).or_else(|errno| {
        conn.set_flag(conn::PEER_FIN | conn::DEAD, true);
        if note_quiet_end(conn, &incoming, errno) {
            Ok(())
        } else {
            Err(errno)
        }
    })
}

/// The error that has not been told: to a send on a broken connection, as with TCP, before that it is broken. The
/// kernel is asked where there may be one.
pub(crate) fn untold_error(conn: &Conn) -> Option<Errno> {
    let kept = conn.take_error();
    if kept != 0 {
        return Some(kept);
    }
    conn.learn_what_has_ended();
    let ends = |segment: &Segment| Incoming::new(segment.receiver(conn.side())).sender_ends();
    if !conn.flag(conn::PEER_FIN | conn::DEAD | conn::SHUT_WRITE) && !conn.segment(&conn).is_some_and(ends) {
        return None;
    }
    let known = learn_of_error(conn).and_then(|()| match conn.flag(conn::QUIET_END) {
        true => Ok(()),
        false => kernel::take_error(conn.fd()),
    });
    known.err()
}

/// Whether the peer has received all that was sent to it.
fn peer_took_all(conn: &Conn) -> bool {
    conn.segment(&conn).is_some_and(|segment| {
        let lane = segment.sender(conn.side());
        let out = Outgoing::new(lane);
        out.mode() == Mode::Lane && lane.in_flight() == 0 && !out.is_refused()
    })
}

/// Bytes are about to be sent, on whatever path. Answers whether the peer has shut both directions down, whose kernel
/// answers them with RST: it tells the peer's program of that, too, who is not to take it for one of marks that nobody
/// took.
pub(crate) fn will_be_refused(conn: &Conn) -> bool {
    conn.segment(&conn).is_some_and(|segment| {
        let out = Outgoing::new(segment.sender(conn.side()));
        let incoming = || Incoming::new(segment.receiver(conn.side()));
        let refused = out.peer_closes(incoming) && incoming().sender_refuses();
        if refused {
            out.set_refused();
        }
        refused
    })
}

/// For the program's next call, an error that came behind bytes of this one: the kernel tells each of the connection
/// once.
pub(crate) fn keep_error(conn: &Conn, errno: Errno) {
    let of_call = [
        libc::EAGAIN,
        libc::EINTR,
        libc::EFAULT,
        libc::EBADF,
        libc::EPIPE,
        libc::ENOMEM,
    ];
    if errno > 0 && !of_call.contains(&errno) {
        conn.set_error(errno);
    }
}

/// Looks at the kernel connection of a peer that is only sent to.
#[cold]
pub(crate) fn check_peer(conn: &Conn, owner: &Guard<'_>) -> Result<(), Errno> {
    let events = raw::poll_now(conn.fd(), libc::POLLRDHUP);
    if events & libc::POLLRDHUP != 0 {
        conn.set_flag(conn::PEER_FIN, true);
    }
    if events & (libc::POLLERR | libc::POLLHUP) != 0 {
        learn_of_error(conn)?;
        if conn.flag(conn::QUIET_END) {
            return Ok(());
        }
        // The kernel knows the error; sending tells it.
        send::mark(conn, MARK_BELL)?;
    }
    // Before anything else is sent: what the peer has not received by now was sent before its end.
    look_behind(conn, owner);
    Ok(())
}

/// Looks at the peer of a full lane, and if it has closed a direction, finds out whether it is there at all: the kernel
/// answers a mark to a closed connection with RST. The sending direction is owned and on the lane.
#[cold]
pub(crate) fn probe_peer(conn: &Conn, owner: &Guard<'_>) -> Result<(), Errno> {
    check_peer(conn, owner)?;
    if conn.flag(conn::PEER_FIN) {
        send::mark(conn, MARK_BELL)
    } else {
        Ok(())
    }
}

/// Probes the peer of a full lane in which nothing moves, and whose FIN this end's own kernel would not show, since it
/// is full of what the program does not receive: the mark makes the kernel of a peer that is gone answer with RST. At
/// most one a second, for a living peer that does not read keeps them.
#[cold]
pub(crate) fn probe_behind_bytes(conn: &Conn, out: &Outgoing<'_>) {
    let may_be_hidden = !conn.flag(conn::PEER_FIN) && raw::poll_now(conn.fd(), libc::POLLIN) & libc::POLLIN != 0;
    if may_be_hidden
        && conn.is_due_for_probe()
        && let Some(Err(errno)) = unless_closing(conn, out, || send::mark(conn, MARK_BELL))
    {
        found_broken(conn, errno);
    }
}

/// The error for which the program asks (`SO_ERROR`); `None`: the kernel knows.
pub(crate) fn asked_error(conn: &Conn) -> Option<Errno> {
    put_owed_now_and_then(conn);
    match conn.take_error() {
        0 => learn_of_error(conn).err(),
        errno => Some(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Vector;
    use crate::conn::Phase;
    use crate::conn::records;
    use crate::lock::COUNTS;
    use crate::wait::asleep;
    use core::sync::atomic::AtomicU32;
    use core::sync::atomic::Ordering::{Acquire, Release};
    use std::io::Write;
    use std::net::Shutdown;

    #[test]
    fn the_kernel_connection_is_quiet_until_there_is_something_to_look_for() {
        let (conn, [_own, mut peer]) = records::on_the_heap();
        assert!(is_quiet(conn));
        for flag in [conn::PEER_FIN, conn::DEAD, conn::SHUT_READ, conn::LOW_WATER] {
            conn.set_flag(flag, true);
            assert!(!is_quiet(conn));
            conn.set_flag(flag, false);
        }
        conn.set_error(libc::ECONNRESET);
        assert!(!is_quiet(conn));
        assert_eq!(conn.take_error(), libc::ECONNRESET);
        assert!(is_quiet(conn));
        peer.write_all(&[MARK_BELL]).unwrap();
        while kernel::queued(conn.fd()) == 0 {}
        assert!(!is_quiet(conn));
        assert_eq!(raw::recv(conn.fd(), &mut [0; 8], 0), Ok(1));
        assert!(is_quiet(conn));
        peer.shutdown(Shutdown::Write).unwrap();
        while raw::poll_now(conn.fd(), libc::POLLRDHUP) == 0 {}
        assert!(!is_quiet(conn));
    }

    /// Where nobody can tell whether a back has been taken, what the lane has comes first.
    #[test]
    fn the_lane_comes_before_a_back_that_cannot_be_counted() {
        let (conn, [_own, mut peer]) = records::on_the_heap();
        conn.set_phase(Phase::Attached);
        let segment = conn.segment(&conn).unwrap();
        let lane = segment.receiver(conn.side());
        let incoming = Incoming::new(lane);
        records::receive_on_the_lane(conn);
        let sender = segment.sender(conn.side().other());
        sender.append(b"lane".as_slice().into()).unwrap();
        peer.write_all(&[MARK_BACK]).unwrap();
        while kernel::queued(conn.fd()) == 0 {}
        conn.locks().unwrap().begin(COUNTS);
        assert_eq!(look_at_marks(conn, &incoming, &lane), Ok(Marks::Changed));
        assert_eq!(conn.take_error(), libc::ECONNRESET);
        lane.copy_out((&mut [0; 4][..]).into(), 0);
        lane.consume(4);
        assert_eq!(look_at_marks(conn, &incoming, &lane), Err(libc::ECONNRESET));
    }

    /// A look that leaves no marks takes a back off the kernel connection before the lane has been read.
    #[test]
    fn the_lane_comes_before_what_is_behind_a_back_taken_early() {
        let (conn, [own, mut peer]) = records::on_the_heap();
        conn.set_phase(Phase::Attached);
        let segment = conn.segment(&conn).unwrap();
        let sender = segment.sender(conn.side().other());
        let (out, lane) = (Outgoing::new(sender), segment.receiver(conn.side()));
        let incoming = Incoming::new(lane);
        records::receive_on_the_lane(conn);
        sender.append(b"lane".as_slice().into()).unwrap();
        out.demote();
        // The bytes behind look like marks.
        peer.write_all(&[MARK_BELL, MARK_BACK, MARK_BACK, MARK_BELL]).unwrap();
        out.back_sent();
        while kernel::queued(conn.fd()) < 4 {}
        assert_eq!(look_at_marks(conn, &incoming, &lane), Ok(Marks::Changed));
        assert_eq!((incoming.source(), kernel::queued(conn.fd())), (Source::LaneThenRaw, 2));
        // Nor is it promoted to the lane again, whose bytes would be taken for the old ones.
        assert!(!out.may_promote());
        let mut bytes = [9; 8];
        let parts = [libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        }];
        let received = crate::receive(conn, Vector::own(&parts), libc::MSG_DONTWAIT, || unreachable!());
        assert_eq!((received, &bytes), (6, b"lane\x01\x00\x09\x09"));
        assert!(out.may_promote());
        drop(own);
    }

    /// They come at any moment of the look that takes the mark which was to wake it.
    #[test]
    fn who_sleeps_is_told_of_bytes_that_come_while_another_takes_a_mark() {
        const ROUNDS: u32 = 1_000;
        let (conn, [_own, peer]) = records::on_the_heap();
        conn.set_phase(Phase::Attached);
        let segment = conn.segment(&conn).unwrap();
        let (sender, lane) = (segment.sender(conn.side().other()), segment.receiver(conn.side()));
        let incoming = Incoming::new(lane);
        records::receive_on_the_lane(conn);
        asleep::fall_asleep([conn].into_iter());
        let put_mark = || (&peer).write_all(&[MARK_BELL]).unwrap();
        let is_told = || raw::poll_now(conn.fd(), libc::POLLIN) != 0;
        let (begun, sent) = (AtomicU32::new(0), AtomicU32::new(0));
        let told = std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    while begun.load(Relaxed) < round {
                        core::hint::spin_loop();
                    }
                    for _ in 0..round % 256 {
                        core::hint::spin_loop();
                    }
                    sender.append(b"a".as_slice().into()).unwrap();
                    if sender.take_wait() != 0 {
                        put_mark();
                    }
                    sent.store(round, Release);
                }
            });
            let tells = |round: &u32| {
                // For bytes that have been received.
                put_mark();
                while !is_told() {}
                begun.store(*round, Relaxed);
                look_past_bells(conn, &incoming, &lane).unwrap();
                while sent.load(Acquire) < *round {
                    std::thread::yield_now();
                }
                let told = is_told();
                let _ = raw::recv(conn.fd(), &mut [0; 8], libc::MSG_DONTWAIT);
                lane.consume(lane.readable().unwrap());
                // As by what comes next.
                let _ = sender.take_wait();
                told
            };
            (1..=ROUNDS).filter(tells).count()
        });
        asleep::wake_up();
        assert_eq!(told, ROUNDS as usize);
    }
}
