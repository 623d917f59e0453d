//! Limits on the server's signaling frames: one response first, only known messages, and a bounded number unread.
//!
//! `livekit-signaling` reads frames as they arrive and keeps them in unbounded queues, and some values make it panic in a
//! background task, after which no event is emitted. All frames therefore pass through this filter first.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Mutex, PoisonError},
};

use livekit_protocol::{LeaveRequest, SignalResponse, signal_response::Message};
use prost::Message as _;
use tokio::sync::Notify;

use super::message_filter::{JOIN, LEAVE, RECONNECT, filter};
use crate::transport::livekit::tokens::has_the_form_of_a_token;

/// The size of unread frames, in bytes, at which reading from the socket stops. One more frame may already have been read.
const MAX_UNREAD: usize = 1 << 20;
/// The overhead counted per frame, in bytes: a candidate of 100 bytes takes more memory once decoded.
const OVERHEAD: usize = 512;

/// The unread frames of one connection.
#[derive(Debug, Default)]
pub(in crate::transport::livekit) struct Unread {
    weights: Mutex<VecDeque<usize>>,
    read: Notify,
}

impl Unread {
    /// The oldest frame was read.
    pub(in crate::transport::livekit) fn handle_read(&self) {
        self.weights.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        self.read.notify_one();
    }

    fn add(&self, size: usize) {
        self.weights.lock().unwrap_or_else(PoisonError::into_inner).push_back(size + OVERHEAD);
    }

    /// Returns the size of the unread frames, in bytes.
    pub(in crate::transport::livekit) fn bytes(&self) -> usize {
        self.weights.lock().unwrap_or_else(PoisonError::into_inner).iter().sum()
    }

    /// Waits until there is room for another frame.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub(super) async fn room(&self) {
        while self.bytes() >= MAX_UNREAD {
            self.read.notified().await;
        }
    }
}

/// The filter of one connection's frames.
#[derive(Debug)]
pub(super) struct FrameLimits {
    stage: Stage,
    /// True if the connection resumes a participant instead of joining.
    resumes: bool,
    unread: Arc<Unread>,
    skipped: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Waiting for the server's first response.
    New,
    /// The response arrived.
    Open,
    /// The server refused.
    Refused,
}

/// The result for one frame.
#[derive(Debug, PartialEq)]
pub(super) enum Taken {
    /// Pass it on.
    Frame(Vec<u8>),
    /// Skip it: unknown or malformed.
    Nothing,
    /// Pass it on, then close the connection: the server refused the join.
    Refusal(Vec<u8>, LeaveRequest),
    /// Close the connection: the frame is unusable.
    Unfit(&'static str),
}

impl FrameLimits {
    pub(super) fn new(resumes: bool, unread: Arc<Unread>) -> Self {
        Self { stage: Stage::New, resumes, unread, skipped: 0 }
    }

    /// Returns true if no frame can follow.
    pub(super) fn is_over(&self) -> bool {
        self.stage == Stage::Refused
    }

    /// Checks a frame.
    pub(super) fn take(&mut self, frame: &[u8]) -> Taken {
        let taken = self.judge(frame);
        if taken == Taken::Nothing {
            self.skipped += 1;
            tracing::trace!(size = frame.len(), skipped = self.skipped, "a signaling frame was skipped");
        }
        taken
    }

    fn judge(&mut self, frame: &[u8]) -> Taken {
        let Some(filtered) = filter(frame) else { return Taken::Nothing };
        match (self.stage, filtered.kind) {
            (Stage::New, JOIN | RECONNECT) if (filtered.kind == RECONNECT) != self.resumes => {
                Taken::Unfit("the server's first response does not match the request")
            }
            (Stage::New, JOIN) if !is_complete(&filtered.frame) => {
                Taken::Unfit("the server's join response is incomplete")
            }
            (Stage::New, JOIN | RECONNECT) => {
                self.stage = Stage::Open;
                Taken::Frame(filtered.frame)
            }
            (Stage::New, LEAVE) => {
                self.stage = Stage::Refused;
                let leave = match decoded(&filtered.frame) {
                    Some(Message::Leave(leave)) => leave,
                    _ => LeaveRequest::default(),
                };
                Taken::Refusal(filtered.frame, leave)
            }
            // The library drops messages before the response, and ignores a second response.
            (Stage::New | Stage::Refused, _) | (Stage::Open, JOIN | RECONNECT) => Taken::Nothing,
            (Stage::Open, _) => {
                match decoded(&filtered.frame) {
                    // The library would discard a frame that it cannot decode.
                    None => return Taken::Nothing,
                    // It would replace the valid token that the next rejoin needs.
                    Some(Message::RefreshToken(token)) if !has_the_form_of_a_token(&token) => {
                        tracing::debug!(
                            "the server refreshed the token with a malformed one; keeping the last"
                        );
                        return Taken::Nothing;
                    }
                    Some(_) => {}
                }
                self.unread.add(filtered.frame.len());
                Taken::Frame(filtered.frame)
            }
        }
    }
}

fn decoded(frame: &[u8]) -> Option<Message> {
    SignalResponse::decode(frame).ok()?.message
}

/// Returns true if a join response has all fields that the library relies on. Without a ping interval it panics.
fn is_complete(frame: &[u8]) -> bool {
    match decoded(frame) {
        Some(Message::Join(mut join)) => {
            let who = mem::take(&mut join.participant).unwrap_or_default();
            join.ping_interval > 0 && join.ping_timeout > 0 && !who.sid.is_empty() && !who.identity.is_empty()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
