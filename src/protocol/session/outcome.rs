//! How calls of ours end: by their owner's answer, by our clock, by our own wish, by somebody's absence.

use std::time::{Duration, Instant};

use super::{
    CallKey, Counter, Event, Output, Session, Timer,
    codec::Incoming,
    either::Fallback,
    outbound::{Asked, Call, MAX_ASKED_BEFORE, Stage},
    past::Gone,
    timers::later,
};
use crate::{
    protocol::frame::{ErrorMessage, ToolUseResult},
    tool::{CallError, CallId, ErrorCode, NotOffered, Progress, Tool, ToolError},
    transport::Identity,
    value::Value,
};

impl Session {
    /// A result came: of an open call from its owner, or not.
    pub(super) fn result_came(
        &mut self,
        now: Instant,
        id: &Identity,
        incoming: &Incoming,
        result: &ToolUseResult,
    ) {
        if let Some(key) = self.call_owned_by(&result.id, id) {
            let Some(call) = self.calls.get_mut(&key) else { return };
            call.began_at_owner |= incoming.has_begun();
            let read = read_result(result, call, id);
            if self.lane_is_open(id) {
                self.answer_says_more(key, result.success);
            }
            if !self.run_what_was_declined(now, key, &read) {
                self.settle_by_owner(now, key, read);
            }
        } else if self.peers.get(id).is_some_and(|it| self.past.is_owned_by(&result.id, id, it)) {
            let repeated = self.past.answered(&result.id);
            if let Some(stanza) = self.past.get(&result.id).and_then(Gone::stop_sent_as) {
                self.replayed(now, id, stanza); // its stop need not be acknowledged any more
            }
            self.stats.add(if repeated { Counter::Duplicate } else { Counter::Late }, 1);
            if result.success {
                self.ledger.late(&result.id, now);
            }
        } else {
            self.complain(now, id, Counter::Foreign);
            if !self.peers.get(id).is_some_and(|remote| self.is_counterpart(id, remote)) {
                return;
            }
            // One of our clients answers what we have forgotten: it may forget it too.
        }
        self.acknowledge(id, incoming.stanza(), Some(&result.id));
    }

    /// On the fast lane an answer takes the place of what would have preceded it (`wire.md`, 5): that the request
    /// came, and, if it succeeded, that the tool began.
    fn answer_says_more(&mut self, key: CallKey, success: bool) {
        let Some(call) = self.calls.get(&key) else { return };
        let began = success && !call.began_at_owner;
        let id = call.id.clone();
        if let Some((owner, stanza)) = call.asked().map(|asked| (asked.owner.clone(), asked.stanza)) {
            self.request_delivered(&owner, stanza, Some(id.as_str()));
        }
        if began {
            self.event(Event::Progress { key: Some(key), call: id, progress: Progress::started() });
        }
    }

    /// An error (type 1) of a peer: a refusal of a call settles it.
    pub(super) fn error_came(&mut self, now: Instant, id: &Identity, error: ErrorMessage) {
        let originating = error.originating_id.as_deref().map(CallId::from);
        if let Some(key) = originating.as_ref().and_then(|call| self.call_owned_by(call, id)) {
            // It may be the answer to what another instance was asked before, even if this one has acknowledged the
            // new request meanwhile. Should it mean the new request after all, a further instance is there, whose
            // Configuration says so.
            if error.code == 304 && self.calls.get(&key).is_some_and(|call| call.asked_before.is_some()) {
                return self.stats.add(Counter::Late, 1);
            }
            if matches!(error.code, 301 | 304) {
                let lost = Err(CallError::Lost { owner: id.clone() });
                if !self.run_what_was_declined(now, key, &lost) {
                    self.settle_by_owner(now, key, lost);
                }
                return;
            }
        } else if !self.peers.get(id).is_some_and(|remote| self.is_counterpart(id, remote)) {
            return self.complain(now, id, Counter::Foreign);
        }
        self.peer_error(id, error);
    }

    /// A call's owner ends it, and needs not be told.
    fn settle_by_owner(&mut self, now: Instant, key: CallKey, result: Result<Value, CallError>) {
        let Some(call) = self.calls.get(&key) else { return };
        let remembered = call.asked().map(|asked| (call.id.clone(), Gone::answered(asked, now)));
        self.conclude(now, key, result);
        if let Some((id, gone)) = remembered {
            self.remember(now, id, gone);
        }
    }

