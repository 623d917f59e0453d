//! Handles requests and answers of LiveKit's RPC (`wire.md`, section 10): checks their senders before anything of them is
//! kept, acknowledges requests, and passes them on as calls.

use bytes::Bytes;

use super::Exchange;
use crate::{
    protocol::{
        rpc::{self, RpcCall},
        session::{
            Counter,
            context::Context,
            core::Core,
            delivery::{Part, RpcText},
            incoming::{InboundRequest, Incoming, Refusal, respond},
            outgoing::RpcOutcome,
            peers::{HeldItem, RpcRefusal, SenderStanding},
            timers::Timer,
        },
    },
    tool::{ErrorCode, ToolError},
    transport::{
        Identity, Packet, Peer, RPC_RESPONSE_TOPIC, RpcMessage, RpcResponse, StreamHeader, StreamPart,
    },
};

impl Exchange {
    /// Assistant: offers the tools of a participant that is called by RPC.
    pub(super) fn offer_described(&mut self, core: &mut Core, id: &Identity) {
        if core.peers.offer_described(&mut core.cx, id) {
            self.outgoing.look_for_owners(core);
        }
    }

    /// Handles a message of RPC.
    pub(crate) fn receive_rpc(&mut self, core: &mut Core, from: Option<&Peer>, message: RpcMessage) {
        if !core.cx.handles_texts() {
            return;
        }
        core.cx.count(Counter::FramesIn);
        core.cx.stats.add(Counter::BytesIn, message.size());
        let Some(from) = from.filter(|it| it.identity() != core.cx.local.identity()) else {
            return core.cx.complain(None, Counter::NoSender);
        };
        self.accept_rpc(core, from, message);
    }

    fn accept_rpc(&mut self, core: &mut Core, from: &Peer, message: RpcMessage) {
        match &message {
            RpcMessage::Request(request) => {
                let call = RpcCall::of_packet(from, request);
                if call.is_of_server() {
                    return refuse_server(core, &call);
                }
            }
            RpcMessage::Ack { id } | RpcMessage::Response(RpcResponse { id, .. }) => {
                if !self.is_answer_expected(core, from, id) {
                    return;
                }
            }
        }
        match placed(core, from, HeldItem::Rpc(message)) {
            Some(HeldItem::Rpc(RpcMessage::Request(request))) => {
                let call = RpcCall::of_packet(from, &request);
                if self.admit_request(core, &call) {
                    self.request_arrived(core, &call, Ok(request.payload));
                }
            }
            Some(HeldItem::Rpc(RpcMessage::Ack { id })) => {
                core.peers.note_packet(&core.cx, from.identity());
                self.outgoing.handle_rpc_ack(core, from.identity(), &id);
            }
            Some(HeldItem::Rpc(RpcMessage::Response(RpcResponse { id, outcome }))) => {
                self.answer_arrived(core, from.identity(), &id, RpcOutcome::Message(outcome));
            }
            _ => {}
        }
    }

