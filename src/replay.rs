//! Recorded sessions, run again: without a room, or in one, in the place of one of both ends.
//!
//! A [`Cassette`] is the client's end: tools that answer from a recording. [`Replay::live`] is the assistant's: what
//! clients were asked is asked again of live ones, and their answers are compared. What follows is about the third.
//!
//! [`Replay::dry`] gives the frames of a recording to sessions on virtual time, and compares what they say with what
//! was said. Nothing is sent anywhere, and the same entries give the same report on every machine.
//!
//! # What is run
//! The recorded participant, and each participant of this product with which it shook hands. The first is given all
//! that it heard; the others are given what it sent to them, so of those only their talk with it is compared.
//!
//! # What nobody could know
//! What applications did is taken from the file: a request that was sent is a call, an outcome that the session would
//! not have had by itself is what a tool returned, and likewise progress, stops, registrations and goodbyes. So an
//! argument or a tool's result is compared with nothing; what sessions make of it is. Neither compared are
//! `bridge.instance` and the value of `bridge.to` (a recording has neither), the id of an error (it is random), the
//! budget in a request that goes again, and the stanzas of others than the recorded participant (they count what they
//! say to anybody), but for their order.
//!
//! # Time
//! Before each entry, whatever a session had to do by then is done. When exactly something was said is not compared,
//! and what depends on exactly when something came is left out and counted: see [`Skipped`].
//! What must have happened before the file shows it is done before: a call that waited for its owner's silence, progress
//! that its result overtook, a registration of which the answer is there.

mod ahead;
mod cause;
mod check;
mod compare;
mod dry;
mod end;
mod live;
mod live_report;
mod miss;
mod outcome;
mod pace;
mod plan;
mod report;
mod script;
mod setup;
mod shelf;
mod stanzas;
mod tape;
mod value;
mod when;

pub use dry::{MAX_BYTES, MAX_ENTRIES, Replay};
pub use live::{Cassette, Live, Step, Timing};
pub use live_report::{LiveDifference, LiveError, LiveReport, NotAsked, Unasked};
pub use miss::{Miss, MissReason};
pub use pace::Speed;
pub use plan::{Plan, PlannedCall};
pub use report::{Difference, DryError, DryReport, Skipped};
