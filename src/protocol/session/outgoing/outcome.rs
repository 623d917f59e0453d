//! Ends calls: by their owner's answer, a timeout, a cancellation or the owner's loss.

use std::time::Duration;

use super::{
    Asked, Call, CallKey, Core, Counter, Event, Fallback, Outgoing, Stage, Timer, later,
    not_offered::other_assistants, settled::Gone,
};
use crate::{
    protocol::{
        frame::{ErrorMessage, ToolUseResult},
        session::{
            Output, SendFailure,
            codec::{NOTHING_RAN, Received},
        },
    },
    tool::{
        BargeIn, CallError, CallId, ErrorCode, LossCause, NotOffered, Progress, StopReason, Tool, ToolError,
        ToolName,
    },
    transport::Identity,
    value::{Value, prefix},
};

/// The longest name of a limit that an owner has reached, in bytes.
const MAX_LIMIT_TEXT: usize = 256;

impl Outgoing {
    /// Handles a result, whether or not it belongs to an open call of the sender.
    pub(crate) fn handle_result(
        &mut self,
        core: &mut Core,
        id: &Identity,
        incoming: &Received,
        result: &ToolUseResult,
    ) {
        if let Some(key) = self.call_owned_by(core, &result.id, id) {
            let Some(call) = self.calls.get_mut(&key) else { return };
            // Before the code is read: the progress that reported the start can be lost, and `busy` or
            // `unknown_tool` would then wrongly prove that nothing ran.
            call.began_at_owner |= incoming.has_begun();
            let crossed_at = core.peers.get(id).and_then(|remote| remote.crossed_at());
            // A request from before the handshake may have been refused then.
            let is_news = call.asked().is_some_and(|asked| crossed_at.is_none_or(|at| at <= asked.at));
            let read = match incoming.is_of_unbound() && !result.success && !call.began_at_owner {
                true => Err(CallError::NotBound {
                    tool: call.tool.clone(),
                    clients: vec![id.clone()],
                    assistants: other_assistants(core),
                }),
                false => read_result(result, call, id),
            };
            if let Some(asked) = call.asked() {
                core.delivery.answered(&core.cx, id, asked.stanza, incoming.lane, Duration::ZERO);
            }
            if core.delivery.lane_is_open(&core.cx, &core.peers, id) {
                self.report_implied_progress(core, key, result.success);
            }
            if matches!(read, Err(CallError::NotBound { .. })) && is_news {
                core.peers.forget_unbound(&mut core.cx, id); // the client could not say so before
            }
            if !self.run_declined_call(core, key, &read) {
                self.settle_by_owner(core, key, read);
            }
        } else if core.peers.get(id).is_some_and(|it| self.settled.is_owned_by(&result.id, id, it)) {
            let repeated = self.settled.answered(&result.id);
            if let Some(stanza) = self.settled.get(&result.id).and_then(Gone::stop_sent_as) {
                // Its stop need not be acknowledged any more.
                self.settled.stop_known(&result.id, stanza);
                if core.delivery.withdraw_frame(id, stanza) {
                    self.retransmit(core, id);
                }
            }
            core.cx.stats.add(if repeated { Counter::Duplicate } else { Counter::Late }, 1);
            if result.success {
                core.cx.note_late(&result.id);
            }
        } else {
            core.cx.complain(id, Counter::NotPermitted);
            if !core.peers.has_counterpart(&core.cx, id) {
                return;
            }
            // The call is forgotten here. The acknowledgement lets the client forget its result too.
        }
        core.to(id).acknowledge(incoming.stanza(), Some(&result.id));
    }

    /// Emits the events that an answer implies. On the fast lane it replaces the earlier frames: that the request
    /// arrived and, if it succeeded, that the tool started (`wire.md`, section 5).
    fn report_implied_progress(&mut self, core: &mut Core, key: CallKey, success: bool) {
        let Some(call) = self.calls.get(&key) else { return };
        let began = success && !call.began_at_owner;
        let id = call.id.clone();
        self.request_delivered(core, key);
        if began {
            core.cx.event(Event::Progress { key: Some(key), call: id, progress: Progress::started() });
        }
    }

