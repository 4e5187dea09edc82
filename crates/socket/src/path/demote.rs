//! Back to TCP, because the program does what only TCP carries.

use crate::agent::counters;
use crate::conn::common::Timed;
use crate::conn::{self, Conn, Phase, records};
use crate::lock::Guard;
use crate::path::recall::Progress;
use crate::path::{leave, marks, recall, switch};
use crate::send::PLAIN_FLAGS;
use crate::send::waiting::wait_for_space;
use crate::sys::{self, Errno, raw};
use crate::wait::{self, Deadline, Woken};
use crate::{epoll, kernel, options, receive, search, send};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use libc::c_int;
use viaduct_channel::Segment;
use viaduct_control::Reason;
use viaduct_control::counters::slot;
use viaduct_stream::{Incoming, Mode, Outgoing, Source};

/// How long a call waits for its own and the peer's direction to be back on TCP.
pub(crate) const PATIENCE_NS: u64 = 200_000_000;
/// How long it waits for a peer that has begun to answer.
const ANSWERED_NS: u64 = 1_000_000_000;
/// How long for one that has sent nothing that is unread, and can be left without its help.
const LEFT_NS: u64 = 5_000_000;
/// A peer whose end of the stream has come does its part in this time, or has done it.
const GONE_NS: u64 = 20_000_000;

/// Bans the connection from lanes, brings the sending direction back to TCP and asks the peer to do the same. A
/// direction whose stretch has not ended yet goes on correctly; it is just not on TCP yet.
pub(crate) fn ban(conn: &'static Conn, reason: Reason) {
    ban_with(conn, reason, |_, incoming| {
        incoming.request_raw(true);
    });
}

/// Bans the connection, making the given request of the peer before anything wakes it.
fn ban_with(conn: &'static Conn, reason: Reason, request: impl FnOnce(&Segment, &Incoming<'_>)) {
    let is_passed_on = conn.flag(conn::BANNED) && conn.reason() == Reason::PassedOn;
    conn.ban();
    conn.end_offer();
    if conn.phase() != Phase::Attached {
        // What would stand in the way without that as well is told of where there is nothing else.
        if !is_passed_on {
            conn.set_reason(reason);
        }
        return;
    }
    let id = conn.id();
    if let Some(receive) = conn.own_receive(id)
        && let Some(segment) = conn.segment(&receive)
    {
        let incoming = Incoming::new(segment.receiver(conn.side()));
        incoming.set_unready();
        request(segment, &incoming);
    }
    if let Some(guard) = conn.own_send(id)
        && let Some(segment) = conn.segment(&guard)
    {
        end_stretch(conn, &guard, segment, reason);
    }
    conn.set_reason(reason);
    // Marks that have served must not make the socket look readable to the kernel.
    receive::clear_marks(conn, id);
    // The peer may sleep with nothing to send.
    conn.ring_peer();
}

/// Ends a lane stretch of the sending direction, if there is one.
pub(crate) fn end_stretch(conn: &Conn, guard: &Guard<'_>, segment: &Segment, reason: Reason) {
    let out = Outgoing::new(segment.sender(conn.side()));
    if out.mode() == Mode::Lane {
        // The peer may sleep; it should see the request.
        send::ring_without_bytes(conn, guard, &out);
        switch::demote(conn, &out, reason);
    }
    if out.mode() == Mode::BackPending
        && let Err(errno) = switch::send_back(conn, &out)
    {
        marks::found_broken(conn, errno);
    }
}

/// Whether the sending direction is raw, and nothing that the peer has recalled is to go out before.
pub(crate) fn sends_raw(conn: &Conn, id: u64) -> bool {
    conn.own_send(id).is_none_or(|guard| {
        conn.segment(&guard).is_none_or(|segment| {
            let out = Outgoing::new(segment.sender(conn.side()));
            out.mode() == Mode::Raw && !recall::owes(conn, &out)
        })
    })
}

/// Whether the receiving direction is raw and no promotion has been announced.
pub(crate) fn receives_raw(conn: &Conn, id: u64) -> bool {
    if conn.phase() == Phase::Attached {
        // Takes the marks that end a stretch.
        receive::clear_marks(conn, id);
    }
    conn.own_receive(id).is_none_or(|guard| {
        conn.segment(&guard).is_none_or(|segment| {
            let incoming = Incoming::new(segment.receiver(conn.side()));
            // In this order: a promotion that is over has been announced.
            !incoming.is_being_promoted() && incoming.source() == Source::Raw
        })
    })
}

