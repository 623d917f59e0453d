//! Defines the layout of a recording in an MCAP file: names, channels and the metadata record.

use std::collections::BTreeMap;

use super::{Direction, Moment, RecordError};
use crate::transport::{Identity, Lane, Peer, Role, Sid};

/// The format version of the files. A reader rejects a higher one.
pub(super) const FORM: u32 = 1;

/// The version of the wire protocol of the packets, defined in `wire.md`.
const PROTOCOL: &str = "1";

/// The library name in MCAP's header.
pub(super) const LIBRARY: &str = concat!("toolbridge/", env!("CARGO_PKG_VERSION"));

/// The name of the metadata record.
pub(super) const METADATA: &str = "toolbridge";

/// The MCAP topic of events.
pub(super) const EVENTS: &str = "room/events";

/// The encodings of packets and of events.
pub(super) const PACKETS_ARE: &str = "msgpack";
pub(super) const EVENTS_ARE: &str = "json";

/// The maximum number of channels in a file. Each is one combination of direction, participant, join, topic and lane;
/// packets that need further channels are counted as unrecorded.
pub(super) const CHANNELS: usize = 4_096;

/// The longest name and metadata of a channel, in bytes. LiveKit's own limits are far lower.
pub(super) const CHANNEL_BYTES: usize = 16 * 1024;

/// The largest record and the largest decompressed chunk that a reader accepts, in bytes: the largest frame (16 MiB)
/// and other records in one chunk.
pub(super) const RECORD_LIMIT: usize = 24 * 1024 * 1024;

/// The longest identity, sid and topic that a reader accepts, in bytes. LiveKit's limits are far lower.
pub(super) const NAME_LIMIT: usize = 1_024;

/// The largest room event that a reader accepts, in bytes of JSON.
pub(super) const EVENT_LIMIT: usize = 16 * 1024;

/// The maximum number of entries in a metadata map. The files written here have ten at most.
pub(super) const METADATA_ENTRIES: usize = 1_024;

/// The metadata of a recording: which participant was recorded, where and when.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct About {
    /// The version of the program that wrote the file.
    pub version: String,
    /// The version of the wire protocol of its packets.
    pub protocol: String,
    /// The room's name.
    pub room: String,
    /// The recorded participant; none if the file does not begin with the event that names it.
    pub identity: Option<Identity>,
    /// The id of its first join.
    pub sid: Option<Sid>,
    /// Its role, if known.
    pub role: Option<Role>,
    /// When the recording began.
    pub begun: Moment,
    /// Whether the file was finished, that is indexed and compressed. It is not while it is being written or if its
    /// writer crashed.
    pub finished: bool,
    /// Whether the file holds ids, names, types, sizes, times and outcomes only, but no arguments, results or other texts.
    pub metadata_only: bool,
}

impl About {
    /// Returns the metadata of a recording that starts now.
    pub(super) fn new(room: String, local: Option<&Peer>, role: Option<Role>, begun: Moment) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol: PROTOCOL.to_owned(),
            room,
            identity: local.map(Peer::identity).cloned(),
            sid: local.map(Peer::sid).cloned(),
            role,
            begun,
            finished: false,
            metadata_only: false,
        }
    }

    /// Returns the entries of the metadata record.
    pub(super) fn to_metadata(&self) -> Texts {
        let role = self.role.map_or("", Role::as_str);
        let mut entries = texts([
            ("form", &FORM.to_string()),
            ("version", &self.version),
            ("protocol", &self.protocol),
            ("room", &self.room),
            ("identity", self.identity.as_ref().map_or("", Identity::as_str)),
            ("sid", self.sid.as_ref().map_or("", Sid::as_str)),
            ("role", role),
            ("begun", &self.begun.0.to_string()),
            ("finished", yes_or_no(self.finished)),
        ]);
        if self.metadata_only {
            entries.insert(METADATA_ONLY.to_owned(), YES.to_owned());
        }
        entries
    }

    /// Reads a metadata record. Missing entries are empty, but the format version must be known.
    pub(super) fn from_metadata(texts: &Texts) -> Result<Self, RecordError> {
        let text = |key: &str| texts.get(key).map_or("", String::as_str);
        if text("form").parse().map_or(true, |form: u32| form == 0 || form > FORM) {
            let found = text("form").chars().take(32).collect();
            return Err(RecordError::Version { found, known: FORM });
        }
        Ok(Self {
            version: text("version").to_owned(),
            protocol: text("protocol").to_owned(),
            room: text("room").to_owned(),
            identity: known(text("identity")).map(Identity::from),
            sid: known(text("sid")).map(Sid::from),
            role: Role::from_text(text("role")),
            begun: Moment(text("begun").parse().unwrap_or_default()),
            finished: text("finished") == YES,
            metadata_only: text(METADATA_ONLY) == YES,
        })
    }
}

