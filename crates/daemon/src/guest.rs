//! One connected process: its socket, its mail, its bells.
//!
//! Everything it sends is checked; what it does not read is queued, within bounds that the loop keeps. Nothing here
//! blocks.

use crate::registry::GuestId;
use rustix::fs::{FsWord, fcntl_get_seals, fstat, fstatfs};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use viaduct_channel::Mapping;
use viaduct_control::counters;
use viaduct_control::message::{MAX_PACKET, Packet};

/// Descriptors looked at in one packet; the kernel discards any more, without telling their files' servers.
const MAX_RECEIVED: usize = 2;
/// Descriptors sent with one: a segment, the peer's bell, the end's own outer bell.
const MAX_SENT: usize = 3;

const TMPFS_MAGIC: FsWord = 0x0102_1994;

/// A packet on its way to a guest.
#[derive(Debug)]
pub(crate) struct Mail {
    pub(crate) packet: Packet,
    pub(crate) descriptors: Vec<Rc<OwnedFd>>,
}

/// A received packet.
#[derive(Debug)]
pub(crate) struct Received {
    bytes: [u8; MAX_PACKET],
    len: usize,
    /// Whether it was longer than any packet is.
    pub(crate) is_overlong: bool,
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl Received {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}

/// What a process told of itself in its hello.
#[derive(Debug)]
pub(crate) struct Introduced {
    /// Its counters, where viaductd counts the mail.
    counters: Mapping,
    /// User namespace, if viaductd may look.
    pub(crate) user_ns: Option<u64>,
    /// Its secret for taking tickets; 0 in same-user mode.
    pub(crate) nonce: u32,
}

/// Why a process is let go.
#[derive(Debug)]
pub(crate) enum Farewell {
    /// It hung up.
    HangUp,
    /// It did not read its mail.
    Overflow,
    /// It does not keep to the protocol.
    Violation(&'static str),
    /// Its user has as many processes as it may, which it was told.
    Turned,
    /// A system call failed.
    Io(Errno),
}

/// A connected process.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) id: GuestId,
    pub(crate) socket: OwnedFd,
    /// User and process as the kernel saw them when the process connected.
    pub(crate) user: u32,
    pub(crate) pid: u32,
    pub(crate) introduced: Option<Introduced>,
    /// viaductd's names of this process's bells, by the process's own names.
    pub(crate) bells: HashMap<u64, u64>,
    /// Descriptors of outer bells beside them: two each, one of them until the process has read its mail.
    pub(crate) outer_bells: usize,
    /// Bells of others that this process has been given.
    pub(crate) given: HashSet<u64>,
    queue: VecDeque<Mail>,
    /// Packets sent that the guest has not been told of.
    unannounced: u64,
    /// Whether the loop watches for room in the socket.
    pub(crate) watches_room: bool,
    /// Whether the last packet met the kernel's limit on descriptors in flight, of which no event tells the end.
    pub(crate) starved: bool,
}

impl Guest {
    pub(crate) fn new(id: GuestId, socket: OwnedFd, user: u32, pid: u32) -> Self {
        Self {
            id,
            socket,
            user,
            pid,
            introduced: None,
            bells: HashMap::new(),
            outer_bells: 0,
            given: HashSet::new(),
            queue: VecDeque::new(),
            unannounced: 0,
            watches_room: false,
            starved: false,
        }
    }

    /// Takes note of a hello, the counters that came with it, and the nonce given in return.
    pub(crate) fn introduce(&mut self, counters: BorrowedFd<'_>, nonce: u32) -> Result<(), Farewell> {
        self.introduced = Some(Introduced {
            counters: map_counters(counters)?,
            user_ns: user_namespace(self.pid),
            nonce,
        });
        Ok(())
    }

