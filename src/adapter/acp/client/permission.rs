//! Permission requests of an agent: asked of the person, or answered as the person has said before.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::Deserialize;
use serde_json::{Value as Json, json, value::RawValue};
use tokio::time::timeout;

use super::session::Session;
use crate::{
    MAX_PROMPT_CHOICES, MAX_PROMPT_LABEL, MAX_PROMPT_TEXT, PermissionOption, PermissionPrompt, PromptAnswer,
    PromptedCall, ToolContext, Value, adapter::acp::ToolCall, value::prefix,
};

/// How long a person has to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);

/// How often a question is asked if the spoken answer does not name an option.
const MAX_ASKED: usize = 2;

/// The largest input, content or locations that a question shows, in bytes each.
const MAX_SHOWN: usize = 16 << 10;

/// The most answers that are remembered.
const MAX_KEPT: usize = 1_024;

/// The kinds of calls that change nothing. For any other, a spoken answer must name the option.
const HARMLESS: [&str; 4] = ["fetch", "read", "search", "think"];

/// The answers `allow_always` and `reject_always`, by agent and name of the tool. They are kept while the process lives.
static KEPT: Mutex<BTreeMap<(String, String), bool>> = Mutex::new(BTreeMap::new());

fn kept() -> MutexGuard<'static, BTreeMap<(String, String), bool>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forgets the permissions that persons gave or refused for always, and returns how many there were. The next request of
/// any agent is asked again.
pub fn forget_permissions() -> usize {
    std::mem::take(&mut *kept()).len()
}

/// The parameters of `session/request_permission`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    session_id: String,
    tool_call: Box<RawValue>,
    #[serde(default)]
    options: Vec<Choice>,
}

/// An option. One that cannot be read is not offered.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Choice {
    #[serde(default)]
    option_id: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    kind: Option<String>,
}

/// The request cannot be read, or belongs to another session.
#[derive(Debug)]
pub(super) struct Invalid;

/// Answers a request: with the option that the person chooses, or with a refusal.
pub(super) async fn answer(agent: &str, session: &Session, params: &Json) -> Result<Json, Invalid> {
    let request: Request = serde_json::from_value(params.clone()).map_err(|_| Invalid)?;
    if !session.is_own(Some(&request.session_id)) {
        return Err(Invalid);
    }
    let update: ToolCall = serde_json::from_str(request.tool_call.get()).map_err(|_| Invalid)?;
    let Some((call, place)) = session.asked(&update).zip(session.place()) else {
        return Ok(cancelled());
    };
    let prompt = prompt(agent, &call, &request.options);
    let key = (agent.to_owned(), call.name().or_else(|| call.title()).unwrap_or_else(|| call.kind()));
    let remembered = kept().get(&key).copied();
    if let Some(allows) = remembered {
        let option = of_kept(&prompt.options, allows);
        let verb = if option.is_some_and(PermissionOption::allows) { "allowed" } else { "refused" };
        session.note(
            call.id().as_deref(),
            &format!("{}: {verb}, as answered before for always", prefix(&key.1, 256)),
        );
        return Ok(option.map_or_else(cancelled, selected));
    }
    let chosen = chosen(&prompt, &call.kind(), place.context()).await;
    if session.place().is_none() || place.context().is_cancelled() {
        return Ok(cancelled()); // an answer after the end of the turn is never a yes
    }
    let Some(option) = chosen else {
        let refusal = prompt.options.iter().find(|it| it.kind == "reject_once");
        return Ok(refusal.map_or_else(cancelled, selected));
    };
    if let Some(allows) = always(&option) {
        let mut kept = kept();
        if kept.len() < MAX_KEPT {
            kept.insert(key, allows);
        }
    }
    Ok(selected(&option))
}

/// Returns the option that the person chooses, if there is one in time.
pub(super) async fn chosen(
    prompt: &PermissionPrompt,
    kind: &str,
    context: &ToolContext,
) -> Option<PermissionOption> {
    let mut prompt = prompt.clone();
    for _ in 0..MAX_ASKED {
        let answer = timeout(ANSWER_LIMIT, context.ask(prompt.clone())).await.ok()?.ok()?;
        let option = prompt.chosen(&answer)?.clone();
        if !option.allows() || is_clear(kind, &option, &prompt.options, &answer) {
            return Some(option);
        }
        let names: Vec<&str> = prompt.options.iter().map(|it| it.name.as_str()).collect();
        let text = format!(
            "{} Please say one of: {}.",
            prompt.text.as_deref().unwrap_or_default(),
            names.join(", ")
        );
        prompt.text = Some(prefix(&text, MAX_PROMPT_TEXT).to_owned());
    }
    None
}

/// Returns whether an answer is clear enough: what was said must name the option if the call changes something.
fn is_clear(
    kind: &str,
    option: &PermissionOption,
    options: &[PermissionOption],
    answer: &PromptAnswer,
) -> bool {
    let Some(said) = &answer.text else { return true }; // not spoken
    if HARMLESS.contains(&kind) {
        return true;
    }
    let said = words(said);
    let names = |option: &PermissionOption| {
        let name = words(&option.name);
        !name.is_empty() && said.windows(name.len()).any(|part| *part == name[..])
    };
    // The longest name counts: "allow" is part of "allow always".
    let longest = options.iter().filter(|it| names(it)).max_by_key(|it| words(&it.name).len());
    longest.is_some_and(|found| found.option_id == option.option_id)
}

