//! Defines the types that a transport and a [`Session`](crate::session::Session) exchange: participants, packets and
//! their limits.
//!
//! They are plain data and need no async runtime.

use std::{borrow::Borrow, borrow::Cow, collections::BTreeMap, fmt, sync::Arc};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

mod rpc;
mod stream;
mod stream_assembler;
mod stream_hash;

pub use rpc::{RPC_REQUEST_TOPIC, RPC_RESPONSE_TOPIC, RpcError, RpcMessage, RpcRequest, RpcResponse};
pub use stream::{
    Compression, STREAM_CHUNK, STREAM_TOPIC, StreamHeader, StreamKind, StreamPart, StreamParts, TextStream,
};
#[cfg(feature = "record")]
pub(crate) use stream_assembler::BrokenStream;
pub use stream_assembler::StreamAssembler;
pub(crate) use stream_hash::PayloadHash;
pub use stream_hash::STREAM_SHA256;

/// Counts the comparisons of identities, sids and call ids on this thread. Tests use it to measure the cost of a lookup
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

    /// Returns the number of comparisons that `work` makes.
    pub(crate) fn of(work: impl FnOnce()) -> u64 {
        let before = COUNT.get();
        work();
        COUNT.get() - before
    }
}

/// The topic of the data packets that carry frames (`wire.md`, section 5.9).
pub const TOPIC: &str = "toolbridge";

/// The participant attribute that holds the role: `assistant`, `client` or `observer`.
pub const ROLE_ATTRIBUTE: &str = "toolbridge.role";

macro_rules! text_newtype {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Eq, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        // Not derived, so that unit tests can count comparisons.
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
            /// Returns the text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
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
    /// A participant's identity. It is set in the token and unique in a room at any time.
    Identity
}

text_newtype! {
    /// A participant's session id. LiveKit assigns a new one at each join.
    Sid
}

impl Sid {
    /// Returns true if the transport does not report it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// An identity together with its sid: one participant during one join.
///
/// The same identity with another sid is a different peer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    identity: Identity,
    sid: Sid,
}

impl Peer {
    /// Creates a peer. The sid is empty if the transport does not report it.
    pub fn new(identity: impl Into<Identity>, sid: impl Into<Sid>) -> Self {
        Self { identity: identity.into(), sid: sid.into() }
    }

    /// Returns the identity.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the sid.
    pub fn sid(&self) -> &Sid {
        &self.sid
    }
}

impl Peer {
    /// Creates a sender; none if the identity is empty, which means that it is not disclosed.
    #[cfg(any(feature = "livekit", feature = "record"))]
    pub(crate) fn disclosed(identity: impl Into<Identity>, sid: impl Into<Sid>) -> Option<Self> {
        let peer = Self::new(identity, sid);
        (!peer.identity.as_str().is_empty()).then_some(peer)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.identity, self.sid)
    }
}

/// A participant as the server describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Participant {
    peer: Peer,
    kind: ParticipantKind,
    attributes: BTreeMap<String, String>,
    can_update_metadata: bool,
    can_publish_data: bool,
    is_admitted: bool,
    may_stop: bool,
    client_protocol: u32,
    inflates: bool,
}

impl Participant {
    /// Creates a participant of the standard kind, without attributes. It may change its attributes, so they are not
    /// trusted.
    pub fn new(identity: impl Into<Identity>, sid: impl Into<Sid>) -> Self {
        Self {
            peer: Peer::new(identity, sid),
            kind: ParticipantKind::Standard,
            attributes: BTreeMap::new(),
            can_update_metadata: true,
            can_publish_data: true,
            is_admitted: false,
            may_stop: false,
            client_protocol: 0,
            inflates: false,
        }
    }

    /// Sets LiveKit's participant kind to `AGENT` or `STANDARD`. Only a token can set it. Default: `STANDARD`.
    #[must_use]
    pub fn agent(self, agent: bool) -> Self {
        self.kind(if agent { ParticipantKind::Agent } else { ParticipantKind::Standard })
    }

    /// Sets LiveKit's participant kind. Only a token or the server can set it. Default: `STANDARD`.
    #[must_use]
    pub fn kind(mut self, kind: ParticipantKind) -> Self {
        self.kind = kind;
        self
    }

    /// Sets its attributes. Default: none.
    #[must_use]
    pub fn attributes<K: Into<String>, V: Into<String>>(
        mut self,
        attributes: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.attributes.clear();
        self.attributes.extend(attributes.into_iter().map(|(key, value)| (key.into(), value.into())));
        self
    }

    /// Sets whether it may change its own attributes. Default: yes; its attributes are then not trusted.
    #[must_use]
    pub fn can_update_metadata(mut self, may: bool) -> Self {
        self.can_update_metadata = may;
        self
    }

