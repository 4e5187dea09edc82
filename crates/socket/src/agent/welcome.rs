//! What viaductd answers to a hello.

use crate::sys;
use viaduct_control::message::{self, Refuse, Welcome};
use viaduct_control::{PROTOCOL_VERSION, Reason};

/// How long viaductd may take to welcome a process.
pub(crate) const WELCOME_MS: u64 = 50;

/// The welcome on the connection `fd` to viaductd, or why there is none.
pub(crate) fn await_on(fd: i32) -> Result<Welcome, Reason> {
    let until = sys::now_ns() + WELCOME_MS * 1_000_000;
    let mut packet = [0; message::MAX_PACKET];
    loop {
        match sys::receive_packet(fd, &mut packet) {
            Ok((len, descriptors)) => {
                descriptors.into_iter().for_each(|fd| drop(sys::own_descriptor(fd)));
                return read(packet.get(..len).unwrap_or(&[]));
            }
            Err(libc::EAGAIN) => {
                let left = until.saturating_sub(sys::now_ns());
                if left == 0 {
                    return Err(Reason::SlowDaemon);
                }
                sys::wait_quietly(fd, libc::POLLIN, left);
            }
            Err(_) => return Err(Reason::NoDaemon),
        }
    }
}

fn read(packet: &[u8]) -> Result<Welcome, Reason> {
    if let Some(refuse) = message::decode::<Refuse>(packet) {
        // One that we do not know is a later version's.
        return Err(refuse.reason().unwrap_or(Reason::Version));
    }
    match message::decode::<Welcome>(packet) {
        Some(welcome) if welcome.version == PROTOCOL_VERSION => Ok(welcome),
        Some(_) => Err(Reason::Version),
        None => Err(Reason::NoDaemon),
    }
}
