//! One binary for all integration tests: what needs more than one room of the house.

// mod bridge;
mod layers;
// mod programs_of_the_api;
mod tools;
mod wire;
