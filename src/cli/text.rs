//! What may go to a terminal.

pub(super) use crate::recording::plain::{counted, json, plain};
