//! Two Configurations, one round trip (`wire.md`, section 6).

use std::time::{Duration, Instant};

use super::{
    Counter, Event, Session, Timer, codec,
    codec::Incoming,
    ids::Instance,
    lane::FastLane,
    peer::{Feature, Features, Presence, Registration, Remote},
    replay::Replay,
};
use crate::{
    protocol::frame::{Configuration, Message, Meta},
    transport::Identity,
};

/// After the first Configuration it is sent again after 1, 2, 4 and 8 s, until the other's comes.
const GREETINGS: u32 = 5;

/// A Configuration that says that ours was not heard is no news while ours may be on its way.
const IN_FLIGHT: Duration = Duration::from_millis(900);

/// A peer under a sid that the room has not announced is asked for its Configuration again after this time.
const ASK_AGAIN: Duration = Duration::from_secs(1);

impl Session {
    /// Greets those whom the author named, whether the room announced them or not.
    pub(super) fn greet_named(&mut self, now: Instant) {
        let named: Vec<_> = match &self.config.assistant {
            Some(assistant) if self.is_client() => vec![assistant.clone()],
            _ if self.is_client() => Vec::new(),
            _ => self.config.admitted.iter().cloned().collect(),
        };
        for id in named {
            if id != *self.local.identity() {
                self.peers.entry(id.clone()).or_insert_with(|| Remote::new(now, true));
                self.greet(now, &id);
            }
        }
    }

    /// Sends our Configuration to a peer of ours, once under a pair of sids.
    pub(super) fn greet(&mut self, now: Instant, id: &Identity) {
        let due = self.peers.get(id).is_some_and(|remote| {
            let away = matches!(remote.presence, Presence::Away(_));
            remote.pair.greetings == 0 && !remote.pair.left && !away && self.is_counterpart(id, remote)
        });
        if due {
            self.send_configuration(now, id);
            self.timers.set(now, Timer::Greet(id.clone()), Duration::from_secs(1));
            self.register_early(now, id);
        }
    }

    pub(super) fn greet_again(&mut self, now: Instant, id: &Identity) {
        let Some(remote) = self.peers.get(id) else { return };
        let greetings = remote.pair.greetings;
        if remote.pair.heard || remote.pair.left || greetings >= GREETINGS {
            return;
        }
        self.send_configuration(now, id);
        if greetings + 1 < GREETINGS {
            self.timers.set(now, Timer::Greet(id.clone()), Duration::from_secs(1 << greetings));
        }
    }

    /// A peer's Configuration came.
    pub(super) fn configured(
        &mut self,
        now: Instant,
        id: &Identity,
        incoming: &Incoming,
        its: &Configuration,
    ) {
        let Some(remote) = self.peers.get(id) else { return };
        if !self.is_counterpart(id, remote) {
            self.complain(now, id, Counter::Stranger);
            self.decline(now, id, incoming);
            return self.deny_registration(now, id);
        }
        if self.is_other_room(incoming.conversation()) || self.is_other_room(its.conversation_id.as_deref()) {
            self.complain(now, id, Counter::WrongRoom);
            return self.refuse_frame(id, 201, "this room carries another conversation", None);
        }
        self.learn_room(incoming.conversation().or(its.conversation_id.as_deref()));
        let instance = incoming.instance().map(Instance::new);
        let Some(remote) = self.peers.get_mut(id) else { return };
        remote.features = Features::of(its);
        remote.spoke = true;
        self.muted &= !incoming.has_heard_us();
        if remote.pair.heard && remote.instance == instance {
            return self.configured_again(now, id, incoming.has_heard_us());
        }
        let before = std::mem::replace(&mut remote.instance, instance.clone());
        if before != instance {
            self.past.stop_plain_calls_again(id);
        }
        let Some(remote) = self.peers.get_mut(id) else { return };
        match before {
            Some(before) if Some(&before) != instance.as_ref() => {
                remote.pair.heard = false; // nothing of the old one is sent to the new one
                self.new_instance(now, id, before);
            }
            Some(_) => {}
            None => {
                self.forget_plain_run(now, id, incoming.stanza());
                self.returned(now, id);
            }
        }
        let Some(remote) = self.peers.get_mut(id) else { return };
        remote.pair.heard = true;
        remote.pair.plain = instance.is_none();
        let never_greeted = remote.pair.greetings == 0;
        let unheard = !incoming.has_heard_us() && was_long_ago(now, remote.pair.greeted_at);
        // Whatever answered our registration answered an older one, or its sender has forgotten us since: an assistant
        // sends its Configuration first.
        if unheard || remote.pair.registration == Registration::Answered {
            remote.pair.registration = Registration::Idle;
        }
        self.timers.cancel(&Timer::Greet(id.clone()));
        if never_greeted || unheard {
            self.send_configuration(now, id);
        }
        if instance.is_none() && !self.is_client() {
            self.acknowledge_always(id, incoming.stanza(), None);
        }
        self.crossed(now, id);
    }

