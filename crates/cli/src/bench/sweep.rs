//! `viaduct bench latency` and `bandwidth`: message sizes from a byte to a megabyte over every road there is.

use crate::bench::instance::Instance;
use crate::bench::peer::{Batch, Kind, Transport};
use crate::bench::program::{How, Launch, Program, find, free_port};
use crate::bench::progress::Progress;
use crate::bench::proof::Proof;
use crate::bench::stats::Summary;
use crate::bench::{parse, plot};
use crate::terminal;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::Serialize;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;
use viaduct_channel::{Geometry, Segment};

/// The largest message.
const LARGEST: usize = 1 << 20;
/// Longer than any sweep takes.
const PATIENCE: Duration = Duration::from_secs(300);
/// Where no limit of the issue applies, lines of the table show this.
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
    /// UCX's shared memory, if installed.
    Ucx,
}

impl Road {
    const ALL: [Self; 5] = [Self::Tcp, Self::Viaduct, Self::Channel, Self::Unix, Self::Ucx];

    /// As the legend has it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Channel => "raw channel",
            Self::Viaduct => "viaduct run",
            Self::Tcp => "kernel TCP",
            Self::Unix => "Unix socket",
            Self::Ucx => "UCX posix",
        }
    }

    /// As the JSON has it.
    const fn key(self) -> &'static str {
        match self {
            Self::Channel => "channel",
            Self::Viaduct => "viaduct",
            Self::Tcp => "tcp",
            Self::Unix => "unix",
            Self::Ucx => "ucx",
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

/// What a sweep has found.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sweep {
    /// Latency or bandwidth.
    pub(crate) kind: &'static str,
    /// Of the values.
    pub(crate) unit: &'static str,
    /// Those that could be measured.
    pub(crate) curves: Vec<Curve>,
}

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan<'a> {
    /// Which sweep.
    pub(crate) kind: Kind,
    /// How often each road is measured.
    pub(crate) runs: usize,
    /// Fewer sizes, for a shorter time.
    pub(crate) quick: bool,
    /// Only this road, by its name in the JSON.
    pub(crate) only: Option<&'a str>,
}

/// Measures every road in turn, `runs` times.
///
/// # Errors
/// A peer cannot be started or fails.
pub(crate) fn run(plan: Plan<'_>) -> Result<Sweep> {
    let sizes: Vec<usize> = (0..=20)
        .step_by(if plan.quick { 2 } else { 1 })
        .map(|shift| 1 << shift)
        .collect();
    let millis = if plan.quick { 50 } else { 100 };
    let wanted = |road: Road| plan.only.is_none_or(|only| road.key() == only);
    let roads: Vec<Road> = Road::ALL
        .into_iter()
        .filter(|road| wanted(*road) && (*road != Road::Ucx || find(parse::UCX).is_some()))
        .collect();
    if roads.is_empty() {
        bail!("no such road; there are tcp, viaduct, channel, unix and ucx (if installed)");
    }
    let instance = Instance::start()?;
    let mut found: Vec<(Road, Vec<Vec<Sample>>, Vec<Proof>)> = roads
        .iter()
        .map(|road| (*road, vec![Vec::new(); sizes.len()], Vec::new()))
        .collect();
    let progress = Progress::new(roads.len() * plan.runs);
    for run in 0..plan.runs {
        for (road, samples, proofs) in &mut found {
            progress.step(&format!("{}, run {}", road.name(), run + 1));
            let job = Job {
                instance: &instance,
                kind: plan.kind,
                sizes: &sizes,
                millis,
                run,
            };
            let (new, proof) = job.measure(*road).with_context(|| road.name())?;
            if new.len() != sizes.len() {
                bail!(
                    "{}: {} sizes measured instead of {}",
                    road.name(),
                    new.len(),
                    sizes.len()
                );
            }
            samples.iter_mut().zip(new).for_each(|(at, sample)| at.push(sample));
            proofs.extend(proof);
            progress.done();
        }
    }
    let curves = found
        .into_iter()
        .map(|(road, samples, proofs)| Curve {
            road,
            name: road.name(),
            points: sizes
                .iter()
                .zip(samples)
                .filter_map(|(size, samples)| point(plan.kind, *size, samples))
                .collect(),
            proofs,
        })
        .collect();
    Ok(Sweep {
        kind: match plan.kind {
            Kind::Latency => "latency",
            Kind::Bandwidth => "bandwidth",
        },
        unit: match plan.kind {
            Kind::Latency => "us",
            Kind::Bandwidth => "Gbit/s",
        },
        curves,
    })
}

/// One run of one size between two plain socket programs started as `how` says.
///
/// # Errors
/// A peer cannot be started or fails.
pub(crate) fn one(instance: &Instance, how: How<'_>, kind: Kind, size: usize, millis: u64) -> Result<(Sample, Proof)> {
    let job = Job {
        instance,
        kind,
        sizes: &[size],
        millis,
        run: 0,
    };
    let (samples, proof) = job.sockets(how, Transport::Tcp)?;
    Ok((*samples.first().context("nothing was measured")?, proof))
}

