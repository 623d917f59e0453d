//! Logs calls: when each was requested, delivered, started and settled.

use std::collections::BinaryHeap;

use super::{Event, keys::TurnKey};
use crate::{
    clock::Instant,
    sorted::SortedMap,
    tool::{CallId, ErrorCode, Execution, MAX_TOOL_NAME},
    transport::Identity,
    value::{Value, floor_char, prefix},
};

/// The limit on open records. The limits on open calls and jobs are far lower.
const MAX_OPEN: usize = 4096;

/// The longest error code that a record keeps, in bytes. A peer may send a longer one.
const MAX_CODE: usize = 128;

/// The record of one call that the local participant requested or ran. It contains neither arguments nor result.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallRecord {
    /// The call.
    pub id: CallId,
    /// The tool's name, as sent, up to the 64 bytes that a name may have.
    pub tool: String,
    /// The side that runs the tool.
    pub execution: Execution,
    /// The caller.
    pub caller: Identity,
    /// The participant that must answer; `None` while no owner is known.
    pub owner: Option<Identity>,
    /// The turn that the call belongs to, if the local participant requested it in one.
    pub turn: Option<TurnKey>,
    /// The size of the arguments, in bytes.
    pub request_bytes: usize,
    /// The size of the result, in bytes, if the call succeeded.
    pub result_bytes: Option<usize>,
    /// When the call was requested. If the local participant runs it: when its request arrived.
    pub requested: Instant,
    /// When the request was known to have reached the owner. Some owners do not acknowledge requests.
    pub delivered: Option<Instant>,
    /// When the owner reported that the tool starts.
    pub started: Option<Instant>,
    /// When the call was settled.
    pub settled: Option<Instant>,
    /// How the call was settled, if it was.
    pub outcome: Option<Result<(), ErrorCode>>,
    /// When a result arrived after the call was settled. That result was ignored.
    pub late: Option<Instant>,
}

/// The state of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CallState {
    /// Requested.
    Requested,
    /// The owner has the request.
    Delivered,
    /// The tool has started.
    Started,
    /// The call has its outcome.
    Settled,
}

