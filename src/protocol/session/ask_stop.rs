//! Client: asks its assistant to stop calls, and asks again until the assistant has heard it (type 10).

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::{Phase, Session, peer::Remote};
use crate::{
    protocol::frame::{ControlStop, Message, Meta},
    tool::CallId,
    transport::{CloseReason, Identity},
};

/// Stops that wait for their acknowledgement at once. Beyond it the oldest is forgotten.
const MAX_STOPS: usize = 64;

/// How long a stop is kept for an assistant that comes back: no longer than a person would mean it.
const STOP_KEPT: Duration = Duration::from_secs(60);

/// Why an assistant could not be asked to stop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StopError {
    /// No assistant is bound, so nobody can be asked.
    #[error("no assistant is here that could be asked to stop")]
    NoAssistant,
    /// We are not in the room any more.
    #[error("not in the room: {0}")]
    Closed(CloseReason),
}

/// Stops that the assistant may not have heard.
#[derive(Debug, Default)]
pub(super) struct AskedStops(VecDeque<AskedStop>);

#[derive(Debug)]
struct AskedStop {
    assistant: Identity,
    /// The stanza and packet under which it went; none while it waits for the assistant to be reachable.
    sent: Option<(i32, u64)>,
    target: Option<CallId>,
    at: Instant,
}

impl Session {
    /// Client: asks the bound assistant to stop this call, or every call that a barge-in would stop. It does so
    /// if its author lets us ([`Config::allow_stop`](super::Config::allow_stop)).
    ///
    /// # Errors
    /// There is no assistant, or the session is closed.
    pub fn ask_to_stop(&mut self, now: Instant, call: Option<&CallId>) -> Result<(), StopError> {
        self.begin(now);
        if let Phase::Closed(reason) = &self.phase {
            return Err(StopError::Closed(reason.clone()));
        }
        let assistant = self.bound.clone().ok_or(StopError::NoAssistant)?;
        let stops = &mut self.asked_stops.0;
        if stops.len() >= MAX_STOPS {
            stops.pop_front();
        }
        stops.push_back(AskedStop {
            assistant: assistant.clone(),
            sent: None,
            target: call.cloned(),
            at: now,
        });
        self.send_stops(now, &assistant, false);
        Ok(())
    }

    /// Sends what the assistant was not sent; under a new pair of sids also what it has not acknowledged, under
    /// its own stanza.
    pub(super) fn send_stops(&mut self, now: Instant, to: &Identity, again: bool) {
        if !self.peers.get(to).is_some_and(Remote::is_reachable) {
            return;
        }
        let mut stops = std::mem::take(&mut self.asked_stops.0);
        stops.retain(|stop| now.saturating_duration_since(stop.at) < STOP_KEPT);
        for stop in stops.iter_mut().filter(|stop| stop.assistant == *to) {
            let message = Message::ControlStop(ControlStop {
                conversation_id: Some(self.config.room.clone()),
                target_id: stop.target.as_ref().map(|call| call.as_str().to_owned()),
                ..ControlStop::default()
            });
            match stop.sent {
                Some(_) if !again => {}
                Some((stanza, _)) => {
                    if let Err(error) = self.post_again(to, stanza, &Meta::default(), &message) {
                        tracing::warn!(%to, ?error, "a stop cannot be sent again");
                    }
                }
                None => {
                    let sent = self.post_small(to, &message);
                    stop.sent = sent.map(|sent| (sent.stanza, sent.packet));
                }
            }
        }
        self.asked_stops.0 = stops;
    }

    /// The assistant has heard a stop of ours.
    pub(super) fn asked_stop_heard(&mut self, by: &Identity, stanza: i32) {
        self.asked_stops
            .0
            .retain(|stop| stop.assistant != *by || stop.sent.is_none_or(|(sent, _)| sent != stanza));
    }

    /// A packet did not leave: a stop in it goes when its assistant can be reached again.
    /// Returns the assistant that it was for.
    pub(super) fn asked_stop_unsent(&mut self, packet: u64) -> Option<Identity> {
        let mut stops = self.asked_stops.0.iter_mut();
        let stop = stops.find(|stop| stop.sent.is_some_and(|(_, it)| it == packet))?;
        stop.sent = None;
        Some(stop.assistant.clone())
    }

    /// This assistant, or this run of it, is gone: nothing of it is left to stop.
    pub(super) fn forget_stops(&mut self, of: &Identity) {
        self.asked_stops.0.retain(|stop| stop.assistant != *of);
    }
}
