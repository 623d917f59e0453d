//! Sets the sender of each data packet, and decides which participants receive it.

use std::collections::VecDeque;

use livekit_protocol::{DataPacket, data_packet, data_packet::Value, data_stream::header::ContentHeader};

use crate::transport::Lane;

/// The number of user-packet nonces that a room remembers, to drop duplicates.
const NONCES: usize = 100;

/// The sender of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender<'a> {
    pub(super) identity: &'a str,
    pub(super) sid: &'a str,
    pub(super) hidden: bool,
    pub(super) agent: bool,
}

/// Sets the sender and the kind of a packet. Returns whether to forward it.
pub(super) fn stamp(packet: &mut DataPacket, lane: Lane, sender: Sender<'_>) -> bool {
    let kind = match lane {
        Lane::Reliable => data_packet::Kind::Reliable,
        Lane::Lossy => data_packet::Kind::Lossy,
    };
    packet.set_kind(kind);
    packet.participant_sid = sender.sid.to_owned();
    // Agents may name another sender in chat and text streams only.
    let foreign = sender.agent
        && !packet.participant_identity.is_empty()
        && packet.participant_identity != sender.identity;
    let mut keeps_identity = false;
    let shown = if sender.hidden { ("", "") } else { (sender.identity, sender.sid) };
    match &mut packet.value {
        #[expect(deprecated, reason = "older clients read the sender and the destinations there")]
        Some(Value::User(user)) => {
            user.participant_identity = shown.0.to_owned();
            user.participant_sid = shown.1.to_owned();
            if packet.destination_identities.is_empty() {
                packet.destination_identities.clone_from(&user.destination_identities);
            } else {
                user.destination_identities.clone_from(&packet.destination_identities);
            }
        }
        Some(Value::ChatMessage(message)) if foreign => {
            message.generated = true;
            keeps_identity = true;
        }
        Some(Value::StreamHeader(header)) if foreign => {
            if let Some(ContentHeader::TextHeader(text)) = &mut header.content_header {
                text.generated = true;
                keeps_identity = true;
            }
        }
        Some(Value::Transcription(_)) if !sender.agent => return false,
        // Metrics are for the server, which does not use them.
        Some(Value::Metrics(_)) => return false,
        _ => {}
    }
    if !keeps_identity {
        packet.participant_identity = shown.0.to_owned();
    }
    true
}

/// Returns whether a packet is addressed to this participant. Without a destination it is addressed to all.
pub(super) fn is_for(packet: &DataPacket, identity: &str, sid: &str) -> bool {
    #[expect(deprecated, reason = "older clients name sids there")]
    let sids = match &packet.value {
        Some(Value::User(user)) => user.destination_sids.as_slice(),
        _ => &[],
    };
    let named = &packet.destination_identities;
    (named.is_empty() && sids.is_empty())
        || named.iter().any(|it| it == identity)
        || sids.iter().any(|it| it == sid)
}

/// The nonces of the last user packets in a room.
#[derive(Debug, Default)]
pub(super) struct Nonces(VecDeque<[u8; 16]>);

impl Nonces {
    /// Returns whether the packet is a duplicate, by its nonce.
    pub(super) fn is_repeated(&mut self, packet: &DataPacket) -> bool {
        let Some(Value::User(user)) = &packet.value else { return false };
        let Ok(nonce) = <[u8; 16]>::try_from(user.nonce.as_slice()) else { return false };
        if self.0.contains(&nonce) {
            return true;
        }
        if self.0.len() == NONCES {
            self.0.pop_front();
        }
        self.0.push_back(nonce);
        false
    }
}

#[cfg(test)]
mod tests {
    use livekit_protocol::{ChatMessage, MetricsBatch, Transcription, UserPacket};

    use super::*;

    const PHONE: Sender<'_> = Sender { identity: "phone", sid: "PA_1", hidden: false, agent: false };

    fn user() -> DataPacket {
        let value = Value::User(UserPacket { payload: b"hello".to_vec(), ..Default::default() });
        DataPacket { value: Some(value), ..Default::default() }
    }

    #[test]
    fn server_sets_the_sender_of_a_packet() {
        let mut packet = user();
        packet.participant_identity = "assistant".into();
        packet.participant_sid = "PA_9".into();
        packet.sequence = 7;
        assert!(stamp(&mut packet, Lane::Lossy, PHONE));
        assert_eq!((&*packet.participant_identity, &*packet.participant_sid), ("phone", "PA_1"));
        assert_eq!(packet.sequence, 7);
    }

    #[test]
    fn packet_of_a_hidden_participant_has_no_identity() {
        let mut packet = user();
        assert!(stamp(&mut packet, Lane::Reliable, Sender { hidden: true, ..PHONE }));
        assert_eq!(packet.participant_identity, "");
    }

    #[test]
    fn agent_may_name_another_sender_only_in_chat() {
        let agent = Sender { agent: true, ..PHONE };
        let chat = || DataPacket {
            participant_identity: "person".into(),
            value: Some(Value::ChatMessage(ChatMessage::default())),
            ..Default::default()
        };
        for (sender, named) in [(agent, "person"), (PHONE, "phone")] {
            let mut packet = chat();
            assert!(stamp(&mut packet, Lane::Reliable, sender));
            assert_eq!(packet.participant_identity, named);
        }
        let mut packet = user();
        packet.participant_identity = "person".into();
        assert!(stamp(&mut packet, Lane::Reliable, agent));
        assert_eq!(packet.participant_identity, "phone");
    }

    #[test]
    fn metrics_and_foreign_transcriptions_are_not_forwarded() {
        let metrics = Some(Value::Metrics(MetricsBatch::default()));
        assert!(!stamp(&mut DataPacket { value: metrics, ..Default::default() }, Lane::Lossy, PHONE));
        for (agent, passes) in [(true, true), (false, false)] {
            let value = Some(Value::Transcription(Transcription::default()));
            let mut packet = DataPacket { value, ..Default::default() };
            assert_eq!(stamp(&mut packet, Lane::Reliable, Sender { agent, ..PHONE }), passes);
        }
    }

    #[test]
    fn packet_is_addressed_to_its_destinations_or_to_all() {
        let mut packet = user();
        assert!(is_for(&packet, "phone", "PA_1"));
        packet.destination_identities = vec!["tablet".into()];
        assert!(is_for(&packet, "tablet", "PA_2") && !is_for(&packet, "phone", "PA_1"));
    }

    #[test]
    fn duplicate_nonce_is_detected_among_the_last_hundred() {
        let numbered = |n: u8| {
            let mut packet = user();
            if let Some(Value::User(user)) = &mut packet.value {
                user.nonce = vec![n; 16];
            }
            packet
        };
        let mut nonces = Nonces::default();
        assert!(!nonces.is_repeated(&user()) && !nonces.is_repeated(&user()));
        assert!(!nonces.is_repeated(&numbered(0)) && nonces.is_repeated(&numbered(0)));
        for n in 1..=100 {
            assert!(!nonces.is_repeated(&numbered(n)));
        }
        assert!(!nonces.is_repeated(&numbered(0)), "the oldest is forgotten");
    }
}
