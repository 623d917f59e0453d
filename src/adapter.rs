//! Other systems' ways of speaking of tools, as users of the public API.

pub mod chat;
