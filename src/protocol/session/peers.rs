//! Tracks the remote participants: presence, handshake, registration, roles and the binding of a client to an
//! assistant.

mod admission;
mod contact;
mod handshake;
mod held;
mod presence;
mod reach;
mod registration;
mod remote;
mod roles;
mod selection;

use std::time::Duration;

pub(super) use self::selection::Selected;
use self::{admission::Admission, held::Held, reach::Refusals};
pub(super) use self::{
    admission::RightsChange,
    handshake::Greeting,
    held::HeldItem,
    presence::SenderStanding,
    reach::RpcRefusal,
    remote::{Remote, SETTLED, Window},
};
use super::{
    codec::{Malformed, Received},
    context::Context,
    delivery::{Delivery, Part, STREAM_REFUSED},
    ids::Instance,
    recipients::{Feature, Recipients},
    stats::Counter,
    timers::Timer,
};
use crate::{
    clock::Instant,
    protocol::{frame::Kind, rpc::MAX_MESSAGE},
    sorted::{SortedMap, SortedSet},
    transport::{Identity, Participant, Peer},
};

/// The interval between two reports to one peer that it sent a malformed frame: 1 s.
const CORRECTION_INTERVAL: Duration = Duration::from_secs(1);

/// How many refusals of streams one sender is sent per second.
const REFUSALS_PER_SECOND: u32 = 8;

/// All remote participants that the session knows.
#[derive(Debug, Default)]
pub(super) struct Peers {
    remotes: SortedMap<Identity, Remote>,
    /// The frames of senders that the server has not announced.
    pub(super) held: Held,
    /// The frames of senders whose Configurations have not arrived.
    pub(super) unconfigured: Held,
    /// The observers in the room, which are sent copies of frames.
    observers: SortedSet<Identity>,
    /// Assistant: participants without a role.
    admission: Admission,
    /// Client: the bound assistant.
    bound: Option<Identity>,
    /// Client: the candidates of the last reported ambiguity.
    ambiguous: Vec<Identity>,
    /// Client: the candidates among which the author's function is selecting, in the joins that it was shown. Empty while
    /// it is not asked.
    selecting: Vec<Peer>,
    /// Client: the participants of the last report that none may be the assistant.
    no_assistant_among: Vec<Identity>,
    /// The last rank given to a peer that registered or sent a frame.
    last_rank: u64,
    /// The number of changes that may affect which participants can be called.
    changes: u64,
    /// Client: the refusals of the server's own calls by RPC.
    server_refusals: Refusals,
}

impl Recipients for Peers {
    fn is_reachable(&self, id: &Identity) -> bool {
        self.get(id).is_some_and(Remote::is_reachable)
    }

    fn is_crossed(&self, id: &Identity) -> bool {
        self.get(id).is_some_and(Remote::is_crossed)
    }

    fn shows_instance(&self, id: &Identity) -> bool {
        self.get(id).is_some_and(|remote| remote.present_instance().is_some())
    }

    fn lists(&self, id: &Identity, feature: Feature) -> bool {
        self.get(id).is_some_and(|remote| remote.lists(feature))
    }

    fn takes_large_frames(&self, id: &Identity) -> bool {
        self.get(id).is_some_and(|remote| remote.takes_streams() || remote.is_observer())
    }

    fn observers(&self) -> Vec<Identity> {
        self.observers.iter().cloned().collect()
    }
}

impl Peers {
    pub(super) fn get(&self, id: &Identity) -> Option<&Remote> {
        self.remotes.get(id)
    }

    pub(super) fn get_mut(&mut self, id: &Identity) -> Option<&mut Remote> {
        self.remotes.get_mut(id)
    }

    /// Returns whether this participant may send compressed frames: its Configuration has arrived in this join, and lists
    /// that it knows them.
    #[cfg(feature = "deflate")]
    pub(super) fn may_compress(&self, from: &Peer) -> bool {
        self.get(from.identity()).is_some_and(|remote| {
            remote.is_at(from.sid()) && remote.is_configured() && remote.lists(Feature::Deflate)
        })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Identity, &Remote)> {
        self.remotes.iter()
    }

    /// Returns these participants in their present joins.
    pub(super) fn joins(&self, ids: &[Identity]) -> Vec<Peer> {
        ids.iter().filter_map(|id| Some(self.get(id)?.peer(id))).collect()
    }

    pub(super) fn ids(&self) -> Vec<Identity> {
        self.remotes.keys().cloned().collect()
    }

    /// Returns the participants that are in the room.
    pub(super) fn present(&self) -> impl Iterator<Item = (&Identity, &Remote)> {
        self.remotes.iter().filter(|(_, remote)| remote.is_here())
    }

