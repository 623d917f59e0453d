//! Turns: the calls of one answer of the model, and how a barge-in ends them (`wire.md`, section 5).

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use sha2::{Digest, Sha256};

use super::{Call, CallKey, Core, Counter, Event, Fallback, Outgoing, Request, Stage, TurnKey};
use crate::{
    protocol::session::Output,
    tool::{BargeIn, CallError, CallId},
    transport::Identity,
    value::Value,
};

/// Turns that are remembered at once; beyond it the oldest is over.
const MAX_TURNS: usize = 256;

/// Different calls of one turn whose repetition is counted.
const MAX_KINDS: usize = 256;

/// The end of a call that a barge-in had left running, for the next turn.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LateResult {
    /// The call.
    pub id: CallId,
    /// The tool's name.
    pub tool: Box<str>,
    /// Who ran it, if anybody was asked.
    pub owner: Option<Identity>,
    /// How it ended after all.
    pub result: std::sync::Arc<Result<Value, CallError>>,
    /// From the call to its end.
    pub took: Duration,
}

/// The turns, and what came too late for them.
#[derive(Debug, Default)]
pub(super) struct Turns {
    last: u64,
    /// How often each turn that is not over asked for the same.
    open: BTreeMap<TurnKey, BTreeMap<[u8; 32], u32>>,
    late: VecDeque<(usize, LateResult)>,
    late_bytes: usize,
}

impl Outgoing {
    /// Begins a turn, whose calls name it in [`Request::turn`]. At most 256 are open at once; beyond it the
    /// oldest is over.
    pub(crate) fn begin_turn(&mut self) -> TurnKey {
        let turns = &mut self.turns;
        turns.last += 1;
        if turns.open.len() >= MAX_TURNS {
            turns.open.pop_first();
        }
        let key = TurnKey(turns.last);
        turns.open.insert(key, BTreeMap::new());
        key
    }

    /// Settles each open call of a turn at once, by its tool's rule.
    pub(crate) fn barge_in(&mut self, core: &mut Core, turn: TurnKey) {
        self.interrupt(core, |call| call.turn == Some(turn));
    }

    /// Forgets a turn: its calls go on, and it takes no further ones.
    pub(crate) fn end_turn(&mut self, turn: TurnKey) {
        self.turns.open.remove(&turn);
    }

    /// The ends of calls that a barge-in had left running, since this was last asked. Oldest first, at most
    /// [`Caps::late_results`](super::Caps::late_results) and [`Caps::late_bytes`](super::Caps::late_bytes).
    pub(crate) fn late_results(&mut self) -> Vec<LateResult> {
        self.turns.late_bytes = 0;
        std::mem::take(&mut self.turns.late).into_iter().map(|(_, late)| late).collect()
    }

    /// Whether the turn of a request takes it: it is not over, and did not ask for the same too often.
    pub(super) fn admit_to_turn(&mut self, core: &Core, request: &Request) -> Result<(), CallError> {
        let limit = core.cx.config.caps.equal_calls;
        let Some(turn) = request.turn else { return Ok(()) };
        let asked = self.turns.open.get_mut(&turn).ok_or(CallError::TurnOver)?;
        let kind = kind_of(request);
        let known = asked.len();
        match asked.get_mut(&kind) {
            Some(times) if *times >= limit => {
                Err(CallError::TooManyEqual { tool: request.tool.as_str().into(), limit })
            }
            Some(times) => {
                *times += 1;
                Ok(())
            }
            None => {
                if known < MAX_KINDS {
                    asked.insert(kind, 1);
                }
                Ok(())
            }
        }
    }

    /// Somebody who may stops everything: each open call that says `cancel`.
    pub(super) fn stop_all(&mut self, core: &mut Core) {
        let stopped: Vec<_> = self
            .calls
            .iter()
            .filter(|(_, call)| call.rest.is_none() && rule_of(core, call) == BargeIn::Cancel)
            .map(|(key, _)| *key)
            .collect();
        for key in stopped {
            self.settle_call(core, key, Err(CallError::Cancelled));
        }
    }

