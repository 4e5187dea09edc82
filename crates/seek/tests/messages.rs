//! Tagged messages on TCP sockets and others.

use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use viaduct::message::{Error, Inbox, Match, send};

fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

const ANY: Match = Match {
    tag: None,
    source: None,
};
const SOON: Option<Duration> = Some(Duration::from_secs(5));

fn tag(tag: u32) -> Match {
    Match { tag: Some(tag), ..ANY }
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
    let began = Instant::now();
    let late = Some(Duration::from_millis(60));
    assert!(matches!(inbox.receive(tag(2), &mut [], late), Err(Error::TimedOut)));
    assert!(began.elapsed() >= Duration::from_millis(60) && began.elapsed() < Duration::from_secs(1));
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
