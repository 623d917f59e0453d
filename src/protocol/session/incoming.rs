//! Handles requests from peers: checks, remembers, runs and answers them. Only a client receives any.

mod claims;
mod form;
mod observed;
mod request_cache;
mod results;

use std::time::Duration;

pub(super) use self::form::respond;
pub(super) use self::request_cache::Refusal;
pub(super) use self::results::too_large;
use self::{
    form::{Form, refuse, send_refusal},
    observed::Observed,
    request_cache::{RequestCache, RequestState, fingerprint},
};
use super::{
    Counter, Event,
    codec::{NOTHING_RAN, Received, result_message},
    core::Core,
    delivery::Purpose,
    ids,
    jobs::{Ended, Held, Joins, Reported, Running},
    peers::Remote,
    timers::Timer,
};
use crate::{
    clock::{Instant, later},
    protocol::frame::{ControlStop, Meta, ToolUseRequest},
    sorted::SortedMap,
    tool::{
        CallId, DEFAULT_TIMEOUT, ErrorCode, Execution, Outcome, StopReason, ToolError, ToolName, Visibility,
        not_offered::shown,
    },
    transport::{Identity, Sid},
    value::Value,
};

/// Why a client that leaves refuses a call.
pub(super) const LEAVING: &str = "the client is leaving";

/// The requests from peers.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    caches: SortedMap<Identity, RequestCache>,
    pub(super) observed: Observed,
    /// Whether the client is about to leave. It then refuses each request.
    is_draining: bool,
}

/// A request from a peer.
#[derive(Debug)]
pub(super) struct InboundRequest {
    pub(super) caller: Identity,
    pub(super) stanza: Option<i32>,
    pub(super) request: ToolUseRequest,
    /// The application's metadata: a map.
    pub(super) meta: Value,
    /// The address in `bridge.to`.
    pub(super) address: Option<String>,
    /// The room that the envelope names.
    pub(super) conversation: Option<String>,
    /// How it was sent.
    form: Form,
}

impl InboundRequest {
    fn new(caller: &Identity, request: ToolUseRequest, form: Form) -> Self {
        let (meta, caller) = (Value::empty(), caller.clone());
        Self { caller, stanza: None, request, meta, address: None, conversation: None, form }
    }

    /// Creates the request in a frame.
    pub(super) fn in_frame(caller: &Identity, received: &Received, request: ToolUseRequest) -> Self {
        Self {
            stanza: received.stanza(),
            meta: received.frame.meta_body(),
            address: received.addressed_to().map(str::to_owned),
            conversation: received.conversation().map(str::to_owned),
            ..Self::new(caller, request, Form::Frame)
        }
    }

    /// Returns whether the client would run it for its assistant. Only such a request can bind its sender.
    pub(super) fn is_acceptable(&self, core: &Core) -> bool {
        self.is_broadcast() || !matches!(check_request(core, &self.request), Err(Err(_)))
    }

    /// Returns whether the assistant runs the call itself and only shows it.
    pub(super) fn is_broadcast(&self) -> bool {
        self.request.execution == Ok(Execution::Server)
    }

    /// Returns whether the sender uses the plain form, if none of its Configurations has arrived.
    pub(super) fn is_plain(&self) -> bool {
        self.form.is_frame() && !self.is_broadcast() && self.address.is_none()
    }

    fn id(&self) -> &CallId {
        &self.request.id
    }
}

