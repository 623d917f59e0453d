//! Sends a client's requests to its assistant to stop calls (type 10), again until the assistant acknowledges
//! them.

use std::{collections::VecDeque, time::Duration};

use super::{Core, Outgoing, Purpose};
use crate::{
    clock::Instant,
    protocol::{
        frame::{ControlStop, Message, Meta},
        session::recipients::Recipients,
    },
    tool::CallId,
    transport::{CloseReason, Identity},
};

/// The limit on stop requests that wait for an acknowledgement. The oldest is dropped first.
const MAX_STOPS: usize = 64;

/// How long a stop request is kept for an assistant that comes back. A person no longer expects an older one to take
/// effect.
const STOP_KEPT: Duration = Duration::from_secs(60);

/// The reason why a stop request was not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StopError {
    /// No assistant is bound.
    #[error("no assistant is bound; wait for the assistant to join")]
    NoAssistant,
    /// The local participant has left the room.
    #[error("not in the room: {0}")]
    Closed(CloseReason),
}

/// The stop requests that the assistant may not have received.
#[derive(Debug, Default)]
pub(super) struct StopRequests(VecDeque<StopRequest>);

#[derive(Debug)]
struct StopRequest {
    assistant: Identity,
    /// The stanza under which it was sent; `None` while the assistant is not reachable.
    sent: Option<i32>,
    /// Whether it must be sent: it was not yet, or its last packet was not. One before it may have arrived.
    is_due: bool,
    target: Option<CallId>,
    at: Instant,
}

impl Outgoing {
    /// Client: asks the bound assistant to stop a call, or every call that a barge-in would stop.
    pub(crate) fn request_stop(&mut self, core: &mut Core, call: Option<&CallId>) -> Result<(), StopError> {
        let assistant = core.peers.bound().cloned().ok_or(StopError::NoAssistant)?;
        if self.stop_requests.0.len() >= MAX_STOPS {
            self.stop_requests.0.pop_front().inspect(|stop| stop.forget_frame(core));
        }
        self.stop_requests.0.push_back(StopRequest {
            assistant: assistant.clone(),
            sent: None,
            is_due: true,
            target: call.cloned(),
            at: core.cx.now,
        });
        self.send_stops(core, &assistant, false);
        Ok(())
    }

    /// Sends the stop requests that have not been sent. With `again`, after a change of sids, it also sends the
    /// unacknowledged ones again. Each keeps its stanza.
    pub(crate) fn send_stops(&mut self, core: &mut Core, to: &Identity, again: bool) {
        if !core.peers.is_reachable(to) {
            return;
        }
        let now = core.cx.now;
        self.retain_stops(core, |stop| now.saturating_duration_since(stop.at) < STOP_KEPT);
        let mut stops = std::mem::take(&mut self.stop_requests.0);
        for stop in stops.iter_mut().filter(|stop| stop.assistant == *to && (again || stop.is_due)) {
            let message = Message::ControlStop(ControlStop {
                conversation_id: Some(core.cx.config.room.clone()),
                target_id: stop.target.as_ref().map(|call| call.as_str().to_owned()),
                ..ControlStop::default()
            });
            // By its stanza the assistant recognizes a repeated stop of all calls. Under a new one it would end the
            // calls that have begun since (`wire.md`, section 5.4).
            let purpose = Some(Purpose::StopRequest);
            match core.to(to).post_again(stop.sent, &Meta::default(), &message, purpose) {
                Ok(sent) => (stop.sent, stop.is_due) = (Some(sent.stanza), false),
                Err(error) => tracing::warn!(%to, ?error, "a stop cannot be sent"),
            }
        }
        self.stop_requests.0 = stops;
    }

    /// Notes that the assistant acknowledged a stop request.
    pub(crate) fn stop_request_acknowledged(&mut self, stanza: i32) {
        self.stop_requests.0.retain(|stop| stop.sent != Some(stanza));
    }

    /// Handles a stop request whose packet was not sent. It waits until the assistant is reachable.
    pub(crate) fn stop_request_unsent(&mut self, stanza: i32) {
        for stop in self.stop_requests.0.iter_mut().filter(|stop| stop.sent == Some(stanza)) {
            stop.is_due = true;
        }
    }

    /// Forgets the stop requests to an assistant that is gone, or whose instance was replaced. Its calls have ended.
    pub(crate) fn forget_stops(&mut self, core: &mut Core, of: &Identity) {
        self.retain_stops(core, |stop| stop.assistant != *of);
    }

    fn retain_stops(&mut self, core: &mut Core, keeps: impl Fn(&StopRequest) -> bool) {
        self.stop_requests.0.retain(|stop| {
            let is_kept = keeps(stop);
            if !is_kept {
                stop.forget_frame(core);
            }
            is_kept
        });
    }
}

impl StopRequest {
    fn forget_frame(&self, core: &mut Core) {
        if let Some(stanza) = self.sent {
            core.delivery.forget_frame(&self.assistant, stanza);
        }
    }
}
