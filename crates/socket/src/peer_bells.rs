//! The bells of peers that viaductd has given this process.

use crate::agent::{hide, unhide};
use crate::sys::{self, raw};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

/// Bells of peers that viaductd has given us.
const PEER_BELLS: usize = 4096;

/// A peer's bell.
struct PeerBell {
    /// As viaductd calls it; 0: the place is free.
    name: AtomicU64,
    fd: AtomicI32,
    /// Connections that ring it.
    users: AtomicU32,
    /// The process that listens to it; 0: no connection gets the bell any more.
    owner: AtomicU32,
}

static PEER_BELL: [PeerBell; PEER_BELLS] = [const {
    PeerBell {
        name: AtomicU64::new(0),
        fd: AtomicI32::new(-1),
        users: AtomicU32::new(0),
        owner: AtomicU32::new(0),
    }
}; PEER_BELLS];

/// A connection that rang the bell `fd` has ended. The last one takes the bell along if its listener is gone.
pub(crate) fn release(fd: i32) {
    if fd < 0 {
        return;
    }
    for bell in PEER_BELL
        .iter()
        .filter(|bell| bell.fd.load(Relaxed) == fd && bell.name.load(Relaxed) != 0)
    {
        bell.users.fetch_sub(1, Relaxed);
    }
    close_idle();
}

/// viaductd is a new one, which gives every bell anew and under another name: those of the old one stay only while connections ring them.
pub(crate) fn orphan() {
    for bell in ever_used() {
        bell.owner.store(0, Relaxed);
    }
    close_idle();
}

fn ever_used() -> impl Iterator<Item = &'static PeerBell> {
    PEER_BELL
        .iter()
        .take_while(|bell| bell.name.load(Relaxed) != 0 || bell.fd.load(Relaxed) >= 0)
}

/// Closes the bells that nobody rings and nobody will.
fn close_idle() {
    for bell in ever_used() {
        let idle = bell.name.load(Relaxed) != 0 && bell.users.load(Relaxed) == 0;
        let owner = bell.owner.load(Relaxed);
        if idle && (owner == 0 || !raw::thread_exists(owner)) {
            bell.name.store(0, Relaxed);
            unhide(bell.fd.swap(FREED, Relaxed));
        }
    }
}

/// Marks a place whose bell has been closed, so that searches go on beyond it.
const FREED: i32 = i32::MAX;

/// Whether the process can spare a descriptor for one more peer's bell: bells take at most one in sixteen. Otherwise it is closed.
fn may_keep(count: usize, fresh: i32) -> bool {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    sys::descriptor_limit(&mut limit);
    let keep = (count as u64) < limit.rlim_cur / 16;
    if !keep {
        raw::close(fresh);
    }
    keep
}

/// The descriptor of the peer's bell `name`: the one that has just come, or the one that came before.
pub(crate) fn of_peer(name: u64, fresh: Option<i32>, owner: u32) -> i32 {
    if name == 0 {
        return -1;
    }
    let mut free = None;
    for (index, bell) in PEER_BELL.iter().enumerate() {
        let known = bell.name.load(Relaxed);
        if known == name {
            if let Some(fresh) = fresh {
                raw::close(fresh);
            }
            bell.users.fetch_add(1, Relaxed);
            return bell.fd.load(Relaxed);
        }
        if known == 0 {
            free = free.or(Some((index, bell)));
            if bell.fd.load(Relaxed) != FREED {
                // Never used, like all after it.
                break;
            }
        }
    }
    let kept = free.zip(fresh).filter(|((index, _), fresh)| may_keep(*index, *fresh));
    let Some(((_, bell), fresh)) = kept else { return -1 };
    bell.fd.store(hide(fresh), Relaxed);
    bell.users.store(1, Relaxed);
    bell.owner.store(owner, Relaxed);
    bell.name.store(name, Relaxed);
    bell.fd.load(Relaxed)
}
