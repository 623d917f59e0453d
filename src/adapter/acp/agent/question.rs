//! Asks the person at the editor.

use std::sync::Arc;

use serde_json::{Map, Value as Json, json};

use super::{super::text, open_turn::Turn};
use crate::{
    ErrorCode, ToolError, Value,
    adapter::jsonrpc::peer::Unanswered,
    prompt::{AuthorizePrompt, ChoicePrompt, FormPrompt, PermissionPrompt, Prompt, PromptAnswer},
};

/// The kinds of options that the protocol knows.
const OPTION_KINDS: [&str; 4] = ["allow_once", "allow_always", "reject_once", "reject_always"];

/// The types that a field of a form may have.
const FIELD_TYPES: [&str; 5] = ["string", "number", "integer", "boolean", "array"];

/// The option that stands for none of the choices.
const NONE: &str = "none";

/// Asks the question of a turn. `call` is the id of the call that it belongs to.
pub(super) async fn ask(
    turn: &Arc<Turn>,
    call: Option<&str>,
    prompt: &Prompt,
) -> Result<PromptAnswer, ToolError> {
    if turn.over.is_cancelled() {
        return Err(ToolError::new(ErrorCode::EXECUTION_ERROR, "nobody can be asked: the turn is over"));
    }
    let asking = async {
        match prompt {
            Prompt::Permission(ask) => permission(turn, call, ask).await,
            Prompt::Choose(ask) => choice(turn, call, ask).await,
            Prompt::Form(ask) => form(turn, call, ask).await,
            Prompt::Authorize(ask) => authorize(turn, call, ask).await,
        }
    };
    tokio::select! {
        biased;
        () = turn.cancelled.cancelled() => Ok(PromptAnswer::cancelled()),
        () = turn.over.cancelled() => Ok(PromptAnswer::cancelled()),
        answer = asking => answer,
    }
}

async fn permission(
    turn: &Turn,
    call: Option<&str>,
    ask: &PermissionPrompt,
) -> Result<PromptAnswer, ToolError> {
    let about = &ask.tool_call;
    let name = about.name.as_deref().unwrap_or_default();
    let shown = ask.text.as_deref().or(about.title.as_deref()).unwrap_or_default();
    let mut tool_call = Map::from_iter([("title".to_owned(), json!(text::title(shown, name)))]);
    let id = call.or(about.tool_call_id.as_deref()).filter(|it| !it.is_empty());
    tool_call.insert("toolCallId".to_owned(), json!(id.unwrap_or("permission")));
    if let Some(input) = &about.raw_input {
        tool_call.insert("rawInput".to_owned(), input.to_json());
    }
    let options = ask.options.iter().map(|option| {
        // A kind that is not known allows nothing.
        let kind = OPTION_KINDS.iter().find(|it| **it == option.kind).unwrap_or(&"reject_once");
        json!({"optionId": option.option_id, "name": text::title(&option.name, kind), "kind": kind})
    });
    let chosen = select(turn, tool_call, options.collect()).await?;
    let answer = chosen.map_or_else(PromptAnswer::cancelled, PromptAnswer::selected);
    Ok(if ask.chosen(&answer).is_some() { answer } else { PromptAnswer::cancelled() })
}

/// Asks for an option, and returns the id that was selected, which need not have been offered.
async fn select(
    turn: &Turn,
    tool_call: Map<String, Json>,
    options: Vec<Json>,
) -> Result<Option<String>, ToolError> {
    let params = json!({"sessionId": &*turn.session, "toolCall": tool_call, "options": options});
    let answer =
        turn.connection.peer.request("session/request_permission", params).await.map_err(unanswered)?;
    let outcome = &answer["outcome"];
    let is_selected = outcome["outcome"].as_str() == Some("selected");
    Ok(outcome["optionId"].as_str().filter(|_| is_selected).map(str::to_owned))
}

async fn choice(turn: &Turn, call: Option<&str>, ask: &ChoicePrompt) -> Result<PromptAnswer, ToolError> {
    let numbered = ask.choices.iter().enumerate();
    let at = if turn.connection.abilities().form {
        let choices: Vec<Json> = numbered
            .map(|(n, choice)| json!({"const": n.to_string(), "title": text::title(choice, "choice")}))
            .collect();
        let mut field = json!({"type": "string", "title": "Choice", "oneOf": choices});
        if let Some(default) = ask.default {
            field["default"] = json!(default.to_string());
        }
        let schema = json!({"type": "object", "properties": {"choice": field}, "required": ["choice"]});
        let answer =
            elicit(turn, call, json!({"mode": "form", "message": ask.text, "requestedSchema": schema}))
                .await?;
        let content = accepted(&answer).and_then(|it| it["choice"].as_str()).map(str::to_owned);
        content.and_then(|it| it.parse().ok())
    } else {
        let mut options: Vec<Json> = numbered
            .map(|(n, choice)| json!({"optionId": n.to_string(), "name": text::title(choice, "choice"), "kind": "allow_once"}))
            .collect();
        options.push(json!({"optionId": NONE, "name": "None of these", "kind": "reject_once"}));
        let mut tool_call = Map::from_iter([("title".to_owned(), json!(text::title(&ask.text, "choose")))]);
        tool_call.insert("toolCallId".to_owned(), json!(call.unwrap_or("choice")));
        select(turn, tool_call, options).await?.and_then(|it| it.parse().ok())
    };
    let answer = at.map_or_else(PromptAnswer::cancelled, PromptAnswer::choice);
    Ok(if ask.chosen(&answer).is_some() { answer } else { PromptAnswer::cancelled() })
}

