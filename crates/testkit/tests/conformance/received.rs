//! What came from each socket, as far as a transcript shows it: whether two runs received the same bytes, be it in
//! other pieces.

use std::collections::BTreeMap;

/// A piece of what came from a socket.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    /// Bytes as they are printed.
    Text(String),
    /// More than are printed, with their sum; or a count alone.
    Count(u64, Option<String>),
}

/// What came from one socket.
#[derive(Debug, Default)]
struct Received {
    pieces: Vec<Piece>,
    /// The stream has ended after so many bytes.
    ended: Option<u64>,
    total: u64,
}

impl Received {
    fn add(&mut self, count: u64, piece: Piece) {
        self.total += count;
        match (self.pieces.last_mut(), piece) {
            (Some(Piece::Text(before)), Piece::Text(text)) => before.push_str(&text),
            (_, piece) => self.pieces.push(piece),
        }
    }

    fn agrees_with(&self, other: &Self) -> bool {
        let loses = |own: &Self, other: &Self| own.ended.is_some_and(|bytes| bytes < other.total);
        if loses(self, other) || loses(other, self) {
            return false;
        }
        for pair in self.pieces.iter().zip(&other.pieces) {
            match pair {
                (Piece::Text(own), Piece::Text(other)) => {
                    if !own.starts_with(other.as_str()) && !other.starts_with(own.as_str()) {
                        return false;
                    }
                    if own.len() != other.len() {
                        return true;
                    }
                }
                (Piece::Count(own, own_sum), Piece::Count(other, sum)) if own == other => {
                    if own_sum.is_some() && sum.is_some() && own_sum != sum {
                        return false;
                    }
                }
                // Cut at other places: what follows cannot be compared.
                _ => return true,
            }
        }
        true
    }
}

/// The name by which `call` calls the socket it receives from; none for calls that only look, or that do not receive.
fn socket(call: &str) -> Option<&str> {
    let Some((name, arguments)) = call.split_once('(') else {
        return Some(call);
    };
    if call.contains("PEEK") {
        return None;
    }
    let mut arguments = arguments.trim_end_matches(')').split(", ");
    let first = arguments.next()?;
    let (name, socket) = match name {
        "syscall" => (first.trim_start_matches("SYS_"), arguments.next()?),
        _ => (name, first),
    };
    let receives = ["all", "recv", "read", "splice", "__re"];
    receives.iter().any(|begin| name.starts_with(begin)).then_some(socket)
}

fn read(lines: &[String]) -> BTreeMap<&str, Received> {
    let mut found = BTreeMap::<&str, Received>::new();
    for (call, result) in lines.iter().filter_map(|line| line.split_once(" = ")) {
        let Some(socket) = socket(call) else { continue };
        let received = found.entry(socket).or_default();
        let digits = result.find(|c: char| !c.is_ascii_digit()).unwrap_or(result.len());
        let (count, rest) = result.split_at(digits);
        let Ok(count) = count.parse() else { continue };
        if let Some(text) = rest.strip_prefix(" \"") {
            received.add(count, Piece::Text(text.trim_end_matches('"').to_owned()));
        } else if let Some(sum) = rest.strip_prefix(", sum ") {
            received.add(count, Piece::Count(count, Some(sum.to_owned())));
        } else if call.contains('(') && count > 0 {
            received.add(count, Piece::Count(count, None));
        }
        if call.contains('(') && count == 0 {
            received.ended = Some(received.total);
        }
    }
    found
}

/// Whether an end that printed `lines` received what one received that printed `native`, as far as both came: perhaps
/// in other pieces, or more of it, but no byte wrong, and none missing before the end of a stream.
pub(crate) fn same_bytes(lines: &[String], native: &[String]) -> bool {
    // What the tools of the cases say where they check bytes themselves.
    let complains = |line: &&String| {
        let lost = (line.starts_with("drank") || line.starts_with("drained")) && line.ends_with(": end");
        lost || line.starts_with("wrong byte")
    };
    let (own, natively) = (read(lines), read(native));
    !lines.iter().any(|line| complains(&line) && !native.contains(line))
        && own
            .iter()
            .all(|(socket, own)| natively.get(socket).is_none_or(|native| own.agrees_with(native)))
}

#[cfg(test)]
mod tests {
    use super::same_bytes;

    fn same(run: &[&str], native: &[&str]) -> bool {
        let owned = |lines: &[&str]| lines.iter().map(|&line| line.to_owned()).collect::<Vec<_>>();
        same_bytes(&owned(run), &owned(native))
    }

    const NATIVE: [&str; 4] = [
        r#"recv(s, 4, 0) = 4 "abcd""#,
        r#"recv(s, 9, 0) = 2 "ef""#,
        "poll(s) = 1",
        "recv(s, 1, 0) = 0",
    ];

    #[test]
    fn other_pieces_and_events_are_the_same_bytes() {
        assert!(same(
            &[
                r#"recv(s, 4, 0) = 3 "abc""#,
                r#"recv(s, 9, 0) = 3 "def""#,
                "poll(s) = 2",
                "recv(s, 1, 0) = 0"
            ],
            &NATIVE
        ));
        assert!(same(
            &[r#"recv(s, 4, 0) = 3 "abc""#, "recv(s, 9, 0) = -1 EAGAIN"],
            &NATIVE
        ));
        assert!(same(&[r#"recv(s, 4, MSG_PEEK) = 2 "ab""#, NATIVE[0]], &NATIVE));
    }

    #[test]
    fn lost_wrong_and_doubled_bytes_are_not() {
        for run in [
            [r#"recv(s, 4, 0) = 4 "abxd""#, NATIVE[1], NATIVE[3]],
            [r#"recv(s, 4, 0) = 4 "acde""#, r#"recv(s, 9, 0) = 1 "f""#, NATIVE[3]],
            [NATIVE[0], NATIVE[0], NATIVE[1]],
            [NATIVE[0], r#"recv(s, 9, 0) = 1 "e""#, NATIVE[3]],
            [NATIVE[0], NATIVE[3], "end case: 0"],
            [NATIVE[0], NATIVE[1], "wrong byte at 7"],
        ] {
            assert!(!same(&run, &NATIVE), "{run:?}");
        }
        assert!(!same(&["all(s, 100) = 100, sum 1f"], &["all(s, 100) = 100, sum 1e"]));
    }
}
