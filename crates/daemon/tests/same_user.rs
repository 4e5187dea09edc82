//! One user's processes, matched by their addresses.

mod support;

use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::AsFd;
use support::{Daemon, Event, Guest, PATIENCE, connection, file_of, listener, until};
use viaduct_channel::{Geometry, Segment, Side, Source};
use viaduct_control::Reason;
use viaduct_control::message::MODE_SAME_USER;

fn start(args: &[&str]) -> Daemon {
    Daemon::start(&[&["--same-user"], args].concat())
}

#[test]
fn two_ends_get_one_segment_and_each_others_bells() {
    let daemon = start(&[]);
    let (mut one, mut other) = (Guest::hello(daemon.dir()), Guest::hello(daemon.dir()));
    assert_eq!((one.welcome.mode, one.welcome.nonce), (MODE_SAME_USER, 0));
    let (opener, accepter) = connection(&listener());
    let bells = [(); 2].map(|()| eventfd(0, EventfdFlags::NONBLOCK).unwrap());
    one.offer_with_bell(7, &opener, 1, Some(&bells[0]));
    one.expect_nothing();
    other.offer_with_bell(9, &accepter, 1, Some(&bells[1]));
    let ((first, first_fds), (second, second_fds)) = (one.expect_pair(), other.expect_pair());
    assert_eq!((first.offer, second.offer), (7, 9));
    assert_eq!((first.side, second.side), (0, 1));
    assert_eq!(first.segment, second.segment);
    assert_eq!(
        (first.peer_pid, first.peer_uid),
        (std::process::id(), rustix::process::geteuid().as_raw())
    );

    let near = Segment::map(first_fds[0].as_fd()).unwrap();
    let far = Segment::map(second_fds[0].as_fd()).unwrap();
    assert_eq!(near.geometry(), Geometry::DEFAULT);
    near.sender(Side::First).append(Source::from(&b"hello"[..])).unwrap();
    assert_eq!(far.receiver(Side::Second).readable().unwrap(), 5);

    assert_ne!(first.bell, second.bell);
    rustix::io::write(&first_fds[1], &1_u64.to_ne_bytes()).unwrap();
    assert_eq!(rustix::io::read(&bells[1], &mut [0; 8]).unwrap(), 8);
    assert!(rustix::io::read(&bells[0], &mut [0; 8]).is_err());
}

/// Nobody counts who else holds it.
#[test]
fn a_socket_that_came_from_elsewhere_is_refused() {
    let daemon = start(&[]);
    let mut guest = Guest::hello(daemon.dir());
    let (opener, accepter) = connection(&listener());
    guest.offer(1, &opener);
    guest.offer_that_came(2, &accepter);
    assert_eq!(guest.expect_refusal(), (2, Reason::PassedOn, 0));
}

/// Programs outlive a viaductd, and go on to name what it has given them.
#[test]
fn no_two_viaductds_give_the_same_names() {
    let names = [(); 2].map(|()| {
        let daemon = start(&[]);
        let (mut one, mut other) = (Guest::hello(daemon.dir()), Guest::hello(daemon.dir()));
        let (opener, accepter) = connection(&listener());
        let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        one.offer_with_bell(1, &opener, 1, Some(&bell));
        other.offer_with_bell(2, &accepter, 1, Some(&bell));
        let (pair, _) = one.expect_pair();
        (pair.segment, pair.bell)
    });
    assert!(names[0].0 != names[1].0 && names[0].1 != names[1].1, "{names:?}");
}

#[test]
fn a_bell_is_given_once_and_named_afterwards() {
    let daemon = start(&[]);
    let (mut one, mut other) = (Guest::hello(daemon.dir()), Guest::hello(daemon.dir()));
    let listener = listener();
    let bell = eventfd(0, EventfdFlags::empty()).unwrap();
    let mut names = Vec::new();
    for number in 0..3 {
        let (opener, accepter) = connection(&listener);
        one.offer_with_bell(number, &opener, 1, (number == 0).then_some(&bell));
        other.offer(number, &accepter);
        assert_eq!(one.expect_pair().0.bell, 0);
        let (pair, descriptors) = other.expect_pair();
        assert_eq!(descriptors.len(), if number == 0 { 2 } else { 1 });
        names.push(pair.bell);
    }
    assert!(names[0] != 0 && names.iter().all(|name| *name == names[0]), "{names:?}");
}