fn patiently(mut done: impl FnMut() -> bool) -> bool {
    let mut patience = Patience::begin();
    while !done() {
        if patience.late() > PATIENCE_NS {
            return false;
        }
        patience.rest();
    }
    true
}

/// Until when a process whose peer has not answered in a second has no such time for others.
static IN_VAIN_UNTIL: AtomicU64 = AtomicU64::new(0);
const IN_VAIN_NS: u64 = 10_000_000_000;

fn is_in_vain() -> bool {
    sys::now_ns() < IN_VAIN_UNTIL.load(Relaxed)
}

fn note_in_vain() {
    IN_VAIN_UNTIL.store(sys::now_ns() + IN_VAIN_NS, Relaxed);
}

/// A peer that runs mostly does its part in this time, in which its answer is looked for all the time.
const PROMPT_NS: u64 = 500_000;
/// Longest nap between two looks.
const NAP_NS: u64 = 1_000_000;

/// How long whoever gives the core up between its looks waits for a peer.
#[derive(Clone, Copy, Debug)]
struct Patience {
    begun: u64,
    /// What the thread had run then.
    run: u64,
    /// How long it has meant to sleep since.
    napped: u64,
}

impl Patience {
    fn begin() -> Self {
        Self {
            begun: sys::now_ns(),
            run: sys::thread_ns(),
            napped: 0,
        }
    }

    /// Leaves the core to others for a moment, and the longer the more it takes.
    fn rest(&mut self) {
        let late = self.late();
        if late < PROMPT_NS {
            raw::sched_yield();
        } else {
            let nap = (late / 16).min(NAP_NS);
            sys::wait_quietly(-1, 0, nap);
            self.napped += nap;
        }
    }

    /// So many nanoseconds have passed.
    fn late(self) -> u64 {
        sys::now_ns().saturating_sub(self.begun)
    }

    /// Where the caller has hardly run itself, or slept much longer than it meant to, others use the processors, and
    /// the peer may not have run at all: it has longer. So it has where there is no way back (`leaves`): its mark would
    /// be a byte of the stream to whoever reads next. But not while such waits are in vain: who hands over one
    /// connection after another, whose peers stand still or are gone, would stand still as well.
    fn is_over(self, leaves: bool) -> bool {
        let late = self.late();
        let had = || sys::thread_ns().saturating_sub(self.run) + self.napped;
        let has_longer = || leaves && !is_in_vain();
        late > ANSWERED_NS || late > PATIENCE_NS && !has_longer() && had() > PATIENCE_NS / 2
    }

    /// Hands `conn` over without its peer, if that has had its time: bytes that are unread had better come from the
    /// peer before the successor looks for them.
    fn leave_if_over(self, conn: &Conn, for_good: bool) {
        let late = self.late();
        if late < LEFT_NS {
            return;
        }
        let has_unread = leave::has_unread(conn);
        if !has_unread || late > if is_in_vain() { GONE_NS } else { PATIENCE_NS } {
            if has_unread {
                note_in_vain();
            }
            leave::leave(conn, conn.id(), for_good);
        }
    }

    /// Whether nothing is to be waited for any more: the peer has ended its direction.
    fn is_for_the_gone(self, conn: &Conn) -> bool {
        self.late() > GONE_NS && kernel::peer_has_ended(conn.fd()) && sends_raw(conn, conn.id())
    }

    /// There was no answer in this time.
    fn was_in_vain(self, leaves: bool) {
        if leaves && self.late() > ANSWERED_NS {
            note_in_vain();
        }
    }
}

/// Gives both directions to the kernel connection, with all that is unread, for somebody who does not know of lanes.
/// Waits for the peer, which has a part in it; false if it did not do it in time. Where this end goes on then (not
/// `leaves`), all is as it was, but on its way to TCP.
pub(crate) fn hand_over(conn: &'static Conn, reason: Reason, leaves: bool) -> bool {
    begin_hand_over(conn, reason);
    let mut patience = Patience::begin();
    let mut rung = patience.begun;
    loop {
        let progress = go_on_handing_over(conn);
        if progress == Progress::Over {
            return true;
        }
        let id = conn.id();
        let late = patience.late();
        if rings_again(&mut rung) {
            conn.ring_peer();
        }
        if progress == Progress::Sending && late > PATIENCE_NS {
            return true;
        }
        if leaves && progress == Progress::Going {
            patience.leave_if_over(conn, true);
        }
        let is_gone = patience.is_for_the_gone(conn);
        if progress == Progress::Stuck || is_gone || patience.is_over(leaves) {
            if !leaves && recall::withdraw(conn, id) {
                return false;
            }
            // A peer that has begun to answer may have been interrupted in it.
            let is_over = is_gone || late > ANSWERED_NS || !recall::is_answered(conn, id);
            if progress == Progress::Stuck || is_over {
                patience.was_in_vain(leaves);
                if leaves {
                    leave::break_off(conn, id);
                }
                recall::give_up(conn, id);
                conn.set_flag(conn::HANDED_OVER, leaves);
                return false;
            }
        }
        patience.rest();
    }
}

