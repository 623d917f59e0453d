//! Explains why no participant runs a call (`wire.md`, section 4.6).

use std::time::Duration;

use super::{Call, CallKey, Core, Outgoing, Remote, SETTLED};
use crate::{
    protocol::session::recipients::Feature,
    tool::{
        CallError, NotAdmitted, NotAssistant, NotOffered, ToolName,
        not_offered::{NAMES_SHOWN, most_alike},
    },
    transport::{Identity, Participant},
};

/// The most tool names that a misspelled one is compared with.
const COMPARED: usize = 1024;

impl Outgoing {
    /// Returns the error of a call that found no owner.
    pub(super) fn no_owner_error(&self, core: &Core, call: &Call) -> CallError {
        match &call.declined {
            Some((owner, _)) => {
                CallError::unknown_tool(&call.tool, NotOffered::Declined { owner: owner.clone() })
            }
            None => why_nobody(core, &call.tool, wanted(core, call)),
        }
    }

    /// Pings the clients that may still register the tool that a call waits for.
    pub(super) fn probe(&self, core: &mut Core, key: CallKey) {
        let Some(call) = self.calls.get(&key) else { return };
        for id in unregistered(core, wanted(core, call)) {
            core.peers.probe(&mut core.cx, &mut core.delivery, &id);
        }
    }

    /// Returns how much longer to wait for a registration in transit, or for proof that its sender is alive and does
    /// not register.
    pub(super) fn registration_is_due(&self, core: &Core, key: CallKey) -> Option<Duration> {
        let left = |id: &Identity| {
            let remote = core.peers.get(id)?;
            let since = core.cx.now.saturating_duration_since(remote.crossed_at()?);
            let patience = if since < SETTLED { SETTLED } else { SETTLED * 2 };
            patience.checked_sub(since).filter(|left| !remote.is_settled() && !left.is_zero())
        };
        let wanted = wanted(core, self.calls.get(&key)?);
        unregistered(core, wanted).iter().filter_map(left).max()
    }
}

/// Returns the error of a call of a tool that nobody offers, or not the participant that is wanted.
pub(crate) fn why_nobody(core: &Core, tool: &str, wanted: Option<&Identity>) -> CallError {
    if core.cx.local.cannot_publish() {
        return CallError::NotAllowed;
    }
    let clients = if tool == ToolName::ECHO { Vec::new() } else { not_bound(core, wanted) };
    if !clients.is_empty() {
        // A client asks the bearer of a departed assistant's identity for its Configuration before it knows its token.
        return match NotAssistant::of(&core.cx.local.participant) {
            Some(why) => CallError::unknown_tool(tool, not_accepted(core, clients, why)),
            None => CallError::NotBound { tool: tool.into(), clients, assistants: other_assistants(core) },
        };
    }
    let why = match wanted {
        Some(owner) => why_not(core, tool, owner),
        None => why_no_owner(core, tool),
    };
    CallError::unknown_tool(tool, why)
}

/// Returns the other participants in the room that clients may have bound.
pub(super) fn other_assistants(core: &Core) -> Box<[Identity]> {
    let is_assistant = |remote: &Remote| remote.description().is_some_and(Participant::is_eligible_assistant);
    let others = core.peers.present().filter(|(_, remote)| is_assistant(remote));
    others.map(|(id, _)| id.clone()).take(NAMES_SHOWN).collect()
}

/// Returns the owner that the call names, or that a pin of its tool names.
pub(super) fn wanted<'a>(core: &'a Core, call: &'a Call) -> Option<&'a Identity> {
    call.named.as_ref().or_else(|| core.cx.config.pins.get(&*call.tool))
}

/// Returns the reason why this participant was not sent a call of this tool.
pub(crate) fn why_not(core: &Core, tool: &str, owner: &Identity) -> NotOffered {
    let Some(remote) = core.peers.get(owner).filter(|remote| remote.is_here()) else {
        let mut here: Vec<_> = core.peers.present().map(|(id, _)| id.clone()).collect();
        let more = here.len().saturating_sub(NAMES_SHOWN);
        here.truncate(NAMES_SHOWN);
        return match here.is_empty() {
            true => NotOffered::EmptyRoom { room: core.cx.config.room.as_str().into() },
            false => NotOffered::NotHere { owner: owner.clone(), here, more },
        };
    };
    // A participant that has sent nothing is still called as a plain peer, whatever its token says.
    let refusal = core.peers.refusal_of(&core.cx, owner, remote).filter(|_| !remote.is_plain());
    if let Some(why) = refusal.filter(|_| remote.asked_for_admission() || remote.is_observer()) {
        return not_admitted(tool, owner, remote, why);
    }
    if !remote.is_registered() && (!remote.is_plain() || why_unheard(core, owner).is_some()) {
        return not_ready(core, vec![owner.clone()]);
    }
    if let Some(why) = remote.why_left_out(tool) {
        return NotOffered::LeftOut { owner: owner.clone(), why: why.into() };
    }
    let similar = most_alike(tool, remote.tools().iter().map(|it| it.name().as_str())).map(Into::into);
    NotOffered::NoSuchTool { owner: Some(owner.clone()), similar }
}

