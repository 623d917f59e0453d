//! Claims calls (`wire.md`, section 4.8): a client runs an `either` call only after the assistant grants its
//! claim.
//!
//! This is the owner's half. A request whose execution is `either` is claimed by an acknowledgement that has a stanza.
//! The call starts when that claim is acknowledged with success. The assistant's half is `outgoing/fallback.rs`.

use std::time::Duration;

use super::{
    Core, Form, InboundRequest, Incoming, Purpose, RequestState, Timer, check_request, leaving, requested,
};
use crate::{
    clock::Instant,
    protocol::{
        frame::{Acknowledgement, Message, Meta},
        session::{JobKey, delivery::Sent, jobs::Joins, peers::Remote},
    },
    tool::{CallId, ErrorCode, Outcome, ToolError, ToolName},
    transport::Identity,
};

/// A claimed call that may not start yet.
#[derive(Debug)]
pub(super) struct Claim {
    /// The key that its job will have.
    pub(super) job: JobKey,
    /// The stanza under which the claim was sent.
    stanza: i32,
    inbound: InboundRequest,
    pub(super) tool: ToolName,
    began: Instant,
    limit: Duration,
    pub(super) joins: Joins,
}

impl Claim {
    /// Returns the size of the arguments, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.inbound.request.parameters.as_bytes().len()
    }
}

impl Incoming {
    /// Sends all unanswered claims again, since they or their answers may not have been sent.
    pub(crate) fn claims_again(&mut self, core: &mut Core, id: &Identity) {
        for call in self.claimed_of(id) {
            self.claim_again(core, id, &call);
        }
    }

    /// Handles the end of a call's time limit before the claim was granted.
    pub(crate) fn handle_claim_deadline(&mut self, core: &mut Core, key: JobKey) {
        let found = self.caches.iter().find_map(|(id, cache)| {
            let (call, claim) = cache.claims.iter().find(|(_, claim)| claim.job == key)?;
            Some((id.clone(), call.clone(), claim.limit))
        });
        if let Some((id, call, limit)) = found {
            let text = format!("not allowed to start within {} ms; nothing ran", limit.as_millis());
            self.end_claim(core, &id, &call, Err(ToolError::new(ErrorCode::TIMEOUT, text)));
        }
    }

    /// Claims a request. The claim also acknowledges the request.
    pub(super) fn claim(&mut self, core: &mut Core, inbound: InboundRequest) {
        let Ok((tool, limit)) = check_request(core, &inbound.request) else { return };
        let call = inbound.request.id.clone();
        let message = claim_message(core, inbound.stanza, &call);
        // Before the table has an entry: a request that cannot be claimed stays unanswered, and the assistant
        // runs the call when its window ends.
        let purpose = Some(Purpose::Claim(call.clone()));
        let Some(sent) = core.to(&inbound.caller).post_small(&message, purpose) else { return };
        let job = core.cx.next_job_key();
        let keep = limit.saturating_add(core.cx.config.times.memory);
        core.cx.set_timer(Timer::ClaimDeadline(job), limit);
        let joins = Joins::new(core.peers.get(&inbound.caller).and_then(Remote::sid));
        let cache = self.caches.entry(inbound.caller.clone()).or_default();
        cache.begin(&inbound.request, Form::Frame, inbound.stanza, keep, RequestState::Claiming);
        let (stanza, began) = (sent.stanza, core.cx.now);
        cache.claims.insert(call, Claim { job, stanza, inbound, tool, began, limit, joins });
    }

    /// Sends a claim again, under its stanza. Returns `None` if it was answered.
    pub(super) fn claim_again(&mut self, core: &mut Core, id: &Identity, call: &CallId) -> Option<Sent> {
        core.peers.get(id).filter(|remote| remote.is_reachable())?;
        let claim = self.caches.get(id)?.claims.get(call)?;
        let (stanza, message) = (claim.stanza, claim_message(core, claim.inbound.stanza, call));
        // Under the claim's stanza, so that the answers to both are answers to one record.
        let purpose = Some(Purpose::Claim(call.clone()));
        let sent = core.to(id).post_again(stanza, &Meta::default(), &message, purpose);
        sent.inspect_err(|error| tracing::warn!(%call, ?error, "a claim cannot be sent again")).ok()
    }

    /// Handles the caller's answer to a claim. Only a success starts the call.
    pub(super) fn handle_claim_answer(
        &mut self,
        core: &mut Core,
        id: &Identity,
        call: &CallId,
        success: Option<bool>,
    ) {
        let Some(cache) = self.caches.get_mut(id) else { return };
        // A missing `success` is a refusal too: a tool must not start because a field was left out.
        if success != Some(true) {
            if let Some(claim) = cache.denied(core.cx.now, call) {
                core.cx.timers.cancel(&Timer::ClaimDeadline(claim.job));
            }
            self.set_expiry(core, id);
        } else if let Some(claim) = cache.granted(call) {
            self.start_claimed(core, claim);
        }
    }

    /// Ends the claims for requests of a caller in these joins, from which it has gone. None of the calls starts.
    pub(super) fn end_claims_for(&mut self, core: &mut Core, id: &Identity, is_of: impl Fn(&Joins) -> bool) {
        let Some(cache) = self.caches.get(id) else { return };
        let its = cache.claims.iter().filter(|(_, claim)| is_of(&claim.joins));
        for call in its.map(|(call, _)| call.clone()).collect::<Vec<_>>() {
            self.end_claim(core, id, &call, Err(ToolError::cancelled()));
        }
    }

    /// Gives up all claims because the client is about to leave.
    pub(super) fn release_claims(&mut self, core: &mut Core) {
        let callers: Vec<_> = self.caches.keys().cloned().collect();
        for id in callers {
            for call in self.claimed_of(&id) {
                self.end_claim(core, &id, &call, Err(leaving()));
            }
        }
    }

    pub(super) fn end_claim(&mut self, core: &mut Core, id: &Identity, call: &CallId, outcome: Outcome) {
        let Some(claim) = self.caches.get_mut(id).and_then(|cache| cache.claims.remove(call)) else { return };
        core.cx.timers.cancel(&Timer::ClaimDeadline(claim.job));
        if core.delivery.forget_frame(id, claim.stanza) {
            self.retransmit(core, id);
        }
        self.answer(core, id, call, outcome, false);
    }

    fn claimed_of(&self, id: &Identity) -> Vec<CallId> {
        self.caches.get(id).map(|cache| cache.claims.keys().cloned().collect()).unwrap_or_default()
    }

    /// Starts a call whose claim was granted. Its time limit counts from the arrival of the request.
    fn start_claimed(&mut self, core: &mut Core, claim: Claim) {
        let Claim { job, inbound, tool, began, limit, .. } = claim;
        core.cx.timers.cancel(&Timer::ClaimDeadline(job));
        if let Err(refused) = check_request(core, &inbound.request) {
            let call = inbound.request.id.clone();
            return self.answer(core, &inbound.caller, &call, refused, false); // the tool was withdrawn meanwhile
        }
        requested(core, &inbound);
        self.begin_job(core, began, job, inbound, tool, limit);
    }
}

fn claim_message(core: &Core, of: Option<i32>, call: &CallId) -> Message {
    Message::Acknowledgement(Acknowledgement {
        conversation_id: Some(core.cx.config.room.clone()),
        acknowledged_stanza_id: of,
        success: Some(true),
        acknowledged_message_id: Some(call.as_str().to_owned()),
        notes: Some(Acknowledgement::CLAIM.to_owned()),
        ..Acknowledgement::default()
    })
}
