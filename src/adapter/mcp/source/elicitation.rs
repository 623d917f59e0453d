//! Asks the person the questions of a server: forms and addresses to open.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value as Json};

use crate::{ToolContext, ToolError, adapter::elicitation::answer};

/// The method of a question to the person.
pub(super) const ELICITATION: &str = "elicitation/create";

/// The most questions that one server may have open.
pub(super) const MAX_QUESTIONS: usize = 8;

/// The requests for input in a result: the answers have the same names.
pub(super) type Inputs = BTreeMap<String, Input>;

#[derive(Deserialize)]
pub(super) struct Input {
    method: String,
    #[serde(default)]
    params: Json,
}

/// Answers the requests of an `input_required` result, one after another.
pub(super) async fn answer_all(
    server: &str,
    inputs: Inputs,
    call: &ToolContext,
) -> Result<Map<String, Json>, ToolError> {
    if inputs.len() > MAX_QUESTIONS {
        let text =
            format!("the MCP server asks {} questions at once; the limit is {MAX_QUESTIONS}", inputs.len());
        return Err(ToolError::new(crate::ErrorCode::EXECUTION_ERROR, text));
    }
    let mut answers = Map::new();
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
