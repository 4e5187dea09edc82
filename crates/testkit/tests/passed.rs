//! Connections that one process opens or accepts and another goes on with.

use nix::sys::signal::Signal;
use std::path::Path;
use std::time::Duration;
use viaduct_control::Reason;
use viaduct_testkit::processes::{free_port, wait_until};
use viaduct_testkit::status::Row;
use viaduct_testkit::{Instance, Launch, Mode, Program, can_run};

const PATIENCE: Duration = Duration::from_secs(30);

/// `passer.py`, which says what the words mean.
fn start(mode: Mode<'_>, role: &str, port: u16, how: &str) -> Program {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/passed/programs/passer.py");
    let arguments = [script.to_str().unwrap(), role, &port.to_string(), how].map(str::to_owned);
    // Not at the first byte, which is the first process's: what had a lane there has none elsewhere.
    Launch::new(mode, "python3", arguments).options("--offer auto").spawn()
}

/// Two ends of one connection, whose processes go on with it in such a way.
struct Played {
    server: Program,
    client: Program,
}

impl Played {
    fn start(mode: Mode<'_>, serve: &str, ask: &str) -> Self {
        let port = free_port();
        let server = start(mode, "serve", port, serve).listening(port);
        let client = start(mode, "ask", port, ask);
        Self { server, client }
    }

    /// Waits until every byte of the first megabytes has come back.
    fn check(&self, what: &str) {
        let checked = wait_until(PATIENCE, || self.client.output().contains("checked"));
        let [server, client] = [&self.server, &self.client].map(Program::errors);
        assert!(checked, "{what}: {server} {client}");
    }

    /// Waits until the rows of those who have the connection now are as they should be.
    fn expect(&self, what: &str, instance: &Instance, condition: impl Fn(&[Row]) -> bool) {
        let last = |rows: &[Row]| -> Vec<Row> {
            [&self.server, &self.client]
                .into_iter()
                .filter_map(|program| {
                    let family = program.family();
                    let held = rows.iter().filter(|row| family.contains(&row.pid));
                    held.max_by_key(|row| row.bytes_sent).cloned()
                })
                .collect()
        };
        let told = instance.wait_for_status(PATIENCE, |rows| {
            let rows = last(rows);
            rows.len() == 2 && condition(&rows)
        });
        told.unwrap_or_else(|rows| panic!("{what}: {rows:#?}"));
    }
}

fn are_on_lanes(rows: &[Row]) -> bool {
    rows.iter()
        .all(|row| row.path == "shm" && row.reason == Reason::Accelerated.code())
}

/// Both on TCP, one of them because of `reason`.
fn are_on_tcp(rows: &[Row], reason: Reason) -> bool {
    rows.iter().all(|row| row.path == "tcp") && rows.iter().any(|row| row.reason == reason.code())
}

/// Natively, and then under Viaduct, where it comes to a lane at both ends.
#[test]
fn a_connection_that_is_passed_on_comes_to_a_lane() {
    if !can_run(true, &["python3"]) {
        return;
    }
    let ways = [
        ("closing", "itself"),
        ("itself", "closing"),
        ("closing", "closing"),
        ("twice", "itself"),
        ("itself", "twice"),
        ("becoming", "itself"),
        ("itself", "becoming"),
        ("itself", "waiting"),
        ("daemon", "itself"),
    ];
    for (serve, ask) in ways {
        let what = format!("{serve}, {ask}");
        Played::start(Mode::Native, serve, ask).check(&what);
        let instance = Instance::start();
        let played = Played::start(Mode::Accelerated(&instance), serve, ask);
        played.check(&what);
        played.expect(&what, &instance, are_on_lanes);
    }
}

/// As long as who has passed it on may go on using it, it stays on TCP.
#[test]
fn a_connection_that_is_passed_on_and_kept_waits_for_a_lane() {
    if !can_run(true, &["python3"]) {
        return;
    }
    for (serve, ask) in [("keeping", "itself"), ("itself", "keeping")] {
        let what = format!("{serve}, {ask}");
        let instance = Instance::start();
        let played = Played::start(Mode::Accelerated(&instance), serve, ask);
        played.check(&what);
        played.expect(&what, &instance, |rows| are_on_tcp(rows, Reason::PassedOn));
        let keeper = if serve == "keeping" {
            &played.server
        } else {
            &played.client
        };
        keeper.signal(Signal::SIGUSR1);
        played.expect(&what, &instance, are_on_lanes);
    }
}

/// What was done to it before its calls were seen is asked of the kernel.
#[test]
fn a_connection_that_is_passed_on_prepared_for_what_only_tcp_does_stays_there() {
    if !can_run(true, &["python3"]) {
        return;
    }
    for (how, reason) in [
        ("filtering", Reason::SocketOption),
        ("signalled", Reason::UnseenWait),
        ("copyless", Reason::ZeroCopy),
    ] {
        let instance = Instance::start();
        let played = Played::start(Mode::Accelerated(&instance), how, "itself");
        played.check(how);
        played.expect(how, &instance, |rows| are_on_tcp(rows, reason));
    }
}

/// The C library's streams read it unseen.
#[test]
fn a_connection_that_is_a_standard_input_stays_on_tcp() {
    if !can_run(true, &["python3"]) {
        return;
    }
    Played::start(Mode::Native, "streaming", "lines").check("natively");
    let instance = Instance::start();
    let played = Played::start(Mode::Accelerated(&instance), "streaming", "lines");
    played.check("accelerated");
    played.expect("accelerated", &instance, |rows| are_on_tcp(rows, Reason::Stdio));
}

/// Nobody counts who holds a socket where viaductd serves one user.
#[test]
fn a_connection_that_is_passed_on_stays_on_tcp_without_the_kernels_word() {
    if !can_run(true, &["python3"]) {
        return;
    }
    let instance = Instance::start_with(&["--same-user"]);
    let played = Played::start(Mode::Accelerated(&instance), "closing", "itself");
    played.check("same user");
    played.expect("same user", &instance, |rows| are_on_tcp(rows, Reason::PassedOn));
}
