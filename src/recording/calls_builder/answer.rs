//! Applies results, stops and progress, and decides which participants may send them.

use super::{
    CallUpdate, CallsBuilder, MAX_WORD,
    tracked_call::{Stop, answer_of, shortened},
};
use crate::{
    protocol::frame::{ControlStop, Frame, ToolUseResult},
    recording::{Direction, Moment, REDACTED, Recorded, RecordedCall, RecordedOutcome, original::value_size},
    tool::{ErrorCode, Execution, StopReason, public::public_message},
    transport::Identity,
    value::prefix,
};

impl CallsBuilder {
    pub(super) fn result(
        &mut self,
        at: Moment,
        packet: &Recorded,
        frame: &Frame,
        result: &ToolUseResult,
    ) -> Option<(u64, CallUpdate)> {
        let serial = match self.find(packet, result.id.as_str()) {
            Some(serial) => serial,
            None => {
                // The request is not in the file: recording started later.
                let caller = match packet.direction {
                    Direction::Sent => packet
                        .to
                        .iter()
                        .find(|who| !self.observers.contains(*who))
                        .or_else(|| packet.sender()),
                    Direction::Heard if self.observes() => None,
                    Direction::Heard => self.here.as_ref(),
                };
                self.insert(&result.id, caller.cloned().as_ref())?
            }
        };
        self.result_of(at, serial, packet, frame, result)
    }

    /// Applies the result of a call.
    pub(super) fn result_of(
        &mut self,
        at: Moment,
        serial: u64,
        packet: &Recorded,
        frame: &Frame,
        result: &ToolUseResult,
    ) -> Option<(u64, CallUpdate)> {
        let outcome = match result.success {
            true => RecordedOutcome::Ok,
            false => RecordedOutcome::Failed {
                code: result.error_code.clone().map_or(ErrorCode::EXECUTION_ERROR, |code| {
                    if code.as_str().len() <= MAX_WORD {
                        code
                    } else {
                        prefix(code.as_str(), MAX_WORD).into()
                    }
                }),
                message: result
                    .error_message
                    .as_deref()
                    .map(|text| shortened(public_message(text, result.result.as_ref()))),
            },
        };
        let is_redacted = frame.meta_bool(REDACTED);
        let size_of = |bytes: &[u8]| if is_redacted { value_size(bytes) } else { bytes.len() };
        let size = result.result.as_ref().map(|body| size_of(body.as_bytes()));
        self.settle(at, serial, packet, outcome, size, answer_of(result))
    }

    pub(super) fn settle(
        &mut self,
        at: Moment,
        serial: u64,
        packet: &Recorded,
        outcome: RecordedOutcome,
        size: Option<usize>,
        answer: [u8; 32],
    ) -> Option<(u64, CallUpdate)> {
        let from = packet.sender();
        if !self.may_answer(serial, from) {
            return Some((serial, CallUpdate::WrongSender));
        }
        let tracked_call = self.tracked.get_mut(&serial)?;
        if from.is_some_and(|from| tracked_call.before.contains(from))
            && tracked_call.call.owner.as_ref() != from
        {
            // A former owner answered late; another participant owns the call by now.
            return Some((serial, CallUpdate::Other));
        }
        let update = self.accept_sender(serial, from, Some(&outcome));
        let tracked_call = self.tracked.get_mut(&serial)?;
        if tracked_call.answered.is_some()
            && from == tracked_call.call.caller.as_ref()
            && tracked_call.was_declined()
        {
            tracked_call.take_over();
        }
        match tracked_call.answer {
            Some(first) if first == answer => return Some((serial, CallUpdate::ResultRepeated)),
            Some(_) if tracked_call.taken_over && from != tracked_call.call.caller.as_ref() => {
                return Some((serial, CallUpdate::Other));
            }
            // The caller ran it, and shows each participant its part of the result.
            Some(_) if tracked_call.is_for_others(packet) => {
                tracked_call.shown_to.extend(packet.to.iter().cloned());
                return Some((serial, CallUpdate::ResultRepeated));
            }
            Some(_) => return Some((serial, CallUpdate::ResultChanged)),
            None if tracked_call.taken_over && from != tracked_call.call.caller.as_ref() => {
                return Some((serial, CallUpdate::Other));
            }
            None => {}
        }
        tracked_call.answer = Some(answer);
        tracked_call.shown_to.clone_from(&packet.to);
        tracked_call.call.owner = from.cloned();
        (tracked_call.answered, tracked_call.answer_size) = (Some(at), size);
        tracked_call.answer_outcome = outcome;
        self.settled.push_back(serial);
        Some((serial, update))
    }

    pub(super) fn stop(
        &mut self,
        at: Moment,
        serial: u64,
        packet: &Recorded,
        stop: &ControlStop,
    ) -> Option<(u64, CallUpdate)> {
        let from = packet.sender();
        let tracked_call = self.tracked.get_mut(&serial)?;
        let call = &mut tracked_call.call;
        // An observer that missed the request does not know the caller, but only a caller and the owner stop a call.
        let is_unknown = call.caller.is_none() && tracked_call.asked.is_none();
        let is_caller = from == call.caller.as_ref() || is_unknown && from != call.owner.as_ref();
        if !is_caller {
            if from.is_some() && call.owner.as_ref() == from {
                call.stopped.get_or_insert(at);
            }
            return Some((serial, CallUpdate::Other));
        }
        call.stopped.get_or_insert(at);
        tracked_call.stopped_by_caller = true;
        if !tracked_call.taken_over {
            let reason = stop.reason.as_deref().and_then(StopReason::from_text);
            let is_after_answer = tracked_call.answered.is_some();
            tracked_call.stop.get_or_insert(Stop { at, reason, is_after_answer });
        }
        Some((serial, CallUpdate::Stopped))
    }

    /// Applies a message that only the owner may send.
    pub(super) fn by_owner(
        &mut self,
        serial: u64,
        packet: &Recorded,
        note: impl FnOnce(&mut RecordedCall),
    ) -> Option<(u64, CallUpdate)> {
        let from = packet.sender();
        if !self.may_answer(serial, from) {
            return Some((serial, CallUpdate::WrongSender));
        }
        self.accept_sender(serial, from, None);
        let tracked_call = self.tracked.get_mut(&serial)?;
        if tracked_call.call.owner.is_none() {
            tracked_call.call.owner = from.cloned();
        }
        note(&mut tracked_call.call);
        Some((serial, CallUpdate::Other))
    }

    /// Whether this participant may answer the call, as far as is known.
    pub(super) fn may_answer(&self, serial: u64, from: Option<&Identity>) -> bool {
        self.surely_may_answer(serial, from) || self.observer_accepts(serial, from)
    }

    pub(super) fn surely_may_answer(&self, serial: u64, from: Option<&Identity>) -> bool {
        let Some(from) = from.filter(|from| !self.observers.contains(*from)) else { return false };
        let Some(tracked_call) = self.tracked.get(&serial) else { return false };
        let call = &tracked_call.call;
        if tracked_call.asked.is_none() {
            // Without the request, any participant may be the owner.
            return call.owner.as_ref().is_none_or(|owner| owner == from);
        }
        if Some(from) == call.caller.as_ref() {
            return tracked_call.taken_over
                || matches!(call.execution, Some(Execution::Server | Execution::Either))
                || call.owner.as_ref() == Some(from);
        }
        match (&call.owner, call.execution) {
            (_, Some(Execution::Server)) => false,
            (Some(owner), _) => owner == from || tracked_call.before.contains(from),
            (None, _) => self.offers(from, &call.tool) || !self.is_offered(&call.tool),
        }
    }
}
