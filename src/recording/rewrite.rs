//! Writes the finished file: the same messages and channels in compressed chunks with an index. It is written next to
//! the live file and replaces it by a rename, so that a complete file always exists.

use std::{
    collections::HashMap,
    io::{self, BufWriter, Seek, Write},
    path::Path,
};

use bytes::Bytes;
use mcap::{Compression, McapError, WriteOptions, records::MessageHeader, write::Metadata};

use super::{
    About, AtomicFile, Damage, DamageKind, RecordError, Recording, Redact,
    decoded::is_topic_of_frames,
    format::{Channel, EVENTS, EVENTS_ARE, LIBRARY, METADATA, PACKETS_ARE, Texts},
    hidden_calls::Route,
    reader::{CHANNELS_IN_ALL, CHANNELS_TOO_LARGE},
    records::{Allowed, ChannelRecord, Fault, MessageRecord, Record, Records, SchemaRecord},
    redactor::Redactor,
};
use crate::transport::Peer;

/// The size of an uncompressed chunk, in bytes: small enough to read for one call, large enough to compress well.
const CHUNK: u64 = 256 * 1024;

/// The result of a [`repair`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Repaired {
    /// The number of messages in the new file.
    pub entries: u64,
    /// The damage in the input, if any; data after it is lost.
    pub damage: Option<Damage>,
    /// The number of messages that are lost because the input does not define their channels.
    pub skipped: u64,
    /// The number of messages that [`redact`](redact()) left out: those of other programs, and events that this version does not
    /// know.
    pub left_out: u64,
}

/// Writes a finished file with every intact message of a recording, even if its writer crashed or it is damaged.
/// `force` replaces an existing file; `input` and `output` may be the same.
///
/// # Errors
/// The errors of [`Recording::open`] for the input, [`RecordError::Unsupported`] and [`RecordError::NothingLeft`] if
/// the output would lack what the input has, those of [`Recorder::create`](super::Recorder::create) for the output,
/// and [`RecordError::Write`]. With an error the output stays as it was.
pub fn repair(
    input: impl AsRef<Path>,
    output: impl AsRef<Path>,
    force: bool,
) -> Result<Repaired, RecordError> {
    make(input.as_ref(), output.as_ref(), force, None)
}

/// Writes a finished file of any recording, with the secrets that `rule` selects redacted, without what other programs wrote,
/// and with everything else unchanged.
///
/// # Errors
/// The errors of [`repair`].
pub fn redact(
    input: impl AsRef<Path>,
    output: impl AsRef<Path>,
    rule: Redact,
    force: bool,
) -> Result<Repaired, RecordError> {
    let mut redactor = Redactor::new(rule);
    make(input.as_ref(), output.as_ref(), force, Some(&mut redactor))
}

fn make(input: &Path, output: &Path, force: bool, edit: Edit<'_>) -> Result<Repaired, RecordError> {
    replace(Recording::open(input)?, output, force, edit)
}

/// Redacts each message, if at all.
type Edit<'a> = Option<&'a mut Redactor>;

/// Converts a live file with this many messages to a finished one. `replaces` says that it takes the place of the live file.
///
/// # Errors
/// Among others [`RecordError::Incomplete`]. The live file is still there then.
pub(super) fn finish(live: Recording, messages: u64, path: &Path, replaces: bool) -> Result<(), RecordError> {
    let file = if replaces { AtomicFile::replacing(path)? } else { AtomicFile::create(path, false)? };
    let (file, repaired) = rewrite(live, BufWriter::new(file), None)?;
    if repaired.damage.is_some() || repaired.entries != messages {
        let text = match repaired.damage {
            Some(damage) => format!("it is damaged at byte {}: {}", damage.at_byte, damage.text),
            None => "another program has changed it".to_owned(),
        };
        return Err(RecordError::Incomplete { found: repaired.entries, written: messages, text });
    }
    file.into_inner().map_err(|error| RecordError::Write(error.into_error()))?.finish()
}

/// Writes a recording to a new file, which gets its name when it is complete.
fn replace(recording: Recording, path: &Path, force: bool, edit: Edit<'_>) -> Result<Repaired, RecordError> {
    let file = AtomicFile::create(path, force)?;
    let (file, repaired) = rewrite(recording, BufWriter::new(file), edit)?;
    let file = file.into_inner().map_err(|error| RecordError::Write(error.into_error()))?;
    match &repaired.damage {
        Some(damage) if damage.kind == DamageKind::Unsupported => {
            return Err(RecordError::Unsupported(damage.clone()));
        }
        damage if repaired.entries == 0 && (damage.is_some() || repaired.skipped > 0) => {
            return Err(RecordError::NothingLeft { damage: damage.clone() });
        }
        _ => {}
    }
    file.finish()?;
    Ok(repaired)
}

