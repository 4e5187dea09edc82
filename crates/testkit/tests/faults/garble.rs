//! Somebody writes anything anywhere into the words of live segments: bytes may be garbled and connections end, but no
//! call hangs, no program crashes, and what comes after is served as ever.

use crate::{PATIENCE, PROMPTLY, WAITING, any_of, settle};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use viaduct_testkit::pattern::Random;
use viaduct_testkit::processes::wait_until;
use viaduct_testkit::{Instance, Mode, Server, can_run};

/// Bytes of a segment's header page, after which the larger tables of both lanes come.
const HEADER: u64 = 4096;

/// Where the pools begin.
const POOLS: u64 = 20480;

/// How often segments are garbled.
const ROUNDS: u64 = 16;

/// The segments that a process has mapped, to be written by whoever may.
fn segments(pid: u32) -> Vec<File> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let own = maps.lines().filter(|line| line.contains("/memfd:viaduct-segment"));
    own.filter_map(|line| {
        let range = line.split(' ').next()?;
        let path = format!("/proc/{pid}/map_files/{range}");
        File::options().read(true).write(true).open(path).ok()
    })
    .collect()
}

/// Writes words for a while: small ones, which mean something in most places, and any others.
fn garble(segments: &[File], random: &mut Random) {
    let until = Instant::now() + Duration::from_millis(40);
    while Instant::now() < until {
        let segment = &segments[usize::try_from(random.below(segments.len() as u64)).unwrap()];
        let word = match random.below(4) {
            0 => random.number(),
            _ => random.below(4),
        };
        let end = any_of(random, &[HEADER, POOLS]);
        let place = random.below(end / 8) * 8;
        segment.write_all_at(&word.to_ne_bytes(), place).unwrap();
    }
}

#[test]
fn garbled_segments_end_connections_and_no_more() {
    if !can_run(true, &[]) {
        return;
    }
    let instance = Instance::start();
    let mode = Mode::Accelerated(&instance);
    let mut random = Random::new(17);
    for round in 0..ROUNDS {
        let server_waits = any_of(&mut random, &WAITING);
        let waiting = any_of(&mut random, &WAITING);
        let mut server = Server::start(mode, server_waits);
        let before = settle(&mut server, mode);
        let arguments = format!("--seconds 100 --mode {waiting} --connections 2 --seed {round}");
        let mut client = server.client(mode, &arguments).spawn();
        let fast = wait_until(PATIENCE, || instance.totals_of(client.pid()).open_fast == 2);
        assert!(fast, "{:#?}", instance.status());
        let segments = segments(server.program.pid());
        assert!(!segments.is_empty(), "no segment of the server's was found");
        garble(&segments, &mut random);
        drop(segments);
        client.kill();
        let gone = server.returns_to(before, PROMPTLY);
        assert_eq!(gone, Ok(()), "round {round}, server {server_waits}, client {waiting}");
        assert!(
            server.program.is_running(),
            "round {round}: {}",
            server.program.errors()
        );
        server.client(mode, "--bytes 500000 --seed 77").run(PATIENCE).success();
        let wrong: Vec<_> = server
            .reports()
            .into_iter()
            .filter(|report| report.end == "stuck")
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
