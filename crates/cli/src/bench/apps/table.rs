//! The experiments with programs: what each runs and what is expected of it.

use crate::bench::curves::Road;
use serde::Serialize;

/// An experiment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Experiment {
    /// Short, for `--only` and for scripts.
    pub(crate) name: &'static str,
    /// For people.
    pub(crate) title: &'static str,
    /// Of its figure.
    pub(crate) unit: &'static str,
    /// Whether a larger figure is better.
    pub(crate) more_is_better: bool,
    /// What it runs.
    pub(crate) work: Work,
    /// Programs it needs.
    pub(crate) needs: &'static [&'static str],
    /// Options of `viaduct run`.
    pub(crate) options: &'static [&'static str],
    /// Which of the two ends are accelerated.
    pub(crate) ends: Ends,
    /// What is expected.
    pub(crate) target: Target,
    /// What is expected of the processor time a unit of work, as a row of its own.
    pub(crate) cpu_target: Option<Target>,
    /// What else the same work can run over.
    pub(crate) rivals: &'static [Rival],
}

impl Experiment {
    /// Whether it is measured both ways at the same time, in turn: where little is to be found out. MariaDB's servers
    /// have their data to themselves; who waits for turns cannot say how long a message takes, nor can our own peers,
    /// both of which keep to a time.
    pub(crate) fn alternates(&self) -> bool {
        let cannot = matches!(self.work, Work::Mariadb { .. } | Work::SockperfLatency | Work::Stream8);
        self.ends != Ends::Both && !cannot
    }
}

/// A road that programs can take instead of TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rival {
    /// The server's Unix socket.
    Unix,
    /// TCP that BPF short-cuts.
    Sockmap,
}

impl Rival {
    /// The same in a sweep.
    pub(crate) const fn road(self) -> Road {
        match self {
            Self::Unix => Road::Unix,
            Self::Sockmap => Road::Sockmap,
        }
    }
}

/// Which ends run under Viaduct in the accelerated runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    /// Both, and the bytes must take the fast path.
    Both,
    /// Both, but the connections are too short to be matched.
    BothShort,
    /// The client only: nothing can be gained, and nothing should be lost.
    Client,
}

/// What an experiment runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// sockperf's ping-pong.
    SockperfLatency,
    /// sockperf's stream of small messages.
    SockperfRate,
    /// The benchmark's own peers: a loop of `send` and one of `recv`, eight bytes each.
    Stream8,
    /// iperf3, one stream.
    Iperf,
    /// redis-benchmark, GET.
    Redis {
        /// Connections.
        connections: u32,
        /// Threads of the client.
        threads: u32,
    },
    /// memcached under the benchmark's own load, 32 connections.
    Memcached,
    /// nginx under wrk, 32 connections.
    Nginx {
        /// Whether each request has a connection of its own.
        close: bool,
    },
    /// PostgreSQL under pgbench: point selects on one connection.
    Postgresql,
    /// MariaDB under mysqlslap: likewise.
    Mariadb {
        /// Whether each ten have a connection of their own.
        reconnect: bool,
    },
    /// Processor time while nothing happens.
    IdleCpu,
    /// Memory while nothing happens.
    IdleMemory,
    /// As many connections as asked for in one process.
    Connections,
}

/// What is expected of a row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Target {
    /// Times better than plain TCP.
    Ratio {
        /// Demanded.
        at_least: f64,
        /// Hoped for.
        aim: f64,
    },
    /// The accelerated figure itself, of which less is better.
    AtMost {
        /// Demanded.
        at_least: f64,
        /// Hoped for.
        aim: f64,
    },
    /// The accelerated figure itself, of which more is better.
    AtLeast {
        /// Demanded.
        at_least: f64,
        /// Hoped for.
        aim: f64,
    },
}

const fn ratio(at_least: f64, aim: f64) -> Target {
    Target::Ratio { at_least, aim }
}

const REDIS: &[&str] = &["redis-server", "redis-benchmark"];
const NGINX: &[&str] = &["nginx", "wrk"];
const POSTGRESQL: &[&str] = &["initdb", "postgres", "pgbench", "setpriv"];
const MARIADB: &[&str] = &["mariadb-install-db", "mariadbd", "mariadb", "mysqlslap"];
const NOW: &[&str] = &["--offer", "now"];

/// Connections of the idle programs.
pub(crate) const IDLE_CONNECTIONS: usize = 1000;
/// Connections in one process.
pub(crate) const MANY_CONNECTIONS: usize = 10_000;

/// What the rest of an experiment is unless it says otherwise.
const COMMON: Experiment = Experiment {
    name: "",
    title: "",
    unit: "requests/s",
    more_is_better: true,
    work: Work::Stream8,
    needs: &[],
    options: &[],
    ends: Ends::Both,
    target: ratio(1.0, 1.0),
    cpu_target: None,
    rivals: &[],
};

