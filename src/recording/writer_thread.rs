//! Runs the recorder's writer thread: takes queued items, writes them, and finishes the file.

use std::{
    collections::VecDeque,
    io::{self, Write},
    sync::{Arc, OnceLock},
};

use bytes::Bytes;

use super::{
    About, Direction, Happened, Moment, Redact, RoomEvent,
    hidden_calls::Route,
    live_file::LiveFile,
    queue::{Batch, Content, Item, NO_TICKET, Queue, QueuedPacket},
    redactor::{self, Redactor},
    strangers::RECORD_BYTES,
    writer::{Writer, Written},
};
use crate::transport::{Peer, Role};
#[cfg(feature = "deflate")]
use crate::{protocol::deflate, value::Limits};

/// How many sent packets are remembered in case sending fails: more than a participant queues.
const TICKETS: usize = 16_384;

/// The state of the writer thread: the file, and what is needed to write it.
#[derive(Debug)]
pub(super) struct WriterThread<W: Write = LiveFile> {
    /// The file is not started before the first entry, because the recorded participant is unknown until then.
    out: Out<W>,
    redactor: Redactor,
    role: Arc<OnceLock<Role>>,
    /// The channel and sequence number of sent packets by ticket, oldest first.
    tickets: VecDeque<(u64, u16, u32)>,
    recorded: u64,
    /// The time of the last entry.
    last: Moment,
}

#[derive(Debug)]
enum Out<W: Write> {
    New(W),
    Begun(Writer<W>),
    /// Starting the file failed.
    Gone,
}

impl<W: Write> WriterThread<W> {
    pub(super) fn new(out: W, redact: Redact, role: Arc<OnceLock<Role>>) -> Self {
        let redactor = Redactor::new(redact);
        Self {
            out: Out::New(out),
            redactor,
            role,
            tickets: VecDeque::new(),
            recorded: 0,
            last: Moment::default(),
        }
    }

    /// Writes items until the queue is closed, and returns the file with the number of its messages. Stops at the first error; what
    /// was written before stays in the file. Nothing is written if there is no recording.
    pub(super) fn run(mut self, queue: &Queue) -> io::Result<(W, u64)> {
        let mut batch = Batch::default();
        loop {
            queue.take(&mut batch, std::mem::take(&mut self.recorded));
            batch.hidden.iter().for_each(|tool| self.redactor.hide(tool));
            if batch.unrecorded > 0 {
                // The results of some of them may be in this batch.
                self.redactor.miss();
            }
            let mut items = batch.items.drain(..);
            for item in items.by_ref() {
                let is_packet = matches!(item, Item::Packet(..));
                if let Err(error) = self.write(item, queue) {
                    let left = items.filter(|item| matches!(item, Item::Packet(..))).count();
                    queue.lose(left as u64 + u64::from(is_packet));
                    return Err(error);
                }
            }
            drop(items);
            let last = if batch.last { queue.take_unrecorded() } else { 0 };
            let packets = batch.unrecorded + last;
            if packets > 0 {
                self.event(self.last, &RoomEvent::Unrecorded { packets })?;
            }
            if batch.last {
                let at = self.last;
                if !queue.is_unused() {
                    self.begun(at, None)?;
                }
                queue.drained(self.recorded);
                return match self.out {
                    Out::Begun(writer) => {
                        let messages = writer.messages();
                        Ok((writer.into_inner()?, messages))
                    }
                    Out::New(file) => Ok((file, 0)),
                    Out::Gone => Err(gone()),
                };
            }
        }
    }

    fn write(&mut self, item: Item, queue: &Queue) -> io::Result<()> {
        match item {
            Item::Packet(at, packet) => self.packet(at, &packet, queue),
            Item::Event(at, event) => self.event(at, &event),
            Item::Unsent(at, ticket, reason) => {
                let place = self.tickets.binary_search_by_key(&ticket, |(ticket, ..)| *ticket);
                let Some((_, channel, sequence)) = place.ok().and_then(|at| self.tickets.remove(at)) else {
                    return Ok(()); // the packet is not in the file
                };
                self.event(at, &RoomEvent::Unsent { channel, sequence, reason })
            }
        }
    }

