//! The packet socket to viaductd, the tickets that it asks for, and the addresses of sockets.

use super::{Errno, raw};
use core::ffi::{c_int, c_long};

/// Room for the descriptors that accompany a packet.
pub(crate) const PACKET_DESCRIPTORS: usize = 3;

#[repr(C, align(8))]
struct ControlBuffer([u8; 64]);

/// Connects a packet socket to the Unix address `path`, without waiting.
pub(crate) fn connect_packet_socket(path: &[u8]) -> Result<c_int, Errno> {
    // SAFETY: all zero is a valid address structure.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    if path.len() >= address.sun_path.len() {
        return Err(libc::ENAMETOOLONG);
    }
    for (place, byte) in address.sun_path.iter_mut().zip(path) {
        *place = byte.cast_signed();
    }
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let fd = unsafe { raw::call(libc::SYS_socket, [libc::AF_UNIX as usize, kind as usize, 0, 0, 0, 0])? } as c_int;
    let place = (&raw const address).expose_provenance();
    // SAFETY: the kernel reads one sockaddr_un.
    let connected = unsafe { raw::call(libc::SYS_connect, [fd as usize, place, size_of_val(&address), 0, 0, 0]) };
    connected.map(|_| fd).inspect_err(|_| raw::close(fd))
}

/// The `getsockopt` by which a ticket is taken ([`viaduct_control::message::TICKET_LEVEL`]): it gives nothing, and what
/// stands for a length is the descriptor's number.
pub(crate) fn take_ticket(fd: c_int, level: c_int, name: c_int) -> Result<(), Errno> {
    let mut number = fd;
    let place = (&raw mut number).expose_provenance();
    let (level, name) = (level as usize, name as usize);
    // SAFETY: the kernel writes nothing but `number`: there is nowhere else to.
    unsafe { raw::call(libc::SYS_getsockopt, [fd as usize, level, name, 0, place, 0]) }.map(drop)
}

/// Sends one packet and perhaps a descriptor, without waiting.
pub(crate) fn send_packet(fd: c_int, packet: &[u8], descriptor: Option<c_int>) -> Result<(), Errno> {
    let mut part = libc::iovec {
        iov_base: packet.as_ptr().cast_mut().cast(),
        iov_len: packet.len(),
    };
    let mut control = ControlBuffer([0; 64]);
    // SAFETY: all zero is a valid message header.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if let Some(descriptor) = descriptor {
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: plain arithmetic; the buffer has room for one header and one descriptor.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(size_of::<c_int>() as u32) as usize;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<c_int>() as u32) as usize;
            libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(descriptor);
        }
    }
    let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
    // SAFETY: the header and all it points to outlive the call.
    unsafe {
        raw::call(
            libc::SYS_sendmsg,
            [fd as usize, (&raw const message).expose_provenance(), flags, 0, 0, 0],
        )
    }
    .map(drop)
}

/// Receives one packet and up to three descriptors (-1 where there is none), without waiting. Length 0: the other side
/// is gone.
pub(crate) fn receive_packet(fd: c_int, packet: &mut [u8]) -> Result<(usize, [c_int; PACKET_DESCRIPTORS]), Errno> {
    let mut part = libc::iovec {
        iov_base: packet.as_mut_ptr().cast(),
        iov_len: packet.len(),
    };
    let mut control = ControlBuffer([0; 64]);
    // SAFETY: all zero is a valid message header.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: plain arithmetic.
    message.msg_controllen = unsafe { libc::CMSG_SPACE((PACKET_DESCRIPTORS * size_of::<c_int>()) as u32) } as usize;
    let flags = (libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) as usize;
    let place = (&raw mut message).expose_provenance();
    // SAFETY: the header and all it points to outlive the call.
    let len = unsafe { raw::call(libc::SYS_recvmsg, [fd as usize, place, flags, 0, 0, 0]) }?;
    let mut descriptors = [-1; PACKET_DESCRIPTORS];
    // SAFETY: the kernel has filled the control buffer and set its length; one header of ours fits.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if !header.is_null() && (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
            let bytes = (*header).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
            for (index, place) in descriptors.iter_mut().enumerate().take(bytes / size_of::<c_int>()) {
                *place = libc::CMSG_DATA(header).cast::<c_int>().add(index).read_unaligned();
            }
        }
    }
    Ok((len, descriptors))
}

/// Owns a descriptor number the kernel has just given us.
pub(crate) fn own_descriptor(fd: c_int) -> Option<std::os::fd::OwnedFd> {
    use std::os::fd::FromRawFd;
    // SAFETY: callers pass numbers received by `receive_packet`, which nobody else owns.
    (fd >= 0).then(|| unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) })
}

/// Own and peer address of a TCP socket; `None` where it has none.
pub(crate) fn addresses(fd: c_int) -> Option<(viaduct_control::message::Address, viaduct_control::message::Address)> {
    Some((address(fd, libc::SYS_getsockname)?, address(fd, libc::SYS_getpeername)?))
}

fn address(fd: c_int, call: c_long) -> Option<viaduct_control::message::Address> {
    #[repr(C)]
    #[derive(Default)]
    struct Storage {
        family: u16,
        port: [u8; 2],
        v4: [u8; 4],
        v6: [u8; 16],
        scope: u32,
    }
    let mut storage = Storage::default();
    let mut length = size_of::<Storage>() as u32;
    let (place, length) = (
        (&raw mut storage).expose_provenance(),
        (&raw mut length).expose_provenance(),
    );
    // SAFETY: the kernel writes at most the structure's size into it.
    unsafe { raw::call(call, [fd as usize, place, length, 0, 0, 0]) }.ok()?;
    let ip = match c_int::from(storage.family) {
        libc::AF_INET => core::net::Ipv4Addr::from(storage.v4).to_ipv6_mapped().octets(),
        libc::AF_INET6 => storage.v6,
        _ => return None,
    };
    Some(viaduct_control::message::Address {
        ip,
        port: u16::from_be_bytes(storage.port),
        reserved: 0,
        scope: if c_int::from(storage.family) == libc::AF_INET6 {
            storage.scope
        } else {
            0
        },
    })
}