    /// Handles a peer's error (type 1). A refusal of a call settles it.
    pub(crate) fn handle_error(&mut self, core: &mut Core, id: &Identity, error: ErrorMessage) {
        let originating = error.originating_id.as_deref().map(CallId::known);
        if let Some(key) = originating.as_ref().and_then(|call| self.call_owned_by(core, call, id)) {
            // The error may answer the request that an earlier instance was sent, even if this instance has
            // acknowledged the new request meanwhile. If it does answer the new request, the owner has been replaced
            // again, and the Configuration of that instance settles the call. The new request is still sent again.
            if error.code == 304 && self.calls.get(&key).is_some_and(|call| call.earlier.last().is_some()) {
                return core.cx.count(Counter::Late);
            }
            if let Some(asked) = self.calls.get(&key).and_then(Call::asked) {
                core.delivery.stop_repeating(id, asked.stanza);
            }
            if matches!(error.code, 301 | 304) {
                let lost = Err(CallError::Lost { owner: id.clone(), why: LossCause::Refused });
                if !self.run_declined_call(core, key, &lost) {
                    self.settle_by_owner(core, key, lost);
                }
                return;
            }
        } else if !core.peers.has_counterpart(&core.cx, id) {
            return core.cx.complain(id, Counter::NotPermitted);
        }
        peer_error(core, id, error);
    }

    /// Settles a call that its owner has ended. The owner needs no stop.
    pub(super) fn settle_by_owner(
        &mut self,
        core: &mut Core,
        key: CallKey,
        result: Result<Value, CallError>,
    ) {
        let Some(call) = self.calls.get(&key) else { return };
        let remembered = call.asked().map(|asked| (call.id.clone(), Gone::answered(asked, core.cx.now)));
        self.conclude(core, key, result);
        if let Some((id, gone)) = remembered {
            self.remember(core, id, gone);
        }
    }

    /// Settles a call on behalf of the local participant. Its owner, if any, is asked to stop.
    pub(crate) fn settle_call(&mut self, core: &mut Core, key: CallKey, result: Result<Value, CallError>) {
        let reason = match &result {
            Err(CallError::Timeout { .. }) => StopReason::Deadline,
            Err(CallError::Closed(_) | CallError::NotInRoom(_)) => StopReason::Leaving,
            Err(CallError::Lost { .. }) => StopReason::Lost,
            _ => StopReason::Caller,
        };
        self.settle_and_stop(core, key, result, reason);
    }

    /// Settles a call as cancelled. Its owner, if any, is sent the reason.
    pub(crate) fn cancel_call(&mut self, core: &mut Core, key: CallKey, reason: StopReason) {
        self.settle_and_stop(core, key, Err(CallError::Cancelled), reason);
    }

    fn settle_and_stop(
        &mut self,
        core: &mut Core,
        key: CallKey,
        result: Result<Value, CallError>,
        reason: StopReason,
    ) {
        let Some(call) = self.calls.get(&key) else { return };
        let id = call.id.clone();
        if let Stage::Own(job) = *call.stage() {
            return self.end_local_call(core, key, job, result, reason);
        }
        if call.asked().is_some_and(|asked| asked.was_never_sent(core)) {
            let limit = call.budget.limit;
            let result = result.map_err(|error| match error {
                CallError::Timeout { .. } | CallError::Lost { .. } => CallError::NotDelivered { limit },
                other => other,
            });
            return self.conclude(core, key, result); // no packet was sent: the owner does not have the call
        }
        let remembered = call.asked().map(|asked| Gone::unanswered(asked, core.cx.now, reason));
        self.conclude(core, key, result);
        if let Some(gone) = remembered {
            self.remember(core, id.clone(), gone);
            self.stop_owner(core, &id);
        }
    }

    /// Marks a call whose outcome no caller waits for. The call continues.
    pub(crate) fn detach(&mut self, key: CallKey) {
        if let Some(call) = self.calls.get_mut(&key).filter(|call| call.rest.is_none()) {
            call.detached = true;
        }
    }

    /// Handles a request of which no packet was sent. The owner needs no stop.
    pub(crate) fn request_unsent(&mut self, core: &mut Core, call: &CallId, why: &SendFailure) {
        let Some(key) = self.calls.key_of(call) else { return };
        let Some(call) = self.calls.get(&key).filter(|call| call.asked().is_some_and(|asked| !asked.again))
        else {
            return;
        };
        let error = match why {
            SendFailure::TooLarge { size, limit } => CallError::TooLarge { size: *size, limit: *limit },
            SendFailure::NotAllowed => CallError::NotAllowed,
            _ => CallError::NotDelivered { limit: call.budget.limit },
        };
        if !self.run_unsent_call(core, key) {
            self.conclude(core, key, Err(error));
        }
    }

    pub(crate) fn deadline(&mut self, core: &mut Core, key: CallKey) {
        let Some(call) = self.calls.get(&key) else { return };
        // A call that found no owner says why, which helps more than the time that it waited.
        let error = if call.is_waiting() && call.earlier.last().is_none() {
            self.no_owner_error(core, call)
        } else {
            CallError::Timeout { limit: call.budget.limit }
        };
        self.settle_call(core, key, Err(error));
    }

