//! Holds the state of one remote participant, by lifetime: of the identity, of a process, of a join and of a pair of sids.

use std::{collections::VecDeque, time::Duration};

use super::{
    contact::{Contact, Signal},
    reach::{OtherForms, Refusals},
};
use crate::{
    clock::{Instant, later},
    protocol::{
        frame::{Configuration, Kind},
        rpc::MAX_STREAM,
        session::{ids::Instance, recipients::Feature},
    },
    tool::{Tool, ToolName},
    transport::{Identity, Participant, Peer, Role, Sid},
};

/// The limit on remembered dead sids of one identity. Packets of older ones have long arrived.
const DEAD_SIDS: usize = 8;

/// How long after the handshake a registration may still be in transit.
pub(crate) const SETTLED: Duration = Duration::from_secs(1);

/// The limit on remembered subjects: the views that an assistant remembers, and registrations.
const SUBJECTS: usize = 66;

/// The limit on remembered former instances of one identity.
const FORMER: usize = 8;

/// A remote identity. It has what is true of the identity itself; what is true of one process, of one join and of one pair of
/// sids is in the types of these lifetimes, and a new one begins with `Default`.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(super) presence: Presence,
    /// The process that showed itself last. It need not be the one of the present join.
    pub(super) process: Option<Process>,
    /// The instances that another one replaced, each with the last stanza received from it.
    former: VecDeque<(Instance, u32)>,
    /// The present join, or the last one.
    pub(super) join: Join,
    /// The state under the present pair of sids.
    pub(super) pair: Pair,
    dead: VecDeque<Sid>,
    /// The last join in which calls were possible, until its grace period is over or its process returns.
    pub(super) departed: Option<Sid>,
    /// The tools that it offered last. It can be called only if it has registered under the present pair.
    pub(super) tools: Vec<Tool>,
    /// The tools that it has and does not offer, or that the assistant has refused, with the reasons.
    pub(super) left_out: Vec<(Box<str>, Box<str>)>,
    /// When its last packet arrived.
    heard_at: Instant,
    /// Since when it has sent nothing. An outage of the local participant does not count.
    silent_since: Instant,
    /// Client: the time of the first ping since the last packet.
    pub(super) pinged_at: Option<Instant>,
    pub(super) limits: RateLimits,
}

/// One run of a participant's program, which is known over its joins because each Configuration proves it (`wire.md`,
/// section 6).
#[derive(Debug)]
pub(super) struct Process {
    pub(super) instance: Instance,
    /// Whether it said goodbye, or did not return within the grace period: no join continues it without an announcement.
    pub(super) is_over: bool,
    /// Its rank among others, which it has again after a rejoin.
    rank: Option<u64>,
    /// The join in which it showed itself last.
    pub(super) shown_in: Option<Sid>,
    /// The highest stanza of its Configurations, as an absolute value.
    configured_at: u32,
    /// The highest stanza, as an absolute value, of its stops without a target.
    stopped: u32,
}

impl Process {
    fn new(instance: Instance) -> Self {
        Self { instance, is_over: false, rank: None, shown_in: None, configured_at: 0, stopped: 0 }
    }
}

/// The presence of a remote participant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// The local configuration or a call names it, but no packet of it has arrived.
    Unseen,
    /// It is in the room: announced, or known only by its Configuration.
    Here {
        /// Its join.
        sid: Sid,
        /// Whether the server has announced it.
        announced: bool,
    },
    /// It has left this join.
    Away {
        /// The join that it left.
        sid: Sid,
        /// Whether Configurations had crossed in it.
        crossed: bool,
    },
}

