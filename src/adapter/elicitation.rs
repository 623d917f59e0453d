//! Asks a person questions of another system in the form `elicitation/create`, which MCP and ACP share:
//! forms, and addresses to open.

use serde::Deserialize;
use serde_json::{Map, Value as Json, json};

use crate::{
    ErrorCode, ToolContext, ToolError, Value,
    prompt::{AuthorizePrompt, Decision, FormPrompt, MAX_PROMPT_TEXT, Prompt, PromptAnswer},
    value::abridged,
};

/// The parameters of `elicitation/create`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Question {
    #[serde(default)]
    mode: Option<String>,
    #[serde(default)]
    message: String,
    #[serde(default)]
    requested_schema: Option<Json>,
    #[serde(default)]
    url: Option<String>,
}

/// Asks the person, and returns the result of `elicitation/create`. `source` names who asks.
///
/// # Errors
/// The question cannot be asked.
pub(super) async fn answer(source: &str, params: Json, call: &ToolContext) -> Result<Json, ToolError> {
    let defaults = defaults(&params["requestedSchema"]);
    let answer = call.ask(prompt(source, params)?).await?;
    Ok(match answer.outcome {
        Decision::Submitted => json!({"action": "accept", "content": content(&answer, defaults)}),
        Decision::Done => json!({"action": "accept"}),
        Decision::Declined => json!({"action": "decline"}),
        _ => json!({"action": "cancel"}),
    })
}

/// Returns the values that the fields of a form have unless the person sets others.
fn defaults(schema: &Json) -> Map<String, Json> {
    let fields = schema["properties"].as_object().into_iter().flatten();
    fields.filter_map(|(name, field)| Some((name.clone(), field.get("default")?.clone()))).collect()
}

/// Returns what the person filled in, and defaults for the rest.
fn content(answer: &PromptAnswer, defaults: Map<String, Json>) -> Json {
    match answer.data.as_ref().map(Value::to_json) {
        Some(Json::Object(filled)) => Json::Object(defaults.into_iter().chain(filled).collect()),
        Some(other) => other,
        None => Json::Object(defaults),
    }
}

/// Returns the question. It says who asks.
fn prompt(source: &str, params: Json) -> Result<Prompt, ToolError> {
    let invalid = |reason: &str| {
        ToolError::new(ErrorCode::EXECUTION_ERROR, format!("the question cannot be asked: {reason}"))
    };
    let question: Question =
        serde_json::from_value(params).map_err(|_| invalid("its parameters cannot be read"))?;
    let text = format!("{source} asks: {}", question.message);
    let text = abridged(&text, MAX_PROMPT_TEXT);
    match (question.mode.as_deref(), question.url, question.requested_schema) {
        (Some("url"), Some(url), _) => {
            Ok(Prompt::Authorize(AuthorizePrompt::new(url).service(source).text(text)))
        }
        (None | Some("form"), _, Some(schema)) => {
            let schema = Value::encode(&schema).map_err(|_| invalid("its schema cannot be read"))?;
            Ok(Prompt::Form(FormPrompt::new(schema).text(text)))
        }
        _ => Err(invalid("it is neither a form nor an address")),
    }
}
