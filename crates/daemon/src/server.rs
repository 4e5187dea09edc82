//! The loop: one thread, one epoll set, guests that can neither block it nor make it grow without bound.

use crate::guest::{Farewell, Guest, MAX_QUEUE, Mail, Received, is_eventfd};
use crate::registry::{Claim, Decision, GuestId, Limits, Match, Proof, Refusal, Registry, TICKET_RETRY_MS};
use crate::ticket::Tickets;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, sockopt};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};
use viaduct_channel::{Geometry, Segment};
use viaduct_control::message::{
    Detach, Hello, Kind, MODE_SAME_USER, MODE_TICKET, OFFER_HAS_BELL, OFFER_HAS_TICKET, Offer, PAIR_HAS_BELL, Packet,
    Pair, Query, Refuse, Stats, Welcome, Withdraw, decode, kind_of,
};
use viaduct_control::{PROTOCOL_VERSION, Reason};

const LISTENER: u64 = 0;
const STOP: u64 = 1;
const RING: u64 = 2;
const FIRST_GUEST: u64 = 16;

/// Packets taken from one guest before the others have their turn.
const TURN: usize = 64;
/// Packets queued for all processes of one user together.
const QUEUED_PER_USER: usize = 4 * MAX_QUEUE;
/// Bells kept for one process.
const BELLS_PER_PROCESS: usize = 256;
/// Room for mail in the kernel, for one guest: descriptors in flight count against limits that all guests share.
const SEND_BUFFER: usize = 16 << 10;
/// How long viaductd stops accepting when it runs out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What viaductd was told to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) limits: Limits,
    /// Processes one user may have connected.
    pub(crate) processes_per_user: usize,
    pub(crate) idle_exit: Option<Duration>,
    /// Effective user of viaductd.
    pub(crate) uid: u32,
}

#[derive(Debug)]
struct Bell {
    owner: GuestId,
    eventfd: Rc<OwnedFd>,
}

/// All state of a running viaductd.
#[derive(Debug)]
pub(crate) struct Server {
    settings: Settings,
    epoll: OwnedFd,
    listener: OwnedFd,
    _stop: OwnedFd,
    started: Instant,
    instance: u64,
    registry: Registry,
    tickets: Option<Tickets>,
    guests: HashMap<GuestId, Guest>,
    processes: HashMap<u32, usize>,
    bells: HashMap<u64, Bell>,
    next_guest: u64,
    next_bell: u64,
    accept_again: Option<Instant>,
    idle_since: Instant,
}

