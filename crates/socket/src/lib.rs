//! BSD socket semantics over kernel connections and lanes.
//!
//! This crate lives in somebody else's process. It prints nothing, starts no thread, holds no lock while waiting, allocates nothing where
//! bytes move, and does nothing before the first TCP connection, socket to be one, or epoll set. Where it does not understand, or viaductd is absent, the
//! kernel connection carries on as always.
//!
//! | module | what it knows |
//! |---|---|
//! | [`lifecycle`], [`process`] | descriptors: connect, accept, dup, close; the process: fork, threads, exit; [`predecessors`], [`successors`]: who had them before, who else has them; [`lodgers`]: children on the same memory |
//! | [`send()`], [`receive()`], [`mod@file`] | the stream's bytes; `at_once`: what most calls come down to; `peek`: unread ones; `demote`: back to TCP |
//! | [`epoll`], [`epoll_ctl`], [`epoll_wait`], [`poll`] | readiness; `ready`: how it is computed |
//! | [`options`], [`signals`], [`cancel`] | calls whose meaning we keep; `wish`: what `viaduct path` asks for |
//! | [`search`] | direct search: bytes from the middle of a stream |
//! | `agent` | viaductd; `policy`: what `viaduct run` said; `worth`: which connections are offered; `idle`, `memory_group`: what lanes may take; `counters`: what `viaduct status` shows |
//! | `conn`, `table`, `lock`, `jump`, `bell`, `announce`, `spin`, `wait` | the records and how threads wait |
//! | [`sys`], [`real`] | the system-call corner |
#![deny(unsafe_code)]

mod agent;
mod announce;
mod asleep;
mod at_once;
mod bell;
pub mod cancel;
pub mod conn;
mod counters;
mod demote;
mod direct;
mod ending;
pub mod epoll;
mod epoll_back;
pub mod epoll_ctl;
mod epoll_set;
mod epoll_share;
pub mod epoll_wait;
pub mod file;
mod flags;
mod forks;
mod idle;
mod jump;
mod kernel;
pub mod lifecycle;
mod list;
mod lock;
pub mod lodgers;
mod lone;
mod marks;
mod memory_group;
mod needs;
mod offer;
pub mod options;
mod pace;
mod peek;
mod peer_bells;
mod policy;
pub mod poll;
pub mod predecessors;
pub mod process;
mod ready;
#[expect(unsafe_code, reason = "the C library's functions")]
pub mod real;
mod recall;
mod receive;
mod receive_lane;
mod receive_raw;
mod receive_wait;
mod records;
mod rest;
pub mod search;
mod send;
mod send_wait;
mod shared;
mod shelf;
pub mod signals;
mod spin;
mod stores;
pub mod successors;
#[expect(unsafe_code, reason = "the system-call corner")]
#[expect(
    clippy::cast_possible_truncation,
    reason = "words pass the system-call boundary as they are"
)]
pub mod sys;
pub mod table;
mod thread;
mod turns;
mod unseen;
#[expect(unsafe_code, reason = "the program's buffers, on its word")]
mod vector;
mod wait;
mod welcome;
mod wish;
mod worth;

pub use conn::Conn;
pub use jump::jumping;
pub use policy::{hold_instance, remember_environment};
pub use receive::{by_kernel, receive};
pub use send::{send, send_with_control};
pub use vector::{Vector, is_nowhere};
