//! Reads the messages of a byte stream, one a line.

use std::{io, sync::Arc};

use tokio::{io::AsyncRead, task::yield_now};

use super::{
    head::Head,
    inbox::{Ignored, Inbox, Incoming, Read},
    lines::{Lines, ReadLine},
    peer::{End, Peer},
};

/// The most lines that are read before what they cause gets its turn.
const LINES_A_TURN: usize = 64;

/// The most bytes that are read before what they cause gets its turn.
const BYTES_A_TURN: usize = 1 << 20;

/// Reads the messages of the other side. The peer has ended when this is dropped.
pub(in crate::adapter) struct Reader<R> {
    lines: Lines<R>,
    peer: Arc<Peer>,
    inbox: Inbox,
    lines_of_turn: usize,
    bytes_of_turn: usize,
    /// The bytes since the last message.
    junk: usize,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Creates the reader. `name` is the other side in the log.
    pub(in crate::adapter) fn new(read: R, peer: Arc<Peer>, name: Arc<str>, ignored: Arc<Ignored>) -> Self {
        let (lines, inbox) = (Lines::new(read, peer.rules.max_line), Inbox::new(name, ignored));
        Self { lines, peer, inbox, lines_of_turn: 0, bytes_of_turn: 0, junk: 0 }
    }

    /// Returns the next request or notification, or `None` when the other side sends nothing more. Then, and after an error,
    /// the peer has ended.
    ///
    /// # Errors
    /// The stream cannot be read, or has too much that is no message.
    ///
    /// # Cancel safety
    /// Not safe: a refusal may be lost.
    pub(in crate::adapter) async fn next(&mut self) -> io::Result<Option<Incoming>> {
        loop {
            if self.lines_of_turn >= LINES_A_TURN || self.bytes_of_turn >= BYTES_A_TURN {
                (self.lines_of_turn, self.bytes_of_turn) = (0, 0);
                yield_now().await;
            }
            let line = match self.lines.next().await {
                Ok(Some(line)) => line,
                Ok(None) => {
                    self.peer.end(End::Closed);
                    return Ok(None);
                }
                Err(error) => return Err(self.failed(error)),
            };
            self.lines_of_turn += 1;
            let (read, junk) = match line {
                ReadLine::Text(line) => {
                    self.bytes_of_turn += line.len();
                    (self.inbox.read(&self.peer.open, &line, None), line.len() + 1)
                }
                ReadLine::TooLong { size, start, end } => {
                    let (head, limit) = (Head::of_ends(&start, &end), self.peer.rules.max_line);
                    let read = self.inbox.too_long(&self.peer.open, head, size, limit);
                    (read, self.peer.rules.max_junk.unwrap_or_default() / 2 + 1) // two in a row are too many
                }
            };
            match read {
                Read::Junk => {
                    self.junk += junk;
                    if let Some(limit) = self.peer.rules.max_junk.filter(|limit| self.junk > *limit) {
                        let reason = format!("it wrote {} MiB without a message", limit >> 20);
                        return Err(self.failed(io::Error::other(reason)));
                    }
                    continue;
                }
                Read::Incoming(message) => {
                    self.junk = 0;
                    return Ok(Some(message));
                }
                Read::Refused(None, _) if !self.peer.rules.answers_null => {}
                Read::Refused(id, error) => self.peer.refuse(id.as_ref(), error).await,
                Read::Done => {}
            }
            self.junk = 0;
        }
    }

    fn failed(&self, error: io::Error) -> io::Error {
        self.peer.end(End::Failed(error.to_string().into()));
        error
    }
}

impl<R> Drop for Reader<R> {
    fn drop(&mut self) {
        self.peer.end(End::Closed);
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Mutex, time::Duration};

    use serde_json::{Value as Json, json, value::RawValue};
    use tokio::{
        io::{
            AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, ReadHalf, WriteHalf, duplex,
            split,
        },
        task::JoinSet,
        time::timeout,
    };

    use super::*;
    use crate::adapter::jsonrpc::{
        error::{self, RpcError},
        failure::Failure,
        id::MAX_ID,
        inbox::{Request, as_json},
        peer::Unanswered,
        rules::ACP,
    };

