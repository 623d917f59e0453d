//! Claims (`wire.md`, section 4): a call that the assistant may run as well is ours only once it says so.
//!
//! The owner's half: a request whose execution is `either` is claimed, by an acknowledgement of its own stanza,
//! and starts when that claim is acknowledged with success. The assistant's half is in `either`.

use std::time::{Duration, Instant};

use super::{JobKey, Session, Timer, codec, peer::Feature, replay::place, send::Sent, table::Table};
use crate::{
    protocol::frame::{Acknowledgement, Message, Meta, ToolUseRequest},
    tool::{CallId, ErrorCode, Execution, Outcome, ToolError, ToolName},
    transport::Identity,
    value::Value,
};

/// What makes an acknowledgement a claim.
const CLAIM: &str = "claim";

/// A call that we claimed and may not start yet.
#[derive(Debug)]
pub(super) struct Claim {
    /// The name of the job that it becomes.
    pub(super) job: JobKey,
    /// The stanza under which the claim was sent.
    stanza: i32,
    /// The stanza of the request.
    of: Option<i32>,
    request: ToolUseRequest,
    meta: Value,
    pub(super) tool: ToolName,
    began: Instant,
    limit: Duration,
}

pub(super) fn is_claim(it: &Acknowledgement) -> bool {
    it.notes.as_deref() == Some(CLAIM)
}

impl Claim {
    /// The size of the arguments in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.request.parameters.as_bytes().len()
    }
}

impl Table {
    /// The claims that were not answered, with their places in the order of frames.
    pub(super) fn claims_kept(&self) -> Vec<(u32, CallId)> {
        self.claims.iter().map(|(call, claim)| (place(Some(claim.stanza)), call.clone())).collect()
    }

    /// The call that was claimed under this stanza. Claims count among the caller's 64 open calls, so they are few.
    fn claimed_as(&self, stanza: i32) -> Option<CallId> {
        self.claims.iter().find(|(_, claim)| claim.stanza == stanza).map(|(call, _)| call.clone())
    }
}

impl Session {
    /// Client: whether a request must be claimed before it starts. One that we would refuse is refused at once.
    pub(super) fn must_claim(&self, id: &Identity, request: &ToolUseRequest) -> bool {
        let grants = self.peers.get(id).is_some_and(|it| it.lists(Feature::Claim) && it.lists(Feature::Ack));
        grants && request.execution == Ok(Execution::Either) && self.judge_request(request).is_ok()
    }

    /// Client: claims a request. The claim says too that the request came.
    pub(super) fn claim(
        &mut self,
        now: Instant,
        id: &Identity,
        of: Option<i32>,
        request: ToolUseRequest,
        meta: Value,
    ) {
        let Ok((tool, limit)) = self.judge_request(&request) else { return };
        let message = self.claim_message(of, &request.id);
        let Some(sent) = self.post_small(id, &message) else { return };
        let job = self.next_job();
        let keep = limit.saturating_add(self.config.times.memory);
        self.timers.set(now, Timer::ClaimDeadline(job), limit);
        let table = self.tables.entry(id.clone()).or_default();
        table.begin(&request, of, keep, job);
        let call = request.id.clone();
        let claim = Claim { job, stanza: sent.stanza, of, request, meta, tool, began: now, limit };
        table.claim(&call, claim);
    }

    /// Client: sends a claim once more, under its own stanza. None if it was answered.
    pub(super) fn claim_again(&mut self, id: &Identity, call: &CallId) -> Option<Sent> {
        let claim = self.tables.get(id)?.claims.get(call)?;
        let (stanza, message) = (claim.stanza, self.claim_message(claim.of, call));
        let sent = self.post_again(id, stanza, &Meta::default(), &message);
        sent.inspect_err(|error| tracing::warn!(%call, ?error, "a claim cannot be sent again")).ok()
    }

    /// Client: sends all claims once more that were not answered: they, or their answers, may never have left.
    pub(super) fn claims_again(&mut self, id: &Identity) {
        for (_, call) in self.tables.get(id).map(Table::claims_kept).unwrap_or_default() {
            self.claim_again(id, &call);
        }
    }

