//! Runs the client: a participant that offers tools.

use std::{future::Future, sync::Arc};

use super::{Builder, Handle, PromptRequest, now, participant_methods, prompt::Prompts};
use crate::{
    protocol::session::StopError,
    tool::{CallId, PromptAnswer, ToolError},
    transport::{Identity, Role},
};

/// A participant that serves tools. It is a handle: clones refer to the same participant.
///
/// Dropping the last handle leaves at once; [`close`](Client::close) waits for open calls.
#[derive(Clone, Debug)]
pub struct Client {
    handle: Arc<Handle>,
}

impl Client {
    /// Returns a builder.
    pub fn builder() -> ClientBuilder {
        Builder::new(Role::Client, Self::joined)
    }

    fn joined(handle: Arc<Handle>) -> Client {
        Client { handle }
    }

    /// Returns the bound assistant, which may call this client's tools, once there is one.
    pub fn assistant(&self) -> Option<Identity> {
        self.handle.0.lock().session.bound().cloned()
    }

    /// Asks the assistant to stop this call, if its author allows it
    /// ([`allow_stop`](crate::AssistantBuilder::allow_stop)). [`Event::Requested`](crate::Event::Requested) contains
    /// the id of a call.
    ///
    /// # Errors
    /// If there is no assistant, or this client has left. Success does not mean that the call stops.
    pub fn stop(&self, call: &CallId) -> Result<(), StopError> {
        self.ask_to_stop(Some(call))
    }

    /// Asks the assistant to stop every call that a barge-in would stop, if its author allows it.
    ///
    /// # Errors
    /// If there is no assistant, or this client has left.
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

/// Builds a [`Client`]: its tools and its assistant.
pub type ClientBuilder = Builder<Client>;

impl ClientBuilder {
    /// Sets the assistant whose calls are accepted. Default: the only eligible one in the room.
    ///
    /// A named assistant may call as soon as both are in the room; otherwise LiveKit must announce it first, which
    /// takes up to 3 s.
    pub fn assistant(mut self, identity: impl Into<Identity>) -> Self {
        self.setup.config = self.setup.config.assistant(identity);
        self
    }

    /// Answers requests of [LiveKit's RPC](crate::guide::livekit_rpc) (`performRpc`) from the assistant: the method is the
    /// tool's name, the payload a JSON object or empty. The first request of an eligible assistant binds it.
    /// [`join`](Self::join) announces to the room that this client reads RPC in streams.
    ///
    /// ```
    /// # async fn get_battery() -> Result<f32, toolbridge::ToolError> { Ok(0.8) }
    /// use toolbridge::Client;
    ///
    /// let client = Client::builder().tool("get_battery", "Battery level", get_battery).answer_rpc();
    /// # drop(client);
    /// ```
    pub fn answer_rpc(mut self) -> Self {
        self.setup.config = self.setup.config.answer_rpc();
        self
    }

    /// Answers requests of LiveKit's RPC, also those of this participant, which need not be the assistant. It may call
    /// every tool.
    pub fn rpc_caller(mut self, identity: impl Into<Identity>) -> Self {
        self.setup.config = self.setup.config.rpc_caller(identity);
        self
    }

    /// Answers the assistant's questions to the person at this client: permissions, choices, sign-ins, forms.
    ///
    /// With a handler the client lists the feature `tool_prompt`. The future is dropped when the answer is no longer
    /// needed: dismiss the question then. An answer that does not fit the question is an error for the caller. At
    /// most 8 questions are open at once; more are refused as busy.
    ///
    /// ```
    /// use toolbridge::{Client, ErrorCode, prompt::{Prompt, PromptAnswer, PromptRequest}, ToolError};
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
}
