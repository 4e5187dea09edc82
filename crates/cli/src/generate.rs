//! `viaduct generate`: manual pages and shell completions, for packagers.

use crate::path;
use anyhow::{Context, Result};
use clap::{Arg, ValueEnum};
use clap_complete::Shell;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Write manual pages or shell completions
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to write
    #[arg(value_enum)]
    what: What,
    /// Where to; made if missing
    dir: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// viaduct.1, viaduct-run.1 and so on
    Man,
    /// viaduct.bash, viaduct.fish, and _viaduct for zsh
    Completions,
}

/// Writes what is asked for about `command`.
pub(crate) fn run(args: &Args, mut command: clap::Command) -> Result<()> {
    fs::create_dir_all(&args.dir).with_context(|| args.dir.display().to_string())?;
    match args.what {
        What::Completions => completions(&command, &args.dir),
        What::Man => {
            command = command.disable_help_subcommand(true);
            command.build();
            page(&command, &args.dir)?;
            for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
                page(subcommand, &args.dir)?;
            }
            Ok(())
        }
    }
}

/// Writes what the shells complete.
fn completions(whole: &clap::Command, dir: &Path) -> Result<()> {
    // Hidden commands would be offered as well.
    let shown = whole
        .get_subcommands()
        .filter(|subcommand| !subcommand.is_hide_set())
        .map(|subcommand| match subcommand.get_name() {
            "path" => path_by_place(subcommand),
            _ => subcommand.clone(),
        });
    let options = clap::Command::new("viaduct").version(env!("CARGO_PKG_VERSION"));
    let mut command = options.subcommand_required(true).subcommands(shown.collect::<Vec<_>>());
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        let file = clap_complete::generate_to(shell, &mut command, "viaduct", dir)?;
        let more = match shell {
            Shell::Bash => more(whole, BASH, " | "),
            Shell::Fish => more(whole, FISH, " "),
            _ => continue,
        };
        let mut file = OpenOptions::new().append(true).open(file)?;
        file.write_all(more.as_bytes())?;
    }
    Ok(())
}

/// What is generated for these shells says nothing of words that are told by their place alone.
const BASH: &str = include_str!("completions/viaduct.bash");
const FISH: &str = include_str!("completions/viaduct.fish");

/// One of these with the words filled in that the command line has.
fn more(whole: &clap::Command, shell: &str, or: &str) -> String {
    let run = whole.find_subcommand("run").into_iter();
    let valued: Vec<_> = run
        .flat_map(|run| run.get_opts())
        .filter(|option| option.get_action().takes_values())
        .filter_map(|option| option.get_long().map(|name| format!("--{name}")))
        .collect();
    let paths: Vec<_> = path::words().map(|word| word.get_name().to_owned()).collect();
    shell
        .replace("@RUN_OPTIONS@", &valued.join(or))
        .replace("@PATHS@", &paths.join(" "))
}

/// `viaduct path` with its words one by one, as zsh can complete them.
fn path_by_place(command: &clap::Command) -> clap::Command {
    let options = command.get_opts().cloned();
    let connection = Arg::new("connection").help("The connection").required(true);
    let rest = Arg::new("path").help("The descriptor and the path").num_args(1..);
    clap::Command::new("path")
        .about(command.get_about().cloned().unwrap_or_default())
        .args(options)
        .arg(connection)
        .arg(rest.value_parser(path::words().collect::<Vec<_>>()))
}

/// Writes the page of one command.
fn page(command: &clap::Command, dir: &Path) -> Result<()> {
    let see_also = match command.has_subcommands() {
        true => "viaductd(8), viaduct_seek_recv(3), viaduct_inbox_open(3)",
        false => "viaduct(1), viaductd(8)",
    };
    let path = dir.join(format!("{}.1", viaduct_manual::name(command)));
    let page = viaduct_manual::page(command, "1", see_also)?;
    fs::write(&path, page).with_context(|| path.display().to_string())
}