/// The state under one pair of sids: the local one and the peer's.
#[derive(Debug, Default)]
pub(super) struct Pair {
    pub(super) contact: Contact,
    /// The number of local Configurations that were sent, followed by the time of the last.
    pub(super) greetings: u32,
    pub(super) greeted_at: Option<Instant>,
    /// Whether a Configuration of the peer has stated that the local one has arrived.
    pub(super) is_heard: bool,
    /// The time at which both Configurations had arrived.
    pub(super) crossed_at: Option<Instant>,
    /// Whether a packet arrived after the handshake had been complete for [`SETTLED`].
    pub(super) settled: bool,
    /// The time of the last ping on behalf of a call that waits for its registration.
    pub(super) probed_at: Option<Instant>,
    /// Whether it was given more time to send its Configuration because frames wait for it.
    pub(super) silence_extended: bool,
    /// Client: the local registration with this assistant.
    pub(super) registration: Registration,
    /// When that was last sent.
    pub(super) registered_at: Option<Instant>,
    /// Client: whether this assistant may have the local tools, whatever is due now.
    pub(super) may_have_tools: bool,
    /// Assistant: this client's registration.
    pub(super) offer: OfferState,
    /// The highest stanzas, as absolute values, of the frames about subjects of which the latest counts.
    pub(super) latest: VecDeque<((Kind, Box<str>), u32)>,
}

/// The state of the local registration with one assistant.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Registration {
    /// The registration has not been sent.
    #[default]
    Idle,
    /// The registration was sent this many times and not answered.
    Sent(u32),
    /// The registration was answered.
    Answered,
}

/// Whether a client has registered its tools under this pair of sids.
#[derive(Debug, Default)]
pub(super) enum OfferState {
    /// It has not registered.
    #[default]
    Unregistered,
    /// It has registered.
    Registered,
    /// Its heartbeat timed out. It offers these tools again when one of its packets arrives.
    Silenced(Vec<Tool>),
}

/// The limits on one participant's traffic.
#[derive(Debug, Default)]
pub(super) struct RateLimits {
    /// The requests and registrations of the current second.
    pub(super) requests: Window,
    /// When the bytes of its requests by RPC so far are within their rate.
    pub(super) rpc_bytes: Option<Instant>,
    /// The refusals of its requests by RPC.
    pub(super) rpc_refusals: Refusals,
    /// The refusals of streams sent in the current second.
    pub(super) streams: Window,
    /// When it was last sent a refusal of its registration because it has no rights.
    pub(super) denied_at: Option<Instant>,
    /// When it was last sent a report of a malformed frame.
    pub(super) corrected_at: Option<Instant>,
}

/// The state of one join of a participant. Each right is one of the join, and ends with it.
#[derive(Debug, Default)]
pub(super) struct Join {
    /// The server's description of the participant in this join, or in the join that this one continues. An unannounced join
    /// that continues no other has none.
    pub(super) participant: Option<Participant>,
    /// The announced participant to return to if the server never announces the sid that a Configuration showed.
    pub(super) fallback: Option<Participant>,
    /// Whether the process has shown its instance in this join.
    pub(super) shows_process: bool,
    pub(super) features: Features,
    /// Whether the local configuration or a local call names it.
    pub(super) named: bool,
    /// Whether it has sent a Configuration or a request, so a client may bind it.
    pub(super) has_spoken: bool,
    /// Its rank, by the order in which clients registered or assistants sent their first frame.
    pub(super) rank: Option<u64>,
    /// Whether the observer was sent the local registration.
    pub(super) shown: bool,
    /// Assistant: whether it asked to be admitted, by a Configuration or a registration.
    pub(super) asked_for_admission: bool,
    /// Assistant: whether it was reported that its tools are not accepted.
    pub(super) refusal_reported: bool,
    /// Assistant: the tools that it tried to register while it was not admitted.
    pub(super) refused_tools: Vec<ToolName>,
    /// What was exchanged in other forms than frames.
    pub(super) other: OtherForms,
}

impl Pair {
    /// Notes a frame about this. Returns whether a later one has arrived.
    pub(super) fn is_replaced(&mut self, about: (Kind, Box<str>), stanza: u32) -> bool {
        let place = self.latest.iter().position(|(it, _)| *it == about);
        let last = place.and_then(|at| self.latest.remove(at)).map_or(0, |(_, last)| last);
        if self.latest.len() == SUBJECTS {
            self.latest.pop_front();
        }
        self.latest.push_back((about, last.max(stanza)));
        stanza < last
    }

    pub(super) fn signal(&mut self, signal: Signal) {
        self.contact = self.contact.after(signal);
    }
}

