//! Unmodified programs, each with its own traffic verified: native first, which proves the test itself; accelerated on
//! both sides, with proof of the path; and one side accelerated only, which must work and stay on TCP.

/// Four tests of one check, which may need root.
macro_rules! matrix {
    (@tests $root:literal, $check:path, $($program:literal),+) => {
        #[test]
        fn native() {
            crate::on(false, false, $root, &[$($program),+], $check);
        }

        #[test]
        fn accelerated() {
            crate::on(true, true, $root, &[$($program),+], $check);
        }

        #[test]
        fn only_the_client_accelerated() {
            crate::on(false, true, $root, &[$($program),+], $check);
        }

        #[test]
        fn only_the_server_accelerated() {
            crate::on(true, false, $root, &[$($program),+], $check);
        }
    };
    (root $check:path, $($program:literal),+) => {
        matrix!(@tests true, $check, $($program),+);
    };
    ($check:path, $($program:literal),+) => {
        matrix!(@tests false, $check, $($program),+);
    };
}

mod apache;
mod ftp;
mod go;
mod haproxy;
mod iperf;
mod iperf2;
mod java;
mod mariadb;
mod memcached;
mod musl;
mod nginx;
mod node;
mod openmpi;
mod php;
mod postgresql;
mod python;
mod redis;
mod results;
mod rows;
mod rsync;
mod soak;
mod sockperf;
mod ssh;
mod telnet;
mod valgrind;

use results::Results;
use rows::Way;
use std::path::Path;
use std::time::Duration;
use viaduct_testkit::processes::{free_port, wait_until};
use viaduct_testkit::status::Totals;
use viaduct_testkit::{Instance, Launch, Mode, Outcome, pattern};

/// How long a program may take for what it does in a second or two.
const PATIENCE: Duration = Duration::from_secs(40);

/// The least share of a long load's bytes that goes over shared memory, and how many loads may fall short of it where
/// others take the processors.
const LONG_SHARE: f64 = 0.9;
const LONG_TRIES: usize = 3;

/// The least share of a load's bytes that the rows of both ends tell of while it lasts, and how many loads may fall
/// short of it: the last look may be some time before the end.
const ROWS_SHARE: f64 = 0.5;
const ROWS_TRIES: usize = 5;

/// A text of `size` letters that does not repeat soon.
fn letters(size: usize) -> String {
    let alphabet = "abcdefghijklmnopqrstuvwxyz0123456789_";
    alphabet.chars().cycle().step_by(7).take(size).collect()
}

/// Checkable bytes.
fn bytes(size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    pattern::fill(1, 0, &mut bytes);
    bytes
}

/// A server and a client, each native or accelerated.
struct Pair<'a> {
    server: Mode<'a>,
    client: Mode<'a>,
    instance: &'a Instance,
    results: Results,
}

