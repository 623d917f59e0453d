//! What an agent asks of its client.

use std::{
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use agent_client_protocol::{
    Agent, ConnectionTo, Dispatch, Error, ErrorCode, HandleDispatchFrom, Handled, Responder, UntypedMessage,
};
use serde_json::{Value as Json, json};

use super::{files::Folder, permission, rpc_error::error, session::Session, terminal};
use crate::adapter::{
    acp::lines::{MAX_ANSWER, Share, UNREADABLE},
    elicitation,
};

/// The most requests of an agent that are open.
const MAX_OPEN: usize = 64;

/// The longest reason why a message cannot be read, in bytes. The agent that wrote it may have written the reason, too.
const MAX_REASON: usize = 256;

/// Answers the requests of an agent.
#[derive(Clone)]
pub(super) struct Handler {
    pub(super) agent: permission::Agent,
    pub(super) session: Arc<Session>,
    pub(super) folder: Option<Arc<Folder>>,
    pub(super) open: Arc<AtomicUsize>,
}

impl HandleDispatchFrom<Agent> for Handler {
    async fn handle_dispatch_from(
        &mut self,
        message: Dispatch,
        connection: ConnectionTo<Agent>,
    ) -> Result<Handled<Dispatch>, Error> {
        match message {
            Dispatch::Request(request, responder) => self.begin(request, responder, &connection)?,
            Dispatch::Notification(_) => {} // what is not known has no effect
            response => return Ok(Handled::No { message: response, retry: false }),
        }
        Ok(Handled::Yes)
    }

    fn describe_chain(&self) -> impl fmt::Debug {
        "toolbridge"
    }
}

impl Handler {
    fn begin(
        &self,
        request: UntypedMessage,
        responder: Responder,
        connection: &ConnectionTo<Agent>,
    ) -> Result<(), Error> {
        if self.open.fetch_add(1, Ordering::Relaxed) >= MAX_OPEN {
            self.open.fetch_sub(1, Ordering::Relaxed);
            return responder
                .respond_with_error(error(ErrorCode::INVALID_REQUEST, "too many requests are open"));
        }
        let handler = self.clone();
        connection.spawn(async move {
            let cancellation = responder.cancellation();
            let (answer, share) = tokio::select! {
                answered = handler.answer_within_memory(&request.method, request.params) => answered,
                () = cancellation.cancelled() => (Err(Error::request_cancelled()), None),
            };
            handler.open.fetch_sub(1, Ordering::Relaxed);
            if let (Some(share), Ok(id)) = (share, serde_json::to_value(responder.id())) {
                handler.session.traffic.hold(&id, share);
            }
            let _ = responder.respond_with_result(answer); // the agent may have ended
            Ok(())
        })
    }

    /// Answers a request. An answer that may be large is made once there is memory for it, which it has until it is written.
    async fn answer_within_memory(&self, method: &str, params: Json) -> (Result<Json, Error>, Option<Share>) {
        let most = match method {
            "fs/read_text_file" => MAX_ANSWER,
            "terminal/output" => terminal::MAX_ANSWER,
            _ => return (self.answer(method, params).await, None),
        };
        let Some(mut share) = self.session.traffic.share(most).await else {
            return (Err(error(ErrorCode::INTERNAL_ERROR, "there is no memory for the answer")), None);
        };
        let answer = self.answer(method, params).await;
        match answer.as_ref().map_or(0, size) {
            size if size > most => {
                let text = format!("the answer has {size} bytes; the limit is {most}");
                (Err(error(ErrorCode::INVALID_PARAMS, text)), None)
            }
            size => {
                share.shrink(size);
                (answer, Some(share))
            }
        }
    }

    async fn answer(&self, method: &str, params: Json) -> Result<Json, Error> {
        match method {
            permission::METHOD => permission::answer(&self.agent, &self.session, &params).await.map_err(
                |permission::Invalid| {
                    error(ErrorCode::INVALID_PARAMS, "the permission request cannot be read")
                },
            ),
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
            UNREADABLE => {
                let reason = params["reason"].as_str().unwrap_or_default();
                let text =
                    format!("the message cannot be read: {}", crate::value::prefix(reason, MAX_REASON));
                Err(error(ErrorCode::PARSE_ERROR, text))
            }
            _ => Err(not_offered(method)),
        }
    }

    /// Checks that a request belongs to the session.
    fn check(&self, params: &Json) -> Result<(), Error> {
        match self.session.is_own(params["sessionId"].as_str()) {
            true => Ok(()),
            false => Err(error(ErrorCode::INVALID_PARAMS, "the session is not known")),
        }
    }

    async fn elicit(&self, params: Json) -> Result<Json, Error> {
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
            Err(failure) => Err(error(ErrorCode::INTERNAL_ERROR, failure.message())),
        }
    }
}

fn not_offered(method: &str) -> Error {
    error(ErrorCode::METHOD_NOT_FOUND, format!("{} is not offered", crate::value::prefix(method, 128)))
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
    use std::{fs, task::Poll};

    use futures_util::poll;

    use super::*;
    use crate::adapter::acp::client::terminal::Terminals;

    /// A handler of the session `s1`, whose agent may use the files of a folder and run commands.
    fn handler(folder: &std::path::Path) -> Handler {
        let options = terminal::Options { folder: folder.to_owned(), supervisor: None };
        let session = Session::new("agent".into(), Terminals::new(Some(options)));
        session.set_id("s1".to_owned());
        Handler {
            agent: permission::Agent { name: "agent".into(), instance: 0, kinds: Default::default() },
            session: Arc::new(session),
            folder: Some(Arc::new(Folder::open(folder).unwrap())),
            open: Arc::default(),
        }
    }

    /// Returns the error of a request.
    async fn refused(method: &str, params: Json) -> String {
        let handler = handler(&std::env::temp_dir());
        handler.answer(method, params).await.unwrap_err().message
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
        let answer = handler.answer("elicitation/create", json!({"sessionId": "s1"})).await.unwrap();
        assert_eq!(answer, json!({"action": "cancel"}), "no turn is open");
    }

    #[tokio::test]
    async fn agent_that_reads_no_answers_makes_no_more_than_32_mib_of_them() {
        let folder = std::env::temp_dir().join(format!("toolbridge-acp-answers-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = |name: &str, text: &str| {
            fs::write(folder.join(name), text).unwrap();
            json!({"sessionId": "s1", "path": folder.join(name)})
        };
        let (large, control) =
            (path("large", &"x".repeat(4 << 20)), path("control", &"\u{1}".repeat(4 << 20)));
        let handler = handler(&folder);
        let read = |params: &Json| handler.answer_within_memory("fs/read_text_file", params.clone());
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
