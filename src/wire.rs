//! Frames and bytes: the one door for bytes from outside. The contract is `wire.md`.

mod dialect;
mod envelope;
mod json;
mod kind;
pub mod message;
mod meta;
mod read;
mod write;

pub use envelope::Frame;
pub use kind::Kind;
pub use message::*;
pub use meta::Meta;
