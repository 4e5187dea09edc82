//! Something that carries bytes between the two peers of a sweep.

use std::hint;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::thread;
use viaduct_channel::{Segment, Side, Violation};

/// Looks at a lane between two that let other threads run, lest both ends be on one processor.
const LOOKS: u32 = 64;
/// Bytes published at a time, as in the socket layer.
const PIECE: usize = 64 << 10;

/// A stream of bytes each way.
pub(super) trait Wire {
    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// The other end is gone.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Receives what there is, at least a byte, into `bytes`; returns how many, 0 at the end of the stream.
    ///
    /// # Errors
    /// The other end is gone.
    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize>;

    /// Sends what has been held back to be sent together with more.
    ///
    /// # Errors
    /// The other end is gone.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Fills `bytes`; `false` at the end of the stream.
    ///
    /// # Errors
    /// The other end is gone.
    fn receive_all(&mut self, bytes: &mut [u8]) -> io::Result<bool> {
        let mut done = 0;
        while let Some(rest @ [_, ..]) = bytes.get_mut(done..) {
            match self.receive(rest)? {
                0 if done == 0 => return Ok(false),
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => done += count,
            }
        }
        Ok(true)
    }
}

/// A TCP connection.
#[derive(Debug)]
pub(super) struct Tcp(pub(super) TcpStream);

impl Wire for Tcp {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        // Nagle's algorithm keeps the last bytes of a stream until earlier ones are acknowledged, which the other end
        // puts off by 40 ms: that would be measured instead of the stream.
        let before = self.0.nodelay()?;
        self.0.set_nodelay(true)?;
        self.0.set_nodelay(before)
    }
}

/// A Unix stream socket.
#[derive(Debug)]
pub(super) struct Unix(pub(super) UnixStream);

impl Wire for Unix {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read(bytes)
    }
}

/// One side of a segment, which polls and never sleeps: what the layers above can at best come near to.
#[derive(Debug)]
pub(super) struct Lanes {
    pub(super) segment: Segment,
    pub(super) side: Side,
}

impl Wire for Lanes {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let sender = self.segment.sender(self.side);
        let mut done = 0;
        while let Some(rest @ [_, ..]) = bytes.get(done..) {
            // In pieces, so that both sides copy at the same time.
            let piece = rest.get(..PIECE).unwrap_or(rest);
            done += poll(|| sender.append(piece.into()))?;
        }
        Ok(())
    }

    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let receiver = self.segment.receiver(self.side);
        poll(|| receiver.readable())?;
        let count = receiver.copy_out(bytes.into(), 0);
        // The blocks returned need no bell: the sender polls too.
        receiver.consume(count);
        Ok(count)
    }
}

/// Tries until there is something.
fn poll(mut attempt: impl FnMut() -> Result<usize, Violation>) -> io::Result<usize> {
    let mut looks = 0_u32;
    loop {
        match attempt().map_err(io::Error::other)? {
            0 => {}
            count => return Ok(count),
        }
        looks += 1;
        if looks.is_multiple_of(LOOKS) {
            thread::yield_now();
        }
        hint::spin_loop();
    }
}