    /// Returns whether this participant owes an answer to the request of this id. Anybody can send one, and only a participant
    /// that was sent a request is believed: nobody else knows its id.
    fn is_answer_expected(&self, core: &mut Core, from: &Peer, id: &str) -> bool {
        let by = from.identity();
        let is_expected = self.outgoing.find_by_rpc(core, by, id).is_some() || core.peers.is_rpc_ping(by, id);
        if !is_expected {
            core.cx.complain(core.peers.named(from), Counter::NotPermitted);
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
            return core.cx.complain(None, Counter::NoSender);
        }
        let is_answer = header.topic == RPC_RESPONSE_TOPIC;
        if is_answer && !self.is_answer_expected(core, from, rpc::answered_id(&header)) {
            return;
        }
        let part = HeldItem::Part(StreamPart::Header(header));
        let Some(HeldItem::Part(StreamPart::Header(header))) = placed(core, from, part) else { return };
        // A stream that is not admitted takes no memory.
        let text = if is_answer {
            core.peers.note_packet(&core.cx, from.identity());
            RpcText::Answer(rpc::answered_id(&header).into())
        } else {
            let call = RpcCall::of_stream(from, &header);
            if !self.admit_request(core, &call) {
                return;
            }
            RpcText::Request(Box::new(call))
        };
        let part = core.delivery.begin_text(&mut core.cx, from, header, text);
        self.stream_advanced(core, from.identity(), part);
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

    /// Acknowledges a request whose sender may call, and checks everything but its payload: one that is not admitted takes
    /// neither memory nor time for it.
    fn admit_request(&mut self, core: &mut Core, call: &RpcCall) -> bool {
        let id = call.caller.identity();
        if call.id.is_empty() || call.id.len() > core.cx.config.caps.frames.id_bytes {
            core.cx.complain_of(id, Counter::Malformed, "the id of a request by RPC is missing, or too long");
            return false;
        }
        core.peers.note_packet(&core.cx, id);
        // First the rights, then the rate, the tool and the room.
        let refused = match () {
            () if !core.cx.answers_rpc() || rpc::is_reserved(&call.method) => {
                Some(rpc::unsupported(&call.method))
            }
            () => Incoming::why_not_rpc(core, id).map(|refusal| refusal.for_rpc()),
        };
        if let Some(error) = refused {
            if Incoming::may_wait_to_be_bound(core, call) {
                self.note_speech(core, id, false);
            }
            core.cx.complain(id, Counter::Unauthorized);
            send_refusals(core, Some(id), Some((id.clone(), call.key(), error)));
            return false;
        }
        let is_within_rate = call.is_ping() || core.peers.may_answer_request(&core.cx, id);
        acknowledge(core, id, &call.id);
        if core.peers.note_rpc(id) {
            self.incoming.continue_rpc(core, id);
        }
        let refused = match call.check() {
            _ if call.is_ping() => Some(rpc::unsupported(&call.method)),
            Err(error) => {
                core.cx.count(Counter::Refused);
                Some(error)
            }
            Ok(()) => self.incoming.admits_rpc(core, call, is_within_rate).err().map(|refusal| {
                core.cx.count(refusal.counter());
                refusal.for_rpc()
            }),
        };
        let Some(error) = refused else { return true };
        respond(core, id, &call.key(), error);
        false
    }

    /// Handles a request whose payload has arrived, or cannot be read. It becomes the same request as that in a frame.
    fn request_arrived(&mut self, core: &mut Core, call: &RpcCall, payload: Result<Bytes, ToolError>) {
        let payload = payload.map_err(|error| Refusal::new(error.code(), error.message()));
        match payload.and_then(|payload| InboundRequest::by_rpc(core, call, &payload)) {
            Ok(inbound) => self.take_request(core, inbound),
            // Not remembered: the request has not arrived, and its caller may send it again.
            Err(refusal) => {
                core.cx.count(refusal.counter());
                if !self.incoming.knows(call.caller.identity(), &call.key()) {
                    respond(core, call.caller.identity(), &call.key(), refusal.for_rpc());
                }
            }
        }
    }
}

impl Context {
    /// Returns whether messages of LiveKit's RPC are handled.
    pub(super) fn handles_texts(&self) -> bool {
        rpc::IS_BUILT && (self.answers_rpc() || !self.config.described.is_empty())
    }

    /// Returns whether requests of LiveKit's RPC are answered.
    pub(in crate::protocol::session) fn answers_rpc(&self) -> bool {
        rpc::IS_BUILT && self.is_client() && self.config.answer_rpc
    }
}

/// Returns what a participant has sent by RPC if the room has announced its join. Otherwise it waits for that, or is dropped.
fn placed(core: &mut Core, from: &Peer, item: HeldItem) -> Option<HeldItem> {
    match core.peers.place_rpc(from) {
        SenderStanding::Current | SenderStanding::Moved(_) => return Some(item),
        SenderStanding::Dead => core.cx.count(Counter::StaleSid),
        SenderStanding::Early => core.peers.held.hold(&mut core.cx, from, item, Timer::Unannounced),
    }
    None
}

/// Refuses a call of the server itself, which takes only the response.
fn refuse_server(core: &mut Core, call: &RpcCall) {
    core.cx.complain(None, Counter::Unauthorized);
    let error = rpc::error(&ErrorCode::PERMISSION_DENIED, "the server itself may not call here", false);
    send_refusals(core, None, Some((call.caller.identity().clone(), call.key(), error)));
}

/// Sends the refusals of a participant without rights, or of the server, with one more, as far as their rate allows it. A
/// request that waits for its refusal is not acknowledged: its caller would then wait for the whole timeout of the call.
pub(super) fn send_refusals(core: &mut Core, by: Option<&Identity>, mut added: Option<RpcRefusal>) {
    while let Some((to, call, error)) = core.peers.next_refusal(&mut core.cx, by, added.take()) {
        if by.is_some() {
            // SDKs ignore a response without an acknowledgement.
            acknowledge(core, &to, call.as_str());
        }
        respond(core, &to, &call, error);
    }
}

fn acknowledge(core: &mut Core, to: &Identity, id: &str) {
    let mut packet = Packet::rpc(to.clone(), RpcMessage::Ack { id: id.to_owned() });
    packet.overtakes = true; // a caller waits 7 s for it, and a large result may be on its way
    core.delivery.send_rpc(&mut core.cx, &core.peers, packet);
}