/// Returns the clients that completed the handshake but have not registered. With `wanted`, only that client is
/// considered.
pub(crate) fn unregistered(core: &Core, wanted: Option<&Identity>) -> Vec<Identity> {
    let is_it = |id: &Identity, remote: &Remote| {
        remote.is_crossed()
            && remote.lists(Feature::Register)
            && !remote.is_registered()
            && core.peers.is_admitted(&core.cx, id, remote)
    };
    let peers = core.peers.iter().filter(|(id, _)| wanted.is_none_or(|wanted| wanted == *id));
    peers.filter(|(id, remote)| is_it(id, remote)).map(|(id, _)| id.clone()).collect()
}

/// Returns the clients that completed the handshake and are alive, but have registered nothing, not even an empty list.
/// They are bound to another assistant.
///
/// With `wanted`, only that client is considered. A client that has sent nothing since its registration was due is left
/// out.
pub(crate) fn not_bound(core: &Core, wanted: Option<&Identity>) -> Vec<Identity> {
    let is_settled = |id: &Identity| core.peers.get(id).is_some_and(Remote::is_settled);
    unregistered(core, wanted).into_iter().filter(is_settled).collect()
}

/// Returns why no packets of this participant arrive, if that is known.
pub(super) fn why_unheard(core: &Core, id: &Identity) -> Option<NotOffered> {
    let who = core.peers.get(id).and_then(Remote::description);
    let unreadable = || Some(NotOffered::Unreadable { by: id.clone(), why: core.cx.unreadable(id)? });
    let is_mute = who.is_some_and(|who| !who.may_publish_data());
    is_mute.then(|| NotOffered::MayNotSend { by: id.clone() }).or_else(unreadable)
}

/// Returns the reason why no participant was sent a call of this tool.
fn why_no_owner(core: &Core, tool: &str) -> NotOffered {
    let peers = &core.peers;
    let refused = peers.present().filter_map(|(id, it)| Some((id, it, peers.refusal_of(&core.cx, id, it)?)));
    let refused: Vec<_> = refused.collect();
    let offers = |it: &Remote| it.refused_tools().iter().any(|name| name.as_str() == tool);
    if let Some((id, remote, why)) = refused.iter().find(|(_, it, _)| offers(it)) {
        return not_admitted(tool, id, remote, why.clone());
    }
    if peers.present().next().is_none() {
        return NotOffered::EmptyRoom { room: core.cx.config.room.as_str().into() };
    }
    let may_offer = |id: &Identity, it: &Remote| it.may_register() && peers.is_admitted(&core.cx, id, it);
    let owners = peers.iter().filter(|(id, it)| may_offer(id, it));
    let owners: Vec<_> = owners.map(|(id, _)| id.clone()).take(NAMES_SHOWN).collect();
    if !owners.is_empty() {
        return not_ready(core, owners);
    }
    let left_out = peers.present().find_map(|(id, it)| Some((id, it.why_left_out(tool)?)));
    if let Some((owner, why)) = left_out {
        return NotOffered::LeftOut { owner: owner.clone(), why: why.into() };
    }
    let known = core.cx.local.tools.iter().chain(peers.iter().flat_map(|(_, it)| it.tools()));
    let known = known.take(COMPARED).map(|it| it.name().as_str());
    let similar: Option<Box<str>> = most_alike(tool, known).map(Into::into);
    // A participant that asked to be a client may have been about to offer the tool.
    let asked = |it: &Remote| similar.is_none() && it.asked_for_admission() && it.refused_tools().is_empty();
    match refused.into_iter().find(|(_, it, _)| asked(it)) {
        Some((id, remote, why)) => not_admitted(tool, id, remote, why),
        None => NotOffered::NoSuchTool { owner: None, similar },
    }
}

/// Returns the reason why these participants have not registered tools. A client that does not accept the local
/// participant as an assistant never sends a Configuration.
fn not_ready(core: &Core, owners: Vec<Identity>) -> NotOffered {
    if let Some(why) = owners.iter().find_map(|id| why_unheard(core, id)) {
        return why;
    }
    // Until the room must have announced the local participant to the others.
    let unannounced = core.cx.local.unannounced_until.is_some_and(|until| core.cx.now < until);
    let has_answered = |id: &Identity| core.peers.get(id).is_some_and(Remote::is_crossed);
    match NotAssistant::of(&core.cx.local.participant) {
        Some(why) if !unannounced && !owners.iter().any(has_answered) => not_accepted(core, owners, why),
        _ => NotOffered::NotReady { owners, unannounced },
    }
}

fn not_accepted(core: &Core, by: Vec<Identity>, why: NotAssistant) -> NotOffered {
    NotOffered::NotAccepted { by, caller: core.cx.local.identity().clone(), why }
}

fn not_admitted(tool: &str, id: &Identity, remote: &Remote, why: NotAdmitted) -> NotOffered {
    let offers = remote.refused_tools().iter().any(|name| name.as_str() == tool);
    NotOffered::NotAdmitted { client: id.clone(), offers, why }
}
