//! Outer bells: Unix stream sockets, of which one end rings and the other listens.

use super::{Errno, raw};
use core::ffi::c_int;
use viaduct_control::message::SO_PASSRIGHTS;

/// Sends a byte, without waiting and without a signal.
///
/// # Errors
/// The listener has gone, or has more bytes than it can hold; or there is no such socket.
#[inline]
pub(crate) fn ring(fd: c_int) -> Result<(), Errno> {
    raw::send(fd, &[1], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL).map(drop)
}

/// Takes what has been sent. False if no more can come, somebody having shut the connection down, or if more has come
/// than rings can have sent.
pub(crate) fn drain(fd: c_int) -> bool {
    // viaductd leaves room for fewer bytes that are sent one by one, but more may come meanwhile.
    let mut bytes = [0; 256];
    for _ in 0..4 {
        match raw::recv(fd, &mut bytes, libc::MSG_DONTWAIT) {
            Ok(0) => return false,
            Ok(len) if len == bytes.len() => {}
            Ok(_) | Err(libc::EAGAIN | libc::EINTR) => return true,
            Err(_) => return false,
        }
    }
    false
}

/// Lets no more be sent or received, so that whoever rings learns that nobody listens.
pub(crate) fn end(fd: c_int) {
    // SAFETY: no pointers.
    let _ = unsafe { raw::call(libc::SYS_shutdown, [fd as usize, libc::SHUT_RDWR as usize, 0, 0, 0, 0]) };
}

/// Whether an end that has just come lets nothing but bytes in. viaductd makes it so before it gives the other end to
/// anybody; who came later could not know what had been sent: a look ends before urgent bytes, and whoever takes the
/// last descriptor of a file may have to wait for it (`SO_LINGER`).
pub(crate) fn is_sealed(fd: c_int) -> bool {
    let is = |name, expected: c_int| {
        let mut found: c_int = -1;
        raw::getsockopt(fd, libc::SOL_SOCKET, name, &mut found).is_ok() && found == expected
    };
    is(SO_PASSRIGHTS, 0) && is(libc::SO_OOBINLINE, 1)
}

/// Closes an end that is not listened to, unless that might take long: then it stays until the process ends.
pub(crate) fn dispose(fd: c_int) {
    end(fd);
    if is_sealed(fd) {
        raw::close(fd);
    } else {
        crate::agent::hide(fd);
    }
}

/// Whether no more can come. What has come may still be there.
#[cold]
pub(crate) fn has_ended(fd: c_int) -> bool {
    raw::poll_now(fd, libc::POLLRDHUP) != 0
}

/// Puts the file of `fresh` in the place of `fd`'s, and closes `fresh`.
pub(crate) fn replace(fd: c_int, fresh: c_int) -> bool {
    // SAFETY: no pointers; both descriptors are ours.
    let done = unsafe {
        raw::call(
            libc::SYS_dup3,
            [fresh as usize, fd as usize, libc::O_CLOEXEC as usize, 0, 0, 0],
        )
    };
    raw::close(fresh);
    done.is_ok()
}