fn point(kind: Kind, size: usize, samples: Vec<Sample>) -> Option<Point> {
    let value = |sample: &Sample| match kind {
        Kind::Latency => sample.seconds * 1e6 / sample.rounds as f64,
        Kind::Bandwidth => sample.rounds as f64 * size as f64 * 8.0 / sample.seconds / 1e9,
    };
    let cpu = |sample: &Sample| Some((sample.asking_cpu_s? + sample.serving_cpu_s?) * 1e6 / sample.rounds as f64);
    Some(Point {
        size,
        value: Summary::of(samples.iter().map(value))?,
        cpu_us: Summary::of(samples.iter().filter_map(cpu)).map(|cpu| cpu.median),
        samples,
    })
}

/// One run over one road.
#[derive(Clone, Copy)]
struct Job<'a> {
    instance: &'a Instance,
    kind: Kind,
    sizes: &'a [usize],
    millis: u64,
    run: usize,
}

impl Job<'_> {
    fn measure(self, road: Road) -> Result<(Vec<Sample>, Option<Proof>)> {
        let under = How::Under(self.instance, &["--offer", "now"]);
        match road {
            Road::Ucx => Ok((self.ucx()?, None)),
            Road::Channel => Ok((self.channel()?, None)),
            Road::Tcp => Ok((self.sockets(How::Plain, Transport::Tcp)?.0, None)),
            Road::Unix => Ok((self.sockets(How::Plain, Transport::Unix)?.0, None)),
            Road::Viaduct => {
                let (samples, proof) = self.sockets(under, Transport::Tcp)?;
                if !proof.is_fast() {
                    bail!("no byte went over shared memory ({})", proof.text());
                }
                Ok((samples, Some(proof)))
            }
        }
    }

    fn sockets(self, how: How<'_>, transport: Transport) -> Result<(Vec<Sample>, Proof)> {
        let path = self.instance.scratch()?.join("socket");
        let mut server = Launch::peer(how)?
            .args("serve --transport")
            .arg(word(transport))
            .arg("--addr")
            .arg(path)
            .spawn_piped()?;
        let mut served = BufReader::new(server.output().context("no pipe")?);
        let addr = line(&mut served)?.context("the server did not start")?;
        let mut client = self.ask(how, transport, &addr)?.spawn_piped()?;
        let mut proof = Proof::default();
        let samples = self.collect(&mut client, &mut served, |client| {
            // The asking end holds its connection until it is told to end.
            proof = Proof::take(self.instance, &[server.pid(), client.pid()]);
            drop(client.input());
        })?;
        client.finish(PATIENCE)?;
        server.finish(PATIENCE)?;
        Ok((samples, proof))
    }

    fn channel(self) -> Result<Vec<Sample>> {
        let segment = Segment::create(1, Geometry::DEFAULT)?;
        let mut server = Launch::peer(How::Plain)?
            .args("serve --transport")
            .arg(word(Transport::Channel))
            .spawn_with(segment.try_clone()?.into())?;
        let mut client = self
            .ask(How::Plain, Transport::Channel, "")?
            .spawn_with(segment.into())?;
        let mut served = BufReader::new(server.output().context("no pipe")?);
        let samples = self.collect(&mut client, &mut served, |_| {})?;
        client.finish(PATIENCE)?;
        server.finish(PATIENCE)?;
        Ok(samples)
    }

    fn ask<'h>(self, how: How<'h>, transport: Transport, addr: &str) -> Result<Launch<'h>> {
        let sizes: Vec<String> = self.sizes.iter().map(ToString::to_string).collect();
        Ok(Launch::peer(how)?
            .args("ask --transport")
            .arg(word(transport))
            .arg("--kind")
            .arg(word(self.kind))
            .arg("--millis")
            .arg(self.millis.to_string())
            .arg("--sizes")
            .arg(sizes.join(","))
            .arg("--addr")
            .arg(addr))
    }

    /// Puts together what the two ends say. `measured` is called when both have done with it.
    fn collect(
        self,
        client: &mut Program,
        served: &mut impl BufRead,
        measured: impl FnOnce(&mut Program),
    ) -> Result<Vec<Sample>> {
        let mut asked = BufReader::new(client.output().context("no pipe")?);
        let mut samples = Vec::new();
        while samples.len() < self.sizes.len()
            && let (Some(asked), Some(served)) = (line(&mut asked)?, line(served)?)
        {
            let (asked, served): (Batch, Batch) = (serde_json::from_str(&asked)?, serde_json::from_str(&served)?);
            if (asked.size, asked.rounds) != (served.size, served.rounds) {
                bail!("the two ends disagree about what they did");
            }
            if asked.measured {
                samples.push(Sample {
                    run: self.run,
                    rounds: asked.rounds,
                    seconds: asked.seconds,
                    asking_cpu_s: Some(asked.cpu_s),
                    serving_cpu_s: Some(served.cpu_s),
                });
            }
        }
        measured(client);
        Ok(samples)
    }

    /// UCX's own benchmark over its POSIX shared memory.
    fn ucx(self) -> Result<Vec<Sample>> {
        let test = match self.kind {
            Kind::Latency => "tag_lat",
            Kind::Bandwidth => "tag_bw",
        };
        let start = |port: u16| -> Result<Launch<'_>> {
            Ok(Launch::new(How::Plain, parse::UCX)?
                .variable("UCX_TLS", "posix,self")
                .variable("UCX_WARN_UNUSED_ENV_VARS", "n")
                .arg("-p")
                .arg(port.to_string()))
        };
        let mut samples = Vec::new();
        for size in self.sizes {
            // About as long as the others take: a microsecond and a nanosecond for eight bytes each way.
            let rounds = self.millis * 1_000_000 / (2_000 + *size as u64 / 4);
            let port = free_port()?;
            let server = start(port)?.spawn()?.listening(port)?;
            let client = start(port)?
                .args(&format!(
                    "127.0.0.1 -t {test} -s {size} -n {rounds} -w {} -f -v",
                    rounds / 8
                ))
                .spawn()?;
            let seconds = parse::ucx_seconds(&client.finish(PATIENCE)?.output, self.kind == Kind::Latency)
                .context("its output is not understood")?;
            server.finish(PATIENCE)?;
            samples.push(Sample {
                run: self.run,
                rounds,
                seconds: seconds * rounds as f64,
                asking_cpu_s: None,
                serving_cpu_s: None,
            });
        }
        Ok(samples)
    }
}

