//! Handles requests and answers of LiveKit's RPC (`wire.md`, section 10): checks their senders before anything of them is
//! kept, acknowledges requests, and passes them on as calls.

use bytes::Bytes;

use super::Exchange;
use crate::{
    protocol::{
        rpc::{self, RpcCall},
        session::{
            Counter,
            core::Core,
            delivery::{Part, RpcText},
            outgoing::RpcOutcome,
            peers::{HeldItem, RpcStanding},
        },
    },
    tool::ToolError,
    transport::{
        Identity, Packet, Peer, RPC_RESPONSE_TOPIC, RpcError, RpcMessage, RpcRequest, RpcResponse,
        StreamHeader, StreamPart,
    },
};

impl Exchange {
    /// Handles a message of RPC.
    pub(crate) fn receive_rpc(&mut self, core: &mut Core, from: Option<&Peer>, message: RpcMessage) {
        if !core.cx.uses_rpc() {
            return;
        }
        core.cx.count(Counter::FramesIn);
        core.cx.stats.add(Counter::BytesIn, message.size());
        let Some(from) = from else { return core.cx.complain(None, Counter::NoSender) };
        if from.identity() == core.cx.local.identity() {
            return core.cx.complain(from.identity(), Counter::NoSender);
        }
        self.accept_rpc(core, from, message);
    }

    fn accept_rpc(&mut self, core: &mut Core, from: &Peer, message: RpcMessage) {
        let id = match &message {
            RpcMessage::Request(_) => None,
            RpcMessage::Ack { id } | RpcMessage::Response(RpcResponse { id, .. }) => Some(id),
        };
        if let Some(id) = id
            && !self.is_answer_expected(core, from, id)
        {
            return;
        }
        match (core.peers.place_rpc(from), message) {
            (RpcStanding::Early | RpcStanding::Current, RpcMessage::Request(request)) => {
                self.receive_request(core, from, request);
            }
            (RpcStanding::Dead, _) => core.cx.count(Counter::StaleSid),
            (RpcStanding::Early, message) => {
                core.peers.hold_rpc(&mut core.cx, from, HeldItem::Rpc(message));
            }
            (RpcStanding::Current, RpcMessage::Ack { id }) => {
                core.peers.note_packet(&core.cx, from.identity());
                self.outgoing.handle_rpc_ack(core, from.identity(), &id);
            }
            (RpcStanding::Current, RpcMessage::Response(RpcResponse { id, outcome })) => {
                self.answer_arrived(core, from.identity(), &id, RpcOutcome::Message(outcome));
            }
        }
    }

    /// Returns whether this participant owes an answer to the request of this id. Anybody can send one, and only a participant
    /// that was sent a request is believed: nobody else knows its id.
    fn is_answer_expected(&self, core: &mut Core, from: &Peer, id: &str) -> bool {
        let by = from.identity();
        let is_expected = self.outgoing.has_asked_by_rpc(core, by, id) || core.peers.is_rpc_ping(by, id);
        if !is_expected {
            core.cx.complain(by, Counter::NotPermitted);
        }
        is_expected
    }

    fn answer_arrived(&mut self, core: &mut Core, by: &Identity, id: &str, outcome: RpcOutcome) {
        core.peers.note_packet(&core.cx, by);
        self.outgoing.handle_rpc_answer(core, by, id, outcome);
    }

    /// Handles the header of a stream of text.
    pub(super) fn receive_text_header(&mut self, core: &mut Core, from: &Peer, header: StreamHeader) {
        if from.identity() == core.cx.local.identity() {
            return core.cx.complain(from.identity(), Counter::NoSender);
        }
        let is_answer = header.topic == RPC_RESPONSE_TOPIC;
        if is_answer && !self.is_answer_expected(core, from, rpc::answered_id(&header)) {
            return;
        }
        match core.peers.place_rpc(from) {
            RpcStanding::Dead => core.cx.count(Counter::StaleSid),
            RpcStanding::Early => {
                core.peers.hold_rpc(&mut core.cx, from, HeldItem::Part(StreamPart::Header(header)));
            }
            RpcStanding::Current => {
                let Some(text) = self.admit_text(core, from, &header) else { return };
                let part = core.delivery.begin_text(&mut core.cx, from, header, text);
                self.stream_advanced(core, from.identity(), part);
            }
        }
    }

    /// Returns the text that a stream carries, if its sender may send it: an answer is expected here. A stream that is not
    /// admitted takes no memory.
    fn admit_text(&mut self, core: &mut Core, from: &Peer, header: &StreamHeader) -> Option<RpcText> {
        if header.topic == RPC_RESPONSE_TOPIC {
            core.peers.note_packet(&core.cx, from.identity());
            return Some(RpcText::Answer(rpc::answered_id(header).into()));
        }
        let call = RpcCall::of_stream(from, header);
        self.admit_request(core, &call).then(|| RpcText::Request(Box::new(call)))
    }

