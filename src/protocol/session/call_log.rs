//! What became of each call: asked for, delivered, begun, settled — once each, with times.

use std::{collections::BTreeMap, time::Instant};

use super::{Event, codec::floor_char, event::TurnKey};
use crate::{
    tool::{CallId, ErrorCode, Execution, MAX_TOOL_NAME},
    transport::Identity,
    value::Value,
};

/// Open records that are kept at once. Open calls and jobs have caps of their own, far below it.
const MAX_OPEN: usize = 4096;

/// The longest code of a failure that a record keeps, in bytes; a peer may write any.
const MAX_CODE: usize = 128;

/// What is known of one call, ours or one that we ran. It holds neither arguments nor result.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallRecord {
    /// The call.
    pub id: CallId,
    /// The tool's name, as written, up to the 64 bytes that a name may have.
    pub tool: String,
    /// Who executes.
    pub execution: Execution,
    /// Who asked.
    pub caller: Identity,
    /// Who owes the answer; nobody while none was found.
    pub owner: Option<Identity>,
    /// The turn that it belongs to, if it is ours and belongs to one.
    pub turn: Option<TurnKey>,
    /// The size of the arguments in bytes.
    pub request_bytes: usize,
    /// The size of the result in bytes, if it succeeded.
    pub result_bytes: Option<usize>,
    /// When it was asked for; of a call that we run, when its request came.
    pub requested: Instant,
    /// When its owner was known to have the request. An owner need not say so.
    pub delivered: Option<Instant>,
    /// When its owner said that the tool begins.
    pub started: Option<Instant>,
    /// When it was settled.
    pub settled: Option<Instant>,
    /// How it was settled, if it was.
    pub outcome: Option<Result<(), ErrorCode>>,
    /// When a result came after it was settled: it settled nothing.
    pub late: Option<Instant>,
}

/// How far a call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CallState {
    /// Asked for.
    Requested,
    /// Its owner has the request.
    Delivered,
    /// The tool has begun.
    Started,
    /// It has its one outcome.
    Settled,
}

impl CallRecord {
    /// The record of a call that was requested now, whoever may own it.
    pub(super) fn requested(
        call: &CallId,
        tool: &str,
        execution: Execution,
        caller: &Identity,
        now: Instant,
    ) -> Self {
        Self {
            id: call.clone(),
            tool: tool[..floor_char(tool, MAX_TOOL_NAME)].to_owned(),
            execution,
            caller: caller.clone(),
            owner: None,
            turn: None,
            request_bytes: 0,
            result_bytes: None,
            requested: now,
            delivered: None,
            started: None,
            settled: None,
            outcome: None,
            late: None,
        }
    }

    /// How far it has come.
    pub fn state(&self) -> CallState {
        if self.settled.is_some() {
            CallState::Settled
        } else if self.started.is_some() {
            CallState::Started
        } else if self.delivered.is_some() {
            CallState::Delivered
        } else {
            CallState::Requested
        }
    }
}

/// All open calls and jobs, and the last ones that have ended.
#[derive(Debug, Default)]
pub(super) struct CallLog {
    open: BTreeMap<CallId, CallRecord>,
    /// By the order in which they ended.
    ended: BTreeMap<u64, CallRecord>,
    /// Which of them is the last one of this call.
    ended_as: BTreeMap<CallId, u64>,
    /// Counts the records that have ended.
    count: u64,
}

impl CallLog {
    /// The last calls that have ended, oldest first, then the open ones.
    pub(super) fn records(&self) -> Vec<CallRecord> {
        let mut open: Vec<_> = self.open.values().cloned().collect();
        open.sort_by_key(|record| record.requested);
        self.ended.values().cloned().chain(open).collect()
    }

    /// The record of this call.
    pub(super) fn record(&self, call: &CallId) -> Option<&CallRecord> {
        let ended = || self.ended.get(self.ended_as.get(call)?);
        self.open.get(call).or_else(ended)
    }

