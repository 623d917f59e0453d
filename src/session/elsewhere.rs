//! Clients that listen to another assistant: how they say so, and what a caller reads of it (`wire.md`, section 4).

use std::time::Instant;

use super::{Session, codec::Incoming, handshake::was_long_ago, outbound::Call, peer::Feature, peer::Remote};
use crate::{
    link::Identity,
    tool::{CallError, ToolName},
};

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
        let clients = if *tool == *ToolName::ECHO { Vec::new() } else { self.elsewhere(self.wanted(call)) };
        if clients.is_empty() {
            CallError::UnknownTool { tool }
        } else {
            CallError::NotBound { tool, clients }
        }
    }

    /// Assistant: the clients that shook hands with us and offer us nothing, not even an empty list: they listen
    /// to somebody else. Only this one, if one is wanted.
    fn elsewhere(&self, wanted: Option<&Identity>) -> Vec<Identity> {
        let listens_elsewhere = |id: &Identity, remote: &Remote| {
            remote.is_crossed()
                && remote.lists(Feature::Register)
                && !remote.pair.registered
                && self.is_admitted(id, remote)
        };
        let peers = self.peers.iter().filter(|(id, _)| wanted.is_none_or(|wanted| wanted == *id));
        peers.filter(|(id, remote)| listens_elsewhere(id, remote)).map(|(id, _)| id.clone()).collect()
    }
}
