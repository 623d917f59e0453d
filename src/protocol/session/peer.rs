//! One remote participant: where it is, what it showed us, and how far its handshake has come.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::{codec::Incoming, ids::Instance, lane::FastLane, replay::Replay};
use crate::{
    protocol::frame::Configuration,
    tool::{Tool, ToolName},
    transport::{Identity, Participant, Peer, Sid},
};

/// Dead sids that are remembered of one identity. Packets of older ones have long arrived.
const DEAD_SIDS: usize = 8;

/// How long after the handshake a registration may still be on its way.
pub(super) const SETTLED: Duration = Duration::from_secs(1);

/// Former instances of one identity that are remembered.
const FORMER: usize = 8;

/// An identity, with everything we know of it over all its joins.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) presence: Presence,
    /// What the room says of it, in this join or the last one.
    pub(super) who: Option<Participant>,
    /// Where to go back to if the room never announces the sid that a Configuration showed.
    pub(super) fallback: Option<Participant>,
    dead: VecDeque<Sid>,
    /// Configurations had crossed in the join that it left.
    pub(super) left_crossed: bool,
    /// The state under this pair of sids.
    pub(super) pair: Pair,
    /// The instance that it showed last.
    pub(super) instance: Option<Instance>,
    /// Instances that another one replaced, and the last stanza that each was heard under.
    former: VecDeque<(Instance, u32)>,
    pub(super) features: Features,
    /// Our own author named it, in the configuration or in a call.
    pub(super) named: bool,
    /// Client: it sent a Configuration or a request, so it may be bound.
    pub(super) spoke: bool,
    /// What it offers (to an assistant).
    pub(super) tools: Vec<Tool>,
    pub(super) heard_at: Instant,
    /// Requests of the current second.
    pub(super) rate: Window,
    /// Streams of the current second of which it was told that there is no room for them.
    pub(super) turned_away: Window,
    /// When a frame of its was last refused in words; once a minute is enough for who has no rights.
    pub(super) denied_at: Option<Instant>,
    /// When it was last told of a malformed frame.
    pub(super) corrected_at: Option<Instant>,
    /// An observer that has our registration.
    pub(super) shown: bool,
    /// Assistant: it asked to be admitted, by a Configuration or a registration, in this join.
    pub(super) knocked: bool,
    /// Assistant: it was reported that its tools are not taken in this join.
    pub(super) refusal_told: bool,
    /// Assistant: the tools that it tried to register, while it was not admitted.
    pub(super) refused_tools: Vec<ToolName>,
    /// Its place in the order in which clients registered, or assistants spoke.
    pub(super) came: Option<u64>,
}

/// Where a remote participant is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// Named by our author; nothing was heard of it.
    Unseen,
    /// In the room; announced, or known by its Configuration only.
    Here {
        /// Its join.
        sid: Sid,
        /// Whether the room said so.
        announced: bool,
    },
    /// It left this join.
    Away(Sid),
}

/// What happened under one pair of sids, ours and the peer's.
#[derive(Debug, Default)]
pub(super) struct Pair {
    /// How many Configurations we sent, and when the last.
    pub(super) greetings: u32,
    pub(super) greeted_at: Option<Instant>,
    /// Whether its Configuration came.
    pub(super) heard: bool,
    /// Since when both Configurations have come.
    pub(super) crossed_at: Option<Instant>,
    /// It was heard again when the handshake had been complete for [`SETTLED`].
    pub(super) settled: bool,
    /// When it was last asked for a sign of life by a call that waits for its registration.
    pub(super) probed_at: Option<Instant>,
    /// It has had longer to break its silence, since frames of it wait for its Configuration.
    pub(super) silence_extended: bool,
    /// It speaks without our handshake.
    pub(super) plain: bool,
    /// It said goodbye.
    pub(super) left: bool,
    /// Client: our registration is on its way, or taken.
    pub(super) registration: Registration,
    /// Assistant: it registered.
    pub(super) registered: bool,
    /// Assistant: what it offered when its heartbeat stopped. It offers that again once anything is heard of it.
    pub(super) silenced: Option<Vec<Tool>>,
    /// Frames that wait for its Configuration.
    pub(super) waiting: Vec<Incoming>,
    pub(super) waiting_bytes: usize,
    /// What is on its way on `_lossy`.
    pub(super) lane: FastLane,
    /// What is sent again.
    pub(super) replay: Replay,
    /// The highest stanza that came, as an absolute value.
    pub(super) highest: u32,
}

/// How far our registration with one assistant has come.
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

impl Pair {
    /// A frame with this stanza came: whether it is higher than all before. A frame without one is.
    pub(super) fn rises(&mut self, stanza: Option<i32>) -> bool {
        let Some(stanza) = stanza.map(i32::unsigned_abs).filter(|stanza| *stanza != 0) else { return true };
        let rises = stanza > self.highest;
        self.highest = self.highest.max(stanza);
        rises
    }
}

impl Remote {
    pub(super) fn new(now: Instant, named: bool) -> Self {
        Self {
            presence: Presence::Unseen,
            who: None,
            fallback: None,
            dead: VecDeque::new(),
            left_crossed: false,
            pair: Pair::default(),
            instance: None,
            former: VecDeque::new(),
            features: Features::default(),
            named,
            spoke: false,
            tools: Vec::new(),
            heard_at: now,
            rate: Window::default(),
            turned_away: Window::default(),
            denied_at: None,
            corrected_at: None,
            shown: false,
            knocked: false,
            refusal_told: false,
            refused_tools: Vec::new(),
            came: None,
        }
    }

