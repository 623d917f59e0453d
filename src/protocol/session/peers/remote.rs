//! Holds the state of one remote participant: its presence, the instance that it showed and its handshake.

use std::{collections::VecDeque, time::Duration};

use super::contact::{Contact, Signal};
use crate::{
    clock::Instant,
    protocol::{
        frame::Configuration,
        session::{codec::Received, ids::Instance, recipients::Feature},
    },
    tool::{Tool, ToolName},
    transport::{Identity, Participant, Peer, Role, Sid},
};

/// The limit on remembered dead sids of one identity. Packets of older ones have long arrived.
const DEAD_SIDS: usize = 8;

/// How long after the handshake a registration may still be in transit.
pub(crate) const SETTLED: Duration = Duration::from_secs(1);

/// The limit on remembered former instances of one identity.
const FORMER: usize = 8;

/// A remote identity and its state over all its joins.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(super) presence: Presence,
    /// The server's description of the participant in this join, in the join that this one continues, or, while it is
    /// away, in its last one. An unannounced join that continues no other has none.
    pub(super) participant: Option<Participant>,
    /// The announced participant to return to if the server never announces the sid that a Configuration showed.
    pub(super) fallback: Option<Participant>,
    dead: VecDeque<Sid>,
    /// The state under the present pair of sids.
    pub(super) pair: Pair,
    /// The instance that it showed last.
    pub(super) instance: Option<Instance>,
    /// Whether the instance was shown in the join that `participant` describes, or in one that continues it. Only then
    /// does it prove that an unannounced join belongs to the same process, which keeps the rights of that description.
    pub(super) is_proof: bool,
    /// The instances that another one replaced, each with the last stanza received from it.
    former: VecDeque<(Instance, u32)>,
    pub(super) features: Features,
    /// The highest stanza, as an absolute value, of the present instance's stops without a target.
    stopped: u32,
    /// Whether the local configuration or a local call names it.
    pub(super) named: bool,
    pub(super) standing: Standing,
    /// The tools that it offers to the assistant.
    pub(super) tools: Vec<Tool>,
    /// The tools that it has and does not offer, or that the assistant has refused, with the reasons.
    pub(super) left_out: Vec<(Box<str>, Box<str>)>,
    pub(super) heard_at: Instant,
    /// Client: the time of the first ping since the last packet.
    pinged_at: Option<Instant>,
    pub(super) limits: RateLimits,
    pub(super) join: Join,
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

/// Whether a participant may be bound or called, and its rank among others of its kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Standing {
    /// It has sent neither a Configuration nor a request.
    #[default]
    Silent,
    /// It has sent a Configuration or a request, so a client may bind it.
    Spoke,
    /// It has a rank, by the order in which clients registered or assistants sent their first frame.
    Ranked {
        /// Lower ranks came earlier.
        rank: u64,
        /// Whether it has also sent a Configuration or a request.
        spoke: bool,
    },
}

impl Standing {
    pub(super) fn has_spoken(self) -> bool {
        matches!(self, Self::Spoke | Self::Ranked { spoke: true, .. })
    }

    pub(super) fn rank(self) -> Option<u64> {
        match self {
            Self::Ranked { rank, .. } => Some(rank),
            Self::Silent | Self::Spoke => None,
        }
    }

    /// Returns the standing after a Configuration or a request.
    pub(super) fn speaks(self) -> Self {
        match self {
            Self::Ranked { rank, .. } => Self::Ranked { rank, spoke: true },
            Self::Silent | Self::Spoke => Self::Spoke,
        }
    }

    /// Returns the standing with this rank, unless it already has one.
    pub(super) fn ranked(self, rank: u64) -> Self {
        match self {
            Self::Ranked { .. } => self,
            Self::Silent | Self::Spoke => Self::Ranked { rank, spoke: self.has_spoken() },
        }
    }

