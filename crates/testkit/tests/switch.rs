//! Busy connections moved between paths thousands of times while both ends check every byte.

use std::collections::HashMap;
use std::time::{Duration, Instant};
use viaduct_testkit::pattern::Random;
use viaduct_testkit::peer::{Report, reports};
use viaduct_testkit::processes::wait_until;
use viaduct_testkit::{Instance, Mode, Server};

const SECONDS: u64 = 8;

/// Moves random connections of either end until `until`; returns how many moves were asked for and how many changes of path
/// the connections have counted.
fn storm(instance: &Instance, pids: &[u32], seed: u64, until: Instant) -> (u64, u64) {
    let mut random = Random::new(seed);
    let mut asked = 0;
    let mut switches = HashMap::new();
    while Instant::now() < until {
        let rows = instance.status();
        for row in rows.iter().filter(|row| pids.contains(&row.pid)) {
            switches.insert((row.pid, row.fd), row.switches);
        }
        let own: Vec<_> = rows.into_iter().filter(|row| pids.contains(&row.pid)).collect();
        for _ in 0..20 {
            let Some(row) = own.get(usize::try_from(random.below(own.len() as u64)).unwrap()) else {
                break;
            };
            let path = ["tcp", "shm", "auto"][usize::try_from(random.below(3)).unwrap()];
            // A connection may have ended since the status was read.
            if instance.move_connection(row.pid, row.fd, path).is_ok() {
                asked += 1;
            }
        }
    }
    (asked, switches.values().sum())
}

/// The reports of one end by connection.
fn by_seed(reports: Vec<Report>) -> HashMap<u64, Report> {
    reports.into_iter().map(|report| (report.seed, report)).collect()
}

fn check(waiting: &str, client_waits: &str, max_chunk: u32, seed: u64) {
    let instance = Instance::start();
    let mode = Mode::Accelerated(&instance);
    let mut server = Server::start(mode, waiting);
    let arguments =
        format!("--connections 3 --seconds {SECONDS} --mode {client_waits} --max-chunk {max_chunk} --seed {seed}");
    let client = server.client(mode, &arguments).spawn();
    let pids = [server.program.pid(), client.pid()];
    let until = Instant::now() + Duration::from_millis(SECONDS * 1000 - 300);
    let (asked, switches) = storm(&instance, &pids, seed, until);
    let near = by_seed(reports(&client.finish(Duration::from_secs(30)).success()));
    assert!(wait_until(Duration::from_secs(5), || server.reports().len() == 3));
    server.assert_sound();
    let far = by_seed(server.reports());
    assert_eq!(near.len(), 3);
    for (seed, near) in &near {
        let far = &far[seed];
        assert_eq!((near.sent, near.received), (far.received, far.sent), "{near:?} {far:?}");
        assert!(near.sent > 0 && near.received > 0);
    }
    println!("{waiting} and {client_waits}: {asked} moves asked for, {switches} changes of path");
    assert!(asked > 500, "only {asked} moves asked for");
    assert!(switches > 500, "only {switches} changes of path");
}

#[test]
fn blocking_ends() {
    check("blocking", "blocking", 131_072, 1);
}

#[test]
fn level_triggered_ends() {
    check("epoll", "epoll", 131_072, 2);
}

#[test]
fn edge_triggered_ends() {
    check("edge", "edge", 131_072, 3);
}

#[test]
fn polling_against_blocking_with_small_calls() {
    check("poll", "blocking", 512, 4);
}
