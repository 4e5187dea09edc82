//! The experiment of direct search: a sender of numbered messages, and a receiver that wants those that stand behind
//! others.
//!
//! Both go through the same list of connections. The receiver takes every other one in order, keeping what it does not
//! expect in a pool, and every other one by direct search, so that whatever else the machine does meets both.

use super::orders::say;
use anyhow::{Result, bail};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Instant;
use viaduct::{Flags, recv, seek_recv};

/// What both ends go through, in this order: sizes, depths, measurements, repetitions.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Plan {
    /// Bytes of a message
    #[arg(long, value_delimiter = ',')]
    pub(crate) sizes: Vec<usize>,
    /// Unexpected messages before each expected one
    #[arg(long, value_delimiter = ',')]
    pub(crate) depths: Vec<usize>,
    /// Measurements of each point
    #[arg(long)]
    pub(crate) measurements: usize,
    /// Connections of a measurement, each way
    #[arg(long)]
    pub(crate) repetitions: usize,
    /// Messages of a connection
    #[arg(long)]
    pub(crate) messages: usize,
}

/// What a measurement cost the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cost {
    /// Bytes of a message.
    pub(crate) size: usize,
    /// Unexpected messages before each expected one.
    pub(crate) depth: usize,
    /// Processor time of receiving in order, in seconds.
    pub(crate) in_order_cpu_s: f64,
    /// Processor time of direct search, in seconds.
    pub(crate) search_cpu_s: f64,
    /// The time that took, in seconds.
    pub(crate) in_order_s: f64,
    /// Likewise.
    pub(crate) search_s: f64,
}

impl Plan {
    /// The arguments that make this plan.
    pub(crate) fn arguments(&self) -> String {
        let list = |numbers: &[usize]| numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        format!(
            "--sizes {} --depths {} --measurements {} --repetitions {} --messages {}",
            list(&self.sizes),
            list(&self.depths),
            self.measurements,
            self.repetitions,
            self.messages
        )
    }

    fn points(&self) -> impl Iterator<Item = (usize, usize)> {
        self.sizes
            .iter()
            .flat_map(|size| self.depths.iter().map(|depth| (*size, *depth)))
    }

