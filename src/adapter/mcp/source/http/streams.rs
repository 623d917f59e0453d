//! Event streams of a server.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use reqwest::Response;
use rmcp::model::RequestId;
use sse_stream::Sse;

use super::super::requests::{Answer, MAX_MESSAGE, Requests};

/// The stream that answers a request. If it ends without an answer and cannot be resumed, nothing answers any more.
pub(super) struct OpenStream {
    requests: Arc<Requests>,
    id: Option<RequestId>,
    can_resume: bool,
}

impl OpenStream {
    /// Creates the stream of a request. `None`: it answers none.
    pub(super) fn new(requests: Arc<Requests>, id: Option<RequestId>) -> Self {
        let can_resume = id.as_ref().is_some_and(|id| requests.has_event(id));
        Self { requests, id, can_resume }
    }

    pub(super) fn note(&mut self, event: &Sse) {
        if let (Some(id), Some(event)) = (&self.id, &event.id) {
            self.requests.note_event(id, event);
            self.can_resume = self.requests.has_event(id);
        }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        if let Some(id) = self.id.take().filter(|_| !self.can_resume) {
            self.requests.complete(&id, Answer::Ended("it ended its answer early".into()));
        }
    }
}

/// The bytes of an event stream, with a limit on the size of one event: the bytes between two blank lines. The last event
/// ends with the stream.
pub(in crate::adapter::mcp) struct Bounded {
    bytes: stream::BoxStream<'static, Result<Bytes, reqwest::Error>>,
    since_blank: usize,
    at_newline: bool,
    /// Whether the last event has no end yet, for whoever asks.
    is_within: Arc<AtomicBool>,
    has_ended: bool,
}

impl Bounded {
    pub(in crate::adapter::mcp) fn new(response: Response, is_within: Arc<AtomicBool>) -> Self {
        let bytes = response.bytes_stream().boxed();
        Self { bytes, since_blank: 0, at_newline: false, is_within, has_ended: false }
    }

    /// Returns whether the event is within the limit.
    fn add(&mut self, bytes: &[u8]) -> bool {
        for byte in bytes {
            self.since_blank += 1;
            match byte {
                b'\n' if self.at_newline => self.since_blank = 0,
                b'\n' => self.at_newline = true,
                b'\r' => {}
                _ => self.at_newline = false,
            }
        }
        self.is_within.store(self.since_blank > 0, Ordering::Relaxed);
        self.since_blank <= MAX_MESSAGE
    }
}

impl Stream for Bounded {
    type Item = Result<Bytes, io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let Some(bytes) = ready!(self.bytes.poll_next_unpin(cx)) else {
            self.has_ended = true;
            // Some servers end a stream without the blank line that ends its last event.
            let end = std::mem::take(&mut self.since_blank) > 0;
            return Poll::Ready(end.then(|| Ok(Bytes::from_static(b"\n\n"))));
        };
        Poll::Ready(match bytes {
            Ok(bytes) if self.add(&bytes) => Some(Ok(bytes)),
            Ok(_) => Some(Err(io::Error::other(format!("an event has more than {MAX_MESSAGE} bytes")))),
            Err(error) => Some(Err(io::Error::other(error.without_url()))),
        })
    }
}