impl Remote {
    pub(super) fn new(now: Instant, named: bool) -> Self {
        Self {
            presence: Presence::Unseen,
            process: None,
            former: VecDeque::new(),
            join: Join { named, ..Join::default() },
            pair: Pair::default(),
            dead: VecDeque::new(),
            departed: None,
            tools: Vec::new(),
            left_out: Vec::new(),
            heard_at: now,
            silent_since: now,
            pinged_at: None,
            limits: RateLimits::default(),
        }
    }

    /// Notes that a packet arrived. If the handshake is old enough, a registration would have arrived before the
    /// packet.
    pub(super) fn note_packet(&mut self, now: Instant) {
        self.heard_at = now;
        self.restart_silence(now);
        if self.pair.crossed_at.is_some_and(|at| now.saturating_duration_since(at) >= SETTLED) {
            self.pair.settled = true;
        }
    }

    /// Returns the tools that it offers, in this join or, while it is away, in its last one.
    pub(crate) fn tools(&self) -> &[Tool] {
        &self.tools
    }

    /// Returns why the participant has this tool and does not offer it, if that is so.
    pub(crate) fn why_left_out(&self, tool: &str) -> Option<&str> {
        self.left_out.iter().find(|(name, _)| **name == *tool).map(|(_, why)| &**why)
    }