    /// We end a call: its owner, if any, is told to stop.
    pub(super) fn settle_call(&mut self, now: Instant, key: CallKey, result: Result<Value, CallError>) {
        let Some(call) = self.calls.get(&key) else { return };
        let id = call.id.clone();
        if let Stage::Own(job) = *call.stage() {
            return self.end_own(now, key, job, result);
        }
        if call.asked().is_some_and(|asked| asked.left == 0 && !asked.again) {
            let limit = call.limit;
            let result = result.map_err(|error| match error {
                CallError::Timeout { .. } | CallError::Lost { .. } => CallError::NotDelivered { limit },
                other => other,
            });
            return self.conclude(now, key, result); // no packet left: its owner knows nothing of it
        }
        let remembered = call.asked().map(|asked| Gone::unanswered(asked, now));
        self.conclude(now, key, result);
        if let Some(gone) = remembered {
            self.remember(now, id.clone(), gone);
            self.stop_owner(&id);
        }
    }

    /// Nobody waits for the outcome any more; the call goes on as it would have.
    pub(super) fn detach_call(&mut self, key: CallKey) {
        if let Some(call) = self.calls.get_mut(&key).filter(|call| call.rest.is_none()) {
            call.detached = true;
        }
    }

    /// The packet with the request did not leave this process: nobody has to be told.
    pub(super) fn never_left(&mut self, now: Instant, key: CallKey, error: CallError) {
        if !self.run_what_never_left(now, key) {
            self.conclude(now, key, Err(error));
        }
    }

    pub(super) fn deadline(&mut self, now: Instant, key: CallKey) {
        let Some(call) = self.calls.get(&key) else { return };
        let error = if call.is_waiting() && call.asked_before.is_none() {
            self.nobody_for(call)
        } else {
            CallError::Timeout { limit: call.limit }
        };
        self.settle_call(now, key, Err(error));
    }

    /// A peer's grace is over: what was asked of it in another join than its present one is lost.
    pub(super) fn lose_calls_of_other_joins(&mut self, now: Instant, id: &Identity) {
        let here = self.peers.get(id).and_then(|remote| remote.sid()).cloned();
        self.lose_calls(now, id, |asked| Some(&asked.sid) != here.as_ref());
    }

    /// Another run of the owner's program is here. What the old one was asked, and may run twice, is asked anew of
    /// whoever offers it; the rest is lost as soon as Configurations have crossed.
    pub(super) fn ask_anew(&mut self, now: Instant, id: &Identity) {
        let Some(remote) = self.peers.get(id) else { return };
        let idempotent = |call: &Call| {
            let is_it = |tool: &&Tool| tool.name().as_str() == &*call.tool;
            remote.tools.iter().find(is_it).is_some_and(|tool| tool.tool_options().idempotent)
        };
        // All of them were asked of the old one: what an older one was asked was lost when the old one came.
        let of_old = |call: &Call| call.asked().is_some_and(|asked| asked.instance.is_some());
        let mut anew = Vec::new();
        for (key, call) in self.calls.of_owner(id) {
            // What nobody has claimed is ours to run, and is not asked again.
            let may_wait = call.fallback != Fallback::UntilClaimed;
            if may_wait && of_old(call) && idempotent(call) {
                anew.push(key);
            }
        }
        for key in anew {
            let wait = self.config.times.owner_wait;
            let asked = self.calls.set_stage(key, Stage::Waiting);
            let call = self.calls.get(&key).map(|call| call.id.clone());
            let mut instance = None;
            if let (Some(call), Some(Stage::Asked(asked))) = (call, asked) {
                self.stop_sending(now, &call, &asked);
                instance = asked.instance;
            }
            if let Some(call) = self.calls.get_mut(&key) {
                call.replaced.extend(instance.map(|instance| (id.clone(), instance)));
                if call.replaced.len() > MAX_ASKED_BEFORE {
                    call.replaced.remove(0);
                }
                call.fallback = Fallback::Never;
                call.asked_before = Some(id.clone());
                call.waits_until = later(now, wait);
                self.timers.set(now, Timer::OwnerWait(key), wait);
            }
        }
    }

