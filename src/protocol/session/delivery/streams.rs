//! Assembles the frames that arrive as byte streams, by sender and id (`wire.md`, section 5.6), and the requests and answers of
//! RPC that arrive as streams of text (section 10).

use std::sync::Arc;

use bytes::Bytes;

use super::{
    Context, Counter, Delivery,
    rpc_text::{Fault, RpcText},
};
#[cfg(feature = "deflate")]
use crate::protocol::deflate;
use crate::{
    clock::{Instant, later},
    protocol::{
        rpc,
        session::{Caps, timers::Timer},
    },
    sorted::SortedMap,
    tool::ToolError,
    transport::{Compression, Identity, PayloadHash, Peer, Sid, StreamHeader, StreamPart},
};

/// The longest id of a stream, in bytes: a call's id and two numbers, with space for the ids of other implementations.
const MAX_ID: usize = 256;

/// By which share compressed bytes may be longer than before, as a divisor: deflate adds 5 bytes to each 16 KiB that it cannot
/// compress, and some writers more.
const DEFLATED_MORE: usize = 1_024;

/// The bytes that the unfinished answers by RPC of all participants may hold: four of the largest. They count by themselves,
/// because nobody sends them again.
const ANSWER_BYTES: usize = 4 * rpc::MAX_STREAM;

/// The effect of a stream's part.
#[derive(Debug)]
pub(crate) enum Part {
    /// The part belongs to no stream, or arrived before.
    Ignored,
    /// The part was accepted, so its sender is alive.
    Taken,
    /// The part completed this frame.
    Whole(Bytes),
    /// The stream broke this rule and was dropped.
    Broken(&'static str),
    /// The stream of this id was dropped, because there is no space for it or another participant has changed it. Its
    /// sender may try again.
    Refused(Arc<str>, &'static str),
    /// The stream of this text of RPC has ended, with its payload or with the reason why it cannot be read.
    Text(RpcText, Result<Bytes, ToolError>),
}

/// A stream's sender, in its join, and its id. No other participant can change the stream.
type Key = (Peer, Arc<str>);

/// The unfinished streams.
#[derive(Debug, Default)]
pub(super) struct Streams {
    open: SortedMap<Key, Inflow>,
    /// What the streams of each share hold together.
    bytes: SortedMap<Share, usize>,
    senders: SortedMap<(Identity, Share), Sender>,
}

/// Streams that have limits of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Share {
    /// Answers by RPC. Each belongs to an open call, and is sent once: one that finds no space loses the result of a tool
    /// that has run.
    Answer,
    /// Streams that their senders repeat, or of which nothing has run.
    Other,
}

impl Share {
    fn of(text: Option<&RpcText>) -> Self {
        if matches!(text, Some(RpcText::Answer(_))) { Self::Answer } else { Self::Other }
    }

    /// Returns the most streams of one sender, the most bytes of them, and the most of all streams.
    fn limits(self, caps: &Caps) -> (usize, usize, usize) {
        let bytes = caps.frames.stream_bytes;
        match self {
            Self::Answer => (caps.calls.open_per_peer, ANSWER_BYTES, ANSWER_BYTES),
            // One sender that never finishes its streams must leave room for the others.
            Self::Other => (caps.frames.streams_per_peer, bytes / 2, bytes),
        }
    }
}

/// The streams of one sender.
#[derive(Clone, Copy, Debug, Default)]
struct Sender {
    open: usize,
    /// The bytes of all its streams.
    bytes: usize,
    /// The bytes that its streams announced in their headers, or have so far if a header has no length.
    expected: usize,
}

/// An unfinished stream.
struct Inflow {
    bytes: Vec<u8>,
    /// The longest that it may become, by its header and by the sender's limit.
    limit: usize,
    length: Option<u64>,
    /// The text of RPC that it carries, if it carries no frame.
    text: Option<RpcText>,
    compression: Compression,
    /// The hash of the payload, if the header has one.
    hash: Option<PayloadHash>,
    /// The index of the next chunk.
    next: u64,
    began: Instant,
    heard_at: Instant,
}

impl Delivery {
    /// Handles a part of a stream. `may_begin` states whether its sender may start streams, and `named` who it is, if that is
    /// known. `is_trusted` states whether it may send large frames: it is the assistant, or owes an answer.
    pub(crate) fn handle_stream(
        &mut self,
        cx: &mut Context,
        from: &Peer,
        part: StreamPart,
        (may_begin, named): (bool, Option<&Identity>),
        is_trusted: bool,
    ) -> Part {
        match part {
            StreamPart::Header(header) if !header.is_frame() => Part::Ignored, // an application's own stream
            StreamPart::Header(header) if !may_begin || header.id.len() > MAX_ID => {
                // Refused at the header, so that a sender without rights takes no memory: a reader that opens
                // each announced stream holds as many as anybody likes to announce.
                cx.complain(named, Counter::StreamRefused);
                Part::Ignored
            }
            StreamPart::Header(header) => self.streams.begin(cx, from, header, is_trusted, None),
            StreamPart::Chunk { id, index, bytes } => {
                self.streams.extend(cx, &(from.clone(), id), index, &bytes)
            }
            StreamPart::Trailer { id, reason } => self.streams.end(cx, &(from.clone(), id), &reason),
        }
    }

