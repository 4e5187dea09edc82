//! Apache httpd with its two common process models, wget, curl and wrk.

use crate::nginx::{curl, is_big, pages, wrk};
use crate::{PATIENCE, Pair};
use viaduct_testkit::Program;
use viaduct_testkit::processes::free_port;

mod prefork {
    matrix!(super::prefork, "apache2", "wget", "curl", "wrk");
}

mod event {
    matrix!(super::event, "apache2", "wget", "curl", "wrk");
}

fn prefork(pair: &Pair<'_>) {
    check(pair, "prefork");
}

fn event(pair: &Pair<'_>) {
    check(pair, "event");
}

fn start(pair: &Pair<'_>, port: u16, model: &str) -> Program {
    let root = pages(pair);
    // With fewer, the parent ends an idle child by connecting to itself, which is a pair of the server's own.
    let spare = if model == "prefork" { "MaxSpareServers 256" } else { "" };
    let configuration = format!(
        "ServerName localhost
         Listen 127.0.0.1:{port}
         LoadModule mpm_{model}_module /usr/lib/apache2/modules/mod_mpm_{model}.so
         LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
         PidFile {dir}/apache.pid
         DefaultRuntimeDir {dir}
         ErrorLog /dev/stderr
         DocumentRoot {root}
         EnableSendfile On
         KeepAlive On
         MaxKeepAliveRequests 0
         StartServers 2
         {spare}\n",
        dir = pair.instance.dir().display(),
        root = root.display(),
    );
    let file = pair.instance.scratch("apache.conf");
    std::fs::write(&file, configuration).unwrap();
    pair.server(
        "apache2",
        ["-D".into(), "FOREGROUND".into(), "-f".into(), file.into_os_string()],
    )
    .spawn()
    .listening(port)
}

fn check(pair: &Pair<'_>, model: &str) {
    let port = free_port();
    let mut server = start(pair, port, model);
    let base = format!("http://127.0.0.1:{port}");
    let page = format!("{base}/page.html");
    let copy = pair.instance.scratch("copy");

    curl(pair, &format!("--output {} {base}/big.bin", copy.display()));
    assert!(is_big(&copy), "curl's body differs");
    let _ = std::fs::remove_file(&copy);
    let all = format!("-q -T 20 -t 1 -O {} {base}/big.bin", copy.display());
    pair.client("wget", all.split_whitespace()).run(PATIENCE).success();
    assert!(is_big(&copy), "wget's body differs");
    let pages = format!("-q -T 20 -t 1 -O - {page} {page} {page}");
    let text = pair.client("wget", pages.split_whitespace()).run(PATIENCE).success();
    assert_eq!(text, "p".repeat(30_000));

    let answers = pair.proved_at_length("apache2", || wrk(pair, &["-t1", "-c16", "-d1s", &page]));
    assert!(answers > 100, "{answers} answers");
    pair.results.figure("wrk page.html", answers as f64);
    assert!(wrk(pair, &["-t1", "-c8", "-d1s", "-H", "Connection: close", &page]) > 100);
    assert!(server.is_running());
    pair.prove(&["apache2"]);
}
