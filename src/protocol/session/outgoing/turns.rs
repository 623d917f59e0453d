//! Groups the calls of one answer of the model in a turn, which a barge-in ends (`wire.md`, section 5.4).

use std::{collections::VecDeque, time::Duration};

use sha2::{Digest, Sha256};

use super::{
    Call, CallKey, Core, Counter, Event, Fallback, Outgoing, Request, Stage, TurnKey, outcome::report_settled,
};
use crate::{
    protocol::session::Output,
    sorted::SortedMap,
    tool::{BargeIn, CallError, CallId, ErrorCode, StopReason, ToolError},
    transport::Identity,
    value::Value,
};

/// The limit on remembered turns. The oldest ends first.
const MAX_TURNS: usize = 256;

/// The limit on different calls of one turn whose repetitions are counted.
const MAX_KINDS: usize = 256;

/// The outcome of a call that a barge-in left running, for the next turn.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LateResult {
    /// The call.
    pub id: CallId,
    /// The tool's name.
    pub tool: Box<str>,
    /// The participant that ran it, if the call had an owner.
    pub owner: Option<Identity>,
    /// The result of the call.
    pub result: std::sync::Arc<Result<Value, CallError>>,
    /// The time between the call and its end.
    pub took: Duration,
    /// The parameters of a reported event ([`ToolName::EVENT`](crate::ToolName::EVENT)), which name the call that it
    /// belongs to. Otherwise `None`.
    pub event: Option<Value>,
}

/// The turns and their late results.
#[derive(Debug, Default)]
pub(super) struct Turns {
    last: u64,
    /// For each open turn, how often it made each call.
    open: SortedMap<TurnKey, SortedMap<[u8; 32], u32>>,
    late: VecDeque<(usize, LateResult)>,
    late_bytes: usize,
}

impl Outgoing {
    /// Starts a turn. Its calls name it in [`Request::turn`]. At most 256 turns are open; a further one ends the
    /// oldest.
    pub(crate) fn begin_turn(&mut self) -> TurnKey {
        let turns = &mut self.turns;
        turns.last += 1;
        if turns.open.len() >= MAX_TURNS {
            turns.open.pop_first();
        }
        let key = TurnKey(turns.last);
        turns.open.insert(key, SortedMap::new());
        key
    }

    /// Settles each open call of a turn at once, by its tool's rule.
    pub(crate) fn barge_in(&mut self, core: &mut Core, turn: TurnKey) {
        self.interrupt(core, |call| call.turn == Some(turn));
    }

    /// Ends a turn without an interruption. Its open calls continue; later calls of this turn are refused.
    pub(crate) fn end_turn(&mut self, turn: TurnKey) {
        self.turns.open.remove(&turn);
    }

    /// Takes the late results, oldest first, at most [`CallCaps::late_results`](crate::session::CallCaps::late_results) and
    /// [`CallCaps::late_bytes`](crate::session::CallCaps::late_bytes).
    pub(crate) fn late_results(&mut self) -> Vec<LateResult> {
        self.turns.late_bytes = 0;
        std::mem::take(&mut self.turns.late).into_iter().map(|(_, late)| late).collect()
    }

    /// Checks that the turn of a request is open and has not made the same call too often.
    pub(super) fn admit_to_turn(&mut self, core: &Core, request: &Request) -> Result<(), CallError> {
        let limit = core.cx.config.caps.calls.equal_calls;
        let Some(turn) = request.turn else { return Ok(()) };
        let asked = self.turns.open.get_mut(&turn).ok_or(CallError::TurnOver)?;
        let kind = kind_of(request);
        let times = asked.get(&kind).copied();
        if times.is_some_and(|times| times >= limit) {
            return Err(CallError::TooManyEqual { tool: request.tool.as_str().into(), limit });
        }
        if times.is_some() || asked.len() < MAX_KINDS {
            *asked.entry(kind).or_default() += 1;
        }
        Ok(())
    }

    /// Stops all open calls whose rule is `cancel`, on behalf of a participant with that right.
    pub(super) fn stop_all(&mut self, core: &mut Core) {
        let stopped: Vec<_> = self
            .calls
            .iter()
            // Reported calls are among these, though nobody waits for them (`wire.md`, section 4.14).
            .filter(|(_, call)| call.rest.is_none() && rule_of(core, call) == BargeIn::Cancel)
            .map(|(key, _)| *key)
            .collect();
        for key in stopped {
            self.cancel_call(core, key, StopReason::BargeIn);
        }
    }

