//! How large a frame may be, to whom; and large ones on their way out that nobody wants any more (`wire.md`, section 5).

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::{
    Session, Timer,
    peer::{Feature, Remote},
};
use crate::{
    protocol::frame::{ErrorMessage, Message},
    tool::CallId,
    transport::{Identity, Packet, Role},
    value::Value,
};

/// Large packets that are remembered until nobody can be sending them any more: as many as a driver keeps.
const MAX_LARGE: usize = 4096;

/// How long an answer or stop waits when the driver's queue has no room for it, or the transport does not take it.
const QUEUE_WAIT: Duration = Duration::from_secs(1);

/// How often a peer may say of one frame that it has no room for it. Then the frame is given up.
pub(super) const MAX_TURNED_AWAY: u32 = 8;

/// How long a frame waits after a peer had no room for it: this at first, each time twice as long, at most
/// [`LONGEST_TURN`].
const FIRST_TURN: Duration = Duration::from_millis(250);
const LONGEST_TURN: Duration = Duration::from_secs(8);

/// The code of a type 1 which says that there is no room for a stream.
pub(super) const NO_ROOM: i32 = 504;

/// Large packets that were given out: they may be on their way for long.
#[derive(Debug, Default)]
pub(super) struct Large {
    /// By their rising numbers, and for whom.
    out: VecDeque<Outgoing>,
    /// The last packet of each frame, by its receivers and its stanza.
    last: BTreeMap<(Vec<Identity>, i32), u64>,
    withdrawn: BTreeSet<u64>,
}

#[derive(Debug)]
struct Outgoing {
    packet: u64,
    to: Vec<Identity>,
    stanza: i32,
}

impl Session {
    /// Whether a packet that was given out is still worth sending.
    pub(super) fn wants(&self, packet: u64) -> bool {
        self.large.wants(packet)
    }

    /// The largest frame that may go to these participants, in bytes.
    pub(super) fn limit_to(&self, to: &[Identity], message: &Message) -> usize {
        let caps = &self.config.caps;
        let observes =
            |remote: &Remote| remote.who.as_ref().is_some_and(|who| who.token_role() == Some(Role::Observer));
        let takes = |id: &Identity| {
            self.peers.get(id).is_some_and(|remote| remote.takes_streams() || observes(remote))
        };
        if !self.config.streams || !to.iter().all(takes) {
            return caps.max_packet;
        }
        // A client's answers are awaited; for the rest it is one of many.
        let much = !self.is_client() || matches!(message, Message::ToolUseResult(_));
        let limit = if much { caps.max_frame } else { caps.max_frame_of_others.min(caps.max_frame) };
        limit.max(caps.max_packet)
    }

    /// The packet of a frame: a large one is given the id of its stream, a small one may pass large ones.
    pub(super) fn packet_of(
        &mut self,
        id: u64,
        to: Vec<Identity>,
        payload: Bytes,
        stanza: i32,
        message: &Message,
    ) -> Packet {
        let mut packet = Packet::new(to, payload);
        packet.id = id;
        packet.overtakes = self.may_overtake(&packet.to, message);
        if packet.payload.len() > self.config.caps.max_packet {
            packet.stream = Some(format!("{}.{stanza}.{id}", subject(message)).into());
            self.large.note(id, &packet.to, stanza);
        }
        packet
    }

    /// The request of a call that has ended need not leave any more.
    pub(super) fn withdraw_request(&mut self, packet: u64) {
        self.large.withdraw(packet);
    }

    /// The caller has stopped a call whose large answer is on its way: it is not wanted any more.
    pub(super) fn withdraw_answer(&mut self, now: Instant, caller: &Identity, call: &CallId) {
        let Some(table) = self.tables.get_mut(caller) else { return };
        let sent = table.answer_of(call).and_then(|answer| answer.sent());
        if let Some((stanza, packet)) = sent.filter(|(_, packet)| self.large.withdraw(*packet)) {
            tracing::debug!(%call, packet, "a stopped call's answer is withdrawn");
            table.acknowledged(now, call);
            self.set_table_timer(now, caller);
            self.replayed(now, caller, stanza);
        }
    }

    /// An answer or stop was not taken by the driver or the transport: it may be in a second.
    pub(super) fn try_again_soon(&mut self, now: Instant, peer: Identity) {
        self.timers.set(now, Timer::Queue(peer), QUEUE_WAIT);
    }

    /// Sends frames again, in their order: those that the transport did not take, and those that this peer had no room for.
    pub(super) fn queue_has_room(&mut self, now: Instant, peer: &Identity) {
        for key in self.requests_turned_away(peer) {
            self.ask_again(now, key);
        }
        self.send_waiting_answers(now, peer);
        self.send_waiting_stops(peer);
        self.send_stops(now, peer, false);
    }

