//! A packet's way in: who sent it, may it be heard yet, and who takes it.

use std::time::Instant;

use super::{
    CallKey, Counter, Event, Session, Timer,
    claim::is_claim,
    codec,
    codec::Incoming,
    ids::Instance,
    job::fitted,
    outbound::Call,
    peer::{Feature, Pair, Remote},
};
use crate::{
    protocol::frame::{Acknowledgement, ErrorMessage, Message, ToolProgress},
    tool::Execution,
    transport::{Identity, Lane, Peer},
};

/// How much more progress of one call is taken than an owner like us sends: its second is not ours.
const PROGRESS_LEEWAY: u32 = 2;

/// Whether a frame can be taken now.
enum Place {
    /// Its sender is where it says.
    Current,
    /// Its sender is not known yet.
    Early,
    /// Its sender left that join, or is somewhere else now.
    Dead,
}

impl Session {
    pub(super) fn receive(&mut self, now: Instant, from: &Peer, lane: Lane, payload: &[u8]) {
        self.stats.add(Counter::FramesIn, 1);
        self.stats.add(Counter::BytesIn, payload.len());
        let id = from.identity();
        if id.is_empty() || id == self.local.identity() {
            return self.complain(now, id, Counter::Nameless);
        }
        if payload.len() > self.config.caps.max_incoming {
            return self.malformed(now, id, codec::Malformed::default());
        }
        match codec::decode(payload) {
            Ok(incoming) => self.accept(now, from, Incoming { lane, ..incoming }),
            Err(what) => self.malformed(now, id, what),
        }
    }

    pub(super) fn accept(&mut self, now: Instant, from: &Peer, incoming: Incoming) {
        let id = from.identity();
        if self.is_late_goodbye(from, &incoming) {
            self.part_with(now, id);
            self.guest_is_gone(now, id);
            return self.forget_old_identities(); // no grace ends any more that would do so
        }
        match self.place(now, from, &incoming) {
            Place::Current => self.take(now, id, incoming),
            Place::Early => {
                self.hold(now, from, incoming);
                self.ask_for_configuration(now, id);
            }
            Place::Dead => self.stats.add(Counter::DeadSid, 1),
        }
    }

    /// Takes a frame of a peer that is where it says, unless it must wait for its Configuration.
    pub(super) fn take(&mut self, now: Instant, id: &Identity, incoming: Incoming) {
        let Some(remote) = self.peers.get_mut(id) else { return };
        if remote.pair.left {
            // Another run of the program in the same join: only its Configuration can say so.
            let anew = matches!(incoming.message, Message::Configuration(_))
                && incoming
                    .instance()
                    .is_some_and(|instance| Some(instance) != remote.instance.as_ref().map(Instance::as_str));
            if !anew {
                return self.stats.add(Counter::AfterGoodbye, 1);
            }
            remote.pair = Pair::default();
        }
        self.consider(now, id, &incoming);
        self.heard_again(now, id);
        let Some(remote) = self.peers.get(id) else { return };
        let waits = self.must_wait(id, remote, &incoming);
        let Some(remote) = self.peers.get_mut(id) else { return };
        remote.is_heard(now);
        if !waits {
            if !remote.pair.rises(incoming.stanza()) {
                self.stats.add(Counter::NotRising, 1);
            }
            return self.dispatch(now, id, incoming);
        }
        self.ask_for_configuration(now, id);
        let limits = &self.config.caps;
        let Some(remote) = self.peers.get_mut(id) else { return };
        let pair = &mut remote.pair;
        if pair.waiting.len() >= limits.held_frames || pair.waiting_bytes + incoming.size > limits.held_bytes
        {
            return self.stats.add(Counter::HoldExpired, 1);
        }
        pair.waiting_bytes += incoming.size;
        pair.waiting.push(incoming);
        self.stats.add(Counter::Held, 1);
        if !self.timers.is_set(&Timer::Hold(id.clone())) {
            self.timers.set(now, Timer::Hold(id.clone()), self.config.times.hold);
        }
    }

    fn place(&mut self, now: Instant, from: &Peer, incoming: &Incoming) -> Place {
        let (id, sid) = (from.identity(), from.sid());
        let is_configuration = matches!(incoming.message, Message::Configuration(_));
        let Some(remote) = self.peers.get(id) else { return Place::Early };
        if remote.is_dead(sid) {
            return Place::Dead;
        }
        if remote.sid() == Some(sid) || (sid.is_empty() && remote.is_here()) {
            return Place::Current;
        }
        if !is_configuration || !self.can_be_judged(id) {
            return Place::Early;
        }
        self.move_provisionally(now, id, sid);
        Place::Current
    }

