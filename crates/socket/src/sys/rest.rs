//! What the kernel says beside the bytes of a receive.

use super::raw;
use core::ffi::c_int;

/// Room for it, times included.
#[repr(C, align(8))]
struct ControlBuffer([u8; 256]);

/// How much a socket has left to be received, by the kernel's count beside a peek (`TCP_INQ`, which is set), in which a
/// FIN is one. `None` where it tells nothing.
#[cold]
pub(crate) fn peek_at_rest(fd: c_int) -> Option<u32> {
    let (mut byte, mut control) = ([0_u8], ControlBuffer([0; 256]));
    let mut part = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: byte.len(),
    };
    // SAFETY: all zero is a valid message header.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len();
    let flags = (libc::MSG_PEEK | libc::MSG_DONTWAIT) as usize;
    let place = (&raw mut message).expose_provenance();
    // SAFETY: the header and all it points to outlive the call.
    unsafe { raw::call(libc::SYS_recvmsg, [fd as usize, place, flags, 0, 0, 0]) }.ok()?;
    // SAFETY: the kernel has filled the control buffer and set its length.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: a header of the kernel's.
        let (level, kind) = unsafe { ((*header).cmsg_level, (*header).cmsg_type) };
        if (level, kind) == (libc::IPPROTO_TCP, libc::TCP_CM_INQ) {
            // SAFETY: an integer follows it.
            return Some(unsafe { libc::CMSG_DATA(header).cast::<u32>().read_unaligned() });
        }
        // SAFETY: as above.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    None
}
