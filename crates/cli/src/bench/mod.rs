//! `viaduct bench`: how much faster, measured beside plain TCP in the same run.
//!
//! Every experiment runs over each road in turn, several times, so that what else the machine does meets all of them;
//! what is shown is medians. No figure stands without its rival, the processor time it cost, and the path that the
//! bytes took according to the counters that `viaduct status` shows. `docs/benchmarks.md` defines each experiment.

mod alternation;
mod apps;
mod curves;
mod instance;
mod machine;
mod parse;
mod peer;
mod plot;
mod program;
mod progress;
mod proof;
mod search;
mod sockmap;
mod stats;
mod sweep;

pub(crate) use peer::{Args as PeerArgs, run as run_peer};

use crate::terminal;
use anyhow::{Context, Result};
use clap::ValueEnum;
use machine::Machine;
use peer::Kind;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Measure Viaduct against plain TCP
///
/// Runs each experiment natively and under `viaduct run` in turn, several times, with a viaductd of its own, and shows
/// medians, ratios and the processor time of both ends together. Other work on the machine disturbs all of it: let the
/// machine be idle. All of apps takes about an hour, seek a quarter of one.
#[derive(Debug, clap::Args)]
#[command(override_usage = "viaduct bench [OPTIONS] <latency|bandwidth|seek|apps>", after_long_help = AFTER_HELP)]
pub(crate) struct Args {
    /// What to measure
    #[arg(value_enum)]
    what: What,
    /// Write every run's figures to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the result to FILE
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Fewer sizes, shorter and fewer runs
    #[arg(long)]
    quick: bool,
    /// How often each experiment runs each way [default: 5, seek 10, with --quick 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..1000))]
    runs: Option<u16>,
    /// Only the experiments of apps whose name begins so; of the others, only this road, as named below
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
}

const AFTER_HELP: &str = "\
EXPERIMENTS
    latency     a message there and back, 1 byte to 1 MiB: kernel TCP (tcp),
                viaduct run (viaduct), the channel by itself (channel), Unix
                sockets (unix), and as far as the machine has them TCP
                short-cut by BPF (sockmap), UCX (ucx), iceoryx2 (iceoryx2)
                and Open MPI (openmpi); --only takes one
    bandwidth   messages one way, likewise
    seek        processor time of a receiver that wants messages behind others:
                direct search against receiving in order, on kernel TCP by
                the library alone (plain), there under viaduct run (tcp), and
                on lanes (lane); --only takes one
    apps        sockperf, iperf3, Redis, memcached, nginx, PostgreSQL, MariaDB
                with load generators, as far as installed; idle processor time,
                memory, and ten thousand connections; --only takes those whose
                name begins so, as the table names them

EXAMPLES
    viaduct bench latency --svg latency.svg
    viaduct bench bandwidth --only sockmap
    viaduct bench apps --quick --only redis
    viaduct bench apps --json apps.json";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// Round trip by message size
    Latency,
    /// Stream by message size
    Bandwidth,
    /// Direct search by message size and depth
    Seek,
    /// Real programs
    Apps,
}

/// What is written as JSON.
#[derive(Debug, Serialize)]
struct Report<'a, T> {
    /// Version of this layout.
    format: u32,
    viaduct: &'static str,
    machine: &'a Machine,
    /// When the measurement began, in seconds since 1970.
    started_s: u64,
    runs: usize,
    quick: bool,
    result: &'a T,
}

/// How to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan<'a> {
    /// How often each experiment runs each way.
    pub(crate) runs: usize,
    /// Fewer sizes, shorter runs.
    pub(crate) quick: bool,
    /// Only experiments whose name begins so, or only this road.
    pub(crate) only: Option<&'a str>,
}

/// What experiments have found.
pub(crate) trait Findings: Serialize {
    /// What stands for the runs of an experiment.
    const MIDDLE: &str = "median";

    /// Processors' worth of time that other programs used meanwhile.
    fn others(&self) -> Option<f64>;

    /// As tables, with what there is to say about them.
    fn table(&self) -> String;

    /// Draws it.
    ///
    /// # Errors
    /// The file cannot be written.
    fn draw(&self, file: &Path, subtitle: &str) -> Result<()>;
}

/// Runs the experiments.
pub(crate) fn run(args: Args) -> Result<()> {
    terminal::check().context("standard output")?;
    for file in args.json.iter().chain(&args.svg) {
        check_writable(file)?;
    }
    let usual = match args.what {
        _ if args.quick => 3,
        What::Seek => 10,
        What::Latency | What::Bandwidth | What::Apps => 5,
    };
    let bench = Bench {
        machine: Machine::this(),
        started: SystemTime::now(),
        runs: args.runs.map_or(usual, Into::into),
        args,
    };
    let plan = Plan {
        runs: bench.runs,
        quick: bench.args.quick,
        only: bench.args.only.as_deref(),
    };
    match bench.args.what {
        What::Latency => bench.show(&sweep::run(Kind::Latency, plan)?),
        What::Bandwidth => bench.show(&sweep::run(Kind::Bandwidth, plan)?),
        What::Seek => bench.show(&search::run(plan)?),
        What::Apps => bench.show(&apps::run(plan)?),
    }
}

/// Minutes of measuring are not to end in a file that cannot be written. One that was not there is not left behind
/// empty.
fn check_writable(file: &Path) -> Result<()> {
    let is_new = !file.exists();
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(file);
    opened.with_context(|| file.display().to_string())?;
    if is_new {
        std::fs::remove_file(file).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

struct Bench {
    args: Args,
    machine: Machine,
    started: SystemTime,
    runs: usize,
}

impl Bench {
    fn show<F: Findings>(&self, found: &F) -> Result<()> {
        terminal::print(&format!("{}\n{}", self.machine.line(), found.table()))?;
        self.save(found)?;
        if let Some(file) = &self.args.svg {
            found.draw(file, &self.subtitle(F::MIDDLE, found.others()))?;
        }
        Ok(())
    }

    /// What a picture says below its title.
    fn subtitle(&self, middle: &str, others: Option<f64>) -> String {
        let runs = match self.runs {
            1 => "one run".to_owned(),
            runs => format!("{middle} of {runs} runs"),
        };
        let others = match others {
            Some(others) if others >= 0.1 => format!("; others kept {others:.1} processors busy"),
            _ => String::new(),
        };
        format!("{}; {runs}{others}", self.machine.line())
    }

    fn save(&self, result: &impl Serialize) -> Result<()> {
        let Some(file) = &self.args.json else {
            return Ok(());
        };
        let since = self.started.duration_since(SystemTime::UNIX_EPOCH);
        let report = Report {
            format: 2,
            viaduct: env!("CARGO_PKG_VERSION"),
            machine: &self.machine,
            started_s: since.map_or(0, |since| since.as_secs()),
            runs: self.runs,
            quick: self.args.quick,
            result,
        };
        let text = serde_json::to_string_pretty(&report)? + "\n";
        std::fs::write(file, text).with_context(|| file.display().to_string())
    }
}
