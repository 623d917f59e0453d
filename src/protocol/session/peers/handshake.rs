//! Performs the handshake: two Configurations in one round trip (`wire.md`, section 6).

use std::time::Duration;

use super::{
    Context, Counter, Delivery, Feature, Instance, Peers, Received, Timer,
    contact::Signal,
    held::HeldItem,
    remote::{Features, Presence, Registration},
};
use crate::{
    clock::Instant,
    protocol::{
        frame::{Configuration, Message, Meta},
        session::codec,
    },
    tool::Execution,
    transport::{Identity, Peer, Sid},
};

/// The number of Configurations that are sent to a peer: the first, and others after 1, 2, 4 and 8 s until the peer's
/// arrives.
const GREETINGS: u32 = 5;

/// How long a packet may be in transit: a report of that time that it is missing says nothing. Less than the 1 s after which a
/// Configuration is first repeated, so that no repetition is ignored.
pub(super) const IN_FLIGHT: Duration = Duration::from_millis(900);

/// The time after which a peer under an unannounced sid is asked for its Configuration again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The meaning of a peer's Configuration.
#[derive(Debug)]
pub(crate) enum Greeting {
    /// The Configuration has no effect beyond an answer.
    Ignored,
    /// The peer has sent it before.
    Repeated {
        /// Whether frames that were sent under this pair of sids may have been dropped, since the local Configuration had
        /// not arrived before this one was sent. The unacknowledged ones are sent again.
        may_lack_frames: bool,
    },
    /// The Configuration is the first one under this pair of sids, or from another instance.
    New {
        /// The instance that the peer showed before.
        before: Option<Instance>,
        /// The instance that the peer shows now.
        instance: Option<Instance>,
    },
}

/// The changes caused by a plain request of a candidate.
#[derive(Debug)]
pub(crate) struct PlainSpeech {
    /// Whether it is the participant's first frame, or its first one in the plain form.
    pub(crate) is_news: bool,
    /// Whether the participant was not plain before.
    pub(crate) is_newly_plain: bool,
    /// The instance that it had shown. It has been replaced by another process.
    pub(crate) before: Option<Instance>,
}

impl Peers {
    /// Greets the configured peers, whether or not the server has announced them.
    pub(crate) fn greet_named(&mut self, cx: &mut Context, delivery: &mut Delivery) {
        let named: Vec<_> = match &cx.config.assistant {
            Some(assistant) if cx.is_client() => vec![assistant.clone()],
            _ if cx.is_client() => Vec::new(),
            _ => cx.config.admitted.iter().cloned().collect(),
        };
        for id in named {
            if id != *cx.local.identity() {
                self.known(cx, &id);
                self.greet(cx, delivery, &id);
            }
        }
    }

    /// Sends the local Configuration to a counterpart, once under a pair of sids. A client's registration may follow at
    /// once.
    pub(crate) fn greet(&mut self, cx: &mut Context, delivery: &mut Delivery, id: &Identity) {
        let is_due = self.get(id).is_some_and(|remote| {
            let is_away = matches!(remote.presence, Presence::Away { .. });
            let is_first = remote.pair.greetings == 0;
            is_first && !remote.has_left() && !is_away && self.is_counterpart(cx, id, remote)
        });
        let is_due = is_due && !self.is_not_greeted(cx, id);
        if is_due {
            self.send_configuration(cx, delivery, id);
            cx.set_timer(Timer::Greet(id.clone()), Duration::from_secs(1));
            self.register_early(cx, delivery, id);
        }
    }

    pub(crate) fn greet_again(&mut self, cx: &mut Context, delivery: &mut Delivery, id: &Identity) {
        let Some(remote) = self.get(id) else { return };
        let greetings = remote.pair.greetings;
        if remote.is_configured() || remote.has_left() || greetings >= GREETINGS {
            return;
        }
        self.send_configuration(cx, delivery, id);
        if greetings + 1 < GREETINGS {
            cx.set_timer(Timer::Greet(id.clone()), Duration::from_secs(1 << greetings));
        }
    }

