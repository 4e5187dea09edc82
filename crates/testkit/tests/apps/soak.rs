//! A mixed load with random faults, for a minute or, with `VIADUCT_SOAK_SECONDS`, as long as wanted: answers stay
//! right, and what the servers and viaductd hold stays flat.

use crate::{PATIENCE, Pair, nginx, postgresql, redis, rsync};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};
use viaduct_testkit::pattern::Random;
use viaduct_testkit::processes::{family, free_port, holdings, signal, wait_until};
use viaduct_testkit::{Instance, Launch, Mode, Outcome, Program, can_run};

/// Names how many seconds the test takes.
const SECONDS: &str = "VIADUCT_SOAK_SECONDS";

/// Rounds that there are at least: the first ones fill caches and pools.
const ROUNDS: usize = 12;

/// What processes hold together, at a quiet moment.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    processes: usize,
    descriptors: usize,
    memory_files: usize,
    resident_kib: u64,
}

type Measure = fn(&Held) -> u64;

/// The servers, each with its port.
struct Servers {
    redis: (Program, u16),
    nginx: (Program, u16),
    postgresql: (Program, u16),
    rsync: (Program, u16),
}

impl Servers {
    fn start(pair: &Pair<'_>) -> Self {
        let ports = [(); 4].map(|()| free_port());
        Self {
            redis: (
                redis::start(pair, ports[0], &pair.instance.scratch("redis"), ""),
                ports[0],
            ),
            nginx: (nginx::start(pair, ports[1]), ports[1]),
            postgresql: (postgresql::start(pair, ports[2]), ports[2]),
            rsync: (rsync::start(pair, ports[3]), ports[3]),
        }
    }

    /// What the servers hold.
    fn held(&self) -> Held {
        let all = [&self.redis.0, &self.nginx.0, &self.postgresql.0, &self.rsync.0];
        Held::by(all.iter().flat_map(|server| server.family()))
    }

    /// What the servers hold once the connections of the last round are gone.
    fn held_at_rest(&self) -> Held {
        let mut last = self.held();
        wait_until(Duration::from_secs(5), || {
            std::thread::sleep(Duration::from_millis(200));
            let now = self.held();
            let still = now.processes == last.processes && now.descriptors == last.descriptors;
            last = now;
            still
        });
        last
    }
}

impl Held {
    fn by(processes: impl IntoIterator<Item = u32>) -> Self {
        let mut held = Self::default();
        for pid in processes {
            let own = holdings(pid);
            held.processes += 1;
            held.descriptors += own.descriptors;
            held.memory_files += own.memory_files;
            held.resident_kib += own.resident_kib;
        }
        held
    }
}

/// Clients of one round, which run side by side.
fn clients<'a>(pair: &'a Pair<'_>, servers: &Servers, url: &str) -> Vec<Launch<'a>> {
    let benchmark = format!("-p {} -t set,get,lrange_100 -n 20000 -c 8 --csv", servers.redis.1);
    let page = format!("http://127.0.0.1:{}/page.html", servers.nginx.1);
    let copy = pair.instance.scratch("soak-copy").display().to_string();
    vec![
        pair.client("redis-benchmark", benchmark.split_whitespace()),
        pair.client("wrk", ["-t1", "-c8", "-d2s", &page]),
        pair.client("wrk", ["-t1", "-c4", "-d2s", "-H", "Connection: close", &page]),
        postgresql::client(pair, "pgbench", servers.postgresql.1, "-n -c 4 -T 2 postgres"),
        postgresql::client(pair, "pgbench", servers.postgresql.1, "-n -S -C -c 2 -T 2 postgres"),
        pair.client("rsync", ["-a", "--ignore-times", "--timeout=20", url, &copy]),
    ]
}

/// What happens in the middle of a round: one of the first `kinds`. Answers whether client number `victim` was killed.
fn fault(
    pair: &Pair<'_>,
    servers: &Servers,
    clients: &[Program],
    random: &mut Random,
    victim: usize,
    kinds: u64,
) -> bool {
    let client = &clients[victim];
    match random.below(kinds) {
        0 => {
            for pid in client.family() {
                signal(pid, Signal::SIGKILL);
            }
            return true;
        }
        1 => {
            client.signal(Signal::SIGSTOP);
            std::thread::sleep(Duration::from_millis(300));
            client.signal(Signal::SIGCONT);
        }
        2 => servers.nginx.0.signal(Signal::SIGHUP),
        3 => {
            for row in pair.instance.status() {
                let path = if random.below(2) == 0 { "tcp" } else { "auto" };
                // It may be gone by now.
                let _ = pair.instance.move_connection(row.pid, row.fd, path);
            }
        }
        4 => {
            redis::cli(pair, servers.redis.1, "bgsave", "");
        }
        _ => {
            pair.instance.kill_daemon();
            std::thread::sleep(Duration::from_millis(200));
            pair.instance.start_daemon();
        }
    }
    false
}

