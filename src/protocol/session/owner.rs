//! Who shall run a call: chosen before it is sent (`wire.md`, section 4).

use std::time::{Duration, Instant};

use super::{
    CallKey, Session, Timer,
    codec::Incoming,
    outbound::Call,
    peer::Remote,
    prompts::{is_prompt, takes_prompts},
};
use crate::{
    protocol::frame::Message,
    tool::{CallError, Tool, ToolName},
    transport::{Identity, Role},
};

/// What the choice of an owner came to.
pub(super) enum Choice {
    /// This one is asked.
    Ask(Identity),
    /// Nobody yet.
    Wait,
    /// Nobody ever.
    Fail(CallError),
}

impl Session {
    pub(super) fn choose(&self, tool: &str, named: Option<&Identity>) -> Choice {
        match named.or_else(|| self.config.pins.get(tool)) {
            Some(owner) => self.choose_named(tool, owner),
            None => self.choose_any(tool),
        }
    }

    /// Calls that wait look again.
    pub(super) fn look_for_owners(&mut self, now: Instant) {
        self.registrations += 1;
        let waiting: Vec<_> = self.calls.waiting().map(|(key, _)| key).collect();
        for key in waiting {
            let Some(call) = self.calls.get(&key) else { continue };
            match self.choose(&call.tool, call.named.as_ref()) {
                Choice::Wait => {}
                Choice::Fail(error) => self.settle_call(now, key, Err(error)),
                Choice::Ask(owner) => self.ask_owner(now, key, &owner),
            }
        }
    }

    pub(super) fn no_owner(&mut self, now: Instant, key: CallKey) {
        if let Some(call) = self.calls.get(&key).filter(|call| call.is_waiting()) {
            if now < call.waits_until {
                let left = call.waits_until.saturating_duration_since(now);
                self.probe(now, key);
                return self.timers.set(now, Timer::OwnerWait(key), left);
            }
            if let Some(left) = self.registration_is_due(now, key) {
                self.probe(now, key);
                return self.timers.set(now, Timer::OwnerWait(key), left);
            }
            let error = match &call.asked_before {
                Some(owner) => CallError::Lost { owner: owner.clone() },
                None => self.nobody_for(call),
            };
            self.settle_call(now, key, Err(error));
        }
    }

    /// If a call waits for this very participant, it is greeted, and judged by its silence.
    pub(super) fn expect(&mut self, now: Instant, id: &Identity) {
        if !self.is_client() && (self.expected.contains_key(id) || self.is_wanted_by_a_call(id)) {
            self.expect_wanted(now, id);
        }
    }

    /// Whether a call waits for this very participant.
    fn is_wanted_by_a_call(&self, id: &Identity) -> bool {
        self.calls.waiting().any(|(_, call)| self.wanted(call) == Some(id))
    }

    /// The same of a participant for which a call is known to wait.
    pub(super) fn expect_wanted(&mut self, now: Instant, id: &Identity) {
        let Some(remote) = self.peers.get_mut(id) else { return };
        if !remote.is_here() || remote.pair.heard {
            return;
        }
        remote.named = true;
        self.greet(now, id);
        let Some(remote) = self.peers.get(id) else { return };
        let unknown = self.unknown_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        let greeted = remote.pair.greeted_at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        // One millisecond more than our Configuration's own repetition.
        let wait = self.config.times.silence.saturating_sub(greeted).saturating_add(Duration::from_millis(1));
        if !self.timers.is_set(&Timer::Silent(id.clone())) {
            self.timers.set(now, Timer::Silent(id.clone()), wait.max(unknown));
        }
    }

    /// Others know us now: who is silent from here on is silent.
    pub(super) fn judge_silence(&mut self, now: Instant) {
        let silent: Vec<_> = self.peers.keys().cloned().collect();
        for id in silent {
            if self.timers.is_set(&Timer::Silent(id.clone())) {
                self.timers.cancel(&Timer::Silent(id.clone()));
                self.expect(now, &id);
            }
        }
    }

    /// A participant that a caller named did not answer our Configuration: it is asked as a plain peer.
    pub(super) fn silent(&mut self, now: Instant, id: &Identity) {
        let wanted = self.expected.contains_key(id) || self.is_wanted_by_a_call(id);
        let Some(remote) = self.peers.get_mut(id) else { return };
        let silent = remote.is_here() && !remote.pair.heard && !remote.pair.left && remote.instance.is_none();
        if wanted && silent {
            // What waits for its Configuration shows that it may speak our form: it has as long after the last of ours.
            let is_speech = |it: &Incoming| !matches!(it.message, Message::ToolUseResult(_));
            let since = remote.pair.greeted_at.map(|at| now.saturating_duration_since(at));
            let left = since.and_then(|since| self.config.times.silence.checked_sub(since));
            let left = left.filter(|left| !left.is_zero() && remote.pair.waiting.iter().any(is_speech));
            if let Some(left) = left.filter(|_| !std::mem::replace(&mut remote.pair.silence_extended, true)) {
                return self.timers.set(now, Timer::Silent(id.clone()), left);
            }
            remote.pair.plain = true;
            self.look_for_owners(now);
        }
    }

    /// Calls that hold a place at this owner: open, or stopped without its knowing.
    pub(super) fn places_at(&self, owner: &Identity) -> usize {
        let instance = self.peers.get(owner).and_then(|remote| remote.instance.as_ref());
        self.calls.count_of(owner) + self.past.places_at(owner, instance)
    }

    pub(super) fn wanted<'a>(&'a self, call: &'a Call) -> Option<&'a Identity> {
        call.named.as_ref().or_else(|| self.config.pins.get(&*call.tool))
    }

    fn choose_named(&self, tool: &str, owner: &Identity) -> Choice {
        let unknown = || Choice::Fail(CallError::unknown_tool(tool, self.why_not(tool, owner)));
        let Some(remote) = self.peers.get(owner) else { return Choice::Wait };
        if remote.who.as_ref().is_some_and(|who| who.token_role() == Some(Role::Observer)) {
            return unknown();
        }
        if !remote.is_reachable() {
            return Choice::Wait;
        }
        if (remote.pair.plain && !is_prompt(tool)) || tool == ToolName::ECHO || offers(remote, tool) {
            return Choice::Ask(owner.clone());
        }
        if remote.pair.registered || remote.pair.plain { unknown() } else { Choice::Wait }
    }

    fn choose_any(&self, tool: &str) -> Choice {
        let offers = |remote: &Remote| {
            if tool == ToolName::ECHO { !remote.pair.plain } else { offers(remote, tool) }
        };
        let mut owners: Vec<_> = self
            .peers
            .iter()
            .filter(|(id, remote)| remote.is_reachable() && offers(remote) && self.is_admitted(id, remote))
            .map(|(id, _)| id.clone())
            .collect();
        match owners.len() {
            0 => Choice::Wait,
            1 => Choice::Ask(owners.remove(0)),
            _ => match self.chosen(Some(tool), &owners) {
                Some(owner) => Choice::Ask(owner),
                None => Choice::Fail(CallError::Ambiguous { tool: tool.into(), owners }),
            },
        }
    }
}

/// Whether it offers the tool in this join.
fn offers(remote: &Remote, tool: &str) -> bool {
    if is_prompt(tool) {
        return takes_prompts(remote);
    }
    remote.pair.registered && remote.tools.iter().any(|it: &Tool| it.name().as_str() == tool)
}