impl Incoming {
    /// Handles a request. `may_be_bound` states whether its sender may become the client's assistant.
    pub(super) fn handle_request(&mut self, core: &mut Core, inbound: InboundRequest, may_be_bound: bool) {
        let InboundRequest { caller, request, .. } = &inbound;
        let is_named = !inbound.form.is_frame() && core.cx.config.rpc_callers.contains(caller);
        if !is_named && !core.peers.is_bound(&core.cx, caller) {
            // A request by RPC was counted before its payload was read.
            let may_answer = !inbound.form.is_frame() || core.peers.may_answer_request(&core.cx, caller);
            if inbound.is_broadcast() || !self.knows(caller, &request.id) {
                core.cx.complain(caller, Counter::Unauthorized);
                if !inbound.is_broadcast() && may_answer {
                    self.deny(core, &inbound, may_be_bound);
                }
            } else if may_answer {
                // The request arrived before, while its sender was bound. The answer from then remains valid.
                self.take(core, inbound);
            }
            return;
        }
        if inbound.form.is_frame() {
            self.resume(caller); // it is here, whatever was concluded from its silence
        }
        let rooms = [inbound.conversation.as_deref(), request.conversation_id.as_deref()];
        if rooms.iter().any(|room| core.cx.is_other_room(*room)) {
            core.cx.complain(caller, Counter::WrongRoom);
            return refuse(core, &inbound, 201, "the request names another room");
        }
        match request.execution {
            Err(_) => {
                core.cx.count(Counter::Refused);
                refuse(core, &inbound, 301, "`execution` must be server, client or either");
            }
            Ok(Execution::Server) => self.observed.begin(core, caller, request),
            // An assistant without claims sends the call only to this client.
            Ok(Execution::Client | Execution::Either) => self.take(core, inbound),
        }
    }

    /// Handles a caller's stop of one of its calls, or of all calls that a barge-in would stop.
    pub(super) fn handle_stop(
        &mut self,
        core: &mut Core,
        id: &Identity,
        stanza: Option<i32>,
        stop: &ControlStop,
    ) {
        core.to(id).acknowledge_always(stanza, None);
        let reason = stop.reason.as_deref().and_then(StopReason::from_text);
        match &stop.target_id {
            Some(target) => {
                let reason = reason.unwrap_or(StopReason::Caller);
                self.stop_one(core, id, stanza, &CallId::known(target.as_str()), reason);
            }
            None => {
                for key in core.jobs.cancellable_for(&core.cx, id) {
                    self.cancel_job(core, key, reason.unwrap_or(StopReason::BargeIn));
                }
                // Whichever rule their tools have for a barge-in: `finish` and `report` concern tools that
                // have started.
                self.end_claims_for(core, id, |_| true); // none of them has started
            }
        }
    }

    /// Stops the jobs of a caller that has gone, and its claims: all, or those of these joins. Their results are kept in case it
    /// comes back.
    pub(super) fn stop_jobs_of(&mut self, core: &mut Core, id: &Identity, is_it: impl Fn(&Joins) -> bool) {
        for key in core.jobs.keys_of(id, |job| is_it(&job.joins)) {
            self.cancel_job(core, key, StopReason::CallerGone);
        }
        self.end_claims_for(core, id, is_it);
    }

    /// Continues what a caller requested in the earlier join, if any, of the process that has proven itself in the present one.
    pub(super) fn continue_join(&mut self, core: &mut Core, caller: &Identity, earlier: Option<Sid>) {
        let here = core.peers.get(caller).and_then(Remote::sid);
        let Some((earlier, here)) = earlier.zip(here) else { return };
        core.jobs.move_to(here, caller, |job| job.joins.last == earlier);
        let claims = self.caches.get_mut(caller).into_iter().flat_map(|cache| cache.claims.values_mut());
        for claim in claims.filter(|claim| claim.joins.last == earlier) {
            claim.joins.last = here.clone();
        }
    }

    /// Continues what a caller requested by RPC in earlier joins: it calls so again, and an SDK keeps its requests.
    pub(super) fn continue_rpc(&mut self, core: &mut Core, caller: &Identity) {
        let Some(here) = core.peers.get(caller).and_then(Remote::sid) else { return };
        core.jobs.move_to(here, caller, |job| !self.is_in_frames(caller, &job.call));
    }

