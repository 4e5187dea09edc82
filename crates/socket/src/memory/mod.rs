//! What lanes may take of memory, and what they give back.

pub(crate) mod group;
pub(crate) mod idle;
