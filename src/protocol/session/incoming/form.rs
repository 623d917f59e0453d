//! Answers a request in the form in which its caller sent it: as frames, or by LiveKit's RPC (`wire.md`, section 10.1).

use bytes::Bytes;

use super::{Core, InboundRequest, Incoming, Refusal, find_tool, limit_of_rate, not_bound};
use crate::{
    protocol::{
        frame::{Message, Meta, ToolUseResult},
        rpc::{self, RequestForm, RpcCall},
        session::{
            Counter,
            codec::{self, result_message},
            delivery::{Purpose, Sent, text_packet},
            peers::Remote,
        },
    },
    tool::{CallId, ErrorCode, ToolError},
    transport::{Identity, Packet, Participant, RPC_RESPONSE_TOPIC, RpcError, RpcMessage, RpcResponse, Sid},
};

/// How a request was sent, and to whom its answer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As a frame.
    Frame,
    /// By LiveKit's RPC, in this join of its caller. Nothing acknowledges its answer.
    Rpc { join: Sid, version: RequestForm },
}

impl Form {
    pub(super) fn is_frame(&self) -> bool {
        !rpc::IS_BUILT || *self == Self::Frame
    }

    /// Returns whether a repeated request of another form is of the same join. Only requests by RPC show their join.
    pub(super) fn is_in_join_of(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Rpc { join, .. }, Self::Rpc { join: again, .. }) if join == again)
    }

    /// Returns whether its answers may be sent to the caller in its present join. An SDK keeps its requests when it joins
    /// again, and another program must not get their results: that join must have the right to call itself.
    pub(super) fn reaches(&self, core: &Core, caller: &Identity, remote: &Remote) -> bool {
        match self {
            Self::Frame => remote.is_reachable(),
            Self::Rpc { join, .. } => {
                let is_same = remote.sid() == Some(join);
                remote.is_here() && (is_same || core.peers.may_call_by_rpc(&core.cx, caller))
            }
        }
    }

    /// Sends the result of a request by RPC, in the version of the request. `began` states that its tool had started,
    /// whatever its code says.
    pub(super) fn send_result(
        &self,
        core: &mut Core,
        caller: &Identity,
        result: &ToolUseResult,
        began: bool,
    ) -> Option<Sent> {
        let Self::Rpc { version, .. } = self else { return None };
        let Core { cx, peers, delivery, .. } = core;
        let (described, streams) = (peers.get(caller)?.description(), cx.config.streams);
        let id = result.id.as_str();
        let response =
            |outcome| Packet::rpc(caller.clone(), RpcMessage::Response(RpcResponse::new(id, outcome)));
        let too_large = |size, limit| {
            let text = format!("the result has {size} bytes; the limit is {limit} bytes");
            response(Err(rpc::error(&ErrorCode::RESULT_TOO_LARGE, &text, true)))
        };
        let protocol = described.map_or(0, Participant::protocol);
        let payload = rpc::answer(result, began);
        let size = payload.as_ref().map_or(0, Bytes::len);
        let is_small = size <= rpc::MAX_PAYLOAD;
        let packet = match (version, payload) {
            (_, Err(error)) => response(Err(error)),
            (RequestForm::Packet, Ok(payload)) if is_small => response(Ok(payload)),
            (RequestForm::Stream, Ok(payload)) if !streams && is_small => response(Ok(payload)),
            (RequestForm::Packet, _) if protocol == 0 || !streams => too_large(size, rpc::MAX_PAYLOAD),
            _ if size > rpc::MAX_STREAM => too_large(size, rpc::MAX_STREAM),
            (RequestForm::Packet | RequestForm::Stream, Ok(payload)) => {
                let attributes = [(rpc::attribute::ID.to_owned(), id.to_owned())].into();
                text_packet(cx, caller, described, RPC_RESPONSE_TOPIC, attributes, payload)
            }
        };
        Some(delivery.post_rpc(cx, packet, Purpose::Result(result.id.clone())))
    }
}

/// Sends a refusal. Returns its message.
pub(super) fn send_refusal(core: &mut Core, inbound: &InboundRequest, refusal: &Refusal) -> Message {
    let error = ToolError::new(refusal.code.clone(), &*refusal.text);
    let message = result_message(&core.cx.config.room, inbound.id(), Err(error));
    if !inbound.form.is_frame() {
        respond(core, &inbound.caller, inbound.id(), refusal.for_rpc());
        return message;
    }
    // Of a caller that the client has bound since, a refusal that it remembers no longer says so.
    let is_unbound = refusal.is_unbound && !core.peers.is_bound(&core.cx, &inbound.caller);
    let meta = if is_unbound { codec::unbound() } else { Meta::default() };
    if let Err(error) = core.to(&inbound.caller).post(&meta, &message, None) {
        tracing::warn!(call = %inbound.id(), ?error, "a refusal cannot be sent");
    }
    message
}

