//! Running the programs once.

use super::table::{IDLE_CONNECTIONS, MANY_CONNECTIONS, Work};
use crate::bench::alternation::Seat;
use crate::bench::instance::Instance;
use crate::bench::machine::{field, kibibytes};
use crate::bench::parse;
use crate::bench::peer::{Kind, LoadResult};
use crate::bench::program::{How, Launch, Outcome, Program, cpu_s, fine_cpu_s, free_port};
use crate::bench::proof::Proof;
use crate::bench::sweep;
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, pipe};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longer than any run takes.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
/// After this, idle programs are idle.
const SETTLE: Duration = Duration::from_millis(1500);
/// The time for which idle processor time is stated.
const IDLE_S: f64 = 10.0;
/// Bytes of questions and answers of the benchmark's own load.
const MESSAGE: usize = 64;

/// Once, one way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run<'a> {
    pub(super) instance: &'a Instance,
    pub(super) server: How<'a>,
    pub(super) client: How<'a>,
    /// Over Unix sockets instead of TCP.
    pub(super) unix: bool,
    /// Whether the fast path is expected.
    pub(super) fast: bool,
    /// How long to load the server.
    pub(super) seconds: u32,
    /// Where another run goes on at the same time, in turn with this one.
    pub(super) seat: Option<&'a Seat<'a>>,
}

/// What a run gave.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Measurement {
    /// In the unit of the experiment.
    pub(crate) value: f64,
    /// Requests, messages or bytes done for the processor time.
    pub(crate) work: f64,
    /// Processor time of both ends, and of viaductd, in seconds.
    pub(crate) cpu_s: f64,
    /// Which path the bytes took; of accelerated runs only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) proof: Option<Proof>,
    /// Further figures of the programs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) details: BTreeMap<&'static str, f64>,
}

/// What a load generator that counts requests tells.
pub(super) struct Counted {
    /// Requests a second.
    pub(super) rate: f64,
    /// Further figures.
    pub(super) details: BTreeMap<&'static str, f64>,
}