/// Writes all intact messages and returns their number.
pub(super) fn rewrite<W: Write + Seek>(
    recording: Recording,
    out: W,
    edit: Edit<'_>,
) -> Result<(W, Repaired), RecordError> {
    let (about, mut records, index) = recording.into_parts();
    records.allow(Allowed::COPYING);
    let options = WriteOptions::new()
        .compression(Some(Compression::Zstd))
        .compression_threads(0)
        .chunk_size(Some(CHUNK))
        .library(LIBRARY);
    let writer = options.create(out).map_err(failed)?;
    let mut copy = Copy {
        writer,
        edit,
        indexed: index.channels.into_iter().map(|channel| (channel.id, channel)).collect(),
        indexed_schemas: index.schemas.into_iter().map(|schema| (schema.id, schema)).collect(),
        contents: HashMap::new(),
        channels_kept: 0,
        schemas_kept: 0,
    };
    let copied = copy.run(&about, records).and_then(|repaired| {
        copy.writer.finish().map_err(failed)?;
        Ok(repaired)
    });
    // Taking the writer apart stops it from writing its end again.
    let out = copy.writer.into_inner();
    copied.map(|repaired| (out, repaired))
}

/// What the messages of a channel are.
enum Content {
    Packets(Channel),
    Events,
    /// Those of another program.
    Foreign,
}

impl Content {
    fn of(channel: &ChannelRecord) -> Self {
        match channel.encoding.as_str() {
            PACKETS_ARE => match Channel::from_metadata(&channel.texts) {
                Some(channel) if is_topic_of_frames(&channel.topic) => Self::Packets(channel),
                _ => Self::Foreign,
            },
            EVENTS_ARE if channel.topic == EVENTS => Self::Events,
            _ => Self::Foreign,
        }
    }

    /// Returns the topic and the metadata that toolbridge gives such a channel.
    fn own(&self) -> Option<(String, Texts)> {
        match self {
            Self::Packets(channel) => Some((channel.name(), channel.to_metadata())),
            Self::Events => Some((EVENTS.to_owned(), Texts::new())),
            Self::Foreign => None,
        }
    }

    /// Returns the payload to write; none if the message is left out.
    fn edited(&self, payload: Bytes, redactor: &mut Redactor) -> Option<Bytes> {
        match self {
            Self::Packets(channel) => {
                let from = channel.from.as_ref().map(Peer::identity);
                Some(redactor.payload(payload, Route { from, to: &channel.to }))
            }
            Self::Events => redactor.event_json(payload),
            Self::Foreign => redactor.keeps_foreign().then_some(payload),
        }
    }
}

/// A copy in progress.
struct Copy<'a, W: Write + Seek> {
    writer: mcap::Writer<W>,
    edit: Edit<'a>,
    /// The channels and schemas in the input's index that no record before it has defined yet.
    indexed: HashMap<u16, ChannelRecord>,
    indexed_schemas: HashMap<u16, SchemaRecord>,
    /// Each channel's digest, and what its messages are.
    contents: HashMap<u16, ([u8; 32], Content)>,
    channels_kept: usize,
    schemas_kept: usize,
}

