//! Filters signaling frames: passes only the fields that a data-only participant uses, within limits.
//!
//! A frame of 16 MiB can hold eight million participants of two bytes, each half a kilobyte once decoded. The filter
//! therefore rewrites the encoded bytes before decoding: it keeps known fields, strings up to a maximum length, and a
//! limited number of repeated fields.

use std::collections::BTreeSet;

use crate::{livekit::signaling::first::Rank, transport::ROLE_ATTRIBUTE};

/// The largest number of participants in one frame: twice the number of known participants.
const PARTICIPANTS: usize = 8_192;
/// The largest number of attributes of a participant.
const ATTRIBUTES: usize = 256;
/// The largest total size of a participant's attributes, in bytes: LiveKit allows 64 KiB for their names and values, and
/// each attribute adds a few bytes for its lengths.
const ATTRIBUTES_SIZE: usize = 64 * 1024 + 8 * ATTRIBUTES;
/// The largest number of ICE servers.
const ICE_SERVERS: usize = 16;
/// The largest number of URLs of an ICE server.
const ICE_URLS: usize = 8;
/// The largest number of nested messages in one frame, not counting attributes: more than all participants need.
const MESSAGES: usize = 4 * PARTICIPANTS;
/// The largest number of attributes in one frame. Further participants keep only their role attribute.
const ALL_ATTRIBUTES: usize = 64 * 1024;

/// The largest number of capabilities of a participant.
const CAPABILITIES: usize = 16;

/// The longest name, identity or sid, in bytes: LiveKit allows 256 for an identity.
const NAME: usize = 1024;
/// The longest address, credential or candidate, in bytes.
const LINE: usize = 4 * 1024;
/// The longest token or value of an attribute, in bytes: LiveKit allows as much for all attributes together.
const VALUE: usize = 64 * 1024;
/// The longest session description, in bytes: a hundred times that of a data-only connection.
const SDP: usize = 256 * 1024;

/// The numbers of the messages that pass
/// ([`SignalResponse`](https://github.com/livekit/protocol/blob/main/protobufs/livekit_rtc.proto)).
pub(super) const JOIN: u64 = 1;
pub(super) const LEAVE: u64 = 8;
pub(super) const RECONNECT: u64 = 19;

/// The rule for a field.
enum Rule {
    /// A number.
    Number,
    /// A number that is not negative, because times are subtracted from each other.
    Time,
    /// A text, up to this many bytes.
    Text(usize),
    /// Texts, up to this many, each up to this many bytes.
    Texts(usize, usize),
    /// A message, up to this many times.
    Each(usize, Fields),
    /// A participant, up to [`PARTICIPANTS`] times, by their [`Rank`].
    Participants,
    /// An attribute, up to this many times, and up to this many bytes in total.
    Attribute(usize, usize, Fields),
}

/// The known fields of a message.
type Fields = &'static [(u64, Rule)];

use Rule::{Attribute, Each, Number, Participants, Text, Texts, Time};

const RESPONSE: Fields = &[
    (JOIN, Each(1, JOINED)),
    (2, Each(1, &[(1, Text(NAME)), (2, Text(SDP)), (3, Number)])), // answer
    (4, Each(1, &[(1, Text(LINE)), (2, Number), (3, Number)])),    // trickle
    (5, Each(1, &[(1, Participants)])),                            // update
    (LEAVE, Each(1, &[(1, Number), (2, Number), (3, Number)])),
    (11, Each(1, &[])), // room update
    (16, Text(VALUE)),  // refreshed token
    (RECONNECT, Each(1, RECONNECTED)),
    (20, Each(1, &[(1, Time), (2, Time)])), // pong
    (24, Each(1, MOVED)),
];

const JOINED: Fields = &[
    (1, Each(1, ROOM)),
    (2, Each(1, PARTICIPANT)),
    (3, Participants),
    (4, Text(NAME)), // version
    (5, Each(ICE_SERVERS, ICE_SERVER)),
    (6, Number),
    (8, Each(1, CONFIGURATION)),
    (10, Number), // ping timeout
    (11, Number), // ping interval
    (12, Each(1, SERVER)),
    (15, Number),
];

