//! Sockets and namespaces.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use viaduct_control::message::TICKET_LEVEL;

/// The raw call, with as many bytes of answer as fit.
fn getsockopt(end: &impl AsFd, level: i32, option: i32, answer: &mut [u8]) -> io::Result<()> {
    let mut len = libc::socklen_t::try_from(answer.len()).unwrap();
    let fd = end.as_fd().as_raw_fd();
    // SAFETY: the buffer is as long as stated and outlives the call.
    let outcome = unsafe { libc::getsockopt(fd, level, option, answer.as_mut_ptr().cast(), &mut len) };
    if outcome == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn setsockopt(end: &impl AsFd, level: i32, option: i32, value: u32) -> io::Result<()> {
    let fd = end.as_fd().as_raw_fd();
    // SAFETY: the value outlives the call and has the stated length.
    let outcome = unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), 4) };
    if outcome == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Asks the kernel for a ticket.
pub fn take_ticket(end: &impl AsFd, nonce: u32, sequence: u32) -> io::Result<()> {
    take_ticket_by(end, end.as_fd().as_raw_fd(), nonce, sequence)
}

/// The same by a descriptor of that number.
pub fn take_ticket_by(end: &impl AsFd, number: i32, nonce: u32, sequence: u32) -> io::Result<()> {
    let level = (TICKET_LEVEL | (sequence & 0xffff)).cast_signed();
    let mut number = libc::socklen_t::try_from(number).unwrap();
    let fd = end.as_fd().as_raw_fd();
    // SAFETY: the kernel writes nothing but the number.
    let outcome = unsafe { libc::getsockopt(fd, level, nonce.cast_signed(), core::ptr::null_mut(), &mut number) };
    if outcome == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

pub fn netns_cookie(end: &impl AsFd) -> u64 {
    const SO_NETNS_COOKIE: i32 = 71;
    let mut cookie = [0; 8];
    getsockopt(end, libc::SOL_SOCKET, SO_NETNS_COOKIE, &mut cookie).unwrap();
    u64::from_ne_bytes(cookie)
}

pub fn local(end: &impl AsFd) -> SocketAddr {
    rustix::net::getsockname(end).unwrap().try_into().unwrap()
}

pub fn remote(end: &impl AsFd) -> SocketAddr {
    rustix::net::getpeername(end).unwrap().unwrap().try_into().unwrap()
}

const TCP_REPAIR: i32 = 19;
/// Without the probe that would make a peer answer.
const REPAIR_OFF: u32 = u32::MAX;
const TCP_REPAIR_QUEUE: i32 = 20;
const TCP_QUEUE_SEQ: i32 = 21;
const RECEIVE_QUEUE: u32 = 1;
const SEND_QUEUE: u32 = 2;

/// What a connection's next sequence numbers are, sent and received, as repair mode shows them.
pub fn repaired(end: &impl AsFd) -> io::Result<(u32, u32)> {
    setsockopt(end, libc::SOL_TCP, TCP_REPAIR, 1)?;
    let read = |queue| {
        setsockopt(end, libc::SOL_TCP, TCP_REPAIR_QUEUE, queue)?;
        let mut number = [0; 4];
        getsockopt(end, libc::SOL_TCP, TCP_QUEUE_SEQ, &mut number)?;
        Ok::<u32, io::Error>(u32::from_ne_bytes(number))
    };
    let numbers = (read(SEND_QUEUE)?, read(RECEIVE_QUEUE)?);
    setsockopt(end, libc::SOL_TCP, TCP_REPAIR, REPAIR_OFF)?;
    Ok(numbers)
}

/// Connects from a chosen address.
pub fn dial(local: SocketAddr, remote: SocketAddr) -> io::Result<std::net::TcpStream> {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &local)?;
    connect(&socket, &remote)?;
    Ok(socket.into())
}

/// A connected socket with chosen sequence numbers, that never exchanged a packet with anybody.
pub fn forged(local: SocketAddr, remote: SocketAddr, sent: u32, received: u32) -> io::Result<std::net::TcpStream> {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
    setsockopt(&socket, libc::SOL_TCP, TCP_REPAIR, 1)?;
    for (queue, number) in [(SEND_QUEUE, sent), (RECEIVE_QUEUE, received)] {
        setsockopt(&socket, libc::SOL_TCP, TCP_REPAIR_QUEUE, queue)?;
        setsockopt(&socket, libc::SOL_TCP, TCP_QUEUE_SEQ, number)?;
    }
    bind(&socket, &local)?;
    connect(&socket, &remote)?;
    setsockopt(&socket, libc::SOL_TCP, TCP_REPAIR, REPAIR_OFF)?;
    Ok(socket.into())
}

/// A simulated host: a network namespace with loopback up, gone when dropped.
#[derive(Debug)]
pub struct Host {
    pub name: String,
}

static HOSTS: AtomicU32 = AtomicU32::new(0);

impl Host {
    pub fn new() -> Self {
        let number = HOSTS.fetch_add(1, Ordering::Relaxed);
        let name = format!("vd{}x{number}", std::process::id());
        run("ip", &["netns", "add", &name]);
        let host = Self { name };
        host.ip(&["link", "set", "lo", "up"]);
        host
    }

    pub fn ip(&self, args: &[&str]) {
        run("ip", &[&["-n", &self.name], args].concat());
    }
}

impl Host {
    pub fn sysctl(&self, setting: &str) {
        run("ip", &["netns", "exec", &self.name, "sysctl", "-qw", setting]);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// Joins two hosts by a veth pair with these addresses, written as `ADDRESS/BITS`.
pub fn link(a: (&Host, &str, &str), b: (&Host, &str, &str)) {
    run(
        "ip",
        &[
            "link", "add", a.1, "netns", &a.0.name, "type", "veth", "peer", "name", b.1, "netns", &b.0.name,
        ],
    );
    for (host, device, address) in [a, b] {
        host.ip(&["addr", "add", address, "dev", device]);
        host.ip(&["link", "set", device, "up"]);
    }
}

/// Loads an nftables ruleset in a host.
pub fn nft(host: &Host, rules: &str) {
    run("ip", &["netns", "exec", &host.name, "nft", rules]);
}

pub fn run(program: &str, args: &[&str]) {
    let output = Command::new(program)
        .args(args)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {complaint}");
}
