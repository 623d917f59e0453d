//! Serves HTTP within limits.

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
    header::{self, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
};

use crate::net::connections::{Connection, HalfOpen, WRITE_LIMIT, WriteLimited};

/// The most requests that are answered at once. Others are refused.
const MAX_REQUESTS: usize = 256;

/// The most connections that wait for a request. Beyond it the one that has waited for longest is closed, so that silent
/// connections cannot keep others out.
const MAX_HALF_OPEN: usize = 128;

/// The longest time that the head of a request, and then its body, may take.
pub(in crate::adapter) const READ: Duration = Duration::from_secs(30);

/// How long a listener waits after a connection could not be accepted, for example for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections and answers their requests, at most 256 at once. Beyond that, a request gets status 503. At most 128
/// connections without a request are open; the oldest of them gives way. It never ends; dropping it ends all connections.
/// `system` is the name in the log.
pub(in crate::adapter) async fn serve<A, F, B>(listener: TcpListener, system: &'static str, answer: A)
where
    A: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let requests = Arc::new(Semaphore::new(MAX_REQUESTS));
    let half_open = HalfOpen::new(MAX_HALF_OPEN);
    let mut connections = JoinSet::new(); // aborted with this future
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let place = Arc::new(half_open.enter());
                connections.spawn(connection(stream, system, place, Arc::clone(&requests), answer.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection of {system} could not be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn connection<A, F, B>(
    stream: TcpStream,
    system: &'static str,
    place: Arc<Connection>,
    requests: Arc<Semaphore>,
    answer: A,
) where
    A: Fn(Request<Incoming>) -> F + Send,
    F: Future<Output = Response<B>> + Send,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    // A response is several small packets. Without this option each of them waits for the host's acknowledgement of the
    // one before it, 40 ms in all.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection of {system} cannot send small packets at once");
    }
    let waiting = Arc::clone(&place);
    let answer = service_fn(move |request| {
        let answered = Arc::clone(&requests).try_acquire_owned().ok().map(|slot| {
            place.leave();
            (answer(request), Answering { place: Arc::clone(&place), _slot: slot })
        });
        async move {
            let Some((answered, answering)) = answered else {
                return Ok(busy().map(|body| Counted { body: Either::Refused(body), _answering: None }));
            };
            let response = answered.await;
            // Refusals are for strangers too: they keep no connection from giving way.
            let answering = response.status().is_success().then_some(answering);
            let body = |body| Counted { body: Either::Answered(Box::pin(body)), _answering: answering };
            Ok::<_, Infallible>(response.map(body))
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(READ);
    let stream = TokioIo::new(WriteLimited::new(stream, WRITE_LIMIT));
    tokio::select! {
        served = http.serve_connection(stream, answer) => if let Err(error) = served {
            tracing::debug!(%error, "a connection of {system} failed");
        },
        () = waiting.gave_way() => tracing::debug!("a connection of {system} without a request gave way"),
    }
}

/// A request that is being answered.
struct Answering {
    place: Arc<Connection>,
    _slot: OwnedSemaphorePermit,
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.place.enter_again();
    }
}

/// The body of a response. Its request counts until it is dropped: that of an event stream may take hours.
struct Counted<B> {
    body: Either<B>,
    _answering: Option<Answering>,
}

enum Either<B> {
    Answered(Pin<Box<B>>),
    Refused(Reply),
}

impl<B: Body<Data = Bytes, Error: Into<BoxError>>> Body for Counted<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.get_mut().body {
            Either::Answered(body) => body.as_mut().poll_frame(context).map_err(Into::into),
            Either::Refused(body) => body.as_mut().poll_frame(context).map_err(Into::into),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Either::Answered(body) => body.is_end_stream(),
            Either::Refused(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Either::Answered(body) => body.size_hint(),
            Either::Refused(body) => body.size_hint(),
        }
    }
}

/// Refuses a request while too many others are answered. Clients try again after this status.
fn busy() -> Response<Reply> {
    let mut response = text(StatusCode::SERVICE_UNAVAILABLE, "too many requests are open");
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
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

pub(in crate::adapter) type BoxError = Box<dyn std::error::Error + Send + Sync>;

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

impl From<String> for Whole {
    fn from(text: String) -> Self {
        Self(Some(text.into()))
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

/// Returns whether the body of a message is declared as JSON.
#[cfg(all(feature = "rap", unix))]
pub(in crate::adapter) fn is_json(headers: &header::HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|it| it.to_str().ok()).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
}

/// Refuses the method of a request. `methods` are those of its path.
#[cfg(all(feature = "rap", unix))]
pub(in crate::adapter) fn not_allowed(methods: &'static str) -> Response<Reply> {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "");
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(methods));
    response
}

/// Returns a response with a text.
pub(in crate::adapter) fn text(status: StatusCode, text: &str) -> Response<Reply> {
    let body: Reply = Box::pin(Whole(Some(Bytes::copy_from_slice(text.as_bytes()))));
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

/// A body of these frames, for tests. Then it ends, or it never does.
#[cfg(test)]
pub(in crate::adapter) struct Frames {
    pub(in crate::adapter) left: std::collections::VecDeque<Bytes>,
    pub(in crate::adapter) ends: bool,
}

#[cfg(test)]
impl Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.left.pop_front() {
            Some(frame) => Poll::Ready(Some(Ok(Frame::data(frame)))),
            None if self.ends => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// A server that refuses `/refused`, answers `/stream` without an end, and other paths with `done`.
    struct Served {
        address: SocketAddr,
        /// The streams that are open.
        streams: Arc<AtomicUsize>,
        _task: JoinSet<()>,
    }

    impl Served {
        async fn start() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let streams: Arc<AtomicUsize> = Arc::default();
            let (open, mut task) = (Arc::clone(&streams), JoinSet::new());
            task.spawn(serve(listener, "a test", move |request: Request<Incoming>| {
                let response: Response<Reply> = match request.uri().path() {
                    "/refused" => text(StatusCode::UNAUTHORIZED, "no"),
                    "/stream" => Response::new(Box::pin(Endless::new(Arc::clone(&open), false))),
                    "/zeros" => Response::new(Box::pin(Endless::new(Arc::clone(&open), true))),
                    _ => text(StatusCode::OK, "done"),
                };
                async move { response }
            }));
            Self { address, streams, _task: task }
        }

        async fn connect(&self) -> TcpStream {
            TcpStream::connect(self.address).await.unwrap()
        }

        /// Sends a request, and returns its status and the connection.
        async fn get(&self, path: &str) -> (String, TcpStream) {
            let mut stream = self.connect().await;
            let status = get(&mut stream, path).await;
            (status, stream)
        }
    }

    async fn get(stream: &mut TcpStream, path: &str) -> String {
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
        let mut read = vec![0; 4_096];
        let length = stream.read(&mut read).await.unwrap();
        String::from_utf8_lossy(&read[..length]).lines().next().unwrap_or_default().to_owned()
    }

    async fn is_closed(stream: &mut TcpStream) -> bool {
        tokio::time::timeout(2 * READ, stream.read(&mut [0; 1])).await.is_ok_and(|read| matches!(read, Ok(0)))
    }

    /// Whether a connection ends before the time limit of its request's head ends it.
    async fn gave_way(stream: &mut TcpStream) -> bool {
        tokio::time::timeout(READ / 2, is_closed(stream)).await == Ok(true)
    }

    /// A body without an end: it writes nothing after its first byte, or zeros for ever.
    struct Endless {
        open: Arc<AtomicUsize>,
        has_begun: bool,
        is_busy: bool,
    }

    impl Endless {
        fn new(open: Arc<AtomicUsize>, is_busy: bool) -> Self {
            open.fetch_add(1, Ordering::SeqCst);
            Self { open, has_begun: false, is_busy }
        }
    }

    impl Drop for Endless {
        fn drop(&mut self) {
            self.open.fetch_sub(1, Ordering::SeqCst);
        }
    }

    impl Body for Endless {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            if self.has_begun && !self.is_busy {
                return Poll::Pending;
            }
            self.has_begun = true;
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[0; 1_024])))))
        }
    }

    #[tokio::test]
    async fn silent_connections_keep_no_request_out() {
        let served = Served::start().await;
        let (status, mut stream) = served.get("/stream").await;
        assert_eq!(status, "HTTP/1.1 200 OK");
        let mut silent = vec![served.connect().await];
        // One that was refused is silent from then on.
        silent.push(served.get("/refused").await.1);
        for _ in 0..2 * MAX_HALF_OPEN {
            silent.push(served.connect().await);
        }
        let (status, mut other) = served.get("/").await;
        assert_eq!(status, "HTTP/1.1 200 OK");
        assert!(gave_way(&mut silent[0]).await && gave_way(&mut silent[1]).await, "the oldest gave way");
        // A connection whose request is being answered stays, and one that has just been used stays longest.
        assert_eq!(served.streams.load(Ordering::SeqCst), 1);
        for _ in 0..MAX_HALF_OPEN / 2 {
            silent.push(served.connect().await);
        }
        assert_eq!(get(&mut other, "/").await, "HTTP/1.1 200 OK");
        let ended = tokio::time::timeout(Duration::from_millis(1), is_closed(&mut stream)).await;
        assert!(ended.is_err() || ended == Ok(false), "the stream stays open");
        // A connection that was answered waits like any other.
        for _ in 0..2 * MAX_HALF_OPEN {
            silent.push(served.connect().await);
        }
        assert_eq!(served.get("/").await.0, "HTTP/1.1 200 OK");
        assert!(gave_way(&mut other).await, "an idle connection gave way");
    }

    #[tokio::test]
    async fn request_beyond_256_is_refused_and_later_ones_are_answered() {
        let served = Served::start().await;
        let mut open = Vec::new();
        for _ in 0..256 {
            open.push(served.get("/stream").await);
        }
        assert!(open.iter().all(|(status, _)| status == "HTTP/1.1 200 OK"));
        let (status, mut refused) = served.get("/").await;
        assert_eq!(status, "HTTP/1.1 503 Service Unavailable");
        drop(open.pop());
        while served.streams.load(Ordering::SeqCst) == 256 {
            tokio::task::yield_now().await;
        }
        assert_eq!(get(&mut refused, "/").await, "HTTP/1.1 200 OK");
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_reads_nothing_loses_its_connection() {
        let served = Served::start().await;
        let (status, _unread) = served.get("/zeros").await;
        assert_eq!(status, "HTTP/1.1 200 OK");
        let start = tokio::time::Instant::now();
        while served.streams.load(Ordering::SeqCst) > 0 {
            assert!(start.elapsed() < 2 * WRITE_LIMIT, "it is written to for ever");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn head_that_does_not_arrive_ends_the_connection() {
        let served = Served::start().await;
        let mut slow = served.connect().await;
        slow.write_all(b"GET / HTTP/1.1\r\nhost:").await.unwrap();
        let start = tokio::time::Instant::now();
        assert!(is_closed(&mut slow).await);
        assert_eq!(start.elapsed().as_secs(), READ.as_secs());
    }
}