    /// A peer says that it has no room for a stream of ours. If it carried an answer or a request, that goes again after
    /// a while. Returns false if this is about something else.
    pub(super) fn stream_turned_away(&mut self, now: Instant, id: &Identity, error: &ErrorMessage) -> bool {
        let stream = error.originating_id.as_deref().filter(|_| error.code == NO_ROOM);
        let packet = stream.and_then(|stream| stream.rsplit('.').next()?.parse::<u64>().ok());
        let Some(packet) = packet.filter(|packet| self.large.is_to(*packet, id)) else { return false };
        if !self.large.wants(packet) {
            return true; // it was sent again since, or is not wanted any more
        }
        self.large.withdraw(packet);
        let answer = self.tables.get_mut(id).and_then(|table| {
            let call = table.sent_in(packet)?;
            Some((call.clone(), table.turned_away(&call)))
        });
        let times = match answer {
            Some((call, times)) if times >= MAX_TURNED_AWAY => {
                self.give_up_answer(now, id, &call, times);
                return true;
            }
            Some((call, times)) => {
                let sent = self.tables.get_mut(id).and_then(|table| table.note_sent(&call, None));
                if let Some((stanza, _)) = sent {
                    self.replayed(now, id, stanza);
                }
                times
            }
            None => match self.request_turned_away(id, packet) {
                Some(times) if times < MAX_TURNED_AWAY => times,
                _ => return true, // nothing is kept of it, or its call ends by its own deadline
            },
        };
        let wait = FIRST_TURN.saturating_mul(1 << times.saturating_sub(1).min(16)).min(LONGEST_TURN);
        tracing::debug!(peer = %id, packet, times, ?wait, "it has no room for a stream of ours");
        if !self.timers.is_set(&Timer::Queue(id.clone())) {
            self.timers.set(now, Timer::Queue(id.clone()), wait);
        }
        true
    }

    /// What was under way between us, in parts, under the pair of sids that has ended.
    pub(super) fn end_streams(&mut self, id: &Identity) {
        self.streams.forget(id);
        // What goes to a plain peer is not sent again; so it may still arrive.
        if self.peers.get(id).is_none_or(|remote| !remote.pair.plain) {
            self.large.withdraw_all_to(id);
        }
    }

    /// Whether the open calls of this owner hold as many bytes of arguments as they may. One call always may.
    pub(super) fn is_full_with(&self, owner: &Identity, arguments: &Value) -> bool {
        let open = self.calls.bytes_of(owner);
        open > 0 && open + arguments.as_bytes().len() > self.config.caps.open_bytes
    }

    /// Whether one more answer of this size may be kept for its caller; if not, how large it may be. One always may.
    pub(super) fn room_for_answer(&self, caller: &Identity, size: usize) -> Result<(), usize> {
        let kept = self.tables.get(caller).map_or(0, super::Table::kept_bytes);
        let room = self.config.caps.table_bytes.saturating_sub(kept);
        if kept > 0 && size > room { Err(room) } else { Ok(()) }
    }

    /// Acknowledgements, and stops that their receiver remembers should they come before their request. A goodbye
    /// ends what was said before it.
    fn may_overtake(&self, to: &[Identity], message: &Message) -> bool {
        let remembers = |id: &Identity| self.peers.get(id).is_some_and(|it| it.lists(Feature::Cancel));
        match message {
            Message::Acknowledgement(_) => true,
            Message::ControlStop(stop) => stop.stop_type.is_none() && to.iter().all(remembers),
            _ => false,
        }
    }
}

impl Large {
    fn note(&mut self, packet: u64, to: &[Identity], stanza: i32) {
        if self.out.len() == MAX_LARGE
            && let Some(oldest) = self.out.pop_front()
        {
            self.withdrawn.remove(&oldest.packet);
            let frame = (oldest.to, oldest.stanza);
            if self.last.get(&frame) == Some(&oldest.packet) {
                self.last.remove(&frame);
            }
        }
        // What is sent again need not be sent twice: the receiver may have dropped the first.
        self.withdrawn.extend(self.last.insert((to.to_vec(), stanza), packet));
        self.out.push_back(Outgoing { packet, to: to.to_vec(), stanza });
    }

    /// Whether this packet went to this peer alone.
    fn is_to(&self, packet: u64, id: &Identity) -> bool {
        let at = self.out.binary_search_by_key(&packet, |it| it.packet);
        let out = at.ok().and_then(|at| self.out.get(at));
        out.is_some_and(|it| it.to.as_slice() == std::slice::from_ref(id))
    }

    fn wants(&self, packet: u64) -> bool {
        !self.withdrawn.contains(&packet)
    }

    /// Whether it is one of ours; if so, nobody wants it.
    fn withdraw(&mut self, packet: u64) -> bool {
        let known = self.out.binary_search_by_key(&packet, |it| it.packet).is_ok();
        if known {
            self.withdrawn.insert(packet);
        }
        known
    }

    fn withdraw_all_to(&mut self, id: &Identity) {
        let to = vec![id.clone()];
        let theirs = self.last.range((to.clone(), i32::MIN)..=(to, i32::MAX));
        self.withdrawn.extend(theirs.map(|(_, packet)| *packet));
    }
}

/// What a stream's id begins with: its call, or what it is.
fn subject(message: &Message) -> &str {
    match message {
        Message::ToolUseRequest(request) => request.id.as_str(),
        Message::ToolUseResult(result) => result.id.as_str(),
        Message::ToolsRegister(_) => "tools",
        _ => "frame",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_packets_are_remembered_up_to_a_limit() {
        let mut large = Large::default();
        for packet in 1..=MAX_LARGE as u64 + 1 {
            large.note(packet, &["a".into()], packet as i32);
        }
        assert!(!large.withdraw(1), "the oldest is forgotten");
        assert!(large.withdraw(2) && large.withdraw(MAX_LARGE as u64 + 1));
        large.note(MAX_LARGE as u64 + 2, &["b".into()], 1);
        assert!(!large.withdrawn.contains(&2), "and so is that it was withdrawn");
        large.withdraw_all_to(&"b".into());
        assert_eq!(large.withdrawn.len(), 2);
    }

    #[test]
    fn what_is_sent_again_is_sent_once() {
        let mut large = Large::default();
        large.note(1, &["a".into()], -7);
        large.note(2, &["b".into()], -7);
        large.note(3, &["a".into()], -7);
        assert!(large.withdrawn.iter().eq([&1]));
    }
}