    /// Sets whether its token lets it publish data. Default: yes. A client without that permission runs no calls, because
    /// its results would not arrive.
    #[must_use]
    pub fn can_publish_data(mut self, may: bool) -> Self {
        self.can_publish_data = may;
        self
    }

    /// Sets the role as a token does: as an attribute that the participant cannot change. Replaces all attributes.
    #[must_use]
    pub fn role(self, role: Role) -> Self {
        self.attributes([(ROLE_ATTRIBUTE, role.as_str())]).can_update_metadata(false)
    }

    /// Sets whether the local participant, an assistant, admits it as a client whatever its token says. Default: no.
    ///
    /// The driver of a [`Session`](crate::session::Session) decides this by its own rule; a transport does not set it.
    #[must_use]
    pub fn admitted(mut self, is_admitted: bool) -> Self {
        self.is_admitted = is_admitted;
        self
    }

    /// Sets whether it may stop calls of the local participant, an assistant. Default: no.
    ///
    /// The driver of a [`Session`](crate::session::Session) decides this by its own rule; a transport does not set it.
    #[must_use]
    pub fn allowed_to_stop(mut self, may_stop: bool) -> Self {
        self.may_stop = may_stop;
        self
    }

    /// Sets LiveKit's client protocol, which its SDK announces: 1 reads RPC in streams of text, 2 also reads streams whose
    /// content is in the header. Default: 0.
    #[must_use]
    pub fn client_protocol(mut self, protocol: u32) -> Self {
        self.client_protocol = protocol;
        self
    }

    /// Sets whether its SDK announces that it reads compressed streams. Default: no.
    #[must_use]
    pub fn inflates(mut self, inflates: bool) -> Self {
        self.inflates = inflates;
        self
    }

    /// Returns identity and sid.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Returns the identity.
    pub fn identity(&self) -> &Identity {
        &self.peer.identity
    }

    /// Returns the sid.
    pub fn sid(&self) -> &Sid {
        &self.peer.sid
    }

    /// Returns true if its kind is `AGENT`.
    pub fn is_agent(&self) -> bool {
        self.kind == ParticipantKind::Agent
    }

    /// Returns true if its kind is `STANDARD`: an app, not an agent, egress, ingress or SIP participant.
    pub fn is_standard(&self) -> bool {
        self.kind == ParticipantKind::Standard
    }

    /// Returns the value of an attribute, trusted or not.
    pub fn attribute(&self, key: &str) -> Option<&str> {
        self.attributes.get(key).map(String::as_str)
    }

    /// Iterates over its attributes, trusted or not, in the order of their names.
    pub fn all_attributes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.attributes.iter().map(|(key, value)| (&**key, &**value))
    }

    /// Returns the approximate memory use of its attributes, in bytes.
    #[cfg(feature = "livekit")]
    pub(crate) fn attribute_bytes(&self) -> usize {
        /// The overhead of one attribute, in bytes: map entry, two strings and the allocator.
        const OVERHEAD: usize = 80;
        self.attributes.iter().map(|(key, value)| OVERHEAD + key.len() + value.len()).sum()
    }

    /// Returns true if it may change its own attributes.
    pub fn may_update_metadata(&self) -> bool {
        self.can_update_metadata
    }

    /// Returns true if its token lets it publish data, as far as the transport knows.
    pub fn may_publish_data(&self) -> bool {
        self.can_publish_data
    }

    /// Returns true if the local participant's own rule admits it.
    pub fn is_admitted(&self) -> bool {
        self.is_admitted
    }

    /// Returns true if it may stop calls of the local participant.
    pub fn may_stop(&self) -> bool {
        self.may_stop
    }

    /// Returns the client protocol that its SDK announces.
    pub fn protocol(&self) -> u32 {
        self.client_protocol
    }

    /// Returns true if its SDK reads compressed streams.
    pub fn can_inflate(&self) -> bool {
        self.inflates
    }

    /// Returns the role set by its token, or `None` if it has none or could have set it by itself.
    pub fn token_role(&self) -> Option<Role> {
        if self.can_update_metadata {
            return None;
        }
        self.attribute(ROLE_ATTRIBUTE).and_then(Role::from_text)
    }

    /// Returns the role that wins over its kind, or the attribute's value if that is no role: one that its token sets, and
    /// of an agent also one that it has set itself, since that can only limit what its kind gives.
    pub(crate) fn stated_role(&self) -> Option<Result<Role, &str>> {
        let value =
            self.attribute(ROLE_ATTRIBUTE).filter(|_| self.is_agent() || !self.can_update_metadata)?;
        Some(Role::from_text(value).ok_or(value))
    }

    /// Returns the value of the stated role if it is none of the roles.
    pub(crate) fn unknown_role(&self) -> Option<&str> {
        self.stated_role()?.err()
    }

    /// Returns true if it can be an assistant: its token sets the role `assistant`, or its kind is `AGENT` and it has no
    /// other role.
    ///
    /// A role wins over the kind: an agent with the role `observer` or `client`, or with a value that is no role, is not an
    /// assistant.
    pub fn is_eligible_assistant(&self) -> bool {
        match self.stated_role() {
            Some(role) => role == Ok(Role::Assistant),
            None => self.is_agent(),
        }
    }
}

