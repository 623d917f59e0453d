//! Runs requests by RPC and answers them (`wire.md`, section 10).

use bytes::Bytes;

use super::{
    Core, Counter, InboundRequest, Incoming, Timer, check_request, requested,
    rpc_requests::{Key, RpcAnswer, RpcState, fingerprint},
};
use crate::{
    clock::later,
    protocol::{
        frame::{Message, ToolUseRequest},
        rpc::{self, RequestForm, RpcCall},
        session::{
            JobKey, QUEUE_WAIT, SendFailure,
            codec::{self, NOTHING_RAN},
            context::Context,
            delivery::text_packet,
            exchange::respond,
            peers::Remote,
        },
    },
    tool::{CallId, ErrorCode, Execution, Outcome, ToolError},
    transport::{Identity, Packet, Participant, RPC_RESPONSE_TOPIC, RpcError, RpcMessage, RpcResponse},
    value::Value,
};

impl Incoming {
    /// Handles a request by RPC with its payload, or with the reason why that cannot be read.
    pub(in crate::protocol::session) fn handle_rpc(
        &mut self,
        core: &mut Core,
        call: &RpcCall,
        payload: Result<Bytes, ToolError>,
    ) {
        let payload = match payload {
            Ok(payload) => payload,
            // Not remembered: the request has not arrived, and its caller may send it again.
            Err(error) => return refuse(core, call, &error),
        };
        let key: Key = (call.caller.clone(), CallId::known(&*call.id));
        let fingerprint = fingerprint(&call.method, &payload);
        if let Some(entry) = self.rpc.find(&key) {
            core.cx.count(Counter::Duplicate);
            if entry.fingerprint != fingerprint {
                core.cx.count(Counter::Refused);
                let error = ToolError::new(ErrorCode::EXECUTION_ERROR, "another request has used this id");
                return refuse(core, call, &error);
            }
            return match &entry.state {
                RpcState::Running => {}
                RpcState::Answered(_) | RpcState::Dropped => self.send_rpc_answer(core, &key),
            };
        }
        let caller = call.caller.identity();
        let arguments = rpc::arguments(&payload);
        let parameters = arguments.as_ref().map_or_else(|_| Value::empty(), Clone::clone);
        let longest = core.cx.config.times.longest_call.as_millis();
        let limit = u128::from(call.limit_ms()).min(longest);
        let mut request =
            ToolUseRequest::new(key.1.clone(), &*call.method, parameters, Ok(Execution::Client));
        request.timeout_ms = Some(i32::try_from(limit).unwrap_or(i32::MAX));
        let inbound = InboundRequest::by_rpc(caller, request);
        if let Err(error) = self.may_begin_rpc(core, &inbound) {
            return refuse(core, call, &error); // not remembered: there may be no room for it
        }
        requested(core, &inbound);
        let job = core.cx.next_job_key();
        self.rpc.begin(key.clone(), fingerprint, call.form, job);
        let checked = match arguments {
            Ok(_) => check_request(core, &inbound.request),
            Err(error) => Err(Err(error)),
        };
        match checked {
            Ok((tool, limit)) => self.begin_job(core, core.cx.now, job, inbound, tool, limit),
            Err(refused) => {
                let tool = inbound.request.tool_name.clone();
                self.settled(core, &key.1, tool, &refused, std::time::Duration::ZERO);
                self.rpc.take_job(job);
                self.answer_rpc(core, &key, refused);
            }
        }
    }

    /// Handles the end of a job that a request by RPC began.
    pub(super) fn rpc_job_ended(&mut self, core: &mut Core, job: JobKey, outcome: Outcome) {
        if let Some(key) = self.rpc.take_job(job) {
            self.answer_rpc(core, &key, outcome);
        }
    }

    /// Handles a packet that was not sent. Returns false if it had no answer to a request by RPC.
    pub(in crate::protocol::session) fn rpc_unsent(
        &mut self,
        core: &mut Core,
        packet: u64,
        why: &SendFailure,
    ) -> bool {
        if !rpc::IS_BUILT {
            return false;
        }
        let Some(key) = self.rpc.note_unsent(packet) else { return false };
        match why {
            SendFailure::TooLarge { size, limit } => {
                let text = format!("the result has {size} bytes; the limit is {limit} bytes");
                self.answer_rpc(core, &key, Err(ToolError::new(ErrorCode::RESULT_TOO_LARGE, text)));
            }
            SendFailure::NotAllowed => self.rpc.give_up(&key),
            // It is sent again when the connection is back.
            SendFailure::Interrupted => {}
            SendFailure::QueueFull | SendFailure::Closed | SendFailure::Other(_) => {
                core.cx.set_timer(Timer::Queue(key.0.identity().clone()), QUEUE_WAIT);
            }
        }
        true
    }

    /// Sends the answers that wait, to one caller or to all.
    pub(in crate::protocol::session) fn send_waiting_rpc(
        &mut self,
        core: &mut Core,
        caller: Option<&Identity>,
    ) {
        if !rpc::IS_BUILT {
            return;
        }
        for key in self.rpc.waiting(caller) {
            self.send_rpc_answer(core, &key);
        }
    }