#[test]
fn what_is_no_eventfd_is_no_bell() {
    let daemon = start(&[]);
    let (mut one, mut other) = (Guest::hello(daemon.dir()), Guest::hello(daemon.dir()));
    let (opener, accepter) = connection(&listener());
    let (_, pipe) = rustix::pipe::pipe().unwrap();
    one.offer_with_bell(1, &opener, 1, Some(&pipe));
    other.offer(1, &accepter);
    assert_eq!(other.expect_pair().0.bell, 0);
}

#[test]
fn both_ends_may_be_in_one_process() {
    let daemon = start(&[]);
    let mut guest = Guest::hello(daemon.dir());
    let (opener, accepter) = connection(&listener());
    guest.offer(1, &opener);
    guest.offer(2, &accepter);
    let pairs = [guest.expect_pair().0, guest.expect_pair().0];
    assert_eq!(pairs.map(|pair| pair.offer), [1, 2]);
    guest.detach(pairs[0].segment);
    until("the first end has let go", || daemon.stats().segments == 1);
    guest.detach(pairs[0].segment);
    until("the second end has let go", || daemon.stats().segments == 0);
}

#[test]
fn mail_is_counted_once_it_can_be_read() {
    let daemon = start(&[]);
    let mut guest = Guest::hello(daemon.dir());
    until("the welcome is counted", || guest.mail() == 1);
    let (opener, accepter) = connection(&listener());
    guest.offer(1, &opener);
    guest.offer(2, &accepter);
    until("both pairs are counted", || guest.mail() == 3);
    for _ in 0..2 {
        assert!(matches!(
            guest.event(std::time::Duration::from_millis(1)),
            Event::Pair(..)
        ));
    }
}

#[test]
fn two_sockets_that_claim_one_connection_get_nothing() {
    let daemon = start(&[]);
    let (mut one, mut other) = (Guest::hello(daemon.dir()), Guest::hello(daemon.dir()));
    let (opener, accepter) = connection(&listener());
    one.offer(1, &opener);
    until("the first offer waits", || daemon.stats().offers_waiting == 1);
    let mut claim = other.honest_offer(2, &opener);
    claim.cookie += 1;
    other.send(&claim);
    assert_eq!(one.expect_refusal(), (1, Reason::Ambiguous, 0));
    assert_eq!(other.expect_refusal(), (2, Reason::Ambiguous, 0));
    let mut third = Guest::hello(daemon.dir());
    third.offer(3, &accepter);
    third.expect_nothing();
}

#[test]
fn a_child_takes_over_its_parents_offer() {
    let daemon = start(&[]);
    let (mut parent, mut child) = (Guest::hello(daemon.dir()), Guest::hello(daemon.dir()));
    let (opener, accepter) = connection(&listener());
    parent.offer(1, &opener);
    until("the parent's offer waits", || daemon.stats().offers_waiting == 1);
    child.offer(1, &opener);
    assert_eq!(parent.expect_refusal().1, Reason::SharedEnd);
    parent.offer(2, &accepter);
    assert_eq!(parent.expect_pair().0.offer, 2);
    assert_eq!(child.expect_pair().0.offer, 1);
}

#[test]
fn a_withdrawn_offer_is_not_matched() {
    let daemon = start(&[]);
    let mut guest = Guest::hello(daemon.dir());
    let (opener, accepter) = connection(&listener());
    guest.offer(1, &opener);
    guest.withdraw(1);
    guest.offer(2, &accepter);
    guest.expect_nothing();
    guest.offer(3, &opener);
    assert_eq!(guest.expect_pair().0.offer, 2);
}