/// LiveKit's participant kinds, as far as toolbridge distinguishes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ParticipantKind {
    /// An app (`STANDARD`).
    #[default]
    Standard,
    /// An agent (`AGENT`). It can be an assistant, unless it has another role.
    Agent,
    /// Any other kind: egress, ingress, SIP, connector or bridge.
    Other,
}

/// The role that a participant's token sets in the attribute [`ROLE_ATTRIBUTE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Calls tools.
    Assistant,
    /// Offers tools.
    Client,
    /// Receives a copy of every call, and takes part in none.
    Observer,
}

impl Role {
    /// Returns the attribute's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Assistant => "assistant",
            Self::Client => "client",
            Self::Observer => "observer",
        }
    }

    /// Parses the attribute's value.
    pub fn from_text(text: &str) -> Option<Self> {
        [Self::Assistant, Self::Client, Self::Observer].into_iter().find(|role| role.as_str() == text)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The LiveKit data channel that carries a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Ordered and retransmitted, as long as the connection lasts.
    #[default]
    Reliable,
    /// Unordered and not retransmitted.
    Lossy,
}

/// An outgoing data packet.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Packet {
    /// Identifies the packet when the session is notified that it could not be sent (`Session::handle_send_failed`).
    pub id: u64,
    /// The destination identities. Empty only in a broadcast, because LiveKit sends a packet without destinations to the
    /// whole room.
    pub to: Vec<Identity>,
    /// The topic; [`TOPIC`] for frames.
    pub topic: Cow<'static, str>,
    /// The lane. Default: [`Lane::Reliable`].
    pub lane: Lane,
    /// The payload. A payload larger than [`Capabilities::max_packet`] is sent as a byte stream if the transport has them.
    pub payload: Bytes,
    /// True if the packet may be sent between the parts of larger packets queued before it. Default: false.
    pub overtakes: bool,
    /// The id of the byte stream, if the packet needs one. Default: derived from `id`.
    pub stream: Option<Arc<str>>,
    /// How it is sent. Default: [`Form::Data`].
    pub form: Form,
    broadcast: bool,
}

/// How a packet is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Form {
    /// As data on a topic, or as a byte stream if it is too large for one packet.
    #[default]
    Data,
    /// As a message of LiveKit's RPC. The packet has no payload of its own.
    Rpc(RpcMessage),
    /// As a stream of text on the packet's topic.
    Text(TextStream),
}

impl Packet {
    /// Creates a reliable packet to these identities on the topic [`TOPIC`].
    pub fn new(to: impl IntoIterator<Item = Identity>, payload: impl Into<Bytes>) -> Self {
        Self {
            id: 0,
            to: to.into_iter().collect(),
            topic: Cow::Borrowed(TOPIC),
            lane: Lane::Reliable,
            payload: payload.into(),
            overtakes: false,
            stream: None,
            form: Form::Data,
            broadcast: false,
        }
    }

    /// Creates a reliable packet to the whole room, including hidden participants.
    pub fn broadcast(payload: impl Into<Bytes>) -> Self {
        Self { broadcast: true, ..Self::new([], payload) }
    }

    /// Creates a reliable packet with a message of LiveKit's RPC.
    pub fn rpc(to: Identity, message: RpcMessage) -> Self {
        Self { form: Form::Rpc(message), topic: Cow::Borrowed(""), ..Self::new([to], Bytes::new()) }
    }

    /// Creates a reliable packet that is sent as a stream of text.
    pub fn text(
        to: Identity,
        topic: impl Into<Cow<'static, str>>,
        payload: impl Into<Bytes>,
        stream: TextStream,
    ) -> Self {
        Self { form: Form::Text(stream), topic: topic.into(), ..Self::new([to], payload) }
    }

    /// Returns the number of bytes that it carries.
    pub fn size(&self) -> usize {
        match &self.form {
            Form::Rpc(message) => message.size(),
            Form::Data | Form::Text(_) => self.payload.len(),
        }
    }

    /// Returns true if it is sent as a stream by a transport whose packets carry this many bytes.
    pub fn is_streamed(&self, max_packet: usize) -> bool {
        match &self.form {
            Form::Data => self.payload.len() > max_packet,
            Form::Rpc(_) => false,
            Form::Text(_) => true,
        }
    }

    /// Returns true if the packet is a broadcast to the whole room.
    pub fn is_broadcast(&self) -> bool {
        self.broadcast
    }

