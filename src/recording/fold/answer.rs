//! Who may say how a call goes on and ends, and what it is when somebody does.

use super::{
    CallsBuilder, MAX_WORD, Told,
    slot::{answer_of, beginning, shortened},
};
use crate::{
    protocol::frame::{Frame, ToolUseResult},
    recording::{Direction, Moment, REDACTED, Recorded, RecordedCall, RecordedOutcome, original::value_size},
    tool::{ErrorCode, Execution},
    transport::Identity,
};

impl CallsBuilder {
    pub(super) fn result(
        &mut self,
        at: Moment,
        packet: &Recorded,
        frame: &Frame,
        result: &ToolUseResult,
    ) -> Option<(u64, Told)> {
        let outcome = match result.success {
            true => RecordedOutcome::Ok,
            false => RecordedOutcome::Failed {
                code: result.error_code.clone().map_or(ErrorCode::EXECUTION_ERROR, |code| {
                    if code.as_str().len() <= MAX_WORD {
                        code
                    } else {
                        beginning(code.as_str(), MAX_WORD).into()
                    }
                }),
                message: result.error_message.as_deref().map(shortened),
            },
        };
        let serial = match self.find(packet, result.id.as_str()) {
            Some(serial) => serial,
            None => {
                // Its request is not in the file: recording began later.
                let unknown = Identity::from("");
                let caller = match packet.direction {
                    Direction::Sent => packet.to.iter().find(|who| !self.observers.contains(*who)),
                    Direction::Heard if self.observes() => Some(&unknown),
                    Direction::Heard => Some(&self.here),
                };
                let caller = caller.unwrap_or_else(|| packet.from.identity()).clone();
                self.insert(&result.id, &caller)?
            }
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
    ) -> Option<(u64, Told)> {
        let from = packet.from.identity();
        if !self.may_answer(serial, from) {
            return Some((serial, Told::WrongSender));
        }
        let slot = self.slots.get_mut(&serial)?;
        if slot.before.contains(from) && slot.call.owner.as_ref() != Some(from) {
            // Whoever was asked before says it late; the call is somebody else's by now.
            return Some((serial, Told::Other));
        }
        let believed = self.believe(serial, from, Some(&outcome));
        let slot = self.slots.get_mut(&serial)?;
        if slot.call.settled.is_some() && *from == slot.call.caller && slot.was_declined() {
            slot.take_over();
        }
        match slot.answer {
            Some(first) if first == answer => return Some((serial, Told::SettledAgain)),
            Some(_) if slot.taken_over && *from != slot.call.caller => return Some((serial, Told::Other)),
            Some(_) => return Some((serial, Told::SettledOther)),
            None if slot.taken_over && *from != slot.call.caller => return Some((serial, Told::Other)),
            None => {}
        }
        slot.answer = Some(answer);
        slot.call.owner = Some(from.clone());
        slot.call.settled = Some(at);
        slot.call.outcome = outcome;
        slot.call.result = size;
        self.settled.push_back(serial);
        Some((serial, believed))
    }

    pub(super) fn stop(&mut self, at: Moment, serial: u64, packet: &Recorded) -> Option<(u64, Told)> {
        let from = packet.from.identity();
        let slot = self.slots.get_mut(&serial)?;
        let call = &mut slot.call;
        if *from != call.caller {
            if call.owner.as_ref() == Some(from) {
                call.stopped.get_or_insert(at);
            }
            return Some((serial, Told::Other));
        }
        call.stopped.get_or_insert(at);
        slot.withdrawn = true;
        if call.outcome == RecordedOutcome::Open && !slot.taken_over {
            call.outcome = RecordedOutcome::Stopped;
        }
        Some((serial, Told::Stopped))
    }

    /// Something that only the owner may say.
    pub(super) fn by_owner(
        &mut self,
        serial: u64,
        packet: &Recorded,
        note: impl FnOnce(&mut RecordedCall),
    ) -> Option<(u64, Told)> {
        let from = packet.from.identity();
        if !self.may_answer(serial, from) {
            return Some((serial, Told::WrongSender));
        }
        self.believe(serial, from, None);
        let slot = self.slots.get_mut(&serial)?;
        if slot.call.owner.is_none() {
            slot.call.owner = Some(from.clone());
        }
        note(&mut slot.call);
        Some((serial, Told::Other))
    }

    /// Whether this participant may answer the call, as far as is known.
    pub(super) fn may_answer(&self, serial: u64, from: &Identity) -> bool {
        self.surely_may_answer(serial, from) || self.perhaps_may_answer(serial, from)
    }

    pub(super) fn surely_may_answer(&self, serial: u64, from: &Identity) -> bool {
        let Some(slot) = self.slots.get(&serial) else { return false };
        let call = &slot.call;
        if from.is_empty() || self.observers.contains(from) {
            return false;
        }
        if slot.asked.is_none() {
            // Without its request nobody knows better.
            return call.owner.as_ref().is_none_or(|owner| owner == from);
        }
        if *from == call.caller {
            return slot.taken_over
                || matches!(call.execution, Some(Execution::Server | Execution::Either))
                || call.owner.as_ref() == Some(from);
        }
        match (&call.owner, call.execution) {
            (_, Some(Execution::Server)) => false,
            (Some(owner), _) => owner == from || slot.before.contains(from),
            (None, _) => self.offers(from, &call.tool) || !self.is_offered(&call.tool),
        }
    }
}
