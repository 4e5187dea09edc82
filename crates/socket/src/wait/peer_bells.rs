//! The bells of peers that viaductd has given this process.

use crate::agent::{hide, unhide};
use crate::sys::{self, outer, raw};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};
use viaduct_control::message::{PAIR_BELL_IS_OUTER, Pair};

/// Bells of peers that viaductd has given us.
const PEER_BELLS: usize = 4096;

/// A peer's bell.
struct PeerBell {
    /// As viaductd calls it; 0: the place is free.
    name: AtomicU64,
    /// One more than its descriptor; 0: the place has never had one. So a table that nobody has used is all zeroes, and
    /// takes no memory.
    descriptor: AtomicI32,
    /// Connections that ring it.
    users: AtomicU32,
    /// The process that listens to it; 0: no connection gets the bell any more.
    owner: AtomicU32,
}

static PEER_BELL: [PeerBell; PEER_BELLS] = [const {
    PeerBell {
        name: AtomicU64::new(0),
        descriptor: AtomicI32::new(0),
        users: AtomicU32::new(0),
        owner: AtomicU32::new(0),
    }
}; PEER_BELLS];

impl PeerBell {
    /// Its descriptor; -1 if the place has never had one.
    fn fd(&self) -> i32 {
        self.descriptor.load(Relaxed) - 1
    }

    /// Has it ring this descriptor; answers the one before.
    fn set_fd(&self, fd: i32) -> i32 {
        self.descriptor.swap(fd + 1, Relaxed) - 1
    }
}

/// What a connection rings its peer's bell by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ringer(i32);

/// In a [`Ringer`], beside the descriptor: it is that of an outer bell.
const OUTER: i32 = 1 << 30;

impl Ringer {
    /// There is no bell.
    pub(crate) const NONE: Self = Self(-1);

    /// An eventfd; -1 for none.
    pub(crate) fn eventfd(fd: i32) -> Self {
        Self(fd)
    }

    /// The sending end of an outer bell; -1 for none.
    pub(crate) fn outer(fd: i32) -> Self {
        Self(fd | OUTER)
    }

    /// As it was kept by [`Ringer::bits`].
    #[inline]
    pub(crate) fn from_bits(bits: i32) -> Self {
        Self(bits)
    }

    pub(crate) fn bits(self) -> i32 {
        self.0
    }

    fn fd(self) -> i32 {
        if self.0 < 0 { -1 } else { self.0 & !OUTER }
    }

    /// False if that did not work: perhaps nobody has heard.
    pub(crate) fn ring(self) -> bool {
        let fd = self.fd();
        fd >= 0
            && if self.0 & OUTER != 0 {
                outer::ring(fd).is_ok()
            } else {
                raw::eventfd_ring(fd).is_ok()
            }
    }
}

/// What a listener is called that cannot be looked for: viaductd is in another namespace of processes, and so are its
/// numbers.
const UNKNOWN: u32 = u32::MAX;
/// Whether viaductd's numbers of processes are ours.
static SAME_NUMBERS: AtomicBool = AtomicBool::new(false);

/// A connection that rang by `ringer` has ended. The last one takes the bell along if its listener is gone.
pub(crate) fn release(ringer: Ringer) {
    let fd = ringer.fd();
    if fd < 0 {
        return;
    }
    for bell in PEER_BELL
        .iter()
        .filter(|bell| bell.fd() == fd && bell.name.load(Relaxed) != 0)
    {
        bell.users.fetch_sub(1, Relaxed);
    }
    close_idle(false);
}

/// `daemon` leads to a new viaductd, which gives every bell anew and under another name: those of the old one stay only
/// while connections ring them.
pub(crate) fn orphan(daemon: i32) {
    SAME_NUMBERS.store(raw::peer_pid(daemon).is_some(), Relaxed);
    for bell in ever_used() {
        bell.owner.store(0, Relaxed);
    }
    close_idle(false);
}

fn ever_used() -> impl Iterator<Item = &'static PeerBell> {
    PEER_BELL
        .iter()
        .take_while(|bell| bell.name.load(Relaxed) != 0 || bell.fd() >= 0)
}

