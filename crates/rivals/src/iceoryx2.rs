//! Messages between two processes over iceoryx2: publish and subscribe, one service each way, both sides polling.
//!
//! The sender copies a message into lent shared memory and the receiver copies it out again, as over the other roads. A
//! process's part is given by its arguments; the serving one is ready once it has said so, and ends with its standard
//! input.

use crate::{asked_to_end, say};
use ::iceoryx2::port::publisher::Publisher;
use ::iceoryx2::port::subscriber::Subscriber;
use ::iceoryx2::port::{BackpressureAction, BackpressureInfo};
use ::iceoryx2::prelude::*;
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, hint, io, thread};

/// Looks for a message between two that let other threads run, lest both ends be on one processor; as the raw channel's
/// loops do.
const LOOKS: u32 = 64;
/// Bytes under way at most, where that leaves a queue of a sensible length.
const UNDER_WAY: usize = 4 << 20;
/// The part of the rounds that come first and are not measured.
const WARM_UP: u64 = 8;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(value_enum)]
    role: Role,
    #[arg(long, value_enum)]
    kind: Kind,
    /// Bytes of a message
    #[arg(long)]
    size: usize,
    /// Messages, or messages there and back, that are measured
    #[arg(long)]
    rounds: u64,
    /// Where iceoryx2 keeps its files, a directory whose name no other has
    #[arg(long)]
    dir: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    Ask,
    Serve,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Latency,
    Bandwidth,
}

/// What the measured rounds cost this process.
#[derive(Debug, Serialize)]
struct Batch {
    size: usize,
    rounds: u64,
    seconds: f64,
    cpu_s: f64,
    measured: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let ports = Ports::open(args)?;
    if args.role == Role::Serve {
        say("ready")?;
    }
    let mut buffer = vec![7; args.size];
    ports.meet(args.role)?;
    ports.rounds(args, args.rounds / WARM_UP, &mut buffer)?;
    let (start, before) = (Instant::now(), own_cpu());
    ports.rounds(args, args.rounds, &mut buffer)?;
    let batch = Batch {
        size: args.size,
        rounds: args.rounds,
        seconds: start.elapsed().as_secs_f64(),
        cpu_s: own_cpu().saturating_sub(before).as_secs_f64(),
        measured: true,
    };
    say(&serde_json::to_string(&batch)?)?;
    if args.role == Role::Serve {
        // What the other end has not taken yet goes with this process.
        io::copy(&mut io::stdin(), &mut io::sink())?;
    }
    Ok(())
}

/// Both directions of one end.
struct Ports {
    to: Publisher<ipc::Service, [u8], ()>,
    from: Subscriber<ipc::Service, [u8], ()>,
    asked_to_end: Arc<AtomicBool>,
    _node: Node<ipc::Service>,
    // After all that uses it.
    _memory: Option<Memory>,
}

/// The shared memory of both ends, by the beginning of its names. iceoryx2 never removes what all services have in
/// common.
struct Memory(String);

impl Drop for Memory {
    fn drop(&mut self) {
        for entry in fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(self.0.as_bytes()) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

impl Ports {
    fn open(args: &Args) -> Result<Self> {
        let asked_to_end = asked_to_end()?;
        let directory = args.dir.file_name().context("no directory")?.to_string_lossy();
        let prefix = format!("viaduct-bench-{directory}-");
        let mut config = Config::default();
        config.global.prefix = FileName::new(prefix.as_bytes())?;
        config
            .global
            .set_root_path(&Path::new(args.dir.as_os_str().as_encoded_bytes())?);
        let node = NodeBuilder::new()
            .config(&config)
            .signal_handling_mode(SignalHandlingMode::Disabled)
            .create::<ipc::Service>()?;
        let service = |name: &str| -> Result<_> {
            let name = ServiceName::new(name)?;
            let builder = node.service_builder(&name).publish_subscribe::<[u8]>();
            Ok(builder
                .max_publishers(1)
                .max_subscribers(1)
                .subscriber_max_buffer_size((UNDER_WAY / args.size).clamp(4, 256))
                .enable_safe_overflow(false)
                .open_or_create()?)
        };
        let (questions, answers) = (service("questions")?, service("answers")?);
        let (to, from) = match args.role {
            Role::Ask => (questions, answers),
            Role::Serve => (answers, questions),
        };
        let ending = Arc::clone(&asked_to_end);
        Ok(Self {
            from: from.subscriber_builder().create()?,
            to: to
                .publisher_builder()
                .initial_max_slice_len(args.size)
                // A full queue is waited for, but not for ever.
                .set_backpressure_handler(move |_: &BackpressureInfo| match ending.load(Ordering::Relaxed) {
                    true => BackpressureAction::DiscardDataAndFail,
                    false => BackpressureAction::Retry,
                })
                .create()?,
            asked_to_end,
            _node: node,
            // The serving end lasts longer.
            _memory: (args.role == Role::Serve).then(|| Memory(prefix)),
        })
    }

    /// A message there and back. Until an end has looked once it is not connected, and what does not fit into its queue
    /// is lost.
    fn meet(&self, role: Role) -> Result<()> {
        match role {
            Role::Ask => self.send(&[1]).and_then(|()| self.receive(&mut [0])),
            Role::Serve => self.receive(&mut [0]).and_then(|()| self.send(&[1])),
        }
    }

    /// This end's part of so many rounds.
    fn rounds(&self, args: &Args, rounds: u64, buffer: &mut [u8]) -> Result<()> {
        match (args.kind, args.role) {
            (Kind::Latency, Role::Ask) => {
                for _ in 0..rounds {
                    self.send(buffer)?;
                    self.receive(buffer)?;
                }
            }
            (Kind::Latency, Role::Serve) => {
                for _ in 0..rounds {
                    self.receive(buffer)?;
                    self.send(buffer)?;
                }
            }
            (Kind::Bandwidth, Role::Ask) => {
                for _ in 0..rounds {
                    self.send(buffer)?;
                }
                self.receive(&mut [0])?;
            }
            (Kind::Bandwidth, Role::Serve) => {
                for _ in 0..rounds {
                    self.receive(buffer)?;
                }
                self.send(&[1])?;
            }
        }
        Ok(())
    }

    fn send(&self, message: &[u8]) -> Result<()> {
        let lent = self.to.loan_slice_uninit(message.len())?;
        let receivers = lent.write_from_slice(message).send()?;
        ensure!(receivers == 1, "a message was lost");
        Ok(())
    }

    fn receive(&self, message: &mut [u8]) -> Result<()> {
        let mut looks = 0_u32;
        loop {
            if let Some(sample) = self.from.receive()? {
                let payload = sample.payload();
                ensure!(payload.len() == message.len(), "a message of {} bytes", payload.len());
                message.copy_from_slice(payload);
                return Ok(());
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS) {
                ensure!(!self.asked_to_end.load(Ordering::Relaxed), "asked to end");
                thread::yield_now();
            }
            hint::spin_loop();
        }
    }
}

/// Processor time of this process.
fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