#[test]
fn ends_in_two_namespaces_are_no_pair_without_the_kernels_word() {
    let daemon = start(&[]);
    let mut guest = Guest::hello(daemon.dir());
    let (opener, accepter) = connection(&listener());
    guest.offer(1, &opener);
    let mut elsewhere = guest.honest_offer(2, &accepter);
    elsewhere.netns += 1;
    guest.send(&elsewhere);
    guest.expect_nothing();
}

#[test]
fn limits_are_told_and_end_when_segments_are_let_go() {
    let daemon = start(&["--segments-per-user", "2"]);
    assert_eq!(daemon.stats().segments_per_user, 2);
    let (mut guest, mut peer) = (Guest::hello(daemon.dir()), Guest::hello(daemon.dir()));
    let listener = listener();
    let mut segments = Vec::new();
    for number in 0..3 {
        let (opener, accepter) = connection(&listener);
        guest.offer(number, &opener);
        peer.offer(number, &accepter);
        if number < 2 {
            segments.push(guest.expect_pair().0.segment);
            peer.expect_pair();
        } else {
            assert_eq!(guest.expect_refusal(), (2, Reason::LimitSegments, 5000));
            assert_eq!(peer.expect_refusal(), (2, Reason::LimitSegments, 5000));
        }
    }
    guest.detach(segments[0]);
    peer.detach(segments[0]);
    drop(peer);
    until("one segment is left", || daemon.stats().segments == 1);
    let (opener, accepter) = connection(&listener);
    guest.offer(10, &opener);
    guest.offer(11, &accepter);
    guest.expect_pair();
}

#[test]
fn memory_is_limited_by_what_segments_may_grow_to() {
    let bytes = Geometry::DEFAULT.segment_len().to_string();
    let daemon = start(&["--memory-per-user", &bytes]);
    let mut guest = Guest::hello(daemon.dir());
    let listener = listener();
    for (number, limited) in [(0, false), (2, true)] {
        let (opener, accepter) = connection(&listener);
        guest.offer(number, &opener);
        guest.offer(number + 1, &accepter);
        if limited {
            assert_eq!(guest.expect_refusal().1, Reason::LimitMemory);
        } else {
            guest.expect_pair();
            guest.expect_pair();
        }
    }
    assert_eq!(daemon.stats().segment_bytes, Geometry::DEFAULT.segment_len() as u64);
}

#[test]
fn viaductd_keeps_no_segment() {
    let daemon = start(&[]);
    let mut guest = Guest::hello(daemon.dir());
    let (opener, accepter) = connection(&listener());
    guest.offer(1, &opener);
    guest.offer(2, &accepter);
    let (_, descriptors) = guest.expect_pair();
    guest.expect_pair();
    assert!(file_of(&descriptors[0]).contains("viaduct-segment"));
    let segments = || {
        let open = std::fs::read_dir(format!("/proc/{}/fd", daemon.child.id())).unwrap();
        let files = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        files
            .filter(|file| file.to_string_lossy().contains("viaduct-segment"))
            .count()
    };
    until("viaductd has closed the segment", || segments() == 0);
}

#[test]
fn hundreds_of_pairs_reach_a_process_that_reads_late() {
    let daemon = start(&[]);
    let (mut reader, mut sleeper) = (Guest::hello(daemon.dir()), Guest::hello(daemon.dir()));
    let listener = listener();
    let count: u64 = 300;
    for number in 0..count {
        let (opener, accepter) = connection(&listener);
        sleeper.offer(number, &accepter);
        reader.offer(number, &opener);
        assert_eq!(reader.expect_pair().0.offer, number);
    }
    for number in 0..count {
        assert_eq!(sleeper.expect_pair().0.offer, number);
    }
    let deadline = std::time::Instant::now() + PATIENCE;
    while sleeper.mail() < count + 1 {
        assert!(std::time::Instant::now() < deadline, "{}", sleeper.mail());
    }
}
