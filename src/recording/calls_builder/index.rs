//! Stores calls and finds the call that a frame belongs to.

use std::collections::hash_map;

use super::{CallsBuilder, MAX_ALIKE, MAX_WORD, TrackedCall};
use crate::{
    recording::{Direction, Recorded},
    tool::CallId,
    transport::Identity,
};

impl CallsBuilder {
    /// Finds the call for a frame with this id. If several callers used the id, picks the call that fits.
    pub(super) fn find(&self, packet: &Recorded, id: &str) -> Option<u64> {
        let id = CallId::known(id);
        let serials = self.ids.get(&id)?;
        let from = packet.sender();
        if serials.len() == MAX_ALIKE {
            // More calls than listed may have this id, but most frames identify their caller.
            let heard = self.here.as_ref().filter(|_| packet.direction == Direction::Heard);
            let callers = [from, heard, packet.to.first()];
            let known = callers.iter().filter_map(|caller| self.keys.get(&(id.clone(), caller.cloned())));
            let mut known = known.filter(|serial| {
                let tracked_call = self.tracked.get(serial);
                tracked_call.is_some_and(|it| {
                    it.call.caller.as_ref() == from || self.surely_may_answer(**serial, from)
                })
            });
            if let Some(serial) = known.next() {
                return Some(*serial);
            }
        }
        let fits = |serial: &&u64| {
            self.tracked.get(serial).is_some_and(|tracked_call| {
                let caller = tracked_call.call.caller.as_ref();
                let is_meant = packet.to.is_empty()
                    || caller.is_some_and(|caller| packet.to.contains(caller))
                    || caller == from;
                is_meant && (caller == from || self.surely_may_answer(**serial, from))
            })
        };
        serials.iter().find(fits).or_else(|| serials.back()).copied()
    }

    pub(super) fn find_by_stanza(&self, packet: &Recorded, stanza: i32) -> Option<u64> {
        let caller = match packet.direction {
            Direction::Sent => Some(packet.to.first()?.clone()),
            Direction::Heard => self.here.clone(),
        };
        self.stanzas.get(&(caller, stanza)).copied()
    }

    pub(super) fn insert(&mut self, id: &CallId, caller: Option<&Identity>) -> Option<u64> {
        if id.as_str().len() > MAX_WORD {
            self.dropped += 1;
            return None;
        }
        let serial = self.next;
        self.next += 1;
        self.tracked.insert(serial, TrackedCall::new(id, caller));
        self.keys.insert((id.clone(), caller.cloned()), serial);
        let alike = self.ids.entry(id.clone()).or_default();
        if alike.len() == MAX_ALIKE {
            alike.pop_front();
        }
        alike.push_back(serial);
        Some(serial)
    }

    /// Updates the memory cost of a call, and drops calls until all fit.
    pub(super) fn weigh(&mut self, serial: u64) {
        let Some(tracked_call) = self.tracked.get_mut(&serial) else { return };
        let cost = tracked_call.cost();
        self.kept = self.kept + cost - std::mem::replace(&mut tracked_call.weighed, cost);
        while self.kept > self.most && !self.tracked.is_empty() {
            self.make_room();
        }
    }

