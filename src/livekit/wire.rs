//! Reads and writes what data channels carry: LiveKit's data packets, their numbers, streams, and messages of RPC.

pub(crate) mod packet;
pub(crate) mod rpc;
pub(crate) mod sequence;
pub(crate) mod stream;
