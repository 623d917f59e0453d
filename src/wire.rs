//! Frames and bytes: the one door for bytes from outside. The contract is `wire.md`.

pub mod message;

pub use message::*;
