//! Writes the live file: records without chunks, flushed after each message.
//! A live file has no footer. It is intact up to the last flush, and [`rewrite`](super::rewrite) converts it to a
//! finished file.

use std::{
    collections::HashMap,
    fs::File,
    hash::{BuildHasher as _, Hash},
    io::{self, BufWriter, Write},
    path::Path,
};

use super::{
    About, Direction, Moment, RoomEvent,
    format::{CHANNEL_BYTES, CHANNELS, Channel, EVENTS, EVENTS_ARE, LIBRARY, METADATA, PACKETS_ARE, Texts},
};
use crate::transport::{Identity, Lane, Peer};

/// The write buffer's size, in bytes: one system call per record.
const BUFFER: usize = 64 * 1024;

/// The channel of events.
const EVENTS_ID: u16 = 1;

/// A packet to be written.
#[derive(Debug)]
pub(super) struct Written<'a> {
    pub(super) direction: Direction,
    pub(super) from: Option<&'a Peer>,
    pub(super) to: &'a [Identity],
    pub(super) topic: &'a str,
    pub(super) lane: Lane,
    pub(super) stream: bool,
    pub(super) compressed: bool,
    pub(super) payload: &'a [u8],
}

impl Written<'_> {
    /// The attributes that determine its channel, for hashing.
    fn parts(&self) -> impl Hash {
        (self.direction, self.from, self.to, self.topic, self.lane, self.stream, self.compressed)
    }

    fn is_of(&self, channel: &Channel) -> bool {
        let Channel { direction, from, to, topic, lane, stream, compressed } = channel;
        *direction == self.direction
            && *lane == self.lane
            && *stream == self.stream
            && *compressed == self.compressed
            && from.as_ref() == self.from
            && to == self.to
            && topic == self.topic
    }

    fn channel(&self) -> Channel {
        Channel {
            direction: self.direction,
            from: self.from.cloned(),
            to: self.to.to_vec(),
            topic: self.topic.to_owned(),
            lane: self.lane,
            stream: self.stream,
            compressed: self.compressed,
        }
    }
}

/// Opens a file for writing: a new one that its owner alone can read, or an existing one. A symbolic link is never followed, and the
/// content stays.
pub(super) fn open(path: &Path, is_new: bool) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create_new(is_new);
    #[cfg(unix)]
    {
        use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
        // Opening a pipe must not block; pipes are rejected below.
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        options.mode(0o600).custom_flags(flags.bits().cast_signed());
        let file = options.open(path)?;
        let found = file.metadata()?;
        if !found.is_file() || found.nlink() > 1 {
            return Err(io::Error::other("it is not a regular file, but a device, a pipe or a link"));
        }
        Ok(file)
    }
    #[cfg(not(unix))]
    {
        options.open(path)
    }
}

/// Writes a live file.
#[derive(Debug)]
pub(super) struct Writer<W: Write> {
    out: BufWriter<W>,
    /// The record being built.
    record: Vec<u8>,
    /// The channels by number, each with its next sequence number.
    channels: Vec<(Channel, u32)>,
    /// The index of a channel by the hash of its attributes.
    places: HashMap<u64, u16>,
    events: u32,
    /// The number of all messages.
    messages: u64,
}

impl<W: Write> Writer<W> {
    /// Starts the file with its metadata record.
    pub(super) fn begin(out: W, about: &About) -> io::Result<Self> {
        let out = BufWriter::with_capacity(BUFFER, out);
        let mut writer = Self {
            out,
            record: Vec::new(),
            channels: Vec::new(),
            places: HashMap::new(),
            events: 0,
            messages: 0,
        };
        writer.out.write_all(mcap::MAGIC)?;
        writer.record(mcap::records::op::HEADER, |record| {
            text(record, "");
            text(record, LIBRARY);
        })?;
        writer.record(mcap::records::op::METADATA, |record| {
            text(record, METADATA);
            texts(record, &about.to_metadata());
        })?;
        writer.channel(EVENTS_ID, EVENTS, EVENTS_ARE, &Texts::new())?;
        writer.out.flush()?;
        Ok(writer)
    }