    /// Ends what a caller that has shown no process requested by frames in earlier joins: this one is of another program.
    pub(super) fn end_earlier_joins(&mut self, core: &mut Core, caller: &Identity) {
        let Some(join) = core.peers.get(caller).and_then(Remote::sid).cloned() else { return };
        let is_earlier = |job: &Running| job.joins.first != join && self.is_in_frames(caller, &job.call);
        for key in core.jobs.keys_of(caller, is_earlier) {
            self.cancel_job(core, key, StopReason::CallerGone);
        }
        self.change(core, caller, |cache, now| _ = cache.end_frames(now));
    }

    /// Handles the end of a peer's job.
    pub(super) fn job_ended(&mut self, core: &mut Core, ended: Ended) {
        let Ended { job, outcome, .. } = ended;
        core.cx.log.result_size(&job.caller, &job.call, &outcome);
        let took = core.cx.now.saturating_duration_since(job.began);
        settled(core, &job.caller, &job.call, job.tool.to_string(), &outcome, took);
        self.answer(core, &job.caller, &job.call, outcome, job.reported.began());
    }

    /// Handles a job that stops because the local participant leaves. A peer that receives a goodbye needs no answer; a
    /// plain peer is sent one.
    pub(super) fn job_aborted(&mut self, core: &mut Core, ended: Ended) {
        let Ended { job, outcome, .. } = ended;
        // A plain peer does not know what a goodbye is, and one that calls by RPC neither: only a result ends its call.
        if core.peers.get(&job.caller).is_some_and(Remote::is_plain)
            || !self.is_in_frames(&job.caller, &job.call)
        {
            self.answer(core, &job.caller, &job.call, outcome, job.reported.began());
        }
    }

    /// Sends a caller the claims and results again that were not sent.
    pub(super) fn send_unsent(&mut self, core: &mut Core, id: &Identity) {
        for call in core.delivery.claims_unsent(id) {
            self.claim_again(core, id, &call);
        }
        self.send_waiting_results(core, id);
    }

    /// Refuses all further requests and gives up the claims.
    pub(super) fn drain(&mut self, core: &mut Core) {
        self.is_draining = true;
        // A grant that arrived now would start a tool while the client leaves. The `busy` lets the caller go
        // on at once (`wire.md`, section 4.8).
        self.release_claims(core);
    }

    /// Ends the calls of which nothing can have run, because the client leaves: the goodbye would leave that open.
    pub(super) fn refuse_unstarted(&mut self, core: &mut Core) {
        self.release_claims(core);
        for key in core.jobs.awaiting_consent_of_peers() {
            let ended = core.abort_job(key, StopReason::Leaving, leaving());
            ended.into_iter().for_each(|ended| self.job_ended(core, ended));
        }
    }

    /// Returns whether a caller in the room has not acknowledged a result.
    pub(super) fn awaits_acknowledgement(&self) -> bool {
        self.caches.values().any(RequestCache::is_awaited)
    }

    /// Returns whether requests of this caller are remembered.
    pub(super) fn remembers(&self, id: &Identity) -> bool {
        self.caches.get(id).is_some_and(|cache| !cache.is_empty())
    }

    /// Returns whether this caller has not answered a claim.
    pub(super) fn has_claims_for(&self, id: &Identity) -> bool {
        self.caches.get(id).is_some_and(|cache| !cache.claims.is_empty())
    }

    pub(super) fn forget(&mut self, id: &Identity) {
        self.caches.remove(id);
    }

    pub(super) fn clear(&mut self) {
        self.caches.clear();
        self.observed = Observed::default();
    }

    #[cfg(test)]
    pub(super) fn longest_cache(&self) -> usize {
        self.caches.values().map(RequestCache::len).max().unwrap_or(0)
    }

    /// Notes that the caller has completed the handshake again.
    pub(super) fn resume(&mut self, id: &Identity) {
        if let Some(cache) = self.caches.get_mut(id) {
            cache.resume();
        }
    }

