//! Roads of others' making, and what of them this machine has.

use super::{Job, PATIENCE, line, word};
use crate::bench::curves::{Road, Sample};
use crate::bench::instance::Instance;
use crate::bench::parse;
use crate::bench::peer::Kind;
use crate::bench::program::{How, Launch, find, free_port};
use crate::bench::sockmap::Sockmap;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::slice;

const MPIRUN: &str = "mpirun";
const OPENMPI: &str = include_str!("openmpi.c");
/// Shared memory only; ranks that poll all the time and are not tied to processors, as the other roads' are not; no way
/// to other machines.
const MPIRUN_OPTIONS: &str = "--allow-run-as-root --oversubscribe --bind-to none --mca plm isolated --mca pml ob1 --mca btl vader,self \
     --mca mpi_yield_when_idle 0 --mca orte_tmpdir_base";

/// A road of this machine, with what it needs to be measured.
#[derive(Debug)]
pub(super) enum Means {
    Tcp,
    Viaduct,
    Channel,
    Unix,
    Ucx,
    Iceoryx2,
    /// The cgroup with the shortcut.
    Sockmap(Sockmap),
    /// The program of the two ranks.
    OpenMpi(PathBuf),
}

impl Means {
    /// Those of `road`.
    ///
    /// # Errors
    /// Why this machine has not got it.
    pub(super) fn of(road: Road, instance: &Instance) -> Result<Self> {
        Ok(match road {
            Road::Tcp => Self::Tcp,
            Road::Viaduct => Self::Viaduct,
            Road::Channel => Self::Channel,
            Road::Unix => Self::Unix,
            Road::Sockmap => Self::Sockmap(Sockmap::start()?),
            Road::OpenMpi => Self::OpenMpi(compile(&instance.scratch()?)?),
            Road::Ucx => {
                installed(parse::UCX)?;
                Self::Ucx
            }
            Road::Iceoryx2 => {
                let roads = Launch::rivals()?.arg("roads").spawn()?.finish(PATIENCE)?.output;
                let built = roads.lines().any(|name| name == road.key());
                ensure!(
                    built,
                    "viaduct-rivals is built without it; `make bench` builds it with it"
                );
                Self::Iceoryx2
            }
        })
    }
}

fn installed(program: &str) -> Result<()> {
    find(program)
        .map(drop)
        .with_context(|| format!("{program} is not installed"))
}

/// Makes the program of the two ranks.
fn compile(directory: &Path) -> Result<PathBuf> {
    installed(MPIRUN)?;
    let compiler = Launch::new(How::Plain, "mpicc")?;
    let (source, program) = (directory.join("openmpi.c"), directory.join("openmpi"));
    fs::write(&source, OPENMPI)?;
    compiler
        .args("-O2 -o")
        .arg(&program)
        .arg(&source)
        .spawn()?
        .finish(PATIENCE)?;
    Ok(program)
}

impl Job<'_> {
    /// How many rounds fill the time, for programs that must be told before: about a microsecond there and back, a
    /// tenth of it one way, and what copying takes.
    const fn rounds(self, size: usize) -> u64 {
        let size = size as u64;
        let nanoseconds = match self.kind {
            Kind::Latency => 1_000 + size / 4,
            Kind::Bandwidth => 100 + size / 16,
        };
        self.millis * 1_000_000 / nanoseconds
    }

    /// UCX's own benchmark over its POSIX shared memory.
    pub(super) fn ucx(self) -> Result<Vec<Sample>> {
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
            let rounds = self.rounds(*size);
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

    /// Two processes that publish to each other, anew for each size, which decides how iceoryx2 divides its memory.
    pub(super) fn iceoryx2(self) -> Result<Vec<Sample>> {
        let directory = self.instance.scratch()?;
        let mut samples = Vec::new();
        for size in self.sizes {
            let rounds = self.rounds(*size);
            let start = |role: &str| -> Result<Launch<'_>> {
                let kind = word(self.kind);
                Ok(Launch::rivals()?
                    .args(&format!(
                        "iceoryx2 {role} --kind {kind} --size {size} --rounds {rounds} --dir"
                    ))
                    .arg(&directory))
            };
            let mut server = start("serve")?.spawn_piped()?;
            let mut served = BufReader::new(server.output().context("no pipe")?);
            if line(&mut served)?.is_some() {
                let mut client = start("ask")?.spawn_piped()?;
                let job = Self {
                    sizes: slice::from_ref(size),
                    ..self
                };
                samples.extend(job.collect(&mut client, &mut served, |_| {})?);
                client.finish(PATIENCE)?;
            }
            drop(server.input());
            server.finish(PATIENCE)?;
        }
        Ok(samples)
    }

    /// Two ranks of one MPI program.
    pub(super) fn openmpi(self, program: &Path) -> Result<Vec<Sample>> {
        let mut launch = Launch::new(How::Plain, MPIRUN)?
            .args(MPIRUN_OPTIONS)
            .arg(program.parent().context("no directory")?)
            .args("-np 2")
            .arg(program)
            .arg(word(self.kind))
            .arg(self.millis.to_string());
        for size in self.sizes {
            launch = launch.arg(size.to_string());
        }
        let outcome = launch.spawn()?.finish(PATIENCE)?;
        parse::ranks(&outcome.output, self.run).context("its output is not understood")
    }
}
