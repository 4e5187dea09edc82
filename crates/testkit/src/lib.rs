//! What the tests of the whole product stand on.
//!
//! * [`Instance`]: a viaductd with its own runtime directory.
//! * [`Launch`], [`Program`]: real programs, native or accelerated, whose output is kept and who never outlive their
//!   test.
//! * [`Host`]: a network namespace, joined to others by virtual cables.
//! * [`Container`]: an OCI container on such a host.
//! * [`Server`], [`peer`]: `viaduct-testpeer`, which checks every byte of its streams.
//! * [`status`], [`Instance::totals`], [`Instance::stats`]: proof of which path carried the bytes.
//! * [`Counters`]: a process's own counters, to move its connections many times a second.
//! * [`processes`]: signals, and what a process holds, for the tests of faults and leaks.
//! * [`prompt`]: scenes that fail where the machine stands still, as virtual ones do for seconds.
//! * [`pattern`]: bytes that a receiver can check; `viaduct-testpeer` sends and checks them.
//!
//! The tests need the release build of the whole workspace; see [`binaries::bin_dir`].
#![forbid(unsafe_code)]

pub mod binaries;
pub mod container;
pub mod counters;
pub mod host;
pub mod instance;
pub mod pattern;
pub mod peer;
pub mod processes;
pub mod program;
pub mod prompt;
pub mod status;

pub use binaries::can_run;
pub use container::Container;
pub use counters::Counters;
pub use host::Host;
pub use instance::Instance;
pub use peer::Server;
pub use program::{Launch, Mode, Outcome, Program};
pub use prompt::where_prompt;
