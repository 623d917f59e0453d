//! Limits the server's signaling frames: one response first, only known messages, and a bounded number
//! unread.
//!
//! All frames pass through this filter before they are decoded.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use livekit_protocol::{LeaveRequest, SignalResponse, signal_response::Message};
use prost::Message as _;
use tokio::sync::Notify;

use super::message_filter::{JOIN, LEAVE, RECONNECT, filter};
use crate::livekit::{signaling::first::First, token::tokens::has_the_form_of_a_token};

/// The weight of unread frames, in bytes, at which reading from the socket stops. One more frame may already have been read.
const MAX_UNREAD: usize = 1 << 20;
/// The overhead counted per frame, in bytes: a candidate of 100 bytes takes more memory once decoded.
const OVERHEAD: usize = 512;

/// What an attribute takes in memory beside its texts, in bytes.
const ATTRIBUTE: usize = 128;

/// Returns what a message takes in memory, in bytes, if its frame had this size: an empty participant is 2 bytes there, and half
/// a kilobyte here.
pub(crate) fn weight(frame: usize, message: &Message) -> usize {
    let participants = match message {
        Message::Update(update) => &update.participants[..],
        Message::RoomMoved(moved) => &moved.other_participants[..],
        _ => &[],
    };
    let decoded = participants.iter().map(|it| size_of_val(it) + ATTRIBUTE * it.attributes.len());
    OVERHEAD + frame + decoded.sum::<usize>()
}

/// The unread frames of one connection.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    weights: Mutex<VecDeque<usize>>,
    read: Notify,
}

impl Unread {
    /// Notes that the oldest frame was read.
    pub(crate) fn handle_read(&self) {
        self.weights.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        self.read.notify_one();
    }

    /// Notes that a message of this [`weight`] waits to be read.
    pub(crate) fn add(&self, weight: usize) {
        self.weights.lock().unwrap_or_else(PoisonError::into_inner).push_back(weight);
    }

    /// Returns the weight of the unread frames, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.weights.lock().unwrap_or_else(PoisonError::into_inner).iter().sum()
    }

    /// Waits until there is room for another frame.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub(crate) async fn room(&self) {
        while self.bytes() >= MAX_UNREAD {
            self.read.notified().await;
        }
    }
}

/// The filter of one connection's frames.
#[derive(Debug)]
pub(crate) struct FrameLimits {
    /// True once the server's first response has arrived.
    is_open: bool,
    /// True if the connection resumes a participant instead of joining.
    resumes: bool,
    /// The identities whose descriptions pass before those of all others.
    first: First,
    skipped: u64,
}

impl FrameLimits {
    pub(crate) fn new(resumes: bool, first: First) -> Self {
        Self { is_open: false, resumes, first, skipped: 0 }
    }

    /// Returns the message of a frame: first the server's response, or a leave request with which it refuses. Returns `None`
    /// for a frame to skip, because it is unknown, malformed or out of place.
    ///
    /// # Errors
    /// The response is unusable.
    pub(crate) fn take(&mut self, frame: &[u8]) -> Result<Option<Message>, &'static str> {
        let message = self.judge(frame)?;
        if message.is_none() {
            self.skipped += 1;
            tracing::trace!(size = frame.len(), skipped = self.skipped, "a signaling frame was skipped");
        }
        Ok(message)
    }

    fn judge(&mut self, frame: &[u8]) -> Result<Option<Message>, &'static str> {
        let Some(filtered) = filter(frame, &self.first) else { return Ok(None) };
        let message = decoded(&filtered.frame);
        match (self.is_open, filtered.kind) {
            (false, JOIN | RECONNECT) if (filtered.kind == RECONNECT) != self.resumes => {
                Err("the server's first response does not match the request")
            }
            (false, JOIN) if !message.as_ref().is_some_and(is_complete) => {
                Err("the server's join response is incomplete")
            }
            (false, JOIN | RECONNECT) => {
                self.is_open = true;
                Ok(message)
            }
            // One that cannot be decoded refuses all the same.
            (false, LEAVE) => Ok(Some(message.unwrap_or_else(|| Message::Leave(LeaveRequest::default())))),
            (false, _) | (true, JOIN | RECONNECT) => Ok(None),
            (true, _) => Ok(message.filter(|message| match message {
                // It would replace the valid token that the next rejoin needs.
                Message::RefreshToken(token) if !has_the_form_of_a_token(token) => {
                    tracing::debug!("the server refreshed the token with a malformed one; keeping the last");
                    false
                }
                _ => true,
            })),
        }
    }
}

fn decoded(frame: &[u8]) -> Option<Message> {
    SignalResponse::decode(frame).ok()?.message
}

/// Returns true if a join response has all fields that a participant needs.
fn is_complete(message: &Message) -> bool {
    let Message::Join(join) = message else { return false };
    let who = join.participant.as_ref();
    let is_named = who.is_some_and(|who| !who.sid.is_empty() && !who.identity.is_empty());
    // LiveKit's servers set all of these. Without a sid nothing could be resumed or sent under it.
    join.ping_interval > 0 && join.ping_timeout > 0 && is_named
}

#[cfg(test)]
mod tests;
