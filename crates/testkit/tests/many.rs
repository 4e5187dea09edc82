//! Many connections: ten thousand at once, all of them accelerated, and many in turn, of which those that end early are
//! not.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::Mode as FileMode;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use viaduct_testkit::binaries::binary;
use viaduct_testkit::processes::wait_until;
use viaduct_testkit::{Instance, Launch, Mode, Program, where_prompt};

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

/// A server that listens, as it has said.
fn echo(mode: Mode<'_>, input: &Path) -> Program {
    let server = start(mode, input, "echo");
    let listens = wait_until(PATIENCE, || server.output().ends_with('\n'));
    assert!(listens, "{}", server.errors());
    server
}

/// A client that asks `server` so many questions on each of its connections, and then for so many milliseconds on all,
/// before it says that it is ready.
fn load(mode: Mode<'_>, input: &Path, server: &Program, connections: u64, questions: u32, millis: u32) -> Program {
    let address = server.output();
    let arguments = format!(
        "load {} --connections {connections} --warm-up {questions} --millis {millis} --question 0123456789abcdef --answer 16",
        address.trim()
    );
    start(mode, input, &arguments)
}

/// A named pipe, which gives no end of input before what is returned with it is dropped.
fn pipe(instance: &Instance, name: &str) -> (PathBuf, File) {
    let path = instance.scratch(name);
    nix::unistd::mkfifo(&path, FileMode::S_IRUSR | FileMode::S_IWUSR).unwrap();
    let kept_open = File::options().read(true).write(true).open(&path).unwrap();
    (path, kept_open)
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
    let (input, _kept_open) = pipe(&instance, "input");

    let server = echo(mode, &input);
    // Whatever is paired late: it goes over with the next message only, which the machine may hold up for seconds.
    let mut client = load(mode, &input, &server, CONNECTIONS, 30, 4000);
    let answered = wait_until(PATIENCE, || client.output().ends_with('\n') || !client.is_running());
    assert!(
        answered && client.is_running(),
        "{}\n{}",
        client.output(),
        client.errors()
    );

    let fast = |program: &Program| instance.totals_of(program.pid()).open_fast;
    let all = wait_until(PATIENCE, || [&server, &client].map(fast) == [CONNECTIONS; 2]);
    assert!(all, "{:#?}\n{:#?}", instance.totals(), instance.stats());
    assert_eq!(instance.stats().refused, 0);
}

/// How many connections the process has offered, as `viaduct explain` says.
fn offers(instance: &Instance, pid: u32) -> u32 {
    let output = Command::new(binary("viaduct"))
        .args(["explain", &pid.to_string(), "--dir"])
        .arg(instance.dir())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let words: Vec<&str> = said.split_whitespace().collect();
    let count = words.windows(3).find_map(|words| match words {
        [count, "offers", "made,"] => count.parse().ok(),
        _ => None,
    });
    count.unwrap_or_else(|| panic!("{said}"))
}

#[test]
fn a_server_whose_connections_end_early_offers_them_later() {
    // How often the server offers depends on how long connections and answers take.
    where_prompt(&["were offered"], || {
        let instance = Instance::start();
        let mode = Mode::Accelerated(&instance);
        let (input, _kept_open) = pipe(&instance, "input");
        let server = echo(mode, &input);
        let mut before = 0;
        // So many clients in turn, each with one connection of so many questions and answers. How many of them has the
        // server offered?
        let mut offered = |clients: std::ops::Range<u32>, questions: u32| {
            for client in clients {
                let (input, kept_open) = pipe(&instance, &format!("input-{questions}-{client}"));
                let client = load(mode, &input, &server, 1, questions, 0);
                assert!(wait_until(PATIENCE, || client.output().ends_with('\n')));
                drop(kept_open);
                client.finish(PATIENCE).success();
            }
            let now = offers(&instance, server.pid());
            now - core::mem::replace(&mut before, now)
        };
        // Over thirty messages: enough to be offered at first, and not to have been worth it.
        let short = offered(0..40, 17);
        assert!((1..=3).contains(&short), "{short} were offered at first");
        let long = offered(0..8, 200);
        assert!(long >= 7, "{long} of the long ones were offered");
        let short = offered(40..60, 17);
        assert!((1..=4).contains(&short), "{short} were offered again");
    });
}
