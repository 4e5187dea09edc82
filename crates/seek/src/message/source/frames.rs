//! Walking from frame to frame.

use super::{Source, State, is_not_now, read};
use crate::message::frame::Frame;
use crate::message::queue::Message;
use crate::message::{FRAME, Limits, wait};
use std::io;
use std::os::fd::AsFd as _;

impl Source {
    /// Looks at the frames that have come since the last look, up to the first of the tag, or of any.
    pub(super) fn scan(&mut self, tag: Option<u32>, limits: Limits) {
        let mut again = false;
        while self.state == State::Open && self.messages.first(tag).is_none() {
            let partly = self
                .messages
                .first_outside()
                .is_some_and(|(_, message)| message.kept.is_some() || !self.searched);
            if partly && !self.keep(limits) {
                return;
            }
            let mut frame = self.begun;
            let outside = self.messages.outside();
            let len = match self.peek(frame.rest(), outside) {
                Ok(Some(len)) => len,
                Ok(None) if frame.len() > 0 => return self.turn(State::Truncated),
                Ok(None) => return self.turn(State::Ended),
                Err(error) => match self.recover(&error, limits) {
                    true => continue,
                    false => return,
                },
            };
            let missing = frame.missing();
            frame.grow(len);
            if frame.is_malformed() {
                return self.turn(State::Malformed);
            }
            if len < missing {
                self.lacking = len > 0;
                if len > 0 && self.searched {
                    // A look at what is missing is what tells of a socket that cannot hold it, and the peer that it is
                    // waited for.
                    let error = match self.peek(&mut [0; 1], outside + missing - 1) {
                        // It may have come just now.
                        Ok(Some(1)) if !core::mem::replace(&mut again, true) => continue,
                        // As in `is_whole`.
                        Ok(Some(1)) => Some(io::Error::from_raw_os_error(libc::ENOBUFS)),
                        Ok(_) => None,
                        Err(error) => Some(error),
                    };
                    if let Some(error) = error {
                        match self.recover_frame(&error, len, limits) {
                            true => continue,
                            false => return,
                        }
                    }
                }
                let ended = len > 0 && wait::has_ended(self.fd.as_fd());
                let rest = &mut [0; FRAME];
                let rest = rest.get_mut(..missing).unwrap_or_default();
                if ended && matches!(self.peek(rest, outside), Ok(Some(still)) if still == len) {
                    self.turn(State::Truncated);
                }
                return;
            }
            let (tag, len) = (frame.tag(), frame.payload());
            if len > limits.longest {
                return self.turn(State::TooLong(len));
            }
            let begun = self.begun.len() > 0;
            let counts = Message::cost(if begun { len } else { 0 });
            if self.lacks_room(counts, limits) {
                return self.turn(State::Full);
            }
            if !begun {
                self.messages.push(tag, len);
            } else if self.take_of_frame(missing) && self.begun.missing() == 0 {
                self.begun = Frame::default();
                self.messages.push_payload(tag, len);
            } else {
                return;
            }
            self.stored += counts;
            again = false;
        }
    }

    /// As [`recover`](Self::recover), where the search was for the rest of a frame of which the socket has `len` bytes:
    /// takes these off the head if no messages stand before them.
    fn recover_frame(&mut self, error: &io::Error, len: usize, limits: Limits) -> bool {
        let full = error.raw_os_error() == Some(libc::ENOBUFS);
        if full && self.messages.outside() == 0 {
            self.take_of_frame(len)
        } else {
            self.recover(error, limits)
        }
    }

    /// Takes so many bytes of a frame, which have been peeked, off the head. Whether any have been.
    fn take_of_frame(&mut self, len: usize) -> bool {
        let rest = self.begun.rest().get_mut(..len).unwrap_or_default();
        let got = read(&self.fd, self.searched, rest);
        self.attention.forget();
        match got {
            Ok(0) => self.turn(State::Truncated),
            Ok(got) => {
                self.begun.grow(got);
                return true;
            }
            Err(error) if is_not_now(&error) => {}
            Err(error) => self.fail(&error),
        }
        false
    }
}
