//! The benchmark's own programs, and under `VIADUCT_TEST_BENCH` the benchmark itself.

mod common;

use common::{Dir, viaduct};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Names the directory with all of Viaduct's programs, built for release; without it nothing is measured.
const PROGRAMS: &str = "VIADUCT_TEST_BENCH";

/// Where this is set, a test that cannot run fails.
const REQUIRE: &str = "VIADUCT_TEST_REQUIRE";

/// A peer with pipes to it, killed on drop.
struct Peer(Child, BufReader<std::process::ChildStdout>);

impl Peer {
    fn start(home: &Dir, arguments: &str) -> Self {
        let mut child = viaduct(&home.path)
            .arg("bench-peer")
            .args(arguments.split_whitespace())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self(child, output)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Ends its standard input, and waits for its own end.
    fn end(mut self) -> bool {
        drop(self.0.stdin.take());
        self.0.wait().unwrap().success()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Seconds that each size has taken.
fn measure(home: &Dir, kind: &str) -> [f64; 3] {
    let mut server = Peer::start(home, "serve --transport tcp");
    let address = server.line();
    let arguments = format!("ask --transport tcp --kind {kind} --millis 5 --sizes 1,8,100000 --addr {address}");
    let mut client = Peer::start(home, &arguments);
    let (mut sizes, mut seconds) = (Vec::new(), Vec::new());
    while sizes.len() < 3 {
        let (asked, served) = (client.line(), server.line());
        let (asked, served): (Value, Value) = (
            serde_json::from_str(&asked).unwrap(),
            serde_json::from_str(&served).unwrap(),
        );
        assert_eq!((&asked["size"], &asked["rounds"]), (&served["size"], &served["rounds"]));
        if asked["measured"] == true {
            seconds.push(asked["seconds"].as_f64().unwrap());
            sizes.push(asked["size"].as_u64().unwrap());
        }
    }
    assert_eq!(sizes, [1, 8, 100_000]);
    assert!(client.end() && server.end());
    seconds.try_into().unwrap()
}

#[test]
fn peers_measure_each_size_over_a_connection() {
    let home = Dir::new();
    for kind in ["latency", "bandwidth"] {
        // Were the last bytes held back until they are acknowledged, it would take forty times as long, each time. A
        // machine that stands still takes long as well, but not again and again.
        let took = [(); 3].map(|()| measure(&home, kind));
        for size in 0..3 {
            let prompt = took.iter().filter(|seconds| seconds[size] < 0.2).count();
            assert!(prompt >= 2, "{kind}: {took:?}");
        }
    }
}

#[test]
fn a_load_gets_its_answers_on_every_connection() {
    let home = Dir::new();
    let mut server = Peer::start(&home, "echo");
    let address = server.line();
    let arguments = format!("load --connections 20 --warm-up 5 --millis 2500 --question 12345678 --answer 8 {address}");
    let mut client = Peer::start(&home, &arguments);
    let found: Value = serde_json::from_str(&client.line()).unwrap();
    assert_eq!(found["connections"], 20);
    assert!(found["answers"].as_u64().unwrap() >= 20, "{found}");
    assert!(found["seconds"].as_f64().unwrap() >= 0.05);
    assert!(client.end() && server.end());
}

/// The benchmark starts itself by a link of the kernel's that is called `exe`.
#[test]
fn peers_have_the_programs_name_in_lists_of_processes() {
    let home = Dir::new();
    let link = home.path.join("exe");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_viaduct"), &link).unwrap();
    let mut child = Command::new(link)
        .args(["bench-peer", "echo"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let mut peer = Peer(child, output);
    peer.line();
    let name = std::fs::read_to_string(format!("/proc/{}/comm", peer.0.id())).unwrap();
    assert_eq!(name, "viaduct\n");
    assert!(peer.end());
}

#[test]
fn an_unknown_experiment_is_an_error_that_names_the_known() {
    let home = Dir::new();
    let output = viaduct(&home.path)
        .args(["bench", "apps", "--only", "fax"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("sockperf") && errors.contains("idle-memory"),
        "{errors}"
    );
}

#[test]
fn an_unknown_road_is_an_error_that_names_the_known() {
    let home = Dir::new();
    let output = viaduct(&home.path)
        .args(["bench", "latency", "--only", "fax"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let errors = String::from_utf8_lossy(&output.stderr);
    let known = "tcp, viaduct, channel, unix, sockmap, ucx, iceoryx2, openmpi";
    assert!(errors.contains(known), "{errors}");
}

#[test]
fn a_file_that_cannot_be_written_is_told_before_anything_is_measured() {
    let home = Dir::new();
    let (good, bad) = (home.path.join("good.json"), home.path.join("missing/bad.svg"));
    let output = viaduct(&home.path)
        .args(["bench", "latency", "--only", "fax", "--json"])
        .arg(&good)
        .arg("--svg")
        .arg(&bad)
        .output()
        .unwrap();
    assert!(!output.status.success());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("bad.svg") && !errors.contains("road"), "{errors}");
    assert!(!good.exists());
}

#[test]
fn why_viaductd_could_not_start_is_told() {
    let home = Dir::new();
    let stand_in = home.path.join("stand-in");
    std::fs::write(&stand_in, "#!/bin/sh\necho '12:00 ERROR it is Friday' >&2; exit 1").unwrap();
    std::fs::set_permissions(&stand_in, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = viaduct(&home.path);
    command
        .args(["bench", "latency", "--quick"])
        .env("VIADUCT_DAEMON", &stand_in);
    // Nothing gets as far as to load it.
    command.env("VIADUCT_PRELOAD", &stand_in).env("TMPDIR", &home.path);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said, "viaduct: viaductd exited at once: it is Friday\n");
}

#[test]
fn a_program_joins_the_cgroup_or_does_not_start() {
    let home = Dir::new();
    let exec = |cgroup: &Path| {
        let mut command = viaduct(&home.path);
        command.args(["bench-peer", "exec", "--cgroup"]).arg(cgroup);
        command.args(["--", "echo", "started"]).output().unwrap()
    };
    // Any directory with such a file shows what is written there.
    std::fs::write(home.path.join("cgroup.procs"), "").unwrap();
    let output = exec(&home.path);
    assert_eq!(output.stdout, b"started\n", "{output:?}");
    assert_eq!(std::fs::read(home.path.join("cgroup.procs")).unwrap(), b"0");
    let output = exec(&home.path.join("none"));
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
}

/// Whether a program is there that not every machine has.
fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    assert!(
        found || std::env::var_os(REQUIRE).is_none(),
        "this test needs {program}"
    );
    if !found {
        eprintln!("skipped: needs {program}");
    }
    found
}

/// Measures in a directory of its own: what is found, and the file with the graph.
fn bench(programs: &Path, home: &Dir, arguments: &str) -> (Value, PathBuf) {
    let (json, svg) = (home.path.join("found.json"), home.path.join("found.svg"));
    let output = Command::new(programs.join("viaduct"))
        .arg("bench")
        .args(arguments.split_whitespace())
        .args(["--quick", "--json"])
        .arg(&json)
        .arg("--svg")
        .arg(&svg)
        .env("TMPDIR", &home.path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap(), svg)
}

#[test]
fn the_benchmark_measures_and_proves_the_path() {
    let Some(programs) = std::env::var_os(PROGRAMS).map(PathBuf::from) else {
        return;
    };
    let home = Dir::new();
    let (found, svg) = bench(&programs, &home, "latency --only viaduct --runs 1");
    assert!(std::fs::read_to_string(svg).unwrap().contains("</svg>"));
    let curve = &found["result"]["curves"][0];
    assert_eq!(curve["points"].as_array().unwrap().len(), 11);
    assert!(curve["proofs"][0]["fast_bytes"].as_u64() > Some(1 << 20));
    if has("iperf3") {
        // What viaductd does not answer at once, as it cannot while the machine stands still, stays on TCP for a while.
        let rows = [(); 3].map(|()| {
            let (found, _) = bench(&programs, &home, "apps --only stream --runs 1");
            found["result"]["rows"][0].clone()
        });
        let is_proved = |row: &&Value| row["verdict"] != "unproved" && row["ratio"].as_f64() > Some(0.0);
        assert!(rows.iter().filter(is_proved).count() >= 2, "{rows:#?}");
    }
    let left: Vec<_> = std::fs::read_dir(&home.path)
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .filter(|name| name.starts_with("viaduct-bench"))
        .collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

/// As it may be where another Viaduct is installed meanwhile.
#[test]
fn a_benchmark_goes_on_though_its_file_is_gone() {
    let Some(programs) = std::env::var_os(PROGRAMS).map(PathBuf::from) else {
        return;
    };
    let home = Dir::new();
    let (copy, json) = (home.path.join("viaduct"), home.path.join("found.json"));
    std::fs::copy(programs.join("viaduct"), &copy).unwrap();
    let output = Command::new("sh")
        .args(["-c", r#"exec 9<"$0"; rm "$0"; exec /proc/self/fd/9 "$@""#])
        .arg(&copy)
        .args([
            "bench", "latency", "--only", "viaduct", "--runs", "1", "--quick", "--json",
        ])
        .arg(&json)
        .env("TMPDIR", &home.path)
        .env("VIADUCT_DAEMON", programs.join("viaductd"))
        .env("VIADUCT_PRELOAD", programs.join("libviaduct_preload.so"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let curve = &found["result"]["curves"][0];
    assert!(curve["proofs"][0]["fast_bytes"].as_u64() > Some(1 << 20));
}

/// Each point of direct search's curves has its error, and the graph has each set of curves.
#[test]
fn the_search_benchmark_tells_all_its_points() {
    let Some(programs) = std::env::var_os(PROGRAMS).map(PathBuf::from) else {
        return;
    };
    let home = Dir::new();
    let (found, svg) = bench(&programs, &home, "seek --runs 2");
    let sets = found["result"]["sets"].as_array().unwrap();
    let roads: Vec<_> = sets.iter().map(|set| set["road"].as_str().unwrap()).collect();
    assert_eq!(roads, ["plain", "tcp", "lane"]);
    let across = &found["result"]["across"];
    for points in sets.iter().map(|set| &set["points"]).chain([across]) {
        let points = points.as_array().unwrap();
        // Four sizes, four depths.
        assert_eq!(points.len(), 16);
        for point in points {
            assert_eq!(point["measurements"].as_array().map(Vec::len), Some(2), "{point}");
            assert!(point["reduction"]["mean"].as_f64() < Some(100.0), "{point}");
            assert!(point["reduction"]["standard_error"].as_f64() > Some(0.0), "{point}");
        }
    }
    let text = std::fs::read_to_string(&svg).unwrap();
    for set in [
        "kernel TCP, library alone",
        "kernel TCP, viaduct run",
        "lane",
        "lane against kernel in order",
    ] {
        assert!(text.lines().any(|line| line.trim() == set), "{set}");
    }
    if has("python3") {
        let parse = "import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])";
        let output = Command::new("python3").args(["-c", parse]).arg(svg).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
