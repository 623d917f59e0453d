//! Bodies of requests and responses.

use std::{
    convert::Infallible,
    future::poll_fn,
    io,
    pin::{Pin, pin},
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::{
    Response, StatusCode,
    body::{Body, Frame},
};

use super::super::raw;

/// The body of a response.
pub(super) type Reply = Pin<Box<dyn Body<Data = Bytes, Error = Infallible> + Send>>;

/// A body that is in memory.
pub(super) struct Whole(Option<Bytes>);

impl Whole {
    /// Reads a body of at most `limit` bytes.
    pub(super) async fn read<B>(body: B, limit: usize) -> io::Result<Self>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (mut read, mut body) = (Vec::new(), pin!(body));
        while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
            let Ok(data) = frame.map_err(io::Error::other)?.into_data() else { continue };
            if read.len() + data.len() > limit {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            read.extend_from_slice(&data);
        }
        Ok(Self(Some(read.into())))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

/// Returns whether a body had more bytes than the limit.
pub(super) fn is_too_long(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::FileTooLarge
}

impl Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }
}

/// Returns a response with a text.
pub(super) fn text(status: StatusCode, text: &str) -> Response<Reply> {
    let body: Reply = Box::pin(Whole(Some(Bytes::copy_from_slice(text.as_bytes()))));
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

/// Puts documents in the place of wrapped results: see [`raw`].
pub(super) fn unwrapping<B>(body: B) -> Reply
where
    B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    Box::pin(Unwrapping(Box::pin(body)))
}

/// `rmcp` writes each event, and each JSON response, as one frame.
struct Unwrapping<B>(Pin<Box<B>>);

impl<B: Body<Data = Bytes, Error = Infallible>> Body for Unwrapping<B> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.as_mut().poll_frame(context).map(|frame| {
            let Ok(frame) = frame?;
            Some(Ok(frame.map_data(unwrapped)))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }
}

fn unwrapped(data: Bytes) -> Bytes {
    let Ok(text) = std::str::from_utf8(&data) else { return data };
    let lines = text.split_inclusive('\n').map(|line| {
        let (before, message) = line.split_at(if line.starts_with("data:") { "data:".len() } else { 0 });
        let end = if line.ends_with('\n') { "\n" } else { "" };
        raw::unwrapped(message).map_or_else(|| line.to_owned(), |message| format!("{before} {message}{end}"))
    });
    lines.collect::<String>().into()
}
