//! Who is let in, who is turned away or let go, and how seldom that is told.

use crate::guest::{Farewell, Guest};
use crate::registry::GuestId;
use crate::server::{LISTENER, PAUSE, Server, TURN};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, sockopt};
use std::os::fd::OwnedFd;
use std::time::Instant;

/// Connections that one user may have beyond its processes: of those that have not said hello yet, of the command line,
/// and of those that are to be told that there are too many.
const STRANGERS: usize = 64;
/// Room for mail in the kernel, for one guest: descriptors in flight count against limits that all guests share.
const SEND_BUFFER: usize = 16 << 10;

impl Server {
    pub(crate) fn accept(&mut self) {
        for _ in 0..TURN {
            match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => self.admit(socket),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    if self.untaken.is_due(Some(error.raw_os_error())) {
                        tracing::warn!("accept: {error}");
                    }
                    self.watch_listener(EventFlags::empty());
                    self.accept_again = Some(Instant::now() + PAUSE);
                    return;
                }
            }
        }
    }

    pub(crate) fn resume_accepting(&mut self) {
        if self.accept_again.is_some_and(|at| at <= Instant::now()) {
            self.accept_again = None;
            self.watch_listener(EventFlags::IN);
        }
    }

    fn watch_listener(&self, flags: EventFlags) {
        if let Err(error) = epoll::modify(&self.epoll, &self.listener, EventData::new_u64(LISTENER), flags) {
            tracing::error!("epoll: {error}");
        }
    }

    fn admit(&mut self, socket: OwnedFd) {
        let Ok(credentials) = sockopt::socket_peercred(&socket) else {
            return;
        };
        let user = credentials.uid.as_raw();
        let pid = u32::try_from(credentials.pid.as_raw_nonzero().get()).unwrap_or(0);
        if self.settings.uid != 0 && user != self.settings.uid {
            if self.turned_away.is_due((user, "another's")) {
                let served = self.settings.uid;
                tracing::warn!(pid, user, "turned away: this viaductd serves user {served}");
            }
            return;
        }
        if self.closing.bars(user) {
            return self.turn_away(
                pid,
                user,
                "this user has sent too many files that are not safely closed",
            );
        }
        let crowd = self.users.entry(user).or_default();
        let most = self.settings.processes_per_user;
        if crowd.connected >= most + most.min(STRANGERS) {
            return self.turn_away(pid, user, "too many connections of this user");
        }
        let id = GuestId(self.next_guest);
        let watched = epoll::add(&self.epoll, &socket, EventData::new_u64(id.0), EventFlags::IN)
            .and_then(|()| sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER));
        if let Err(error) = watched {
            if self.untaken.is_due(Some(error.raw_os_error())) {
                tracing::warn!(pid, "epoll: {error}");
            }
            return;
        }
        crowd.connected += 1;
        self.next_guest += 1;
        self.guests.insert(id, Guest::new(id, socket, user, pid));
    }

    fn turn_away(&mut self, pid: u32, user: u32, why: &'static str) {
        if self.turned_away.is_due((user, why)) {
            tracing::info!(pid, user, "turned away: {why}");
        }
    }

    /// Tells why `guest` is let go. Nothing that a guest can cause at will is logged by default.
    pub(crate) fn tell(&mut self, guest: &Guest, farewell: &Farewell) {
        let (pid, user) = (guest.pid, guest.user);
        let mut is_due = |what| self.turned_away.is_due((user, what));
        match farewell {
            Farewell::HangUp => tracing::debug!(pid, "hung up"),
            Farewell::Overflow if is_due("unread") => tracing::info!(pid, user, "dropped: does not read its mail"),
            Farewell::Violation(what) if is_due(what) => tracing::info!(pid, user, "dropped: {what}"),
            Farewell::Io(error) if is_due("failed") => tracing::warn!(pid, user, "dropped: {error}"),
            Farewell::Turned => self.turn_away(pid, user, "too many processes of this user"),
            Farewell::Overflow | Farewell::Violation(_) | Farewell::Io(_) => {}
        }
    }
}
