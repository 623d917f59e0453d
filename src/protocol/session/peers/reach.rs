//! Decides how participants are called: by frames, with or without the handshake, or by LiveKit's RPC (`wire.md`, section
//! 10.2).

use std::collections::VecDeque;

use super::{
    Context, Delivery, Peers, Remote, SenderStanding, Window,
    remote::{OfferState, admits_bytes},
};
use crate::{
    clock::Instant,
    protocol::{
        rpc,
        session::{Event, recipients::Feature, timers::Timer},
    },
    sorted::SortedSet,
    tool::{CallId, Reach, RegisterError},
    transport::{Identity, Participant, Peer, RpcError},
};

impl Remote {
    /// Returns how it is called now, or `None` if it cannot be called now.
    pub(crate) fn reach(&self, cx: &Context) -> Option<Reach> {
        let Some(who) = self.called_by_rpc(cx) else {
            let by_frames = if self.is_plain() { Reach::Plain } else { Reach::Toolbridge };
            return self.is_reachable().then_some(by_frames);
        };
        if who.protocol() == 0 || !cx.config.streams {
            return Some(Reach::Rpc1);
        }
        // Until the room has announced the local participant, SDKs answer in chunks, and some of them send chunks to the
        // whole room.
        let is_announced = cx.local.unannounced_until.is_none_or(|until| cx.now >= until);
        is_announced.then_some(Reach::Rpc2)
    }

    /// Returns the description of a participant that is called by RPC, if the room has announced it.
    pub(crate) fn called_by_rpc(&self, cx: &Context) -> Option<&Participant> {
        let who = self.description().filter(|who| self.is_announced_at(who.sid()))?;
        (!self.takes_frames(cx, who.identity())).then_some(who)
    }

    /// Returns whether it is sent frames, and not called by RPC, in whatever join: the author does not describe its tools,
    /// or it has shown an instance.
    pub(crate) fn takes_frames(&self, cx: &Context, id: &Identity) -> bool {
        // The process of an earlier join counts until its grace period is over: it shows itself soon after it has rejoined.
        !rpc::IS_BUILT || !cx.config.described.contains_key(id) || self.has_process()
    }

    /// Client: returns whether it has called by RPC in this join, in which it may have shown nothing else.
    pub(crate) fn calls_by_rpc(&self) -> bool {
        self.is_here() && self.join.other.calls
    }

    /// Returns whether calls between it and the local participant are possible in this join.
    pub(crate) fn is_in_contact(&self, cx: &Context) -> bool {
        self.is_reachable() || self.called_by_rpc(cx).is_some() || self.calls_by_rpc()
    }

    /// Returns whether it has shown a process, or how it calls: its goodbye counts.
    pub(crate) fn is_known(&self) -> bool {
        self.is_crossed() || self.has_process() || self.calls_by_rpc()
    }

    /// Client: returns whether it answers pings.
    pub(crate) fn answers_pings(&self) -> bool {
        self.lists(Feature::Ack) || self.calls_by_rpc()
    }
}

/// What was exchanged with a participant by RPC in one join.
#[derive(Debug, Default)]
pub(super) struct OtherForms {
    /// Client: whether it has called.
    calls: bool,
    /// Assistant: since when it has sent nothing, if it was pinged.
    silent_since: Option<Instant>,
    /// How many pings it was sent since then.
    pings: u32,
    /// The ids of the last pings.
    ids: VecDeque<Box<str>>,
}

/// The refusal of a request by RPC: its receiver, the request, and the reason.
pub(crate) type RpcRefusal = (Identity, CallId, RpcError);

/// The refusals of requests by RPC. As many are sent in a second as a caller with rights may make calls; the next ones wait.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    sent: Window,
    pub(super) waiting: VecDeque<RpcRefusal>,
}

/// How long a refusal may wait, in seconds. LiveKit's SDKs wait 7 s for an acknowledgement.
const REFUSED_WITHIN: usize = 6;

/// The pings whose answers are recognized.
const PINGS: usize = 3;

impl Peers {
    /// Client: returns whether it may call by RPC: as one that may become the assistant, or because the author names it.
    pub(crate) fn may_call_by_rpc(&self, cx: &Context, id: &Identity) -> bool {
        let may = |it: &Remote| cx.config.rpc_callers.contains(id) || self.is_candidate(cx, id, it);
        self.get(id).is_some_and(|remote| !remote.has_left() && may(remote))
    }

    /// Client: counts the bytes of a request by RPC, and returns whether they are within its caller's share. The bound
    /// assistant has no limit.
    pub(crate) fn admits_rpc_bytes(&mut self, cx: &Context, id: &Identity, bytes: usize) -> bool {
        let rate = cx.config.caps.requests.rpc_bytes_per_second;
        let admits = |it: &mut Remote| admits_bytes(&mut it.limits.rpc_bytes, cx.now, bytes, rate);
        // The rate of calls limits small ones. Longer ones than the largest are refused by name, whatever the share is.
        let is_counted = (rpc::MAX_PAYLOAD + 1..=rpc::MAX_STREAM).contains(&bytes);
        !is_counted || self.is_bound(cx, id) || self.remotes.get_mut(id).is_some_and(admits)
    }

