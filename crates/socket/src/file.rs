//! `sendfile` onto a lane and `splice` off it.

use crate::conn::{self, Conn, Phase};
use crate::descriptors::lifecycle;
use crate::path::marks;
use crate::send::{self as sending, PIECE};
use crate::sys::{self, Errno, raw};
use crate::vector::{self, Vector};
use crate::wait::cancel;
use crate::{agent, at_once, kernel, receive};
use libc::{c_int, c_uint, iovec, off_t};

/// Bytes read from the file in one step, on the stack, where it cannot be put in place.
const STEP: usize = 16 << 10;
/// As files that are opened with `O_DIRECT` want it.
#[repr(align(4096))]
struct Aligned([u8; STEP]);

/// So often what has been seen of the stream is looked for before another thread must have taken it.
const LOOKS: u32 = 8;

/// `sendfile(conn, input, offset, count)`; `direct` is the program's own call.
pub fn send(
    conn: &'static Conn,
    input: c_int,
    offset: Option<&mut off_t>,
    count: usize,
    direct: impl FnOnce() -> isize,
) -> isize {
    if agent::has_mail() {
        agent::deliver();
    }
    if conn.phase() != Phase::Attached {
        // No bytes of the program's own: what counts is what the kernel says it sent.
        return sending::send(conn, Vector::NONE, 0, direct);
    }
    if count.cast_signed() < 0 {
        return sys::fail(libc::EINVAL);
    }
    // No more than the kernel moves in one call, which programs take its answer to be.
    let count = count.min(vector::MOST);
    let from = match &offset {
        Some(offset) => **offset,
        None => match sys::file_position(input) {
            Ok(position) => position,
            Err(libc::ESPIPE) => return sys::fail(libc::EINVAL),
            Err(errno) => return sys::fail(errno),
        },
    };
    // Once: a descriptor that is closed meanwhile may leave the record to another connection.
    let id = conn.id();
    let mut done = 0;
    let mut errno = 0;
    let mut buffer = Aligned([0; STEP]);
    // A place before the beginning means another to the call that puts in place.
    let mut in_place = from >= 0;
    // A file is looked at even for nothing, as it may be none.
    while done < count || count == 0 {
        let at = from + off_t::try_from(done).unwrap_or(off_t::MAX);
        if in_place {
            match put_in_place(conn, id, input, at, count - done) {
                Ok(0) => {}
                Ok(sent) => {
                    done += sent;
                    continue;
                }
                Err(_) => in_place = false,
            }
        }
        let want = STEP.min(count - done);
        let read = match raw::pread(input, buffer.0.get_mut(..want).unwrap_or(&mut []), at) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) => {
                // Not a file that can be read at any place, or none at all.
                let is_invalid = error == libc::EISDIR || error == libc::ESPIPE && offset.is_none();
                errno = if is_invalid { libc::EINVAL } else { error };
                break;
            }
        };
        let part = [iovec {
            iov_base: buffer.0.as_mut_ptr().cast(),
            iov_len: read,
        }];
        let sent = sending::attached(conn, id, Vector::own(&part), 0, 0, || sys::fail(libc::EAGAIN));
        let Ok(sent) = usize::try_from(sent) else {
            errno = sys::errno();
            break;
        };
        done += sent;
        if sent < read {
            break;
        }
    }
    let to = from + off_t::try_from(done).unwrap_or(0);
    match offset {
        Some(offset) => *offset = to,
        None => sys::set_file_position(input, to),
    }
    if done == 0 && errno != 0 {
        sys::fail(errno)
    } else {
        done.cast_signed()
    }
}

/// Sends what is in memory of a file, which the kernel copies to where it belongs in the lane. Answers how many bytes;
/// 0: there is no room, or the file is to be waited for, which must not be done while the direction is owned.
fn put_in_place(conn: &'static Conn, id: u64, input: c_int, at: off_t, len: usize) -> Result<usize, Errno> {
    let mut read = Ok(0);
    let sent = at_once::send_by(conn, id, len.min(PIECE), |places| {
        read = raw::pread_at_once(input, places, at);
        read.unwrap_or(0)
    });
    match read {
        Ok(_) | Err(libc::EAGAIN) => Ok(sent),
        Err(errno) => Err(errno),
    }
}

