//! Direct search: receiving bytes from the middle of a TCP stream without receiving what lies before them.
//!
//! ```
//! use std::io::Write;
//! use std::net::{TcpListener, TcpStream};
//! use viaduct::{Flags, seek_recv};
//!
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let mut sender = TcpStream::connect(listener.local_addr()?)?;
//! let (receiver, _) = listener.accept()?;
//! sender.write_all(b"bulk, bulk, bulk; urgent")?;
//!
//! let mut urgent = [0; 6];
//! seek_recv(&receiver, &mut urgent, Flags::WAIT_ALL, 18)?;
//! assert_eq!(&urgent, b"urgent");
//! let mut rest = [0; 18];
//! seek_recv(&receiver, &mut rest, Flags::WAIT_ALL, 0)?;
//! assert_eq!(&rest, b"bulk, bulk, bulk; ");
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! The bytes received become a *hole*, which later calls skip. Under `viaduct run` the ordinary calls (`recv`, `read`,
//! `FIONREAD`) skip holes too, whatever carries the stream. Without it, a socket that has been received from by
//! [`seek_recv`] must be received from by it only, with offset 0 in place of `recv`; readiness (`poll`, `epoll`) is
//! right for that without help.
//!
//! The same for C is in `include/viaduct.h`.

mod call;
mod cancel;
pub mod face;
pub mod message;

pub use call::{Flags, peeks_at_offsets, readable, recv, seek_recv};