    /// Returns the announced participants that are in the room.
    pub(super) fn participants(&self) -> Vec<Participant> {
        self.present().filter_map(|(_, remote)| remote.join.participant.clone()).collect()
    }

    /// Client: returns the bound assistant.
    pub(super) fn bound(&self) -> Option<&Identity> {
        self.bound.as_ref()
    }

    /// Client: returns whether this is the bound assistant. A later join of its identity must have the rights of an
    /// assistant itself.
    pub(super) fn is_bound(&self, cx: &Context, id: &Identity) -> bool {
        self.bound.as_ref() == Some(id)
            && self.get(id).is_some_and(|remote| self.is_candidate(cx, id, remote))
    }

    /// Returns the number of changes that may affect which participants can be called.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Notes a change that may affect which participants can be called.
    pub(super) fn note_change(&mut self) {
        self.changes += 1;
    }

    /// Handles a part of a stream. An accepted part shows that its sender is alive, however long the frame takes. A
    /// refused or broken stream is reported to the sender a few times a second. A correct sender sends one frame at a
    /// time, so it receives every report.
    pub(super) fn handle_stream_part(
        &mut self,
        cx: &mut Context,
        delivery: &mut Delivery,
        id: &Identity,
        part: Part,
    ) {
        let remote = self.remotes.get_mut(id);
        match part {
            // The exchange handles texts.
            Part::Ignored | Part::Whole(_) | Part::Text(..) => {}
            Part::Taken => remote.into_iter().for_each(|it| it.note_packet(cx.now)),
            Part::Broken(why) => self.correct(cx, delivery, id, Malformed::because(why)),
            Part::Refused(stream, why) => {
                let admits = |it: &mut Remote| it.limits.streams.admits(cx.now, REFUSALS_PER_SECOND);
                if remote.is_some_and(admits) {
                    delivery.to(cx, self, id).report_error(STREAM_REFUSED, why, Some(stream.to_string()));
                }
            }
        }
    }

    /// Returns whether one more request of this peer is allowed in this second.
    pub(super) fn admits_request(&mut self, cx: &Context, id: &Identity, limit: u32) -> bool {
        self.remotes.get_mut(id).is_some_and(|remote| remote.limits.requests.admits(cx.now, limit))
    }

    /// Returns whether one more request of a participant without rights is answered in this second. A caller must learn of
    /// each call that nothing ran, so as many are answered as would be accepted of an assistant.
    pub(super) fn may_answer_request(&mut self, cx: &Context, id: &Identity) -> bool {
        self.admits_request(cx, id, cx.config.caps.requests.calls_per_second)
    }

    /// Returns whether a participant without rights may be sent another refusal of its registration now.
    pub(super) fn may_deny(&mut self, cx: &Context, id: &Identity) -> bool {
        let interval = cx.config.times.denial;
        self.remotes.get_mut(id).is_some_and(|it| has_passed(&mut it.limits.denied_at, cx.now, interval))
    }

    /// Counts a malformed packet and reports it to its sender.
    pub(super) fn malformed(
        &mut self,
        cx: &mut Context,
        delivery: &mut Delivery,
        from: &Identity,
        what: Malformed,
    ) {
        cx.complain_of(from, Counter::Malformed, &what.why);
        self.correct(cx, delivery, from, what);
    }

    /// Reports to a counterpart, at most once a second, that it sent a malformed frame.
    pub(super) fn correct(
        &mut self,
        cx: &mut Context,
        delivery: &mut Delivery,
        from: &Identity,
        what: Malformed,
    ) {
        let is_counterpart =
            self.get(from).is_some_and(|remote| remote.is_here() && self.is_counterpart(cx, from, remote));
        // An error is never answered: two participants that read each other's errors as malformed would not
        // stop.
        if !is_counterpart || what.kind == Some(Kind::ERROR) {
            return;
        }
        let is_due = |it: &mut Remote| has_passed(&mut it.limits.corrected_at, cx.now, CORRECTION_INTERVAL);
        if self.remotes.get_mut(from).is_some_and(is_due) {
            let why = format!("the frame is malformed: {}", crate::value::ends(&what.why, MAX_MESSAGE));
            delivery.to(cx, self, from).report_error(101, &why, what.id);
        }
    }

    /// Forgets all timers and waiting frames, because the session has ended and no peer can be reached.
    pub(super) fn clear(&mut self) {
        // Waiters compare the count, so it must not go back.
        *self = Self { changes: self.changes, ..Self::default() };
    }
}

/// Returns whether the interval has passed since the last time, which is then now.
fn has_passed(last: &mut Option<Instant>, now: Instant, interval: Duration) -> bool {
    let has_passed = last.is_none_or(|at| now.saturating_duration_since(at) >= interval);
    if has_passed {
        *last = Some(now);
    }
    has_passed
}
