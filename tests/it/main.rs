//! One binary for all integration tests: what needs more than one room of the house.

#[cfg(all(feature = "runtime", unix))]
mod programs;
#[cfg(feature = "runtime")]
mod tools;
