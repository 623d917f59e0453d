//! Runs a program once, from its parameters to its result.

use std::{path::Path, process::ExitStatus, time::Duration};

use tokio::time::{Instant, sleep_until, timeout};

use super::{
    command::CommandTemplate,
    streams::{MAX_STDOUT, Overflow, Streams},
};
use crate::{
    process::{TERM_GRACE, end_of, shown_lines},
    runtime::source::ToolContext,
    tool::{ErrorCode, Outcome, ToolError},
    value::{DecodeError, Value},
};

/// The longest error message that a failed program can send to its caller, in characters.
const MAX_COMPLAINT: usize = 300;

/// The longest excerpt of a program's output that its owner sees, in bytes. It is never sent or logged.
const MAX_EXCERPT: usize = 1_000;

/// Why a run is over.
enum End {
    Itself,
    Overflow,
    Cancelled,
    TooLate,
}

/// Runs the program once. Dropping the future kills it.
pub(super) async fn run(
    command: &CommandTemplate,
    supervisor: Option<&Path>,
    own_limit: Option<Duration>,
    arguments: &Value,
    context: &ToolContext,
) -> Outcome {
    let parameters = arguments.to_json();
    let command = command.fill(&parameters, supervisor)?;
    let begun = Instant::now();
    let own_end = own_limit.and_then(|limit| begun.checked_add(limit));
    let deadline = own_end.into_iter().fold(Instant::from_std(context.deadline()), Instant::min);

    let (mut group, pipes) = command.start()?;
    let mut streams = Streams::new(pipes, serde_json::to_vec(&parameters)?)?;
    let end = tokio::select! {
        biased;
        () = group.ended() => End::Itself,
        () = context.cancelled() => End::Cancelled,
        () = sleep_until(deadline) => End::TooLate,
        () = streams.overflow() => End::Overflow,
    };
    // The remaining processes, the program or its children, get `SIGTERM`, then `SIGKILL`. Closed streams are the
    // only sign that none is left, so a child without open streams gets no time to exit.
    group.terminate();
    let _ = timeout(TERM_GRACE, async { tokio::join!(group.ended(), streams.closed()) }).await;
    let status = group.kill().await;

    tracing::debug!(?status, stderr_bytes = streams.complaint().len(), "a program ended");
    match end {
        End::Cancelled => Err(ToolError::cancelled()),
        End::TooLate => {
            let limit = (deadline - begun).as_micros().div_ceil(1_000);
            Err(ToolError::new(
                ErrorCode::TIMEOUT,
                format!("the program took longer than its limit of {limit} ms"),
            ))
        }
        End::Overflow | End::Itself => result(status?, &streams),
    }
}

fn result(status: ExitStatus, streams: &Streams) -> Outcome {
    let output = streams.output().map_err(|Overflow { beginning }| {
        let text = format!("the program wrote more than {MAX_STDOUT} bytes");
        let local = format!("{text}, beginning with {}", excerpt(&beginning));
        ToolError::new(ErrorCode::RESULT_TOO_LARGE, text).with_source(local)
    })?;
    if !status.success() {
        let complaint = streams.complaint();
        let local = format!("{status}, stderr: {}", end_of(&shown_lines(complaint).join(" | "), MAX_EXCERPT));
        let error = ToolError::new(ErrorCode::EXECUTION_ERROR, failure(status, complaint));
        return Err(if complaint.is_empty() { error } else { error.with_source(local) });
    }
    if output.trim_ascii().is_empty() {
        return Ok(Value::empty());
    }
    let why = match str::from_utf8(output) {
        Ok(text) => match Value::from_json(text) {
            Ok(value) => return Ok(value),
            Err(error @ DecodeError::Json { .. }) => format!("is not JSON that can be used: {error}"),
            Err(error) => format!("exceeds a limit: {error}"),
        },
        Err(error) => format!("is not UTF-8, from byte {} on", error.valid_up_to()),
    };
    let text = format!("the program's output {why}");
    let local = format!("{text}: {}", excerpt(output));
    Err(ToolError::new(ErrorCode::EXECUTION_ERROR, text).with_source(local))
}

/// Returns the start of the program's output, for its owner.
fn excerpt(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_EXCERPT)]).into_owned()
}

/// Returns the end of the last line that the program wrote to stderr, otherwise its status.
fn failure(status: ExitStatus, complaint: &[u8]) -> String {
    match shown_lines(complaint).last() {
        Some(line) => end_of(line, MAX_COMPLAINT),
        None => format!("the program failed: {status}"),
    }
}
