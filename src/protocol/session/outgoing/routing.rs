//! Chooses the participant that runs a call, before the call is sent (`wire.md`, section 4.6).

use super::{
    Call, CallKey, Core, Outgoing, Remote, Selected, Timer,
    fallback::preferring_client,
    not_offered::{wanted, why_not, why_unheard},
};
use crate::{
    tool::{CallError, LossCause, Reach, ToolName},
    transport::Identity,
};

/// The result of choosing an owner.
pub(super) enum Choice {
    /// Send the call to this participant.
    Ask(Identity),
    /// No participant is available yet.
    Wait,
    /// The author's function selects one of these participants.
    Select(Vec<Identity>),
    /// No participant can become available.
    Fail(CallError),
}

impl Outgoing {
    pub(super) fn choose(&self, core: &Core, tool: &str, named: Option<&Identity>) -> Choice {
        match named.or_else(|| core.cx.config.pins.get(tool)) {
            Some(owner) => self.choose_named(core, tool, owner),
            None => self.choose_any(core, tool),
        }
    }

    /// Looks for owners of the waiting calls.
    pub(crate) fn look_for_owners(&mut self, core: &mut Core) {
        core.peers.note_change();
        let waiting: Vec<_> = self.calls.waiting().map(|(key, _)| key).collect();
        for key in waiting {
            let Some(call) = self.calls.get(&key).filter(|_| !self.selections.contains_key(&key)) else {
                continue;
            };
            let choice = self.choose(core, &call.tool, call.named.as_ref());
            self.apply_choice(core, key, choice);
        }
    }

    /// Applies the choice of an owner to a waiting call.
    fn apply_choice(&mut self, core: &mut Core, key: CallKey, choice: Choice) {
        match choice {
            Choice::Wait => {}
            Choice::Select(among) => self.ask_function(core, key, &among),
            Choice::Fail(error) => self.settle_call(core, key, Err(error)),
            Choice::Ask(owner) => self.ask_owner(core, key, &owner),
        }
    }

    /// Asks the author's function for the owner of a waiting call.
    pub(super) fn ask_function(&mut self, core: &mut Core, key: CallKey, among: &[Identity]) {
        let Some(call) = self.calls.get(&key) else { return };
        core.peers.ask_function(&mut core.cx, Some(key), Some(&call.tool), among);
        self.selections.insert(key, core.peers.joins(among));
    }

    /// Handles the answer of the author's function. If the owners, or their joins, have changed since and it named none
    /// that it was shown, the choice is made again.
    pub(crate) fn owner_selected(&mut self, core: &mut Core, key: CallKey, named: Option<Identity>) {
        let Some(asked) = self.selections.remove(&key) else { return };
        let Some(call) = self.calls.get(&key).filter(|call| call.is_waiting()) else { return };
        let choice = match self.choose(core, &call.tool, call.named.as_ref()) {
            Choice::Select(owners) => {
                let present = core.peers.joins(&owners);
                let is_join =
                    |named: &Identity| present.iter().any(|it| it.identity() == named && asked.contains(it));
                match named.filter(is_join) {
                    Some(named) => Choice::Ask(named),
                    // The function named nobody, or somebody in a join that it was not shown. Its answer was
                    // about other candidates than there are now, so it is asked again.
                    None if present != asked => Choice::Select(owners),
                    None => Choice::Fail(CallError::Ambiguous { tool: call.tool.clone(), owners }),
                }
            }
            other => other,
        };
        if let Some(tool) = preferring_client(core, call) {
            return self.run_or_send(core, key, &tool, choice);
        }
        if let Choice::Wait = choice {
            let left = call.waits_until.saturating_duration_since(core.cx.now);
            return self.await_owner(core, key, left);
        }
        self.apply_choice(core, key, choice);
    }

    pub(crate) fn no_owner(&mut self, core: &mut Core, key: CallKey) {
        if let Some(call) = self.calls.get(&key).filter(|call| call.is_waiting()) {
            if core.cx.now < call.waits_until {
                let left = call.waits_until.saturating_duration_since(core.cx.now);
                if call.declined.is_some() {
                    let choice = self.choose(core, &call.tool, call.named.as_ref());
                    core.cx.set_timer(Timer::OwnerWait(key), left);
                    return self.apply_choice(core, key, choice);
                }
                self.probe(core, key);
                return core.cx.set_timer(Timer::OwnerWait(key), left);
            }
            if let Some(left) = self.registration_is_due(core, key) {
                self.probe(core, key);
                return core.cx.set_timer(Timer::OwnerWait(key), left);
            }
            let error = match call.earlier.last() {
                Some(owner) => CallError::Lost { owner: owner.clone(), why: LossCause::Restarted },
                None => self.no_owner_error(core, call),
            };
            self.settle_call(core, key, Err(error));
        }
    }

