//! Reassembles large frames from byte streams.

use std::{collections::VecDeque, sync::Arc};

use toolbridge::{
    Peer,
    transport::{STREAM_TOPIC, StreamPart},
};

/// The maximum number of concurrent streams of all senders. Beyond it, the oldest is dropped.
const AT_ONCE: usize = 64;

/// The maximum number of buffered bytes: two frames of the largest size.
const BYTES: usize = 32 * 1024 * 1024;

/// The open streams, oldest first.
#[derive(Default)]
pub(in crate::cli) struct StreamAssembler(VecDeque<OpenStream>);

struct OpenStream {
    from: Peer,
    id: Arc<str>,
    /// The index of the next chunk.
    next: u64,
    bytes: Vec<u8>,
}

impl StreamAssembler {
    /// Adds a part. Returns the frame after the last part.
    pub(super) fn take(&mut self, from: &Peer, part: StreamPart) -> Option<Vec<u8>> {
        let at = self.0.iter().position(|stream| stream.from == *from && stream.id == *part.id());
        match part {
            StreamPart::Header(header) => {
                // A repeated header starts a new stream.
                at.map(|at| self.0.remove(at));
                if header.topic == STREAM_TOPIC {
                    self.0.push_back(OpenStream {
                        from: from.clone(),
                        id: header.id,
                        next: 0,
                        bytes: Vec::new(),
                    });
                }
                if self.0.len() > AT_ONCE {
                    self.0.pop_front();
                }
                None
            }
            StreamPart::Chunk { index, bytes, .. } => {
                let stream = self.0.get_mut(at?)?;
                if stream.next == index {
                    stream.next += 1;
                    stream.bytes.extend_from_slice(&bytes);
                }
                while self.0.iter().map(|stream| stream.bytes.len()).sum::<usize>() > BYTES {
                    self.0.pop_front();
                }
                None
            }
            StreamPart::Trailer { reason, .. } => {
                let stream = self.0.remove(at?)?;
                reason.is_empty().then_some(stream.bytes)
            }
        }
    }

    /// Drops the streams of a participant that left.
    pub(super) fn forget(&mut self, from: &Peer) {
        self.0.retain(|stream| stream.from != *from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolbridge::{
        Packet,
        transport::{StreamHeader, StreamParts},
    };

    fn parts(size: usize) -> StreamParts {
        StreamParts::of(&Packet::new(["b".into()], vec![7; size]))
    }

    #[test]
    fn interleaved_streams_are_reassembled_separately() {
        let (mut streams, a, b) =
            (StreamAssembler::default(), Peer::new("a", "PA_1"), Peer::new("b", "PA_2"));
        let mut frames = Vec::new();
        for (of_a, of_b) in parts(40_000).zip(parts(40_000)) {
            frames.extend(streams.take(&a, of_a));
            frames.extend(streams.take(&b, of_b));
        }
        assert_eq!(frames.iter().map(Vec::len).collect::<Vec<_>>(), [40_000, 40_000]);
        assert!(streams.0.is_empty());
    }

    #[test]
    fn incomplete_or_foreign_streams_yield_no_frame() {
        let (mut streams, a) = (StreamAssembler::default(), Peer::new("a", "PA_1"));
        let mut abandoned = parts(40_000);
        let header = abandoned.next().unwrap();
        assert_eq!(streams.take(&a, header), None);
        assert_eq!(streams.take(&a, abandoned.abandon().unwrap()), None);
        assert_eq!(streams.take(&a, StreamPart::Header(StreamHeader::new("x", "photos", None))), None);
        assert_eq!(streams.take(&a, parts(1).next().unwrap()), None);
        streams.forget(&a);
        assert!(streams.0.is_empty());
    }

    #[test]
    fn sec_r3_unfinished_streams_are_limited() {
        let (mut streams, a) = (StreamAssembler::default(), Peer::new("a", "PA_1"));
        for n in 0..1_000 {
            let id: Arc<str> = format!("s{n}").into();
            streams.take(&a, StreamPart::Header(StreamHeader::new(id.clone(), STREAM_TOPIC, None)));
            streams.take(&a, StreamPart::Chunk { id, index: 0, bytes: vec![0; 1_000_000].into() });
        }
        assert!(
            streams.0.len() <= AT_ONCE && streams.0.iter().map(|it| it.bytes.len()).sum::<usize>() <= BYTES
        );
    }
}
