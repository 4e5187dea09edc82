//! `viaduct run`: turns into the program, with Viaduct in it.

use crate::config::{self, Layer, OfferChoice, PathChoice, Settings, SpinChoice};
use crate::elf::{self, NotFound};
use crate::terminal::say;
use crate::{daemon, inherit, limits, locate};
use anyhow::Result;
use clap::ValueHint;
use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use viaduct_control::policy::Policy;
use viaduct_control::runtime::DIR_VARIABLE;

/// Run a program with its TCP connections accelerated
///
/// Starts PROGRAM so that its TCP connections to other programs under Viaduct on this machine go through shared memory.
/// Where no viaductd answers in the runtime directory, one is started for this user; it exits within a minute of the
/// end of the last program under Viaduct.
///
/// The program is not changed, and neither is what it sees: a connection is made, accepted and closed by the kernel as
/// ever. What cannot be accelerated runs as plain TCP; `viaduct explain` says why. A program that Viaduct cannot enter
/// at all (statically linked, set-user-ID, making its system calls itself as Go does; too little memory allowed by
/// `ulimit -d` or `-v`) is announced once on standard error, and runs; so is one for which no viaductd could be
/// started, or where the one that runs is of another version.
///
/// The defaults of the options hold where neither the environment nor a configuration file says otherwise.
#[derive(Debug, clap::Args)]
#[command(override_usage = "viaduct run [OPTIONS] [--] PROGRAM [ARGS]...", after_long_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Which paths the connections may take [default: auto]
    #[arg(long, value_enum)]
    path: Option<PathChoice>,
    /// Whether a waiting program polls before it sleeps [default: auto]
    #[arg(long, value_enum)]
    spin: Option<SpinChoice>,
    /// When a connection is offered to be matched with its other end [default: auto]
    #[arg(long, value_enum)]
    offer: Option<OfferChoice>,
    /// File with `[[rules]]` that go before those of the configuration [default: none]
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Runtime directory of the instance; both ends must use the same [default: /run/viaduct for root, else
    /// $XDG_RUNTIME_DIR/viaduct, or /tmp/viaduct-UID where that is unset]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Configuration file to read on top of the machine's and the user's [default: $VIADUCT_CONFIG, or none]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Say on standard error what is done [default: only what goes wrong]
    #[arg(short, long)]
    verbose: bool,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        value_name = "PROGRAM",
        value_hint = ValueHint::CommandWithArguments
    )]
    command: Vec<OsString>,
}

const AFTER_HELP: &str = r#"EXAMPLES
    viaduct run -- redis-server --port 6379
    viaduct run --spin never -- nginx -g 'daemon off;'
    viaduct run --offer now --dir /tmp/test -- ./server

CONFIGURATION
    Read in rising order: /etc/viaduct.toml, $XDG_CONFIG_HOME/viaduct.toml,
    --config FILE, the environment, the options above. Unknown keys are errors.

        path = "auto"                # auto, tcp, shm
        spin = "auto"                # auto, never, always
        offer = "auto"               # auto, now, wait
        dir = "/run/viaduct"

        [[rules]]                    # the first rule that matches decides
        action = "never"             # start it without the library
        program = "ssh*"             # a trailing * matches any rest; of a
                                     # path only the program's name counts

        [[rules]]
        action = "now"               # offer at the first byte; or auto,
                                     # wait, tcp: do not accelerate
        addr = "10.0.0.0/8"          # of either end
        port = "6379-6380"           # of either end; or a number

ENVIRONMENT
    VIADUCT_PATH, VIADUCT_SPIN, VIADUCT_OFFER, VIADUCT_DIR
                        as the options
    VIADUCT_RULES       rules, separated by ;, each
                        ACTION[,program=NAME][,addr=NET][,port=PORTS]
    VIADUCT_CONFIG      as --config
    VIADUCT_PRELOAD     the library to preload instead of the installed one
    VIADUCT_DAEMON      the viaductd to start instead of the installed one

EXIT STATUS
    That of PROGRAM, which takes this process over. 127: PROGRAM was not found.
    126: it cannot be executed. 125: Viaduct's own configuration is wrong.
    2: the options were not understood."#;

/// Exit status when Viaduct itself fails, so that it is not taken for the program's.
const OWN_FAILURE: u8 = 125;

/// Turns into the program; returns only if that fails.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let (settings, policy) = match prepare(&args) {
        Ok(prepared) => prepared,
        Err(error) => {
            say(format_args!("viaduct: {error:#}"));
            return Ok(OWN_FAILURE.into());
        }
    };
    let Some((program, arguments)) = args.command.split_first() else {
        return Ok(OWN_FAILURE.into());
    };
    let file = match elf::find(program) {
        Ok(file) => file,
        Err(NotFound::Missing) => {
            if program.is_empty() {
                say(format_args!("viaduct: the name of the program is empty"));
            } else {
                say(format_args!("viaduct: {}: not found", program.display()));
            }
            return Ok(127.into());
        }
        Err(NotFound::NotExecutable) => {
            say(format_args!("viaduct: {}: permission denied", program.display()));
            return Ok(126.into());
        }
    };
    let mut command = Command::new(&file);
    command.arg0(program).args(arguments);
    if policy.is_never() {
        stay_out(program, args.verbose);
    } else {
        match preload_for(&file) {
            Ok(library) => match limits::too_little_for(&library) {
                None => enter(&settings, &library, program, args.verbose),
                Some(why) => {
                    leave_out();
                    say_plain(program, &why);
                }
            },
            Err(why) => say_plain(program, &why),
        }
    }
    inherit::as_found(&mut command);
    let error = match elf::is_elf(&file) {
        true => inherit::without_shell(&mut command, program).map_or_else(|error| error, |()| command.exec()),
        false => command.exec(),
    };
    match error.kind() {
        // The program itself was there a moment ago.
        std::io::ErrorKind::NotFound => say(format_args!(
            "viaduct: {}: it, or the interpreter or loader that it names, is missing",
            program.display()
        )),
        _ => say(format_args!("viaduct: {}: {error}", program.display())),
    }
    Ok(match error.kind() {
        std::io::ErrorKind::NotFound => 127,
        _ => 126,
    }
    .into())
}

