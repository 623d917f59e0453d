//! Tools of the assistant that a client may run in its place (`wire.md`, section 4): never both.
//!
//! The assistant's half of a claim: a client that can run such a tool is asked first. Until its claim is granted
//! it has not started, and so the assistant may withdraw the call and run it itself.

use std::time::Instant;

use super::{
    CallKey, Counter, Session, Timer,
    codec::Incoming,
    outbound::{Asked, Call, Stage},
    owner::Choice,
    past::Gone,
    peer::Feature,
};
use crate::{
    protocol::frame::{Acknowledgement, Message},
    tool::{CallError, CallId, Execution, ToolName},
    transport::Identity,
    value::Value,
};

/// Whether we may run a call that somebody else was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fallback {
    /// No: it is its owner's alone.
    Never,
    /// Yes, until its owner claimed it: before, nothing has started.
    UntilClaimed,
    /// No more: its owner claimed it, under this stanza.
    Claimed(i32),
    /// Only if its owner says that it has no such tool. It claims nothing, and may have started.
    IfUnknown,
}

impl Fallback {
    /// What the request says, whenever it is sent.
    pub(super) fn execution(self) -> Execution {
        match self {
            Self::UntilClaimed | Self::Claimed(_) => Execution::Either,
            Self::Never | Self::IfUnknown => Execution::Client,
        }
    }
}

/// What has to be done about who was asked, when we run a call in its place.
enum Instead {
    /// It shall not start: it is told.
    Withdrawn,
    /// It said that it does not run it.
    Declined,
    /// It never heard of it.
    Unheard,
}

impl Session {
    /// Begins a call of a tool of our own: a client that can run it in our place is asked first.
    pub(super) fn run_or_ask(&mut self, now: Instant, mut call: Call, tool: &ToolName) -> CallKey {
        let prefers = |ours: &crate::tool::Tool| ours.name() == tool && ours.tool_options().prefer_client;
        if call.named.is_some() || !self.tools.iter().any(prefers) {
            return self.run_own(now, call, tool);
        }
        // Whoever cannot be asked just now, for whatever reason, is not waited for.
        let Choice::Ask(owner) = self.choose(&call.tool, None) else {
            return self.run_own(now, call, tool);
        };
        let claims =
            self.peers.get(&owner).is_some_and(|it| it.lists(Feature::Claim) && it.lists(Feature::Ack));
        call.fallback = if claims { Fallback::UntilClaimed } else { Fallback::IfUnknown };
        match self.send_request(now, &call, &owner) {
            Ok(asked) => self.ask_first(now, call, asked),
            Err(error) => {
                tracing::debug!(call = %call.id, %owner, %error, "it cannot be asked, so we run it");
                call.fallback = Fallback::Never;
                self.run_own(now, call, tool)
            }
        }
    }

    /// A client claims a call: the first to be heard of it, claim or window, decides.
    pub(super) fn claim_came(
        &mut self,
        now: Instant,
        id: &Identity,
        incoming: &Incoming,
        it: &Acknowledgement,
    ) {
        if !self.peers.get(id).is_some_and(|remote| self.is_counterpart(id, remote)) {
            return self.complain(now, id, Counter::Foreign);
        }
        let stanza = incoming.stanza().filter(|stanza| *stanza != 0);
        let (Some(stanza), Some(call)) = (stanza, it.acknowledged_message_id.as_deref()) else {
            return self.complain(now, id, Counter::Malformed);
        };
        let call = CallId::from(call);
        if let Some(of) = it.acknowledged_stanza_id.filter(|of| *of != 0) {
            self.replayed(now, id, of);
            self.request_delivered(id, of, Some(call.as_str()));
        }
        let granted = self.call_owned_by(&call, id);
        if let Some(key) = granted {
            self.grant(key, stanza);
        } else if self.peers.get(id).is_some_and(|it| self.past.is_owned_by(&call, id, it)) {
            self.stats.add(Counter::Late, 1);
        } else {
            self.complain(now, id, Counter::Foreign);
            if call.as_str().len() > self.config.caps.id_bytes {
                return;
            }
        }
        self.answer_claim(id, stanza, &call, granted.is_some());
    }

    /// Says once more that claims of this owner are granted: what said so may never have left.
    pub(super) fn grants_again(&mut self, id: &Identity) {
        let granted = |call: &Call| match call.fallback {
            Fallback::Claimed(stanza) if !call.began_at_owner => Some((stanza, call.id.clone())),
            _ => None,
        };
        let again: Vec<_> = self.calls.of_owner(id).filter_map(|(_, call)| granted(call)).collect();
        for (stanza, call) in again {
            self.answer_claim(id, stanza, &call, true);
        }
    }

