//! Connections that come from other programs and processes. They stay on TCP as long as who opened them, or anybody
//! else, may go on using them. They are shown, once they stand.

use crate::conn::{self, Conn, records};
use crate::descriptors::lifecycle::{duplicated, fresh, is_tcp};
use crate::descriptors::table::{self, Entry};
use crate::process::{is_confined, lodgers, start_with_sockets};
use crate::sys::{self, listing, raw};
use crate::{kernel, options};
use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::Relaxed;
use libc::c_int;
use viaduct_control::Reason;

/// The program has received `fd` over a Unix socket, from another process or from itself.
pub fn passed(fd: c_int) {
    came(fd, |known| {
        table::connection(known).is_some_and(|conn| conn.flag(conn::HANDED_OVER))
    });
}

/// The program has fetched `fd` from another process, or from itself.
pub fn fetched(fd: c_int) {
    came(fd, |_| true);
}

/// Numbers that are looked at though some before them stand for nothing: who starts a program with a connection has
/// mostly closed what it accepted it from.
const FIRST: c_int = 8;

/// The library is loaded into a program that may have been started with connections, which have the first numbers then.
/// Those that are known have been made since, by another library that was loaded before.
pub fn inherited() {
    for fd in 0.. {
        match raw::is_socket(fd) {
            Ok(true) if matches!(table::lookup(fd), Entry::Unknown) => came(fd, |_| true),
            Ok(_) => {}
            Err(_) if fd < FIRST => {}
            Err(_) => return,
        }
    }
}

/// Whether the program was started with system calls forbidden; which, is not known.
fn is_started_confined() -> bool {
    static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);
    const UNKNOWN: u8 = 0;
    const FREE: u8 = 1;
    const CONFINED: u8 = 2;
    if KNOWN.load(Relaxed) == UNKNOWN {
        let is_free = listing::confinement() == Some(0);
        KNOWN.store(if is_free { FREE } else { CONFINED }, Relaxed);
    }
    KNOWN.load(Relaxed) == CONFINED
}

/// `fd` is new here. Where it is one more descriptor of a socket that is known, `may_be` says so of a descriptor of
/// that.
fn came(fd: c_int, may_be: impl Fn(c_int) -> bool) {
    if fd < 0 || lodgers::has_own_table() {
        return;
    }
    fresh(fd);
    if is_confined() || is_started_confined() || !is_tcp(fd) {
        return;
    }
    let mut known = table::sockets().filter(|known| may_be(*known));
    let same = raw::cookie(fd).and_then(|own| known.find(|known| raw::cookie(*known) == Some(own)));
    match same {
        Some(known) => duplicated(known, fd),
        None => {
            // Standard descriptors are mostly used by stdio streams, whose calls are not seen.
            let (flag, reason) = if fd <= libc::STDERR_FILENO {
                (conn::BANNED, Reason::Stdio)
            } else {
                (conn::CAME, Reason::PassedOn)
            };
            let is_connected = sys::addresses(fd).is_some();
            // Whoever has a copy would have the connection that is made of it; what it accepts is its own.
            if (is_connected || !kernel::is_listening(fd))
                && let Some(conn) = begin(fd, flag, reason)
                && is_connected
            {
                conn.stands();
            }
        }
    }
}

/// A record for a connected socket whose opening was not seen, though it should have been: some of the program's calls
/// are not. Not of a lodger with descriptors of its own.
pub(crate) fn adopted(fd: c_int) -> Option<&'static Conn> {
    let conn = begin(fd, conn::BANNED, Reason::PassedOn)?;
    conn.stands();
    Some(conn)
}

/// A record that is not shown before the connection stands.
fn begin(fd: c_int, flag: u32, reason: Reason) -> Option<&'static Conn> {
    start_with_sockets();
    let conn = records::begin(fd, conn::EARLY | flag)?;
    if conn.is_early() {
        conn.set_flag(flag, true);
        conn.set_reason(reason);
    }
    Some(conn)
}

/// Why a connection that came from elsewhere is not to have a lane, whoever holds it: something was done to it that
/// only TCP does, and that is not asked of one whose every call was seen.
pub(crate) fn objection(fd: c_int) -> Option<Reason> {
    let status = raw::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0);
    if options::has_upper_layer(fd) {
        Some(Reason::TransportLayer)
    } else if options::may_tell_completion(fd) {
        Some(Reason::ZeroCopy)
    } else if options::has_filter(fd) {
        Some(Reason::SocketOption)
    } else if status & libc::O_ASYNC as usize != 0 {
        Some(Reason::UnseenWait)
    } else if kernel::was_opened_fast(fd) {
        Some(Reason::FastOpen)
    } else if kernel::is_shut(fd) {
        Some(Reason::HalfClosed)
    } else {
        None
    }
}
