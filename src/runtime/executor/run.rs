//! Runs one call from the queue to its outcome.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::time::{Instant, sleep, sleep_until};
use tracing::{Instrument, Span};

use super::{
    Offered,
    catch_panic::Caught,
    report::Reporter,
    slots::{Admission, Slot},
};
use crate::{
    runtime::{
        reporter::Reporter as RoomReporter,
        source::{Asker, ToolContext},
        stop_signal::StopSignal,
    },
    tool::{ErrorCode, Job, Outcome, StopReason, ToolError, ToolOptions},
    value::Value,
};

/// The inputs of one call.
pub(super) struct Run {
    pub(super) job: Job,
    /// The parent span of everything that its function logs.
    pub(super) span: Span,
    pub(super) offered: Offered,
    pub(super) room: RoomAccess,
    pub(super) slot: Admission,
    pub(super) stop: StopSignal,
    pub(super) start: Start,
    pub(super) reporter: Reporter,
}

/// Whether a call starts. Its task or the executor decides that, once: so a call that the executor has refused never runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Start(Arc<OnceLock<bool>>);

impl Start {
    /// Starts the call. Returns false if it was refused.
    fn begin(&self) -> bool {
        self.0.set(true).is_ok()
    }

    /// Refuses the call. Returns false if it has started, or was refused before.
    pub(super) fn refuse(&self) -> bool {
        self.0.set(false).is_ok()
    }
}

/// Returns the outcome of a call that has not started when the participant leaves.
pub(crate) fn leaving() -> ToolError {
    ToolError::new(ErrorCode::BUSY, "the participant is leaving; nothing ran")
}

/// What a running tool may do in the room.
pub(super) struct RoomAccess {
    /// Asks a person.
    pub(super) asker: Option<Asker>,
    /// Reports calls and views.
    pub(super) reporter: Option<RoomReporter>,
}

/// Runs the call to its end, including cleanup.
pub(super) async fn run(call: Run) {
    let span = call.span.clone();
    async move {
        let Run { job, offered, room, slot, stop, start, reporter, .. } = call;
        match wait(slot, &job, &stop).await {
            Err(refusal) => reporter.settle(Err(refusal)),
            Ok(slot) => {
                execute(job, &offered, room, (stop, start), reporter).await;
                drop(slot);
            }
        }
    }
    .instrument(span)
    .await;
}

/// The time before the end of a call's time limit at which it gives up waiting for a slot: its caller must still learn that
/// nothing ran. A short limit is given up at three quarters.
const WAIT_MARGIN: Duration = Duration::from_millis(500);

/// Waits for a slot.
async fn wait(slot: Admission, job: &Job, stop: &StopSignal) -> Result<Slot, ToolError> {
    tokio::select! {
        biased;
        () = stop.stopped() => Err(ToolError::cancelled()),
        () = sleep_until(Instant::from_std(job.deadline) - WAIT_MARGIN.min(job.limit / 4)) => {
            let limit = job.limit.as_millis();
            let text = format!("the call had no place to run within its limit of {limit} ms; nothing ran");
            // Not `timeout`, which leaves open whether the tool ran.
            Err(ToolError::new(ErrorCode::BUSY, text))
        }
        slot = slot.wait() => Ok(slot),
    }
}

async fn execute(
    job: Job,
    offered: &Offered,
    room: RoomAccess,
    (stop, start): (StopSignal, Start),
    reporter: Reporter,
) {
    let trace = job.trace();
    let Job { arguments, caller, call, meta, .. } = job;
    let tool = &offered.own;
    let arguments: Value = match offered.check.check(arguments) {
        Ok(arguments) => arguments,
        Err(refusal) => return reporter.settle(Err(refusal)),
    };
    if !start.begin() {
        return reporter.settle(Err(leaving()));
    }
    // A source that validates arguments itself may still refuse them, and reports its start itself.
    if !offered.source.validates_arguments() {
        reporter.started();
    }
    let options = offered.tool.tool_options();
    let (limit, deadline) = effective_limit(options, job.limit, Instant::from_std(job.deadline));
    let context = ToolContext::new(caller, limit)
        .with_warnings(reporter.warning(call.clone(), offered.tool.name().clone()))
        .with_call_id(call)
        .with_deadline(deadline.into_std())
        .with_stop(stop.clone())
        .with_progress(reporter.progress())
        .with_meta(meta)
        .with_asker(room.asker)
        .with_reporter(room.reporter)
        .with_trace(trace);
    let begun = Instant::now();
    let mut work = Caught::new(async { offered.source.execute(tool, arguments, context).await });
    let grace = if offered.source.uses_cancel_grace(tool) {
        options.cancel_grace.unwrap_or(ToolOptions::DEFAULT_CANCEL_GRACE)
    } else {
        Duration::ZERO
    };
    tokio::select! {
        biased;
        outcome = &mut work => {
            log(&outcome, begun);
            reporter.settle(outcome);
        }
        () = stop.stopped() => {
            // An outcome within the grace period counts: reporting a complete result as `cancelled` would be wrong.
            let outcome = finish_cleanup(&mut work, grace).await.unwrap_or_else(|| Err(ToolError::cancelled()));
            drop(work);
            log(&outcome, begun);
            reporter.settle(outcome);
        }
        () = sleep_until(deadline) => {
            let text = format!("the tool took longer than its limit of {} ms", limit.as_millis());
            let outcome = Err(ToolError::new(ErrorCode::TIMEOUT, text));
            log(&outcome, begun);
            // The caller's timeout ends at the same time: the result is sent first, then the tool cleans up.
            reporter.settle(outcome);
            stop.stop(StopReason::Deadline);
            finish_cleanup(&mut work, grace).await;
        }
    }
}

/// Returns the earlier end of two limits: the tool's own, measured from its start, and the call's, measured from the
/// call.
fn effective_limit(options: &ToolOptions, limit: Duration, deadline: Instant) -> (Duration, Instant) {
    match options.timeout.and_then(|own| Some((own, Instant::now().checked_add(own)?))) {
        Some((own, end)) if end < deadline => (own, end),
        _ => (limit, deadline),
    }
}

/// Lets a cancelled tool continue for its grace period, and returns its outcome if it has one.
async fn finish_cleanup(work: &mut Caught<'_>, grace: Duration) -> Option<Outcome> {
    if grace.is_zero() {
        return None;
    }
    tokio::select! {
        biased;
        outcome = work => Some(outcome),
        () = sleep(grace) => None,
    }
}

fn log(outcome: &Outcome, begun: Instant) {
    let ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    match outcome {
        Ok(result) => tracing::debug!(ms, bytes = result.as_bytes().len(), "done"),
        // The source error may contain arguments: it goes to the application, not into a log.
        Err(error) if error.source().is_some() => {
            tracing::warn!(ms, code = %error.code(), "failed with a local error");
        }
        Err(error) => tracing::debug!(ms, code = %error.code(), "failed"),
    }
}
