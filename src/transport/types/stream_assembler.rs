//! Reassembles received byte streams.

use std::{collections::HashMap, fmt, sync::Arc};

use bytes::Bytes;

use super::{Peer, RPC_REQUEST_TOPIC, RPC_RESPONSE_TOPIC, StreamHeader, StreamKind, StreamPart};

/// The maximum number of open streams. Beyond it, the stream that was idle longest is dropped.
const OPEN: usize = 64;

/// The maximum length of a stream id, in bytes. A session accepts no longer one.
const ID: usize = 256;

/// Reassembles the byte streams that carry frames, for programs that read a room's events without a
/// [`Session`](crate::session::Session). A session has rules for who may send streams; this accepts those of all senders.
///
/// At most 64 streams are open, with twice `longest` bytes in all. Beyond that, the stream that was idle longest is dropped.
#[derive(Debug)]
pub struct StreamAssembler {
    open: HashMap<(Peer, Arc<str>), OpenStream>,
    /// Whether it reads the texts of RPC, and no frames.
    reads_rpc: bool,
    /// The maximum size of one frame, in bytes.
    longest: usize,
    bytes: usize,
    parts: u64,
}

/// A stream that has not ended.
struct OpenStream {
    header: Box<StreamHeader>,
    bytes: Vec<u8>,
    /// The index of the next chunk.
    next: u64,
    /// The counter value at its last part.
    heard: u64,
}

impl fmt::Debug for OpenStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenStream").field("bytes", &self.bytes.len()).field("next", &self.next).finish()
    }
}

impl StreamAssembler {
    /// Creates an assembler for frames of up to `longest` bytes.
    pub fn new(longest: usize) -> Self {
        Self { open: HashMap::new(), reads_rpc: false, longest, bytes: 0, parts: 0 }
    }

    /// Creates an assembler for the texts of LiveKit's RPC of up to `longest` bytes, as they travel.
    #[cfg(feature = "record")]
    pub(crate) fn of_rpc(longest: usize) -> Self {
        Self { reads_rpc: true, ..Self::new(longest) }
    }

    /// Adds a part. Returns the frame if the part completes it. A stream with a gap never completes.
    pub fn add(&mut self, from: &Peer, part: &StreamPart) -> Option<Bytes> {
        self.add_whole(from, part).map(|(_, bytes)| bytes)
    }

    /// Adds a part. Returns the header and the payload if the part completes them.
    pub(crate) fn add_whole(&mut self, from: &Peer, part: &StreamPart) -> Option<(Box<StreamHeader>, Bytes)> {
        let key = (from.clone(), Arc::clone(part.id()));
        self.parts += 1;
        match part {
            StreamPart::Header(header) => {
                self.close(&key);
                let is_wanted = if self.reads_rpc { is_rpc_text(header) } else { header.is_frame() };
                let ours = is_wanted && header.id.len() <= ID;
                let mut header = Box::new(header.clone());
                if ours && let Some(payload) = header.inline.take() {
                    return Some((header, payload));
                }
                if ours && header.length.is_none_or(|length| length <= self.longest as u64) {
                    if self.open.len() == OPEN {
                        self.close_oldest();
                    }
                    let bytes = Vec::new();
                    self.open.insert(key, OpenStream { header, bytes, next: 0, heard: self.parts });
                }
                None
            }
            StreamPart::Chunk { index, bytes, .. } => {
                let stream = self.open.get_mut(&key)?;
                if *index < stream.next {
                    return None; // duplicate
                }
                if *index > stream.next || stream.bytes.len() + bytes.len() > self.longest {
                    self.close(&key);
                    return None;
                }
                stream.bytes.extend_from_slice(bytes);
                (stream.next, stream.heard) = (stream.next + 1, self.parts);
                self.bytes += bytes.len();
                while self.bytes > self.longest.saturating_mul(2) {
                    self.close_oldest();
                }
                None
            }
            StreamPart::Trailer { reason, .. } => {
                let OpenStream { header, bytes, .. } = self.close(&key)?;
                reason.is_empty().then(|| (header, bytes.into()))
            }
        }
    }

    /// Drops the streams of a participant that left.
    pub fn forget(&mut self, peer: &Peer) {
        let theirs: Vec<_> = self.open.keys().filter(|(from, _)| from == peer).cloned().collect();
        for key in theirs {
            self.close(&key);
        }
    }

    fn close(&mut self, key: &(Peer, Arc<str>)) -> Option<OpenStream> {
        let stream = self.open.remove(key)?;
        self.bytes -= stream.bytes.len();
        Some(stream)
    }

    fn close_oldest(&mut self) {
        let oldest = self.open.iter().min_by_key(|(_, it)| it.heard).map(|(key, _)| key.clone());
        if let Some(key) = oldest {
            self.close(&key);
        }
    }
}

/// Returns whether a stream carries a request or an answer of LiveKit's RPC.
pub(crate) fn is_rpc_text(header: &StreamHeader) -> bool {
    header.kind == StreamKind::Text
        && (header.topic == RPC_REQUEST_TOPIC || header.topic == RPC_RESPONSE_TOPIC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{Packet, STREAM_TOPIC, StreamHeader, StreamParts};

    const LONGEST: usize = 1 << 20;

    fn parts(size: usize, id: &str) -> StreamParts {
        let mut packet = Packet::new(["b".into()], vec![7; size]);
        packet.stream = Some(id.into());
        StreamParts::of(&packet)
    }

    #[test]
    fn streams_of_two_senders_are_reassembled_separately() {
        let (a, b) = (Peer::new("a", "PA_1"), Peer::new("b", "PA_2"));
        let mut streams = StreamAssembler::new(LONGEST);
        let (mut of_a, mut of_b) = (parts(40_000, "s"), parts(20_000, "s"));
        let mut whole = Vec::new();
        for _ in 0..6 {
            whole.extend(of_a.next().and_then(|part| streams.add(&a, &part)).map(|it| it.len()));
            whole.extend(of_b.next().and_then(|part| streams.add(&b, &part)).map(|it| it.len()));
        }
        assert_eq!(whole, [20_000, 40_000]);
        assert_eq!((streams.bytes, streams.open.len()), (0, 0));
    }

    #[test]
    fn stream_with_gap_reason_or_leave_yields_nothing_and_frees_memory() {
        let a = Peer::new("a", "PA_1");
        let mut streams = StreamAssembler::new(LONGEST);
        for (n, part) in parts(40_000, "gap").enumerate() {
            assert!(n == 2 || streams.add(&a, &part).is_none());
        }
        let mut abandoned = parts(40_000, "abandoned");
        streams.add(&a, &abandoned.next().unwrap());
        assert!(abandoned.abandon().is_some_and(|trailer| streams.add(&a, &trailer).is_none()));
        for part in parts(40_000, "left").take(3) {
            streams.add(&a, &part);
        }
        streams.forget(&a);
        assert_eq!((streams.bytes, streams.open.len()), (0, 0));
    }

    #[test]
    fn sec_r3_unfinished_streams_are_limited() {
        let a = Peer::new("a", "PA_1");
        let mut streams = StreamAssembler::new(LONGEST);
        for n in 0..10 * OPEN {
            for part in parts(600_000, &n.to_string()).take(41) {
                streams.add(&a, &part);
            }
            assert!(streams.open.len() <= OPEN && streams.bytes <= 2 * LONGEST);
        }
        let too_long = StreamHeader::new("x", STREAM_TOPIC, LONGEST as u64 + 1);
        let open = streams.open.len();
        streams.add(&a, &StreamPart::Header(too_long));
        assert_eq!(streams.open.len(), open);
    }
}
