//! What an agent asks of its client.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use agent_client_protocol::{
    Agent, ConnectionTo, Dispatch, Error, ErrorCode, HandleDispatchFrom, Handled, Responder, UntypedMessage,
};
use serde_json::{Value as Json, json};

use super::{files::Folder, permission, rpc_error::error, session::Session};
use crate::adapter::elicitation;

/// The most requests of an agent that are open.
const MAX_OPEN: usize = 64;

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
            let answer = tokio::select! {
                answer = handler.answer(&request.method, request.params) => answer,
                () = cancellation.cancelled() => Err(Error::request_cancelled()),
            };
            handler.open.fetch_sub(1, Ordering::Relaxed);
            let _ = responder.respond_with_result(answer); // the agent may have ended
            Ok(())
        })
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
