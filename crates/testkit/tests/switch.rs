//! Busy connections moved between paths thousands of times while both ends check every byte.

use std::collections::HashMap;
use std::time::{Duration, Instant};
use viaduct_control::counters::Wanted;
use viaduct_testkit::pattern::Random;
use viaduct_testkit::peer::{Report, reports};
use viaduct_testkit::processes::wait_until;
use viaduct_testkit::status::Row;
use viaduct_testkit::{Counters, Instance, Mode, Server};

const SECONDS: u64 = 8;

/// Moves random connections of either end until `until`: mostly by the word that `viaduct path` writes, so that it happens
/// often enough, now and then by the command itself. Returns how many moves were asked for and how many changes of path the
/// connections have counted.
fn storm(instance: &Instance, pids: &[u32], seed: u64, until: Instant) -> (u64, u64) {
    let mut random = Random::new(seed);
    let counters: Vec<Counters> = pids.iter().map(|pid| Counters::open(*pid).unwrap()).collect();
    let mut asked = 0;
    let mut switches = vec![0; pids.len()];
    while Instant::now() < until {
        for (counters, switches) in counters.iter().zip(&mut switches) {
            // One that has ended counts no longer, so the most ever seen stands.
            let connections = counters.connections().unwrap();
            *switches = connections
                .iter()
                .map(|(_, switches)| switches)
                .sum::<u64>()
                .max(*switches);
            for (slot, _) in connections {
                let wanted = [Wanted::Tcp, Wanted::Shm, Wanted::Auto][usize::try_from(random.below(3)).unwrap()];
                counters.want(slot, wanted).unwrap();
                asked += 1;
            }
            std::thread::sleep(Duration::from_micros(random.below(3000)));
        }
        if random.below(200) == 0 {
            let rows = instance.status();
            if let Some(row) = rows.iter().find(|row| pids.contains(&row.pid)) {
                let moved = instance.move_connection(row.pid, row.fd, "shm");
                let lives = |other: &Row| (other.pid, other.fd, &other.remote) == (row.pid, row.fd, &row.remote);
                assert!(moved.is_ok() || !instance.status().iter().any(lives), "{moved:?}");
            }
        }
    }
    (asked, switches.iter().sum())
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
    let there = instance.wait_for_status(Duration::from_secs(5), |rows| {
        let shown = |pid| rows.iter().filter(|row| row.pid == pid).count() == 3;
        pids.into_iter().all(shown)
    });
    assert!(there.is_ok(), "{there:#?}");
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
    assert!(asked > 1000, "only {asked} moves asked for");
    assert!(switches > 50, "only {switches} changes of path");
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