    /// Whole rounds of a connection, each of one expected message and those before it.
    fn rounds(&self, depth: usize) -> usize {
        (self.messages / (depth + 1)).max(1)
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct SendArgs {
    /// Where the receiver listens
    addr: String,
    #[command(flatten)]
    plan: Plan,
}

/// Sends.
pub(super) fn send(args: &SendArgs) -> Result<()> {
    for (size, depth) in args.plan.points() {
        let mut message = vec![7; size.max(NUMBER)];
        for _ in 0..2 * args.plan.measurements * args.plan.repetitions {
            let mut stream = TcpStream::connect(&args.addr)?;
            for number in 0..args.plan.rounds(depth) * (depth + 1) {
                stamp(&mut message, number)?;
                stream.write_all(&message)?;
            }
            stream.shutdown(Shutdown::Write)?;
            io::copy(&mut stream, &mut io::sink())?;
        }
    }
    // One more, for the proof of what carries the bytes.
    let mut stream = TcpStream::connect(&args.addr)?;
    for _ in 0..PROOF {
        stream.write_all(&[7; 1000])?;
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    stream.shutdown(Shutdown::Write)?;
    io::copy(&mut stream, &mut io::sink())?;
    Ok(())
}

/// Messages of the connection that proves the path.
const PROOF: usize = 60;
/// Bytes of a message's number.
const NUMBER: usize = 4;

fn stamp(message: &mut [u8], number: usize) -> Result<()> {
    let number = u32::try_from(number)?.to_le_bytes();
    if let Some(place) = message.get_mut(..NUMBER) {
        place.copy_from_slice(&number);
    }
    Ok(())
}

/// Receives and says what each measurement cost; says first where it listens.
pub(super) fn receive(plan: &Plan) -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    say(&listener.local_addr()?.to_string())?;
    for (size, depth) in plan.points() {
        let mut buffers = Buffers::new(size.max(NUMBER), depth);
        for _ in 0..plan.measurements {
            let (mut in_order, mut search) = ((0.0, 0.0), (0.0, 0.0));
            for _ in 0..plan.repetitions {
                in_order = sum(
                    in_order,
                    connection(&listener, plan.rounds(depth), |stream, first| {
                        buffers.in_order(stream, first)
                    })?,
                );
                search = sum(
                    search,
                    connection(&listener, plan.rounds(depth), |stream, first| {
                        buffers.search(stream, first)
                    })?,
                );
            }
            let cost = Cost {
                size,
                depth,
                in_order_cpu_s: in_order.0,
                search_cpu_s: search.0,
                in_order_s: in_order.1,
                search_s: search.1,
            };
            say(&serde_json::to_string(&cost)?)?;
        }
    }
    let (mut stream, _) = listener.accept()?;
    for _ in 0..PROOF {
        take(&stream, &mut [0; 1000], 0)?;
    }
    say("received")?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    io::copy(&mut stream, &mut io::sink())?;
    Ok(())
}

fn sum(a: (f64, f64), b: (f64, f64)) -> (f64, f64) {
    (a.0 + b.0, a.1 + b.1)
}

fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// One connection from its opening to its close: processor time and time.
fn connection(
    listener: &TcpListener,
    rounds: usize,
    mut round: impl FnMut(&TcpStream, usize) -> Result<usize>,
) -> Result<(f64, f64)> {
    let (cpu, start) = (cpu_s(), Instant::now());
    let (mut stream, _) = listener.accept()?;
    let mut number = 0;
    for _ in 0..rounds {
        number += round(&stream, number)?;
    }
    if stream.read(&mut [0; 1])? != 0 {
        bail!("more came than was sent");
    }
    drop(stream);
    Ok((cpu_s() - cpu, start.elapsed().as_secs_f64()))
}

/// What a receiver of messages has: a place for the one it works on, and a pool for those it did not expect.
struct Buffers {
    message: Vec<u8>,
    pool: Vec<Vec<u8>>,
}

impl Buffers {
    fn new(size: usize, depth: usize) -> Self {
        Self {
            message: vec![0; size],
            pool: vec![vec![0; size]; depth],
        }
    }

    fn check(&self, number: usize) -> Result<()> {
        let there = self.message.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        if there != Some(u32::try_from(number)?) {
            bail!("message {there:?} came in place of {number}");
        }
        Ok(())
    }

    /// Receives all, keeps those before the expected one, then takes them from there.
    fn in_order(&mut self, stream: &TcpStream, first: usize) -> Result<usize> {
        for place in &mut self.pool {
            fill(place.len(), recv(stream, place, Flags::WAIT_ALL)?)?;
        }
        fill(self.message.len(), recv(stream, &mut self.message, Flags::WAIT_ALL)?)?;
        self.check(first + self.pool.len())?;
        for number in 0..self.pool.len() {
            if let Some(kept) = self.pool.get(number) {
                self.message.copy_from_slice(kept);
            }
            self.check(first + number)?;
        }
        Ok(self.pool.len() + 1)
    }

    /// Receives the expected one, then the others.
    fn search(&mut self, stream: &TcpStream, first: usize) -> Result<usize> {
        let (depth, size) = (self.pool.len(), self.message.len());
        match seek_recv(stream, &mut self.message, Flags::WAIT_ALL, depth * size) {
            Ok(got) => fill(size, got)?,
            // What a program does that asks for more than the buffer holds.
            Err(error) if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) => {
                return self.in_order(stream, first);
            }
            Err(error) => return Err(error.into()),
        }
        self.check(first + depth)?;
        for number in 0..depth {
            take(stream, &mut self.message, 0)?;
            self.check(first + number)?;
        }
        Ok(depth + 1)
    }
}

fn take(stream: &TcpStream, message: &mut [u8], offset: usize) -> Result<()> {
    fill(message.len(), seek_recv(stream, message, Flags::WAIT_ALL, offset)?)
}

fn fill(size: usize, got: usize) -> Result<()> {
    if got != size {
        bail!("{got} bytes of {size} were received");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_receive_every_message() {
        let plan = Plan {
            sizes: vec![10, 5000, 40_000],
            depths: vec![2, 5],
            measurements: 1,
            repetitions: 2,
            messages: 60,
        };
        for (size, depth) in plan.points() {
            let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
            let addr = listener.local_addr().unwrap();
            let count = plan.rounds(depth) * (depth + 1);
            let sender = std::thread::spawn(move || {
                for _ in 0..2 {
                    let mut stream = TcpStream::connect(addr).unwrap();
                    let mut message = vec![1; size];
                    for number in 0..count {
                        stamp(&mut message, number).unwrap();
                        stream.write_all(&message).unwrap();
                    }
                }
            });
            let mut buffers = Buffers::new(size, depth);
            let rounds = plan.rounds(depth);
            connection(&listener, rounds, |stream, first| buffers.in_order(stream, first)).unwrap();
            let (cpu, time) = connection(&listener, rounds, |stream, first| buffers.search(stream, first)).unwrap();
            assert!(cpu > 0.0 && time > 0.0);
            sender.join().unwrap();
        }
    }

    #[test]
    fn a_plan_is_its_arguments() {
        let plan = Plan {
            sizes: vec![10, 100],
            depths: vec![2],
            measurements: 3,
            repetitions: 4,
            messages: 1000,
        };
        assert_eq!(
            plan.arguments(),
            "--sizes 10,100 --depths 2 --measurements 3 --repetitions 4 --messages 1000"
        );
        assert_eq!(plan.rounds(16), 58);
    }
}
