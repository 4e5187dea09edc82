//! `viaduct bench latency` and `bandwidth`: message sizes from a byte to a megabyte over every road there is.

use crate::bench::Plan;
use crate::bench::curves::{Curve, Point, Road, Sample, Sweep};
use crate::bench::instance::Instance;
use crate::bench::machine::Meter;
use crate::bench::parse;
use crate::bench::peer::{Batch, Kind, Transport};
use crate::bench::program::{How, Launch, Program, find, free_port};
use crate::bench::progress::Progress;
use crate::bench::proof::Proof;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use std::io::{BufRead, BufReader};
use std::time::Duration;
use viaduct_channel::{Geometry, Segment};

/// Longer than any sweep takes.
const PATIENCE: Duration = Duration::from_secs(300);

/// Measures every road in turn, `runs` times.
///
/// # Errors
/// A peer cannot be started or fails.
pub(crate) fn run(kind: Kind, plan: Plan<'_>) -> Result<Sweep> {
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
    let meter = Meter::start(instance.daemon_pid());
    for run in 0..plan.runs {
        for (road, samples, proofs) in &mut found {
            progress.step(&format!("{}, run {}", road.name(), run + 1));
            let job = Job {
                instance: &instance,
                kind,
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
                .filter_map(|(size, samples)| Point::of(kind, *size, samples))
                .collect(),
            proofs,
        })
        .collect();
    Ok(Sweep {
        kind: match kind {
            Kind::Latency => "latency",
            Kind::Bandwidth => "bandwidth",
        },
        unit: match kind {
            Kind::Latency => "us",
            Kind::Bandwidth => "Gbit/s",
        },
        curves,
        others: meter.others(),
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
