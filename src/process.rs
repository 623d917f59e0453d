//! Child processes: process groups, the helper that ends them, and the check of files that name programs.

pub(crate) mod group;
pub(crate) mod supervise;
pub(crate) mod trust;