    /// Returns the id of the byte stream that carries the packet if it is too large to be sent as one.
    pub fn stream_id(&self) -> Arc<str> {
        self.stream.clone().unwrap_or_else(|| format!("frame-{}", self.id).into())
    }

    /// Returns true if the packet has a destination or is a broadcast.
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
            .field("bytes", &self.size())
            .field("form", &self.form)
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

/// The capabilities of a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The largest payload of one packet, in bytes. Default: [`Capabilities::MAX_PACKET`].
    pub max_packet: usize,
    /// True if [`Lane::Lossy`] exists. Default: false.
    pub lossy: bool,
    /// True if larger reliable packets are sent as byte streams ([`StreamParts`]). Default: false.
    pub streams: bool,
    /// True if packets cross a network, so that it is worth to compress large frames. Default: false.
    pub compress: bool,
    /// By how many bytes each packet becomes larger on its way, in addition to LiveKit's envelope: 44 if it is encrypted end to
    /// end. Default: 0.
    pub overhead: usize,
}

impl Capabilities {
    /// The default of [`max_packet`](Self::max_packet), in bytes. LiveKit recommends at most 15 KiB for a reliable packet with
    /// its envelope, and byte streams above that.
    pub const MAX_PACKET: usize = 15_000;
}

impl Default for Capabilities {
    fn default() -> Self {
        Self { max_packet: Self::MAX_PACKET, lossy: false, streams: false, compress: false, overhead: 0 }
    }
}

/// The reason why a participant's connection to its room ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// The application closed the connection or dropped its last handle.
    Closed,
    /// Another participant joined with the same identity.
    DuplicateIdentity,
    /// A participant or service with the `roomAdmin` grant removed the local participant.
    Removed,
    /// The room was deleted.
    RoomDeleted,
    /// The room closed because it was empty.
    RoomClosed,
    /// The server is shutting down.
    ServerShutdown,
    /// The connection was lost. The text describes the cause.
    ConnectionLost(Arc<str>),
    /// The server ended the session. The text is LiveKit's disconnect reason.
    Server(Arc<str>),
    /// The connection was lost, and the token expired before the rejoin.
    TokenExpired,
    /// The connection was lost, and the server refused the rejoin. The text describes the cause.
    Refused(Arc<str>),
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed"),
            Self::DuplicateIdentity => {
                f.write_str("another participant joined with the same identity; use a unique identity for each participant")
            }
            Self::Removed => f.write_str("removed from the room by an administrator"),
            Self::RoomDeleted => f.write_str("the room was deleted"),
            Self::RoomClosed => f.write_str("the room closed"),
            Self::ServerShutdown => f.write_str("the server is shutting down"),
            Self::ConnectionLost(how) => write!(f, "connection lost: {how}"),
            Self::Server(reason) => write!(f, "the server ended the session: {reason}"),
            Self::TokenExpired => f.write_str(
                "the connection was lost and the token has expired; join again with a new token, or set a token source \
                 (`ConnectOptions::token_source`)",
            ),
            Self::Refused(why) => write!(f, "the connection was lost and rejoining failed: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn role_attribute_that_its_owner_can_change_is_ignored() {
        let attributes = [(ROLE_ATTRIBUTE, "assistant")];
        let doubtful = Participant::new("a", "PA_1").attributes(attributes);
        assert_eq!(doubtful.token_role(), None);
        assert!(!doubtful.is_eligible_assistant());
        let vouched = doubtful.can_update_metadata(false);
        assert_eq!(vouched.token_role(), Some(Role::Assistant));
        assert!(vouched.is_eligible_assistant());
    }

    #[test]
    fn role_of_an_agent_wins_over_its_kind() {
        let agent = || Participant::new("a", "PA_1").agent(true);
        for may_change in [false, true] {
            let of = |role| agent().attributes([(ROLE_ATTRIBUTE, role)]).can_update_metadata(may_change);
            for other in ["observer", "client", "admin", "Assistant", ""] {
                assert!(!of(other).is_eligible_assistant(), "{other:?} {may_change}");
                assert_eq!(of(other).unknown_role().is_some(), Role::from_text(other).is_none());
            }
            assert!(of("assistant").is_eligible_assistant());
            assert!(agent().can_update_metadata(may_change).is_eligible_assistant(), "its kind alone");
        }
        let other = Participant::new("sip", "PA_1").kind(ParticipantKind::Other).can_update_metadata(false);
        assert!(!other.is_eligible_assistant());
        assert!(other.role(Role::Assistant).is_eligible_assistant());
    }

    #[test]
    fn packet_without_destinations_is_not_a_broadcast() {
        assert!(!Packet::new([], "x").is_addressed());
        assert!(Packet::broadcast("x").is_addressed());
    }
}
