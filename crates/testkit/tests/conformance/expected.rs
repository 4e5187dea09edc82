//! Differences that are known, each with its reason. One that is no longer there fails the test.

/// A case that is known to see something else than natively.
#[derive(Debug)]
pub(crate) struct Difference {
    pub(crate) case: &'static str,
    /// The ways of running it in which it always does.
    pub(crate) ways: &'static [&'static str],
    /// The ways in which it sometimes does.
    pub(crate) sometimes: &'static [&'static str],
    pub(crate) reason: &'static str,
}

const MOVED: &[&str] = &["moved at random"];
const ON_LANES: &[&str] = &["accelerated", "accelerated without polling", "moved at random"];

pub(crate) const DIFFERENCES: &[Difference] = &[
    Difference {
        case: "a_successor_that_is_told_the_number",
        ways: &[],
        sometimes: MOVED,
        reason: "a hand-over in the moment of a promotion leaves raw bytes before it unread, and does not come to an end",
    },
    Difference {
        case: "reset_by_disconnecting",
        ways: &[],
        sometimes: MOVED,
        reason: "a reset that a mark of ours met first is taken from the kernel and shows as the end of the stream",
    },
    Difference {
        case: "sandboxed_killing",
        ways: &[],
        sometimes: ON_LANES,
        reason: "a program that forbids itself system calls after it is accelerated forbids them to the library",
    },
    Difference {
        case: "close_with_a_reader",
        ways: &[],
        sometimes: ON_LANES,
        reason: "a call that is blocked while another thread closes the descriptor ends with EBADF; the kernel would let it go on",
    },
    Difference {
        case: "copy_onto_a_socket_with_a_reader_that_gets_its_byte",
        ways: &[],
        sometimes: ON_LANES,
        reason: "a call that is blocked while another thread replaces the descriptor gets no more bytes; the kernel would let it go on",
    },
    Difference {
        case: "time_stamps",
        ways: &[],
        sometimes: ON_LANES,
        reason: "bytes that come by lane after SO_TIMESTAMP has been set on an accelerated connection carry no time",
    },
];