    /// The far end of a connection whose near end answers `echo` with its parameters, and refuses other requests.
    struct Far {
        reader: tokio::io::Lines<BufReader<ReadHalf<DuplexStream>>>,
        writer: WriteHalf<DuplexStream>,
        peer: Arc<Peer>,
        ignored: Arc<Ignored>,
        /// The methods and parameters of all messages, as they were written.
        heard: Arc<Mutex<Vec<(String, String)>>>,
        _tasks: JoinSet<()>,
    }

    fn connected() -> Far {
        let (ours, theirs) = duplex(1 << 20);
        let (read, write) = split(ours);
        let (peer, writer) = Peer::new(2, &ACP);
        let (ignored, heard): (Arc<Ignored>, Arc<Mutex<Vec<_>>>) = Default::default();
        let mut reader = Reader::new(read, Arc::clone(&peer), "far".into(), Arc::clone(&ignored));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { writer.write(write).await.unwrap() });
        let (answering, hearing) = (Arc::clone(&peer), Arc::clone(&heard));
        tasks.spawn(async move {
            let hear = |method: String, params: Option<&RawValue>| {
                hearing.lock().unwrap().push((method, params.map_or("", RawValue::get).to_owned()));
            };
            while let Some(message) = reader.next().await.unwrap() {
                match message {
                    Incoming::Request(Request { id, method, params, .. }) => {
                        let answer = match &*method {
                            "echo" => Ok(as_json(params.as_deref())),
                            _ => Err(RpcError::new(error::METHOD_NOT_FOUND, "not offered")),
                        };
                        hear(method, params.as_deref());
                        answering.answer(&id, answer, None).await;
                    }
                    Incoming::Notification { method, params } => hear(method, params.as_deref()),
                    Incoming::Unnamed(_) => {}
                }
            }
        });
        let (reader, writer) = split(theirs);
        Far { reader: BufReader::new(reader).lines(), writer, peer, ignored, heard, _tasks: tasks }
    }

    impl Far {
        async fn write(&mut self, text: impl AsRef<[u8]>) {
            self.writer.write_all(text.as_ref()).await.unwrap();
        }

        async fn line(&mut self, text: &str) {
            self.write(format!("{text}\n")).await;
        }

        async fn read(&mut self) -> Json {
            serde_json::from_str(&self.reader.next_line().await.unwrap().unwrap()).unwrap()
        }

        /// Sends a request to the far end, which answers with these lines. Returns what became of the request.
        async fn ask(&mut self, answer: impl Fn(&Json) -> String) -> Result<Json, Unanswered> {
            let peer = Arc::clone(&self.peer);
            let asked = peer.request("ask", json!({}));
            let answering = async {
                let id = self.read().await["id"].take();
                self.line(&answer(&id)).await;
            };
            tokio::join!(asked, answering).0
        }

        /// As [`ask`](Self::ask), for an answer with these members. Returns the words and the code of a refusal.
        async fn ask_for(&mut self, members: &str) -> Result<Json, (String, String)> {
            let answer = self.ask(|id| format!(r#"{{"jsonrpc":"2.0","id":{id},{members}}}"#)).await;
            answer.map_err(|unanswered| match unanswered {
                Unanswered::Refused(it) => (it.said().unwrap_or_default(), it.shown_code),
                other => panic!("{other:?}"),
            })
        }

        /// Reads the id of a refusal, and its code.
        async fn refused(&mut self) -> (Json, i64) {
            let mut answer = self.read().await;
            (answer["id"].take(), answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("{answer}")))
        }
    }

    fn request(id: u64, method: &str) -> String {
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {}}).to_string() + "\n"
    }

    #[tokio::test]
    async fn acp_c13_junk_is_skipped_and_counted_and_reading_goes_on() {
        let mut far = connected();
        far.write("Starting…\n[info] ready\n\n17\n{}\n\"x\"\n{\"jsonrpc\":\"1.0\",\"method\":\"echo\"}\n")
            .await;
        far.write(b"\xff\xfe\n").await;
        far.line(r#"{"jsonrpc":"2.0","id":1,"method":"echo","result":1}"#).await;
        far.line(r#"{"jsonrpc":"2.0","id":1.5,"method":"echo"}"#).await;
        let deep = "[".repeat(500_000);
        far.line(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"echo","params":{deep}}}"#)).await;
        // In parts.
        let line = request(7, "echo");
        for part in line.as_bytes().chunks(5) {
            far.write(part).await;
        }
        assert_eq!(far.refused().await, (json!(1), error::INVALID_REQUEST));
        assert_eq!(far.read().await, json!({"jsonrpc": "2.0", "id": 1.5, "result": null}));
        assert_eq!(far.refused().await, (json!(1), error::PARSE));
        assert_eq!(far.read().await, json!({"jsonrpc": "2.0", "id": 7, "result": {}}));
        assert_eq!(far.ignored.junk(), 9);
    }

    #[tokio::test]
    async fn request_that_cannot_be_read_is_refused_with_its_id_wherever_it_stands() {
        let mut far = connected();
        let long = "x".repeat(ACP.max_line);
        for (line, id) in [
            (&b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\",\"params\":\"\xff\"}"[..], json!(1)),
            (br#"{"jsonrpc":"2.0","id":"a","method":"echo","params":{"b":tru}}"#, json!("a")),
            (br#"{"jsonrpc":"2.0","method":"echo","params":tru,"\u0069d":1.5}"#, json!(1.5)),
            (
                format!(r#"{{"params":"{long}","id":1.5,"method":"echo","jsonrpc":"2.0"}}"#).as_bytes(),
                json!(1.5),
            ),
            (
                format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"echo"}}"#, "x".repeat(MAX_ID)).as_bytes(),
                Json::Null,
            ),
        ] {
            far.write([line, b"\n"].concat()).await;
            assert_eq!(far.refused().await, (id, error::PARSE));
        }
        // Nobody waits for a notification.
        far.line(r#"{"jsonrpc":"2.0","method":"echo","params":tru}"#).await;
        far.write(request(2, "echo")).await;
        assert_eq!(far.read().await["id"], 2);
        assert_eq!((far.ignored.junk(), far.ignored.too_long()), (5, 1));
        assert_eq!(far.heard.lock().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn acp_c15_batch_and_unknown_method_are_refused_and_answers_that_nobody_awaits_ignored() {
        let mut far = connected();
        far.line(&format!("[{}]", request(1, "echo").trim())).await;
        assert_eq!(far.refused().await, (Json::Null, error::INVALID_REQUEST));
        far.write(request(2, "_vendor/ask")).await;
        assert_eq!(far.refused().await, (json!(2), error::METHOD_NOT_FOUND));
        far.line(r#"{"jsonrpc":"2.0","id":"x","result":null}"#).await;
        far.line(r#"{"jsonrpc":"2.0","error":{"code":1,"message":"no"}}"#).await;
        far.write(request(3, "echo")).await;
        assert_eq!(far.read().await["id"], 3);
        assert_eq!(far.ignored.junk(), 0);
    }

    #[tokio::test]
    async fn parameters_are_passed_on_as_they_were_written() {
        let mut far = connected();
        let written = r#"{ "n" : 1.0e2 ,"a":"\ud83d", "h":1e400}"#;
        far.line(&format!("\u{feff}{{\"jsonrpc\":\"2.0\",\"method\":\"note\",\"params\":{written}}}")).await;
        far.line(&format!(r#"{{"jsonrpc":"2.0","id":"a","method":"echo","params":{written}}}"#)).await;
        let answer = far.read().await;
        assert_eq!(answer["result"], json!({"n": 100.0, "a": "\u{fffd}", "h": "1e400"}));
        let expected = ["note", "echo"].map(|method| (method.to_owned(), written.to_owned()));
        assert_eq!(*far.heard.lock().unwrap(), expected);
    }

    #[tokio::test]
    async fn acp_c13_answer_of_another_form_ends_its_request() {
        let mut far = connected();
        for (error, says, code) in [
            ("null", "", ""),
            (r#"{"code":"ENOENT\u001b[2J","message":"no"}"#, "no", "ENOENT [2J"),
            (r#"{"code":-7,"message":"no \ud83d"}"#, "no \u{fffd}", "-7"),
        ] {
            let expected = Err((says.to_owned(), code.to_owned()));
            assert_eq!(far.ask_for(&format!("\"error\":{error}")).await, expected, "{error}");
        }
        let (says, _) = far.ask_for(r#""result":{"a":tru}"#).await.unwrap_err();
        assert!(says.starts_with("the answer cannot be read: the document is not JSON"), "{says}");
        assert_eq!(far.ask_for(r#""result":[1e400],"error":null"#).await, Ok(json!(["1e400"])));
        assert_eq!(far.ask_for(r#""result":null"#).await, Ok(json!(null)));
        assert_eq!(far.ignored.junk(), 1);
    }

    #[tokio::test]
    async fn error_without_an_id_is_the_answer_to_the_only_request() {
        let mut far = connected();
        for (members, says) in [
            (r#""id":null,"error":{"code":-32700,"message":"parse error"}"#, "parse error"),
            (r#""error":"no""#, "no"),
        ] {
            let answer = far.ask(|_| format!(r#"{{"jsonrpc":"2.0",{members}}}"#)).await;
            let Err(Unanswered::Refused(failure)) = answer else { panic!("{answer:?}") };
            assert_eq!(failure.said().as_deref(), Some(says));
        }
    }

    #[tokio::test]
    async fn error_without_an_id_ends_none_of_several_requests() {
        let mut far = connected();
        let peer = Arc::clone(&far.peer);
        let answering = async {
            let ids = [far.read().await["id"].take(), far.read().await["id"].take()];
            assert_eq!(peer.request("ask", json!({})).await, Err(Unanswered::TooMany(2)));
            far.line(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"no"}}"#).await;
            for id in ids {
                far.line(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":7}}"#)).await;
            }
        };
        let (first, second, ()) =
            tokio::join!(peer.request("ask", json!({})), peer.request("ask", json!({})), answering);
        assert_eq!((first, second), (Ok(json!(7)), Ok(json!(7))));
    }

    #[tokio::test]
    async fn batch_ends_the_requests_that_it_answers() {
        let mut far = connected();
        let refused =
            Err(Unanswered::Refused(Failure::of(format!("the answer cannot be read: {}", error::BATCH))));
        let named = |id: &Json| format!(r#"[{{"jsonrpc":"2.0","id":{id},"result":7}}]"#);
        assert_eq!(far.ask(named).await, refused);
        assert_eq!(far.refused().await, (Json::Null, error::INVALID_REQUEST));
        let unnamed = |_: &Json| r#"[{"jsonrpc":"2.0","id":null,"error":{}}]"#.to_owned();
        assert_eq!(far.ask(unnamed).await, refused);
    }

    /// Sends a request that is to end without an answer.
    async fn ended(peer: &Peer) -> Result<Json, Unanswered> {
        let asked = timeout(Duration::from_secs(60), peer.request("ask", json!({}))).await;
        asked.expect("the request does not end")
    }

    #[tokio::test]
    async fn requests_end_with_the_stream_and_none_follows() {
        let mut far = connected();
        let peer = Arc::clone(&far.peer);
        let leaving = async {
            far.read().await;
            far.writer.shutdown().await.unwrap();
        };
        let (asked, ()) = tokio::join!(ended(&peer), leaving);
        assert_eq!(asked, Err(Unanswered::Ended));
        assert_eq!(ended(&peer).await, Err(Unanswered::Ended));
        assert_eq!((peer.ended().await, peer.failure()), (End::Closed, None));
    }

    #[tokio::test]
    async fn requests_end_when_nobody_reads_any_more() {
        let mut far = connected();
        let peer = Arc::clone(&far.peer);
        let dropping = async {
            far.read().await;
            far._tasks.shutdown().await;
        };
        let (asked, ()) = tokio::join!(ended(&peer), dropping);
        assert_eq!(asked, Err(Unanswered::Ended));
    }
}