    /// Client: adds a refusal of a call by this participant, or by the server, and returns the next one that may be sent now.
    /// A timer is set for those that must wait.
    pub(crate) fn next_refusal(
        &mut self,
        cx: &mut Context,
        by: Option<&Identity>,
        added: Option<RpcRefusal>,
    ) -> Option<RpcRefusal> {
        let Refusals { sent, waiting } = match by {
            Some(id) => &mut self.remotes.get_mut(id)?.limits.rpc_refusals,
            None => &mut self.server_refusals,
        };
        let rate = cx.config.caps.requests.calls_per_second;
        waiting.extend(added.filter(|_| waiting.len() < rate as usize * REFUSED_WITHIN));
        if !waiting.is_empty() && !sent.admits(cx.now, rate) {
            cx.set_timer(Timer::RpcRefusals(by.cloned()), sent.rest(cx.now));
            return None;
        }
        waiting.pop_front()
    }

    /// Client: notes a call by RPC. Returns whether it is the first one in the present join.
    pub(crate) fn note_rpc(&mut self, id: &Identity) -> bool {
        self.remotes.get_mut(id).is_some_and(|it| !std::mem::replace(&mut it.join.other.calls, true))
    }

    /// Returns whether a request of RPC can be handled now. Unlike a Configuration, it proves nothing about its sender, so
    /// its join must be announced.
    pub(crate) fn place_rpc(&self, from: &Peer) -> SenderStanding {
        match self.get(from.identity()) {
            Some(remote) if remote.is_dead(from.sid()) => SenderStanding::Dead,
            Some(remote) if remote.is_announced_at(from.sid()) => SenderStanding::Current,
            _ => SenderStanding::Early,
        }
    }

    /// Client: pings the bound assistant because it sends nothing. One that calls by RPC alone is pinged so, once in each
    /// silence timeout.
    pub(crate) fn ping(&mut self, cx: &mut Context, delivery: &mut Delivery, bound: &Identity) {
        let Some(remote) = self.remotes.get_mut(bound) else { return };
        remote.pinged_at.get_or_insert(cx.now);
        if remote.is_reachable() && remote.lists(Feature::Ack) {
            return delivery.to(cx, self, bound).ping();
        }
        let (since, interval) = (remote.heard_at(), cx.config.times.silence.as_nanos().max(1));
        let due = cx.now.saturating_duration_since(since).as_nanos() / interval;
        self.ping_by_rpc(cx, delivery, bound, since, u32::try_from(due).unwrap_or(u32::MAX));
    }

    /// Assistant: checks the tools of the participants that are called by RPC.
    pub(crate) fn check_rpc_tools(cx: &Context) -> Result<(), RegisterError> {
        let limit = cx.config.caps.tools.count;
        for tools in cx.config.described.values() {
            let mut names = SortedSet::new();
            for tool in tools {
                let name = tool.name().clone();
                if name.is_reserved() || rpc::is_reserved(name.as_str()) {
                    return Err(RegisterError::Reserved { name });
                }
                if !tool.can_call_rpc_method() {
                    return Err(RegisterError::RpcMethod { name, method: tool.rpc_method().into() });
                }
                if cx.local.reserves(&name) || !names.insert(name.clone()) {
                    return Err(RegisterError::Duplicate { name });
                }
            }
            if tools.len() > limit {
                return Err(RegisterError::TooMany { count: tools.len(), limit });
            }
        }
        Ok(())
    }

    /// Pings a participant by RPC that should have been pinged this often since then, if it was not.
    pub(crate) fn ping_by_rpc(
        &mut self,
        cx: &mut Context,
        delivery: &mut Delivery,
        id: &Identity,
        since: Instant,
        due: u32,
    ) {
        let Some(remote) = self.remotes.get_mut(id) else { return };
        let other = &mut remote.join.other;
        if other.silent_since.replace(since) != Some(since) {
            other.pings = 0;
        }
        if other.pings >= due {
            return;
        }
        other.pings = due;
        let ping = cx.ids.next();
        if other.ids.len() == PINGS {
            other.ids.pop_front();
        }
        other.ids.push_back(ping.as_str().into());
        delivery.ping_by_rpc(cx, id, ping);
    }

    /// Assistant: returns whether this is the id of a ping of this participant.
    pub(crate) fn is_rpc_ping(&self, by: &Identity, id: &str) -> bool {
        self.get(by).is_some_and(|remote| remote.join.other.ids.iter().any(|it| **it == *id))
    }

    /// Assistant: returns whether this participant is sent no Configuration before its own arrives, because the author names
    /// tools for RPC: an app may show its user whatever packet arrives.
    pub(super) fn is_not_greeted(&self, cx: &Context, id: &Identity) -> bool {
        cx.config.described.contains_key(id)
            && !cx.config.admitted.contains(id)
            && self.get(id).is_some_and(|it| it.present_instance().is_none())
    }

    /// Assistant: offers the tools of a participant that is called by RPC. Returns whether it did.
    pub(crate) fn offer_described(&mut self, cx: &mut Context, id: &Identity) -> bool {
        let Some(remote) = self.remotes.get_mut(id) else { return false };
        if remote.called_by_rpc(cx).is_none() || remote.is_registered() {
            return false;
        }
        let named = cx.config.described.get(id).into_iter().flatten();
        let tools: Vec<_> = named.filter(|tool| !cx.local.reserves(tool.name())).cloned().collect();
        remote.pair.offer = OfferState::Registered;
        if remote.tools != tools {
            remote.tools = tools;
            cx.event(Event::ToolsChanged { owner: id.clone() });
        }
        self.rank(id);
        true
    }

    /// Assistant: withdraws those tools, because the participant has shown an instance. It registers its own.
    pub(crate) fn withdraw_described(&mut self, cx: &mut Context, id: &Identity) {
        if cx.config.described.contains_key(id) && self.get(id).is_some_and(Remote::is_registered) {
            self.forget_registration(cx, id);
        }
    }
}