    fn must_wait(&self, id: &Identity, remote: &Remote, incoming: &Incoming) -> bool {
        if remote.pair.heard || !self.is_counterpart(id, remote) {
            return false;
        }
        if remote.pair.plain && incoming.addressed_to().is_none() {
            return false;
        }
        match &incoming.message {
            Message::Configuration(_) | Message::Other(..) => false,
            // Nothing follows it under this sid; who shook hands before is known.
            Message::ControlStop(_) if incoming.is_goodbye() => remote.instance.is_none(),
            // A broadcast, or a request of a peer without our handshake.
            Message::ToolUseRequest(request) => {
                request.execution != Ok(Execution::Server) && incoming.addressed_to().is_some()
            }
            Message::ToolUseResult(_) => !self.is_client(),
            // Who does not admit us says so without shaking hands.
            Message::ToolsRegisterAck(_) => false,
            _ => true,
        }
    }

    fn dispatch(&mut self, now: Instant, id: &Identity, mut incoming: Incoming) {
        self.lane_heard(now, id, &incoming);
        let message = std::mem::replace(&mut incoming.message, Message::Heartbeat);
        if let Message::Error(error) = &message
            && self.stream_turned_away(now, id, error)
        {
            return;
        }
        if self.is_client() {
            self.dispatch_as_client(now, id, message, incoming);
        } else {
            self.dispatch_as_assistant(now, id, message, incoming);
        }
    }

    fn dispatch_as_client(&mut self, now: Instant, id: &Identity, message: Message, incoming: Incoming) {
        let is_bound = self.bound.as_ref() == Some(id);
        match message {
            Message::ToolUseRequest(request) => self.request_came(now, id, &incoming, request),
            Message::Configuration(its) => self.configured(now, id, &incoming, &its),
            Message::ControlStop(stop) => self.client_stop_came(now, id, &incoming, &stop),
            Message::Acknowledgement(it) => self.acknowledged_to_client(now, id, &it),
            Message::ToolsRegisterAck(answer) => self.registration_answered(now, id, answer),
            Message::ToolUseResult(result) if is_bound => self.observed_result(now, id, &result),
            Message::ToolProgress(it) if is_bound => self.observed_progress(it),
            Message::Error(error) if is_bound => self.assistant_error(now, id, error),
            Message::ToolUseResult(_) | Message::ToolProgress(_) | Message::Error(_) => {
                self.complain(now, id, Counter::Foreign);
            }
            Message::ToolsRegister(_) | Message::Heartbeat => self.complain(now, id, Counter::Foreign),
            Message::Other(..) => self.other_frame(now, id, incoming),
        }
    }

    fn dispatch_as_assistant(&mut self, now: Instant, id: &Identity, message: Message, incoming: Incoming) {
        match message {
            Message::ToolUseResult(result) => self.result_came(now, id, &incoming, &result),
            Message::Acknowledgement(it) if is_claim(&it) => self.claim_came(now, id, &incoming, &it),
            Message::Acknowledgement(it) => self.acknowledged_to_assistant(now, id, &it),
            Message::ToolProgress(it) => self.progress_came(now, id, incoming.stanza(), it),
            Message::Configuration(its) => self.configured(now, id, &incoming, &its),
            Message::ToolsRegister(offered) => self.registration_came(now, id, offered),
            Message::Heartbeat => self.heartbeat_came(now, id),
            Message::ControlStop(stop) => self.assistant_stop_came(now, id, &incoming, &stop),
            Message::Error(error) => self.error_came(now, id, error),
            Message::ToolUseRequest(_) | Message::ToolsRegisterAck(_) => {
                self.complain(now, id, Counter::Stranger)
            }
            Message::Other(..) => self.other_frame(now, id, incoming),
        }
    }

    /// Client: an acknowledgement of an answer of ours, or a sign of life.
    fn acknowledged_to_client(&mut self, now: Instant, id: &Identity, it: &Acknowledgement) {
        if !self.peers.get(id).is_some_and(|remote| self.may_be_assistant(id, remote)) {
            return self.complain(now, id, Counter::Foreign);
        }
        if self.is_sign_of_life(id, it) {
            return;
        }
        let Some(stanza) = it.acknowledged_stanza_id else { return };
        self.asked_stop_heard(id, stanza);
        self.replayed(now, id, stanza);
        if self.claim_answered(now, id, stanza, it) {
            return;
        }
        let Some(table) = self.tables.get_mut(id) else { return };
        let named = it.acknowledged_message_id.as_deref();
        if let Some(call) = table.sent_as(stanza).filter(|call| codec::may_mean(named, call)) {
            table.acknowledged(now, &call);
            self.set_table_timer(now, id);
        }
    }

