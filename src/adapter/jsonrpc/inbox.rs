//! Reads messages, whatever carries them: answers end the requests of this side, and what cannot be read is answered or
//! counted.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

#[cfg(any(test, feature = "acp"))]
use serde_json::Value as Json;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{
    error::{self, RpcError},
    failure::Failure,
    head::Head,
    id::Id,
    message::{Message, Parts},
    open::{Open, Reason, Reply},
    text,
};
use crate::adapter::json;

/// The shortest time between two reports of what is ignored.
const REPORT_AGAIN: Duration = Duration::from_secs(10);

/// How far into a text that starts as a list a batch is looked for, in bytes. Other programs begin a line of their logs so.
const MAX_BATCH_START: usize = 1 << 10;

/// What the other side sent that has no effect.
#[derive(Debug, Default)]
pub(in crate::adapter) struct Ignored {
    junk: AtomicU64,
    too_long: AtomicU64,
    /// Answers and notifications whose request is not open.
    stale: AtomicU64,
}

impl Ignored {
    /// Returns the number of texts that were skipped because they are not messages.
    #[cfg(any(test, feature = "acp"))]
    pub(in crate::adapter) fn junk(&self) -> u64 {
        self.junk.load(Ordering::Relaxed)
    }

    /// Returns the number of texts that were skipped because they exceed the limit.
    #[cfg(any(test, feature = "acp"))]
    pub(in crate::adapter) fn too_long(&self) -> u64 {
        self.too_long.load(Ordering::Relaxed)
    }

    /// Counts a notification whose request is not open.
    pub(in crate::adapter) fn count_stale(&self) {
        self.stale.fetch_add(1, Ordering::Relaxed);
    }
}

/// A message of the other side. The parameters stay text, because other forms lose numbers and the order of keys.
pub(in crate::adapter) enum Incoming {
    Request(Request),
    Notification {
        method: String,
        params: Option<Box<RawValue>>,
    },
    /// An error that names no request, while none or several are open: its words.
    Unnamed(
        #[cfg_attr(not(all(feature = "mcp", unix)), expect(dead_code, reason = "ACP warns nobody"))] String,
    ),
}

/// A request of the other side.
pub(in crate::adapter) struct Request {
    pub(in crate::adapter) id: Id,
    pub(in crate::adapter) method: String,
    pub(in crate::adapter) params: Option<Box<RawValue>>,
    /// The size of its message, in bytes.
    #[cfg_attr(not(feature = "acp"), expect(dead_code, reason = "MCP's client keeps no request"))]
    pub(in crate::adapter) size: usize,
}

/// Returns parameters as JSON. They were measured with their message.
#[cfg(any(test, feature = "acp"))]
pub(in crate::adapter) fn as_json(params: Option<&RawValue>) -> Json {
    params.and_then(|params| json::value(params.get()).ok()).unwrap_or_default()
}

/// What was read of a text.
pub(in crate::adapter) enum Read {
    Incoming(Incoming),
    /// A message that needs nothing more.
    Done,
    /// This answer is to be sent, to the request with this id, if there is one.
    Refused(Option<Id>, RpcError),
    /// The text is blank, or no message: it has neither a method nor an id.
    Junk,
}

/// Reads the messages of one side.
pub(in crate::adapter) struct Inbox {
    /// The other side in the log.
    name: Arc<str>,
    ignored: Arc<Ignored>,
    reported: Mutex<Option<Instant>>,
}

impl Inbox {
    pub(in crate::adapter) fn new(name: Arc<str>, ignored: Arc<Ignored>) -> Self {
        Self { name, ignored, reported: Mutex::default() }
    }

    /// Reads a text. `of` is the request that it answers, if the transport knows that.
    pub(in crate::adapter) fn read(&self, open: &Open, bytes: &[u8], of: Option<u64>) -> Read {
        if bytes.trim_ascii().is_empty() {
            return Read::Junk;
        }
        if is_batch(bytes) {
            return self.batch(open, bytes, of);
        }
        let readable = match text(bytes) {
            Ok(readable) => readable,
            Err(reason) => return self.unreadable(open, Head::of(bytes), error::PARSE, reason.into()),
        };
        if readable.trim_start().starts_with('[') {
            return Read::Refused(None, RpcError::new(error::INVALID_REQUEST, error::BATCH));
        }
        // Parameters and results are passed on as they were written, and not as they were repaired.
        let written = std::str::from_utf8(bytes).map_or(&*readable, crate::value::without_mark);
        let message = serde_json::from_str::<Parts<'_>>(written).ok().and_then(Parts::message);
        match message {
            Some(Message::Request { id, method, params }) => Read::Incoming(Incoming::Request(Request {
                id,
                method: method.into_owned(),
                params: params.map(ToOwned::to_owned),
                size: bytes.len(),
            })),
            Some(Message::Notification { method, params }) => Read::Incoming(Incoming::Notification {
                method: method.into_owned(),
                params: params.map(ToOwned::to_owned),
            }),
            Some(Message::Response { id, answer }) => self.response(open, id.as_ref(), answer, of),
            None => self.unreadable(open, Head::of(bytes), error::INVALID_REQUEST, Reason::Shape),
        }
    }

