//! Reads the index at the end of a finished file: where its metadata record is, and the schemas and channels of its
//! messages. Another program may have moved them when it rewrote the file.

use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};

use mcap::records::op;

use super::{
    format::{METADATA, RECORD_LIMIT, Texts},
    reader::CHANNELS_IN_ALL,
    records::{ChannelRecord, Record, SchemaRecord, parse, parse_metadata_index},
};

/// The size of a record's code and length, in bytes.
const HEAD: u64 = 9;

/// The size of the footer record: its head, two offsets and a checksum.
const FOOTER: u64 = HEAD + 20;

/// How many entries of the index are examined for the metadata record. A recording has one.
const MAX_METADATA: usize = 64;

/// The largest metadata record, in bytes. A recorder writes less than a kilobyte.
const METADATA_LIMIT: u64 = 1024 * 1024;

/// What a file's index says. It is empty if the file has none, or if it is damaged.
#[derive(Debug, Default)]
pub(super) struct FileIndex {
    /// The metadata record of the recording.
    pub(super) about: Option<Texts>,
    pub(super) schemas: Vec<SchemaRecord>,
    pub(super) channels: Vec<ChannelRecord>,
}

impl FileIndex {
    /// Reads the index of a file. What cannot be read is left out, since the records before it are read anyway.
    pub(super) fn read(file: &mut (impl Read + Seek)) -> Self {
        Self::find(file).ok().flatten().unwrap_or_default()
    }

    fn find(file: &mut (impl Read + Seek)) -> io::Result<Option<Self>> {
        let tail = FOOTER + mcap::MAGIC.len() as u64;
        let end = file.seek(SeekFrom::End(0))?;
        let Some(footer_at) = end.checked_sub(tail) else { return Ok(None) };
        file.seek(SeekFrom::Start(footer_at))?;
        let mut footer = [0; FOOTER as usize + mcap::MAGIC.len()];
        file.read_exact(&mut footer)?;
        let (footer, magic) = footer.split_at(FOOTER as usize);
        if magic != mcap::MAGIC || footer[0] != op::FOOTER {
            return Ok(None);
        }
        let Some(start) = number(&footer[HEAD as usize..]) else { return Ok(None) };
        if start == 0 || start >= footer_at {
            return Ok(None);
        }
        file.seek(SeekFrom::Start(start))?;
        let mut index = Self::default();
        let places = index.read_summary(BufReader::new(file.by_ref().take(footer_at - start)))?;
        for (at, size) in places {
            if let Some(texts) = metadata_at(file, at, size)? {
                index.about = Some(texts);
                break;
            }
        }
        Ok(Some(index))
    }

    /// Reads the schemas and channels, and returns the places of metadata records with the recording's name.
    fn read_summary(&mut self, mut summary: impl BufRead) -> io::Result<Vec<(u64, u64)>> {
        let (mut places, mut kept) = (Vec::new(), 0);
        let mut data = Vec::new();
        while let Some((code, size)) = head(&mut summary)? {
            let is_used = matches!(code, op::SCHEMA | op::CHANNEL | op::METADATA_INDEX);
            if !is_used || size > RECORD_LIMIT as u64 {
                if io::copy(&mut summary.by_ref().take(size), &mut io::sink())? < size {
                    break;
                }
                continue;
            }
            data.clear();
            if summary.by_ref().take(size).read_to_end(&mut data)? < size as usize {
                break;
            }
            if code == op::METADATA_INDEX {
                match parse_metadata_index(&data) {
                    Ok((at, size, name)) if name == METADATA && places.len() < MAX_METADATA => {
                        places.push((at, size));
                    }
                    _ => {}
                }
                continue;
            }
            match parse(code, &data) {
                Ok(Record::Schema(schema)) => {
                    kept += schema.cost();
                    self.schemas.push(schema);
                }
                Ok(Record::Channel(channel)) => {
                    kept += channel.cost();
                    self.channels.push(channel);
                }
                _ => {}
            }
            if kept > CHANNELS_IN_ALL {
                (self.schemas, self.channels) = (Vec::new(), Vec::new());
                break;
            }
        }
        Ok(places)
    }
}

/// Reads the metadata record at this place, if it is the recording's.
fn metadata_at(file: &mut (impl Read + Seek), at: u64, size: u64) -> io::Result<Option<Texts>> {
    if size > METADATA_LIMIT {
        return Ok(None);
    }
    file.seek(SeekFrom::Start(at))?;
    let Some((op::METADATA, size)) = head(file)? else { return Ok(None) };
    if size > METADATA_LIMIT {
        return Ok(None);
    }
    let mut data = Vec::new();
    file.take(size).read_to_end(&mut data)?;
    Ok(match parse(op::METADATA, &data) {
        Ok(Record::About(texts)) => Some(texts),
        _ => None,
    })
}

/// Reads a record's code and length.
fn head(from: &mut impl Read) -> io::Result<Option<(u8, u64)>> {
    let mut head = [0; HEAD as usize];
    match from.read_exact(&mut head) {
        Ok(()) => Ok(number(&head[1..]).map(|size| (head[0], size))),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

fn number(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}
