//! CPython's own tests of everything that uses sockets, of the version that the distribution has (Debian's
//! libpython3.11-testsuite). Some modules have gone with the libraries that they test.

use crate::{Outcomes, Run, compare};
use std::path::{Path, PathBuf};
use std::time::Duration;
use viaduct_testkit::{Instance, Launch, Mode, can_run};

/// Of a module whose tests wait for clocks most of the time.
const PATIENCE: Duration = Duration::from_secs(900);

/// Classes that are left out: they hang natively on machines whose VSOCK device leads nowhere.
const NO_VSOCK: &str = "BasicVSOCKTest,ThreadedVSOCKSocketStreamTest";

/// The same, and one whose peers send all and close, over lanes, before their sockets are passed on: nobody is left to
/// send the bytes again, over TCP, to the process that receives the sockets, and it waits for them. [`passed_on`] runs
/// it with the usual offers, for which such connections are too short.
const NOT_PASSED_ON: &str = "BasicVSOCKTest,ThreadedVSOCKSocketStreamTest,WithProcessesTestPicklingConnections";

fn run(mode: Mode<'_>, offer: &str, skipped: &str, module: &str) -> Outcomes {
    // Tests write into their working directory and leave processes behind.
    let place = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suites/programs/cpython.py");
    let results = place.path().join("results");
    let words = [
        script.into_os_string(),
        results.clone().into_os_string(),
        skipped.into(),
        format!("test.{module}").into(),
    ];
    let mut program = Launch::new(mode, "/usr/bin/python3", words)
        .options(&format!("--offer {offer}"))
        .directory(place.path())
        .spawn();
    let text = || std::fs::read_to_string(&results).unwrap_or_default();
    // One that hangs is shown by the test that it had started. A process left behind may keep it from ending.
    let finished = |text: &str| text.lines().any(|line| line.starts_with("finished\t"));
    viaduct_testkit::processes::wait_until(PATIENCE, || !program.is_running() || finished(&text()));
    let text = text();
    let mut outcomes: Outcomes = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split('\t').map(str::to_owned);
            let (outcome, name) = (words.next()?, words.next()?);
            (!name.is_empty()).then_some(())?;
            Some((name, (outcome, words.next().unwrap_or_default())))
        })
        .collect();
    assert!(finished(&text), "{module} did not end: {:#?}", {
        outcomes.retain(|_, (outcome, _)| outcome == "started");
        outcomes
    });
    outcomes
}

/// Where the tests are, `/usr/lib/python3.11/test` for one.
fn tests() -> PathBuf {
    let python = std::fs::canonicalize("/usr/bin/python3").unwrap_or_default();
    Path::new("/usr/lib")
        .join(python.file_name().unwrap_or_default())
        .join("test")
}

fn same_with(offer: &str, skipped: &str, modules: &[&str]) {
    if !can_run(false, &["python3", tests().join("test_socket.py").to_str().unwrap()]) {
        return;
    }
    for module in modules {
        let name = module.split('.').next().unwrap();
        if !tests().join(name).is_dir() && !tests().join(format!("{name}.py")).exists() {
            eprintln!("skipped: this Python has no {name}");
            continue;
        }
        let natively = || run(Mode::Native, offer, skipped, module);
        let native = natively();
        let instance = Instance::start();
        let fast = || run(Mode::Accelerated(&instance), offer, skipped, module);
        compare(module, &native, &Run::of(fast), &[], natively, |_| fast());
        println!("{module}: {} pairs", instance.stats().pairs);
    }
}

fn same(modules: &[&str]) {
    same_with("wait", NOT_PASSED_ON, modules);
}

#[test]
fn sockets() {
    same(&["test_socket"]);
}

#[test]
fn waits() {
    same(&["test_select", "test_poll", "test_epoll", "test_selectors"]);
}

#[test]
fn protocols() {
    same(&[
        "test_httplib",
        "test_asyncore",
        "test_telnetlib",
        "test_ftplib",
        "test_asyncio.test_sendfile",
    ]);
}

#[test]
#[ignore = "two minutes: make test-suites"]
fn long_protocols() {
    same(&["test_ssl", "test_xmlrpc"]);
}

#[test]
#[ignore = "ten minutes: make test-suites"]
fn asyncio() {
    same(&["test_asyncio"]);
}

#[test]
fn passed_on() {
    same_with(
        "auto",
        NO_VSOCK,
        &["test_multiprocessing_fork.WithProcessesTestPicklingConnections"],
    );
}

#[test]
#[ignore = "five minutes: make test-suites"]
fn multiprocessing() {
    same(&["test_multiprocessing_main_handling", "test_multiprocessing_fork"]);
}

#[test]
#[ignore = "ten minutes: make test-suites"]
fn multiprocessing_forkserver() {
    same(&["test_multiprocessing_forkserver"]);
}

#[test]
#[ignore = "ten minutes: make test-suites"]
fn multiprocessing_spawn() {
    same(&["test_multiprocessing_spawn"]);
}
