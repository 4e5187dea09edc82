//! BSD socket semantics over kernel connections and lanes.
//!
//! This crate lives in somebody else's process. It prints nothing, starts no thread, holds no lock while waiting,
//! allocates nothing where bytes move, and does nothing before the first TCP connection, socket to be one, or epoll
//! set. Where it does not understand, or viaductd is absent, the kernel connection carries on as always.
//!
//! | module | what it knows |
//! |---|---|
//! | [`descriptors`] | what stands behind each number: connect, accept, dup, close; who had a connection before, who else has it |
//! | [`process`] | fork, threads, children on the same memory, code whose calls are not seen |
//! | [`conn`] | the records of connections |
//! | [`send()`], [`receive()`], [`mod@file`] | the stream's bytes; `at_once`: what most calls come down to |
//! | `path` | which path they travel: marks, announcements, back to TCP, what `viaduct path` asks for |
//! | [`search`] | direct search: bytes from the middle of a stream |
//! | [`epoll`], [`poll`] | readiness, as both ask for it; `ready`: how it is computed |
//! | [`wait`] | how threads poll, sleep, are woken and cancelled |
//! | `lock` | which thread uses a direction now, and what becomes of that where it jumps or ends |
//! | [`options`], `kernel` | what the program and we ask of the kernel connection |
//! | `agent` | viaductd: which connections are offered, what `viaduct run` said, what `viaduct status` shows |
//! | `memory`, `extent` | what lanes may take, and what they give back; how much of our own arrays is in use |
//! | [`sys`], [`real`], `vector` | the corner for system calls, the C library's functions, the program's buffers |
#![deny(unsafe_code)]

mod agent;
mod at_once;
pub mod conn;
pub mod descriptors;
pub mod epoll;
mod extent;
pub mod file;
mod kernel;
mod lock;
mod memory;
pub mod options;
mod path;
pub mod poll;
pub mod process;
mod ready;
#[expect(unsafe_code, reason = "the C library's functions")]
pub mod real;
mod receive;
pub mod search;
mod send;
#[expect(unsafe_code, reason = "the system-call corner")]
#[expect(
    clippy::cast_possible_truncation,
    reason = "words pass the system-call boundary as they are"
)]
pub mod sys;
#[expect(unsafe_code, reason = "the program's buffers, on its word")]
mod vector;
pub mod wait;

pub use agent::policy::{hold_instance, remember_environment};
pub use conn::Conn;
pub use lock::jump::{ending, jumping};
pub use receive::{by_kernel, receive};
pub use send::{send, send_with_control};
pub use vector::{Vector, is_nowhere};
