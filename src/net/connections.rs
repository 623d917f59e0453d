//! Limits what clients cost a listener that send no request, or read no answer.

use std::{
    collections::BTreeMap,
    io::{self, IoSlice},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};
use tokio_util::sync::CancellationToken;

/// The longest time for which a client may read nothing while something is written to it.
pub(crate) const WRITE_LIMIT: Duration = Duration::from_secs(30);

/// The connections of a listener that wait for a request, with a limit on their number. Beyond it the one that has waited
/// for longest gives way, so that idle connections cannot keep others out.
#[derive(Clone, Debug)]
pub(crate) struct HalfOpen {
    waiting: Arc<Mutex<Waiting>>,
    limit: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    /// In the order in which they began to wait.
    connections: BTreeMap<u64, CancellationToken>,
}

/// A connection of a listener. It waits for a request until [`leave`](Self::leave), and does not count once it is dropped.
pub(crate) struct Connection {
    half_open: HalfOpen,
    at: Mutex<Option<u64>>,
    given_up: CancellationToken,
}

impl HalfOpen {
    pub(crate) fn new(limit: usize) -> Self {
        Self { waiting: Arc::default(), limit }
    }

    /// Adds a connection that waits for its first request.
    pub(crate) fn enter(&self) -> Connection {
        let given_up = CancellationToken::new();
        let at = self.wait(&given_up);
        Connection { half_open: self.clone(), at: Mutex::new(Some(at)), given_up }
    }

    fn wait(&self, connection: &CancellationToken) -> u64 {
        let waiting = &mut *self.waiting();
        if waiting.connections.len() >= self.limit
            && let Some((_, oldest)) = waiting.connections.pop_first()
        {
            oldest.cancel();
        }
        waiting.next += 1;
        waiting.connections.insert(waiting.next, connection.clone());
        waiting.next
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// Resolves when the connection must end because another one needs its place.
    pub(crate) async fn gave_way(&self) {
        self.given_up.cancelled().await;
    }

    /// Notes that a request has arrived.
    pub(crate) fn leave(&self) {
        let at = self.at.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(at) = at {
            self.half_open.waiting().connections.remove(&at);
        }
    }

    /// Notes that the request is answered, and that the connection waits for another one.
    #[cfg(any(test, feature = "mcp-server", feature = "rap"))]
    pub(crate) fn enter_again(&self) {
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        if at.is_none() {
            *at = Some(self.half_open.wait(&self.given_up));
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A stream whose writes fail once its reader has read nothing for a while.
pub(crate) struct WriteLimited<S> {
    stream: S,
    limit: Duration,
    /// When the write that waits is given up.
    deadline: Pin<Box<Sleep>>,
    is_waiting: bool,
}

impl<S> WriteLimited<S> {
    pub(crate) fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, deadline: Box::pin(sleep(limit)), is_waiting: false }
    }

    fn within_limit<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.is_waiting = false;
            return written;
        }
        if !self.is_waiting {
            self.is_waiting = true;
            self.deadline.as_mut().reset(Instant::now() + self.limit);
        }
        ready!(self.deadline.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the other side does not read")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteLimited<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteLimited<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.within_limit(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.within_limit(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.within_limit(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.within_limit(cx, closed)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    fn has_ended(connection: &Connection) -> bool {
        connection.given_up.is_cancelled()
    }

    #[test]
    fn half_open_connection_above_the_limit_closes_the_oldest() {
        let half_open = HalfOpen::new(32);
        let mut open: Vec<_> = (0..32).map(|_| half_open.enter()).collect();
        assert!(!open.iter().any(has_ended));
        open.push(half_open.enter());
        let ended: Vec<_> = open.iter().map(has_ended).collect();
        assert!(ended[0] && !ended[1..].contains(&true), "{ended:?}");
        // A connection with a request, or that has ended, no longer counts.
        open[1].leave();
        open.push(half_open.enter());
        drop(open.remove(2));
        open.push(half_open.enter());
        assert_eq!(open.iter().filter(|it| has_ended(it)).count(), 1);
        // Once it waits again it is the newest.
        open[1].enter_again();
        let ended: Vec<_> = open.iter().map(has_ended).collect();
        assert!(ended[2] && !ended[1] && !ended[3..].contains(&true), "{ended:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn write_to_a_client_that_reads_nothing_fails_after_its_limit() {
        let (ours, mut theirs) = duplex(1_000);
        let mut ours = WriteLimited::new(ours, WRITE_LIMIT);
        ours.write_all(&[1; 1_000]).await.unwrap();
        // A client that reads slowly is served.
        let reading = async {
            for _ in 0..100 {
                sleep(WRITE_LIMIT - Duration::from_millis(1)).await;
                theirs.read_exact(&mut [0; 10]).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(ours.write_all(&[2; 1_000]), reading);
        written.unwrap();
        let start = Instant::now();
        let failed = tokio::time::timeout(2 * WRITE_LIMIT, ours.write_all(&[3; 10])).await;
        let failed = failed.expect("it waits for ever").unwrap_err();
        assert_eq!(
            (failed.kind(), start.elapsed().as_secs()),
            (io::ErrorKind::TimedOut, WRITE_LIMIT.as_secs())
        );
    }
}
