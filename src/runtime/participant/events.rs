//! Returns the events of a room, as a stream.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio_util::sync::ReusableBoxFuture;

use crate::protocol::session::Event;

type Received = (Result<Event, RecvError>, broadcast::Receiver<Event>);

/// The events from the moment of subscription: a [`Stream`], and [`recv`](Events::recv).
///
/// A reader that is too slow misses the oldest events, and gets [`Event::Missed`] with their number.
#[derive(Debug)]
pub struct Events {
    /// What happened before the subscription, and is still so.
    before: Option<Event>,
    next: ReusableBoxFuture<'static, Received>,
}

impl Events {
    pub(super) fn new(before: Option<Event>, receiver: broadcast::Receiver<Event>) -> Self {
        Self { before, next: ReusableBoxFuture::new(receive(receiver)) }
    }

    /// Returns the next event; `None` when the participant has left and every event was read.
    ///
    /// # Cancel safety
    /// Safe: dropping the future loses no event.
    pub async fn recv(&mut self) -> Option<Event> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        if let Some(event) = self.before.take() {
            return Poll::Ready(Some(event));
        }
        let (received, receiver) = ready!(self.next.poll(context));
        self.next.set(receive(receiver));
        Poll::Ready(match received {
            Ok(event) => Some(event),
            Err(RecvError::Lagged(missed)) => Some(Event::Missed(missed)),
            Err(RecvError::Closed) => None,
        })
    }
}

async fn receive(mut receiver: broadcast::Receiver<Event>) -> Received {
    (receiver.recv().await, receiver)
}
