//! `viaduct generate`: manual pages and shell completions, for packagers.

use anyhow::{Context, Result};
use clap::ValueEnum;
use clap_complete::Shell;
use clap_mangen::Man;
use std::fmt::Write as _;
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

/// Writes the page of one command. What follows the options in its help becomes sections of their own.
fn page(command: &clap::Command, dir: &Path) -> Result<()> {
    let name = command
        .get_display_name()
        .unwrap_or_else(|| command.get_name())
        .to_owned();
    let extra = command
        .get_after_long_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    let man = Man::new(command.clone())
        .title(name.to_uppercase())
        .source(format!("viaduct {}", env!("CARGO_PKG_VERSION")))
        .manual("Viaduct");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let see_also = match command.has_subcommands() {
        true => "\nSEE ALSO\n    viaductd(8), viaduct_seek_recv(3), viaduct_inbox_open(3)\n",
        false => "\nSEE ALSO\n    viaduct(1), viaductd(8)\n",
    };
    page.extend(sections(&(extra + see_also)).into_bytes());
    let path = dir.join(format!("{name}.1"));
    fs::write(&path, page).with_context(|| path.display().to_string())
}

/// Turns headings in capitals and indented lines into sections of unfilled text.
fn sections(text: &str) -> String {
    let mut roff = String::new();
    for line in text.lines() {
        let heading =
            !line.is_empty() && line.chars().all(|c| c.is_ascii_uppercase() || c == ' ') && !line.starts_with(' ');
        // Writing to a string does not fail.
        let _ = if heading {
            write!(roff, ".SH {line}\n.nf\n")
        } else {
            let line = line.strip_prefix("    ").unwrap_or(line);
            let escaped = line.replace('\\', "\\e").replace('-', "\\-");
            let guard = if escaped.starts_with(['.', '\'']) { "\\&" } else { "" };
            writeln!(roff, "{guard}{escaped}")
        };
    }
    roff.replace("\n.SH", "\n.fi\n.SH")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_becomes_sections() {
        let roff = sections("EXAMPLES\n    a -b\n    .c\n\nEXIT STATUS\n    0\n");
        assert_eq!(
            roff,
            ".SH EXAMPLES\n.nf\na \\-b\n\\&.c\n\n.fi\n.SH EXIT STATUS\n.nf\n0\n"
        );
    }
}