    /// Greets a participant that a call waits for, and starts its timeout unless its Configuration has arrived.
    pub(crate) fn expect(&mut self, cx: &mut Context, delivery: &mut Delivery, id: &Identity) {
        let is_not_greeted = self.is_not_greeted(cx, id);
        let Some(remote) = self.remotes.get_mut(id) else { return };
        if !remote.is_here() || remote.is_configured() || is_not_greeted {
            return;
        }
        remote.join.named = true;
        self.greet(cx, delivery, id);
        let Some(remote) = self.get(id) else { return };
        let since = |at: Instant| cx.now.saturating_duration_since(at);
        let unannounced =
            cx.local.unannounced_until.map_or(Duration::ZERO, |it| it.saturating_duration_since(cx.now));
        let greeted = remote.pair.greeted_at.map_or(Duration::ZERO, since);
        // One millisecond longer than the interval after which the local Configuration is repeated.
        let wait = cx.config.times.silence.saturating_sub(greeted).saturating_add(Duration::from_millis(1));
        cx.set_timer(Timer::Silent(id.clone()), wait.max(unannounced));
    }

    /// Handles the timeout of a participant that a call waits for: it is called as a plain peer. Returns whether it is
    /// plain now.
    pub(crate) fn time_out_silence(&mut self, cx: &mut Context, id: &Identity) -> bool {
        let Some(remote) = self.remotes.get_mut(id) else { return false };
        let contact = remote.pair.contact;
        let is_silent = remote.is_here() && !contact.is_configured() && !contact.has_left();
        // A process that uses the handshake and may have rejoined shows itself soon.
        if !is_silent || remote.has_process() {
            return false;
        }
        // A frame that waits for its sender's Configuration shows that the sender may have one. The timeout then starts
        // again at the last local Configuration.
        let since = remote.pair.greeted_at.map(|at| cx.now.saturating_duration_since(at));
        let left = since.and_then(|since| cx.config.times.silence.checked_sub(since));
        let left = left.filter(|left| !left.is_zero() && self.unconfigured.has_speech_of(id));
        if let Some(left) = left.filter(|_| !std::mem::replace(&mut remote.pair.silence_extended, true)) {
            cx.set_timer(Timer::Silent(id.clone()), left);
            return false;
        }
        remote.pair.signal(Signal::Plain);
        true
    }

    /// Returns whether a frame must wait for its sender's Configuration.
    pub(crate) fn must_wait(&self, cx: &Context, id: &Identity, incoming: &Received) -> bool {
        let Some(remote) = self.get(id) else { return false };
        if remote.is_configured() || !self.is_counterpart(cx, id, remote) {
            return false;
        }
        if remote.is_plain() && incoming.addressed_to().is_none() {
            return false;
        }
        match &incoming.message {
            Message::Configuration(_) | Message::Other(..) => false,
            // No frame follows it under this sid.
            _ if incoming.is_goodbye() => false,
            // A broadcast, or a request of a peer without the handshake.
            Message::ToolUseRequest(request) => {
                request.execution != Ok(Execution::Server) && incoming.addressed_to().is_some()
            }
            Message::ToolUseResult(_) => !cx.is_client(),
            // An assistant that does not admit the client sends its refusal without a handshake. One that has accepted the
            // tools may be bound by its Configuration, which this answer has overtaken on the lossy lane.
            Message::ToolsRegisterAck(answer) => answer.success && !self.is_bound(cx, id),
            _ => true,
        }
    }

    /// Keeps a frame until its sender's Configuration arrives, and asks the sender for it.
    pub(crate) fn wait(
        &mut self,
        cx: &mut Context,
        delivery: &mut Delivery,
        id: &Identity,
        incoming: Received,
    ) {
        // Also for a frame that finds no room below: a peer that takes the handshake for complete repeats
        // nothing, and its calls are lost after 5 s of silence.
        self.ask_for_configuration(cx, delivery, id);
        if let Some(from) = self.get(id).map(|remote| remote.peer(id)) {
            self.unconfigured.hold(cx, &from, HeldItem::Frame(incoming), Timer::Unconfigured);
        }
    }

