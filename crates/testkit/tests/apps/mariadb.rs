//! MariaDB: rows and results of all sizes, and its own load generator.

use crate::{PATIENCE, Pair, letters};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use viaduct_testkit::Program;
use viaduct_testkit::processes::free_port;

matrix!(root check, "mariadbd", "mariadb-install-db", "mariadb", "mysqlslap");

/// A fresh data directory, made once and copied for each server.
fn data(to: &Path) {
    static MADE: OnceLock<tempfile::TempDir> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let all = format!(
            "--no-defaults --user=root --skip-test-db --datadir={}",
            dir.path().display()
        );
        run("mariadb-install-db", &all);
        dir
    });
    run("cp", &format!("-a {}/. {}", made.path().display(), to.display()));
}

fn run(program: &str, arguments: &str) {
    let output = Command::new(program)
        .args(arguments.split_whitespace())
        .output()
        .unwrap();
    assert!(output.status.success(), "{program}: {output:?}");
}

fn start(pair: &Pair<'_>, port: u16) -> Program {
    let directory = pair.instance.scratch("data");
    std::fs::create_dir_all(&directory).unwrap();
    data(&directory);
    let all = format!(
        "--no-defaults --user=root --datadir={data} --port={port} --bind-address=127.0.0.1 --socket={data}/socket \
         --skip-name-resolve --skip-grant-tables --innodb-flush-log-at-trx-commit=2 --max-allowed-packet=64M",
        data = directory.display()
    );
    pair.server("mariadbd", all.split_whitespace()).spawn().listening(port)
}

fn check(pair: &Pair<'_>) {
    let port = free_port();
    let _server = start(pair, port);
    let to = format!("--no-defaults --host=127.0.0.1 --port={port} --protocol=tcp --user=root");
    let sql = |text: &str| {
        let file = pair.instance.scratch("sql");
        std::fs::write(&file, text).unwrap();
        let all = format!("{to} --batch --skip-column-names --quick --max-allowed-packet=64M");
        pair.client("mariadb", all.split_whitespace())
            .input(&file)
            .run(PATIENCE)
            .success()
    };

    sql("CREATE DATABASE d; CREATE TABLE d.t (k INT PRIMARY KEY, v LONGTEXT)");
    for (key, size) in [1, 1000, 100_000, 5_000_000].into_iter().enumerate() {
        let value = letters(size);
        sql(&format!("INSERT INTO d.t VALUES ({key}, '{value}')"));
        assert!(
            sql(&format!("SELECT v FROM d.t WHERE k = {key}")).trim_end() == value,
            "{size} bytes"
        );
    }
    let rows = sql("USE d; SELECT seq, seq * seq FROM seq_1_to_100000");
    let right = (1..=100_000_u64).map(|number| format!("{number}\t{}\n", number * number));
    assert!(rows == right.collect::<String>(), "rows are missing or wrong");

    for more in [
        "--concurrency=1 --number-of-queries=2000 --auto-generate-sql-load-type=key",
        "--concurrency=8 --number-of-queries=2000 --auto-generate-sql-load-type=mixed",
        "--concurrency=4 --number-of-queries=500 --auto-generate-sql-load-type=write --detach=10",
    ] {
        let all = format!("{to} --auto-generate-sql --auto-generate-sql-add-autoincrement {more}");
        let client = || pair.client("mysqlslap", all.split_whitespace()).run(PATIENCE).success();
        // A connection for every ten queries is no long load.
        let report = if more.contains("--detach") {
            pair.proved("mariadbd", client)
        } else {
            pair.proved_at_length("mariadbd", client)
        };
        let time = report.lines().find_map(|line| {
            line.trim()
                .strip_prefix("Average number of seconds to run all queries: ")
        });
        let time: f64 = time.unwrap().split(' ').next().unwrap().parse().unwrap();
        let what = more.split(' ').next().unwrap().trim_start_matches("--");
        pair.results.figure(&format!("mysqlslap {what}"), 1.0 / time.max(0.001));
    }
    pair.prove(&["mariadbd"]);
}
