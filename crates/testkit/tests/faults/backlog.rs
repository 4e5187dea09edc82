//! A receiver killed in a raw stretch: megabytes stand in the kernel's buffers before the lane's first byte.

use crate::{DaemonCheck, NATIVE_ROUNDS, PATIENCE, PROMPTLY, moment, until_hit};
use std::fs;
use std::path::Path;
use viaduct_testkit::pattern::Random;
use viaduct_testkit::processes::{free_port, wait_until};
use viaduct_testkit::{Instance, Launch, Mode, Program, can_run};

/// One of two processes with the socket killed, of each kind so many, and the only one.
const OF_TWO: usize = 8;
const OF_ONE: usize = 4;

pub(crate) const FAULTS: usize = 2 * OF_TWO + OF_ONE;

/// The stream: each word is its number times `ODD`, so that any piece of two words or more tells where it belongs.
const WORDS: u64 = 2_000_000;
const ODD: u64 = 0x9E37_79B9_7F4A_7C15;

/// What every program begins with.
const COMMON: &str = "import os, signal, socket, sys, time\n\
    port, files, victim, when, ODD = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])\n\
    stream = open(sys.argv[6], 'rb').read()\n";

/// Fills the kernel's buffers before anybody receives, and sends the rest on the lane.
const SEND: &str = "SO_SNDBUFFORCE = 32\n\
    s, at = socket.create_connection(('127.0.0.1', port)), 0\n\
    s.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 4000000)\n\
    s.settimeout(0.2)\n\
    try:\n\
    \twhile True: at += s.send(stream[at:at + 4096])\n\
    except TimeoutError: open(files + '-full', 'w').close()\n\
    s.settimeout(None)\n\
    try:\n\
    \twhile at < len(stream): at += s.send(stream[at:at + 4096])\n\
    \ts.shutdown(socket.SHUT_WR)\n\
    \tassert s.recv(1) == b''\n\
    except OSError as error: print(type(error).__name__, flush=True)\n";

/// Takes the first of what waits, little by little, until the sender is on the lane, and shares the rest with a child.
/// Each of the two writes down where what it has received belongs, and one kills the other in the raw stretch. Says
/// from where on the bytes were that the killer received last, how long the pieces are that nobody wrote down, and how
/// many bytes were received twice. A piece of less than two words goes where it is missing.
const SHARE: &str = "listener = socket.create_server(('127.0.0.1', port))\n\
    if os.fork(): time.sleep(600)\n\
    while not os.path.exists(files + '-full'): time.sleep(0.01)\n\
    c, first, inverse = listener.accept()[0], 0, pow(ODD, -1, 2**64)\n\
    while not os.path.exists(files + '-go'):\n\
    \tfirst += len(c.recv(1024))\n\
    \ttime.sleep(0.001)\n\
    log = os.open(files, os.O_RDWR | os.O_CREAT | os.O_APPEND)\n\
    parent, child = os.getpid(), os.fork()\n\
    kill = when if (child == 0) == (victim == 'parent') else 0\n\
    pieces = 0\n\
    while piece := c.recv(4096):\n\
    \tat = -1 if len(piece) < 16 else next((n * 8 - skip for skip in range(8)\n\
    \t\tif (n := int.from_bytes(piece[skip:skip + 8], 'little') * inverse % 2**64) * 8 < len(stream)), len(stream))\n\
    \tassert at < 0 or stream[at:at + len(piece)] == piece, 'not the stream'\n\
    \tos.write(log, f'{at} {at + len(piece) if at >= 0 else piece.hex()}\\n'.encode())\n\
    \tpieces += 1\n\
    \tif pieces == kill:\n\
    \t\tos.kill(child or parent, signal.SIGKILL)\n\
    \t\tlast = max(at, 0)\n\
    notes = [line.split() for line in os.pread(log, 1 << 24, 0).splitlines()]\n\
    short = [bytes.fromhex(note[1].decode()) for note in notes if note[0] == b'-1']\n\
    end, missing, twice = first, [], 0\n\
    for begin, until in sorted((int(a), int(b)) for a, b in notes if a != b'-1') + [(len(stream), 0)]:\n\
    \tif begin > end and stream[end:begin] in short: short.remove(stream[end:begin])\n\
    \telif begin > end: missing.append(begin - end)\n\
    \ttwice += max(end - begin, 0) if until else 0\n\
    \tend = max(end, until)\n\
    if kill: print(last, twice + sum(map(len, short)), *missing, flush=True)\n";

/// Receives slowly, for as long as it lives.
const ALONE: &str = "listener = socket.create_server(('127.0.0.1', port))\n\
    while not os.path.exists(files + '-full'): time.sleep(0.01)\n\
    c = listener.accept()[0]\n\
    while c.recv(1024): time.sleep(0.001)\n";

