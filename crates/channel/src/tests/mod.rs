//! Tests that need the inside: tiny blocks, memory that runs out.

mod lane;
mod model;