    /// Handles the end of the caller's grace period. Unacknowledged results are kept for as long as
    /// [`Times::memory`](super::Times::memory).
    pub(super) fn abandon(&mut self, core: &mut Core, id: &Identity) {
        let memory = core.cx.config.times.memory;
        self.change(core, id, |cache, now| cache.abandon(later(now, memory)));
    }

    /// Handles a caller's goodbye. Its results are no longer needed.
    pub(super) fn acknowledge_all(&mut self, core: &mut Core, id: &Identity) {
        core.delivery.forget_frames(id);
        self.change(core, id, RequestCache::acknowledge_all);
    }

    /// Notes that another instance of a caller has replaced this one. Returns the last stanza of the old instance, if
    /// it has made a request.
    pub(super) fn replace_instance(&mut self, core: &mut Core, id: &Identity) -> Option<u32> {
        let cache = self.caches.get_mut(id)?;
        core.delivery.forget_frames(id);
        Some(cache.next_instance(core.cx.now))
    }

    /// Changes a caller's remembered requests.
    fn change(&mut self, core: &mut Core, id: &Identity, how: impl FnOnce(&mut RequestCache, Instant)) {
        let Some(cache) = self.caches.get_mut(id) else { return };
        how(cache, core.cx.now);
        self.set_expiry(core, id);
    }

    /// Handles the return of a replaced instance. None of its earlier requests runs again.
    pub(super) fn raise_floor(&mut self, core: &mut Core, id: &Identity) {
        if let Some(last) = core.peers.get_mut(id).and_then(Remote::returned_at) {
            self.change(core, id, |cache, _| cache.raise_floor(last));
        }
    }

    /// Handles an instance that appears where a plain participant was. The stanzas of one process rise. A first stanza
    /// below the plain participant's indicates another process, so the requests of the plain one are forgotten.
    pub(super) fn forget_plain_run(&mut self, core: &mut Core, id: &Identity, stanza: Option<i32>) {
        let restarts = |cache: &RequestCache| stanza.is_some_and(|it| cache.has_received_above(it));
        if !self.caches.get(id).is_some_and(restarts) {
            return;
        }
        self.stop_jobs_of(core, id, |_| true);
        self.replace_instance(core, id);
    }

    /// Returns whether the answer to a call is a frame.
    fn is_in_frames(&self, caller: &Identity, call: &CallId) -> bool {
        self.caches.get(caller).and_then(|cache| cache.find(call)).is_none_or(|it| it.form.is_frame())
    }

    /// Returns whether a request of this caller and id is in the table.
    pub(super) fn knows(&self, caller: &Identity, call: &CallId) -> bool {
        self.caches.get(caller).is_some_and(|cache| cache.find(call).is_some())
    }

    fn cancel_job(&mut self, core: &mut Core, key: super::JobKey, reason: StopReason) {
        // The caller may return, and its call is still open then. `cancelled` would not say that nothing ran.
        let error = match reason {
            StopReason::CallerGone if core.jobs.awaits_consent(key) => {
                let text = "the question was withdrawn because the caller was away; nothing ran";
                ToolError::new(ErrorCode::PERMISSION_DENIED, text)
            }
            _ => ToolError::cancelled(),
        };
        core.abort_job(key, reason, error).into_iter().for_each(|ended| self.job_ended(core, ended));
    }

    /// Refuses the request of a participant that is not the bound assistant. If it may still become the assistant, the
    /// refusal is remembered, so that the same request cannot run later.
    fn deny(&mut self, core: &mut Core, inbound: &InboundRequest, may_be_bound: bool) {
        let refusal = match check_request(core, &inbound.request) {
            // It is the reason why the request has not bound its sender.
            Err(Err(error)) if may_be_bound && core.peers.bound().is_none() => {
                Refusal::new(error.code(), error.message())
            }
            _ => not_bound(core, &inbound.caller),
        };
        if may_be_bound {
            self.refuse(core, inbound, &refusal);
        } else {
            send_refusal(core, inbound, &refusal);
        }
    }

