//! Tools of the assistant that a client may run in its place (`wire.md`, section 4): never both.
//!
//! The assistant's half of a claim: a client that can run such a tool is asked first. Until its claim is granted
//! it has not started, and so the assistant may withdraw the call and run it itself.

use super::{Asked, Call, CallKey, Choice, Core, Counter, Outgoing, Stage, Timer, settled::Gone};
use crate::{
    protocol::{
        frame::{Acknowledgement, Message},
        session::codec::Received,
    },
    tool::{CallError, CallId, Execution, ToolName},
    transport::Identity,
    value::Value,
};

/// Whether we may run a call that somebody else was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::protocol::session) enum Fallback {
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

impl Outgoing {
    /// Begins a call of a tool of our own: a client that can run it in our place is asked first.
    pub(super) fn run_or_ask(&mut self, core: &mut Core, mut call: Call, tool: &ToolName) -> CallKey {
        let prefers = |ours: &crate::tool::Tool| ours.name() == tool && ours.tool_options().prefer_client;
        if call.named.is_some() || !core.cx.local.tools.iter().any(prefers) {
            return self.run_own(core, call, tool);
        }
        // Whoever cannot be asked just core.cx.now, for whatever reason, is not waited for.
        let Choice::Ask(owner) = self.choose(core, &call.tool, None) else {
            return self.run_own(core, call, tool);
        };
        let claims = core.peers.get(&owner).is_some_and(|it| it.takes_claims());
        call.fallback = if claims { Fallback::UntilClaimed } else { Fallback::IfUnknown };
        match self.send_request(core, &call, &owner) {
            Ok(asked) => self.ask_first(core, call, asked),
            Err(error) => {
                tracing::debug!(call = %call.id, %owner, %error, "it cannot be asked, so we run it");
                call.fallback = Fallback::Never;
                self.run_own(core, call, tool)
            }
        }
    }

    /// A client claims a call: the first to be heard of it, claim or window, decides.
    pub(in crate::protocol::session) fn handle_claim(
        &mut self,
        core: &mut Core,
        id: &Identity,
        incoming: &Received,
        it: &Acknowledgement,
    ) {
        if !core.peers.get(id).is_some_and(|remote| core.peers.is_counterpart(&core.cx, id, remote)) {
            return core.cx.complain(id, Counter::NotPermitted);
        }
        let stanza = incoming.stanza().filter(|stanza| *stanza != 0);
        let (Some(stanza), Some(call)) = (stanza, it.acknowledged_message_id.as_deref()) else {
            return core.cx.complain(id, Counter::Malformed);
        };
        let call = CallId::known(call);
        if let Some(of) = it.acknowledged_stanza_id.filter(|of| *of != 0) {
            self.frame_acknowledged(core, id, of, Some(call.as_str()));
        }
        let granted = self.call_owned_by(core, &call, id);
        if let Some(key) = granted {
            self.grant(core, key, stanza);
        } else if core.peers.get(id).is_some_and(|it| self.settled.is_owned_by(&call, id, it)) {
            core.cx.count(Counter::Late);
        } else {
            core.cx.complain(id, Counter::NotPermitted);
            if call.as_str().len() > core.cx.config.caps.id_bytes {
                return;
            }
        }
        answer_claim(core, id, stanza, &call, granted.is_some());
    }

    /// Says once more that claims of this owner are granted: what said so may never have left.
    pub(in crate::protocol::session) fn grants_again(&mut self, core: &mut Core, id: &Identity) {
        let granted = |call: &Call| match call.fallback {
            Fallback::Claimed(stanza) if !call.began_at_owner => Some((stanza, call.id.clone())),
            _ => None,
        };
        let again: Vec<_> = self.calls.of_owner(id).filter_map(|(_, call)| granted(call)).collect();
        for (stanza, call) in again {
            answer_claim(core, id, stanza, &call, true);
        }
    }

    /// The claim window is over.
    pub(in crate::protocol::session) fn nobody_claimed(&mut self, core: &mut Core, key: CallKey) {
        if self.falls_back(key, Fallback::UntilClaimed) {
            self.run_instead(core, key, &Instead::Withdrawn);
        }
    }

