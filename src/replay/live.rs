//! Live replays: one end of a recorded session in a room with the real other end.
//!
//! These are users of the public API, as adapters are; what they decide is decided without a clock or a room, in
//! `tape`, `shelf`, `plan` and `outcome` beside them.

mod ask;
mod cassette;

pub use ask::{Live, Step};
pub use cassette::{Cassette, Timing};