    /// Greets a participant that a waiting call names and starts its timeout.
    pub(crate) fn expect(&mut self, core: &mut Core, id: &Identity) {
        if !core.cx.is_client() && self.is_wanted(core, id) {
            core.peers.expect(&mut core.cx, &mut core.delivery, id);
        }
    }

    /// Returns whether a call, or the application, waits for exactly this participant.
    fn is_wanted(&self, core: &Core, id: &Identity) -> bool {
        let waits = |(_, call): (CallKey, &Call)| wanted(core, call) == Some(id);
        self.expected.contains_key(id) || self.calls.waiting().any(waits)
    }

    /// Starts the timeouts of peers that have not answered. The server has announced the local participant, so they can
    /// answer from now on: whatever was sent before shows nothing.
    pub(crate) fn start_silence_timeouts(core: &mut Core) {
        for id in core.peers.ids() {
            if core.cx.timers.is_set(&Timer::Silent(id.clone())) {
                core.cx.timers.cancel(&Timer::Silent(id.clone()));
                core.cx.set_timer(Timer::Silent(id), core.cx.config.times.silence);
            }
        }
    }

    /// Handles a participant that a call waits for and that did not answer the local Configuration. It is called as a
    /// plain peer.
    pub(crate) fn handle_silence(&mut self, core: &mut Core, id: &Identity) {
        if self.is_wanted(core, id) && core.peers.time_out_silence(&mut core.cx, id) {
            self.look_for_owners(core);
        }
    }

    /// Returns the number of this owner's calls that count as open: open calls, and stopped calls without an
    /// acknowledged stop.
    pub(super) fn places_at(&self, core: &Core, owner: &Identity) -> usize {
        let instance = core.peers.get(owner).and_then(Remote::instance);
        self.calls.count_of(owner) + self.settled.places_at(core.cx.now, owner, instance)
    }

    fn choose_named(&self, core: &Core, tool: &str, owner: &Identity) -> Choice {
        let unknown = || Choice::Fail(CallError::unknown_tool(tool, why_not(core, tool, owner)));
        let Some(remote) = core.peers.get(owner) else { return Choice::Wait };
        if remote.is_observer() {
            return unknown();
        }
        let is_unheard = remote.is_plain() && why_unheard(core, owner).is_some();
        let Some(reach) = remote.reach(&core.cx).filter(|_| !is_unheard) else { return Choice::Wait };
        // A plain peer registers nothing, so only its answer shows whether it has the tool. It never answers
        // prompts.
        let may_have_it = match reach {
            Reach::Plain => !is_prompt(tool),
            Reach::Toolbridge => tool == ToolName::ECHO,
            _ => false,
        };
        if may_have_it || offers(remote, tool) {
            return Choice::Ask(owner.clone());
        }
        if remote.is_registered() || remote.is_plain() { unknown() } else { Choice::Wait }
    }

    fn choose_any(&self, core: &Core, tool: &str) -> Choice {
        let offers = |remote: &Remote| {
            // Every client of this protocol answers `bridge.echo` and none registers it (`wire.md`, section
            // 4.13).
            if tool == ToolName::ECHO { remote.is_crossed() } else { offers(remote, tool) }
        };
        let mut owners: Vec<_> = core
            .peers
            .iter()
            .filter(|(id, remote)| {
                let is_callable = remote.reach(&core.cx).is_some();
                is_callable && offers(remote) && core.peers.is_admitted(&core.cx, id, remote)
            })
            .map(|(id, _)| id.clone())
            .collect();
        match owners.len() {
            0 => Choice::Wait,
            1 => Choice::Ask(owners.remove(0)),
            _ => match core.peers.select(&core.cx, &owners) {
                Selected::Now(Some(owner)) => Choice::Ask(owner),
                Selected::Now(None) => Choice::Fail(CallError::Ambiguous { tool: tool.into(), owners }),
                Selected::ByFunction => Choice::Select(owners),
            },
        }
    }
}

/// Returns whether the participant offers the tool in this join.
fn offers(remote: &Remote, tool: &str) -> bool {
    if is_prompt(tool) {
        return remote.takes_prompts();
    }
    remote.is_registered() && remote.tool(tool).is_some()
}

/// Returns whether a name is a prompt's.
fn is_prompt(tool: &str) -> bool {
    ToolName::PROMPTS.contains(&tool)
}
