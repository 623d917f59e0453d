//! When the rules are judged: after each step, after healing, and in the end.

use crate::{
    room::Us,
    rules::{Asked, Ledger, Rule},
    schedule::{Act, Away, HEALED, How, OWNER_WAIT, Wanted, Who},
    world::{OPEN, Program, World},
};

/// From this budget on a caller is patient: its calls of tools that end must have their answers.
const PATIENT: u64 = 60_000;

impl World<'_> {
    pub(crate) fn judge_caps(&mut self, process: usize) {
        let it = &self.processes[process];
        let Program::Bridge(session) = &it.program else { return };
        let open = session.open_calls();
        let most = it
            .jobs
            .values()
            .map(|(.., caller)| it.jobs.values().filter(|(.., other)| other == caller).count())
            .max()
            .unwrap_or(0);
        let who = it.who;
        if open > 4 * OPEN + 2 {
            self.ledger.broken(Rule::Caps, format!("{who} has {open} calls open"));
        }
        if matches!(who, Who::C(_)) && most > OPEN {
            self.ledger.broken(Rule::Caps, format!("{who} runs {most} tools for one caller"));
        }
    }

    /// So many calls may be open with one owner.
    pub(crate) fn judge_places(&mut self, process: usize, asked: usize) {
        for owner in self.ledger.calls[asked].owners.clone() {
            let open = self.ledger.calls.iter().filter(|it| {
                it.caller == process
                    && it.outcome.is_none()
                    && !it.detached
                    && it.owners.contains(&owner)
                    && !self.ledger.runs_at(it.id.as_ref(), process) // taken back from who did not claim it
            });
            let open = open.count();
            if open > OPEN && owner.as_str() != "observer" {
                self.ledger.broken(Rule::Caps, format!("{open} calls are open with {owner}"));
            }
        }
    }

    /// Handlers of calls that ended before the network healed have been told.
    pub(crate) fn judge_stopped(&mut self, callers_too: bool) {
        if self.schedule.weather.stalls > 0 && self.schedule.acts.iter().any(|(_, act)| act.moves()) {
            return; // the last word of a process may come after its successor's first, and undo it for 4 s
        }
        let mut broken = None;
        for (id, start) in self.ledger.starts.iter().flat_map(|(id, all)| all.iter().map(move |it| (id, it)))
        {
            let Some(call) = self.ledger.by_id.get(id).map(|at| &self.ledger.calls[*at]) else { continue };
            if !start.running
                || (call.rests && call.cancelled)
                || !self.is_bridge(call.who)
                || !self.is_bridge(self.processes[start.process].who)
            {
                continue;
            }
            let caller = &self.processes[call.caller];
            let was_settled = call.outcome.as_ref().is_some_and(|(_, at)| *at < HEALED * 1_000);
            if (caller.alive && was_settled) || (!caller.alive && callers_too) {
                broken = Some(format!("{id:?} has ended as {:?}, and its tool still runs", call.outcome));
            }
        }
        if let Some(text) = broken {
            self.ledger.broken(Rule::StopHeard, text);
        }
    }

    /// What is still open is given up, and could not have ended by itself.
    pub(crate) fn clears(&mut self) {
        for who in [Who::A, Who::B] {
            for call in self.open_calls(who) {
                if let Some((rule, text)) = self.should_have_ended(call) {
                    self.ledger.broken(rule, text);
                }
                self.cancels(call);
            }
        }
    }

    /// Why this call should not be open so long after healing.
    fn should_have_ended(&self, call: usize) -> Option<(Rule, String)> {
        let it = &self.ledger.calls[call];
        let told = format!("call {call} {:?} ({:?})", it.id, it.how);
        if it.detached {
            return None;
        }
        if !self.is_spared(it) {
            return Some((Rule::Needless, format!("{told} has no outcome long after healing")));
        }
        let starts = it.id.as_ref().and_then(|id| self.ledger.starts.get(id))?;
        let gone = starts.iter().all(|start| !self.processes[start.process].alive);
        // Asked again of another instance that has bound another assistant: that one answers such requests once a minute only.
        let asked_again = it.id.as_ref().is_some_and(|id| {
            it.again && self.ledger.was_delivered_to(id, |process| self.processes[process].alive)
        });
        let gone = gone && !starts.is_empty() && !asked_again && self.is_bridge(it.who);
        gone.then(|| (Rule::InTime, format!("{told} is open, and whoever ran it is long gone")))
    }

    /// Fresh calls to each client: they must go well.
    pub(crate) fn probe(&mut self, times: usize) {
        if times > 1
            && self.schedule.cast.plain_assistant
            && self.schedule.acts.iter().any(|(_, act)| act.moves())
        {
            return; // nobody says that a tool of its last join may stop, and that keeps its place
        }
        for n in 1..=self.schedule.cast.clients {
            if !self.parts.contains_key(&Who::C(n)) {
                continue;
            }
            for _ in 0..times {
                self.asks(Who::A, Wanted::Of(n), true, How::Quick, 9_000, true);
            }
        }
    }

    pub(crate) fn judge_the_end(&mut self) {
        for process in 0..self.processes.len() {
            let it = &self.processes[process];
            if let Program::Bridge(session) = &it.program
                && it.alive
                && !session.is_drained()
            {
                let text = format!(
                    "{} has {} calls and {} jobs open, or an answer that nobody acknowledged",
                    it.who,
                    session.open_calls(),
                    session.open_jobs()
                );
                self.ledger.broken(Rule::Drained, text);
            }
        }
        let mut ledger = std::mem::take(&mut self.ledger);
        ledger.at_end(
            |process| self.processes[process].alive,
            |call| self.is_spared(call),
            |ledger, call, word| self.has_cause(ledger, call, word),
        );
        self.ledger = ledger;
    }

    /// Whether this call may end without an answer, things being as they are.
    fn is_spared(&self, call: &Asked) -> bool {
        let plain = !self.is_bridge(call.who)
            || call.owners.iter().any(|owner| !self.is_bridge(part(owner.as_str())));
        let weather = &self.schedule.weather;
        let rejoins = self.schedule.someone_rejoins();
        !self.schedule.is_calm()
            || call.how.takes().is_none()
            || call.limit < PATIENT
            || call.asks
            || call.cancelled
            || weather.stalls > 0
            || (rejoins && (plain || call.plainly))
            || (plain && weather.nameless)
            || (plain && !call.id.as_ref().is_some_and(|id| self.ledger.was_delivered(id)))
    }
}