    /// Takes the frames that waited for this peer's Configuration, in their order.
    pub(crate) fn take_waiting(&mut self, id: &Identity) -> Vec<(Peer, HeldItem)> {
        let who = self.get(id).map(|remote| remote.peer(id));
        who.map(|who| self.unconfigured.release(&who)).unwrap_or_default()
    }

    /// Asks a peer for its Configuration, because one of its frames must wait. The sender regards the handshake as
    /// complete, or is trying to reach the local participant. While a frame waits for the Configuration of an unannounced sid,
    /// its sender is asked again: it may assume that a Configuration in transit has arrived.
    ///
    /// The local Configuration states that the peer's has not arrived, so the peer sends its own again. A Configuration
    /// itself never waits, so the two sides cannot cause an endless exchange.
    pub(crate) fn ask_for_configuration(&mut self, cx: &mut Context, delivery: &mut Delivery, id: &Identity) {
        let Some(remote) = self.get(id) else { return };
        if remote.has_left() || !self.is_counterpart(cx, id, remote) {
            return;
        }
        if was_long_ago(cx.now, remote.pair.greeted_at) {
            self.post_configuration(cx, delivery, id, false);
        }
        if self.held.has_frames_of(id) {
            cx.set_timer(Timer::Ask(id.clone()), ASK_AGAIN); // also if a Configuration was sent a moment ago
        }
    }

    /// Handles a peer's Configuration up to the point where another instance may have to be replaced.
    /// [`complete_handshake`](Self::complete_handshake) must follow.
    pub(crate) fn handle_configuration(
        &mut self,
        cx: &mut Context,
        delivery: &mut Delivery,
        id: &Identity,
        incoming: &Received,
        its: &Configuration,
    ) -> Greeting {
        if !self.has_counterpart(cx, id) {
            if self.remotes.contains_key(id) {
                cx.complain(id, Counter::Unauthorized);
                self.report_not_assistant(cx, id);
                self.decline(cx, delivery, id, incoming);
                self.deny_registration(cx, delivery, id);
            }
            return Greeting::Ignored;
        }
        let rooms = [incoming.conversation(), its.conversation_id.as_deref()];
        if rooms.iter().any(|room| cx.is_other_room(*room)) {
            cx.complain(id, Counter::WrongRoom);
            delivery.to(cx, self, id).report_error(201, "the Configuration names another room", None);
            return Greeting::Ignored;
        }
        cx.learn_room(incoming.conversation().or(its.conversation_id.as_deref()));
        let instance = incoming.instance().map(|shown| self.instance_of(cx, id, shown, incoming.proof()));
        if instance == Some(None) {
            cx.complain(id, Counter::StaleSid);
            return Greeting::Ignored;
        }
        let instance = instance.flatten();
        let Some(remote) = self.remotes.get_mut(id) else { return Greeting::Ignored };
        // Also of a repeated Configuration: its features replace those before.
        remote.join.features = Features::of(its);
        remote.join.has_spoken = true;
        if incoming.has_received_configuration() {
            cx.permit();
        }
        let is_repeated = remote.is_configured() && remote.present_instance() == instance.as_ref();
        let before = remote.show_process(instance.clone(), incoming.stanza());
        if is_repeated {
            return self.handle_repeated(cx, delivery, id, incoming.has_received_configuration());
        }
        if before.is_some() && before != instance {
            if remote.is_unannounced() {
                remote.join.participant = None; // it describes the join of the old instance
            }
            if remote.is_configured() {
                self.renew_pair(cx, delivery, id); // it is the one with the old instance
            }
        }
        Greeting::New { before, instance }
    }

    /// Returns the instance of a participant that shows this text in its present join. `None` if it is a known one whose proof
    /// is of another join: an SDK may send a Configuration of the earlier join in the next one.
    fn instance_of(&self, cx: &Context, id: &Identity, shown: &str, proof: Option<&str>) -> Option<Instance> {
        let remote = self.get(id)?;
        let from = remote.peer(id);
        let is_proven = || is_proven(cx, shown, &from, proof);
        remote.instance_of(shown, from.sid(), proof.is_some(), is_proven)
    }

