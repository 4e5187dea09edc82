//! Proof of the path for connections that come and go: the status, read again and again while a test runs.

use crate::instance::Instance;
use crate::status::{self, Row};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Rows by process, descriptor and remote address.
type Seen = HashMap<(u32, i32, String), Row>;

/// A thread that reads an instance's status until it is dropped, and keeps the last row of every connection end.
#[derive(Debug)]
pub struct Watch {
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Watches `instance`.
    pub fn new(instance: &Instance) -> Self {
        let seen = Arc::<Mutex<Seen>>::default();
        let stop = Arc::new(AtomicBool::new(false));
        let dir = instance.dir().to_owned();
        let thread = std::thread::spawn({
            let (seen, stop) = (Arc::clone(&seen), Arc::clone(&stop));
            move || {
                while !stop.load(Ordering::Relaxed) {
                    for row in status::read(&dir) {
                        if let Ok(mut seen) = seen.lock() {
                            seen.insert((row.pid, row.fd, row.remote.clone()), row);
                        }
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        });
        Self {
            seen,
            stop,
            thread: Some(thread),
        }
    }

    /// Every connection end seen so far, as last seen.
    pub fn rows(&self) -> Vec<Row> {
        self.seen
            .lock()
            .map(|seen| seen.values().cloned().collect())
            .unwrap_or_default()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
