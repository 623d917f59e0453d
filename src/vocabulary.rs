//! The one vocabulary of calls outside a room: what goes into a session and comes out of it, in plain types with a form as JSON.
//!
//! The bindings and the line protocol of `toolbridge assistant` share it. Keys are those of the wire (camelCase, times in milliseconds
//! with `Ms` at their end), and names among values are in snake_case. Its JSON Schema and the types of other languages are made of
//! what [`describe`] returns. It may change in any version.

#[macro_use]
pub mod form;

pub mod clock;
mod create;
pub mod describe;
pub mod from_core;
mod input;
mod lines;
mod output;
mod reply;
mod shared;
pub mod to_core;

pub use self::{
    create::{Choose, Config, Create, Pin},
    form::{Id, Json, Malformed},
    from_core::Known,
    input::{Input, Query, SendFailureKind, Unreadable},
    lines::{Line, LineCommand, LineEvent, LineLimits},
    output::{Candidate, Event, Output, StreamInfo},
    reply::{LateResult, LeftOut, ModelTool, OfferedTool, Record, Reply},
    shared::{
        Attribute, BargeIn, CallError, CallErrorKind, CloseKind, CloseReason, ConnectionState, Consent,
        Count, Execution, Lane, MetaEntry, NumberSetting, Participant, ParticipantKind, Peer, ProgressStatus,
        Readiness, Role, StopReason, TimeSetting, TokenRole, Tool, ToolFailure, UnacceptedReason, Visibility,
    },
};
