//! The [Reactive Agent Protocol](https://infinity.hydro.run/docs/rap/spec/overview) (RAP): tools that are called over HTTP
//! and answer later, by a request to an address that the call names.
//!
//! The published Rust types fail a whole message for one display segment that they do not know, although the
//! specification says to skip it. So messages are read from their JSON, and the result of a call keeps its document:
//! [`RapResult`].

#[allow(dead_code, reason = "source and sink send requests")]
mod address;
#[allow(dead_code, reason = "the source reads messages")]
mod document;
#[allow(dead_code, reason = "source and sink listen")]
mod listen;
mod result;
#[allow(dead_code, reason = "source and sink make tokens")]
mod secret;

pub use address::{InvalidHost, NamedHost};
pub use result::{RapResult, RapResultError};
