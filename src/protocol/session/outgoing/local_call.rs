//! Runs the assistant's own calls, and broadcasts them so that the room can follow (`wire.md`, section 4).

use std::time::Duration;

use super::{CallKey, Core, JobKey, Outgoing, Stage, Timer, outcome::reached_limit, tool_use};
use crate::{
    protocol::{
        frame::{Message, Meta},
        session::{
            Output,
            codec::result_message,
            disclosure::Discloser,
            jobs::{Ended, Joins, Reported, Running},
        },
    },
    tool::{
        CallError, ErrorCode, Execution, NotOffered, Outcome, StopReason, ToolError, ToolName, Visibility,
        public::public_message,
    },
    value::Value,
};

impl Outgoing {
    /// Runs an open call of a local tool within its remaining time.
    pub(super) fn run_locally(&mut self, core: &mut Core, key: CallKey, tool: &ToolName) {
        let Some(call) = self.calls.get_mut(&key) else { return };
        let known = core.cx.local.tool(tool.as_str());
        call.budget.apply(&core.cx, known);
        let Some(known) = known else {
            // The tool was withdrawn while the call was at a client.
            let why = NotOffered::NoSuchTool { owner: None, similar: None };
            return self.conclude(core, key, Err(CallError::unknown_tool(tool.as_str(), why)));
        };
        let visibility = known.tool_options().disclose;
        let limit = call.budget.limit.saturating_sub(core.cx.now.saturating_duration_since(call.began));
        if limit.is_zero() {
            // The tool's own limit has passed while the call was at a client, which has not started it either.
            let text = format!("not started within {} ms; nothing ran", call.budget.limit.as_millis());
            let error = ToolError::new(ErrorCode::TIMEOUT, text).of_unbegun();
            return self.conclude(core, key, Err(CallError::Tool(error)));
        }
        let Some((job, running)) = self.show_own(core, key, tool, limit, visibility) else { return };
        let Some(call) = self.calls.get(&key) else { return };
        let (meta, arguments) = (call.meta.to_body(), call.arguments.clone());
        if let Some(ended) = core.start_job(job, running, arguments, meta) {
            self.local_job_ended(core, key, ended);
        }
    }

    /// Shows a call to the room that runs elsewhere, as far as it is known to run at all. Its reporter ends it.
    pub(super) fn report_job(&mut self, core: &mut Core, key: CallKey, tool: &ToolName) -> Option<JobKey> {
        let limit = self.calls.get(&key)?.budget.limit;
        let (job, running) = self.show_own(core, key, tool, limit, Visibility::Full)?;
        core.jobs.begin_reported(&mut core.cx, job, running);
        Some(job)
    }

    /// Shows the request of a call that the local participant owns, and returns its job.
    fn show_own(
        &mut self,
        core: &mut Core,
        key: CallKey,
        tool: &ToolName,
        limit: Duration,
        visibility: Visibility,
    ) -> Option<(JobKey, Running)> {
        let job = core.cx.next_job_key();
        self.calls.set_stage(key, Stage::Own(job));
        let call = self.calls.get(&key)?;
        let request = tool_use(core, call, Execution::Server, limit);
        let running = Running {
            caller: core.cx.local.identity().clone(),
            joins: Joins::new(Some(core.cx.local.participant.sid())),
            own: Some(key),
            call: call.id.clone(),
            tool: tool.clone(),
            began: core.cx.now,
            limit,
            bytes: call.arguments.as_bytes().len(),
            visibility,
            is_reported: false,
            reported: Reported::default(),
            is_silent: false,
        };
        let meta = call.meta.clone();
        core.cx.set_timer(Timer::Deadline(key), limit);
        disclose(core, tool, visibility, &meta, request);
        self.requested(core, key);
        Some((job, running))
    }

    /// Handles the outcome of a local job.
    pub(crate) fn local_job_ended(&mut self, core: &mut Core, key: CallKey, ended: Ended) {
        let Ended { job, outcome, .. } = ended;
        let Some(call) = self.calls.get(&key) else { return };
        let (limit, tool, began) = (job.limit, call.tool.clone(), job.reported.anything());
        let (shown, result) = match outcome {
            Ok(body) => (Ok(body.clone()), Ok(body)),
            Err(error) => {
                // An error's message can repeat a text that is meant for the model alone. Clients get it
                // without that (`wire.md`, section 3.3).
                let shown = ToolError::new(error.code(), public_message(error.message(), error.partial()));
                let result = match error.code().as_str() {
                    "timeout" => CallError::Timeout { limit },
                    "cancelled" => CallError::Cancelled,
                    "unknown_tool" if !began => {
                        let owner = core.cx.local.identity().clone();
                        CallError::unknown_tool(&tool, NotOffered::Declined { owner })
                    }
                    "busy" if !began => {
                        let (owner, limit) =
                            (core.cx.local.identity().clone(), reached_limit(Some(error.message())));
                        CallError::Busy { owner, limit }
                    }
                    _ => CallError::Tool(error.of_begun(began)),
                };
                (Err(shown), Err(result))
            }
        };
        disclose_outcome(core, &job, shown);
        self.conclude(core, key, result);
    }

    /// Settles a call of a local tool and stops its job.
    pub(super) fn end_local_call(
        &mut self,
        core: &mut Core,
        key: CallKey,
        job: JobKey,
        result: Result<Value, CallError>,
        reason: StopReason,
    ) {
        if let Some(running) = core.jobs.forget(&mut core.cx, job) {
            // The job is already forgotten: what its tool reports between now and its end finds no job and
            // has no effect.
            core.cx.output(Output::Abort { key: job, reason });
            let outcome = match &result {
                Err(CallError::Timeout { limit }) => Err(ToolError::new(
                    ErrorCode::TIMEOUT,
                    format!("no result within {} ms", limit.as_millis()),
                )),
                _ => Err(ToolError::cancelled()),
            };
            disclose_outcome(core, &running, outcome);
        }
        self.conclude(core, key, result);
    }
}

fn disclose_outcome(core: &mut Core, job: &Running, outcome: Outcome) {
    let message = result_message(&core.cx.config.room, &job.call, outcome);
    disclose(core, &job.tool, job.visibility, &Meta::default(), message);
}

fn disclose(core: &mut Core, tool: &ToolName, level: Visibility, meta: &Meta, message: Message) {
    let Core { cx, peers, delivery, .. } = core;
    Discloser { cx, peers, delivery }.show(tool, level, meta, message);
}
