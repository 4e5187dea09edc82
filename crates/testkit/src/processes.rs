//! What `/proc` knows about processes, and signals.

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Sends `signal` to the process numbered `pid`; one that is gone is no error.
pub fn signal(pid: u32, signal: Signal) {
    if let Ok(pid) = i32::try_from(pid) {
        let _ = nix::sys::signal::kill(Pid::from_raw(pid), signal);
    }
}

/// How long [`wait_until`] sleeps between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// As much as one sleep and one look use up at most. When a virtual machine stands still, it does so for whoever is
/// waited for as well; a look that is slow since what it asks is slow is to count.
const LATEST: Duration = Duration::from_millis(100);
const SLOWEST: Duration = Duration::from_secs(2);

/// By the clock it ends after so many times the limit.
const LONGEST: u32 = 5;

/// Polls `condition` every few milliseconds; false after `limit`, in which time does not count for which the machine
/// stood still.
pub fn wait_until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let (start, mut used) = (Instant::now(), Duration::ZERO);
    loop {
        let looked = Instant::now();
        if condition() {
            return true;
        }
        if used >= limit || start.elapsed() >= limit * LONGEST {
            return false;
        }
        let slept = Instant::now();
        std::thread::sleep(PAUSE);
        used += (slept - looked).min(SLOWEST) + slept.elapsed().min(LATEST);
    }
}

/// Whether a process has a socket listening on TCP `port`, in the network namespace of process `pid`. Asks no socket,
/// so a server that counts its connections is not disturbed.
pub fn is_listening(pid: u32, port: u16) -> bool {
    let needle = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|table| {
        fs::read_to_string(format!("/proc/{pid}/net/{table}")).is_ok_and(|text| {
            text.lines().skip(1).any(|line| {
                let mut columns = line.split_whitespace().skip(1);
                let local = columns.next().is_some_and(|local| local.ends_with(&needle));
                local && columns.nth(1) == Some("0A")
            })
        })
    })
}

/// Connections to TCP `port` that programs hold, in the network namespace of process `pid`; one end of such a
/// connection may have shut down its direction.
pub fn connections_to(pid: u32, port: u16) -> usize {
    const CONNECTING: &str = "02";
    let needle = format!(":{port:04X}");
    let text = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    let is_held = |line: &str| {
        let mut columns = line.split_whitespace().skip(2);
        let (remote, state) = (columns.next(), columns.next());
        remote.is_some_and(|remote| remote.ends_with(&needle))
            && state != Some(CONNECTING)
            // What no program holds any longer has no inode.
            && columns.nth(5).is_some_and(|inode| inode != "0")
    };
    text.lines().filter(|line| is_held(line)).count()
}

/// A TCP port of the loopback address that nobody used a moment ago.
///
/// # Panics
/// If the machine has no free port.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("a bound socket has an address").port()
}

/// `pid` and all its descendants that live.
pub fn family(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        next += 1;
        let Ok(tasks) = fs::read_dir(format!("/proc/{parent}/task")) else {
            continue;
        };
        for task in tasks.flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            found.extend(
                children
                    .split_whitespace()
                    .filter_map(|child| child.parse::<u32>().ok()),
            );
        }
    }
    found
}

/// What a process holds; compared before and after, it shows leaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Open descriptors.
    pub descriptors: usize,
    /// Of these, memory files.
    pub memory_files: usize,
    /// Mappings of memory files.
    pub memory_mappings: usize,
    /// Resident memory in KiB.
    pub resident_kib: u64,
}

/// What the process numbered `pid` holds; nothing, if it is gone.
pub fn holdings(pid: u32) -> Holdings {
    let mut found = Holdings::default();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
        found.descriptors += 1;
        found.memory_files += usize::from(is_memory_file(&entry.path()));
    }
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    found.memory_mappings = maps.lines().filter(|line| line.contains("/memfd:viaduct")).count();
    found.resident_kib = resident_kib(pid);
    found
}

/// What the descriptors of a process refer to, for the report of a leak.
pub fn descriptors(pid: u32) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let target = fs::read_link(entry.path()).ok()?;
            Some(format!("{} {}", entry.file_name().display(), target.display()))
        })
        .collect()
}

fn is_memory_file(link: &Path) -> bool {
    fs::read_link(link).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:viaduct"))
}

/// Resident memory of a process in KiB, 0 if it is gone.
pub fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|value| value.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// Processor time a process has used, in seconds, its threads included.
pub fn cpu_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name may hold anything, so fields are counted from the last parenthesis.
    let Some((_, fields)) = stat.rsplit_once(')') else {
        return 0.0;
    };
    let ticks: f64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<f64>().ok())
        .sum();
    // USER_HZ, part of Linux's interface on every architecture we build for.
    ticks / 100.0
}
