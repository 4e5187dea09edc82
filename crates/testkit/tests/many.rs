//! Ten thousand connections between two processes, all of them accelerated.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::Mode as FileMode;
use std::fs::File;
use std::path::Path;
use std::time::Duration;
use viaduct_testkit::binaries::binary;
use viaduct_testkit::processes::wait_until;
use viaduct_testkit::{Instance, Launch, Mode, Program};

const CONNECTIONS: u64 = 10_000;

/// Descriptors of a program with that many connections.
const DESCRIPTORS: u64 = CONNECTIONS + 500;

const PATIENCE: Duration = Duration::from_secs(100);

/// The benchmark's echo or load, with `input`, whose end would end it, as standard input.
fn start(mode: Mode<'_>, input: &Path, arguments: &str) -> Program {
    let words = ["bench-peer"].into_iter().chain(arguments.split_whitespace());
    // As in earnest: a connection is offered when it has shown itself worth it.
    Launch::new(mode, binary("viaduct"), words)
        .options("--offer auto")
        .input(input)
        .spawn()
}

#[test]
fn ten_thousand_connections_in_one_process() {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    if hard < DESCRIPTORS {
        eprintln!("skipped: no process may have more than {hard} descriptors");
        return;
    }
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(DESCRIPTORS), hard).unwrap();
    let instance = Instance::start();
    let mode = Mode::Accelerated(&instance);
    let input = instance.scratch("input");
    nix::unistd::mkfifo(&input, FileMode::S_IRUSR | FileMode::S_IWUSR).unwrap();
    let _kept_open = File::options().read(true).write(true).open(&input).unwrap();

    let server = start(mode, &input, "echo");
    let listens = wait_until(PATIENCE, || server.output().ends_with('\n'));
    assert!(listens, "{}", server.errors());
    let arguments = format!(
        "load {} --connections {CONNECTIONS} --warm-up 20 --question 0123456789abcdef --answer 16",
        server.output().trim()
    );
    let mut client = start(mode, &input, &arguments);
    let answered = wait_until(PATIENCE, || client.output().ends_with('\n') || !client.is_running());
    assert!(
        answered && client.is_running(),
        "{}\n{}",
        client.output(),
        client.errors()
    );

    let fast = |program: &Program| instance.totals_of(program.pid()).open_fast;
    let all = wait_until(Duration::from_secs(5), || {
        [&server, &client].map(fast) == [CONNECTIONS; 2]
    });
    assert!(all, "{:#?}\n{:#?}", instance.totals(), instance.stats());
    assert_eq!(instance.stats().refused, 0);
}
