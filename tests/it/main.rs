//! One binary for all integration tests: what needs more than one room of the house.

mod golden;
mod hostile;
mod wire;
