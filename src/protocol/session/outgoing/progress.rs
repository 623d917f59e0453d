//! Handles progress and acknowledgements from owners, and retransmits unacknowledged frames.

use super::{Call, Core, Counter, Event, Outgoing, Purpose, Timer, Window};
use crate::{
    protocol::{
        frame::{Acknowledgement, ToolProgress},
        session::{CallKey, codec::Received, jobs::fitted, recipients::Feature},
    },
    tool::{CallId, Progress},
    transport::{Identity, Lane},
};

/// How many more updates of one call are accepted per second than an owner of the same version sends, since its second
/// starts at another time.
const PROGRESS_LEEWAY: u32 = 2;

impl Outgoing {
    /// Handles an owner's acknowledgement of a request or a stop.
    pub(crate) fn handle_acknowledgement(&mut self, core: &mut Core, id: &Identity, it: &Acknowledgement) {
        if let Some(stanza) = it.acknowledged_stanza_id.filter(|stanza| *stanza != 0) {
            self.frame_acknowledged(core, id, stanza, it.acknowledged_message_id.as_deref());
        }
    }

    /// Handles the acknowledgement of the frame with this stanza, by an acknowledgement or a claim.
    pub(super) fn frame_acknowledged(
        &mut self,
        core: &mut Core,
        id: &Identity,
        stanza: i32,
        named: Option<&str>,
    ) {
        let acknowledged = core.delivery.acknowledged(id, stanza, named);
        if acknowledged.has_room {
            self.retransmit(core, id);
        }
        match acknowledged.purpose {
            Some(Purpose::Request(call)) => {
                if let Some(key) = self.calls.key_of(&call) {
                    self.request_delivered(core, key);
                }
            }
            Some(Purpose::Stop(call)) => self.stop_acknowledged(core, id, &call, stanza),
            // The request of a call that has ended has no record any more. Its owner has it now, and needs
            // the stop that could not overtake it (`wire.md`, section 5.4).
            _ => self.stop_acknowledged_call(core, id, stanza, named),
        }
    }

    /// Handles an owner's progress update.
    pub(crate) fn handle_progress(
        &mut self,
        core: &mut Core,
        id: &Identity,
        incoming: &Received,
        it: ToolProgress,
    ) {
        let Some(key) = self.call_owned_by(core, &it.id, id) else {
            if core.peers.get(id).is_some_and(|remote| self.settled.is_owned_by(&it.id, id, remote)) {
                return core.cx.count(Counter::Late);
            }
            return core.cx.complain(id, Counter::NotPermitted);
        };
        if self.is_old_progress(core, id, key, incoming) {
            return core.cx.count(Counter::Duplicate);
        }
        let Some(call) = self.calls.get_mut(&key) else { return };
        call.began_at_owner = true;
        // The owner of a started call has the request, even if its acknowledgement arrives later.
        self.request_delivered(core, key);
        let most = core.cx.config.caps.requests.progress_per_second.saturating_mul(PROGRESS_LEEWAY);
        let Some(call) = self.calls.get_mut(&key) else { return };
        // After the lines above: an update that is dropped still proves that the tool has started.
        let progress = fitted(read_progress(it), core.cx.config.caps.requests.progress_bytes);
        if call.late.replace(progress).is_some() {
            core.cx.count(Counter::ProgressDropped);
        }
        if call.rate.admits(core.cx.now, most) {
            self.report_late_progress(core, key);
        } else {
            core.cx.set_timer(Timer::LateProgress(key), Window::LENGTH);
        }
    }

    /// Reports the last update of a call, if it was not reported yet.
    pub(crate) fn report_late_progress(&mut self, core: &mut Core, key: CallKey) {
        core.cx.timers.cancel(&Timer::LateProgress(key));
        let Some(call) = self.calls.get_mut(&key) else { return };
        if let Some(progress) = call.late.take() {
            core.cx.event(Event::Progress { key: Some(key), call: call.id.clone(), progress });
        }
    }

    /// Sends unacknowledged frames again as long as the peer's window has room.
    pub(crate) fn retransmit(&mut self, core: &mut Core, id: &Identity) {
        while let Some(frame) = core.delivery.next_retransmission(&core.cx, &core.peers, id) {
            let sent = match frame {
                // The list may contain frames for an instance that was replaced. They must not reach another
                // process (`wire.md`, section 5.2).
                Purpose::Request(call) if self.asked_this_instance(core, id, &call) => {
                    self.ask_again(core, &call)
                }
                Purpose::Stop(call) if self.stopped_this_instance(core, id, &call) => {
                    self.stop_again(core, &call)
                }
                _ => None,
            };
            if let Some(sent) = sent {
                core.delivery.note_retransmitted(&mut core.cx, id, &sent);
            }
        }
    }

    /// Returns whether an open call was sent to the owner's present instance.
    fn asked_this_instance(&self, core: &Core, id: &Identity, call: &CallId) -> bool {
        let asked = self.calls.key_of(call).and_then(|key| self.calls.get(&key)?.asked());
        asked.is_some_and(|asked| asked.was_sent_to_instance(id, core))
    }

    /// Returns whether a settled call was sent to the owner's present instance.
    fn stopped_this_instance(&self, core: &Core, id: &Identity, call: &CallId) -> bool {
        self.settled.get(call).is_some_and(|gone| gone.asked().was_sent_to_instance(id, core))
    }

    /// Returns whether this progress, or newer progress of its call, has arrived before. On the fast lane an owner
    /// sends each update twice, and the copies may arrive out of order. An owner that was called as a plain peer may use
    /// that lane before its Configuration has arrived.
    fn is_old_progress(&mut self, core: &Core, id: &Identity, key: CallKey, incoming: &Received) -> bool {
        let lists_lane = core.peers.get(id).is_some_and(|remote| remote.lists(Feature::FastLane));
        let stanza = incoming.stanza().map(i32::unsigned_abs).filter(|stanza| *stanza != 0);
        let asked = self.calls.get_mut(&key).and_then(Call::asked_mut);
        let (Some(stanza), Some(asked)) = (stanza, asked) else { return false };
        asked.progress_on_lane |= lists_lane || incoming.lane == Lane::Lossy;
        let is_old = asked.progress_on_lane && stanza <= asked.progress;
        asked.progress = asked.progress.max(stanza);
        is_old
    }
}

/// Reports progress of a call that the assistant runs itself, or that another client runs.
pub(crate) fn observe_progress(core: &mut Core, it: ToolProgress) {
    let call = it.id.clone();
    let progress = fitted(read_progress(it), core.cx.config.caps.requests.progress_bytes);
    core.cx.event(Event::Progress { key: None, call, progress });
}

fn read_progress(it: ToolProgress) -> Progress {
    let mut progress = Progress::started();
    progress.status = it.status;
    progress.message = it.message;
    progress.content = it.content;
    progress
}
