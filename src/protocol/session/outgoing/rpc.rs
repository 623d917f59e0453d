//! Makes calls by LiveKit's RPC (`wire.md`, section 10.2).
//!
//! A request is sent once. Its receiver neither acknowledges answers nor recognizes repeated requests, and cannot be told to
//! stop. So a request is sent again, under another id, only if it is certain that it has not left.

use std::time::Duration;

use bytes::Bytes;

use super::{
    Asked, Call, CallKey, Core, Counter, Outgoing, Purpose, Stage, Timer, liveness::SHORTEST_ROUND,
    milliseconds, settled::Gone, time_left,
};
use crate::{
    protocol::{
        rpc::{self, Reply},
        session::{
            delivery::{Sent, text_packet},
            peers::Remote,
        },
    },
    tool::{CallError, CallId, LossCause, NotOffered, Reach, Tool, ToolError},
    transport::{Identity, Packet, RPC_REQUEST_TOPIC, RpcError, RpcMessage, RpcRequest},
    value::Value,
};

/// The number of pings after which an owner that is called by RPC has timed out.
const PINGS: u32 = 3;

/// The wait before a call is made again whose owner has no such method yet: 0.5 s.
const METHOD_AGAIN: Duration = Duration::from_millis(500);

/// A request by RPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::protocol::session) struct AskedByRpc {
    /// Its id on the wire.
    id: Box<str>,
    /// How often the call has been sent, under another id each time.
    times: u32,
}

impl AskedByRpc {
    fn new(call: &CallId, times: u32) -> Self {
        let id = match times {
            1 => call.as_str().into(),
            // Ids of calls have no dot.
            _ => format!("{}.{times}", call.as_str()).into(),
        };
        Self { id, times }
    }
}

/// What the owner of a call by RPC has answered.
#[derive(Debug)]
pub(in crate::protocol::session) enum RpcOutcome {
    /// The payload of an answer, or the error.
    Message(Result<Bytes, RpcError>),
    /// The payload of an answer that came as a stream, or why it cannot be read.
    Stream(Result<Bytes, ToolError>),
}

impl Outgoing {
    /// Sends the request of a call by RPC.
    pub(super) fn send_by_rpc(
        &mut self,
        core: &mut Core,
        call: &Call,
        owner: &Identity,
        reach: Reach,
    ) -> Result<Asked, CallError> {
        let by_rpc = AskedByRpc::new(&call.id, 1 + call.declined.as_ref().map_or(0, |(_, times)| *times));
        let sent = post(core, call, owner, reach, &by_rpc.id)?;
        Ok(Asked { rpc: Some(by_rpc), ..Asked::new(core, call, owner, sent.stanza) })
    }

    /// Sends a request by RPC again that has not left: `Delivery` names no other one of an owner that is called by RPC, whose
    /// streams cannot be refused. Its receiver may have had a part of it, and may have answered that
    /// under the former id.
    pub(super) fn ask_again_by_rpc(&mut self, core: &mut Core, id: &CallId) -> Option<Sent> {
        let key = self.calls.key_of(id)?;
        let call = self.calls.get(&key)?;
        let asked = call.asked()?;
        let owner = asked.owner.clone();
        // Without one, the request waits: for its owner, or for the room to announce the local participant.
        let reach = core.peers.get(&owner)?.reach(&core.cx).filter(|reach| by_rpc(*reach))?;
        let again = AskedByRpc::new(id, asked.rpc.as_ref()?.times + 1);
        let before = asked.stanza;
        let sent = post(core, call, &owner, reach, &again.id);
        let sent = sent.inspect_err(|error| tracing::warn!(%error, "a request cannot be sent again")).ok()?;
        core.delivery.forget_frame(&owner, before);
        let asked = self.calls.get_mut(&key).and_then(Call::asked_mut)?;
        (asked.stanza, asked.rpc) = (sent.stanza, Some(again));
        Some(sent)
    }

    /// Handles the acknowledgement of a request by RPC. That of a stream shows that its header has arrived: the request is sent
    /// again if the rest has not left.
    pub(crate) fn handle_rpc_ack(&mut self, core: &mut Core, by: &Identity, id: &str) {
        if let Some(Found::Open(key)) = self.find_by_rpc(core, by, id) {
            let asked = self.calls.get(&key).and_then(Call::asked);
            if let Some(asked) = asked.filter(|asked| !core.delivery.is_large(by, asked.stanza)) {
                core.delivery.forget_frame(by, asked.stanza);
            }
            self.request_delivered(core, key);
        }
    }