/// A line without its end; `None` at the end of the stream.
fn line(from: &mut impl BufRead) -> Result<Option<String>> {
    let mut text = String::new();
    let count = from.read_line(&mut text)?;
    Ok((count > 0).then(|| text.trim_end().to_owned()))
}

/// A choice as the peer's command line has it.
fn word(choice: impl ValueEnum) -> String {
    choice
        .to_possible_value()
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default()
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

    /// As a table: every road, and the three ratios that matter.
    pub(crate) fn table(&self) -> String {
        let lower_is_better = self.kind == "latency";
        let better = |over: Option<f64>, base: Option<f64>| match (over, base) {
            (Some(over), Some(base)) if lower_is_better => format!("{:.2}", base / over),
            (Some(over), Some(base)) => format!("{:.2}", over / base),
            _ => NOTHING.to_owned(),
        };
        let mut head = vec!["SIZE".to_owned()];
        head.extend(
            self.curves
                .iter()
                .map(|curve| format!("{} ({})", curve.name, self.unit)),
        );
        if !lower_is_better {
            head.push("viaduct (msg/s)".to_owned());
        }
        head.extend(["viaduct/TCP", "viaduct/channel", "CPU viaduct/TCP"].map(str::to_owned));
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
                if !lower_is_better {
                    let rate = of(Road::Viaduct).map(|gbit| gbit * 1e9 / 8.0 / size as f64);
                    row.push(rate.map_or_else(|| NOTHING.to_owned(), |rate| format!("{rate:.0}")));
                }
                row.push(better(of(Road::Viaduct), of(Road::Tcp)));
                row.push(better(of(Road::Viaduct), of(Road::Channel)));
                row.push(match (cpu(Road::Viaduct), cpu(Road::Tcp)) {
                    (Some(fast), Some(plain)) => format!("{:.2}", fast / plain),
                    _ => NOTHING.to_owned(),
                });
                row
            })
            .collect();
        let head: Vec<&str> = head.iter().map(String::as_str).collect();
        let mut text = terminal::table(&head, &vec![true; head.len()], &rows);
        for proof in self.curves.iter().filter_map(|curve| curve.proofs.last()) {
            text.push_str(&format!("path under viaduct run: {}\n", proof.text()));
        }
        text
    }

    /// Draws it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn draw(&self, file: &Path, subtitle: &str) -> Result<()> {
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
        let latency = point(Kind::Latency, 8, samples()).unwrap();
        assert_eq!(
            (latency.value.low, latency.value.median, latency.value.high),
            (10.0, 20.0, 30.0)
        );
        assert_eq!(latency.cpu_us, Some(40.0));
        let bandwidth = point(Kind::Bandwidth, 1000, samples()).unwrap();
        assert!((bandwidth.value.median - 0.4).abs() < 1e-9);
        assert!(point(Kind::Latency, 8, Vec::new()).is_none());
    }

    #[test]
    fn ratios_say_how_much_better() {
        let curve = |road: Road, seconds| Curve {
            road,
            name: road.name(),
            points: point(Kind::Latency, 8, vec![sample(1000, seconds)])
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
        };
        let table = sweep.table();
        let words: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(words, ["8", "20.0", "2.00", "1.00", "10.00", "0.50", "0.10"]);
        let json = serde_json::to_value(&sweep).unwrap();
        assert_eq!(json["curves"][1]["road"], "viaduct");
        assert_eq!(json["curves"][1]["points"][0]["samples"][0]["rounds"], 1000);
    }

    #[test]
    fn figures_keep_three_digits() {
        assert_eq!(
            [1234.5, 56.78, 1.234, 0.1234, 0.00745].map(significant).join(" "),
            "1234 56.8 1.23 0.123 0.00745"
        );
    }
}
