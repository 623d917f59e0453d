//! Implements the protocol: [`frame`] encodes and decodes frames, and [`session`] is the state machine that
//! exchanges them.
//!
//! Neither does I/O or reads a clock. The wire contract is part of the documentation of [`frame`].

#[cfg(feature = "deflate")]
pub(crate) mod deflate;
pub mod frame;
pub(crate) mod rpc;
pub(crate) mod session;
