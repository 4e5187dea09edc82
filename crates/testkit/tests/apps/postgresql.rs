//! PostgreSQL: bulk copies both ways, and pgbench, whose transactions keep four sums equal.

use crate::{PATIENCE, Pair};
use nix::sys::signal::Signal;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use viaduct_testkit::processes::free_port;
use viaduct_testkit::{Launch, Program};

matrix!(root check, "pgbench", "psql", "setpriv");

/// The directory of the server's programs, which Debian keeps out of the path; the newest version's.
pub(crate) fn programs() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL is installed");
    let newest = versions.map(|version| version.unwrap().path()).max();
    newest.expect("PostgreSQL is installed").join("bin")
}

/// The server refuses to be root.
const AS_OTHER: &str = "--reuid=postgres --regid=postgres --clear-groups";

/// A fresh data directory, made once and copied for each server.
fn data(to: &Path) {
    static MADE: OnceLock<tempfile::TempDir> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let data = dir.path().join("data");
        run("install", &format!("-d -o postgres -g postgres {}", data.display()));
        let initdb = programs().join("initdb").display().to_string();
        let all = format!(
            "{AS_OTHER} {initdb} -A trust -N -E UTF8 --locale=C -D {}",
            data.display()
        );
        run("setpriv", &all);
        dir
    });
    run("cp", &format!("-a {}/data {}", made.path().display(), to.display()));
}

fn run(program: &str, arguments: &str) {
    let mut command = Command::new(program);
    let output = command
        .args(arguments.split_whitespace())
        .current_dir("/")
        .output()
        .unwrap();
    assert!(output.status.success(), "{program}: {output:?}");
}

pub(crate) fn start(pair: &Pair<'_>, port: u16) -> Program {
    // Its user must be able to reach the socket of viaductd.
    std::fs::set_permissions(pair.instance.dir(), PermissionsExt::from_mode(0o755)).unwrap();
    let directory = pair.instance.scratch("data");
    data(&directory);
    let all = format!(
        "{AS_OTHER} {postgres} -D {data} -p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off",
        postgres = programs().join("postgres").display(),
        data = directory.display()
    );
    pair.server("setpriv", all.split_whitespace())
        .directory(Path::new("/"))
        // Killed, it leaves segments of its own in /dev/shm.
        .farewell(Signal::SIGINT)
        .spawn()
        .listening(port)
}

/// A client program that connects to `port`.
pub(crate) fn client<'a>(pair: &'a Pair<'_>, program: &str, port: u16, arguments: &str) -> Launch<'a> {
    let all = format!("-h 127.0.0.1 -p {port} -U postgres {arguments}");
    Launch::new(pair.client, programs().join(program), all.split_whitespace())
}

/// Transactions a second, as pgbench reports them.
fn rate(report: &str) -> f64 {
    let line = report.lines().find_map(|line| line.strip_prefix("tps = ")).unwrap();
    line.split(' ').next().unwrap().parse().unwrap()
}

/// The server's own shared memory that has a name.
fn segments(server: u32) -> BTreeSet<PathBuf> {
    let maps = std::fs::read_to_string(format!("/proc/{server}/maps")).unwrap();
    let files = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    files
        .filter(|file| file.starts_with("/dev/shm/PostgreSQL."))
        .map(PathBuf::from)
        .collect()
}

fn check(pair: &Pair<'_>) {
    let port = free_port();
    let server = start(pair, port);
    let sql = |text: &str| {
        let file = pair.instance.scratch("sql");
        std::fs::write(&file, text).unwrap();
        client(pair, "psql", port, "-q -A -t -v ON_ERROR_STOP=1 postgres")
            .input(&file)
            .run(PATIENCE)
            .success()
    };

    let mut rows = String::new();
    for number in 0..300_000_u64 {
        let _ = writeln!(rows, "{number}\t{}", number * number);
    }
    sql(&format!(
        "CREATE TABLE t (k int, v bigint); COPY t FROM STDIN;\n{rows}\\.\n"
    ));
    assert!(sql("COPY t TO STDOUT") == rows, "rows are missing or wrong");
    assert_eq!(sql("SELECT length(repeat('x', 20000000))").trim(), "20000000");
    assert!(sql("SELECT repeat('x', 20000000)").trim() == "x".repeat(20_000_000));

    client(pair, "pgbench", port, "-i -q -s 2 postgres")
        .run(PATIENCE)
        .success();
    for more in [
        "-S -c 1 -t 3000",
        "-S -c 8 -t 500 -M prepared",
        "-c 4 -j 2 -t 300",
        "-S -C -c 2 -t 40",
    ] {
        let report = client(pair, "pgbench", port, &format!("-n {more} postgres"))
            .run(PATIENCE)
            .success();
        assert!(report.contains("number of failed transactions: 0"), "{report}");
        pair.results.figure(&format!("pgbench {more}"), rate(&report));
    }
    let sums = sql(
        "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers), \
         (SELECT sum(bbalance) FROM pgbench_branches), (SELECT sum(delta) FROM pgbench_history), \
         (SELECT count(*) FROM pgbench_history)",
    );
    let sums: Vec<&str> = sums.trim().split('|').collect();
    assert!(
        sums[..4].iter().all(|sum| *sum == sums[0]) && sums[4] == "1200",
        "{sums:?}"
    );

    let long = client(pair, "pgbench", port, "-n -S -c 2 -T 2 postgres");
    let report = pair.proved_meanwhile("postgres", long).success();
    assert!(report.contains("number of failed transactions: 0"), "{report}");

    let segments = segments(server.pid());
    assert!(!segments.is_empty());
    drop(server);
    let left: Vec<_> = segments.into_iter().filter(|segment| segment.exists()).collect();
    assert!(left.is_empty(), "{left:?}");
}