    /// Writes a packet and returns its channel and sequence number; none if no channel is left.
    pub(super) fn packet(&mut self, at: Moment, packet: &Written<'_>) -> io::Result<Option<(u16, u32)>> {
        let Some(place) = self.place(packet)? else { return Ok(None) };
        let id = EVENTS_ID + 1 + place;
        let Some((_, next)) = self.channels.get_mut(usize::from(place)) else { return Ok(None) };
        let sequence = *next;
        *next = next.wrapping_add(1);
        self.message(id, sequence, at, packet.payload)?;
        Ok(Some((id, sequence)))
    }

    /// Returns the index of the packet's channel and adds the channel if it is new; none if there are too many.
    fn place(&mut self, packet: &Written<'_>) -> io::Result<Option<u16>> {
        let hash = self.places.hasher().hash_one(packet.parts());
        let known = self.places.get(&hash).copied();
        let is_it =
            |place: &u16| self.channels.get(usize::from(*place)).is_some_and(|(it, _)| packet.is_of(it));
        if let Some(place) = known.filter(is_it) {
            return Ok(Some(place));
        }
        // On a hash collision, search all channels.
        let found = known.and_then(|_| self.channels.iter().position(|(it, _)| packet.is_of(it)));
        if let Some(place) = found {
            return Ok(Some(place as u16));
        }
        let channel = packet.channel();
        if self.channels.len() + 1 >= CHANNELS || channel.size() > CHANNEL_BYTES {
            return Ok(None);
        }
        let place = self.channels.len() as u16;
        self.channel(EVENTS_ID + 1 + place, &channel.name(), PACKETS_ARE, &channel.to_metadata())?;
        self.channels.push((channel, 0));
        self.places.entry(hash).or_insert(place);
        Ok(Some(place))
    }

    /// Writes an event.
    pub(super) fn event(&mut self, at: Moment, event: &RoomEvent) -> io::Result<()> {
        let json = serde_json::to_vec(event).map_err(io::Error::other)?;
        let sequence = self.events;
        self.events = sequence.wrapping_add(1);
        self.message(EVENTS_ID, sequence, at, &json)
    }

    /// Returns the file as it is.
    pub(super) fn into_inner(self) -> io::Result<W> {
        self.out.into_inner().map_err(io::IntoInnerError::into_error)
    }

    /// The number of messages in the file.
    pub(super) fn messages(&self) -> u64 {
        self.messages
    }

    fn message(&mut self, channel: u16, sequence: u32, at: Moment, payload: &[u8]) -> io::Result<()> {
        let mut head = [0; 31];
        head[0] = mcap::records::op::MESSAGE;
        head[1..9].copy_from_slice(&(22 + payload.len() as u64).to_le_bytes());
        head[9..11].copy_from_slice(&channel.to_le_bytes());
        head[11..15].copy_from_slice(&sequence.to_le_bytes());
        head[15..23].copy_from_slice(&at.0.to_le_bytes());
        head[23..31].copy_from_slice(&at.0.to_le_bytes());
        self.out.write_all(&head)?;
        self.out.write_all(payload)?;
        self.out.flush()?;
        self.messages += 1;
        Ok(())
    }

    fn channel(&mut self, id: u16, topic: &str, encoding: &str, metadata: &Texts) -> io::Result<()> {
        self.record(mcap::records::op::CHANNEL, |record| {
            record.extend_from_slice(&id.to_le_bytes());
            record.extend_from_slice(&[0; 2]); // no schema
            text(record, topic);
            text(record, encoding);
            texts(record, metadata);
        })
    }

    fn record(&mut self, code: u8, fill: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        self.record.clear();
        fill(&mut self.record);
        self.out.write_all(&[code])?;
        self.out.write_all(&(self.record.len() as u64).to_le_bytes())?;
        self.out.write_all(&self.record)
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn texts(out: &mut Vec<u8>, texts: &Texts) {
    let size: usize = texts.iter().map(|(key, value)| 8 + key.len() + value.len()).sum();
    out.extend_from_slice(&(size as u32).to_le_bytes());
    for (key, value) in texts {
        text(out, key);
        text(out, value);
    }
}
