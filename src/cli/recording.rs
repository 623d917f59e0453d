//! Holds the verbs that read, check, change and replay recordings.

pub(super) mod calls;
pub(super) mod cat;
pub(super) mod check;
pub(super) mod frame;
pub(super) mod info;
pub(super) mod recording_file;
pub(super) mod redact;
pub(super) mod repair;
pub(super) mod replay;
pub(super) mod report;
