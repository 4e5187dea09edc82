//! Tests that need the inside: tiny blocks, memory that runs out.

mod in_place;
mod lane;
mod model;
