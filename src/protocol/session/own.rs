//! Calls that the assistant runs itself: broadcast, so that the room can follow (`wire.md`, section 4).

use std::time::Instant;

use super::{
    CallKey, JobKey, Output, Session, Timer,
    answer::result_message,
    job::{Running, Told},
    outbound::{Call, Stage, milliseconds},
    send::Unfit,
};
use crate::{
    protocol::frame::{Message, Meta, ToolUseRequest},
    tool::{CallError, ErrorCode, Execution, NotOffered, Outcome, ToolError, ToolName, Visibility},
    value::Value,
};

impl Session {
    /// Begins a call of a tool that we offer ourselves.
    pub(super) fn run_own(&mut self, now: Instant, call: Call, tool: &ToolName) -> CallKey {
        let key = self.insert_call(now, call);
        self.run_here(now, key, tool);
        key
    }

    /// Runs an open call of such a tool, in the time that is left of it.
    pub(super) fn run_here(&mut self, now: Instant, key: CallKey, tool: &ToolName) {
        let Some(asked) = self.calls.get(&key).map(|call| call.limit) else { return };
        let Some(known) = self.tools.iter().find(|it| it.name() == tool) else {
            // It was withdrawn while a client was asked first.
            let why = NotOffered::NoSuchTool { owner: None, similar: None };
            let unknown = CallError::unknown_tool(tool.as_str(), why);
            return self.conclude(now, key, Err(unknown));
        };
        let (own, disclose) = (self.limit_of(known, asked), known.tool_options().disclose);
        let job = self.next_job();
        self.calls.set_stage(key, Stage::Own(job));
        let Some(call) = self.calls.get_mut(&key) else { return };
        let mut limit = call.limit.saturating_sub(now.saturating_duration_since(call.began));
        if own < limit {
            (limit, call.limit) = (own, own);
        }
        let request = ToolUseRequest {
            id: call.id.clone(),
            tool_name: tool.to_string(),
            parameters: call.arguments.clone(),
            execution: Ok(Execution::Server),
            timeout_ms: Some(milliseconds(limit)),
            conversation_id: Some(self.config.room.clone()),
            message_id: None,
        };
        let (meta, arguments) = (call.meta.clone(), call.arguments.clone());
        let running = Running {
            caller: self.local.identity().clone(),
            join: self.local.sid().clone(),
            own: Some(key),
            call: call.id.clone(),
            tool: tool.clone(),
            began: now,
            limit,
            bytes: arguments.as_bytes().len(),
            disclose,
            told: Told::default(),
        };
        self.timers.set(now, Timer::Deadline(key), limit);
        self.disclose(tool, disclose, &meta, Message::ToolUseRequest(request));
        self.requested(now, key);
        self.start(now, job, running, arguments, meta.to_body());
    }

    /// Our tool has its outcome.
    pub(super) fn own_finished(&mut self, now: Instant, key: CallKey, job: &Running, outcome: Outcome) {
        let Some(call) = self.calls.get(&key) else { return };
        let (limit, tool, began) = (call.limit, call.tool.clone(), job.told.anything());
        let (shown, result) = match outcome {
            Ok(body) => (Ok(body.clone()), Ok(body)),
            Err(error) => {
                let shown = ToolError::new(error.code(), error.message());
                let result = match error.code().as_str() {
                    "timeout" => CallError::Timeout { limit },
                    "cancelled" => CallError::Cancelled,
                    "unknown_tool" if !began => {
                        let owner = self.local.identity().clone();
                        CallError::unknown_tool(&tool, NotOffered::Declined { owner })
                    }
                    "busy" if !began => CallError::Busy { owner: self.local.identity().clone() },
                    _ => CallError::Tool(error.of_begun(began)),
                };
                (Err(shown), Err(result))
            }
        };
        self.disclose_outcome(job, shown);
        self.conclude(now, key, result);
    }

    /// We end a call of our own tool: it stops.
    pub(super) fn end_own(
        &mut self,
        now: Instant,
        key: CallKey,
        job: JobKey,
        result: Result<Value, CallError>,
    ) {
        if let Some(running) = self.forget_job(job) {
            self.outputs.push_back(Output::Abort(job));
            let outcome = match &result {
                Err(CallError::Timeout { limit }) => Err(ToolError::new(
                    ErrorCode::TIMEOUT,
                    format!("no result within {} ms", limit.as_millis()),
                )),
                _ => Err(ToolError::cancelled()),
            };
            self.disclose_outcome(&running, outcome);
        }
        self.conclude(now, key, result);
    }

    fn disclose_outcome(&mut self, job: &Running, outcome: Outcome) {
        let message = result_message(&self.config.room, &job.call, outcome);
        self.disclose(&job.tool, job.disclose, &Meta::default(), message);
    }

    /// Broadcasts at the tool's level. What does not fit a packet is cut down to the name.
    fn disclose(&mut self, tool: &ToolName, level: Visibility, meta: &Meta, message: Message) {
        let sent = match level {
            Visibility::Nothing => return,
            Visibility::Full => match self.broadcast(meta, &message) {
                Err(Unfit::TooLarge { size, limit }) => {
                    tracing::info!(%tool, size, limit, "too large for a broadcast: the room hears the name only");
                    self.broadcast(&Meta::default(), &name_only(message))
                }
                sent => sent,
            },
            Visibility::Name => self.broadcast(&Meta::default(), &name_only(message)),
        };
        if let Err(error) = sent {
            tracing::warn!(%tool, ?error, "a call of our own cannot be broadcast");
        }
    }
}

/// A request or result without what it is about.
fn name_only(message: Message) -> Message {
    match message {
        Message::ToolUseRequest(request) => {
            Message::ToolUseRequest(ToolUseRequest { parameters: Value::empty(), ..request })
        }
        Message::ToolUseResult(mut result) => {
            result.result = None;
            result.error_message = result.error_message.map(|_| ToolError::LOCAL_MESSAGE.to_owned());
            Message::ToolUseResult(result)
        }
        other => other,
    }
}
