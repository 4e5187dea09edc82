//! Sweeps of message sizes between two peers: one asks, the other serves.
//!
//! Each batch begins with an order of three words (kind, size, rounds), which the server obeys; then both say what it
//! cost them. The end of the connection ends the work, or an order of no rounds.

use super::wire::{Lanes, Tcp, Unix, Wire};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};
use viaduct_channel::{Segment, Side};

/// So often a batch is tried that is to fill the time.
const MOST_BATCHES: u32 = 4;

/// What carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// A TCP connection; what is below it the peers do not know.
    Tcp,
    /// A Unix stream socket.
    Unix,
    /// A segment, which is standard input, without sockets.
    Channel,
}

/// What is done in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// A message there and back, then the next.
    Latency,
    /// Messages one way, then a byte back.
    Bandwidth,
}

/// What a batch cost one of the peers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Batch {
    /// Bytes of a message.
    pub(crate) size: usize,
    /// Messages.
    pub(crate) rounds: u64,
    /// Time in seconds.
    pub(crate) seconds: f64,
    /// The peer's processor time in seconds.
    pub(crate) cpu_s: f64,
    /// Whether this is the measurement, and not a trial before it. Only the asking peer knows.
    pub(crate) measured: bool,
}

impl Batch {
    /// How many messages take so many seconds, at the speed of this batch.
    fn rounds_in(&self, seconds: f64) -> u64 {
        #[expect(clippy::cast_possible_truncation, reason = "a batch has far fewer rounds")]
        #[expect(clippy::cast_sign_loss, reason = "time is positive")]
        let rounds = (self.rounds as f64 * seconds / self.seconds) as u64;
        rounds.max(4)
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct ServeArgs {
    #[arg(long, value_enum)]
    transport: Transport,
    /// Path of the Unix socket
    #[arg(long, default_value = "")]
    addr: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct AskArgs {
    #[arg(long, value_enum)]
    transport: Transport,
    #[arg(long, default_value = "")]
    addr: String,
    #[arg(long, value_enum)]
    kind: Kind,
    /// Time a batch should take
    #[arg(long)]
    millis: u64,
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<usize>,
}

/// Serves one asking peer. Says first where it listens.
pub(super) fn serve(args: &ServeArgs) -> Result<()> {
    match args.transport {
        Transport::Tcp => {
            let listener = TcpListener::bind(("127.0.0.1", 0))?;
            say(&listener.local_addr()?.to_string())?;
            let (stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            obey(&mut Tcp(stream), &mut say_batch)
        }
        Transport::Unix => {
            let listener = UnixListener::bind(&args.addr)?;
            say(&args.addr)?;
            obey(&mut Unix(listener.accept()?.0), &mut say_batch)
        }
        Transport::Channel => obey(&mut lanes(Side::Second)?, &mut say_batch),
    }
}

/// Measures, and waits for the end of standard input before it closes the connection.
pub(super) fn ask(args: &AskArgs) -> Result<()> {
    match args.transport {
        Transport::Tcp => {
            let stream = TcpStream::connect(&args.addr)?;
            // Whoever cares for latency sets it. A stream is left as programs leave it.
            stream.set_nodelay(args.kind == Kind::Latency)?;
            let mut wire = Tcp(stream);
            sweep(&mut wire, args, &mut say_batch)?;
            io::copy(&mut io::stdin(), &mut io::sink())?;
            Ok(())
        }
        Transport::Unix => sweep(&mut Unix(UnixStream::connect(&args.addr)?), args, &mut say_batch),
        Transport::Channel => {
            let mut wire = lanes(Side::First)?;
            sweep(&mut wire, args, &mut say_batch)?;
            end(&mut wire, args.kind)
        }
    }
}

/// Ends the work where there is no connection that ends.
fn end(wire: &mut impl Wire, kind: Kind) -> Result<()> {
    let order = Order {
        kind,
        size: 0,
        rounds: 0,
    };
    Ok(wire.send(&order.encode())?)
}

fn lanes(side: Side) -> Result<Lanes> {
    let segment = Segment::map(io::stdin().as_fd()).context("standard input")?;
    Ok(Lanes { segment, side })
}

/// One line on standard output, at once.
pub(super) fn say(line: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{line}")?;
    output.flush()
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Order {
    kind: Kind,
    size: usize,
    rounds: u64,
}

impl Order {
    const LEN: usize = 24;

    fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let words = [u64::from(self.kind == Kind::Bandwidth), self.size as u64, self.rounds];
        for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        bytes
    }

    fn decode(bytes: [u8; Self::LEN]) -> Result<Self> {
        let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let mut next = || words.next().unwrap_or(0);
        Ok(Self {
            kind: if next() == 0 { Kind::Latency } else { Kind::Bandwidth },
            size: usize::try_from(next())?,
            rounds: next(),
        })
    }
}

fn say_batch(batch: &Batch) -> Result<()> {
    Ok(say(&serde_json::to_string(batch)?)?)
}

/// Where the costs of batches go.
type Reports<'a> = &'a mut dyn FnMut(&Batch) -> Result<()>;

/// Obeys orders until they end.
fn obey(wire: &mut impl Wire, reports: Reports<'_>) -> Result<()> {
    let mut order = [0; Order::LEN];
    let mut buffer = Vec::new();
    while wire.receive_all(&mut order)? {
        let order = Order::decode(order)?;
        if order.rounds == 0 {
            break;
        }
        buffer.resize(order.size, 0);
        let (start, before) = (Instant::now(), own_cpu());
        match order.kind {
            Kind::Latency => {
                for _ in 0..order.rounds {
                    wire.receive_all(&mut buffer)?;
                    wire.send(&buffer)?;
                }
            }
            Kind::Bandwidth => {
                let mut left = order.rounds * order.size as u64;
                while left > 0 {
                    // Never more than this batch has, since the next order follows it.
                    let room = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
                    match wire.receive(&mut buffer[..room])? {
                        0 => bail!("the stream ended in a batch"),
                        count => left -= count as u64,
                    }
                }
                wire.send(&[1])?;
            }
        }
        reports(&cost(order, start, before))?;
    }
    Ok(())
}

/// Gives an order and does the asking peer's part of it.
fn measure(wire: &mut impl Wire, order: Order, buffer: &mut [u8]) -> Result<Batch> {
    wire.send(&order.encode())?;
    let (start, before) = (Instant::now(), own_cpu());
    match order.kind {
        Kind::Latency => {
            for _ in 0..order.rounds {
                wire.send(buffer)?;
                if !wire.receive_all(buffer)? {
                    bail!("the server went away");
                }
            }
        }
        Kind::Bandwidth => {
            for _ in 0..order.rounds {
                wire.send(buffer)?;
            }
            wire.flush()?;
            if !wire.receive_all(&mut [0])? {
                bail!("the server went away");
            }
        }
    }
    Ok(cost(order, start, before))
}

fn cost(order: Order, start: Instant, cpu_before: Duration) -> Batch {
    Batch {
        size: order.size,
        rounds: order.rounds,
        seconds: start.elapsed().as_secs_f64(),
        cpu_s: own_cpu().saturating_sub(cpu_before).as_secs_f64(),
        measured: false,
    }
}

fn sweep(wire: &mut impl Wire, args: &AskArgs, reports: Reports<'_>) -> Result<()> {
    let wanted = Duration::from_millis(args.millis).as_secs_f64();
    for &size in &args.sizes {
        let mut buffer = vec![7; size];
        let mut order = Order {
            kind: args.kind,
            size,
            rounds: 16,
        };
        // Trials, longer and longer: they warm everything up and tell how many rounds fill the time.
        let mut trial = loop {
            let trial = measure(wire, order, &mut buffer)?;
            reports(&trial)?;
            if trial.seconds >= wanted / 8.0 {
                break trial;
            }
            order.rounds *= 4;
        };
        // A batch that took far less time than foretold was another trial: in the last one the connection was still on
        // TCP, or the two processes on one processor. A batch that took longer stands.
        for tries in (0..MOST_BATCHES).rev() {
            order.rounds = trial.rounds_in(wanted);
            let mut batch = measure(wire, order, &mut buffer)?;
            batch.measured = tries == 0 || batch.seconds >= wanted / 2.0;
            reports(&batch)?;
            if batch.measured {
                break;
            }
            trial = batch;
        }
    }
    Ok(())
}

/// Processor time of this process.
fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_survive_the_wire() {
        let order = Order {
            kind: Kind::Bandwidth,
            size: 1 << 20,
            rounds: 12345,
        };
        assert_eq!(Order::decode(order.encode()).unwrap(), order);
    }

    #[test]
    fn a_server_obeys_over_lanes_and_over_sockets() {
        let args = |kind| AskArgs {
            transport: Transport::Unix,
            addr: String::new(),
            kind,
            millis: 2,
            sizes: vec![1, 5000, 1 << 20],
        };
        /// Runs both peers and checks that they agree about what they did.
        fn check(mut one: impl Wire, mut two: impl Wire + Send + 'static, args: &AskArgs) {
            let server = std::thread::spawn(move || {
                let mut served = Vec::new();
                obey(&mut two, &mut |batch| {
                    served.push(*batch);
                    Ok(())
                })
                .unwrap();
                served
            });
            let mut asked = Vec::new();
            sweep(&mut one, args, &mut |batch| {
                asked.push(*batch);
                Ok(())
            })
            .unwrap();
            end(&mut one, args.kind).unwrap();
            let served = server.join().unwrap();
            let orders =
                |batches: &[Batch]| -> Vec<_> { batches.iter().map(|batch| (batch.size, batch.rounds)).collect() };
            assert_eq!(orders(&asked), orders(&served));
            let measured: Vec<_> = asked
                .iter()
                .filter(|batch| batch.measured)
                .map(|batch| batch.size)
                .collect();
            assert_eq!(measured, args.sizes);
            assert!(asked.iter().all(|batch| batch.seconds > 0.0));
        }
        for kind in [Kind::Latency, Kind::Bandwidth] {
            let (one, two) = UnixStream::pair().unwrap();
            check(Unix(one), Unix(two), &args(kind));
            let (one, two) = Segment::heap(viaduct_channel::Geometry::DEFAULT);
            let lanes = |segment, side| Lanes { segment, side };
            check(lanes(one, Side::First), lanes(two, Side::Second), &args(kind));
        }
    }

    #[test]
    fn a_batch_that_found_a_faster_road_is_a_trial() {
        /// Slow for its first messages, then a hundred times faster.
        struct Promoted(u32);
        impl Wire for Promoted {
            fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
                if bytes.len() == 1 {
                    self.0 += 1;
                    let pause = if self.0 < 400 { 10_000 } else { 100 };
                    let until = Instant::now() + Duration::from_nanos(pause);
                    while Instant::now() < until {}
                }
                Ok(())
            }

            fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
                Ok(bytes.len())
            }
        }
        let args = AskArgs {
            transport: Transport::Unix,
            addr: String::new(),
            kind: Kind::Latency,
            millis: 10,
            sizes: vec![1],
        };
        let mut batches = Vec::new();
        sweep(&mut Promoted(0), &args, &mut |batch| {
            batches.push(*batch);
            Ok(())
        })
        .unwrap();
        let (measured, trials) = batches.split_last().unwrap();
        assert!(measured.measured && trials.iter().all(|trial| !trial.measured));
        // Three batches were tried before, or this one took the time that it should.
        assert!(
            measured.seconds >= 0.005 || trials.len() >= MOST_BATCHES as usize,
            "{batches:?}"
        );
    }

    #[test]
    fn a_lost_server_is_an_error() {
        let (one, two) = UnixStream::pair().unwrap();
        drop(two);
        let order = Order {
            kind: Kind::Latency,
            size: 8,
            rounds: 1,
        };
        assert!(measure(&mut Unix(one), order, &mut [0; 8]).is_err());
    }
}
