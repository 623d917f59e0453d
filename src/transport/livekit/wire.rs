//! What travels in data channels: LiveKit's data packets, their numbers, and byte streams.

pub(crate) mod packet;
pub(crate) mod sequence;
pub(crate) mod stream;
