//! The protocol: [`frame`] is what is sent, [`session`] decides what to send.
//!
//! Both are free of I/O and of any clock. The module [`frame`] shows the wire contract.

pub mod frame;
pub mod session;
