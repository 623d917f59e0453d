//! Runs the participant in its room: joins, resumes and rejoins, and tracks who else is there.

pub(crate) mod connect;
pub(crate) mod connection;
pub(crate) mod inbox;
pub(crate) mod liveness;
pub(crate) mod participants;
pub(crate) mod queues;
pub(crate) mod rejoin;
pub(crate) mod resume;
pub(crate) mod simulate;
pub(crate) mod snapshot;
pub(crate) mod task;
