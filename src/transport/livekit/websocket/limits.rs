//! What the server's frames may do: one answer first, only known messages, and no more than are read.
//!
//! `livekit-signaling` takes a frame as soon as there is one and keeps it until it is read, in queues without an end;
//! some values make it panic in a task of its own, and then nobody is told anything any more. So what it gets passes
//! through here.

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

/// How much of what came may wait to be read before no more is taken from the socket, in bytes. One more frame may
/// have been taken by then.
const MAX_UNREAD: usize = 1 << 20;
/// What a frame weighs beside its bytes: a candidate of 100 bytes takes more once it is decoded.
const OVERHEAD: usize = 512;

/// What came on one connection and was not read yet.
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

    /// What waits, in bytes.
    pub(in crate::transport::livekit) fn bytes(&self) -> usize {
        self.weights.lock().unwrap_or_else(PoisonError::into_inner).iter().sum()
    }

    /// Waits until there is room for another frame.
    ///
    /// # Cancel safety
    /// A dropped future loses nothing.
    pub(super) async fn room(&self) {
        while self.bytes() >= MAX_UNREAD {
            self.read.notified().await;
        }
    }
}

/// One connection's frames.
#[derive(Debug)]
pub(super) struct FrameLimits {
    stage: Stage,
    /// The connection is to go on with a join, not to make one.
    resumes: bool,
    unread: Arc<Unread>,
    skipped: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The answer to our join is to come.
    New,
    /// It came.
    Open,
    /// A refusal came in its place.
    Refused,
}

/// What becomes of a frame.
#[derive(Debug, PartialEq)]
pub(super) enum Taken {
    /// It is passed on.
    Frame(Vec<u8>),
    /// It is of no concern to us, or malformed.
    Nothing,
    /// It is passed on, and then the connection is over: the server does not take the join.
    Refusal(Vec<u8>, LeaveRequest),
    /// The connection is over: what came cannot be worked with.
    Unfit(&'static str),
}

impl FrameLimits {
    pub(super) fn new(resumes: bool, unread: Arc<Unread>) -> Self {
        Self { stage: Stage::New, resumes, unread, skipped: 0 }
    }

    /// Whether nothing follows any more.
    pub(super) fn is_over(&self) -> bool {
        self.stage == Stage::Refused
    }

    /// Takes a frame.
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
                Taken::Unfit("the server answered another question than ours")
            }
            (Stage::New, JOIN) if !is_complete(&filtered.frame) => {
                Taken::Unfit("the server's answer to the join is incomplete")
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
            // The library would drop what comes before the answer, and a second answer is none.
            (Stage::New | Stage::Refused, _) | (Stage::Open, JOIN | RECONNECT) => Taken::Nothing,
            (Stage::Open, _) => {
                match decoded(&filtered.frame) {
                    // What it cannot read it passes on to nobody.
                    None => return Taken::Nothing,
                    // Both the library and the participant would rejoin with it in place of a good one.
                    Some(Message::RefreshToken(token)) if !has_the_form_of_a_token(&token) => {
                        tracing::debug!(
                            "a fresh token of the server was malformed, and the last one is kept"
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

/// Whether there is all in a join's answer that the library counts on: without a span between pings it panics.
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
