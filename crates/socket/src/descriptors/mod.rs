//! Descriptors: what stands behind each number, how they come and go, and who else has them.

pub mod lifecycle;
pub mod predecessors;
pub mod successors;
pub mod table;
