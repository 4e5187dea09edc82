//! What `viaduct bench` measures Viaduct against and no distribution has. No part of the product: nothing depends on
//! it, and it is not installed.
//!
//! `viaduct bench` starts this program when it is beside `viaduct`, and talks to it over its standard input and output.
//! Whatever it makes outside its own memory (a cgroup, shared memory) it removes before it ends, also when it is asked
//! to end by a signal.
#![forbid(unsafe_code)]

#[cfg(feature = "iceoryx2")]
mod iceoryx2;
mod sockmap;

use anyhow::Result;
use clap::Parser;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Rivals that `viaduct bench` measures
#[derive(Debug, Parser)]
#[command(name = "viaduct-rivals", version)]
enum Command {
    /// Names the roads that this program was built with
    Roads,
    /// Short-cuts the TCP connections of a new cgroup, which it names; each line it reads it answers with the bytes
    /// that took the shortcut. Ends with its standard input
    Sockmap,
    /// One of two ends that pass messages to each other over iceoryx2
    #[cfg(feature = "iceoryx2")]
    Iceoryx2(iceoryx2::Args),
}

fn main() -> Result<()> {
    match Command::parse() {
        Command::Roads => {
            say("sockmap")?;
            #[cfg(feature = "iceoryx2")]
            say("iceoryx2")?;
            Ok(())
        }
        Command::Sockmap => sockmap::hold(),
        #[cfg(feature = "iceoryx2")]
        Command::Iceoryx2(args) => iceoryx2::run(&args),
    }
}

/// Becomes true when somebody asks this process to end, which from now on only that does.
fn asked_to_end() -> Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&asked))?;
    }
    Ok(asked)
}

/// One line on standard output, at once.
fn say(line: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{line}")?;
    output.flush()
}
