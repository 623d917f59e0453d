//! Where calls are kept, and how the one is found that a frame belongs to.

use super::{Fold, MAX_WORD, Slot};
use crate::{
    link::Identity,
    recording::{Direction, Recorded},
    tool::CallId,
};

impl Fold {
    /// The call that a frame of this id belongs to: of several callers with one id, the one that it fits.
    pub(super) fn find(&self, packet: &Recorded, id: &str) -> Option<u64> {
        let serials = self.ids.get(&CallId::from(id))?;
        let from = packet.from.identity();
        let fits = |serial: &&u64| {
            self.slots.get(serial).is_some_and(|slot| {
                let caller = &slot.call.caller;
                let is_meant = packet.to.is_empty() || packet.to.contains(caller) || caller == from;
                is_meant && (caller == from || self.surely_may_answer(**serial, from))
            })
        };
        serials.iter().find(fits).or_else(|| serials.last()).copied()
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
        if self.slots.len() >= self.most {
            self.make_room();
        }
        let serial = self.next;
        self.next += 1;
        self.slots.insert(serial, Slot::new(id, caller));
        self.ids.entry(id.clone()).or_default().push(serial);
        Some(serial)
    }

    /// Drops the call that was settled first, or, if all are open, the oldest.
    pub(super) fn make_room(&mut self) {
        let settled = std::iter::from_fn(|| self.settled.pop_front()).find(|it| self.slots.contains_key(it));
        let Some(serial) = settled.or_else(|| self.slots.keys().next().copied()) else { return };
        let Some(slot) = self.slots.remove(&serial) else { return };
        self.dropped += 1;
        self.places -= slot.call.entries.len();
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
        link::{Lane, Peer},
        recording::{Entry, Happened, Moment, Recorded},
        wire::Frame,
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
        let mut fold = Fold { most: 2, ..Fold::default() };
        let mut index = 0;
        let mut push = |fold: &mut Fold, from: &str, json: String| {
            fold.push(index, &packet(from, &json), None);
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

    #[test]
    fn an_id_that_is_too_long_is_counted_and_not_kept() {
        let mut fold = Fold::default();
        let id = "x".repeat(MAX_WORD + 1);
        let json = format!(r#"{{"type":6,"body":{{"id":"{id}","toolName":"t","execution":"client"}}}}"#);
        assert_eq!(fold.push(0, &packet("a", &json), None), None);
        let calls = fold.finish();
        assert_eq!((calls.calls.len(), calls.dropped), (0, 1));
    }
}
