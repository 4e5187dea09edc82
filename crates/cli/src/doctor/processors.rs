//! How many processors there are, and how soon one that idles is awake: what a program that sleeps waits for with each
//! message, on either road.

use super::{Check, Level};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

const NAME: &str = "idle processors";
/// A processor that takes longer to wake makes more of a sleep's time than all else.
const SLOW: Duration = Duration::from_micros(15);
/// How often two threads wake each other,
const ROUNDS: usize = 200;
/// and how long at most.
const PATIENCE: Duration = Duration::from_millis(100);
/// Where the kernel tells how long an idle processor of a virtual machine polls before it is given up, in nanoseconds.
const HALT_POLL: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";

pub(super) fn checks() -> impl Iterator<Item = Check> {
    let count = thread::available_parallelism().map_or(1, usize::from);
    let number = match count {
        1 => Check::new(
            "processors",
            Level::Warn,
            "1",
            "Polling cannot pay off, so a waiting program sleeps at once; latency is then near that of TCP.",
        ),
        count => Check::ok("processors", count.to_string()),
    };
    let idle = (count > 1).then(wake_up).and_then(Result::ok);
    let may_poll = fs::read_to_string(HALT_POLL).is_ok_and(|ns| ns.trim() == "0");
    [number].into_iter().chain(idle.map(|took| check(took, may_poll)))
}

/// `may_poll`: idle processors could poll, and do not.
fn check(took: Duration, may_poll: bool) -> Check {
    let finding = format!("awake in {:.0} us", took.as_secs_f64() * 1e6);
    if took <= SLOW {
        return Check::ok(NAME, finding);
    }
    let mut advice =
        "Who sleeps for each message waits that long for it, by shared memory and by TCP; programs gain most where \
         they poll (`--spin` says when)."
            .to_owned();
    if may_poll {
        advice.push_str(&format!(
            " In a virtual machine `echo 200000 > {HALT_POLL}` may shorten it, for time that the host counts as used."
        ));
    }
    Check::new(NAME, Level::Warn, finding, advice)
}

/// How long it takes to wake a thread and be woken by it, halved: the median.
fn wake_up() -> io::Result<Duration> {
    let (mut here, mut there) = UnixStream::pair()?;
    let echo = thread::Builder::new().spawn(move || {
        let mut byte = [0];
        while there.read_exact(&mut byte).is_ok() && there.write_all(&byte).is_ok() {}
    })?;
    let began = Instant::now();
    let mut rounds = Vec::with_capacity(ROUNDS);
    while rounds.len() < ROUNDS && began.elapsed() < PATIENCE {
        let asked = Instant::now();
        here.write_all(&[0])?;
        here.read_exact(&mut [0])?;
        rounds.push(asked.elapsed() / 2);
    }
    drop(here);
    // It ends with the connection, and cannot fail.
    let _ = echo.join();
    rounds.sort_unstable();
    rounds
        .get(rounds.len() / 2)
        .copied()
        .ok_or_else(|| io::ErrorKind::TimedOut.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_processors_are_told_of_and_what_may_help() {
        let us = Duration::from_micros;
        assert_eq!(check(us(4), true).level, Level::Ok);
        let slow = check(us(40), false);
        assert_eq!((slow.level, slow.finding.as_str()), (Level::Warn, "awake in 40 us"));
        assert!(!slow.consequence.contains("haltpoll"));
        assert!(check(us(40), true).consequence.contains(HALT_POLL));
    }

    #[test]
    fn two_threads_wake_each_other() {
        assert!(wake_up().unwrap() > Duration::ZERO);
    }
}
