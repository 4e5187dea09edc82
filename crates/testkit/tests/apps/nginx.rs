//! nginx with workers forked beforehand: small answers, files by sendfile, big bodies, reloads under load; curl and
//! wrk.

use crate::{PATIENCE, Pair, Way};
use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};
use std::time::Duration;
use viaduct_testkit::processes::{free_port, is_listening, signal, wait_until};
use viaduct_testkit::{Launch, Program, pattern};

matrix!(check, "nginx", "curl", "wrk");

/// Bytes of the big file.
const BIG: usize = 50_000_000;

mod daemon {
    matrix!(super::daemon, "nginx", "curl", "wrk");
}

/// Starts an nginx that serves `big.bin`, `page.html` and `/small`.
pub(crate) fn start(pair: &Pair<'_>, port: u16) -> Program {
    launch(pair, port, "off").spawn().listening(port)
}

/// Writes what web servers serve, `big.bin` and `page.html`, and says where.
pub(crate) fn pages(pair: &Pair<'_>) -> PathBuf {
    let root = pair.instance.scratch("www");
    std::fs::create_dir_all(&root).unwrap();
    std::fs::write(root.join("big.bin"), crate::bytes(BIG)).unwrap();
    std::fs::write(root.join("page.html"), "p".repeat(10_000)).unwrap();
    root
}

fn launch<'a>(pair: &'a Pair<'_>, port: u16, daemon: &str) -> Launch<'a> {
    let root = pages(pair);
    let configuration = format!(
        "daemon {daemon}; master_process on; worker_processes 2; pid {dir}/nginx.pid; error_log stderr error;
         user root;
         events {{ worker_connections 512; }}
         http {{
             access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000;
             client_body_temp_path {dir}; proxy_temp_path {dir}; fastcgi_temp_path {dir};
             uwsgi_temp_path {dir}; scgi_temp_path {dir};
             server {{
                 listen 127.0.0.1:{port}; root {root};
                 location /small {{ return 200 'small answer'; }}
             }}
         }}",
        dir = pair.instance.dir().display(),
        root = root.display(),
    );
    let file = pair.instance.scratch("nginx.conf");
    std::fs::write(&file, configuration).unwrap();
    let arguments = [
        "-p".into(),
        pair.instance.dir().as_os_str().to_owned(),
        "-c".into(),
        file.into(),
    ];
    pair.server("nginx", arguments)
}

/// Stops a daemon that nobody else stops.
struct Stop(u32);

impl Drop for Stop {
    fn drop(&mut self) {
        signal(self.0, Signal::SIGTERM);
        wait_until(Duration::from_secs(5), || {
            !Path::new(&format!("/proc/{}", self.0)).exists()
        });
    }
}

/// Started, it forks twice and lets the process go that `viaduct run` had become.
fn daemon(pair: &Pair<'_>) {
    let port = free_port();
    launch(pair, port, "on").run(PATIENCE).success();
    let file = pair.instance.scratch("nginx.pid");
    let number = || std::fs::read_to_string(&file).ok()?.trim().parse().ok();
    let started = wait_until(PATIENCE, || number().is_some_and(|pid| is_listening(pid, port)));
    let master: u32 = number().expect("a process number");
    let _stop = Stop(master);
    assert!(started, "nginx does not listen on {port}");

    let base = format!("http://127.0.0.1:{port}");
    let copy = pair.instance.scratch("copy");
    curl(pair, &format!("--output {} {base}/big.bin", copy.display()));
    assert!(is_big(&copy), "the body differs");
    pair.proved_at_length("nginx", || {
        assert!(wrk(pair, &["-t1", "-c16", "-d1s", &format!("{base}/page.html")]) > 100);
    });
    pair.prove(&["nginx"]);
}

pub(crate) fn curl(pair: &Pair<'_>, arguments: &str) -> String {
    let all = format!("--silent --show-error --fail --max-time 30 {arguments}");
    pair.client("curl", all.split_whitespace()).run(PATIENCE).success()
}

