//! Implements the protocol: [`frame`] encodes and decodes frames, and [`session`] is the state machine that
//! exchanges them.
//!
//! Neither does I/O or reads a clock. The wire contract is part of the documentation of [`frame`].

#[cfg(feature = "deflate")]
#[cfg_attr(not(test), expect(dead_code, reason = "sessions that answer RPC use it"))]
pub(crate) mod deflate;
pub mod frame;
#[expect(dead_code, reason = "sessions that answer RPC use it")]
pub(crate) mod rpc;
pub(crate) mod session;