impl Pair<'_> {
    fn server<I>(&self, program: &str, arguments: I) -> Launch<'_>
    where
        I: IntoIterator,
        I::Item: Into<std::ffi::OsString>,
    {
        Launch::new(self.server, program, arguments)
    }

    fn client<I>(&self, program: &str, arguments: I) -> Launch<'_>
    where
        I: IntoIterator,
        I::Item: Into<std::ffi::OsString>,
    {
        Launch::new(self.client, program, arguments)
    }

    fn is_accelerated(&self) -> bool {
        matches!((self.server, self.client), (Mode::Accelerated(_), Mode::Accelerated(_)))
    }

    /// Whether no end of one kind can meet one of the other.
    fn is_uniform(&self) -> bool {
        matches!(
            (self.server, self.client),
            (Mode::Accelerated(_), Mode::Accelerated(_)) | (Mode::Native, Mode::Native)
        )
    }

    /// Runs `client`. With both sides accelerated, bytes of its connections must have gone over shared memory, of which
    /// the living program `server` at the other end is witness: a direction is only moved there when both ends hold the
    /// segment. A client that ends before its connections are matched has done nothing wrong, and is run again.
    fn proved<T>(&self, server: &str, client: impl Fn() -> T) -> T {
        const RUNS: usize = 5;
        if !self.is_accelerated() {
            return client();
        }
        for _ in 0..RUNS {
            let before = self.fast_bytes(server);
            let result = client();
            if wait_until(Duration::from_secs(1), || self.fast_bytes(server) > before) {
                return result;
            }
        }
        panic!(
            "no byte of {RUNS} clients of {server} went over shared memory: {:#?}",
            self.instance.totals()
        );
    }

    /// `program` runs the echo `script` in each of its ways as the server, and in each as the client.
    fn echo_each_way(&self, program: &str, script: &str, ways: &[&str]) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/apps/programs")
            .join(script);
        for server in ways {
            let port = free_port();
            let words = |role: &str, way: &str| {
                [script.to_string_lossy().as_ref(), role, way, &port.to_string()].map(str::to_owned)
            };
            let _server = self.server(program, words("server", server)).spawn().listening(port);
            for client in ways {
                let run = || self.client(program, words("client", client)).run(PATIENCE).success();
                let output = self.proved(program, run);
                assert!(
                    output.contains("all messages came back"),
                    "{server}, {client}: {output}"
                );
            }
            self.prove(&[program]);
        }
    }

    /// Runs a client whose load lasts. With both sides accelerated, most of the bytes that living processes of `server`
    /// carry meanwhile must go over shared memory: what goes over TCP is the beginning of each connection.
    fn proved_at_length<T>(&self, server: &str, client: impl Fn() -> T) -> T {
        if !self.is_accelerated() {
            return client();
        }
        let carried = || (self.bytes(server), self.fast_bytes(server));
        for _ in 0..LONG_TRIES {
            let before = carried();
            let result = client();
            let after = carried();
            let (all, fast) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
            println!("{fast} of {all} bytes of {server} went over shared memory");
            if fast as f64 >= LONG_SHARE * all as f64 && fast > 0 {
                return result;
            }
        }
        panic!(
            "too few bytes of {server} went over shared memory: {:#?}",
            self.instance.totals()
        );
    }

    /// Runs a client while its connections to `server` are looked at. With both sides accelerated, the client's own row
    /// and the server's for the other end must tell of shared memory, and such pairs of rows of the greater part of
    /// what the server carries.
    fn proved_by_rows<T>(&self, server: &str, client: &str, way: Way, run: impl Fn() -> T) -> T {
        self.proved_by_rows_to(server, client, way, server, run)
    }

    /// The same where `server` carries more than this client's bytes, and `witness` as many as those.
    fn proved_by_rows_to<T>(&self, server: &str, client: &str, way: Way, witness: &str, run: impl Fn() -> T) -> T {
        if !self.is_accelerated() {
            return run();
        }
        let mut seen = String::new();
        for _ in 0..ROWS_TRIES {
            let before = self.bytes(witness);
            let (result, rows) = rows::watch(self.instance, server, client, way, &run);
            let all = self.bytes(witness).saturating_sub(before);
            let carried = rows.values().sum::<u64>();
            println!(
                "rows of {client} and {server} tell of {carried} of {all} bytes over shared memory, on {} connections",
                rows.len()
            );
            if carried as f64 >= ROWS_SHARE * all as f64 && carried > 0 {
                return result;
            }
            seen += &format!("{carried} of {all} bytes: {rows:#?}\n");
        }
        panic!("too little of what {client} and {server} have carried was shown at both ends: {seen}");
    }

    /// Runs a client that takes its time. With both sides accelerated, bytes of its connection must go over shared
    /// memory meanwhile: for servers whose processes end with their connections.
    fn proved_meanwhile(&self, server: &str, client: Launch<'_>) -> Outcome {
        let before = self.fast_bytes(server);
        let client = client.spawn();
        assert!(
            !self.is_accelerated() || wait_until(PATIENCE, || self.fast_bytes(server) > before),
            "no byte of {server} goes over shared memory: {:#?}",
            self.instance.totals()
        );
        client.finish(PATIENCE)
    }

    /// No byte can have gone over shared memory: viaductd has not paired a single connection.
    fn prove_plain(&self, why: &str) {
        self.results.stays_plain(why);
        if !matches!((self.server, self.client), (Mode::Native, Mode::Native)) {
            let totals = self.instance.totals();
            assert_eq!(self.instance.stats().pairs, 0, "paired: {totals:#?}");
        }
    }

    /// Bytes that living processes of `program` have sent and received so far.
    fn bytes(&self, program: &str) -> u64 {
        let totals = self.instance.totals();
        let own = totals.iter().filter(|totals| totals.program.starts_with(program));
        own.map(|totals| totals.bytes_sent + totals.bytes_received).sum()
    }

    /// Bytes that living processes of `program` have sent and received over shared memory so far.
    fn fast_bytes(&self, program: &str) -> u64 {
        let totals = self.instance.totals();
        let own = totals.iter().filter(|totals| totals.program.starts_with(program));
        own.map(Totals::fast_bytes).sum()
    }

    /// After the check, while `servers` still run. Both sides accelerated: each has sent and received over shared
    /// memory. One side only: viaductd has not paired a single connection, and what ran under Viaduct counted its
    /// connections as plain.
    fn prove(&self, servers: &[&str]) {
        if matches!((self.server, self.client), (Mode::Native, Mode::Native)) {
            return;
        }
        let totals = self.instance.totals();
        if !self.is_accelerated() {
            assert_eq!(self.instance.stats().pairs, 0, "paired without a partner: {totals:#?}");
        }
        if let Mode::Native = self.server {
            return;
        }
        for server in servers {
            let own = || totals.iter().filter(|totals| totals.program.starts_with(server));
            assert!(
                own().any(|own| own.open + own.ended > 0),
                "no connection of {server} was counted: {totals:#?}"
            );
            let (sent, received) = own().fold((0, 0), |(sent, received), own| {
                (sent + own.fast_bytes_sent, received + own.fast_bytes_received)
            });
            assert_eq!(
                (sent > 0, received > 0),
                (self.is_accelerated(), self.is_accelerated()),
                "{server} sent {sent} and received {received} bytes over shared memory: {totals:#?}"
            );
        }
    }
}

/// Runs `check` with each side native or accelerated, if `programs` are there.
fn on(server: bool, client: bool, root: bool, programs: &[&str], check: fn(&Pair<'_>)) {
    if !viaduct_testkit::can_run(root, programs) {
        return;
    }
    let instance = if server || client {
        Instance::start()
    } else {
        Instance::without_daemon()
    };
    let mode = |accelerated| {
        if accelerated {
            Mode::Accelerated(&instance)
        } else {
            Mode::Native
        }
    };
    let pair = Pair {
        server: mode(server),
        client: mode(client),
        instance: &instance,
        results: Results::default(),
    };
    check(&pair);
    pair.results.write(programs);
}
