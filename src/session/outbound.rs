//! Calls that we asked for: one terminal state each.

use std::time::{Duration, Instant};

use super::{
    CallKey, Counter, Event, JobKey, Output, Phase, Request, Session, Timer, codec,
    codec::Incoming,
    ids,
    ids::Instance,
    owner::{Choice, ECHO},
    past::Gone,
    peer::{Remote, Window},
    send::Unfit,
};
use crate::{
    body::{Body, EncodeError},
    link::{Identity, Sid},
    tool::{CallError, CallId, ErrorCode, Execution, ToolError, ToolName},
    wire::{ErrorMessage, Message, Meta, ToolUseRequest, ToolUseResult},
};

/// A call that has no outcome yet.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) id: CallId,
    pub(super) tool: Box<str>,
    pub(super) arguments: Body,
    /// Whom the caller named.
    pub(super) named: Option<Identity>,
    pub(super) meta: Meta,
    pub(super) began: Instant,
    pub(super) limit: Duration,
    pub(super) stage: Stage,
    /// Nobody waits for its outcome.
    pub(super) detached: bool,
    /// Progress of the current second.
    pub(super) rate: Window,
}

/// How far a call has come.
#[derive(Debug)]
pub(super) enum Stage {
    /// Nobody was asked.
    Waiting,
    /// Its owner was asked.
    Asked(Asked),
    /// We run it ourselves.
    Own(JobKey),
}

/// Who was asked, and how.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) owner: Identity,
    /// None of a plain peer.
    pub(super) instance: Option<Instance>,
    /// The join in which the owner was seen last.
    pub(super) sid: Sid,
    pub(super) stanza: i32,
    pub(super) packet: u64,
    pub(super) at: Instant,
    pub(super) delivered: bool,
}

impl Asked {
    /// Whether this is who was asked: the identity, in the instance that it showed or the join that it was in.
    pub(super) fn is_of(&self, id: &Identity, remote: &Remote) -> bool {
        let same = match &self.instance {
            Some(instance) => remote.instance.as_ref() == Some(instance),
            None => remote.sid() == Some(&self.sid),
        };
        self.owner == *id && same
    }
}

impl Call {
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Waiting)
    }

    pub(super) fn asked(&self) -> Option<&Asked> {
        match &self.stage {
            Stage::Asked(asked) => Some(asked),
            Stage::Waiting | Stage::Own(_) => None,
        }
    }

    fn asked_mut(&mut self) -> Option<&mut Asked> {
        match &mut self.stage {
            Stage::Asked(asked) => Some(asked),
            Stage::Waiting | Stage::Own(_) => None,
        }
    }

    /// Who owes the answer, if somebody else was asked.
    pub(super) fn owner(&self) -> Option<Identity> {
        self.asked().map(|asked| asked.owner.clone())
    }

    fn execution(&self) -> Execution {
        if matches!(self.stage, Stage::Own(_)) { Execution::Server } else { Execution::Client }
    }
}

impl Session {
    pub(super) fn ask(&mut self, now: Instant, request: Request) -> Result<CallKey, CallError> {
        if let Phase::Closed(reason) = &self.phase {
            return Err(CallError::Closed(reason.clone()));
        }
        let (limits, times) = (&self.config.caps, &self.config.times);
        let limit = request.timeout.unwrap_or(times.call);
        let wait = request.owner_wait.unwrap_or(times.owner_wait).min(limit);
        if limit < Duration::from_millis(1) || limit > times.longest_call {
            return Err(CallError::Limit { asked: limit, maximum: times.longest_call });
        }
        if self.calls.len() >= limits.open_calls {
            return Err(CallError::TooManyOpen { open: self.calls.len() });
        }
        if !codec::is_map(&request.arguments) {
            return Err(CallError::Arguments(EncodeError::NotAMap { field: "parameters" }));
        }
        let unknown = || CallError::UnknownTool { tool: request.tool.as_str().into() };
        let name: ToolName = request.tool.parse().map_err(|_| unknown())?;
        if self.is_client() || (name.is_reserved() && name.as_str() != ECHO) {
            return Err(unknown());
        }
        let ours = request.owner.as_ref().is_none_or(|owner| owner == self.local.identity())
            && self.tools.iter().any(|tool| *tool.name() == name);
        let mut call = Call {
            id: self.ids.next_call(),
            tool: request.tool.as_str().into(),
            arguments: request.arguments,
            named: request.owner,
            meta: request.meta,
            began: now,
            limit,
            stage: Stage::Waiting,
            detached: false,
            rate: Window::default(),
        };
        if ours {
            return Ok(self.run_own(now, call, &name));
        }
        match self.choose(&call.tool, call.named.as_ref()) {
            Choice::Fail(error) => return Err(error),
            Choice::Wait if wait.is_zero() => return Err(unknown()),
            Choice::Wait => {}
            Choice::Ask(owner) => call.stage = Stage::Asked(self.send_request(now, &call, &owner)?),
        }
        let key = self.insert_call(now, call);
        self.await_owner(now, key, wait);
        Ok(key)
    }

