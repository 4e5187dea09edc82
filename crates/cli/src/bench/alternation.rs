//! Loads that run at the same time, each for a moment in turn while the others are stopped: how the machine feels,
//! which changes from second to second, meets all of them alike.
//!
//! Should this process be killed, another lets what is stopped go on, so that it can end.

use crate::bench::program::{family, process};
use crate::locate;
use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{PidfdFlags, Signal, kill_process, pidfd_open};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a turn is: many thousand requests, so that what a load finds in the caches when its turn begins hardly
/// counts.
const TURN: Duration = Duration::from_millis(50);

/// Who takes turns.
#[derive(Debug)]
pub(crate) struct Alternation {
    places: Mutex<Vec<Place>>,
    changed: Condvar,
    heir: Child,
}

#[derive(Debug)]
enum Place {
    /// Its load has not begun.
    Awaited,
    Taken(Load),
    /// Its load is done, or will never begin; so many times as long as it ran itself did it take.
    Left {
        slowed: f64,
    },
}

/// A server and its client.
#[derive(Debug)]
struct Load {
    server: u32,
    client: u32,
    /// Readable once the client has done its work.
    end: OwnedFd,
    begun: Instant,
    ran: Duration,
}

impl Load {
    fn pids(&self) -> impl Iterator<Item = u32> {
        family(self.server).into_iter().chain([self.client])
    }

    fn signal(&self, signal: Signal) {
        for pid in self.pids().filter_map(process) {
            // It may have ended.
            let _ = kill_process(pid, signal);
        }
    }

    /// Lets it run for a turn, or until its client is done. True if it is.
    fn turn(&mut self) -> bool {
        let start = Instant::now();
        self.signal(Signal::CONT);
        let ended = loop {
            let left = TURN.saturating_sub(start.elapsed());
            let left = Timespec {
                tv_sec: 0,
                tv_nsec: left.subsec_nanos().into(),
            };
            match poll(&mut [PollFd::new(&self.end, PollFlags::IN)], Some(&left)) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(0) => break false,
                _ => break true,
            }
        };
        self.ran += start.elapsed();
        if !ended {
            self.signal(Signal::STOP);
        }
        ended
    }

    fn slowed(&self) -> f64 {
        self.begun.elapsed().as_secs_f64() / self.ran.as_secs_f64()
    }
}

impl Alternation {
    /// For so many loads.
    ///
    /// # Errors
    /// This program cannot be started once more.
    pub(crate) fn of(count: usize) -> Result<Self> {
        let mut heir = Command::new(locate::OWN);
        heir.args(["bench-peer", "resume"]).stdin(Stdio::piped());
        Ok(Self {
            places: Mutex::new((0..count).map(|_| Place::Awaited).collect()),
            changed: Condvar::new(),
            // Out of the reach of a terminal's signals.
            heir: heir.process_group(0).spawn()?,
        })
    }

    fn places(&self) -> MutexGuard<'_, Vec<Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A load's place, for its own thread.
    pub(crate) const fn seat(&self, number: usize) -> Seat<'_> {
        Seat {
            alternation: self,
            number,
        }
    }

    /// Gives turns until all loads have ended. `first`: whose is the first.
    pub(crate) fn run(&self, first: usize) {
        let mut next = first;
        loop {
            let begins = |places: &mut Vec<Place>| places.iter().any(|place| matches!(place, Place::Awaited));
            let waited = self.changed.wait_while(self.places(), begins);
            let mut places = waited.unwrap_or_else(PoisonError::into_inner);
            let count = places.len();
            let ready = |number: &usize| matches!(places.get(*number), Some(Place::Taken(_)));
            let Some(number) = (0..count).map(|step| (next + step) % count).find(ready) else {
                return;
            };
            next = number + 1;
            if let Some(place) = places.get_mut(number)
                && let Place::Taken(load) = place
                && load.turn()
            {
                // What the server does to end disturbs nobody's turn much.
                load.signal(Signal::CONT);
                *place = Place::Left { slowed: load.slowed() };
            }
        }
    }
}

