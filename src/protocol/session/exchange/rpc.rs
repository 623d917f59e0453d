//! Handles requests of LiveKit's RPC (`wire.md`, section 10): checks their senders before anything of them is kept,
//! acknowledges them, and passes them on as calls.

use bytes::Bytes;

use super::Exchange;
use crate::{
    protocol::{
        rpc::{self, RpcCall},
        session::{
            Counter,
            core::Core,
            delivery::Part,
            peers::{HeldItem, RpcStanding},
        },
    },
    tool::ToolError,
    transport::{
        Identity, Packet, Peer, RpcError, RpcMessage, RpcRequest, RpcResponse, StreamHeader, StreamPart,
    },
};

impl Exchange {
    /// Handles a message of RPC.
    pub(crate) fn receive_rpc(&mut self, core: &mut Core, from: Option<&Peer>, message: RpcMessage) {
        if !core.cx.answers_rpc() {
            return;
        }
        core.cx.count(Counter::FramesIn);
        core.cx.stats.add(Counter::BytesIn, message.size());
        let Some(from) = from else { return core.cx.complain(None, Counter::NoSender) };
        if from.identity() == core.cx.local.identity() {
            return core.cx.complain(from.identity(), Counter::NoSender);
        }
        match message {
            RpcMessage::Request(request) => self.receive_request(core, from, request),
            // A client has called nobody.
            RpcMessage::Ack { .. } | RpcMessage::Response(_) => {
                core.cx.complain(from.identity(), Counter::NotPermitted);
            }
        }
    }

    /// Handles the header of a stream of text.
    pub(super) fn receive_text_header(&mut self, core: &mut Core, from: &Peer, header: StreamHeader) {
        if from.identity() == core.cx.local.identity() {
            return core.cx.complain(from.identity(), Counter::NoSender);
        }
        match core.peers.place_rpc(from) {
            RpcStanding::Dead => core.cx.count(Counter::StaleSid),
            RpcStanding::Early => {
                core.peers.hold_rpc(&mut core.cx, from, HeldItem::Part(StreamPart::Header(header)));
            }
            RpcStanding::Current => {
                let call = RpcCall::of_stream(from, &header);
                if self.admit_request(core, &call) {
                    let part = core.delivery.begin_request(&mut core.cx, header, call);
                    self.stream_advanced(core, from.identity(), part);
                }
            }
        }
    }

    /// Handles what a sender sent before the room announced it.
    pub(super) fn accept_held(&mut self, core: &mut Core, from: &Peer, item: HeldItem) {
        match item {
            HeldItem::Frame(received) => self.accept(core, from, received),
            HeldItem::Request(request) => self.receive_request(core, from, request),
            HeldItem::Part(part) => self.receive_part(core, from, part),
        }
    }

    /// Handles the effect of a stream's part.
    pub(super) fn stream_advanced(&mut self, core: &mut Core, id: &Identity, part: Part) {
        match part {
            Part::Request(call, payload) => {
                core.cx.count(Counter::FramesIn);
                core.cx.stats.add(Counter::BytesIn, payload.as_ref().map_or(0, Bytes::len));
                self.request_arrived(core, &call, payload);
            }
            part => core.peers.handle_stream_part(&mut core.cx, &mut core.delivery, id, part),
        }
    }

    fn receive_request(&mut self, core: &mut Core, from: &Peer, request: RpcRequest) {
        let call = RpcCall::of_packet(from, &request);
        if from.sid().is_empty() && from.identity().as_str() == call.id {
            // A call of the server itself (`PerformRpc`), which takes only the response.
            core.cx.complain(None, Counter::Unauthorized);
            if core.peers.may_deny_server(&core.cx) {
                respond(core, &call, Err(rpc::unsupported(&call.method)));
            }
            return;
        }
        match core.peers.place_rpc(from) {
            RpcStanding::Dead => core.cx.count(Counter::StaleSid),
            RpcStanding::Early => core.peers.hold_rpc(&mut core.cx, from, HeldItem::Request(request)),
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
            if core.peers.may_deny(&core.cx, id) {
                // SDKs ignore a response without an acknowledgement.
                acknowledge(core, call);
                respond(core, call, Err(rpc::unsupported(&call.method)));
            }
            return false;
        }
        acknowledge(core, call);
        core.peers.note_rpc(id);
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
        if !core.peers.may_call_by_rpc(&core.cx, id) {
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
