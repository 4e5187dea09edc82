//! sockperf: ping-pong and throughput, which count lost, doubled and disordered messages.

use crate::{PATIENCE, Pair, Way};
use viaduct_testkit::processes::free_port;

matrix!(check, "sockperf");

fn check(pair: &Pair<'_>) {
    let port = free_port();
    let all = format!("sr --tcp -i 127.0.0.1 -p {port}");
    let _server = pair.server("sockperf", all.split_whitespace()).spawn().listening(port);
    // Room for more messages than it expects of TCP.
    for size in [14, 30_000] {
        let all = format!("pp --tcp -i 127.0.0.1 -p {port} -t 1 -m {size} --mps=4000000 --data-integrity");
        let output = pair.proved_at_length("sockperf", || {
            pair.client("sockperf", all.split_whitespace()).run(PATIENCE).success()
        });
        let counts = "dropped messages = 0; # duplicated messages = 0; # out-of-order messages = 0";
        assert!(output.contains(counts), "{size}: {output}");
        let (_, latency) = output
            .split_once("Summary: Latency is ")
            .unwrap_or_else(|| panic!("{output}"));
        let latency: f64 = latency.split(' ').next().unwrap().parse().unwrap();
        pair.results
            .figure(&format!("ping-pong of {size} bytes"), 1.0 / latency);
    }
    let all = format!("tp --tcp -i 127.0.0.1 -p {port} -t 1 -m 64");
    let output = pair.proved_at_length("sockperf", || {
        pair.client("sockperf", all.split_whitespace()).run(PATIENCE).success()
    });
    assert!(output.contains("Summary: BandWidth is"), "{output}");
    let all = format!("pp --tcp -i 127.0.0.1 -p {port} -t 1 -m 1000 --mps=4000000");
    pair.proved_by_rows("sockperf", "sockperf", Way::Both, || {
        pair.client("sockperf", all.split_whitespace()).run(PATIENCE).success()
    });
    pair.prove(&["sockperf"]);
}
