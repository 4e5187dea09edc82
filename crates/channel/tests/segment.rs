//! What may be mapped, and what it costs.

#![cfg(not(loom))]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

use viaduct_channel::{Geometry, MapError, Mapping, Returns, Segment, SegmentError, Side, growths};

/// Bytes of memory that a memfd has taken.
fn taken(fd: &OwnedFd) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let file = File::from(fd.try_clone().expect("a descriptor"));
    file.metadata().expect("a memfd").blocks() * 512
}

#[test]
fn geometries_out_of_range_are_refused() {
    for (shift, blocks) in [(11, 256), (17, 256), (12, 4), (12, 2048), (12, 100), (0, 0)] {
        assert_eq!(Geometry::new(shift, blocks), None, "2^{shift} x {blocks}");
    }
    let least = Geometry::new(12, 8).expect("permitted");
    assert_eq!((least.capacity(), least.segment_len()), (32768, 5 * 4096 + 4 * 32768));
    assert_eq!(Geometry::new(12, 1024), Some(Geometry::DEFAULT));
    assert!(Geometry::new(16, 1024).is_some());
}

#[test]
fn both_ends_map_what_was_made() {
    let geometry = Geometry::new(13, 16).expect("permitted");
    let fd = Segment::create(0xFEED, geometry).expect("memory");
    let a = Segment::map(fd.as_fd()).expect("just made");
    let b = Segment::map(fd.as_fd()).expect("just made");
    assert_eq!((b.id(), b.geometry()), (0xFEED, geometry));
    let bytes = vec![9; 20_000];
    assert_eq!(a.sender(Side::First).append(bytes.as_slice().into()), Ok(20_000));
    let rx = b.receiver(Side::Second);
    assert_eq!(rx.readable(), Ok(20_000));
    let mut got = vec![0; 20_000];
    assert_eq!(rx.copy_out(got.as_mut_slice().into(), 0), 20_000);
    assert_eq!(got, bytes);
}

#[test]
fn what_a_receiver_gives_back_stands_beside_the_lanes() {
    let geometry = Geometry::new(12, 8).expect("permitted");
    let fd = Segment::create(1, geometry).expect("memory");
    give_back(
        geometry,
        &Segment::map(fd.as_fd()).expect("just made"),
        &Segment::map(fd.as_fd()).expect("just made"),
    );
    let (a, b) = Segment::heap(geometry);
    give_back(geometry, &a, &b);
}

fn returns(segment: &Segment, side: Side) -> Returns<'_> {
    segment.returns(side).expect("address space")
}

fn give_back(geometry: Geometry, a: &Segment, b: &Segment) {
    let fill = |side, byte| {
        let bytes = vec![byte; geometry.capacity() + 9];
        assert_eq!(a.sender(side).append(bytes.as_slice().into()), Ok(geometry.capacity()));
    };
    fill(Side::First, 1);
    fill(Side::Second, 2);
    let bytes: Vec<u8> = (0..=255).cycle().take(40_000).collect();
    let written = returns(b, Side::First).write(5000, bytes.as_slice().into());
    assert_eq!(written, geometry.capacity() - 5000, "as far as there is room");
    assert_eq!(returns(b, Side::Second).write(0, b"other"[..].into()), 5);
    let mut got = vec![0; 40_000];
    assert_eq!(
        returns(a, Side::First).copy_out(5000, got.as_mut_slice().into()),
        written
    );
    assert_eq!(got[..written], bytes[..written]);
    assert_eq!(returns(a, Side::Second).copy_out(0, (&mut got[..5]).into()), 5);
    assert_eq!(&got[..5], b"other");
    for at in [geometry.capacity() as u64, u64::MAX] {
        assert_eq!(returns(b, Side::First).write(at, b"x"[..].into()), 0);
        assert_eq!(returns(a, Side::First).copy_out(at, (&mut got[..5]).into()), 0);
    }
    for (side, byte) in [(Side::First, 1), (Side::Second, 2)] {
        let lane = b.receiver(side.other());
        assert_eq!(lane.readable(), Ok(geometry.capacity()));
        lane.copy_out(got.as_mut_slice().into(), 0);
        assert!(got[..geometry.capacity()].iter().all(|got| *got == byte));
    }
}