    /// A call whose caller was told its end long ago has ended.
    pub(super) fn rest_ended(
        &mut self,
        core: &mut Core,
        call: Call,
        rest: BargeIn,
        owner: Option<Identity>,
        result: Result<Value, CallError>,
    ) {
        if matches!(result, Ok(_) | Err(CallError::Tool(_))) {
            core.cx.count(Counter::Late);
            core.cx.log.late(&call.id, core.cx.now);
        }
        if rest != BargeIn::Report {
            return;
        }
        let outcome = result.as_ref().map(|_| ()).map_err(CallError::code);
        let late = LateResult {
            id: call.id.clone(),
            tool: call.tool.clone(),
            owner: owner.clone(),
            result: std::sync::Arc::new(result),
            took: core.cx.now.saturating_duration_since(call.began),
        };
        self.keep_late(core, late);
        core.cx.event(Event::LateResult { call: call.id, tool: call.tool.into(), owner, outcome });
    }

    /// Settles open calls at once, each by its tool's rule.
    fn interrupt(&mut self, core: &mut Core, which: impl Fn(&Call) -> bool) {
        let open: Vec<_> = self
            .calls
            .iter()
            .filter(|(_, call)| which(call) && call.rest.is_none() && !call.detached)
            .map(|(key, call)| (*key, rule_of(core, call)))
            .collect();
        for (key, rule) in open {
            match rule {
                BargeIn::Cancel => self.settle_call(core, key, Err(CallError::Cancelled)),
                BargeIn::Finish => self.leave_running(core, key, rule, CallError::Cancelled),
                BargeIn::Report => self.leave_running(core, key, rule, CallError::Detached),
            }
        }
    }

    /// Settles a call for its caller, while the work goes on.
    fn leave_running(&mut self, core: &mut Core, key: CallKey, rule: BargeIn, error: CallError) {
        let Some(call) = self.calls.get_mut(&key) else { return };
        call.rest = Some(rule);
        let (id, tool, began, execution) =
            (call.id.clone(), call.tool.to_string(), call.began, call.execution());
        let owner = call.owner().unwrap_or_else(|| core.cx.local.identity().clone());
        core.cx.event(Event::Settled {
            call: id,
            tool,
            execution,
            owner: Some(owner),
            outcome: Err(error.code()),
            took: core.cx.now.saturating_duration_since(began),
        });
        core.cx.output(Output::Settled { key, result: Err(error) });
    }

    fn keep_late(&mut self, core: &mut Core, mut late: LateResult) {
        let limits = &core.cx.config.caps;
        let mut size = size_of(&late);
        if size > limits.late_bytes {
            let error = CallError::TooLarge { size, limit: limits.late_bytes };
            late.result = std::sync::Arc::new(Err(error));
            size = size_of(&late);
        }
        let turns = &mut self.turns;
        turns.late_bytes += size;
        turns.late.push_back((size, late));
        let mut dropped = 0;
        while turns.late.len() > limits.late_results || turns.late_bytes > limits.late_bytes {
            let Some((size, _)) = turns.late.pop_front() else { break };
            turns.late_bytes -= size;
            dropped += 1;
        }
        core.cx.stats.add(Counter::LateDropped, dropped);
    }
}

/// The rule of a call's tool for a barge-in. Where nobody was asked yet, or nobody has claimed it, nothing can be left running.
fn rule_of(core: &Core, call: &Call) -> BargeIn {
    let tool = match call.stage() {
        _ if call.fallback == Fallback::UntilClaimed => None,
        Stage::Own(_) => core.cx.local.tool(&call.tool),
        _ => call.owner().and_then(|owner| core.peers.get(&owner)?.tool(&call.tool)),
    };
    tool.map_or(BargeIn::Cancel, |tool| tool.tool_options().barge_in)
}

/// What makes two calls equal: tool, owner and arguments.
fn kind_of(request: &Request) -> [u8; 32] {
    let owner = request.owner.as_ref().map_or("", Identity::as_str);
    let mut hash = Sha256::new();
    for part in [request.tool.as_bytes(), owner.as_bytes(), request.arguments.as_bytes()] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// What a late result weighs while it waits for the next turn.
fn size_of(late: &LateResult) -> usize {
    match &*late.result {
        Ok(body) => body.as_bytes().len(),
        Err(CallError::Tool(error)) => {
            let partial = error.partial().map_or(0, |partial| partial.as_bytes().len());
            error.message().len() + error.code().as_str().len() + partial
        }
        Err(_) => 0,
    }
}
