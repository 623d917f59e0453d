//! Runs live replays: one end of a recorded session in a room with the real other end.
//!
//! These modules use only the public API. Their decisions are made without a clock or a room, in `recorded_calls`,
//! `matcher`, `plan` and `outcome`.

mod ask;
mod cassette;

pub use ask::{Live, Step};
pub use cassette::{Cassette, Timing};
