//! A toolbridge transport over a room of the official LiveKit SDK.

use std::{future::Future, sync::Arc};

use livekit::{
    DataPacket, DataPacketKind, DisconnectReason, Room, RoomEvent,
    participant::{Participant::Remote, ParticipantKind, RemoteParticipant},
};
use tokio::sync::mpsc::UnboundedReceiver;
use toolbridge::{
    CloseReason, ConnectionState,
    transport::{Incoming, Lane, Packet, Participant, Peer, SendError, Transport, TransportEvent},
};

/// A room that the app also uses for audio: `close` leaves the room open.
pub struct SdkTransport {
    events: UnboundedReceiver<RoomEvent>,
    room: Arc<Room>,
}

impl SdkTransport {
    /// Subscribes at once, so that no participant that joins is missed.
    pub fn new(room: Arc<Room>) -> Self {
        Self { events: room.subscribe(), room }
    }
}

impl Transport for SdkTransport {
    fn local(&self) -> Participant {
        let me = self.room.local_participant();
        Participant::new(me.identity().as_str(), me.sid().as_str())
    }

    fn room(&self) -> String {
        self.room.name()
    }

    fn present(&self) -> Vec<Participant> {
        self.room.remote_participants().values().map(described).collect()
    }

    fn send(&self, packet: Packet) -> impl Future<Output = Result<(), SendError>> + Send + 'static {
        let me = self.room.local_participant();
        async move {
            if !packet.is_addressed() {
                return Err(SendError::NoDestination); // the SDK would send it to the whole room
            }
            let data = DataPacket {
                payload: packet.payload.into(),
                topic: Some(packet.topic.into()),
                reliable: packet.lane == Lane::Reliable,
                destination_identities: packet.to.iter().map(|to| to.as_str().to_owned().into()).collect(),
            };
            me.publish_data(data).await.map_err(SendError::new)
        }
    }

    async fn recv(&mut self) -> Option<TransportEvent> {
        loop {
            return Some(match self.events.recv().await? {
                // The SDK does not name a sender that is not announced yet. Its session retransmits the frame.
                RoomEvent::DataReceived { payload, topic, kind, participant: Some(from) } => {
                    let payload = Arc::unwrap_or_clone(payload);
                    let topic = topic.unwrap_or_default();
                    TransportEvent::Packet(Incoming::new(peer(&from), lane(kind), topic, payload))
                }
                // A participant can receive packets only once it is active, not when it is connected.
                RoomEvent::ParticipantActive(who)
                | RoomEvent::ParticipantAttributesChanged { participant: Remote(who), .. }
                | RoomEvent::ParticipantPermissionChanged { participant: Remote(who), .. } => {
                    TransportEvent::Joined(described(&who))
                }
                RoomEvent::ParticipantDisconnected(who) => TransportEvent::Left(peer(&who)),
                RoomEvent::Reconnecting => TransportEvent::ConnectionState(ConnectionState::Reconnecting),
                RoomEvent::Reconnected => TransportEvent::ConnectionState(ConnectionState::Connected),
                RoomEvent::Disconnected { reason } => TransportEvent::Closed(why(reason)),
                _ => continue,
            });
        }
    }
}

fn peer(who: &RemoteParticipant) -> Peer {
    Peer::new(who.identity().as_str(), who.sid().as_str())
}

fn described(who: &RemoteParticipant) -> Participant {
    Participant::new(who.identity().as_str(), who.sid().as_str())
        .kind(match who.kind() {
            ParticipantKind::Standard => toolbridge::transport::ParticipantKind::Standard,
            ParticipantKind::Agent => toolbridge::transport::ParticipantKind::Agent,
            _ => toolbridge::transport::ParticipantKind::Other,
        })
        .attributes(who.attributes())
        // Attributes that a participant may change itself are not trusted.
        .can_update_metadata(who.permission().is_none_or(|may| may.can_update_metadata))
}

fn lane(kind: DataPacketKind) -> Lane {
    match kind {
        DataPacketKind::Reliable => Lane::Reliable,
        DataPacketKind::Lossy => Lane::Lossy,
    }
}

fn why(reason: DisconnectReason) -> CloseReason {
    match reason {
        DisconnectReason::ClientInitiated => CloseReason::Closed,
        DisconnectReason::DuplicateIdentity => CloseReason::DuplicateIdentity,
        DisconnectReason::ParticipantRemoved => CloseReason::Removed,
        DisconnectReason::RoomDeleted => CloseReason::RoomDeleted,
        DisconnectReason::RoomClosed => CloseReason::RoomClosed,
        DisconnectReason::ServerShutdown => CloseReason::ServerShutdown,
        other => CloseReason::Server(other.as_str_name().into()),
    }
}
