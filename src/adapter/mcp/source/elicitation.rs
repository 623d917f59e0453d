//! Questions of a server to the person: forms and addresses to open.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use rmcp::{
    ClientHandler, RoleClient,
    model::{
        ClientCapabilities, ClientConfig, CustomRequest, CustomResult, ElicitationCapability,
        ErrorCode as McpCode, ErrorData, FormElicitationCapability, Implementation, InputResponses,
        UrlElicitationCapability,
    },
    service::{NotificationContext, RequestContext},
};
use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::{
    Shared,
    requests::{OWN_METHOD, Requests, UNREADABLE},
};
use crate::{ToolContext, ToolError, adapter::elicitation::answer};

/// The method of a question to the person.
pub(super) const ELICITATION: &str = "elicitation/create";

/// The most questions that one server may have open.
const MAX_QUESTIONS: usize = 8;

/// The requests for input in a result: the answers have the same names.
pub(super) type Inputs = BTreeMap<String, Input>;

#[derive(Deserialize)]
pub(super) struct Input {
    method: String,
    #[serde(default)]
    params: Json,
}

/// Answers what a server asks of its client.
pub(super) struct Handler {
    server: Arc<str>,
    shared: Weak<Shared>,
    requests: Arc<Requests>,
    questions: AtomicUsize,
}

impl Handler {
    pub(super) fn new(shared: &Arc<Shared>, requests: &Arc<Requests>) -> Self {
        Self {
            server: Arc::clone(&shared.name),
            shared: Arc::downgrade(shared),
            requests: Arc::clone(requests),
            questions: AtomicUsize::new(0),
        }
    }

    async fn elicit(&self, params: Json, context: &RequestContext<RoleClient>) -> Result<Json, ErrorData> {
        let Some(call) = self.requests.latest_call() else {
            return Err(ErrorData::invalid_request(
                "no call is open on whose behalf a person could be asked",
                None,
            ));
        };
        if self.questions.fetch_add(1, Ordering::Relaxed) >= MAX_QUESTIONS {
            self.questions.fetch_sub(1, Ordering::Relaxed);
            return Err(ErrorData::invalid_request("too many questions are open", None));
        }
        let answer = tokio::select! {
            answer = answer(&self.server, params, &call) => answer,
            () = context.ct.cancelled() => Ok(json!({"action": "cancel"})),
        };
        self.questions.fetch_sub(1, Ordering::Relaxed);
        answer.map_err(|error| ErrorData::internal_error(error.message().to_owned(), None))
    }
}

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        let elicitation = ElicitationCapability::new()
            .with_form(FormElicitationCapability::new())
            .with_url(UrlElicitationCapability::new());
        let mut capabilities = ClientCapabilities::default();
        capabilities.elicitation = Some(elicitation);
        ClientConfig::new(capabilities, Implementation::new("toolbridge", env!("CARGO_PKG_VERSION")))
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        if let Some(shared) = self.shared.upgrade() {
            shared.list_changed.notify_one();
        }
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleClient>,
    ) -> Result<CustomResult, ErrorData> {
        let method = request.method.strip_prefix(OWN_METHOD).unwrap_or(&request.method);
        match method {
            ELICITATION => {}
            UNREADABLE => {
                let reason = request.params.as_ref().and_then(Json::as_str).unwrap_or_default();
                let text = format!("the message cannot be read: {reason}");
                return Err(ErrorData::new(McpCode::INVALID_REQUEST, text, None));
            }
            _ => return Err(not_offered(method)),
        }
        self.elicit(request.params.unwrap_or_default(), &context).await.map(CustomResult::new)
    }
}

fn not_offered(method: &str) -> ErrorData {
    ErrorData::new(McpCode::METHOD_NOT_FOUND, format!("{method} is not offered"), None)
}

/// Answers the requests of an `input_required` result, one after another.
pub(super) async fn answer_all(
    server: &str,
    inputs: Inputs,
    call: &ToolContext,
) -> Result<InputResponses, ToolError> {
    if inputs.len() > MAX_QUESTIONS {
        let text =
            format!("the MCP server asks {} questions at once; the limit is {MAX_QUESTIONS}", inputs.len());
        return Err(ToolError::new(crate::ErrorCode::EXECUTION_ERROR, text));
    }
    let mut answers = InputResponses::new();
    for (name, input) in inputs {
        if input.method != ELICITATION {
            let text = format!("the MCP server asks for {}, which is not offered", input.method);
            return Err(ToolError::new(crate::ErrorCode::EXECUTION_ERROR, text));
        }
        answers.insert(name, answer(server, input.params, call).await?);
    }
    Ok(answers)
}

/// Asks the person to open addresses, one after another.
///
/// # Errors
/// The person has not opened one of them, or it cannot be asked for.
pub(super) async fn open_all(
    server: &str,
    addresses: Vec<Json>,
    call: &ToolContext,
) -> Result<(), ToolError> {
    for address in addresses.into_iter().take(MAX_QUESTIONS) {
        let answer = answer(server, address, call).await?;
        if answer["action"] != "accept" {
            let text = format!("the MCP server {server:?} needs an address to be opened, which was declined");
            return Err(ToolError::new(crate::ErrorCode::PERMISSION_DENIED, text));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn refused(count: usize, method: &str) -> String {
        let inputs =
            (0..count).map(|n| (n.to_string(), Input { method: method.to_owned(), params: Json::Null }));
        let call = ToolContext::new("caller", Duration::from_secs(60));
        answer_all("server", inputs.collect(), &call).await.unwrap_err().message().to_owned()
    }

    #[tokio::test]
    async fn result_asks_at_most_8_questions() {
        assert_eq!(refused(9, "x").await, "the MCP server asks 9 questions at once; the limit is 8");
    }

    #[tokio::test]
    async fn result_asks_for_nothing_but_forms_and_addresses() {
        let text = refused(1, "sampling/createMessage").await;
        assert_eq!(text, "the MCP server asks for sampling/createMessage, which is not offered");
    }
}
