//! Reads the counters that programs under Viaduct keep.
//!
//! A region belongs to the process that writes it, which may be hostile: nothing read from it is used before it is
//! checked, it is read with `pread` so that no fault is possible, and a row is shown only if the process really has
//! that socket. So the worst it can do is to tell lies about connections of its own.

use crate::proc::{self, Descriptors, Memfd, Memfds, printable};
use crate::tcp_tables::{Ends, TcpTables};
use rustix::fd::OwnedFd;
use rustix::io::pread;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{Ipv6Addr, SocketAddr};
use std::rc::Rc;
use viaduct_control::Reason;
use viaduct_control::counters::{
    BARRED, CHILDREN, CHILDREN_ENDED, ENDED, ENDED_FAST, ENDED_TRAFFIC, FOREBEAR, HEADER_WORDS, INSTANCE, MAGIC,
    MAGIC_VERSION_BITS, MAGIC_WORD, OFFERS, PAIRS, PID, PROGRAM, Path, SLOT_WORDS, SLOTS, SLOTS_USED, State, UNSHOWN,
    slot, slot_base,
};

/// No process needs more than a few: its own and its parents'.
const REGIONS_PER_PROCESS: usize = 16;

/// Slots read at a time.
const CHUNK_SLOTS: usize = 64;

/// A process's counters.
#[derive(Debug)]
pub(crate) struct Process {
    /// Its number here.
    pub(crate) pid: u32,
    /// What it calls itself, fit to be printed.
    pub(crate) program: String,
    /// Its instance.
    pub(crate) instance: u64,
    /// Inode of its network namespace.
    pub(crate) netns: Option<u64>,
    /// Offers made.
    pub(crate) offers: u64,
    /// Pairs attached.
    pub(crate) pairs: u64,
    /// Connections that found no slot.
    pub(crate) unshown: u64,
    /// Processes forked from it that have ended without a chance to add their counters to its own.
    pub(crate) lost: u64,
    /// Why all its connections stay on TCP, if they do.
    pub(crate) bar: Option<Reason>,
    /// Its connection ends.
    pub(crate) ends: Vec<End>,
    /// What all its connections have carried, the ended ones included.
    pub(crate) totals: Totals,
    memfd: Memfd,
}

/// Sums over the connection ends of a process, of those that are open and those that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Ends that are open.
    pub(crate) open: u64,
    /// Of these, ends of which a fast path has carried bytes.
    pub(crate) open_fast: u64,
    /// Ends that have ended.
    pub(crate) ended: u64,
    /// Of these, ends of which a fast path had carried bytes.
    pub(crate) ended_fast: u64,
    /// As in [`slot::TRAFFIC`].
    pub(crate) traffic: [u64; slot::TRAFFIC.len()],
}

impl Totals {
    fn of(header: &[u64; HEADER_WORDS], slots: &[(usize, [u64; SLOT_WORDS])]) -> Self {
        let mut totals = Self {
            ended: header[ENDED],
            ended_fast: header[ENDED_FAST],
            traffic: std::array::from_fn(|at| header[ENDED_TRAFFIC + at]),
            ..Self::default()
        };
        for (_, words) in slots {
            totals.open += 1;
            totals.open_fast += u64::from(words[slot::FAST_BYTES_SENT] | words[slot::FAST_BYTES_RECEIVED] != 0);
            for (sum, word) in totals.traffic.iter_mut().zip(slot::TRAFFIC) {
                // The process may write anything.
                *sum = sum.saturating_add(words[word]);
            }
        }
        totals
    }
}

/// A connection end.
#[derive(Clone, Debug)]
pub(crate) struct End {
    /// Index of the slot.
    pub(crate) slot: usize,
    /// Number of the connection within the process.
    pub(crate) connection: u64,
    /// Descriptor, paths and reason.
    pub(crate) state: State,
    /// Own address.
    pub(crate) local: SocketAddr,
    /// Peer's address.
    pub(crate) remote: SocketAddr,
    /// `SO_NETNS_COOKIE`, if known.
    pub(crate) netns_cookie: Option<u64>,
    /// Stream bytes the program has sent.
    pub(crate) bytes_sent: u64,
    /// Stream bytes the program has received.
    pub(crate) bytes_received: u64,
    /// Of these, by a fast path.
    pub(crate) fast_bytes_sent: u64,
    /// Likewise, received.
    pub(crate) fast_bytes_received: u64,
    /// Bells rung.
    pub(crate) bells_sent: u64,
    /// Of these, by a byte on the kernel connection.
    pub(crate) bells_by_socket: u64,
    /// How often a direction changed its path.
    pub(crate) switches: u64,
    /// How often the end went to sleep.
    pub(crate) sleeps: u64,
    /// Peer's process, if known.
    pub(crate) peer_pid: Option<u64>,
    /// Age in seconds.
    pub(crate) age_s: f64,
}