    /// A call that waited has its owner.
    pub(super) fn ask_owner(&mut self, now: Instant, key: CallKey, owner: &Identity) {
        let Some(call) = self.calls.remove(&key) else { return };
        let sent = self.send_request(now, &call, owner);
        let call = self.calls.entry(key).or_insert(call);
        self.timers.cancel(&Timer::OwnerWait(key));
        match sent {
            Ok(asked) => {
                let first = call.is_waiting();
                call.stage = Stage::Asked(asked);
                if first {
                    self.requested(now, key);
                }
                self.watch(now, owner);
            }
            Err(error) => self.settle_call(now, key, Err(error)),
        }
    }

    pub(super) fn insert_call(&mut self, now: Instant, call: Call) -> CallKey {
        self.next_key += 1;
        let key = CallKey(self.next_key);
        self.stats.add(Counter::Calls, 1);
        self.timers.set(now, Timer::Deadline(key), call.limit);
        self.calls_by_id.insert(call.id.clone(), key);
        self.calls.insert(key, call);
        key
    }

    pub(super) fn deadline(&mut self, now: Instant, key: CallKey) {
        let Some(call) = self.calls.get(&key) else { return };
        let error = if call.is_waiting() {
            CallError::UnknownTool { tool: call.tool.clone() }
        } else {
            CallError::Timeout { limit: call.limit }
        };
        self.settle_call(now, key, Err(error));
    }

    /// We end a call: its owner, if any, is told to stop.
    pub(super) fn settle_call(&mut self, now: Instant, key: CallKey, result: Result<Body, CallError>) {
        let Some(call) = self.calls.get(&key) else { return };
        let id = call.id.clone();
        let remembered = call.asked().map(|asked| Gone::unanswered(asked, now));
        if let Stage::Own(job) = call.stage {
            return self.end_own(now, key, job, result);
        }
        self.conclude(now, key, result);
        if let Some(gone) = remembered {
            self.remember(now, id.clone(), gone);
            self.stop_owner(&id);
        }
    }

    /// Nobody waits for the outcome any more; the call goes on as it would have.
    pub(super) fn detach_call(&mut self, key: CallKey) {
        if let Some(call) = self.calls.get_mut(&key) {
            call.detached = true;
        }
    }

    /// The packet with the request did not leave this process: nobody has to be told.
    pub(super) fn never_left(&mut self, now: Instant, key: CallKey, error: CallError) {
        self.conclude(now, key, Err(error));
    }

    /// The one place where a call ends.
    pub(super) fn conclude(&mut self, now: Instant, key: CallKey, result: Result<Body, CallError>) {
        let Some(call) = self.calls.remove(&key) else { return };
        self.calls_by_id.remove(&call.id);
        for timer in [Timer::Deadline(key), Timer::OwnerWait(key)] {
            self.timers.cancel(&timer);
        }
        let (owner, execution) = match &call.stage {
            Stage::Own(_) => (Some(self.local.identity().clone()), Execution::Server),
            stage_of_others => (
                match stage_of_others {
                    Stage::Asked(asked) => Some(asked.owner.clone()),
                    _ => None,
                },
                Execution::Client,
            ),
        };
        let outcome = result.as_ref().map(|_| ()).map_err(code_of);
        let took = now.saturating_duration_since(call.began);
        self.event(Event::Settled { call: call.id, tool: call.tool.into(), execution, owner, outcome, took });
        if !call.detached {
            self.outputs.push_back(Output::Settled { key, result });
        }
    }

    /// A result came: of an open call from its owner, or not.
    pub(super) fn result_came(
        &mut self,
        now: Instant,
        id: &Identity,
        incoming: &Incoming,
        result: &ToolUseResult,
    ) {
        if let Some(key) = self.call_owned_by(&result.id, id) {
            let Some(call) = self.calls.get(&key) else { return };
            let read = read_result(result, call, id);
            let gone = call.asked().map(|asked| Gone::answered(asked, now));
            self.conclude(now, key, read);
            if let Some(gone) = gone {
                self.remember(now, result.id.clone(), gone);
            }
        } else if let Some(gone) = self.peers.get(id).and_then(|it| self.past.owned_by(&result.id, id, it)) {
            let repeated = std::mem::replace(&mut gone.answered, true);
            self.stats.add(if repeated { Counter::Duplicate } else { Counter::Late }, 1);
        } else {
            self.complain(now, id, Counter::Foreign);
            if !self.peers.get(id).is_some_and(|remote| self.is_counterpart(id, remote)) {
                return;
            }
            // One of our clients answers what we have forgotten: it may forget it too.
        }
        self.acknowledge(id, incoming.stanza(), Some(&result.id));
    }

