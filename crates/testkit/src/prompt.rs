//! Scenes that need the machine to be prompt.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a scene is played at most.
const TIMES: usize = 3;

/// Who only sleeps and wakes later than this has been kept from the processor for as long, and so have others perhaps.
const LATE: Duration = Duration::from_millis(50);

const PAUSE: Duration = Duration::from_millis(5);

/// Looks whether the machine stands still, as virtual ones do for seconds, until it is dropped.
#[derive(Debug)]
pub struct Watch {
    latest_us: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Begins to look.
    pub fn start() -> Self {
        let (latest_us, is_over) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (latest, over) = (Arc::clone(&latest_us), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            while !over.load(Relaxed) {
                let began = Instant::now();
                std::thread::sleep(PAUSE);
                let late = began.elapsed().saturating_sub(PAUSE).as_micros();
                latest.fetch_max(u64::try_from(late).unwrap_or(u64::MAX), Relaxed);
            }
        });
        Self {
            latest_us,
            is_over,
            thread: Some(thread),
        }
    }

    /// For how long the machine has stood still, if for long enough to matter.
    pub fn held_up(&self) -> Option<Duration> {
        // A moment that has just passed is seen by then.
        std::thread::sleep(2 * PAUSE);
        Some(Duration::from_micros(self.latest_us.load(Relaxed))).filter(|late| *late > LATE)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Plays a scene that fails where the machine is not prompt: once more, at most three times in all, each time that it
/// has failed and the machine stood still meanwhile.
pub fn where_prompt<T>(scene: impl Fn() -> T) -> T {
    for _ in 1..TIMES {
        let watch = Watch::start();
        match catch_unwind(AssertUnwindSafe(&scene)) {
            Ok(played) => return played,
            Err(failure) => match watch.held_up() {
                Some(late) => eprintln!("the machine stood still for {late:?}: once more"),
                None => resume_unwind(failure),
            },
        }
    }
    scene()
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    #[test]
    fn a_scene_is_played_again_only_where_the_machine_stood_still() {
        let (played, late) = (Cell::new(0), AtomicBool::new(false));
        let scene = || {
            played.set(played.get() + 1);
            assert!(late.load(Relaxed));
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| where_prompt(scene)));
        // This machine may have stood still just then.
        assert!(outcome.is_err() && (1..=TIMES).contains(&played.get()));
        late.store(true, Relaxed);
        played.set(0);
        where_prompt(scene);
        assert_eq!(played.get(), 1);
    }
}