    /// Handles the timer of the remembered requests.
    pub(in crate::protocol::session) fn expire_rpc(&mut self, core: &mut Core) {
        if rpc::IS_BUILT {
            self.rpc.expire(core.cx.now);
            self.set_rpc_expiry(core);
        }
    }

    /// Checks that a new request may run.
    fn may_begin_rpc(&mut self, core: &mut Core, inbound: &InboundRequest) -> Result<(), ToolError> {
        if core.cx.local.cannot_publish() {
            core.cx.count(Counter::Refused);
            let text = format!("the token of this client does not allow it to send data{NOTHING_RAN}");
            return Err(ToolError::new(ErrorCode::PERMISSION_DENIED, text));
        }
        let most = core.cx.config.caps.requests.table_entries;
        let full = || format!("{most} calls have no answer yet, which is the limit");
        let may_run = self.may_prompt(core, inbound).and_then(|()| self.has_room_to_run(core, inbound));
        // Last, because it forgets a request.
        let may_begin =
            may_run.and_then(|()| self.rpc.make_room(&inbound.caller, most).then_some(()).ok_or_else(full));
        may_begin.map_err(|limit| {
            core.cx.count(Counter::Busy);
            ToolError::new(ErrorCode::BUSY, format!("{limit}{NOTHING_RAN}"))
        })
    }

    /// Sets the answer of a request, and sends it.
    fn answer_rpc(&mut self, core: &mut Core, key: &Key, outcome: Outcome) {
        let Message::ToolUseResult(result) = codec::result_message(&core.cx.config.room, &key.1, outcome)
        else {
            return;
        };
        let mut answer = rpc::answer(&result);
        if let Ok(payload) = &answer
            && payload.len() > rpc::MAX_STREAM
        {
            answer = Err(too_large(payload.len(), rpc::MAX_STREAM));
        }
        let until = later(core.cx.now, core.cx.config.times.memory);
        self.rpc.answer(key, answer, until, core.cx.config.caps.requests.table_bytes);
        self.set_rpc_expiry(core);
        self.send_rpc_answer(core, key);
    }

    /// Sends the answer of a request, if its caller is in the room.
    fn send_rpc_answer(&mut self, core: &mut Core, key: &Key) {
        let caller = key.0.identity();
        let Core { cx, peers, delivery, .. } = core;
        // By identity: an SDK keeps its open requests when it joins again.
        let Some(remote) = peers.get(caller).filter(|remote| remote.is_here()) else { return };
        let Some(entry) = self.rpc.find(key) else { return };
        let answer = match &entry.state {
            RpcState::Running => return,
            RpcState::Answered(answer) => answer.clone(),
            RpcState::Dropped => Err(rpc::error(
                &ErrorCode::EXECUTION_ERROR,
                "the request has run, and its answer is no longer kept",
            )),
        };
        let packet = packet_of(cx, remote, key, entry.form, answer);
        let sent = delivery.send_rpc(cx, packet);
        self.rpc.note_sent(key, sent);
    }

    fn set_rpc_expiry(&self, core: &mut Core) {
        if let Some(at) = self.rpc.next_expiry() {
            core.cx.set_timer(Timer::RpcTable, at.saturating_duration_since(core.cx.now));
        }
    }
}

/// Refuses a request without remembering it. Nothing has run.
fn refuse(core: &mut Core, call: &RpcCall, error: &ToolError) {
    respond(core, call, Err(rpc::error(&error.code(), error.message())));
}

fn too_large(size: usize, limit: usize) -> RpcError {
    rpc::error(
        &ErrorCode::RESULT_TOO_LARGE,
        &format!("the result has {size} bytes; the limit is {limit} bytes"),
    )
}

/// Returns the packet of an answer, in the version of its request.
fn packet_of(cx: &mut Context, remote: &Remote, key: &Key, form: RequestForm, answer: RpcAnswer) -> Packet {
    let (caller, id) = (key.0.identity(), key.1.as_str());
    let response = |outcome| Packet::rpc(caller.clone(), RpcMessage::Response(RpcResponse::new(id, outcome)));
    let payload = match answer {
        Ok(payload) => payload,
        Err(error) => return response(Err(error)),
    };
    let is_small = payload.len() <= rpc::MAX_PAYLOAD;
    let (described, streams) = (remote.description(), cx.config.streams);
    let protocol = described.map_or(0, Participant::protocol);
    match form {
        RequestForm::Packet if is_small => response(Ok(payload)),
        RequestForm::Stream if !streams && is_small => response(Ok(payload)),
        RequestForm::Packet if protocol == 0 || !streams => {
            response(Err(too_large(payload.len(), rpc::MAX_PAYLOAD)))
        }
        RequestForm::Packet | RequestForm::Stream => {
            let attributes = rpc::result_attributes(id);
            text_packet(cx, caller, described, RPC_RESPONSE_TOPIC, attributes, payload)
        }
    }
}
