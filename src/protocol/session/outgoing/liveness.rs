//! Pings of owners while calls are open.

use std::time::Duration;

use super::{Core, Outgoing, Timer};
use crate::{protocol::session::recipients::Feature, transport::Identity};

/// How often an owner that is pinged is looked after.
const ROUND: Duration = Duration::from_millis(500);

/// It is looked after no more often than this, however short the silence, so that the clock can move on.
const SHORTEST_ROUND: Duration = Duration::from_millis(1);

/// Silence is not judged before this many pings went unanswered, however short the grace period.
const UNANSWERED: u32 = 3;

impl Outgoing {
    /// Pings a silent owner, and loses the calls of one that does not answer.
    pub(crate) fn check_owner(&mut self, core: &mut Core, owner: &Identity) {
        let (now, times) = (core.cx.now, &core.cx.config.times);
        let patience = times.grace.max(times.silence.saturating_mul(UNANSWERED));
        let silence = times.silence;
        let open: Vec<_> =
            self.calls.of_owner(owner).filter_map(|(key, call)| Some((key, call.asked()?.at))).collect();
        let Some(remote) = core.peers.get(owner) else { return };
        if open.is_empty() || !remote.lists(Feature::Ack) {
            return; // nobody waits, or it cannot be pinged
        }
        let (heard, is_here, is_reachable) = (remote.heard_at(), remote.is_here(), remote.is_reachable());
        for (key, asked) in &open {
            if is_here && now.saturating_duration_since(heard.max(*asked)) >= patience {
                self.lose_call(core, *key, owner);
            }
        }
        let oldest = open.iter().map(|(_, asked)| *asked).min().unwrap_or(now);
        if is_reachable && now.saturating_duration_since(heard.max(oldest)) >= silence {
            core.delivery.ping(&mut core.cx, &core.peers, owner);
        }
        if self.calls.count_of(owner) > 0 {
            core.cx.set_timer(Timer::Ping(owner.clone()), ROUND.min(silence).max(SHORTEST_ROUND));
        }
    }

    /// A call was sent to this owner: it is pinged when it is silent.
    pub(super) fn watch(&self, core: &mut Core, owner: &Identity) {
        if !core.cx.timers.is_set(&Timer::Ping(owner.clone())) {
            core.cx.set_timer(Timer::Ping(owner.clone()), core.cx.config.times.silence);
        }
    }
}