    /// Handles the end of a peer's grace period. Calls that it was sent in another join than its present one are lost.
    pub(crate) fn lose_calls_of_other_joins(&mut self, core: &mut Core, id: &Identity) {
        let here = core.peers.get(id).and_then(|remote| remote.sid()).cloned();
        // An owner keeps requests that are no frames when it joins again: LiveKit's SDKs do.
        self.lose_calls(core, id, LossCause::Left, |asked| match asked.is_frame() {
            true => Some(&asked.sid) != here.as_ref(),
            false => here.is_none(),
        });
    }

    /// Handles the start of another instance of the owner's program. Idempotent calls of the old instance are sent
    /// again to a participant that offers the tool. The others are lost when the Configurations have crossed.
    pub(crate) fn reassign_calls(&mut self, core: &mut Core, id: &Identity) {
        let Some(remote) = core.peers.get(id) else { return };
        let idempotent = |call: &Call| {
            let is_it = |tool: &&Tool| tool.name().as_str() == &*call.tool;
            remote.tools().iter().find(is_it).is_some_and(|tool| tool.tool_options().idempotent)
        };
        // All of these were sent to the old instance. The calls of an earlier one were lost when the old instance
        // appeared.
        let of_old = |call: &Call| call.asked().is_some_and(|asked| asked.instance.is_some());
        let mut reassigned = Vec::new();
        for (key, call) in self.calls.of_owner(id) {
            // An unclaimed call is run by the local participant, so it is not sent again. For a call that a barge-in
            // has settled, no tool may start.
            let may_wait = call.fallback != Fallback::UntilClaimed && call.rest.is_none();
            if may_wait && of_old(call) && idempotent(call) {
                reassigned.push(key);
            }
        }
        for key in reassigned {
            let wait = core.cx.config.times.owner_wait;
            let asked = self.calls.set_stage(key, Stage::Waiting);
            let mut instance = None;
            if let Some(Stage::Asked(asked)) = asked {
                self.stop_sending(core, &asked);
                instance = asked.instance;
            }
            if let Some(call) = self.calls.get_mut(&key) {
                call.earlier.add(id, instance);
                // The old instance may have started the tool, so the assistant must not run it as a fallback.
                call.fallback = Fallback::Never;
                call.waits_until = later(core.cx.now, wait);
                core.cx.set_timer(Timer::OwnerWait(key), wait);
            }
        }
    }

    pub(crate) fn lose_calls(
        &mut self,
        core: &mut Core,
        id: &Identity,
        why: LossCause,
        which: impl Fn(&Asked) -> bool,
    ) {
        let is_it = |call: &Call| call.asked().is_some_and(&which);
        let lost: Vec<_> =
            self.calls.of_owner(id).filter(|(_, call)| is_it(call)).map(|(key, _)| key).collect();
        for key in lost {
            self.lose_call(core, key, id, why);
        }
    }

    /// Handles an owner that has lost its role. It is sent no request again, and what it may not have got is lost.
    pub(crate) fn owner_dismissed(&mut self, core: &mut Core, id: &Identity) {
        let is_unknown_to_it = |asked: &Asked| !asked.delivered && asked.is_frame();
        self.lose_calls(core, id, LossCause::Dismissed, is_unknown_to_it);
        let asked = self.calls.of_owner(id).filter_map(|(_, call)| call.asked());
        for asked in asked.filter(|asked| asked.is_frame()) {
            core.delivery.withdraw_frame(id, asked.stanza);
        }
    }

    /// Stops retransmitting a request that the owner no longer needs.
    pub(super) fn stop_sending(&mut self, core: &mut Core, asked: &Asked) {
        if core.delivery.withdraw_frame(&asked.owner, asked.stanza) {
            self.retransmit(core, &asked.owner);
        }
    }

