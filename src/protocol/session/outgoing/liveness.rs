//! Pings the owners of open calls.
//!
//! An owner that was called by frames is pinged by frames, one that was called by RPC by requests (`rpc.rs`).

use std::time::Duration;

use super::{Call, Core, Outgoing, Timer};
use crate::{protocol::session::recipients::Feature, tool::LossCause, transport::Identity};

/// The interval between two checks of an owner that is pinged.
const ROUND: Duration = Duration::from_millis(500);

/// The shortest interval between two checks, however short the silence timeout is, so that time can advance.
pub(super) const SHORTEST_ROUND: Duration = Duration::from_millis(1);

/// The number of pings that must go unanswered before the owner times out, however short the grace period is.
const UNANSWERED: u32 = 3;

impl Outgoing {
    /// Pings an owner that sends nothing, and loses its calls if it does not answer.
    pub(crate) fn check_owner(&mut self, core: &mut Core, owner: &Identity) {
        let by_frames = self.check_frame_owner(core, owner);
        let by_rpc = self.check_rpc_owner(core, owner);
        if let Some(next) = by_frames.into_iter().chain(by_rpc).min() {
            core.cx.set_timer(Timer::Ping(owner.clone()), next);
        }
    }

    /// Checks an owner that was called by frames. Returns when to look again.
    fn check_frame_owner(&mut self, core: &mut Core, owner: &Identity) -> Option<Duration> {
        let (now, times) = (core.cx.now, &core.cx.config.times);
        let patience = times.grace.max(times.silence.saturating_mul(UNANSWERED));
        let silence = times.silence;
        let by_frame = |call: &Call| Some(call.asked().filter(|asked| asked.is_frame())?.at);
        let mut open: Vec<_> =
            self.calls.of_owner(owner).filter_map(|(key, call)| Some((key, by_frame(call)?))).collect();
        let remote = core.peers.get(owner)?;
        if open.is_empty() || !remote.lists(Feature::Ack) {
            return None; // no call is open, or the owner cannot be pinged
        }
        let (heard, is_here, is_reachable) = (remote.silent_since(), remote.is_here(), remote.is_reachable());
        let oldest = open.iter().map(|(_, asked)| *asked).min().unwrap_or(now);
        open.retain(|(key, asked)| {
            // An absent owner has its grace period. The silence of a present one counts only from the call
            // on, because before it the owner had nothing to send.
            let is_lost = is_here && now.saturating_duration_since(heard.max(*asked)) >= patience;
            if is_lost {
                self.lose_call(core, *key, owner, LossCause::Silent(patience));
            }
            !is_lost
        });
        if is_reachable && now.saturating_duration_since(heard.max(oldest)) >= silence {
            core.to(owner).ping();
        }
        (!open.is_empty()).then(|| ROUND.min(silence).max(SHORTEST_ROUND))
    }

    /// Starts to check an owner that was sent a call. It is pinged when it sends nothing.
    pub(super) fn watch(&self, core: &mut Core, owner: &Identity) {
        let by_rpc = core.peers.get(owner).is_some_and(|it| it.called_by_rpc(&core.cx).is_some());
        let times = &core.cx.config.times;
        let silence = if by_rpc { times.rpc_silence } else { times.silence };
        core.cx.set_timer(Timer::Ping(owner.clone()), silence);
    }
}