    /// Returns the standing without a rank.
    pub(super) fn unranked(self) -> Self {
        if self.has_spoken() { Self::Spoke } else { Self::Silent }
    }
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
    /// Assistant: this client's registration.
    pub(super) offer: OfferState,
    /// Frames that wait for its Configuration.
    pub(super) waiting: Vec<Received>,
    pub(super) waiting_bytes: usize,
    /// The highest stanza that arrived, as an absolute value.
    pub(super) highest: u32,
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
    /// The refusals of streams sent in the current second.
    pub(super) streams: Window,
    /// When it was last sent a refusal of its registration because it has no rights.
    pub(super) denied_at: Option<Instant>,
    /// When it was last sent a report of a malformed frame.
    pub(super) corrected_at: Option<Instant>,
}

/// The state of one join of a participant.
#[derive(Debug, Default)]
pub(super) struct Join {
    /// Whether the observer was sent the local registration.
    pub(super) shown: bool,
    /// Assistant: whether it asked to be admitted, by a Configuration or a registration.
    pub(super) asked_for_admission: bool,
    /// Assistant: whether it was reported that its tools are not accepted.
    pub(super) refusal_reported: bool,
    /// Assistant: the tools that it tried to register while it was not admitted.
    pub(super) refused_tools: Vec<ToolName>,
    /// Client: whether it has called by RPC.
    pub(super) calls_by_rpc: bool,
    /// Assistant: the pings by RPC.
    pub(super) pings: RpcPings,
}

/// The pings by RPC of one owner.
#[derive(Debug, Default)]
pub(super) struct RpcPings {
    /// Since when the owner has sent nothing.
    pub(super) since: Option<Instant>,
    /// How many were sent since then.
    pub(super) sent: u32,
    /// The ids of the last ones.
    pub(super) ids: VecDeque<Box<str>>,
}

impl Pair {
    /// Notes a frame's stanza. Returns whether it is the highest so far; a frame without a stanza counts as that.
    pub(super) fn rises(&mut self, stanza: Option<i32>) -> bool {
        let Some(stanza) = stanza.map(i32::unsigned_abs).filter(|stanza| *stanza != 0) else { return true };
        let rises = stanza > self.highest;
        self.highest = self.highest.max(stanza);
        rises
    }

    pub(super) fn signal(&mut self, signal: Signal) {
        self.contact = self.contact.after(signal);
    }
}

impl Remote {
    pub(super) fn new(now: Instant, named: bool) -> Self {
        Self {
            presence: Presence::Unseen,
            participant: None,
            fallback: None,
            dead: VecDeque::new(),
            pair: Pair::default(),
            instance: None,
            is_proof: false,
            former: VecDeque::new(),
            features: Features::default(),
            stopped: 0,
            named,
            standing: Standing::default(),
            tools: Vec::new(),
            left_out: Vec::new(),
            heard_at: now,
            pinged_at: None,
            limits: RateLimits::default(),
            join: Join::default(),
        }
    }

    /// Notes that a packet arrived. If the handshake is old enough, a registration would have arrived before the
    /// packet.
    pub(super) fn note_packet(&mut self, now: Instant) {
        self.heard_at = now;
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
        self.instance.as_ref()
    }

    /// Returns the instance that it has shown under this pair of sids. The instance of an earlier join says nothing about
    /// this one.
    pub(crate) fn present_instance(&self) -> Option<&Instance> {
        self.instance.as_ref().filter(|_| self.is_configured())
    }

    /// Returns whether a Configuration with this instance, from a sid that the server has not announced, proves that its
    /// sender is the process of the described join.
    pub(super) fn is_continued_by(&self, instance: Option<&str>) -> bool {
        let known = self.instance.as_ref().filter(|_| self.is_proof).map(Instance::as_str);
        known.is_some() && known == instance
    }

    /// Returns whether the server has announced it in this join.
    pub(super) fn is_announced_at(&self, sid: &Sid) -> bool {
        matches!(&self.presence, Presence::Here { sid: here, announced: true } if here == sid)
    }