impl End {
    /// What carries its bytes, as users write it: sending and receiving path where they differ.
    pub(crate) fn path(&self) -> String {
        let State { sending, receiving, .. } = self.state;
        if sending == receiving {
            sending.name().to_owned()
        } else {
            format!("{}/{}", sending.name(), receiving.name())
        }
    }
}

impl Process {
    /// Opens the region so that [`slot::WANTED`] can be written.
    ///
    /// # Errors
    /// Not allowed.
    pub(crate) fn open_for_writing(&self) -> std::io::Result<OwnedFd> {
        self.memfd.open(true)
    }
}

/// What was found of all processes whose counters may be read.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Those whose counters are understood.
    pub(crate) processes: Vec<Process>,
    /// Numbers of those with the library of a version that lays its counters out otherwise. Those that hold the same
    /// are together, being forked from each other.
    pub(crate) strangers: Vec<BTreeSet<u32>>,
}

/// Every process whose counters may be read and which belongs to `instance`, if one is given.
///
/// # Errors
/// The kernel has no memfds, or shows no processes.
pub(crate) fn read_all(instance: Option<u64>) -> std::io::Result<Found> {
    proc::check()?;
    read_some(&proc::processes(), instance)
}

/// As [`read_all`], but looks only at `pids`.
///
/// # Errors
/// The kernel has no memfds.
pub(crate) fn read_some(pids: &[u32], instance: Option<u64>) -> std::io::Result<Found> {
    let mut tables = TcpTables::default();
    let is_asked_for = |region: &Region| instance.is_none_or(|instance| region.header[INSTANCE] == instance);
    let (regions, others) = owned_regions(pids)?;
    let mut holders: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
    for other in others.iter().filter(|other| is_asked_for(other)) {
        if regions.iter().all(|region| region.pid != other.pid) {
            holders.entry(other.memfd.inode).or_default().insert(other.pid);
        }
    }
    let mut strangers: Vec<BTreeSet<u32>> = Vec::new();
    for mut family in holders.into_values() {
        let (kin, apart) = strangers.into_iter().partition(|known| !known.is_disjoint(&family));
        strangers = apart;
        family.extend(Vec::into_iter(kin).flatten());
        strangers.push(family);
    }
    strangers.sort();
    let mut children: HashMap<u64, u64> = HashMap::new();
    for region in &regions {
        *children.entry(region.header[FOREBEAR]).or_default() += 1;
    }
    let mut processes: Vec<_> = regions
        .into_iter()
        .filter(is_asked_for)
        .filter_map(|region| {
            let living = children.get(&region.memfd.inode).copied().unwrap_or(0);
            region.into_process(&mut tables, living)
        })
        .collect();
    processes.sort_by_key(|process| process.pid);
    Ok(Found { processes, strangers })
}

struct Region {
    pid: u32,
    memfd: Memfd,
    header: [u64; HEADER_WORDS],
    /// The process's sockets.
    sockets: Rc<HashMap<u32, u64>>,
}

/// The regions that the processes hold, each with the process it belongs to; and those of another layout, with whoever
/// holds them.
fn owned_regions(pids: &[u32]) -> std::io::Result<(Vec<Region>, Vec<Region>)> {
    let memfds = Memfds::new()?;
    // A forked child holds its parent's region as well as, later, its own.
    let mut holders: BTreeMap<u64, Vec<Region>> = BTreeMap::new();
    let mut others = Vec::new();
    for &pid in pids {
        let Descriptors { sockets, counters } = Descriptors::of(pid);
        let sockets = Rc::new(sockets);
        for fd in counters.into_iter().take(REGIONS_PER_PROCESS) {
            let region = memfds
                .identify(pid, fd)
                .and_then(|memfd| Region::open(pid, memfd, &sockets));
            match region {
                Some(region) if region.header[MAGIC_WORD] == MAGIC => {
                    holders.entry(region.memfd.inode).or_default().push(region);
                }
                Some(other) => others.push(other),
                None => {}
            }
        }
    }
    let mut regions = Vec::new();
    let mut orphans = Vec::new();
    for mut holding in holders.into_values() {
        match holding.iter().position(Region::is_of_its_holder) {
            Some(at) => regions.push(holding.swap_remove(at)),
            None => orphans.push(holding),
        }
    }
    // A region whose process is gone is still written by a child that has not yet made its own.
    let owners: HashSet<u32> = regions.iter().map(|region| region.pid).collect();
    regions.extend(
        orphans
            .into_iter()
            .filter_map(|holding| holding.into_iter().find(|region| !owners.contains(&region.pid))),
    );
    Ok((regions, others))
}

