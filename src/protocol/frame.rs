#![doc = include_str!("wire.md")]

mod dialect;
mod envelope;
mod json;
mod kind;
mod message;
mod meta;
mod read;
mod registered;
#[cfg(feature = "record")]
mod spelling;
mod write;

pub use envelope::Frame;
pub use kind::Kind;
pub use message::*;
pub use meta::Meta;

pub use crate::value::{Limits, ValueKind};
