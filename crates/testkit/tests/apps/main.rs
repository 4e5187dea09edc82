//! Unmodified programs, each with its own traffic verified: native first, which proves the test itself; accelerated on both
//! sides, with proof of the path; and one side accelerated only, which must work and stay on TCP.

/// Four tests of one check.
macro_rules! matrix {
    ($check:path, $($program:literal),+) => {
        #[test]
        fn native() {
            crate::on(false, false, &[$($program),+], $check);
        }

        #[test]
        fn accelerated() {
            crate::on(true, true, &[$($program),+], $check);
        }

        #[test]
        fn only_the_client_accelerated() {
            crate::on(false, true, &[$($program),+], $check);
        }

        #[test]
        fn only_the_server_accelerated() {
            crate::on(true, false, &[$($program),+], $check);
        }
    };
}

mod haproxy;
mod iperf;
mod java;
mod memcached;
mod nginx;
mod node;
mod python;
mod redis;
mod sockperf;

use std::time::Duration;
use viaduct_testkit::status::Row;
use viaduct_testkit::{Instance, Launch, Mode, Watch};

/// How long a program may take for what it does in a second or two.
const PATIENCE: Duration = Duration::from_secs(40);

/// A text of `size` letters that does not repeat soon.
fn letters(size: usize) -> String {
    let alphabet = "abcdefghijklmnopqrstuvwxyz0123456789_";
    alphabet.chars().cycle().step_by(7).take(size).collect()
}

/// A server and a client, each native or accelerated.
struct Pair<'a> {
    server: Mode<'a>,
    client: Mode<'a>,
    instance: &'a Instance,
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

    fn watch(&self) -> Option<Watch> {
        match (self.server, self.client) {
            (Mode::Native, Mode::Native) => None,
            _ => Some(Watch::new(self.instance)),
        }
    }

    /// Both sides accelerated: some connection end of each of `programs` carried bytes over shared memory. One side only:
    /// no byte went that way, and the status says so for the accelerated side.
    fn prove(&self, watch: Option<Watch>, programs: &[&str]) {
        let Some(watch) = watch else { return };
        let rows = watch.rows();
        assert!(!rows.is_empty(), "the status showed no connection");
        if self.is_accelerated() {
            for program in programs {
                let own: Vec<&Row> = rows.iter().filter(|row| row.program.starts_with(program)).collect();
                assert!(
                    own.iter().any(|row| row.is_fast()),
                    "no byte of {program} went over shared memory: {own:#?} of {rows:#?}"
                );
            }
        } else {
            let fast: Vec<&Row> = rows.iter().filter(|row| row.is_fast()).collect();
            assert!(fast.is_empty(), "fast without a partner: {fast:#?}");
        }
    }
}

/// Runs `check` with each side native or accelerated, if `programs` are there.
fn on(server: bool, client: bool, programs: &[&str], check: fn(&Pair<'_>)) {
    if !viaduct_testkit::can_run(false, programs) {
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
    check(&Pair {
        server: mode(server),
        client: mode(client),
        instance: &instance,
    });
}
