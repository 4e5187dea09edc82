//! Waiting until there is something to receive: by polling first, by sleeping then.

use crate::agent::{self, counters};
use crate::conn::Conn;
use crate::path::marks::{self, Marks, look_before_sleep};
use crate::path::{recall, switch};
use crate::sys::{Errno, raw};
use crate::wait::spin::Spinner;
use crate::wait::{self, Deadline, Woken, asleep, bell};
use viaduct_control::counters::slot;
use viaduct_stream::{Incoming, Outgoing, Source};

/// Not an error number: a wait found the end of the stream.
pub(crate) const END: Errno = 0;

/// Begins to poll for bytes on the lane, which is empty.
pub(crate) fn begin_to_poll(conn: &Conn) -> Spinner {
    let spinner = Spinner::new();
    if conn.only_receives() {
        spinner.rest_first(|| conn.rest.next_ns());
    }
    spinner
}

/// Polls for bytes on the lane, perhaps as the call has begun to: whether there are some. Short looks that own the
/// direction, so that close() cannot take the lane away underneath.
fn poll(conn: &'static Conn, id: u64, polling: Option<Spinner>) -> Result<bool, Errno> {
    let mut spinner = polling.unwrap_or_else(|| begin_to_poll(conn));
    loop {
        {
            let Some(guard) = conn.own_receive(id) else {
                return Err(libc::EBADF);
            };
            let Some(segment) = conn.segment(&guard) else {
                return Err(libc::EBADF);
            };
            let lane = segment.receiver(conn.side());
            if Incoming::new(lane).source() != Source::Lane {
                return Ok(false);
            }
            if lane.has_bytes() {
                spinner.paid();
                return Ok(true);
            }
        }
        if !spinner.again() {
            return Ok(false);
        }
        // No mark is taken: others may have been woken by it, and nothing is armed yet.
        if spinner.is_long() && raw::poll_now(conn.fd(), libc::POLLRDHUP) != 0 {
            return Ok(false);
        }
    }
}

/// Waits until a receive may find something, and polls first, perhaps as it has begun to. Nothing is owned while
/// waiting. `again`: the call has slept already, and found nothing on the lane; `asked`: it knows whether it may wait
/// at all.
pub(crate) fn wait_for_bytes(
    conn: &'static Conn,
    id: u64,
    deadline: Deadline,
    polling: Option<Spinner>,
    again: bool,
    asked: &mut bool,
) -> Result<Woken, Errno> {
    // What ended a sleep in vain is most likely the kernel's to tell.
    if !again && poll(conn, id, polling)? {
        return Ok(Woken::Look);
    }
    if conn.refresh_nonblocking_once(asked) {
        return Ok(Woken::TimedOut);
    }
    let bit = wait::bit_for(conn);
    asleep::fall_asleep(wait::may_be_marked(conn, bit).then_some(conn).into_iter());
    // A sleep ends at once where the kernel has something to tell. One by marks may find those of bytes that have been
    // received.
    let look = again || bit == bell::BY_SOCKET || marks::has_news(conn) || deadline.left_ns() == Some(0);
    let armed = arm(conn, id, bit, look);
    let woken = match armed {
        Ok((Marks::None, recalled)) => sleep(conn, bit, deadline, recalled),
        Ok((Marks::Changed, _)) => Ok(Woken::Look),
        Ok((Marks::End, _)) => Err(END),
        Err(errno) => Err(errno),
    };
    asleep::wake_up();
    woken
}

/// Asks to be woken by `bit`; [`Marks::None`] if there is nothing yet, as far as it is to `look` at the kernel
/// connection as well. Also whether this end has a part in a recall.
fn arm(conn: &Conn, id: u64, bit: u32, look: bool) -> Result<(Marks, bool), Errno> {
    let Some(guard) = conn.own_receive(id) else {
        return Err(libc::EBADF);
    };
    let Some(segment) = conn.segment(&guard) else {
        return Err(libc::EBADF);
    };
    let lane = segment.receiver(conn.side());
    let incoming = Incoming::new(lane);
    // In a raw stretch too: another waiter may take the mark that tells of the lane's.
    lane.arm(bit);
    let marks = match incoming.source() {
        Source::Lane if lane.readable() != Ok(0) => Marks::Changed,
        Source::Lane if look => look_before_sleep(conn, &incoming, &lane)?,
        _ => Marks::None,
    };
    let recalled = recall::is_pending(conn, &Outgoing::new(segment.sender(conn.side())));
    Ok((marks, recalled))
}

fn sleep(conn: &Conn, bit: u32, deadline: Deadline, recalled: bool) -> Result<Woken, Errno> {
    counters::add(conn, slot::SLEEPS, 1);
    if recalled {
        // The bell may have rung before this call.
        switch::serve(conn);
    }
    // What is owed to the peer may wait for room in the kernel.
    let owed = if switch::owes(conn) { wait::FOR_OUTPUT } else { 0 };
    // The kernel tells when it has room again.
    let most = (recalled && owed == 0).then_some(recall::TURN_NS);
    let woken = wait::sleep(conn, bit, wait::FOR_INPUT | owed, deadline, most);
    // The wait bit may stay: other waiters may count on it, and a bell too many does no harm.
    switch::serve(conn);
    if agent::has_mail() {
        agent::deliver();
    }
    Ok(woken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::{Phase, records};
    use crate::wait::bell::RUNG_BY_EVENTFD;
    use std::io::Write;

    /// Who takes a mark must know, if there are others whom it may have been for.
    #[test]
    fn who_sleeps_by_an_outer_bell_may_be_woken_by_marks() {
        let (conn, [_own, mut peer]) = records::on_the_heap();
        conn.set_phase(Phase::Attached);
        records::receive_on_the_lane(conn);
        let thread = std::thread::spawn(move || {
            let bell = bell::of_thread().unwrap();
            let _sender = bell::tests::make_outer(bell);
            // Another test may have had it.
            bell.heard(bell.fd());
            conn.set_own_bell(bell.number());
            conn.rung.begin(bell::tests::generation(bell));
            assert_eq!(wait::bit_for(conn), bell::BY_BELL);
            wait_for_bytes(conn, conn.id(), Deadline::after(0), None, true, &mut false)
        });
        let begun = std::time::Instant::now();
        while !thread.is_finished() && !conn.has_sleepers() && begun.elapsed().as_secs() < 10 {
            std::thread::yield_now();
        }
        assert!(conn.has_sleepers() && !thread.is_finished());
        assert!(conn.rung.by() > RUNG_BY_EVENTFD);
        peer.write_all(&[viaduct_stream::MARK_BELL]).unwrap();
        assert_eq!(thread.join().unwrap(), Ok(Woken::Look));
    }
}