    /// Drops the call that was settled first or, if all are open, the oldest.
    pub(super) fn make_room(&mut self) {
        let settled =
            std::iter::from_fn(|| self.settled.pop_front()).find(|it| self.tracked.contains_key(it));
        let Some(serial) = settled.or_else(|| self.tracked.keys().next().copied()) else { return };
        let Some(tracked_call) = self.tracked.remove(&serial) else { return };
        self.dropped += 1;
        self.kept -= tracked_call.weighed;
        self.places -= tracked_call.call.entries.len();
        if let hash_map::Entry::Occupied(key) =
            self.keys.entry((tracked_call.call.id.clone(), tracked_call.call.caller.clone()))
            && *key.get() == serial
        {
            key.remove();
        }
        for stanza in tracked_call.stanzas {
            let key = (tracked_call.call.caller.clone(), stanza);
            if self.stanzas.get(&key) == Some(&serial) {
                self.stanzas.remove(&key);
            }
        }
        if let Some(serials) = self.ids.get_mut(&tracked_call.call.id) {
            serials.retain(|it| *it != serial);
            if serials.is_empty() {
                self.ids.remove(&tracked_call.call.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        protocol::frame::Frame,
        recording::{
            Entry, Happened, Moment, Recorded, RecordedOutcome, RoomEvent,
            calls_builder::tracked_call::CALL_BYTES,
        },
        transport::{Lane, Peer},
    };

    fn packet(from: &str, json: &str) -> Entry {
        Entry {
            at: Moment(1),
            what: Happened::Packet(Recorded {
                direction: Direction::Heard,
                from: Some(Peer::new(from, "PA")),
                to: Vec::new(),
                topic: "toolbridge".into(),
                lane: Lane::Reliable,
                stream: false,
                compressed: false,
                channel: 0,
                sequence: 0,
                payload: Frame::from_json(json).unwrap().into_bytes(),
            }),
        }
    }

    #[test]
    fn call_settled_first_is_dropped_when_memory_is_full() {
        let mut builder = CallsBuilder { most: 2 * CALL_BYTES + 400, ..CallsBuilder::default() };
        let mut index = 0;
        let mut push = |builder: &mut CallsBuilder, from: &str, json: String| {
            builder.push_decoded(index, &packet(from, &json), None);
            index += 1;
        };
        let request = |id: &str| {
            format!(
                r#"{{"stanzaId":-1,"type":6,"body":{{"id":"{id}","toolName":"t","execution":"client"}}}}"#
            )
        };
        let result = |id: &str| format!(r#"{{"type":7,"body":{{"id":"{id}","success":true}}}}"#);
        push(&mut builder, "a", request("open"));
        push(&mut builder, "a", request("done"));
        push(&mut builder, "c", result("done"));
        push(&mut builder, "a", request("third"));
        push(&mut builder, "a", request("fourth"));
        let calls = builder.finish();
        let ids: Vec<_> = calls.calls.iter().map(|call| call.id.as_str()).collect();
        assert_eq!((ids, calls.dropped), (vec!["third", "fourth"], 2));
    }

    fn asked(id: &str) -> String {
        format!(r#"{{"stanzaId":-1,"type":6,"body":{{"id":"{id}","toolName":"t","execution":"client"}}}}"#)
    }

    #[test]
    fn calls_of_many_callers_with_one_id_are_found_by_key() {
        let mut builder = CallsBuilder::default();
        let sid = "PA".into();
        let here = RoomEvent::Here { identity: "phone".into(), sid, room: "r".to_owned() };
        builder.push_decoded(0, &Entry { at: Moment(0), what: Happened::Event(here) }, None);
        for n in 0..20_000 {
            builder.push_decoded(2 * n + 1, &packet(&format!("caller {n}"), &asked("same")), None);
            let Happened::Packet(mut answer) =
                packet("phone", r#"{"type":7,"body":{"id":"same","success":true}}"#).what
            else {
                unreachable!()
            };
            (answer.direction, answer.to) = (Direction::Sent, vec![format!("caller {n}").into()]);
            let answer = Entry { at: Moment(2), what: Happened::Packet(answer) };
            builder.push_decoded(2 * n + 2, &answer, None);
        }
        assert!(builder.ids.values().all(|alike| alike.len() <= MAX_ALIKE));
        let first = packet("caller 3", r#"{"type":10,"body":{"targetId":"same"}}"#);
        assert_eq!(builder.push_decoded(50_000, &first, None).map(|(serial, _)| serial), Some(3));
        let calls = builder.finish().calls;
        assert_eq!(calls.len(), 20_000);
        assert!(calls.iter().all(|call| call.outcome == RecordedOutcome::Ok));
    }

    #[test]
    fn calls_beyond_the_memory_limit_are_dropped_and_counted() {
        let mut builder = CallsBuilder { most: 64 * 1024, ..CallsBuilder::default() };
        let message = "x".repeat(100_000);
        for n in 0..1_000 {
            let id = format!("call {n}");
            builder.push_decoded(2 * n, &packet("a", &asked(&id)), None);
            let answer = format!(
                r#"{{"type":7,"body":{{"id":"{id}","success":false,"errorCode":"c","errorMessage":"{message}"}}}}"#
            );
            builder.push_decoded(2 * n + 1, &packet("b", &answer), None);
            assert!(builder.kept <= builder.most && builder.tracked.len() <= builder.most / CALL_BYTES);
            assert!(
                builder.keys.len() == builder.tracked.len() && builder.ids.len() == builder.tracked.len()
            );
        }
        let calls = builder.finish();
        assert!(calls.calls.len() > 10, "{}", calls.calls.len());
        assert_eq!(calls.calls.len() as u64 + calls.dropped, 1_000);
    }

    #[test]
    fn call_with_too_long_id_is_counted_as_dropped() {
        let mut builder = CallsBuilder::default();
        let id = "x".repeat(MAX_WORD + 1);
        let json = format!(r#"{{"type":6,"body":{{"id":"{id}","toolName":"t","execution":"client"}}}}"#);
        assert_eq!(builder.push_decoded(0, &packet("a", &json), None), None);
        let calls = builder.finish();
        assert_eq!((calls.calls.len(), calls.dropped), (0, 1));
    }
}
