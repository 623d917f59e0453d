//! Decides how participants are called: by frames, with or without the handshake, or by LiveKit's RPC (`wire.md`, section
//! 10.2).

use super::{Context, Peers, Remote, remote::OfferState};
use crate::{
    clock::Instant,
    protocol::{rpc, session::Event},
    sorted::SortedSet,
    tool::{Reach, RegisterError},
    transport::{Identity, Participant},
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
        self.is_for_rpc(cx, who.identity()).then_some(who)
    }

    /// Returns whether it is called by RPC, in whatever join: the author names it, and it has not shown an instance.
    pub(crate) fn is_for_rpc(&self, cx: &Context, id: &Identity) -> bool {
        // The process of an earlier join counts until its grace period is over: it shows itself soon after it has rejoined.
        rpc::IS_BUILT && cx.config.rpc_tools.contains_key(id) && !self.has_process()
    }
}

/// The pings whose answers are recognized.
const PINGS: usize = 3;

impl Peers {
    /// Assistant: checks the tools of the participants that are called by RPC.
    pub(crate) fn check_rpc_tools(cx: &Context) -> Result<(), RegisterError> {
        let limit = cx.config.caps.tools.count;
        for tools in cx.config.rpc_tools.values() {
            let mut names = SortedSet::new();
            for tool in tools {
                let name = tool.name().clone();
                if name.is_reserved() || rpc::is_reserved(name.as_str()) {
                    return Err(RegisterError::Reserved { name });
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

    /// Assistant: returns the id of the next ping of an owner that should have been pinged this often since then, if it was
    /// not.
    pub(crate) fn next_rpc_ping(
        &mut self,
        cx: &mut Context,
        id: &Identity,
        since: Instant,
        due: u32,
    ) -> Option<String> {
        let pings = &mut self.remotes.get_mut(id)?.join.pings;
        if pings.since.replace(since) != Some(since) {
            pings.sent = 0;
        }
        if pings.sent >= due {
            return None;
        }
        pings.sent = due;
        let ping = cx.ids.next();
        if pings.ids.len() == PINGS {
            pings.ids.pop_front();
        }
        pings.ids.push_back(ping.as_str().into());
        Some(ping)
    }

    /// Assistant: returns whether this is the id of a ping of this participant.
    pub(crate) fn is_rpc_ping(&self, by: &Identity, id: &str) -> bool {
        self.get(by).is_some_and(|remote| remote.join.pings.ids.iter().any(|it| **it == *id))
    }

    /// Assistant: returns whether this participant is sent no Configuration before its own arrives, because the author names
    /// tools for RPC: an app may show its user whatever packet arrives.
    pub(super) fn is_not_greeted(&self, cx: &Context, id: &Identity) -> bool {
        let is_silent = |remote: &Remote| remote.present_instance().is_none();
        let is_app = rpc::IS_BUILT && cx.config.rpc_tools.contains_key(id);
        is_app && !cx.config.admitted.contains(id) && self.get(id).is_some_and(is_silent)
    }

    /// Assistant: offers the tools of a participant that is called by RPC. Returns whether it did.
    pub(crate) fn offer_rpc_tools(&mut self, cx: &mut Context, id: &Identity) -> bool {
        let Some(remote) = self.remotes.get_mut(id) else { return false };
        if remote.called_by_rpc(cx).is_none() || remote.is_registered() {
            return false;
        }
        let named = cx.config.rpc_tools.get(id).into_iter().flatten();
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
    pub(crate) fn withdraw_rpc_tools(&mut self, cx: &mut Context, id: &Identity) {
        if cx.config.rpc_tools.contains_key(id) && self.get(id).is_some_and(Remote::is_registered) {
            self.forget_registration(cx, id);
        }
    }
}