const RECONNECTED: Fields = &[
    (1, Each(ICE_SERVERS, ICE_SERVER)),
    (2, Each(1, CONFIGURATION)),
    (3, Each(1, SERVER)),
    (4, Number), // last message
];

const MOVED: Fields = &[
    (1, Each(1, ROOM)),
    (2, Text(VALUE)), // token
    (3, Each(1, PARTICIPANT)),
    (4, Participants),
];

const ROOM: Fields = &[(1, Text(NAME)), (2, Text(NAME))];

const SERVER: Fields =
    &[(1, Number), (2, Text(NAME)), (3, Number), (4, Text(NAME)), (5, Text(NAME)), (7, Number)];

const CONFIGURATION: Fields = &[(3, Number), (5, Number)];

const ICE_SERVER: Fields = &[(1, Texts(ICE_URLS, LINE)), (2, Text(LINE)), (3, Text(LINE))];

/// The numbers of fields by which participants are told apart, and the kind of an agent
/// ([`ParticipantInfo`](https://github.com/livekit/protocol/blob/main/protobufs/livekit_models.proto)).
const IDENTITY: u64 = 2;
const KIND: u64 = 14;
const ATTRIBUTE: u64 = 15;
const AGENT: u64 = 4;

/// Without tracks and metadata.
const PARTICIPANT: Fields = &[
    (1, Text(NAME)), // sid
    (IDENTITY, Text(NAME)),
    (3, Number),  // state
    (10, Number), // version
    (11, Each(1, PERMISSION)),
    (KIND, Number),
    (ATTRIBUTE, Attribute(ATTRIBUTES, ATTRIBUTES_SIZE, &[(1, Text(NAME)), (2, Text(VALUE))])),
    (16, Number),
    (20, Number),                 // client protocol
    (21, Texts(1, CAPABILITIES)), // packed numbers
];

const PERMISSION: Fields = &[
    (1, Number),
    (2, Number),
    (3, Number),
    (7, Number),
    (8, Number),
    (10, Number),
    (11, Number),
    (12, Number),
    (13, Number),
];

/// A filtered frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Filtered {
    /// The field number of its message.
    pub(super) kind: u64,
    pub(super) frame: Vec<u8>,
}

/// Filters a frame. Returns `None` if it is malformed or its message is not used.
pub(super) fn filter(frame: &[u8], first: &BTreeSet<String>) -> Option<Filtered> {
    let mut left = Left { messages: MESSAGES, attributes: ALL_ATTRIBUTES, first };
    let out = message(frame, RESPONSE, &mut left)?;
    let mut fields = Reader(&out);
    let (kind, _) = fields.next()??;
    // Several messages would be merged by the decoder, although each was limited separately.
    fields.next().is_none().then_some(Filtered { kind, frame: out })
}

/// The remaining limits of a frame.
struct Left<'a> {
    messages: usize,
    attributes: usize,
    /// The identities whose descriptions pass before those of all others.
    first: &'a BTreeSet<String>,
}

