//! The kernel's ticket: a BPF program on `getsockopt` that testifies which connection a socket belongs to.
//!
//! The program only listens to processes in its `guests` map that state their nonce, and writes tickets to a ring that
//! only viaductd maps. It is attached by a link that lives as long as this process.

use anyhow::{Context, bail};
use aya::maps::{HashMap as BpfHash, MapData, RingBuf};
use aya::programs::cgroup_sockopt::CgroupSockoptLink;
use aya::programs::{CgroupAttachMode, CgroupSockopt};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// Tickets kept for one process until their offers come.
const KEPT_PER_PROCESS: usize = 4096;

/// Tickets the ring holds; the guests may write more while it is emptied.
const RING_TICKETS: usize = (4 << 20) / (size_of::<Ticket>() + 8);

/// Inode of the first process namespace, whose numbers the program reports.
const FIRST_PROCESS_NAMESPACE: &str = "pid:[4026531836]";

/// In the order in which they must be attached: no ticket before repaired sockets are noted. Of each the first that the
/// kernel takes: one that is locked down lets no program count who holds a socket.
const PROGRAMS: [&[&str]; 2] = [&["viaduct_repair"], &["viaduct_ticket", "viaduct_ticket_uncounted"]];

static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/ticket.bpf.o");

/// What the program writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Ticket {
    process: u32,
    nonce: u32,
    sequence: u32,
    /// `snd_una - bytes_acked`.
    pub(crate) sent: u32,
    /// `rcv_nxt - bytes_received`.
    pub(crate) received: u32,
    /// Real user of the caller.
    pub(crate) user: u32,
    /// Cookie of the socket's network namespace.
    pub(crate) netns: u64,
    /// Number of the caller's user namespace.
    pub(crate) user_ns: u64,
    /// Descriptors of the socket, in all processes and on their way between some; 0 if they were not counted.
    pub(crate) holders: u64,
}

/// Tickets of one process whose offers have not come yet. When there are too many, the oldest goes: its offer was never
/// sent.
#[derive(Debug, Default)]
struct Kept {
    tickets: HashMap<u32, Ticket>,
    /// Their sequences as they came, and some of tickets that have been taken.
    order: VecDeque<u32>,
}

impl Kept {
    fn keep(&mut self, ticket: Ticket) {
        if self.order.len() >= KEPT_PER_PROCESS
            && let Some(oldest) = self.order.pop_front()
        {
            self.tickets.remove(&oldest);
        }
        self.order.push_back(ticket.sequence);
        self.tickets.insert(ticket.sequence, ticket);
    }

    fn take(&mut self, sequence: u32) -> Option<Ticket> {
        self.tickets.remove(&sequence)
    }
}

/// The attached program.
pub(crate) struct Tickets {
    ring: RingBuf<MapData>,
    guests: BpfHash<MapData, u32, [u64; 3]>,
    nonces: HashMap<u32, u32>,
    kept: HashMap<u32, Kept>,
    /// Each keeps its program attached, and the program keeps its maps.
    _links: Vec<CgroupSockoptLink>,
}

impl std::fmt::Debug for Tickets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tickets")
            .field("guests", &self.nonces.len())
            .finish_non_exhaustive()
    }
}

impl Tickets {
    /// Loads the program and attaches it to the root of the cgroup hierarchy.
    ///
    /// # Errors
    /// Why this machine or this process may not.
    pub(crate) fn attach() -> anyhow::Result<Self> {
        let namespace = std::fs::read_link("/proc/self/ns/pid").context("/proc/self/ns/pid")?;
        if namespace.as_os_str() != FIRST_PROCESS_NAMESPACE {
            bail!("viaductd runs in a process namespace of its own");
        }
        let root = cgroup_root()?;
        let cgroup = std::fs::File::open(&root).with_context(|| root.display().to_string())?;
        let mut program = aya::Ebpf::load(OBJECT).context("BPF object")?;
        let ring = RingBuf::try_from(program.take_map("tickets").context("no ring in the BPF object")?)?;
        let guests = BpfHash::try_from(program.take_map("guests").context("no map in the BPF object")?)?;
        let mut links = Vec::new();
        for names in PROGRAMS {
            let hook = first_taken(&mut program, names)?;
            // A link always allows other programs beside it, and takes no flag that says so.
            let link = hook
                .attach(&cgroup, CgroupAttachMode::Single)
                .with_context(|| format!("attaching BPF programs to {}", root.display()))?;
            links.push(hook.take_link(link)?);
        }
        Ok(Self {
            ring,
            guests,
            nonces: HashMap::new(),
            kept: HashMap::new(),
            _links: links,
        })
    }

    /// Becomes readable when the ring fills up.
    pub(crate) fn ring(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }

    /// Lets `process` take tickets with `nonce`, and no longer with an older one.
    pub(crate) fn admit(&mut self, process: u32, nonce: u32) -> anyhow::Result<()> {
        self.guests.insert(process, [u64::from(nonce), 0, 0], 0)?;
        self.nonces.insert(process, nonce);
        self.kept.remove(&process);
        Ok(())
    }