    /// Returns whether more parts of this stream are expected.
    #[cfg(feature = "vocabulary")]
    pub(crate) fn reads_stream(&self, from: &Peer, id: &str) -> bool {
        self.streams.open.contains_key(&(from.clone(), id.into()))
    }

    /// Handles the header of a stream with a text of RPC, whose sender may send it.
    pub(crate) fn begin_text(
        &mut self,
        cx: &mut Context,
        from: &Peer,
        header: StreamHeader,
        text: RpcText,
    ) -> Part {
        if header.id.len() > MAX_ID {
            return text.failed(Fault::Broken, "the id of its stream is too long");
        }
        self.streams.begin(cx, from, header, true, Some(text))
    }

    /// Drops the streams that have stalled or take too long.
    pub(crate) fn expire_streams(&mut self, cx: &mut Context) -> Vec<(Identity, Part)> {
        let (idle, whole) = (cx.config.times.stream_idle, cx.config.times.stream);
        let (mut silent, mut slow, mut next) = (Vec::new(), Vec::new(), None);
        for (key, it) in &self.streams.open {
            let due = later(it.heard_at, idle).min(later(it.began, whole));
            if due > cx.now {
                next = Some(next.map_or(due, |next: Instant| next.min(due)));
            } else if later(it.heard_at, idle) <= cx.now {
                silent.push((key.clone(), Fault::Broken, "it has stalled"));
            } else {
                slow.push((key.clone(), Fault::NoSpace, "it takes too long"));
            }
        }
        if let Some(next) = next {
            cx.set_timer(Timer::Streams, next.saturating_duration_since(cx.now));
        }
        let expired = silent.into_iter().chain(slow);
        let dropped = |(key, fault, why): (Key, _, _)| {
            (key.0.identity().clone(), self.streams.drop_stream(cx, &key, fault, why))
        };
        expired.map(dropped).collect()
    }

    /// Restarts what is measured in time, after an outage of the local connection or a suspension of the process.
    pub(crate) fn restart_timeouts(&mut self, now: Instant) {
        for inflow in self.streams.open.values_mut() {
            (inflow.began, inflow.heard_at) = (now, now);
        }
        for link in self.links.values_mut() {
            link.lane.flight.interrupt();
        }
    }
}

impl Streams {
    fn begin(
        &mut self,
        cx: &mut Context,
        from: &Peer,
        header: StreamHeader,
        is_trusted: bool,
        text: Option<RpcText>,
    ) -> Part {
        let id = from.identity();
        let hash = PayloadHash::of(&header).filter(|_| text.is_none());
        let StreamHeader { id: stream, length, inline, compression, .. } = header;
        let key = (from.clone(), stream);
        if self.open.contains_key(&key) {
            // The second header could change the length after the first was checked.
            return self.drop_stream(cx, &key, Fault::Broken, "it starts twice");
        }
        let caps = &cx.config.caps;
        let of = Share::of(text.as_ref());
        let sender = self.senders.get(&(id.clone(), of)).copied().unwrap_or_default();
        let (most, share, _) = of.limits(caps);
        let limit = caps.frames.largest_of(is_trusted).min(share);
        let text = match text {
            None => None,
            Some(text) => {
                let limit = limit.min(rpc::MAX_STREAM);
                if !can_read(compression) || (compression != Compression::None && length.is_none()) {
                    cx.complain(id, Counter::StreamRefused);
                    let why = "its payload is compressed in a way that is not supported";
                    return text.failed(Fault::Broken, why);
                }
                if length.is_some_and(|length| length > limit as u64) {
                    cx.complain(id, Counter::StreamRefused);
                    let why = format!("its payload is too long; the limit is {limit} bytes");
                    return text.failed(Fault::TooLong, &why);
                }
                if let Some(payload) = inline {
                    // It is complete, and takes no place among the unfinished ones.
                    let payload = payload_of(&text, payload, length, compression);
                    return text.ended(payload);
                }
                Some(text)
            }
        };
        if sender.open >= most {
            return drop_with(cx, &key, text, Fault::NoSpace, "too many at once");
        }
        if length.is_some_and(|length| length > limit as u64) {
            // Reported as broken and not as refused: it never fits, and its sender would try eight times.
            tracing::debug!(%from, length, limit, "a stream is refused because it is too long");
            let why = "the stream is longer than one may be";
            cx.complain_of(id, Counter::StreamRefused, why);
            return Part::Broken(why);
        }
        let expected = length.map_or(0, |length| length as usize);
        // Announced bytes count before they arrive. Otherwise streams that fit one by one could all begin and
        // all be dropped in the middle.
        if sender.expected.saturating_add(expected) > share {
            return drop_with(cx, &key, text, Fault::NoSpace, "the sender's streams exceed their share");
        }
        let limit = match (length, compression) {
            (Some(length), Compression::None) => length as usize,
            // Bytes that cannot be compressed get a little longer.
            (Some(length), _) => {
                (length as usize).saturating_add(length as usize / DEFLATED_MORE + 64).min(share)
            }
            (None, _) => limit,
        };
        let now = cx.now;
        let inflow = Inflow {
            bytes: Vec::new(),
            limit,
            length,
            text,
            compression,
            hash,
            next: 0,
            began: now,
            heard_at: now,
        };
        self.insert(key, inflow);
        cx.set_timer(Timer::Streams, cx.config.times.stream_idle.min(cx.config.times.stream));
        Part::Taken
    }

