//! When the rules are judged: after each step, after healing, and in the end.

use crate::{
    rules::{Asked, Rule},
    schedule::{HEALED, How, Wanted, Who},
    world::{OPEN, Program, World},
};

/// Whether requests, results and stops that were lost at a rejoin go again. Without that a rejoin may cost a call.
const REPLAY: bool = true;

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

    /// Handlers of calls that ended before the network healed have been told.
    pub(crate) fn judge_stopped(&mut self, callers_too: bool) {
        let mut broken = None;
        for (id, start) in self.ledger.starts.iter().flat_map(|(id, all)| all.iter().map(move |it| (id, it)))
        {
            let Some(call) = self.ledger.by_id.get(id).map(|at| &self.ledger.calls[*at]) else { continue };
            if !start.running
                || !self.is_bridge(call.who)
                || !self.is_bridge(self.processes[start.process].who)
            {
                continue;
            }
            let caller = &self.processes[call.caller];
            let was_settled = call.outcome.as_ref().is_some_and(|(_, at)| *at < HEALED * 1_000);
            let rejoined = !REPLAY && self.schedule.someone_rejoins();
            if (caller.alive && was_settled && !rejoined) || (!caller.alive && callers_too) {
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
                let it = &self.ledger.calls[call];
                if !it.detached && !self.is_spared(it) {
                    let text =
                        format!("call {call} {:?} ({:?}) has no outcome long after healing", it.id, it.how);
                    self.ledger.broken(Rule::Needless, text);
                }
                self.cancels(call);
            }
        }
    }

    /// Fresh calls to each client: they must go well.
    pub(crate) fn probe(&mut self, times: usize) {
        if times > 1 && (!REPLAY || self.schedule.cast.plain_assistant) && self.schedule.someone_rejoins() {
            return; // a stop that was lost keeps its tool, and that its place
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
        ledger.at_end(|process| self.processes[process].alive, |call| self.is_spared(call));
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
            || call.cancelled
            || weather.stalls > 0
            || (rejoins && (plain || !REPLAY))
            || (plain && weather.nameless)
            || (plain && !call.id.as_ref().is_some_and(|id| self.ledger.was_delivered(id)))
    }
}

fn part(identity: &str) -> Who {
    match identity {
        "a" => Who::A,
        "b" => Who::B,
        "observer" => Who::O,
        client => client.strip_prefix('c').and_then(|n| n.parse().ok()).map_or(Who::X, Who::C),
    }
}
