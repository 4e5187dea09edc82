//! The loop: one thread, one epoll set, guests that can neither block it nor make it grow without bound.

use crate::bells::Bell;
use crate::closing::Closing;
use crate::guest::{Farewell, Guest, Mail, Received};
use crate::listen::Place;
use crate::pairing::Early;
use crate::registry::{GuestId, LIMIT_RETRY_MS, Limits, Registry};
use crate::seldom::Seldom;
use crate::ticket::Tickets;
use anyhow::Context;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};
use viaduct_control::message::{
    Detach, Hello, Kind, MODE_SAME_USER, MODE_TICKET, Offer, Packet, Query, Refuse, Welcome, Withdraw, decode, kind_of,
};
use viaduct_control::{PROTOCOL_VERSION, Reason};

pub(crate) const LISTENER: u64 = 0;
const STOP: u64 = 1;
const RING: u64 = 2;
const FIRST_GUEST: u64 = 16;

/// Packets taken from one guest before the others have their turn.
pub(crate) const TURN: usize = 64;
/// How long viaductd leaves alone what failed for want of descriptors: accepting, and sending some.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);
/// How often viaductd looks whether its socket still has its name.
const LOOK: Duration = Duration::from_secs(5);

/// What viaductd was told to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) limits: Limits,
    /// Processes one user may have connected.
    pub(crate) processes_per_user: usize,
    /// Descriptors kept open for one user, once as bells and once as mail that its processes have not read.
    pub(crate) descriptors_per_user: usize,
    pub(crate) idle_exit: Option<Duration>,
    /// Effective user of viaductd.
    pub(crate) uid: u32,
}

/// How many a user has: connections, and those of them that are processes that have said hello.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    pub(crate) connected: usize,
    pub(crate) introduced: usize,
}

/// All state of a running viaductd.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) settings: Settings,
    pub(crate) epoll: OwnedFd,
    pub(crate) listener: OwnedFd,
    _stop: OwnedFd,
    pub(crate) started: Instant,
    instance: u64,
    pub(crate) registry: Registry,
    pub(crate) tickets: Result<Tickets, String>,
    pub(crate) guests: HashMap<GuestId, Guest>,
    pub(crate) introduced: usize,
    pub(crate) users: HashMap<u32, Crowd>,
    pub(crate) bells: HashMap<u64, Bell>,
    pub(crate) next_guest: u64,
    pub(crate) next_bell: u64,
    pub(crate) accept_again: Option<Instant>,
    /// That nobody is accepted, that a process of a user is not served, or no longer, and why, and that there is no
    /// segment: all may be so often, and as long as somebody wants.
    pub(crate) untaken: Seldom,
    pub(crate) turned_away: Seldom<(u32, &'static str)>,
    pub(crate) unmade: Seldom,
    flush_again: Option<Instant>,
    /// Offers that came ahead of their tickets, and when to look for these.
    pub(crate) early: Vec<Early>,
    pub(crate) prove_again: Option<Instant>,
    idle_since: Instant,
    pub(crate) closing: Closing,
    look_again: Instant,
}