impl Drop for Alternation {
    fn drop(&mut self) {
        drop(self.heir.stdin.take());
        let _ = self.heir.wait();
    }
}

/// One load's place among those that take turns. Left at the latest when dropped.
#[derive(Debug)]
pub(crate) struct Seat<'a> {
    alternation: &'a Alternation,
    number: usize,
}

impl Seat<'_> {
    /// The process `client` has just been started, and loads `server` until it ends; both wait for their first turn
    /// from now on.
    ///
    /// # Errors
    /// The kernel gives no descriptor for the client.
    pub(crate) fn take(&self, server: u32, client: u32) -> Result<()> {
        let pid = process(client).context("a process without a number")?;
        self.take_until(server, client, pidfd_open(pid, PidfdFlags::empty())?)
    }

    /// The same for a client that goes on when it is done: `end` is readable from then on.
    ///
    /// # Errors
    /// The process that lets stopped ones go on is gone.
    pub(crate) fn take_until(&self, server: u32, client: u32, end: OwnedFd) -> Result<()> {
        let load = Load {
            server,
            client,
            end,
            begun: Instant::now(),
            ran: Duration::ZERO,
        };
        if let Some(mut heir) = self.alternation.heir.stdin.as_ref() {
            for pid in load.pids() {
                writeln!(heir, "{pid}")?;
            }
        }
        load.signal(Signal::STOP);
        self.set(Place::Taken(load));
        Ok(())
    }

    /// How many times as long as it ran itself the load took, once it is done; `None` if it has not begun.
    pub(crate) fn slowed(&self) -> Option<f64> {
        match self.alternation.places().get(self.number) {
            Some(Place::Left { slowed }) => Some(*slowed),
            // Done as its turn ended.
            Some(Place::Taken(load)) => Some(load.slowed()),
            Some(Place::Awaited) | None => None,
        }
    }

    fn set(&self, to: Place) {
        if let Some(place) = self.alternation.places().get_mut(self.number) {
            if let Place::Taken(load) = place {
                load.signal(Signal::CONT);
            }
            *place = to;
        }
        self.alternation.changed.notify_all();
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.set(Place::Left { slowed: f64::NAN });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alternation() -> Alternation {
        // Stands for the process that outlives this one.
        let heir = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        Alternation {
            places: Mutex::new(vec![Place::Awaited, Place::Awaited]),
            changed: Condvar::new(),
            heir: heir.unwrap(),
        }
    }

    /// A program that works for some hundred milliseconds.
    fn work() -> Child {
        let mut shell = Command::new("sh");
        shell.args(["-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"]);
        shell.spawn().unwrap()
    }

    #[test]
    fn two_loads_take_twice_as_long_as_they_run() {
        let alternation = alternation();
        // Both have begun before anybody is given a turn.
        let loads = [0, 1].map(|number| {
            let (seat, server, client) = (alternation.seat(number), work(), work());
            seat.take(server.id(), client.id()).unwrap();
            (seat, server, client)
        });
        std::thread::scope(|scope| {
            for (seat, mut server, mut client) in loads {
                scope.spawn(move || {
                    assert!(client.wait().unwrap().success());
                    let slowed = seat.slowed().unwrap();
                    assert!((1.2..4.0).contains(&slowed), "{slowed}");
                    assert!(server.wait().unwrap().success(), "it goes on");
                });
            }
            alternation.run(0);
        });
    }

    #[test]
    fn nobody_waits_for_a_load_that_never_begins() {
        let alternation = alternation();
        drop(alternation.seat(0));
        let (seat, mut server, mut client) = (alternation.seat(1), work(), work());
        seat.take(server.id(), client.id()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                assert!(client.wait().unwrap().success());
                assert!(seat.slowed().unwrap() < 1.5);
                server.wait().unwrap();
            });
            alternation.run(1);
        });
        assert!(alternation.seat(0).slowed().unwrap().is_nan());
    }
}
