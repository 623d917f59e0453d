//! Reads recordings.

use std::{
    collections::HashMap,
    fmt,
    fs::File,
    io::{Read, Seek as _},
    path::Path,
};

use super::{
    About, Entry, Happened, Moment, RecordError, Recorded, RoomEvent,
    format::{Channel, EVENT_LIMIT, EVENTS, EVENTS_ARE, NAME_LIMIT, PACKETS_ARE},
    index::FileIndex,
    records::{Allowed, ChannelRecord, Damage, Fault, MessageRecord, Record, Records},
};

/// The maximum memory that the channels of a file may take while it is read, in bytes.
pub(super) const CHANNELS_IN_ALL: usize = 32 * 1024 * 1024;

/// Why reading ends if they take more.
pub(super) const CHANNELS_TOO_LARGE: &str = "the channels need too much memory";

/// The cost of each receiver of a packet, in units of [`Records::spend`]: readers iterate over all receivers.
const WORK_OF_RECEIVER: u64 = 64;

/// An open recording: its metadata and its entries.
///
/// Any recording can be read: finished, still being written, or left by a crashed writer. Reading stops at damage;
/// everything before it is returned.
///
/// ```no_run
/// use toolbridge::recording::{Happened, Recording};
///
/// let recording = Recording::open("session.mcap")?;
/// println!("recorded by {:?}", recording.about().identity);
/// let mut entries = recording.entries();
/// for entry in &mut entries {
///     if let Happened::Packet(packet) = entry.what {
///         println!("{} {:?} {} bytes", entry.at.0, packet.direction, packet.payload.len());
///     }
/// }
/// if let Some(damage) = entries.damage() {
///     println!("{damage}");
/// }
/// # Ok::<(), toolbridge::recording::RecordError>(())
/// ```
pub struct Recording {
    about: About,
    records: Records,
    index: FileIndex,
}

impl Recording {
    /// Opens a recording.
    ///
    /// # Errors
    /// [`RecordError::Open`] if the file cannot be opened, [`RecordError::NotMcap`] and [`RecordError::Foreign`] if
    /// it is not a recording, [`RecordError::Version`] if its format version is later, and
    /// [`RecordError::NoBeginning`] if it is damaged before its metadata record.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, RecordError> {
        let path = path.as_ref();
        let mut file = File::open(path).map_err(|error| RecordError::opening(path, error))?;
        let is_regular = file.metadata().is_ok_and(|found| found.is_file());
        if !is_regular {
            return Self::read(file);
        }
        let index = FileIndex::read(&mut file);
        file.rewind().map_err(|error| RecordError::opening(path, error))?;
        Self::read_indexed(file, index)
    }

    /// Reads a recording from any reader. A reader that waits for more instead of ending can follow a file that is
    /// being written. The recording's metadata must precede its messages; [`open`](Recording::open) also finds it by
    /// the file's index.
    ///
    /// # Errors
    /// As [`open`](Recording::open).
    pub fn read(reader: impl Read + Send + 'static) -> Result<Self, RecordError> {
        Self::read_indexed(reader, FileIndex::default())
    }

    fn read_indexed(reader: impl Read + Send + 'static, mut index: FileIndex) -> Result<Self, RecordError> {
        let mut records = Records::new(Box::new(reader));
        if let Some(texts) = index.about.take() {
            return Ok(Self { about: About::from_metadata(&texts)?, records, index });
        }
        loop {
            match records.next() {
                Ok(Some(Record::About(texts))) => {
                    let about = About::from_metadata(&texts)?;
                    return Ok(Self { about, records, index });
                }
                // The metadata record precedes all messages, so that another program's messages are not misread.
                Ok(Some(Record::Message(_) | Record::Channel(_) | Record::Footer)) => {
                    return Err(RecordError::Foreign);
                }
                Ok(Some(_)) => {}
                Ok(None) => {
                    let (at_byte, text) = (records.at(), "the file ends".to_owned());
                    return Err(RecordError::NoBeginning { at_byte, text });
                }
                Err(Fault::NotMcap) => return Err(RecordError::NotMcap),
                Err(Fault::Damage(Damage { at_byte, text, .. })) => {
                    return Err(RecordError::NoBeginning { at_byte, text });
                }
                Err(Fault::Io(error)) => return Err(RecordError::Read(error)),
            }
        }
    }

    /// Returns the recording's metadata.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Removes the limit on unpacked data, for files from a trusted source.
    ///
    /// By default a reader stops where a file needs far more work than any session of its size: at 64 MiB of unpacked
    /// records plus 16 times the file's size. Each record counts 256 bytes more and each receiver 64.
    /// [`damage`](Entries::damage) then reports it.
    #[must_use]
    pub fn without_limit(mut self) -> Self {
        self.records.allow(Allowed::ANY);
        self
    }

    pub(super) fn into_parts(self) -> (About, Records, FileIndex) {
        (self.about, self.records, self.index)
    }

    /// Returns the entries in the order in which the recorder received them.
    pub fn entries(self) -> Entries {
        Entries {
            finished: self.about.finished,
            records: self.records,
            indexed: self.index.channels.into_iter().map(|channel| (channel.id, channel)).collect(),
            channels: HashMap::new(),
            channel_bytes: 0,
            foreign: 0,
            damage: None,
        }
    }
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recording").field("about", &self.about).finish_non_exhaustive()
    }
}

