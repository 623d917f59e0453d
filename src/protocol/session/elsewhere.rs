//! Why a call finds nobody to run it, and how clients say that they listen to another assistant (`wire.md`, section 4).

use std::time::{Duration, Instant};

use super::{
    CallKey, Session,
    codec::Incoming,
    handshake::was_long_ago,
    outbound::Call,
    peer::{Feature, Remote, SETTLED},
};
use crate::{
    tool::{
        CallError, NotAdmitted, NotOffered, ToolName,
        not_offered::{NAMES_SHOWN, most_alike},
    },
    transport::{Identity, Role},
};

/// The most names that a misspelled one is compared with.
const COMPARED: usize = 1024;

impl Session {
    /// Client: an assistant that our author did not name shakes hands. It is told that we are here, and never
    /// of our tools, so that its caller need not guess why we are silent.
    pub(super) fn decline(&mut self, now: Instant, id: &Identity, incoming: &Incoming) {
        let Some(remote) = self.peers.get(id) else { return };
        let due = self.may_be_assistant(id, remote)
            && incoming.instance().is_some()
            && !self.is_other_room(incoming.conversation())
            && was_long_ago(now, remote.pair.greeted_at);
        if !due {
            return;
        }
        if let Some(remote) = self.peers.get_mut(id) {
            remote.pair.heard = true; // else it would repeat itself
        }
        self.send_configuration(now, id);
    }

    /// Assistant: why a call found nobody to ask.
    pub(super) fn nobody_for(&self, call: &Call) -> CallError {
        if self.muted {
            return CallError::NotAllowed;
        }
        let tool = call.tool.clone();
        let wanted = self.wanted(call);
        let clients = if *tool == *ToolName::ECHO { Vec::new() } else { self.elsewhere(wanted) };
        if !clients.is_empty() {
            return CallError::NotBound { tool, clients };
        }
        let why = match wanted {
            Some(owner) => self.why_not(&tool, owner),
            None => self.why_nobody(&tool),
        };
        CallError::unknown_tool(&tool, why)
    }

    /// Assistant: why this participant was not asked to run a tool.
    pub(super) fn why_not(&self, tool: &str, owner: &Identity) -> NotOffered {
        let Some(remote) = self.peers.get(owner).filter(|remote| remote.is_here()) else {
            let mut here: Vec<_> = self.present().cloned().collect();
            let more = here.len().saturating_sub(NAMES_SHOWN);
            here.truncate(NAMES_SHOWN);
            return match here.is_empty() {
                true => NotOffered::EmptyRoom { room: self.config.room.as_str().into() },
                false => NotOffered::NotHere { owner: owner.clone(), here, more },
            };
        };
        // One that said nothing is still to be asked as a plain peer, whatever its token says.
        let observes = remote.who.as_ref().is_some_and(|who| who.token_role() == Some(Role::Observer));
        let refusal = self.refusal_of(owner, remote).filter(|_| !remote.pair.plain);
        if let Some(why) = refusal.filter(|_| remote.knocked || observes) {
            return not_admitted(tool, owner, remote, why);
        }
        if !remote.pair.registered && !remote.pair.plain {
            return self.not_ready(vec![owner.clone()]);
        }
        let similar = most_alike(tool, remote.tools.iter().map(|it| it.name().as_str())).map(Into::into);
        NotOffered::NoSuchTool { owner: Some(owner.clone()), similar }
    }

    /// Assistant: why nobody was asked to run a tool.
    fn why_nobody(&self, tool: &str) -> NotOffered {
        let refused = self
            .peers
            .iter()
            .filter(|(_, it)| it.is_here())
            .filter_map(|(id, it)| Some((id, it, self.refusal_of(id, it)?)));
        let refused: Vec<_> = refused.collect();
        let offering =
            refused.iter().find(|(_, it, _)| it.refused_tools.iter().any(|name| name.as_str() == tool));
        if let Some((id, remote, why)) = offering {
            return not_admitted(tool, id, remote, why.clone());
        }
        if self.present().next().is_none() {
            return NotOffered::EmptyRoom { room: self.config.room.as_str().into() };
        }
        let mut owners: Vec<_> = self
            .peers
            .iter()
            .filter(|(id, it)| it.may_register() && self.is_admitted(id, it))
            .map(|(id, _)| id.clone())
            .collect();
        owners.truncate(NAMES_SHOWN);
        if !owners.is_empty() {
            return self.not_ready(owners);
        }
        let known = self.tools.iter().chain(self.peers.values().flat_map(|it| &it.tools));
        let known = known.take(COMPARED).map(|it| it.name().as_str());
        let similar: Option<Box<str>> = most_alike(tool, known).map(Into::into);
        // It asked to be a client, and may have been about to offer the tool.
        match refused
            .into_iter()
            .find(|(_, it, _)| similar.is_none() && it.knocked && it.refused_tools.is_empty())
        {
            Some((id, remote, why)) => not_admitted(tool, id, remote, why),
            None => NotOffered::NoSuchTool { owner: None, similar },
        }
    }

