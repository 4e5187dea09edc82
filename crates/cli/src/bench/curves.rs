//! What a sweep of message sizes has found, as a table and as a picture.

use crate::bench::Findings;
use crate::bench::peer::Kind;
use crate::bench::plot;
use crate::bench::proof::Proof;
use crate::bench::stats::Summary;
use crate::terminal;
use anyhow::Result;
use serde::Serialize;
use std::path::Path;

/// The largest message.
const LARGEST: usize = 1 << 20;
/// What the table shows where there is no figure.
const NOTHING: &str = "-";

/// A road that the bytes may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Road {
    /// The channel by itself, both sides polling.
    Channel,
    /// A TCP connection under `viaduct run`.
    Viaduct,
    /// A TCP connection.
    Tcp,
    /// A Unix stream socket.
    Unix,
    /// A TCP connection that BPF short-cuts.
    Sockmap,
    /// UCX's shared memory.
    Ucx,
    /// iceoryx2's publish and subscribe.
    Iceoryx2,
    /// Open MPI's shared memory.
    OpenMpi,
}

impl Road {
    /// All of them.
    pub(crate) const ALL: [Self; 8] = [
        Self::Tcp,
        Self::Viaduct,
        Self::Channel,
        Self::Unix,
        Self::Sockmap,
        Self::Ucx,
        Self::Iceoryx2,
        Self::OpenMpi,
    ];

    /// As the legend has it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Channel => "raw channel",
            Self::Viaduct => "viaduct run",
            Self::Tcp => "kernel TCP",
            Self::Unix => "Unix socket",
            Self::Sockmap => "sockmap",
            Self::Ucx => "UCX posix",
            Self::Iceoryx2 => "iceoryx2",
            Self::OpenMpi => "Open MPI",
        }
    }

    /// As the JSON has it.
    pub(crate) const fn key(self) -> &'static str {
        match self {
            Self::Channel => "channel",
            Self::Viaduct => "viaduct",
            Self::Tcp => "tcp",
            Self::Unix => "unix",
            Self::Sockmap => "sockmap",
            Self::Ucx => "ucx",
            Self::Iceoryx2 => "iceoryx2",
            Self::OpenMpi => "openmpi",
        }
    }
}

/// One run over one road at one size.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Sample {
    /// Number of the run.
    pub(crate) run: usize,
    /// Messages (round trips for latency) in the measured time.
    pub(crate) rounds: u64,
    /// The measured time in seconds.
    pub(crate) seconds: f64,
    /// Processor time of the asking end in seconds; `None` where a rival's program does not say.
    pub(crate) asking_cpu_s: Option<f64>,
    /// Likewise of the serving end.
    pub(crate) serving_cpu_s: Option<f64>,
}

/// A size on a curve.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Point {
    /// Bytes of a message.
    pub(crate) size: usize,
    /// Round trip in microseconds, or Gbit/s.
    pub(crate) value: Summary,
    /// Processor time of both ends in microseconds a message or round trip, median.
    pub(crate) cpu_us: Option<f64>,
    /// Every run.
    pub(crate) samples: Vec<Sample>,
}

/// A road by message size.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Curve {
    /// Which.
    pub(crate) road: Road,
    /// Its name for people.
    pub(crate) name: &'static str,
    /// By rising size.
    pub(crate) points: Vec<Point>,
    /// The path of the accelerated connection at the end of each run.
    pub(crate) proofs: Vec<Proof>,
}

/// A road that this machine has not got.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LeftOut {
    /// Which.
    pub(crate) road: Road,
    /// Its name for people.
    pub(crate) name: &'static str,
    /// What is missing.
    pub(crate) why: String,
}

impl LeftOut {
    /// For the reason that `error` states.
    pub(crate) fn because(road: Road, error: &anyhow::Error) -> Self {
        Self {
            road,
            name: road.name(),
            why: format!("{error:#}"),
        }
    }

    /// A line for people.
    pub(crate) fn text(&self) -> String {
        format!("{} is left out: {}\n", self.name, self.why)
    }
}

/// What a sweep has found.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sweep {
    /// Latency or bandwidth.
    pub(crate) kind: &'static str,
    /// Of the values.
    pub(crate) unit: &'static str,
    /// Those that could be measured.
    pub(crate) curves: Vec<Curve>,
    /// The others.
    pub(crate) left_out: Vec<LeftOut>,
    /// Processors' worth of time that other programs used meanwhile.
    pub(super) others: Option<f64>,
}

