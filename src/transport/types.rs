//! The words of the room: who is in it, and what is carried between them.
//!
//! Nothing here does anything. A transport speaks in these words to the
//! [`Session`](crate::Session), whatever carries the packets underneath.

use std::{borrow::Borrow, borrow::Cow, collections::BTreeMap, fmt, sync::Arc};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

mod stream;

pub use stream::{STREAM_CHUNK, STREAM_TOPIC, StreamHeader, StreamPart, StreamParts};

/// Counts how often this thread compared identities, sids and call ids: what a test can say of the cost of a lookup
/// without a clock.
#[cfg(test)]
pub(crate) mod comparisons {
    use std::cell::Cell;

    thread_local! {
        static COUNT: Cell<u64> = const { Cell::new(0) };
    }

    pub(crate) fn count() {
        COUNT.set(COUNT.get() + 1);
    }

    /// How many comparisons `work` makes.
    pub(crate) fn of(work: impl FnOnce()) -> u64 {
        let before = COUNT.get();
        work();
        COUNT.get() - before
    }
}

/// The topic on which frames travel (`wire.md`, section 5).
pub const TOPIC: &str = "toolbridge";

/// The token attribute that says what a participant is: `assistant`, `client` or `observer`.
pub const ROLE_ATTRIBUTE: &str = "toolbridge.role";

macro_rules! text_newtype {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Eq, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        // By hand, so that unit tests can count comparisons.
        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                #[cfg(test)]
                comparisons::count();
                self.0 == other.0
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }

        impl Ord for $name {
            fn cmp(&self, other: &Self) -> std::cmp::Ordering {
                #[cfg(test)]
                comparisons::count();
                self.0.cmp(&other.0)
            }
        }

        impl std::hash::Hash for $name {
            fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
                self.0.hash(state);
            }
        }

        impl $name {
            /// The text itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Whether nothing is known: a hidden participant, or a packet sent by a server API.
            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl From<&$name> for $name {
            fn from(other: &$name) -> Self {
                other.clone()
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                self.as_str() == other
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                self.as_str() == *other
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
    };
}

text_newtype! {
    /// A participant's identity: chosen by whoever issued its token, unique in a room at any moment.
    Identity
}

text_newtype! {
    /// A participant's session id: LiveKit gives a new one for each join.
    Sid
}

/// One remote participant in one join: an identity and its sid.
///
/// The same identity under another sid is another peer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    identity: Identity,
    sid: Sid,
}

impl Peer {
    /// A peer of this identity and sid. Either may be empty when LiveKit withheld it.
    pub fn new(identity: impl Into<Identity>, sid: impl Into<Sid>) -> Self {
        Self { identity: identity.into(), sid: sid.into() }
    }

    /// Who it is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// In which join.
    pub fn sid(&self) -> &Sid {
        &self.sid
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.identity, self.sid)
    }
}

/// What the room says of one participant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Participant {
    peer: Peer,
    kind: ParticipantKind,
    attributes: BTreeMap<String, String>,
    can_update_metadata: bool,
}

impl Participant {
    /// A participant without attributes, not an agent, whose attributes are not believed.
    pub fn new(identity: impl Into<Identity>, sid: impl Into<Sid>) -> Self {
        Self {
            peer: Peer::new(identity, sid),
            kind: ParticipantKind::Standard,
            attributes: BTreeMap::new(),
            can_update_metadata: true,
        }
    }

    /// Whether LiveKit's participant *kind* is `AGENT`, which only a token can give. Default: no.
    #[must_use]
    pub fn agent(self, agent: bool) -> Self {
        self.kind(if agent { ParticipantKind::Agent } else { ParticipantKind::Standard })
    }

    /// LiveKit's *kind* of participant, which only a token or the server can give. Default: standard.
    #[must_use]
    pub fn kind(mut self, kind: ParticipantKind) -> Self {
        self.kind = kind;
        self
    }

    /// Its attributes, as the room tells them.
    #[must_use]
    pub fn attributes<K: Into<String>, V: Into<String>>(
        mut self,
        attributes: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.attributes = attributes.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        self
    }

    /// Whether it may change its own attributes. Default: yes, and so they are not believed.
    #[must_use]
    pub fn can_update_metadata(mut self, may: bool) -> Self {
        self.can_update_metadata = may;
        self
    }

