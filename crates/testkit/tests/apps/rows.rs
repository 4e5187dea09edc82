//! What `viaduct status` shows of both ends of connections while they carry something.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use viaduct_testkit::Instance;
use viaduct_testkit::status::Row;

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Both ends send all the time.
    Both,
    /// One end sends: the other direction has no reason to move.
    One,
}

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// The most bytes that both rows of a connection have told of, by its addresses.
type Seen = HashMap<[String; 2], u64>;

/// Whether the row says that the connection is on shared memory.
fn is_on_lane(row: &Row, way: Way) -> bool {
    let (sending, receiving) = row.path.split_once('/').unwrap_or((&row.path, &row.path));
    match way {
        Way::Both => row.path == "shm",
        Way::One if row.bytes_sent > row.bytes_received => sending == "shm",
        Way::One => receiving == "shm",
    }
}

/// Looks at the connections between `client` and `server` once.
fn look(rows: &[Row], server: &str, client: &str, way: Way, seen: &mut Seen) {
    for near in rows.iter().filter(|row| row.program == client && is_on_lane(row, way)) {
        let is_far = |row: &&Row| {
            (&row.local, &row.remote) == (&near.remote, &near.local)
                && row.program.starts_with(server)
                && is_on_lane(row, way)
        };
        let Some(far) = rows.iter().find(is_far) else { continue };
        // Each names the other, and what one has sent by shared memory the other has received.
        assert_eq!(
            (near.peer_pid, far.peer_pid),
            (Some(far.pid), Some(near.pid)),
            "{near:#?} {far:#?}"
        );
        let fast = |row: &Row| row.fast_bytes_sent + row.fast_bytes_received;
        let mut ends = [near.local.clone(), near.remote.clone()];
        ends.sort();
        let most = seen.entry(ends).or_default();
        *most = fast(near).min(fast(far)).max(*most);
    }
}

/// Ends the looking, however what is looked at has ended.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Runs something and looks at the connections between `client` and `server` meanwhile. What they have carried before
/// does not count.
pub(crate) fn watch<T>(instance: &Instance, server: &str, client: &str, way: Way, run: impl Fn() -> T) -> (T, Seen) {
    let (ended, mut before) = (AtomicBool::new(false), Seen::new());
    look(&instance.status(), server, client, way, &mut before);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut seen = Seen::new();
            while !ended.load(Relaxed) {
                look(&instance.status(), server, client, way, &mut seen);
                std::thread::sleep(PAUSE);
            }
            seen
        });
        let end = Ended(&ended);
        let result = run();
        drop(end);
        let mut seen = watcher.join().unwrap();
        for (ends, bytes) in &mut seen {
            *bytes -= before.get(ends).unwrap_or(&0);
        }
        (result, seen)
    })
}
