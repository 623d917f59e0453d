//! One binary for all integration tests: what needs more than one room of the house.

mod golden;
mod hostile;
mod session_alicia;
mod session_calls;
mod session_schedules;
mod session_security;
mod session_world;
mod wire;
