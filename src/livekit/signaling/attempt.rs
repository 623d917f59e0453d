//! Tracks an attempt to resume signaling.

use std::{future::pending, time::Duration};

use livekit_protocol::ReconnectResponse;
use tokio::{task::JoinHandle, time};

use super::{
    is_passing,
    link::{Accepted, Response},
    server_event::{ServerEvent, server_leave},
    websocket::DialFailure,
};
use crate::{
    clock::Spelled,
    livekit::room::liveness::{End, Loss},
};

/// An attempt to resume signaling.
pub(super) enum Attempt {
    /// The old connection is being closed.
    Closing { closed: JoinHandle<()>, limit: Duration },
    /// The new connection is being opened.
    Opening { response: Response, limit: Duration, until: time::Instant },
}

/// The progress of an attempt.
pub(super) enum Step {
    Closed,
    Answered(Result<Box<ReconnectResponse>, NotResumed>),
    /// No answer came in time.
    TimedOut(NotResumed),
}

/// The reason why signaling was not resumed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotResumed {
    /// The server was not reached or is temporarily unavailable. A retry may succeed.
    Again(String),
    /// The server no longer knows the participant, or rejected its token.
    Over(End),
}

/// Waits for the progress of an attempt. Pending forever if there is none.
///
/// # Cancel safety
/// Dropping the future loses nothing.
pub(super) async fn step(attempt: &mut Option<Attempt>) -> Step {
    match attempt {
        None => pending().await,
        Some(Attempt::Closing { closed, .. }) => {
            let _ = closed.await;
            Step::Closed
        }
        // Until a fixed time: this future is dropped and made again with each event that its caller handles.
        Some(Attempt::Opening { response, limit, until }) => match time::timeout_at(*until, response).await {
            Err(_) => Step::TimedOut(NotResumed::Again(format!("no answer within {}", Spelled(*limit)))),
            Ok(answer) => Step::Answered(match answer {
                Ok(Ok(Accepted::Resume(answer))) => Ok(answer),
                Ok(Ok(_)) => Err(NotResumed::Again("the server's response is no resume".into())),
                Ok(Err(failure)) => Err(not_resumed(failure)),
                Err(_) => Err(NotResumed::Again("the connection ended".into())),
            }),
        },
    }
}

fn not_resumed(failure: DialFailure) -> NotResumed {
    match failure {
        DialFailure::Refused(leave) => match server_leave(&leave) {
            ServerEvent::Leave(end) => NotResumed::Over(end),
            // A leave request with the action to resume: this connection was refused, not the participant.
            _ => NotResumed::Again("the server asks to try again".into()),
        },
        DialFailure::Status(status, _) if !is_passing(status) => refused_to_resume(status),
        DialFailure::Unauthorized(_) => refused_to_resume(401),
        failure => NotResumed::Again(failure.to_string()),
    }
}

fn refused_to_resume(status: u16) -> NotResumed {
    NotResumed::Over(End::Lost(Loss::Signaling(format!("and the server takes no other: status {status}"))))
}
