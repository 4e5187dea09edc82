//! `viaduct bench seek`: what direct search saves a receiver that wants messages that stand behind others.

use crate::bench::instance::Instance;
use crate::bench::machine::Meter;
use crate::bench::peer::{SearchCost as Cost, SearchPlan};
use crate::bench::plot;
use crate::bench::program::{How, Launch};
use crate::bench::progress::Progress;
use crate::bench::proof::Proof;
use crate::bench::{Findings, Plan};
use crate::terminal;
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

/// Longer than any run takes.
const PATIENCE: Duration = Duration::from_secs(600);
/// Message sizes of the original, in bytes.
const SIZES: [usize; 9] = [10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 65_536];
const QUICK_SIZES: [usize; 4] = [10, 1000, 10_000, 65_536];
/// Unexpected messages before each expected one.
const DEPTHS: [usize; 4] = [2, 4, 8, 16];
const MESSAGES: usize = 1000;
const REPETITIONS: usize = 80;
const QUICK_REPETITIONS: usize = 4;

/// What carries the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Road {
    /// A TCP connection, and the library by itself.
    Plain,
    /// A TCP connection under `viaduct run`.
    Tcp,
    /// A lane.
    Lane,
}

impl Road {
    const ALL: [Self; 3] = [Self::Plain, Self::Tcp, Self::Lane];

    const fn key(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Tcp => "tcp",
            Self::Lane => "lane",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "kernel TCP, library alone",
            Self::Tcp => "kernel TCP, viaduct run",
            Self::Lane => "lane",
        }
    }

    fn how(self, instance: &Instance) -> How<'_> {
        match self {
            Self::Plain => How::Plain,
            Self::Tcp => How::Under(instance, &["--path", "tcp"]),
            Self::Lane => How::Under(instance, &["--offer", "wait"]),
        }
    }
}

/// A mean with its standard error.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Mean {
    mean: f64,
    /// 0 for a single value.
    standard_error: f64,
}

impl Mean {
    fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let standard_error = if values.len() > 1 {
            (squares / (count - 1.0) / count).sqrt()
        } else {
            0.0
        };
        Some(Self { mean, standard_error })
    }
}

/// One point of a curve.
#[derive(Clone, Debug, Serialize)]
struct Point {
    size: usize,
    depth: usize,
    /// The receiver's processor time that the search saves, in percent.
    reduction: Mean,
    measurements: Vec<Cost>,
}

