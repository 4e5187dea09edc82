//! `viaduct bench apps`: real programs, natively and under `viaduct run` in turn.

mod databases;
mod row;
mod table;
mod work;

use crate::bench::alternation::{Alternation, Seat};
use crate::bench::curves::{LeftOut, Road};
use crate::bench::instance::Instance;
use crate::bench::machine::Meter;
use crate::bench::plot;
use crate::bench::program::{How, find};
use crate::bench::progress::Progress;
use crate::bench::sockmap::Sockmap;
use crate::bench::{Findings, Plan};
use crate::{limits, terminal};
use anyhow::{Context, Result, bail};
use row::{Row, Runs};
use serde::Serialize;
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::path::Path;
use std::thread::ScopedJoinHandle;
use table::{EXPERIMENTS, Ends, Experiment, Rival, Work};
use work::{Measurement, Run};

/// Experiments that take long and vary little run no more often than this.
const SELDOM: usize = 3;
/// Experiments that ask what Viaduct costs where it gains nothing run so many times as often: the answer is smaller
/// than the difference between two runs of one program.
const FINE: usize = 4;

/// What the programs have shown.
#[derive(Debug, Serialize)]
pub(crate) struct Found {
    rows: Vec<Row>,
    /// Rivals that this machine has not got.
    left_out: Vec<LeftOut>,
}

/// Runs the experiments.
///
/// # Errors
/// No experiment has that name, or viaductd does not start. An experiment that fails becomes a row that says so.
pub(crate) fn run(plan: Plan<'_>) -> Result<Found> {
    let wanted = |experiment: &&Experiment| plan.only.is_none_or(|only| experiment.name.starts_with(only));
    let experiments: Vec<&Experiment> = EXPERIMENTS.iter().filter(wanted).collect();
    if experiments.is_empty() {
        let names: Vec<&str> = EXPERIMENTS.iter().map(|experiment| experiment.name).collect();
        bail!("no such experiment; there are {}", names.join(", "));
    }
    // Ten thousand connections need as many.
    limits::raise_descriptors();
    let instance = Instance::start()?;
    let mut left_out = Vec::new();
    let mut sockmap = None;
    if experiments
        .iter()
        .any(|experiment| experiment.rivals.contains(&Rival::Sockmap))
    {
        match Sockmap::start() {
            Ok(started) => sockmap = Some(started),
            Err(error) => left_out.push(LeftOut::because(Road::Sockmap, &error)),
        }
    }
    let progress = Progress::new(experiments.len());
    let mut rows = Vec::new();
    for experiment in experiments {
        progress.step(experiment.title);
        let meter = Meter::start(instance.daemon_pid());
        let found = measure(experiment, plan, &instance, &mut sockmap, &progress);
        let others = meter.others();
        // All of them take an hour, and whoever ends it before that has these.
        found.iter().for_each(|row| progress.say(&row.line()));
        rows.extend(found.into_iter().map(|row| row.disturbed_by(others)));
        progress.done();
    }
    Ok(Found { rows, left_out })
}

fn measure(
    experiment: &Experiment,
    plan: Plan<'_>,
    instance: &Instance,
    sockmap: &mut Option<Sockmap>,
    progress: &Progress,
) -> Vec<Row> {
    let missing: Vec<&str> = experiment
        .needs
        .iter()
        .copied()
        .filter(|program| find(program).is_none())
        .collect();
    if !missing.is_empty() {
        return vec![Row::without(
            experiment,
            format!("not installed: {}", missing.join(", ")),
        )];
    }
    let seldom = matches!(experiment.work, Work::IdleCpu | Work::IdleMemory | Work::Connections);
    let count = match experiment.ends {
        _ if seldom => plan.runs.min(SELDOM),
        Ends::Both => plan.runs,
        Ends::BothShort | Ends::Client => plan.runs * FINE,
    };
    let mut runs = Runs::default();
    for number in 0..count {
        if let Err(error) = once(experiment, plan, instance, sockmap, number, &mut runs) {
            progress.say(&format!("{}, run {}: {error:#}", experiment.name, number + 1));
            // One failure may be the machine's; where nothing works the row says so.
            if runs.native.is_empty() || runs.accelerated.is_empty() {
                return vec![Row::without(experiment, format!("failed: {error:#}"))];
            }
        }
    }
    row::rows(experiment, runs)
}

