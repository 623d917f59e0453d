//! Limits what strangers, which are participants without rights, add to a recording.
//!
//! A stranger's packets are recorded as they were received: nothing in them is expanded. Beyond a limit they are left out,
//! and so are packets to it, which it causes. [`RoomEvent::LeftOut`] counts them.

use std::collections::{HashMap, HashSet};

use super::{
    Direction, LeftOutLimit, RecorderOptions, RoomEvent,
    queue::{Content, Item, QueuedPacket},
};
use crate::{
    protocol::frame::{Frame, Kind},
    transport::{Identity, Peer, Sid},
};

/// What a record takes in addition to what its packet has, at most, in bytes: its head, and the placeholder or the fields of a
/// frame of RPC.
pub(super) const RECORD_BYTES: usize = 256;

/// How many strangers have a limit each. A room has fewer participants; further ones share one limit.
const MAX_SENDERS: usize = 1_024;

/// How many joins of strangers are recorded: each has up to eight of the 4,096 channels of a file, and others need theirs.
const MAX_JOINS: usize = 256;

/// How many participants are remembered as greeted or called. A room has fewer.
const MAX_NAMED: usize = 16_384;

/// The strangers of a recording, and the participants that are none.
#[derive(Debug)]
pub(super) struct Strangers {
    limit_of_each: usize,
    limit_of_all: usize,
    /// Participants whose token gives them rights, with their joins.
    by_token: HashMap<Identity, Sid>,
    /// Participants that the recorded one has greeted or called, or whose calls by RPC it answers: it gives them rights.
    named: HashSet<Identity>,
    senders: HashMap<Identity, Account>,
    /// Senders that the room does not disclose, and strangers beyond [`MAX_SENDERS`].
    others: Account,
    /// The joins that packets in the file come from.
    joins: HashSet<Peer>,
    recorded: usize,
}

/// What one stranger has added to the file.
#[derive(Debug, Default)]
struct Account {
    recorded: usize,
    /// The limit that it has reached. The recorder never takes its packets again: otherwise a reader could not tell which are
    /// missing.
    reached: Option<(LeftOutLimit, usize)>,
    packets: u64,
    bytes: u64,
    /// How many packets the last event has counted.
    said: u64,
}

impl Strangers {
    pub(super) fn new(options: &RecorderOptions) -> Self {
        Self {
            limit_of_each: options.stranger_bytes,
            limit_of_all: options.strangers_bytes,
            by_token: HashMap::new(),
            named: HashSet::new(),
            senders: HashMap::new(),
            others: Account::default(),
            joins: HashSet::new(),
            recorded: 0,
        }
    }

    /// Returns the item if it is recorded. Otherwise the inner value is an event to record in its place: the first time, and
    /// whenever the number of packets that were left out has doubled, so that the events have a limit, too.
    pub(super) fn admit(&mut self, item: Item) -> Result<Item, Option<RoomEvent>> {
        match item {
            Item::Event(at, event) => {
                self.learn(&event);
                Ok(Item::Event(at, event))
            }
            Item::Packet(at, mut packet) => {
                let Some(stranger) = self.stranger_of(&packet) else { return Ok(Item::Packet(at, packet)) };
                packet.is_strangers = true;
                let join = packet.from.as_ref().filter(|_| packet.direction == Direction::Heard);
                self.charge(stranger.as_ref(), join, packet.content.size())?;
                Ok(Item::Packet(at, packet))
            }
            unsent @ Item::Unsent(..) => Ok(unsent),
        }
    }

    /// Returns the events with the final counts, as far as the last ones lack them.
    pub(super) fn unsaid(&mut self) -> Vec<RoomEvent> {
        let mut events: Vec<_> = self.senders.iter_mut().filter_map(|(id, it)| it.say(Some(id))).collect();
        events.extend(self.others.say(None));
        events
    }

    fn learn(&mut self, event: &RoomEvent) {
        match event {
            RoomEvent::Joined { identity, sid, .. } => {
                if event.rights().is_some_and(|(_, has_rights)| has_rights) {
                    self.by_token.insert(identity.clone(), sid.clone());
                } else {
                    self.by_token.remove(identity);
                }
            }
            RoomEvent::Left { identity, sid } if self.by_token.get(identity) == Some(sid) => {
                self.by_token.remove(identity);
            }
            RoomEvent::AnswersRpc { assistant, callers, .. } => {
                assistant.iter().chain(callers).for_each(|id| self.name(id));
            }
            _ => {}
        }
    }

