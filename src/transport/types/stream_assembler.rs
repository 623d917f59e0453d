//! Reassembles received streams.

use std::{collections::HashMap, fmt, sync::Arc};

use bytes::Bytes;

use super::{Compression, PayloadHash, Peer, StreamHeader, StreamPart};

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
    /// The maximum size of one frame, in bytes.
    longest: usize,
    bytes: usize,
    parts: u64,
}

/// Why a stream has no payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BrokenStream {
    /// Its sender gave it up, or left.
    Abandoned,
    /// A chunk is missing.
    Incomplete,
    /// It has more bytes than its header says.
    TooLong,
    /// Its header announces more than is read.
    TooLarge,
}

/// A stream that has not ended.
struct OpenStream {
    /// The header of a stream of RPC.
    rpc: Option<StreamHeader>,
    bytes: Vec<u8>,
    /// The hash of a frame, if the header has one.
    hash: Option<PayloadHash>,
    /// The index of the next chunk.
    next: u64,
    /// The counter value at its last part.
    heard: u64,
}

/// A stream that has ended: its header if it is one of RPC, and its payload.
type Ended = (Option<StreamHeader>, Result<Bytes, BrokenStream>);

impl OpenStream {
    /// Whether so many bytes are more than the header says. A compressed stream may be a little longer than its content.
    fn exceeds(&self, size: usize) -> bool {
        let Some(header) = &self.rpc else { return false };
        let is_plain = header.compression == Compression::None;
        is_plain && header.length.is_some_and(|length| size as u64 > length)
    }
}

impl fmt::Debug for OpenStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenStream").field("bytes", &self.bytes.len()).field("next", &self.next).finish()
    }
}

impl StreamAssembler {
    /// Creates an assembler for frames of up to `longest` bytes.
    pub fn new(longest: usize) -> Self {
        Self { open: HashMap::new(), longest, bytes: 0, parts: 0 }
    }

    /// Adds a part. Returns the frame if the part completes it. A stream with a gap never completes, nor one whose payload is
    /// not that of its header's [`STREAM_SHA256`](super::STREAM_SHA256).
    pub fn add(&mut self, from: &Peer, part: &StreamPart) -> Option<Bytes> {
        self.add_part(from, part, false).and_then(|(rpc, payload)| payload.ok().filter(|_| rpc.is_none()))
    }

    /// Adds a part of a stream of LiveKit's RPC. Returns its header, and its payload as it was sent, when it ends or breaks.
    #[cfg(feature = "record")]
    pub(crate) fn add_rpc(
        &mut self,
        from: &Peer,
        part: &StreamPart,
    ) -> Option<(StreamHeader, Result<Bytes, BrokenStream>)> {
        self.add_part(from, part, true).and_then(|(header, payload)| Some((header?, payload)))
    }

    fn add_part(&mut self, from: &Peer, part: &StreamPart, of_rpc: bool) -> Option<Ended> {
        let key = (from.clone(), Arc::clone(part.id()));
        self.parts += 1;
        match part {
            StreamPart::Header(header) => {
                self.close(&key);
                let is_ours = if of_rpc { header.is_text() } else { header.is_frame() };
                if header.id.len() > ID || !is_ours {
                    return None;
                }
                let rpc = of_rpc.then(|| StreamHeader { inline: None, ..header.clone() });
                if header.length.is_some_and(|length| length > self.longest as u64) {
                    return rpc.map(|header| (Some(header), Err(BrokenStream::TooLarge)));
                }
                if let Some(payload) = header.inline.clone() {
                    return Some((rpc, Ok(payload)));
                }
                if self.open.len() == OPEN {
                    self.close_oldest();
                }
                let hash = PayloadHash::of(header).filter(|_| !of_rpc);
                self.open
                    .insert(key, OpenStream { rpc, bytes: Vec::new(), hash, next: 0, heard: self.parts });
                None
            }
            StreamPart::Chunk { index, bytes, .. } => {
                let longest = self.longest;
                let stream = self.open.get_mut(&key)?;
                if *index < stream.next {
                    return None; // duplicate
                }
                let broken = match stream.bytes.len() + bytes.len() {
                    _ if *index > stream.next => Some(BrokenStream::Incomplete),
                    size if size > longest || stream.exceeds(size) => Some(BrokenStream::TooLong),
                    _ => None,
                };
                if let Some(broken) = broken {
                    return self.close(&key).map(|stream| (stream.rpc, Err(broken)));
                }
                stream.bytes.extend_from_slice(bytes);
                if let Some(hash) = &mut stream.hash {
                    hash.add(bytes);
                }
                (stream.next, stream.heard) = (stream.next + 1, self.parts);
                self.bytes += bytes.len();
                while self.bytes > self.longest.saturating_mul(2) {
                    self.close_oldest();
                }
                None
            }
            StreamPart::Trailer { reason, .. } => {
                let stream = self.close(&key)?;
                let payload =
                    if reason.is_empty() { Ok(stream.bytes.into()) } else { Err(BrokenStream::Abandoned) };
                stream.hash.is_none_or(PayloadHash::matches).then_some((stream.rpc, payload))
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

    /// Returns the headers of the streams of RPC of a participant that left, and drops all its streams.
    #[cfg(feature = "record")]
    pub(crate) fn take_rpc_of(&mut self, peer: &Peer) -> Vec<StreamHeader> {
        let theirs = self.open.iter_mut().filter(|((from, _), _)| from == peer);
        let headers = theirs.filter_map(|(_, stream)| stream.rpc.take()).collect();
        self.forget(peer);
        headers
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
    fn stream_whose_payload_was_changed_yields_nothing() {
        let a = Peer::new("a", "PA_1");
        for changed in [false, true] {
            let mut streams = StreamAssembler::new(LONGEST);
            let mut whole = None;
            for mut part in parts(40_000, "s") {
                if let StreamPart::Chunk { index: 1, bytes, .. } = &mut part
                    && changed
                {
                    *bytes = vec![8; bytes.len()].into();
                }
                whole = streams.add(&a, &part);
            }
            assert_eq!((whole.is_none(), streams.open.len(), streams.bytes), (changed, 0, 0));
        }
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
