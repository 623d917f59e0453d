//! One remote participant: where it is, what it has shown, and how far its handshake is.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::contact::{Contact, Signal};
use crate::{
    protocol::{
        frame::Configuration,
        session::{codec::Received, ids::Instance, recipients::Feature},
    },
    tool::{Tool, ToolName},
    transport::{Identity, Participant, Peer, Role, Sid},
};

/// Dead sids that are remembered of one identity. Packets of older ones have long arrived.
const DEAD_SIDS: usize = 8;

/// How long after the handshake a registration may still be on its way.
pub(crate) const SETTLED: Duration = Duration::from_secs(1);

/// Former instances of one identity that are remembered.
const FORMER: usize = 8;

/// A remote identity, with everything that is known of it over all its joins.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(super) presence: Presence,
    /// The server's description of the participant, in this join or the last one.
    pub(super) participant: Option<Participant>,
    /// The announced participant to return to if the server never announces the sid that a Configuration showed.
    pub(super) fallback: Option<Participant>,
    dead: VecDeque<Sid>,
    /// The state under the present pair of sids.
    pub(super) pair: Pair,
    /// The instance that it showed last.
    pub(super) instance: Option<Instance>,
    /// Instances that another one replaced, each with the last stanza that was received from it.
    former: VecDeque<(Instance, u32)>,
    pub(super) features: Features,
    /// The local configuration or a local call names it.
    pub(super) named: bool,
    pub(super) standing: Standing,
    /// The tools that it offers to the assistant.
    pub(super) tools: Vec<Tool>,
    pub(super) heard_at: Instant,
    pub(super) limits: RateLimits,
    pub(super) join: Join,
}

/// Where a remote participant is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// The local configuration or a call names it; no packet of it has arrived.
    Unseen,
    /// In the room: announced, or known by its Configuration only.
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

/// Whether a participant may be bound or asked, and its rank among others of its kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Standing {
    /// It has sent neither a Configuration nor a request.
    #[default]
    Silent,
    /// It has spoken, so a client may bind it.
    Spoke,
    /// The rank in the order in which clients registered, or assistants spoke.
    Ranked {
        /// Lower ranks came earlier.
        rank: u64,
        /// Whether it has spoken, too.
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

    /// After a Configuration or a request.
    pub(super) fn speaks(self) -> Self {
        match self {
            Self::Ranked { rank, .. } => Self::Ranked { rank, spoke: true },
            Self::Silent | Self::Spoke => Self::Spoke,
        }
    }

    /// With this rank, unless it has one.
    pub(super) fn ranked(self, rank: u64) -> Self {
        match self {
            Self::Ranked { .. } => self,
            Self::Silent | Self::Spoke => Self::Ranked { rank, spoke: self.has_spoken() },
        }
    }

    /// Without a rank.
    pub(super) fn unranked(self) -> Self {
        if self.has_spoken() { Self::Spoke } else { Self::Silent }
    }
}

/// What happened under one pair of sids: the local one and the peer's.
#[derive(Debug, Default)]
pub(super) struct Pair {
    pub(super) contact: Contact,
    /// How many local Configurations were sent, and when the last.
    pub(super) greetings: u32,
    pub(super) greeted_at: Option<Instant>,
    /// When both Configurations had arrived.
    pub(super) crossed_at: Option<Instant>,
    /// A packet arrived when the handshake had been complete for [`SETTLED`].
    pub(super) settled: bool,
    /// When it was last pinged for a call that waits for its registration.
    pub(super) probed_at: Option<Instant>,
    /// It was given more time to send its Configuration, since frames wait for it.
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

/// How far the local registration with one assistant is.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Registration {
    /// Not sent.
    #[default]
    Idle,
    /// Sent so many times, not answered.
    Sent(u32),
    /// Answered.
    Answered,
}

/// Whether a client has registered its tools under this pair of sids.
#[derive(Debug, Default)]
pub(super) enum OfferState {
    /// It has not.
    #[default]
    Unregistered,
    /// It has.
    Registered,
    /// Its heartbeat stopped. It offers these tools again once a packet of it arrives.
    Silenced(Vec<Tool>),
}

/// Limits on what one participant may cause.
#[derive(Debug, Default)]
pub(super) struct RateLimits {
    /// Requests and registrations of the current second.
    pub(super) requests: Window,
    /// Reports of the current second that there is no room for a stream.
    pub(super) streams: Window,
    /// When it was last told that it has no rights.
    pub(super) denied_at: Option<Instant>,
    /// When it was last told of a malformed frame.
    pub(super) corrected_at: Option<Instant>,
}

/// What happened in one join of a participant.
#[derive(Debug, Default)]
pub(super) struct Join {
    /// An observer that was sent the local registration.
    pub(super) shown: bool,
    /// Assistant: it asked to be admitted, by a Configuration or a registration.
    pub(super) knocked: bool,
    /// Assistant: it was reported that its tools are not taken.
    pub(super) refusal_reported: bool,
    /// Assistant: the tools that it tried to register while it was not admitted.
    pub(super) refused_tools: Vec<ToolName>,
}

