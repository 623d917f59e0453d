//! Sends results to callers once, and keeps them until they are acknowledged.

use super::{
    Core, Incoming, Purpose, RequestCache, Timer, request_cache::UnacknowledgedResult, result_message,
};
use crate::{
    protocol::{
        frame::{Acknowledgement, Message, Meta},
        session::{
            codec,
            delivery::{Sent, Unfit},
            recipients::Feature,
        },
    },
    tool::{CallId, ErrorCode, Outcome, ToolError},
    transport::Identity,
    value::prefix,
};

impl Incoming {
    /// Handles the assistant's acknowledgement of a result, a claim or a stop request. Returns the stanza of the stop
    /// request.
    pub(crate) fn handle_acknowledgement(
        &mut self,
        core: &mut Core,
        id: &Identity,
        it: &Acknowledgement,
    ) -> Option<i32> {
        let stanza = it.acknowledged_stanza_id?;
        let acknowledged = core.delivery.acknowledged(id, stanza, it.acknowledged_message_id.as_deref());
        if acknowledged.has_room {
            self.retransmit(core, id);
        }
        match acknowledged.purpose {
            Some(Purpose::Claim(call)) => self.handle_claim_answer(core, id, &call, it.success),
            Some(Purpose::Result(call)) => {
                self.change(core, id, |cache, now| cache.acknowledged(now, &call));
            }
            Some(Purpose::StopRequest) => return Some(stanza),
            _ => {}
        }
        None
    }

    /// Returns the results for this caller that have never been sent.
    pub(crate) fn results_never_sent(&self, id: &Identity) -> Vec<Purpose> {
        let calls = self.caches.get(id).map(RequestCache::answers_not_sent).unwrap_or_default();
        calls.into_iter().map(Purpose::Result).collect()
    }

    /// Sends unacknowledged frames again as long as the peer's window has room.
    pub(crate) fn retransmit(&mut self, core: &mut Core, id: &Identity) {
        while let Some(frame) = core.delivery.next_retransmission(&core.cx, &core.peers, id) {
            let sent = match frame {
                Purpose::Result(call) => self.send_result(core, id, &call),
                Purpose::Claim(call) => self.claim_again(core, id, &call),
                _ => None,
            };
            if let Some(sent) = sent {
                core.delivery.note_retransmitted(&mut core.cx, id, &sent);
            }
        }
    }

    /// Removes a frame from the window that was not sent. The next frames may be sent again.
    pub(crate) fn release_window(&mut self, core: &mut Core, id: &Identity, stanza: i32) {
        if core.delivery.release_window(id, stanza) {
            self.retransmit(core, id);
        }
    }

    /// Sends the results that have never been sent to this caller.
    pub(crate) fn send_waiting_results(&mut self, core: &mut Core, caller: &Identity) {
        let waiting = self.caches.get(caller).map(RequestCache::answers_not_sent).unwrap_or_default();
        for call in waiting {
            self.send_result(core, caller, &call);
        }
    }

    /// Handles a result whose packet was not sent. The result is kept and sent again when its caller is reachable.
    pub(crate) fn result_unsent(&mut self, caller: &Identity, call: &CallId) {
        if let Some(cache) = self.caches.get_mut(caller) {
            cache.unsent(call);
        }
    }

    /// Replaces a result that is too large for the transport, or that its caller has refused, with an error.
    pub(crate) fn replace_result(
        &mut self,
        core: &mut Core,
        caller: &Identity,
        call: &CallId,
        error: ToolError,
    ) {
        let message = result_message(&core.cx.config.room, call, Err(error));
        let Some(cache) = self.caches.get_mut(caller) else { return };
        let Some(answer) = cache.answer_of(call) else { return };
        // The message that did not fit may be such an error itself. Sending another one at once would repeat
        // this forever.
        let is_second = code_of(&answer.message) == Some(&ErrorCode::RESULT_TOO_LARGE);
        answer.message = message;
        let sent = cache.unsent(call);
        let has_room = sent.is_some_and(|stanza| core.delivery.forget_frame(caller, stanza));
        if !is_second {
            self.send_result(core, caller, call);
        }
        if has_room {
            self.retransmit(core, caller);
        }
    }

