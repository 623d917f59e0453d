//! Infers what an observer cannot know: the copies it receives do not contain the original receiver or order.

use super::{CallUpdate, CallsBuilder, TrackedCall};
use crate::{
    recording::RecordedOutcome,
    tool::{CallId, ErrorCode, Execution},
    transport::Identity,
};

impl CallsBuilder {
    /// Whether this is the recorded participant.
    pub(in crate::recording) fn is_recorded(&self, who: Option<&Identity>) -> bool {
        who.is_some() && who == self.here.as_ref()
    }

    /// Whether the recorded participant is an observer.
    pub(crate) fn observes(&self) -> bool {
        self.here.as_ref().is_some_and(|here| self.observers.contains(here))
    }

    /// Whether the file must contain the answer of this call, if there was one. An observer receives frames only from
    /// participants that know of it, and these have registered their tools.
    pub(in crate::recording) fn expects_answer(&self, serial: u64) -> bool {
        let Some(call) = self.call(serial) else { return false };
        !self.observes()
            || call.execution == Some(Execution::Server)
            || self.offered.get(&call.tool).is_some_and(|count| {
                let by_caller = call.caller.as_ref().is_some_and(|caller| self.offers(caller, &call.tool));
                *count > usize::from(by_caller)
            })
    }

    /// The participant that answered this call but turned out not to own it.
    pub(in crate::recording) fn wrong_owner(&self, serial: u64) -> Option<&Identity> {
        self.tracked.get(&serial)?.wrong_owner.as_ref()
    }

    /// Whether this participant offers the tool.
    pub(super) fn offers(&self, who: &Identity, tool: &str) -> bool {
        self.offers.get(who).is_some_and(|tools| tools.contains(tool))
    }

    /// Whether any participant offers the tool.
    pub(super) fn is_offered(&self, tool: &str) -> bool {
        self.offered.contains_key(tool)
    }

    /// Finds the call of a request that follows its result: the two copies have different senders and may be
    /// reordered.
    pub(super) fn adopt(&mut self, id: &CallId, caller: Option<&Identity>) -> Option<u64> {
        if !self.observes() {
            return None;
        }
        let nobodys = (id.clone(), None);
        let serial = self.keys.get(&nobodys).copied()?;
        let tracked_call =
            self.tracked.get_mut(&serial).filter(|tracked_call| tracked_call.asked.is_none())?;
        tracked_call.call.caller = caller.cloned();
        self.keys.remove(&nobodys);
        self.keys.insert((id.clone(), caller.cloned()), serial);
        Some(serial)
    }

    /// Adds a call whose request an observer has not yet received; its caller is still unknown.
    pub(super) fn insert_unrequested(&mut self, id: &CallId) -> Option<u64> {
        if self.observes() { self.insert(id, None) } else { None }
    }

    /// Checks the owner again once the request identifies the tool.
    pub(super) fn recheck_owner(&mut self, serial: u64) {
        let owner = self.call(serial).and_then(|call| call.owner.clone()).filter(|_| self.observes());
        let uncertain = owner.is_some_and(|owner| self.is_uncertain(serial, &owner));
        if let Some(tracked_call) = self.tracked.get_mut(&serial) {
            tracked_call.owner_uncertain = uncertain;
        }
    }

    /// Whether others offer the tool and this participant does not.
    fn is_uncertain(&self, serial: u64, from: &Identity) -> bool {
        let Some(tracked_call) = self.tracked.get(&serial) else { return false };
        let call = &tracked_call.call;
        tracked_call.asked.is_some()
            && call.execution != Some(Execution::Server)
            && Some(from) != call.caller.as_ref()
            && !self.offers(from, &call.tool)
            && self.is_offered(&call.tool)
    }

    /// Whether this participant may have been asked: any may while there is no answer. After an answer from a
    /// participant that does not offer the tool, or if the call was requested more than once, only those that offer
    /// it may.
    pub(super) fn observer_accepts(&self, serial: u64, from: Option<&Identity>) -> bool {
        let Some(from) = from else { return false };
        let Some(tracked_call) = self.tracked.get(&serial).filter(|_| self.observes()) else { return false };
        let call = &tracked_call.call;
        let cannot = self.observers.contains(from) || Some(from) == call.caller.as_ref();
        if cannot || tracked_call.asked.is_none() || call.execution == Some(Execution::Server) {
            return false;
        }
        call.owner.is_none()
            || ((tracked_call.owner_uncertain || tracked_call.stanzas.len() > 1)
                && self.offers(from, &call.tool))
    }

    /// Records the sender as the owner, and classifies its result if it is one.
    pub(super) fn accept_sender(
        &mut self,
        serial: u64,
        from: Option<&Identity>,
        outcome: Option<&RecordedOutcome>,
    ) -> CallUpdate {
        let Some(from) = from.filter(|_| self.observes()) else { return CallUpdate::Settled };
        let uncertain = self.is_uncertain(serial, from);
        let Some(tracked_call) = self.tracked.get_mut(&serial) else { return CallUpdate::Settled };
        let is_decided = tracked_call.answered.is_some() && !tracked_call.owner_uncertain;
        if tracked_call.taken_over || is_decided || tracked_call.call.owner.as_ref() == Some(from) {
            return tracked_call.word(uncertain, outcome);
        }
        let was_wrong = tracked_call.owner_uncertain
            && tracked_call.answer.is_some()
            && !is_unknown(&tracked_call.answer_outcome);
        let before = tracked_call.call.owner.replace(from.clone());
        if was_wrong {
            tracked_call.wrong_owner.clone_from(&before);
        }
        if std::mem::replace(&mut tracked_call.owner_uncertain, uncertain) {
            tracked_call.forget_answer();
            tracked_call.call.started = None;
        } else if tracked_call.before.len() < super::MAX_AGAIN {
            tracked_call.before.extend(before);
        }
        tracked_call.word(uncertain, outcome)
    }
}

impl TrackedCall {
    /// Classifies the first result.
    fn word(&self, uncertain: bool, outcome: Option<&RecordedOutcome>) -> CallUpdate {
        if self.wrong_owner.is_some() {
            CallUpdate::SettledByOwner
        } else if uncertain && !outcome.is_some_and(is_unknown) {
            CallUpdate::SettledUncertain
        } else {
            CallUpdate::Settled
        }
    }
}

/// Whether the tool is unknown: a correct answer from a participant that does not offer it.
fn is_unknown(outcome: &RecordedOutcome) -> bool {
    matches!(outcome, RecordedOutcome::Failed { code, .. } if *code == ErrorCode::UNKNOWN_TOOL)
}