/// `splice(input, conn, len, flags)`, whose input must be a pipe; `direct` is the program's own call.
pub fn splice_out(conn: &'static Conn, input: c_int, direct: impl FnOnce() -> isize) -> isize {
    if !lifecycle::sends_by_kernel(conn) && !conn.flag(conn::DEAD) {
        // Programs then fall back to reading and writing.
        return sys::fail(libc::EINVAL);
    }
    // As with TCP, what has broken the connection is told of by the first bytes that there are.
    if conn.has_error() && raw::poll_now(input, libc::POLLIN) & libc::POLLIN != 0 {
        return sys::fail(conn.take_error());
    }
    marks::will_be_refused(conn);
    direct()
}

/// `splice(conn, output, len, flags)`, whose output must be a pipe; `direct` is the program's own call.
pub fn splice(conn: &'static Conn, output: c_int, len: usize, flags: c_uint, direct: impl FnOnce() -> isize) -> isize {
    if raw::fcntl(output, libc::F_GETPIPE_SZ, 0).is_err() {
        return sys::fail(libc::EINVAL);
    }
    if !lifecycle::receives_by_kernel(conn) || conn.searched() {
        return copy(conn, output, len, flags);
    }
    if conn.phase() == Phase::Attached {
        // The look for marks may have met the error, which the kernel tells once.
        let errno = if kernel::queued(conn.fd()) == 0 {
            conn.take_error()
        } else {
            0
        };
        return if errno == 0 { direct() } else { sys::fail(errno) };
    }
    receive::by_kernel(conn, 0, direct).unwrap_or_else(|| copy(conn, output, len, flags))
}

/// The same while the lane still has bytes, which come before those that the kernel can move, and where holes are to be
/// minded.
fn copy(conn: &'static Conn, output: c_int, len: usize, flags: c_uint) -> isize {
    if len == 0 {
        return 0;
    }
    let asked = flags & libc::SPLICE_F_NONBLOCK != 0;
    let waits = !asked
        && raw::fcntl(output, libc::F_GETFL, 0)
            .is_ok_and(|flags| flags & libc::O_NONBLOCK.cast_unsigned() as usize == 0);
    if waits {
        if let Err(errno) = raw::poll_until(output, libc::POLLOUT, None) {
            return sys::fail(errno);
        }
    } else if raw::poll_now(output, libc::POLLOUT) == 0 {
        return sys::fail(libc::EAGAIN);
    }
    // Once, as in `send`.
    let id = conn.id();
    cancel::point();
    // A pipe that has room takes so many bytes at once; more might have to wait for a reader.
    let mut buffer = [0_u8; libc::PIPE_BUF];
    let part = |len: usize| {
        [iovec {
            iov_base: core::ptr::null_mut(),
            iov_len: len,
        }]
    };
    let mut place = part(buffer.len().min(len));
    place[0].iov_base = buffer.as_mut_ptr().cast();
    let none = || sys::fail(libc::EAGAIN);
    let peek = libc::MSG_PEEK | if asked { libc::MSG_DONTWAIT } else { 0 };
    let seen = receive::attached(conn, id, Vector::own(&place), peek, None, none);
    let Ok(seen @ 1..) = usize::try_from(seen) else {
        return seen;
    };
    let moved = match raw::write(output, buffer.get(..seen).unwrap_or(&[])) {
        Ok(moved) => moved,
        Err(errno) => return sys::fail(errno),
    };
    // A peek sees what the lane and the kernel connection hold together, a receive takes of one at a time.
    let (mut left, mut looks) = (moved, 0);
    while left > 0 && looks < LOOKS {
        let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
        let taken = receive::attached(conn, id, Vector::own(&part(left)), flags, None, none);
        match usize::try_from(taken) {
            Ok(taken @ 1..) => left -= taken.min(left),
            // What comes next is behind a mark that nobody has looked at lately.
            _ => {
                looks += 1;
                receive::clear_marks(conn, id);
            }
        }
    }
    if left == moved {
        sys::fail(libc::EAGAIN)
    } else {
        (moved - left).cast_signed()
    }
}
