//! PHP: its own streams, and its extension `sockets`, which it loads into a scope of symbols of its own as it does all
//! extensions; each server with each client.

use crate::Pair;

matrix!(check, "php");

fn check(pair: &Pair<'_>) {
    pair.echo_each_way("php", "echo.php", &["streams", "sockets"]);
}