impl Point {
    /// Of the runs of one size; `None` if there are none.
    pub(crate) fn of(kind: Kind, size: usize, samples: Vec<Sample>) -> Option<Self> {
        let value = |sample: &Sample| match kind {
            Kind::Latency => sample.seconds * 1e6 / sample.rounds as f64,
            Kind::Bandwidth => sample.rounds as f64 * size as f64 * 8.0 / sample.seconds / 1e9,
        };
        let cpu = |sample: &Sample| Some((sample.asking_cpu_s? + sample.serving_cpu_s?) * 1e6 / sample.rounds as f64);
        Some(Self {
            size,
            value: Summary::of(samples.iter().map(value))?,
            cpu_us: Summary::of(samples.iter().filter_map(cpu)).map(|cpu| cpu.median),
            samples,
        })
    }
}

impl Sweep {
    fn curve(&self, road: Road) -> Option<&Curve> {
        self.curves.iter().find(|curve| curve.road == road)
    }

    /// The figure of `road` at `size`.
    fn value(&self, road: Road, size: usize) -> Option<f64> {
        let point = self.curve(road)?.points.iter().find(|point| point.size == size)?;
        Some(point.value.median)
    }
}

impl Findings for Sweep {
    fn others(&self) -> Option<f64> {
        self.others
    }

    /// Every road, and the three ratios that matter.
    fn table(&self) -> String {
        let lower_is_better = self.kind == "latency";
        let better = |over: Option<f64>, base: Option<f64>| match (over, base) {
            (Some(over), Some(base)) if lower_is_better => format!("{:.2}", base / over),
            (Some(over), Some(base)) => format!("{:.2}", over / base),
            _ => NOTHING.to_owned(),
        };
        let mut head = vec!["SIZE".to_owned()];
        head.extend(self.curves.iter().map(|curve| curve.name.to_owned()));
        let has = |road| self.curve(road).is_some();
        let rates = !lower_is_better && has(Road::Viaduct);
        if rates {
            head.push("viaduct (msg/s)".to_owned());
        }
        // Times as good, whatever is good; of the processor time the ratio as it is. Roads that were not asked for are
        // not compared with.
        let against_tcp = has(Road::Viaduct) && has(Road::Tcp);
        let against_channel = has(Road::Viaduct) && has(Road::Channel);
        if against_tcp {
            head.push("better than TCP".to_owned());
        }
        if against_channel {
            head.push("than channel".to_owned());
        }
        if against_tcp {
            head.push("CPU viaduct/TCP".to_owned());
        }
        let sizes = self
            .curves
            .first()
            .map(|curve| curve.points.iter().map(|point| point.size));
        let rows: Vec<Vec<String>> = sizes
            .into_iter()
            .flatten()
            .map(|size| {
                let of = |road| self.value(road, size);
                let cpu = |road| {
                    let points = &self.curve(road)?.points;
                    points.iter().find(|point| point.size == size)?.cpu_us
                };
                let mut row = vec![terminal::bytes(size as u64)];
                let values = self.curves.iter().map(|curve| of(curve.road));
                row.extend(values.map(|value| value.map_or_else(|| NOTHING.to_owned(), significant)));
                if rates {
                    let rate = of(Road::Viaduct).map(|gbit| gbit * 1e9 / 8.0 / size as f64);
                    row.push(rate.map_or_else(|| NOTHING.to_owned(), |rate| format!("{rate:.0}")));
                }
                if against_tcp {
                    row.push(better(of(Road::Viaduct), of(Road::Tcp)));
                }
                if against_channel {
                    row.push(better(of(Road::Viaduct), of(Road::Channel)));
                }
                if against_tcp {
                    row.push(match (cpu(Road::Viaduct), cpu(Road::Tcp)) {
                        (Some(fast), Some(plain)) => format!("{:.2}", fast / plain),
                        _ => NOTHING.to_owned(),
                    });
                }
                row
            })
            .collect();
        let head: Vec<&str> = head.iter().map(String::as_str).collect();
        let figures = if lower_is_better { "round trip" } else { "stream" };
        let mut text = format!("{figures} ({})\n", self.unit);
        text.push_str(&terminal::table(&head, &vec![true; head.len()], &rows));
        for proof in self.curves.iter().filter_map(|curve| curve.proofs.last()) {
            text.push_str(&format!("path under viaduct run: {}\n", proof.text()));
        }
        for left_out in &self.left_out {
            text.push_str(&left_out.text());
        }
        if let Some(others) = self.others {
            text.push_str(&format!("other programs kept {others:.2} processors busy meanwhile\n"));
        }
        text
    }

