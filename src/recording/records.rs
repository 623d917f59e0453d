//! Reads the records of an MCAP file, inside chunks and outside, within limits and up to the first damage.
//!
//! The mcap crate does framing and decompresses zstd. Its decompressor of lz4 is written in C, so lz4 is unpacked here. Record fields are parsed here, because the crate's parsers allocate
//! what a length field claims.

use std::{
    fmt,
    io::{self, Read},
};

use bytes::Bytes;
use lz4_flex::frame::FrameDecoder;
use mcap::{
    records::op,
    sans_io::linear_reader::{LinearReadEvent, LinearReader, LinearReaderOptions},
};
use sha2::{Digest, Sha256};

use super::format::{METADATA, METADATA_ENTRIES, RECORD_LIMIT, Texts};

/// How many bytes are read at once. A record's length field allocates nothing.
const READ: usize = 64 * 1024;

/// The size of a record's code and length, in bytes.
const HEAD: usize = 9;

/// How much of the name of an unknown compression is shown, in characters.
const MAX_COMPRESSION: usize = 32;

/// How much work a file may cause its readers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowed {
    /// The allowance for a file of any size, in units. One byte of a record is one unit.
    least: u64,
    /// The additional allowance for each byte of the file, in units.
    of_byte: u64,
}

impl Allowed {
    /// For readers that inspect every value. Real sessions need less than half: each message takes at least 25 bytes
    /// of a compressed file, since its time and call id are incompressible.
    const READING: Self = Self { least: 64 << 20, of_byte: 16 };

    /// For copying messages to another file.
    pub(super) const COPYING: Self = Self { least: 256 << 20, of_byte: 16 };

    /// For trusted files.
    pub(super) const ANY: Self = Self { least: u64::MAX, of_byte: 0 };
}

/// The cost of a record in addition to its bytes, in units: about the time that so many bytes take.
const WORK_OF_RECORD: u64 = 256;

/// A record that the reader uses.
#[derive(Debug)]
pub(super) enum Record {
    /// The recording's metadata record.
    About(Texts),
    Schema(SchemaRecord),
    Channel(ChannelRecord),
    Message(MessageRecord),
    /// The last record.
    Footer,
    /// Indexes, statistics, attachments and private records.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SchemaRecord {
    pub(super) id: u16,
    pub(super) name: String,
    pub(super) encoding: String,
    pub(super) data: Vec<u8>,
}

impl SchemaRecord {
    /// The memory that it takes at most while a file is read or written, in bytes.
    pub(super) fn cost(&self) -> usize {
        256 + self.name.len() + self.encoding.len() + self.data.len()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChannelRecord {
    pub(super) id: u16,
    pub(super) schema: u16,
    pub(super) topic: String,
    pub(super) encoding: String,
    pub(super) texts: Texts,
}

impl ChannelRecord {
    /// The memory that it takes at most while a file is read or written, in bytes: its texts, their maps and lists,
    /// and the receivers listed in one of the texts.
    pub(super) fn cost(&self) -> usize {
        let texts: usize = self.texts.iter().map(|(key, value)| 128 + key.len() + value.len()).sum();
        let receivers = self.texts.get("to").map_or(0, |to| to.bytes().filter(|byte| *byte == b',').count());
        512 + self.topic.len() + self.encoding.len() + texts + 64 * receivers
    }

    /// The digest that equal channels share.
    pub(super) fn digest(&self) -> [u8; 32] {
        let mut digest = Sha256::new_with_prefix(self.schema.to_le_bytes());
        let texts = self.texts.iter().flat_map(|(key, value)| [key, value]);
        for text in [&self.topic, &self.encoding].into_iter().chain(texts) {
            digest.update((text.len() as u64).to_le_bytes());
            digest.update(text);
        }
        digest.finalize().into()
    }
}

#[derive(Debug)]
pub(super) struct MessageRecord {
    pub(super) channel: u16,
    pub(super) sequence: u32,
    pub(super) log_time: u64,
    pub(super) publish_time: u64,
    pub(super) payload: Bytes,
}

/// Why reading records stopped.
#[derive(Debug)]
pub(super) enum Fault {
    /// The file has no MCAP signature.
    NotMcap,
    /// The file is damaged from this byte on.
    Damage(Damage),
    /// The file could not be read.
    Io(io::Error),
}

/// Where reading a file ended early, and why. Everything before it was read.
///
/// ```no_run
/// use toolbridge::recording::{DamageKind, Recording};
///
/// let mut entries = Recording::open("session.mcap")?.entries();
/// let count = entries.by_ref().count();
/// match entries.damage() {
///     Some(damage) if damage.kind == DamageKind::Unsupported => println!("{count} entries, then {damage}"),
///     Some(damage) => println!("{count} entries are left: {damage}"),
///     None => println!("{count} entries"),
/// }
/// # Ok::<(), toolbridge::recording::RecordError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// The first byte of the record or chunk that could not be read.
    pub at_byte: u64,
    /// A description of what is wrong there.
    pub text: String,
    /// Whether the file is damaged at all.
    pub kind: DamageKind,
}

/// Why reading a file ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DamageKind {
    /// The file is damaged or truncated.
    Damaged,
    /// The file may be intact, but this version cannot read it, for example because of its compression.
    Unsupported,
    /// The file needs more work or memory than a recording of its size.
    TooCostly,
}

