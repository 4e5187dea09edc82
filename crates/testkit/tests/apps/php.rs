//! PHP: its own streams, and its extension `sockets`, which it loads into a scope of symbols of its own as it does all extensions; each server with
//! each client.

use crate::{PATIENCE, Pair};
use std::path::Path;
use viaduct_testkit::processes::free_port;

matrix!(check, "php");

fn check(pair: &Pair<'_>) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/apps/programs/echo.php");
    for server in ["streams", "sockets"] {
        let port = free_port();
        let words =
            |role: &str, how: &str| [&script.to_string_lossy(), role, how, &port.to_string()].map(str::to_owned);
        let _server = pair.server("php", words("server", server)).spawn().listening(port);
        for client in ["streams", "sockets"] {
            let output = pair.proved("php", || {
                pair.client("php", words("client", client)).run(PATIENCE).success()
            });
            assert!(
                output.contains("all messages came back"),
                "{server}, {client}: {output}"
            );
        }
        pair.prove(&["php"]);
    }
}