/// Whether it is time to ring the peer once more: whoever heard of the recall may have been kept from its part by
/// somebody who had the direction, and who receives here beside this thread may have ended a stretch.
fn rings_again(rung: &mut u64) -> bool {
    let now = sys::now_ns();
    let due = now.saturating_sub(*rung) >= recall::TURN_NS;
    if due {
        *rung = now;
    }
    due
}

/// Does this end's part of handing the connection over, and asks the peer for its own.
pub(crate) fn begin_hand_over(conn: &'static Conn, reason: Reason) {
    if !conn.flag(conn::HANDED_OVER) {
        // Only the first time: what the program sets from now on goes to the kernel.
        conn.set_flag(conn::HANDED_OVER | conn::OPTIONS_OWED, true);
    }
    conn.set_flag(conn::GIVEN_AWAY, false);
    ban_with(conn, reason, |segment, incoming| recall::begin(conn, segment, incoming));
}

/// Does what can be done now to hand the connection over.
pub(crate) fn go_on_handing_over(conn: &'static Conn) -> Progress {
    if conn.phase() != Phase::Attached {
        search::hand_over(conn);
        return Progress::Over;
    }
    if conn.flag(conn::GIVEN_AWAY) {
        return Progress::Over;
    }
    let id = conn.id();
    // The peer may recall too; and where both ends are ours, nobody else will serve the other.
    records::all()
        .filter(|end| end.segment_name() == conn.segment_name())
        .for_each(switch::serve);
    let progress = recall::go_on(conn, id);
    if progress != Progress::Over {
        return progress;
    }
    if !sends_raw(conn, id) {
        return Progress::Going;
    }
    if conn.flag(conn::OPTIONS_OWED) {
        conn.set_flag(conn::OPTIONS_OWED, false);
        options::give_back(conn);
    }
    conn.set_flag(conn::GIVEN_AWAY, true);
    // A peer that has answered sends nothing before it hears of this.
    conn.ring_peer();
    Progress::Over
}

/// Hands all these connections over, with a second for all of them. `leaves` as in [`hand_over`].
pub(crate) fn hand_over_many<I>(reason: Reason, leaves: bool, all: impl Fn() -> I)
where
    I: Iterator<Item = &'static Conn>,
{
    // Once more if it has been before: the peer may have left marks since.
    all().for_each(|conn| begin_hand_over(conn, reason));
    // Each has its turn again and again, so that those that do not answer keep nobody from the others. The time runs
    // anew with each that is done.
    let all_of_it = Patience::begin();
    let (mut patience, mut most) = (all_of_it, 0);
    let mut rung = all_of_it.begun;
    loop {
        let (mut done, mut going, mut leaving) = (0, 0, false);
        let rings = rings_again(&mut rung);
        for conn in all() {
            let progress = go_on_handing_over(conn);
            match progress {
                Progress::Over => done += 1,
                Progress::Going | Progress::Sending => {
                    going += usize::from(!patience.is_for_the_gone(conn));
                    if rings {
                        conn.ring_peer();
                    }
                    if leaves && progress == Progress::Going {
                        patience.leave_if_over(conn, false);
                        leaving |= leave::has_begun(conn);
                    }
                }
                Progress::Stuck => {}
            }
        }
        if done > most {
            (patience, most) = (Patience::begin(), done);
        }
        let is_over = patience.is_over(leaves) && !leaving;
        if going == 0 || is_over || all_of_it.late() > ANSWERED_NS {
            break;
        }
        patience.rest();
    }
    for conn in all().filter(|conn| !conn.flag(conn::GIVEN_AWAY)) {
        all_of_it.was_in_vain(leaves);
        if leaves || !recall::withdraw(conn, conn.id()) {
            if leaves {
                leave::break_off(conn, conn.id());
            }
            recall::give_up(conn, conn.id());
        }
    }
}

