//! One call from its place in the line to its outcome.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{
    Job, Offered,
    caught::Caught,
    report::Reporter,
    slots::{Entry, Slot},
};
use crate::{
    tool::{ErrorCode, Outcome, ToolError, ToolOptions, source::ToolContext},
    value::Value,
};

/// All that one call needs.
pub(super) struct Run<K: Copy> {
    pub(super) job: Job<K>,
    pub(super) offered: Offered,
    pub(super) slot: Entry,
    pub(super) cancelled: CancellationToken,
    pub(super) reporter: Reporter<K>,
}

/// Runs the call to its end, tidying up included.
pub(super) async fn run<K: Copy + Send + Sync + 'static>(call: Run<K>) {
    let span = call.job.span.clone();
    async move {
        let Run { job, offered, slot, cancelled, reporter } = call;
        match wait(slot, &job, &cancelled).await {
            Err(refusal) => reporter.settle(Err(refusal)),
            Ok(slot) => {
                execute(job, &offered, cancelled, reporter).await;
                drop(slot);
            }
        }
    }
    .instrument(span)
    .await;
}

/// Waits for a place to run.
async fn wait<K>(slot: Entry, job: &Job<K>, cancelled: &CancellationToken) -> Result<Slot, ToolError> {
    tokio::select! {
        biased;
        () = cancelled.cancelled() => Err(ToolError::cancelled()),
        () = sleep_until(job.deadline) => {
            let limit = job.limit.as_millis();
            let text = format!("too many calls were running for it to begin within {limit} ms; nothing ran");
            Err(ToolError::new(ErrorCode::TIMEOUT, text))
        }
        slot = slot.wait() => Ok(slot),
    }
}

async fn execute<K: Copy + Send + Sync + 'static>(
    job: Job<K>,
    offered: &Offered,
    cancelled: CancellationToken,
    reporter: Reporter<K>,
) {
    let Job { arguments, caller, call, tool, trace, .. } = job;
    let arguments: Value = match offered.check.check(arguments) {
        Ok(arguments) => arguments,
        Err(refusal) => return reporter.settle(Err(refusal)),
    };
    // Who judges arguments may still refuse them, and says himself when he begins.
    if !offered.source.validates_arguments() {
        reporter.started();
    }
    let options = offered.tool.tool_options();
    let (limit, deadline) = within(options, job.limit, job.deadline);
    let context = ToolContext::new(caller, limit)
        .with_call_id(call)
        .with_deadline(deadline)
        .with_cancellation(cancelled.clone())
        .with_progress(reporter.progress())
        .with_trace(trace);
    let begun = Instant::now();
    let mut work = Caught::new(async { offered.source.execute(&tool, arguments, context).await });
    let grace = if offered.source.uses_cancel_grace(&tool) {
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
        () = cancelled.cancelled() => {
            // Whoever comes to an end within the grace says how: a whole result would be a lie as `cancelled`.
            let outcome = tidy(&mut work, grace).await.unwrap_or_else(|| Err(ToolError::cancelled()));
            drop(work);
            log(&outcome, begun);
            reporter.settle(outcome);
        }
        () = sleep_until(deadline) => {
            let text = format!("the tool took longer than its limit of {} ms", limit.as_millis());
            let outcome = Err(ToolError::new(ErrorCode::TIMEOUT, text));
            log(&outcome, begun);
            // The caller's clock ends as ours does: the answer goes first, the tidying after it.
            reporter.settle(outcome);
            cancelled.cancel();
            tidy(&mut work, grace).await;
        }
    }
}

/// The tool's own limit counts from its beginning, the call's from the call; the earlier end counts.
fn within(options: &ToolOptions, limit: Duration, deadline: Instant) -> (Duration, Instant) {
    match options.timeout.and_then(|own| Some((own, Instant::now().checked_add(own)?))) {
        Some((own, end)) if end < deadline => (own, end),
        _ => (limit, deadline),
    }
}

/// Lets a cancelled tool go on for its grace, and answers with its outcome if it has one.
async fn tidy(work: &mut Caught<'_>, grace: Duration) -> Option<Outcome> {
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
        // The error behind it may hold what the tool was given: it goes to the application, not into a log.
        Err(error) if error.source().is_some() => {
            tracing::warn!(ms, code = %error.code(), "failed with an error of its own");
        }
        Err(error) => tracing::debug!(ms, code = %error.code(), "failed"),
    }
}
