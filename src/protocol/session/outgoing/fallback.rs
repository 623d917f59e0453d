//! Runs `either` calls: a client may run them instead of the assistant, but never both (`wire.md`, section
//! 4.8).
//!
//! This is the assistant's half of a claim. The client that offers the tool is sent the call first. It does not start
//! the tool before its claim is granted, so until then the assistant may withdraw the call and run it itself.

use std::time::Duration;

use super::{
    Call, CallKey, Choice, Core, Counter, Outgoing, Stage, Timer, settled::Gone, time_left, tool_of,
};
use crate::{
    protocol::{
        frame::{Acknowledgement, Message},
        session::codec::Received,
    },
    tool::{CallError, CallId, Execution, LossCause, StopReason, ToolName},
    transport::Identity,
    value::Value,
};

/// Whether the local participant may run a call that was sent to an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::protocol::session) enum Fallback {
    /// No: only its owner may run it.
    Never,
    /// Yes, until its owner claims it. The tool has not started before.
    UntilClaimed,
    /// No longer: its owner claimed it, under this stanza.
    Claimed(i32),
    /// Only if its owner reports that it has no such tool. This owner sends no claim and may have started the tool.
    IfUnknown,
}

impl Fallback {
    /// Returns the `execution` that the request states, whenever it is sent.
    pub(super) fn execution(self) -> Execution {
        match self {
            Self::UntilClaimed | Self::Claimed(_) => Execution::Either,
            Self::Never | Self::IfUnknown => Execution::Client,
        }
    }
}

/// How the former owner is treated when the local participant runs a call instead.
enum Instead {
    /// The owner must not start the tool, and is sent a stop.
    Withdrawn,
    /// The owner answered that it does not run the tool.
    Declined,
    /// The owner never received the request.
    NotReceived,
}

impl Outgoing {
    /// Starts a call of a local tool. If a client may run it instead, the client is sent it first.
    pub(super) fn run_or_ask(&mut self, core: &mut Core, call: Call, tool: &ToolName) -> CallKey {
        let prefers_client = preferring_client(core, &call).is_some();
        let key = self.insert_call(core, call);
        let Some(call) = self.calls.get(&key).filter(|_| prefers_client) else {
            self.run_locally(core, key, tool);
            return key;
        };
        let choice = self.choose(core, &call.tool, None);
        self.run_or_send(core, key, tool, choice);
        key
    }

    /// Sends a call of a local tool to the client that may run it, or runs it.
    pub(super) fn run_or_send(&mut self, core: &mut Core, key: CallKey, tool: &ToolName, choice: Choice) {
        match choice {
            Choice::Ask(owner) => self.ask_first(core, key, tool, &owner),
            Choice::Select(among) => self.ask_function(core, key, &among),
            // The assistant does not wait for a client that cannot be sent the call now, whatever the reason.
            Choice::Wait | Choice::Fail(_) => self.run_locally(core, key, tool),
        }
    }

    /// Handles a client's claim. It is granted if it arrives before the claim window ends.
    pub(crate) fn handle_claim(
        &mut self,
        core: &mut Core,
        id: &Identity,
        incoming: &Received,
        it: &Acknowledgement,
    ) {
        if !core.peers.has_counterpart(&core.cx, id) {
            return core.cx.complain(id, Counter::NotPermitted);
        }
        let stanza = incoming.stanza().filter(|stanza| *stanza != 0);
        let (Some(stanza), Some(call)) = (stanza, it.acknowledged_message_id.as_deref()) else {
            return core.cx.complain_of(id, Counter::Malformed, "a claim names no call, or has no number");
        };
        let call = CallId::known(call);
        if let Some(of) = it.acknowledged_stanza_id.filter(|of| *of != 0) {
            // A claim also acknowledges its request (`wire.md`, section 4.8). Otherwise the fast lane would
            // go on repeating it.
            self.frame_acknowledged(core, id, of, Some(call.as_str()));
        }
        let granted = self.call_owned_by(core, &call, id);
        if let Some(key) = granted {
            self.grant(core, key, stanza);
        } else if core.peers.get(id).is_some_and(|it| self.settled.is_owned_by(&call, id, it)) {
            core.cx.count(Counter::Late);
        } else {
            core.cx.complain(id, Counter::NotPermitted);
        }
        // Also if the call is over: without an answer the client would repeat the claim until its time is up.
        answer_claim(core, id, stanza, &call, granted.is_some());
    }