    /// An error (type 1) of a peer: a refusal of a call settles it.
    pub(super) fn error_came(&mut self, now: Instant, id: &Identity, error: ErrorMessage) {
        let originating = error.originating_id.as_deref().map(CallId::from);
        if let Some(key) = originating.as_ref().and_then(|call| self.call_owned_by(call, id)) {
            if matches!(error.code, 301 | 304) {
                let Some(call) = self.calls.get(&key) else { return };
                let gone = call.asked().map(|asked| Gone::answered(asked, now));
                let call = call.id.clone();
                self.conclude(now, key, Err(CallError::Lost { owner: id.clone() }));
                if let Some(gone) = gone {
                    self.remember(now, call, gone);
                }
                return;
            }
        } else if !self.peers.get(id).is_some_and(|remote| self.is_counterpart(id, remote)) {
            return self.complain(now, id, Counter::Foreign);
        }
        self.peer_error(id, error);
    }

    /// The open call of this id, if this is its owner: the identity, and the instance or join that was asked.
    pub(super) fn call_owned_by(&self, call: &CallId, id: &Identity) -> Option<CallKey> {
        let key = *self.calls_by_id.get(call)?;
        let asked = self.calls.get(&key)?.asked()?;
        asked.is_of(id, self.peers.get(id)?).then_some(key)
    }

    /// The call whose request was sent in this packet, and its limit.
    pub(super) fn call_sent_in(&self, packet: u64) -> Option<(CallKey, Duration)> {
        let is_it = |call: &&Call| call.asked().is_some_and(|asked| asked.packet == packet);
        let call = self.calls.values().find(is_it)?;
        Some((*self.calls_by_id.get(&call.id)?, call.limit))
    }

    pub(super) fn request_delivered(&mut self, id: &Identity, stanza: i32) {
        let asked = self.calls.values_mut().find_map(|call| {
            let name = call.id.clone();
            let asked = call.asked_mut().filter(|asked| asked.owner == *id && asked.stanza == stanza)?;
            Some((name, asked))
        });
        if let Some((call, asked)) = asked {
            if !std::mem::replace(&mut asked.delivered, true) {
                self.event(Event::Delivered { call, owner: id.clone() });
            }
        } else {
            self.stop_what_was_delivered(id, stanza);
        }
    }

    /// Configurations crossed: open calls go on if their owner is the instance that was asked.
    pub(super) fn calls_go_on(&mut self, now: Instant, id: &Identity) {
        let Some(remote) = self.peers.get(id) else { return };
        let (instance, sid) = (remote.instance.clone(), remote.sid().cloned());
        let mut again = Vec::new();
        let mut lost = Vec::new();
        for (key, call) in &mut self.calls {
            let Some(asked) = call.asked_mut().filter(|asked| asked.owner == *id) else { continue };
            let same_join = Some(&asked.sid) == sid.as_ref();
            match (&asked.instance, &instance) {
                (Some(before), Some(now)) if before == now => {
                    asked.sid = sid.clone().unwrap_or_else(|| asked.sid.clone());
                }
                (None, None) if same_join => {}
                (None, Some(_)) if same_join => again.push(*key), // it speaks our form after all
                _ => lost.push(*key),
            }
        }
        for key in lost {
            self.settle_call(now, key, Err(CallError::Lost { owner: id.clone() }));
        }
        for key in again {
            self.ask_owner(now, key, id);
        }
    }

    /// A peer's grace is over: what was asked of it in another join than its present one is lost.
    pub(super) fn lose_calls_of_other_joins(&mut self, now: Instant, id: &Identity) {
        let here = self.peers.get(id).and_then(|remote| remote.sid()).cloned();
        self.lose_calls(now, id, |asked| Some(&asked.sid) != here.as_ref());
    }

    pub(super) fn lose_calls_of_other_instances(&mut self, now: Instant, id: &Identity) {
        let instance = self.peers.get(id).and_then(|remote| remote.instance.clone());
        self.lose_calls(now, id, |asked| asked.instance.is_some() && asked.instance != instance);
    }

    pub(super) fn lose_calls(&mut self, now: Instant, id: &Identity, which: impl Fn(&Asked) -> bool) {
        let is_it = |call: &Call| call.asked().is_some_and(|asked| asked.owner == *id && which(asked));
        let lost: Vec<_> = self.calls.iter().filter(|(_, call)| is_it(call)).map(|(key, _)| *key).collect();
        for key in lost {
            self.settle_call(now, key, Err(CallError::Lost { owner: id.clone() }));
        }
    }

