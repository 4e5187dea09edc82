//! What the tests of the whole product stand on.
#![forbid(unsafe_code)]

pub mod pattern;
