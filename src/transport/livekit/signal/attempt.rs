//! An attempt to resume signaling.

use std::{future::pending, sync::Arc, time::Duration};

use livekit_protocol::{LeaveRequest, ReconnectReason, ReconnectResponse};
use livekit_signaling::{SignalClient, SignalError};
use tokio::{
    task::{JoinError, JoinHandle},
    time,
};

use super::{
    is_passing,
    server_event::{ServerEvent, server_leave},
};
use crate::transport::livekit::{
    liveness::{End, Loss},
    websocket::{self, Dial, DialFailure},
};

/// An attempt to resume signaling.
pub(super) enum Attempt {
    /// The old connection is being closed.
    Closing { done: JoinHandle<()>, dial: Dial, limit: Duration },
    /// The new connection is being opened.
    Asking(JoinHandle<Result<ReconnectResponse, NotResumed>>),
}

/// The progress of an attempt.
pub(super) enum Step {
    Closed,
    Answered(Box<Result<ReconnectResponse, NotResumed>>),
}

/// The reason why signaling was not resumed.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::transport::livekit) enum NotResumed {
    /// The server was not reached or is temporarily unavailable. A retry may succeed.
    Again(String),
    /// The server no longer knows the participant, or rejected its token.
    Over(End),
}

/// Waits for the progress of an attempt. Pending forever if there is none.
pub(super) async fn step(attempt: &mut Option<Attempt>) -> Step {
    let gone = |error: JoinError| NotResumed::Again(error.to_string());
    match attempt {
        None => pending().await,
        Some(Attempt::Closing { done, .. }) => {
            let _ = done.await;
            Step::Closed
        }
        Some(Attempt::Asking(answer)) => {
            Step::Answered(Box::new(answer.await.unwrap_or_else(|error| Err(gone(error)))))
        }
    }
}

/// Opens a signaling connection that resumes the participant.
pub(super) async fn restart(
    client: Arc<SignalClient>,
    dial: Arc<Dial>,
    limit: Duration,
) -> Result<ReconnectResponse, NotResumed> {
    let mut asking =
        Box::pin(websocket::scope(dial.clone(), client.restart(ReconnectReason::RrSignalDisconnected)));
    let answer = match time::timeout(limit, &mut asking).await {
        Ok(answer) => answer,
        Err(_) => {
            // The task ends with its socket. Dropping it would leak the socket.
            dial.hang_up();
            asking.as_mut().await
        }
    };
    match answer {
        Ok(answer) => {
            client.set_reconnected().await;
            Ok(answer)
        }
        Err(error) => {
            // As after a failed join, the library may have leaked its socket.
            dial.hang_up();
            Err(not_resumed(error, dial.take_failure()))
        }
    }
}

fn not_resumed(error: SignalError, dialled: Option<DialFailure>) -> NotResumed {
    match (error, dialled) {
        (SignalError::LeaveRequest { reason, action }, _) => {
            let (reason, action) = (reason.into(), action.into());
            match server_leave(&LeaveRequest { reason, action, ..Default::default() }) {
                ServerEvent::Leave(end) => NotResumed::Over(end),
                _ => NotResumed::Again("the server asks to try again".into()),
            }
        }
        // The library did not close its last connection in time, so it opens no other.
        (error @ SignalError::InvalidState(_), _) => {
            NotResumed::Over(End::Lost(Loss::Signaling(error.to_string())))
        }
        (_, Some(DialFailure::Status(status, _))) if !is_passing(status) => refused_to_resume(status),
        (_, Some(DialFailure::Unauthorized(_))) => refused_to_resume(401),
        (SignalError::Handshake { status }, None) if !is_passing(status.as_u16()) => {
            refused_to_resume(status.as_u16())
        }
        (_, Some(failure)) => NotResumed::Again(failure.to_string()),
        (error, None) => NotResumed::Again(error.to_string()),
    }
}

fn refused_to_resume(status: u16) -> NotResumed {
    NotResumed::Over(End::Lost(Loss::Signaling(format!("and the server takes no other: status {status}"))))
}
