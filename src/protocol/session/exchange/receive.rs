//! Handles packets: identifies the sender, checks whether the packet can be handled now, and passes it to the
//! part of the session that handles it. It also handles packets that were not sent.

use bytes::Bytes;

use super::Exchange;
#[cfg(feature = "deflate")]
use crate::protocol::deflate;
use crate::{
    protocol::{
        frame::{Acknowledgement, ErrorMessage, Message},
        session::{
            Counter, Event, QUEUE_WAIT, SendFailure,
            codec::{self, Malformed, Received},
            core::Core,
            delivery::{MAX_REFUSALS, NotSent, Part, Purpose, STREAM_REFUSED, wait_after_refusals},
            ids,
            incoming::{InboundRequest, too_large},
            outgoing::{observe_progress, peer_error},
            peers::{HeldItem, Remote, SenderStanding},
            timers::Timer,
        },
    },
    tool::{ErrorCode, ToolError},
    transport::{Identity, Lane, Peer, StreamPart},
};

impl Exchange {
    pub(crate) fn receive(&mut self, core: &mut Core, from: Option<&Peer>, lane: Lane, payload: Bytes) {
        let Core { cx, peers, delivery, .. } = core;
        cx.count(Counter::FramesIn);
        cx.stats.add(Counter::BytesIn, payload.len());
        // LiveKit delivers packets of hidden participants and of its server API without an identity. Nothing
        // can be answered to such a sender, and nobody knows who it is. It returns no packet to its sender.
        let Some(from) = from.filter(|it| it.identity() != cx.local.identity()) else {
            return cx.complain(None, Counter::NoSender);
        };
        if payload.len() > cx.config.caps.frames.max_incoming {
            let what = Malformed::because("it is larger than a packet may be");
            return peers.malformed(cx, delivery, from.identity(), what);
        }
        self.receive_frame(core, from, lane, payload);
    }

    /// Handles a frame, which may be compressed.
    fn receive_frame(&mut self, core: &mut Core, from: &Peer, lane: Lane, payload: Bytes) {
        #[cfg(feature = "deflate")]
        let payload = match self.expanded(core, from, payload) {
            Ok(frame) => frame,
            Err(()) => return,
        };
        let Core { cx, peers, delivery, .. } = core;
        match codec::decode(payload) {
            Ok(received) => self.accept(core, from, Received { lane, ..received }),
            Err(what) => peers.malformed(cx, delivery, from.identity(), what),
        }
    }

    /// Returns the frame in a compressed one, and any other unchanged. One that cannot be read is counted.
    #[cfg(feature = "deflate")]
    fn expanded(&self, core: &mut Core, from: &Peer, payload: Bytes) -> Result<Bytes, ()> {
        if !deflate::is_compressed_frame(&payload) {
            return Ok(payload);
        }
        let id = from.identity();
        // Its sender may still believe in the join before, in which it listed the feature, and is told nothing: it sends
        // the frame again after the handshake.
        if !core.peers.may_compress(from) {
            core.cx.complain_of(id, Counter::Malformed, "it is compressed before the handshake");
            return Err(());
        }
        let limit = core.cx.config.caps.frames.largest_of(self.is_trusted(core, id));
        deflate::expanded_frame(&payload, limit).map(Bytes::from).map_err(|error| {
            core.peers.malformed(&mut core.cx, &mut core.delivery, id, Malformed::because(error.to_string()));
        })
    }

    /// Returns whether a participant may send large frames: it is the assistant, or owes an answer.
    fn is_trusted(&self, core: &Core, id: &Identity) -> bool {
        if core.cx.is_client() {
            core.peers.bound().is_none_or(|bound| bound == id) // every participant that may stream is a candidate
        } else {
            self.outgoing.awaits_answers_of(core, id)
        }
    }

    pub(crate) fn receive_stream(&mut self, core: &mut Core, from: &Peer, part: StreamPart) {
        if core.peers.held.header_of(from, part.id()).is_some() {
            return core.peers.held.hold(&mut core.cx, from, HeldItem::Part(part), Timer::Unannounced);
        }
        self.receive_part(core, from, part);
    }

