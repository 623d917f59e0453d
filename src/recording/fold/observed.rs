//! What an observer cannot know, and what is made of it: it hears copies, which say neither who was asked nor what was
//! said first, and its own file says no more than them.

use super::{CallsBuilder, Slot, Told};
use crate::{
    recording::RecordedOutcome,
    tool::{CallId, ErrorCode, Execution},
    transport::Identity,
};

impl CallsBuilder {
    /// Whether the recorded participant is an observer.
    pub(crate) fn observes(&self) -> bool {
        self.observers.contains(&self.here)
    }

    /// Whether the file must have the answer of this call, if there was one: an observer hears those who know of it,
    /// and they have told it what they offer.
    pub(in crate::recording) fn expects_answer(&self, serial: u64) -> bool {
        let Some(call) = self.call(serial) else { return false };
        !self.observes()
            || call.execution == Some(Execution::Server)
            || self
                .offered
                .get(&call.tool)
                .is_some_and(|count| *count > usize::from(self.offers(&call.caller, &call.tool)))
    }

    /// Who answered this call, and was not its owner after all.
    pub(in crate::recording) fn misled_by(&self, serial: u64) -> Option<&Identity> {
        self.slots.get(&serial)?.misled_by.as_ref()
    }

    /// Whether this participant offers the tool.
    pub(super) fn offers(&self, who: &Identity, tool: &str) -> bool {
        self.offers.get(who).is_some_and(|tools| tools.contains(tool))
    }

    /// Whether anybody does.
    pub(super) fn is_offered(&self, tool: &str) -> bool {
        self.offered.contains_key(tool)
    }

    /// The call of this id whose request comes after its result: they are copies of two senders, and none waits for the
    /// other.
    pub(super) fn adopt(&mut self, id: &CallId, caller: &Identity) -> Option<u64> {
        if !self.observes() {
            return None;
        }
        let nobodys = (id.clone(), Identity::from(""));
        let serial = self.keys.get(&nobodys).copied()?;
        let slot = self.slots.get_mut(&serial).filter(|slot| slot.asked.is_none())?;
        slot.call.caller = caller.clone();
        self.keys.remove(&nobodys);
        self.keys.insert((id.clone(), caller.clone()), serial);
        Some(serial)
    }

    /// A call that an observer hears of before it hears its request; its caller is not known yet.
    pub(super) fn foresee(&mut self, id: &CallId) -> Option<u64> {
        if self.observes() { self.insert(id, &Identity::from("")) } else { None }
    }

    /// What was said before the request was heard is looked at again: now it is known of which tool.
    pub(super) fn doubt(&mut self, serial: u64) {
        let owner = self.call(serial).and_then(|call| call.owner.clone()).filter(|_| self.observes());
        let doubtful = owner.is_some_and(|owner| self.is_doubtful(serial, &owner));
        if let Some(slot) = self.slots.get_mut(&serial) {
            slot.guessed = doubtful;
        }
    }

    /// Whether others offer the tool, and this participant does not.
    fn is_doubtful(&self, serial: u64, from: &Identity) -> bool {
        let Some(slot) = self.slots.get(&serial) else { return false };
        let call = &slot.call;
        slot.asked.is_some()
            && call.execution != Some(Execution::Server)
            && *from != call.caller
            && !self.offers(from, &call.tool)
            && self.is_offered(&call.tool)
    }

    /// Whether it may be that this participant was asked: any may, as long as nobody answered, and whoever offers the
    /// tool, after one that does not had answered, or if the call was asked more than once.
    pub(super) fn perhaps_may_answer(&self, serial: u64, from: &Identity) -> bool {
        let Some(slot) = self.slots.get(&serial).filter(|_| self.observes()) else { return false };
        let call = &slot.call;
        let cannot = from.is_empty() || self.observers.contains(from) || *from == call.caller;
        if cannot || slot.asked.is_none() || call.execution == Some(Execution::Server) {
            return false;
        }
        call.owner.is_none() || ((slot.guessed || slot.stanzas.len() > 1) && self.offers(from, &call.tool))
    }

    /// Takes whoever speaks for the owner, and says what its result is, if it is one.
    pub(super) fn believe(
        &mut self,
        serial: u64,
        from: &Identity,
        outcome: Option<&RecordedOutcome>,
    ) -> Told {
        if !self.observes() {
            return Told::Settled;
        }
        let doubtful = self.is_doubtful(serial, from);
        let Some(slot) = self.slots.get_mut(&serial) else { return Told::Settled };
        let is_decided = slot.call.settled.is_some() && !slot.guessed;
        if slot.taken_over || is_decided || slot.call.owner.as_ref() == Some(from) {
            return slot.word(doubtful, outcome);
        }
        let was_wrong = slot.guessed && slot.answer.is_some() && !is_unknown(&slot.call.outcome);
        let before = slot.call.owner.replace(from.clone());
        if was_wrong {
            slot.misled_by.clone_from(&before);
        }
        if std::mem::replace(&mut slot.guessed, doubtful) {
            slot.answer = None;
            slot.call.outcome = if slot.withdrawn { RecordedOutcome::Stopped } else { RecordedOutcome::Open };
            (slot.call.started, slot.call.settled, slot.call.result) = (None, None, None);
        } else if slot.before.len() < super::MAX_AGAIN {
            slot.before.extend(before);
        }
        slot.word(doubtful, outcome)
    }
}

impl Slot {
    /// What a result is, if there is none yet.
    fn word(&self, doubtful: bool, outcome: Option<&RecordedOutcome>) -> Told {
        if self.misled_by.is_some() {
            Told::SettledAfterAll
        } else if doubtful && !outcome.is_some_and(is_unknown) {
            Told::SettledDoubtfully
        } else {
            Told::Settled
        }
    }
}

/// That it does not have the tool, says rightly who does not offer it.
fn is_unknown(outcome: &RecordedOutcome) -> bool {
    matches!(outcome, RecordedOutcome::Failed { code, .. } if *code == ErrorCode::UNKNOWN_TOOL)
}