impl<W: Write + Seek> Copy<'_, W> {
    fn run(&mut self, about: &About, mut records: Records) -> Result<Repaired, RecordError> {
        let mut finished = About { finished: true, ..about.clone() };
        if let Some(redactor) = &mut self.edit {
            finished = redactor.about(finished);
        }
        let metadata = Metadata { name: METADATA.to_owned(), metadata: finished.to_metadata() };
        self.writer.write_metadata(&metadata).map_err(failed)?;
        let (mut entries, mut skipped, mut left_out) = (0, 0, 0);
        let damage = loop {
            let at_byte = records.at();
            let written = match records.next() {
                Ok(Some(Record::Message(message))) => match self.message(message) {
                    // The file lacks the channel; readers skip such messages, too.
                    Err(McapError::UnknownChannel(..)) => {
                        skipped += 1;
                        Ok(())
                    }
                    written => {
                        entries += u64::from(matches!(written, Ok(true)));
                        left_out += u64::from(matches!(written, Ok(false)));
                        written.map(drop)
                    }
                },
                Ok(Some(Record::Channel(channel))) => self.channel(&channel),
                Ok(Some(Record::Schema(schema))) => self.schema(&schema),
                Ok(Some(_)) => Ok(()),
                Ok(None) if about.finished && !records.has_footer() => break Some(Damage::no_end(at_byte)),
                Ok(None) => break None,
                Err(Fault::Damage(damage)) => break Some(damage),
                Err(Fault::Io(error)) => return Err(RecordError::Read(error)),
                Err(Fault::NotMcap) => return Err(RecordError::NotMcap),
            };
            match written {
                Err(error @ (McapError::Io(_) | McapError::AttemptedWriteAfterFailure)) => {
                    return Err(failed(error));
                }
                // An invalid schema is no loss: toolbridge's channels have none.
                Ok(()) | Err(McapError::ConflictingSchemas(_) | McapError::InvalidSchemaId)
                    if self.channels_kept <= CHANNELS_IN_ALL => {}
                Ok(()) => break Some(Damage::too_costly(at_byte, CHANNELS_TOO_LARGE)),
                Err(McapError::ConflictingChannels(topic)) => break Some(Damage::redefined(at_byte, &topic)),
                Err(error) => break Some(Damage::new(at_byte, error.to_string())),
            }
        };
        Ok(Repaired { entries, damage, skipped, left_out })
    }

    /// Returns false if the message was left out.
    fn message(&mut self, message: MessageRecord) -> Result<bool, McapError> {
        if let Some(channel) = self.indexed.remove(&message.channel) {
            self.channel(&channel)?;
        }
        let header = MessageHeader {
            channel_id: message.channel,
            sequence: message.sequence,
            log_time: message.log_time,
            // Toolbridge writes one time. Another one is another program's.
            publish_time: if self.keeps_foreign() { message.publish_time } else { message.log_time },
        };
        let mut payload = message.payload;
        if let (Some((_, content)), Some(redactor)) = (self.contents.get(&message.channel), &mut self.edit) {
            let Some(edited) = content.edited(payload, redactor) else { return Ok(false) };
            payload = edited;
        }
        self.writer.write_to_known_channel(&header, &payload).map(|()| true)
    }

    fn channel(&mut self, it: &ChannelRecord) -> Result<(), McapError> {
        self.indexed.remove(&it.id);
        let digest = it.digest();
        // By the rule of reading, so that the copy has the entries that a reader of the input sees.
        if let Some((known, _)) = self.contents.get(&it.id) {
            return if *known == digest {
                Ok(())
            } else {
                Err(McapError::ConflictingChannels(it.topic.clone()))
            };
        }
        self.channels_kept += it.cost();
        let content = Content::of(it);
        let own = self.edit.is_some().then(|| content.own());
        self.contents.insert(it.id, (digest, content));
        match own {
            // A redacted channel has the texts that toolbridge gives it, and no others.
            Some(Some((topic, texts))) => {
                self.writer.add_channel_with_id(it.id, 0, &topic, &it.encoding, &texts).map(drop)
            }
            Some(None) if !self.keeps_foreign() => Ok(()),
            _ => self.whole_channel(it),
        }
    }

    /// Adds a channel as it is, with its schema.
    fn whole_channel(&mut self, it: &ChannelRecord) -> Result<(), McapError> {
        if let Some(schema) = self.indexed_schemas.remove(&it.schema) {
            self.schema(&schema)?;
        }
        let mut add = |schema| {
            self.writer.add_channel_with_id(it.id, schema, &it.topic, &it.encoding, &it.texts).map(drop)
        };
        match add(it.schema) {
            Err(McapError::UnknownSchema(..)) => add(0), // the file lacks the schema
            other => other,
        }
    }

    /// Adds a schema: a channel of another program may have one.
    fn schema(&mut self, schema: &SchemaRecord) -> Result<(), McapError> {
        self.indexed_schemas.remove(&schema.id);
        self.schemas_kept += schema.cost();
        if self.schemas_kept > CHANNELS_IN_ALL || !self.keeps_foreign() {
            return Ok(()); // channels without their schema are read as well
        }
        let SchemaRecord { id, name, encoding, data } = schema;
        self.writer.add_schema_with_id(*id, name, encoding, data).map(drop)
    }

    fn keeps_foreign(&self) -> bool {
        self.edit.as_ref().is_none_or(|redactor| redactor.keeps_foreign())
    }
}

fn failed(error: McapError) -> RecordError {
    match error {
        McapError::Io(error) => RecordError::Write(error),
        other => RecordError::Write(io::Error::other(other)),
    }
}
