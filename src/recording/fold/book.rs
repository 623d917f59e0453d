//! Where calls are kept, and how the one is found that a frame belongs to.

use std::collections::hash_map;

use super::{CallsBuilder, MAX_ALIKE, MAX_WORD, Slot};
use crate::{
    recording::{Direction, Recorded},
    tool::CallId,
    transport::Identity,
};

impl CallsBuilder {
    /// The call that a frame of this id belongs to: of several callers with one id, the one that it fits.
    pub(super) fn find(&self, packet: &Recorded, id: &str) -> Option<u64> {
        let id = CallId::from(id);
        let serials = self.ids.get(&id)?;
        let from = packet.from.identity();
        if serials.len() == MAX_ALIKE {
            // There may be more than are listed: the caller is known of most frames all the same.
            let heard = Some(&self.here).filter(|_| packet.direction == Direction::Heard);
            let callers = [Some(from), heard, packet.to.first()].into_iter().flatten();
            let known = callers.filter_map(|caller| self.keys.get(&(id.clone(), caller.clone())));
            let mut known = known.filter(|serial| {
                let slot = self.slots.get(serial);
                slot.is_some_and(|it| it.call.caller == *from || self.surely_may_answer(**serial, from))
            });
            if let Some(serial) = known.next() {
                return Some(*serial);
            }
        }
        let fits = |serial: &&u64| {
            self.slots.get(serial).is_some_and(|slot| {
                let caller = &slot.call.caller;
                let is_meant = packet.to.is_empty() || packet.to.contains(caller) || caller == from;
                is_meant && (caller == from || self.surely_may_answer(**serial, from))
            })
        };
        serials.iter().find(fits).or_else(|| serials.back()).copied()
    }

    pub(super) fn find_by_stanza(&self, packet: &Recorded, stanza: i32) -> Option<u64> {
        let caller = match packet.direction {
            Direction::Sent => packet.to.first()?.clone(),
            Direction::Heard => self.here.clone(),
        };
        self.stanzas.get(&(caller, stanza)).copied()
    }

    pub(super) fn insert(&mut self, id: &CallId, caller: &Identity) -> Option<u64> {
        if id.as_str().len() > MAX_WORD {
            self.dropped += 1;
            return None;
        }
        let serial = self.next;
        self.next += 1;
        self.slots.insert(serial, Slot::new(id, caller));
        self.keys.insert((id.clone(), caller.clone()), serial);
        let alike = self.ids.entry(id.clone()).or_default();
        if alike.len() == MAX_ALIKE {
            alike.pop_front();
        }
        alike.push_back(serial);
        Some(serial)
    }

    /// Counts what a call takes by now, and drops others until all of them fit.
    pub(super) fn weigh(&mut self, serial: u64) {
        let Some(slot) = self.slots.get_mut(&serial) else { return };
        let cost = slot.cost();
        self.kept = self.kept + cost - std::mem::replace(&mut slot.weighed, cost);
        while self.kept > self.most && !self.slots.is_empty() {
            self.make_room();
        }
    }

