//! A kernel connection without a kernel.

use std::collections::VecDeque;
use std::sync::Mutex;

/// One direction of a kernel connection.
#[derive(Debug)]
pub(crate) struct Pipe {
    capacity: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    bytes: VecDeque<u8>,
    received: u64,
    /// The last of them have not come yet.
    under_way: usize,
    holds_back: bool,
}

impl Inner {
    fn come(&self) -> usize {
        self.bytes.len() - self.under_way
    }
}

impl Pipe {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            inner: Mutex::default(),
        }
    }

    /// Takes as many bytes as there is room for.
    pub(crate) fn send(&self, bytes: &[u8]) -> usize {
        let mut inner = self.inner.lock().expect("no panic inside");
        let sent = bytes.len().min(self.capacity - inner.bytes.len());
        inner.bytes.extend(&bytes[..sent]);
        if inner.holds_back {
            inner.under_way += sent;
        }
        sent
    }

    /// What is sent from now on comes later, or no more so.
    pub(crate) fn hold_back(&self, holds_back: bool) {
        let mut inner = self.inner.lock().expect("no panic inside");
        inner.holds_back = holds_back;
        if !holds_back {
            inner.under_way = 0;
        }
    }

    pub(crate) fn queued(&self) -> usize {
        self.inner.lock().expect("no panic inside").come()
    }

    /// Kernel position of the next byte to be sent.
    pub(crate) fn send_position(&self) -> u64 {
        let inner = self.inner.lock().expect("no panic inside");
        inner.received + inner.bytes.len() as u64
    }

    /// Kernel position of the next byte to be received.
    pub(crate) fn receive_position(&self) -> u64 {
        self.inner.lock().expect("no panic inside").received
    }

    pub(crate) fn peek(&self, most: usize) -> Vec<u8> {
        let inner = self.inner.lock().expect("no panic inside");
        inner.bytes.iter().copied().take(most.min(inner.come())).collect()
    }

    pub(crate) fn receive(&self, most: usize) -> Vec<u8> {
        let mut inner = self.inner.lock().expect("no panic inside");
        let taken = most.min(inner.come());
        inner.received += taken as u64;
        inner.bytes.drain(..taken).collect()
    }
}