    /// Accepts a request that this client may have to run.
    fn take(&mut self, core: &mut Core, inbound: InboundRequest) {
        let InboundRequest { caller, stanza, request, .. } = &inbound;
        let local = ids::address_of(core.cx.ids.instance());
        if inbound.address.as_ref().is_some_and(|address| *address != local) {
            // Checked before the table is: a request for an earlier run of this program must find nothing of
            // this one (`wire.md`, section 5.1).
            return refuse_304(core, &inbound, "the request is for another instance");
        }
        let cache = self.caches.entry(caller.clone()).or_default();
        if let Some(entry) = cache.find(&request.id) {
            let is_same = entry.fingerprint == Some(fingerprint(request));
            let is_present = cache.is_present(entry, &inbound.form);
            return match &entry.state {
                // First, because a tombstone has no fingerprint: its request has never been seen.
                RequestState::Tombstone => {
                    core.to(caller).acknowledge(*stanza, Some(&request.id));
                    let refusal = Refusal::new(ErrorCode::CANCELLED, "the call was cancelled");
                    self.refuse(core, &inbound, &refusal);
                }
                _ if !is_same => refuse_304(core, &inbound, "another request has used this id"),
                // The cache entries of the instance that sent the request are gone.
                _ if !is_present => refuse_304(core, &inbound, "another instance sent this request"),
                state => {
                    core.cx.count(Counter::Duplicate);
                    match state {
                        RequestState::Refused(refusal) => {
                            send_refusal(core, &inbound, refusal);
                        }
                        RequestState::Done if !inbound.form.is_frame() => {
                            let why = "the request has run, and its answer is no longer kept";
                            refuse(core, &inbound, 304, why);
                        }
                        RequestState::Answered(_) if !inbound.form.is_frame() => {
                            self.answer_again(core, caller, &request.id);
                        }
                        _ => {
                            if self.claim_again(core, caller, &request.id).is_none() {
                                core.to(caller).acknowledge(*stanza, Some(&request.id));
                            }
                        }
                    }
                }
            };
        }
        let shows_instance = core.peers.get(caller).is_some_and(|remote| remote.present_instance().is_some());
        // A plain caller does not say when it starts again and counts from 1. With a floor, the first
        // requests of its new run would never run.
        if shows_instance && inbound.form.is_frame() && cache.is_below_floor(*stanza) {
            return refuse_304(core, &inbound, "the request is older than what is remembered");
        }
        if core.cx.local.cannot_publish() {
            core.cx.count(Counter::Refused);
            let text = format!("the token of this client does not allow it to send data{NOTHING_RAN}");
            // No result would arrive, so nothing runs.
            return self.refuse(core, &inbound, &Refusal::new(ErrorCode::PERMISSION_DENIED, text));
        }
        if is_prompt(core, &request.tool_name) && !core.peers.is_bound(&core.cx, caller) {
            core.cx.count(Counter::Refused);
            let text = format!("only the assistant of this client may ask its person{NOTHING_RAN}");
            return self.refuse(core, &inbound, &Refusal::new(ErrorCode::PERMISSION_DENIED, text));
        }
        // `has_room_for` counts the request against the rate and may drop an old entry, so everything that
        // can refuse it comes before.
        let room = self.may_prompt(core, &inbound).and_then(|()| self.has_room_for(core, &inbound));
        if let Err(limit) = room {
            core.cx.count(Counter::Busy);
            return self.refuse(core, &inbound, &Refusal::busy(&limit));
        }
        if must_claim(core, &inbound) {
            return self.claim(core, inbound);
        }
        // Not before the checks: until a refusal arrives, which is not kept, the request must stay
        // unacknowledged, so that it is sent and refused again (`wire.md`, section 5.1).
        core.to(caller).acknowledge(*stanza, Some(&request.id));
        self.run(core, inbound);
    }