#[test]
fn memory_is_taken_as_traffic_asks_for_it() {
    let fd = Segment::create(1, Geometry::DEFAULT).expect("memory");
    let segment = Segment::map(fd.as_fd()).expect("just made");
    assert_eq!(taken(&fd), 4096);
    let (tx, rx) = (segment.sender(Side::First), segment.receiver(Side::Second));
    for _ in 0..2048 {
        assert_eq!(tx.append([1; 64][..].into()), Ok(64));
        assert_eq!(rx.readable(), Ok(64));
        rx.consume(64);
    }
    assert_eq!(taken(&fd), 2 * 4096);
    assert_eq!(tx.append(vec![1; 100_000].as_slice().into()), Ok(100_000));
    assert!(taken(&fd) < 50 * 4096, "{} bytes", taken(&fd));
    // As long as a byte can name the blocks, there are no tables but the header's.
    assert_eq!(tx.append(vec![1; 900_000].as_slice().into()), Ok(900_000));
    assert!(taken(&fd) <= 4096 + (1 << 20), "{} bytes", taken(&fd));
    // Nor does a stream that has carried little take more, if its receiver has no need of it.
    assert_eq!(
        tx.append(vec![1; 8_000_000].as_slice().into()),
        Ok((1 << 20) - 1_000_000)
    );
    assert!(taken(&fd) <= 4096 + (1 << 20), "{} bytes", taken(&fd));
    assert_eq!(rx.want(rx.head() + Geometry::DEFAULT.capacity() as u64), 0);
    assert_eq!(
        tx.append(vec![1; 8_000_000].as_slice().into()),
        Ok(Geometry::DEFAULT.capacity() - (1 << 20))
    );
    assert_eq!(taken(&fd), 4096 + 8192 + Geometry::DEFAULT.capacity() as u64);
    let mut got = vec![0; Geometry::DEFAULT.capacity()];
    assert_eq!(rx.readable(), Ok(got.len()));
    assert_eq!(rx.copy_out(got.as_mut_slice().into(), 0), got.len());
    assert!(got.iter().all(|byte| *byte == 1));
    // Not while something is unread, or on its way back.
    assert!(tx.is_grown() && !tx.shrink());
    assert_eq!(rx.consume(got.len()), 1024);
    assert!(growths() > 0);
    // All but the header, and the larger tables, which stay.
    assert!(tx.shrink() && !tx.is_grown());
    assert_eq!(taken(&fd), 4096 + 8192);
    for round in 0..3 {
        assert_eq!(tx.append([2; 5000][..].into()), Ok(5000));
        assert_eq!(rx.readable(), Ok(5000));
        assert_eq!(rx.copy_out(got.as_mut_slice().into(), 0), 5000);
        assert!(got[..5000].iter().all(|byte| *byte == 2));
        rx.consume(5000);
        assert!(tx.shrink(), "round {round}");
        // The block that is being filled, and perhaps another.
        assert!(taken(&fd) <= 4096 + 8192 + 2 * 4096);
    }
    // Made smaller, it grows as it did at first.
    let first = (1 << 20) - 15_000 % 4096;
    assert_eq!(tx.append(vec![1; 8_000_000].as_slice().into()), Ok(first));
    assert_eq!(rx.want(u64::MAX >> 1), 0);
    assert_eq!(
        tx.append(vec![1; 8_000_000].as_slice().into()),
        Ok(Geometry::DEFAULT.capacity() - (1 << 20))
    );
}

#[test]
fn only_sealed_memory_is_mapped() {
    let not_sealed = |fd: &OwnedFd| matches!(Mapping::from_fd(fd.as_fd()), Err(MapError::NotSealed));
    // SAFETY: the name ends in a zero; the descriptor is new and owned by nobody else.
    let unsealed = unsafe {
        let fd = libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        assert!(fd >= 0);
        OwnedFd::from_raw_fd(fd)
    };
    assert!(not_sealed(&unsealed));
    let file = OwnedFd::from(File::open("/dev/null").expect("always there"));
    assert!(not_sealed(&file));
    // SAFETY: the descriptor is open.
    let sealed = unsafe { libc::fcntl(unsealed.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
    assert_eq!(sealed, 0);
    assert!(matches!(Mapping::from_fd(unsealed.as_fd()), Err(MapError::Empty)));
}

#[test]
fn what_is_made_can_neither_shrink_nor_grow() {
    let (mapping, fd) = Mapping::create(c"test", 10_000).expect("memory");
    assert_eq!((mapping.len(), mapping.words().len()), (10_000, 1250));
    for len in [0, 4096, 9999, 10_001, 1 << 20] {
        // SAFETY: the descriptor is open.
        let done = unsafe { libc::ftruncate(fd.as_raw_fd(), len) };
        assert_eq!(done, -1, "resized to {len}");
    }
}

#[test]
fn anything_but_a_segment_is_refused() {
    let (_, fd) = Mapping::create(c"test", 100).expect("memory");
    assert!(matches!(Segment::map(fd.as_fd()), Err(SegmentError::NotASegment)));
    let (_, fd) = Mapping::create(c"test", 1 << 20).expect("memory");
    assert!(matches!(Segment::map(fd.as_fd()), Err(SegmentError::NotASegment)));

    let spoil = |word: usize, value: u64| {
        let fd = Segment::create(1, Geometry::DEFAULT).expect("memory");
        let mapping = Mapping::from_fd(fd.as_fd()).expect("just made");
        mapping.words()[word].store(value, Relaxed);
        Segment::map(fd.as_fd()).map(drop)
    };
    assert!(spoil(3, 9).is_ok());
    assert!(matches!(spoil(0, 9), Err(SegmentError::NotASegment)));
    let fd = Segment::create(1, Geometry::DEFAULT).expect("memory");
    let mapping = Mapping::from_fd(fd.as_fd()).expect("just made");
    let version = mapping.words()[1].load(Relaxed) & u64::from(u32::MAX);
    assert_ne!(version, 99);
    assert!(matches!(spoil(1, 12 << 32 | 99), Err(SegmentError::Version(99))));
    // Another geometry than the length is for, and two that are out of range.
    for (word, value) in [(1, 13 << 32 | version), (1, 40 << 32 | version), (2, 0)] {
        assert!(matches!(spoil(word, value), Err(SegmentError::Geometry { .. })));
    }
}

#[test]
fn populating_takes_memory_in_the_mapping_only() {
    let (mapping, fd) = Mapping::create(c"test", 1 << 20).expect("memory");
    assert!(mapping.populate(5000..5001));
    assert_eq!(taken(&fd), 4096);
    assert!(mapping.populate((1 << 20) - 1..usize::MAX));
    assert_eq!(taken(&fd), 2 * 4096);
    assert!(mapping.populate(2 << 20..3 << 20));
    assert_eq!(taken(&fd), 2 * 4096);
    let words = mapping.leak();
    assert!(viaduct_channel::populate(&words[1030..1031]));
    assert_eq!(taken(&fd), 3 * 4096);
    assert!(viaduct_channel::populate(&[]));
    assert_eq!(taken(&fd), 3 * 4096);
}
