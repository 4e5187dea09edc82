//! Tagged messages on TCP sockets and others.

use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use viaduct::message::{Error, Inbox, Limits, Match, send};

fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

const ANY: Match = Match {
    tag: None,
    source: None,
};
const SOON: Option<Duration> = Some(Duration::from_secs(20));

fn tag(tag: u32) -> Match {
    Match { tag: Some(tag), ..ANY }
}

/// Whether the descriptor is readable within so many milliseconds.
fn is_told(inbox: &Inbox, ms: i32) -> bool {
    let mut entry = libc::pollfd {
        fd: inbox.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut entry, 1, ms) > 0 }
}

#[test]
fn messages_come_by_tag_in_order() {
    let (sender, receiver) = tcp();
    let (other, unix) = UnixStream::pair().unwrap();
    let inbox = Inbox::new().unwrap();
    assert_eq!(inbox.add(&receiver).unwrap(), 0);
    assert_eq!(inbox.add(&unix).unwrap(), 1);
    for socket in [0, 1] {
        for number in 0..6_u32 {
            let payload = format!("{socket} {number}").repeat(1 + 3000 * (number as usize % 2));
            match socket {
                0 => send(&sender, number % 3, payload.as_bytes()).unwrap(),
                _ => send(&other, number % 3, payload.as_bytes()).unwrap(),
            }
        }
    }
    let text = |wanted| {
        let (envelope, payload) = inbox.receive_vec(wanted, SOON).unwrap();
        assert_eq!(envelope.len, payload.len());
        (
            envelope.source,
            envelope.tag,
            String::from_utf8(payload[..3].to_vec()).unwrap(),
        )
    };
    let from = |source, tag| Match {
        tag: Some(tag),
        source: Some(source),
    };
    assert_eq!(text(from(1, 2)), (1, 2, "1 2".to_owned()));
    assert_eq!(text(from(0, 2)), (0, 2, "0 2".to_owned()));
    assert_eq!(text(from(0, 2)), (0, 2, "0 5".to_owned()));
    assert_eq!(inbox.probe(from(0, 1), SOON).unwrap().len, 3 * 3001);
    assert_eq!(text(from(0, 1)), (0, 1, "0 1".to_owned()));
    assert_eq!(text(Match { source: Some(0), ..ANY }), (0, 0, "0 0".to_owned()));
    assert_eq!(text(tag(1)), (0, 1, "0 4".to_owned()));
    assert_eq!(text(tag(1)), (1, 1, "1 1".to_owned()));
    assert!(matches!(
        inbox.receive(from(0, 2), &mut [], Some(Duration::ZERO)),
        Err(Error::TimedOut)
    ));
    assert_eq!(text(ANY), (0, 0, "0 3".to_owned()));
    for expected in ["1 0", "1 3", "1 4", "1 5"] {
        assert_eq!(text(ANY).2, expected);
    }
    drop((sender, other));
    assert!(matches!(inbox.receive(ANY, &mut [], SOON), Err(Error::Ended)));
}

#[test]
fn what_does_not_fit_stays() {
    let (sender, receiver) = tcp();
    let inbox = Inbox::new().unwrap();
    inbox.add(&receiver).unwrap();
    send(&sender, 7, b"payload").unwrap();
    send(&sender, 8, b"").unwrap();
    let mut small = [0; 3];
    assert!(matches!(
        inbox.receive(tag(7), &mut small, SOON),
        Err(Error::NoRoom { len: 7 })
    ));
    assert_eq!(inbox.receive(tag(8), &mut [], SOON).unwrap().len, 0);
    let mut room = [0; 10];
    assert_eq!(inbox.receive(tag(7), &mut room, SOON).unwrap().len, 7);
    assert_eq!(&room[..7], b"payload");
}

