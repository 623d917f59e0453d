//! Serves the address at which tools reach their runtime: `POST /rap/cb/{token}`.
//!
//! | status | when |
//! | --- | --- |
//! | 200 | the message was accepted, or has no effect because an equal one was |
//! | 400 | it is malformed, or names another `call_id` than its invocation; a result that cannot be read fails its call |
//! | 404 | there is no such call, or the message names another one |
//! | 405 | another method than POST |
//! | 408 | the body did not arrive in time |
//! | 410 | the call is over |
//! | 413 | the body has more than 16 MiB |
//! | 415 | the body is not declared as JSON |
//! | 429 | the call has sent too many messages |
//! | 503 | too many large bodies are read at once, or the room takes no report now; the tool sends it again |

use std::{future::Future, sync::Arc};

use bytes::Bytes;
use hyper::{Method, Request, Response, StatusCode, body::Body, header};
use tokio::{
    sync::{Mutex, OwnedSemaphorePermit, Semaphore, SemaphorePermit},
    task::spawn_blocking,
    time::timeout,
};

use super::inbox::{CALL_BODIES, Inbox, Refusal};
use crate::adapter::web::{
    secret::Digest,
    server::{BoxError, READ, Reply, Whole, is_json, is_too_long, not_allowed, text},
};

/// The path of callbacks, before the token.
pub(super) const PATH: &str = "/rap/cb";

/// The largest message, in bytes: an image of 12 MiB in base64.
pub(super) const MAX_MESSAGE: usize = 16 << 20;

/// The bodies that are read at once, in units of [`UNIT`]: 64 MiB. Those of one call have [`CALL_BODIES`] of them.
const BODIES: u32 = 64;

/// The size from which on a message is processed in a thread of its own, in bytes. Reading 16 MiB takes tens of
/// milliseconds, in which nothing else of this thread would run.
const LARGE: usize = 256 << 10;

/// What stands in place of a token that a tool sends back.
const CUT: &str = "[callback]";

/// One unit of a body, in bytes.
const UNIT: usize = 1 << 20;

/// Decides whether the answer to a choice may be sent to an address.
pub(super) type CheckAddress = dyn Fn(&str) -> Result<(), String> + Send + Sync;

pub(super) struct Callbacks {
    inbox: Arc<Inbox>,
    check: Box<CheckAddress>,
    bodies: Semaphore,
    /// Held while a message is processed: one at a time.
    turn: Mutex<()>,
}

/// A message that is not accepted: the status, and a line about it.
struct Refused(StatusCode, String);

impl Callbacks {
    pub(super) fn new(inbox: Arc<Inbox>, check: Box<CheckAddress>) -> Self {
        Self { inbox, check, bodies: Semaphore::new(BODIES as usize), turn: Mutex::new(()) }
    }