    pub(super) fn receive_part(&mut self, core: &mut Core, from: &Peer, part: StreamPart) {
        let id = from.identity();
        let part = match part {
            StreamPart::Header(header) if header.is_text() && core.cx.handles_texts() => {
                return self.receive_text_header(core, from, header);
            }
            part => part,
        };
        let is_trusted = self.is_trusted(core, id);
        let Core { cx, peers, delivery, .. } = core;
        let is_frame_stream = matches!(&part, StreamPart::Header(header) if header.is_frame());
        let may_begin = is_frame_stream && peers.may_stream(cx, from);
        let frame = match delivery.handle_stream(cx, from, part, (may_begin, peers.named(from)), is_trusted) {
            Part::Whole(frame) => frame,
            part => return self.stream_advanced(core, id, part),
        };
        cx.count(Counter::FramesIn);
        cx.stats.add(Counter::BytesIn, frame.len());
        self.receive_frame(core, from, Lane::Reliable, frame);
    }

    pub(super) fn accept(&mut self, core: &mut Core, from: &Peer, received: Received) {
        let id = from.identity();
        if core.peers.is_late_goodbye(&core.cx, from, &received) {
            self.part_with(core, id);
            return self.dismiss_absent(core, id); // no grace period is pending that would dismiss it later
        }
        let Core { cx, peers, delivery, .. } = core;
        match peers.place(cx, delivery, from, &received) {
            SenderStanding::Current => self.take(core, id, received),
            SenderStanding::Moved(held) => {
                for (from, item) in held {
                    self.accept_held(core, &from, item);
                }
                self.take(core, id, received);
            }
            SenderStanding::Early => peers.hold(cx, delivery, from, received),
            SenderStanding::Dead => {
                cx.count(Counter::StaleSid);
                if received.is_goodbye() {
                    // A goodbye can arrive after the next join of its identity has been announced. The calls
                    // that its sender requested in the earlier join still end (`wire.md`, section 5.5).
                    self.incoming.stop_jobs_of(core, id, |joins| joins.first == *from.sid());
                }
            }
        }
    }

    /// Handles the frames that waited for a peer's Configuration.
    pub(super) fn take_waiting(&mut self, core: &mut Core, id: &Identity) {
        for (from, item) in core.peers.take_waiting(id) {
            self.accept_held(core, &from, item);
        }
    }

    /// Handles a packet that was not sent, for the call, stop or result in it.
    pub(crate) fn unsent(&mut self, core: &mut Core, packet: u64, why: &SendFailure) {
        core.cx.count(Counter::SendFailed);
        let Core { cx, delivery, .. } = core;
        if *why == SendFailure::NotAllowed {
            // Only the acknowledgement of a later frame shows that packets pass again: those up to here may
            // have arrived before the permission was withdrawn.
            cx.local.muted_at = Some(delivery.last_stanza());
            cx.event(Event::NotAllowed);
        }
        let Some(NotSent { to, stanza, purpose, was_never_sent }) = delivery.unsent(cx, packet, why) else {
            return;
        };
        match purpose {
            Purpose::Request(call) => {
                if was_never_sent && *why != SendFailure::Interrupted {
                    self.outgoing.request_unsent(core, &call, why);
                }
            }
            Purpose::Claim(_) | Purpose::Once | Purpose::Latest(_) | Purpose::Never => {}
            Purpose::View => self.views.unsent(core, &to, stanza, why),
            Purpose::Stop(call) => self.outgoing.stop_unsent(&call, stanza),
            Purpose::StopRequest => self.outgoing.stop_request_unsent(stanza),
            Purpose::Result(call) => match why {
                SendFailure::TooLarge { size, limit } => {
                    return self.incoming.replace_result(core, &to, &call, too_large(*size, *limit));
                }
                _ => {
                    self.incoming.result_unsent(&to, &call);
                    // It is sent again under another stanza, so no acknowledgement frees its place.
                    self.incoming.release_window(core, &to, stanza);
                }
            },
        }
        // The transport may accept it later. Without permission it waits until other participants receive packets
        // again.
        if matches!(why, SendFailure::QueueFull | SendFailure::Closed | SendFailure::Other(_)) {
            core.cx.set_timer(Timer::Queue(to), QUEUE_WAIT);
        }
    }