    /// Runs a new request, or answers it at once.
    fn run(&mut self, core: &mut Core, inbound: InboundRequest) {
        let InboundRequest { caller, stanza, request, form, .. } = &inbound;
        let memory = core.cx.config.times.memory;
        requested(core, &inbound);
        let checked = check_request(core, request);
        let job = core.cx.next_job_key(); // the cache needs a key for a refused request too
        let limit = checked.as_ref().map_or(DEFAULT_TIMEOUT, |(_, limit)| *limit);
        // Before the job begins, which can end at once, and its answer belongs to this entry.
        if let Some(cache) = self.caches.get_mut(caller) {
            // A request by RPC cannot be on its way any longer: nothing repeats it.
            let budget = if form.is_frame() { limit } else { Duration::ZERO };
            let state = RequestState::Running(job);
            cache.begin(request, form.clone(), *stanza, budget.saturating_add(memory), state);
        }
        match checked {
            Ok((tool, limit)) => self.begin_job(core, core.cx.now, job, inbound, tool, limit),
            Err(refused) => {
                settled(core, caller, &request.id, request.tool_name.clone(), &refused, Duration::ZERO);
                self.answer(core, caller, &request.id, refused, false);
            }
        }
    }

    /// Starts the job of a request. Its time limit counts from `began`.
    fn begin_job(
        &mut self,
        core: &mut Core,
        began: Instant,
        key: super::JobKey,
        inbound: InboundRequest,
        tool: ToolName,
        limit: Duration,
    ) {
        let InboundRequest { caller, request, meta, form, .. } = inbound;
        let joins = Joins::new(core.peers.get(&caller).and_then(Remote::sid));
        let running = Running {
            caller,
            joins,
            own: None,
            call: request.id,
            tool,
            began,
            limit,
            bytes: request.parameters.as_bytes().len(),
            visibility: Visibility::Nothing,
            is_reported: false,
            reported: Reported::default(),
            is_silent: !form.is_frame(),
        };
        if let Some(ended) = core.start_job(key, running, request.parameters, meta) {
            self.job_ended(core, ended);
        }
    }

    /// Refuses a request and remembers that, so that it never runs.
    ///
    /// The answer is not kept. Until the caller has received it, the request stays unacknowledged, so it is sent and
    /// answered again.
    fn refuse(&mut self, core: &mut Core, inbound: &InboundRequest, refusal: &Refusal) {
        if !inbound.form.is_frame() {
            send_refusal(core, inbound, refusal);
            return; // nothing repeats it
        }
        let keep = DEFAULT_TIMEOUT.saturating_add(core.cx.config.times.memory);
        let cache = self.caches.entry(inbound.caller.clone()).or_default();
        cache.refuse(
            core.cx.now,
            &inbound.request,
            inbound.stanza,
            keep,
            refusal.clone(),
            &core.cx.config.caps,
        );
        self.set_expiry(core, &inbound.caller);
        let message = send_refusal(core, inbound, refusal);
        core.copy(&Meta::default(), &message);
    }

    /// Checks that one more prompt can be shown to a person. The error names the limit.
    fn may_prompt(&self, core: &Core, inbound: &InboundRequest) -> Result<(), String> {
        if !is_prompt(core, &inbound.request.tool_name) {
            return Ok(());
        }
        let claims = self.caches.get(&inbound.caller).into_iter().flat_map(|cache| cache.claims.values());
        let claimed = claims.filter(|claim| claim.tool.is_prompt()).count();
        let limit = core.cx.config.caps.requests.open_prompts;
        match core.jobs.prompts_of(&inbound.caller) + claimed < limit {
            true => Ok(()),
            false => Err(format!("{limit} prompts are open, which is the limit")),
        }
    }