fn is_right(outcome: &Outcome) -> bool {
    let refused = ["Non-2xx", "ERROR", "failed transactions: 1"];
    outcome.status.success() && !refused.iter().any(|text| outcome.output.contains(text))
}

#[test]
fn stays_flat() {
    let programs = [
        "redis-server",
        "redis-benchmark",
        "nginx",
        "wrk",
        "pgbench",
        "psql",
        "rsync",
        "setpriv",
    ];
    if !can_run(true, &programs) {
        return;
    }
    let seconds = std::env::var(SECONDS)
        .ok()
        .and_then(|value| value.parse().ok())
        .unwrap_or(60);
    let instance = Instance::start();
    let pair = Pair {
        server: Mode::Accelerated(&instance),
        client: Mode::Accelerated(&instance),
        instance: &instance,
        results: crate::results::Results::default(),
    };
    let servers = Servers::start(&pair);
    let url = format!("rsync://127.0.0.1:{}/all/", servers.rsync.1);
    postgresql::client(&pair, "pgbench", servers.postgresql.1, "-i -q -s 2 postgres")
        .run(PATIENCE)
        .success();
    std::fs::write(instance.dir().join("module/file"), crate::bytes(5_000_000)).unwrap();

    let began = Instant::now();
    let mut random = Random::new(7);
    let (mut servers_held, mut daemon_held) = (Vec::new(), Vec::new());
    while began.elapsed() < Duration::from_secs(seconds) || servers_held.len() < ROUNDS {
        // A viaductd that is started anew holds nothing: in the second half the one that runs stays.
        let restarts = began.elapsed() < Duration::from_secs(seconds / 2);
        let running: Vec<Program> = clients(&pair, &servers, &url).into_iter().map(Launch::spawn).collect();
        std::thread::sleep(Duration::from_millis(300 + random.below(700)));
        let victim = usize::try_from(random.below(running.len() as u64)).unwrap();
        let killed = fault(
            &pair,
            &servers,
            &running,
            &mut random,
            victim,
            if restarts { 6 } else { 5 },
        );
        for (number, client) in running.into_iter().enumerate() {
            let outcome = client.finish(PATIENCE);
            let lost = killed && number == victim;
            assert!(lost || is_right(&outcome), "round {}: {outcome:#?}", servers_held.len());
        }
        assert!(
            crate::bytes(5_000_000) == std::fs::read(instance.scratch("soak-copy").join("file")).unwrap_or_default()
                || killed
        );
        servers_held.push(servers.held_at_rest());
        if !restarts {
            daemon_held.push(Held::by(family(instance.daemon_pid())));
        }
    }
    stayed_flat("servers", &servers_held);
    stayed_flat("viaductd", &daemon_held);
    assert!(instance.stats().pairs > 0, "nothing was accelerated");
}

/// The last third of the rounds holds no more than the first.
fn stayed_flat(who: &str, held: &[Held]) {
    let (early, late) = (held.len() / 3, held.len() - held.len() / 3);
    let most = |rounds: &[Held], of: Measure| rounds.iter().map(of).max().unwrap_or(0);
    let least = |rounds: &[Held], of: Measure| rounds.iter().map(of).min().unwrap_or(0);
    let limits: [(&str, Measure, u64); 4] = [
        ("processes", |held| held.processes as u64, 2),
        ("descriptors", |held| held.descriptors as u64, 40),
        ("memory files", |held| held.memory_files as u64, 16),
        ("KiB of memory", |held| held.resident_kib, 40_000),
    ];
    for (what, of, slack) in limits {
        let (before, after) = (most(&held[..=early], of), least(&held[late..], of));
        let rounds = held.len();
        println!("{who}, {rounds} rounds: {what}: {before} at first, {after} at the end");
        assert!(
            after <= before + slack,
            "{what} of {who} grew from {before} to {after}: {held:#?}"
        );
    }
}