fn prepare(args: &Args) -> Result<(Settings, Policy)> {
    let flags = Layer {
        path: args.path,
        spin: args.spin,
        offer: args.offer,
        dir: args.dir.clone(),
        rules: match &args.rules {
            Some(path) => config::read_rules(path)?,
            None => Vec::new(),
        },
    };
    let settings = Settings::resolve(flags, args.config.clone().or_else(config::named_file))?;
    let name = args.command.first().map(Path::new).and_then(Path::file_name);
    let policy = settings.policy(&name.unwrap_or_default().to_string_lossy())?;
    Ok((settings, policy))
}

/// The library to preload into `file`, or why there is none.
fn preload_for(file: &Path) -> Result<PathBuf, String> {
    // A program that may be executed but not read is run as any other.
    if let Ok(Some(obstacle)) = elf::obstacle(file) {
        return Err(obstacle.text().to_owned());
    }
    let library = locate::preload().ok_or_else(|| {
        locate::misnamed(locate::PRELOAD_VARIABLE).unwrap_or_else(|| {
            format!(
                "{} was not found beside viaduct or where it is installed{}",
                locate::PRELOAD_NAME,
                locate::lost()
            )
        })
    })?;
    if library.as_os_str().as_bytes().contains(&b':') || library.as_os_str().as_bytes().contains(&b' ') {
        return Err(format!(
            "the loader cannot preload from a path with a space or colon: {}",
            library.display()
        ));
    }
    Ok(library)
}

fn enter(settings: &Settings, library: &Path, program: &OsStr, verbose: bool) {
    // A program that is to stay on TCP needs nobody to match it.
    if settings.path != PathChoice::Tcp
        && let Err(error) = daemon::ensure(&settings.dir, settings.config.as_ref())
    {
        say(format_args!(
            "viaduct: {} runs as plain TCP until a viaductd answers in {}: {error:#}",
            program.display(),
            settings.dir.display()
        ));
    }
    for (name, value) in settings.variables() {
        inherit::set_variable(name, value);
    }
    inherit::set_variable(DIR_VARIABLE, &settings.dir);
    let entry = locate::preload_entry(library);
    inherit::set_variable("LD_PRELOAD", with_preload(&entry, env::var_os("LD_PRELOAD")));
    if verbose {
        say(format_args!(
            "viaduct: path {}, spin {}, offer {}, runtime directory {}",
            settings.path.as_str(),
            settings.spin.as_str(),
            settings.offer.as_str(),
            settings.dir.display()
        ));
    }
}

fn say_plain(program: &OsStr, why: &str) {
    say(format_args!("viaduct: {} runs as plain TCP: {why}", program.display()));
}

/// A rule says that the program is not to have the library.
fn stay_out(program: &OsStr, verbose: bool) {
    leave_out();
    if verbose {
        say(format_args!(
            "viaduct: {} runs without the library: a rule says never",
            program.display()
        ));
    }
}

/// Keeps the program from having the library. One that this process was itself started with would go on to it.
fn leave_out() {
    let existing = env::var_os("LD_PRELOAD").unwrap_or_default();
    let separator = |byte: &u8| matches!(byte, b':' | b' ');
    if existing.as_bytes().split(separator).any(is_ours) {
        let others: Vec<&[u8]> = existing
            .as_bytes()
            .split(separator)
            .filter(|entry| !entry.is_empty() && !is_ours(entry))
            .collect();
        if others.is_empty() {
            inherit::remove_variable("LD_PRELOAD");
        } else {
            inherit::set_variable("LD_PRELOAD", OsStr::from_bytes(&others.join(&b':')));
        }
    }
}

/// Whether an entry of `LD_PRELOAD` is the library, be it that of another version in another place.
fn is_ours(entry: &[u8]) -> bool {
    Path::new(OsStr::from_bytes(entry)).file_name() == Some(OsStr::new(locate::PRELOAD_NAME))
}

/// `LD_PRELOAD` with `library` first, and no other in it.
fn with_preload(library: &OsStr, existing: Option<OsString>) -> OsString {
    let mut value = library.to_owned();
    let existing = existing.unwrap_or_default();
    for other in existing.as_bytes().split(|byte| matches!(byte, b':' | b' ')) {
        if !other.is_empty() && other != library.as_bytes() && !is_ours(other) {
            value.push(":");
            value.push(OsStr::from_bytes(other));
        }
    }
    value
}