    /// Returns the stranger that a packet is of or to: the inner value is none for a sender that the room does not disclose.
    fn stranger_of(&mut self, packet: &QueuedPacket) -> Option<Option<Identity>> {
        match (packet.direction, &packet.from) {
            (Direction::Heard, None) => Some(None),
            (Direction::Heard, Some(from)) => (!self.has_rights(from)).then(|| Some(from.identity().clone())),
            (Direction::Sent, _) => {
                let first = packet.to.first()?;
                if packet.to.iter().any(|to| self.named.contains(to) || self.by_token.contains_key(to)) {
                    return None;
                }
                if is_greeting_or_call(&packet.content) {
                    packet.to.iter().for_each(|to| self.name(to));
                    return None;
                }
                Some(Some(first.clone()))
            }
        }
    }

    fn has_rights(&self, peer: &Peer) -> bool {
        self.named.contains(peer.identity()) || self.by_token.get(peer.identity()) == Some(peer.sid())
    }

    fn name(&mut self, id: &Identity) {
        if self.named.len() < MAX_NAMED {
            self.named.insert(id.clone());
        }
    }

    fn charge(
        &mut self,
        stranger: Option<&Identity>,
        join: Option<&Peer>,
        bytes: usize,
    ) -> Result<(), Option<RoomEvent>> {
        let known = stranger.filter(|id| self.senders.contains_key(*id) || self.senders.len() < MAX_SENDERS);
        let account = match known {
            Some(id) => self.senders.entry(id.clone()).or_default(),
            None => &mut self.others,
        };
        let takes = bytes.saturating_add(RECORD_BYTES);
        if account.reached.is_none() {
            if account.recorded.saturating_add(takes) > self.limit_of_each {
                account.reached = Some((LeftOutLimit::Sender, self.limit_of_each));
            } else if self.recorded.saturating_add(takes) > self.limit_of_all {
                account.reached = Some((LeftOutLimit::File, self.limit_of_all));
            } else if self.joins.len() >= MAX_JOINS && join.is_some_and(|join| !self.joins.contains(join)) {
                account.reached = Some((LeftOutLimit::Joins, MAX_JOINS));
            } else {
                self.joins.extend(join.cloned());
                account.recorded += takes;
                self.recorded += takes;
                return Ok(());
            }
        }
        account.packets += 1;
        account.bytes = account.bytes.saturating_add(bytes as u64);
        Err(if account.packets.is_power_of_two() { account.say(known) } else { None })
    }
}

impl Account {
    /// Returns the event with its counts, unless the last one has them.
    fn say(&mut self, identity: Option<&Identity>) -> Option<RoomEvent> {
        let (limit, most) = self.reached?;
        (self.said != self.packets).then(|| {
            self.said = self.packets;
            RoomEvent::LeftOut {
                identity: identity.cloned(),
                packets: self.packets,
                bytes: self.bytes,
                limit,
                most: most as u64,
            }
        })
    }
}