impl Run<'_> {
    /// Does it.
    ///
    /// # Errors
    /// A program does not start, fails, or prints what is not understood.
    pub(super) fn measure(self, work: Work) -> Result<Measurement> {
        match work {
            // Unless told that there may be more, it has room for the results of 600,000 round trips a second only.
            Work::SockperfLatency => self.sockperf("pp -m 14 --mps=4000000", parse::sockperf_latency),
            Work::SockperfRate => self.sockperf("tp -m 64", parse::sockperf_rate),
            Work::Stream8 => self.stream(),
            Work::Iperf => self.iperf(),
            Work::Redis { connections, threads } => self.redis(connections, threads),
            Work::Memcached => self.memcached(),
            Work::Nginx { close } => self.nginx(close),
            Work::Postgresql => self.postgresql(),
            Work::Mariadb { reconnect } => self.mariadb(reconnect),
            Work::IdleCpu => self.idle_cpu(),
            Work::IdleMemory => self.idle_memory(),
            Work::Connections => self.connections(),
        }
    }

    fn accelerated(self) -> bool {
        matches!(self.client, How::Under(..))
    }

    /// The path of the connections of both programs now, if they are accelerated.
    fn proof(self, server: &Program, client: &Program) -> Option<Proof> {
        self.accelerated().then(|| {
            let mut pids = server.family();
            pids.push(client.pid());
            Proof::take(self.instance, &pids)
        })
    }

    /// The path when most of the time has passed. Looked at again where it is not yet the fast one that it should be,
    /// since some programs begin slowly.
    fn late_proof(self, server: &Program, client: &Program, seconds: f64) -> Option<Proof> {
        sleep(Duration::from_secs_f64(seconds * 0.7));
        let mut proof = self.proof(server, client)?;
        while self.fast && !proof.is_fast() && client.runs() {
            sleep(Duration::from_millis(200));
            let later = self.proof(server, client)?;
            if later.ends > 0 {
                proof = later;
            }
        }
        Some(proof)
    }

    /// Lets a client that ends by itself load a server.
    pub(super) fn load(self, server: &Program, client: Launch<'_>, seconds: f64) -> Result<(Outcome, Measurement)> {
        let before = self.cpu_s(server);
        let client = client.spawn()?;
        if let Some(seat) = self.seat {
            seat.take(server.pid(), client.pid())?;
        }
        let proof = self.late_proof(server, &client, seconds);
        let outcome = client.finish(PATIENCE)?;
        let measurement = Measurement {
            cpu_s: outcome.cpu_s + self.cpu_s(server) - before,
            proof,
            ..Measurement::default()
        };
        Ok((outcome, measurement))
    }

    /// Lets a client that counts requests, not time, load a server: a trial of `few` tells how many fill it. `figures`
    /// finds requests a second, and what else there is to tell, in what it prints.
    pub(super) fn counted<'a>(
        self,
        server: &Program,
        client: impl Fn(u64) -> Result<Launch<'a>>,
        few: u64,
        figures: impl Fn(&str, u64) -> Option<Counted>,
    ) -> Result<Measurement> {
        let understood = |outcome: &Outcome, requests| {
            figures(&outcome.output, requests).context("what the load generator prints is not understood")
        };
        let trial = understood(&client(few)?.spawn()?.finish(PATIENCE)?, few)?;
        let requests = whole(trial.rate * f64::from(self.seconds)).max(1000);
        let (outcome, measurement) = self.load(server, client(requests)?, f64::from(self.seconds) * 0.5)?;
        let found = understood(&outcome, requests)?;
        Ok(Measurement {
            value: found.rate,
            work: requests as f64,
            details: found.details,
            ..measurement
        })
    }

    /// Processor time that the server, and viaductd for it, have used so far.
    fn cpu_s(self, server: &Program) -> f64 {
        server.cpu_s() + cpu_s(self.instance.daemon_pid())
    }

    fn sockperf(self, test: &str, figures: fn(&str) -> Option<(f64, f64)>) -> Result<Measurement> {
        let port = free_port()?;
        let place = format!("--tcp -i 127.0.0.1 -p {port}");
        let server = Launch::new(self.server, "sockperf")?
            .args("sr")
            .args(&place)
            .spawn()?
            .listening(port)?;
        let client = Launch::new(self.client, "sockperf")?
            .args(test)
            .args(&place)
            .args(&format!("-t {}", self.seconds));
        let (outcome, measurement) = self.load(&server, client, f64::from(self.seconds))?;
        let (value, work) = figures(&outcome.output).context("sockperf's output is not understood")?;
        Ok(Measurement {
            value,
            work,
            ..measurement
        })
    }

    fn stream(self) -> Result<Measurement> {
        let millis = u64::from(self.seconds) * 1000;
        let (sample, proof) = sweep::one(self.instance, [self.client, self.server], Kind::Bandwidth, 8, millis)?;
        let cpu_s = sample
            .asking_cpu_s
            .zip(sample.serving_cpu_s)
            .map(|(one, two)| one + two);
        Ok(Measurement {
            value: sample.rounds as f64 / sample.seconds,
            work: sample.rounds as f64,
            cpu_s: cpu_s.unwrap_or(f64::NAN),
            proof: self.accelerated().then_some(proof),
            ..Measurement::default()
        })
    }

    fn iperf(self) -> Result<Measurement> {
        let port = free_port()?;
        let server = Launch::new(self.server, "iperf3")?
            .args(&format!("-s -B 127.0.0.1 -p {port}"))
            .spawn()?
            .listening(port)?;
        let client =
            Launch::new(self.client, "iperf3")?.args(&format!("-c 127.0.0.1 -p {port} -t {} -J", self.seconds));
        let (outcome, measurement) = self.load(&server, client, f64::from(self.seconds))?;
        let (value, work) = parse::iperf(&outcome.output).context("iperf3's output is not understood")?;
        Ok(Measurement {
            value,
            work,
            ..measurement
        })
    }

    fn redis(self, connections: u32, threads: u32) -> Result<Measurement> {
        let (port, dir) = (free_port()?, self.instance.scratch()?);
        let socket = dir.join("redis.sock");
        let server = Launch::new(self.server, "redis-server")?
            .args(&format!(
                "--port {port} --bind 127.0.0.1 --appendonly no --loglevel warning --save"
            ))
            .arg("")
            .arg("--dir")
            .arg(&dir)
            .arg("--unixsocket")
            .arg(&socket)
            .spawn()?
            .listening(port)?;
        let client = |requests: u64| -> Result<Launch<'_>> {
            let client = Launch::new(self.client, "redis-benchmark")?
                .args(&format!("-t get -d 3 --csv -c {connections} -n {requests}"));
            let client = if threads > 1 {
                client.args(&format!("--threads {threads}"))
            } else {
                client
            };
            Ok(match self.unix {
                true => client.arg("-s").arg(&socket),
                false => client.args(&format!("-p {port}")),
            })
        };
        self.counted(
            &server,
            client,
            if connections == 1 { 5_000 } else { 30_000 },
            |text, _| {
                let found = parse::redis(text)?;
                Some(Counted {
                    rate: found.rate,
                    details: BTreeMap::from([("p50_ms", found.p50_ms), ("p99_ms", found.p99_ms)]),
                })
            },
        )
    }

    fn memcached(self) -> Result<Measurement> {
        let port = free_port()?;
        let server = Launch::new(self.server, "memcached")?
            .args(&format!("-l 127.0.0.1 -p {port} -U 0 -t 1 -u root"))
            .spawn()?
            .listening(port)?;
        let value = "v".repeat(32);
        let answer = format!("VALUE key 0 {}\r\n{value}\r\nEND\r\n", value.len());
        let client = Launch::peer(self.client)
            .args(&format!("load 127.0.0.1:{port} --connections 32 --warm-up 100"))
            .args(&format!("--millis {} --answer {}", self.seconds * 1000, answer.len()))
            .arg("--prepare")
            .arg(format!("set key 0 0 {}\\r\\n{value}\\r\\n", value.len()))
            .arg("--question")
            .arg("get key\\r\\n");
        let before = self.cpu_s(&server);
        let (client, found) = self.loaded(client, Some(&server))?;
        let proof = self.proof(&server, &client);
        let cpu_s = client.cpu_s() + self.cpu_s(&server) - before;
        Ok(Measurement {
            value: found.answers as f64 / found.seconds,
            work: found.answers as f64,
            cpu_s,
            proof,
            ..Measurement::default()
        })
    }

    fn nginx(self, close: bool) -> Result<Measurement> {
        let (port, dir) = (free_port()?, self.instance.scratch()?);
        let configuration = format!(
            "daemon off; worker_processes 1; pid {dir}/pid; error_log stderr crit;\n\
             events {{ worker_connections 1024; }}\n\
             http {{\n\
             access_log off; keepalive_requests 1000000000;\n\
             client_body_temp_path {dir}; proxy_temp_path {dir}; fastcgi_temp_path {dir};\n\
             uwsgi_temp_path {dir}; scgi_temp_path {dir};\n\
             server {{ listen 127.0.0.1:{port}; location / {{ return 200 'hello, world'; }} }}\n\
             }}\n",
            dir = dir.display()
        );
        let file = dir.join("nginx.conf");
        fs::write(&file, configuration)?;
        let server = Launch::new(self.server, "nginx")?
            .args("-e stderr -p")
            .arg(&dir)
            .arg("-c")
            .arg(&file)
            .spawn()?
            .listening(port)?;
        let mut client = Launch::new(self.client, "wrk")?.args(&format!("-t1 -c32 -d{}s", self.seconds));
        if close {
            client = client.arg("-H").arg("Connection: close");
        }
        let client = client.arg(format!("http://127.0.0.1:{port}/"));
        let (outcome, measurement) = self.load(&server, client, f64::from(self.seconds))?;
        let (value, work) = parse::wrk(&outcome.output).context("wrk met errors, or is not understood")?;
        Ok(Measurement {
            value,
            work,
            ..measurement
        })
    }

    /// An echo and a load with `connections` connections that have each done a little and do nothing now.
    fn idle(self, connections: usize) -> Result<(Program, Program, LoadResult)> {
        let mut server = Launch::peer(self.server).arg("echo").spawn_piped()?;
        let mut said = BufReader::new(server.output().context("no pipe")?);
        let mut address = String::new();
        said.read_line(&mut address)?;
        let client = Launch::peer(self.client)
            .args("load --warm-up 30")
            .args(&format!("--connections {connections} --answer {MESSAGE} --question"))
            .arg("q".repeat(MESSAGE))
            .arg(address.trim());
        let (client, found) = self.loaded(client, None)?;
        sleep(SETTLE);
        Ok((server, client, found))
    }

    fn idle_cpu(self) -> Result<Measurement> {
        let (server, client, _) = self.idle(IDLE_CONNECTIONS)?;
        let spent = || -> f64 {
            let mut pids = vec![server.pid(), client.pid()];
            pids.extend(self.accelerated().then(|| self.instance.daemon_pid()));
            pids.into_iter().map(fine_cpu_s).sum()
        };
        let (start, before) = (Instant::now(), spent());
        sleep(Duration::from_secs_f64(IDLE_S));
        let spent = (spent() - before) * IDLE_S / start.elapsed().as_secs_f64();
        Ok(Measurement {
            value: spent * 1000.0,
            work: IDLE_S,
            cpu_s: spent,
            proof: self.proof(&server, &client),
            ..Measurement::default()
        })
    }

    fn idle_memory(self) -> Result<Measurement> {
        let none = self.memory(0)?.0;
        let (all, proof) = self.memory(IDLE_CONNECTIONS)?;
        let each =
            |bytes: fn(&Memory) -> u64| (bytes(&all) as f64 - bytes(&none) as f64) / 1024.0 / IDLE_CONNECTIONS as f64;
        Ok(Measurement {
            value: each(|memory| memory.resident),
            work: IDLE_CONNECTIONS as f64,
            cpu_s: f64::NAN,
            proof,
            details: BTreeMap::from([("shared_memory_of_the_machine_kib", each(|memory| memory.shared))]),
        })
    }

    /// Memory of both ends with that many connections.
    fn memory(self, connections: usize) -> Result<(Memory, Option<Proof>)> {
        let (server, client, _) = self.idle(connections)?;
        let whole = fs::read_to_string("/proc/meminfo")?;
        let memory = Memory {
            resident: resident(server.pid())? + resident(client.pid())?,
            shared: field(&whole, "Shmem").and_then(kibibytes).unwrap_or(0),
        };
        Ok((memory, self.proof(&server, &client)))
    }

    fn connections(self) -> Result<Measurement> {
        let start = Instant::now();
        let (server, client, found) = self.idle(MANY_CONNECTIONS)?;
        let took = start.elapsed().saturating_sub(SETTLE).as_secs_f64();
        let proof = self.proof(&server, &client);
        let own = self.accelerated().then(|| Proof::take(self.instance, &[client.pid()]));
        Ok(Measurement {
            value: own.map_or(found.connections as f64, |own| own.fast_ends as f64),
            work: found.connections as f64,
            cpu_s: server.cpu_s() + client.cpu_s(),
            proof,
            details: BTreeMap::from([("set_up_s", took)]),
        })
    }

    /// Starts the benchmark's own load, of this server if it is to take turns, and waits until it has measured; it
    /// keeps its connections open.
    fn loaded(self, client: Launch<'_>, server: Option<&Program>) -> Result<(Program, LoadResult)> {
        let mut client = client.spawn_piped()?;
        let (end, done) = pipe()?;
        if let Some((seat, server)) = self.seat.zip(server) {
            seat.take_until(server.pid(), client.pid(), end.into())?;
        }
        let mut said = String::new();
        BufReader::new(client.output().context("no pipe")?).read_line(&mut said)?;
        drop(done);
        if said.is_empty() {
            client.finish(PATIENCE)?;
            bail!("the load said nothing");
        }
        Ok((client, serde_json::from_str(&said)?))
    }
}

#[derive(Clone, Copy, Debug)]
struct Memory {
    /// Proportional set size of both ends in bytes: a page that both map counts once.
    resident: u64,
    /// Shared memory of the whole machine in bytes, which also has pages that nobody maps.
    shared: u64,
}

fn resident(pid: u32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    field(&text, "Pss")
        .and_then(kibibytes)
        .context("no Pss in smaps_rollup")
}

#[expect(clippy::cast_possible_truncation, reason = "requests of a few seconds")]
#[expect(clippy::cast_sign_loss, reason = "a rate")]
const fn whole(value: f64) -> u64 {
    value as u64
}
