//! The transport of both directions: one JSON-RPC message a line.
//!
//! The protocol's crate has queues without a limit, so the limits are here: a long line is skipped, and nothing is read
//! while too many requests wait for their answers. A line stays text until [`lines`] has let its owner read it, because
//! the crate's types lose what they do not know.

use std::{
    borrow::Cow,
    collections::VecDeque,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use agent_client_protocol::Lines as Transport;
use futures_util::{
    sink::{self, Sink},
    stream::{self, Stream},
};
use serde::{Deserialize, Deserializer};
use serde_json::{Value as Json, json, value::RawValue};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    task::yield_now,
    time::Instant,
};

use crate::adapter::{
    json::{
        self,
        head::{Head, as_id},
        id::{carried, restored},
    },
    lines::{Line, Lines},
    words,
};

/// The longest line that is read, in bytes. A longer one is skipped.
pub(super) const MAX_LINE: usize = 8 << 20;

/// The most requests that wait for their answers. Nothing is read while there are as many.
pub(super) const MAX_WAITING: usize = 256;

/// The most bytes in the requests that wait for their answers. Nothing is read while there are as many.
pub(super) const MAX_WAITING_BYTES: usize = 16 << 20;

/// The longest answer, in bytes: as the longest line.
pub(super) const MAX_ANSWER: usize = MAX_LINE;

/// The most bytes in answers that are made, or wait to be written: an agent may ask for large files and read nothing.
const MAX_ANSWERS_BYTES: usize = 32 << 20;

/// One unit of a share of [`MAX_ANSWERS_BYTES`], in bytes.
const SHARE_UNIT: usize = 1 << 10;

/// The most lines that are read before what they cause gets its turn.
const LINES_A_TURN: usize = 64;

/// The most bytes that are read before what they cause gets its turn.
const BYTES_A_TURN: usize = 1 << 20;

/// The code of an error that stands for one that cannot be read: an internal error.
const BAD_ERROR: i32 = -32_603;

/// What is wrong with a batch.
const BATCH: &str = "it is a JSON-RPC batch, which ACP does not have";

/// The shortest time between two reports of lines that are ignored.
const REPORT_AGAIN: Duration = Duration::from_secs(10);

/// A message, of which nothing but the parts was read.
#[derive(Deserialize)]
pub(super) struct Message<'a> {
    #[serde(default, borrow)]
    jsonrpc: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    pub(super) id: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(super) method: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    pub(super) params: Option<&'a RawValue>,
    #[serde(default, borrow, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(default, borrow, deserialize_with = "present")]
    error: Option<&'a RawValue>,
}

/// An error as the protocol's crate reads it.
#[derive(Deserialize)]
struct Failure {
    #[serde(rename = "code")]
    _code: i32,
    message: String,
}

impl Failure {
    /// Returns whether an error has this form, and says anything.
    fn is_in(error: &Json) -> bool {
        error.is_object() && Self::deserialize(error).is_ok_and(|it| !it.message.trim().is_empty())
    }
}

/// Returns an error of another form as one that the crate can read. A code that is no number is a part of its words.
fn readable_error(error: &Json) -> Json {
    let words = words::of_error(error);
    let code = &error["code"];
    match code.as_i64().and_then(|code| i32::try_from(code).ok()) {
        Some(code) => json!({"code": code, "message": words}),
        None if code.is_null() => json!({"code": BAD_ERROR, "message": words}),
        None => json!({"code": BAD_ERROR, "message": format!("{words} ({})", words::of_value(code))}),
    }
}

/// Returns the error that stands for an answer that cannot be read.
fn unreadable_answer(id: &Json, reason: &str) -> String {
    let error = json!({"code": BAD_ERROR, "message": format!("the answer cannot be read: {reason}")});
    json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string()
}

/// Reads a member whose value may be `null`.
fn present<'a, D: Deserializer<'a>>(value: D) -> Result<Option<&'a RawValue>, D::Error> {
    Deserialize::deserialize(value).map(Some)
}

/// What a connection has ignored, and what waits for answers.
pub(super) struct Traffic {
    junk: AtomicU64,
    too_long: AtomicU64,
    bad_errors: AtomicU64,
    waiting: Mutex<Vec<Waiting>>,
    /// The ids of the requests that this side has sent, and that have no answer.
    asked: Mutex<Vec<Json>>,
    answered: Notify,
    answers: Arc<Semaphore>,
}

