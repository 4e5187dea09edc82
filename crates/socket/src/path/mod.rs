//! Which path the bytes of a direction travel, and how that changes: the marks on the kernel connection, and both ways
//! back to TCP.

pub(crate) mod announce;
pub(crate) mod behind;
pub(crate) mod closing;
pub(crate) mod demote;
pub(crate) mod leave;
pub(crate) mod marks;
pub(crate) mod recall;
pub(crate) mod switch;
pub(crate) mod wish;
