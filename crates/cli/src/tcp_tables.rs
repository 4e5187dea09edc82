//! The kernel's TCP sockets.

use crate::proc;
use anyhow::{Context, Result, bail};
use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::HashMap;
use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

/// The two ends of a TCP socket as the kernel has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    /// Own end.
    pub(crate) local: SocketAddr,
    /// The other; port 0 where there is none.
    pub(crate) remote: SocketAddr,
}

/// TCP sockets by inode, one table for each network namespace that was asked about.
#[derive(Debug, Default)]
pub(crate) struct TcpTables {
    tables: HashMap<u64, HashMap<u64, Ends>>,
}

impl TcpTables {
    /// The socket `inode` in namespace `netns`, which is that of process `pid`.
    pub(crate) fn find(&mut self, netns: u64, pid: u32, inode: u64) -> Option<Ends> {
        self.of(netns, pid).get(&inode).copied()
    }

    /// Every socket of namespace `netns`, which is that of process `pid`.
    pub(crate) fn of(&mut self, netns: u64, pid: u32) -> &HashMap<u64, Ends> {
        self.tables
            .entry(netns)
            .or_insert_with(|| asked(netns, pid).unwrap_or_else(|_| listed(pid)))
    }
}

/// What the kernel answers when it is asked for the sockets that somebody may hold. Its text lists those in TIME_WAIT
/// as well, of which a busy server has tens of thousands, and takes a tenth of a second to write.
///
/// # Errors
/// No such question may be asked, or not in that namespace.
fn asked(netns: u64, pid: u32) -> Result<HashMap<u64, Ends>> {
    let socket = if proc::network_namespace(std::process::id()) == Some(netns) {
        Socket::new(NETLINK_SOCK_DIAG)?
    } else {
        // A socket stays in the namespace it was made in, and only its thread goes there.
        std::thread::spawn(move || socket_of(pid))
            .join()
            .ok()
            .context("the thread ended early")??
    };
    let mut table = HashMap::new();
    for (family, any) in [(AF_INET, SocketId::new_v4()), (AF_INET6, SocketId::new_v6())] {
        ask(&socket, family, any, &mut table)?;
    }
    Ok(table)
}

/// A socket that asks about the network namespace of `pid`.
fn socket_of(pid: u32) -> Result<Socket> {
    let namespace = File::open(format!("/proc/{pid}/ns/net"))?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
    Ok(Socket::new(NETLINK_SOCK_DIAG)?)
}

/// Asks for the sockets of one family.
fn ask(socket: &Socket, family: u8, any: SocketId, table: &mut HashMap<u64, Ends>) -> Result<()> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let question = InetRequest {
        family,
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::empty(),
        states: StateFlags::all() - StateFlags::TIME_WAIT,
        socket_id: any,
    };
    let mut message = NetlinkMessage::new(header, SockDiagMessage::InetRequest(question).into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    loop {
        let (answer, _) = socket.recv_from_full()?;
        let mut rest = &answer[..];
        while !rest.is_empty() {
            let message = NetlinkMessage::<SockDiagMessage>::deserialize(rest)?;
            // Messages are aligned to four bytes.
            let length = usize::try_from(message.header.length)?.next_multiple_of(4);
            match message.payload {
                NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(found)) => {
                    let of = &found.header;
                    let end = |address: IpAddr, port| SocketAddr::new(address.to_canonical(), port);
                    let ends = Ends {
                        local: end(of.socket_id.source_address, of.socket_id.source_port),
                        remote: end(of.socket_id.destination_address, of.socket_id.destination_port),
                    };
                    // Sockets that no process holds any more all have inode 0.
                    if of.inode != 0 {
                        table.insert(of.inode.into(), ends);
                    }
                }
                // A dump that failed ends like one that did not, but for its code.
                NetlinkPayload::Done(done) if done.code == 0 => return Ok(()),
                other => bail!("no sockets but {other:?}"),
            }
            rest = rest.get(length..).unwrap_or_default();
        }
    }
}

/// What the kernel's text about the namespace of `pid` says, which may be read wherever the process may be seen.
fn listed(pid: u32) -> HashMap<u64, Ends> {
    ["tcp", "tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(format!("/proc/{pid}/net/{table}")).ok())
        .flat_map(|text| text.lines().skip(1).filter_map(parse_socket).collect::<Vec<_>>())
        .collect()
}

/// A line of `/proc/net/tcp`: inode and ends.
fn parse_socket(line: &str) -> Option<(u64, Ends)> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let ends = Ends {
        local: parse_address(words.next()?)?,
        remote: parse_address(words.next()?)?,
    };
    let inode = words.nth(6)?.parse().ok()?;
    // Sockets that no process holds any more all have inode 0.
    (inode != 0).then_some((inode, ends))
}

fn parse_address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    // Each 32-bit word is printed as a number of the machine's byte order.
    let word = |at: usize| Some(u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (at, place) in (0..32).step_by(8).zip(bytes.chunks_exact_mut(4)) {
                place.copy_from_slice(&word(at)?);
            }
            Ipv6Addr::from(bytes).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn both_ways_to_ask_the_kernel_answer_the_same() {
        let own = std::process::id();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (far, _) = listener.accept().unwrap();
            let asked = asked(proc::network_namespace(own).unwrap(), own).unwrap();
            let listed = listed(own);
            for (fd, remote) in [
                (near.as_raw_fd(), near.peer_addr().unwrap()),
                (far.as_raw_fd(), far.peer_addr().unwrap()),
            ] {
                let inode = proc::Descriptors::of(own).sockets[&u32::try_from(fd).unwrap()];
                assert_eq!(asked[&inode].remote, remote);
                assert_eq!(asked.get(&inode), listed.get(&inode));
            }
        }
    }

    #[test]
    fn lines_of_the_kernel_are_understood() {
        let v4 =
            "   0: 0100007F:18EB 0200007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0000 20";
        let (inode, ends) = parse_socket(v4).unwrap();
        assert_eq!(inode, 4711);
        assert_eq!(ends.local, "127.0.0.1:6379".parse().unwrap());
        assert_eq!(ends.remote, "127.0.0.2:50000".parse().unwrap());
        let v6 = "0: 00000000000000000000000001000000:0050 0000000000000000FFFF00000100000A:0051 01 0:0 0:0 0 0 0 9 1";
        let (inode, ends) = parse_socket(v6).unwrap();
        assert_eq!(inode, 9);
        assert_eq!(ends.local, "[::1]:80".parse().unwrap());
        assert_eq!(ends.remote, "10.0.0.1:81".parse().unwrap());
        assert_eq!(parse_socket("  sl  local_address rem_address   st"), None);
        assert_eq!(parse_socket(""), None);
    }
}
