//! A data packet on its way through the server: who it is from is said by the server, never by its sender.

use std::collections::VecDeque;

use livekit_protocol::{DataPacket, data_packet, data_packet::Value, data_stream::header::ContentHeader};

use toolbridge::transport::Lane;

/// How many nonces of user packets a room remembers: a packet that has one of them came already.
const NONCES: usize = 100;

/// Who sent a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender<'a> {
    pub(super) identity: &'a str,
    pub(super) sid: &'a str,
    pub(super) hidden: bool,
    pub(super) agent: bool,
}

/// Stamps a packet with its sender and its lane. Whether it goes to others at all.
pub(super) fn stamp(packet: &mut DataPacket, lane: Lane, sender: Sender<'_>) -> bool {
    let kind = match lane {
        Lane::Reliable => data_packet::Kind::Reliable,
        Lane::Lossy => data_packet::Kind::Lossy,
    };
    packet.set_kind(kind);
    packet.participant_sid = sender.sid.to_owned();
    // Agents speak for others in what they write, and nowhere else.
    let foreign = sender.agent
        && !packet.participant_identity.is_empty()
        && packet.participant_identity != sender.identity;
    let mut keeps_identity = false;
    let shown = if sender.hidden { ("", "") } else { (sender.identity, sender.sid) };
    match &mut packet.value {
        #[expect(deprecated, reason = "older clients read sender and destinations there")]
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
        // It is for the server, which has no use for it.
        Some(Value::Metrics(_)) => return false,
        _ => {}
    }
    if !keeps_identity {
        packet.participant_identity = shown.0.to_owned();
    }
    true
}

/// Whether a packet is meant for this participant. Without a destination it is for everybody.
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

/// The nonces of a room's last user packets.
#[derive(Debug, Default)]
pub(super) struct Nonces(VecDeque<[u8; 16]>);

impl Nonces {
    /// Whether a packet came already. One without a nonce never did.
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
    fn the_server_says_who_a_packet_is_from() {
        let mut packet = user();
        packet.participant_identity = "assistant".into();
        packet.participant_sid = "PA_9".into();
        packet.sequence = 7;
        assert!(stamp(&mut packet, Lane::Lossy, PHONE));
        assert_eq!((&*packet.participant_identity, &*packet.participant_sid), ("phone", "PA_1"));
        assert_eq!(packet.sequence, 7);
    }

    #[test]
    fn somebody_hidden_has_no_name() {
        let mut packet = user();
        assert!(stamp(&mut packet, Lane::Reliable, Sender { hidden: true, ..PHONE }));
        assert_eq!(packet.participant_identity, "");
    }

    #[test]
    fn an_agent_may_speak_for_somebody_else_in_chat_and_in_nothing_else() {
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
    fn what_is_not_for_others_stays() {
        let metrics = Some(Value::Metrics(MetricsBatch::default()));
        assert!(!stamp(&mut DataPacket { value: metrics, ..Default::default() }, Lane::Lossy, PHONE));
        for (agent, passes) in [(true, true), (false, false)] {
            let value = Some(Value::Transcription(Transcription::default()));
            let mut packet = DataPacket { value, ..Default::default() };
            assert_eq!(stamp(&mut packet, Lane::Reliable, Sender { agent, ..PHONE }), passes);
        }
    }

    #[test]
    fn a_packet_is_for_those_named_or_for_all() {
        let mut packet = user();
        assert!(is_for(&packet, "phone", "PA_1"));
        packet.destination_identities = vec!["tablet".into()];
        assert!(is_for(&packet, "tablet", "PA_2") && !is_for(&packet, "phone", "PA_1"));
    }

    #[test]
    fn a_nonce_counts_once_and_a_hundred_are_remembered() {
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
