//! One send or one receive, each time by another of the calls that programs use.

use nix::Result;
use nix::sys::socket::{self, MsgFlags};
use nix::sys::uio;
use nix::unistd;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd};
use viaduct_testkit::pattern::{self, Random};

/// Sends some of `bytes`.
pub(crate) fn send(fd: BorrowedFd<'_>, bytes: &[u8], random: &mut Random) -> Result<usize> {
    let (first, second) = bytes.split_at(usize::try_from(random.below(bytes.len() as u64)).unwrap_or(0));
    let vector = [IoSlice::new(first), IoSlice::new(second)];
    match random.below(5) {
        0 => unistd::write(fd, bytes),
        1 => uio::writev(fd, &vector),
        2 => socket::sendmsg::<()>(fd.as_raw_fd(), &vector, &[], MsgFlags::MSG_NOSIGNAL, None),
        3 => socket::send(
            fd.as_raw_fd(),
            bytes,
            MsgFlags::MSG_NOSIGNAL | MsgFlags::from_bits_retain(nix::libc::MSG_MORE),
        ),
        _ => socket::send(fd.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL),
    }
}

/// What a receive gave.
#[derive(Debug)]
pub(crate) enum Received {
    /// This many bytes, 0 at the end of the stream.
    Bytes(usize),
    /// A look ahead showed other bytes than the receive that followed.
    PeekDiffers,
}

/// Receives some bytes into `buffer`.
pub(crate) fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8], random: &mut Random) -> Result<Received> {
    let raw = fd.as_raw_fd();
    let wanted = match random.below(4) {
        0 => 1 + random.below(64),
        1 => 1 + random.below(4096),
        _ => buffer.len() as u64,
    };
    let wanted = usize::try_from(wanted).unwrap_or(usize::MAX).min(buffer.len());
    let buffer = &mut buffer[..wanted];
    let count = match random.below(6) {
        0 => unistd::read(fd, buffer)?,
        1 => {
            let (first, second) = buffer.split_at_mut(wanted / 3);
            uio::readv(fd, &mut [IoSliceMut::new(first), IoSliceMut::new(second)])?
        }
        2 => {
            let (first, second) = buffer.split_at_mut(wanted / 2);
            let mut vector = [IoSliceMut::new(first), IoSliceMut::new(second)];
            socket::recvmsg::<()>(raw, &mut vector, None, MsgFlags::empty())?.bytes
        }
        3 => {
            let mut ahead = [0; 48];
            let length = wanted.min(ahead.len());
            let peeked = socket::recv(raw, &mut ahead[..length], MsgFlags::MSG_PEEK)?;
            // Somebody who waits for the peeked bytes alone must get exactly these.
            let count = socket::recv(raw, &mut buffer[..peeked], MsgFlags::empty())?;
            if buffer[..count] != ahead[..count] {
                return Ok(Received::PeekDiffers);
            }
            count
        }
        _ => socket::recv(raw, buffer, MsgFlags::empty())?,
    };
    Ok(Received::Bytes(count))
}

/// Makes the order of calls of one connection.
pub(crate) fn order(seed: u64, salt: u64) -> Random {
    let mut random = pattern::Random::new(seed ^ salt.rotate_left(32));
    random.number();
    random
}