/// The two ends, and where the lane's bytes begin.
struct Ends {
    receiver: Program,
    sender: Program,
    raw: u64,
}

/// Starts a receiver and a sender, and has them go on once the sender is on the lane, where there is one.
fn start(mode: Mode<'_>, instance: &Instance, receive: &str, victim: &str, when: u64) -> Ends {
    let port = free_port();
    let files = instance
        .scratch(&format!("backlog-{port}"))
        .to_string_lossy()
        .into_owned();
    for old in ["", "-full", "-go"] {
        let _ = fs::remove_file(format!("{files}{old}"));
    }
    let stream = instance.scratch("stream");
    if !stream.exists() {
        let words = (0..WORDS).flat_map(|number| number.wrapping_mul(ODD).to_le_bytes());
        fs::write(&stream, words.collect::<Vec<_>>()).unwrap();
    }
    let launch = |code: &str| {
        let words = [
            "-c".to_owned(),
            format!("{COMMON}{code}"),
            port.to_string(),
            files.clone(),
        ];
        let stream = stream.to_string_lossy().into_owned();
        let more = [victim.to_owned(), when.to_string(), ODD.to_string(), stream];
        Launch::new(mode, "python3", words.into_iter().chain(more)).spawn()
    };
    let receiver = launch(receive).listening(port);
    let sender = launch(SEND);
    let full = || Path::new(&format!("{files}-full")).exists();
    assert!(wait_until(PATIENCE, full), "{}", sender.errors());
    let mut raw = u64::MAX;
    if matches!(mode, Mode::Accelerated(_)) {
        let fast = wait_until(PATIENCE, || {
            let totals = instance.totals_of(sender.pid());
            raw = totals.bytes_sent - totals.fast_bytes_sent;
            totals.fast_bytes_sent > 0
        });
        assert!(fast, "{:#?}", instance.status());
        assert!(raw > 1 << 20, "only {raw} bytes in the kernel");
    }
    fs::write(format!("{files}-go"), "").unwrap();
    Ends { receiver, sender, raw }
}

/// One of two receivers is killed; the other has the rest, and what the killed one was just receiving is all that is
/// lost.
fn kill_one_of_two(mode: Mode<'_>, instance: &Instance, victim: &str, faults: usize) {
    let mut random = Random::new(17);
    until_hit(faults, |round| {
        let when = 1 + random.below(100);
        let ends = start(mode, instance, SHARE, victim, when);
        let told = || format!("round {round}: {}{}", ends.receiver.output(), ends.receiver.errors());
        let said = wait_until(PATIENCE, || ends.receiver.output().ends_with('\n'));
        assert!(said, "the {victim} killed after {when} pieces, {}", told());
        let numbers: Vec<u64> = ends.receiver.output().split_whitespace().flat_map(str::parse).collect();
        let (last, twice, missing) = (numbers[0], numbers[1], &numbers[2..]);
        assert_eq!(twice, 0, "{}", told());
        assert!(
            missing.len() < 2 && missing.iter().all(|bytes| *bytes <= 4096),
            "{}",
            told()
        );
        assert_eq!(ends.sender.finish(PROMPTLY).success(), "");
        last < ends.raw
    });
}

/// The only receiver is killed, which its sender, who waits for room, sees.
fn kill_the_only_one(mode: Mode<'_>, instance: &Instance, faults: usize) {
    let mut random = Random::new(19);
    for round in 0..faults {
        let mut ends = start(mode, instance, ALONE, "", 0);
        moment(&mut random, 60);
        ends.receiver.kill();
        let error = ends.sender.finish(PROMPTLY).success();
        let told = ["ConnectionResetError", "BrokenPipeError"].contains(&error.trim());
        assert!(told, "round {round}: {error:?}");
    }
}

fn both_ways(kill: impl Fn(Mode<'_>, &Instance, usize), faults: usize) {
    if !can_run(true, &["python3"]) {
        return;
    }
    let instance = Instance::start();
    kill(Mode::Native, &instance, NATIVE_ROUNDS);
    let daemon = DaemonCheck::new(&instance);
    kill(Mode::Accelerated(&instance), &instance, faults);
    daemon.assert_clean();
}

#[test]
fn the_other_holder_receives_the_rest_of_a_backlog() {
    for victim in ["child", "parent"] {
        both_ways(
            |mode, instance, faults| kill_one_of_two(mode, instance, victim, faults),
            OF_TWO,
        );
    }
}

#[test]
fn a_sender_sees_the_only_receiver_of_a_backlog_killed() {
    both_ways(kill_the_only_one, OF_ONE);
}
