//! Python: blocking sockets with threads, `selectors`, asyncio; each server with each client.

use crate::{PATIENCE, Pair};
use std::path::Path;
use viaduct_testkit::processes::free_port;

matrix!(check, "python3");

fn check(pair: &Pair<'_>) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/apps/programs/echo.py");
    for server in ["blocking", "selectors", "asyncio"] {
        let port = free_port();
        let words = |role: &str, how: &str| {
            let own = [role.to_owned(), how.to_owned(), port.to_string()].map(Into::into);
            [script.clone().into_os_string()]
                .into_iter()
                .chain(own)
                .collect::<Vec<_>>()
        };
        let _server = pair.server("python3", words("server", server)).spawn().listening(port);
        for client in ["blocking", "selectors", "asyncio"] {
            let output = pair.proved("python3", || {
                pair.client("python3", words("client", client)).run(PATIENCE).success()
            });
            assert!(
                output.contains("all messages came back"),
                "{server}, {client}: {output}"
            );
        }
        pair.prove(&["python3"]);
    }
}