    /// Assistant: an acknowledgement of a request or stop of ours, or a sign of life.
    fn acknowledged_to_assistant(&mut self, now: Instant, id: &Identity, it: &Acknowledgement) {
        if !self.peers.get(id).is_some_and(|remote| self.is_counterpart(id, remote)) {
            return self.complain(now, id, Counter::Foreign);
        }
        if self.is_sign_of_life(id, it) {
            return;
        }
        if let Some(stanza) = it.acknowledged_stanza_id.filter(|stanza| *stanza != 0) {
            self.replayed(now, id, stanza);
            self.request_delivered(id, stanza, it.acknowledged_message_id.as_deref());
            self.stop_acknowledged(id, stanza);
        }
    }

    fn is_sign_of_life(&mut self, id: &Identity, it: &Acknowledgement) -> bool {
        match it.notes.as_deref() {
            Some("ping") => {
                if self.peers.get(id).is_some_and(Remote::is_crossed) {
                    self.sign_of_life(id, "pong");
                }
                true
            }
            Some("pong") => true,
            _ => false,
        }
    }

    fn progress_came(&mut self, now: Instant, id: &Identity, stanza: Option<i32>, it: ToolProgress) {
        let Some(key) = self.call_owned_by(&it.id, id) else {
            if self.peers.get(id).is_some_and(|remote| self.past.is_owned_by(&it.id, id, remote)) {
                return self.stats.add(Counter::Late, 1);
            }
            return self.complain(now, id, Counter::Foreign);
        };
        if self.is_old_progress(id, key, stanza) {
            return self.stats.add(Counter::Duplicate, 1);
        }
        let most = self.config.caps.progress_per_second.saturating_mul(PROGRESS_LEEWAY);
        let Some(call) = self.calls.get_mut(&key) else { return };
        call.began_at_owner = true;
        // What has begun was delivered, though the acknowledgement may come later.
        if let Some(stanza) = call.asked().map(|asked| asked.stanza) {
            self.request_delivered(id, stanza, Some(it.id.as_str()));
        }
        let Some(call) = self.calls.get_mut(&key) else { return };
        if !call.rate.admits(now, most) {
            return self.stats.add(Counter::ProgressDropped, 1);
        }
        let call = it.id.clone();
        let progress = fitted(read_progress(it), self.config.caps.progress_bytes);
        self.event(Event::Progress { key: Some(key), call, progress });
    }

    /// Whether this progress came before, or newer progress of the call did. On the fast lane an owner sends each twice, and
    /// the copies overtake each other.
    fn is_old_progress(&mut self, id: &Identity, key: CallKey, stanza: Option<i32>) -> bool {
        if !self.peers.get(id).is_some_and(|remote| remote.lists(Feature::FastLane)) {
            return false;
        }
        let stanza = stanza.map(i32::unsigned_abs).filter(|stanza| *stanza != 0);
        let asked = self.calls.get_mut(&key).and_then(Call::asked_mut);
        let (Some(stanza), Some(asked)) = (stanza, asked) else { return false };
        let is_old = stanza <= asked.progress;
        asked.progress = asked.progress.max(stanza);
        is_old
    }

    fn observed_progress(&mut self, it: ToolProgress) {
        let call = it.id.clone();
        let progress = fitted(read_progress(it), self.config.caps.progress_bytes);
        self.event(Event::Progress { key: None, call, progress });
    }

    /// Client: an error of our assistant. One that it cannot recover from ends what we have with it.
    fn assistant_error(&mut self, now: Instant, id: &Identity, error: ErrorMessage) {
        let recoverable = error.recoverable;
        self.peer_error(id, error);
        if !recoverable {
            self.part_with(now, id);
        }
    }

    pub(super) fn peer_error(&mut self, id: &Identity, error: ErrorMessage) {
        let ErrorMessage { code, message, recoverable, .. } = error;
        self.event(Event::PeerError { by: id.clone(), code, message, recoverable });
    }

    fn other_frame(&mut self, now: Instant, id: &Identity, incoming: Incoming) {
        self.stats.add(Counter::UnknownType, 1);
        let Some(remote) = self.peers.get(id) else { return };
        if !self.is_counterpart(id, remote) {
            return self.complain(now, id, Counter::Stranger);
        }
        if incoming.size > self.config.caps.max_frame_of_others {
            return self.stats.add(Counter::FrameTooLarge, 1);
        }
        let from = remote.peer(id);
        self.event(Event::Frame { from, frame: incoming.frame });
    }
}

fn read_progress(it: ToolProgress) -> crate::tool::Progress {
    let mut progress = crate::tool::Progress::started();
    progress.status = it.status;
    progress.message = it.message;
    progress.content = it.content;
    progress
}