async fn form(turn: &Turn, call: Option<&str>, ask: &FormPrompt) -> Result<PromptAnswer, ToolError> {
    if !turn.connection.abilities().form {
        return Err(impossible("the editor cannot show forms"));
    }
    let schema = flat(&ask.schema).ok_or_else(|| {
        impossible(
            "the editor cannot show this form: it shows fields of texts, numbers, yes or no, and choices",
        )
    })?;
    let message = ask.text.as_deref().or(ask.name.as_deref()).unwrap_or("Please fill in this form");
    let answer =
        elicit(turn, call, json!({"mode": "form", "message": message, "requestedSchema": schema})).await?;
    match accepted(&answer) {
        Some(content) if content.is_object() => Ok(PromptAnswer::submitted(content)?),
        Some(Json::Null) => Ok(PromptAnswer::submitted(&json!({}))?),
        _ => Ok(declined(&answer)),
    }
}

async fn authorize(
    turn: &Turn,
    call: Option<&str>,
    ask: &AuthorizePrompt,
) -> Result<PromptAnswer, ToolError> {
    if !turn.connection.abilities().url {
        return Err(impossible("the editor cannot open sign-in pages"));
    }
    let message = match (&ask.text, &ask.service) {
        (Some(text), Some(service)) if !text.starts_with(service) => format!("{service}: {text}"),
        (Some(text), _) => text.clone(),
        (None, Some(service)) => format!("Sign in to {service}"),
        (None, None) => "Sign in".to_owned(),
    };
    let id = nanoid::nanoid!(21);
    let params = json!({"mode": "url", "message": message, "elicitationId": id, "url": ask.url});
    let answer = elicit(turn, call, params).await?;
    Ok(if accepted(&answer).is_some() { PromptAnswer::done() } else { declined(&answer) })
}

async fn elicit(turn: &Turn, call: Option<&str>, mut params: Json) -> Result<Json, ToolError> {
    params["sessionId"] = json!(&*turn.session);
    if let Some(call) = call {
        params["toolCallId"] = json!(call);
    }
    turn.connection.peer.request("elicitation/create", params).await.map_err(unanswered)
}

/// Returns the content of an answer that accepts.
fn accepted(answer: &Json) -> Option<&Json> {
    (answer["action"] == "accept").then(|| &answer["content"])
}

/// Anything but `decline` counts as a dismissal.
fn declined(answer: &Json) -> PromptAnswer {
    if answer["action"] == "decline" { PromptAnswer::declined() } else { PromptAnswer::cancelled() }
}

/// Returns the schema of a form whose fields are all simple, as the protocol demands, with a type for the whole.
fn flat(schema: &Value) -> Option<Json> {
    let mut schema = schema.to_json();
    let fields = schema.get("properties").and_then(Json::as_object)?;
    let is_simple = |field: &Json| {
        let kind = field["type"].as_str().unwrap_or_default();
        FIELD_TYPES.contains(&kind)
            && field.get("$ref").is_none()
            && (kind != "array" || ["enum", "anyOf"].iter().any(|key| field["items"][*key].is_array()))
    };
    if !fields.values().all(is_simple) {
        return None;
    }
    schema["type"] = json!("object");
    Some(schema)
}

fn impossible(text: &str) -> ToolError {
    ToolError::new(ErrorCode::EXECUTION_ERROR, text)
}

fn unanswered(why: Unanswered) -> ToolError {
    match why {
        Unanswered::TooMany(limit) => {
            let text = format!("{limit} questions are open at the editor already; wait for one to end");
            ToolError::new(ErrorCode::BUSY, text)
        }
        Unanswered::Refused(failure) => {
            let text = failure.said().unwrap_or_else(|| "no reason is given".to_owned());
            impossible(&format!("the editor refuses the question: {text}"))
        }
        Unanswered::Ended => impossible("nobody can be asked: the editor has gone"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_forms_of_simple_fields_can_be_shown() {
        let shown = |properties: Json| flat(&json!({"properties": properties}).into());
        assert_eq!(shown(json!({"n": {"type": "integer"}})).unwrap()["type"], "object");
        assert!(shown(json!({"n": {"type": "array", "items": {"type": "string", "enum": ["a"]}}})).is_some());
        for odd in
            [json!({"n": {"type": "object"}}), json!({"n": {}}), json!({"n": {"type": "array", "items": {}}})]
        {
            assert_eq!(shown(odd.clone()), None, "{odd}");
        }
        assert_eq!(flat(&json!({"type": "object"}).into()), None);
    }
}
