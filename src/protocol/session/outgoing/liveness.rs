//! Pings the owners of open calls.

use std::time::Duration;

use super::{Core, Outgoing, Timer};
use crate::{protocol::session::recipients::Feature, transport::Identity};

/// The interval between two checks of an owner that is pinged.
const ROUND: Duration = Duration::from_millis(500);

/// The shortest interval between two checks, however short the silence timeout is, so that time can advance.
const SHORTEST_ROUND: Duration = Duration::from_millis(1);

/// The number of pings that must go unanswered before the owner times out, however short the grace period is.
const UNANSWERED: u32 = 3;

impl Outgoing {
    /// Pings an owner that sends nothing, and loses its calls if it does not answer.
    pub(crate) fn check_owner(&mut self, core: &mut Core, owner: &Identity) {
        let (now, times) = (core.cx.now, &core.cx.config.times);
        let patience = times.grace.max(times.silence.saturating_mul(UNANSWERED));
        let silence = times.silence;
        let open: Vec<_> =
            self.calls.of_owner(owner).filter_map(|(key, call)| Some((key, call.asked()?.at))).collect();
        let Some(remote) = core.peers.get(owner) else { return };
        if open.is_empty() || !remote.lists(Feature::Ack) {
            return; // no call is open, or the owner cannot be pinged
        }
        let (heard, is_here, is_reachable) = (remote.heard_at(), remote.is_here(), remote.is_reachable());
        for (key, asked) in &open {
            // An absent owner has its grace period. The silence of a present one counts only from the call
            // on, because before it the owner had nothing to send.
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

    /// Starts to check an owner that was sent a call. It is pinged when it sends nothing.
    pub(super) fn watch(&self, core: &mut Core, owner: &Identity) {
        if !core.cx.timers.is_set(&Timer::Ping(owner.clone())) {
            core.cx.set_timer(Timer::Ping(owner.clone()), core.cx.config.times.silence);
        }
    }
}