    fn packet(&mut self, at: Moment, packet: &QueuedPacket, queue: &Queue) -> io::Result<()> {
        self.last = at;
        let route = Route { from: packet.from.as_ref().map(Peer::identity), to: &packet.to };
        let mut compressed = packet.compressed;
        let payload = match &packet.content {
            Content::Payload(payload) => match (!packet.is_strangers).then(|| expanded(payload)).flatten() {
                Some(frame) => {
                    compressed = true;
                    frame
                }
                None => payload.clone(),
            },
            Content::Rpc(part) if packet.is_strangers => part.frame_within(part.size() + RECORD_BYTES),
            Content::Rpc(part) => part.frame(),
        };
        let mut payload = self.redactor.payload(payload, route);
        if packet.is_strangers && payload.len() > packet.content.size() + RECORD_BYTES {
            payload = redactor::whole(&payload, None); // placeholders are longer than short values
        }
        let written = Written {
            direction: packet.direction,
            from: packet.from.as_ref(),
            to: &packet.to,
            topic: &packet.topic,
            lane: packet.lane,
            stream: packet.stream,
            compressed,
            payload: &payload,
        };
        let Some((channel, sequence)) = self.begun(at, None)?.packet(at, &written)? else {
            queue.lose(1); // the file has too many channels
            return Ok(());
        };
        self.recorded += 1;
        if packet.direction == Direction::Sent {
            if self.tickets.len() == TICKETS {
                self.tickets.pop_front();
            }
            self.tickets.push_back((packet.ticket, channel, sequence));
        }
        Ok(())
    }

    fn event(&mut self, at: Moment, event: &RoomEvent) -> io::Result<()> {
        self.last = at;
        let event = self.redactor.event(event.clone());
        self.begun(at, Some(&event))?.event(at, &event)
    }

    /// Returns the writer, and starts the file if necessary with what is known by now.
    fn begun(&mut self, at: Moment, event: Option<&RoomEvent>) -> io::Result<&mut Writer<W>> {
        if let Out::New(_) = self.out {
            let (room, local) = match event {
                Some(RoomEvent::Here { identity, sid, room }) => {
                    (room.clone(), Some(Peer::new(identity, sid)))
                }
                _ => (String::new(), None),
            };
            let mut about = About::new(room, local.as_ref(), self.role.get().copied(), at);
            about.metadata_only = self.redactor.leaves_metadata_only();
            if let Out::New(out) = std::mem::replace(&mut self.out, Out::Gone) {
                self.out = Out::Begun(Writer::begin(out, &about)?);
            }
        }
        match &mut self.out {
            Out::Begun(writer) => Ok(writer),
            Out::New(_) | Out::Gone => Err(gone()),
        }
    }
}

/// Returns the frame in a packet that carries it compressed.
fn expanded(packet: &Bytes) -> Option<Bytes> {
    #[cfg(feature = "deflate")]
    if deflate::is_compressed_frame(packet) {
        return deflate::expanded_frame(packet, Limits::BYTES).ok().map(Bytes::from);
    }
    #[cfg(not(feature = "deflate"))]
    let _ = packet;
    None
}

fn gone() -> io::Error {
    io::Error::other("the file could not be started")
}

impl Item {
    /// Converts an entry to a queue item. The channel and sequence number are assigned again.
    pub(super) fn of(at: Moment, what: Happened) -> Self {
        match what {
            Happened::Packet(it) => Self::Packet(
                at,
                QueuedPacket {
                    direction: it.direction,
                    from: it.from,
                    to: it.to,
                    topic: it.topic.into(),
                    lane: it.lane,
                    stream: it.stream,
                    compressed: it.compressed,
                    is_strangers: false,
                    content: Content::Payload(it.payload),
                    ticket: NO_TICKET,
                },
            ),
            Happened::Event(event) => Self::Event(at, event),
        }
    }
}