    /// Whether the map can be written with the rights that the caller has now.
    pub(crate) fn can_admit(&mut self) -> bool {
        // No process has this number.
        self.guests
            .insert(0, [0; 3], 0)
            .and_then(|()| self.guests.remove(&0))
            .is_ok()
    }

    /// `process` is gone, unless it has a newer nonce by now.
    pub(crate) fn dismiss(&mut self, process: u32, nonce: u32) {
        if self.nonces.get(&process) != Some(&nonce) {
            return;
        }
        self.nonces.remove(&process);
        self.kept.remove(&process);
        if let Err(error) = self.guests.remove(&process) {
            tracing::warn!("BPF map: {error}");
        }
    }

    /// Takes the ticket numbered `sequence` of `process`, once.
    pub(crate) fn take(&mut self, process: u32, nonce: u32, sequence: u32) -> Option<Ticket> {
        self.drain();
        if self.nonces.get(&process) != Some(&nonce) {
            return None;
        }
        self.kept.get_mut(&process)?.take(sequence)
    }

    /// Empties the ring.
    pub(crate) fn drain(&mut self) {
        for _ in 0..RING_TICKETS {
            let Some(item) = self.ring.next() else { return };
            let Ok((ticket, _)) = Ticket::read_from_prefix(&item) else {
                continue;
            };
            if self.nonces.get(&ticket.process) != Some(&ticket.nonce) {
                continue;
            }
            self.kept.entry(ticket.process).or_default().keep(ticket);
        }
    }
}

/// Loads the first of these programs that the kernel takes.
fn first_taken<'a>(object: &'a mut aya::Ebpf, names: &[&str]) -> anyhow::Result<&'a mut CgroupSockopt> {
    let mut why_not = anyhow::anyhow!("no program in the BPF object");
    let mut taken = None;
    for name in names {
        let hook: &mut CgroupSockopt = object.program_mut(name).context("no such program")?.try_into()?;
        match hook.load() {
            Ok(()) => {
                taken = Some(*name);
                break;
            }
            Err(error) => {
                tracing::debug!("BPF program {name}: {error}");
                why_not = anyhow::Error::new(error).context(format!("BPF program {name}"));
            }
        }
    }
    let Some(name) = taken else { return Err(why_not) };
    if names.first() != Some(&name) {
        tracing::warn!("the kernel takes no {}: who holds a socket is not counted", names[0]);
    }
    Ok(object.program_mut(name).context("no such program")?.try_into()?)
}

/// Where the cgroup hierarchy that can carry programs is mounted.
fn cgroup_root() -> anyhow::Result<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").context("/proc/self/mountinfo")?;
    parse_mounts(&mounts).context("no cgroup v2 hierarchy is mounted")
}

/// The mount point of the first cgroup2 file system. The type stands after a lone dash, the mount point fifth.
fn parse_mounts(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        let mut fields = front.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        (back.split(' ').next() == Some("cgroup2") && root == "/").then(|| PathBuf::from(point))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_without_offers_crowd_out_only_the_oldest() {
        let ticket = |sequence| Ticket {
            process: 1,
            nonce: 2,
            sequence,
            sent: sequence,
            received: 0,
            user: 0,
            netns: 0,
            user_ns: 0,
            holders: 0,
        };
        let limit = u32::try_from(KEPT_PER_PROCESS).unwrap();
        let mut kept = Kept::default();
        for sequence in 0..limit + 10 {
            kept.keep(ticket(sequence));
        }
        assert_eq!(kept.tickets.len(), KEPT_PER_PROCESS);
        assert_eq!(kept.take(9), None);
        assert_eq!(kept.take(10), Some(ticket(10)));
        assert_eq!(kept.take(10), None, "once");
        assert_eq!(kept.take(limit + 9), Some(ticket(limit + 9)));
        // As many as ever come and go in good order.
        for sequence in (0..0x4_0000).map(|number| number & 0xffff) {
            kept.keep(ticket(sequence));
            assert_eq!(kept.take(sequence), Some(ticket(sequence)));
        }
        assert!(kept.order.len() <= KEPT_PER_PROCESS);
    }

    /// Kernels that take the first never load it.
    #[test]
    fn the_program_that_does_not_count_is_taken_too() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let [_, [_, uncounted]] = PROGRAMS else {
            panic!("{PROGRAMS:?}")
        };
        let mut object = aya::Ebpf::load(OBJECT).unwrap();
        first_taken(&mut object, &[uncounted]).unwrap();
    }

    #[test]
    fn the_hierarchy_is_found_among_others() {
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu rw shared:1 - cgroup cgroup rw,cpu\n\
                      40 31 0:38 /sub /mnt/part rw - cgroup2 cgroup2 rw\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw shared:2 master:3 - cgroup2 cgroup2 rw\n";
        assert_eq!(parse_mounts(mounts), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(parse_mounts("31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"), None);
    }
}
