//! Stops calls that have ended without their owner's answer (type 10).

use super::{
    Core, Counter, Outgoing, Purpose, Remote, Sent, codec,
    settled::{Gone, Stop},
};
use crate::{
    protocol::{
        frame::{ControlStop, Message, Meta},
        session::{codec::Received, recipients::Feature},
    },
    tool::{CallId, StopReason},
    transport::Identity,
};

impl Outgoing {
    /// Sends a stop to the owner of a call that was settled without its answer, if the owner is reachable.
    pub(super) fn stop_owner(&mut self, core: &mut Core, call: &CallId) {
        let Some(gone) = self.settled.get(call).filter(|gone| *gone.stop() == Stop::Waiting) else { return };
        let asked = gone.asked();
        let owner = asked.owner.clone();
        // Another instance does not have the call, and the instance that was sent the request may still come back. A
        // request in the plain form may have reached whichever instance is present now. A stop of an unknown call does
        // no harm.
        let may_run_it = |remote: &Remote| {
            remote.is_reachable() && (asked.is_of(&owner, remote) || asked.instance.is_none())
        };
        if !core.peers.get(&owner).is_some_and(may_run_it) {
            return;
        }
        let message = stop_message(core, &owner, call, gone.reason());
        let sent = core.to(&owner).post_small(&message, Some(Purpose::Stop(call.clone())));
        core.copy(&Meta::default(), &message);
        if let Some(sent) = sent {
            self.settled.stop_sent(call, sent.stanza);
        }
    }

    /// Sends a stop again, under its stanza. Returns `None` if the owner has acknowledged it.
    pub(super) fn stop_again(&mut self, core: &mut Core, call: &CallId) -> Option<Sent> {
        let gone = self.settled.get(call)?;
        let (owner, stanza) = (gone.asked().owner.clone(), gone.stop_sent_as()?);
        let message = stop_message(core, &owner, call, gone.reason());
        core.to(&owner).post_again(stanza, &Meta::default(), &message, Some(Purpose::Stop(call.clone()))).ok()
    }

    /// Sends the waiting stops of an owner that is reachable again.
    pub(crate) fn send_waiting_stops(&mut self, core: &mut Core, owner: &Identity) {
        for call in self.settled.waiting_stops(owner) {
            self.stop_owner(core, &call);
        }
    }

    /// Sends a replaced instance that has returned a stop for each of its calls that has ended since.
    pub(crate) fn stop_calls_ended_meanwhile(&mut self, core: &mut Core, owner: &Identity) {
        let Some(instance) = core.peers.get(owner).and_then(Remote::instance).cloned() else { return };
        for call in self.settled.may_be_run_by(core.cx.now, owner, &instance) {
            self.stop_replaced(core, owner, &call);
        }
    }

    /// Sends a replaced instance that is present a stop for a call that has ended.
    pub(super) fn stop_replaced(&self, core: &mut Core, owner: &Identity, call: &CallId) {
        if !core.peers.get(owner).is_some_and(Remote::is_crossed) {
            return;
        }
        let message = stop_message(core, owner, call, StopReason::Caller);
        // The settled call's own stop belongs to its last owner, so nothing sends this one again in another join.
        core.to(owner).post_small(&message, None);
    }

    /// Notes that a stop was acknowledged. Another instance than the one that got the request cannot stop the call, so
    /// the stop waits for that one.
    pub(super) fn stop_acknowledged(&mut self, core: &Core, by: &Identity, call: &CallId, stanza: i32) {
        let Some(asked) = self.settled.get(call).map(Gone::asked) else { return };
        if asked.instance.is_none() || asked.was_sent_to_instance(by, core) {
            self.settled.stop_known(call, stanza);
        } else {
            self.settled.stop_not_sent(call, stanza);
        }
    }

    /// Sends the stop of an ended call whose owner has acknowledged the request, if it was not sent yet.
    pub(super) fn stop_acknowledged_call(
        &mut self,
        core: &mut Core,
        owner: &Identity,
        stanza: i32,
        named: Option<&str>,
    ) {
        let call = self.settled.waiting_stop_of(owner, stanza);
        let Some(call) = call.filter(|call| codec::may_mean(named, call)) else { return };
        self.stop_owner(core, &call);
        // It has the request, although it has not proven that it is the process that was asked.
        if self.settled.get(&call).is_some_and(|gone| *gone.stop() == Stop::Waiting) {
            self.stop_replaced(core, owner, &call);
        }
    }

    /// Handles a participant's request to stop a call, or all calls that a barge-in would stop.
    pub(crate) fn handle_stop(
        &mut self,
        core: &mut Core,
        id: &Identity,
        incoming: &Received,
        stop: &ControlStop,
    ) {
        let Some(remote) = core.peers.get(id) else { return };
        if !core.peers.may_stop(id) {
            let is_counterpart = core.peers.is_counterpart(&core.cx, id, remote);
            return core
                .cx
                .complain(id, if is_counterpart { Counter::NotPermitted } else { Counter::Unauthorized });
        }
        // Also a repeated one, which is repeated because this acknowledgement was lost.
        core.to(id).acknowledge_always(incoming.stanza(), None);
        let Some(target) = &stop.target_id else {
            if core.peers.get_mut(id).is_some_and(|it| it.note_stop_of_all(incoming.stanza())) {
                return core.cx.count(Counter::Duplicate); // sent again; it means the calls of its own time
            }
            return self.stop_all(core);
        };
        if let Some(key) = self.calls.key_of(&CallId::known(target.as_str())) {
            let reason = stop.reason.as_deref().and_then(StopReason::from_text);
            self.cancel_call(core, key, reason.unwrap_or(StopReason::Caller));
        }
    }
}

/// Returns the stop of a call. It names the reason to an owner that lists `stop_reason`.
fn stop_message(core: &Core, owner: &Identity, call: &CallId, reason: StopReason) -> Message {
    let is_read = core.peers.get(owner).is_some_and(|remote| remote.lists(Feature::StopReason));
    Message::ControlStop(ControlStop {
        reason: is_read.then(|| reason.as_str().to_owned()),
        conversation_id: Some(core.cx.config.room.clone()),
        target_id: Some(call.as_str().to_owned()),
        ..ControlStop::default()
    })
}
