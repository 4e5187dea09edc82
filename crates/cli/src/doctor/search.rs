//! Whether the kernel helps direct search, which is not told by its version: IPv6 came later than IPv4, and
//! distributions bring both to older kernels.

use super::{Check, Level};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::time::Duration;

/// A check of each family of addresses that there is.
pub(super) fn checks() -> impl Iterator<Item = Check> {
    let families = [
        ("direct search IPv4", IpAddr::from(Ipv4Addr::LOCALHOST)),
        ("direct search IPv6", IpAddr::from(Ipv6Addr::LOCALHOST)),
    ];
    families.into_iter().filter_map(|(name, address)| {
        let listener = TcpListener::bind((address, 0));
        match listener {
            Err(_) if address.is_ipv6() => None,
            listener => Some(check(name, listener.and_then(|listener| helps(&listener)))),
        }
    })
}

/// How long a machine is given to connect to itself: one that drops such packets never does.
const PATIENCE: Duration = Duration::from_secs(1);

/// Tries it on a connection to itself.
fn helps(listener: &TcpListener) -> io::Result<bool> {
    let mut sender = TcpStream::connect_timeout(&listener.local_addr()?, PATIENCE)?;
    let (receiver, _) = listener.accept()?;
    sender.write_all(b"ab")?;
    receiver.set_read_timeout(Some(PATIENCE))?;
    viaduct::peeks_at_offsets(&receiver)
}

fn check(name: &'static str, helps: io::Result<bool>) -> Check {
    match helps {
        Ok(true) => Check::ok(name, "the kernel peeks into TCP streams at an offset (SO_PEEK_OFF)"),
        Ok(false) => Check::new(
            name,
            Level::Warn,
            "the kernel does not peek into such TCP streams at an offset (SO_PEEK_OFF)",
            "Direct search on plain TCP connections copies what it passes over, and reaches no further than 256 KiB. IPv4 has it since Linux 6.9, IPv6 since a later one.",
        ),
        Err(error) => Check::new(
            name,
            Level::Warn,
            format!("no TCP connection to this machine itself: {error}"),
            "Whether direct search on plain TCP connections copies what it passes over is not known.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_machine_that_does_not_connect_to_itself_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // The queue of those that have not been accepted is full, and the kernel drops what comes.
        rustix::net::listen(&listener, 0).unwrap();
        let _first = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let began = Instant::now();
        assert_eq!(helps(&listener).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() < 10 * PATIENCE);
    }

    #[test]
    fn what_follows_is_told() {
        let level = |helps| check("direct search IPv6", helps).level;
        assert_eq!(level(Ok(true)), Level::Ok);
        assert_eq!(level(Ok(false)), Level::Warn);
        assert_eq!(level(Err(io::ErrorKind::TimedOut.into())), Level::Warn);
        assert!(check("", Ok(false)).consequence.contains("6.9"));
    }
}