    /// Completes the handshake after a new Configuration. Returns the earlier join that it continues: that of the process that
    /// showed itself last, if it is the same.
    pub(crate) fn complete_handshake(
        &mut self,
        cx: &mut Context,
        delivery: &mut Delivery,
        id: &Identity,
        incoming: &Received,
    ) -> Option<Sid> {
        let remote = self.remotes.get_mut(id)?;
        let has_instance = remote.present_instance().is_some();
        let here = remote.sid()?.clone();
        let earlier = remote.process.as_mut().and_then(|process| process.shown_in.replace(here));
        if earlier.is_some() {
            remote.departed = None;
        }
        let pair = &mut remote.pair;
        // Before the local Configuration is sent, which states that the peer's has arrived.
        pair.signal(Signal::Configuration { instance: has_instance });
        pair.crossed_at.get_or_insert(cx.now);
        pair.is_heard = incoming.has_received_configuration();
        delivery.note_configuration(id, pair.is_heard);
        let is_first = pair.greetings == 0;
        let is_unheard = !incoming.has_received_configuration() && was_long_ago(cx.now, pair.greeted_at);
        // An answered registration was an earlier one, or the assistant has forgotten it: an assistant sends its
        // Configuration before it answers.
        if is_unheard || pair.registration == Registration::Answered {
            pair.registration = Registration::Idle;
        }
        cx.timers.cancel(&Timer::Greet(id.clone()));
        if is_first || is_unheard {
            self.send_configuration(cx, delivery, id);
        }
        if !has_instance && !cx.is_client() {
            delivery.to(cx, self, id).acknowledge_always(incoming.stanza(), None);
        }
        cx.timers.cancel(&Timer::Silent(id.clone()));
        earlier
    }

    /// Client: notes a request of a candidate. A candidate whose request has no `bridge.to` is plain, unless its
    /// Configuration has arrived.
    pub(crate) fn note_request(&mut self, id: &Identity, is_plain_speech: bool) -> Option<PlainSpeech> {
        let remote = self.remotes.get_mut(id)?;
        let is_first = !std::mem::replace(&mut remote.join.has_spoken, true);
        let is_newly_plain = is_plain_speech && !remote.is_configured() && !remote.is_plain();
        // A peer that showed an instance does not use the plain form, so this is another process.
        let before = if is_newly_plain { remote.show_process(None, None) } else { None };
        Some(PlainSpeech { is_news: is_first || is_newly_plain, is_newly_plain, before })
    }

    /// Pings a client that completed the handshake but has not registered, if the answer can prove that it will not
    /// register.
    pub(crate) fn probe(&mut self, cx: &mut Context, delivery: &mut Delivery, id: &Identity) {
        let (now, silence) = (cx.now, cx.config.times.silence);
        let has_passed = |at: Instant, time: Duration| now.saturating_duration_since(at) >= time;
        let Some(remote) = self.remotes.get_mut(id) else { return };
        let is_due = remote.pair.probed_at.is_none_or(|at| has_passed(at, silence));
        // An earlier packet proves nothing: the registration may still be in transit.
        let proves = remote.pair.crossed_at.is_some_and(|at| has_passed(at, super::SETTLED));
        if is_due && proves && !remote.pair.settled && remote.lists(Feature::Ack) {
            remote.pair.probed_at = Some(now);
            delivery.to(cx, self, id).ping();
        }
    }