    /// Reads what is known of a text that exceeds the limit.
    pub(super) fn too_long(&self, open: &Open, head: Head<'_>, size: usize, limit: usize) -> Read {
        self.ignore(|ignored| &ignored.too_long);
        self.refuse(open, head, error::PARSE, Reason::TooLong { size, limit })
    }

    fn response(
        &self,
        open: &Open,
        id: Option<&Id>,
        answer: Result<&RawValue, &RawValue>,
        of: Option<u64>,
    ) -> Read {
        let Some(id) = id else {
            let Err(error) = answer else { return Read::Done }; // a result has an id
            return self
                .unnamed(open, of, Reply::Error(Failure::read(error)), || Failure::read(error).said());
        };
        let answer = match answer {
            Ok(result) => Reply::Result(result.get().to_owned()),
            Err(error) => Reply::Error(Failure::read(error)),
        };
        if !open.answered(id, answer) {
            self.ignored.count_stale();
            tracing::debug!(peer = &*self.name, "an answer to a request that is not open is ignored");
        }
        Read::Done
    }

    fn unnamed(
        &self,
        open: &Open,
        of: Option<u64>,
        answer: Reply,
        words: impl FnOnce() -> Option<String>,
    ) -> Read {
        if open.answered_unnamed(of, answer) {
            return Read::Done;
        }
        self.ignored.count_stale();
        let words = words().unwrap_or_default();
        tracing::warn!(peer = &*self.name, words, "an error names no request");
        Read::Incoming(Incoming::Unnamed(words))
    }

    /// Refuses a batch. The requests that it answers end.
    fn batch(&self, open: &Open, bytes: &[u8], of: Option<u64>) -> Read {
        tracing::debug!(peer = &*self.name, bytes = bytes.len(), "a batch is refused");
        let unreadable = || Reply::Unreadable(Reason::Batch);
        // Its limits are those of a message, but a part of one that exceeds them is not looked for.
        let text = std::str::from_utf8(bytes).ok().filter(|text| json::measure(text).is_ok());
        match text.and_then(|text| serde_json::from_str::<Vec<Parts<'_>>>(text).ok()) {
            Some(parts) => {
                for answer in parts.iter().filter(|part| part.method.is_none()) {
                    match answer.id.and_then(|id| Id::read(id.get().as_bytes())) {
                        Some(id) => open.answered(&id, unreadable()),
                        None => open.answered_unnamed(of, unreadable()),
                    };
                }
            }
            None => _ = open.answered_unnamed(of, unreadable()),
        }
        Read::Refused(None, RpcError::new(error::INVALID_REQUEST, error::BATCH))
    }

    fn unreadable(&self, open: &Open, head: Head<'_>, code: i64, reason: Reason) -> Read {
        self.ignore(|ignored| &ignored.junk);
        self.refuse(open, head, code, reason)
    }

    /// Returns the answer to a message that cannot be read, if it is a request: its sender waits. If it is an answer, the
    /// request that it names ends.
    fn refuse(&self, open: &Open, head: Head<'_>, code: i64, reason: Reason) -> Read {
        match (head.id(), head.has_method()) {
            (None, true) if head.member("id").is_none() => Read::Done, // a notification
            (id, true) => {
                let error = RpcError::new(code, format!("the message cannot be read: {reason}"));
                Read::Refused(id, error)
            }
            (Some(id), false) => {
                open.answered(&id, Reply::Unreadable(reason));
                Read::Done
            }
            (None, false) => Read::Junk,
        }
    }

    fn ignore(&self, counter: impl Fn(&Ignored) -> &AtomicU64) {
        counter(&self.ignored).fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.is_none_or(|before| now - before >= REPORT_AGAIN) {
            *reported = Some(now);
            let Ignored { junk, too_long, stale } = &*self.ignored;
            let [junk, too_long, stale] = [junk, too_long, stale].map(|it| it.load(Ordering::Relaxed));
            tracing::warn!(
                peer = &*self.name,
                junk,
                too_long,
                stale,
                "lines that are not messages are ignored"
            );
        }
    }
}

/// Returns whether a text is a batch of messages. Other programs begin a line of their logs as a list.
fn is_batch(text: &[u8]) -> bool {
    let text = crate::value::bytes_without_mark(text).trim_ascii_start();
    let start = &text[..text.len().min(MAX_BATCH_START)];
    start.starts_with(b"[") && start.windows(9).any(|it| it == b"\"jsonrpc\"")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::adapter::jsonrpc::rules::ACP;

    #[test]
    fn batch_of_many_values_ends_the_request_that_it_answers() {
        let (inbox, open) = (Inbox::new("far".into(), Arc::default()), Open::new(8, &ACP));
        let (id, mut answered) = open.begin(false).unwrap();
        let notice = json!([{"jsonrpc": "2.0", "method": "note"}]).to_string();
        assert!(matches!(inbox.read(&open, notice.as_bytes(), None), Read::Refused(None, _)));
        assert!(answered.try_recv().is_err());
        let many = format!(r#"[{{"jsonrpc":"2.0","id":{id},"result":[{}0]}}]"#, "0,".repeat(300_000));
        assert!(matches!(inbox.read(&open, many.as_bytes(), None), Read::Refused(None, _)));
        assert_eq!(answered.try_recv(), Ok(Reply::Unreadable(Reason::Batch)));
        assert!(matches!(inbox.read(&open, b"[info] ready", None), Read::Junk));
    }
}