    /// The owner of a call is gone: the call is lost, unless nothing can have started.
    pub(super) fn lose_call(&mut self, core: &mut Core, key: CallKey, owner: &Identity) {
        if self.falls_back(key, Fallback::UntilClaimed) {
            return self.run_instead(core, key, &Instead::Withdrawn);
        }
        self.settle_call(core, key, Err(CallError::Lost { owner: owner.clone() }));
    }

    /// Runs a call whose owner answered that it does not run it; false if the answer is the call's outcome.
    ///
    /// A verdict on the call itself (its arguments, a person's no) is one, and so is any answer after the claim.
    pub(super) fn run_what_was_declined(
        &mut self,
        core: &mut Core,
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
            self.run_instead(core, key, &Instead::Declined);
        }
        declined
    }

    /// Runs a call whose request did not leave this process; false if it was not ours to run.
    pub(super) fn run_what_never_left(&mut self, core: &mut Core, key: CallKey) -> bool {
        let ours = self.falls_back(key, Fallback::UntilClaimed) || self.falls_back(key, Fallback::IfUnknown);
        if ours {
            self.run_instead(core, key, &Instead::Unheard);
        }
        ours
    }

    fn ask_first(&mut self, core: &mut Core, call: Call, asked: Asked) -> CallKey {
        let window = core.cx.config.times.claim.min(call.limit / 2);
        let awaits_claim = call.fallback == Fallback::UntilClaimed;
        let key = self.insert_call(core, call.asking(asked));
        if awaits_claim {
            core.cx.set_timer(Timer::ClaimWindow(key), window);
        }
        self.requested(core, key);
        key
    }

    /// From here on the call is its owner's alone.
    fn grant(&mut self, core: &mut Core, key: CallKey, stanza: i32) {
        core.cx.timers.cancel(&Timer::ClaimWindow(key));
        if let Some(call) = self.calls.get_mut(&key)
            && matches!(call.fallback, Fallback::UntilClaimed | Fallback::Claimed(_))
        {
            call.fallback = Fallback::Claimed(stanza);
        }
    }

    /// Whether we may run it still. An owner that started without our leave keeps it: both must not run.
    fn falls_back(&self, key: CallKey, how: Fallback) -> bool {
        let not_begun = |call: &&Call| !call.began_at_owner && call.asked().is_some();
        self.calls.get(&key).filter(not_begun).is_some_and(|call| call.fallback == how)
    }

    /// We become the owner of a call that somebody else was asked for.
    fn run_instead(&mut self, core: &mut Core, key: CallKey, instead: &Instead) {
        let Some(call) = self.calls.get_mut(&key) else { return };
        let (id, Ok(tool)) = (call.id.clone(), call.tool.parse::<ToolName>()) else { return };
        call.fallback = Fallback::Never;
        let Some(Stage::Asked(asked)) = self.calls.set_stage(key, Stage::Waiting) else { return };
        core.cx.timers.cancel(&Timer::ClaimWindow(key));
        let never_left = asked.never_left(core);
        self.stop_sending(core, &asked);
        match instead {
            Instead::Withdrawn if never_left => {} // it never heard of it
            Instead::Withdrawn => {
                self.remember(core, id.clone(), Gone::unanswered(&asked, core.cx.now));
                self.stop_owner(core, &id);
            }
            Instead::Declined => self.remember(core, id, Gone::answered(&asked, core.cx.now)),
            Instead::Unheard => {}
        }
        self.run_here(core, key, &tool);
    }
}

fn answer_claim(core: &mut Core, id: &Identity, stanza: i32, call: &CallId, granted: bool) {
    let answer = Message::Acknowledgement(Acknowledgement {
        conversation_id: Some(core.cx.config.room.clone()),
        acknowledged_stanza_id: Some(stanza),
        success: Some(granted),
        acknowledged_message_id: Some(call.as_str().to_owned()),
        ..Acknowledgement::default()
    });
    core.post_small(id, &answer);
}