#[test]
fn bad_streams_give_typed_errors() {
    for (bytes, ends) in [
        (&b"GET / HTTP/1.1\r\n"[..], false),
        (&b"VMSG\x01\0\0\0\xff\xff\xff\xff"[..], false),
        (&b"VMSG\x01\0\0"[..], true),
        (&b"VMSG\x01\0\0\0\x05\0\0\0abc"[..], true),
    ] {
        let inbox = Inbox::new().unwrap();
        let (mut near, far) = tcp();
        let (mut other, unix) = UnixStream::pair().unwrap();
        inbox.add(&far).unwrap();
        inbox.add(&unix).unwrap();
        near.write_all(bytes).unwrap();
        other.write_all(bytes).unwrap();
        if ends {
            near.shutdown(Shutdown::Write).unwrap();
            other.shutdown(Shutdown::Write).unwrap();
        }
        for source in [0, 1] {
            let wanted = Match {
                source: Some(source),
                ..ANY
            };
            let error = inbox.receive_vec(wanted, SOON).unwrap_err();
            let right = match bytes.len() {
                16 => matches!(error, Error::Malformed { source: at } if at == source),
                12 => matches!(error, Error::TooLong { source: at, len: 0xffff_ffff } if at == source),
                _ => matches!(error, Error::Truncated { source: at } if at == source),
            };
            assert!(right, "{bytes:?}: {error}");
        }
    }
    let inbox = Inbox::new().unwrap();
    let wanted = Match { source: Some(3), ..ANY };
    assert!(matches!(inbox.probe(wanted, SOON), Err(Error::NoSource)));
}

#[test]
fn waits_end_when_they_should() {
    let (sender, receiver) = tcp();
    let inbox = Arc::new(Inbox::new().unwrap());
    inbox.add(&receiver).unwrap();
    // An unexpected message, which makes the socket readable all the time.
    send(&sender, 1, &[1; 100]).unwrap();
    let late = Duration::from_millis(60);
    // The machine may stand still in one of them.
    let took = [(); 3].map(|()| {
        let began = Instant::now();
        assert!(matches!(
            inbox.receive(tag(2), &mut [], Some(late)),
            Err(Error::TimedOut)
        ));
        began.elapsed()
    });
    assert!(
        took.iter().all(|took| *took >= late) && took.iter().any(|took| *took < Duration::from_secs(1)),
        "{took:?}"
    );
    let waiting = |wanted| {
        let inbox = Arc::clone(&inbox);
        std::thread::spawn(move || inbox.receive_vec(wanted, None).map(|(_, payload)| payload))
    };
    let (first, second) = (waiting(tag(2)), waiting(tag(3)));
    std::thread::sleep(Duration::from_millis(30));
    send(&sender, 3, b"third").unwrap();
    assert_eq!(second.join().unwrap().unwrap(), b"third");
    inbox.cancel();
    assert!(matches!(first.join().unwrap(), Err(Error::Cancelled)));
    assert_eq!(inbox.receive_vec(tag(1), SOON).unwrap().1, [1; 100]);
}

#[test]
fn many_messages_in_random_order() {
    let (sender, receiver) = tcp();
    let inbox = Inbox::new().unwrap();
    inbox.add(&receiver).unwrap();
    let payload = |number: u32| vec![u8::try_from(number % 251).unwrap(); (number as usize * 37) % 5000];
    let thread = std::thread::spawn(move || {
        for number in 0..3000 {
            send(&sender, number % 10, &payload(number)).unwrap();
        }
    });
    // Ten streams by tag, taken at uneven speed but never far apart.
    let mut next: Vec<u32> = (0..10).collect();
    let mut seed = 1_u32;
    for _ in 0..3000 {
        let slowest = *next.iter().min().unwrap();
        let choice = loop {
            seed = seed.wrapping_mul(1_103_515_245).wrapping_add(12345);
            let choice = (seed >> 16) as usize % 10;
            if next[choice] < 3000 && next[choice] <= slowest + 10 {
                break choice;
            }
        };
        let (envelope, got) = inbox.receive_vec(tag(u32::try_from(choice).unwrap()), SOON).unwrap();
        assert_eq!((envelope.tag, got), (next[choice] % 10, payload(next[choice])));
        next[choice] += 10;
    }
    thread.join().unwrap();
}

fn reset(socket: TcpStream) {
    let now = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    let len = libc::socklen_t::try_from(size_of_val(&now)).unwrap();
    // SAFETY: the option is of this type.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const now).cast(),
            len,
        )
    };
    assert_eq!(done, 0);
    drop(socket);
}

fn from(source: usize) -> Match {
    Match {
        source: Some(source),
        ..ANY
    }
}

