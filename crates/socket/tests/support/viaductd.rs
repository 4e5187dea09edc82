//! A viaductd for this process alone, so that both ends of a connection and whoever holds its segment are in one place.

use std::env;
use std::fs;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use viaduct_channel::{Geometry, Mapping, Segment};
use viaduct_control::message::{Body, Hello, MAX_PACKET, MODE_SAME_USER, Offer, Packet, Pair, Welcome, decode};
use viaduct_control::{PROTOCOL_VERSION, counters, policy, runtime};

use super::end::End;

pub(crate) struct Viaductd {
    guest: OwnedFd,
    /// What the library shows of its connections, and is told wishes by.
    counters: Mapping,
    listener: TcpListener,
}

impl Viaductd {
    /// Before any other use of the library in this process.
    pub(crate) fn start() -> Self {
        let dir = env::temp_dir().join(format!("viaduct-hostile-{}", process::id()));
        fs::create_dir_all(&dir).expect("a directory for the socket");
        // SAFETY: the library, which is the only one here to read the environment by other means, does so below.
        unsafe {
            env::set_var(runtime::DIR_VARIABLE, &dir);
            env::set_var(policy::OFFER_VARIABLE, "now");
            env::set_var(policy::SPIN_VARIABLE, "never");
        }
        viaduct_socket::remember_environment();
        let socket = listen(&dir);
        let welcoming = thread::spawn(move || welcome(&socket));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        // On a busy machine the library may find that it is not welcomed soon enough, and comes back later.
        while !welcoming.is_finished() {
            let [near, _far] = End::pair(&listener);
            let _ = near.send(b"x");
            thread::sleep(Duration::from_millis(10));
        }
        let (guest, counters) = welcoming.join().expect("no panic");
        fs::remove_dir_all(&dir).expect("it is there");
        Self {
            guest,
            counters,
            listener,
        }
    }

    /// Both ends of a new connection that have a segment of so many blocks, and its memory.
    pub(crate) fn connection(&self, blocks: u32) -> ([End; 2], Mapping) {
        // What is left of others, as the offers of which the end was closed.
        while receive(&self.guest, RecvFlags::DONTWAIT).is_ok_and(|(packet, _)| !packet.is_empty()) {}
        let ends = End::pair(&self.listener);
        // An end is offered when it has carried something.
        assert_eq!(ends[0].send(b"x"), Ok(1));
        assert_eq!(ends[1].receive(&mut [0; 2], 0, None), Ok(1));
        let geometry = Geometry::new(12, blocks).expect("permitted");
        let segment = Segment::create(1, geometry).expect("memory for a segment");
        for side in 0..2 {
            let offer = self.next_offer();
            let pair = Pair {
                offer: offer.offer,
                segment: 1,
                // Bells are bytes on the kernel connection.
                bell: 0,
                own_bell: 0,
                side,
                flags: 0,
                peer_pid: process::id(),
                peer_uid: 0,
            };
            send(&self.guest, &pair, &[segment.as_fd()]);
            self.counters.words()[counters::MAIL].fetch_add(1, Release);
        }
        (ends, Mapping::from_fd(segment.as_fd()).expect("just made"))
    }

    fn next_offer(&self) -> Offer {
        loop {
            let (packet, _) = receive(&self.guest, RecvFlags::empty()).expect("the library is there");
            assert!(!packet.is_empty(), "the library has gone");
            // Between offers it says what it does with other connections' segments.
            if let Some(offer) = decode(&packet) {
                return offer;
            }
        }
    }

    /// Has an end be on TCP, or not, as `viaduct path` does.
    pub(crate) fn wish(&self, end: &End, wanted: u64) {
        let words = self.counters.words();
        let slots = words[counters::HEADER_WORDS..].chunks_exact(counters::SLOT_WORDS);
        let used = words[counters::SLOTS_USED].load(Relaxed);
        for slot in slots.take(usize::try_from(used).expect("few")) {
            let state = counters::State::unpack(slot[counters::slot::STATE].load(Relaxed));
            if slot[counters::slot::CONNECTION].load(Relaxed) != 0 && state.is_some_and(|state| state.fd == end.fd()) {
                slot[counters::slot::WANTED].store(wanted, Relaxed);
            }
        }
    }
}

fn listen(dir: &Path) -> OwnedFd {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let socket = socket.expect("a socket");
    let address = SocketAddrUnix::new(runtime::socket_path(dir)).expect("short enough");
    rustix::net::bind(&socket, &address).expect("a directory of our own");
    rustix::net::listen(&socket, 8).expect("bound");
    socket
}

/// Welcomes the library. Returns the connection to it and its counters, once it has taken the welcome: an offer
/// follows.
fn welcome(socket: &OwnedFd) -> (OwnedFd, Mapping) {
    loop {
        let guest = rustix::net::accept(socket).expect("it listens");
        let (packet, descriptors) = receive(&guest, RecvFlags::empty()).expect("a hello");
        assert!(decode::<Hello>(&packet).is_some());
        let counters = Mapping::from_fd(descriptors[0].as_fd()).expect("sealed");
        let welcome = Welcome {
            version: PROTOCOL_VERSION,
            mode: MODE_SAME_USER,
            nonce: 0,
            reserved: 0,
            instance: 1,
        };
        send(&guest, &welcome, &[]);
        counters.words()[counters::MAIL].fetch_add(1, Release);
        if receive(&guest, RecvFlags::PEEK).is_ok_and(|(packet, _)| !packet.is_empty()) {
            return (guest, counters);
        }
    }
}

fn send<B: Body>(guest: &OwnedFd, body: &B, descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let packet = Packet::new(body);
    // Whoever is gone by now comes back.
    let _ = rustix::net::sendmsg(
        guest,
        &[IoSlice::new(packet.as_bytes())],
        &mut control,
        SendFlags::NOSIGNAL,
    );
}

fn receive(guest: &OwnedFd, flags: RecvFlags) -> Result<(Vec<u8>, Vec<OwnedFd>), Errno> {
    let mut bytes = vec![0; MAX_PACKET];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(&mut bytes)];
    let len = rustix::net::recvmsg(guest, parts, &mut control, flags | RecvFlags::CMSG_CLOEXEC)?.bytes;
    bytes.truncate(len);
    let rights = control.drain().flat_map(|part| match part {
        RecvAncillaryMessage::ScmRights(rights) => rights.collect(),
        _ => Vec::new(),
    });
    Ok((bytes, rights.collect()))
}
