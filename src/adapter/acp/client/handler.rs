//! Handles the requests that an agent sends to its client.

use std::{future::pending, io, pin::pin, sync::Arc};

use serde_json::{Value as Json, json, value::RawValue};
use tokio::{io::AsyncRead, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{files::Folder, permission, session::Session, terminal};
use crate::adapter::{
    elicitation,
    jsonrpc::{
        error::{self, RpcError},
        id::Id,
        inbox::{Incoming, Request, as_json},
        memory::{Memory, Share},
        peer::Peer,
        reader::Reader,
        rules::ACP,
    },
};

/// The code of the error for a request that its agent has cancelled.
const CANCELLED: i64 = -32_800;

/// The most requests of an agent that are open.
const MAX_OPEN: usize = 64;

/// The most bytes in the open requests of an agent, those aside that are small. One request beyond that waits until others
/// have ended, and what follows is read: it may end them. Nothing is read while a second one would have to wait.
const MAX_REQUESTS_BYTES: usize = 16 << 20;

/// The largest request that never waits, in bytes: it may end another one, such as `terminal/kill`.
const SMALL: usize = 64 << 10;

/// The longest answer, in bytes: as the longest line.
const MAX_ANSWER: usize = ACP.max_line;

/// The most bytes in answers that are made, or wait to be written: an agent may ask for large files and read nothing.
const MAX_ANSWERS_BYTES: usize = 32 << 20;

/// Answers the requests of an agent.
pub(super) struct Handler {
    agent: permission::Agent,
    session: Arc<Session>,
    folder: Option<Arc<Folder>>,
    /// Memory for large answers.
    answers: Memory,
}

impl Handler {
    pub(super) fn new(
        agent: permission::Agent,
        session: Arc<Session>,
        folder: Option<Arc<Folder>>,
    ) -> Arc<Self> {
        Arc::new(Self { agent, session, folder, answers: Memory::new(MAX_ANSWERS_BYTES) })
    }

    /// Handles what an agent sends until it sends nothing more, and answers its last requests. The updates of a turn are
    /// handled in their order, before the answer that ends it.
    pub(super) async fn serve<R: AsyncRead + Unpin>(self: Arc<Self>, mut reader: Reader<R>, peer: Arc<Peer>) {
        let mut open = Open {
            handler: self,
            peer,
            requests: Memory::new(MAX_REQUESTS_BYTES),
            tasks: JoinSet::new(),
            tokens: Vec::new(),
            waiting: None,
        };
        while let Some(message) = open.next(&mut reader).await {
            match message {
                Incoming::Request(request) => open.begin(request).await,
                Incoming::Notification { method, params: Some(params) } => match &*method {
                    "session/update" => open.handler.session.update(&params),
                    "$/cancel_request" => open.cancel(&as_json(Some(&params))["requestId"]),
                    _ => {} // what is not known has no effect
                },
                Incoming::Notification { params: None, .. } | Incoming::Unnamed(_) => {}
            }
        }
        open.begin_waiting().await;
        while open.tasks.join_next().await.is_some() {}
    }

    /// Answers a request. An answer that may be large is made once there is memory for it, which it has until it is written.
    async fn answer_within_memory(
        &self,
        method: &str,
        params: Option<&RawValue>,
    ) -> (Result<Json, RpcError>, Option<Share>) {
        let most = match method {
            "fs/read_text_file" => MAX_ANSWER,
            "terminal/output" => terminal::MAX_ANSWER,
            _ => return (self.answer(method, params).await, None),
        };
        let mut share = self.answers.share(most).await;
        let answer = self.answer(method, params).await;
        match answer.as_ref().map_or(0, size) {
            size if size > most => {
                let text = format!("the answer has {size} bytes; the limit is {most}");
                (Err(RpcError::new(error::INVALID_PARAMS, text)), None)
            }
            size => {
                share.shrink(size);
                (answer, Some(share))
            }
        }
    }

    async fn answer(&self, method: &str, params: Option<&RawValue>) -> Result<Json, RpcError> {
        if method == permission::METHOD {
            return permission::answer(&self.agent, &self.session, params).await.map_err(
                |permission::Invalid| {
                    RpcError::new(error::INVALID_PARAMS, "the permission request cannot be read")
                },
            );
        }
        let params = as_json(params);
        match method {
            "elicitation/create" => self.elicit(params).await,
            "fs/read_text_file" | "fs/write_text_file" => {
                let folder = self.folder.clone().ok_or_else(|| not_offered(method))?;
                self.check(&params)?;
                folder.answer(method, params).await
            }
            _ if method.starts_with("terminal/") && self.session.terminals.is_allowed() => {
                self.check(&params)?;
                let place = self.session.place();
                self.session.terminals.answer(&self.agent.name, method, &params, place.as_ref()).await
            }
            _ => Err(not_offered(method)),
        }
    }

    /// Checks that a request belongs to the session.
    fn check(&self, params: &Json) -> Result<(), RpcError> {
        match self.session.is_own(params["sessionId"].as_str()) {
            true => Ok(()),
            false => Err(RpcError::new(error::INVALID_PARAMS, "the session is not known")),
        }
    }

    async fn elicit(&self, params: Json) -> Result<Json, RpcError> {
        // A question may belong to a request instead, such as a sign-in.
        if params.get("sessionId").is_some() {
            self.check(&params)?;
        }
        let Some(place) = self.session.place() else { return Ok(json!({"action": "cancel"})) };
        let name = &*self.agent.name;
        let answer = match place.question().await {
            Ok(question) => {
                question.while_open(async |call| elicitation::answer(name, params, call).await).await
            }
            Err(over) => Err(over),
        };
        match answer {
            Ok(answer) => Ok(answer),
            Err(_) if place.is_over() => Ok(json!({"action": "cancel"})),
            Err(failure) => Err(RpcError::new(error::INTERNAL, failure.message())),
        }
    }
}

/// The requests that are open.
struct Open {
    handler: Arc<Handler>,
    peer: Arc<Peer>,
    /// Memory for the parameters.
    requests: Memory,
    tasks: JoinSet<()>,
    /// The id of each. Its token is cancelled by the agent, or because the request is answered.
    tokens: Vec<(Id, CancellationToken)>,
    /// Waits for memory.
    waiting: Option<(Request, CancellationToken)>,
}

impl Open {
    /// Returns the next message, and begins the request that waits as soon as it can.
    async fn next<R: AsyncRead + Unpin>(&mut self, reader: &mut Reader<R>) -> Option<Incoming> {
        let mut next = pin!(reader.next());
        loop {
            tokio::select! {
                message = &mut next => return message.ok().flatten(),
                memory = self.memory() => self.begin_with(memory).await,
            }
        }
    }

    async fn begin(&mut self, request: Request) {
        while self.tasks.try_join_next().is_some() {}
        self.tokens.retain(|(_, token)| !token.is_cancelled());
        if self.tokens.len() >= MAX_OPEN {
            let error = RpcError::new(error::INVALID_REQUEST, "too many requests are open");
            return self.peer.refuse(Some(&request.id), error).await;
        }
        let token = CancellationToken::new();
        self.tokens.push((request.id.clone(), token.clone()));
        if request.size <= SMALL {
            return self.run(request, token, None);
        }
        self.begin_waiting().await;
        self.waiting = Some((request, token));
    }

    /// Begins the request that waits, if there is one, once there is memory for it.
    async fn begin_waiting(&mut self) {
        if self.waiting.is_some() {
            let memory = self.memory().await;
            self.begin_with(memory).await;
        }
    }

    /// Returns memory for the request that waits, or `None` if it was cancelled.
    async fn memory(&self) -> Option<Share> {
        match &self.waiting {
            Some((request, token)) => token.run_until_cancelled(self.requests.share(request.size)).await,
            None => pending().await,
        }
    }

    async fn begin_with(&mut self, memory: Option<Share>) {
        let Some((request, token)) = self.waiting.take() else { return };
        match memory {
            Some(memory) => self.run(request, token, Some(memory)),
            None => self.peer.refuse(Some(&request.id), cancelled()).await,
        }
    }

    fn run(&mut self, request: Request, token: CancellationToken, memory: Option<Share>) {
        let Request { id, method, params, .. } = request;
        let (handler, peer) = (Arc::clone(&self.handler), Arc::clone(&self.peer));
        self.tasks.spawn(async move {
            let _over = token.clone().drop_guard();
            let mut answering = JoinSet::new(); // it may panic, and the agent still gets an answer
            answering.spawn(async move { handler.answer_within_memory(&method, params.as_deref()).await });
            let (answer, share) = tokio::select! {
                answered = answering.join_next() => answered.and_then(Result::ok).unwrap_or_else(|| {
                    (Err(RpcError::new(error::INTERNAL, "the request could not be handled")), None)
                }),
                () = token.cancelled() => (Err(cancelled()), None),
            };
            peer.answer(&id, answer, share).await;
            drop(memory);
        });
    }

    /// Cancels a request.
    fn cancel(&self, id: &Json) {
        let id = Id::of(id);
        if let Some((_, token)) = self.tokens.iter().find(|(open, _)| Some(open) == id.as_ref()) {
            token.cancel();
        }
    }
}

fn cancelled() -> RpcError {
    RpcError::new(CANCELLED, "the request was cancelled")
}

fn not_offered(method: &str) -> RpcError {
    RpcError::new(error::METHOD_NOT_FOUND, format!("{} is not offered", crate::value::prefix(method, 128)))
}

/// Returns the size of an answer as JSON, in bytes.
fn size(answer: &Json) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    match serde_json::to_writer(&mut count, answer) {
        Ok(()) => count.0,
        Err(_) => usize::MAX, // a value of JSON is written without an error
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, task::Poll, time::Duration};

    use futures_util::poll;
    use serde_json::value::to_raw_value;
    use tokio::{
        io::{
            AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, ReadHalf, WriteHalf, duplex,
            split,
        },
        time::timeout,
    };

    use super::*;
    use crate::adapter::acp::client::terminal::Terminals;

    /// An agent, whose client has no memory for large answers until a test gives it some.
    struct Agent {
        lines: tokio::io::Lines<BufReader<ReadHalf<DuplexStream>>>,
        writer: WriteHalf<DuplexStream>,
        memory: Option<Share>,
        _tasks: JoinSet<()>,
    }

    async fn agent() -> Agent {
        let handler = handler(&std::env::temp_dir());
        let memory = handler.answers.share(MAX_ANSWERS_BYTES).await;
        let (ours, theirs) = duplex(1 << 20);
        let (read, write) = split(ours);
        let (peer, writer) = Peer::new(1, &ACP);
        let reader = Reader::new(read, Arc::clone(&peer), "agent".into(), Arc::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(handler.serve(reader, peer));
        tasks.spawn(async move { writer.write(write).await.unwrap() });
        let (read, writer) = split(theirs);
        Agent { lines: BufReader::new(read).lines(), writer, memory: Some(memory), _tasks: tasks }
    }

    impl Agent {
        async fn send(&mut self, message: Json) {
            self.writer.write_all(format!("{message}\n").as_bytes()).await.unwrap();
        }

        /// Asks for a file that is not there. The answer waits for memory.
        async fn ask_for_file(&mut self, id: u64, padding: usize) {
            let path = std::env::temp_dir().join("toolbridge-no-such-file");
            let params = json!({"sessionId": "s1", "path": path, "_meta": "x".repeat(padding)});
            self.send(json!({"jsonrpc": "2.0", "id": id, "method": "fs/read_text_file", "params": params}))
                .await;
        }

        async fn read(&mut self) -> Json {
            let line = timeout(PATIENCE, self.lines.next_line()).await.expect("nothing is answered");
            serde_json::from_str(&line.unwrap().unwrap()).unwrap()
        }

        /// Returns the message of the error that is read next, and the id.
        async fn refused(&mut self) -> (u64, String) {
            let answer = self.read().await;
            (answer["id"].as_u64().unwrap(), answer["error"]["message"].as_str().unwrap().to_owned())
        }
    }

    /// The longest time that an answer takes on a busy machine.
    const PATIENCE: Duration = Duration::from_secs(60);

    const NO_FILE: &str = "there is no such file";

    #[tokio::test]
    async fn agent_has_64_open_requests_and_more_are_refused() {
        let mut agent = agent().await;
        for id in 0..70 {
            agent.ask_for_file(id, 0).await;
        }
        for id in 64..70 {
            assert_eq!(agent.refused().await, (id, "too many requests are open".to_owned()));
        }
        agent.memory = None;
        for _ in 0..64 {
            assert_eq!(agent.refused().await.1, NO_FILE);
        }
        agent.ask_for_file(70, 0).await;
        assert_eq!(agent.refused().await, (70, NO_FILE.to_owned()));
    }

    #[tokio::test]
    async fn what_follows_a_request_that_waits_for_memory_is_read_and_may_give_it_some() {
        let mut agent = agent().await;
        let cancel =
            |id: u64| json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": id}});
        for id in 0..3 {
            agent.ask_for_file(id, 6 << 20).await;
        }
        agent.send(json!({"jsonrpc": "2.0", "id": 3, "method": "no/such"})).await;
        assert_eq!(agent.refused().await, (3, "no/such is not offered".to_owned()));
        agent.send(cancel(2)).await;
        assert_eq!(agent.refused().await, (2, "the request was cancelled".to_owned()), "it waits");
        agent.ask_for_file(4, 6 << 20).await;
        agent.send(cancel(0)).await;
        assert_eq!(agent.refused().await, (0, "the request was cancelled".to_owned()));
        // Now the request that waited has memory, and another one waits.
        agent.ask_for_file(5, 6 << 20).await;
        agent.send(json!({"jsonrpc": "2.0", "id": 6, "method": "no/such"})).await;
        assert_eq!(agent.refused().await.0, 6);
        agent.memory = None;
        let mut answered = [agent.refused().await, agent.refused().await, agent.refused().await];
        answered.sort();
        assert_eq!(answered, [1, 4, 5].map(|id| (id, NO_FILE.to_owned())));
    }

    #[tokio::test]
    async fn nothing_is_read_while_a_second_request_waits_for_memory() {
        let mut agent = agent().await;
        for id in 0..4 {
            agent.ask_for_file(id, 6 << 20).await;
        }
        agent.send(json!({"jsonrpc": "2.0", "id": 4, "method": "no/such"})).await;
        {
            let mut answer = std::pin::pin!(agent.lines.next_line());
            // What can run has run when nothing else is left to do.
            for _ in 0..10_000 {
                assert!(poll!(&mut answer).is_pending());
                tokio::task::yield_now().await;
            }
        }
        agent.memory = None;
        let mut answered: Vec<_> = Vec::new();
        for _ in 0..5 {
            answered.push(agent.refused().await);
        }
        answered.sort();
        assert_eq!(answered.pop(), Some((4, "no/such is not offered".to_owned())));
        assert!(answered.iter().all(|(_, says)| says == NO_FILE), "{answered:?}");
    }

    #[tokio::test]
    async fn request_that_is_cancelled_is_answered_at_once() {
        let mut agent = agent().await;
        agent.ask_for_file(1, 0).await;
        agent.ask_for_file(2, 0).await;
        let cancel = json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 1}});
        agent.send(cancel).await;
        assert_eq!(agent.refused().await, (1, "the request was cancelled".to_owned()));
        agent.memory = None;
        assert_eq!(agent.refused().await, (2, NO_FILE.to_owned()));
    }

    /// A handler of the session `s1`, whose agent may use the files of a folder and run commands.
    fn handler(folder: &std::path::Path) -> Arc<Handler> {
        let options = terminal::Options { folder: folder.to_owned(), supervisor: None };
        let session = Session::new("agent".into(), Terminals::new(Some(options)));
        session.set_id("s1".to_owned());
        let agent = permission::Agent { name: "agent".into(), instance: 0, kinds: Default::default() };
        Handler::new(agent, Arc::new(session), Some(Arc::new(Folder::open(folder).unwrap())))
    }

    fn raw(params: &Json) -> Box<RawValue> {
        to_raw_value(params).unwrap()
    }

    /// Returns the error of a request.
    async fn refused(method: &str, params: Json) -> String {
        let handler = handler(&std::env::temp_dir());
        handler.answer(method, Some(&raw(&params))).await.unwrap_err().message
    }

    const UNKNOWN: &str = "the session is not known";

    #[tokio::test]
    async fn sec_a3_file_is_for_the_session_alone() {
        let path = std::env::temp_dir().join("toolbridge-no-such-file");
        for session in ["s2", ""] {
            let params = json!({"sessionId": session, "path": path});
            assert_eq!(refused("fs/read_text_file", params.clone()).await, UNKNOWN);
            assert_eq!(refused("fs/write_text_file", params).await, UNKNOWN);
        }
        assert_ne!(refused("fs/read_text_file", json!({"sessionId": "s1", "path": path})).await, UNKNOWN);
    }

    #[tokio::test]
    async fn sec_a3_command_is_for_the_session_alone() {
        assert_eq!(refused("terminal/create", json!({"sessionId": "s2", "command": "ls"})).await, UNKNOWN);
        assert_ne!(refused("terminal/create", json!({"sessionId": "s1", "command": "ls"})).await, UNKNOWN);
    }

    #[tokio::test]
    async fn question_is_for_the_session_alone() {
        assert_eq!(refused("elicitation/create", json!({"sessionId": "s2"})).await, UNKNOWN);
        let handler = handler(&std::env::temp_dir());
        let params = raw(&json!({"sessionId": "s1"}));
        let answer = handler.answer("elicitation/create", Some(&params)).await.unwrap();
        assert_eq!(answer, json!({"action": "cancel"}), "no turn is open");
    }

    #[tokio::test]
    async fn agent_that_reads_no_answers_makes_no_more_than_32_mib_of_them() {
        let folder = std::env::temp_dir().join(format!("toolbridge-acp-answers-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = |name: &str, text: &str| {
            fs::write(folder.join(name), text).unwrap();
            raw(&json!({"sessionId": "s1", "path": folder.join(name)}))
        };
        let (large, control) =
            (path("large", &"x".repeat(4 << 20)), path("control", &"\u{1}".repeat(4 << 20)));
        let handler = handler(&folder);
        let read =
            async |params: &RawValue| handler.answer_within_memory("fs/read_text_file", Some(params)).await;
        let mut shares = Vec::new();
        while shares.len() < 6 {
            let (answer, share) = read(&large).await;
            assert_eq!(answer.unwrap()["content"].as_str().unwrap().len(), 4 << 20);
            shares.push(share.unwrap());
        }
        // The next answer could have 8 MiB, and waits until others are written.
        let mut next = std::pin::pin!(read(&large));
        for _ in 0..1_000 {
            assert!(matches!(poll!(&mut next), Poll::Pending));
            tokio::task::yield_now().await;
        }
        shares.truncate(4);
        assert!(next.await.0.is_ok());
        // JSON writes a control character with six bytes.
        let (answer, share) = read(&control).await;
        assert!(share.is_none());
        assert_eq!(answer.unwrap_err().message, "the answer has 25165838 bytes; the limit is 8388608");
        fs::remove_dir_all(&folder).unwrap();
    }
}