    /// Checks that the caller may have one more call. The error names the limit. The echo is answered at once and runs
    /// nothing, so it has no rate limit.
    fn has_room_for(&mut self, core: &mut Core, inbound: &InboundRequest) -> Result<(), String> {
        let InboundRequest { caller, request, form, .. } = inbound;
        let is_counted = form.is_frame() && request.tool_name != ToolName::ECHO && !self.is_draining;
        if is_counted && !core.peers.may_answer_request(&core.cx, caller) {
            return Err(limit_of_rate(core));
        }
        self.has_room_to_run(core, caller, request.parameters.as_bytes().len())?;
        let caps = &core.cx.config.caps;
        let remembered = caps.requests.table_entries;
        let full = |_| {
            format!("{remembered} calls without an acknowledged result are remembered, which is the limit")
        };
        // Last, because it drops an entry, after which the floor is higher for good.
        self.caches.entry(inbound.caller.clone()).or_default().make_room(caps).map_err(full)
    }

    /// Checks that the caller may have one more call that runs. The error names the limit.
    fn has_room_to_run(&self, core: &Core, id: &Identity, more: usize) -> Result<(), String> {
        let caps = &core.cx.config.caps;
        if self.is_draining || core.peers.get(id).is_none() {
            return Err(LEAVING.to_owned());
        }
        let Held { jobs: running, bytes: held } = core.jobs.held_by(id);
        let claims = self.caches.get(id).map(|cache| &cache.claims);
        let held = claims.into_iter().flat_map(SortedMap::values).fold(held, |bytes, it| bytes + it.bytes());
        let bytes = caps.calls.open_bytes;
        // A single call may exceed the limit.
        if held > 0 && held.saturating_add(more) > bytes {
            return Err(format!("the limit is {bytes} bytes of arguments in open calls"));
        }
        let open = caps.calls.open_per_peer;
        if running + claims.map_or(0, SortedMap::len) >= open {
            return Err(format!("{open} calls are open, which is the limit"));
        }
        Ok(())
    }

    /// Handles a caller's stop of one of its calls.
    fn stop_one(
        &mut self,
        core: &mut Core,
        id: &Identity,
        stanza: Option<i32>,
        call: &CallId,
        reason: StopReason,
    ) {
        let found = self.caches.get(id).and_then(|cache| cache.find(call));
        match found.map(|entry| &entry.state) {
            Some(RequestState::Running(job)) => self.cancel_job(core, *job, reason),
            Some(RequestState::Claiming) => self.end_claim(core, id, call, Err(ToolError::cancelled())),
            Some(_) => {
                core.cx.count(Counter::Duplicate);
                self.withdraw_result(core, id, call);
            }
            None if core.peers.is_bound(&core.cx, id) => {
                // Only for the bound assistant: stops of others would fill the table. The request carries a
                // budget of at most this long, so it does not arrive later.
                let keep = core.cx.config.times.longest_call;
                let cache = self.caches.entry(id.clone()).or_default();
                cache.add_tombstone(core.cx.now, call, stanza, keep, &core.cx.config.caps);
                self.set_expiry(core, id);
            }
            None => {}
        }
    }
}

/// Returns the answer to a call that has not started when the client leaves.
fn leaving() -> ToolError {
    ToolError::new(ErrorCode::BUSY, format!("{LEAVING}{NOTHING_RAN}"))
}

/// Reports that this client must run a request.
fn requested(core: &mut Core, inbound: &InboundRequest) {
    core.cx.event(Event::Requested {
        call: inbound.id().clone(),
        tool: inbound.request.tool_name.clone(),
        execution: Execution::Client,
        owner: core.cx.local.identity().clone(),
        by: inbound.caller.clone(),
    });
}

/// Reports the end of a call that this client ran or refused.
fn settled(core: &mut Core, by: &Identity, call: &CallId, tool: String, outcome: &Outcome, took: Duration) {
    core.cx.event(Event::Settled {
        call: call.clone(),
        tool,
        execution: Execution::Client,
        owner: Some(core.cx.local.identity().clone()),
        by: by.clone(),
        outcome: outcome.as_ref().map(|_| ()).map_err(ToolError::code),
        took,
    });
}

