//! What was sent and not acknowledged goes again when its peer comes back (`wire.md`, 5.2).
//!
//! Nothing is stored for it: requests lie in the open calls, stops in the past ones, answers and claims in the
//! table. A replay is their list in the order of their stanzas, of which so much is on its way at once as the
//! caps say; what follows goes when that is acknowledged.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use super::{CallKey, Counter, Session, Timer, ids::Instance, peer::Feature};
use crate::{tool::CallId, transport::Identity};

/// The same is not sent again sooner: what was sent is on its way, and nobody shall make us shout.
const INTERVAL: Duration = Duration::from_millis(900);

/// One frame that its peer has not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kept {
    /// The request of an open call.
    Request(CallKey),
    /// The stop of a call that was settled.
    Stop(CallId),
    /// The answer to a request.
    Answer(CallId),
    /// The claim of a call that its caller may run as well.
    Claim(CallId),
}

/// What is sent again under one pair of sids.
#[derive(Debug, Default)]
pub(super) struct Replay {
    next: VecDeque<Kept>,
    /// What was sent again and is not acknowledged: its bytes by its stanza.
    on_its_way: BTreeMap<i32, usize>,
    bytes: usize,
    began: Option<Instant>,
}

impl Session {
    /// Configurations crossed: what this instance has not acknowledged goes again.
    pub(super) fn replay(&mut self, now: Instant, id: &Identity) {
        let Some(remote) = self.peers.get(id) else { return };
        let acknowledges = remote.lists(Feature::Ack);
        let Some(instance) = remote.instance.clone().filter(|_| acknowledges && remote.is_crossed()) else {
            return self.send_waiting_answers(now, id);
        };
        let since = remote.pair.replay.began.map(|began| now.saturating_duration_since(began));
        if let Some(wait) = since.and_then(|since| INTERVAL.checked_sub(since)).filter(|it| !it.is_zero()) {
            return self.timers.set(now, Timer::Replay(id.clone()), wait);
        }
        let kept = self.kept_for(id, &instance);
        let Some(remote) = self.peers.get_mut(id) else { return };
        remote.pair.replay = Replay { next: kept.into(), began: Some(now), ..Replay::default() };
        self.replay_on(now, id);
    }

    /// The link is up again and the pair of sids is the same: only what never left goes.
    pub(super) fn send_what_never_left(&mut self, now: Instant, id: &Identity) {
        if !self.peers.get(id).is_some_and(super::Remote::is_reachable) {
            return;
        }
        for key in self.requests_that_never_left(id) {
            self.ask_again(now, key);
        }
        self.claims_again(id);
        self.grants_again(id);
        self.send_waiting_answers(now, id);
        self.send_waiting_stops(id);
        self.send_stops(now, id, false);
    }

    /// A frame is acknowledged, or wanted no more: the next ones may go.
    pub(super) fn replayed(&mut self, now: Instant, id: &Identity, stanza: i32) {
        let Some(replay) = self.peers.get_mut(id).map(|remote| &mut remote.pair.replay) else { return };
        if let Some(bytes) = replay.on_its_way.remove(&stanza) {
            replay.bytes -= bytes;
            self.replay_on(now, id);
        }
    }

    fn replay_on(&mut self, now: Instant, id: &Identity) {
        while self.peers.get(id).is_some_and(super::Remote::is_reachable) {
            let caps = &self.config.caps;
            let (frames, bytes) = (caps.replay_frames, caps.replay_bytes);
            let Some(replay) = self.peers.get_mut(id).map(|remote| &mut remote.pair.replay) else { return };
            let is_idle = replay.on_its_way.is_empty(); // one frame of any size is always let through
            if !is_idle && (replay.on_its_way.len() >= frames || replay.bytes >= bytes) {
                return;
            }
            let Some(kept) = replay.next.pop_front() else { return };
            let sent = match kept {
                Kept::Request(key) => self.ask_again(now, key),
                Kept::Stop(call) => self.stop_again(&call),
                Kept::Answer(call) => self.answer_again(now, id, &call),
                Kept::Claim(call) => self.claim_again(id, &call),
            };
            let Some(sent) = sent else { continue }; // it was acknowledged meanwhile, or cannot be sent
            self.stats.add(Counter::Replayed, 1);
            if let Some(remote) = self.peers.get_mut(id) {
                remote.pair.replay.on_its_way.insert(sent.stanza, sent.size);
                remote.pair.replay.bytes += sent.size;
            }
        }
    }

    /// What this instance has not acknowledged, in the order in which it was first sent.
    fn kept_for(&self, id: &Identity, instance: &Instance) -> Vec<Kept> {
        let requests = self.requests_kept_for(id, instance);
        let stops = self.past.stops_kept_for(id, instance);
        let answers = self.tables.get(id).map(super::Table::answers_kept).unwrap_or_default();
        let claims = self.tables.get(id).map(super::Table::claims_kept).unwrap_or_default();
        let mut kept: Vec<(u32, Kept)> = requests
            .into_iter()
            .map(|(stanza, key)| (stanza, Kept::Request(key)))
            .chain(stops.into_iter().map(|(stanza, call)| (stanza, Kept::Stop(call))))
            .chain(claims.into_iter().map(|(stanza, call)| (stanza, Kept::Claim(call))))
            .chain(answers.into_iter().map(|(stanza, call)| (stanza, Kept::Answer(call))))
            .collect();
        kept.sort_by_key(|(place, _)| *place); // stable: what was never sent stays in the order of its making
        kept.into_iter().map(|(_, kept)| kept).collect()
    }
}

/// Where a frame stands in the order: one that has no stanza yet comes last.
pub(super) fn place(sent: Option<i32>) -> u32 {
    sent.map_or(u32::MAX, i32::unsigned_abs)
}
