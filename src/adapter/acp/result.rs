//! Converts results of calls, in both directions.

mod read;
pub(super) mod write;

pub(super) use read::TerminalOutput;
