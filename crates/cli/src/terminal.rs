//! Output: colours only where a person looks, quiet when nobody reads on.

use crate::inherit;
use rustix::io::Errno;
use rustix::termios::{isatty, tcgetwinsize};
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// Whether standard output is a terminal.
pub(crate) fn is_terminal() -> bool {
    isatty(io::stdout())
}

/// Whether what moves the cursor and what colours may be written to standard output.
pub(crate) fn is_screen() -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|name| name == "dumb");
    is_terminal() && !is_dumb
}

/// What of `text` is seen at once on the screen: lines that would be broken are cut, and of too many the last are but
/// counted. Below it there is room for a line or two of standard error.
pub(crate) fn screenful(text: &str) -> String {
    match tcgetwinsize(io::stdout()) {
        Ok(size) => fit(text, size.ws_row.into(), size.ws_col.into()),
        Err(_) => text.to_owned(),
    }
}

/// A size of 0 is not known.
fn fit(text: &str, rows: usize, columns: usize) -> String {
    const BELOW: usize = 3;
    let count = text.lines().count();
    let most = match rows {
        0 => count,
        _ => rows.saturating_sub(BELOW).max(2),
    };
    let shown = if count > most { most - 1 } else { count };
    let mut fitted = String::new();
    for line in text.lines().take(shown) {
        fitted.push_str(&cut(line, columns));
        fitted.push('\n');
    }
    if count > shown {
        fitted.push_str(&cut(&format!("and {} more lines", count - shown), columns));
        fitted.push('\n');
    }
    fitted
}

/// The first `columns` characters of `line`, and all that only changes how they look.
fn cut(line: &str, columns: usize) -> String {
    let (mut left, mut is_style) = (columns, false);
    let is_kept = |letter: &char| {
        is_style |= *letter == '\x1b';
        if is_style {
            is_style = *letter != 'm';
            return true;
        }
        let has_room = columns == 0 || left > 0;
        left = left.saturating_sub(1);
        has_room
    };
    line.chars().filter(is_kept).collect()
}

/// How a word is shown where colours are wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Style {
    /// Headings.
    Bold,
    /// Good.
    Green,
    /// Not quite.
    Yellow,
    /// Bad.
    Red,
}

/// `text` in `style`, if standard output is a screen and `NO_COLOR` is not set.
pub(crate) fn styled(text: &str, style: Style) -> String {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if plain || !is_screen() {
        return text.to_owned();
    }
    let code = match style {
        Style::Bold => 1,
        Style::Green => 32,
        Style::Yellow => 33,
        Style::Red => 31,
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// Whether standard output can be written at all.
///
/// # Errors
/// It is closed. What the runtime has opened there takes all that is written, and nobody ever sees it.
pub(crate) fn check() -> io::Result<()> {
    match inherit::is_output_closed() {
        true => Err(Errno::BADF.into()),
        false => Ok(()),
    }
}

/// Writes `text` to standard output; a reader who has seen enough, as `head` does, is no failure but ends the program.
///
/// # Errors
/// The text cannot be written.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    let written = check().and_then(|()| output.write_all(text.as_bytes()));
    match written.and_then(|()| output.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        result => result.map_err(|error| io::Error::new(error.kind(), format!("standard output: {error}"))),
    }
}

/// Writes a line to standard error. Where that is full, or nobody reads it any more, a program starts all the same, and
/// a command ends with the status that it has earned.
pub(crate) fn say(line: impl Display) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// A number of bytes in at most six characters or so.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => count.to_string(),
        _ => format!("{value:.1}{}", UNITS[unit]),
    }
}

/// A time in a few characters.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 60.0 => format!("{s:.1}s"),
        s if s < 3600.0 => format!("{:.0}m{:02.0}s", (s / 60.0).floor(), (s % 60.0).floor()),
        s if s < 86400.0 => format!("{:.0}h{:02.0}m", (s / 3600.0).floor(), (s % 3600.0 / 60.0).floor()),
        s => format!("{:.0}d{:02.0}h", (s / 86400.0).floor(), (s % 86400.0 / 3600.0).floor()),
    }
}

/// Columns, each as wide as its widest cell. `right` says which are aligned to the right.
pub(crate) fn table(head: &[&str], right: &[bool], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        widest.max(head.get(column).map_or(0, |title| title.len()))
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for ((cell, &width), &right) in cells.zip(&widths).zip(right) {
            if right {
                line.push_str(&format!("{cell:>width$}  "));
            } else {
                line.push_str(&format!("{cell:<width$}  "));
            }
        }
        line.trim_end().to_owned()
    };
    let mut text = styled(&line(&mut head.iter().copied()), Style::Bold);
    text.push('\n');
    for row in rows {
        text.push_str(&line(&mut row.iter().map(String::as_str)));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_stay_short() {
        assert_eq!(bytes(0), "0");
        assert_eq!(bytes(999), "999");
        assert_eq!(bytes(1024), "1.0K");
        assert_eq!(bytes(u64::MAX), "16.0E");
        assert_eq!(duration(0.0), "0.0s");
        assert_eq!(duration(61.9), "1m01s");
        assert_eq!(duration(7260.0), "2h01m");
        assert_eq!(duration(90_000.0), "1d01h");
    }

    #[test]
    fn what_is_watched_fits_the_screen() {
        let text = "\x1b[1mPID  NAME\x1b[0m\n1  ü\n2  bcd\n3  e\n4  f\n";
        assert_eq!(fit(text, 0, 0), text);
        assert_eq!(fit(text, 8, 80), text);
        assert_eq!(fit(text, 7, 4), "\x1b[1mPID \x1b[0m\n1  ü\n2  b\nand \n");
        assert_eq!(fit(text, 6, 80), "\x1b[1mPID  NAME\x1b[0m\n1  ü\nand 3 more lines\n");
        assert_eq!(fit(text, 1, 80), "\x1b[1mPID  NAME\x1b[0m\nand 4 more lines\n");
    }

    #[test]
    fn columns_line_up() {
        let rows = [
            vec!["1".to_owned(), "ü".to_owned()],
            vec!["22".to_owned(), "b".to_owned()],
        ];
        assert_eq!(table(&["A", "NAME"], &[true, false], &rows), " A  NAME\n 1  ü\n22  b\n");
    }
}