    pub(super) fn requested(&mut self, now: Instant, key: CallKey) {
        let Some(call) = self.calls.get(&key) else { return };
        let owner = call.owner().unwrap_or_else(|| self.local.identity().clone());
        let event = Event::Requested {
            call: call.id.clone(),
            tool: call.tool.to_string(),
            execution: call.execution(),
            owner: owner.clone(),
            by: self.local.identity().clone(),
        };
        self.event(event);
        if owner != *self.local.identity() {
            self.watch(now, &owner);
        }
    }

    fn await_owner(&mut self, now: Instant, key: CallKey, wait: Duration) {
        let Some(call) = self.calls.get(&key) else { return };
        if !call.is_waiting() {
            return self.requested(now, key);
        }
        self.timers.set(now, Timer::OwnerWait(key), wait);
        let wanted = call.named.clone().or_else(|| self.config.pins.get(&*call.tool).cloned());
        if let Some(wanted) = wanted {
            self.expect(now, &wanted);
        }
    }

    /// Sends the request, with the budget that is left.
    fn send_request(&mut self, now: Instant, call: &Call, owner: &Identity) -> Result<Asked, CallError> {
        let open = self.places_at(owner);
        if open >= self.config.caps.open_per_peer && call.asked().is_none() {
            return Err(CallError::TooManyOpen { open });
        }
        let remote = self.peers.get(owner).ok_or_else(|| CallError::Lost { owner: owner.clone() })?;
        let instance = remote.instance.clone().filter(|_| !remote.pair.plain);
        let sid = remote.sid().cloned().unwrap_or_else(|| Sid::from(""));
        let left = call.limit.saturating_sub(now.saturating_duration_since(call.began));
        let message = Message::ToolUseRequest(ToolUseRequest {
            id: call.id.clone(),
            tool_name: call.tool.to_string(),
            parameters: call.arguments.clone(),
            execution: Ok(Execution::Client),
            timeout_ms: Some(milliseconds(left)),
            conversation_id: Some(self.config.room.clone()),
            message_id: None,
        });
        let meta = match &instance {
            Some(instance) => codec::addressed(&call.meta, &ids::address_of(instance.as_str())),
            None => call.meta.clone(),
        };
        let sent = self.post(owner, &meta, &message).map_err(|unfit| match unfit {
            Unfit::TooLarge { size, limit } => CallError::TooLarge { size, limit },
            Unfit::Encode(error) => CallError::Arguments(error),
        })?;
        self.copy(&call.meta, &message);
        let owner = owner.clone();
        Ok(Asked {
            owner,
            instance,
            sid,
            stanza: sent.stanza,
            packet: sent.packet,
            at: now,
            delivered: false,
        })
    }
}

/// A duration as `timeoutMs`: at least 1.
pub(super) fn milliseconds(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX).max(1)
}

/// What an owner's answer means.
fn read_result(result: &ToolUseResult, call: &Call, owner: &Identity) -> Result<Body, CallError> {
    if result.success {
        return Ok(result.result.clone().unwrap_or_else(Body::empty));
    }
    let code = result.error_code.clone().unwrap_or(ErrorCode::EXECUTION_ERROR);
    Err(match code.as_str() {
        "timeout" => CallError::Timeout { limit: call.limit },
        "cancelled" => CallError::Cancelled,
        "unknown_tool" => CallError::UnknownTool { tool: call.tool.clone() },
        "busy" => CallError::Busy { owner: owner.clone() },
        "lost" => CallError::Lost { owner: owner.clone() },
        _ => {
            let message = result.error_message.as_deref().unwrap_or(ToolError::LOCAL_MESSAGE);
            let error = ToolError::new(code, message);
            CallError::Tool(match &result.result {
                Some(partial) => error.with_partial(partial.clone()),
                None => error,
            })
        }
    })
}

/// The word for how a call failed.
fn code_of(error: &CallError) -> ErrorCode {
    match error {
        CallError::Tool(error) => error.code(),
        CallError::UnknownTool { .. } => ErrorCode::UNKNOWN_TOOL,
        CallError::Timeout { .. } => ErrorCode::TIMEOUT,
        CallError::Lost { .. } => ErrorCode::LOST,
        CallError::Cancelled => ErrorCode::CANCELLED,
        CallError::Busy { .. } | CallError::TooManyOpen { .. } => ErrorCode::BUSY,
        CallError::Arguments(_) | CallError::Limit { .. } => ErrorCode::INVALID_PARAMETERS,
        CallError::Ambiguous { .. } => ErrorCode::from("ambiguous"),
        CallError::NotDelivered { .. } => ErrorCode::from("not_delivered"),
        CallError::Detached => ErrorCode::from("detached"),
        CallError::TooLarge { .. } => ErrorCode::from("too_large"),
        CallError::Closed(_) => ErrorCode::from("closed"),
    }
}