#[test]
fn a_full_buffer_is_no_end() {
    let (sender, receiver) = tcp();
    let inbox = Inbox::new().unwrap();
    inbox.add(&receiver).unwrap();
    let thread = std::thread::spawn(move || {
        // More than any buffer holds: in messages that nobody asks for, in tiny ones, and in one.
        for number in 0..400_u32 {
            send(&sender, 1, &number.to_le_bytes().repeat(10_000)).unwrap();
        }
        for number in 0..5000_u32 {
            send(&sender, 2, &number.to_le_bytes()).unwrap();
        }
        send(&sender, 3, &[3; 20 << 20]).unwrap();
        send(&sender, 4, b"").unwrap();
    });
    assert_eq!(inbox.receive_vec(tag(4), SOON).unwrap().1, b"");
    assert_eq!(inbox.probe(tag(3), SOON).unwrap().len, 20 << 20);
    assert_eq!(inbox.receive_vec(tag(3), SOON).unwrap().1, [3; 20 << 20]);
    for number in 0..5000_u32 {
        assert_eq!(inbox.receive_vec(tag(2), SOON).unwrap().1, number.to_le_bytes());
    }
    for number in 0..400_u32 {
        assert_eq!(
            inbox.receive_vec(ANY, SOON).unwrap().1,
            number.to_le_bytes().repeat(10_000)
        );
    }
    thread.join().unwrap();
    assert!(matches!(inbox.receive_vec(ANY, SOON), Err(Error::Ended)));
}

/// Every second of so many messages makes a hole of its own, of which there may be 2047.
#[test]
fn too_many_holes_are_no_end() {
    let (sender, receiver) = tcp();
    let inbox = Inbox::new().unwrap();
    inbox.add(&receiver).unwrap();
    for number in 0..6000_u32 {
        send(&sender, number % 2, &number.to_le_bytes()).unwrap();
    }
    for parity in [1, 0] {
        for number in (parity..6000_u32).step_by(2) {
            assert_eq!(inbox.receive_vec(tag(parity), SOON).unwrap().1, number.to_le_bytes());
        }
    }
}

#[test]
fn the_store_is_bounded_and_tells() {
    let limits = Limits {
        longest: 10_000,
        store: 50_000,
    };
    let inbox = Inbox::with_limits(limits).unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    let (other, unix) = UnixStream::pair().unwrap();
    inbox.add(&far).unwrap();
    inbox.add(&unix).unwrap();
    let thread = std::thread::spawn(move || {
        for number in 0..1000 {
            send(&near, number, &[1; 10_000]).unwrap();
        }
        near
    });
    assert!(matches!(
        inbox.receive_vec(tag(999), SOON),
        Err(Error::Full { source: 0 })
    ));
    // Whoever asks for it by name is told each time.
    let last = Match {
        tag: Some(999),
        source: Some(0),
    };
    assert!(matches!(inbox.probe(last, SOON), Err(Error::Full { source: 0 })));
    // Others wait for the other source, and get what is there.
    let soon = Some(Duration::from_millis(20));
    assert!(matches!(inbox.probe(tag(999), soon), Err(Error::TimedOut)));
    send(&other, 999, b"other").unwrap();
    assert_eq!(inbox.receive_vec(tag(999), SOON).unwrap().0.source, 1);
    assert!(!thread.is_finished(), "all of it was kept");
    // The program can always go on in order.
    for number in 0..999 {
        assert_eq!(inbox.receive_vec(from(0), SOON).unwrap().0.tag, number);
    }
    assert_eq!(inbox.receive_vec(tag(999), SOON).unwrap().1, [1; 10_000]);
    drop(thread.join().unwrap());
    assert!(matches!(inbox.probe(from(0), SOON), Err(Error::Ended)));
    // Where nothing else is left to wait for, it is told again.
    drop(other);
    let (near, far) = tcp();
    inbox.add(&far).unwrap();
    let thread = std::thread::spawn(move || {
        for number in 0..2000 {
            send(&near, number, &[1; 10_000]).unwrap();
        }
    });
    for _ in 0..3 {
        assert!(matches!(inbox.probe(tag(1999), SOON), Err(Error::Full { source: 2 })));
    }
    for number in 0..2000 {
        assert_eq!(inbox.receive_vec(ANY, SOON).unwrap().0.tag, number);
    }
    thread.join().unwrap();
}

