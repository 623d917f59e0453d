//! Requests that come: judged, remembered, begun; and their answers on the way back.

use std::time::{Duration, Instant};

use super::{
    Counter, Event, Session,
    answer::result_message,
    codec,
    codec::Incoming,
    ids,
    job::HeldByJobs,
    table::{State, fingerprint},
};
use crate::{
    protocol::frame::{Message, Meta, ToolUseRequest, ToolUseResult},
    tool::{CallId, DEFAULT_TIMEOUT, ErrorCode, Execution, Outcome, ToolError, ToolName},
    transport::Identity,
    value::Value,
};

impl Session {
    /// Client: a request came.
    pub(super) fn request_came(
        &mut self,
        now: Instant,
        id: &Identity,
        incoming: &Incoming,
        request: ToolUseRequest,
    ) {
        let is_broadcast = request.execution == Ok(Execution::Server);
        let speaks = self.peers.get(id).is_some_and(|remote| self.is_candidate(id, remote));
        if speaks {
            self.speaks_plainly(now, id, incoming, is_broadcast);
        }
        if self.bound.as_ref() != Some(id) {
            let known = self.tables.get(id).is_some_and(|table| table.find(&request.id).is_some());
            if known && !is_broadcast {
                // It came before, while its sender was bound: what was said of it then stands.
                return self.request_for_us(now, id, incoming, request);
            }
            self.complain(now, id, Counter::Stranger);
            if !is_broadcast && self.may_deny(now, id) {
                self.deny_request(now, id, incoming.stanza(), &request, speaks);
            }
            return;
        }
        if self.is_other_room(incoming.conversation())
            || self.is_other_room(request.conversation_id.as_deref())
        {
            self.complain(now, id, Counter::WrongRoom);
            return self.refuse_request(id, 201, "this room carries another conversation", &request.id);
        }
        match request.execution {
            Err(_) => {
                self.stats.add(Counter::Refused, 1);
                self.refuse_request(id, 301, "`execution` must be server, client or either", &request.id);
            }
            Ok(Execution::Server) => self.observed_request(now, id, &request),
            // An assistant that lists no claims asks us, and nobody else.
            Ok(Execution::Client | Execution::Either) => self.request_for_us(now, id, incoming, request),
        }
    }

    /// Client: refuses the request of somebody who is not our assistant. One who may still become it is
    /// remembered to have been told so: the same request must not run later.
    fn deny_request(
        &mut self,
        now: Instant,
        id: &Identity,
        stanza: Option<i32>,
        request: &ToolUseRequest,
        may_be_bound: bool,
    ) {
        if may_be_bound && request.id.as_str().len() <= self.config.caps.id_bytes {
            self.refuse_with(now, id, stanza, request, &ErrorCode::PERMISSION_DENIED);
        } else {
            self.refuse_again(id, &request.id, &ErrorCode::PERMISSION_DENIED);
        }
    }

    /// Client: a call that the assistant runs itself: shown, and nothing else.
    fn observed_request(&mut self, now: Instant, id: &Identity, request: &ToolUseRequest) {
        if request.id.as_str().len() > self.config.caps.id_bytes {
            return self.complain(now, id, Counter::Malformed);
        }
        self.observed.began(now, &request.id, &request.tool_name);
        self.event(Event::Requested {
            call: request.id.clone(),
            tool: request.tool_name.clone(),
            execution: Execution::Server,
            owner: id.clone(),
            by: id.clone(),
        });
    }

    /// Client: the end of a call that the assistant ran itself.
    pub(super) fn observed_result(&mut self, now: Instant, id: &Identity, result: &ToolUseResult) {
        let Some((tool, since)) = self.observed.ended(&result.id) else {
            return self.stats.add(Counter::Late, 1); // it began before we came
        };
        let outcome = match result.success {
            true => Ok(()),
            false => Err(result.error_code.clone().unwrap_or(ErrorCode::EXECUTION_ERROR)),
        };
        self.event(Event::Settled {
            call: result.id.clone(),
            tool,
            execution: Execution::Server,
            owner: Some(id.clone()),
            outcome,
            took: now.saturating_duration_since(since),
        });
    }

    /// A request of a candidate is speech, and one without `bridge.to` is plain speech.
    fn speaks_plainly(&mut self, now: Instant, id: &Identity, incoming: &Incoming, is_broadcast: bool) {
        let Some(remote) = self.peers.get_mut(id) else { return };
        let is_news = !std::mem::replace(&mut remote.spoke, true);
        let plain = !remote.pair.heard && !is_broadcast && incoming.addressed_to().is_none();
        let anew = plain && !remote.pair.plain;
        if anew && let Some(before) = remote.instance.take() {
            self.new_instance(now, id, before); // whoever showed one has no need to speak plainly
        }
        if anew && let Some(remote) = self.peers.get_mut(id) {
            remote.pair.plain = true;
        }
        if is_news || anew {
            self.judge_candidates(now);
        }
        if anew {
            self.goes_on_plainly(now, id);
        }
    }

