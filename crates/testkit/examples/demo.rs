//! `make demo`: Redis and its own benchmark, unmodified, over plain TCP and under `viaduct run` in turn.

use std::collections::HashMap;
use std::time::Duration;
use viaduct_testkit::processes::{cpu_seconds, free_port};
use viaduct_testkit::status::Totals;
use viaduct_testkit::{Instance, Launch, Mode, can_run};

const PATIENCE: Duration = Duration::from_secs(120);
const ROUNDS: usize = 3;

/// (connections, requests in a round)
const LOADS: [(u32, u32); 2] = [(50, 300_000), (1, 100_000)];

/// One run of the benchmark.
struct Run {
    /// The benchmark's own figures by name.
    figures: HashMap<String, f64>,
    /// Processor time of server and client together, in microseconds a request.
    processor: f64,
    /// What the server's connections have carried, those that have ended included.
    totals: Totals,
}

fn run(mode: Mode<'_>, scratch: &Instance, connections: u32, requests: u32) -> Run {
    let port = free_port();
    let arguments = format!("--port {port} --bind 127.0.0.1 --save --appendonly no --loglevel warning --dir");
    let words = arguments.split_whitespace().map(Into::into);
    let server = Launch::new(
        mode,
        "redis-server",
        words.chain([scratch.dir().as_os_str().to_owned()]),
    )
    .options("")
    .spawn()
    .listening(port);
    let before = cpu_seconds(server.pid());
    let arguments = format!("-p {port} -t get -d 3 -n {requests} -c {connections} --csv");
    let client = Launch::new(mode, "redis-benchmark", arguments.split_whitespace())
        .options("")
        .spawn();
    let own = client.processor_time(PATIENCE);
    let spent = own + cpu_seconds(server.pid()) - before;
    let output = client.finish(PATIENCE).success();
    let totals = match mode {
        Mode::Native => Totals::default(),
        Mode::Accelerated(instance) => instance.totals_of(server.pid()),
    };
    Run {
        figures: figures(&output),
        processor: spent * 1e6 / f64::from(requests),
        totals,
    }
}

/// The columns of the benchmark's last line.
fn figures(output: &str) -> HashMap<String, f64> {
    let mut lines = output
        .lines()
        .map(|line| line.split(',').map(|word| word.trim_matches('"')));
    let names: Vec<&str> = lines.next().map(Iterator::collect).unwrap_or_default();
    let values: Vec<&str> = lines.next_back().map(Iterator::collect).unwrap_or_default();
    names
        .into_iter()
        .zip(values)
        .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
        .collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Prints one line of the table; the ratio says how many times better Viaduct is.
fn line(name: &str, plain: &[Run], fast: &[Run], more_is_better: bool, value: impl Fn(&Run) -> f64) {
    let plain = median(plain.iter().map(&value).collect());
    let fast = median(fast.iter().map(&value).collect());
    let ratio = if more_is_better { fast / plain } else { plain / fast };
    println!("  {name:<34} {plain:>12.3} {fast:>12.3} {ratio:>8.2}x");
}

fn print(connections: u32, requests: u32, plain: &[Run], fast: &[Run]) {
    println!();
    println!("Redis GET, {connections} connection(s), {requests} requests, median of {ROUNDS} runs each in turn");
    println!("  {:<34} {:>12} {:>12} {:>9}", "", "plain TCP", "viaduct run", "better");
    let figure = |name: &'static str| move |run: &Run| run.figures.get(name).copied().unwrap_or(f64::NAN);
    line("requests/s", plain, fast, true, figure("rps"));
    for (name, column) in [
        ("latency, mean (ms)", "avg_latency_ms"),
        ("latency, 50th percentile (ms)", "p50_latency_ms"),
        ("latency, 95th percentile (ms)", "p95_latency_ms"),
        ("latency, 99th percentile (ms)", "p99_latency_ms"),
    ] {
        line(name, plain, fast, false, figure(column));
    }
    line("CPU a request, both ends (us)", plain, fast, false, |run| run.processor);
}

/// Shows what `viaduct status --totals` said of the server after the last accelerated run; true if bytes went over
/// shared memory both ways.
fn prove(runs: &[Run]) -> bool {
    let Some(Run { totals, .. }) = runs.last() else {
        return false;
    };
    println!("  proof, from `viaduct status --totals` of redis-server after a run:");
    println!(
        "    {} of {} connections carried bytes over shared memory: {} of {} bytes sent, {} of {} received",
        totals.open_fast + totals.ended_fast,
        totals.open + totals.ended,
        totals.fast_bytes_sent,
        totals.bytes_sent,
        totals.fast_bytes_received,
        totals.bytes_received
    );
    totals.fast_bytes_sent > 0 && totals.fast_bytes_received > 0
}

fn main() -> std::process::ExitCode {
    if !can_run(false, &["redis-server", "redis-benchmark"]) {
        return std::process::ExitCode::FAILURE;
    }
    println!("Measuring plain TCP and viaduct run in turn, for about half a minute.");
    let instance = Instance::start();
    let mut proved = true;
    for (connections, requests) in LOADS {
        let (mut plain, mut fast) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            plain.push(run(Mode::Native, &instance, connections, requests));
            fast.push(run(Mode::Accelerated(&instance), &instance, connections, requests));
        }
        print(connections, requests, &plain, &fast);
        proved &= prove(&fast);
    }
    println!();
    if proved {
        std::process::ExitCode::SUCCESS
    } else {
        println!("No byte went over shared memory: `viaduct doctor` says what this machine allows.");
        std::process::ExitCode::FAILURE
    }
}
