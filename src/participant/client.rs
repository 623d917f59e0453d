//! A participant that offers tools.

use std::{future::Future, sync::Arc};

use super::{
    Handle, JoinError, PromptRequest, now, participant_methods, prompt::Prompts, setup::Setup, setup_methods,
};
use crate::{
    protocol::session::StopError,
    tool::{CallId, PromptAnswer, ToolError},
    transport::{Identity, Role, Transport},
};

/// A participant that offers tools, as a handle: clones are the same participant.
///
/// Dropping the last one leaves at once; [`close`](Client::close) waits for what is open.
#[derive(Clone, Debug)]
pub struct Client {
    handle: Arc<Handle>,
}

impl Client {
    /// What a client is made of.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// The assistant that may call our tools, once it is known.
    pub fn assistant(&self) -> Option<Identity> {
        self.handle.0.lock().session.bound().cloned()
    }

    /// Asks the assistant to stop this call, if its author lets us
    /// ([`allow_stop`](crate::AssistantBuilder::allow_stop)). The id of a call is in
    /// [`Event::Requested`](crate::Event::Requested).
    ///
    /// # Errors
    /// There is no assistant, or we have left. That nothing was wrong does not say that it stops.
    pub fn stop(&self, call: &CallId) -> Result<(), StopError> {
        self.ask_to_stop(Some(call))
    }

    /// Asks the assistant to stop every call that a barge-in would stop, if its author lets us.
    ///
    /// # Errors
    /// There is no assistant, or we have left.
    pub fn stop_all(&self) -> Result<(), StopError> {
        self.ask_to_stop(None)
    }

    fn ask_to_stop(&self, call: Option<&CallId>) -> Result<(), StopError> {
        let shared = &self.handle.0;
        if let Some(reason) = shared.closed.borrow().clone() {
            return Err(StopError::Closed(reason));
        }
        shared.lock().session.ask_to_stop(now(), call)?;
        shared.wake.notify_one();
        Ok(())
    }
}

participant_methods!(Client);

/// What a client is made of: its tools, and the assistant it listens to.
#[derive(Debug, Default)]
#[must_use = "a builder does nothing until it joins"]
pub struct ClientBuilder {
    setup: Setup,
}

impl ClientBuilder {
    /// The assistant whose calls are taken. Default: the only one in the room that may be one.
    ///
    /// Named, it may call as soon as both are in the room; else LiveKit must announce it first, which
    /// takes up to 3 s.
    pub fn assistant(mut self, identity: impl Into<Identity>) -> Self {
        self.setup.config = self.setup.config.assistant(identity);
        self
    }

    /// Answers the assistant's questions to the person here: permissions, choices, sign-ins, forms.
    ///
    /// With it the client says that it can be asked (`tool_prompt`). The future is dropped when nobody waits for
    /// the answer any more: then put the question away. An answer that is none to the question is an error
    /// for whoever asked. At most 8 questions are open at once; more are refused as busy.
    ///
    /// ```
    /// use toolbridge::{Client, ErrorCode, Prompt, PromptAnswer, PromptRequest, ToolError};
    /// # async fn dialog(_text: Option<&str>, _options: usize) -> Option<usize> { None }
    ///
    /// let client = Client::builder().prompt(|ask: PromptRequest| async move {
    ///     match ask.prompt() {
    ///         Prompt::Permission(ask) => match dialog(ask.text.as_deref(), ask.options.len()).await {
    ///             Some(at) => Ok(PromptAnswer::selected(&ask.options[at].option_id)),
    ///             None => Ok(PromptAnswer::cancelled()),
    ///         },
    ///         Prompt::Choose(ask) => match dialog(Some(&ask.text), ask.choices.len()).await {
    ///             Some(at) => Ok(PromptAnswer::choice(at)),
    ///             None => Ok(PromptAnswer::cancelled()),
    ///         },
    ///         _ => Err(ToolError::new(ErrorCode::UNKNOWN_TOOL, "there is no screen here")),
    ///     }
    /// });
    /// # drop(client);
    /// ```
    pub fn prompt<F, Fut>(mut self, ask: F) -> Self
    where
        F: Fn(PromptRequest) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<PromptAnswer, ToolError>> + Send + 'static,
    {
        self.setup.prompts = Some(Arc::new(Prompts(ask)));
        self.setup.config.prompts = true;
        self
    }

    /// Joins over a transport of your own.
    ///
    /// # Errors
    /// [`JoinError::Register`] when the tools cannot be offered.
    ///
    /// # Cancel safety
    /// Dropped half-way, nothing has joined.
    pub async fn join_over(self, transport: impl Transport) -> Result<Client, JoinError> {
        Ok(Client { handle: self.setup.join(transport, Role::Client)? })
    }

    /// Joins a LiveKit room: `url` as `wss://…`, with a token for that room.
    ///
    /// # Errors
    /// [`JoinError::Register`] when the tools cannot be offered, [`JoinError::WrongToken`] when the token names another role
    /// or the kind `AGENT`, else what kept us out and what to do about it. A token without a role is not an error; the
    /// log says what will not work with it.
    ///
    /// # Cancel safety
    /// Dropped half-way, the participant leaves again.
    #[cfg(feature = "livekit")]
    pub async fn join(self, url: &str, token: &str) -> Result<Client, JoinError> {
        self.setup.check()?;
        self.setup.check_token(token, Role::Client)?;
        let room = self.setup.room.clone().join(url, token).await?;
        self.join_over(room).await
    }
}

setup_methods!(ClientBuilder);