    /// A plain peer came, or came back: no Configuration of its will release what waited for one.
    fn goes_on_plainly(&mut self, now: Instant, id: &Identity) {
        let Some(remote) = self.peers.get_mut(id) else { return };
        let waiting = std::mem::take(&mut remote.pair.waiting);
        remote.pair.waiting_bytes = 0;
        for incoming in waiting {
            self.take(now, id, incoming);
        }
        self.send_waiting_answers(now, id);
    }

    /// Client: a request that we may have to run.
    fn request_for_us(&mut self, now: Instant, id: &Identity, incoming: &Incoming, request: ToolUseRequest) {
        let stanza = incoming.stanza();
        if request.id.as_str().len() > self.config.caps.id_bytes {
            return self.malformed(
                now,
                id,
                codec::Malformed { kind: None, id: Some(request.id.as_str().to_owned()) },
            );
        }
        let ours = ids::address_of(&self.ids.instance_for(id));
        if incoming.addressed_to().is_some_and(|address| address != ours) {
            return self.refuse_304(id, "the request is for another instance", &request.id);
        }
        let table = self.tables.entry(id.clone()).or_default();
        if let Some(entry) = table.find(&request.id) {
            let same = entry.fingerprint == Some(fingerprint(&request));
            let present = table.is_present(entry);
            return match &entry.state {
                State::Tombstone => self.request_of_stopped(now, id, stanza, &request),
                _ if !same => self.refuse_304(id, "another request had this id", &request.id),
                // What was known of it went with the instance that had asked.
                _ if !present => self.refuse_304(id, "another instance had asked for it", &request.id),
                State::Refused(code) => {
                    let code = code.clone();
                    self.stats.add(Counter::Duplicate, 1);
                    self.refuse_again(id, &request.id, &code);
                }
                _ => {
                    self.stats.add(Counter::Duplicate, 1);
                    if self.claim_again(id, &request.id).is_none() {
                        self.acknowledge(id, stanza, Some(&request.id));
                    }
                }
            };
        }
        let shows_instance = self.peers.get(id).is_some_and(|remote| remote.instance.is_some());
        if shows_instance && table.is_below_floor(stanza) {
            return self.refuse_304(id, "the request is older than what is remembered", &request.id);
        }
        if !self.has_attention(id, &request.tool_name) || !self.has_room_for(now, id, &request) {
            return self.refuse_for_load(now, id, stanza, &request);
        }
        let meta = incoming.frame.meta_body();
        if self.must_claim(id, &request) {
            return self.claim(now, id, stanza, request, meta);
        }
        self.acknowledge(id, stanza, Some(&request.id));
        self.take_request(now, id, stanza, request, meta);
    }

    /// Client: tells that a request is ours to run.
    pub(super) fn asked_of_us(&mut self, by: &Identity, request: &ToolUseRequest) {
        self.event(Event::Requested {
            call: request.id.clone(),
            tool: request.tool_name.clone(),
            execution: Execution::Client,
            owner: self.local.identity().clone(),
            by: by.clone(),
        });
    }

    /// Client: the request is new, and there is room for it.
    fn take_request(
        &mut self,
        now: Instant,
        id: &Identity,
        stanza: Option<i32>,
        request: ToolUseRequest,
        meta: Value,
    ) {
        let memory = self.config.times.memory;
        self.asked_of_us(id, &request);
        let refused = match self.judge_request(&request) {
            Ok((tool, limit)) => {
                let job = self.next_job();
                if let Some(table) = self.tables.get_mut(id) {
                    table.begin(&request, stanza, limit.saturating_add(memory), job);
                }
                return self.begin_job(now, job, id, request, &tool, limit, meta);
            }
            Err(outcome) => outcome,
        };
        let job = self.next_job(); // never runs; the table wants a name for it
        if let Some(table) = self.tables.get_mut(id) {
            table.begin(&request, stanza, DEFAULT_TIMEOUT.saturating_add(memory), job);
        }
        let outcome = refused.as_ref().map(|_| ()).map_err(ToolError::code);
        self.event(Event::Settled {
            call: request.id.clone(),
            tool: request.tool_name.clone(),
            execution: Execution::Client,
            owner: Some(self.local.identity().clone()),
            outcome,
            took: Duration::ZERO,
        });
        self.answer(now, id, &request.id, refused);
    }