/// An iterator over the entries of a recording, read on demand.
pub struct Entries {
    finished: bool,
    records: Records,
    /// The channels in the file's index that no record before it has defined yet.
    indexed: HashMap<u16, ChannelRecord>,
    channels: HashMap<u16, Kept>,
    channel_bytes: usize,
    foreign: u64,
    damage: Option<Damage>,
}

/// A known channel.
struct Kept {
    /// Identifies repeated records of the same channel.
    digest: [u8; 32],
    what: What,
}

enum What {
    Packets(Channel),
    Events,
    Foreign,
}

impl Entries {
    /// Returns the damage, once reading has reached it. No entries follow it.
    pub fn damage(&self) -> Option<&Damage> {
        self.damage.as_ref()
    }

    /// How many messages were skipped so far because their channel is not from toolbridge.
    pub fn foreign(&self) -> u64 {
        self.foreign
    }

    fn read(&mut self) -> Result<Option<Entry>, Damage> {
        loop {
            let at_byte = self.records.at();
            match self.records.next() {
                Ok(Some(Record::Channel(channel))) => {
                    self.learn(at_byte, &channel)?;
                }
                Ok(Some(Record::Message(message))) => match self.entry(message)? {
                    Some(entry) => return Ok(Some(entry)),
                    None => self.foreign += 1,
                },
                Ok(Some(_)) => {}
                Ok(None) if self.finished && !self.records.has_footer() => {
                    return Err(Damage::no_end(at_byte));
                }
                Ok(None) => return Ok(None),
                Err(Fault::Damage(damage)) => return Err(damage),
                Err(Fault::Io(error)) => {
                    return Err(Damage::new(at_byte, format!("reading failed: {error}")));
                }
                Err(Fault::NotMcap) => return Err(Damage::new(at_byte, "it is not MCAP data")),
            }
        }
    }

    fn learn(&mut self, at_byte: u64, record: &ChannelRecord) -> Result<(), Damage> {
        self.indexed.remove(&record.id);
        let digest = record.digest();
        if let Some(known) = self.channels.get(&record.id) {
            let same = known.digest == digest;
            return if same { Ok(()) } else { Err(Damage::redefined(at_byte, &record.topic)) };
        }
        self.channel_bytes += record.cost();
        if self.channel_bytes > CHANNELS_IN_ALL {
            return Err(Damage::too_costly(at_byte, CHANNELS_TOO_LARGE));
        }
        let what = match &*record.encoding {
            EVENTS_ARE if record.topic == EVENTS => What::Events,
            PACKETS_ARE => Channel::from_metadata(&record.texts).map_or(What::Foreign, What::Packets),
            _ => What::Foreign,
        };
        self.channels.insert(record.id, Kept { digest, what });
        Ok(())
    }

    fn entry(&mut self, message: MessageRecord) -> Result<Option<Entry>, Damage> {
        if let Some(channel) = self.indexed.remove(&message.channel) {
            self.learn(self.records.at(), &channel)?;
        }
        let Some(kept) = self.channels.get(&message.channel) else { return Ok(None) };
        let what = match &kept.what {
            What::Packets(channel) => {
                self.records.spend(WORK_OF_RECEIVER * channel.to.len() as u64)?;
                Happened::Packet(Recorded {
                    direction: channel.direction,
                    from: channel.from.clone(),
                    to: channel.to.clone(),
                    topic: channel.topic.clone(),
                    lane: channel.lane,
                    stream: channel.stream,
                    compressed: channel.compressed,
                    channel: message.channel,
                    sequence: message.sequence,
                    payload: message.payload,
                })
            }
            What::Events => Happened::Event(event(&message.payload)),
            What::Foreign => return Ok(None),
        };
        Ok(Some(Entry { at: Moment(message.log_time), what }))
    }
}

/// Decodes an event. An event that cannot be decoded, or is longer than a recorder writes, is treated as an event of
/// a later version.
fn event(json: &[u8]) -> RoomEvent {
    let event = Some(json).filter(|json| json.len() <= EVENT_LIMIT).map(serde_json::from_slice);
    let event = event.and_then(Result::ok).unwrap_or(RoomEvent::Other);
    let has_long_name = match &event {
        RoomEvent::Here { identity, sid, .. }
        | RoomEvent::Joined { identity, sid, .. }
        | RoomEvent::Left { identity, sid } => identity.as_str().len().max(sid.as_str().len()) > NAME_LIMIT,
        RoomEvent::AnswersRpc { assistant, callers, .. } => {
            callers.iter().chain(assistant).any(|it| it.as_str().len() > NAME_LIMIT)
        }
        _ => false,
    };
    if has_long_name { RoomEvent::Other } else { event }
}

impl Iterator for Entries {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        if self.damage.is_some() {
            return None;
        }
        self.read().unwrap_or_else(|damage| {
            self.damage = Some(damage);
            None
        })
    }
}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entries")
            .field("channels", &self.channels.len())
            .field("foreign", &self.foreign)
            .field("damage", &self.damage)
            .finish_non_exhaustive()
    }
}