    /// Handles the timer of a caller's remembered requests.
    pub(crate) fn expire(&mut self, core: &mut Core, caller: &Identity) {
        let Some(cache) = self.caches.get_mut(caller) else { return };
        if cache.expire(core.cx.now) {
            core.delivery.forget_frames(caller);
        }
        // As long as the peer is known, the empty table still holds its floor.
        if cache.is_empty() && core.peers.get(caller).is_none() {
            self.caches.remove(caller);
        }
        self.set_expiry(core, caller);
    }

    /// Sends the result of a request, or keeps it until its caller is reachable. `began` states that the tool had
    /// started.
    pub(super) fn answer(
        &mut self,
        core: &mut Core,
        caller: &Identity,
        call: &CallId,
        outcome: Outcome,
        began: bool,
    ) {
        let states_start =
            // Only where the code would prove the opposite. The progress that reported the start can be lost,
            // and nothing sends it again (`wire.md`, section 5.10).
            began && outcome.as_ref().is_err_and(|error| error.code().proves_that_nothing_ran());
        let outcome = outcome.map_err(|error| shortened(error, core.cx.config.caps.requests.message_bytes));
        let mut message = result_message(&core.cx.config.room, call, outcome);
        let mut size = size_of_answer(&message);
        if let Err(room) = self.room_for(core, caller, size) {
            message = result_message(&core.cx.config.room, call, Err(too_large(size, room)));
            size = size_of_answer(&message);
        }
        let Some(cache) = self.caches.get_mut(caller) else { return };
        cache.answer(call, UnacknowledgedResult::new(message, size, states_start));
        self.send_result(core, caller, call);
    }

    /// Sends a result again that nothing acknowledges, because its caller has repeated the request.
    pub(super) fn answer_again(&mut self, core: &mut Core, caller: &Identity, call: &CallId) {
        let before = self.caches.get_mut(caller).and_then(|cache| cache.unsent(call));
        if let Some(stanza) = before {
            core.delivery.forget_frame(caller, stanza);
        }
        self.send_result(core, caller, call);
    }

    /// Withdraws a large result that is being sent because its caller has stopped the call.
    pub(super) fn withdraw_result(&mut self, core: &mut Core, caller: &Identity, call: &CallId) {
        let Some(cache) = self.caches.get_mut(caller) else { return };
        let sent = cache.answer_of(call).and_then(|answer| answer.sent);
        // A result in one packet is sent already or about to be, and withdrawing it would save nothing.
        let Some(stanza) = sent.filter(|stanza| core.delivery.is_large(caller, *stanza)) else { return };
        tracing::debug!(%call, stanza, "the result of a stopped call is withdrawn");
        cache.acknowledged(core.cx.now, call);
        self.set_expiry(core, caller);
        if core.delivery.withdraw_frame(caller, stanza) {
            self.retransmit(core, caller);
        }
    }

    /// Sets the timer of a caller's remembered requests, which have changed.
    pub(super) fn set_expiry(&mut self, core: &mut Core, caller: &Identity) {
        let timer = Timer::Table(caller.clone());
        let released = self.caches.get_mut(caller).map(|cache| std::mem::take(&mut cache.released));
        for stanza in released.unwrap_or_default() {
            core.delivery.forget_frame(caller, stanza);
        }
        match self.caches.get(caller).and_then(RequestCache::next_expiry) {
            Some(at) => core.cx.set_timer(timer, at.saturating_duration_since(core.cx.now)),
            None => core.cx.timers.cancel(&timer),
        }
    }