    fn extend(&mut self, cx: &mut Context, key: &Key, index: u64, bytes: &[u8]) -> Part {
        let Some(inflow) = self.open.get_mut(key) else {
            cx.count(Counter::StreamUnknown);
            return Part::Ignored;
        };
        // As LiveKit's SDKs do: a repeated chunk is dropped, and a gap ends the stream.
        if index < inflow.next {
            cx.count(Counter::Duplicate);
            return Part::Ignored;
        }
        if index > inflow.next {
            return self.drop_stream(cx, key, Fault::Broken, "a chunk is missing");
        }
        if inflow.bytes.len() + bytes.len() > inflow.limit {
            return self.drop_stream(cx, key, Fault::TooLong, "it is longer than it may be");
        }
        let of = Share::of(inflow.text.as_ref());
        let (_, share, cap) = of.limits(&cx.config.caps);
        if self.bytes.get(&of).copied().unwrap_or(0) + bytes.len() > cap {
            return self.drop_stream(cx, key, Fault::NoSpace, "all streams together exceed the limit");
        }
        inflow.take(cx.now, bytes);
        let is_open_ended = inflow.length.is_none();
        if self.grow(&(key.0.identity().clone(), of), bytes.len(), is_open_ended) > share {
            return self.drop_stream(cx, key, Fault::NoSpace, "the sender's streams exceed their share");
        }
        Part::Taken
    }

    fn end(&mut self, cx: &mut Context, key: &Key, reason: &str) -> Part {
        let Some(inflow) = self.open.get(key) else {
            cx.count(Counter::StreamUnknown);
            return Part::Ignored;
        };
        // Senders abandon the streams of calls that have ended (`wire.md`, section 5.6), which is no
        // misconduct.
        if !reason.is_empty() {
            cx.count(Counter::StreamAbandoned);
            return match self.close(key).and_then(|inflow| inflow.text) {
                // Its call would wait for the rest of its time.
                Some(text @ RpcText::Answer(_)) => text.failed(Fault::Broken, "its sender has given it up"),
                Some(RpcText::Request(_)) | None => Part::Taken,
            };
        }
        if inflow.text.is_none() && inflow.length.is_some_and(|length| length != inflow.bytes.len() as u64) {
            return self.drop_stream(cx, key, Fault::Broken, "it is shorter than its header says");
        }
        let Some(mut inflow) = self.close(key) else { return Part::Ignored };
        if inflow.hash.take().is_some_and(|hash| !hash.matches()) {
            tracing::debug!(from = %key.0, stream = %key.1, "a stream has another payload than its header says");
            cx.complain(key.0.identity(), Counter::StreamChanged);
            return Part::Refused(Arc::clone(&key.1), "its payload does not match its hash");
        }
        let bytes = Bytes::from(std::mem::take(&mut inflow.bytes));
        match inflow.text {
            None => Part::Whole(bytes),
            Some(text) => {
                let payload = payload_of(&text, bytes, inflow.length, inflow.compression);
                text.ended(payload)
            }
        }
    }

    /// Drops a stream for this fault.
    fn drop_stream(&mut self, cx: &mut Context, key: &Key, fault: Fault, why: &'static str) -> Part {
        let text = self.close(key).and_then(|inflow| inflow.text);
        drop_with(cx, key, text, fault, why)
    }
}

impl Streams {
    /// Drops the streams of an identity whose pair of sids has ended, except those of this join.
    pub(super) fn forget(&mut self, id: &Identity, join: Option<&Sid>) {
        let is_gone = |from: &Peer| from.identity() == id && Some(from.sid()) != join;
        let gone: Vec<_> = self.open.keys().filter(|(from, _)| is_gone(from)).cloned().collect();
        for key in gone {
            self.close(&key);
        }
    }