    /// Answers a request. Of another path than `/rap/cb/{token}` nothing is known.
    pub(super) async fn answer<B>(self: Arc<Self>, request: Request<B>) -> Response<Reply>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let path = request.uri().path().to_owned();
        let token = path.strip_prefix(PATH).and_then(|it| it.strip_prefix('/'));
        let Some(token) = token.filter(|it| !it.is_empty() && !it.contains('/')) else {
            return text(StatusCode::NOT_FOUND, "");
        };
        if request.method() != Method::POST {
            return not_allowed("POST");
        }
        match self.receive(token, request).await {
            Ok(()) => text(StatusCode::OK, ""),
            Err(Refused(status, reason)) => text(status, &format!("{reason}\n")),
        }
    }

    async fn receive<B>(self: &Arc<Self>, token: &str, request: Request<B>) -> Result<(), Refused>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        // Before the body is read: a stranger costs nothing but a look at its token.
        let (call, share) = self.inbox.admit(token).map_err(refused)?;
        let received = self.receive_of(call, share, token, request).await;
        if let Err(Refused(status, reason)) = &received {
            let reason =
                if *status == StatusCode::NOT_FOUND { "it names another call or group" } else { reason };
            self.inbox.note(&call, format!("a message of it was refused: {reason}"));
        }
        received
    }

    /// Receives a message of this call.
    async fn receive_of<B>(
        self: &Arc<Self>,
        call: Digest,
        share: Arc<Semaphore>,
        token: &str,
        request: Request<B>,
    ) -> Result<(), Refused>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        if !is_json(request.headers()) {
            return Err(answer(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "the content type must be application/json",
            ));
        }
        // Its share of the memory is held until it was processed.
        let (mut text, _share) = self.read(request, share).await?;
        if text.contains(token) {
            text = text.replace(token, CUT); // it gives access, so the room does not get it
        }
        let _turn = self.turn.lock().await;
        if text.len() < LARGE {
            return self.inbox.deliver(&call, &text, |url| (self.check)(url)).map_err(refused);
        }
        let callbacks = Arc::clone(self);
        let delivered = spawn_blocking(move || {
            callbacks.inbox.deliver(&call, &text, |url| (callbacks.check)(url)).map_err(refused)
        });
        let failed = |_| answer(StatusCode::INTERNAL_SERVER_ERROR, "the message could not be processed");
        delivered.await.map_err(failed)?
    }

    /// Reads a body within the memory of its call, `share`, and that of all calls.
    async fn read<B>(
        &self,
        request: Request<B>,
        share: Arc<Semaphore>,
    ) -> Result<(String, (OwnedSemaphorePermit, SemaphorePermit<'_>)), Refused>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let length = request.headers().get(header::CONTENT_LENGTH);
        let length = length.and_then(|it| it.to_str().ok()?.parse().ok()).unwrap_or(MAX_MESSAGE);
        if length > MAX_MESSAGE {
            return Err(too_large());
        }
        let units = u32::try_from(length.div_ceil(UNIT).clamp(1, CALL_BODIES)).unwrap_or(BODIES);
        let busy = || answer(StatusCode::SERVICE_UNAVAILABLE, "too many messages are read at once");
        let share = in_time(async {
            let own = share.acquire_many_owned(units).await.ok()?; // first, so that a call waits for itself alone
            Some((own, self.bodies.acquire_many(units).await.ok()?))
        });
        let share = share.await.flatten().ok_or_else(busy)?;
        let too_slow = || answer(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time");
        let body = in_time(Whole::read(request.into_body(), MAX_MESSAGE)).await.ok_or_else(too_slow)?;
        let body = body.map_err(|error| match is_too_long(&error) {
            true => too_large(),
            false => answer(StatusCode::BAD_REQUEST, "the body could not be read"),
        })?;
        let text = std::str::from_utf8(body.bytes());
        let text = text.map_err(|_| answer(StatusCode::BAD_REQUEST, "the body is not UTF-8"))?;
        Ok((text.to_owned(), share))
    }
}

async fn in_time<T>(waiting: impl Future<Output = T>) -> Option<T> {
    timeout(READ, waiting).await.ok()
}

fn refused(refusal: Refusal) -> Refused {
    match refusal {
        Refusal::Unknown => answer(StatusCode::NOT_FOUND, "there is no such call"),
        Refusal::Over => answer(StatusCode::GONE, "the call is over"),
        Refusal::TooMany => answer(StatusCode::TOO_MANY_REQUESTS, "the call has sent too many messages"),
        Refusal::NotNow => answer(StatusCode::SERVICE_UNAVAILABLE, "the room takes no more reports now"),
        Refusal::Malformed(reason) => Refused(StatusCode::BAD_REQUEST, reason),
    }
}

fn too_large() -> Refused {
    Refused(StatusCode::PAYLOAD_TOO_LARGE, format!("the body exceeds {MAX_MESSAGE} bytes"))
}

fn answer(status: StatusCode, text: &str) -> Refused {
    Refused(status, text.to_owned())
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use serde_json::{Value as Json, json};
    use tokio::{sync::mpsc, task::JoinSet};

    use super::*;
    use crate::{
        ToolContext,
        adapter::{
            rap::source::{
                inbox::{NewCall, OpenCall},
                reports::Reports,
            },
            web::server::Frames,
        },
    };

    fn callbacks(check: Box<CheckAddress>) -> Arc<Callbacks> {
        let (cancels, _) = mpsc::channel(1);
        let inbox = Arc::new(Inbox::new("g".into(), cancels).unwrap());
        Arc::new(Callbacks::new(inbox, check))
    }

    fn open(callbacks: &Callbacks, id: &str) -> OpenCall {
        let limit = Duration::from_secs(60);
        let context = ToolContext::new("caller", limit);
        let reports = Reports::of(&context, &"set".into());
        let tool = "t".parse().unwrap();
        let call = NewCall { id: id.into(), call_id: None, tool, is_structured: false, reports, limit };
        callbacks.inbox.open(call).unwrap()
    }

    fn request(body: Frames) -> Request<Frames> {
        Request::post("/").header("content-type", "application/json").body(body).unwrap()
    }

    fn whole(text: String) -> Frames {
        Frames { left: [text.into()].into(), ends: true }
    }

    /// A body that never comes.
    fn endless() -> Frames {
        Frames { left: Default::default(), ends: false }
    }

    fn message(kind: &str, id: &str, more: &Json) -> String {
        let mut message = json!({"type": kind, "group_id": "g", "id": id});
        message.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        message.to_string()
    }

    #[tokio::test(start_paused = true)]
    async fn slow_messages_of_one_call_leave_room_for_those_of_others() {
        let callbacks = callbacks(Box::new(|_| Ok(())));
        let (slow, quick) = (open(&callbacks, "slow"), open(&callbacks, "quick"));
        let mut posts = JoinSet::new();
        for _ in 0..8 {
            let (callbacks, token) = (Arc::clone(&callbacks), slow.token.clone());
            posts.spawn(async move { callbacks.receive(&token, request(endless())).await.is_ok() });
        }
        for _ in 0..100 {
            tokio::task::yield_now().await; // each of them waits for its body, or for the others
        }
        let result = request(whole(message("tool_result", "quick", &json!({"text": "done"}))));
        let answered = timeout(Duration::from_secs(1), callbacks.receive(&quick.token, result)).await;
        assert!(matches!(answered, Ok(Ok(()))));
        // The slow ones end with their time.
        while let Some(is_accepted) = posts.join_next().await {
            assert!(!is_accepted.unwrap());
        }
        assert_eq!(callbacks.bodies.available_permits(), BODIES as usize);
    }

    #[tokio::test]
    async fn body_in_chunks_above_the_limit_is_too_large() {
        let callbacks = callbacks(Box::new(|_| Ok(())));
        let call = open(&callbacks, "c");
        let chunk = Bytes::from(vec![b' '; UNIT]);
        let chunks = Frames { left: vec![chunk; 17].into(), ends: true };
        let Err(Refused(status, _)) = callbacks.receive(&call.token, request(chunks)).await else {
            panic!("it was accepted")
        };
        assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn rap_r24_messages_that_threads_receive_at_once_are_processed_one_at_a_time() {
        let running = Arc::new(AtomicUsize::new(0));
        let most = Arc::new(AtomicUsize::new(0));
        let (now, at_once) = (Arc::clone(&running), Arc::clone(&most));
        let callbacks = callbacks(Box::new(move |_| {
            at_once.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            for _ in 0..1_000 {
                std::thread::yield_now(); // others would come in between
            }
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }));
        let call = Arc::new(open(&callbacks, "c"));
        let mut asking = JoinSet::new();
        for n in 0..64 {
            let (callbacks, call) = (Arc::clone(&callbacks), Arc::clone(&call));
            // Every other message is large, and processed in a thread of its own.
            let prompt = "?".repeat(if n % 2 == 0 { 1 } else { LARGE });
            let choice = json!({"prompt": prompt, "choices": ["a"], "default": 0, "response_url": "https://x.example"});
            let message = whole(message("user_choice", "c", &choice));
            asking.spawn(async move { callbacks.receive(&call.token, request(message)).await.is_ok() });
        }
        let accepted = asking.join_all().await.into_iter().filter(|is_accepted| *is_accepted);
        assert_eq!(accepted.count(), 16, "as many questions as one call may ask");
        assert_eq!(most.load(Ordering::SeqCst), 1);
    }

    async fn status(request: Request<Frames>) -> StatusCode {
        let callbacks = callbacks(Box::new(|_| Ok(())));
        let call = open(&callbacks, "c");
        let received = timeout(2 * READ, callbacks.receive(&call.token, request)).await;
        let Ok(Err(Refused(status, _))) = received else { panic!("it was accepted, or waits for ever") };
        status
    }

    #[tokio::test]
    async fn only_posts_to_the_path_of_a_token_are_read() {
        let callbacks = callbacks(Box::new(|_| Ok(())));
        let call = open(&callbacks, "c");
        let path = format!("{PATH}/{}", call.token);
        for (method, path, status) in [
            ("POST", format!("{path}/more"), StatusCode::NOT_FOUND),
            ("POST", format!("{PATH}/"), StatusCode::NOT_FOUND),
            ("POST", format!("{PATH}{}", call.token), StatusCode::NOT_FOUND),
            ("POST", "/".to_owned(), StatusCode::NOT_FOUND),
            ("GET", path.clone(), StatusCode::METHOD_NOT_ALLOWED),
            ("POST", path, StatusCode::UNSUPPORTED_MEDIA_TYPE),
        ] {
            let request = Request::builder().method(method).uri(&path).body(endless()).unwrap();
            assert_eq!(Arc::clone(&callbacks).answer(request).await.status(), status, "{method} {path}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn body_that_is_declared_too_large_is_not_read() {
        let length = (MAX_MESSAGE + 1).to_string();
        let request =
            Request::post("/").header("content-type", "application/json").header("content-length", length);
        assert_eq!(status(request.body(endless()).unwrap()).await, StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[tokio::test(start_paused = true)]
    async fn body_that_is_not_declared_as_json_is_not_read() {
        let request = Request::post("/").header("content-type", "text/plain").body(endless()).unwrap();
        assert_eq!(status(request).await, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }

    #[tokio::test(start_paused = true)]
    async fn body_that_does_not_arrive_is_given_up() {
        assert_eq!(status(request(endless())).await, StatusCode::REQUEST_TIMEOUT);
    }
}
