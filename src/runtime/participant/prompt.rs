//! Runs prompts at a client: the author's handler is the source of the reserved tools.

use std::{fmt, future::Future, time::Instant};

use crate::{
    runtime::source::{ToolContext, ToolSource},
    tool::{CallId, Outcome, Prompt, PromptAnswer, Tool, ToolError, ToolName, public::stripped},
    transport::Identity,
    value::Value,
};

/// A question to the person at this participant: see [`ClientBuilder::prompt`](crate::ClientBuilder::prompt) and
/// [`AssistantBuilder::prompt`](crate::AssistantBuilder::prompt).
pub struct PromptRequest {
    prompt: Prompt,
    parameters: Value,
    context: ToolContext,
}

impl PromptRequest {
    /// Returns the question.
    pub fn prompt(&self) -> &Prompt {
        &self.prompt
    }

    /// Returns the question as it was sent, including fields that [`prompt`](PromptRequest::prompt) does not have.
    pub fn parameters(&self) -> &Value {
        &self.parameters
    }

    /// Returns the assistant that asks. At an assistant, it is the caller of the tool that asks.
    pub fn caller(&self) -> &Identity {
        self.context.caller()
    }

    /// Returns the id of the question's call. At an assistant, it is the id of the call whose tool asks.
    pub fn call_id(&self) -> &CallId {
        self.context.call_id()
    }

    /// Returns when the answer is no longer needed.
    pub fn deadline(&self) -> Instant {
        self.context.deadline()
    }
}

impl fmt::Debug for PromptRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PromptRequest")
            .field("prompt", &self.prompt)
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

/// The author's handler as a source. Its tools are reserved: the executor accepts them only from here.
pub(super) struct Prompts<F>(pub(super) F);

impl<F, Fut> ToolSource for Prompts<F>
where
    F: Fn(PromptRequest) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<PromptAnswer, ToolError>> + Send,
{
    fn list(&self) -> Vec<Tool> {
        let names = ToolName::PROMPTS.iter().filter_map(|name| name.parse().ok());
        names.map(|name: ToolName| Tool::new(name, "asks a person")).collect()
    }

    async fn execute(&self, tool: &ToolName, parameters: Value, context: ToolContext) -> Outcome {
        let prompt = Prompt::read(tool, &parameters)?;
        let asked = prompt.clone();
        let parameters = stripped(&parameters);
        let answer = (self.0)(PromptRequest { prompt, parameters, context }).await?;
        asked.answered(&answer)
    }

    /// A withdrawn question is dismissed at once.
    fn uses_cancel_grace(&self, _tool: &ToolName) -> bool {
        false
    }
}
