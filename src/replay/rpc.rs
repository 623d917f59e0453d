//! Makes the inputs of a session of recorded messages of RPC.
//!
//! A stream is recorded when it has ended, and its header may have been acknowledged before: [`headers`] finds those.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::script::{RecordedPacket, Step, What};
use crate::{
    recording::{Direction, RpcRecord},
    transport::{
        Compression, Identity, RPC_REQUEST_TOPIC, RpcMessage, STREAM_CHUNK, StreamHeader, StreamKind,
        StreamPart,
    },
};

/// The length in the header of a stream that was too large, in bytes. It is more than any session reads.
const TOO_LARGE: u64 = 1 << 40;

/// Returns the message of a packet, unless it is a stream.
pub(super) fn message(recorded: &RecordedPacket) -> Option<RpcMessage> {
    match recorded.rpc.as_ref()? {
        RpcRecord::Ack { id } => Some(RpcMessage::Ack { id: id.clone() }),
        RpcRecord::Request { request, .. } if !recorded.stream => Some(RpcMessage::Request(request.clone())),
        RpcRecord::Response(response) if !recorded.stream => Some(RpcMessage::Response(response.clone())),
        // The stream of an answer: what reads it needs `rpc_tool`, which replays do not set up.
        RpcRecord::Response(_) | RpcRecord::Request { .. } => None,
    }
}

/// Returns the header of the stream of a request.
pub(super) fn header(recorded: &RecordedPacket) -> Option<StreamHeader> {
    let RpcRecord::Request { request, has_timeout, fault, .. } = recorded.rpc.as_ref()? else { return None };
    if !recorded.stream {
        return None;
    }
    let length = match fault.as_deref() {
        Some("too_large") => TOO_LARGE,
        Some("too_long") => 0,
        Some("abandoned" | "incomplete" | "not_expanded") => 1,
        Some(_) => 2, // more than it gets
        None => request.payload.len() as u64,
    };
    let mut header = StreamHeader::new(id_of(recorded), RPC_REQUEST_TOPIC, length);
    header.kind = StreamKind::Text;
    header.attributes = RpcRecord::attributes(request, *has_timeout).into_iter().collect();
    if fault.is_some() {
        header.compression = Compression::Deflate;
    }
    Some(header)
}

/// Returns what follows the header of the stream of a request.
pub(super) fn rest(recorded: &RecordedPacket) -> Vec<StreamPart> {
    let Some(RpcRecord::Request { request, fault, .. }) = &recorded.rpc else { return Vec::new() };
    if !recorded.stream {
        return Vec::new();
    }
    let id = id_of(recorded);
    let chunk = |index: u64, bytes: Bytes| StreamPart::Chunk { id: id.clone().into(), index, bytes };
    let end = |reason: &str| StreamPart::Trailer { id: id.clone().into(), reason: reason.to_owned() };
    match fault.as_deref() {
        None => {
            let starts = (0..request.payload.len()).step_by(STREAM_CHUNK);
            let slices =
                starts.map(|at| request.payload.slice(at..(at + STREAM_CHUNK).min(request.payload.len())));
            (0..).zip(slices).map(|(index, bytes)| chunk(index, bytes)).chain([end("")]).collect()
        }
        Some("too_large") => Vec::new(),
        Some("abandoned") => vec![end("abandoned")],
        Some("incomplete") => vec![chunk(1, Bytes::from_static(b"x"))],
        Some("too_long") => vec![chunk(0, Bytes::from(vec![b'x'; 100]))],
        Some(_) => vec![end("")],
    }
}

fn id_of(recorded: &RecordedPacket) -> String {
    format!("recorded-{}", recorded.entry)
}

/// Returns the entries of the streams of requests whose headers were acknowledged before, by the entry of the
/// acknowledgement.
pub(super) fn headers(steps: &[Step]) -> BTreeMap<usize, usize> {
    /// The acknowledgements of one id: those that precede a request, and how many of later ones belong to earlier requests.
    #[derive(Default)]
    struct Acks {
        early: VecDeque<usize>,
        owed: usize,
    }
    let (mut found, mut all) = (BTreeMap::new(), BTreeMap::<(&Identity, &str), Acks>::new());
    for step in steps {
        let What::Packet(packet) = &step.what else { continue };
        match (&packet.rpc, packet.direction) {
            (Some(RpcRecord::Ack { id }), Direction::Sent) => {
                let Some(to) = packet.to.first() else { continue };
                let acks = all.entry((to, id)).or_default();
                match acks.owed.checked_sub(1) {
                    Some(left) => acks.owed = left,
                    None => acks.early.push_back(packet.entry),
                }
            }
            (Some(RpcRecord::Request { request, .. }), Direction::Heard) => {
                let Some(from) = &packet.from else { continue };
                let acks = all.entry((from.identity(), request.id.as_str())).or_default();
                match acks.early.pop_front().filter(|_| packet.stream) {
                    Some(ack) => drop(found.insert(ack, packet.entry)),
                    None => acks.owed += 1,
                }
            }
            _ => {}
        }
    }
    found
}