impl CallRecord {
    /// Creates the record of a call that is requested now.
    pub(super) fn requested(
        call: &CallId,
        tool: &str,
        execution: Execution,
        caller: &Identity,
        now: Instant,
    ) -> Self {
        Self {
            id: call.clone(),
            tool: prefix(tool, MAX_TOOL_NAME).to_owned(),
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

    /// Returns the call's state.
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

/// A call and its caller. Callers choose the ids, so two may have used one.
type Key = (CallId, Identity);

/// All open calls and jobs, and the last settled ones.
#[derive(Debug, Default)]
pub(super) struct CallLog {
    open: SortedMap<Key, CallRecord>,
    /// The settled records, in the order in which they ended.
    ended: SortedMap<u64, CallRecord>,
    /// The key in `ended` of the last record of each call.
    ended_as: SortedMap<Key, u64>,
    /// The number of records that have ended so far.
    count: u64,
}

impl CallLog {
    /// Returns the last settled calls, oldest first, then the open ones.
    pub(super) fn records(&self) -> Vec<CallRecord> {
        let open = self.open.iter().map(|(key, record)| (record.requested, key));
        let open = open.collect::<BinaryHeap<_>>().into_sorted_vec();
        let open = open.into_iter().filter_map(|(_, key)| self.open.get(key));
        self.ended.values().chain(open).cloned().collect()
    }

    /// Returns the record of this call; of several callers' with this id, the open one or else that which ended last.
    pub(super) fn record(&self, call: &CallId) -> Option<&CallRecord> {
        let first = (call.clone(), Identity::from(""));
        let mut open = self.open.range(first.clone()..).take_while(|((id, _), _)| id == call);
        let ended = || {
            let ended = self.ended_as.range(first..).take_while(|((id, _), _)| id == call);
            self.ended.get(&ended.map(|(_, at)| *at).max()?)
        };
        open.next().map(|(_, record)| record).or_else(ended)
    }

    /// Updates the records from an event. At most `kept` records of settled calls are kept.
    pub(super) fn note(&mut self, now: Instant, event: &Event, local: &Identity, kept: usize) {
        match event {
            // A call of the local participant has a record, unless a barge-in has settled it.
            Event::Requested { call, execution, owner, by, .. } if by == local => {
                self.owned(&(call.clone(), by.clone()), *execution, owner);
            }
            Event::Requested { call, tool, execution, owner, by } if owner == local => {
                self.received(now, call, tool, *execution, by);
                self.owned(&(call.clone(), by.clone()), *execution, owner);
            }
            Event::Delivered { call, .. } => self.mark(now, local, call, |record| &mut record.delivered),
            Event::Progress { key: Some(_), call, .. } => self.started(now, local, call),
            Event::Settled { call, execution, owner, by, outcome, .. } => {
                let key = (call.clone(), by.clone());
                self.settled(now, &key, *execution, owner.as_ref(), outcome, kept);
            }
            Event::Closed(_) => self.close(now, kept),
            _ => {}
        }
    }

    pub(super) fn request_size(&mut self, by: &Identity, call: &CallId, arguments: &Value) {
        if let Some(record) = self.open.get_mut(&(call.clone(), by.clone())) {
            record.request_bytes = arguments.as_bytes().len();
        }
    }

    pub(super) fn result_size<E>(&mut self, by: &Identity, call: &CallId, result: &Result<Value, E>) {
        if let (Some(record), Ok(body)) = (self.open.get_mut(&(call.clone(), by.clone())), result) {
            record.result_bytes = Some(body.as_bytes().len());
        }
    }

    pub(super) fn started(&mut self, now: Instant, by: &Identity, call: &CallId) {
        self.mark(now, by, call, |record| &mut record.started);
    }

    /// Notes that a result arrived after the call of this caller was settled.
    pub(super) fn late(&mut self, by: &Identity, call: &CallId, now: Instant) {
        let ended = self.ended_as.get(&(call.clone(), by.clone())).and_then(|at| self.ended.get_mut(at));
        if let Some(record) = ended {
            record.late.get_or_insert(now);
        }
    }

    /// Notes the arrival of a request, which is also its delivery.
    fn received(&mut self, now: Instant, call: &CallId, tool: &str, execution: Execution, by: &Identity) {
        if self.open.contains_key(&(call.clone(), by.clone())) {
            return;
        }
        self.insert(CallRecord {
            delivered: Some(now),
            ..CallRecord::requested(call, tool, execution, by, now)
        });
    }

    /// Notes the participant that must answer.
    pub(super) fn owned(&mut self, call: &Key, execution: Execution, owner: &Identity) {
        if let Some(record) = self.open.get_mut(call) {
            record.owner = Some(owner.clone());
            record.execution = execution;
        }
    }

    fn settled(
        &mut self,
        now: Instant,
        call: &Key,
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
        self.ended_as.insert(call.clone(), self.count);
        self.ended.insert(self.count, record);
        while self.ended.len() > kept
            && let Some((at, oldest)) = self.ended.pop_first()
        {
            // A peer may use an id again, and the newer record has it now.
            let key = (oldest.id, oldest.caller);
            if self.ended_as.get(&key) == Some(&at) {
                self.ended_as.remove(&key);
            }
        }
    }

    /// Settles all open records when the local participant leaves.
    fn close(&mut self, now: Instant, kept: usize) {
        let open: Vec<_> = self.open.iter().map(|(key, it)| (key.clone(), it.execution)).collect();
        for (call, execution) in open {
            self.settled(now, &call, execution, None, &Err(ErrorCode::from("closed")), kept);
        }
    }

    fn mark(
        &mut self,
        now: Instant,
        by: &Identity,
        call: &CallId,
        which: impl Fn(&mut CallRecord) -> &mut Option<Instant>,
    ) {
        if let Some(record) = self.open.get_mut(&(call.clone(), by.clone())) {
            which(record).get_or_insert(now);
        }
    }

    pub(super) fn insert(&mut self, record: CallRecord) {
        if self.open.len() >= MAX_OPEN
            && let Some(oldest) =
                self.open.iter().min_by_key(|(_, it)| it.requested).map(|(key, _)| key.clone())
        {
            self.open.remove(&oldest);
        }
        self.open.insert((record.id.clone(), record.caller.clone()), record);
    }
}

/// Cuts a code to the length that a record keeps.
fn short(code: &ErrorCode) -> ErrorCode {
    let text = code.as_str();
    match floor_char(text, MAX_CODE) {
        whole if whole == text.len() => code.clone(),
        cut => ErrorCode::from(&text[..cut]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::session::tests::an_instant;

    /// Callers choose the ids.
    #[test]
    fn record_of_an_id_is_that_of_the_call_that_ended_last() {
        let (mut log, now) = (CallLog::default(), an_instant());
        let call: CallId = "1".parse().unwrap();
        for by in ["b", "a", "c"].map(Identity::from) {
            log.insert(CallRecord::requested(&call, "t", Execution::Client, &by, now));
            log.settled(now, &(call.clone(), by.clone()), Execution::Client, None, &Ok(()), 10);
            assert_eq!(log.record(&call).unwrap().caller, by);
        }
    }
}