fn words(text: &str) -> Vec<String> {
    let words = text.split(|it: char| !it.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}

/// Returns the option for an answer that is kept.
fn of_kept(options: &[PermissionOption], allows: bool) -> Option<&PermissionOption> {
    let kinds = if allows { ["allow_always", "allow_once"] } else { ["reject_always", "reject_once"] };
    kinds.iter().find_map(|kind| options.iter().find(|it| it.kind == *kind))
}

fn always(option: &PermissionOption) -> Option<bool> {
    match option.kind.as_str() {
        "allow_always" => Some(true),
        "reject_always" => Some(false),
        _ => None,
    }
}

fn selected(option: &PermissionOption) -> Json {
    json!({"outcome": {"outcome": "selected", "optionId": option.option_id}})
}

fn cancelled() -> Json {
    json!({"outcome": {"outcome": "cancelled"}})
}

/// Returns the question. Its text begins with the name of the agent that a person has configured.
fn prompt(agent: &str, call: &ToolCall, options: &[Choice]) -> PermissionPrompt {
    let title = call.title().or_else(|| call.name()).unwrap_or_else(|| call.kind());
    let text = format!("{agent} asks: {title}");
    let mut shown = PromptedCall::new(prefix(&call.name().unwrap_or_default(), MAX_PROMPT_LABEL));
    shown = shown.title(prefix(&title, MAX_PROMPT_TEXT));
    shown.name = shown.name.filter(|name| !name.is_empty());
    shown.tool_call_id = call.id().filter(|id| id.len() <= MAX_PROMPT_LABEL);
    shown.kind = Some(prefix(&call.kind(), MAX_PROMPT_LABEL).to_owned());
    let field = |name| call.field(name).map(Value::from).filter(|it| it.as_bytes().len() <= MAX_SHOWN);
    shown.raw_input = field("rawInput");
    shown.locations = field("locations");
    shown.content = field("content");
    let mut prompt = PermissionPrompt::new(shown).text(prefix(&text, MAX_PROMPT_TEXT));
    for option in options {
        let (Some(id), Some(name), Some(kind)) = (&option.option_id, &option.name, &option.kind) else {
            continue;
        };
        let fits = !id.is_empty() && id.len() <= MAX_PROMPT_LABEL && kind.len() <= MAX_PROMPT_LABEL;
        let is_new = prompt.options.iter().all(|it| it.option_id != *id);
        if fits && is_new && prompt.options.len() < MAX_PROMPT_CHOICES {
            let name = if name.is_empty() { kind } else { name };
            prompt = prompt.option(id, prefix(name, MAX_PROMPT_LABEL), kind);
        }
    }
    prompt
}

#[cfg(test)]
mod tests {
    use super::*;

    fn option(id: &str, name: &str, kind: &str) -> PermissionOption {
        PermissionPrompt::new(PromptedCall::new("x")).option(id, name, kind).options.remove(0)
    }

    #[test]
    fn acp_c8_spoken_yes_to_a_change_must_name_the_option() {
        let options = [option("y", "Allow", "allow_once"), option("a", "Allow always", "allow_always")];
        let clear = |kind: &str, at: usize, said: &str| {
            is_clear(
                kind,
                &options[at],
                &options,
                &PromptAnswer::selected(&*options[at].option_id).text(said),
            )
        };
        for kind in ["edit", "delete", "move", "execute", "other", "unknown"] {
            assert!(!clear(kind, 0, "yes"), "{kind}");
            assert!(!clear(kind, 0, "sure, go ahead"), "{kind}");
            assert!(clear(kind, 0, "Allow it, please!"), "{kind}");
            assert!(!clear(kind, 0, "allow always"), "{kind}");
            assert!(clear(kind, 1, "I allow, allow ALWAYS"), "{kind}");
            assert!(!clear(kind, 1, "allow"), "{kind}");
        }
        assert!(clear("read", 0, "yes"));
        // A person who has touched the option has said nothing.
        assert!(is_clear("edit", &options[0], &options, &PromptAnswer::selected("y")));
    }

    #[test]
    fn acp_c8_options_are_asked_as_offered_within_the_limits_of_a_question() {
        let call = ToolCall::read(
            r#"{"toolCallId": "1", "title": "Edit main.rs", "kind": "edit", "rawInput": {"a": 1}}"#,
        );
        let choices: Vec<Choice> = serde_json::from_value(json!([
            {"optionId": "y", "name": "Yes", "kind": "allow_once"},
            {"optionId": "y", "name": "Twice", "kind": "allow_once"},
            {"optionId": "x".repeat(300), "name": "Long", "kind": "allow_once"},
            {"name": "No id", "kind": "allow_once"},
            {"optionId": "n", "name": "No", "kind": "reject_once", "_meta": {}},
        ]))
        .unwrap();
        let prompt = prompt("coder", &call.unwrap(), &choices);
        assert_eq!(prompt.text.as_deref(), Some("coder asks: Edit main.rs"));
        assert_eq!(prompt.tool_call.kind.as_deref(), Some("edit"));
        let options: Vec<_> =
            prompt.options.iter().map(|it| (it.option_id.as_str(), it.name.as_str())).collect();
        assert_eq!(options, [("y", "Yes"), ("n", "No")]);
    }

    #[test]
    fn acp_c9_kept_answer_selects_an_option_of_its_meaning() {
        let once = [option("y", "Yes", "allow_once"), option("n", "No", "reject_once")];
        let always = [option("a", "Always", "allow_always"), option("y", "Yes", "allow_once")];
        let id =
            |options: &[PermissionOption], allows| of_kept(options, allows).map(|it| it.option_id.clone());
        assert_eq!(id(&once, true).as_deref(), Some("y"));
        assert_eq!(id(&once, false).as_deref(), Some("n"));
        assert_eq!(id(&always, true).as_deref(), Some("a"));
        assert_eq!(id(&always, false), None);
    }
}
