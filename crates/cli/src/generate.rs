//! `viaduct generate`: manual pages and shell completions, for packagers.

use anyhow::{Context, Result};
use clap::ValueEnum;
use clap_complete::Shell;
use std::fs;
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
        What::Completions => {
            // Hidden commands would be offered as well.
            let shown = command
                .get_subcommands()
                .filter(|subcommand| !subcommand.is_hide_set())
                .cloned();
            let options = clap::Command::new("viaduct").version(env!("CARGO_PKG_VERSION"));
            let mut command = options.subcommand_required(true).subcommands(shown.collect::<Vec<_>>());
            for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
                clap_complete::generate_to(shell, &mut command, "viaduct", &args.dir)?;
            }
            Ok(())
        }
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