/// Missing texts are empty in a file.
fn known(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// The text that files and tables have for a sender's identity: empty if it is not disclosed.
pub(super) fn identity_of(from: Option<&Peer>) -> &str {
    from.map_or("", |peer| peer.identity().as_str())
}

/// The text that files and tables have for a sender's sid: empty if it is not disclosed.
pub(super) fn sid_of(from: Option<&Peer>) -> &str {
    from.map_or("", |peer| peer.sid().as_str())
}

/// The attributes that all packets of a channel share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Channel {
    pub(super) direction: Direction,
    pub(super) from: Option<Peer>,
    pub(super) to: Vec<Identity>,
    pub(super) topic: String,
    pub(super) lane: Lane,
    pub(super) stream: bool,
    pub(super) compressed: bool,
}

impl Channel {
    /// Its MCAP topic, for display in viewers. Readers use the metadata.
    pub(super) fn name(&self) -> String {
        let who = match self.direction {
            Direction::Heard => identity_of(self.from.as_ref()).to_owned(),
            Direction::Sent if self.to.is_empty() => "*".to_owned(),
            Direction::Sent => self.to.iter().map(Identity::as_str).collect::<Vec<_>>().join("+"),
        };
        let compressed = if self.compressed { "/compressed" } else { "" };
        format!("{}/{who}/{}/{}{compressed}", direction(self.direction), self.topic, lane(self.lane))
    }

    pub(super) fn to_metadata(&self) -> Texts {
        let to = serde_json::to_string(&self.to).unwrap_or_default();
        texts([
            ("direction", direction(self.direction)),
            ("identity", identity_of(self.from.as_ref())),
            ("sid", sid_of(self.from.as_ref())),
            ("to", &to),
            ("topic", &self.topic),
            ("lane", lane(self.lane)),
            ("stream", yes_or_no(self.stream)),
            ("compressed", yes_or_no(self.compressed)),
        ])
    }

    /// Reads a channel from its metadata; none if the channel is not from toolbridge.
    pub(super) fn from_metadata(texts: &Texts) -> Option<Self> {
        let text = |key: &str| texts.get(key).map(String::as_str);
        let direction = [Direction::Sent, Direction::Heard]
            .into_iter()
            .find(|it| text("direction") == Some(direction(*it)))?;
        let lane = [Lane::Reliable, Lane::Lossy].into_iter().find(|it| text("lane") == Some(lane(*it)))?;
        let name = |key: &str| text(key).filter(|name| name.len() <= NAME_LIMIT);
        let to: Vec<Identity> = serde_json::from_str(text("to")?).ok()?;
        to.iter().all(|it| it.as_str().len() <= NAME_LIMIT).then_some(())?;
        Some(Self {
            direction,
            from: Peer::disclosed(name("identity")?, name("sid")?),
            to,
            topic: name("topic")?.to_owned(),
            lane,
            stream: text("stream")? == YES,
            // Files of programs that know no compressed frames do not have it.
            compressed: text("compressed") == Some(YES),
        })
    }

    /// The total length of its texts, in bytes.
    pub(super) fn size(&self) -> usize {
        let to: usize = self.to.iter().map(|it| it.as_str().len()).sum();
        identity_of(self.from.as_ref()).len() + sid_of(self.from.as_ref()).len() + self.topic.len() + to
    }
}

/// A string map, as in MCAP's channels and metadata records.
pub(super) type Texts = BTreeMap<String, String>;

const YES: &str = "yes";

/// The key of the entry that a file has if it holds metadata only.
const METADATA_ONLY: &str = "metadata_only";

fn yes_or_no(it: bool) -> &'static str {
    if it { YES } else { "no" }
}

fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Sent => "sent",
        Direction::Heard => "heard",
    }
}

fn lane(lane: Lane) -> &'static str {
    match lane {
        Lane::Reliable => "reliable",
        Lane::Lossy => "lossy",
    }
}

fn texts<const N: usize>(pairs: [(&str, &str); N]) -> Texts {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channel_and_metadata_record_round_trip() {
        let channel = Channel {
            direction: Direction::Sent,
            from: Some(Peer::new("assistant", "PA_1")),
            to: vec!["phone".into(), "a\"b".into()],
            topic: "toolbridge".to_owned(),
            lane: Lane::Lossy,
            stream: false,
            compressed: true,
        };
        assert_eq!(Channel::from_metadata(&channel.to_metadata()), Some(channel.clone()));
        assert_eq!(channel.name(), "sent/phone+a\"b/toolbridge/lossy/compressed");
        assert_eq!(Channel::from_metadata(&Texts::new()), None);

        let local = Peer::new("phone", "PA_2");
        let about = About::new("room".to_owned(), Some(&local), Some(Role::Client), Moment(7));
        assert_eq!(About::from_metadata(&about.to_metadata()).unwrap(), about);
        let later = texts([("form", "2")]);
        assert!(matches!(About::from_metadata(&later), Err(RecordError::Version { known: 1, .. })));
    }
}