/// Returns the tool and time limit of a valid request, or else the answer to it.
fn check_request(core: &Core, request: &ToolUseRequest) -> Result<(ToolName, Duration), Outcome> {
    let refuse = |code, message: String| Err(Err(ToolError::new(code, message)));
    let longest = core.cx.config.times.longest_call;
    let limit = match request.timeout_ms {
        None => DEFAULT_TIMEOUT,
        Some(asked) => match u64::try_from(asked).map(Duration::from_millis) {
            Ok(limit) if !limit.is_zero() && limit <= longest => limit,
            _ => {
                let text = format!("timeoutMs is {asked}; the allowed range is 1 to {}", longest.as_millis());
                return refuse(ErrorCode::INVALID_PARAMETERS, text);
            }
        },
    };
    if !request.parameters.is_map() {
        return refuse(ErrorCode::INVALID_PARAMETERS, "the parameters are not a map".to_owned());
    }
    if request.tool_name == ToolName::ECHO {
        return Err(Ok(request.parameters.clone()));
    }
    let tool = find_tool(core, &request.tool_name).map_err(Err)?;
    Ok((tool, limit))
}

/// Returns the name of a tool that this client runs, or the answer to a call of it.
fn find_tool(core: &Core, name: &str) -> Result<ToolName, ToolError> {
    let is_own = is_prompt(core, name) || name == ToolName::ECHO || core.cx.local.tool(name).is_some();
    name.parse().ok().filter(|_| is_own).ok_or_else(|| {
        let name: String = name.chars().take(crate::tool::MAX_TOOL_NAME).collect();
        ToolError::new(ErrorCode::UNKNOWN_TOOL, format!("no tool named {name:?} is offered here"))
    })
}

/// Returns whether a name is that of a prompt that this client answers.
fn is_prompt(core: &Core, name: &str) -> bool {
    core.cx.config.prompts && ToolName::PROMPTS.contains(&name)
}

/// Names the limit on the calls of a second.
fn limit_of_rate(core: &Core) -> String {
    format!("the limit is {} calls a second", core.cx.config.caps.requests.calls_per_second)
}

/// Returns whether a request must be claimed before it starts. A request that would be refused is refused at once.
fn must_claim(core: &Core, inbound: &InboundRequest) -> bool {
    core.peers.get(&inbound.caller).is_some_and(Remote::takes_claims)
        && inbound.request.execution == Ok(Execution::Either)
        && check_request(core, &inbound.request).is_ok()
}

/// Returns why a participant that is not the bound assistant is refused.
fn not_bound(core: &Core, caller: &Identity) -> Refusal {
    let name = shown(caller.as_str());
    if let Some(why) = core.peers.why_not_assistant(&core.cx, caller) {
        let text = format!("this client does not accept {name} as its assistant: {}", why.explain(&name));
        return Refusal::new(ErrorCode::PERMISSION_DENIED, text);
    }
    let text = match (&core.cx.config.assistant, core.peers.bound()) {
        (Some(named), _) if named != caller => format!(
            "this client accepts no other assistant than {}, which its author named: name {name} as the client's assistant",
            shown(named.as_str())
        ),
        (_, Some(bound)) => format!(
            "this client is bound to another assistant, {}, and serves one at a time: close that one, or name {name} as the \
             client's assistant",
            shown(bound.as_str())
        ),
        (_, None) => format!(
            "this client is bound to no assistant, because there are several: close the others, or name {name} as the \
             client's assistant"
        ),
    };
    Refusal { is_unbound: true, ..Refusal::new(ErrorCode::PERMISSION_DENIED, text) }
}

fn refuse_304(core: &mut Core, inbound: &InboundRequest, why: &str) {
    core.cx.count(Counter::Refused);
    refuse(core, inbound, 304, why);
}