    /// A frame of this peer has to wait for its Configuration, so its sender takes the handshake for complete or is
    /// trying to reach us. Our Configuration, which says that we have not heard its, makes it send its again.
    ///
    /// A Configuration never has to wait itself, so the two sides cannot keep each other going.
    pub(super) fn ask_for_configuration(&mut self, now: Instant, id: &Identity) {
        let due = self.peers.get(id).is_some_and(|remote| {
            !remote.pair.left && self.is_counterpart(id, remote) && was_long_ago(now, remote.pair.greeted_at)
        });
        if due {
            self.post_configuration(now, id, false);
            if self.holds_frames_of(id) {
                self.timers.set(now, Timer::Ask(id.clone()), ASK_AGAIN);
            }
        }
    }

    /// A frame waits still for the Configuration of a sid that the room has not announced: its sender may have taken the
    /// one that was on its way to us for heard.
    pub(super) fn ask_again_for_configuration(&mut self, now: Instant, id: &Identity) {
        if self.holds_frames_of(id) {
            self.ask_for_configuration(now, id);
        }
    }

    /// Frames that waited for this peer's Configuration have waited long enough.
    pub(super) fn hold_over(&mut self, id: &Identity) {
        let Some(remote) = self.peers.get_mut(id) else { return };
        let dropped = std::mem::take(&mut remote.pair.waiting).len();
        remote.pair.waiting_bytes = 0;
        self.stats.add(Counter::HoldExpired, dropped);
    }

    /// Whether a name is another room's than ours.
    pub(super) fn is_other_room(&self, name: Option<&str>) -> bool {
        let ours = self.config.room.as_str();
        !ours.is_empty() && name.is_some_and(|name| !name.is_empty() && name != ours)
    }

    /// It repeats itself: either ours was lost, or it has news of its own.
    fn configured_again(&mut self, now: Instant, id: &Identity, has_heard_us: bool) {
        self.stats.add(Counter::Duplicate, 1);
        let Some(remote) = self.peers.get(id) else { return };
        if !has_heard_us {
            // Ours may be on its way. What we said after it may have been heard in a join that it left again.
            if was_long_ago(now, remote.pair.greeted_at) {
                self.send_configuration(now, id);
            }
            self.register_once_more(now, id);
            self.replay(now, id);
        }
    }

    /// Both Configurations have come: whatever waited for that goes on.
    fn crossed(&mut self, now: Instant, id: &Identity) {
        if let Some(remote) = self.peers.get_mut(id) {
            remote.pair.crossed_at.get_or_insert(now);
        }
        self.timers.cancel(&Timer::Grace(id.clone()));
        self.timers.cancel(&Timer::Silent(id.clone()));
        self.timers.cancel(&Timer::Hold(id.clone()));
        if self.is_client() {
            self.judge_candidates(now);
            if self.bound.as_ref() == Some(id) {
                self.register(now, id);
            }
            if let Some(table) = self.tables.get_mut(id) {
                table.take_up();
            }
        } else {
            self.calls_go_on(now, id);
        }
        self.take_waiting(now, id); // first: what it acknowledges is not sent again
        self.replay(now, id);
        if self.is_client() {
            self.send_stops(now, id, true);
        } else {
            self.send_waiting_stops(id);
            self.stop_what_ended_meanwhile(now, id);
            self.look_for_owners(now);
        }
    }