    /// Handles the answer to a request by RPC.
    pub(crate) fn handle_rpc_answer(
        &mut self,
        core: &mut Core,
        by: &Identity,
        id: &str,
        outcome: RpcOutcome,
    ) {
        match self.find_by_rpc(core, by, id) {
            Some(Found::Open(key)) => {
                let Some(call) = self.calls.get(&key) else { return };
                let read = read_outcome(core, call, by, outcome);
                self.request_delivered(core, key);
                if !self.run_declined_call(core, key, &read) && !self.wait_for_method(core, key, &read) {
                    self.settle_by_owner(core, key, read);
                }
            }
            // The receiver had a part of a request that is sent again under another id.
            Some(Found::Former) => core.cx.count(Counter::Late),
            Some(Found::Settled(call)) => {
                let is_repeated = self.settled.answered(&call);
                core.cx.count(if is_repeated { Counter::Duplicate } else { Counter::Late });
                if matches!(outcome, RpcOutcome::Message(Ok(_)) | RpcOutcome::Stream(Ok(_))) {
                    core.cx.note_late(&call);
                }
            }
            None if core.peers.is_rpc_ping(by, id) => {}
            None => core.cx.complain(by, Counter::NotPermitted),
        }
    }

    /// Lets a call wait whose owner has no such method yet: an app can only register it after it has joined. Nothing has run,
    /// so the call is made again, under another id, until its owner wait is over. Returns false if it is.
    fn wait_for_method(&mut self, core: &mut Core, key: CallKey, answer: &Result<Value, CallError>) -> bool {
        let waits = |call: &&Call| call.rest.is_none() && call.waits_until > core.cx.now;
        let Some(call) = self.calls.get(&key).filter(waits) else { return false };
        if !matches!(answer, Err(CallError::UnknownTool { .. })) {
            return false;
        }
        let left = call.waits_until.saturating_duration_since(core.cx.now);
        let Some(Stage::Asked(asked)) = self.calls.set_stage(key, Stage::Waiting) else { return false };
        self.stop_sending(core, &asked);
        if let Some(call) = self.calls.get_mut(&key) {
            call.declined = Some((asked.owner, asked.rpc.map_or(1, |rpc| rpc.times)));
        }
        core.cx.set_timer(Timer::OwnerWait(key), METHOD_AGAIN.min(left));
        true
    }

    /// Finds the call that a request by RPC of this id belongs to, if this participant was sent it.
    pub(crate) fn find_by_rpc(&self, core: &Core, owner: &Identity, id: &str) -> Option<Found> {
        let call = CallId::known(id.split('.').next()?);
        let is_its = |asked: &&Asked| asked.owner == *owner && asked.rpc.is_some();
        if let Some(key) = self.calls.key_of(&call)
            && let Some(asked) = self.calls.get(&key)?.asked().filter(is_its)
        {
            let is_last = asked.rpc.as_ref().is_some_and(|rpc| *rpc.id == *id)
                && !core.delivery.is_unsent(owner, asked.stanza);
            return Some(if is_last { Found::Open(key) } else { Found::Former });
        }
        let declined = self.calls.key_of(&call).and_then(|key| self.calls.get(&key)?.declined.as_ref());
        if declined.is_some_and(|(by, _)| by == owner) {
            return Some(Found::Former);
        }
        self.settled.get(&call).map(Gone::asked).filter(is_its).map(|_| Found::Settled(call))
    }
}

