//! toolbridge's state machine in plain types, for wrappers in other languages.
//!
//! [`Session`] takes [`Input`]s and returns [`Output`]s: structs and enums of numbers, texts, bytes and lists, without
//! generics or lifetimes. Keys are numbers, bodies are JSON, and times are milliseconds since the driver's zero point.
//! [`JsonSession`] is the same with JSON texts, which wrappers carry. `bindings/README.md` describes both.
//!
//! Nothing that is passed makes it panic. A malformed input is an error, and has no effect.

mod guarded;
mod json_session;
mod names;
mod session;
pub mod trace;

pub use self::{
    guarded::{Guarded, Panicked},
    json_session::JsonSession,
    session::Session,
};
pub use toolbridge::vocabulary::*;
