//! memcached with libmemcached's own clients.

use crate::{PATIENCE, Pair, Way, letters};
use viaduct_testkit::processes::free_port;

matrix!(check, "memcached", "memcslap", "memccp", "memccat");

fn check(pair: &Pair<'_>) {
    let port = free_port();
    let arguments = format!("-p {port} -U 0 -l 127.0.0.1 -t 2 -m 512 -I 8m -u root");
    let _server = pair
        .server("memcached", arguments.split_whitespace())
        .spawn()
        .listening(port);
    let servers = format!("--servers=127.0.0.1:{port}");

    for size in [10, 10_000, 900_000] {
        let file = pair.instance.scratch("value");
        let value = letters(size);
        std::fs::write(&file, &value).unwrap();
        pair.client("memccp", [servers.as_str().into(), file.as_os_str().to_owned()])
            .run(PATIENCE)
            .success();
        let copy = pair
            .client("memccat", [servers.as_str(), "value"])
            .run(PATIENCE)
            .success();
        assert!(copy.trim_end() == value, "{size} bytes");
    }
    let load = |test: &str, count: u32| {
        // So many that one reply to all keys is long beside what the server sends before its connection has a lane.
        let all = format!("{servers} --concurrency=4 --execute-number={count} --initial-load=10000 --test={test}");
        pair.client("memcslap", all.split_whitespace()).run(PATIENCE).success()
    };
    for test in ["set", "get", "mget"] {
        pair.proved_at_length("memcached", || load(test, 10_000));
    }
    pair.proved_by_rows("memcached", "memcslap", Way::Both, || load("set", 50_000));
    pair.prove(&["memcached"]);
}