/// Filters a message. Returns `None` if it is malformed.
fn message(bytes: &[u8], fields: Fields, left: &mut Left<'_>) -> Option<Vec<u8>> {
    let (mut out, mut has_role) = (Vec::new(), false);
    let (mut counts, mut sizes) = (vec![0; fields.len()], vec![0; fields.len()]);
    let mut places = None;
    for field in Reader(bytes) {
        let (number, value) = field?;
        let Some(at) = fields.iter().position(|(known, _)| *known == number) else { continue };
        counts[at] += 1;
        match (&fields[at].1, value) {
            (Number, Value::Number(value)) => number_field(&mut out, number, value),
            // The highest bit of a negative 64-bit number is set.
            (Time, Value::Number(value)) if value <= i64::MAX as u64 => number_field(&mut out, number, value),
            (Text(limit), Value::Bytes(text)) if text.len() <= *limit => bytes_field(&mut out, number, text),
            (Texts(most, limit), Value::Bytes(text)) if counts[at] <= *most && text.len() <= *limit => {
                bytes_field(&mut out, number, text);
            }
            (Each(most, inner), Value::Bytes(bytes)) if counts[at] <= *most && left.messages > 0 => {
                left.messages -= 1;
                // The recursion is as deep as the rules, not as the frame: unknown fields are not entered.
                bytes_field(&mut out, number, &message(bytes, inner, left)?);
            }
            (Participants, Value::Bytes(participant)) => {
                let places = places.get_or_insert_with(|| shared_out(bytes, number, left.first));
                let place = &mut places[rank(participant, left.first) as usize];
                if *place > 0 && left.messages > 0 {
                    (*place, left.messages) = (*place - 1, left.messages - 1);
                    bytes_field(&mut out, number, &message(participant, PARTICIPANT, left)?);
                }
            }
            (Attribute(most, size, inner), Value::Bytes(bytes)) => {
                // The role attribute is always kept.
                let is_the_role = is_role(bytes) && !has_role;
                if is_the_role {
                    has_role = true;
                } else if counts[at] <= *most && left.attributes > 0 {
                    left.attributes -= 1;
                } else {
                    continue;
                }
                // Measured after the filter, which removes texts that are too long.
                let written = message(bytes, inner, left)?;
                if written.len() <= size.saturating_sub(sizes[at]) || is_the_role {
                    sizes[at] += written.len();
                    bytes_field(&mut out, number, &written);
                }
            }
            _ => {}
        }
    }
    Some(out)
}

/// Shares the places for participants out among those in a message, by their [`Rank`].
fn shared_out(bytes: &[u8], number: u64, first: &BTreeSet<String>) -> [usize; 3] {
    let mut found = [0; 3];
    for field in Reader(bytes).flatten() {
        if let (it, Value::Bytes(participant)) = field
            && it == number
        {
            found[rank(participant, first) as usize] += 1;
        }
    }
    let mut left = PARTICIPANTS;
    found.map(|count| {
        let places = count.min(left);
        left -= places;
        places
    })
}

fn rank(participant: &[u8], first: &BTreeSet<String>) -> Rank {
    let mut rank = Rank::Other;
    for field in Reader(participant).flatten() {
        let ranks = match field {
            (IDENTITY, Value::Bytes(id)) if str::from_utf8(id).is_ok_and(|id| first.contains(id)) => {
                Rank::Named
            }
            (KIND, Value::Number(AGENT)) => Rank::Role,
            (ATTRIBUTE, Value::Bytes(attribute)) if is_role(attribute) => Rank::Role,
            _ => continue,
        };
        rank = rank.min(ranks);
    }
    rank
}

/// Returns true if the attribute is the role.
fn is_role(bytes: &[u8]) -> bool {
    let key = Reader(bytes).next();
    matches!(key, Some(Some((1, Value::Bytes(key)))) if key == ROLE_ATTRIBUTE.as_bytes())
}

fn number_field(out: &mut Vec<u8>, number: u64, value: u64) {
    varint(out, number << 3);
    varint(out, value);
}

fn bytes_field(out: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    varint(out, number << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The value of a field.
#[derive(Clone, Copy)]
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// A wire type that no known field uses.
    Other,
}

/// Iterates over the fields of a message; the last item is `None` if the message is malformed
/// ([the format](https://protobuf.dev/programming-guides/encoding/)).
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for at in 0..10 {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            // The tenth byte has one bit left.
            if at == 9 && *byte > 1 {
                return None;
            }
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn bytes(&mut self, length: u64) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest;
        Some(bytes)
    }

    fn field(&mut self) -> Option<(u64, Value<'a>)> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Number(self.varint()?),
            1 => self.bytes(8).map(|_| Value::Other)?,
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.bytes(length)?)
            }
            5 => self.bytes(4).map(|_| Value::Other)?,
            _ => return None,
        };
        (tag >> 3 > 0).then_some((tag >> 3, value))
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Option<(u64, Value<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests;
