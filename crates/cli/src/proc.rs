//! What `/proc` says about processes, their descriptors and their sockets.

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Statx, StatxFlags, openat, readlinkat, statx};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::{fs, io};
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

/// Whether the caller may see the descriptors of `pid`.
pub(crate) fn may_look_into(pid: u32) -> bool {
    fs::read_dir(format!("/proc/{pid}/fd")).is_ok()
}

/// Whether processes can be looked at here.
///
/// # Errors
/// The kernel shows no processes, not even this one.
pub(crate) fn check() -> io::Result<()> {
    match processes().is_empty() {
        true => Err(io::Error::other("no process is to be seen: /proc cannot be read")),
        false => Ok(()),
    }
}

/// Whether there is a process `pid`, even one that the caller does not see.
pub(crate) fn exists(pid: u32) -> bool {
    let process = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let asked = process.map(rustix::process::test_kill_process);
    name(pid).is_some() || asked.is_some_and(|found| found != Err(rustix::io::Errno::SRCH))
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

/// The monotonic clock as `pid` reads it, which may be in another time namespace.
pub(crate) fn monotonic_ns(pid: u32) -> i128 {
    let own = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let offset = |process: &str| {
        // Missing where the kernel has no such namespaces.
        let offsets = fs::read_to_string(format!("/proc/{process}/timens_offsets")).unwrap_or_default();
        monotonic_offset(&offsets).unwrap_or(0)
    };
    nanoseconds(own.tv_sec, own.tv_nsec) - offset("self") + offset(&pid.to_string())
}

/// What a time namespace adds to the machine's monotonic clock.
fn monotonic_offset(offsets: &str) -> Option<i128> {
    let line = offsets.lines().find_map(|line| line.strip_prefix("monotonic"))?;
    let mut numbers = line.split_whitespace().map(str::parse);
    Some(nanoseconds(numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn nanoseconds(seconds: i64, nanoseconds: i64) -> i128 {
    i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds)
}

/// What is left of a process, or never was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A program that runs.
    Program,
    /// A thread of the kernel's.
    Kernel,
    /// It has ended, or its first thread has.
    Ended,
}

/// What `pid` is; anybody may see that.
pub(crate) fn kind(pid: u32) -> Kind {
    match fs::read(format!("/proc/{pid}/stat")) {
        Ok(stat) => kind_in(&stat),
        // As where the caller is kept from seeing others' processes at all.
        Err(_) if exists(pid) => Kind::Program,
        Err(_) => Kind::Ended,
    }
}

fn kind_in(stat: &[u8]) -> Kind {
    /// Kernels' `PF_KTHREAD`.
    const IS_KERNEL: u64 = 0x20_0000;
    // The name before may hold anything.
    let after = stat.rsplit(|byte| *byte == b')').next().unwrap_or_default();
    let after = String::from_utf8_lossy(after);
    let mut fields = after.split_whitespace();
    let state = fields.next();
    let flags: u64 = fields.nth(5).and_then(|flags| flags.parse().ok()).unwrap_or(0);
    match state {
        Some("Z" | "X") => Kind::Ended,
        _ if flags & IS_KERNEL != 0 => Kind::Kernel,
        _ => Kind::Program,
    }
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
/// All memfds live in one file system that user space cannot mount, so its number tells them from a file, FIFO or FUSE
/// node of the same name, which a hostile process might put where its `/proc/PID/fd` shows it. Nothing is opened for
/// real, and no file system asked for anything, before that is known.
#[derive(Debug)]
pub(crate) struct Memfds {
    device: (u32, u32),
}

/// A memfd of another process, identified but not open: there may be more of them than descriptors.
#[derive(Debug)]
pub(crate) struct Memfd {
    device: (u32, u32),
    pid: u32,
    fd: u32,
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
        let (_, status) = memfd_at(self.device, pid, fd)?;
        Some(Memfd {
            device: self.device,
            pid,
            fd,
            inode: status.stx_ino,
            size: status.stx_size,
        })
    }
}

/// What leads to the memfd that is descriptor `fd` of `pid`, if it is one, and what the kernel says of it.
fn memfd_at(memfds: (u32, u32), pid: u32, fd: u32) -> Option<(OwnedFd, Statx)> {
    let path = format!("/proc/{pid}/fd/{fd}");
    let handle = openat(rustix::fs::CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let status = statx(&handle, "", flags, StatxFlags::BASIC_STATS).ok()?;
    let regular = FileType::from_raw_mode(status.stx_mode.into()) == FileType::RegularFile;
    let device = (status.stx_dev_major, status.stx_dev_minor);
    (regular && device == memfds).then_some((handle, status))
}

impl Memfd {
    /// Opens it, for reading or also for writing.
    ///
    /// # Errors
    /// Not allowed, or it is no longer there.
    pub(crate) fn open(&self, write: bool) -> std::io::Result<OwnedFd> {
        use std::os::fd::AsRawFd;
        let found = memfd_at(self.device, self.pid, self.fd);
        let (handle, _) = found
            .filter(|(_, status)| status.stx_ino == self.inode)
            .ok_or(std::io::ErrorKind::NotFound)?;
        let path = format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd());
        let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
        Ok(openat(
            rustix::fs::CWD,
            path,
            access | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY,
            Mode::empty(),
        )?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_disturb_a_terminal() {
        assert_eq!(printable(b"a\x1b[2Jb\n"), "a\\u{1b}[2Jb\\n");
        assert_eq!(printable("a\u{202e}b".as_bytes()), "a\\u{202e}b");
        assert_eq!(printable("naïve".as_bytes()), "naïve");
        assert_eq!(printable(b"\xff"), "\u{fffd}");
    }

    #[test]
    fn what_has_ended_and_the_kernels_own_are_told_apart() {
        let kind = |name, state, flags| kind_in(format!("7 ({name}) {state} 1 7 7 0 -1 {flags} 0 0").as_bytes());
        assert_eq!(kind("a) Z 1 (b", 'S', 0x40_0100), Kind::Program);
        assert_eq!(kind("sh", 'Z', 0x40_014c), Kind::Ended);
        assert_eq!(kind("kthreadd", 'S', 0x20_8040), Kind::Kernel);
    }

    #[test]
    fn a_time_namespace_may_go_back() {
        assert_eq!(
            monotonic_offset("monotonic -5 500000000\nboottime 7 0\n"),
            Some(-4_500_000_000)
        );
        assert_eq!(monotonic_offset(""), None);
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