impl Default for Traffic {
    fn default() -> Self {
        Self {
            junk: AtomicU64::default(),
            too_long: AtomicU64::default(),
            bad_errors: AtomicU64::default(),
            waiting: Mutex::default(),
            asked: Mutex::default(),
            answered: Notify::default(),
            answers: Arc::new(Semaphore::new(MAX_ANSWERS_BYTES / SHARE_UNIT)),
        }
    }
}

/// A request of the other side without an answer. The answer to a batch has no id.
struct Waiting {
    id: Json,
    bytes: usize,
    /// Held until the answer is written.
    share: Option<Share>,
}

/// A part of the memory for answers.
pub(super) struct Share(OwnedSemaphorePermit);

impl Share {
    /// Gives back all but this many bytes.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let surplus = self.0.num_permits().saturating_sub(bytes.div_ceil(SHARE_UNIT));
        drop(self.0.split(surplus));
    }
}

impl Traffic {
    /// Returns the number of lines that were skipped because they are not messages.
    pub(super) fn junk(&self) -> u64 {
        self.junk.load(Ordering::Relaxed)
    }

    /// Returns the number of lines that were skipped because they exceed [`MAX_LINE`].
    pub(super) fn too_long(&self) -> u64 {
        self.too_long.load(Ordering::Relaxed)
    }

    /// Returns the number of answers whose error cannot be read.
    pub(super) fn bad_errors(&self) -> u64 {
        self.bad_errors.load(Ordering::Relaxed)
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves when another request may wait.
    async fn room(&self) {
        loop {
            {
                let waiting = self.waiting();
                let bytes: usize = waiting.iter().map(|it| it.bytes).sum();
                if waiting.len() < MAX_WAITING && bytes < MAX_WAITING_BYTES {
                    return;
                }
            }
            self.answered.notified().await; // one permit is stored, so an answer in between is not missed
        }
    }

    fn ask(&self, id: Json, bytes: usize) {
        self.waiting().push(Waiting { id, bytes, share: None });
    }

    /// Returns memory for an answer of at most this many bytes, once there is some.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn share(&self, bytes: usize) -> Option<Share> {
        let units = u32::try_from(bytes.min(MAX_ANSWERS_BYTES).div_ceil(SHARE_UNIT)).ok()?;
        Arc::clone(&self.answers).acquire_many_owned(units).await.ok().map(Share)
    }

    /// Keeps the share of an answer until it is written.
    pub(super) fn hold(&self, id: &Json, share: Share) {
        if let Some(request) = self.waiting().iter_mut().find(|it| it.id == *id && it.share.is_none()) {
            request.share = Some(share);
        }
    }

    fn asked(&self) -> MutexGuard<'_, Vec<Json>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the answer to a request of this side, and returns whether there is such a request.
    fn answered_by(&self, id: &Json) -> bool {
        let mut asked = self.asked();
        let at = asked.iter().position(|it| it == id);
        at.map(|at| asked.remove(at)).is_some()
    }

    /// Returns the request that an answer without an id can mean: the only one that this side has sent.
    fn only_asked(&self) -> Option<Json> {
        match &**self.asked() {
            [only] => Some(only.clone()),
            _ => None,
        }
    }

    /// Notes that a line is written.
    fn writing(&self, line: &str) {
        let Ok(Message { method: Some(_), id: Some(id), .. }) = serde_json::from_str(line) else { return };
        if let Ok(id) = serde_json::from_str(id.get()) {
            let mut asked = self.asked();
            if asked.len() == MAX_WAITING {
                asked.remove(0); // nobody waits for it any more
            }
            asked.push(id);
        }
    }

    /// Notes that a line was written.
    fn written(&self, line: &str) {
        let Ok(Message { method: None, id, .. }) = serde_json::from_str(line) else { return };
        let id = id.and_then(|id| serde_json::from_str(id.get()).ok()).unwrap_or(Json::Null);
        let mut waiting = self.waiting();
        // The crate answers what it cannot read without an id. Each answer ends one request, so that none is counted forever.
        let at = waiting.iter().position(|it| it.id == id).unwrap_or(0);
        if at < waiting.len() {
            waiting.remove(at);
            self.answered.notify_one();
        }
    }
}

/// The method of a request that stands for one that cannot be read. Its parameters are the reason, a text.
pub(super) const UNREADABLE: &str = "dev.toolbridge/unreadable";

/// What becomes of a message.
pub(super) enum Inspected {
    /// The protocol's crate handles it.
    Passed,
    /// The protocol's crate handles it, with these parameters in place of its own.
    PassedWith(Json),
    /// It was handled, and goes no further.
    Handled,
}