/// Refuses a request that cannot be meant for this participant, or whose id has been used.
pub(super) fn refuse(core: &mut Core, inbound: &InboundRequest, code: i32, why: &str) {
    if !inbound.form.is_frame() {
        let error = rpc::error(&ErrorCode::EXECUTION_ERROR, why, true);
        return respond(core, &inbound.caller, inbound.id(), error);
    }
    core.to(&inbound.caller).report_error(code, why, Some(inbound.id().as_str().to_owned()));
}

/// Sends an error that is not kept.
pub(crate) fn respond(core: &mut Core, to: &Identity, id: &CallId, error: RpcError) {
    let message = RpcMessage::Response(RpcResponse::new(id.as_str(), Err(error)));
    core.delivery.send_rpc(&mut core.cx, &core.peers, Packet::rpc(to.clone(), message));
}

impl Incoming {
    /// Client: checks a request by RPC before its payload is read, which takes no time and no memory before. `in_rate` states
    /// that the rate of calls allows it.
    pub(crate) fn admits_rpc(&self, core: &mut Core, call: &RpcCall, in_rate: bool) -> Result<(), Refusal> {
        let caller = call.caller.identity();
        let is_known = self.knows(caller, &call.key());
        if !is_known {
            if !in_rate {
                return Err(Refusal::busy(&limit_of_rate(core)));
            }
            find_tool(core, &call.method).map_err(|error| Refusal::new(error.code(), error.message()))?;
            self.has_room_to_run(core, caller, call.size).map_err(|limit| Refusal::busy(&limit))?;
        }
        if core.peers.admits_rpc_bytes(&core.cx, caller, call.size) {
            return Ok(());
        }
        let rate = core.cx.config.caps.requests.rpc_bytes_per_second;
        let limit = format!("the limit is {rate} bytes a second by RPC");
        // A request that has arrived before may run.
        Err(if is_known { Refusal::new(ErrorCode::EXECUTION_ERROR, limit) } else { Refusal::busy(&limit) })
    }

    /// Client: returns why this participant may not call now, if it may not. A candidate may be bound by its request as
    /// long as no other one is.
    pub(crate) fn why_not_rpc(core: &Core, caller: &Identity) -> Option<Refusal> {
        let peers = &core.peers;
        let may_call = peers.may_call_by_rpc(&core.cx, caller)
            && (core.cx.config.rpc_callers.contains(caller)
                || peers.bound().is_none_or(|bound| bound == caller));
        (!may_call).then(|| not_bound(core, caller))
    }

    /// Client: returns whether the sender of a refused request by RPC counts as one that waits to become the assistant: it
    /// could have been bound by the request.
    pub(crate) fn may_wait_to_be_bound(core: &Core, call: &RpcCall) -> bool {
        let id = call.caller.identity();
        core.cx.answers_rpc()
            && core.peers.get(id).is_some_and(|remote| core.peers.is_candidate(&core.cx, id, remote))
            && find_tool(core, &call.method).is_ok()
    }
}

impl Refusal {
    /// Returns what counts it.
    pub(crate) fn counter(&self) -> Counter {
        if self.code == ErrorCode::BUSY { Counter::Busy } else { Counter::Refused }
    }

    /// Returns the refusal as an error of RPC. Nothing has run.
    pub(crate) fn for_rpc(&self) -> RpcError {
        let code = if self.is_unbound { ErrorCode::from("not_bound") } else { self.code.clone() };
        rpc::error(&code, &self.text, false)
    }
}

impl InboundRequest {
    /// Reads a request by RPC.
    ///
    /// # Errors
    /// Why its payload cannot be read.
    pub(crate) fn by_rpc(core: &Core, call: &RpcCall, payload: &[u8]) -> Result<Self, Refusal> {
        let longest = core.cx.config.times.longest_call;
        let refused = |error: ToolError| Refusal::new(error.code(), error.message());
        let form = Form::Rpc { join: call.caller.sid().clone(), version: call.form };
        let request = call.request(payload, longest).map_err(refused)?;
        Ok(Self::new(call.caller.identity(), request, form))
    }
}