/// Whether the file holds what the big file holds.
pub(crate) fn is_big(file: &Path) -> bool {
    let bytes = std::fs::read(file).unwrap();
    bytes.len() == BIG && pattern::first_difference(1, 0, &bytes).is_none()
}

/// Runs wrk and returns the number of answers; none of them may be wrong.
pub(crate) fn wrk(pair: &Pair<'_>, arguments: &[&str]) -> u64 {
    let output = pair.client("wrk", arguments).run(PATIENCE).success();
    assert!(!output.contains("Non-2xx"), "{output}");
    assert!(!output.contains("Socket errors"), "{output}");
    answers(&output)
}

fn answers(output: &str) -> u64 {
    output
        .lines()
        .find_map(|line| line.split_once(" requests in ")?.0.trim().parse().ok())
        .unwrap_or_else(|| panic!("{output}"))
}

fn check(pair: &Pair<'_>) {
    let port = free_port();
    let server = start(pair, port);
    let base = format!("http://127.0.0.1:{port}");

    assert_eq!(curl(pair, &format!("{base}/small")), "small answer");
    let page = format!("{base}/page.html {base}/small {base}/page.html");
    assert_eq!(curl(pair, &page).len(), 20_012);
    let copy = pair.instance.scratch("copy");
    pair.proved("nginx", || {
        curl(pair, &format!("--output {} {base}/big.bin", copy.display()));
        assert!(is_big(&copy), "the body differs");
    });
    // A part from an odd offset, slowly, so that the server meets a full socket.
    let limited = format!(
        "--range 1234567-21234566 --limit-rate 20M --output {} {base}/big.bin",
        copy.display()
    );
    pair.proved_by_rows("nginx", "curl", Way::One, || curl(pair, &limited));
    let part = std::fs::read(&copy).unwrap();
    assert_eq!(part.len(), 20_000_000);
    assert_eq!(pattern::first_difference(1, 1_234_567, &part), None);

    let small = format!("{base}/small");
    let page = format!("{base}/page.html");
    for address in [&small, &page] {
        let answers = pair.proved_at_length("nginx", || wrk(pair, &["-t1", "-c16", "-d1s", address]));
        assert!(answers > 100, "{answers} answers");
        let what = address.rsplit('/').next().unwrap();
        pair.results.figure(&format!("wrk {what}"), answers as f64);
    }
    pair.proved_by_rows("nginx", "wrk", Way::Both, || wrk(pair, &["-t1", "-c16", "-d1s", &page]));
    // The workers that have served so far are witnesses; those of a new configuration begin anew.
    pair.prove(&["nginx"]);
    assert!(wrk(pair, &["-t1", "-c8", "-d1s", "-H", "Connection: close", &small]) > 100);
    reload_under_load(pair, &server, &small);
}

fn reload_under_load(pair: &Pair<'_>, server: &Program, url: &str) {
    let workers = |server: &Program| server.family()[1..].to_vec();
    let load = pair.client("wrk", ["-t1", "-c8", "-d2s", url]).spawn();
    for _ in 0..3 {
        let before = workers(server);
        std::thread::sleep(Duration::from_millis(300));
        server.signal(Signal::SIGHUP);
        let replaced = wait_until(Duration::from_secs(10), || {
            let now = workers(server);
            now.len() == 2 && now.iter().all(|worker| !before.contains(worker))
        });
        assert!(replaced, "old workers stay: {before:?}, {:?}", workers(server));
    }
    // Old workers close kept connections, which wrk counts as errors; what matters is that answers go on.
    let output = load.finish(PATIENCE).success();
    assert!(answers(&output) > 100, "{output}");
    assert!(!output.contains("Non-2xx"), "{output}");
    assert_eq!(curl(pair, url), "small answer");
}