    /// Everything that happens to a call is an event. At most `kept` records of ended calls are kept.
    pub(super) fn note(&mut self, now: Instant, event: &Event, local: &Identity, kept: usize) {
        match event {
            // A call of the local participant has a record, unless a barge-in has settled it.
            Event::Requested { call, execution, owner, by, .. } if by == local => {
                self.owned(call, *execution, owner);
            }
            Event::Requested { call, tool, execution, owner, by } if owner == local => {
                self.received(now, call, tool, *execution, by);
                self.owned(call, *execution, owner);
            }
            Event::Delivered { call, .. } => self.mark(now, call, |record| &mut record.delivered),
            Event::Progress { key: Some(_), call, .. } => self.started(now, call),
            Event::Settled { call, execution, owner, outcome, .. } => {
                self.settled(now, call, *execution, owner.as_ref(), outcome, kept);
            }
            Event::Closed(_) => self.close(now, kept),
            _ => {}
        }
    }

    pub(super) fn request_size(&mut self, call: &CallId, arguments: &Value) {
        if let Some(record) = self.open.get_mut(call) {
            record.request_bytes = arguments.as_bytes().len();
        }
    }

    pub(super) fn result_size<E>(&mut self, call: &CallId, result: &Result<Value, E>) {
        if let (Some(record), Ok(body)) = (self.open.get_mut(call), result) {
            record.result_bytes = Some(body.as_bytes().len());
        }
    }

    pub(super) fn started(&mut self, now: Instant, call: &CallId) {
        self.mark(now, call, |record| &mut record.started);
    }

    /// A result came after the call was settled.
    pub(super) fn late(&mut self, call: &CallId, now: Instant) {
        let ended = self.ended_as.get(call).and_then(|at| self.ended.get_mut(at));
        if let Some(record) = ended {
            record.late.get_or_insert(now);
        }
    }

    /// A request arrived, which is its delivery.
    fn received(&mut self, now: Instant, call: &CallId, tool: &str, execution: Execution, by: &Identity) {
        if self.open.contains_key(call) {
            return;
        }
        self.insert(CallRecord {
            delivered: Some(now),
            ..CallRecord::requested(call, tool, execution, by, now)
        });
    }

    /// Whoever owes the answer is known.
    fn owned(&mut self, call: &CallId, execution: Execution, owner: &Identity) {
        if let Some(record) = self.open.get_mut(call) {
            record.owner = Some(owner.clone());
            record.execution = execution;
        }
    }

    fn settled(
        &mut self,
        now: Instant,
        call: &CallId,
        execution: Execution,
        owner: Option<&Identity>,
        outcome: &Result<(), ErrorCode>,
        kept: usize,
    ) {
        let Some(mut record) = self.open.remove(call) else { return };
        record.settled = Some(now);
        record.outcome = Some(outcome.clone().map_err(|code| short(&code)));
        record.execution = execution;
        record.owner = owner.cloned().or(record.owner);
        self.count += 1;
        self.ended_as.insert(record.id.clone(), self.count);
        self.ended.insert(self.count, record);
        while self.ended.len() > kept
            && let Some((at, oldest)) = self.ended.pop_first()
        {
            if self.ended_as.get(&oldest.id) == Some(&at) {
                self.ended_as.remove(&oldest.id);
            }
        }
    }

    /// We leave: what is still open has ended too.
    fn close(&mut self, now: Instant, kept: usize) {
        let open: Vec<_> = self.open.values().map(|it| (it.id.clone(), it.execution)).collect();
        for (call, execution) in open {
            self.settled(now, &call, execution, None, &Err(ErrorCode::from("closed")), kept);
        }
    }

    fn mark(&mut self, now: Instant, call: &CallId, which: impl Fn(&mut CallRecord) -> &mut Option<Instant>) {
        if let Some(record) = self.open.get_mut(call) {
            let slot = which(record);
            *slot = slot.or(Some(now));
        }
    }

    pub(super) fn insert(&mut self, record: CallRecord) {
        if self.open.len() >= MAX_OPEN {
            let oldest = self.open.values().min_by_key(|it| it.requested).map(|it| it.id.clone());
            self.open.remove(&oldest.unwrap_or_else(|| record.id.clone()));
        }
        self.open.insert(record.id.clone(), record);
    }
}

/// A code that is short enough to be kept.
fn short(code: &ErrorCode) -> ErrorCode {
    let text = code.as_str();
    match floor_char(text, MAX_CODE) {
        whole if whole == text.len() => code.clone(),
        cut => ErrorCode::from(&text[..cut]),
    }
}