    /// Handles a Configuration that arrived before: the local one was lost, or the peer's has new content.
    fn handle_repeated(
        &mut self,
        cx: &mut Context,
        delivery: &mut Delivery,
        id: &Identity,
        has_heard: bool,
    ) -> Greeting {
        cx.count(Counter::Duplicate);
        let Some(remote) = self.remotes.get_mut(id) else { return Greeting::Ignored };
        let is_news = has_heard && !std::mem::replace(&mut remote.pair.is_heard, true);
        delivery.note_configuration(id, has_heard);
        // The local one may be in transit. Frames after it may have arrived in a join that the peer has left.
        if !has_heard && was_long_ago(cx.now, remote.pair.greeted_at) {
            self.send_configuration(cx, delivery, id);
        }
        if !has_heard || is_news {
            self.register_once_more(cx, delivery, id);
        }
        Greeting::Repeated { may_lack_frames: !has_heard || is_news }
    }

    /// Client: answers the handshake of an assistant that the configuration does not name. The answer shows that the
    /// client is in the room, so that the assistant can explain failed calls. It shows none of its tools.
    fn decline(&mut self, cx: &mut Context, delivery: &mut Delivery, id: &Identity, incoming: &Received) {
        let Some(remote) = self.get(id) else { return };
        let is_due = self.may_be_assistant(cx, id, remote)
            && incoming.instance().is_some()
            && !cx.is_other_room(incoming.conversation())
            && was_long_ago(cx.now, remote.pair.greeted_at);
        if !is_due {
            return;
        }
        if let Some(remote) = self.remotes.get_mut(id) {
            remote.pair.signal(Signal::Declined); // otherwise the assistant would repeat its Configuration
        }
        self.send_configuration(cx, delivery, id);
    }

    fn send_configuration(&mut self, cx: &mut Context, delivery: &mut Delivery, id: &Identity) {
        let Some(remote) = self.remotes.get_mut(id) else { return };
        remote.pair.greetings += 1;
        let is_configured = remote.is_configured();
        self.post_configuration(cx, delivery, id, is_configured);
    }

    fn post_configuration(
        &mut self,
        cx: &mut Context,
        delivery: &mut Delivery,
        id: &Identity,
        is_configured: bool,
    ) {
        let Some(remote) = self.remotes.get_mut(id) else { return };
        remote.pair.greeted_at = Some(cx.now);
        let proof = remote.instance().and_then(|it| cx.ids.proof(it.as_str(), cx.local.participant.peer()));
        let meta: Meta = codec::greeting(cx.ids.instance(), proof.as_deref(), is_configured);
        let features = Feature::ALL.iter().filter(|it| has_feature(cx, it));
        let configuration = Configuration {
            conversation_id: Some(cx.config.room.clone()),
            client_version: Some(cx.config.version.clone()),
            features: Some(features.map(|(_, name)| (*name).to_owned()).collect()),
            ..Configuration::default()
        };
        if let Err(error) =
            delivery.to(cx, self, id).post(&meta, &Message::Configuration(configuration), None)
        {
            tracing::warn!(peer = %id, ?error, "the local Configuration cannot be sent");
        }
    }
}

/// Returns whether the local participant lists this feature. A client lists prompts if its configuration answers them.
fn has_feature(cx: &Context, (feature, name): &(Feature, &str)) -> bool {
    if cx.config.listed.as_ref().is_some_and(|listed| !listed.iter().any(|it| it == name)) {
        return false;
    }
    match feature {
        Feature::Prompt => cx.is_client() && cx.config.prompts,
        Feature::Stream => cx.config.streams,
        Feature::FastLane => cx.config.has_fast_lane(),
        // It is about what is read, whether the local participant compresses or not.
        Feature::Deflate => cfg!(feature = "deflate") && cx.config.expand,
        _ => true,
    }
}

/// Returns whether a participant has proven to be the instance that it shows.
pub(super) fn is_proven(cx: &Context, shown: &str, from: &Peer, proof: Option<&str>) -> bool {
    cx.config.trusts_instances || proof.is_some() && cx.ids.proof(shown, from).as_deref() == proof
}

/// Returns whether the last Configuration must have arrived by now, unless it was lost.
pub(crate) fn was_long_ago(now: Instant, at: Option<Instant>) -> bool {
    at.is_none_or(|at| now.saturating_duration_since(at) >= IN_FLIGHT)
}
