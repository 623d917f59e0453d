//! Checks of the rules: after each step, after the network's recovery, and at the end.

use crate::{
    room::Us,
    rules::{CallRecord, Ledger, Rule},
    schedule::{Action, Actor, Behavior, OWNER_WAIT, Offline, RECOVERY, RequestedTool},
    world::{OPEN, Program, World},
};

/// Calls with at least this timeout, in ms, must get a result if their tool returns.
const LONG_TIMEOUT: u64 = 60_000;

impl World<'_> {
    pub(crate) fn check_caps(&mut self, process: usize) {
        let it = &self.processes[process];
        let Program::Bridge(session) = &it.program else { return };
        let open = session.open_calls();
        let most = it
            .jobs
            .values()
            .map(|(.., caller)| it.jobs.values().filter(|(.., other)| other == caller).count())
            .max()
            .unwrap_or(0);
        let actor = it.actor;
        if open > 4 * OPEN + 2 {
            self.ledger.broken(Rule::Caps, format!("{actor} has {open} calls open"));
        }
        if matches!(actor, Actor::Client(_)) && most > OPEN {
            self.ledger.broken(Rule::Caps, format!("{actor} runs {most} tools for one caller"));
        }
    }

    /// Checks how many calls are open with one owner.
    pub(crate) fn check_open_per_owner(&mut self, process: usize, call: usize) {
        for owner in self.ledger.calls[call].owners.clone() {
            let open = self.ledger.calls.iter().filter(|it| {
                it.caller == process
                    && it.outcome.is_none()
                    && !it.detached
                    && it.owners.contains(&owner)
                    && !self.ledger.runs_at(it.id.as_ref(), process) // the assistant runs it after no client claimed it
                    // An app that has no such method yet has answered it, and the call waits to be made again.
                    && (it.tool != Some(RequestedTool::OfApp) || it.behavior != Behavior::BadArguments)
            });
            let open = open.count();
            if open > OPEN && owner.as_str() != "observer" {
                self.ledger.broken(Rule::Caps, format!("{open} calls are open with {owner}"));
            }
        }
    }

    /// Checks that the handlers of calls that settled before the network's recovery were aborted.
    pub(crate) fn check_aborted(&mut self, callers_too: bool) {
        if self.schedule.network.stalls > 0 && self.schedule.actions.iter().any(|(_, action)| action.moves())
        {
            return; // the last frame of a process may arrive after its successor's first, and revert it for 4 s
        }
        let mut broken = None;
        for (id, start) in self.ledger.starts.iter().flat_map(|(id, all)| all.iter().map(move |it| (id, it)))
        {
            let Some(call) = self.ledger.by_id.get(id).map(|at| &self.ledger.calls[*at]) else { continue };
            if !start.running
                || (call.may_continue && call.cancelled)
                || !self.has_session(call.actor)
                || !self.has_session(self.processes[start.process].actor)
            {
                continue;
            }
            let caller = &self.processes[call.caller];
            let was_settled = call.outcome.as_ref().is_some_and(|(_, at)| *at < RECOVERY * 1_000);
            if (caller.alive && was_settled) || (!caller.alive && callers_too) {
                broken = Some(format!("{id:?} has settled as {:?}, and its tool still runs", call.outcome));
            }
        }
        if let Some(text) = broken {
            self.ledger.broken(Rule::HandlerAborted, text);
        }
    }

    /// Cancels the calls that are still open, and checks that none of them should have settled before.
    pub(crate) fn cancel_open(&mut self) {
        for actor in [Actor::Assistant, Actor::SecondAssistant] {
            for call in self.open_calls(actor) {
                if let Some((rule, text)) = self.should_have_ended(call) {
                    self.ledger.broken(rule, text);
                }
                self.cancels(call);
            }
        }
    }

    /// Returns why this call should not be open so long after the network's recovery.
    fn should_have_ended(&self, call: usize) -> Option<(Rule, String)> {
        let it = &self.ledger.calls[call];
        let call_text = format!("call {call} {:?} ({:?})", it.id, it.behavior);
        if it.detached || it.tool == Some(RequestedTool::OfApp) {
            return None; // an app that rejoins could be the same process
        }
        if !self.may_fail(it) {
            return Some((Rule::Unexplained, format!("{call_text} has no outcome long after recovery")));
        }
        let starts = it.id.as_ref().and_then(|id| self.ledger.starts.get(id))?;
        let gone = starts.iter().all(|start| !self.processes[start.process].alive);
        // Another instance, which lives, may have been asked again.
        let asked_again = it.id.as_ref().is_some_and(|id| {
            it.idempotent && self.ledger.was_delivered_to(id, |process| self.processes[process].alive)
        });
        let gone = gone && !starts.is_empty() && !asked_again && self.has_session(it.actor);
        gone.then(|| (Rule::InTime, format!("{call_text} is open, but the process that ran it is long gone")))
    }

    /// Makes new calls to each client; they must succeed.
    pub(crate) fn probe(&mut self, times: usize) {
        if times > 1
            && self.schedule.cast.plain_assistant
            && self.schedule.actions.iter().any(|(_, action)| action.moves())
        {
            return; // a plain assistant never stops the tools of its last join, and they count against the cap
        }
        let fits = (usize::from(self.schedule.cast.clients) + 1) * times <= 4 * OPEN;
        let app = (fits && self.current.contains_key(&Actor::App)).then_some(RequestedTool::OfApp);
        for tool in app.into_iter().cycle().take(times) {
            self.make_call(Actor::Assistant, tool, true, Behavior::Quick, 9_000, true);
        }
        for n in 1..=self.schedule.cast.clients {
            if !self.current.contains_key(&Actor::Client(n)) {
                continue;
            }
            for _ in 0..times {
                self.make_call(
                    Actor::Assistant,
                    RequestedTool::OfClient(n),
                    true,
                    Behavior::Quick,
                    9_000,
                    true,
                );
            }
        }
    }

    pub(crate) fn check_at_end(&mut self) {
        for process in 0..self.processes.len() {
            let it = &self.processes[process];
            if let Program::Bridge(session) = &it.program
                && it.alive
                && !session.is_drained()
            {
                let text = format!(
                    "{} has {} calls and {} jobs open, or a frame that was never acknowledged",
                    it.actor,
                    session.open_calls(),
                    session.open_jobs()
                );
                self.ledger.broken(Rule::Drained, text);
            }
        }
        let mut ledger = std::mem::take(&mut self.ledger);
        ledger.at_end(
            |process| self.processes[process].alive,
            |call| self.may_fail(call),
            |ledger, call, outcome| self.has_cause(ledger, call, outcome),
        );
        self.ledger = ledger;
    }

    /// Returns whether the conditions of this run allow this call to end without a result.
    fn may_fail(&self, call: &CallRecord) -> bool {
        let plain = !self.has_session(call.actor)
            || call.owners.iter().any(|owner| !self.has_session(actor_of(owner.as_str())));
        let network = &self.schedule.network;
        let rejoins = self.schedule.someone_rejoins();
        !self.schedule.is_calm()
            || call.tool == Some(RequestedTool::OfApp)
            || call.behavior.takes().is_none()
            || call.limit < LONG_TIMEOUT
            || call.consent
            || call.cancelled
            || network.stalls > 0
            || (rejoins && (plain || call.sent_plain))
            || (plain && network.unknown_senders)
            || (plain && !call.id.as_ref().is_some_and(|id| self.ledger.was_delivered(id)))
    }
}

