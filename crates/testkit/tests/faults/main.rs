//! More than 500 faults in the middle of checked transfers. Whatever happens to one end, the other sees what TCP would
//! show it, promptly: no hang, no wrong byte, and nothing leaks. Each test runs a few rounds natively first, which
//! proves the test itself.
//!
//! | faults | test |
//! |---|---|
//! | 200 | a connecting end killed |
//! | 150 | an accepting end killed |
//! | 5 | an end killed that has long finished its own stream |
//! | 20 | a receiver killed that has megabytes before it in the kernel's buffers, 16 of them one of two processes |
//! | 80 | viaductd killed or stopped, and started again; 20 of them while it pairs |
//! | 60 | an end stopped, then continued or killed |
//! | 20 | descriptors exhausted, of a program or of viaductd |
//! | 20 | memory exhausted: address space, control group |
//!
//! Not counted: what the limits of viaductd refuse, segments that somebody garbles, and a full `/dev/shm`, which
//! hinders nobody.

mod backlog;
mod daemon;
mod garble;
mod kill;
mod limits;
mod stop;

use std::time::Duration;
use viaduct_testkit::pattern::Random;
use viaduct_testkit::processes::{Holdings, connections_to, holdings, wait_until};
use viaduct_testkit::{Instance, Mode, Program, Server};

/// What every run goes through; a test counts only faults that hit.
const FAULTS: u64 =
    kill::FAULTS as u64 + backlog::FAULTS as u64 + daemon::FAULTS + stop::FAULTS as u64 + limits::FAULTS;
const _: () = assert!(FAULTS >= 500, "the project promises 500 faults");

/// How long an end may take to see that the other is gone.
const PROMPTLY: Duration = Duration::from_secs(3);

/// How long a transfer of a few megabytes may take beside other tests.
const PATIENCE: Duration = Duration::from_secs(30);

/// Rounds of each test without Viaduct.
const NATIVE_ROUNDS: usize = 4;

const WAITING: [&str; 4] = ["blocking", "epoll", "edge", "poll"];

fn any_of<T: Copy>(random: &mut Random, choices: &[T]) -> T {
    choices[usize::try_from(random.below(choices.len() as u64)).unwrap()]
}

/// A moment in a transfer.
fn moment(random: &mut Random, longest_ms: u64) {
    std::thread::sleep(Duration::from_micros(random.below(longest_ms * 1000)));
}

/// Waits until a client has connected, so that it is a connection that the fault hits; or is over already, having had a
/// slow witness.
fn connected(server: &Server, client: &mut Program) {
    let connected = wait_until(PATIENCE, || {
        connections_to(server.program.pid(), server.port) > 0 || !client.is_running()
    });
    assert!(connected, "the client does not connect: {}", client.errors());
}

/// Plays rounds, numbered from 0, until so many `faults` have hit; `round` says whether one has. On a busy machine many
/// come too late.
fn until_hit(faults: usize, mut round: impl FnMut(usize) -> bool) {
    let rounds = 10 * faults;
    let hits = (0..rounds).filter(|number| round(*number)).take(faults).count();
    assert_eq!(hits, faults, "of {rounds} rounds only so many have hit");
}

/// The seeds that the connections of a client with so many of them have, by which the server's reports name them.
fn seeds_of(seed: u64, connections: u64) -> Vec<u64> {
    let mut seeds = Random::new(seed);
    (0..connections).map(|_| seeds.number()).collect()
}

/// How many connections with one of these seeds the server has reported as ended.
fn ended(server: &Server, seeds: &[u64]) -> usize {
    let reports = server.reports();
    reports.iter().filter(|report| seeds.contains(&report.seed)).count()
}

/// Runs one whole client so that everything lazily made is there, and returns what the server holds afterwards.
fn settle(server: &mut Server, mode: Mode<'_>) -> Holdings {
    // That of no round: a killed one's report may come late.
    const SEED: u64 = u64::MAX;
    let seeds = seeds_of(SEED, 2);
    let before = ended(server, &seeds);
    let arguments = format!("--bytes 1000000 --connections 2 --seed {SEED}");
    server.client(mode, &arguments).run(PATIENCE).success();
    let idle = wait_until(PROMPTLY, || ended(server, &seeds) == before + 2);
    assert!(
        idle,
        "the server does not see its first clients end: {:#?}",
        server.reports()
    );
    std::thread::sleep(Duration::from_millis(200));
    server.assert_sound();
    server.holdings()
}

/// Compares viaductd before and after many connections.
struct DaemonCheck<'a> {
    instance: &'a Instance,
    before: Holdings,
}

impl<'a> DaemonCheck<'a> {
    fn new(instance: &'a Instance) -> Self {
        let before = holdings(instance.daemon_pid());
        Self { instance, before }
    }

    /// Fails if viaductd keeps descriptors, segments or much memory of connections that are gone.
    fn assert_clean(&self) {
        let pid = self.instance.daemon_pid();
        let clean = wait_until(PROMPTLY, || {
            let now = holdings(pid);
            now.descriptors <= self.before.descriptors && now.memory_mappings <= self.before.memory_mappings
        });
        let now = holdings(pid);
        assert!(clean, "viaductd before {:?}, after {now:?}", self.before);
        let grown = now.resident_kib.saturating_sub(self.before.resident_kib);
        assert!(grown < 4096, "viaductd has grown by {grown} KiB");
    }
}
