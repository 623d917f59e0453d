//! Bodies of responses that hold documents in the place of wrapped results: see [`raw`].

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::body::{Body, Frame};

use super::super::raw;
use crate::adapter::sink::Reply;

/// Puts documents in the place of wrapped results.
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