impl Outgoing {
    /// Pings an owner that was called by RPC and sends nothing, and loses those calls if nothing shows that it is alive.
    /// Returns when to look again.
    pub(super) fn check_rpc_owner(&mut self, core: &mut Core, owner: &Identity) -> Option<Duration> {
        let (now, silence) = (core.cx.now, core.cx.config.times.rpc_silence);
        let round = (silence / 5).saturating_mul(3).max(SHORTEST_ROUND);
        let remote = core.peers.get(owner).filter(|_| rpc::IS_BUILT && core.cx.config.rpc_probe)?;
        let (heard, is_here) = (remote.silent_since(), remote.is_here());
        // The silence of an owner counts only from the call on: before it the owner had nothing to send.
        let asked = |(key, call): (CallKey, &Call)| {
            let asked = call.asked().filter(|asked| !asked.is_frame())?;
            Some((key, heard.max(asked.at)))
        };
        let mut open: Vec<_> = self.calls.of_owner(owner).filter_map(asked).collect();
        if !is_here {
            return (!open.is_empty()).then_some(silence); // an absent owner has its grace period
        }
        let patience = silence.saturating_add(round.saturating_mul(PINGS));
        open.retain(|(key, since)| {
            let is_lost = now.saturating_duration_since(*since) >= patience;
            if is_lost {
                self.lose_call(core, *key, owner, LossCause::Silent(patience));
            }
            !is_lost
        });
        let since = open.iter().map(|(_, since)| *since).min()?;
        let silent = now.saturating_duration_since(since);
        let rounds = silent.checked_sub(silence).map_or(0, |over| 1 + over.as_nanos() / round.as_nanos());
        let due = u32::try_from(rounds).unwrap_or(u32::MAX).min(PINGS);
        let Core { cx, peers, delivery, .. } = core;
        peers.ping_by_rpc(cx, delivery, owner, since, due);
        Some((silence + round * due).saturating_sub(silent).max(SHORTEST_ROUND))
    }
}

/// The call of a request by RPC.
pub(crate) enum Found {
    /// It is open, and this was its last request.
    Open(CallKey),
    /// It is open, and has been or will be sent again under another id.
    Former,
    /// It has ended.
    Settled(CallId),
}

/// Returns whether a participant is called by RPC.
pub(super) fn by_rpc(reach: Reach) -> bool {
    rpc::IS_BUILT && matches!(reach, Reach::Rpc1 | Reach::Rpc2)
}

/// Sends a request, with the time that is left.
fn post(core: &mut Core, call: &Call, owner: &Identity, reach: Reach, id: &str) -> Result<Sent, CallError> {
    let payload = call.arguments.to_json_text();
    let limit = if reach == Reach::Rpc1 { rpc::MAX_PAYLOAD } else { rpc::MAX_STREAM };
    if payload.len() > limit {
        return Err(CallError::TooLarge { size: payload.len(), limit });
    }
    let Core { cx, peers, delivery, .. } = core;
    let timeout = milliseconds(time_left(cx, call)).unsigned_abs();
    let method = peers.get(owner).and_then(|it| it.tool(&call.tool)).map_or(&*call.tool, Tool::rpc_method);
    let packet = if reach == Reach::Rpc1 {
        let request = RpcRequest::new(id, method, payload, timeout);
        Packet::rpc(owner.clone(), RpcMessage::Request(request))
    } else {
        let described = peers.get(owner).and_then(Remote::description);
        let attributes = rpc::request_attributes(id, method, timeout);
        text_packet(cx, owner, described, RPC_REQUEST_TOPIC, attributes, payload.into())
    };
    Ok(delivery.post_rpc(cx, packet, Purpose::Request(call.id.clone())))
}

/// Converts an answer to the call's result. The owner does not say whether the tool had started.
fn read_outcome(core: &Core, call: &Call, owner: &Identity, outcome: RpcOutcome) -> Result<Value, CallError> {
    let reply = match outcome {
        RpcOutcome::Message(Ok(payload)) | RpcOutcome::Stream(Ok(payload)) => {
            Reply::of_payload(&payload, core.cx.config.rpc_json)
        }
        RpcOutcome::Message(Err(error)) => Reply::of_error(&error),
        RpcOutcome::Stream(Err(error)) => Reply::Failure(error),
    };
    Err(match reply {
        Reply::Success(value) => return Ok(value),
        Reply::Failure(error) => CallError::Tool(error),
        Reply::Declined => CallError::unknown_tool(&call.tool, NotOffered::Declined { owner: owner.clone() }),
        Reply::TooLarge => {
            let size = call.arguments.to_json_text().len();
            CallError::TooLarge { size, limit: rpc::MAX_PAYLOAD }
        }
        Reply::Timeout => CallError::Timeout { limit: call.budget.limit },
        Reply::Lost => CallError::Lost { owner: owner.clone(), why: LossCause::Left },
    })
}