    /// Handles what a sender sent before the room announced it.
    pub(super) fn accept_held(&mut self, core: &mut Core, from: &Peer, item: HeldItem) {
        match item {
            HeldItem::Frame(received) => self.accept(core, from, received),
            HeldItem::Rpc(message) if rpc::IS_BUILT => self.accept_rpc(core, from, message),
            HeldItem::Rpc(_) => {}
            HeldItem::Part(part) => self.receive_part(core, from, part),
        }
    }

    /// Handles the effect of a stream's part.
    pub(super) fn stream_advanced(&mut self, core: &mut Core, id: &Identity, part: Part) {
        match part {
            Part::Text(text, payload) if rpc::IS_BUILT => {
                core.cx.count(Counter::FramesIn);
                core.cx.stats.add(Counter::BytesIn, payload.as_ref().map_or(0, Bytes::len));
                match text {
                    RpcText::Request(call) => self.request_arrived(core, &call, payload),
                    RpcText::Answer(of) => self.answer_arrived(core, id, &of, RpcOutcome::Stream(payload)),
                }
            }
            part => core.peers.handle_stream_part(&mut core.cx, &mut core.delivery, id, part),
        }
    }

    fn receive_request(&mut self, core: &mut Core, from: &Peer, request: RpcRequest) {
        let call = RpcCall::of_packet(from, &request);
        if from.sid().is_empty() && from.identity().as_str() == call.id {
            // A call of the server itself (`PerformRpc`), which takes only the response.
            core.cx.complain(None, Counter::Unauthorized);
            if core.peers.may_answer_server(&core.cx) {
                respond(core, &call, Err(rpc::unsupported(&call.method)));
            }
            return;
        }
        match core.peers.place_rpc(from) {
            RpcStanding::Dead => core.cx.count(Counter::StaleSid),
            RpcStanding::Early => {
                core.peers.hold_rpc(&mut core.cx, from, HeldItem::Rpc(RpcMessage::Request(request)));
            }
            RpcStanding::Current if self.admit_request(core, &call) => {
                self.incoming.handle_rpc(core, &call, Ok(request.payload));
            }
            RpcStanding::Current => {}
        }
    }

    /// Acknowledges a request whose sender may call, and checks everything but its payload. A request that is not admitted
    /// takes no memory.
    fn admit_request(&mut self, core: &mut Core, call: &RpcCall) -> bool {
        let id = call.caller.identity();
        if call.id.is_empty() || call.id.len() > core.cx.config.caps.frames.id_bytes {
            core.cx.complain(id, Counter::Malformed); // no answer could name it
            return false;
        }
        core.peers.note_packet(&core.cx, id);
        if call.is_reserved() || !self.may_call(core, id) {
            core.cx.complain(id, Counter::Unauthorized);
            if core.peers.may_answer_request(&core.cx, id) {
                // SDKs ignore a response without an acknowledgement.
                acknowledge(core, call);
                respond(core, call, Err(rpc::unsupported(&call.method)));
            }
            return false;
        }
        acknowledge(core, call);
        core.peers.note_rpc(id);
        if call.is_ping() {
            respond(core, call, Err(rpc::unsupported(&call.method)));
            return false;
        }
        match call.check() {
            Ok(()) => true,
            Err(error) => {
                core.cx.count(Counter::Refused);
                respond(core, call, Err(error));
                false
            }
        }
    }

    /// Returns whether a participant may call. The first request of a candidate can bind it, as a plain one can.
    fn may_call(&mut self, core: &mut Core, id: &Identity) -> bool {
        if !core.cx.answers_rpc() || !core.peers.may_call_by_rpc(&core.cx, id) {
            return false;
        }
        if core.cx.config.rpc_callers.contains(id) {
            return true;
        }
        self.note_speech(core, id, false);
        core.peers.is_bound(&core.cx, id)
    }

    /// Handles a request whose stream has ended.
    fn request_arrived(&mut self, core: &mut Core, call: &RpcCall, payload: Result<Bytes, ToolError>) {
        // The caller may have lost its rights while its stream arrived.
        if core.peers.place_rpc(&call.caller) != RpcStanding::Current
            || !self.may_call(core, call.caller.identity())
        {
            return core.cx.complain(call.caller.identity(), Counter::Unauthorized);
        }
        self.incoming.handle_rpc(core, call, payload);
    }
}

fn acknowledge(core: &mut Core, call: &RpcCall) {
    let mut packet = Packet::rpc(call.caller.identity().clone(), RpcMessage::Ack { id: call.id.clone() });
    packet.overtakes = true; // a caller waits 7 s for it, and a large result may be on its way
    core.delivery.send_rpc(&mut core.cx, packet);
}

/// Sends an answer that is not kept.
pub(in crate::protocol::session) fn respond(
    core: &mut Core,
    call: &RpcCall,
    outcome: Result<Bytes, RpcError>,
) {
    let message = RpcMessage::Response(RpcResponse::new(&*call.id, outcome));
    core.delivery.send_rpc(&mut core.cx, Packet::rpc(call.caller.identity().clone(), message));
}
