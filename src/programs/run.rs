//! One run of a program, from its parameters to its result.

use std::{path::Path, process::ExitStatus, time::Duration};

use tokio::time::{Instant, sleep_until, timeout};

use super::{
    command::Command,
    group::Group,
    streams::{MAX_STDOUT, Overflow, Streams},
};
use crate::{
    body::Body,
    source::ToolContext,
    tool::{ErrorCode, Outcome, ToolError},
};

/// The time between asking a group to end and killing it.
pub(super) const TERM_GRACE: Duration = Duration::from_secs(2);

/// The longest text that a failed program says to its caller, in characters.
const MAX_COMPLAINT: usize = 300;

/// Why a run is over.
enum End {
    Itself,
    Overflow,
    Cancelled,
    TooLate,
}

/// Runs the program once. Dropping the future kills it.
pub(super) async fn run(
    command: &Command,
    supervisor: Option<&Path>,
    own_limit: Option<Duration>,
    arguments: &Body,
    context: &ToolContext,
) -> Outcome {
    let parameters = arguments.to_json();
    let process = command.fill(&parameters, supervisor)?;
    let begun = Instant::now();
    let own_end = own_limit.and_then(|limit| begun.checked_add(limit));
    let deadline = own_end.into_iter().fold(context.deadline(), Instant::min);

    let (mut group, pipes) = match supervisor {
        Some(_) => Group::start_supervised(process)?,
        None => Group::start(process)?,
    };
    let mut streams = Streams::new(pipes, serde_json::to_vec(&parameters)?)?;
    let end = tokio::select! {
        biased;
        () = group.ended() => End::Itself,
        () = context.cancelled() => End::Cancelled,
        () = sleep_until(deadline) => End::TooLate,
        () = streams.overflow() => End::Overflow,
    };
    // Whoever is still there, the program or what it left behind, is asked to end, then made to. That the
    // streams are closed is the only sign that nobody is, so a child without them has no time for its end.
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
    let output = streams.output().map_err(|Overflow| {
        let text = format!("the program wrote more than {MAX_STDOUT} bytes");
        ToolError::new(ErrorCode::RESULT_TOO_LARGE, text)
    })?;
    if !status.success() {
        return Err(ToolError::new(ErrorCode::EXECUTION_ERROR, failure(status, streams.complaint())));
    }
    if output.trim_ascii().is_empty() {
        return Ok(Body::empty());
    }
    let json = str::from_utf8(output).ok().and_then(|text| Body::from_json(text).ok());
    json.ok_or_else(|| {
        ToolError::new(ErrorCode::EXECUTION_ERROR, "the program wrote something that is no JSON")
    })
}

/// The last line that the program wrote to stderr, else its status.
fn failure(status: ExitStatus, complaint: &[u8]) -> String {
    let complaint = String::from_utf8_lossy(complaint);
    let line = complaint.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    let line: String = line.chars().filter(|it| !it.is_control()).take(MAX_COMPLAINT).collect();
    if line.is_empty() { format!("the program failed: {status}") } else { line }
}