/// Causes of failure in an undisturbed run: the tool, other open calls, or a participant that has not joined yet.
impl World<'_> {
    fn has_cause(&self, ledger: &Ledger, call: &CallRecord, outcome: &str) -> bool {
        let (Some(tool), true) = (call.tool, self.has_session(call.actor)) else { return true };
        let cast = &self.schedule.cast;
        let at_once = |other: &&CallRecord| other.caller == call.caller && overlap(call, other);
        let open = ledger.calls.iter().filter(at_once).count();
        let large = ledger.calls.iter().filter(at_once).filter(|it| it.behavior == call.behavior).count();
        let is_large = matches!(call.behavior, Behavior::Huge | Behavior::HugeRequest);
        let has_streams = cast.streams && cast.basic_client.is_none() && cast.plain_client.is_none();
        match outcome {
            "tool:odd" => matches!(call.behavior, Behavior::Fails | Behavior::Panics | Behavior::FailsAsBusy),
            "tool:execution_error" => call.behavior == Behavior::Panics,
            "tool:invalid_parameters" => {
                call.behavior == Behavior::BadArguments || matches!(tool, RequestedTool::Prompt(_))
            }
            "tool:busy" => call.behavior == Behavior::FailsAsBusy,
            "tool:result_too_large" => call.behavior == Behavior::Huge && (!has_streams || large > 1),
            "too_large" => call.behavior == Behavior::HugeRequest && !has_streams,
            "ambiguous" => {
                matches!(tool, RequestedTool::Shared | RequestedTool::Echo(_) | RequestedTool::Prompt(_))
                    && cast.clients > 1
            }
            "too_many_open" => open > OPEN || (is_large && large > 1),
            "busy" => cast.rate_limited || open > OPEN || (is_large && large > 1),
            "not_delivered" => {
                self.schedule.someone_rejoins() && self.schedule.network.offline != Offline::Lost
            }
            "unknown_tool" | "not_bound" => self.has_no_owner(call, tool),
            outcome if outcome.starts_with("TooManyEqual") => open > OPEN,
            _ => false,
        }
    }

    /// Returns whether the current join of the tool's client was not yet announced to the caller, or so recently that
    /// the caller cannot know yet whether the client is a plain peer.
    pub(crate) fn owner_is_recent(&self, call: usize) -> bool {
        let call = &self.ledger.calls[call];
        let Some(RequestedTool::OfClient(owner)) = call.tool else { return false };
        let caller = self.processes[call.caller].join;
        let (Some(caller), Some(owner)) = (caller, self.room.listed_as(&Actor::Client(owner).to_string()))
        else {
            return false;
        };
        let announced = self.room.joins[caller].announced.get(&owner);
        announced.is_none_or(|at| self.room.now < at + PLAIN_AFTER)
    }

    /// Returns whether no participant of the run offers this tool, or none did so in time.
    fn has_no_owner(&self, call: &CallRecord, tool: RequestedTool) -> bool {
        let cast = &self.schedule.cast;
        let owner = match tool {
            RequestedTool::Unknown | RequestedTool::OfApp => return true,
            RequestedTool::Shared | RequestedTool::AssistantOnly | RequestedTool::Either => return false,
            RequestedTool::ConsentOnce | RequestedTool::ConsentEachTime if !cast.consent => return true,
            RequestedTool::Prompt(n) if !cast.consent || cast.plain_client == Some(n) => return true,
            RequestedTool::Echo(n) if cast.plain_client == Some(n) => return true,
            RequestedTool::OfClient(n) | RequestedTool::Prompt(n) | RequestedTool::Echo(n) => {
                Actor::Client(n)
            }
            RequestedTool::Idempotent | RequestedTool::ConsentOnce | RequestedTool::ConsentEachTime => {
                Actor::Client(1)
            }
        };
        if !self.has_session(owner) && !matches!(tool, RequestedTool::OfClient(_)) {
            return true;
        }
        // A plain owner sends nothing before it receives a request, so its caller knows it from the room only.
        if !self.has_session(owner) && call.owner_is_recent {
            return true;
        }
        // Both must join, be announced to each other and complete the handshake. Each rejoin repeats that.
        let network = &self.schedule.network;
        let repeats = if network.unknown_senders || network.configurations_lost > 0 { 4_000 } else { 0 };
        let settles = 200 + network.announcements + 4 * network.jitter + repeats;
        let moved = |actor: Actor| {
            let actions = self.schedule.actions.iter();
            actions.filter(move |(_, action)| action.brings(actor)).map(|(at, _)| *at)
        };
        let asked = call.at / 1_000;
        let waits = OWNER_WAIT.min(call.limit);
        // If its Configurations are lost, an unannounced join is known when it is announced, and a participant without
        // signaling gets that late.
        let waits_for_signaling = |who: Actor, other: Actor| {
            self.schedule.actions.iter().any(|(at, action)| {
                let Action::SignalingDown { actor, lasts } = action else { return false };
                let until = at + lasts;
                *actor == who
                    && asked < until + 1_000 + settles
                    && moved(other).any(|moved| {
                        *at <= moved + network.announcements && moved <= until.min(asked + waits)
                    })
            })
        };
        moved(call.actor)
            .chain(moved(owner))
            .any(|at| at <= asked + waits && asked + waits < at + 1_000 + settles)
            || (network.configurations_lost > 0
                && (waits_for_signaling(owner, call.actor) || waits_for_signaling(call.actor, owner)))
            || !self
                .schedule
                .actions
                .iter()
                .any(|(at, action)| *action == Action::Enters(owner) && *at <= asked + waits)
    }
}

/// Returns whether two calls were open at the same time, or so close together that the owner may not know that the
/// first has settled.
fn overlap(call: &CallRecord, other: &CallRecord) -> bool {
    let end = |it: &CallRecord| it.outcome.as_ref().map_or(Us::MAX, |(_, at)| at.saturating_add(PROPAGATION));
    other.at <= end(call) && call.at <= end(other)
}

/// Time in µs after which both the owner and the caller know that a call has settled.
const PROPAGATION: Us = 15_000_000;

/// Time in µs after the local Configuration after which a client that sent nothing counts as a plain peer; includes
/// 1 ms for the retransmitted Configuration.
const PLAIN_AFTER: Us = 1_001_000;

/// Returns the actor with this identity.
pub(crate) fn actor_of(identity: &str) -> Actor {
    match identity {
        "a" => Actor::Assistant,
        "b" => Actor::SecondAssistant,
        "observer" => Actor::Observer,
        "app" => Actor::App,
        client => {
            client.strip_prefix('c').and_then(|n| n.parse().ok()).map_or(Actor::Stranger, Actor::Client)
        }
    }
}