/// Runs an experiment once each way, the accelerated first in every other turn, so that what the first run leaves
/// behind meets both.
fn once(
    experiment: &Experiment,
    plan: Plan<'_>,
    instance: &Instance,
    sockmap: &mut Option<Sockmap>,
    turn: usize,
    runs: &mut Runs,
) -> Result<()> {
    let plain = Run {
        instance,
        server: How::Plain,
        client: How::Plain,
        unix: false,
        fast: false,
        seconds: if plan.quick { 1 } else { 2 },
        seat: None,
    };
    let under = How::Under(instance, experiment.options);
    let accelerated = Run {
        server: if experiment.ends == Ends::Client {
            How::Plain
        } else {
            under
        },
        client: under,
        fast: experiment.ends == Ends::Both,
        ..plain
    };
    let (native, fast);
    if experiment.alternates() {
        (native, fast) = at_once(plain, accelerated, experiment.work, turn % 2)?;
    } else if turn.is_multiple_of(2) {
        native = plain.measure(experiment.work)?;
        fast = accelerated.measure(experiment.work)?;
    } else {
        fast = accelerated.measure(experiment.work)?;
        native = plain.measure(experiment.work)?;
    }
    // Only whole pairs count.
    runs.native.push(native);
    runs.accelerated.push(fast);
    for rival in experiment.rivals {
        let measured = match (rival, sockmap.as_mut()) {
            (Rival::Unix, _) => Run { unix: true, ..plain }.measure(experiment.work)?,
            (Rival::Sockmap, Some(sockmap)) => sockmap.with(|how| {
                let cut = Run {
                    server: how,
                    client: how,
                    ..plain
                };
                cut.measure(experiment.work)
            })?,
            (Rival::Sockmap, None) => continue,
        };
        runs.rivals.entry(rival.road().key()).or_default().push(measured);
    }
    Ok(())
}

/// Runs `work` both ways at the same time, each for a moment in turn, for as long as one after the other.
fn at_once(plain: Run<'_>, accelerated: Run<'_>, work: Work, first: usize) -> Result<(Measurement, Measurement)> {
    let alternation = Alternation::of(2)?;
    let seats = [0, 1].map(|number| alternation.seat(number));
    let measured = |run: Run<'_>, seat: Seat<'_>| -> Result<Measurement> {
        let half = Run {
            seconds: run.seconds * 2,
            seat: Some(&seat),
            ..run
        };
        let measured = half.measure(work)?;
        let slowed = seat.slowed().context("the load has never begun")?;
        Ok(Measurement {
            value: measured.value * slowed,
            // Waits for turns are in them.
            details: BTreeMap::new(),
            ..measured
        })
    };
    let [plain_seat, accelerated_seat] = seats;
    std::thread::scope(|scope| {
        let native = scope.spawn(|| measured(plain, plain_seat));
        let fast = scope.spawn(|| measured(accelerated, accelerated_seat));
        alternation.run(first);
        let joined = |thread: ScopedJoinHandle<'_, _>| thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        Ok((joined(native)?, joined(fast)?))
    })
}

impl Findings for Found {
    /// During the experiment they disturbed most.
    fn others(&self) -> Option<f64> {
        self.rows.iter().filter_map(|row| row.others).reduce(f64::max)
    }

    fn table(&self) -> String {
        let head = [
            "EXPERIMENT",
            "UNIT",
            "PLAIN TCP",
            "VIADUCT",
            "UNIX",
            "SOCKMAP",
            "BETTER",
            "(PAIRS)",
            "CPU",
            "AT LEAST",
            "AIM",
            "",
            "OTHERS",
            "PATH",
        ];
        let right = [
            false, false, true, true, true, true, true, true, true, true, true, false, true, false,
        ];
        let cells: Vec<Vec<String>> = self.rows.iter().map(Row::cells).collect();
        let mut text = terminal::table(&head, &right, &cells);
        text.push_str("UNIX: over the server's Unix socket. SOCKMAP: over TCP that BPF short-cuts.\n");
        for left_out in &self.left_out {
            text.push_str(&left_out.text());
        }
        text.push_str("CPU: processor time of both ends a unit of work, accelerated over plain.\n");
        text.push_str(
            "OTHERS: processors that other programs kept busy meanwhile; where it is not near 0, measure again.\n",
        );
        text
    }

    fn draw(&self, file: &Path, subtitle: &str) -> Result<()> {
        let bars: Vec<plot::Bar> = self.rows.iter().filter_map(Row::bar).collect();
        plot::bars(file, "Unmodified programs under viaduct run", subtitle, &bars)
    }
}
