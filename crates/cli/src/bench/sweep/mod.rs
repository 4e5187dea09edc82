//! `viaduct bench latency` and `bandwidth`: message sizes from a byte to a megabyte over every road there is.

mod rivals;

use crate::bench::Plan;
use crate::bench::curves::{Curve, LeftOut, Point, Road, Sample, Sweep};
use crate::bench::instance::Instance;
use crate::bench::machine::Meter;
use crate::bench::peer::{Batch, Kind, Transport};
use crate::bench::program::{How, Launch, Program};
use crate::bench::progress::Progress;
use crate::bench::proof::Proof;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use rivals::Means;
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
    let wanted: Vec<Road> = Road::ALL
        .into_iter()
        .filter(|road| plan.only.is_none_or(|only| road.key() == only))
        .collect();
    if wanted.is_empty() {
        bail!("no such road; there are {}", Road::ALL.map(Road::key).join(", "));
    }
    let instance = Instance::start()?;
    let mut left_out = Vec::new();
    let mut found: Vec<Measured> = Vec::new();
    for road in wanted {
        match Means::of(road, &instance) {
            Ok(means) => found.push(Measured {
                road,
                means,
                samples: vec![Vec::new(); sizes.len()],
                proofs: Vec::new(),
            }),
            Err(error) => left_out.push(LeftOut::because(road, &error)),
        }
    }
    if let ([], [only, ..]) = (&found[..], &left_out[..]) {
        bail!("{}: {}", only.name, only.why);
    }
    let progress = Progress::new(found.len() * plan.runs);
    let meter = Meter::start(instance.daemon_pid());
    for run in 0..plan.runs {
        for Measured {
            road,
            means,
            samples,
            proofs,
        } in &mut found
        {
            progress.step(&format!("{}, run {}", road.name(), run + 1));
            let job = Job {
                instance: &instance,
                kind,
                sizes: &sizes,
                millis,
                run,
            };
            let (new, proof) = job.measure(means).with_context(|| road.name())?;
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
        .map(|measured| Curve {
            road: measured.road,
            name: measured.road.name(),
            points: sizes
                .iter()
                .zip(measured.samples)
                .filter_map(|(size, samples)| Point::of(kind, *size, samples))
                .collect(),
            proofs: measured.proofs,
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
        left_out,
        others: meter.others(),
    })
}

/// A road, and what its runs so far have given.
struct Measured {
    road: Road,
    means: Means,
    /// By size.
    samples: Vec<Vec<Sample>>,
    proofs: Vec<Proof>,
}

/// One run of one size between two plain socket programs, of which `how` says how the asking and the serving one are
/// started.
///
/// # Errors
/// A peer cannot be started or fails.
pub(crate) fn one(
    instance: &Instance,
    how: [How<'_>; 2],
    kind: Kind,
    size: usize,
    millis: u64,
) -> Result<(Sample, Proof)> {
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
    fn measure(self, means: &mut Means) -> Result<(Vec<Sample>, Option<Proof>)> {
        let samples = match means {
            Means::Viaduct => {
                let under = How::Under(self.instance, &["--offer", "now"]);
                let (samples, proof) = self.sockets([under; 2], Transport::Tcp)?;
                if !proof.is_fast() {
                    bail!("no byte went over shared memory ({})", proof.text());
                }
                return Ok((samples, Some(proof)));
            }
            Means::Tcp => self.tcp(How::Plain)?,
            Means::Sockmap(sockmap) => sockmap.with(|how| self.tcp(how))?,
            Means::Unix => self.sockets([How::Plain; 2], Transport::Unix)?.0,
            Means::Channel => self.channel()?,
            Means::Ucx => self.ucx()?,
            Means::Iceoryx2 => self.iceoryx2()?,
            Means::OpenMpi(program) => self.openmpi(program)?,
        };
        Ok((samples, None))
    }

    fn tcp(self, how: How<'_>) -> Result<Vec<Sample>> {
        Ok(self.sockets([how; 2], Transport::Tcp)?.0)
    }

    fn sockets(self, [asking, serving]: [How<'_>; 2], transport: Transport) -> Result<(Vec<Sample>, Proof)> {
        let path = self.instance.scratch()?.join("socket");
        let mut server = Launch::peer(serving)
            .args("serve --transport")
            .arg(word(transport))
            .arg("--addr")
            .arg(path)
            .spawn_piped()?;
        let mut served = BufReader::new(server.output().context("no pipe")?);
        let addr = line(&mut served)?.context("the server did not start")?;
        let mut client = self.ask(asking, transport, &addr)?.spawn_piped()?;
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
        let mut server = Launch::peer(How::Plain)
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
        Ok(Launch::peer(how)
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
