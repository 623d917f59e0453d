//! toolbridge's state machine in plain types, for wrappers in other languages.
//!
//! [`Session`] takes [`Input`]s and returns [`Output`]s: structs and enums of numbers, texts, bytes and lists, without
//! generics or lifetimes. Keys are numbers, bodies are JSON, and times are milliseconds since the driver's zero point.
//! [`JsonSession`] is the same with JSON texts, which wrappers carry. `bindings/README.md` describes both.
//!
//! Nothing that is passed makes it panic. A malformed input is an error, and has no effect.

#[macro_use]
mod form;

mod clock;
mod create;
mod from_core;
mod guarded;
mod input;
mod json_session;
mod output;
mod reply;
mod session;
mod shared;
mod to_core;
pub mod trace;

pub use self::{
    create::{Choose, Config, Create, Pin},
    form::{Json, Malformed},
    guarded::{Guarded, Panicked},
    input::{Input, Query, SendFailureKind, Unreadable},
    json_session::JsonSession,
    output::{Candidate, Event, Output, StreamInfo},
    reply::{LateResult, LeftOut, OfferedTool, Record, Reply},
    session::Session,
    shared::{
        Attribute, BargeIn, CallError, CloseKind, CloseReason, ConnectionState, Consent, Count, Lane,
        MetaEntry, NumberSetting, Participant, ParticipantKind, Peer, ProgressStatus, Role, TimeSetting,
        Tool, ToolFailure, Visibility,
    },
};