    /// Client: an acknowledgement may be the answer to a claim. Nothing but a plain yes starts the call.
    pub(super) fn claim_answered(
        &mut self,
        now: Instant,
        id: &Identity,
        stanza: i32,
        it: &Acknowledgement,
    ) -> bool {
        let Some(table) = self.tables.get_mut(id) else { return false };
        let named = it.acknowledged_message_id.as_deref();
        let claimed = table.claimed_as(stanza).filter(|call| codec::may_mean(named, call));
        let Some(call) = claimed else { return false };
        if it.success != Some(true) {
            if let Some(claim) = table.denied(now, &call) {
                self.timers.cancel(&Timer::ClaimDeadline(claim.job));
            }
            self.set_table_timer(now, id);
        } else if let Some(claim) = table.granted(&call) {
            self.start_claimed(now, id, claim);
        }
        true
    }

    /// Client: the caller stopped a call before it let us start.
    pub(super) fn cancel_claim(&mut self, now: Instant, id: &Identity, call: &CallId) {
        self.end_claim(now, id, call, Err(ToolError::cancelled()));
    }

    /// Client: a caller is gone, and so nothing that we claimed starts.
    pub(super) fn end_claims_for(&mut self, now: Instant, id: &Identity) {
        for (_, call) in self.tables.get(id).map(Table::claims_kept).unwrap_or_default() {
            self.cancel_claim(now, id, &call);
        }
    }

    /// Client: we are about to leave, and what has not started does not start any more.
    pub(super) fn give_claims_back(&mut self, now: Instant) {
        let callers: Vec<_> = self.tables.keys().cloned().collect();
        for id in callers {
            for (_, call) in self.tables.get(&id).map(Table::claims_kept).unwrap_or_default() {
                let error = ToolError::new(ErrorCode::BUSY, "the client is leaving; nothing ran");
                self.end_claim(now, &id, &call, Err(error));
            }
        }
    }

    /// Client: the budget of a call is used up before we were allowed to start.
    pub(super) fn claim_deadline(&mut self, now: Instant, key: JobKey) {
        let found = self.tables.iter().find_map(|(id, table)| {
            let (call, claim) = table.claims.iter().find(|(_, claim)| claim.job == key)?;
            Some((id.clone(), call.clone(), claim.limit))
        });
        if let Some((id, call, limit)) = found {
            let text = format!("not allowed to start within {} ms; nothing ran", limit.as_millis());
            self.end_claim(now, &id, &call, Err(ToolError::new(ErrorCode::TIMEOUT, text)));
        }
    }

    fn end_claim(&mut self, now: Instant, id: &Identity, call: &CallId, outcome: Outcome) {
        let Some(claim) = self.tables.get_mut(id).and_then(|table| table.claims.remove(call)) else { return };
        self.timers.cancel(&Timer::ClaimDeadline(claim.job));
        self.answer(now, id, call, outcome);
    }

    /// The call is ours, and counts from when it came.
    fn start_claimed(&mut self, now: Instant, id: &Identity, claim: Claim) {
        let Claim { job, request, meta, tool, began, limit, .. } = claim;
        self.timers.cancel(&Timer::ClaimDeadline(job));
        if let Err(refused) = self.judge_request(&request) {
            return self.answer(now, id, &request.id, refused); // the tool was withdrawn meanwhile
        }
        self.asked_of_us(id, &request);
        self.begin_job(began, job, id, request, &tool, limit, meta);
    }

    fn claim_message(&self, of: Option<i32>, call: &CallId) -> Message {
        Message::Acknowledgement(Acknowledgement {
            conversation_id: Some(self.config.room.clone()),
            acknowledged_stanza_id: of,
            success: Some(true),
            acknowledged_message_id: Some(call.as_str().to_owned()),
            notes: Some(CLAIM.to_owned()),
            ..Acknowledgement::default()
        })
    }
}