impl Damage {
    pub(super) fn new(at_byte: u64, text: impl Into<String>) -> Self {
        Self { at_byte, text: text.into(), kind: DamageKind::Damaged }
    }

    pub(super) fn too_costly(at_byte: u64, text: impl Into<String>) -> Self {
        Self { kind: DamageKind::TooCostly, ..Self::new(at_byte, text) }
    }

    /// A finished file without its footer.
    pub(super) fn no_end(at_byte: u64) -> Self {
        Self::new(at_byte, "the file is truncated")
    }

    /// A channel whose number has another meaning already.
    pub(super) fn redefined(at_byte: u64, topic: &str) -> Self {
        Self::new(at_byte, format!("channel {topic:?} is defined twice, differently"))
    }
}

/// `damaged at byte 17: the file is truncated`.
impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at_byte, text, kind } = self;
        match kind {
            DamageKind::Damaged => write!(f, "damaged at byte {at_byte}: {text}"),
            DamageKind::Unsupported | DamageKind::TooCostly => {
                write!(f, "not read beyond byte {at_byte}: {text}")
            }
        }
    }
}

/// Reads the records of a file.
pub(super) struct Records {
    source: Box<dyn Read + Send>,
    reader: LinearReader,
    /// The chunk being read, if any.
    chunk: Option<LinearReader>,
    /// The offset of the next record, or of the chunk being read.
    at: u64,
    /// The size of the chunk being read.
    chunk_size: u64,
    /// No records follow.
    ended: bool,
    footer: bool,
    /// How many bytes of the file were read.
    read: u64,
    /// The work that the records have caused.
    work: u64,
    allowed: Allowed,
}

impl Records {
    pub(super) fn new(source: Box<dyn Read + Send>) -> Self {
        let options = LinearReaderOptions::default()
            .with_emit_chunks(true)
            .with_skip_end_magic(true)
            .with_record_length_limit(RECORD_LIMIT);
        let reader = LinearReader::new_with_options(options);
        let at = mcap::MAGIC.len() as u64;
        Self {
            source,
            reader,
            chunk: None,
            at,
            chunk_size: 0,
            ended: false,
            footer: false,
            read: 0,
            work: 0,
            allowed: Allowed::READING,
        }
    }

    /// The offset of the next record.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Whether the footer was read.
    pub(super) fn has_footer(&self) -> bool {
        self.footer
    }

    /// Returns the next record, or none at the end of the file. After a fault no records follow.
    pub(super) fn next(&mut self) -> Result<Option<Record>, Fault> {
        let found = self.read_next();
        if !matches!(found, Ok(Some(_))) {
            self.ended = true;
        }
        found
    }

    /// Sets the limit on the work that records may cause.
    pub(super) fn allow(&mut self, allowed: Allowed) {
        self.allowed = allowed;
    }

    /// Counts work, in units, and fails if it exceeds the limit for a file of this size: a few bytes can decompress
    /// to gigabytes.
    pub(super) fn spend(&mut self, work: u64) -> Result<(), Damage> {
        self.work = self.work.saturating_add(work);
        let Allowed { least, of_byte } = self.allowed;
        let allowed = least.saturating_add(self.read.saturating_mul(of_byte));
        if self.work <= allowed {
            return Ok(());
        }
        self.ended = true;
        let text = format!(
            "the first {} bytes of the file unpack to more than the limit for their size ({} MiB); the rest is skipped",
            self.read,
            allowed >> 20
        );
        Err(Damage::too_costly(self.at, text))
    }