    /// This participant in the given role, as its token would say it: a shorthand for tests and drivers.
    #[must_use]
    pub fn role(self, role: Role) -> Self {
        self.attributes([(ROLE_ATTRIBUTE, role.as_str())]).can_update_metadata(false)
    }

    /// Identity and sid.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Who it is.
    pub fn identity(&self) -> &Identity {
        &self.peer.identity
    }

    /// In which join.
    pub fn sid(&self) -> &Sid {
        &self.peer.sid
    }

    /// Whether its kind is `AGENT`.
    pub fn is_agent(&self) -> bool {
        self.kind == ParticipantKind::Agent
    }

    /// Whether its kind is `STANDARD`: a person's app, and not an agent, an egress, an ingress or a telephone.
    pub fn is_standard(&self) -> bool {
        self.kind == ParticipantKind::Standard
    }

    /// The value of one attribute, believed or not.
    pub fn attribute(&self, key: &str) -> Option<&str> {
        self.attributes.get(key).map(String::as_str)
    }

    /// How many bytes of memory its attributes take, about.
    #[cfg(feature = "livekit")]
    pub(crate) fn attribute_bytes(&self) -> usize {
        /// What one takes beside its texts: their places, and what the allocator adds.
        const PLACE: usize = 80;
        self.attributes.iter().map(|(key, value)| PLACE + key.len() + value.len()).sum()
    }

    /// Whether it may change its own attributes.
    pub fn may_update_metadata(&self) -> bool {
        self.can_update_metadata
    }

    /// The role that its token gives it; none where it could have given it to itself.
    pub fn token_role(&self) -> Option<Role> {
        if self.can_update_metadata {
            return None;
        }
        self.attribute(ROLE_ATTRIBUTE).and_then(Role::from_text)
    }

    /// Whether it may be an assistant: kind `AGENT`, or the role `assistant` by its token.
    pub fn is_eligible_assistant(&self) -> bool {
        self.is_agent() || self.token_role() == Some(Role::Assistant)
    }
}

/// LiveKit's kinds of participants, as far as they matter here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ParticipantKind {
    /// A person's app (`STANDARD`).
    #[default]
    Standard,
    /// An agent (`AGENT`), which may be an assistant.
    Agent,
    /// Any other: an egress, an ingress, a telephone, a bridge.
    Other,
}

/// What a participant's token says that it is, in the attribute [`ROLE_ATTRIBUTE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Asks for tools.
    Assistant,
    /// Offers tools.
    Client,
    /// Sees every call, and has no part in any.
    Observer,
}

impl Role {
    /// The word in the attribute.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Assistant => "assistant",
            Self::Client => "client",
            Self::Observer => "observer",
        }
    }

    /// The role that the attribute's value names.
    pub fn from_text(text: &str) -> Option<Self> {
        [Self::Assistant, Self::Client, Self::Observer].into_iter().find(|role| role.as_str() == text)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which of LiveKit's two data channels carries a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Lane {
    /// In order and sent again when lost, as long as the connection lives.
    #[default]
    Reliable,
    /// Sent once, in any order.
    Lossy,
}

/// One data packet on its way out.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Packet {
    /// Names this packet to the session when it could not be sent (`Session::handle_unsent`).
    pub id: u64,
    /// Who shall hear it. Empty only in a broadcast: LiveKit reads an empty list as the whole room.
    pub to: Vec<Identity>,
    /// The topic; [`TOPIC`] for frames.
    pub topic: Cow<'static, str>,
    /// The channel.
    pub lane: Lane,
    /// The bytes. More than [`Capabilities::max_packet`] travel as a byte stream, where there are any.
    pub payload: Bytes,
    /// Whether it need not wait for the parts of larger packets that were handed over before. Default: no.
    pub overtakes: bool,
    /// The id of the byte stream, should it need one. Default: one that is made of `id`.
    pub stream: Option<Arc<str>>,
    broadcast: bool,
}

impl Packet {
    /// A reliable packet to these identities, on the frames' topic.
    pub fn new(to: impl IntoIterator<Item = Identity>, payload: impl Into<Bytes>) -> Self {
        Self {
            id: 0,
            to: to.into_iter().collect(),
            topic: Cow::Borrowed(TOPIC),
            lane: Lane::Reliable,
            payload: payload.into(),
            overtakes: false,
            stream: None,
            broadcast: false,
        }
    }

