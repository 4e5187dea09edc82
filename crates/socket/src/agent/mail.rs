//! What viaductd writes: segments for connections, and refusals.

use crate::agent::{MAILBOX, OWNER, counters, detached, disconnect, look_after};
use crate::conn::{Phase, records};
use crate::epoll::{self, lone};
use crate::memory::group;
use crate::sys::PACKET_DESCRIPTORS;
use crate::wait::bell;
use crate::wait::peer_bells::{self, Ringer};
use crate::{lock, process, sys};
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use std::os::fd::{AsFd, IntoRawFd};
use viaduct_channel::{Segment, SegmentError, Side};
use viaduct_control::message::{self, Kind, PAIR_HAS_BELL, PAIR_HAS_OWN_OUTER, Pair, Refuse};
use viaduct_control::{Reason, counters as layout};

/// Bytes that a connection takes without asking once it has lanes, a few pages of the kernel's included.
const ATTACHED: usize = 32 << 10;

/// Whether viaductd has told of mail; costs one load.
#[inline]
pub(crate) fn has_mail() -> bool {
    // Acquire pairs with the release in `open_connection`.
    MAILBOX.fd.load(Acquire) >= 0
        && sys::leaked_record(MAILBOX.told.load(Relaxed))
            .is_some_and(|told| told.load(Acquire) != MAILBOX.seen.load(Relaxed))
}

/// Reads what viaductd has told of. Must not be called while a direction is owned.
#[cold]
pub(crate) fn deliver() {
    let Some(_owner) = lock::try_acquire(&OWNER) else {
        return;
    };
    let fd = MAILBOX.fd.load(Acquire);
    let mail = counters::header().and_then(|words| words.get(layout::MAIL));
    let Some(mail) = mail.filter(|_| fd >= 0) else { return };
    let told = mail.load(Acquire);
    let mut left = told.wrapping_sub(MAILBOX.seen.load(Relaxed)).cast_signed();
    // Whoever waits for mail comes without having been told. Less than none: the welcome has been read, and is still to
    // be told of.
    if left <= 0 {
        look_after(fd);
        return;
    }
    let mut packet = [0; message::MAX_PACKET];
    while left > 0 {
        match sys::receive_packet(fd, &mut packet) {
            Ok((0, _)) => return disconnect(fd),
            Ok((len, descriptors)) => {
                left -= 1;
                // One by one: what is told of and not read yet holds a viaductd that is gone.
                MAILBOX.seen.fetch_add(1, Relaxed);
                handle(packet.get(..len).unwrap_or(&[]), descriptors);
            }
            // Told of by one that was there before.
            Err(libc::EAGAIN) => return MAILBOX.seen.store(told, Relaxed),
            Err(libc::EINTR) => return,
            // viaductd is gone; its mail is still there.
            Err(libc::ECONNRESET) => {}
            Err(_) => return disconnect(fd),
        }
    }
}

fn handle(packet: &[u8], descriptors: [i32; PACKET_DESCRIPTORS]) {
    let mut descriptors = descriptors.map(sys::own_descriptor).into_iter();
    match message::kind_of(packet) {
        Some(Kind::Pair) => {
            if let Some(pair) = message::decode::<Pair>(packet) {
                let mut next = || descriptors.next().flatten();
                let segment = next();
                let mut with = |flag| {
                    (pair.flags & flag != 0)
                        .then(&mut next)
                        .flatten()
                        .map(IntoRawFd::into_raw_fd)
                };
                let bell = peer_bells::of_peer(&pair, with(PAIR_HAS_BELL));
                // Before the connection counts on it.
                if pair.flags & PAIR_HAS_OWN_OUTER != 0 {
                    bell::hear(pair.own_bell, with(PAIR_HAS_OWN_OUTER));
                }
                if !attach(&pair, segment.as_ref().map(AsFd::as_fd), bell) {
                    peer_bells::release(bell);
                    detached(pair.segment);
                }
            }
        }
        Some(Kind::Refuse) => {
            if let Some(refuse) = message::decode::<Refuse>(packet)
                && let Some(conn) = records::by_id(refuse.offer).filter(|conn| conn.phase() == Phase::Offered)
            {
                conn.refused(refuse.reason().unwrap_or(Reason::Ambiguous), refuse.retry_ms);
            }
        }
        _ => {}
    }
}

fn attach(pair: &Pair, segment: Option<std::os::fd::BorrowedFd<'_>>, bell: Ringer) -> bool {
    let Some(conn) = records::by_id(pair.offer).filter(|conn| conn.may_attach()) else {
        return false;
    };
    // Both ends may have offered it before they sent anything.
    if !conn.is_counted() {
        conn.refused(Reason::Uncounted, 0);
        return false;
    }
    // One that has forbidden itself system calls hears of no memory that comes back: its lanes ask when they grow.
    if !process::is_confined() && !group::take(ATTACHED, &mut || true) {
        conn.refused(Reason::NoMemory, 5000);
        return false;
    }
    // What the program locks a lane is left out of by calls that it may have forbidden itself.
    let may_map = !viaduct_channel::is_locked() || !process::is_confined();
    let segment = match segment.filter(|_| may_map).map(Segment::map) {
        Some(Ok(segment)) => segment,
        failed => {
            let reason = match (failed, segment) {
                (Some(Err(SegmentError::Version(_))), _) => Reason::Version,
                // The kernel drops one for which the program may have no more numbers.
                (_, None) => Reason::NoDescriptors,
                _ => Reason::NoMemory,
            };
            conn.refused(reason, 5000);
            return false;
        }
    };
    let side = if pair.side == 0 { Side::First } else { Side::Second };
    // From the first moment on it is known who watches the connection for whom.
    if !lone::settle(conn) {
        conn.refused(Reason::NotYet, 1000);
        return false;
    }
    let attached = conn.attach(pair, segment, side, bell);
    if attached {
        counters::add_total(layout::PAIRS, 1);
        epoll::attached(conn);
    }
    attached
}
