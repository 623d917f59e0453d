//! Reads and writes what data channels carry: LiveKit's data packets, their numbers, and byte streams.

pub(crate) mod packet;
pub(crate) mod sequence;
pub(crate) mod stream;
