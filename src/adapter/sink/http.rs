//! An HTTP server with limits.

use std::{
    convert::Infallible,
    future::poll_fn,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use hyper::{
    Request, Response, StatusCode,
    body::{Body, Frame, Incoming, SizeHint},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
};

/// The most connections that are open at once.
const MAX_CONNECTIONS: usize = 256;

/// The longest time that the head of a request, and then its body, may take.
pub(in crate::adapter) const READ: Duration = Duration::from_secs(30);

/// How long a listener waits after a connection could not be accepted, for example for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections and answers their requests, at most 256 connections at once. It never ends; dropping it ends all
/// connections. `system` is the name in the log.
pub(in crate::adapter) async fn serve<A, F, B>(listener: TcpListener, system: &'static str, answer: A)
where
    A: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new(); // aborted with this future
    loop {
        // The semaphore is never closed.
        let slot = Arc::clone(&slots).acquire_owned().await.ok();
        match listener.accept().await {
            Ok((stream, _)) => {
                let answer = answer.clone();
                connections.spawn(async move {
                    connection(stream, system, answer).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection of {system} could not be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn connection<A, F, B>(stream: TcpStream, system: &'static str, answer: A)
where
    A: Fn(Request<Incoming>) -> F + Send,
    F: Future<Output = Response<B>> + Send,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    // A response is several small packets. Without this option each of them waits for the host's acknowledgement of the
    // one before it, 40 ms in all.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection of {system} cannot send small packets at once");
    }
    let answer = service_fn(move |request| {
        let answered = answer(request);
        async move { Ok::<_, Infallible>(answered.await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(READ);
    if let Err(error) = http.serve_connection(TokioIo::new(stream), answer).await {
        tracing::debug!(%error, "a connection of {system} failed");
    }
}

/// Returns the address at which this machine reaches a server: of one that listens on all addresses, the loopback address.
pub(in crate::adapter) fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a response.
pub(in crate::adapter) type Reply = Pin<Box<dyn Body<Data = Bytes, Error = Infallible> + Send>>;

/// A body that is in memory.
pub(in crate::adapter) struct Whole(Option<Bytes>);

impl Whole {
    /// Reads a body of at most `limit` bytes.
    pub(in crate::adapter) async fn read<B>(body: B, limit: usize) -> io::Result<Self>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
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

    pub(in crate::adapter) fn bytes(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

/// Returns whether a body had more bytes than the limit.
pub(in crate::adapter) fn is_too_long(error: &io::Error) -> bool {
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

    /// Makes the response one with a `Content-Length`, not one in chunks.
    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes().len() as u64)
    }
}

/// Returns a response with a text.
pub(in crate::adapter) fn text(status: StatusCode, text: &str) -> Response<Reply> {
    let body: Reply = Box::pin(Whole(Some(Bytes::copy_from_slice(text.as_bytes()))));
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}
