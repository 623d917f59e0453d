//! Signs of life: pings while a call is open, and the heartbeats of those who send them.

use std::time::{Duration, Instant};

use super::{Counter, Event, Session, Timer, peer::Feature, register::is_ours_alone};
use crate::transport::Identity;

/// How often a peer that is asked for a sign of life is looked after.
const ROUND: Duration = Duration::from_millis(500);

/// It is looked after no more often than this, however short the silence: the clock must come on between.
const SHORTEST_ROUND: Duration = Duration::from_millis(1);

/// Silence is not judged before this many asked signs of life went unanswered, however short the grace.
const UNANSWERED: u32 = 3;

impl Session {
    /// A call was sent to this owner: its life is watched, if it speaks our form.
    pub(super) fn watch(&mut self, now: Instant, owner: &Identity) {
        if !self.timers.is_set(&Timer::Ping(owner.clone())) {
            self.timers.set(now, Timer::Ping(owner.clone()), self.config.times.silence);
        }
    }

    /// Asks a silent owner for a sign of life, and loses the calls of one that gives none.
    pub(super) fn look_after(&mut self, now: Instant, owner: &Identity) {
        let times = &self.config.times;
        let patience = times.grace.max(times.silence.saturating_mul(UNANSWERED));
        let silence = times.silence;
        let open: Vec<_> =
            self.calls.of_owner(owner).filter_map(|(key, call)| Some((key, call.asked()?.at))).collect();
        let Some(remote) = self.peers.get(owner) else { return };
        if open.is_empty() || !remote.features_ack() || remote.pair.plain {
            return; // nobody waits, or it cannot be asked
        }
        let heard = remote.heard_at;
        let is_here = remote.is_here();
        let reachable = remote.is_reachable();
        for (key, asked) in &open {
            if is_here && now.saturating_duration_since(heard.max(*asked)) >= patience {
                self.lose_call(now, *key, owner);
            }
        }
        let oldest = open.iter().map(|(_, asked)| *asked).min().unwrap_or(now);
        if reachable && now.saturating_duration_since(heard.max(oldest)) >= silence {
            self.ping(owner);
        }
        if self.calls.count_of(owner) > 0 {
            self.timers.set(now, Timer::Ping(owner.clone()), ROUND.min(silence).max(SHORTEST_ROUND));
        }
    }

    /// Asks a peer for a sign of life.
    pub(super) fn ping(&mut self, peer: &Identity) {
        self.stats.add(Counter::Pings, 1);
        self.sign_of_life(peer, "ping");
    }

    /// Assistant: a client sends heartbeats, and is gone when they stop.
    pub(super) fn heartbeat_came(&mut self, now: Instant, id: &Identity) {
        if !self.peers.get(id).is_some_and(|remote| self.is_counterpart(id, remote)) {
            return self.complain(now, id, Counter::Stranger);
        }
        self.timers.set(now, Timer::Heartbeat(id.clone()), self.config.times.heartbeat);
    }

    pub(super) fn heartbeat_stopped(&mut self, now: Instant, id: &Identity) {
        tracing::info!(peer = %id, "its heartbeat stopped");
        self.lose_calls(now, id, |_| true);
        let offered = self.peers.get_mut(id).filter(|remote| remote.pair.registered);
        let offered = offered.map(|remote| remote.tools.clone());
        self.forget_registration(id);
        if let Some(remote) = self.peers.get_mut(id) {
            remote.pair.silenced = offered;
        }
    }

    /// Assistant: a client says something. One whose heartbeat had stopped offers again what it offered before.
    pub(super) fn heard_again(&mut self, now: Instant, id: &Identity) {
        let Some(remote) = self.peers.get_mut(id) else { return };
        let Some(mut tools) = remote.pair.silenced.take() else { return };
        tracing::info!(peer = %id, "it is heard again");
        tools.retain(|tool| !self.tools.iter().any(|ours| is_ours_alone(ours, tool.name())));
        let Some(remote) = self.peers.get_mut(id) else { return };
        remote.pair.registered = true;
        remote.tools = tools;
        if !remote.tools.is_empty() {
            self.event(Event::ToolsChanged { owner: id.clone() });
        }
        self.came_forward(id);
        self.look_for_owners(now);
    }
}

impl super::peer::Remote {
    /// Whether it listed acknowledgements, in this join or its last.
    fn features_ack(&self) -> bool {
        self.lists(Feature::Ack)
    }
}