    fn read_next(&mut self) -> Result<Option<Record>, Fault> {
        loop {
            if self.ended {
                return Ok(None);
            }
            if let Some(chunk) = &mut self.chunk {
                match from_chunk(chunk).map_err(|text| damage(self.at, text))? {
                    Some((record, length)) => {
                        self.spend(WORK_OF_RECORD + length as u64).map_err(Fault::Damage)?;
                        return Ok(Some(record));
                    }
                    None => {
                        self.chunk = None;
                        self.at += self.chunk_size;
                    }
                }
                continue;
            }
            match self.reader.next_event() {
                None => return Ok(None),
                Some(Ok(LinearReadEvent::ReadRequest(_))) => {
                    let read = fill(&mut *self.source, self.reader.insert(READ)).map_err(Fault::Io)?;
                    self.read += read as u64;
                    self.reader.notify_read(read);
                }
                Some(Ok(LinearReadEvent::Record { opcode: op::CHUNK, data })) => {
                    self.chunk_size = 9 + data.len() as u64;
                    let (chunk, size) = chunk(data).map_err(|why| Fault::Damage(why.at(self.at)))?;
                    self.chunk = Some(chunk);
                    self.spend(WORK_OF_RECORD + size / 4).map_err(Fault::Damage)?;
                }
                Some(Ok(LinearReadEvent::Record { opcode, data })) => {
                    let record = parse(opcode, data).map_err(|text| damage(self.at, text))?;
                    let length = data.len() as u64;
                    self.at += 9 + length;
                    self.footer |= matches!(record, Record::Footer);
                    self.spend(WORK_OF_RECORD + length).map_err(Fault::Damage)?;
                    return Ok(Some(record));
                }
                Some(Err(mcap::McapError::BadMagic)) => return Err(Fault::NotMcap),
                Some(Err(error)) => return Err(damage(self.at, error.to_string())),
            }
        }
    }
}

fn damage(at_byte: u64, text: String) -> Fault {
    Fault::Damage(Damage::new(at_byte, text))
}