    /// Handles a frame of a peer in its present join, unless the frame must wait for the peer's Configuration.
    fn take(&mut self, core: &mut Core, id: &Identity, received: Received) {
        let Core { cx, peers, delivery, .. } = core;
        if peers.get(id).is_none() {
            return;
        }
        if peers.is_after_goodbye(delivery, id, &received) {
            return cx.count(Counter::AfterGoodbye);
        }
        // Before the sender's rights are looked at: this frame may be the one that admits it (`wire.md`,
        // section 4.4).
        peers.consider(cx, delivery, id, &received);
        if peers.restore_registration(cx, id) {
            cx.set_timer(Timer::Heartbeat(id.clone()), cx.config.times.heartbeat);
            self.outgoing.look_for_owners(core);
            self.views.send_due_to(core, id);
        }
        let Core { cx, peers, delivery, .. } = core;
        let must_wait = peers.must_wait(cx, id, &received);
        peers.note_packet(cx, id);
        if must_wait {
            return peers.wait(cx, delivery, id, received);
        }
        // It would bring back an older state. Other frames may be overtaken.
        if peers.is_replaced(id, &received) {
            return cx.count(Counter::OutOfOrder);
        }
        let is_silenced = core.cx.is_client() && core.peers.get(id).is_some_and(Remote::is_silenced);
        if is_silenced && !received.is_goodbye() {
            self.note_speech(core, id, false);
        }
        self.dispatch(core, id, received);
    }

    fn dispatch(&mut self, core: &mut Core, id: &Identity, mut received: Received) {
        let Core { cx, peers, delivery, .. } = core;
        let caps = &cx.config.caps.frames;
        let is_large = !cx.is_client() && received.size > caps.largest_of(false).max(caps.max_incoming);
        // A client that owes a result may send a large stream, for the result.
        let is_too_large = is_large && !matches!(received.message, Message::ToolUseResult(_));
        if is_too_large || received.call_id().is_some_and(|call| call.len() > caps.id_bytes) {
            let why = if is_too_large {
                "it is larger than its sender may send"
            } else {
                "the call's id is too long"
            };
            let what = Malformed { kind: Some(received.frame.kind()), ..Malformed::because(why) };
            return peers.malformed(cx, delivery, id, what);
        }
        // Before the message is handled: the lane of its answer depends on the lane on which it has arrived.
        delivery.to(cx, peers, id).received(&received);
        let message = std::mem::replace(&mut received.message, Message::Heartbeat);
        if let Message::Acknowledgement(it) = &message
            && let Some(stanza) = it.acknowledged_stanza_id
        {
            note_arrival(core, id, stanza, it.acknowledged_message_id.as_deref());
        }
        if let Message::Error(error) = &message
            && self.stream_refused(core, id, error)
        {
            return;
        }
        match message {
            Message::Configuration(its) => self.configured(core, id, &received, &its),
            Message::Other(..) => core.handle_other_frame(id, received),
            message if core.cx.is_client() => self.dispatch_to_client(core, id, message, &received),
            message => self.dispatch_to_assistant(core, id, message, &received),
        }
    }

    fn dispatch_to_client(&mut self, core: &mut Core, id: &Identity, message: Message, received: &Received) {
        let is_bound = core.peers.is_bound(&core.cx, id);
        match message {
            Message::ToolUseRequest(request) => {
                self.take_carried(core, id, received);
                self.take_request(core, InboundRequest::in_frame(id, received, request));
            }
            Message::ControlStop(_) if received.has_goodbye_mark() => self.goodbye(core, id),
            Message::ControlStop(_) if !may_be_assistant(core, id) => {
                core.cx.complain(id, Counter::Unauthorized)
            }
            Message::ControlStop(stop) => self.incoming.handle_stop(core, id, received.stanza(), &stop),
            Message::Acknowledgement(_) if !may_be_assistant(core, id) => {
                core.cx.complain(id, Counter::NotPermitted)
            }
            Message::Acknowledgement(it) if is_keepalive(core, id, &it) => {}
            Message::Acknowledgement(it) => self.acknowledged_by_assistant(core, id, &it),
            Message::ToolsRegisterAck(answer) => {
                core.peers.handle_registration_answer(&mut core.cx, id, answer);
            }
            Message::ToolUseResult(result) if is_bound => {
                self.incoming.observed.end(core, &result);
            }
            Message::ToolProgress(it) if is_bound => observe_progress(core, it),
            Message::ViewUpdate(view) if is_bound => self.views.observe(core, id, received.stanza(), view),
            Message::Error(error) if is_bound => {
                let is_recoverable = error.recoverable;
                peer_error(core, id, error);
                if !is_recoverable {
                    // As after a goodbye (`wire.md`, section 4.2).
                    self.part_with(core, id);
                }
            }
            _ => core.cx.complain(id, Counter::NotPermitted),
        }
    }