    /// Returns the tool of this name that it offers.
    pub(crate) fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.name().as_str() == name)
    }

    /// Returns the instance that it showed last.
    pub(crate) fn instance(&self) -> Option<&Instance> {
        self.process.as_ref().map(|process| &process.instance)
    }

    /// Returns the instance that it has shown in this join. That of an earlier join says nothing about this one.
    pub(crate) fn present_instance(&self) -> Option<&Instance> {
        self.instance().filter(|_| self.is_here() && self.join.shows_process)
    }

    /// Returns whether a process of it is in the room, or may still return within the grace period.
    pub(crate) fn has_process(&self) -> bool {
        self.process.as_ref().is_some_and(|process| !process.is_over)
    }

    /// Returns the instance of a process that shows this text from this sid. It is a known one only if it was shown in this
    /// join, or if `is_proven` says so. `None` if it is known and the proof does not fit.
    pub(super) fn instance_of(
        &self,
        text: &str,
        sid: &Sid,
        has_proof: bool,
        is_proven: impl Fn() -> bool,
    ) -> Option<Instance> {
        if let Some(present) = self.present_instance().filter(|it| it.as_str() == text && self.is_at(sid)) {
            return Some(present.clone());
        }
        let mut known = self.instance().into_iter().chain(self.former.iter().map(|(former, _)| former));
        match known.find(|it| it.as_str() == text) {
            Some(known) if is_proven() => Some(known.clone()),
            Some(_) if has_proof => None,
            _ => Some(Instance::new(text, sid)),
        }
    }

    /// Returns whether the process of the present join may continue it under another sid. A Configuration that was sent before
    /// its last one is late.
    pub(super) fn may_move(&self, shown: &str, stanza: Option<i32>) -> bool {
        let is_it = |it: &&Process| self.join.shows_process && !it.is_over && it.instance.as_str() == shown; // also while it is away
        let process = self.process.as_ref().filter(is_it);
        process.is_some_and(|process| stanza.is_some_and(|it| it.unsigned_abs() > process.configured_at))
    }

    /// Notes the process of a Configuration, or that its sender shows none. Returns the instance before.
    pub(super) fn show_process(
        &mut self,
        instance: Option<Instance>,
        stanza: Option<i32>,
    ) -> Option<Instance> {
        self.join.shows_process = instance.is_some();
        let before = self.instance().cloned();
        if before != instance {
            self.process = instance.map(Process::new);
        }
        if let Some(process) = &mut self.process {
            process.is_over = false;
            process.configured_at = process.configured_at.max(stanza.map_or(0, i32::unsigned_abs));
        }
        before
    }

    /// Notes that its process has said goodbye, or has not returned in time.
    pub(super) fn end_process(&mut self) {
        if let Some(process) = &mut self.process {
            process.is_over = true;
        }
        if !self.is_registered() {
            self.left_out.clear(); // otherwise it is that of the program in its place
        }
    }

    /// Gives it a rank, unless it has one. A process that has proven itself keeps that of its earlier joins.
    pub(super) fn take_rank(&mut self, next: u64) {
        let shown = self.process.as_mut().filter(|_| self.join.shows_process);
        let known = shown.as_ref().and_then(|process| process.rank);
        let rank = *self.join.rank.get_or_insert_with(|| known.unwrap_or(next));
        if let Some(process) = shown {
            process.rank = Some(rank);
        }
    }

    /// Client: returns whether it was unbound after the handshake and has sent nothing since then.
    pub(crate) fn is_silenced(&self) -> bool {
        self.is_crossed() && !self.join.has_spoken
    }

    pub(super) fn lose_rank(&mut self) {
        self.join.rank = None;
        if let Some(process) = &mut self.process {
            process.rank = None;
        }
    }

    /// Returns whether the server has announced it in this join.
    pub(super) fn is_announced_at(&self, sid: &Sid) -> bool {
        matches!(&self.presence, Presence::Here { sid: here, announced: true } if here == sid)
    }

    /// Returns the description of the participant in its present join.
    pub(crate) fn description(&self) -> Option<&Participant> {
        self.join.participant.as_ref().filter(|participant| self.sid() == Some(participant.sid()))
    }

    /// Returns whether it is in the room under a sid that the server has not announced.
    pub(super) fn is_unannounced(&self) -> bool {
        matches!(self.presence, Presence::Here { announced: false, .. })
    }

    /// Client: returns how long its first ping since the last packet has had no answer. Before that its silence shows
    /// nothing, since it need not send anything.
    pub(crate) fn unanswered_for(&self, now: Instant) -> Duration {
        self.pinged_at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at))
    }

    /// Notes that it sent a frame without a Configuration.
    pub(crate) fn mark_plain(&mut self) {
        self.pair.signal(Signal::Plain);
    }

    /// Returns the time at which its last packet arrived.
    pub(crate) fn heard_at(&self) -> Instant {
        self.heard_at
    }

    /// Returns since when it has sent nothing. Outages of the local participant do not count.
    pub(crate) fn silent_since(&self) -> Instant {
        self.silent_since
    }

    /// Starts its time of silence again: until now the local participant could not hear it.
    pub(super) fn restart_silence(&mut self, now: Instant) {
        (self.silent_since, self.pinged_at) = (now, None);
    }

    /// Returns the sid under which it is in the room.
    pub(crate) fn sid(&self) -> Option<&Sid> {
        match &self.presence {
            Presence::Here { sid, .. } => Some(sid),
            Presence::Unseen | Presence::Away { .. } => None,
        }
    }

    pub(crate) fn is_here(&self) -> bool {
        self.sid().is_some()
    }

    /// Returns whether it is in the join that a packet states.
    pub(crate) fn is_at(&self, sid: &Sid) -> bool {
        self.sid() == Some(sid) || (sid.is_empty() && self.is_here())
    }

    pub(crate) fn peer(&self, identity: &Identity) -> Peer {
        let sid = match &self.presence {
            Presence::Here { sid, .. } | Presence::Away { sid, .. } => sid.clone(),
            Presence::Unseen => Sid::from(""),
        };
        Peer::new(identity, sid)
    }

    /// Returns whether its token makes it an observer.
    pub(crate) fn is_observer(&self) -> bool {
        self.has_role(Role::Observer)
    }

    /// Returns whether its token names this role.
    pub(super) fn has_role(&self, role: Role) -> bool {
        self.join.participant.as_ref().is_some_and(|participant| participant.token_role() == Some(role))
    }

    /// Returns whether Configurations crossed under this pair of sids.
    pub(crate) fn is_crossed(&self) -> bool {
        let contact = self.pair.contact;
        self.is_here() && contact.is_configured() && self.pair.greetings > 0 && !contact.has_left()
    }

    /// Returns whether it may have received the local Configuration under this pair of sids.
    pub(crate) fn was_greeted(&self) -> bool {
        self.is_here() && self.pair.greetings > 0 && !self.has_left()
    }

    /// Returns whether frames other than a Configuration may be sent to it.
    pub(crate) fn is_reachable(&self) -> bool {
        let contact = self.pair.contact;
        self.is_here() && !contact.has_left() && (self.is_crossed() || contact.is_plain())
    }

    /// Returns whether it does not use toolbridge's handshake.
    pub(crate) fn is_plain(&self) -> bool {
        self.pair.contact.is_plain()
    }

    /// Returns whether its Configuration has arrived.
    pub(crate) fn is_configured(&self) -> bool {
        self.pair.contact.is_configured()
    }

    /// Returns whether one side has said goodbye.
    pub(crate) fn has_left(&self) -> bool {
        self.pair.contact.has_left()
    }

    /// Assistant: returns whether it has registered under this pair of sids.
    pub(crate) fn is_registered(&self) -> bool {
        matches!(self.pair.offer, OfferState::Registered)
    }

    /// Returns whether it is in the room and may still register tools.
    pub(crate) fn may_register(&self) -> bool {
        let contact = self.pair.contact;
        let is_silent = !self.is_registered() && !contact.is_plain() && !contact.has_left();
        self.is_here() && is_silent && (!contact.is_configured() || self.lists(Feature::Register))
    }

    /// Returns whether it uses the handshake and lists this feature.
    pub(crate) fn lists(&self, feature: Feature) -> bool {
        !self.is_plain() && self.join.features.has(feature)
    }

    /// Returns whether frames may be sent to it as byte streams, whether it is plain or not.
    pub(crate) fn takes_streams(&self) -> bool {
        self.is_configured() && self.join.features.has(Feature::Stream)
    }

    /// Returns whether it may be sent prompts: it lists them, and has registered with the local assistant.
    pub(crate) fn takes_prompts(&self) -> bool {
        self.is_registered() && self.lists(Feature::Prompt)
    }

    /// Returns whether it claims `either` calls.
    pub(crate) fn takes_claims(&self) -> bool {
        self.lists(Feature::Claim) && self.lists(Feature::Ack)
    }

    /// Returns whether it offers no tools to the local assistant: it has not registered, and a packet arrived after its
    /// registration was due.
    pub(crate) fn is_settled(&self) -> bool {
        self.pair.settled
    }

    /// Returns the time at which both Configurations had arrived, under this pair of sids.
    pub(crate) fn crossed_at(&self) -> Option<Instant> {
        self.pair.crossed_at
    }

    /// Returns whether it asked to be admitted in this join.
    pub(crate) fn asked_for_admission(&self) -> bool {
        self.join.asked_for_admission
    }

    /// Returns the tools that it tried to register in this join while it was not admitted.
    pub(crate) fn refused_tools(&self) -> &[ToolName] {
        &self.join.refused_tools
    }

    /// Returns whether this sid was replaced or has left.
    pub(super) fn is_dead(&self, sid: &Sid) -> bool {
        self.dead.contains(sid)
    }

    pub(super) fn mark_dead(&mut self, sid: Sid) {
        if sid.is_empty() || self.is_dead(&sid) {
            return;
        }
        if self.dead.len() == DEAD_SIDS {
            self.dead.pop_front();
        }
        self.dead.push_back(sid);
    }

    pub(super) fn revive(&mut self, sid: &Sid) {
        self.dead.retain(|dead| dead != sid);
    }

    /// Notes a stop without a target. Returns whether this instance has sent it before, in an earlier join.
    pub(crate) fn note_stop_of_all(&mut self, stanza: Option<i32>) -> bool {
        // Without an instance a lower stanza can be one of a new run.
        let process = self.process.as_mut().filter(|_| self.join.shows_process);
        let (Some(stanza), Some(process)) = (stanza.map(i32::unsigned_abs), process) else { return false };
        let is_repeated = stanza <= process.stopped;
        process.stopped = process.stopped.max(stanza);
        is_repeated
    }

    /// Remembers an instance that another one has replaced. If it returns, none of its requests up to this stanza runs.
    pub(crate) fn replace_instance(&mut self, old: Instance, last: u32) {
        if self.former.len() == FORMER {
            self.former.pop_front();
        }
        self.former.push_back((old, last));
    }

    /// Returns the last stanza of the present instance, if it was replaced before and has returned.
    pub(crate) fn returned_at(&mut self) -> Option<u32> {
        let at = self.former.iter().position(|(former, _)| Some(former) == self.instance())?;
        self.former.remove(at).map(|(_, last)| last)
    }
}