    /// Grants the claims of this owner again, since the earlier grants may not have been sent.
    pub(crate) fn grants_again(&mut self, core: &mut Core, id: &Identity) {
        let granted = |call: &Call| match call.fallback {
            Fallback::Claimed(stanza) if !call.began_at_owner => Some((stanza, call.id.clone())),
            _ => None,
        };
        let again: Vec<_> = self.calls.of_owner(id).filter_map(|(_, call)| granted(call)).collect();
        for (stanza, call) in again {
            answer_claim(core, id, stanza, &call, true);
        }
    }

    /// Handles the end of the claim window.
    pub(crate) fn claim_window_over(&mut self, core: &mut Core, key: CallKey) {
        if self.may_run_instead(key, Fallback::UntilClaimed) {
            self.run_instead(core, key, &Instead::Withdrawn);
        }
    }

    /// Handles the loss of a call's owner. The call is lost unless its tool cannot have started.
    pub(super) fn lose_call(&mut self, core: &mut Core, key: CallKey, owner: &Identity, why: LossCause) {
        if self.may_run_instead(key, Fallback::UntilClaimed) {
            return self.run_instead(core, key, &Instead::Withdrawn);
        }
        self.settle_call(core, key, Err(CallError::Lost { owner: owner.clone(), why }));
    }

    /// Runs a call that its owner declined. Returns false if the owner's answer is the call's outcome.
    ///
    /// A rejection of the call itself (invalid arguments, a refusal by a person) is an outcome, as is any answer after
    /// the claim.
    pub(super) fn run_declined_call(
        &mut self,
        core: &mut Core,
        key: CallKey,
        answer: &Result<Value, CallError>,
    ) -> bool {
        let Err(error) = answer else { return false };
        let has_not = matches!(error, CallError::UnknownTool { .. });
        let will_not =
            // These say that nothing runs at the client, not that nothing has run. That counts only before
            // the claim, when the tool cannot have started.
            matches!(
                error,
                CallError::Busy { .. } | CallError::Cancelled | CallError::Lost { .. } | CallError::NotBound { .. }
            );
        let declined = (has_not && self.may_run_instead(key, Fallback::IfUnknown))
            || ((has_not || will_not) && self.may_run_instead(key, Fallback::UntilClaimed));
        if declined {
            self.run_instead(core, key, &Instead::Declined);
        }
        declined
    }

    /// Runs a call whose request has not left this process. Returns false if the local participant may not run it.
    pub(super) fn run_unsent_call(&mut self, core: &mut Core, key: CallKey) -> bool {
        let may_run = self.may_run_instead(key, Fallback::UntilClaimed)
            || self.may_run_instead(key, Fallback::IfUnknown);
        if may_run {
            self.run_instead(core, key, &Instead::NotReceived);
        }
        may_run
    }

    /// Sends a call of a local tool to a client first.
    fn ask_first(&mut self, core: &mut Core, key: CallKey, tool: &ToolName, owner: &Identity) {
        let Some(mut call) = self.calls.remove(&key) else { return };
        if call.budget.apply(&core.cx, tool_of(core, owner, &call.tool)) {
            core.cx.set_timer(Timer::Deadline(key), time_left(&core.cx, &call));
        }
        let claims = core.peers.get(owner).is_some_and(|it| it.takes_claims());
        call.fallback = if claims { Fallback::UntilClaimed } else { Fallback::IfUnknown };
        match self.send_request(core, &call, owner) {
            Ok(asked) => {
                // At most half of the time: if no claim comes, the assistant must still be able to run the
                // tool within the rest.
                let window = core.cx.config.times.claim.min(time_for_either(core, &call) / 2);
                self.calls.insert(key, call.asking(asked));
                // Without claims the client may start the tool as soon as it has the request, so the
                // assistant must not run it after a while.
                if claims {
                    core.cx.set_timer(Timer::ClaimWindow(key), window);
                }
                self.requested(core, key);
            }
            Err(error) => {
                tracing::debug!(call = %call.id, %owner, %error, "the client cannot be called; the assistant runs the call");
                call.fallback = Fallback::Never;
                self.calls.insert(key, call);
                self.run_locally(core, key, tool);
            }
        }
    }