    /// Client: handles a request, in whichever form it came.
    pub(super) fn take_request(&mut self, core: &mut Core, inbound: InboundRequest) {
        let id = &inbound.caller;
        let may_be_bound =
            core.peers.get(id).is_some_and(|remote| core.peers.is_candidate(&core.cx, id, remote));
        if may_be_bound && (core.peers.is_bound(&core.cx, id) || inbound.is_acceptable(core)) {
            // The first request of a candidate can bind it. The request below is then already one of the bound
            // assistant.
            let (id, is_plain) = (id.clone(), inbound.is_plain());
            self.note_speech(core, &id, is_plain);
        } else if !may_be_bound && !inbound.is_broadcast() {
            core.peers.report_not_assistant(&mut core.cx, id);
        }
        self.incoming.handle_request(core, inbound, may_be_bound);
    }

    /// Handles the acknowledgements that a request carries.
    fn take_carried(&mut self, core: &mut Core, id: &Identity, received: &Received) {
        let carried = received.carried();
        if carried.is_empty() || !core.peers.get(id).is_some_and(Remote::is_crossed) {
            return;
        }
        // They name no call. An earlier run of this program may have used the same stanzas.
        let local = ids::address_of(core.cx.ids.instance());
        if received.addressed_to() != Some(&*local) {
            return;
        }
        for (stanza, held) in carried {
            core.delivery.answered(&core.cx, id, stanza, received.lane, held);
            note_arrival(core, id, stanza, None);
            let it = Acknowledgement { acknowledged_stanza_id: Some(stanza), ..Acknowledgement::default() };
            self.acknowledged_by_assistant(core, id, &it);
        }
    }

    /// Handles an acknowledgement of a frame that this client has sent.
    fn acknowledged_by_assistant(&mut self, core: &mut Core, id: &Identity, it: &Acknowledgement) {
        if let Some(stanza) = self.incoming.handle_acknowledgement(core, id, it) {
            self.outgoing.stop_request_acknowledged(stanza);
        }
    }

    fn dispatch_to_assistant(
        &mut self,
        core: &mut Core,
        id: &Identity,
        message: Message,
        received: &Received,
    ) {
        match message {
            Message::ToolUseResult(result) => self.outgoing.handle_result(core, id, received, &result),
            Message::Acknowledgement(_) if !core.peers.has_counterpart(&core.cx, id) => {
                core.cx.complain(id, Counter::NotPermitted)
            }
            Message::Acknowledgement(it) if it.is_claim() => {
                self.outgoing.handle_claim(core, id, received, &it)
            }
            Message::Acknowledgement(it) if is_keepalive(core, id, &it) => {}
            Message::Acknowledgement(it) => {
                if let (Some(stanza), None) = (it.acknowledged_stanza_id, &it.acknowledged_message_id) {
                    self.views.acknowledged(id, stanza);
                }
                self.outgoing.handle_acknowledgement(core, id, &it);
            }
            Message::ToolProgress(it) => self.outgoing.handle_progress(core, id, received, it),
            Message::ToolsRegister(_) if received.is_of_unbound() => {
                core.peers.handle_unbound(&mut core.cx, id);
            }
            Message::ToolsRegister(offered) => {
                let Core { cx, peers, delivery, .. } = core;
                let is_first = !peers.get(id).is_some_and(Remote::is_registered);
                if peers.handle_registration(cx, delivery, id, offered, received.left_out()) {
                    self.outgoing.look_for_owners(core);
                    match is_first {
                        true => self.views.send_all_to(core, id),
                        false => self.views.send_again_to(core, id, true),
                    }
                }
            }
            Message::Heartbeat if !core.peers.has_counterpart(&core.cx, id) => {
                core.cx.complain(id, Counter::Unauthorized)
            }
            Message::Heartbeat => {
                core.cx.set_timer(Timer::Heartbeat(id.clone()), core.cx.config.times.heartbeat);
            }
            Message::ControlStop(_)
                if received.has_goodbye_mark() && core.peers.has_counterpart(&core.cx, id) =>
            {
                self.goodbye(core, id)
            }
            Message::ControlStop(stop) => self.outgoing.handle_stop(core, id, received, &stop),
            Message::Error(error) => self.outgoing.handle_error(core, id, error),
            _ => core.cx.complain(id, Counter::Unauthorized),
        }
    }

