//! One binary for all integration tests: what needs more than one room of the house.

mod bridge;
mod bridge_ends;
mod golden;
mod hostile;
mod layers;
mod programs;
mod programs_of_the_api;
mod session_alicia;
mod session_calls;
mod session_schedules;
mod session_security;
mod session_world;
mod tools;
mod wire;
