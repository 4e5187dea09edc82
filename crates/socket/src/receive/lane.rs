//! Receiving what stands in the lane.

use crate::agent::counters;
use crate::conn::Conn;
use crate::path::wish;
use crate::receive::{Found, needs};
use crate::send::{self, PIECE};
use crate::sys::Errno;
use crate::vector::Vector;
use libc::c_int;
use viaduct_channel::{Dest, Found as There, Receiver};
use viaduct_control::counters::slot;
use viaduct_stream::Incoming;

#[inline]
pub(crate) fn from_lane(
    conn: &Conn,
    lane: &Receiver<'_>,
    vector: Vector<'_>,
    skip: usize,
    flags: c_int,
) -> Result<Found, Errno> {
    let there = match lane.find(vector.len().saturating_sub(skip)) {
        Ok(there) => there,
        Err(_) => return Err(send::violated(conn)),
    };
    if there.is_empty() {
        return Ok(Found::Nothing);
    }
    let room = there.len().min(vector.len().saturating_sub(skip));
    let (peeks, discards) = (flags & libc::MSG_PEEK != 0, flags & libc::MSG_TRUNC != 0);
    let mut bytes = 0;
    if !peeks && !discards && room > PIECE {
        for dest in vector.dests(skip, room) {
            bytes += take_pieces(conn, *lane, dest);
        }
        conn.received_again(bytes);
        return Ok(Found::Bytes(bytes));
    }
    if discards {
        // As TCP does: the bytes are received, but not copied.
        bytes = room;
    } else {
        for dest in vector.dests(skip, room) {
            bytes += lane.copy_found(there, dest, bytes);
        }
    }
    if !peeks {
        conn.received_again(bytes);
        consume(conn, lane, there, bytes);
    }
    Ok(Found::Bytes(bytes))
}

/// Receives into `dest` what was found in the lane.
#[inline(always)]
pub(crate) fn take(conn: &Conn, lane: &Receiver<'_>, there: There, dest: Dest<'_>) -> usize {
    if dest.len() > PIECE && there.len() > PIECE {
        return take_pieces(conn, lane.apart(), dest);
    }
    let bytes = lane.copy_found(there, dest, 0);
    consume(conn, lane, there, bytes);
    bytes
}

/// The same by pieces: the sender goes on with the blocks of one while the next is copied. Where all were given back at
/// the end, a sender would wait for as long as all of it takes to copy, longer than it polls, and sleep at each call.
#[inline(never)]
fn take_pieces(conn: &Conn, lane: Receiver<'_>, dest: Dest<'_>) -> usize {
    let mut taken = 0;
    loop {
        let there = lane.found();
        let bytes = lane.copy_found(there, dest.slice(taken, PIECE), 0);
        if bytes == 0 {
            return taken;
        }
        consume(conn, &lane, there, bytes);
        taken += bytes;
    }
}

#[inline(always)]
pub(crate) fn consume(conn: &Conn, lane: &Receiver<'_>, there: There, bytes: usize) {
    count(conn, bytes);
    if lane.consume_found(there, bytes) != 0 {
        gave_back(conn, lane.apart());
    }
}

#[inline(always)]
pub(crate) fn count(conn: &Conn, bytes: usize) {
    counters::add(conn, slot::BYTES_RECEIVED, bytes as u64);
    counters::add(conn, slot::FAST_BYTES_RECEIVED, bytes as u64);
}

/// The sender has gained blocks.
#[inline(never)]
pub(crate) fn gave_back(conn: &Conn, lane: Receiver<'_>) {
    let incoming = Incoming::new(lane);
    needs::consumed(conn, &incoming);
    wish::heed(conn, &incoming);
    let bits = lane.take_credit_wait();
    if bits != 0 {
        needs::ring_for_credit(conn, bits);
    }
}