/// One road's curves.
#[derive(Clone, Debug, Serialize)]
struct Set {
    road: Road,
    points: Vec<Point>,
    proof: Option<Proof>,
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Found {
    sets: Vec<Set>,
    /// The lane's search against receiving in order from the kernel without Viaduct.
    across: Vec<Point>,
    others: Option<f64>,
}

/// Measures every road.
///
/// # Errors
/// A peer cannot be started or fails.
pub(crate) fn run(plan: Plan<'_>) -> Result<Found> {
    let roads: Vec<Road> = Road::ALL
        .into_iter()
        .filter(|road| plan.only.is_none_or(|only| only == road.key()))
        .collect();
    if roads.is_empty() {
        bail!("no such road; there are plain, tcp and lane");
    }
    let instance = Instance::start()?;
    let sizes = if plan.quick { &QUICK_SIZES[..] } else { &SIZES[..] };
    let progress = Progress::new(roads.len() * sizes.len());
    let meter = Meter::start(instance.daemon_pid());
    let mut sets = Vec::new();
    for road in roads {
        let (mut costs, mut proof) = (Vec::new(), None);
        for size in sizes {
            progress.step(&format!("{}, {size} bytes", road.name()));
            let list = SearchPlan {
                sizes: vec![*size],
                depths: DEPTHS.to_vec(),
                measurements: plan.runs,
                repetitions: if plan.quick { QUICK_REPETITIONS } else { REPETITIONS },
                messages: MESSAGES,
            };
            let (new, path) = measure(&instance, road, &list).with_context(|| road.name())?;
            if (road == Road::Lane) != path.is_fast() {
                bail!("{}: {}", road.name(), path.text());
            }
            costs.extend(new);
            proof = Some(path);
            progress.done();
        }
        sets.push(Set {
            road,
            points: points(&costs, |cost| 1.0 - cost.search_cpu_s / cost.in_order_cpu_s),
            proof,
        });
    }
    Ok(Found {
        across: across(&sets),
        sets,
        others: meter.others(),
    })
}

/// One size over one road.
fn measure(instance: &Instance, road: Road, plan: &SearchPlan) -> Result<(Vec<Cost>, Proof)> {
    let how = road.how(instance);
    let mut receiver = Launch::peer(how)
        .args("search-receive")
        .args(&plan.arguments())
        .spawn_piped()?;
    let mut said = BufReader::new(receiver.output().context("no pipe")?).lines();
    let addr = said.next().context("the receiver did not start")??;
    let sender = Launch::peer(how)
        .args("search-send")
        .arg(addr)
        .args(&plan.arguments())
        .spawn()?;
    let mut costs = Vec::new();
    for line in said {
        let line = line?;
        if line == "received" {
            break;
        }
        costs.push(serde_json::from_str(&line).with_context(|| line.clone())?);
    }
    let proof = Proof::take(instance, &[receiver.pid(), sender.pid()]);
    drop(receiver.input());
    receiver.finish(PATIENCE)?;
    sender.finish(PATIENCE)?;
    if costs.len() != plan.depths.len() * plan.measurements {
        bail!("{} measurements", costs.len());
    }
    Ok((costs, proof))
}

/// Points by size and depth, of the share that `saved` says.
fn points(costs: &[Cost], saved: impl Fn(&Cost) -> f64) -> Vec<Point> {
    let mut keys: Vec<(usize, usize)> = costs.iter().map(|cost| (cost.size, cost.depth)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter()
        .filter_map(|(size, depth)| {
            let of = |cost: &&Cost| cost.size == size && cost.depth == depth;
            let measurements: Vec<Cost> = costs.iter().filter(of).copied().collect();
            let values: Vec<f64> = measurements.iter().map(|cost| 100.0 * saved(cost)).collect();
            Some(Point {
                size,
                depth,
                reduction: Mean::of(&values)?,
                measurements,
            })
        })
        .collect()
}

/// The lane's search beside the kernel's receive in order, measurement by measurement.
fn across(sets: &[Set]) -> Vec<Point> {
    let costs = |road| -> Vec<Cost> {
        let set = sets.iter().find(|set| set.road == road);
        let points = set.into_iter().flat_map(|set| &set.points);
        points.flat_map(|point| point.measurements.clone()).collect()
    };
    let paired: Vec<Cost> = costs(Road::Plain)
        .into_iter()
        .zip(costs(Road::Lane))
        .map(|(kernel, lane)| Cost {
            in_order_cpu_s: kernel.in_order_cpu_s,
            in_order_s: kernel.in_order_s,
            ..lane
        })
        .collect();
    points(&paired, |cost| 1.0 - cost.search_cpu_s / cost.in_order_cpu_s)
}

impl Found {
    fn curves(&self) -> Vec<(String, &[Point])> {
        let mut curves: Vec<(String, &[Point])> = self
            .sets
            .iter()
            .map(|set| (set.road.name().to_owned(), &set.points[..]))
            .collect();
        if !self.across.is_empty() {
            curves.push(("lane against kernel in order".to_owned(), &self.across));
        }
        curves
    }
}

impl Findings for Found {
    const MIDDLE: &str = "mean";

    fn others(&self) -> Option<f64> {
        self.others
    }

    /// One table a set of curves.
    fn table(&self) -> String {
        let mut text =
            "Processor time of the receiver that direct search saves, in percent, with standard errors\n".to_owned();
        for (name, points) in self.curves() {
            let mut head = vec!["SIZE".to_owned()];
            head.extend(DEPTHS.map(|depth| format!("N = {depth}")));
            let mut sizes: Vec<usize> = points.iter().map(|point| point.size).collect();
            sizes.dedup();
            let rows: Vec<Vec<String>> = sizes
                .into_iter()
                .map(|size| {
                    let mut row = vec![size.to_string()];
                    row.extend(DEPTHS.map(|depth| {
                        let here = points.iter().find(|point| (point.size, point.depth) == (size, depth));
                        here.map_or_else(
                            || "-".to_owned(),
                            |point| match point.measurements.len() {
                                // One says nothing of how far another might have been from it.
                                0 | 1 => format!("{:+.1}", point.reduction.mean),
                                _ => format!("{:+.1} ± {:.1}", point.reduction.mean, point.reduction.standard_error),
                            },
                        )
                    }));
                    row
                })
                .collect();
            let head: Vec<&str> = head.iter().map(String::as_str).collect();
            text.push_str(&format!("\n{name}\n"));
            text.push_str(&terminal::table(&head, &vec![true; head.len()], &rows));
        }
        for set in &self.sets {
            if let Some(proof) = set.proof.as_ref().filter(|_| set.road != Road::Plain) {
                text.push_str(&format!("path of {}: {}\n", set.road.name(), proof.text()));
            }
        }
        if let Some(others) = self.others {
            text.push_str(&format!("other programs kept {others:.2} processors busy meanwhile\n"));
        }
        text
    }

    fn draw(&self, file: &Path, subtitle: &str) -> Result<()> {
        let panels: Vec<plot::Panel> = self
            .curves()
            .into_iter()
            .map(|(name, points)| plot::Panel {
                name,
                curves: DEPTHS
                    .iter()
                    .map(|depth| {
                        let here = points.iter().filter(|point| point.depth == *depth);
                        let points = here
                            .map(|point| {
                                let reduction = point.reduction;
                                (point.size as f64, reduction.mean, reduction.standard_error)
                            })
                            .collect();
                        (format!("N = {depth}"), points)
                    })
                    .collect(),
            })
            .collect();
        plot::reductions(file, "Processor time saved by direct search", subtitle, &panels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(size: usize, depth: usize, in_order: f64, search: f64) -> Cost {
        Cost {
            size,
            depth,
            in_order_cpu_s: in_order,
            search_cpu_s: search,
            in_order_s: 1.0,
            search_s: 1.0,
        }
    }

    #[test]
    fn means_have_standard_errors() {
        let mean = Mean::of(&[10.0, 20.0, 30.0]).unwrap();
        assert!((mean.mean - 20.0).abs() < 1e-9);
        assert!((mean.standard_error - 10.0 / 3.0_f64.sqrt()).abs() < 1e-9);
        assert_eq!(Mean::of(&[]), None);
    }

    fn found() -> Found {
        let saved = |cost: &Cost| 1.0 - cost.search_cpu_s / cost.in_order_cpu_s;
        let set = |road, costs: &[Cost]| Set {
            road,
            points: points(costs, saved),
            proof: None,
        };
        let sets = vec![
            set(Road::Plain, &[cost(10, 2, 4.0, 2.0), cost(10, 2, 4.0, 3.0)]),
            set(Road::Lane, &[cost(10, 2, 2.0, 1.0), cost(10, 2, 2.0, 1.0)]),
        ];
        Found {
            across: across(&sets),
            sets,
            others: None,
        }
    }

    #[test]
    fn curves_compare_with_their_own_rival_and_across() {
        let found = found();
        let plain = &found.sets[0].points[0];
        assert!((plain.reduction.mean - 37.5).abs() < 1e-9);
        assert!((found.across[0].reduction.mean - 75.0).abs() < 1e-9);
        let table = found.table();
        assert!(
            table.contains("+37.5 ± 12.5") && table.contains("+75.0 ± 0.0"),
            "{table}"
        );
        let json = serde_json::to_value(&found).unwrap();
        assert_eq!(json["sets"][0]["road"], "plain");
        assert_eq!(json["sets"][0]["points"][0]["measurements"][1]["search_cpu_s"], 3.0);
    }

    #[test]
    fn it_is_drawn() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("seek.svg");
        found().draw(&file, "machine").unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(
            text.contains("lane against kernel in order") && text.contains("N = 2"),
            "{text}"
        );
    }
}