    /// The next packet, or `None` if there is none now.
    pub(crate) fn receive(&self) -> Result<Option<Received>, Farewell> {
        let mut received = Received {
            bytes: [0; MAX_PACKET],
            len: 0,
            is_overlong: false,
            descriptors: Vec::new(),
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_RECEIVED))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let outcome = recvmsg(
            &self.socket,
            &mut [IoSliceMut::new(&mut received.bytes)],
            &mut control,
            flags,
        );
        let message = match outcome {
            Ok(message) if message.bytes == 0 => return Err(Farewell::HangUp),
            Ok(message) => message,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(Errno::CONNRESET) => return Err(Farewell::HangUp),
            Err(error) => return Err(Farewell::Io(error)),
        };
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = part {
                received.descriptors.extend(descriptors);
            }
        }
        received.is_overlong = message.flags.contains(ReturnFlags::TRUNC);
        received.len = message.bytes;
        Ok(Some(received))
    }

    /// Packets that wait for room in the socket.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Tells the guest how much mail it has got, which it reads only then.
    pub(crate) fn announce(&mut self) {
        if let Some(introduced) = &self.introduced
            && let Some(word) = introduced.counters.words().get(counters::MAIL)
        {
            // Pairs with the guest's acquire load: once it sees the count, the packets are in the socket.
            word.fetch_add(core::mem::take(&mut self.unannounced), Ordering::Release);
        }
    }

    /// Sends `mail`, or queues it behind what is queued already.
    pub(crate) fn post(&mut self, mail: Mail) -> Result<(), Farewell> {
        self.queue.push_back(mail);
        self.flush()
    }

    /// Sends as much queued mail as the socket takes. [`Guest::announce`] tells of it.
    pub(crate) fn flush(&mut self) -> Result<(), Farewell> {
        self.starved = false;
        while let Some(mail) = self.queue.front() {
            match send(self.socket.as_fd(), mail) {
                Ok(()) => {
                    self.queue.pop_front();
                    self.unannounced += u64::from(self.introduced.is_some());
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::TOOMANYREFS) => {
                    self.starved = true;
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Farewell::HangUp),
                Err(error) => return Err(Farewell::Io(error)),
            }
        }
        Ok(())
    }
}

fn send(socket: BorrowedFd<'_>, mail: &Mail) -> Result<(), Errno> {
    let descriptors: Vec<BorrowedFd<'_>> = mail.descriptors.iter().map(|fd| fd.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SENT))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let bytes = IoSlice::new(mail.packet.as_bytes());
    sendmsg(
        socket,
        &[bytes],
        &mut control,
        SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
    )
    .map(drop)
}

/// Maps the counters of a guest. Only memory in which no access can fault is accepted: a memfd of the known size on the
/// kernel's own tmpfs, sealed against shrinking.
fn map_counters(fd: BorrowedFd<'_>) -> Result<Mapping, Farewell> {
    // Asked of some other files, even their size may be long in coming.
    fcntl_get_seals(fd).map_err(|_| Farewell::Violation("counters that are no memfd"))?;
    let size = fstat(fd).map_err(Farewell::Io)?.st_size;
    let expected = (counters::REGION_WORDS * size_of::<u64>()) as u64;
    if u64::try_from(size) != Ok(expected) {
        return Err(Farewell::Violation("counters of a wrong size"));
    }
    if fstatfs(fd).map_err(Farewell::Io)?.f_type != TMPFS_MAGIC {
        return Err(Farewell::Violation("counters that are no memfd"));
    }
    let mapping = Mapping::from_fd(fd).map_err(|_| Farewell::Violation("counters that cannot be mapped"))?;
    if !mapping.populate(0..counters::HEADER_WORDS * size_of::<u64>()) {
        return Err(Farewell::Io(Errno::NOMEM));
    }
    Ok(mapping)
}

/// Number of the user namespace of `pid`; `None` where viaductd may not look.
fn user_namespace(pid: u32) -> Option<u64> {
    let target = std::fs::read_link(format!("/proc/{pid}/ns/user")).ok()?;
    let number = target.to_str()?.strip_prefix("user:[")?.strip_suffix(']')?;
    number.parse().ok()
}

/// Whether `fd` is an eventfd: of anything else a write might block or have effects.
pub(crate) fn is_eventfd(fd: BorrowedFd<'_>) -> bool {
    use std::os::fd::AsRawFd;
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    link.is_ok_and(|target| target.as_os_str() == "anon_inode:[eventfd]")
}