impl Server {
    /// `stop` becomes readable when viaductd shall exit; without `tickets` there is a reason; `instance` is a random
    /// number for this run.
    pub(crate) fn new(
        settings: Settings,
        listener: OwnedFd,
        stop: OwnedFd,
        tickets: Result<Tickets, String>,
        instance: u64,
        closing: Closing,
    ) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        epoll::add(&epoll, &stop, EventData::new_u64(STOP), EventFlags::IN)?;
        if let Ok(tickets) = &tickets {
            epoll::add(&epoll, tickets.ring(), EventData::new_u64(RING), EventFlags::IN)?;
        }
        let now = Instant::now();
        // Programs know segments and bells of viaductds before this one, so no two may count from the same number.
        let first_name = instance & !u64::from(u32::MAX) | 1;
        Ok(Self {
            settings,
            epoll,
            listener,
            _stop: stop,
            started: now,
            instance,
            registry: Registry::new(settings.limits, first_name),
            tickets,
            guests: HashMap::new(),
            introduced: 0,
            users: HashMap::new(),
            bells: HashMap::new(),
            next_guest: FIRST_GUEST,
            next_bell: first_name,
            accept_again: None,
            untaken: Seldom::default(),
            turned_away: Seldom::default(),
            unmade: Seldom::default(),
            flush_again: None,
            early: Vec::new(),
            prove_again: None,
            idle_since: now,
            closing,
            look_again: now + LOOK,
        })
    }

    /// Serves until told to stop, or idle for too long while no program runs in `place` which may yet connect.
    ///
    /// # Errors
    /// Nobody can find it there any more, or it cannot wait.
    pub(crate) fn run(&mut self, place: &Place) -> anyhow::Result<()> {
        let mut events = Vec::with_capacity(256);
        loop {
            events.clear();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                self.timeout().as_ref(),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("epoll"),
            }
            self.closing.hurry();
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    STOP => return Ok(()),
                    RING => self.tickets.iter_mut().for_each(Tickets::drain),
                    number => self.serve(GuestId(number), event.flags),
                }
            }
            self.resume_accepting();
            self.flush_starved();
            self.prove_early();
            self.closing.rest();
            let idle = self.introduced == 0 && self.settings.idle_exit.is_some_and(|s| self.idle_since.elapsed() >= s);
            if self.look_again <= Instant::now() {
                self.look_again = Instant::now() + LOOK;
                place.check()?;
            }
            if idle && place.has_programs() {
                self.idle_since = Instant::now();
            } else if idle {
                tracing::info!("idle, exiting");
                return Ok(());
            }
        }
    }

    fn timeout(&self) -> Option<Timespec> {
        let idle = match self.settings.idle_exit {
            // One that is later than there are instants is never.
            Some(limit) if self.introduced == 0 => self.idle_since.checked_add(limit),
            _ => None,
        };
        let next = [idle, self.accept_again, self.flush_again, self.prove_again];
        let next = next.into_iter().flatten().fold(self.look_again, Instant::min);
        // Rounded up to the milliseconds of epoll_wait, or the loop would spin for the last one.
        let wait = next.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        Timespec::try_from(wait).ok()
    }

    fn serve(&mut self, id: GuestId, flags: EventFlags) {
        if flags.contains(EventFlags::OUT) {
            self.flush(id);
        }
        for _ in 0..TURN {
            let Some(guest) = self.guests.get(&id) else { return };
            if self.closing.bars(guest.user) {
                return self.dismiss(
                    id,
                    &Farewell::Violation("too many files of its user that nobody asked for"),
                );
            }
            match guest.receive() {
                Ok(Some(mut received)) => {
                    let user = guest.user;
                    let handled = self.handle(id, &mut received);
                    let harmless = self.closing.discard(user, received.descriptors);
                    let wanted = if harmless {
                        Ok(())
                    } else {
                        Err(Farewell::Violation("a file that nobody asked for"))
                    };
                    if let Err(farewell) = handled.and(wanted) {
                        self.dismiss(id, &farewell);
                    }
                }
                Ok(None) => return,
                Err(farewell) => self.dismiss(id, &farewell),
            }
        }
    }

    /// Takes from the descriptors what it keeps.
    fn handle(&mut self, id: GuestId, received: &mut Received) -> Result<(), Farewell> {
        if received.is_overlong {
            return Err(Farewell::Violation("an overlong packet"));
        }
        let malformed = Farewell::Violation("a malformed packet");
        match kind_of(received.bytes()) {
            Some(Kind::Hello) => {
                let hello = decode::<Hello>(received.bytes()).ok_or(malformed)?;
                self.hello(id, &hello, received.descriptors.first())
            }
            Some(Kind::Query) => {
                decode::<Query>(received.bytes()).ok_or(malformed)?;
                self.post(id, Packet::new(&self.stats()), Vec::new());
                Ok(())
            }
            Some(Kind::Offer) => {
                let offer = decode::<Offer>(received.bytes()).ok_or(malformed)?;
                self.offer(id, &offer, &mut received.descriptors)
            }
            Some(Kind::Withdraw) => {
                let withdraw = decode::<Withdraw>(received.bytes()).ok_or(malformed)?;
                self.withdraw(id, withdraw.offer);
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

    fn hello(&mut self, id: GuestId, hello: &Hello, counters: Option<&OwnedFd>) -> Result<(), Farewell> {
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
        let crowd = self.users.entry(guest.user).or_default();
        if crowd.introduced >= self.settings.processes_per_user {
            let refuse = Refuse {
                offer: 0,
                reason: Reason::LimitProcesses as u32,
                retry_ms: LIMIT_RETRY_MS,
            };
            self.post(id, Packet::new(&refuse), Vec::new());
            return Err(Farewell::Turned);
        }
        let mut nonce = 0;
        if let Ok(tickets) = &mut self.tickets {
            nonce = new_nonce().map_err(Farewell::Io)?;
            if let Err(error) = tickets.admit(guest.pid, nonce) {
                tracing::warn!(pid = guest.pid, "BPF map: {error:#}");
            }
        }
        let introduced = guest.introduce(counters.as_fd(), nonce);
        if let (Err(_), Ok(tickets)) = (&introduced, &mut self.tickets) {
            tickets.dismiss(guest.pid, nonce);
        }
        introduced?;
        crowd.introduced += 1;
        self.introduced += 1;
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

    pub(crate) fn mode(&self) -> u32 {
        if self.tickets.is_ok() {
            MODE_TICKET
        } else {
            MODE_SAME_USER
        }
    }

    /// Sends a packet, or queues it.
    pub(crate) fn post(&mut self, id: GuestId, packet: Packet, descriptors: Vec<Rc<OwnedFd>>) {
        self.post_unannounced(id, packet, descriptors);
        self.announce(id);
    }

    /// The same, but the guest does not read it before [`Server::announce`].
    pub(crate) fn post_unannounced(&mut self, id: GuestId, packet: Packet, descriptors: Vec<Rc<OwnedFd>>) {
        let mail = Mail { packet, descriptors };
        self.with_guest(id, |guest| guest.post(mail));
    }

    /// Tells a guest of its mail.
    pub(crate) fn announce(&mut self, id: GuestId) {
        if let Some(guest) = self.guests.get_mut(&id) {
            guest.announce();
        }
    }

    /// Does something that may send or queue mail, and sees to what follows from it.
    fn with_guest(&mut self, id: GuestId, action: impl FnOnce(&mut Guest) -> Result<(), Farewell>) {
        let Some(guest) = self.guests.get_mut(&id) else { return };
        if let Err(farewell) = action(guest) {
            return self.dismiss(id, &farewell);
        }
        if guest.starved {
            self.flush_again = Some(Instant::now() + PAUSE);
        }
        let wants_room = guest.queued() > 0 && !guest.starved;
        if wants_room != guest.watches_room {
            guest.watches_room = wants_room;
            let room = if wants_room {
                EventFlags::OUT
            } else {
                EventFlags::empty()
            };
            let data = EventData::new_u64(id.0);
            if let Err(error) = epoll::modify(&self.epoll, &guest.socket, data, EventFlags::IN | room) {
                return self.dismiss(id, &Farewell::Io(error));
            }
        }
        if guest.queued() > 0 {
            let user = guest.user;
            self.bound_queues(user);
        }
    }

    /// Drops the process with the most unread mail if its user's processes have too much together.
    fn bound_queues(&mut self, user: u32) {
        let of_user = || self.guests.values().filter(|guest| guest.user == user);
        if of_user().map(Guest::queued).sum::<usize>() > self.settings.descriptors_per_user
            && let Some(laziest) = of_user().max_by_key(|guest| guest.queued()).map(|guest| guest.id)
        {
            self.dismiss(laziest, &Farewell::Overflow);
        }
    }

    /// Sends queued mail that there is room for now.
    fn flush(&mut self, id: GuestId) {
        self.with_guest(id, Guest::flush);
        self.announce(id);
    }

    fn flush_starved(&mut self) {
        if self.flush_again.is_some_and(|at| at <= Instant::now()) {
            self.flush_again = None;
            let starved = self.guests.values().filter(|guest| guest.starved).map(|guest| guest.id);
            for id in starved.collect::<Vec<_>>() {
                self.flush(id);
            }
        }
    }

    fn dismiss(&mut self, id: GuestId, farewell: &Farewell) {
        let Some(guest) = self.guests.remove(&id) else { return };
        self.tell(&guest, farewell);
        self.registry.hang_up(id);
        self.early.retain(|early| early.guest != id);
        if let (Ok(tickets), Some(introduced)) = (&mut self.tickets, &guest.introduced) {
            tickets.dismiss(guest.pid, introduced.nonce);
        }
        self.forget_bells(id);
        if let Some(crowd) = self.users.get_mut(&guest.user) {
            crowd.connected -= 1;
            crowd.introduced -= usize::from(guest.introduced.is_some());
            if crowd.connected == 0 {
                self.users.remove(&guest.user);
            }
        }
        if guest.introduced.is_some() {
            self.introduced -= 1;
            self.idle_since = Instant::now();
        }
    }
}

/// 31 random bits, so that they fit `getsockopt`'s option name, and never 0.
fn new_nonce() -> Result<u32, Errno> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok((u32::from_ne_bytes(bytes) >> 1).max(1))
}
