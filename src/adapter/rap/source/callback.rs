//! The address at which tools reach their runtime: `POST /rap/cb/{token}`.
//!
//! | status | when |
//! | --- | --- |
//! | 200 | the message was accepted, or has no effect because an equal one was |
//! | 400 | it is malformed, or names another `call_id` than its invocation |
//! | 404 | there is no such call, or the message names another one |
//! | 405 | another method than POST |
//! | 408 | the body did not arrive in time |
//! | 410 | the call is over |
//! | 413 | the body has more than 16 MiB |
//! | 415 | the body is not declared as JSON |
//! | 429 | the call has sent too many messages |
//! | 503 | too many large bodies are read at once; the tool sends it again |

use std::{future::Future, sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Path, Request, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::post,
};
use tokio::{
    sync::{Mutex, Semaphore, SemaphorePermit},
    time::timeout,
};

use super::inbox::{Inbox, Refusal};

/// The path of callbacks, before the token.
pub(super) const PATH: &str = "/rap/cb";

/// The largest message, in bytes: an image of 12 MiB in base64.
pub(super) const MAX_MESSAGE: usize = 16 << 20;

/// The bodies that are read at once, in units of [`UNIT`]: 64 MiB.
const BODIES: u32 = 64;

/// One unit of a body, in bytes.
const UNIT: usize = 1 << 20;

/// The longest time that a body may take, and that it may wait for others.
const READ: Duration = Duration::from_secs(30);

/// Decides whether the answer to a choice may be sent to an address.
pub(super) type CheckAddress = dyn Fn(&str) -> Result<(), String> + Send + Sync;

struct Callbacks {
    inbox: Arc<Inbox>,
    check: Box<CheckAddress>,
    bodies: Semaphore,
    /// Held while a message is processed: one at a time.
    turn: Mutex<()>,
}

/// Returns the routes of callbacks.
pub(super) fn routes(inbox: Arc<Inbox>, check: Box<CheckAddress>) -> Router {
    let callbacks = Callbacks { inbox, check, bodies: Semaphore::new(BODIES as usize), turn: Mutex::new(()) };
    Router::new().route(&format!("{PATH}/{{token}}"), post(receive)).with_state(Arc::new(callbacks))
}

async fn receive(
    State(callbacks): State<Arc<Callbacks>>,
    Path(token): Path<String>,
    request: Request,
) -> Response {
    match callbacks.receive(&token, request).await {
        Ok(()) => StatusCode::OK.into_response(),
        Err(Refused(status, text)) => (status, format!("{text}\n")).into_response(),
    }
}

/// A message that is not accepted: the status, and a line about it.
struct Refused(StatusCode, String);

impl Callbacks {
    async fn receive(&self, token: &str, request: Request) -> Result<(), Refused> {
        // Before the body is read: a stranger costs nothing but a look at its token.
        let call = self.inbox.admit(token).map_err(refused)?;
        if !is_json(request.headers()) {
            return Err(answer(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "the content type must be application/json",
            ));
        }
        // Its share of the memory is held until it was processed.
        let (text, _share) = self.read(request).await?;
        let _turn = self.turn.lock().await;
        self.inbox.deliver(&call, &text, |url| (self.check)(url)).map_err(refused)
    }

    async fn read(&self, request: Request) -> Result<(String, SemaphorePermit<'_>), Refused> {
        let length = request.headers().get(header::CONTENT_LENGTH);
        let length = length.and_then(|it| it.to_str().ok()?.parse().ok()).unwrap_or(MAX_MESSAGE);
        if length > MAX_MESSAGE {
            return Err(too_large());
        }
        let units = u32::try_from(length.div_ceil(UNIT)).unwrap_or(BODIES).max(1);
        let busy = || answer(StatusCode::SERVICE_UNAVAILABLE, "too many messages are read at once");
        let share = in_time(self.bodies.acquire_many(units)).await.and_then(Result::ok).ok_or_else(busy)?;
        let too_slow = || answer(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time");
        let body = in_time(whole(request.into_body())).await.ok_or_else(too_slow)??;
        let text = String::from_utf8(body);
        Ok((text.map_err(|_| answer(StatusCode::BAD_REQUEST, "the body is not UTF-8"))?, share))
    }
}

async fn in_time<T>(waiting: impl Future<Output = T>) -> Option<T> {
    timeout(READ, waiting).await.ok()
}

async fn whole(body: Body) -> Result<Vec<u8>, Refused> {
    to_bytes(body, MAX_MESSAGE).await.map(Vec::from).map_err(|error| {
        let mut source: Option<&dyn std::error::Error> = Some(&error);
        while let Some(error) = source {
            // `axum` reports the limit by the text of an error that it does not export.
            if error.to_string().contains("length limit exceeded") {
                return too_large();
            }
            source = error.source();
        }
        answer(StatusCode::BAD_REQUEST, "the body could not be read")
    })
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|it| it.to_str().ok()).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
}

fn refused(refusal: Refusal) -> Refused {
    match refusal {
        Refusal::Unknown => answer(StatusCode::NOT_FOUND, "there is no such call"),
        Refusal::Over => answer(StatusCode::GONE, "the call is over"),
        Refusal::TooMany => answer(StatusCode::TOO_MANY_REQUESTS, "the call has sent too many messages"),
        Refusal::Malformed(reason) => Refused(StatusCode::BAD_REQUEST, reason),
    }
}

fn too_large() -> Refused {
    Refused(StatusCode::PAYLOAD_TOO_LARGE, format!("the body exceeds {MAX_MESSAGE} bytes"))
}

fn answer(status: StatusCode, text: &str) -> Refused {
    Refused(status, text.to_owned())
}
