//! Scenes that need the machine to be prompt.

use std::any::Any;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a scene is played at most.
const TIMES: usize = 3;

/// Who only sleeps and wakes later than this does so on a machine that stands still. One that is busy is no excuse.
const LATE: Duration = Duration::from_millis(300);

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

/// Plays a scene, part of which needs a machine that is prompt: once more, at most three times in all, each time that
/// it has failed with a message that has one of the fragments `late` and the machine stood still meanwhile. Any other
/// failure is final.
pub fn where_prompt<T>(late: &[&str], scene: impl Fn() -> T) -> T {
    let play = || catch_unwind(AssertUnwindSafe(&scene));
    again_where_late(play, |played| is_excusable(played, late)).unwrap_or_else(|failure| resume_unwind(failure))
}

/// Tries something once more, at most three times in all, each time that what came of it `may_be_late` and the machine
/// stood still meanwhile.
pub fn again_where_late<T>(attempt: impl FnMut() -> T, may_be_late: impl Fn(&T) -> bool) -> T {
    again(attempt, may_be_late, Watch::start, Watch::held_up)
}

/// Tells of a second try, past what captures the output of tests that pass.
pub fn tell(what: &str) {
    let _ = writeln!(std::io::stderr(), "{what}");
}

fn is_excusable<T>(played: &Result<T, Box<dyn Any + Send>>, late: &[&str]) -> bool {
    let Err(failure) = played else { return false };
    let message = failure.downcast_ref::<String>().map(String::as_str);
    message
        .or_else(|| failure.downcast_ref::<&str>().copied())
        .is_some_and(|message| late.iter().any(|fragment| message.contains(fragment)))
}

fn again<T, W>(
    mut attempt: impl FnMut() -> T,
    may_be_late: impl Fn(&T) -> bool,
    watch: impl Fn() -> W,
    held_up: impl Fn(&W) -> Option<Duration>,
) -> T {
    for _ in 1..TIMES {
        let watching = watch();
        let outcome = attempt();
        if !may_be_late(&outcome) {
            return outcome;
        }
        let Some(late) = held_up(&watching) else { return outcome };
        tell(&format!("the machine stood still for {late:?}: once more"));
    }
    attempt()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often a scene that fails with the message is played where the machine stood still for so long, and whether
    /// it fails in the end. It fails so many times.
    fn plays(message: &'static str, late: Option<Duration>, failures: usize) -> (usize, bool) {
        let mut plays = 0;
        let play = || {
            plays += 1;
            if plays <= failures {
                catch_unwind(|| panic!("{message} {}", 0))
            } else {
                Ok(())
            }
        };
        let outcome = again(play, |played| is_excusable(played, &["not fast"]), || (), |()| late);
        (plays, outcome.is_err())
    }

    #[test]
    fn a_scene_is_played_again_only_where_it_was_late_and_the_machine_stood_still() {
        let late = Some(Duration::from_secs(1));
        assert_eq!(plays("it is not fast:", None, 9), (1, true), "the machine was prompt");
        assert_eq!(plays("wrong bytes:", late, 9), (1, true), "it was not for being late");
        assert_eq!(plays("it is not fast:", late, 9), (TIMES, true));
        assert_eq!(plays("it is not fast:", late, 1), (2, false));
        assert_eq!(plays("it is not fast:", late, 0), (1, false));
    }

    #[test]
    fn messages_of_either_kind_are_read() {
        assert!(is_excusable(&catch_unwind(|| panic!("not fast")), &["wrong", "fast"]));
        assert!(is_excusable(&catch_unwind(|| assert_eq!(1, 2, "not fast")), &["fast"]));
        assert!(!is_excusable(&catch_unwind(|| assert_eq!(1, 2)), &["fast"]));
        assert!(!is_excusable(&Ok(()), &[""]));
    }

    #[test]
    fn who_keeps_the_processor_for_a_moment_is_no_standstill() {
        let latest = |us| {
            let watch = Watch {
                latest_us: Arc::new(AtomicU64::new(us)),
                is_over: Arc::default(),
                thread: None,
            };
            watch.held_up()
        };
        assert_eq!(latest(250_000), None);
        assert_eq!(latest(400_000), Some(Duration::from_millis(400)));
    }
}
