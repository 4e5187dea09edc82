//! HAProxy in front of nginx.

use crate::{Pair, Way, nginx};
use viaduct_testkit::processes::free_port;

matrix!(check, "haproxy", "nginx", "curl", "wrk");

fn check(pair: &Pair<'_>) {
    let (backend, frontend) = (free_port(), free_port());
    let _nginx = nginx::start(pair, backend);
    let configuration = format!(
        "global
             nbthread 2
         defaults
             mode http
             timeout connect 5s
             timeout client 20s
             timeout server 20s
         frontend front
             bind 127.0.0.1:{frontend}
             default_backend back
         backend back
             server one 127.0.0.1:{backend}\n"
    );
    let file = pair.instance.scratch("haproxy.cfg");
    std::fs::write(&file, configuration).unwrap();
    let _haproxy = pair
        .server("haproxy", ["-db".into(), "-f".into(), file.into_os_string()])
        .spawn()
        .listening(frontend);
    let base = format!("http://127.0.0.1:{frontend}");

    assert_eq!(nginx::curl(pair, &format!("{base}/small")), "small answer");
    let copy = pair.instance.scratch("copy");
    pair.proved("nginx", || {
        nginx::curl(pair, &format!("--output {} {base}/big.bin", copy.display()));
        assert!(nginx::is_big(&copy), "the body differs");
    });
    let small = format!("{base}/small");
    let answers = pair.proved_at_length("haproxy", || nginx::wrk(pair, &["-t1", "-c16", "-d1s", &small]));
    assert!(answers > 100, "{answers} answers");
    pair.results.figure("wrk small", answers as f64);
    // Both sides of the proxy, its clients' connections and its own, carry what nginx sends.
    for (server, client) in [("haproxy", "wrk"), ("nginx", "haproxy")] {
        pair.proved_by_rows_to(server, client, Way::Both, "nginx", || {
            nginx::wrk(pair, &["-t1", "-c16", "-d1s", &small])
        });
    }
    assert!(nginx::wrk(pair, &["-t1", "-c8", "-d1s", "-H", "Connection: close", &small]) > 100);

    // Behind an accelerated proxy the way to an accelerated nginx is fast whoever the client is.
    if pair.is_accelerated() {
        pair.prove(&["nginx", "haproxy"]);
        // What HAProxy has beyond nginx's bytes is its clients'.
        assert!(pair.fast_bytes("haproxy") > pair.fast_bytes("nginx"));
    }
}