/// Why only the kernel can make a send with these flags, if that is so.
#[cold]
pub(crate) fn sent_by_kernel(conn: &Conn, flags: c_int) -> Option<Reason> {
    if flags & !(PLAIN_FLAGS | libc::MSG_ZEROCOPY) != 0 {
        Some(Reason::UrgentData)
    } else {
        options::tells_completion(conn, flags).then_some(Reason::ZeroCopy)
    }
}

/// The kernel is about to be asked to send without copying on a connection that has no lane: if it will tell of it,
/// none is to come. What it tells shows as an event, and one of a lane would not be told from it.
#[cold]
pub(crate) fn before_lanes(conn: &'static Conn, len: usize, flags: c_int) {
    if len != 0 && !conn.flag(conn::BANNED) && !conn.is_early() && options::tells_completion(conn, flags) {
        ban(conn, Reason::ZeroCopy);
    }
}

/// Makes a send that only TCP can carry, in one call of the kernel's, which counts them.
#[cold]
pub(crate) fn send_on_tcp(conn: &'static Conn, reason: Reason, flags: c_int, direct: impl FnOnce() -> isize) -> isize {
    if conn.flag(conn::SHUT_WRITE) {
        // Nothing brings the direction back behind its FIN, and the kernel refuses whatever is sent; an error is told
        // first.
        return match conn.take_error() {
            0 => direct(),
            errno => sys::fail(errno),
        };
    }
    let back = match is_back(conn, reason) {
        true => Ok(()),
        false => bring_back(conn, reason, flags),
    };
    // The mark that ends the stretch may have been told an error in place of the program.
    if let Err(errno) = back.and_then(|()| told(conn)) {
        if errno == libc::EAGAIN {
            epoll::wants_room(conn);
        }
        return sys::fail(errno);
    }
    marks::will_be_refused(conn);
    let id = conn.id();
    let sent = direct();
    if sent > 0 && conn.id() == id {
        counters::add(conn, slot::BYTES_SENT, sent.cast_unsigned() as u64);
    } else if sent < 0 && sys::errno() == libc::EAGAIN {
        epoll::wants_room(conn);
    }
    sent
}

fn told(conn: &Conn) -> Result<(), Errno> {
    match conn.take_error() {
        0 => Ok(()),
        errno => Err(errno),
    }
}

/// Whether the sending direction has been brought back before, for the same reason.
fn is_back(conn: &Conn, reason: Reason) -> bool {
    conn.flag(conn::BANNED) && conn.reason() == reason && sends_raw(conn, conn.id())
}

/// Brings the sending direction back, soon, or where the call may wait for room, once the kernel's buffer has room for
/// the mark.
fn bring_back(conn: &'static Conn, reason: Reason, flags: c_int) -> Result<(), Errno> {
    ban(conn, reason);
    let id = conn.id();
    let step = || {
        if let Some(guard) = conn.own_send(id)
            && let Some(segment) = conn.segment(&guard)
        {
            end_stretch(conn, &guard, segment, reason);
        }
        switch::serve(conn);
        conn.flag(conn::DEAD) || sends_raw(conn, id)
    };
    let is_back = patiently(step);
    told(conn)?;
    if is_back {
        return Ok(());
    }
    if flags & libc::MSG_DONTWAIT != 0 || conn.nonblocking() {
        return Err(libc::EAGAIN);
    }
    let deadline = Deadline::after(conn.timeout_ns(Timed::Send));
    let mut asked = false;
    while !step() {
        match wait_for_space(conn, id, deadline, &mut asked)? {
            Woken::Look | Woken::Restarted => {}
            woken => return Err(wait::errno_of(woken)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    #[test]
    fn a_peer_has_longer_where_this_end_does_not_run_either_or_leaves() {
        let patience = Patience::begin();
        std::thread::sleep(Duration::from_nanos(PATIENCE_NS + PATIENCE_NS / 4));
        // Unless the machine stood still.
        assert!(!patience.is_over(false) || patience.late() > ANSWERED_NS);
        while sys::thread_ns() - patience.run <= PATIENCE_NS / 2 {
            core::hint::spin_loop();
        }
        assert!(patience.is_over(false));
        assert!(!patience.is_over(true) || patience.late() > ANSWERED_NS);
        let patience = Patience::begin();
        std::thread::sleep(Duration::from_nanos(ANSWERED_NS + PATIENCE_NS));
        assert!(patience.is_over(false) && patience.is_over(true), "not for ever");
    }
}