/// Why a call may fail though nobody is disturbed: its tool, what else was open, or who was not there yet.
impl World<'_> {
    fn has_cause(&self, ledger: &Ledger, call: &Asked, word: &str) -> bool {
        let (Some(tool), true) = (call.tool, self.is_bridge(call.who)) else { return true };
        let cast = &self.schedule.cast;
        let at_once = |other: &&Asked| other.caller == call.caller && overlap(call, other);
        let open = ledger.calls.iter().filter(at_once).count();
        let large = ledger.calls.iter().filter(at_once).filter(|it| it.how == call.how).count();
        let is_large = matches!(call.how, How::Huge | How::HugeRequest);
        let has_streams = cast.streams && cast.old_client.is_none() && cast.plain_client.is_none();
        match word {
            "tool:odd" => matches!(call.how, How::Fails | How::Panics | How::SaysBusy),
            "tool:execution_error" => call.how == How::Panics,
            "tool:invalid_parameters" => call.how == How::BadArguments || matches!(tool, Wanted::Prompt(_)),
            "tool:busy" => call.how == How::SaysBusy,
            "tool:result_too_large" => call.how == How::Huge && (!has_streams || large > 1),
            "too_large" => call.how == How::HugeRequest && !has_streams,
            "ambiguous" => {
                matches!(tool, Wanted::Shared | Wanted::Echo(_) | Wanted::Prompt(_)) && cast.clients > 1
            }
            "too_many_open" => open > OPEN || (is_large && large > 1),
            "busy" => cast.rated || open > OPEN || (is_large && large > 1),
            "not_delivered" => {
                self.schedule.someone_rejoins() && self.schedule.weather.away != Away::Swallowed
            }
            "unknown_tool" | "not_bound" => self.has_no_owner(call, tool),
            word if word.starts_with("TooManyEqual") => open > OPEN,
            _ => false,
        }
    }

    /// Whether the caller of a call has not been told of the present join of the client whose tool it asks for, or so
    /// lately that this client's silence proves nothing.
    pub(crate) fn owner_is_news(&self, call: usize) -> bool {
        let call = &self.ledger.calls[call];
        let Some(Wanted::Of(owner)) = call.tool else { return false };
        let caller = self.processes[call.caller].join;
        let (Some(caller), Some(owner)) = (caller, self.room.listed_as(&Who::C(owner).to_string())) else {
            return false;
        };
        let told = self.room.joins[caller].told.get(&owner);
        told.is_none_or(|at| self.room.now < at + SILENCE)
    }

    /// Whether nobody in the cast offers this tool, or nobody did so in time.
    fn has_no_owner(&self, call: &Asked, tool: Wanted) -> bool {
        let cast = &self.schedule.cast;
        let owner = match tool {
            Wanted::Nobodys => return true,
            Wanted::Shared | Wanted::Own | Wanted::Either => return false,
            Wanted::Careful | Wanted::Grave if !cast.asks => return true,
            Wanted::Prompt(n) if !cast.asks || cast.plain_client == Some(n) => return true,
            Wanted::Echo(n) if cast.plain_client == Some(n) => return true,
            Wanted::Of(n) | Wanted::Prompt(n) | Wanted::Echo(n) => Who::C(n),
            Wanted::Again | Wanted::Careful | Wanted::Grave => Who::C(1),
        };
        if !self.is_bridge(owner) && !matches!(tool, Wanted::Of(_)) {
            return true;
        }
        // A plain owner says nothing until it is asked, so its caller knows of it by the room alone.
        if !self.is_bridge(owner) && call.owner_is_news {
            return true;
        }
        // Both must have come, be announced to each other, and shake hands; each new join begins that again.
        let weather = &self.schedule.weather;
        let repeats = if weather.nameless || weather.halves_lost > 0 { 4_000 } else { 0 };
        let settles = 200 + weather.announcements + 4 * weather.jitter + repeats;
        let moved = |who: Who| {
            let acts = self.schedule.acts.iter();
            acts.filter(move |(_, act)| act.brings(who)).map(|(at, _)| *at)
        };
        let asked = call.at / 1_000;
        let waits = OWNER_WAIT.min(call.limit);
        moved(call.who)
            .chain(moved(owner))
            .any(|at| at <= asked + waits && asked + waits < at + 1_000 + settles)
            || !self.schedule.acts.iter().any(|(at, act)| *act == Act::Enters(owner) && *at <= asked + waits)
    }
}

/// Whether two calls were open at one time, or one after the other so closely that the owner may not know of the end of
/// the first.
fn overlap(call: &Asked, other: &Asked) -> bool {
    let end = |it: &Asked| it.outcome.as_ref().map_or(Us::MAX, |(_, at)| at.saturating_add(UNHEARD));
    other.at <= end(call) && call.at <= end(other)
}

/// So long an owner may not have heard that a call has ended, and its caller may not have heard that it did.
const UNHEARD: Us = 15_000_000;

/// A client that says nothing for so long after it was greeted is asked in the plain form; a millisecond belongs to the
/// greeting's repetition.
const SILENCE: Us = 1_001_000;

/// Who has this identity.
pub(crate) fn part(identity: &str) -> Who {
    match identity {
        "a" => Who::A,
        "b" => Who::B,
        "observer" => Who::O,
        client => client.strip_prefix('c').and_then(|n| n.parse().ok()).map_or(Who::X, Who::C),
    }
}