    /// Returns the description of the participant in its present join.
    pub(crate) fn description(&self) -> Option<&Participant> {
        self.participant.as_ref().filter(|participant| self.sid() == Some(participant.sid()))
    }

    /// Client: returns whether it has called by RPC in this join, in which it may have shown nothing else.
    pub(crate) fn calls_by_rpc(&self) -> bool {
        self.is_here() && self.join.calls_by_rpc
    }

    /// Returns whether it is in the room under a sid that the server has not announced.
    pub(super) fn is_unannounced(&self) -> bool {
        matches!(self.presence, Presence::Here { announced: false, .. })
    }

    /// Client: notes that it is pinged because it sends nothing.
    pub(super) fn note_ping(&mut self, now: Instant) {
        if self.pinged_at.is_none_or(|at| at < self.heard_at) {
            self.pinged_at = Some(now);
        }
    }

    /// Client: returns how long its first ping since the last packet has had no answer. Before that its silence shows
    /// nothing, since it need not send anything.
    pub(crate) fn unanswered_for(&self, now: Instant) -> Duration {
        let at = self.pinged_at.filter(|at| *at >= self.heard_at);
        at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at))
    }

    /// Returns the time at which its last packet arrived.
    pub(crate) fn heard_at(&self) -> Instant {
        self.heard_at
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
        self.participant.as_ref().is_some_and(|participant| participant.token_role() == Some(role))
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
        !self.is_plain() && self.features.has(feature)
    }

    /// Returns whether frames may be sent to it as byte streams, whether it is plain or not.
    pub(crate) fn takes_streams(&self) -> bool {
        self.is_configured() && self.features.has(Feature::Stream)
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

    /// Sets the instance that it shows. Returns the one before.
    pub(super) fn show_instance(&mut self, instance: Option<Instance>) -> Option<Instance> {
        // Another run counts its stanzas from 1, and would find its first stops repeated.
        if self.instance != instance {
            self.stopped = 0;
        }
        std::mem::replace(&mut self.instance, instance)
    }

    /// Notes a stop without a target. Returns whether this instance has sent it before, in an earlier join.
    pub(super) fn note_stop_of_all(&mut self, stanza: Option<i32>) -> bool {
        // Without an instance a lower stanza can be one of a new run.
        let Some(stanza) = stanza.map(i32::unsigned_abs).filter(|_| self.instance.is_some()) else {
            return false;
        };
        let is_repeated = stanza <= self.stopped;
        self.stopped = self.stopped.max(stanza);
        is_repeated
    }

    /// Remembers an instance that another one has replaced. If it returns, none of its requests up to this stanza runs.
    pub(super) fn replace_instance(&mut self, old: Instance, last: u32) {
        if self.former.len() == FORMER {
            self.former.pop_front();
        }
        self.former.push_back((old, last));
    }

    /// Returns the last stanza of the present instance, if it was replaced before and has returned.
    pub(super) fn returned_at(&mut self) -> Option<u32> {
        let at = self.former.iter().position(|(former, _)| Some(former) == self.instance.as_ref())?;
        self.former.remove(at).map(|(_, last)| last)
    }

    /// Takes the frames that waited for its Configuration.
    pub(super) fn take_waiting(&mut self) -> Vec<Received> {
        self.pair.waiting_bytes = 0;
        std::mem::take(&mut self.pair.waiting)
    }
}

/// The features that a peer lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Features(u16);

impl Features {
    pub(super) fn of(configuration: &Configuration) -> Self {
        let listed =
            |feature: &&Feature| configuration.features.iter().flatten().any(|name| name == feature.as_str());
        Self(Feature::ALL.iter().filter(listed).fold(0, |all, feature| all | *feature as u16))
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
    fn only_known_features_count() {
        let features = ["tool_ack", "flying"].map(String::from).to_vec();
        let listed = Features::of(&Configuration { features: Some(features), ..Configuration::default() });
        assert!(listed.has(Feature::Ack) && !listed.has(Feature::Progress));
    }
}