    fn insert(&mut self, key: Key, inflow: Inflow) {
        let of = Share::of(inflow.text.as_ref());
        let sender = self.senders.entry((key.0.identity().clone(), of)).or_default();
        sender.open += 1;
        sender.expected += inflow.expected();
        self.open.insert(key, inflow);
    }

    /// Adds received bytes. Returns the bytes of all streams of their sender.
    fn grow(&mut self, of: &(Identity, Share), bytes: usize, is_open_ended: bool) -> usize {
        *self.bytes.entry(of.1).or_default() += bytes;
        let Some(sender) = self.senders.get_mut(of) else { return 0 };
        sender.bytes += bytes;
        sender.expected += if is_open_ended { bytes } else { 0 };
        sender.bytes
    }

    fn close(&mut self, key: &Key) -> Option<Inflow> {
        let mut inflow = self.open.remove(key)?;
        let of = (key.0.identity().clone(), Share::of(inflow.text.as_ref()));
        if let Some(bytes) = self.bytes.get_mut(&of.1) {
            *bytes -= inflow.bytes.len();
        }
        if let Some(sender) = self.senders.get_mut(&of) {
            sender.open -= 1;
            sender.bytes -= inflow.bytes.len();
            sender.expected -= inflow.expected();
            if sender.open == 0 {
                self.senders.remove(&of);
            }
        }
        inflow.bytes.shrink_to_fit();
        Some(inflow)
    }
}

/// Reports that a stream is dropped, which carries this text of RPC if it carries no frame.
fn drop_with(cx: &mut Context, key: &Key, text: Option<RpcText>, fault: Fault, why: &'static str) -> Part {
    tracing::debug!(from = %key.0, stream = %key.1, ?fault, why, "a stream is dropped");
    let is_refused = fault == Fault::NoSpace;
    let what = if is_refused { Counter::StreamRefused } else { Counter::StreamBroken };
    cx.complain_of(key.0.identity(), what, why);
    match text {
        Some(text) => text.failed(fault, why),
        None if is_refused => Part::Refused(Arc::clone(&key.1), why),
        None => Part::Broken(why),
    }
}

/// Returns the payload of a whole stream. No more memory is taken than its header announced.
#[cfg_attr(not(feature = "deflate"), expect(unused_variables, reason = "nothing is expanded"))]
fn payload_of(
    text: &RpcText,
    bytes: Bytes,
    length: Option<u64>,
    compression: Compression,
) -> Result<Bytes, String> {
    match (length, compression) {
        (Some(length), Compression::None) if length != bytes.len() as u64 => {
            Err(format!("the payload has {} bytes instead of {length}", bytes.len()))
        }
        (_, Compression::None) => Ok(bytes),
        // As of a compressed frame. An answer was asked for, and may be as compressible as it likes.
        #[cfg(feature = "deflate")]
        (Some(length), Compression::Deflate)
            if matches!(text, RpcText::Request(_)) && length > deflate::longest(&bytes) as u64 =>
        {
            Err(format!(
                "the payload is compressed from {length} bytes to {}, which is not read",
                bytes.len()
            ))
        }
        #[cfg(feature = "deflate")]
        (Some(length), Compression::Deflate) => {
            let expanded = deflate::expanded(&bytes, length as usize);
            expanded.map(Bytes::from).map_err(|why| format!("the payload cannot be expanded: {why}"))
        }
        _ => Err("the payload is compressed".to_owned()),
    }
}

/// Returns whether payloads with this compression are read.
fn can_read(compression: Compression) -> bool {
    match compression {
        Compression::None => true,
        Compression::Deflate => cfg!(feature = "deflate"),
        Compression::Other => false,
    }
}

impl Inflow {
    /// Returns the length in the stream's header, or its bytes so far if the header has none.
    fn expected(&self) -> usize {
        self.length.map_or(self.bytes.len(), |length| length as usize)
    }

    /// Appends a chunk. Memory is allocated as bytes arrive, at most twice as much, whatever length the header
    /// announces.
    fn take(&mut self, now: Instant, bytes: &[u8]) {
        let (len, more) = (self.bytes.len(), bytes.len());
        if self.bytes.capacity() - len < more {
            self.bytes.reserve_exact(len.min(self.limit - len).max(more));
        }
        self.bytes.extend_from_slice(bytes);
        if let Some(hash) = &mut self.hash {
            hash.add(bytes);
        }
        self.next += 1;
        self.heard_at = now;
    }
}

impl std::fmt::Debug for Inflow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inflow")
            .field("bytes", &self.bytes.len())
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}