impl Region {
    /// One of any version.
    fn open(pid: u32, memfd: Memfd, sockets: &Rc<HashMap<u32, u64>>) -> Option<Self> {
        let file = memfd.open(false).ok()?;
        let mut header = [0; HEADER_WORDS];
        read_words(&file, 0, &mut header)?;
        let is_of_some_version = header[MAGIC_WORD] >> MAGIC_VERSION_BITS == MAGIC >> MAGIC_VERSION_BITS;
        is_of_some_version.then_some(Self {
            pid,
            memfd,
            header,
            sockets: Rc::clone(sockets),
        })
    }

    fn is_of_its_holder(&self) -> bool {
        proc::own_number(self.pid).is_some_and(|number| u64::from(number) == self.header[PID])
    }

    /// `living`: processes forked from it that are still there. `None`: it has ended meanwhile.
    fn into_process(mut self, tables: &mut TcpTables, living: u64) -> Option<Process> {
        let netns = proc::network_namespace(self.pid);
        let slots = self.consistent_slots(&self.memfd.open(false).ok()?);
        let now_ns = proc::monotonic_ns(self.pid);
        let ends = slots
            .iter()
            .filter_map(|(slot, words)| {
                let end = parse_slot(*slot, words, now_ns)?;
                self.confirm(end, netns, tables)
            })
            .collect();
        Some(Process {
            pid: self.pid,
            program: self.program(),
            instance: self.header[INSTANCE],
            netns,
            offers: self.header[OFFERS],
            pairs: self.header[PAIRS],
            unshown: self.header[UNSHOWN],
            lost: self.header[CHILDREN]
                .saturating_sub(self.header[CHILDREN_ENDED])
                .saturating_sub(living),
            bar: self.bar(),
            ends,
            totals: Totals::of(&self.header, &slots),
            memfd: self.memfd,
        })
    }

    /// The slots in use, and the header as it was when no connection ended meanwhile: one that did would be counted
    /// twice or not at all. A process that never leaves time enough is taken as it is.
    fn consistent_slots(&mut self, file: &OwnedFd) -> Vec<(usize, [u64; SLOT_WORDS])> {
        const TRIES: usize = 8;
        let mut slots = Vec::new();
        for _ in 0..TRIES {
            slots = self.slots(file);
            let before = std::mem::replace(&mut self.header, [0; HEADER_WORDS]);
            if read_words(file, 0, &mut self.header).is_none() {
                self.header = before;
                break;
            }
            if self.header[ENDED..ENDED_TRAFFIC + slot::TRAFFIC.len()]
                == before[ENDED..ENDED_TRAFFIC + slot::TRAFFIC.len()]
            {
                break;
            }
        }
        slots
    }

    fn bar(&self) -> Option<Reason> {
        let number = u16::try_from(self.header[BARRED]).ok().filter(|number| *number != 0)?;
        Reason::from_number(number)
    }

    fn program(&self) -> String {
        let bytes: Vec<u8> = self.header[PROGRAM..PROGRAM + 8]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .take_while(|byte| *byte != 0)
            .collect();
        if bytes.is_empty() {
            proc::name(self.pid).unwrap_or_default()
        } else {
            printable(&bytes)
        }
    }

    /// The slots in use.
    fn slots(&self, file: &OwnedFd) -> Vec<(usize, [u64; SLOT_WORDS])> {
        let words = usize::try_from(self.memfd.size / 8).unwrap_or(usize::MAX);
        let room = words.saturating_sub(HEADER_WORDS) / SLOT_WORDS;
        let used = usize::try_from(self.header[SLOTS_USED]).unwrap_or(usize::MAX);
        let used = used.min(SLOTS).min(room);
        let mut slots = Vec::new();
        for first in (0..used).step_by(CHUNK_SLOTS) {
            let mut chunk = [0; CHUNK_SLOTS * SLOT_WORDS];
            let count = CHUNK_SLOTS.min(used - first);
            let part = &mut chunk[..count * SLOT_WORDS];
            if read_words(file, slot_base(first), part).is_none() {
                break;
            }
            let found = part
                .as_chunks::<SLOT_WORDS>()
                .0
                .iter()
                .enumerate()
                .filter(|(_, words)| words[slot::CONNECTION] != 0)
                .map(|(at, words)| (first + at, *words));
            slots.extend(found);
        }
        slots
    }