#[test]
fn a_broken_source_leaves_the_others_alone() {
    let inbox = Inbox::new().unwrap();
    let (mut first, far) = tcp();
    inbox.add(&far).unwrap();
    let (second, far) = tcp();
    inbox.add(&far).unwrap();
    first.write_all(b"no message at all").unwrap();
    assert!(matches!(
        inbox.receive_vec(ANY, SOON),
        Err(Error::Malformed { source: 0 })
    ));
    for number in 0..5 {
        send(&second, number, b"good").unwrap();
        assert_eq!(inbox.receive_vec(ANY, SOON).unwrap().0.source, 1);
        assert!(matches!(
            inbox.receive_vec(from(0), SOON),
            Err(Error::Malformed { source: 0 })
        ));
    }
    // A reset is an error of its source too.
    let (third, far) = tcp();
    inbox.add(&far).unwrap();
    reset(third);
    let error = inbox.receive_vec(ANY, SOON).unwrap_err();
    assert!(matches!(error, Error::Failed { source: 2, .. }) && error.errno() == libc::ECONNRESET);
    assert_eq!(error.source(), Some(2));
    send(&second, 9, b"").unwrap();
    assert_eq!(inbox.receive_vec(ANY, SOON).unwrap().0.tag, 9);
    drop(second);
    assert!(matches!(inbox.receive_vec(ANY, SOON), Err(Error::Ended)));
}

#[test]
fn the_longest_time_is_for_ever() {
    let (sender, receiver) = tcp();
    let inbox = Inbox::new().unwrap();
    inbox.add(&receiver).unwrap();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        send(&sender, 1, b"late").unwrap();
    });
    assert_eq!(inbox.receive_vec(ANY, Some(Duration::MAX)).unwrap().1, b"late");
    thread.join().unwrap();
}

/// Numbers as large as they can be overflow nothing.
#[test]
fn limits_of_any_size_are_taken() {
    for (longest, store) in [
        (usize::MAX, 0),
        (0, usize::MAX),
        (usize::MAX, usize::MAX),
        (usize::MAX - 1, 1),
    ] {
        let inbox = Inbox::with_limits(Limits { longest, store }).unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        inbox.add(&far).unwrap();
        send(&near, 1, b"").unwrap();
        send(&near, 2, b"").unwrap();
        assert_eq!(inbox.receive_vec(tag(2), SOON).unwrap().1, b"");
        assert_eq!(inbox.probe(ANY, SOON).unwrap().tag, 1);
    }
}

/// Processor time of this thread.
fn worked() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for one time.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(result, 0);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

/// What a message costs among so many sources of which none but the last sends.
fn cost_among(count: usize) -> Duration {
    let inbox = Inbox::new().unwrap();
    let pairs: Vec<_> = (0..count).map(|_| tcp()).collect();
    for (_, receiver) in &pairs {
        inbox.add(receiver).unwrap();
    }
    let sender = &pairs.last().unwrap().0;
    let exchange = || {
        send(sender, 1, b"x").unwrap();
        assert_eq!(inbox.receive(ANY, &mut [0], SOON).unwrap().source, count - 1);
    };
    // The first looks at each.
    exchange();
    let rounds = (0..5).map(|_| {
        let began = worked();
        (0..50).for_each(|_| exchange());
        worked() - began
    });
    rounds.min().unwrap()
}

#[test]
fn quiet_sources_cost_nothing() {
    let (few, many) = (cost_among(1), cost_among(300));
    assert!(many < 10 * few, "{few:?} with one source, {many:?} with 300");
}

/// A message that nobody wants keeps the socket readable.
#[test]
fn waits_behind_unexpected_messages_sleep() {
    let (mut sender, receiver) = tcp();
    let inbox = Inbox::new().unwrap();
    inbox.add(&receiver).unwrap();
    send(&sender, 1, b"unexpected").unwrap();
    for part in [&b"VMSG\x01"[..], b"\0\0\0\x09\0\0\0", b"in parts"] {
        let began = worked();
        let wait = Some(Duration::from_millis(400));
        assert!(matches!(inbox.receive(tag(2), &mut [], wait), Err(Error::TimedOut)));
        let spent = worked() - began;
        assert!(spent < Duration::from_millis(100), "{spent:?} of 400 ms");
        sender.write_all(part).unwrap();
    }
    let wanted = || inbox.receive_vec(tag(1), SOON).unwrap().1;
    assert_eq!(wanted(), b"unexpected");
    assert!(matches!(
        inbox.receive(tag(1), &mut [0; 9], Some(Duration::ZERO)),
        Err(Error::TimedOut)
    ));
    sender.write_all(b"!").unwrap();
    assert_eq!(wanted(), b"in parts!");
}