/// Closes the bells that nobody rings and nobody will, or if there is need of descriptors, may not.
fn close_idle(need: bool) {
    for bell in ever_used() {
        let idle = bell.name.load(Relaxed) != 0 && bell.users.load(Relaxed) == 0;
        let owner = bell.owner.load(Relaxed);
        let over = match owner {
            0 => true,
            // Its end of an outer bell is shut down or closed, if by nobody else then with the process.
            UNKNOWN => need || raw::poll_now(bell.fd(), 0) & libc::POLLHUP != 0,
            owner => !raw::thread_exists(owner),
        };
        if idle && over {
            bell.name.store(0, Relaxed);
            unhide(bell.set_fd(FREED));
        }
    }
}

/// Marks a place whose bell has been closed, so that searches go on beyond it.
const FREED: i32 = i32::MAX - 1;

/// Whether the process can spare a descriptor for one more bell: those of peers take at most one in sixteen, its own as
/// many, and their outer ones, if all of them have one, as many again.
pub(crate) fn may_have(count: usize) -> bool {
    (count as u64) < sys::limit_of(libc::RLIMIT_NOFILE) / 16
}

/// The first place without a bell, if the process can spare a descriptor for one there.
fn free_place() -> Option<&'static PeerBell> {
    let free = |(_, bell): &(usize, &PeerBell)| bell.name.load(Relaxed) == 0;
    let (index, bell) = PEER_BELL.iter().enumerate().find(free)?;
    may_have(index).then_some(bell)
}

/// The peer's bell: the one that has just come, or the one that came before.
pub(crate) fn of_peer(pair: &Pair, fresh: Option<i32>) -> Ringer {
    let fd = descriptor_of(pair.bell, fresh, pair.peer_pid);
    if pair.flags & PAIR_BELL_IS_OUTER == 0 {
        Ringer::eventfd(fd)
    } else {
        Ringer::outer(fd)
    }
}

fn descriptor_of(name: u64, fresh: Option<i32>, owner: u32) -> i32 {
    if name == 0 {
        return -1;
    }
    if let Some(bell) = ever_used().find(|bell| bell.name.load(Relaxed) == name) {
        if let Some(fresh) = fresh {
            raw::close(fresh);
        }
        bell.users.fetch_add(1, Relaxed);
        return bell.fd();
    }
    let Some(fresh) = fresh else { return -1 };
    let Some(bell) = free_place().or_else(|| {
        close_idle(true);
        free_place()
    }) else {
        raw::close(fresh);
        return -1;
    };
    bell.set_fd(hide(fresh));
    bell.users.store(1, Relaxed);
    let is_known = owner == 0 || SAME_NUMBERS.load(Relaxed);
    bell.owner.store(if is_known { owner } else { UNKNOWN }, Relaxed);
    bell.name.store(name, Relaxed);
    bell.fd()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
    use std::os::fd::IntoRawFd;

    /// viaductd's numbers of processes say nothing here.
    #[test]
    fn an_outer_bell_is_closed_once_its_owner_is_gone() {
        let ends = || socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
        let (mut kept, mut given) = (Vec::new(), Vec::new());
        // No other test uses these names.
        for name in [7001, 7002] {
            let (receiver, sender) = ends();
            kept.push(receiver);
            let pair = Pair {
                offer: 1,
                segment: 1,
                bell: name,
                own_bell: 0,
                side: 0,
                flags: PAIR_BELL_IS_OUTER,
                peer_pid: UNKNOWN - 1,
                peer_uid: 0,
            };
            given.push(of_peer(&pair, Some(sender.into_raw_fd())));
        }
        let is_there = |ringer: &Ringer| ever_used().any(|bell| bell.fd() == ringer.fd());
        given.iter().copied().for_each(release);
        assert!(given.iter().all(is_there), "they may be rung again");
        // As by closing, but a child of another test may have them, too.
        shutdown(kept.pop().unwrap(), Shutdown::Both).unwrap();
        close_idle(false);
        assert!(is_there(&given[0]) && !is_there(&given[1]));
        shutdown(kept.pop().unwrap(), Shutdown::Both).unwrap();
        close_idle(false);
        assert!(!is_there(&given[0]));
    }
}