    /// Takes the frames that waited for this peer's Configuration, in their order.
    fn take_waiting(&mut self, now: Instant, id: &Identity) {
        let Some(remote) = self.peers.get_mut(id) else { return };
        let waiting = std::mem::take(&mut remote.pair.waiting);
        remote.pair.waiting_bytes = 0;
        for incoming in waiting {
            self.take(now, id, incoming);
        }
    }

    /// The same identity, but another run of its program: nothing of the old one is left.
    pub(super) fn new_instance(&mut self, now: Instant, id: &Identity, before: Instance) {
        tracing::debug!(peer = %id, "another instance");
        if let Some(remote) = self.peers.get_mut(id) {
            remote.pair.lane = FastLane::default();
            remote.pair.replay = Replay::default();
        }
        self.ask_anew(now, id);
        self.forget_registration(id);
        self.stop_jobs_for(now, id);
        self.forget_stops(id);
        let Some(remote) = self.peers.get_mut(id) else { return };
        if let Some(table) = self.tables.get_mut(id) {
            remote.replace_instance(before, table.next_instance(now));
        }
        self.returned(now, id);
    }

    /// Client: an instance shows itself where somebody spoke plainly. The stanzas of one program rise: if this one begins
    /// below them, it is another run, and what the plain one asked says nothing of its requests.
    fn forget_plain_run(&mut self, now: Instant, id: &Identity, stanza: Option<i32>) {
        let restarts = |table: &super::Table| stanza.is_some_and(|it| table.was_heard_above(it));
        if !self.tables.get(id).is_some_and(restarts) {
            return;
        }
        self.stop_jobs_for(now, id);
        if let Some(table) = self.tables.get_mut(id) {
            table.next_instance(now);
        }
    }

    /// Should this instance have been here before: nothing that it had asked then runs again.
    fn returned(&mut self, now: Instant, id: &Identity) {
        let returned_at = self.peers.get_mut(id).and_then(Remote::returned_at);
        if let (Some(table), Some(last)) = (self.tables.get_mut(id), returned_at) {
            table.raise_floor(last);
        }
        self.set_table_timer(now, id);
    }

    pub(super) fn send_configuration(&mut self, now: Instant, id: &Identity) {
        let Some(remote) = self.peers.get_mut(id) else { return };
        remote.pair.greetings += 1;
        let heard = remote.pair.heard;
        self.post_configuration(now, id, heard);
    }

    fn post_configuration(&mut self, now: Instant, id: &Identity, heard: bool) {
        let Some(remote) = self.peers.get_mut(id) else { return };
        remote.pair.greeted_at = Some(now);
        let meta: Meta = codec::greeting(&self.ids.instance_for(id), heard);
        let has = |feature| self.has_feature(feature);
        let configuration = Configuration {
            conversation_id: Some(self.config.room.clone()),
            client_version: Some(self.config.version.clone()),
            features: Some(
                Feature::OURS.iter().filter(|it| has(**it)).map(|it| it.as_str().to_owned()).collect(),
            ),
            ..Configuration::default()
        };
        if let Err(error) = self.post(id, &meta, &Message::Configuration(configuration)) {
            tracing::warn!(peer = %id, ?error, "our Configuration cannot be sent");
        }
    }

    /// A session that was not told its room takes the name that its first peer uses.
    fn learn_room(&mut self, name: Option<&str>) {
        if let Some(name) = name.filter(|name| self.config.room.is_empty() && !name.is_empty()) {
            self.config.room = name.to_owned();
        }
    }

    pub(super) fn bound_event(&mut self) {
        self.event(Event::Bound(self.bound.clone()));
    }
}

pub(super) fn was_long_ago(now: Instant, at: Option<Instant>) -> bool {
    at.is_none_or(|at| now.saturating_duration_since(at) >= IN_FLIGHT)
}