    /// Something came of it: had it registered, the registration would have come before, once some time has passed.
    pub(super) fn is_heard(&mut self, now: Instant) {
        self.heard_at = now;
        if self.pair.crossed_at.is_some_and(|at| now.saturating_duration_since(at) >= SETTLED) {
            self.pair.settled = true;
        }
    }

    /// The sid under which it is in the room.
    pub(super) fn sid(&self) -> Option<&Sid> {
        match &self.presence {
            Presence::Here { sid, .. } => Some(sid),
            Presence::Unseen | Presence::Away(_) => None,
        }
    }

    pub(super) fn is_here(&self) -> bool {
        self.sid().is_some()
    }

    pub(super) fn peer(&self, identity: &Identity) -> Peer {
        let sid = match &self.presence {
            Presence::Here { sid, .. } | Presence::Away(sid) => sid.clone(),
            Presence::Unseen => Sid::from(""),
        };
        Peer::new(identity, sid)
    }

    /// Whether Configurations crossed under this pair of sids.
    pub(super) fn is_crossed(&self) -> bool {
        self.is_here() && self.pair.heard && self.pair.greetings > 0 && !self.pair.left
    }

    /// Whether anything but a Configuration may be sent to it.
    pub(super) fn is_reachable(&self) -> bool {
        self.is_here() && !self.pair.left && (self.is_crossed() || self.pair.plain)
    }

    /// Whether it is in the room, and has not said yet what it offers.
    pub(super) fn may_register(&self) -> bool {
        let silent = !self.pair.registered && !self.pair.plain && !self.pair.left;
        self.is_here() && silent && (!self.pair.heard || self.lists(Feature::Register))
    }

    /// Whether it speaks our form, and lists this.
    pub(super) fn lists(&self, feature: Feature) -> bool {
        !self.pair.plain && self.features.has(feature)
    }

    /// Whether frames may come to it as byte streams, whatever form it speaks.
    pub(super) fn takes_streams(&self) -> bool {
        self.pair.heard && self.features.has(Feature::Stream)
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

    /// Another instance is here. What the old one asked for up to this stanza never runs again, should it return.
    pub(super) fn replace_instance(&mut self, old: Instance, last: u32) {
        if self.former.len() == FORMER {
            self.former.pop_front();
        }
        self.former.push_back((old, last));
    }

    /// The last stanza of the present instance, if it was replaced before and is back.
    pub(super) fn returned_at(&mut self) -> Option<u32> {
        let at = self.former.iter().position(|(former, _)| Some(former) == self.instance.as_ref())?;
        self.former.remove(at).map(|(_, last)| last)
    }

    /// It is in the room under another sid.
    pub(super) fn forget_join(&mut self) {
        self.shown = false;
        self.knocked = false;
        self.refusal_told = false;
        self.refused_tools = Vec::new();
    }

    pub(super) fn revive(&mut self, sid: &Sid) {
        self.dead.retain(|dead| dead != sid);
    }
}

/// An extension of the protocol that a peer may list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Feature {
    /// Types 6 and 7, as everybody has them.
    Use = 1 << 0,
    /// Types 70 to 72.
    Register = 1 << 1,
    /// Type 1000.
    Progress = 1 << 2,
    /// Type 10 with a `targetId`.
    Cancel = 1 << 3,
    /// Type 8 for 6, 7 and 10.
    Ack = 1 << 4,
    /// Claims of `either` calls.
    Claim = 1 << 5,
    /// Prompts to a person.
    Prompt = 1 << 6,
    /// Frames as byte streams.
    Stream = 1 << 8,
    /// Small frames on `_lossy` first.
    FastLane = 1 << 7,
}

impl Feature {
    /// What we know, and list if it works here.
    pub(super) const OURS: &[Self] = &[
        Self::Use,
        Self::Register,
        Self::Progress,
        Self::Cancel,
        Self::Claim,
        Self::Ack,
        Self::Prompt,
        Self::Stream,
        Self::FastLane,
    ];

    /// Its name in a Configuration.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Use => "tool_use",
            Self::Register => "tool_register",
            Self::Progress => "tool_progress",
            Self::Cancel => "tool_cancel",
            Self::Ack => "tool_ack",
            Self::Stream => "frame_stream",
            Self::FastLane => "fast_lane",
            Self::Claim => "tool_claim",
            Self::Prompt => "tool_prompt",
        }
    }
}

/// What a peer lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Features(u16);

impl Features {
    pub(super) fn of(configuration: &Configuration) -> Self {
        let listed =
            |feature: &&Feature| configuration.features.iter().flatten().any(|name| name == feature.as_str());
        Self(Feature::OURS.iter().filter(listed).fold(0, |all, feature| all | *feature as u16))
    }

    fn has(self, feature: Feature) -> bool {
        self.0 & feature as u16 != 0
    }
}

/// How often something happened in the current second.
#[derive(Debug, Default)]
pub(super) struct Window {
    began: Option<Instant>,
    count: u32,
}

impl Window {
    /// Counts once more, and says whether that is still allowed.
    pub(super) fn admits(&mut self, now: Instant, limit: u32) -> bool {
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