/// Whether a packet is a handshake or a request, which participants send to those with rights only.
fn is_greeting_or_call(content: &Content) -> bool {
    match content {
        Content::Payload(payload) => Frame::decode(payload.clone())
            .is_ok_and(|frame| [Kind::CONFIGURATION, Kind::TOOL_USE_REQUEST].contains(&frame.kind())),
        Content::Rpc(part) => part.is_request(),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{recording::Moment, transport::Lane};

    fn strangers(each: usize, all: usize) -> Strangers {
        Strangers::new(&RecorderOptions::default().strangers(each, all))
    }

    fn packet(direction: Direction, who: Option<&str>, payload: impl Into<Bytes>) -> Item {
        let (from, to) = match direction {
            Direction::Heard => (who.map(|who| Peer::new(who, "PA_1")), Vec::new()),
            Direction::Sent => (None, who.into_iter().map(Identity::from).collect()),
        };
        Item::Packet(
            Moment(0),
            QueuedPacket {
                direction,
                from,
                to,
                topic: "toolbridge".into(),
                lane: Lane::Reliable,
                stream: false,
                compressed: false,
                is_strangers: false,
                content: Content::Payload(payload.into()),
                ticket: 0,
            },
        )
    }

    fn heard(who: &str, bytes: usize) -> Item {
        packet(Direction::Heard, Some(who), vec![b'x'; bytes])
    }

    fn joined(identity: &str, agent: bool, role: Option<&str>) -> Item {
        let (identity, role) = (identity.into(), role.map(str::to_owned));
        Item::Event(Moment(0), RoomEvent::Joined { identity, sid: "PA_1".into(), agent, role, protocol: 0 })
    }

    /// Whether packets of this participant count as a stranger's.
    fn is_strange(strangers: &mut Strangers, who: &str) -> bool {
        match strangers.admit(heard(who, 0)) {
            Ok(Item::Packet(_, packet)) => packet.is_strangers,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn sec_r7_stranger_beyond_its_limit_is_left_out_and_counted_at_each_doubling() {
        let record = 100 + RECORD_BYTES;
        let mut strangers = strangers(10 * record, 15 * record);
        let mut events = Vec::new();
        for _ in 0..110 {
            events.extend(strangers.admit(heard("eve", 100)).err());
        }
        assert_eq!(events.len(), 100, "ten fit");
        let said: Vec<_> = events.into_iter().flatten().collect();
        assert_eq!(said.len(), 7, "after 1, 2, 4, … 64 packets");
        let left_out = |identity: Option<&str>, packets, limit, most: usize| RoomEvent::LeftOut {
            identity: identity.map(Identity::from),
            packets,
            bytes: 100 * packets,
            limit,
            most: most as u64,
        };
        assert_eq!(said[6], left_out(Some("eve"), 64, LeftOutLimit::Sender, 10 * record));
        // The recorder leaves out a smaller packet, too: otherwise a reader could not tell which packets are missing. Packets
        // to the stranger count like its own.
        assert!(strangers.admit(heard("eve", 0)).is_err());
        assert!(strangers.admit(packet(Direction::Sent, Some("eve"), "refused")).is_err());
        // Others share what is left of the file.
        for _ in 0..5 {
            assert!(strangers.admit(heard("mallory", 100)).is_ok());
        }
        let full = strangers.admit(packet(Direction::Heard, None, vec![0; 100]));
        assert_eq!(full.unwrap_err(), Some(left_out(None, 1, LeftOutLimit::File, 15 * record)));
        let unsaid = strangers.unsaid();
        assert!(
            matches!(&unsaid[..], [RoomEvent::LeftOut { identity: Some(id), packets: 102, bytes: 10_007, .. }]
                if id.as_str() == "eve"),
            "{unsaid:?}"
        );
        assert_eq!(strangers.unsaid(), []);
    }

    #[test]
    fn sec_r7_many_strangers_take_bounded_memory_and_channels() {
        let mut strangers = strangers(usize::MAX, 1_000_000);
        let admitted =
            (0..3 * MAX_SENDERS).filter(|n| strangers.admit(heard(&format!("eve {n}"), 0)).is_ok());
        assert_eq!(admitted.count(), MAX_JOINS, "others need channels, too");
        assert_eq!((strangers.senders.len(), strangers.joins.len()), (MAX_SENDERS, MAX_JOINS));
        let said = strangers.others.say(None);
        assert_eq!(said, None, "all but one of its packets are counted at a doubling");
    }

    #[test]
    fn rights_come_from_the_token_or_from_the_recorded_participant() {
        let mut strangers = strangers(usize::MAX, usize::MAX);
        for (who, agent, role, strange) in [
            ("phone", false, Some("client"), false),
            ("brain", false, Some("assistant"), false),
            ("agent", true, None, false),
            ("agent that lost its role", true, Some("assitant"), true),
            ("eye", true, Some("observer"), true),
            ("app", false, None, true),
        ] {
            assert!(strangers.admit(joined(who, agent, role)).is_ok());
            assert_eq!(is_strange(&mut strangers, who), strange, "{who}");
        }
        // A later join without a role, and one that was never announced.
        assert!(strangers.admit(joined("phone", false, None)).is_ok());
        assert!(is_strange(&mut strangers, "phone") && is_strange(&mut strangers, "unannounced"));
        let frame = |kind: u16| {
            let json = serde_json::json!({"type": kind, "stanzaId": 1, "conversationId": "r", "body": {}});
            Frame::from_json(&json.to_string()).unwrap().into_bytes()
        };
        // An error is an answer to a stranger, a Configuration is a greeting.
        assert!(strangers.admit(packet(Direction::Sent, Some("app"), frame(Kind::ERROR.code()))).is_ok());
        assert!(is_strange(&mut strangers, "app"));
        let greeting = frame(Kind::CONFIGURATION.code());
        assert!(strangers.admit(packet(Direction::Sent, Some("app"), greeting)).is_ok());
        assert!(!is_strange(&mut strangers, "app"));
        let (assistant, callers) = (Some("voice".into()), vec!["hub".into()]);
        let answers = RoomEvent::AnswersRpc { assistant, callers, streams: true };
        assert!(strangers.admit(Item::Event(Moment(0), answers)).is_ok());
        assert!(!is_strange(&mut strangers, "voice") && !is_strange(&mut strangers, "hub"));
    }
}
