//! Redis: values of all sizes, transactions, publish and subscribe, snapshots under load, replication, and its
//! benchmark.

use crate::{PATIENCE, Pair, Way, letters};
use std::path::Path;
use std::time::Duration;
use viaduct_testkit::Program;
use viaduct_testkit::processes::{free_port, wait_until};

matrix!(check, "redis-server", "redis-cli", "redis-benchmark");

pub(crate) fn start(pair: &Pair<'_>, port: u16, dir: &Path, more: &str) -> Program {
    std::fs::create_dir_all(dir).unwrap();
    let arguments = format!(
        "--port {port} --bind 127.0.0.1 --save --appendonly no --enable-debug-command yes --loglevel warning {more} --dir"
    );
    let arguments = arguments.split_whitespace().map(Into::into);
    pair.server("redis-server", arguments.chain([dir.as_os_str().to_owned()]))
        .spawn()
        .listening(port)
}

/// Runs `redis-cli` on a file of commands or with the file as the last argument's value.
pub(crate) fn cli(pair: &Pair<'_>, port: u16, arguments: &str, input: &str) -> String {
    let file = pair.instance.scratch("redis-input");
    std::fs::write(&file, input).unwrap();
    let all = format!("-p {port} --raw {arguments}");
    pair.client("redis-cli", all.split_whitespace())
        .input(&file)
        .run(PATIENCE)
        .success()
}

fn info(pair: &Pair<'_>, port: u16, field: &str) -> String {
    cli(pair, port, "info", "")
        .lines()
        .find_map(|line| {
            line.strip_prefix(field)?
                .strip_prefix(':')
                .map(|value| value.trim().to_owned())
        })
        .unwrap_or_default()
}

fn benchmark<'a>(pair: &'a Pair<'_>, port: u16, arguments: &str) -> viaduct_testkit::Launch<'a> {
    let all = format!("-p {port} --csv {arguments}");
    pair.client("redis-benchmark", all.split_whitespace())
}

fn check(pair: &Pair<'_>) {
    let port = free_port();
    let _server = start(pair, port, &pair.instance.scratch("primary"), "");

    values_come_back(pair, port);
    transactions(pair, port);
    publish_and_subscribe(pair, port);
    for (arguments, results) in [
        ("-t set,get,lpush,lrange_100,mset -n 20000 -c 20 -d 100", 5),
        ("-t set,get -n 50000 -c 10 -P 16 -d 1000 -r 1000", 2),
    ] {
        let output = pair.proved_at_length("redis-server", || {
            benchmark(pair, port, arguments).run(PATIENCE).success()
        });
        assert!(output.lines().count() >= results, "{output}");
        let rate = |name: &str| {
            output
                .lines()
                .find_map(|line| line.strip_prefix(name)?.split('"').next()?.parse().ok())
        };
        if let Some(rate) = rate("\"GET\",\"") {
            pair.results.figure(&format!("redis-benchmark {arguments}"), rate);
        }
    }
    pair.proved_by_rows("redis-server", "redis-benchmark", Way::Both, || {
        let load = "-t set,get -n 200000 -c 10 -P 4 -d 1000";
        benchmark(pair, port, load).run(PATIENCE).success()
    });
    snapshot_under_load(pair, port);
    if pair.is_uniform() {
        replication(pair, port);
    }

    pair.prove(&["redis-server"]);
}

fn values_come_back(pair: &Pair<'_>, port: u16) {
    for size in [1, 100, 16_383, 70_000, 5_000_000] {
        let value = letters(size);
        assert_eq!(cli(pair, port, "-x set big", &value).trim(), "OK");
        // As redis-cli prints it, with one line feed of its own.
        assert!(cli(pair, port, "get big", "").trim_end() == value, "{size} bytes");
    }
    let value = pair.proved("redis-server", || cli(pair, port, "get big", ""));
    assert_eq!(value.trim_end().len(), 5_000_000);
}

fn transactions(pair: &Pair<'_>, port: u16) {
    let commands = "MULTI\nINCR counter\nINCRBY counter 41\nEXEC\nGET counter\n";
    let output = cli(pair, port, "", commands);
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines, ["OK", "QUEUED", "QUEUED", "1", "42", "42"]);
}

fn publish_and_subscribe(pair: &Pair<'_>, port: u16) {
    let subscribe = format!("-p {port} --raw subscribe news");
    let subscriber = pair.client("redis-cli", subscribe.split_whitespace()).spawn();
    let there = wait_until(Duration::from_secs(10), || {
        cli(pair, port, "pubsub numsub news", "").trim().ends_with('1')
    });
    assert!(there, "nobody subscribed");
    let messages: String = (0..200)
        .map(|number| format!("PUBLISH news message-{number}\n"))
        .collect();
    cli(pair, port, "", &messages);
    let last = wait_until(Duration::from_secs(10), || {
        subscriber.output().contains("message-199\n")
    });
    assert!(last, "{}", subscriber.output());
    let output = subscriber.output();
    let heard: Vec<&str> = output.lines().filter(|line| line.starts_with("message-")).collect();
    let said: Vec<String> = (0..200).map(|number| format!("message-{number}")).collect();
    assert_eq!(heard, said);
}

fn snapshot_under_load(pair: &Pair<'_>, port: u16) {
    let load = benchmark(pair, port, "-t set,get -n 60000 -c 10 -d 500 -r 5000").spawn();
    for _ in 0..3 {
        cli(pair, port, "bgsave", "");
        let done = wait_until(Duration::from_secs(20), || {
            info(pair, port, "rdb_bgsave_in_progress") == "0"
        });
        assert!(done, "the snapshot does not end");
        assert_eq!(info(pair, port, "rdb_last_bgsave_status"), "ok");
    }
    load.finish(PATIENCE).success();
}

fn replication(pair: &Pair<'_>, port: u16) {
    let second = free_port();
    let replica_of = format!("--replicaof 127.0.0.1 {port} --repl-diskless-sync-delay 0");
    let _replica = start(pair, second, &pair.instance.scratch("replica"), &replica_of);
    let up = wait_until(Duration::from_secs(20), || {
        info(pair, second, "master_link_status") == "up"
    });
    assert!(up, "the replica does not come up");
    benchmark(pair, port, "-t set -n 10000 -c 5 -d 200 -r 1000")
        .run(PATIENCE)
        .success();
    let own = cli(pair, port, "debug digest", "");
    let same = wait_until(Duration::from_secs(20), || cli(pair, second, "debug digest", "") == own);
    assert!(same, "the replica differs");
}