    pub(super) fn lose_calls(&mut self, now: Instant, id: &Identity, which: impl Fn(&Asked) -> bool) {
        let is_it = |call: &Call| call.asked().is_some_and(&which);
        let lost: Vec<_> =
            self.calls.of_owner(id).filter(|(_, call)| is_it(call)).map(|(key, _)| key).collect();
        for key in lost {
            self.lose_call(now, key, id);
        }
    }

    /// Its owner need not have a request any more: what is left of it is not sent.
    pub(super) fn stop_sending(&mut self, now: Instant, call: &CallId, asked: &Asked) {
        self.withdraw_request(asked.packet);
        self.lane_forget_request(&asked.owner, call);
        self.replayed(now, &asked.owner, asked.stanza);
    }

    /// The one place where a call ends.
    pub(super) fn conclude(&mut self, now: Instant, key: CallKey, result: Result<Value, CallError>) {
        let Some(call) = self.calls.remove(&key) else { return };
        let result = result.map_err(|error| unproven(error, call.asked_before.as_ref()));
        if let Some(asked) = call.asked() {
            self.stop_sending(now, &call.id, asked);
        }
        for (owner, instance) in &call.replaced {
            let ends = later(call.began, call.limit);
            self.past.replaced(owner.clone(), instance.clone(), call.id.clone(), ends);
            if self.peers.get(owner).is_some_and(|remote| remote.instance.as_ref() == Some(instance)) {
                self.stop_what_ended_meanwhile(now, owner);
            }
        }
        for timer in [Timer::Deadline(key), Timer::OwnerWait(key), Timer::ClaimWindow(key)] {
            self.timers.cancel(&timer);
        }
        let execution = call.execution();
        let owner = match call.stage() {
            Stage::Own(_) => Some(self.local.identity().clone()),
            Stage::Asked(asked) => Some(asked.owner.clone()),
            Stage::Waiting => None,
        };
        if let Some(rest) = call.rest {
            return self.rest_ended(now, call, rest, owner, result);
        }
        self.ledger.result_size(&call.id, &result);
        let outcome = result.as_ref().map(|_| ()).map_err(CallError::code);
        let took = now.saturating_duration_since(call.began);
        self.event(Event::Settled { call: call.id, tool: call.tool.into(), execution, owner, outcome, took });
        if !call.detached {
            self.outputs.push_back(Output::Settled { key, result });
        }
    }
}

/// What an error says of a call that another instance was asked for before: that one may have run it, whatever the
/// last one says.
fn unproven(error: CallError, asked_before: Option<&Identity>) -> CallError {
    match (error, asked_before) {
        (CallError::Tool(error), Some(_)) => CallError::Tool(error.of_begun(true)),
        (error, Some(owner)) if !error.may_have_run() => CallError::Lost { owner: owner.clone() },
        (error, _) => error,
    }
}

/// The limit that ended a call at its owner: what its answer names in milliseconds (`wire.md`, section 5), if that is
/// shorter than the caller's own.
fn limit_named(message: Option<&str>, own: Duration) -> Duration {
    let number = message.and_then(|text| text.split(" ms").next()?.split(' ').next_back());
    let named = number.and_then(|number| number.parse().ok()).map(Duration::from_millis);
    named.filter(|named| !named.is_zero() && *named < own).unwrap_or(own)
}

/// What an owner's answer means.
fn read_result(result: &ToolUseResult, call: &Call, owner: &Identity) -> Result<Value, CallError> {
    if result.success {
        return Ok(result.result.clone().unwrap_or_else(Value::empty));
    }
    let code = result.error_code.clone().unwrap_or(ErrorCode::EXECUTION_ERROR);
    let began = call.began_at_owner;
    Err(match code.as_str() {
        "timeout" => CallError::Timeout { limit: limit_named(result.error_message.as_deref(), call.limit) },
        "cancelled" => CallError::Cancelled,
        "unknown_tool" if !began => {
            CallError::unknown_tool(&call.tool, NotOffered::Declined { owner: owner.clone() })
        }
        "busy" if !began => CallError::Busy { owner: owner.clone() },
        "lost" => CallError::Lost { owner: owner.clone() },
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
