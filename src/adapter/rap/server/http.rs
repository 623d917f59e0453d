//! Answers the requests to the toolset.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{self, HeaderValue},
};
use tokio::{task::JoinSet, time::timeout};

use super::{
    call::{self, Calls},
    invocation::{Invocation, Malformed, Notice},
    manifest::manifest,
    table::Accepted,
};
use crate::adapter::web::{
    secret::{Digest, DigestKey},
    server::{READ, Reply, Whole, is_json, is_too_long, not_allowed, text},
};

/// The longest request, in bytes. It holds the arguments of one call.
const MAX_REQUEST: usize = 4 * 1024 * 1024;

/// How long calls have to end, and their results to be delivered, when the server stops.
const LAST_RESULTS: Duration = Duration::from_secs(2);

/// Answers requests, and owns the calls.
pub(super) struct Server {
    calls: Arc<Calls>,
    name: String,
    endpoint: String,
    key: DigestKey,
    /// Of the first two parts of all paths.
    secret: Digest,
    running: Mutex<JoinSet<()>>,
}

impl Server {
    /// `base` is the path before those of the protocol, `endpoint` the URL for calls.
    pub(super) fn new(calls: Calls, name: String, base: &str, endpoint: String) -> io::Result<Self> {
        let key = DigestKey::random()?;
        let secret = key.digest(base.as_bytes());
        Ok(Self { calls: Arc::new(calls), name, endpoint, key, secret, running: Mutex::default() })
    }

    pub(super) fn calls(&self) -> &Calls {
        &self.calls
    }

    /// Answers a request. Without the secret path, everything is unknown.
    pub(super) async fn answer(&self, request: Request<Incoming>) -> Response<Reply> {
        let path = request.uri().path();
        let Some((base, route)) = split(path) else { return unknown() };
        if self.key.digest(base.as_bytes()) != self.secret {
            return unknown();
        }
        let route = match route {
            "/.well-known/rap-toolset" => return self.toolset(request.method()).await,
            "/invoke" => Self::invoke,
            "/cancel_tool_call" => Self::cancel_call,
            "/close_thread" => Self::close_thread,
            _ => return unknown(),
        };
        match read(request).await {
            Ok(body) => match std::str::from_utf8(body.bytes()) {
                Ok(text) => route(self, text),
                Err(_) => refused("the body is not UTF-8"),
            },
            Err(refused) => refused,
        }
    }

    async fn toolset(&self, method: &Method) -> Response<Reply> {
        if ![Method::GET, Method::HEAD].contains(method) {
            return not_allowed("GET, HEAD");
        }
        let catalog = self.calls.room.list().await;
        match manifest(&self.name, &self.endpoint, &catalog) {
            Some(manifest) => {
                let mut response = text(StatusCode::OK, &manifest.to_string());
                let json = HeaderValue::from_static("application/json");
                response.headers_mut().insert(header::CONTENT_TYPE, json);
                response
            }
            None => later("no app offers a tool now"),
        }
    }

    /// Answers before the tool is looked for.
    fn invoke(&self, body: &str) -> Response<Reply> {
        let invocation = match Invocation::read(body, &self.calls.outgoing) {
            Ok(invocation) => invocation,
            Err(error) => {
                tracing::warn!(%error, "a RAP call was refused");
                return refused(&error.to_string());
            }
        };
        if self.calls.waiting.is_full() && !self.calls.table.knows(&invocation.key) {
            return later("too many results could not be delivered yet");
        }
        match self.calls.table.accept(&invocation.key) {
            Accepted::New(cancelled) => {
                let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
                while running.try_join_next().is_some() {}
                running.spawn(call::run(Arc::clone(&self.calls), invocation, cancelled));
                text(StatusCode::OK, "accepted")
            }
            Accepted::Repeated => text(StatusCode::OK, "accepted before"),
            Accepted::Full => later("too many calls are open"),
        }
    }

    fn cancel_call(&self, body: &str) -> Response<Reply> {
        self.notice(Notice::of_call(body))
    }

    fn close_thread(&self, body: &str) -> Response<Reply> {
        self.notice(Notice::of_thread(body))
    }

    /// Whatever a notice names, its answer is the same: it says nothing about which calls are open.
    fn notice(&self, notice: Result<Notice, Malformed>) -> Response<Reply> {
        match notice {
            Ok(notice) => {
                let calls = self.calls.table.cancel(&notice); // not inside the macro, which may not run it
                tracing::debug!(calls, "RAP calls were cancelled");
            }
            Err(error) => tracing::debug!(%error, "a RAP notice was ignored"),
        }
        text(StatusCode::OK, "")
    }

    /// Cancels all calls, and waits for their results for a while.
    pub(super) async fn finish(&self) {
        self.calls.is_closing.store(true, Ordering::Relaxed);
        self.calls.table.cancel_all();
        let mut running = std::mem::take(&mut *self.running.lock().unwrap_or_else(PoisonError::into_inner));
        let _ = timeout(LAST_RESULTS, async { while running.join_next().await.is_some() {} }).await;
    }
}

/// Splits `/rap/SECRET/route` before its route.
fn split(path: &str) -> Option<(&str, &str)> {
    let second = path.match_indices('/').nth(2)?.0;
    Some(path.split_at(second))
}

/// Reads the body of a POST.
async fn read(request: Request<Incoming>) -> Result<Whole, Response<Reply>> {
    if request.method() != Method::POST {
        return Err(not_allowed("POST"));
    }
    if !is_json(request.headers()) {
        return Err(text(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the content type is not application/json"));
    }
    match timeout(READ, Whole::read(request.into_body(), MAX_REQUEST)).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(error)) if is_too_long(&error) => {
            let limit = format!("the body exceeds {MAX_REQUEST} bytes");
            Err(text(StatusCode::PAYLOAD_TOO_LARGE, &limit))
        }
        Ok(Err(_)) => Err(refused("the body could not be read")),
        Err(_) => Err(text(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")),
    }
}

fn unknown() -> Response<Reply> {
    text(StatusCode::NOT_FOUND, "not found")
}

fn refused(why: &str) -> Response<Reply> {
    text(StatusCode::BAD_REQUEST, why)
}

/// Runtimes try again after this status.
fn later(why: &str) -> Response<Reply> {
    let mut response = text(StatusCode::SERVICE_UNAVAILABLE, why);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_split_before_its_route() {
        assert_eq!(split("/rap/abc/.well-known/rap-toolset"), Some(("/rap/abc", "/.well-known/rap-toolset")));
        assert_eq!(split("/rap/abc/invoke"), Some(("/rap/abc", "/invoke")));
        assert_eq!(split("/rap/abc"), None);
        assert_eq!(split("/"), None);
        assert_eq!(split("///invoke"), Some(("//", "/invoke")));
    }
}
