//! iperf 2, whose server asks for the times when bytes come and never takes them: one stream, two at once, small
//! messages, both ways in turn.

use crate::{PATIENCE, Pair};
use viaduct_testkit::processes::free_port;

matrix!(check, "iperf");

fn check(pair: &Pair<'_>) {
    let port = free_port();
    let server = format!("-s -p {port} -B 127.0.0.1");
    let mut server = pair.server("iperf", server.split_whitespace()).spawn().listening(port);
    let both_ways = format!("-t 1 -r -L {}", free_port());
    for (options, least) in [
        ("-t 1", 1_000_000),
        ("-t 1 -P 2", 1_000_000),
        ("-n 100M -l 1000", 100 << 20),
        (&both_ways, 1_000_000),
    ] {
        let all = format!("-c 127.0.0.1 -p {port} -y C {options}");
        let output = pair.proved_at_length("iperf", || {
            pair.client("iperf", all.split_whitespace()).run(PATIENCE).success()
        });
        // One line a stream: the eighth field counts its bytes.
        let sent: u64 = output
            .lines()
            .map(|line| line.split(',').nth(7).unwrap().parse::<u64>().unwrap())
            .sum();
        assert!(sent >= least, "{options}: {sent} of {least} bytes: {output}");
    }
    assert!(server.is_running());
    pair.prove(&["iperf"]);
}