    /// Assistant: calls that wait for a registration make sure that the clients that may send one are alive.
    pub(super) fn probe(&mut self, now: Instant, key: CallKey) {
        let Some(call) = self.calls.get(&key) else { return };
        for id in self.unregistered(self.wanted(call)) {
            self.probe_one(now, &id);
        }
    }

    pub(super) fn probe_one(&mut self, now: Instant, id: &Identity) {
        let silence = self.config.times.silence;
        let Some(remote) = self.peers.get_mut(id) else { return };
        let due = remote.pair.probed_at.is_none_or(|at| now.saturating_duration_since(at) >= silence);
        // What is heard sooner proves nothing: its registration may still be on its way.
        let tells = remote.pair.crossed_at.is_some_and(|at| now.saturating_duration_since(at) >= SETTLED);
        if due && tells && !remote.pair.settled && remote.lists(Feature::Ack) {
            remote.pair.probed_at = Some(now);
            self.ping(id);
        }
    }

    /// Assistant: how long a registration may still be on its way that a call waits for, or the proof that its sender
    /// lives and sends none.
    pub(super) fn registration_is_due(&self, now: Instant, key: CallKey) -> Option<Duration> {
        let left = |id: &Identity| {
            let pair = &self.peers.get(id)?.pair;
            let since = now.saturating_duration_since(pair.crossed_at?);
            let patience = if since < SETTLED { SETTLED } else { SETTLED * 2 };
            patience.checked_sub(since).filter(|left| !pair.settled && !left.is_zero())
        };
        let wanted = self.wanted(self.calls.get(&key)?);
        self.unregistered(wanted).iter().filter_map(left).max()
    }

    /// Assistant: the clients that shook hands and have not registered: only this one, if one is wanted.
    pub(super) fn unregistered(&self, wanted: Option<&Identity>) -> Vec<Identity> {
        let is_it = |id: &Identity, remote: &Remote| {
            remote.is_crossed()
                && remote.lists(Feature::Register)
                && !remote.pair.registered
                && self.is_admitted(id, remote)
        };
        let peers = self.peers.iter().filter(|(id, _)| wanted.is_none_or(|wanted| wanted == *id));
        peers.filter(|(id, remote)| is_it(id, remote)).map(|(id, _)| id.clone()).collect()
    }

    /// Assistant: the clients that shook hands with us, live, and offer us nothing, not even an empty list: they
    /// listen to somebody else. Only this one, if one is wanted. One that was not heard since its registration is
    /// due proves nothing.
    pub(super) fn elsewhere(&self, wanted: Option<&Identity>) -> Vec<Identity> {
        let mut clients = self.unregistered(wanted);
        clients.retain(|id| self.peers.get(id).is_some_and(|remote| remote.pair.settled));
        clients
    }

    /// The participants that are in the room.
    fn present(&self) -> impl Iterator<Item = &Identity> {
        self.peers.iter().filter(|(_, remote)| remote.is_here()).map(|(id, _)| id)
    }

    fn not_ready(&self, owners: Vec<Identity>) -> NotOffered {
        let known = self.unknown_until.zip(self.reliable.now).is_none_or(|(until, now)| now >= until);
        NotOffered::NotReady { owners, unannounced: !known }
    }
}

fn not_admitted(tool: &str, id: &Identity, remote: &Remote, why: NotAdmitted) -> NotOffered {
    let offers = remote.refused_tools.iter().any(|name| name.as_str() == tool);
    NotOffered::NotAdmitted { client: id.clone(), offers, why }
}