    /// The claim window is over.
    pub(super) fn nobody_claimed(&mut self, now: Instant, key: CallKey) {
        if self.falls_back(key, Fallback::UntilClaimed) {
            self.run_instead(now, key, &Instead::Withdrawn);
        }
    }

    /// The owner of a call is gone: the call is lost, unless nothing can have started.
    pub(super) fn lose_call(&mut self, now: Instant, key: CallKey, owner: &Identity) {
        if self.falls_back(key, Fallback::UntilClaimed) {
            return self.run_instead(now, key, &Instead::Withdrawn);
        }
        self.settle_call(now, key, Err(CallError::Lost { owner: owner.clone() }));
    }

    /// Runs a call whose owner answered that it does not run it; false if the answer is the call's outcome.
    ///
    /// A verdict on the call itself (its arguments, a person's no) is one, and so is any answer after the claim.
    pub(super) fn run_what_was_declined(
        &mut self,
        now: Instant,
        key: CallKey,
        answer: &Result<Value, CallError>,
    ) -> bool {
        let Err(error) = answer else { return false };
        let has_not = matches!(error, CallError::UnknownTool { .. });
        let will_not =
            matches!(error, CallError::Busy { .. } | CallError::Cancelled | CallError::Lost { .. });
        let declined = (has_not && self.falls_back(key, Fallback::IfUnknown))
            || ((has_not || will_not) && self.falls_back(key, Fallback::UntilClaimed));
        if declined {
            self.run_instead(now, key, &Instead::Declined);
        }
        declined
    }

    /// Runs a call whose request did not leave this process; false if it was not ours to run.
    pub(super) fn run_what_never_left(&mut self, now: Instant, key: CallKey) -> bool {
        let ours = self.falls_back(key, Fallback::UntilClaimed) || self.falls_back(key, Fallback::IfUnknown);
        if ours {
            self.run_instead(now, key, &Instead::Unheard);
        }
        ours
    }

    fn ask_first(&mut self, now: Instant, call: Call, asked: Asked) -> CallKey {
        let window = self.config.times.claim.min(call.limit / 2);
        let awaits_claim = call.fallback == Fallback::UntilClaimed;
        let key = self.insert_call(now, call.asking(asked));
        if awaits_claim {
            self.timers.set(now, Timer::ClaimWindow(key), window);
        }
        self.requested(now, key);
        key
    }

    /// From here on the call is its owner's alone.
    fn grant(&mut self, key: CallKey, stanza: i32) {
        self.timers.cancel(&Timer::ClaimWindow(key));
        if let Some(call) = self.calls.get_mut(&key)
            && matches!(call.fallback, Fallback::UntilClaimed | Fallback::Claimed(_))
        {
            call.fallback = Fallback::Claimed(stanza);
        }
    }

    fn answer_claim(&mut self, id: &Identity, stanza: i32, call: &CallId, granted: bool) {
        let answer = Message::Acknowledgement(Acknowledgement {
            conversation_id: Some(self.config.room.clone()),
            acknowledged_stanza_id: Some(stanza),
            success: Some(granted),
            acknowledged_message_id: Some(call.as_str().to_owned()),
            ..Acknowledgement::default()
        });
        self.post_small(id, &answer);
    }

    /// Whether we may run it still. An owner that started without our leave keeps it: both must not run.
    fn falls_back(&self, key: CallKey, how: Fallback) -> bool {
        let not_begun = |call: &&Call| !call.began_at_owner && call.asked().is_some();
        self.calls.get(&key).filter(not_begun).is_some_and(|call| call.fallback == how)
    }

    /// We become the owner of a call that somebody else was asked for.
    fn run_instead(&mut self, now: Instant, key: CallKey, instead: &Instead) {
        let Some(call) = self.calls.get_mut(&key) else { return };
        let (id, Ok(tool)) = (call.id.clone(), call.tool.parse::<ToolName>()) else { return };
        call.fallback = Fallback::Never;
        let Some(Stage::Asked(asked)) = self.calls.set_stage(key, Stage::Waiting) else { return };
        self.timers.cancel(&Timer::ClaimWindow(key));
        self.stop_sending(now, &id, &asked);
        match instead {
            Instead::Withdrawn if asked.left == 0 && !asked.again => {} // it never heard of it
            Instead::Withdrawn => {
                self.remember(now, id.clone(), Gone::unanswered(&asked, now));
                self.stop_owner(&id);
            }
            Instead::Declined => self.remember(now, id, Gone::answered(&asked, now)),
            Instead::Unheard => {}
        }
        self.run_here(now, key, &tool);
    }
}