/// The features that a peer lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Features(u16);

impl Features {
    pub(super) fn of(configuration: &Configuration) -> Self {
        let is_listed = |name: &str| configuration.features.iter().flatten().any(|it| it == name);
        let listed = Feature::ALL.iter().filter(|(_, name)| is_listed(name));
        Self(listed.fold(0, |all, (feature, _)| all | *feature as u16))
    }

    fn has(self, feature: Feature) -> bool {
        self.0 & feature as u16 != 0
    }
}

/// The number of occurrences in the current second.
#[derive(Debug, Default)]
pub(crate) struct Window {
    began: Option<Instant>,
    count: u32,
}

impl Window {
    /// How long occurrences are counted together.
    pub(crate) const LENGTH: Duration = Duration::from_secs(1);

    /// Returns the time until the second is over.
    pub(super) fn rest(&self, now: Instant) -> Duration {
        self.began.map_or(Duration::ZERO, |began| later(began, Self::LENGTH).saturating_duration_since(now))
    }

    /// Counts one more occurrence and returns whether it is within the limit.
    pub(crate) fn admits(&mut self, now: Instant, limit: u32) -> bool {
        // Seconds with a fixed start: around an end, up to twice the limit passes. In return there is nothing
        // to remember but a count.
        if self.began.is_none_or(|began| now.saturating_duration_since(began) >= Self::LENGTH) {
            self.began = Some(now);
            self.count = 0;
        }
        self.count = self.count.saturating_add(1);
        self.count <= limit
    }
}