    /// Keeps the outcome of a call, or a reported event, for the model.
    pub(super) fn report_late(
        &mut self,
        core: &mut Core,
        call: Call,
        owner: Option<Identity>,
        result: Result<Value, CallError>,
        event: Option<Value>,
    ) {
        let outcome = result.as_ref().map(|_| ()).map_err(CallError::code);
        let late = LateResult {
            id: call.id.clone(),
            tool: call.tool.clone(),
            owner: owner.clone(),
            result: std::sync::Arc::new(result),
            took: core.cx.now.saturating_duration_since(call.began),
            event,
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
                BargeIn::Cancel => self.cancel_call(core, key, StopReason::BargeIn),
                BargeIn::Finish => self.leave_running(core, key, rule, CallError::Unawaited),
                BargeIn::Report => self.leave_running(core, key, rule, CallError::Detached),
            }
        }
    }

    /// Settles a call for its caller while its tool continues to run.
    fn leave_running(&mut self, core: &mut Core, key: CallKey, rule: BargeIn, error: CallError) {
        self.report_late_progress(core, key);
        let Some(call) = self.calls.get_mut(&key) else { return };
        call.rest = Some(rule);
        let owner = call.owner().unwrap_or_else(|| core.cx.local.identity().clone());
        report_settled(core, call, Some(owner), Err(error.code()));
        core.cx.output(Output::Settled { key, result: Err(error) });
    }

    fn keep_late(&mut self, core: &mut Core, mut late: LateResult) {
        let limits = &core.cx.config.caps;
        let mut size = size_of(&late);
        if size > limits.calls.late_bytes {
            // The call still appears in the next turn, with the reason. Its result alone would push out all
            // others. Whether it may have run stays as it was: the code of such a failure is one that proves it.
            let code = match &*late.result {
                Err(error) if !error.may_have_run() => error.code(),
                _ => ErrorCode::RESULT_TOO_LARGE,
            };
            let text = format!("the late result has {size} bytes; the limit is {}", limits.calls.late_bytes);
            late.result = std::sync::Arc::new(Err(CallError::Tool(ToolError::new(code, text))));
            size = size_of(&late);
        }
        let turns = &mut self.turns;
        turns.late_bytes += size;
        turns.late.push_back((size, late));
        let mut dropped = 0;
        while turns.late.len() > limits.calls.late_results || turns.late_bytes > limits.calls.late_bytes {
            let Some((size, _)) = turns.late.pop_front() else { break };
            turns.late_bytes -= size;
            dropped += 1;
        }
        core.cx.stats.add(Counter::LateDropped, dropped);
    }
}

/// Returns the barge-in rule of a call's tool. A call whose tool cannot have started cannot be left running: nothing may
/// start for it after the interruption.
fn rule_of(core: &Core, call: &Call) -> BargeIn {
    let tool = match call.stage() {
        _ if call.fallback == Fallback::UntilClaimed => None,
        Stage::Own(job) if core.jobs.awaits_consent(*job) => None,
        Stage::Asked(asked) if asked.was_never_sent(core) => None,
        Stage::Own(_) => core.cx.local.tool(&call.tool),
        _ => call.owner().and_then(|owner| core.peers.get(&owner)?.tool(&call.tool)),
    };
    tool.map_or(BargeIn::Cancel, |tool| tool.tool_options().barge_in)
}

/// Returns a hash of a call's tool, owner and arguments. Equal calls have equal hashes.
fn kind_of(request: &Request) -> [u8; 32] {
    let owner = request.owner.as_ref().map_or("", Identity::as_str);
    let mut hash = Sha256::new();
    for part in [request.tool.as_bytes(), owner.as_bytes(), request.arguments.as_bytes()] {
        // With the lengths, so that no text can move from one part to the next without changing the hash.
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// Returns the size of a late result, which counts against the limit.
fn size_of(late: &LateResult) -> usize {
    let event = late.event.as_ref().map_or(0, |event| event.as_bytes().len());
    event
        + match &*late.result {
            Ok(body) => body.as_bytes().len(),
            Err(CallError::Tool(error)) => {
                let partial = error.partial().map_or(0, |partial| partial.as_bytes().len());
                error.message().len() + error.code().as_str().len() + partial
            }
            Err(_) => 0,
        }
}