/// The same of one whose server does not run under Viaduct.
const PLAIN_SERVER: Experiment = Experiment {
    ends: Ends::Client,
    target: ratio(0.97, 1.0),
    ..COMMON
};

/// All of them.
pub(crate) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "sockperf",
        title: "sockperf ping-pong, 14 bytes, average latency",
        unit: "us",
        more_is_better: false,
        work: Work::SockperfLatency,
        needs: &["sockperf"],
        target: ratio(10.0, 20.0),
        rivals: &[Rival::Sockmap],
        ..COMMON
    },
    Experiment {
        name: "sockperf-nospin",
        title: "the same with --spin never",
        unit: "us",
        more_is_better: false,
        work: Work::SockperfLatency,
        needs: &["sockperf"],
        options: &["--spin", "never"],
        target: ratio(1.4, 1.7),
        rivals: &[Rival::Sockmap],
        ..COMMON
    },
    Experiment {
        name: "sockperf-rate",
        title: "sockperf throughput, 64 bytes",
        unit: "messages/s",
        work: Work::SockperfRate,
        needs: &["sockperf"],
        target: ratio(4.0, 6.0),
        ..COMMON
    },
    Experiment {
        name: "stream-8",
        title: "send/recv loop, 8 bytes",
        unit: "messages/s",
        work: Work::Stream8,
        target: ratio(12.0, 20.0),
        ..COMMON
    },
    Experiment {
        name: "iperf3",
        title: "iperf3, one stream",
        unit: "bit/s",
        work: Work::Iperf,
        needs: &["iperf3"],
        target: ratio(2.2, 2.8),
        rivals: &[Rival::Sockmap],
        ..COMMON
    },
    Experiment {
        name: "redis-50",
        title: "redis-benchmark GET, 50 connections",
        work: Work::Redis {
            connections: 50,
            threads: 1,
        },
        needs: REDIS,
        target: ratio(3.0, 4.0),
        cpu_target: Some(ratio(1.0, 2.0)),
        rivals: &[Rival::Unix, Rival::Sockmap],
        ..COMMON
    },
    Experiment {
        name: "redis-1",
        title: "redis-benchmark GET, 1 connection",
        work: Work::Redis {
            connections: 1,
            threads: 1,
        },
        needs: REDIS,
        target: ratio(4.0, 8.0),
        rivals: &[Rival::Unix, Rival::Sockmap],
        ..COMMON
    },
    Experiment {
        name: "redis-threads",
        title: "redis-benchmark --threads 2, 50 connections",
        work: Work::Redis {
            connections: 50,
            threads: 2,
        },
        needs: REDIS,
        target: ratio(1.3, 2.0),
        ..COMMON
    },
    Experiment {
        name: "memcached",
        title: "memcached get, 32 connections",
        work: Work::Memcached,
        needs: &["memcached"],
        target: ratio(2.0, 3.0),
        ..COMMON
    },
    Experiment {
        name: "nginx",
        title: "nginx small answers, wrk -t1 -c32",
        work: Work::Nginx { close: false },
        needs: NGINX,
        target: ratio(2.0, 3.0),
        ..COMMON
    },
    Experiment {
        name: "nginx-close",
        title: "nginx, a connection per request",
        work: Work::Nginx { close: true },
        needs: NGINX,
        ends: Ends::BothShort,
        target: ratio(0.95, 1.0),
        ..COMMON
    },
    Experiment {
        name: "postgresql",
        title: "PostgreSQL, pgbench -S, 1 connection",
        unit: "transactions/s",
        work: Work::Postgresql,
        needs: POSTGRESQL,
        target: ratio(1.5, 2.0),
        rivals: &[Rival::Unix],
        ..COMMON
    },
    Experiment {
        name: "mariadb",
        title: "MariaDB point selects, 1 connection",
        unit: "queries/s",
        work: Work::Mariadb { reconnect: false },
        needs: MARIADB,
        target: ratio(1.5, 2.0),
        rivals: &[Rival::Unix],
        ..COMMON
    },
    Experiment {
        name: "mariadb-reconnect",
        title: "MariaDB, a connection per ten queries",
        unit: "queries/s",
        work: Work::Mariadb { reconnect: true },
        needs: MARIADB,
        ends: Ends::BothShort,
        target: ratio(0.95, 1.0),
        ..COMMON
    },
    Experiment {
        name: "redis-plain-server",
        title: "redis 50, only the client accelerated",
        work: Work::Redis {
            connections: 50,
            threads: 1,
        },
        needs: REDIS,
        ..PLAIN_SERVER
    },
    Experiment {
        name: "redis-1-plain-server",
        title: "redis 1, only the client accelerated",
        work: Work::Redis {
            connections: 1,
            threads: 1,
        },
        needs: REDIS,
        ..PLAIN_SERVER
    },
    Experiment {
        name: "redis-threads-plain-server",
        title: "redis --threads 2, only the client accelerated",
        work: Work::Redis {
            connections: 50,
            threads: 2,
        },
        needs: REDIS,
        ..PLAIN_SERVER
    },
    Experiment {
        name: "nginx-plain-server",
        title: "nginx, only the client accelerated",
        work: Work::Nginx { close: false },
        needs: NGINX,
        ..PLAIN_SERVER
    },
    Experiment {
        name: "nginx-close-plain-server",
        title: "nginx close, only the client accelerated",
        work: Work::Nginx { close: true },
        needs: NGINX,
        ..PLAIN_SERVER
    },
    Experiment {
        name: "memcached-plain-server",
        title: "memcached, only the client accelerated",
        work: Work::Memcached,
        needs: &["memcached"],
        ..PLAIN_SERVER
    },
    Experiment {
        name: "sockperf-plain-server",
        title: "sockperf, only the client accelerated",
        unit: "us",
        more_is_better: false,
        work: Work::SockperfLatency,
        needs: &["sockperf"],
        ..PLAIN_SERVER
    },
    Experiment {
        name: "sockperf-nospin-plain-server",
        title: "sockperf --spin never, only the client accelerated",
        unit: "us",
        more_is_better: false,
        work: Work::SockperfLatency,
        needs: &["sockperf"],
        options: &["--spin", "never"],
        ..PLAIN_SERVER
    },
    Experiment {
        name: "sockperf-rate-plain-server",
        title: "sockperf 64 B, only the client accelerated",
        unit: "messages/s",
        work: Work::SockperfRate,
        needs: &["sockperf"],
        ..PLAIN_SERVER
    },
    Experiment {
        name: "stream-8-plain-server",
        title: "8-byte loop, only the client accelerated",
        unit: "messages/s",
        work: Work::Stream8,
        ..PLAIN_SERVER
    },
    Experiment {
        name: "iperf3-plain-server",
        title: "iperf3, only the client accelerated",
        unit: "bit/s",
        work: Work::Iperf,
        needs: &["iperf3"],
        ..PLAIN_SERVER
    },
    Experiment {
        name: "idle-cpu",
        title: "CPU of 1000 idle connections, both ends, in 10 s",
        unit: "ms",
        more_is_better: false,
        work: Work::IdleCpu,
        options: NOW,
        // A tick of the kernel's accounting: what tools would show as 0.0.
        target: Target::AtMost {
            at_least: 10.0,
            aim: 1.0,
        },
        ..COMMON
    },
    Experiment {
        name: "idle-memory",
        title: "memory of an idle connection, both ends",
        unit: "KiB",
        more_is_better: false,
        work: Work::IdleMemory,
        options: NOW,
        target: Target::AtMost {
            at_least: 32.0,
            aim: 16.0,
        },
        ..COMMON
    },
    Experiment {
        name: "connections",
        title: "connections accelerated in one process",
        unit: "",
        work: Work::Connections,
        options: NOW,
        target: Target::AtLeast {
            at_least: 10_000.0,
            aim: 10_000.0,
        },
        ..COMMON
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// But for the databases, which came later, and what is measured while nothing happens.
    #[test]
    fn every_load_is_measured_against_a_plain_server() {
        for load in EXPERIMENTS.iter().filter(|load| load.ends != Ends::Client) {
            let is_load = !matches!(
                load.work,
                Work::Postgresql | Work::Mariadb { .. } | Work::IdleCpu | Work::IdleMemory | Work::Connections
            );
            let has_plain = EXPERIMENTS
                .iter()
                .any(|other| (other.ends, other.work, other.options) == (Ends::Client, load.work, load.options));
            assert!(has_plain || !is_load, "{}", load.name);
        }
    }

    #[test]
    fn names_are_unique_and_goals_lie_behind_demands() {
        let mut names = std::collections::HashSet::new();
        for experiment in EXPERIMENTS {
            assert!(names.insert(experiment.name), "{}", experiment.name);
            assert!(!experiment.title.is_empty());
            for target in [Some(experiment.target), experiment.cpu_target].into_iter().flatten() {
                match target {
                    Target::Ratio { at_least, aim } | Target::AtLeast { at_least, aim } => assert!(aim >= at_least),
                    Target::AtMost { at_least, aim } => assert!(aim <= at_least),
                }
            }
        }
    }
}
