//! iperf3: one stream, in reverse, four streams at once.

use crate::{PATIENCE, Pair, Way};
use viaduct_testkit::processes::free_port;

matrix!(check, "iperf3");

fn check(pair: &Pair<'_>) {
    let port = free_port();
    let server = format!("-s -p {port} -B 127.0.0.1");
    let mut server = pair.server("iperf3", server.split_whitespace()).spawn().listening(port);
    for options in ["-t 1", "-t 1 -R", "-t 1 -P 4", "-n 300M -l 1000", "-t 1 -b 50M -l 200"] {
        let all = format!("-c 127.0.0.1 -p {port} -J {options}");
        let output = pair.proved_at_length("iperf3", || {
            pair.client("iperf3", all.split_whitespace()).run(PATIENCE).success()
        });
        let report: serde_json::Value = serde_json::from_str(&output).unwrap();
        assert_eq!(report["error"], serde_json::Value::Null, "{options}");
        let bytes = |side: &str| report["end"][side]["bytes"].as_u64().unwrap();
        let (sent, received) = (bytes("sum_sent"), bytes("sum_received"));
        // With a clock that ends the test what is still on its way is not counted.
        assert!(
            received > 1_000_000 && received <= sent,
            "{options}: {sent} sent, {received} received"
        );
        if options.starts_with("-n") {
            assert!(received >= 280_000_000, "{options}: {received}");
        }
    }
    for options in ["-t 1", "-t 1 -R"] {
        let all = format!("-c 127.0.0.1 -p {port} {options}");
        pair.proved_by_rows("iperf3", "iperf3", Way::One, || {
            pair.client("iperf3", all.split_whitespace()).run(PATIENCE).success()
        });
    }
    assert!(server.is_running());
    pair.prove(&["iperf3"]);
}
