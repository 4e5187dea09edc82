//! Python: blocking sockets with threads, `selectors`, asyncio; each server with each client.

use crate::Pair;

matrix!(check, "python3");

fn check(pair: &Pair<'_>) {
    pair.echo_each_way("python3", "echo.py", &["blocking", "selectors", "asyncio"]);
}