    /// Notes that a candidate has sent a request. A plain one sends no Configuration, so its waiting frames are
    /// released here.
    pub(super) fn note_speech(&mut self, core: &mut Core, id: &Identity, is_plain: bool) {
        let Some(speech) = core.peers.note_request(id, is_plain) else { return };
        if let Some(before) = speech.before {
            self.replace_instance(core, id, before);
        }
        if let Some(remote) = core.peers.get_mut(id).filter(|_| speech.is_newly_plain) {
            remote.mark_plain();
        }
        if speech.is_news {
            core.peers.bind_candidate(&mut core.cx, &mut core.delivery);
        }
        if speech.is_newly_plain {
            self.take_waiting(core, id);
            self.incoming.send_waiting_results(core, id);
        }
    }

    /// Handles a peer's refusal of a stream. A result, request or view in it is sent again later. Returns
    /// false if the error is about something else.
    fn stream_refused(&mut self, core: &mut Core, id: &Identity, error: &ErrorMessage) -> bool {
        let stream = error.originating_id.as_deref().filter(|_| error.code == STREAM_REFUSED);
        // The id is one of `packet_of`, which ends in the packet. `is_large_to` rejects a report of a
        // participant that was not sent it.
        let packet = stream.and_then(|stream| stream.rsplit('.').next()?.parse::<u64>().ok());
        let delivery = &mut core.delivery;
        let Some(packet) = packet.filter(|packet| delivery.is_large_to(*packet, id)) else { return false };
        if !delivery.wants(packet) {
            return true; // it was sent again since, or is no longer needed
        }
        delivery.withdraw(packet);
        let Some((stanza, purpose)) = delivery.frame_in(packet, id) else { return true };
        let times = delivery.count_refusal(id, stanza);
        tracing::debug!(peer = %id, packet, times, "the peer has refused a stream");
        match purpose {
            Purpose::Result(call) if times >= MAX_REFUSALS => {
                let text = format!("the caller refused the result {times} times");
                let error = ToolError::new(ErrorCode::RESULT_TOO_LARGE, text);
                self.incoming.replace_result(core, id, &call, error);
            }
            Purpose::Result(_) | Purpose::Request(_) | Purpose::View if times < MAX_REFUSALS => {
                core.cx.set_timer(Timer::Refused(id.clone(), packet), wait_after_refusals(times));
                if core.cx.is_client() {
                    self.incoming.release_window(core, id, stanza); // it waits for up to 8 s
                }
            }
            _ => {} // it is not kept, or its call ends by its own deadline
        }
        true
    }

    /// Sends a frame again whose stream its peer has refused, unless it was sent since or is no longer needed.
    pub(super) fn send_refused(&mut self, core: &mut Core, id: &Identity, packet: u64) {
        match core.delivery.frame_in(packet, id) {
            Some((_, Purpose::Result(call))) => drop(self.incoming.send_result(core, id, &call)),
            Some((_, Purpose::Request(call))) => drop(self.outgoing.ask_again(core, &call)),
            Some((stanza, Purpose::View)) => self.views.send_refused(core, id, stanza),
            _ => {}
        }
    }
}

/// Notes that a packet of the local participant has arrived, if this acknowledgement may mean a frame that was sent there.
fn note_arrival(core: &mut Core, id: &Identity, stanza: i32, named: Option<&str>) {
    // Only a counterpart is believed, because anybody in the room can send an acknowledgement.
    if core.peers.has_counterpart(&core.cx, id) && core.delivery.may_have_sent(id, stanza, named) {
        core.cx.note_arrival(stanza);
    }
}

/// Client: returns whether the sender may be an assistant.
fn may_be_assistant(core: &Core, id: &Identity) -> bool {
    core.peers.get(id).is_some_and(|remote| core.peers.may_be_assistant(&core.cx, id, remote))
}

/// Returns whether an acknowledgement is a ping or pong. A ping of a peer that has completed the handshake is answered.
fn is_keepalive(core: &mut Core, id: &Identity, it: &Acknowledgement) -> bool {
    match it.notes.as_deref() {
        Some("ping") => {
            // Pings from others are not answered, so a stranger cannot make the local participant send.
            if core.peers.get(id).is_some_and(Remote::is_crossed) {
                core.to(id).pong();
            }
            true
        }
        Some("pong") => true,
        _ => false,
    }
}
