//! The C symbols that intercept a program's socket calls.
//!
//! Each hook has the contract of the C library's function of its name, which every `# Safety` here means. A hook finds
//! out whether the descriptor concerns Viaduct, and if not calls the function behind it; if so it hands over to
//! `viaduct-socket`. No hook panics, and those that may wait can be unwound through by a cancelled thread.

#![expect(unreachable_pub, reason = "the hooks are for the dynamic linker")]
#![expect(
    clippy::cast_possible_truncation,
    reason = "words pass the calling convention as they are"
)]

mod aliases;
mod background;
mod control;
mod descriptors;
mod exec;
mod files;
mod formats;
mod imports;
mod messages;
mod numbers;
mod options;
mod process;
mod raw_rings;
mod requests;
mod rings;
mod sanitizers;
mod scopes;
mod search;
mod select;
mod transfer;
mod unwind;
mod wait;