    /// Drops the call that was settled first, or, if all are open, the oldest.
    pub(super) fn make_room(&mut self) {
        let settled = std::iter::from_fn(|| self.settled.pop_front()).find(|it| self.slots.contains_key(it));
        let Some(serial) = settled.or_else(|| self.slots.keys().next().copied()) else { return };
        let Some(slot) = self.slots.remove(&serial) else { return };
        self.dropped += 1;
        self.kept -= slot.weighed;
        self.places -= slot.call.entries.len();
        if let hash_map::Entry::Occupied(key) =
            self.keys.entry((slot.call.id.clone(), slot.call.caller.clone()))
            && *key.get() == serial
        {
            key.remove();
        }
        for stanza in slot.stanzas {
            let key = (slot.call.caller.clone(), stanza);
            if self.stanzas.get(&key) == Some(&serial) {
                self.stanzas.remove(&key);
            }
        }
        if let Some(serials) = self.ids.get_mut(&slot.call.id) {
            serials.retain(|it| *it != serial);
            if serials.is_empty() {
                self.ids.remove(&slot.call.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        protocol::frame::Frame,
        recording::{Entry, Happened, Moment, Recorded, RecordedOutcome, RoomEvent, fold::slot::SLOT},
        transport::{Lane, Peer},
    };

    fn packet(from: &str, json: &str) -> Entry {
        Entry {
            at: Moment(1),
            what: Happened::Packet(Recorded {
                direction: Direction::Heard,
                from: Peer::new(from, "PA"),
                to: Vec::new(),
                topic: "toolbridge".into(),
                lane: Lane::Reliable,
                stream: false,
                channel: 0,
                sequence: 0,
                payload: Frame::from_json(json).unwrap().into_bytes(),
            }),
        }
    }

    #[test]
    fn when_there_are_too_many_the_one_that_was_settled_first_goes() {
        let mut fold = CallsBuilder { most: 2 * SLOT + 400, ..CallsBuilder::default() };
        let mut index = 0;
        let mut push = |fold: &mut CallsBuilder, from: &str, json: String| {
            fold.push_decoded(index, &packet(from, &json), None);
            index += 1;
        };
        let request = |id: &str| {
            format!(
                r#"{{"stanzaId":-1,"type":6,"body":{{"id":"{id}","toolName":"t","execution":"client"}}}}"#
            )
        };
        let result = |id: &str| format!(r#"{{"type":7,"body":{{"id":"{id}","success":true}}}}"#);
        push(&mut fold, "a", request("open"));
        push(&mut fold, "a", request("done"));
        push(&mut fold, "c", result("done"));
        push(&mut fold, "a", request("third"));
        push(&mut fold, "a", request("fourth"));
        let calls = fold.finish();
        let ids: Vec<_> = calls.calls.iter().map(|call| call.id.as_str()).collect();
        assert_eq!((ids, calls.dropped), (vec!["third", "fourth"], 2));
    }

    fn asked(id: &str) -> String {
        format!(r#"{{"stanzaId":-1,"type":6,"body":{{"id":"{id}","toolName":"t","execution":"client"}}}}"#)
    }

    #[test]
    fn calls_of_many_callers_with_one_id_are_looked_up_and_not_searched() {
        let mut fold = CallsBuilder::default();
        let sid = "PA".into();
        let here = RoomEvent::Here { identity: "phone".into(), sid, room: "r".to_owned() };
        fold.push_decoded(0, &Entry { at: Moment(0), what: Happened::Event(here) }, None);
        for n in 0..20_000 {
            fold.push_decoded(2 * n + 1, &packet(&format!("caller {n}"), &asked("same")), None);
            let Happened::Packet(mut answer) =
                packet("phone", r#"{"type":7,"body":{"id":"same","success":true}}"#).what
            else {
                unreachable!()
            };
            (answer.direction, answer.to) = (Direction::Sent, vec![format!("caller {n}").into()]);
            let answer = Entry { at: Moment(2), what: Happened::Packet(answer) };
            fold.push_decoded(2 * n + 2, &answer, None);
        }
        assert!(fold.ids.values().all(|alike| alike.len() <= MAX_ALIKE));
        let first = packet("caller 3", r#"{"type":10,"body":{"targetId":"same"}}"#);
        assert_eq!(fold.push_decoded(50_000, &first, None).map(|(serial, _)| serial), Some(3));
        let calls = fold.finish().calls;
        assert_eq!(calls.len(), 20_000);
        assert!(calls.iter().all(|call| call.outcome == RecordedOutcome::Ok));
    }

    #[test]
    fn calls_that_take_too_much_memory_are_dropped_and_counted() {
        let mut fold = CallsBuilder { most: 64 * 1024, ..CallsBuilder::default() };
        let message = "x".repeat(100_000);
        for n in 0..1_000 {
            let id = format!("call {n}");
            fold.push_decoded(2 * n, &packet("a", &asked(&id)), None);
            let answer = format!(
                r#"{{"type":7,"body":{{"id":"{id}","success":false,"errorCode":"c","errorMessage":"{message}"}}}}"#
            );
            fold.push_decoded(2 * n + 1, &packet("b", &answer), None);
            assert!(fold.kept <= fold.most && fold.slots.len() <= fold.most / SLOT);
            assert!(fold.keys.len() == fold.slots.len() && fold.ids.len() == fold.slots.len());
        }
        let calls = fold.finish();
        assert!(calls.calls.len() > 10, "{}", calls.calls.len());
        assert_eq!(calls.calls.len() as u64 + calls.dropped, 1_000);
    }

    #[test]
    fn an_id_that_is_too_long_is_counted_and_not_kept() {
        let mut fold = CallsBuilder::default();
        let id = "x".repeat(MAX_WORD + 1);
        let json = format!(r#"{{"type":6,"body":{{"id":"{id}","toolName":"t","execution":"client"}}}}"#);
        assert_eq!(fold.push_decoded(0, &packet("a", &json), None), None);
        let calls = fold.finish();
        assert_eq!((calls.calls.len(), calls.dropped), (0, 1));
    }
}
