//! Routes packets to participants.

use livekit_protocol::{DataPacket, participant_info::State};
use prost::Message as _;

use super::{Key, Output, Participant, PeerId, Rooms};
use crate::dev_server::{grant, packet};
use crate::transport::Lane;

/// The maximum size of a message, in bytes: livekit-server closes the channel after a larger one.
const MAX_MESSAGE: usize = 65_535;

impl Rooms {
    /// Both data channels of a peer connection are open. If the participant receives on it, the packets held for it are sent.
    pub(in crate::dev_server) fn handle_open(&mut self, peer: PeerId) {
        let Some(participant) = self.participant_mut(peer.0).filter(|it| it.receives_on == peer.1) else {
            return;
        };
        participant.open = true;
        let held = participant.take_held();
        self.outputs.extend(held.into_iter().map(|packet| Output::Data(peer, Lane::Reliable, packet)));
    }

    /// Handles a message of a participant. Messages that are not allowed are dropped silently.
    pub(in crate::dev_server) fn handle_message(&mut self, key: Key, lane: Lane, message: &[u8]) {
        if lane == Lane::Reliable && self.faults.drop_reliable > 0 {
            self.faults.drop_reliable -= 1;
            return tracing::debug!("a packet was dropped by an injected fault");
        }
        let Some(sender) = self.participant_mut(key) else { return };
        if !grant::can_publish_data(&sender.claims.video) || message.len() > MAX_MESSAGE {
            tracing::debug!(identity = sender.identity(), size = message.len(), "a message was dropped");
            return;
        }
        let Ok(mut packet) = DataPacket::decode(message) else {
            return tracing::debug!(identity = sender.identity(), "a message was not a data packet");
        };
        if lane == Lane::Reliable && packet.sequence > 0 {
            if packet.sequence <= sender.last_sequence {
                return tracing::debug!(sequence = packet.sequence, "a duplicate packet was dropped");
            }
            sender.last_sequence = packet.sequence;
        }
        tracing::trace!(
            identity = sender.identity(),
            ?lane,
            sequence = packet.sequence,
            "a packet was received"
        );
        if packet::stamp(&mut packet, lane, sender.sender()) {
            if self.faults.reset_sequences {
                packet.sequence = 1;
            }
            self.forward(Some(key), lane, &packet, None);
        }
    }

    /// Sends a packet to its recipients. `room` names the room of a packet without a sender.
    pub(super) fn forward(&mut self, from: Option<Key>, lane: Lane, packet: &DataPacket, room: Option<&str>) {
        let room = room.or_else(|| Some(self.locations.get(&from?)?.room.as_str()));
        let Some(room) = room.and_then(|name| self.rooms.get_mut(name)) else { return };
        if room.nonces.is_repeated(packet) {
            return tracing::debug!("a packet with a duplicate nonce was dropped");
        }
        let mut encoded = None;
        for participant in room.participants.values_mut() {
            let receives = Some(participant.key) != from
                && packet::is_for(packet, participant.identity(), &participant.sid)
                && is_ready(participant, lane, packet.sequence);
            if !receives {
                continue;
            }
            let bytes = encoded.get_or_insert_with(|| packet.encode_to_vec()).clone();
            if participant.open {
                let peer = (participant.key, participant.receives_on);
                self.outputs.push_back(Output::Data(peer, lane, bytes));
            } else {
                participant.hold(bytes);
            }
        }
    }
}

/// Returns whether a participant gets a packet. While it is joining, only packets with a sequence are held for it.
fn is_ready(participant: &Participant, lane: Lane, sequence: u32) -> bool {
    match lane {
        Lane::Reliable if sequence > 0 => true,
        _ => participant.open && participant.state == State::Active,
    }
}