    /// The tool and budget of a request that shall run; else its answer.
    pub(super) fn judge_request(&self, request: &ToolUseRequest) -> Result<(ToolName, Duration), Outcome> {
        let refuse = |code, message: String| Err(Err(ToolError::new(code, message)));
        let longest = self.config.times.longest_call;
        let limit = match request.timeout_ms {
            None => DEFAULT_TIMEOUT,
            Some(asked) => match u64::try_from(asked).map(Duration::from_millis) {
                Ok(limit) if !limit.is_zero() && limit <= longest => limit,
                _ => {
                    let text = format!("timeoutMs is {asked}; 1 to {} are allowed", longest.as_millis());
                    return refuse(ErrorCode::INVALID_PARAMETERS, text);
                }
            },
        };
        if !codec::is_map(&request.parameters) {
            return refuse(ErrorCode::INVALID_PARAMETERS, "the parameters are not a map".to_owned());
        }
        if request.tool_name == ToolName::ECHO {
            return Err(Ok(request.parameters.clone()));
        }
        if self.answers_prompt(&request.tool_name)
            && let Ok(prompt) = request.tool_name.parse()
        {
            return Ok((prompt, limit));
        }
        let known = self.tools.iter().find(|tool| tool.name().as_str() == request.tool_name);
        match known {
            Some(tool) => Ok((tool.name().clone(), self.limit_of(tool, limit))),
            None => {
                let name: String = request.tool_name.chars().take(crate::tool::MAX_TOOL_NAME).collect();
                refuse(ErrorCode::UNKNOWN_TOOL, format!("no tool named {name:?} is offered here"))
            }
        }
    }

    /// The request of a call that was stopped before it came.
    fn request_of_stopped(
        &mut self,
        now: Instant,
        id: &Identity,
        stanza: Option<i32>,
        request: &ToolUseRequest,
    ) {
        self.acknowledge(id, stanza, Some(&request.id));
        self.refuse_with(now, id, stanza, request, &ErrorCode::CANCELLED);
    }

    fn refuse_for_load(
        &mut self,
        now: Instant,
        id: &Identity,
        stanza: Option<i32>,
        request: &ToolUseRequest,
    ) {
        self.stats.add(Counter::Busy, 1);
        self.refuse_with(now, id, stanza, request, &ErrorCode::BUSY);
    }

    /// Refuses a request, and remembers that: it never runs. The answer is not kept: as long as the caller
    /// has not got it, nothing acknowledges the request, so that it comes again and is answered again.
    fn refuse_with(
        &mut self,
        now: Instant,
        id: &Identity,
        stanza: Option<i32>,
        request: &ToolUseRequest,
        code: &ErrorCode,
    ) {
        let keep = DEFAULT_TIMEOUT.saturating_add(self.config.times.memory);
        let table = self.tables.entry(id.clone()).or_default();
        table.refuse(now, request, stanza, keep, code.clone(), &self.config.caps);
        self.set_table_timer(now, id);
        let message = self.refuse_again(id, &request.id, code);
        self.copy(&Meta::default(), &message);
    }

    /// Says once more that a request was refused.
    fn refuse_again(&mut self, id: &Identity, call: &CallId, code: &ErrorCode) -> Message {
        let text = match code.as_str() {
            "busy" => "too many calls; nothing ran",
            "cancelled" => "the call was cancelled",
            _ => "this client listens to another assistant, or to none of several",
        };
        let message = result_message(&self.config.room, call, Err(ToolError::new(code.clone(), text)));
        self.post_small(id, &message);
        message
    }

    /// Whether the caller may ask for one more. The echo runs nothing and is answered at once: it has no rate.
    fn has_room_for(&mut self, now: Instant, id: &Identity, request: &ToolUseRequest) -> bool {
        let limits = &self.config.caps;
        let Some(remote) = self.peers.get_mut(id).filter(|_| !self.draining) else { return false };
        if request.tool_name != ToolName::ECHO && !remote.rate.admits(now, limits.calls_per_second) {
            return false;
        }
        let HeldByJobs { jobs: running, bytes: held } =
            self.held_by_jobs.get(id).copied().unwrap_or_default();
        let table = self.tables.entry(id.clone()).or_default();
        let held = table.claims.values().fold(held, |bytes, claim| bytes + claim.bytes());
        if held > 0 && held + request.parameters.as_bytes().len() > limits.open_bytes {
            return false; // one of any size always may be open
        }
        running + table.claims.len() < limits.open_per_peer && table.make_room(limits).is_ok()
    }

    fn refuse_304(&mut self, id: &Identity, why: &str, call: &CallId) {
        self.stats.add(Counter::Refused, 1);
        self.refuse_request(id, 304, why, call);
    }

    fn refuse_request(&mut self, id: &Identity, code: i32, why: &str, call: &CallId) {
        self.refuse_frame(id, code, why, Some(call.as_str().to_owned()));
    }
}
