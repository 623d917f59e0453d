//! Another signaling connection for the same join, under way.

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

/// A new connection for the same join, under way.
pub(super) enum Attempt {
    /// The old one ends, and its end is no news.
    Closing { done: JoinHandle<()>, dial: Dial, limit: Duration },
    /// The server is asked.
    Asking(JoinHandle<Result<ReconnectResponse, NotResumed>>),
}

/// What an attempt has come to.
pub(super) enum Step {
    Closed,
    Answered(Box<Result<ReconnectResponse, NotResumed>>),
}

/// Why the signaling was not taken up again.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::transport::livekit) enum NotResumed {
    /// The server was not reached, or has no time: it can be tried again.
    Again(String),
    /// The server knows us no more, or not any longer with this token.
    Over(End),
}

/// What an attempt comes to; never without one.
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

/// Asks the server to go on with the join.
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
            // It ends with its socket; dropped, it would leave one behind.
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
            // As after a failed join: the library may have left its socket behind.
            dial.hang_up();
            Err(not_resumed(error, dial.failure()))
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
        // Its last connection was not closed in time, and it opens no other.
        (error @ SignalError::InvalidState(_), _) => {
            NotResumed::Over(End::Lost(Loss::Signaling(error.to_string())))
        }
        (_, Some(DialFailure::Status(status))) if !is_passing(status) => refused_to_resume(status),
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