/// Creates the transport of a connection. `inspect` gets each message first.
///
/// `peer` names the other side in the log.
pub(super) fn lines<R, W, F>(
    peer: &str,
    reader: R,
    writer: W,
    traffic: Arc<Traffic>,
    inspect: F,
) -> Transport<
    impl Sink<String, Error = io::Error> + Send + use<R, W, F>,
    impl Stream<Item = io::Result<String>> + Send + use<R, W, F>,
>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
    F: FnMut(&Message<'_>) -> Inspected + Send + 'static,
{
    let incoming = Incoming {
        peer: peer.to_owned(),
        lines: Lines::new(reader, MAX_LINE),
        traffic: Arc::clone(&traffic),
        inspect,
        stand_ins: VecDeque::new(),
        lines_of_turn: 0,
        bytes_of_turn: 0,
        reported: None,
    };
    let incoming = stream::unfold(incoming, async |mut incoming| {
        let line = incoming.next().await.transpose()?;
        Some((line, incoming))
    });
    let outgoing = sink::unfold((writer, traffic), async |(mut writer, traffic), line: String| {
        traffic.writing(&line);
        writer.write_all(restored(&line).as_bytes()).await?;
        writer.write_all(b"\n").await?;
        writer.flush().await?;
        traffic.written(&line);
        Ok((writer, traffic))
    });
    Transport::new(outgoing, incoming)
}

struct Incoming<R, F> {
    peer: String,
    lines: Lines<R>,
    traffic: Arc<Traffic>,
    inspect: F,
    /// What the crate gets before the next line is read.
    stand_ins: VecDeque<String>,
    lines_of_turn: usize,
    bytes_of_turn: usize,
    reported: Option<Instant>,
}

impl<R: AsyncRead + Unpin, F: FnMut(&Message<'_>) -> Inspected> Incoming<R, F> {
    /// Returns the next line that the protocol's crate handles, or `None` at the end.
    async fn next(&mut self) -> io::Result<Option<String>> {
        loop {
            if let Some(stand_in) = self.stand_ins.pop_front() {
                return Ok(Some(stand_in));
            }
            self.traffic.room().await;
            if self.lines_of_turn >= LINES_A_TURN || self.bytes_of_turn >= BYTES_A_TURN {
                (self.lines_of_turn, self.bytes_of_turn) = (0, 0);
                yield_now().await;
            }
            let Some(line) = self.lines.next().await? else { return Ok(None) };
            self.lines_of_turn += 1;
            let (ignored, stand_in) = match line {
                Line::Text(text) => {
                    self.bytes_of_turn += text.len();
                    match self.read(&text) {
                        Ok(Some(line)) => return Ok(Some(line)),
                        Ok(None) => continue,
                        Err(NotAMessage(reason)) => {
                            (&self.traffic.junk, self.stand_in(Head::of(&text), &reason))
                        }
                    }
                }
                Line::TooLong { size, start, end } => {
                    let reason = format!("it has {size} bytes; the limit is {MAX_LINE}");
                    (&self.traffic.too_long, self.stand_in(Head::of_ends(&start, &end), &reason))
                }
            };
            ignored.fetch_add(1, Ordering::Relaxed);
            self.report();
            if stand_in.is_some() {
                return Ok(stand_in);
            }
        }
    }

    /// Returns the message for the crate in place of one that cannot be read, if it has an id: whoever waits for its
    /// answer, or for it as an answer, gets an error.
    fn stand_in(&self, head: Head<'_>, reason: &str) -> Option<String> {
        let id = carried(head.id()?);
        if !head.has_method() {
            self.traffic.answered_by(&id);
            return Some(unreadable_answer(&id, reason));
        }
        self.traffic.ask(id.clone(), 0);
        let params = json!({"reason": reason});
        Some(json!({"jsonrpc": "2.0", "id": id, "method": UNREADABLE, "params": params}).to_string())
    }

    /// Ends the requests that a batch answers, and returns it for the crate, which refuses it.
    fn batch(&mut self, line: String) -> String {
        let parts: Vec<Message<'_>> = serde_json::from_str(&line).unwrap_or_default();
        for answer in parts.iter().filter(|part| part.method.is_none()) {
            let id = answer.id.and_then(|id| as_id(id.get().as_bytes()));
            let id = id.or_else(|| self.traffic.only_asked());
            if let Some(id) = id.filter(|id| self.traffic.answered_by(id)) {
                self.stand_ins.push_back(unreadable_answer(&id, BATCH));
            }
        }
        self.traffic.ask(Json::Null, line.len());
        line
    }

    /// Returns an error without an id as the answer to the only request that has none. Of several, none can be told.
    fn unnamed(&self, error: &RawValue) -> Option<String> {
        let error = json::value(error.get()).unwrap_or_default();
        let words = words::of_error(&error);
        let Some(id) = self.traffic.only_asked() else {
            tracing::warn!(peer = self.peer, words, "an error names no request");
            return None;
        };
        self.traffic.answered_by(&id);
        Some(json!({"jsonrpc": "2.0", "id": id, "error": readable_error(&error)}).to_string())
    }

    /// Reads a line. Returns it if the crate handles it.
    fn read(&mut self, text: &[u8]) -> Result<Option<String>, NotAMessage> {
        if text.trim_ascii().is_empty() {
            return Ok(None);
        }
        let line = json::message(text).map_err(|error| NotAMessage(error.to_string()))?;
        if line.trim_start().starts_with('[') {
            // A batch. Other programs begin a line of their logs so.
            return Ok(Some(self.batch(line.into_owned())));
        }
        // The owner gets the text as it was written.
        let written: &str = std::str::from_utf8(text).unwrap_or(&line);
        let message: Message<'_> = serde_json::from_str(written).map_err(|_| NotAMessage::shape())?;
        let id = message.check()?;
        match (&message.method, &id, message.error) {
            (None, Some(id), _) => _ = self.traffic.answered_by(id),
            (None, None, Some(error)) => return Ok(self.unnamed(error)),
            _ => {}
        }
        let inspected = (self.inspect)(&message);
        if matches!(inspected, Inspected::Handled) {
            return Ok(None);
        }
        if let (Some(id), Some(_)) = (&id, &message.method) {
            self.traffic.ask(id.clone(), line.len());
        }
        let params = match inspected {
            Inspected::PassedWith(params) => Some(params),
            _ if message.is_carried() => Some(message.params_as_json()),
            _ => None,
        };
        if let (Some(params), Some(_)) = (params, &message.method) {
            let mut passed = json!({"jsonrpc": "2.0", "method": message.method, "params": params});
            if let Some(id) = id {
                passed["id"] = id;
            }
            return Ok(Some(passed.to_string()));
        }
        match message.error {
            None => Ok(Some(line.into_owned())),
            Some(_) => self.readable(&line).map(Some),
        }
    }

    /// Returns a message with an error in a form that the crate can read. An error of another form becomes one with its
    /// own words.
    fn readable(&self, line: &str) -> Result<String, NotAMessage> {
        let mut message: Json = serde_json::from_str(line).map_err(|_| NotAMessage::shape())?;
        if let Some(fields) = message.as_object_mut() {
            let is_answered = fields.contains_key("result") || fields.contains_key("method");
            if is_answered {
                fields.remove("error"); // it is null
            } else if !Failure::is_in(&fields["error"]) {
                self.traffic.bad_errors.fetch_add(1, Ordering::Relaxed);
                fields["error"] = readable_error(&fields["error"]);
            }
        }
        Ok(message.to_string())
    }

    fn report(&mut self) {
        let now = Instant::now();
        if self.reported.is_none_or(|before| now - before >= REPORT_AGAIN) {
            self.reported = Some(now);
            let (junk, too_long) = (self.traffic.junk(), self.traffic.too_long());
            tracing::warn!(peer = self.peer, junk, too_long, "lines that are not messages are ignored");
        }
    }
}

/// The text is not a JSON-RPC message, for this reason.
struct NotAMessage(String);

impl NotAMessage {
    fn shape() -> Self {
        Self("it is not a request, notification or response of JSON-RPC 2.0".to_owned())
    }
}

impl Message<'_> {
    /// Checks the parts, and returns the id.
    fn check(&self) -> Result<Option<Json>, NotAMessage> {
        // Some programs write `"error": null` beside a result.
        let has_error = self.error.is_some_and(|error| error.get() != "null");
        let is_failure = has_error || self.error.is_some() && self.method.is_none() && self.result.is_none();
        let kinds = [self.method.is_some(), self.result.is_some(), is_failure];
        let is_one_kind = kinds.into_iter().filter(|is| *is).count() == 1;
        if self.jsonrpc.as_deref() != Some("2.0") || !is_one_kind {
            return Err(NotAMessage::shape());
        }
        let Some(id) = self.id else { return Ok(None) };
        as_id(id.get().as_bytes()).map(|id| Some(carried(id))).ok_or_else(NotAMessage::shape)
    }

    /// Returns whether its id has another form for the crate.
    fn is_carried(&self) -> bool {
        let id = self.id.and_then(|id| as_id(id.get().as_bytes()));
        id.is_some_and(|id| carried(id.clone()) != id)
    }

    fn params_as_json(&self) -> Json {
        self.params.and_then(|params| json::value(params.get()).ok()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use agent_client_protocol::{
        Agent, Builder, Client, ConnectionTo, Dispatch, Error, HandleDispatchFrom, Handled, UntypedMessage,
    };
    use tokio::io::{AsyncBufReadExt as _, BufReader, DuplexStream, ReadHalf, WriteHalf, duplex, split};
    use tokio::sync::oneshot;

    use super::*;
    use crate::adapter::json::head;

    /// Answers `echo` and `wrap`, keeps the requests `keep`, and leaves the rest to the crate.
    #[derive(Default)]
    struct Handler {
        kept: Vec<Dispatch>,
        heard: Arc<Mutex<Vec<String>>>,
    }

    impl HandleDispatchFrom<Agent> for Handler {
        async fn handle_dispatch_from(
            &mut self,
            message: Dispatch,
            _: ConnectionTo<Agent>,
        ) -> Result<Handled<Dispatch>, Error> {
            self.heard.lock().unwrap().push(message.method().to_owned());
            match message {
                Dispatch::Request(request, responder) if ["echo", "wrap"].contains(&&*request.method) => {
                    responder.respond(request.params)?;
                }
                message if message.method() == "keep" => self.kept.push(message),
                message => return Ok(Handled::No { message, retry: false }),
            }
            Ok(Handled::Yes)
        }

        fn describe_chain(&self) -> impl std::fmt::Debug {
            "tests"
        }
    }

    struct Peer {
        reader: tokio::io::Lines<BufReader<ReadHalf<DuplexStream>>>,
        writer: WriteHalf<DuplexStream>,
        traffic: Arc<Traffic>,
        taken: Arc<Mutex<Vec<String>>>,
        heard: Arc<Mutex<Vec<String>>>,
        /// The crate's side of the connection.
        agent: Option<oneshot::Receiver<ConnectionTo<Agent>>>,
        _task: tokio::task::JoinSet<()>,
    }

    /// Connects the crate to a peer that writes lines. The method `take` is handled before the crate.
    fn connected() -> Peer {
        let (ours, theirs) = duplex(1 << 20);
        let (traffic, taken): (Arc<Traffic>, Arc<Mutex<Vec<String>>>) = Default::default();
        let (reader, writer) = split(ours);
        let texts = Arc::clone(&taken);
        let transport = lines("peer", reader, writer, Arc::clone(&traffic), move |message| {
            match message.method.as_deref() {
                Some("take") => {
                    texts.lock().unwrap().push(message.params.unwrap().get().to_owned());
                    Inspected::Handled
                }
                Some("wrap") => Inspected::PassedWith(json!({"text": message.params.unwrap().get()})),
                _ => Inspected::Passed,
            }
        });
        let handler = Handler::default();
        let heard = Arc::clone(&handler.heard);
        let mut task = tokio::task::JoinSet::new();
        let (opened, agent) = oneshot::channel();
        task.spawn(async move {
            let served = Builder::new_with(Client, handler).connect_with(transport, async move |agent| {
                let _ = opened.send(agent);
                std::future::pending::<Result<(), Error>>().await
            });
            let _ = served.await;
        });
        let (reader, writer) = split(theirs);
        Peer {
            reader: BufReader::new(reader).lines(),
            writer,
            traffic,
            taken,
            heard,
            agent: Some(agent),
            _task: task,
        }
    }

    impl Peer {
        async fn write(&mut self, text: impl AsRef<[u8]>) {
            self.writer.write_all(text.as_ref()).await.unwrap();
        }

        async fn read(&mut self) -> Json {
            serde_json::from_str(&self.reader.next_line().await.unwrap().unwrap()).unwrap()
        }
    }

    fn request(id: u64, method: &str) -> String {
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {}}).to_string() + "\n"
    }

    #[tokio::test]
    async fn acp_c13_junk_is_skipped_and_counted_and_reading_goes_on() {
        let mut peer = connected();
        peer.write("Starting…\n[info] ready\n\n17\n{}\n\"x\"\n{\"jsonrpc\":\"1.0\",\"method\":\"echo\"}\n")
            .await;
        peer.write(b"\xff\xfe\n").await;
        peer.write("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\",\"result\":1}\n").await;
        peer.write("{\"jsonrpc\":\"2.0\",\"id\":1.5,\"method\":\"echo\"}\n").await;
        peer.write(format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\",\"params\":{}}}\n",
            "[".repeat(500_000)
        ))
        .await;
        // In parts.
        let line = request(7, "echo");
        for part in line.as_bytes().chunks(5) {
            peer.write(part).await;
        }
        let mut answers = Vec::new();
        for _ in 0..4 {
            answers.push(peer.read().await);
        }
        // Two of them have an id. The handler of this test does not know the request that stands for them.
        let ids: Vec<_> = answers.iter().map(|it| (&it["id"], &it["error"]["code"])).collect();
        let refused = json!(-32_601);
        assert_eq!(ids[..3], [(&json!(1), &refused), (&json!(1.5), &Json::Null), (&json!(1), &refused)]);
        assert_eq!(answers[3], json!({"jsonrpc": "2.0", "id": 7, "result": {}}));
        assert_eq!(peer.traffic.junk(), 9);
    }

    #[tokio::test]
    async fn request_that_cannot_be_read_reaches_the_crate_as_one_with_its_id() {
        let mut peer = connected();
        for (line, id) in [
            (&b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\",\"params\":\"\xff\"}"[..], json!(1)),
            (br#"{"jsonrpc":"2.0","id":"a","method":"echo","params":{"b":tru}}"#, json!("a")),
        ] {
            peer.write(line).await;
            peer.write("\n").await;
            let answer = peer.read().await;
            assert_eq!((&answer["id"], &answer["error"]["code"]), (&id, &json!(-32_601)));
        }
        assert_eq!(*peer.heard.lock().unwrap(), [UNREADABLE, UNREADABLE]);
        assert!(peer.traffic.waiting().is_empty());
    }

    #[tokio::test]
    async fn acp_c13_line_over_the_limit_is_skipped_and_counted() {
        let mut peer = connected();
        peer.write(format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\",\"params\":[\"{}\"]}}\n",
            "x".repeat(MAX_LINE)
        ))
        .await;
        peer.write(request(2, "echo")).await;
        assert_eq!((peer.read().await["id"].take(), peer.read().await["id"].take()), (json!(1), json!(2)));
        assert_eq!((peer.traffic.junk(), peer.traffic.too_long()), (0, 1));
    }

    #[tokio::test]
    async fn acp_c15_batch_and_unknown_method_are_refused_and_unknown_notifications_ignored() {
        let mut peer = connected();
        peer.write(format!("[{}]\n", request(1, "echo").trim())).await;
        let answer = peer.read().await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&Json::Null, &json!(-32_600)));
        peer.write("{\"jsonrpc\":\"2.0\",\"method\":\"_vendor/hello\"}\n").await;
        peer.write(request(2, "_vendor/ask")).await;
        let answer = peer.read().await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(2), &json!(-32_601)));
        // An answer that nobody awaits, once with the value null.
        peer.write("{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"result\":null}\n").await;
        peer.write(request(3, "echo")).await;
        assert_eq!(peer.read().await["id"], 3);
        assert_eq!(peer.traffic.junk(), 0);
        assert!(peer.traffic.waiting().is_empty());
    }

    #[tokio::test]
    async fn acp_c13_text_that_json_values_cannot_hold_reaches_the_crate_with_a_replacement() {
        let mut peer = connected();
        for (sent, heard) in [(r#""x \ud83d""#, json!("x \u{fffd}")), ("1e400", json!("1e400"))] {
            peer.write(format!(
                "{{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"echo\",\"params\":{{\"it\":{sent}}}}}\n"
            ))
            .await;
            assert_eq!(
                peer.read().await,
                json!({"jsonrpc": "2.0", "id": "a", "result": {"it": heard}}),
                "{sent}"
            );
        }
        assert!(peer.traffic.waiting().is_empty());
    }

    #[tokio::test]
    async fn acp_c13_answer_that_the_crate_cannot_read_is_an_error_with_its_id() {
        let mut peer = connected();
        let agent = peer.agent.take().unwrap().await.unwrap();
        let mut ask = async |answer: &str| {
            let message = UntypedMessage { method: "ask".to_owned(), params: Json::Null };
            let asked = agent.send_request(message).block_task();
            let answering = async {
                let id = peer.read().await["id"].take();
                peer.write(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},{answer}}}\n")).await;
            };
            let (answered, ()) = tokio::join!(asked, answering);
            answered.map_err(|error| (i32::from(error.code), error.message))
        };
        for (error, says) in [
            ("null", "no reason is given"),
            ("\"no\"", "no"),
            ("{}", "no reason is given"),
            (r#"{"code":"ENOENT\u001b[2J","message":"no"}"#, "no (ENOENT [2J)"),
            (r#"{"code":1.5,"message":"no","data":{"details":"why"}}"#, "no: why (1.5)"),
            (r#"["no","quota"]"#, r#"["no","quota"]"#),
            (r#"{"code":-32603,"message":"","cause":"no quota"}"#, "no quota"),
        ] {
            let expected = Err((BAD_ERROR, says.to_owned()));
            assert_eq!(ask(&format!("\"error\":{error}")).await, expected, "{error}");
        }
        let broken = ask(r#""result":{"a":tru}"#).await.unwrap_err();
        assert!(broken.1.starts_with("the answer cannot be read: the document is not JSON"), "{broken:?}");
        let cut = ask(r#""error":{"code":-7,"message":"no \ud83d","data":1e400}"#).await;
        assert_eq!(cut, Err((-7, "no \u{fffd}".to_owned())));
        assert_eq!(ask(r#""result":[1e400],"error":null"#).await, Ok(json!(["1e400"])));
        assert_eq!(ask(r#""result":7,"error":null"#).await, Ok(json!(7)));
        assert_eq!((peer.traffic.bad_errors(), peer.traffic.junk()), (7, 1));
    }

    /// Sends a request of the crate, and returns its id and its answer.
    async fn asked(
        peer: &mut Peer,
        agent: &ConnectionTo<Agent>,
        answer: impl Fn(&Json) -> String,
    ) -> Result<Json, (i32, String)> {
        let message = UntypedMessage { method: "ask".to_owned(), params: Json::Null };
        let asked = agent.send_request(message).block_task();
        let answering = async {
            let id = peer.read().await["id"].take();
            peer.write(answer(&id) + "\n").await;
        };
        let (answered, ()) = tokio::join!(asked, answering);
        answered.map_err(|error| (i32::from(error.code), error.message))
    }

    #[tokio::test]
    async fn error_without_an_id_is_the_answer_to_the_only_request() {
        let mut peer = connected();
        let agent = peer.agent.take().unwrap().await.unwrap();
        for (members, code, says) in [
            (r#""id":null,"error":{"code":-32700,"message":"parse error"}"#, -32_700, "parse error"),
            (r#""error":"no""#, BAD_ERROR, "no"),
        ] {
            let line = |_: &Json| format!(r#"{{"jsonrpc":"2.0",{members}}}"#);
            assert_eq!(asked(&mut peer, &agent, line).await, Err((code, says.to_owned())));
        }
        assert_eq!(*peer.traffic.asked(), [Json::Null; 0]);
    }

    #[tokio::test]
    async fn error_without_an_id_ends_none_of_several_requests() {
        let mut peer = connected();
        let agent = peer.agent.take().unwrap().await.unwrap();
        let send = || {
            agent.send_request(UntypedMessage { method: "ask".to_owned(), params: Json::Null }).block_task()
        };
        let answering = async {
            let ids = [peer.read().await["id"].take(), peer.read().await["id"].take()];
            peer.write("{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-1,\"message\":\"no\"}}\n")
                .await;
            for id in ids {
                peer.write(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":7}}\n")).await;
            }
        };
        let (first, second, ()) = tokio::join!(send(), send(), answering);
        assert_eq!((first.unwrap(), second.unwrap()), (json!(7), json!(7)));
    }

    #[tokio::test]
    async fn batch_ends_the_requests_that_it_answers() {
        let mut peer = connected();
        let agent = peer.agent.take().unwrap().await.unwrap();
        let refused = Err((BAD_ERROR, format!("the answer cannot be read: {BATCH}")));
        let named = |id: &Json| format!(r#"[{{"jsonrpc":"2.0","id":{id},"result":7}}]"#);
        assert_eq!(asked(&mut peer, &agent, named).await, refused);
        assert_eq!(peer.read().await["error"]["code"], -32_600);
        let unnamed = |_: &Json| r#"[{"jsonrpc":"2.0","id":null,"error":{}}]"#.to_owned();
        assert_eq!(asked(&mut peer, &agent, unnamed).await, refused);
    }

    #[tokio::test]
    async fn line_that_its_owner_takes_stays_text_and_does_not_reach_the_crate() {
        let mut peer = connected();
        peer.write("{\"jsonrpc\":\"2.0\",\"method\":\"take\",\"params\":{ \"n\" : 1.0e2 }}\n").await;
        peer.write(request(1, "echo")).await;
        peer.read().await;
        assert_eq!(*peer.taken.lock().unwrap(), ["{ \"n\" : 1.0e2 }"]);
        assert_eq!(*peer.heard.lock().unwrap(), ["echo"]);
    }

    #[tokio::test]
    async fn parameters_that_their_owner_replaces_reach_the_crate_in_their_place() {
        let mut peer = connected();
        peer.write("{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"wrap\",\"params\":{\"b\":1.0e2 ,\"a\":\"\\ud83d\"}}\n")
            .await;
        assert_eq!(peer.read().await["result"]["text"], "{\"b\":1.0e2 ,\"a\":\"\\ud83d\"}");
        assert!(peer.traffic.waiting().is_empty());
    }

    #[tokio::test]
    async fn nothing_is_read_while_requests_of_16_mib_wait_for_their_answers() {
        let mut peer = connected();
        let text = "x".repeat(6 << 20);
        for id in 0..3 {
            let large = json!({"jsonrpc": "2.0", "id": id, "method": "keep", "params": {"text": text}});
            peer.write(format!("{large}\n")).await;
        }
        peer.write(request(3, "echo")).await;
        // What can run has run when nothing else is left to do.
        for _ in 0..10_000 {
            yield_now().await;
        }
        assert_eq!(*peer.heard.lock().unwrap(), ["keep", "keep", "keep"]);
        peer.traffic.written(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
        assert_eq!(peer.read().await["id"], 3);
    }

    #[tokio::test]
    async fn nothing_is_read_while_256_requests_wait_for_their_answers() {
        let mut peer = connected();
        let flood: String = (0..1_000).map(|id| request(id, "keep")).collect();
        peer.write(flood).await;
        peer.write(request(1_000, "echo")).await;
        // What can run has run when nothing else is left to do.
        for _ in 0..10_000 {
            yield_now().await;
        }
        assert_eq!(peer.heard.lock().unwrap().len(), MAX_WAITING);
        peer.traffic.waiting().clear();
        peer.traffic.answered.notify_one();
        for _ in 0..10_000 {
            yield_now().await;
        }
        assert_eq!(peer.heard.lock().unwrap().len(), 2 * MAX_WAITING);
    }

    #[tokio::test]
    async fn memory_of_an_answer_is_free_once_it_is_written() {
        let mut peer = connected();
        let traffic = Arc::clone(&peer.traffic);
        peer.write((1..=4).map(|id| request(id, "keep")).collect::<String>()).await;
        for id in 1..=4 {
            while traffic.waiting().len() < 4 {
                yield_now().await;
            }
            traffic.hold(&json!(id), traffic.share(MAX_ANSWER).await.unwrap());
        }
        assert!(futures_util::poll!(std::pin::pin!(traffic.share(1))).is_pending());
        traffic.written(r#"{"jsonrpc":"2.0","id":3,"result":{}}"#);
        let mut share = traffic.share(MAX_ANSWER).await.unwrap();
        share.shrink(MAX_ANSWER / 2);
        assert!(traffic.share(MAX_ANSWER / 2).await.is_some());
        traffic.hold(&json!("unknown"), share);
        assert!(traffic.share(MAX_ANSWER).await.is_some(), "the share of a request that is not open is free");
    }

    #[tokio::test]
    async fn request_has_its_answer_wherever_its_id_stands() {
        let mut peer = connected();
        let long = "x".repeat(MAX_LINE);
        for line in [
            format!(r#"{{"params":"{long}","id":1.5,"method":"echo","jsonrpc":"2.0"}}"#),
            r#"{"jsonrpc":"2.0","method":"echo","params":tru,"\u0069d":1.5}"#.to_owned(),
        ] {
            peer.write(line + "\n").await;
            let answer = peer.read().await;
            assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(1.5), &json!(-32_601)), "{answer}");
        }
        assert!(peer.traffic.waiting().is_empty());
    }

    #[tokio::test]
    async fn request_with_a_long_id_is_ignored() {
        let mut peer = connected();
        peer.write(format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":\"{}\",\"method\":\"echo\"}}\n",
            "x".repeat(head::MAX_ID)
        ))
        .await;
        peer.write(request(2, "echo")).await;
        assert_eq!(peer.read().await["id"], 2);
        assert_eq!(peer.traffic.junk(), 1);
    }
}
