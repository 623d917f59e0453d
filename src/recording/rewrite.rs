//! Writes the finished file: the same messages and channels in compressed chunks with an index. It is written next to
//! the live file and replaces it by a rename, so that a complete file always exists.

use std::{
    collections::HashSet,
    fs::File,
    io::{self, BufReader, BufWriter, Seek, Write},
    path::Path,
};

use bytes::Bytes;
use mcap::{Compression, McapError, WriteOptions, records::MessageHeader, write::Metadata};

use super::{
    About, AtomicFile, Damage, RecordError, Recording, Redact,
    format::{LIBRARY, METADATA, PACKETS_ARE},
    reader::CHANNELS_IN_ALL,
    records::{Allowed, Fault, Record, Records},
    redactor::Redactor,
};

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
}

/// Writes a finished file with every intact message of a recording, even if its writer crashed or it is damaged.
/// `force` replaces an existing file; `input` and `output` may be the same.
///
/// # Errors
/// The errors of [`Recording::open`] for the input, those of [`Recorder::create`](super::Recorder::create) for the
/// output, and [`RecordError::Write`].
pub fn repair(
    input: impl AsRef<Path>,
    output: impl AsRef<Path>,
    force: bool,
) -> Result<Repaired, RecordError> {
    make(input.as_ref(), output.as_ref(), force, &mut |payload| payload)
}

/// Writes a finished file of any recording, with the secrets that `rule` selects redacted and everything else
/// unchanged.
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
    make(input.as_ref(), output.as_ref(), force, &mut |payload| redactor.payload(payload))
}

fn make(input: &Path, output: &Path, force: bool, edit: Edit<'_>) -> Result<Repaired, RecordError> {
    replace(Recording::open(input)?, output, force, edit)
}

/// Transforms the payload of each packet.
type Edit<'a> = &'a mut dyn FnMut(Bytes) -> Bytes;

/// Converts a live file to a finished one.
pub(super) fn finish(mut live: File, path: &Path) -> Result<Repaired, RecordError> {
    live.rewind().map_err(RecordError::Read)?;
    replace(Recording::read(BufReader::new(live))?, path, true, &mut |payload| payload)
}

/// Writes a recording to a new file, which gets its name when it is complete.
fn replace(recording: Recording, path: &Path, force: bool, edit: Edit<'_>) -> Result<Repaired, RecordError> {
    let file = AtomicFile::create(path, force)?;
    let (file, repaired) = rewrite(recording, BufWriter::new(file), edit)?;
    let file = file.into_inner().map_err(|error| RecordError::Write(error.into_error()))?;
    file.finish()?;
    Ok(repaired)
}

/// Writes all intact messages and returns their number.
pub(super) fn rewrite<W: Write + Seek>(
    recording: Recording,
    out: W,
    edit: Edit<'_>,
) -> Result<(W, Repaired), RecordError> {
    let (about, mut records) = recording.into_parts();
    records.allow(Allowed::COPYING);
    let options = WriteOptions::new()
        .compression(Some(Compression::Zstd))
        .compression_threads(0)
        .chunk_size(Some(CHUNK))
        .library(LIBRARY);
    let mut writer = options.create(out).map_err(failed)?;
    let copied = copy(&about, records, &mut writer, edit).and_then(|repaired| {
        writer.finish().map_err(failed)?;
        Ok(repaired)
    });
    // Taking the writer apart stops it from writing its end again.
    let out = writer.into_inner();
    copied.map(|repaired| (out, repaired))
}

fn copy<W: Write + Seek>(
    about: &About,
    mut records: Records,
    writer: &mut mcap::Writer<W>,
    edit: Edit<'_>,
) -> Result<Repaired, RecordError> {
    let finished = About { finished: true, ..about.clone() };
    let metadata = Metadata { name: METADATA.to_owned(), metadata: finished.to_metadata() };
    writer.write_metadata(&metadata).map_err(failed)?;
    let (mut entries, mut kept, mut schemas) = (0, 0, 0);
    let mut packets = HashSet::new();
    let damage = loop {
        let at_byte = records.at();
        let written = match records.next() {
            Ok(Some(Record::Message(message))) => {
                let header = MessageHeader {
                    channel_id: message.channel,
                    sequence: message.sequence,
                    log_time: message.log_time,
                    publish_time: message.publish_time,
                };
                let is_packet = packets.contains(&message.channel);
                let payload = if is_packet { edit(message.payload) } else { message.payload };
                let written = writer.write_to_known_channel(&header, &payload);
                entries += u64::from(written.is_ok());
                written
            }
            Ok(Some(Record::Channel(it))) => {
                kept += it.cost();
                if it.encoding == PACKETS_ARE {
                    packets.insert(it.id);
                }
                let channel = |schema| {
                    writer.add_channel_with_id(it.id, schema, &it.topic, &it.encoding, &it.texts).map(drop)
                };
                add(channel, it.schema)
            }
            // A channel of another program may have a schema.
            Ok(Some(Record::Schema { id, name, encoding, data })) => {
                schemas += 256 + name.len() + encoding.len() + data.len();
                if schemas > CHANNELS_IN_ALL {
                    continue; // channels without their schema are read as well
                }
                writer.add_schema_with_id(id, &name, &encoding, &data).map(drop)
            }
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
            // The file lacks the channel; readers skip such messages, too.
            // An invalid schema is no loss: toolbridge's channels have none.
            Ok(())
            | Err(
                McapError::UnknownChannel(..) | McapError::ConflictingSchemas(_) | McapError::InvalidSchemaId,
            ) if kept <= CHANNELS_IN_ALL => {}
            Ok(()) => break Some(Damage { at_byte, text: "the channels need too much memory".to_owned() }),
            Err(error) => break Some(Damage { at_byte, text: error.to_string() }),
        }
    };
    Ok(Repaired { entries, damage })
}

/// Adds a channel, without a schema if the file lacks the schema.
fn add(mut channel: impl FnMut(u16) -> Result<(), McapError>, schema: u16) -> Result<(), McapError> {
    match channel(schema) {
        Err(McapError::UnknownSchema(..)) => channel(0),
        other => other,
    }
}

fn failed(error: McapError) -> RecordError {
    match error {
        McapError::Io(error) => RecordError::Write(error),
        other => RecordError::Write(io::Error::other(other)),
    }
}