impl Pair {
    /// Takes note of a frame's stanza. Returns whether it is higher than all before; a frame without one is.
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
            former: VecDeque::new(),
            features: Features::default(),
            named,
            standing: Standing::default(),
            tools: Vec::new(),
            heard_at: now,
            limits: RateLimits::default(),
            join: Join::default(),
        }
    }

    /// Takes note that a packet arrived. A registration would have arrived before it, if the handshake is old enough.
    pub(super) fn hear(&mut self, now: Instant) {
        self.heard_at = now;
        if self.pair.crossed_at.is_some_and(|at| now.saturating_duration_since(at) >= SETTLED) {
            self.pair.settled = true;
        }
    }

    /// The tools that it offers, in this join or, while it is away, in its last one.
    pub(crate) fn tools(&self) -> &[Tool] {
        &self.tools
    }

    /// The tool of this name that it offers.
    pub(crate) fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.name().as_str() == name)
    }

    /// The instance that it showed last.
    pub(crate) fn instance(&self) -> Option<&Instance> {
        self.instance.as_ref()
    }

    /// When its last packet arrived.
    pub(crate) fn heard_at(&self) -> Instant {
        self.heard_at
    }

    /// The sid under which it is in the room.
    pub(crate) fn sid(&self) -> Option<&Sid> {
        match &self.presence {
            Presence::Here { sid, .. } => Some(sid),
            Presence::Unseen | Presence::Away { .. } => None,
        }
    }

    pub(crate) fn is_here(&self) -> bool {
        self.sid().is_some()
    }

    /// Whether it is where a packet says that it was sent from.
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

    /// Whether its token makes it an observer.
    pub(crate) fn is_observer(&self) -> bool {
        self.has_role(Role::Observer)
    }

    /// Whether its token names this role.
    pub(super) fn has_role(&self, role: Role) -> bool {
        self.participant.as_ref().is_some_and(|participant| participant.token_role() == Some(role))
    }

    /// Whether Configurations crossed under this pair of sids.
    pub(crate) fn is_crossed(&self) -> bool {
        let contact = self.pair.contact;
        self.is_here() && contact.is_configured() && self.pair.greetings > 0 && !contact.has_left()
    }

    /// Whether anything but a Configuration may be sent to it.
    pub(crate) fn is_reachable(&self) -> bool {
        let contact = self.pair.contact;
        self.is_here() && !contact.has_left() && (self.is_crossed() || contact.is_plain())
    }

    /// Whether it speaks without toolbridge's handshake.
    pub(crate) fn is_plain(&self) -> bool {
        self.pair.contact.is_plain()
    }

    /// Whether its Configuration has arrived.
    pub(crate) fn is_configured(&self) -> bool {
        self.pair.contact.is_configured()
    }

    /// Whether one side has said goodbye.
    pub(crate) fn has_left(&self) -> bool {
        self.pair.contact.has_left()
    }

    /// Assistant: whether it has registered under this pair of sids.
    pub(crate) fn is_registered(&self) -> bool {
        matches!(self.pair.offer, OfferState::Registered)
    }

    /// Whether it is in the room and has not said yet what it offers.
    pub(crate) fn may_register(&self) -> bool {
        let contact = self.pair.contact;
        let is_silent = !self.is_registered() && !contact.is_plain() && !contact.has_left();
        self.is_here() && is_silent && (!contact.is_configured() || self.lists(Feature::Register))
    }

    /// Whether it has the handshake and lists this feature.
    pub(crate) fn lists(&self, feature: Feature) -> bool {
        !self.is_plain() && self.features.has(feature)
    }

    /// Whether frames may be sent to it as byte streams, whether it is plain or not.
    pub(crate) fn takes_streams(&self) -> bool {
        self.is_configured() && self.features.has(Feature::Stream)
    }

    /// Whether it may be asked prompts: it lists them, and has registered with the local assistant.
    pub(crate) fn takes_prompts(&self) -> bool {
        self.is_registered() && self.lists(Feature::Prompt)
    }

    /// Whether it answers claims of calls that the caller may run as well.
    pub(crate) fn takes_claims(&self) -> bool {
        self.lists(Feature::Claim) && self.lists(Feature::Ack)
    }

    /// Whether it proves, without having registered, that it offers no tools to the local assistant: a packet arrived when its
    /// registration was due.
    pub(crate) fn is_settled(&self) -> bool {
        self.pair.settled
    }

    /// When both Configurations had arrived, under this pair of sids.
    pub(crate) fn crossed_at(&self) -> Option<Instant> {
        self.pair.crossed_at
    }

    /// Whether it asked to be admitted in this join.
    pub(crate) fn has_knocked(&self) -> bool {
        self.join.knocked
    }

    /// The tools that it tried to register in this join while it was not admitted.
    pub(crate) fn refused_tools(&self) -> &[ToolName] {
        &self.join.refused_tools
    }

    /// Whether this sid was replaced or left.
    pub(super) fn is_dead(&self, sid: &Sid) -> bool {
        self.dead.contains(sid)
    }

    pub(super) fn bury(&mut self, sid: Sid) {
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

    /// Remembers an instance that another one has replaced. No request of it up to this stanza runs if it returns.
    pub(super) fn replace_instance(&mut self, old: Instance, last: u32) {
        if self.former.len() == FORMER {
            self.former.pop_front();
        }
        self.former.push_back((old, last));
    }

    /// The last stanza of the present instance, if it was replaced before and has returned.
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

/// What a peer lists.
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

/// How often something happened in the current second.
#[derive(Debug, Default)]
pub(crate) struct Window {
    began: Option<Instant>,
    count: u32,
}

impl Window {
    /// Counts once more, and says whether that is still allowed.
    pub(crate) fn admits(&mut self, now: Instant, limit: u32) -> bool {
        if self.began.is_none_or(|began| now.saturating_duration_since(began) >= Duration::from_secs(1)) {
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

    #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
    fn an_instant() -> Instant {
        Instant::now()
    }

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
            remote.bury(Sid::from(format!("PA_{n}")));
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