    fn draw(&self, file: &Path, subtitle: &str) -> Result<()> {
        let lines: Vec<plot::Line<'_>> = self
            .curves
            .iter()
            .map(|curve| plot::Line {
                name: curve.name,
                road: curve.road,
                points: curve
                    .points
                    .iter()
                    .map(|point| (point.size as f64, point.value.median))
                    .collect(),
            })
            .collect();
        let (title, axis) = if self.kind == "latency" {
            ("Ping-pong between two processes", "round trip (µs)")
        } else {
            ("Stream between two processes", "bandwidth (Gbit/s)")
        };
        plot::sweep(file, title, subtitle, axis, LARGEST as f64, &lines)
    }
}

/// Three significant digits.
pub(crate) fn significant(value: f64) -> String {
    match value.abs() {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 1.0 => format!("{value:.2}"),
        value if value >= 0.1 => format!("{value:.3}"),
        value if value >= 0.01 => format!("{value:.4}"),
        value => format!("{value:.5}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(rounds: u64, seconds: f64) -> Sample {
        Sample {
            run: 0,
            rounds,
            seconds,
            asking_cpu_s: Some(seconds),
            serving_cpu_s: Some(seconds),
        }
    }

    #[test]
    fn a_point_is_the_median_of_its_runs() {
        let samples = || vec![sample(1000, 0.010), sample(1000, 0.030), sample(2000, 0.040)];
        let latency = Point::of(Kind::Latency, 8, samples()).unwrap();
        assert_eq!(
            (latency.value.low, latency.value.median, latency.value.high),
            (10.0, 20.0, 30.0)
        );
        assert_eq!(latency.cpu_us, Some(40.0));
        let bandwidth = Point::of(Kind::Bandwidth, 1000, samples()).unwrap();
        assert!((bandwidth.value.median - 0.4).abs() < 1e-9);
        assert!(Point::of(Kind::Latency, 8, Vec::new()).is_none());
    }

    #[test]
    fn ratios_say_how_much_better() {
        let curve = |road: Road, seconds| Curve {
            road,
            name: road.name(),
            points: Point::of(Kind::Latency, 8, vec![sample(1000, seconds)])
                .into_iter()
                .collect(),
            proofs: Vec::new(),
        };
        let sweep = Sweep {
            kind: "latency",
            unit: "us",
            curves: vec![
                curve(Road::Tcp, 0.02),
                curve(Road::Viaduct, 0.002),
                curve(Road::Channel, 0.001),
            ],
            left_out: vec![LeftOut::because(
                Road::OpenMpi,
                &anyhow::anyhow!("mpicc is not installed"),
            )],
            others: None,
        };
        let table = sweep.table();
        let words: Vec<&str> = table.lines().nth(2).unwrap().split_whitespace().collect();
        assert_eq!(words, ["8", "20.0", "2.00", "1.00", "10.00", "0.50", "0.10"]);
        assert!(
            table.contains("Open MPI is left out: mpicc is not installed"),
            "{table}"
        );
        let json = serde_json::to_value(&sweep).unwrap();
        assert_eq!(json["left_out"][0]["road"], "openmpi");
        assert_eq!(json["curves"][1]["road"], "viaduct");
        assert_eq!(json["curves"][1]["points"][0]["samples"][0]["rounds"], 1000);
    }

    #[test]
    fn roads_have_one_key_each() {
        for road in Road::ALL {
            assert_eq!(serde_json::to_value(road).unwrap(), road.key());
        }
    }

    #[test]
    fn figures_keep_three_digits() {
        assert_eq!(
            [1234.5, 56.78, 1.234, 0.1234, 0.00745].map(significant).join(" "),
            "1234 56.8 1.23 0.123 0.00745"
        );
    }
}
