//! Asks the person the questions of a tool: sign-ins and choices.

use tokio::time::timeout;

use super::{inbox::Question, requests::Requests};
use crate::{
    ErrorCode, ToolContext, ToolError,
    adapter::rap::document::Choice,
    prompt::{
        AuthorizePrompt, ChoicePrompt, Decision, MAX_PROMPT_CHOICES, MAX_PROMPT_LABEL, MAX_PROMPT_TEXT,
    },
    value::{abridged, prefix},
};

/// The share of a call's time that a person may take for a choice. The rest is for the tool's work after it.
const SHARE: f64 = 0.75;

/// Asks the person a question of a call's tool. `source` is the name that the user has given to the toolset.
///
/// # Errors
/// The person does not want to sign in, or nobody can be asked to: then the tool waits in vain.
///
/// # Cancel safety
/// Dropping the future dismisses the question.
pub(super) async fn ask(
    question: Question,
    source: &str,
    id: &str,
    requests: &Requests,
    context: &ToolContext,
) -> Result<(), ToolError> {
    match question {
        Question::SignIn { url } => sign_in(url, source, context).await,
        Question::Choose(choice) => {
            choose(&choice, source, id, requests, context).await;
            Ok(())
        }
    }
}

async fn sign_in(url: String, source: &str, context: &ToolContext) -> Result<(), ToolError> {
    context.progress(format!("{source} waits for a sign-in"));
    let text = format!("{source} asks you to sign in");
    let prompt = AuthorizePrompt::new(url)
        .service(prefix(source, MAX_PROMPT_LABEL))
        .text(abridged(&text, MAX_PROMPT_TEXT));
    let answer = context.ask(prompt).await.map_err(|error| {
        let text =
            format!("the tool needs a sign-in at {source:?}, which is not possible: {}", error.message());
        ToolError::new(error.code(), text)
    })?;
    match answer.outcome {
        Decision::Declined => {
            let text = format!("the tool needs a sign-in at {source:?}, which was declined");
            Err(ToolError::new(ErrorCode::PERMISSION_DENIED, text))
        }
        // Signed in; or dismissed, and perhaps signed in all the same: the tool knows, and answers.
        _ => Ok(()),
    }
}

/// Asks the person, and sends the answer to the tool, once. A person who does not choose has chosen the default.
async fn choose(choice: &Choice, source: &str, id: &str, requests: &Requests, context: &ToolContext) {
    context.progress(format!("{source} waits for a choice"));
    let limit = context.time_left().mul_f64(SHARE);
    let selected = timeout(limit, selected(choice, source, context)).await.ok().flatten();
    let selected = selected.unwrap_or(choice.default);
    let sent = match requests.check(&choice.response_url) {
        Ok(target) => requests.respond(&target, id, selected).await.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    if let Err(reason) = sent {
        tracing::warn!(source, reason, "the answer to a choice was not delivered");
        context.warn(&format!("the answer to a choice was not delivered: {reason}"));
    }
}

/// Returns the choice of the person, if there is one.
async fn selected(choice: &Choice, source: &str, context: &ToolContext) -> Option<usize> {
    let is_askable = choice.choices.len() <= MAX_PROMPT_CHOICES
        && choice.choices.iter().all(|it| (1..=MAX_PROMPT_LABEL).contains(&it.len()));
    if !is_askable {
        context.warn("a choice of the tool exceeds the limits of questions; its default was taken");
        return None;
    }
    let text = format!("{source} asks: {}", choice.prompt);
    let prompt =
        ChoicePrompt::new(abridged(&text, MAX_PROMPT_TEXT), choice.choices.iter().map(String::as_str))
            .default_choice(choice.default);
    match context.ask(prompt.clone()).await {
        Ok(answer) => prompt.chosen(&answer),
        Err(error) => {
            context.warn(&format!("a choice of the tool cannot be asked: {}", error.message()));
            None
        }
    }
}
