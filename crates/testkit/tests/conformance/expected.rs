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
        case: "all_closed_from_three",
        ways: &[],
        sometimes: MOVED,
        reason: "an end that forked processes share takes no marks off before it is closed, and the kernel answers them with a reset",
    },
    Difference {
        case: "all_closed_one_by_one",
        ways: &[],
        sometimes: MOVED,
        reason: "an end that forked processes share takes no marks off before it is closed, and the kernel answers them with a reset",
    },
    Difference {
        case: "shutdown_reaches_all_holders",
        ways: &[],
        sometimes: MOVED,
        reason: "an end that forked processes share takes no marks off before it is closed, and the kernel answers them with a reset",
    },
    Difference {
        case: "killed_instead_of_close",
        ways: &[],
        sometimes: MOVED,
        reason: "whether a killed peer's kernel held bytes or only a mark of a change of path cannot be told; it shows as a reset",
    },
    Difference {
        case: "killed_with_bytes_unread",
        ways: &[],
        sometimes: MOVED,
        reason: "bytes that a killed peer left in a lane whose stretch has ended are not known to be unread; it shows as the end of the stream",
    },
    Difference {
        case: "polls_of_a_killed_peer",
        ways: &[],
        sometimes: MOVED,
        reason: "as with killed_with_bytes_unread",
    },
    Difference {
        case: "killed_behind_a_half_close",
        ways: &[],
        sometimes: MOVED,
        reason: "as with killed_instead_of_close and killed_with_bytes_unread",
    },
    Difference {
        case: "forks_beside_new_connections",
        ways: &[],
        sometimes: ON_LANES,
        reason: "a connection that is being paired in the moment of a fork stays on TCP",
    },
    Difference {
        case: "sandboxed_killing",
        ways: &[],
        sometimes: ON_LANES,
        reason: "a program that forbids itself system calls after it is accelerated forbids them to the library",
    },
    Difference {
        case: "a_full_socket",
        ways: &[],
        sometimes: MOVED,
        reason: "a full connection that is moved to the other path finds the room of that path's buffers, before its peer has read",
    },
    Difference {
        case: "sandboxed_refusing",
        ways: &[],
        sometimes: MOVED,
        reason: "a path cannot be changed where the program has forbidden itself to ask how far its kernel connection is",
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
        case: "busy_sets_tell_in_order_of_arrival",
        ways: &[],
        sometimes: MOVED,
        reason: "as with sets_tell_in_order_of_arrival",
    },
    Difference {
        case: "ends_and_more_do_not_change_the_order_of_arrival",
        ways: &[],
        sometimes: MOVED,
        reason: "as with sets_tell_in_order_of_arrival",
    },
    Difference {
        case: "sets_tell_in_order_of_arrival",
        ways: &[],
        sometimes: MOVED,
        reason: "of connections on different paths a set tells in no certain order",
    },
    Difference {
        case: "time_stamps",
        ways: &[],
        sometimes: ON_LANES,
        reason: "bytes that come by lane after SO_TIMESTAMP has been set on an accelerated connection carry no time",
    },
];