    /// `end`, with the addresses the kernel has for it; `None` if the process no longer has that connection.
    fn confirm(&self, mut end: End, netns: Option<u64>, tables: &mut TcpTables) -> Option<End> {
        let fd = u32::try_from(end.state.fd).ok()?;
        let inode = *self.sockets.get(&fd)?;
        let kernel = netns.and_then(|netns| tables.find(netns, self.pid, inode));
        let known = end.local.port() != 0 || end.remote.port() != 0;
        match kernel {
            // The descriptor was closed unseen and is another connection, or a listener, by now.
            Some(ends) if known && ends != end.ends() => None,
            Some(ends) if ends.remote.port() == 0 => None,
            Some(ends) => {
                (end.local, end.remote) = (ends.local, ends.remote);
                Some(end)
            }
            // A socket that both ends have closed, or one of another namespace, is in no table.
            None => known.then_some(end),
        }
    }
}

impl End {
    fn ends(&self) -> Ends {
        Ends {
            local: self.local,
            remote: self.remote,
        }
    }
}

/// `now_ns`: by the clock of the process.
fn parse_slot(slot: usize, words: &[u64; SLOT_WORDS], now_ns: i128) -> Option<End> {
    let known = |word: u64| (word != 0).then_some(word);
    Some(End {
        slot,
        connection: words[slot::CONNECTION],
        state: State::unpack(words[slot::STATE])?,
        local: address([words[slot::LOCAL], words[slot::LOCAL + 1], words[slot::LOCAL + 2]]),
        remote: address([words[slot::REMOTE], words[slot::REMOTE + 1], words[slot::REMOTE + 2]]),
        netns_cookie: known(words[slot::NETNS]),
        bytes_sent: words[slot::BYTES_SENT],
        bytes_received: words[slot::BYTES_RECEIVED],
        fast_bytes_sent: words[slot::FAST_BYTES_SENT],
        fast_bytes_received: words[slot::FAST_BYTES_RECEIVED],
        bells_sent: words[slot::BELLS_SENT],
        bells_by_socket: words[slot::BELLS_BY_SOCKET],
        switches: words[slot::SWITCHES],
        sleeps: words[slot::SLEEPS],
        peer_pid: known(words[slot::PEER_PID]),
        age_s: age_s(words[slot::CREATED_NS], now_ns),
    })
}

fn address([high, low, port]: [u64; 3]) -> SocketAddr {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&high.to_ne_bytes());
    bytes[8..].copy_from_slice(&low.to_ne_bytes());
    // A port beyond 16 bits is nonsense, and shown as none.
    let port = u16::try_from(port).unwrap_or(0);
    SocketAddr::new(Ipv6Addr::from(bytes).to_canonical(), port)
}

fn age_s(created_ns: u64, now_ns: i128) -> f64 {
    match created_ns {
        0 => 0.0,
        created => ((now_ns - i128::from(created)) / 1_000_000).max(0) as f64 / 1000.0,
    }
}

/// Fills `words` from word number `first` on; `None` if they are not all there.
pub(crate) fn read_words(file: &OwnedFd, first: usize, words: &mut [u64]) -> Option<()> {
    let mut bytes = vec![0; words.len() * 8];
    let mut offset = u64::try_from(first * 8).ok()?;
    let mut rest = &mut bytes[..];
    while !rest.is_empty() {
        let count = pread(file, &mut *rest, offset).ok().filter(|count| *count > 0)?;
        offset += u64::try_from(count).ok()?;
        rest = rest.get_mut(count..)?;
    }
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    Some(())
}

/// Whether both directions are on `path`.
pub(crate) fn is_on(state: State, path: Path) -> bool {
    state.sending == path && state.receiving == path
}

/// The words of [`Reason::text`] and [`Reason::advice`] that are worth showing for `state`.
pub(crate) fn why(state: State) -> Option<Reason> {
    let wholly_fast = state.reason == Reason::Accelerated && is_on(state, Path::Shm);
    (!wholly_fast).then_some(state.reason)
}
