//! The experiments with databases. Each makes its data once, natively, and all runs use it.

use super::work::{Counted, Measurement, PATIENCE, Run};
use crate::bench::parse;
use crate::bench::program::{How, Launch, Program, free_port};
use anyhow::{Context, Result};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// What mysqlslap asks for, one row of ten thousand.
const POINT_SELECT: &str = "SELECT v FROM t WHERE k = 4321";
const TABLE: &str = "CREATE DATABASE bench; CREATE TABLE bench.t (k INT PRIMARY KEY, v VARCHAR(100)); \
    INSERT INTO bench.t SELECT seq, REPEAT('v', 100) FROM bench.seq_1_to_10000";

impl Run<'_> {
    /// pgbench's point selects on one connection.
    pub(super) fn postgresql(self) -> Result<Measurement> {
        let data = self.data("postgresql", postgresql_data)?;
        let port = free_port()?;
        let server = postgres(self.server, &data, port)?;
        let host = match self.unix {
            true => data.as_path(),
            false => Path::new("127.0.0.1"),
        };
        let client = pgbench(self.client, host, port)?.args(&format!("-n -S -c 1 -T {} postgres", self.seconds));
        let (outcome, measurement) = self.load(&server, client, f64::from(self.seconds))?;
        let (value, work) = parse::pgbench(&outcome.output).context("pgbench met errors, or is not understood")?;
        Ok(Measurement {
            value,
            work,
            ..measurement
        })
    }

    /// mysqlslap's point selects on one connection, or on one for each ten.
    pub(super) fn mariadb(self, reconnect: bool) -> Result<Measurement> {
        let data = self.data("mariadb", mariadb_data)?;
        let port = free_port()?;
        let server = mariadbd(self.server, &data, port)?;
        let client = |queries: u64| -> Result<Launch<'_>> {
            let client = Launch::new(self.client, "mysqlslap")?.args("--no-defaults --user=root --concurrency=1");
            let client = match self.unix {
                true => client.arg("--protocol=socket").arg("--socket").arg(data.join("socket")),
                false => client.args(&format!("--protocol=tcp --host=127.0.0.1 --port={port}")),
            };
            let client = match reconnect {
                true => client.arg("--detach=10"),
                false => client,
            };
            Ok(client
                .args(&format!("--create-schema=bench --number-of-queries={queries} --query"))
                .arg(POINT_SELECT))
        };
        self.counted(&server, client, 3_000, |text, queries| {
            Some(Counted {
                rate: queries as f64 / parse::mysqlslap(text)?,
                details: BTreeMap::new(),
            })
        })
    }

    /// The directory with the data that `make` makes unless it is there.
    fn data(self, name: &str, make: fn(&Path) -> Result<()>) -> Result<PathBuf> {
        let ready = self.instance.dir().join(name);
        if !ready.exists() {
            // Another user's server must be able to reach its data, and viaductd.
            fs::set_permissions(self.instance.dir(), Permissions::from_mode(0o755))?;
            let unfinished = self.instance.dir().join(format!("{name}-unfinished"));
            if unfinished.exists() {
                fs::remove_dir_all(&unfinished)?;
            }
            make(&unfinished)?;
            fs::rename(&unfinished, &ready)?;
        }
        Ok(ready)
    }
}

/// One of PostgreSQL's own programs that refuse to be root.
fn unprivileged<'a>(how: How<'a>, program: &str) -> Result<Launch<'a>> {
    if !rustix::process::geteuid().is_root() {
        return Launch::new(how, program);
    }
    let program = crate::bench::program::find(program).with_context(|| format!("{program} is not installed"))?;
    let launch = Launch::new(how, "setpriv")?.args("--reuid=postgres --regid=postgres --clear-groups");
    Ok(launch.arg(program))
}

fn postgresql_data(directory: &Path) -> Result<()> {
    fs::create_dir(directory)?;
    if rustix::process::geteuid().is_root() {
        let chown = Launch::new(How::Plain, "chown")?
            .arg("postgres:postgres")
            .arg(directory);
        chown.spawn()?.finish(PATIENCE)?;
    }
    let initdb = unprivileged(How::Plain, "initdb")?.args("-A trust -U postgres -N -E UTF8 --locale=C -D");
    initdb.arg(directory).spawn()?.finish(PATIENCE)?;
    let port = free_port()?;
    let _server = postgres(How::Plain, directory, port)?;
    let fill = pgbench(How::Plain, directory, port)?.args("-i -q postgres");
    fill.spawn()?.finish(PATIENCE).map(drop)
}

fn postgres<'a>(how: How<'a>, data: &Path, port: u16) -> Result<Program> {
    let place = data.display();
    unprivileged(how, "postgres")?
        .arg("-D")
        .arg(data)
        .args(&format!("-p {port} -c listen_addresses=127.0.0.1 -c fsync=off -c"))
        .arg(format!("unix_socket_directories={place}"))
        // At SIGTERM it waits for clients; killed after that, it leaves segments of its own in /dev/shm.
        .farewell(Signal::INT)
        .spawn()?
        .listening(port)
}

fn pgbench<'a>(how: How<'a>, host: &Path, port: u16) -> Result<Launch<'a>> {
    let launch = Launch::new(how, "pgbench")?.arg("-h").arg(host);
    Ok(launch.args(&format!("-p {port} -U postgres")))
}

fn mariadb_data(directory: &Path) -> Result<()> {
    fs::create_dir(directory)?;
    let install = Launch::new(How::Plain, "mariadb-install-db")?.args("--no-defaults --skip-test-db");
    let install = as_root(install).arg("--datadir").arg(directory);
    install.spawn()?.finish(PATIENCE)?;
    let _server = mariadbd(How::Plain, directory, free_port()?)?;
    let fill = Launch::new(How::Plain, "mariadb")?.args("--no-defaults --user=root --socket");
    let fill = fill.arg(directory.join("socket")).arg("--execute").arg(TABLE);
    fill.spawn()?.finish(PATIENCE).map(drop)
}

fn mariadbd<'a>(how: How<'a>, data: &Path, port: u16) -> Result<Program> {
    let server = as_root(Launch::new(how, "mariadbd")?.arg("--no-defaults"))
        .arg("--datadir")
        .arg(data)
        .arg("--socket")
        .arg(data.join("socket"))
        .args(&format!("--port={port} --bind-address=127.0.0.1"))
        .args("--skip-name-resolve --skip-grant-tables");
    server.spawn()?.listening(port)
}

/// MariaDB's programs want to be told if root is meant.
fn as_root(launch: Launch<'_>) -> Launch<'_> {
    match rustix::process::geteuid().is_root() {
        true => launch.arg("--user=root"),
        false => launch,
    }
}