    /// Grants a claim. From here on only the owner may run the call.
    fn grant(&mut self, core: &mut Core, key: CallKey, stanza: i32) {
        core.cx.timers.cancel(&Timer::ClaimWindow(key));
        if let Some(call) = self.calls.get_mut(&key)
            && matches!(call.fallback, Fallback::UntilClaimed | Fallback::Claimed(_))
        {
            call.fallback = Fallback::Claimed(stanza);
        }
    }

    /// Returns whether the local participant may still run the call. An owner that started without a grant keeps it,
    /// because the tool must not run twice. For a call that a barge-in has settled, nothing may start.
    fn may_run_instead(&self, key: CallKey, how: Fallback) -> bool {
        let not_begun = |call: &&Call| !call.began_at_owner && call.rest.is_none() && call.asked().is_some();
        self.calls.get(&key).filter(not_begun).is_some_and(|call| call.fallback == how)
    }

    /// Runs a call locally that was sent to an owner.
    fn run_instead(&mut self, core: &mut Core, key: CallKey, instead: &Instead) {
        let Some(call) = self.calls.get_mut(&key) else { return };
        let (id, Ok(tool)) = (call.id.clone(), call.tool.parse::<ToolName>()) else { return };
        call.fallback = Fallback::Never;
        let Some(Stage::Asked(asked)) = self.calls.set_stage(key, Stage::Waiting) else { return };
        core.cx.timers.cancel(&Timer::ClaimWindow(key));
        // Read before `stop_sending` removes the record that knows it.
        let was_never_sent = asked.was_never_sent(core);
        self.stop_sending(core, &asked);
        match instead {
            Instead::Withdrawn if was_never_sent => {} // its owner never received it
            Instead::Withdrawn => {
                // The call continues under the same id. This record receives the later frames of its former
                // owner, which must not settle it.
                self.remember(core, id.clone(), Gone::unanswered(&asked, core.cx.now, StopReason::Caller));
                self.stop_owner(core, &id);
            }
            Instead::Declined => self.remember(core, id, Gone::answered(&asked, core.cx.now)),
            Instead::NotReceived => {}
        }
        self.run_locally(core, key, &tool);
    }
}

/// Returns the remaining time of a call that the local participant may run instead of its owner, within the shorter of
/// their tools' own limits.
fn time_for_either(core: &Core, call: &Call) -> Duration {
    let mut own = call.budget;
    own.apply(&core.cx, core.cx.local.tool(&call.tool));
    let spent = core.cx.now.saturating_duration_since(call.began);
    time_left(&core.cx, call).min(own.limit.saturating_sub(spent))
}

/// Returns the local tool of a call that a client may run instead, if the call names no owner. One that was sent to a
/// replaced instance may have run there, so only an owner may run it.
pub(super) fn preferring_client(core: &Core, call: &Call) -> Option<ToolName> {
    let known = core.cx.local.tool(&call.tool).filter(|tool| tool.tool_options().prefer_client);
    let is_ours = call.named.is_none() && call.earlier.last().is_none();
    known.filter(|_| is_ours).map(|tool| tool.name().clone())
}

fn answer_claim(core: &mut Core, id: &Identity, stanza: i32, call: &CallId, granted: bool) {
    let answer = Message::Acknowledgement(Acknowledgement {
        conversation_id: Some(core.cx.config.room.clone()),
        acknowledged_stanza_id: Some(stanza),
        success: Some(granted),
        acknowledged_message_id: Some(call.as_str().to_owned()),
        ..Acknowledgement::default()
    });
    core.to(id).post_small(&answer, None);
}