    /// Ends a call. Every call ends here.
    pub(super) fn conclude(&mut self, core: &mut Core, key: CallKey, result: Result<Value, CallError>) {
        self.report_late_progress(core, key);
        let Some(call) = self.calls.remove(&key) else { return };
        self.selections.remove(&key);
        let result = result.map_err(|error| unproven(error, call.earlier.last()));
        if let Some(asked) = call.asked() {
            // A request must not reach its owner after the call has ended. A large one is abandoned in the
            // middle of its stream (`wire.md`, section 5.6).
            self.stop_sending(core, asked);
        }
        for (owner, instance) in &call.earlier.instances {
            let ends = later(call.began, call.budget.limit);
            self.settled.replaced(owner.clone(), instance.clone(), call.id.clone(), ends);
            if core.peers.get(owner).is_some_and(|remote| remote.instance() == Some(instance)) {
                self.stop_replaced(core, owner, &call.id);
            }
        }
        for timer in [Timer::Deadline(key), Timer::OwnerWait(key), Timer::ClaimWindow(key)] {
            core.cx.timers.cancel(&timer);
        }
        let owner = match call.stage() {
            Stage::Own(_) => Some(core.cx.local.identity().clone()),
            Stage::Asked(_) | Stage::Waiting => call.owner(),
        };
        // A barge-in has already emitted the outcome of this call, and each call has exactly one.
        if let Some(rest) = call.rest {
            if matches!(result, Ok(_) | Err(CallError::Tool(_))) {
                core.cx.count(Counter::Late);
                core.cx.note_late(&call.id);
            }
            if rest == BargeIn::Report {
                self.report_late(core, call, owner, result, None);
            }
            return;
        }
        core.cx.log.result_size(core.cx.local.participant.identity(), &call.id, &result);
        let outcome = result.as_ref().map(|_| ()).map_err(CallError::code);
        report_settled(core, &call, owner.clone(), outcome);
        if *call.tool == *ToolName::EVENT {
            let event = Some(call.arguments.clone());
            self.report_late(core, call, owner, result, event);
        } else if !call.detached {
            core.cx.output(Output::Settled { key, result });
        }
    }
}

/// Reports the outcome of a call to its caller.
pub(super) fn report_settled(
    core: &mut Core,
    call: &Call,
    owner: Option<Identity>,
    outcome: Result<(), ErrorCode>,
) {
    core.cx.event(Event::Settled {
        call: call.id.clone(),
        tool: call.tool.to_string(),
        execution: call.execution(),
        owner,
        by: core.cx.local.identity().clone(),
        outcome,
        took: core.cx.now.saturating_duration_since(call.began),
    });
}

/// Reports a peer's error that settles no call.
pub(crate) fn peer_error(core: &mut Core, id: &Identity, error: ErrorMessage) {
    let ErrorMessage { code, message, recoverable, .. } = error;
    core.cx.event(Event::PeerError { by: id.clone(), code, message, recoverable });
}

/// Returns the error of a call that was sent to an earlier instance. That instance may have run it, whatever the last
/// one reports.
fn unproven(error: CallError, asked_before: Option<&Identity>) -> CallError {
    match (error, asked_before) {
        (CallError::Tool(error), Some(_)) => CallError::Tool(error.of_begun(true)),
        (error, Some(owner)) if !error.may_have_run() => {
            CallError::Lost { owner: owner.clone(), why: LossCause::Restarted }
        }
        (error, _) => error,
    }
}

/// Returns the time limit that ended a call at its owner: the milliseconds in the owner's answer (`wire.md`, section
/// 5), if shorter than the caller's own limit.
fn limit_named(message: Option<&str>, own: Duration) -> Duration {
    let number = message.and_then(|text| text.split(" ms").next()?.split(' ').next_back());
    let named = number.and_then(|number| number.parse().ok()).map(Duration::from_millis);
    named.filter(|named| !named.is_zero() && *named < own).unwrap_or(own)
}

/// Returns which limit a `busy` names (`wire.md`, section 5.7).
pub(super) fn reached_limit(message: Option<&str>) -> Option<String> {
    let limit = message.map(|text| text.strip_suffix(NOTHING_RAN).unwrap_or(text));
    limit.filter(|text| !text.is_empty()).map(|text| prefix(text, MAX_LIMIT_TEXT).to_owned())
}

/// Converts an owner's answer to the call's result.
fn read_result(result: &ToolUseResult, call: &Call, owner: &Identity) -> Result<Value, CallError> {
    if result.success {
        return Ok(result.result.clone().unwrap_or_else(Value::empty));
    }
    let code = result.error_code.clone().unwrap_or(ErrorCode::EXECUTION_ERROR);
    let began = call.began_at_owner;
    Err(match code.as_str() {
        "timeout" => {
            CallError::Timeout { limit: limit_named(result.error_message.as_deref(), call.budget.limit) }
        }
        "cancelled" => CallError::Cancelled,
        "unknown_tool" if !began => {
            CallError::unknown_tool(&call.tool, NotOffered::Declined { owner: owner.clone() })
        }
        "busy" if !began => {
            CallError::Busy { owner: owner.clone(), limit: reached_limit(result.error_message.as_deref()) }
        }
        "lost" => CallError::Lost { owner: owner.clone(), why: LossCause::Reported },
        _ => {
            let message = result.error_message.as_deref().unwrap_or(ToolError::LOCAL_MESSAGE);
            let error = ToolError::new(code, message).of_begun(began);
            CallError::Tool(match &result.result {
                Some(partial) => error.with_partial(partial.clone()),
                None => error,
            })
        }
    })
}