    /// A reliable packet to the whole room, hidden participants included.
    pub fn broadcast(payload: impl Into<Bytes>) -> Self {
        Self { broadcast: true, ..Self::new([], payload) }
    }

    /// Whether the whole room is meant.
    pub fn is_broadcast(&self) -> bool {
        self.broadcast
    }

    /// The id of the byte stream that carries it, if it is too large for a packet.
    pub fn stream_id(&self) -> Arc<str> {
        self.stream.clone().unwrap_or_else(|| format!("frame-{}", self.id).into())
    }

    /// Whether it can be sent as it stands: it names somebody, or means everybody.
    pub fn is_addressed(&self) -> bool {
        self.broadcast || !self.to.is_empty()
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packet")
            .field("id", &self.id)
            .field("to", &self.to)
            .field("topic", &self.topic)
            .field("lane", &self.lane)
            .field("bytes", &self.payload.len())
            .field("broadcast", &self.broadcast)
            .finish()
    }
}

/// Whether the local participant can exchange packets with the room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectionState {
    /// The connection was lost and the transport is trying to restore it. No packets are sent or received meanwhile.
    Reconnecting,
    /// The connection is restored. If the local sid has changed, the participant rejoined: nothing of the previous
    /// join is kept.
    Connected,
}

/// What a transport can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The largest payload of one packet, in bytes. Default: [`Capabilities::MAX_PACKET`].
    pub max_packet: usize,
    /// Whether [`Lane::Lossy`] exists. Default: no.
    pub lossy: bool,
    /// Whether a reliable packet may be larger than `max_packet`, and then travels as a byte stream ([`StreamParts`]).
    /// Default: no.
    pub streams: bool,
}

impl Capabilities {
    /// LiveKit's guidance for a reliable packet is 15 KiB with its envelope; above it, streams.
    pub const MAX_PACKET: usize = 15_000;
}

impl Default for Capabilities {
    fn default() -> Self {
        Self { max_packet: Self::MAX_PACKET, lossy: false, streams: false }
    }
}

/// Why a participant is no longer in its room.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// We closed it, or dropped the last handle.
    Closed,
    /// Another participant joined with our identity.
    DuplicateIdentity,
    /// Somebody with the room's admin grant removed us.
    Removed,
    /// The room was deleted.
    RoomDeleted,
    /// The room closed because nobody was left in it.
    RoomClosed,
    /// The server is shutting down.
    ServerShutdown,
    /// The connection was lost; the text says how.
    ConnectionLost(Arc<str>),
    /// The server ended the session for another reason, named as LiveKit names it.
    Server(Arc<str>),
    /// The connection was lost, and when it came back the token had expired.
    TokenExpired,
    /// The connection was lost, and the server did not let us in again; the text says why.
    Refused(Arc<str>),
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed"),
            Self::DuplicateIdentity => {
                f.write_str("another participant joined with the same identity; give each its own")
            }
            Self::Removed => f.write_str("removed from the room by its administrator"),
            Self::RoomDeleted => f.write_str("the room was deleted"),
            Self::RoomClosed => f.write_str("the room closed"),
            Self::ServerShutdown => f.write_str("the server is shutting down"),
            Self::ConnectionLost(how) => write!(f, "connection lost: {how}"),
            Self::Server(reason) => write!(f, "the server ended the session: {reason}"),
            Self::TokenExpired => f.write_str(
                "the connection was lost, and the token has expired meanwhile: join again with a new one, or give the \
                 room a source of tokens",
            ),
            Self::Refused(why) => write!(f, "the connection was lost, and no new join is possible: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attribute_that_its_owner_could_change_is_no_role() {
        let attributes = [(ROLE_ATTRIBUTE, "assistant")];
        let doubtful = Participant::new("a", "PA_1").attributes(attributes);
        assert_eq!(doubtful.token_role(), None);
        assert!(!doubtful.is_eligible_assistant());
        let vouched = doubtful.can_update_metadata(false);
        assert_eq!(vouched.token_role(), Some(Role::Assistant));
        assert!(vouched.is_eligible_assistant());
    }

    #[test]
    fn an_empty_destination_list_is_not_a_broadcast() {
        assert!(!Packet::new([], "x").is_addressed());
        assert!(Packet::broadcast("x").is_addressed());
    }
}