impl Server {
    /// `stop` becomes readable when viaductd shall exit; `instance` is a random number for this run.
    pub(crate) fn new(
        settings: Settings,
        listener: OwnedFd,
        stop: OwnedFd,
        tickets: Option<Tickets>,
        instance: u64,
    ) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        epoll::add(&epoll, &stop, EventData::new_u64(STOP), EventFlags::IN)?;
        if let Some(tickets) = &tickets {
            epoll::add(&epoll, tickets.ring(), EventData::new_u64(RING), EventFlags::IN)?;
        }
        let now = Instant::now();
        Ok(Self {
            settings,
            epoll,
            listener,
            _stop: stop,
            started: now,
            instance,
            registry: Registry::new(settings.limits),
            tickets,
            guests: HashMap::new(),
            processes: HashMap::new(),
            bells: HashMap::new(),
            next_guest: FIRST_GUEST,
            next_bell: 1,
            accept_again: None,
            idle_since: now,
        })
    }

    /// Serves until told to stop or idle for too long.
    pub(crate) fn run(&mut self) -> Result<(), Errno> {
        let mut events = Vec::with_capacity(256);
        loop {
            events.clear();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                self.timeout().as_ref(),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    STOP => return Ok(()),
                    RING => self.tickets.iter_mut().for_each(Tickets::drain),
                    number => self.serve(GuestId(number), event.flags),
                }
            }
            self.resume_accepting();
            let idle =
                self.guests.is_empty() && self.settings.idle_exit.is_some_and(|s| self.idle_since.elapsed() >= s);
            if idle {
                tracing::info!("idle, exiting");
                return Ok(());
            }
        }
    }

    fn timeout(&self) -> Option<Timespec> {
        let idle = match self.settings.idle_exit {
            Some(limit) if self.guests.is_empty() => Some(self.idle_since + limit),
            _ => None,
        };
        let next = [idle, self.accept_again].into_iter().flatten().min()?;
        // Rounded up to the milliseconds of epoll_wait, or the loop would spin for the last one.
        let wait = next.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        Timespec::try_from(wait).ok()
    }

    fn accept(&mut self) {
        for _ in 0..TURN {
            match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => self.admit(socket),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    tracing::warn!("accept: {error}");
                    self.watch_listener(EventFlags::empty());
                    self.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn resume_accepting(&mut self) {
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
            tracing::warn!(
                pid,
                user,
                "turned away: this viaductd serves user {}",
                self.settings.uid
            );
            return;
        }
        let processes = self.processes.entry(user).or_default();
        if *processes >= self.settings.processes_per_user {
            tracing::warn!(pid, user, "turned away: too many processes of this user");
            return;
        }
        let id = GuestId(self.next_guest);
        let watched = epoll::add(&self.epoll, &socket, EventData::new_u64(id.0), EventFlags::IN)
            .and_then(|()| sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER));
        if let Err(error) = watched {
            tracing::warn!(pid, "epoll: {error}");
            return;
        }
        *processes += 1;
        self.next_guest += 1;
        self.guests.insert(id, Guest::new(id, socket, user, pid));
    }

    fn serve(&mut self, id: GuestId, flags: EventFlags) {
        if flags.contains(EventFlags::OUT) {
            self.with_guest(id, Guest::flush);
        }
        for _ in 0..TURN {
            let Some(guest) = self.guests.get(&id) else { return };
            match guest.receive() {
                Ok(Some(received)) => {
                    if let Err(farewell) = self.handle(id, received) {
                        self.dismiss(id, &farewell);
                    }
                }
                Ok(None) => return,
                Err(farewell) => self.dismiss(id, &farewell),
            }
        }
    }

    fn handle(&mut self, id: GuestId, mut received: Received) -> Result<(), Farewell> {
        let malformed = Farewell::Violation("a malformed packet");
        let mut descriptors = received.descriptors.drain(..).collect::<Vec<_>>().into_iter();
        match kind_of(received.bytes()) {
            Some(Kind::Hello) => {
                let hello = decode::<Hello>(received.bytes()).ok_or(malformed)?;
                self.hello(id, &hello, descriptors.next())
            }
            Some(Kind::Query) => {
                decode::<Query>(received.bytes()).ok_or(malformed)?;
                self.post(id, Packet::new(&self.stats()), Vec::new());
                Ok(())
            }
            Some(Kind::Offer) => {
                let offer = decode::<Offer>(received.bytes()).ok_or(malformed)?;
                self.offer(id, &offer, descriptors.next())
            }
            Some(Kind::Withdraw) => {
                let withdraw = decode::<Withdraw>(received.bytes()).ok_or(malformed)?;
                self.registry.withdraw(id, withdraw.offer);
                Ok(())
            }
            Some(Kind::Detach) => {
                let detach = decode::<Detach>(received.bytes()).ok_or(malformed)?;
                self.registry.detach(id, detach.segment);
                Ok(())
            }
            _ => Err(malformed),
        }
    }

    fn hello(&mut self, id: GuestId, hello: &Hello, counters: Option<OwnedFd>) -> Result<(), Farewell> {
        let Some(guest) = self.guests.get_mut(&id) else {
            return Ok(());
        };
        if guest.introduced.is_some() {
            return Err(Farewell::Violation("a second hello"));
        }
        let counters = counters.ok_or(Farewell::Violation("a hello without counters"))?;
        if hello.version != PROTOCOL_VERSION {
            self.welcome(id, 0);
            return Err(Farewell::Violation("another version"));
        }
        let mut nonce = 0;
        if let Some(tickets) = &mut self.tickets {
            nonce = new_nonce().map_err(Farewell::Io)?;
            if let Err(error) = tickets.admit(guest.pid, nonce) {
                tracing::warn!(pid = guest.pid, "BPF map: {error:#}");
            }
        }
        let introduced = guest.introduce(counters.as_fd(), nonce);
        if let (Err(_), Some(tickets)) = (&introduced, &mut self.tickets) {
            tickets.dismiss(guest.pid, nonce);
        }
        introduced?;
        tracing::debug!(pid = guest.pid, user = guest.user, "hello");
        self.welcome(id, nonce);
        Ok(())
    }

    fn welcome(&mut self, id: GuestId, nonce: u32) {
        let welcome = Welcome {
            version: PROTOCOL_VERSION,
            mode: self.mode(),
            nonce,
            reserved: 0,
            instance: self.instance,
        };
        self.post(id, Packet::new(&welcome), Vec::new());
    }

    fn mode(&self) -> u32 {
        if self.tickets.is_some() {
            MODE_TICKET
        } else {
            MODE_SAME_USER
        }
    }

    fn offer(&mut self, id: GuestId, offer: &Offer, bell: Option<OwnedFd>) -> Result<(), Farewell> {
        let bell = match bell {
            Some(bell) if offer.flags & OFFER_HAS_BELL != 0 => self.keep_bell(id, offer.bell, bell),
            _ => None,
        };
        let Some(guest) = self.guests.get(&id) else {
            return Ok(());
        };
        let Some(introduced) = &guest.introduced else {
            return Err(Farewell::Violation("an offer without a hello"));
        };
        let bell = bell.or_else(|| guest.bells.get(&offer.bell).copied()).unwrap_or(0);
        let stated = Claim {
            guest: id,
            offer: offer.offer,
            user: guest.user,
            cookie: offer.cookie,
            proof: Proof::Addresses {
                user: guest.user,
                netns: offer.netns,
                local: offer.local,
                remote: offer.remote,
            },
            netns: offer.netns,
            user_ns: introduced.user_ns,
            bell,
        };
        let claim = match &mut self.tickets {
            None => stated,
            Some(tickets) => {
                let taken = offer.flags & OFFER_HAS_TICKET != 0;
                let ticket = tickets.take(guest.pid, introduced.nonce, offer.ticket_sequence);
                let Some(ticket) = ticket.filter(|_| taken) else {
                    let retry_ms = if taken { TICKET_RETRY_MS } else { 0 };
                    let refusal = self.registry.refuse_unproved(id, offer.offer, retry_ms);
                    self.refuse([refusal]);
                    return Ok(());
                };
                // The kernel's word in place of the guest's.
                Claim {
                    user: ticket.user,
                    proof: Proof::Sequence {
                        sent: ticket.sent,
                        received: ticket.received,
                    },
                    netns: ticket.netns,
                    user_ns: Some(ticket.user_ns),
                    ..stated
                }
            }
        };
        match self.registry.offer(claim, Geometry::DEFAULT.segment_len() as u64) {
            Decision::Wait(replaced) => self.refuse(replaced),
            Decision::Refused(refusals) => self.refuse(refusals),
            Decision::Matched(matched, replaced) => {
                self.refuse(replaced);
                self.pair(&matched);
            }
        }
        Ok(())
    }

    /// Keeps a bell that came with an offer under a name of viaductd's. A process with too many bells goes without.
    fn keep_bell(&mut self, id: GuestId, number: u64, bell: OwnedFd) -> Option<u64> {
        let guest = self.guests.get_mut(&id)?;
        let known = guest.bells.contains_key(&number);
        if number == 0 || !is_eventfd(bell.as_fd()) || !known && guest.bells.len() >= BELLS_PER_PROCESS {
            return None;
        }
        let name = self.next_bell;
        self.next_bell += 1;
        let bell = Bell {
            owner: id,
            eventfd: Rc::new(bell),
        };
        self.bells.insert(name, bell);
        if let Some(older) = guest.bells.insert(number, name) {
            self.bells.remove(&older);
        }
        Some(name)
    }

    fn refuse(&mut self, refusals: impl IntoIterator<Item = Refusal>) {
        for refusal in refusals {
            let refuse = Refuse {
                offer: refusal.offer,
                reason: refusal.reason as u32,
                retry_ms: refusal.retry_ms,
            };
            self.post(refusal.guest, Packet::new(&refuse), Vec::new());
        }
    }

    /// Makes the segment of a match and hands it to both ends.
    fn pair(&mut self, matched: &Match) {
        let segment = match Segment::create(matched.segment, Geometry::DEFAULT) {
            Ok(segment) => Rc::new(segment),
            Err(error) => {
                tracing::warn!("segment: {error}");
                let reason = match Errno::from_io_error(&error) {
                    Some(Errno::MFILE | Errno::NFILE) => Reason::NoDescriptors,
                    _ => Reason::NoMemory,
                };
                self.registry.undo(matched);
                let refusals = [matched.first, matched.second].map(|claim| Refusal {
                    guest: claim.guest,
                    offer: claim.offer,
                    reason,
                    retry_ms: crate::registry::LIMIT_RETRY_MS,
                });
                return self.refuse(refusals);
            }
        };
        tracing::debug!(segment = matched.segment, "paired");
        self.hand_over(matched, 0, &segment);
        self.hand_over(matched, 1, &segment);
    }

    fn hand_over(&mut self, matched: &Match, side: u32, segment: &Rc<OwnedFd>) {
        let (own, peer) = match side {
            0 => (&matched.first, &matched.second),
            _ => (&matched.second, &matched.first),
        };
        let (peer_pid, peer_uid) = self
            .guests
            .get(&peer.guest)
            .map_or((0, peer.user), |guest| (guest.pid, peer.user));
        let mut descriptors = vec![Rc::clone(segment)];
        let (mut bell, mut flags) = (0, 0);
        if may_hold_bell(own, peer)
            && let Some(kept) = self.bells.get(&peer.bell)
            && let Some(guest) = self.guests.get_mut(&own.guest)
        {
            bell = peer.bell;
            if guest.given.insert(bell) {
                descriptors.push(Rc::clone(&kept.eventfd));
                flags = PAIR_HAS_BELL;
            }
        }
        let pair = Pair {
            offer: own.offer,
            segment: matched.segment,
            bell,
            side,
            flags,
            peer_pid,
            peer_uid,
        };
        self.post(own.guest, Packet::new(&pair), descriptors);
    }

    fn post(&mut self, id: GuestId, packet: Packet, descriptors: Vec<Rc<OwnedFd>>) {
        let mail = Mail { packet, descriptors };
        self.with_guest(id, |guest| guest.post(mail));
    }

    /// Does something that may send or queue mail, and sees to what follows from it.
    fn with_guest(&mut self, id: GuestId, action: impl FnOnce(&mut Guest) -> Result<(), Farewell>) {
        let Some(guest) = self.guests.get_mut(&id) else { return };
        let outcome = action(guest);
        let wants_room = guest.queued() > 0;
        let (user, changed) = (guest.user, wants_room != guest.watches_room);
        guest.watches_room = wants_room;
        if let Err(farewell) = outcome {
            return self.dismiss(id, &farewell);
        }
        if changed && let Some(guest) = self.guests.get(&id) {
            let flags = if wants_room {
                EventFlags::IN | EventFlags::OUT
            } else {
                EventFlags::IN
            };
            if let Err(error) = watch(self.epoll.as_fd(), guest, flags) {
                return self.dismiss(id, &Farewell::Io(error));
            }
        }
        if wants_room {
            let queued: usize = self
                .guests
                .values()
                .filter(|guest| guest.user == user)
                .map(Guest::queued)
                .sum();
            if queued > QUEUED_PER_USER {
                self.dismiss(id, &Farewell::Overflow);
            }
        }
    }

    fn dismiss(&mut self, id: GuestId, farewell: &Farewell) {
        let Some(guest) = self.guests.remove(&id) else { return };
        match farewell {
            Farewell::HangUp => tracing::debug!(pid = guest.pid, "hung up"),
            Farewell::Overflow => tracing::warn!(pid = guest.pid, "dropped: does not read its mail"),
            Farewell::Violation(what) => tracing::warn!(pid = guest.pid, "dropped: {what}"),
            Farewell::Io(error) => tracing::warn!(pid = guest.pid, "dropped: {error}"),
        }
        self.registry.hang_up(id);
        if let (Some(tickets), Some(introduced)) = (&mut self.tickets, &guest.introduced) {
            tickets.dismiss(guest.pid, introduced.nonce);
        }
        self.bells.retain(|_, bell| bell.owner != id);
        for other in self.guests.values_mut() {
            for name in guest.bells.values() {
                other.given.remove(name);
            }
        }
        if let Some(processes) = self.processes.get_mut(&guest.user) {
            *processes -= 1;
            if *processes == 0 {
                self.processes.remove(&guest.user);
            }
        }
        if self.guests.is_empty() {
            self.idle_since = Instant::now();
        }
    }

    fn stats(&self) -> Stats {
        let totals = self.registry.totals();
        let introduced = self.guests.values().filter(|guest| guest.introduced.is_some());
        Stats {
            version: PROTOCOL_VERSION,
            mode: self.mode(),
            pid: std::process::id(),
            processes: u32::try_from(introduced.count()).unwrap_or(u32::MAX),
            uptime_s: self.started.elapsed().as_secs(),
            offers_waiting: self.registry.waiting() as u64,
            offers: totals.offers,
            pairs: totals.pairs,
            refused: totals.refused,
            segments: self.registry.segments() as u64,
            segment_bytes: totals.segment_bytes,
            segments_per_user: self.settings.limits.segments,
        }
    }
}

/// 31 random bits, so that they fit `getsockopt`'s option name, and never 0.
fn new_nonce() -> Result<u32, Errno> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok((u32::from_ne_bytes(bytes) >> 1).max(1))
}

fn watch(epoll: BorrowedFd<'_>, guest: &Guest, flags: EventFlags) -> Result<(), Errno> {
    epoll::modify(epoll, &guest.socket, EventData::new_u64(guest.id.0), flags)
}

/// Whoever holds an eventfd can also silence it, so only equals get each other's.
fn may_hold_bell(own: &Claim, peer: &Claim) -> bool {
    own.user == peer.user && own.netns == peer.netns && own.user_ns.is_some() && own.user_ns == peer.user_ns
}