/// Reads once, and retries when interrupted.
fn fill(source: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match source.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Why a chunk cannot be read.
enum BadChunk {
    Damaged(String),
    Unsupported(String),
}

impl BadChunk {
    fn at(self, at_byte: u64) -> Damage {
        match self {
            Self::Damaged(text) => Damage::new(at_byte, text),
            Self::Unsupported(text) => Damage { kind: DamageKind::Unsupported, ..Damage::new(at_byte, text) },
        }
    }
}

impl From<String> for BadChunk {
    fn from(text: String) -> Self {
        Self::Damaged(text)
    }
}

/// Returns a reader of one chunk's records, which verifies the checksum first, and their size.
fn chunk(data: &[u8]) -> Result<(LinearReader, u64), BadChunk> {
    let mut fields = Fields(data);
    let head = fields.take(28)?; // the times of its messages, its size and the checksum
    let size = head.get(16..).and_then(|size| size.first_chunk()).map_or(0, |size| u64::from_le_bytes(*size));
    let compression = fields.text()?;
    let compressed = fields.u64()?;
    if size > RECORD_LIMIT as u64 || compressed > fields.0.len() as u64 {
        return Err(format!("a chunk of {size} bytes, {compressed} compressed, is too large").into());
    }
    let packed = fields.0.get(..compressed as usize).unwrap_or_default();
    let unpacked;
    let data = match &*compression {
        "" => {
            check_records(packed)?;
            data
        }
        "zstd" => data,
        "lz4" => {
            let records = unpack_lz4(packed, size)?;
            check_records(&records)?;
            // The checksum is of the unpacked records.
            unpacked = [head, &[0; 4], &size.to_le_bytes(), &records].concat();
            &unpacked
        }
        other => {
            let other: String = other.chars().take(MAX_COMPRESSION).collect();
            return Err(BadChunk::Unsupported(format!(
                "its compression {other:?} is not supported; rewrite the file with zstd or lz4"
            )));
        }
    };
    let options = LinearReaderOptions::default()
        .with_skip_start_magic(true)
        .with_skip_end_magic(true)
        .with_prevalidate_chunk_crcs(true)
        .with_record_length_limit(RECORD_LIMIT);
    let mut reader = LinearReader::new_with_options(options);
    let length = HEAD + data.len();
    let place = reader.insert(length);
    place[0] = op::CHUNK;
    place[1..HEAD].copy_from_slice(&(data.len() as u64).to_le_bytes());
    place[HEAD..length].copy_from_slice(data);
    reader.notify_read(length);
    Ok((reader, size))
}

/// Checks that the records of an uncompressed chunk end where the chunk ends. The crate assumes it.
fn check_records(records: &[u8]) -> Result<(), String> {
    let mut records = Fields(records);
    while !records.0.is_empty() {
        records.skip(1)?;
        let length = records.u64()?;
        records.skip(usize::try_from(length).unwrap_or(usize::MAX))?;
    }
    Ok(())
}

/// Unpacks the records of a chunk, which must have this size.
fn unpack_lz4(packed: &[u8], size: u64) -> Result<Vec<u8>, String> {
    let mut records = Vec::new();
    let unpacked = FrameDecoder::new(packed).take(size + 1).read_to_end(&mut records);
    match unpacked {
        Ok(_) if records.len() as u64 == size => Ok(records),
        Ok(_) => Err(format!("a chunk does not unpack to its size of {size} bytes")),
        Err(error) => Err(format!("a chunk cannot be unpacked: {error}")),
    }
}

/// Returns the next record of a chunk, and its length.
fn from_chunk(reader: &mut LinearReader) -> Result<Option<(Record, usize)>, String> {
    loop {
        return match reader.next_event() {
            None => Ok(None),
            Some(Ok(LinearReadEvent::ReadRequest(_))) => {
                reader.notify_read(0); // all of it was there
                continue;
            }
            Some(Ok(LinearReadEvent::Record { opcode, data })) => {
                parse(opcode, data).map(|record| Some((record, data.len())))
            }
            Some(Err(error)) => Err(error.to_string()),
        };
    }
}

pub(super) fn parse(code: u8, data: &[u8]) -> Result<Record, String> {
    let mut fields = Fields(data);
    Ok(match code {
        op::METADATA if fields.text()? == METADATA => Record::About(fields.texts()?),
        op::SCHEMA => {
            let (id, name, encoding) = (fields.u16()?, fields.text()?, fields.text()?);
            let length = fields.u32()? as usize;
            Record::Schema(SchemaRecord { id, name, encoding, data: fields.take(length)?.to_vec() })
        }
        op::CHANNEL => Record::Channel(ChannelRecord {
            id: fields.u16()?,
            schema: fields.u16()?,
            topic: fields.text()?,
            encoding: fields.text()?,
            texts: fields.texts()?,
        }),
        op::MESSAGE => Record::Message(MessageRecord {
            channel: fields.u16()?,
            sequence: fields.u32()?,
            log_time: fields.u64()?,
            publish_time: fields.u64()?,
            payload: Bytes::copy_from_slice(fields.0),
        }),
        op::FOOTER => Record::Footer,
        _ => Record::Other,
    })
}

/// Returns the place, the size and the name of the metadata record that an index entry describes.
pub(super) fn parse_metadata_index(data: &[u8]) -> Result<(u64, u64, String), String> {
    let mut fields = Fields(data);
    Ok((fields.u64()?, fields.u64()?, fields.text()?))
}

/// The unread part of a record.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        match self.0.split_at_checked(count) {
            Some((taken, rest)) => {
                self.0 = rest;
                Ok(taken)
            }
            None => Err(format!("a field of {count} bytes, but only {} are left", self.0.len())),
        }
    }

    fn skip(&mut self, count: usize) -> Result<(), String> {
        self.take(count).map(drop)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u16(&mut self) -> Result<u16, String> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<String, String> {
        let length = self.u32()? as usize;
        String::from_utf8(self.take(length)?.to_vec()).map_err(|_| "a text is not UTF-8".to_owned())
    }

    fn texts(&mut self) -> Result<Texts, String> {
        let length = self.u32()? as usize;
        let mut pairs = Fields(self.take(length)?);
        let mut texts = Texts::new();
        while !pairs.0.is_empty() {
            texts.insert(pairs.text()?, pairs.text()?);
            if texts.len() > METADATA_ENTRIES {
                return Err(format!("more than {METADATA_ENTRIES} entries of metadata"));
            }
        }
        Ok(texts)
    }
}
