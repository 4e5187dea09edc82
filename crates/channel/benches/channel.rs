//! What the channel costs by itself: calls on one thread, and lanes between two.

#![expect(clippy::cast_possible_truncation, reason = "sizes are far below the limits")]

use std::hint;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use viaduct_channel::{Geometry, Receiver, Segment, Sender, Side};

fn segment() -> Segment {
    let fd = Segment::create(1, Geometry::DEFAULT).expect("memory for a segment");
    Segment::map(fd.as_fd()).expect("just made")
}

fn append(tx: Sender<'_>, bytes: &[u8]) -> usize {
    let done = tx.append(hint::black_box(bytes).into()).expect("honest peer");
    if done != 0 {
        assert_eq!(tx.take_wait(), 0);
    }
    done
}

fn read(rx: Receiver<'_>, bytes: &mut [u8]) -> usize {
    if rx.readable().expect("honest peer") == 0 {
        return 0;
    }
    let done = rx.copy_out(hint::black_box(bytes).into(), 0);
    if rx.consume(done) != 0 {
        assert_eq!(rx.take_credit_wait(), 0);
    }
    done
}

/// Time that `rounds` calls of `timed` take, in batches between which `untimed` runs.
fn batches(rounds: u64, mut timed: impl FnMut(), mut untimed: impl FnMut()) -> Duration {
    const BATCH: u64 = 4096;
    let mut total = Duration::ZERO;
    let mut left = rounds;
    while left != 0 {
        let batch = left.min(BATCH);
        let start = Instant::now();
        (0..batch).for_each(|_| timed());
        total += start.elapsed();
        (0..batch).for_each(|_| untimed());
        left -= batch;
    }
    total
}

fn calls(c: &mut Criterion) {
    let segment = segment();
    let (tx, rx) = (segment.sender(Side::First), segment.receiver(Side::Second));
    let send = || {
        append(tx, &[7; 8]);
    };
    let receive = || {
        read(rx, &mut [0; 8]);
    };
    let mut group = c.benchmark_group("call");
    group.bench_function("append 8 B", |b| b.iter_custom(|n| batches(n, send, receive)));
    group.bench_function("read 8 B", |b| {
        b.iter_custom(|n| {
            (0..4096).for_each(|_| send());
            let total = batches(n, receive, send);
            (0..4096).for_each(|_| receive());
            total
        });
    });
    group.bench_function("append and read 8 B", |b| {
        b.iter(|| {
            send();
            receive();
        });
    });
    group.finish();
}

/// Time that `rounds` messages of `size` bytes take from one thread to another.
fn stream(segment: &Segment, size: usize, rounds: u64) -> Duration {
    let (tx, rx) = (segment.sender(Side::First), segment.receiver(Side::Second));
    let total = rounds * size as u64;
    thread::scope(|scope| {
        scope.spawn(move || {
            let bytes = vec![7; size];
            let mut done = 0;
            while done < total {
                let n = append(tx, &bytes[..size.min((total - done) as usize)]);
                if n == 0 {
                    thread::yield_now();
                }
                done += n as u64;
            }
        });
        let mut bytes = vec![0; size.max(1 << 16)];
        let mut done = 0;
        let start = Instant::now();
        while done < total {
            let n = read(rx, &mut bytes);
            if n == 0 {
                thread::yield_now();
            }
            done += n as u64;
        }
        start.elapsed()
    })
}

fn streams(c: &mut Criterion) {
    let mut group = c.benchmark_group("stream");
    for size in [8, 64, 4096, 65536] {
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_with_input(BenchmarkId::from_parameter(size), &size, |b, &size| {
            let segment = segment();
            b.iter_custom(|n| stream(&segment, size, n));
        });
    }
    group.finish();
}

/// One thread asks with 8 bytes, the other answers; both poll.
fn round_trip(c: &mut Criterion) {
    let segment = segment();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (tx, rx) = (segment.sender(Side::Second), segment.receiver(Side::Second));
            let mut idle = 0u32;
            while !over.load(Ordering::Relaxed) {
                let mut bytes = [0; 8];
                if read(rx, &mut bytes) != 0 {
                    append(tx, &bytes);
                    idle = 0;
                } else {
                    idle += 1;
                    pause(idle);
                }
            }
        });
        let (tx, rx) = (segment.sender(Side::First), segment.receiver(Side::First));
        c.bench_function("round trip 8 B", |b| {
            b.iter(|| {
                let mut bytes = [0; 8];
                append(tx, &[7; 8]);
                let mut idle = 0;
                while read(rx, &mut bytes) == 0 {
                    idle += 1;
                    pause(idle);
                }
                bytes
            });
        });
        over.store(true, Ordering::Relaxed);
    });
}

/// Yields now and then, lest both threads be on one core.
fn pause(idle: u32) {
    if idle.is_multiple_of(1024) {
        thread::yield_now();
    }
    hint::spin_loop();
}

criterion_group!(benches, calls, streams, round_trip);
criterion_main!(benches);
