//! The bells of processes, and who rings them by what.
//!
//! A process gives each of its bells, an eventfd, with the first offer that names it. Equals of its owner are given the
//! eventfd itself. Others could silence it, or have those who ring it wait; for them viaductd makes a pair of Unix
//! sockets.

use crate::guest::is_eventfd;
use crate::registry::{Claim, GuestId};
use crate::server::Server;
use nix::sys::socket::setsockopt;
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_oobinline, set_socket_send_buffer_size};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use viaduct_control::message::SO_PASSRIGHTS;

/// Bells kept for one process.
const BELLS_PER_PROCESS: usize = 256;

/// What may be on its way through an outer bell: some 170 bytes that are sent one by one, whatever the machine's
/// default is. The bell's owner takes more than 1024 for no rings.
const ROOM: usize = 64 << 10;

/// A bell that viaductd knows by name.
#[derive(Debug)]
pub(crate) struct Bell {
    owner: GuestId,
    /// The owner's own name for it.
    pub(crate) number: u64,
    eventfd: Rc<OwnedFd>,
    /// Beside it, once there has been a peer that is no equal.
    outer: Option<OuterBell>,
}

/// A pair of Unix sockets, of which the bell's owner has the receiving end.
#[derive(Debug)]
struct OuterBell {
    /// A name of its own, since other processes are given it than the eventfd.
    name: u64,
    /// Who holds it can ring, and break it; then its other holders ring by their connections.
    sender: Rc<OwnedFd>,
}

impl Server {
    /// Keeps the bell that was `sent` with an offer under a name of viaductd's. The first one of a number stays; a
    /// process or user with too many goes without.
    pub(crate) fn keep_bell(&mut self, owner: GuestId, number: u64, sent: &mut Vec<OwnedFd>) -> Option<u64> {
        let may_keep = self.may_keep_bell(owner);
        let guest = self.guests.get_mut(&owner)?;
        let full = guest.bells.len() >= BELLS_PER_PROCESS || !may_keep;
        if number == 0 || full || guest.bells.contains_key(&number) {
            return None;
        }
        let eventfd = sent.pop_if(|bell| is_eventfd(bell.as_fd()))?;
        let name = self.next_bell;
        self.next_bell += 1;
        guest.bells.insert(number, name);
        let bell = Bell {
            owner,
            number,
            eventfd: Rc::new(eventfd),
            outer: None,
        };
        self.bells.insert(name, bell);
        Some(name)
    }

    /// Whether one more descriptor may be kept as a bell for the user of `owner`.
    fn may_keep_bell(&self, owner: GuestId) -> bool {
        let Some(user) = self.guests.get(&owner).map(|guest| guest.user) else {
            return false;
        };
        let of_user = self.guests.values().filter(|guest| guest.user == user);
        let kept: usize = of_user.map(|guest| guest.bells.len() + guest.outer_bells).sum();
        kept < self.settings.descriptors_per_user
    }

    /// Makes an outer bell beside the bell `name`, if it has none yet and there may be one. Returns the end that is its
    /// owner's.
    pub(crate) fn make_outer_bell(&mut self, name: u64) -> Option<Rc<OwnedFd>> {
        let owner = self.bells.get(&name).filter(|bell| bell.outer.is_none())?.owner;
        if !self.may_keep_bell(owner) {
            return None;
        }
        let made = outer_pair().inspect_err(|error| tracing::debug!("outer bell: {error}"));
        let (receiver, sender) = made.ok()?;
        self.guests.get_mut(&owner)?.outer_bells += 2;
        self.bells.get_mut(&name)?.outer = Some(OuterBell {
            name: self.next_bell,
            sender: Rc::new(sender),
        });
        self.next_bell += 1;
        Some(Rc::new(receiver))
    }

    /// What an equal of its owner, or anybody else, rings the bell `name` by, and viaductd's name for that.
    pub(crate) fn ringer(&self, name: u64, equal: bool) -> Option<(u64, Rc<OwnedFd>)> {
        let bell = self.bells.get(&name)?;
        if equal {
            return Some((name, Rc::clone(&bell.eventfd)));
        }
        let outer = bell.outer.as_ref()?;
        Some((outer.name, Rc::clone(&outer.sender)))
    }

    /// The owner of these bells has gone: whoever is given one of that name again, is given it anew.
    pub(crate) fn forget_bells(&mut self, owner: GuestId) {
        for (name, bell) in self.bells.extract_if(|_, bell| bell.owner == owner) {
            for guest in self.guests.values_mut() {
                guest.given.remove(&name);
                if let Some(outer) = &bell.outer {
                    guest.given.remove(&outer.name);
                }
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct PassRights;
nix::setsockopt_impl!(
    PassRights,
    libc::SOL_SOCKET,
    SO_PASSRIGHTS,
    bool,
    nix::sys::socket::sockopt::SetBool
);

/// Receiving and sending end of an outer bell. Nothing can be sent the other way, and nothing but bytes at all: who
/// closes the last descriptor of a file may have to wait for it. Linux before 6.16 cannot keep descriptors out, and
/// there is no outer bell then.
fn outer_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (receiver, sender) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    setsockopt(&receiver, PassRights, &false).map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
    // What is urgent is taken with the rest.
    set_socket_oobinline(&receiver, true)?;
    set_socket_send_buffer_size(&sender, ROOM)?;
    shutdown(&sender, Shutdown::Read)?;
    Ok((receiver, sender))
}

/// Whether two ends may hold each other's eventfds.
pub(crate) fn are_equal(one: &Claim, other: &Claim) -> bool {
    one.user == other.user && one.netns == other.netns && one.user_ns.is_some() && one.user_ns == other.user_ns
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, send, sendmsg};
    use std::io::IoSlice;

    /// Sends a byte and a descriptor.
    fn send_descriptor(sender: &OwnedFd, flags: SendFlags) -> Result<usize, Errno> {
        let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let own = [sender.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&own));
        sendmsg(sender, &[IoSlice::new(b"!")], &mut control, flags)
    }

    #[test]
    fn an_outer_bell_takes_bytes_and_nothing_else() {
        let Ok((receiver, sender)) = outer_pair() else {
            // Linux before 6.16.
            return;
        };
        send(&sender, b"a", SendFlags::empty()).unwrap();
        // Reads stop before what is urgent, and behind it there might be descriptors.
        send(&sender, b"b", SendFlags::OOB).unwrap();
        for flags in [SendFlags::empty(), SendFlags::OOB] {
            assert_eq!(send_descriptor(&sender, flags), Err(Errno::PERM));
        }
        let take = || recv(&receiver, &mut [0; 256][..], RecvFlags::DONTWAIT).map(|(_, taken)| taken);
        assert_eq!((take(), take(), take()), (Ok(1), Ok(1), Err(Errno::AGAIN)));
        assert_eq!(send(&receiver, b"!", SendFlags::NOSIGNAL), Err(Errno::PIPE));
    }

    #[test]
    fn an_outer_bell_holds_fewer_rings_than_are_taken_for_a_flood() {
        let Ok((_receiver, sender)) = outer_pair() else { return };
        let ring = || send(&sender, b"!", SendFlags::DONTWAIT);
        let held = core::iter::repeat_with(ring).take_while(Result::is_ok).count();
        assert!((32..256).contains(&held), "{held}");
    }
}
