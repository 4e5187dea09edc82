//! What `/proc` says about processes, their descriptors and their sockets.

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags, openat, readlinkat, statx};
use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use viaduct_control::counters::MEMFD_NAME;

/// Processes there are now, by number.
pub(crate) fn processes() -> Vec<u32> {
    let mut pids = numbers(Path::new("/proc"));
    pids.sort_unstable();
    pids
}

/// The descriptors of a process that matter here.
#[derive(Debug, Default)]
pub(crate) struct Descriptors {
    /// Inodes of its sockets, by descriptor.
    pub(crate) sockets: HashMap<u32, u64>,
    /// Descriptors that look like counters, lowest first.
    pub(crate) counters: Vec<u32>,
}

impl Descriptors {
    /// Those of `pid`; none if they may not be seen.
    pub(crate) fn of(pid: u32) -> Self {
        let mut descriptors = Self::default();
        let path = format!("/proc/{pid}/fd");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(dir) = openat(rustix::fs::CWD, &path, flags, Mode::empty()) else {
            return descriptors;
        };
        let counters = format!("/memfd:{MEMFD_NAME} (deleted)");
        let mut buffer = Vec::new();
        for fd in numbers(Path::new(&path)) {
            let Ok(link) = readlinkat(&dir, fd.to_string(), std::mem::take(&mut buffer)) else {
                continue;
            };
            if let Some(inode) = inode_in(link.as_bytes(), "socket:[") {
                descriptors.sockets.insert(fd, inode);
            } else if link.as_bytes() == counters.as_bytes() {
                descriptors.counters.push(fd);
            }
            buffer = link.into_bytes();
        }
        descriptors.counters.sort_unstable();
        descriptors
    }
}

fn numbers(dir: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// Inode of the network namespace of `pid`.
pub(crate) fn network_namespace(pid: u32) -> Option<u64> {
    let link = readlinkat(rustix::fs::CWD, format!("/proc/{pid}/ns/net"), Vec::new()).ok()?;
    inode_in(link.as_bytes(), "net:[")
}

fn inode_in(link: &[u8], prefix: &str) -> Option<u64> {
    std::str::from_utf8(link)
        .ok()?
        .strip_prefix(prefix)?
        .strip_suffix(']')?
        .parse()
        .ok()
}

/// The number that `pid` has for itself, in its own namespace.
pub(crate) fn own_number(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().next_back()?.parse().ok()
}

/// The kernel's name of `pid`.
pub(crate) fn name(pid: u32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(printable(name.trim_ascii_end()))
}

/// `bytes` as text that cannot disturb a terminal.
pub(crate) fn printable(bytes: &[u8]) -> String {
    let mut text = String::new();
    for character in String::from_utf8_lossy(bytes).chars() {
        // Besides control characters those that reorder what surrounds them.
        if character.is_control()
            || matches!(character, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        {
            text.extend(character.escape_default());
        } else {
            text.push(character);
        }
    }
    text
}

/// Opens memfds of other processes, and nothing else that could be made to look like one.
///
/// All memfds live in one file system that user space cannot mount, so its number tells them from a file, FIFO or FUSE node
/// of the same name, which a hostile process might put where its `/proc/PID/fd` shows it. Nothing is opened for real, and no file system asked
/// for anything, before that is known.
#[derive(Debug)]
pub(crate) struct Memfds {
    device: (u32, u32),
}

/// A memfd of another process, identified but not yet opened.
#[derive(Debug)]
pub(crate) struct Memfd {
    handle: OwnedFd,
    /// Tells memfds apart.
    pub(crate) inode: u64,
    /// Size in bytes.
    pub(crate) size: u64,
}

impl Memfds {
    /// Finds out what memfds look like on this machine.
    ///
    /// # Errors
    /// The kernel has none.
    pub(crate) fn new() -> std::io::Result<Self> {
        let own = rustix::fs::memfd_create("viaduct-cli", rustix::fs::MemfdFlags::CLOEXEC)?;
        let status = statx(&own, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
        Ok(Self {
            device: (status.stx_dev_major, status.stx_dev_minor),
        })
    }

    /// The memfd that is descriptor `fd` of `pid`, if it is one.
    pub(crate) fn identify(&self, pid: u32, fd: u32) -> Option<Memfd> {
        let path = format!("/proc/{pid}/fd/{fd}");
        let handle = openat(rustix::fs::CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let status = statx(&handle, "", flags, StatxFlags::BASIC_STATS).ok()?;
        let regular = FileType::from_raw_mode(status.stx_mode.into()) == FileType::RegularFile;
        let device = (status.stx_dev_major, status.stx_dev_minor);
        (regular && device == self.device).then_some(Memfd {
            handle,
            inode: status.stx_ino,
            size: status.stx_size,
        })
    }
}

impl Memfd {
    /// Opens it, for reading or also for writing.
    ///
    /// # Errors
    /// Not allowed.
    pub(crate) fn open(&self, write: bool) -> std::io::Result<OwnedFd> {
        use std::os::fd::AsRawFd;
        let path = format!("/proc/self/fd/{}", self.handle.as_fd().as_raw_fd());
        let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
        Ok(openat(
            rustix::fs::CWD,
            path,
            access | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY,
            Mode::empty(),
        )?)
    }
}

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
        self.tables.entry(netns).or_insert_with(|| {
            ["tcp", "tcp6"]
                .iter()
                .filter_map(|table| fs::read_to_string(format!("/proc/{pid}/net/{table}")).ok())
                .flat_map(|text| text.lines().skip(1).filter_map(parse_socket).collect::<Vec<_>>())
                .collect()
        })
    }
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

    #[test]
    fn names_cannot_disturb_a_terminal() {
        assert_eq!(printable(b"a\x1b[2Jb\n"), "a\\u{1b}[2Jb\\n");
        assert_eq!(printable("a\u{202e}b".as_bytes()), "a\\u{202e}b");
        assert_eq!(printable("naïve".as_bytes()), "naïve");
        assert_eq!(printable(b"\xff"), "\u{fffd}");
    }

    #[test]
    fn only_memfds_are_taken_for_memfds() {
        let memfds = Memfds::new().unwrap();
        let memfd = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = fs::File::open("/proc/self/exe").unwrap();
        let number = |fd: &dyn std::os::fd::AsRawFd| u32::try_from(fd.as_raw_fd()).unwrap();
        let pid = std::process::id();
        assert!(memfds.identify(pid, number(&memfd)).is_some());
        assert!(memfds.identify(pid, number(&file)).is_none());
    }
}