    /// Sends a result. If it was sent before, the stanza stays the same. An acknowledged result is not sent.
    pub(crate) fn send_result(&mut self, core: &mut Core, caller: &Identity, call: &CallId) -> Option<Sent> {
        let cache = self.caches.get_mut(caller)?;
        let form = cache.find(call)?.form.clone();
        let remote = core.peers.get(caller).filter(|remote| form.reaches(core, caller, remote))?;
        let acknowledges = remote.lists(Feature::Ack);
        let answer = cache.answer_of(call)?;
        let (mut message, before, began) = (answer.message.clone(), answer.sent, answer.states_start);
        if let (false, Message::ToolUseResult(result)) = (form.is_frame(), &message) {
            if before.is_some() {
                return None; // nothing acknowledges it, so it is sent once
            }
            let sent = form.send_result(core, caller, result, began)?;
            cache.sent_once(core.cx.now, call, sent.stanza);
            self.set_expiry(core, caller);
            return None;
        }
        let meta = if began { codec::begun() } else { Meta::default() };
        // A plain caller acknowledges nothing, so the result is sent once.
        let purpose = acknowledges.then(|| Purpose::Result(call.clone()));
        // Under its stanza, by which the caller's acknowledgement finds it whichever copy arrives.
        let sent = match core.to(caller).post_again(before, &meta, &message, purpose.clone()) {
            Err(Unfit::TooLarge { size, limit }) => {
                // The caller may have returned without byte streams since this result was made.
                message = result_message(&core.cx.config.room, call, Err(too_large(size, limit)));
                core.to(caller).post(&meta, &message, purpose)
            }
            sent => sent,
        };
        if before.is_none() {
            core.copy(&meta, &message);
        }
        let cache = self.caches.get_mut(caller)?;
        if let Some(stanza) = before.filter(|before| !matches!(&sent, Ok(sent) if sent.stanza == *before)) {
            core.delivery.forget_frame(caller, stanza);
        }
        match &sent {
            Ok(sent) if acknowledges => {
                if let Some(answer) = cache.answer_of(call) {
                    (answer.message, answer.sent) = (message, Some(sent.stanza));
                }
            }
            Ok(_) => cache.acknowledged(core.cx.now, call),
            Err(error) => {
                tracing::warn!(%call, ?error, "a result cannot be sent");
                cache.acknowledged(core.cx.now, call);
            }
        }
        self.set_expiry(core, caller);
        sent.ok()
    }

    /// Checks whether one more result of this size may be kept for its caller, or returns the largest size allowed. A
    /// single result may exceed the limit.
    fn room_for(&mut self, core: &Core, caller: &Identity, size: usize) -> Result<(), usize> {
        let most = core.cx.config.caps.requests.table_bytes;
        let Some(cache) = self.caches.get_mut(caller) else { return Ok(()) };
        cache.drop_kept(most.saturating_sub(size));
        let room = most.saturating_sub(cache.bytes);
        if cache.bytes > 0 && size > room { Err(room) } else { Ok(()) }
    }
}

fn code_of(message: &Message) -> Option<&ErrorCode> {
    let Message::ToolUseResult(result) = message else { return None };
    result.error_code.as_ref()
}

fn size_of_answer(message: &Message) -> usize {
    let Message::ToolUseResult(result) = message else { return 0 };
    let text = result.error_message.as_ref().map_or(0, String::len);
    result.result.as_ref().map_or(0, |body| body.as_bytes().len()) + text
}

pub(crate) fn too_large(size: usize, limit: usize) -> ToolError {
    ToolError::new(
        ErrorCode::RESULT_TOO_LARGE,
        format!("the result with its frame has {size} bytes; the limit is {limit} bytes"),
    )
}

/// Returns the error with its text cut to the limit.
fn shortened(error: ToolError, limit: usize) -> ToolError {
    if error.message().len() <= limit && error.code().as_str().len() <= limit {
        return error;
    }
    let (message, code) = (error.message(), error.code());
    let code = code.as_str();
    let short = ToolError::new(prefix(code, limit), prefix(message, limit));
    match error.partial() {
        Some(partial) => short.with_partial(partial.clone()),
        None => short,
    }
}
