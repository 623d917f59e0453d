//! Writes bodies of responses that hold documents in the place of wrapped results: see [`raw`].

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame};

use super::super::raw;
use crate::adapter::web::server::Reply;

/// Puts documents in the place of wrapped results.
pub(super) fn unwrapping<B>(body: B) -> Reply
where
    B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    Box::pin(Unwrapping { body: Box::pin(body), line: BytesMut::new() })
}

/// A message is a line: of an event stream, or the whole body.
struct Unwrapping<B> {
    body: Pin<Box<B>>,
    /// A line whose end has not come.
    line: BytesMut,
}

impl<B: Body<Data = Bytes, Error = Infallible>> Body for Unwrapping<B> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        loop {
            let Some(Ok(frame)) = ready!(this.body.as_mut().poll_frame(context)) else {
                let last = this.line.split().freeze();
                return Poll::Ready((!last.is_empty()).then(|| Ok(Frame::data(unwrapped(last)))));
            };
            let data = match frame.into_data() {
                Ok(data) => data,
                Err(other) => return Poll::Ready(Some(Ok(other))),
            };
            let Some(end) = data.iter().rposition(|byte| *byte == b'\n') else {
                this.line.extend_from_slice(&data);
                continue;
            };
            let mut lines = data;
            let rest = lines.split_off(end + 1);
            if !this.line.is_empty() {
                this.line.extend_from_slice(&lines);
                lines = this.line.split().freeze();
            }
            this.line.extend_from_slice(&rest);
            return Poll::Ready(Some(Ok(Frame::data(unwrapped(lines)))));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.line.is_empty() && self.body.is_end_stream()
    }
}

fn unwrapped(data: Bytes) -> Bytes {
    let Ok(text) = std::str::from_utf8(&data) else { return data };
    let lines = text.split_inclusive('\n').map(|line| {
        let (before, message) = match line.strip_prefix("data:") {
            Some(message) => ("data: ", message),
            None => ("", line),
        };
        let end = if line.ends_with('\n') { "\n" } else { "" };
        raw::unwrapped(message).map_or_else(|| line.to_owned(), |message| format!("{before}{message}{end}"))
    });
    lines.collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;
    use crate::adapter::web::server::Frames;

    #[tokio::test]
    async fn result_is_unwrapped_wherever_the_frames_are_cut() {
        let message =
            r#"{"jsonrpc":"2.0","id":7,"result":{"content":[],"_meta":{"dev.toolbridge/raw":"{\"é\":1}"}}}"#;
        let expected = r#"{"jsonrpc":"2.0","id":7,"result":{"é":1}}"#;
        for (written, expected) in [
            (message.to_owned(), expected.to_owned()),
            (format!("id: 1\ndata: {message}\n\n"), format!("id: 1\ndata: {expected}\n\n")),
        ] {
            for size in 1..=written.len() {
                let left = written.as_bytes().chunks(size).map(Bytes::copy_from_slice).collect();
                let mut body = unwrapping(Frames { left, ends: true });
                let mut read = Vec::new();
                while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
                    read.extend(frame.unwrap().into_data().unwrap());
                }
                assert_eq!(String::from_utf8(read).unwrap(), expected, "{size}");
            }
        }
    }
}