/// Counts the bytes of a request and returns true if they are within this rate, with the largest request at once. `until` is
/// when all that was counted is within the rate.
pub(super) fn admits_bytes(until: &mut Option<Instant>, now: Instant, bytes: usize, rate: usize) -> bool {
    let time_of = |bytes| Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
    let ends = later(until.map_or(now, |until| until.max(now)), time_of(bytes));
    let is_admitted = ends <= later(now, time_of(MAX_STREAM));
    if is_admitted {
        *until = Some(ends);
    }
    is_admitted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::session::tests::an_instant;

    #[test]
    fn a_window_counts_one_second() {
        let (mut window, now) = (Window::default(), an_instant());
        assert!((0..50).all(|_| window.admits(now, 50)));
        assert!(!window.admits(now + Duration::from_millis(999), 50));
        assert!(window.admits(now + Duration::from_secs(1), 50));
    }

    #[test]
    fn dead_sids_are_bounded() {
        let mut remote = Remote::new(an_instant(), false);
        for n in 0..100 {
            remote.mark_dead(Sid::from(format!("PA_{n}")));
        }
        assert_eq!(remote.dead.len(), DEAD_SIDS);
        assert!(remote.is_dead(&"PA_99".into()) && !remote.is_dead(&"PA_1".into()));
    }

    #[test]
    fn what_a_process_left_out_ends_with_it() {
        let mut remote = Remote::new(an_instant(), false);
        remote.left_out.push(("t".into(), "too large".into()));
        remote.pair.offer = OfferState::Registered; // another program has
        remote.end_process();
        assert_eq!(remote.why_left_out("t"), Some("too large"));
        remote.pair.offer = OfferState::Unregistered;
        remote.end_process();
        assert_eq!(remote.why_left_out("t"), None);
    }

    #[test]
    fn only_known_features_count() {
        let features = ["tool_ack", "flying"].map(String::from).to_vec();
        let listed = Features::of(&Configuration { features: Some(features), ..Configuration::default() });
        assert!(listed.has(Feature::Ack) && !listed.has(Feature::Progress));
    }
}
