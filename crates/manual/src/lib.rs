//! The commands' help: printed, and manual pages from it.
//!
//! Options and descriptions become what `clap_mangen` makes of them. What follows the options in the help, under
//! headings in capitals, becomes sections of their own, as it stands there.
#![forbid(unsafe_code)]

use clap::{Command, Parser};
use clap_mangen::Man;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;

/// What the command line says. `output`: whether standard output can be written at all, where the program knows that
/// better than the runtime, which opens `/dev/null` in the place of one that is closed.
///
/// # Errors
/// It asks for help or the version, or makes no sense: what is to be said of that has been printed, and this is the
/// status to exit with. A reader who has seen enough of the help, as `head` does, is no failure.
pub fn parse<P: Parser>(output: io::Result<()>) -> Result<P, ExitCode> {
    P::try_parse().map_err(|error| {
        let printed = match error.use_stderr() {
            true => error.print(),
            false => output.and_then(|()| error.print()).and_then(|()| io::stdout().flush()),
        };
        match printed {
            Err(fault) if !error.use_stderr() && fault.kind() != ErrorKind::BrokenPipe => {
                // Where this cannot be told either, the status tells it.
                let _ = writeln!(io::stderr(), "{}: standard output: {fault}", P::command().get_name());
                ExitCode::FAILURE
            }
            _ => u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from),
        }
    })
}

/// The page of `command` in `section` of the manual; `see_also` is its last line.
///
/// # Errors
/// None that a buffer in memory does not make.
pub fn page(command: &Command, section: &str, see_also: &str) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone())
        .title(name(command).to_uppercase())
        .section(section)
        .source(concat!("viaduct ", env!("CARGO_PKG_VERSION")))
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
    let help = command.get_after_long_help().or_else(|| command.get_after_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    page.extend(sections(&format!("{help}\nSEE ALSO\n    {see_also}\n")).into_bytes());
    Ok(page)
}

/// What the page of `command` is called, and its file without the section.
pub fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// Turns headings in capitals and indented lines into sections of unfilled text.
fn sections(text: &str) -> String {
    let mut roff = String::new();
    for line in text.lines() {
        let heading =
            !line.is_empty() && line.chars().all(|c| c.is_ascii_uppercase() || c == ' ') && !line.starts_with(' ');
        if heading {
            end_section(&mut roff);
        }
        // Writing to a string does not fail.
        let _ = if heading {
            writeln!(roff, ".SH {line}\n.nf")
        } else {
            let line = line.strip_prefix("    ").unwrap_or(line);
            let escaped = line.replace('\\', "\\e").replace('-', "\\-");
            let guard = if escaped.starts_with(['.', '\'']) { "\\&" } else { "" };
            writeln!(roff, "{guard}{escaped}")
        };
    }
    end_section(&mut roff);
    roff
}

/// Fills again; the next heading keeps its own distance.
fn end_section(roff: &mut String) {
    roff.truncate(roff.trim_end().len());
    if !roff.is_empty() {
        roff.push_str("\n.fi\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_becomes_sections() {
        let roff = sections("EXAMPLES\n    a -b\n    .c\n    'd\n    \\e\n\n    f\n\nEXIT STATUS\n    0\n");
        assert_eq!(
            roff,
            ".SH EXAMPLES\n.nf\na \\-b\n\\&.c\n\\&'d\n\\ee\n\nf\n.fi\n.SH EXIT STATUS\n.nf\n0\n.fi\n"
        );
    }

    #[test]
    fn a_page_is_named_by_its_command_and_ends_with_others() {
        let command = Command::new("viaductd").after_help("FILES\n    .viaduct\n");
        let page = String::from_utf8(page(&command, "8", "viaduct(1)").unwrap()).unwrap();
        assert!(page.contains(".TH VIADUCTD 8 "), "{page}");
        assert!(page.contains(".SH FILES\n.nf\n\\&.viaduct\n"), "{page}");
        assert!(page.ends_with(".SH SEE ALSO\n.nf\nviaduct(1)\n.fi\n"), "{page}");
    }
}