/// Who wants one source takes the news of the others; they are found later.
#[test]
fn news_of_other_sources_is_kept() {
    let inbox = Inbox::new().unwrap();
    let pairs: Vec<_> = (0..40).map(|_| tcp()).collect();
    for (_, receiver) in &pairs {
        inbox.add(receiver).unwrap();
    }
    for round in 0..3 {
        for (sender, _) in &pairs {
            send(sender, round, b"").unwrap();
            send(sender, 9, b"").unwrap();
        }
        let only = |source| Match {
            tag: Some(round),
            source: Some(source),
        };
        for source in [39, 0, 20] {
            assert_eq!(inbox.receive(only(source), &mut [], SOON).unwrap().source, source);
        }
        let left: Vec<usize> = (0..37)
            .map(|_| inbox.receive(tag(round), &mut [], SOON).unwrap().source)
            .collect();
        // The lowest number comes first.
        assert!(left.is_sorted_by(|one, other| one < other), "{left:?}");
    }
    let nines = (0..120).map(|_| inbox.receive(tag(9), &mut [], SOON).unwrap().source);
    assert!(nines.is_sorted());
    assert!(matches!(inbox.probe(ANY, Some(Duration::ZERO)), Err(Error::TimedOut)));
}

/// An event loop that only calls when it is told to gets past a buffer that is full of what nobody wants.
#[test]
fn event_loops_get_past_full_buffers() {
    let (sender, receiver) = tcp();
    let inbox = Inbox::new().unwrap();
    inbox.add(&receiver).unwrap();
    let flood = std::thread::spawn(move || {
        (0..400).for_each(|number| send(&sender, number, &[7; 50_000]).unwrap());
        send(&sender, 1000, b"last").unwrap();
        sender
    });
    let mut quiet = 0;
    let found = loop {
        match inbox.receive_vec(tag(1000), Some(Duration::ZERO)) {
            Ok((_, payload)) => break payload,
            Err(Error::TimedOut) => {}
            Err(error) => panic!("{error}"),
        }
        quiet += i32::from(!is_told(&inbox, 1000));
        assert!(quiet < 3, "nothing is told of for seconds");
    };
    assert_eq!(found, b"last");
    drop(flood.join().unwrap());
}

/// A call for one source may have taken what was to tell of another.
#[test]
fn what_is_due_is_told_again() {
    let (near, far) = tcp();
    let (other, unix) = UnixStream::pair().unwrap();
    let inbox = Inbox::new().unwrap();
    assert_eq!((inbox.add(&far).unwrap(), inbox.add(&unix).unwrap()), (0, 1));
    send(&near, 1, b"left").unwrap();
    inbox.probe(tag(1), SOON).unwrap();
    let look = |tag, source| {
        let wanted = Match { tag, source };
        inbox.probe(wanted, Some(Duration::ZERO))
    };
    assert!(matches!(look(Some(2), None), Err(Error::TimedOut)));
    assert!(is_told(&inbox, 20_000));
    assert!(matches!(look(None, Some(1)), Err(Error::TimedOut)));
    assert!(is_told(&inbox, 20_000));
    send(&other, 1, b"").unwrap();
    // Another that finds something has taken it too.
    assert!(look(None, Some(1)).is_ok());
    assert!(is_told(&inbox, 20_000));
    assert!(matches!(look(Some(2), Some(1)), Err(Error::TimedOut)));
    assert!(is_told(&inbox, 20_000));
}

/// A look finds a message whole that it does not take, or the first of several: the next call finds them too.
#[test]
fn what_a_look_finds_late_is_found_again() {
    let (mut sender, receiver) = tcp();
    let inbox = Inbox::new().unwrap();
    inbox.add(&receiver).unwrap();
    let short = Some(Duration::from_millis(5));
    sender.write_all(b"VMSG\x02\0\0\0\x04\0\0\0").unwrap();
    assert!(matches!(inbox.receive(tag(2), &mut [], short), Err(Error::TimedOut)));
    sender.write_all(b"late").unwrap();
    for _ in 0..2 {
        assert!(matches!(
            inbox.receive(tag(2), &mut [], SOON),
            Err(Error::NoRoom { len: 4 })
        ));
    }
    // Another thread takes the edge, and leaves the frames to whoever wants them.
    for number in 3..6 {
        send(&sender, number, b"").unwrap();
    }
    for number in 3..6 {
        assert_eq!(inbox.probe(tag(number), SOON).unwrap().tag, number);
    }
    for number in [5, 3, 4, 2] {
        assert_eq!(inbox.receive(tag(number), &mut [0; 4], SOON).unwrap().tag, number);
    }
}
