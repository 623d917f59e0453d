//! The recording of what a session of a [`World`] sent and received.

use std::{collections::BTreeMap, time::Instant};

use bytes::Bytes;
use toolbridge::{
    recording::{Direction, Entry, Happened, Moment, Recorded, RoomEvent},
    transport::{Lane, Packet, Peer, STREAM_TOPIC, StreamPart, TOPIC},
};

use crate::session_world::{Noted, World};

/// The recording of one participant.
pub(crate) fn file(world: &World, name: &str) -> Vec<Entry> {
    let mut tape = Tape::default();
    for (at, whose, noted) in world.notes.as_ref().unwrap() {
        if whose == name {
            tape.note(*at, world.began, noted);
        }
    }
    tape.entries
}

#[derive(Default)]
struct Tape {
    entries: Vec<Entry>,
    me: Option<Peer>,
    parts: BTreeMap<(Peer, String), Vec<u8>>,
}

impl Tape {
    fn note(&mut self, at: Instant, began: Instant, noted: &Noted) {
        let at = Moment(1_700_000_000_000_000_000 + (at - began).as_nanos() as u64);
        let what = match noted {
            Noted::Here(who) => {
                self.me = Some(who.peer().clone());
                let (identity, sid) = (who.identity().clone(), who.sid().clone());
                Happened::Event(RoomEvent::Here { identity, sid, room: "room".to_owned() })
            }
            Noted::Joined(who) => Happened::Event(RoomEvent::Joined {
                identity: who.identity().clone(),
                sid: who.sid().clone(),
                agent: who.is_agent(),
                role: who.token_role().map(|role| role.as_str().to_owned()),
                protocol: 0,
            }),
            Noted::Left(who) => {
                Happened::Event(RoomEvent::Left { identity: who.identity().clone(), sid: who.sid().clone() })
            }
            Noted::Heard { from, lane, bytes } => {
                Happened::Packet(self.received(from.clone(), *lane, bytes.clone().into(), false))
            }
            Noted::HeardPart { from, part } => match self.part(from, part) {
                Some(bytes) => {
                    Happened::Packet(self.received(from.clone(), Lane::Reliable, bytes.into(), true))
                }
                None => return,
            },
            Noted::Sent(packet) => Happened::Packet(self.sent(packet)),
            Noted::Unsent(packet) => {
                let sequence = *packet as u32;
                Happened::Event(RoomEvent::Unsent {
                    channel: 1,
                    sequence,
                    reason: "not connected".to_owned(),
                })
            }
        };
        self.entries.push(Entry::new(at, what));
    }

    fn sent(&self, packet: &Packet) -> Recorded {
        with!(
            Recorded::new(Direction::Sent, self.me.clone().unwrap(), packet.payload.clone()),
            to = packet.to.clone(),
            lane = packet.lane,
            stream = packet.payload.len() > 15_000,
            channel = 1,
            sequence = packet.id as u32
        )
    }

    fn received(&self, from: Peer, lane: Lane, payload: Bytes, stream: bool) -> Recorded {
        let topic = if stream { STREAM_TOPIC } else { TOPIC }.to_owned();
        let (direction, channel) = (Direction::Heard, 2);
        with!(
            Recorded::new(direction, from, payload),
            topic = topic,
            lane = lane,
            stream = stream,
            channel = channel
        )
    }

    fn part(&mut self, from: &Peer, part: &StreamPart) -> Option<Vec<u8>> {
        let key = |id: &str| (from.clone(), id.to_owned());
        match part {
            StreamPart::Header(header) => {
                self.parts.insert(key(&header.id), Vec::new());
                None
            }
            StreamPart::Chunk { id, bytes, .. } => {
                self.parts.get_mut(&key(id))?.extend_from_slice(bytes);
                None
            }
            StreamPart::Trailer { id, .. } => self.parts.remove(&key(id)),
        }
    }
}
