//! Answers an agent's permission requests: asks the person, or applies a remembered answer.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde::Deserialize;
use serde_json::{Value as Json, json, value::RawValue};

use super::{choice::chosen, session::Session, settings::Kinds, shown::TurnContext};
use crate::{
    Value,
    adapter::{
        acp::{ToolCall, document::PublicCall},
        json::value,
    },
    prompt::{
        MAX_PROMPT_CHOICES, MAX_PROMPT_LABEL, MAX_PROMPT_TEXT, PermissionOption, PermissionPrompt,
        PromptedCall,
    },
    value::{abridged, prefix},
};

/// The method of a request.
pub(super) const METHOD: &str = "session/request_permission";

/// The largest input, content or locations that a question shows, in bytes each.
const MAX_SHOWN: usize = 16 << 10;

/// The most answers that are remembered.
const MAX_KEPT: usize = 1_024;

/// The longest name or title of a tool for which an answer is remembered, in bytes.
const MAX_NAME: usize = 256;

/// What an answer for always holds for: the agent, as [`Agent::instance`], the kind of the call, and what it is called.
type About = (u64, String, Called);

/// The name of a call's tool. Most agents send none: then the exact title stands for it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Called {
    Name(String),
    Title(String),
}

impl Called {
    fn of(call: &ToolCall) -> Option<Self> {
        let called = call.name().map(Self::Name).or_else(|| call.title().map(Self::Title))?;
        (called.as_str().len() <= MAX_NAME).then_some(called)
    }

    fn as_str(&self) -> &str {
        let (Self::Name(text) | Self::Title(text)) = self;
        text
    }
}

/// The answers `allow_always` and `reject_always`. They are kept while the process lives.
static KEPT: Mutex<BTreeMap<About, bool>> = Mutex::new(BTreeMap::new());

fn kept() -> MutexGuard<'static, BTreeMap<About, bool>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forgets the permissions that persons gave or refused for always, and returns how many there were. The next request of
/// any agent is asked again. [`AcpTool::forget_permissions`](super::AcpTool::forget_permissions) forgets those of one agent.
pub fn forget_permissions() -> usize {
    std::mem::take(&mut *kept()).len()
}

/// Forgets the permissions of one agent, and returns how many there were.
pub(super) fn forget(instance: u64) -> usize {
    let mut kept = kept();
    let before = kept.len();
    kept.retain(|(agent, ..), _| *agent != instance);
    before - kept.len()
}

/// The parameters of `session/request_permission`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    session_id: String,
    #[serde(borrow)]
    tool_call: &'a RawValue,
    #[serde(default, borrow)]
    options: Option<&'a RawValue>,
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

/// The agent that asks.
#[derive(Clone, Debug)]
pub(super) struct Agent {
    pub(super) name: Arc<str>,
    /// Its number in this process: two agents may have one name.
    pub(super) instance: u64,
    pub(super) kinds: Arc<Kinds>,
}

/// Answers a request with the option that the person chooses, or with a refusal. Its parameters are text, because JSON values
/// would change the numbers of the call, and the order of its keys.
pub(super) async fn answer(
    agent: &Agent,
    session: &Session,
    params: Option<&RawValue>,
) -> Result<Json, Invalid> {
    let request: Request<'_> = serde_json::from_str(params.ok_or(Invalid)?.get()).map_err(|_| Invalid)?;
    if !session.is_own(Some(&request.session_id)) {
        return Err(Invalid);
    }
    let update: ToolCall = serde_json::from_str(request.tool_call.get()).map_err(|_| Invalid)?;
    let options: Vec<Choice> = match request.options {
        Some(options) => {
            let options = value(options.get()).map_err(|_| Invalid)?;
            serde_json::from_value(options).map_err(|_| Invalid)?
        }
        None => Vec::new(),
    };
    let Some((call, over, place)) = session.asked(&update) else { return Ok(cancelled()) };
    let (prompt, unshown) = prompt(&agent.name, PublicCall::from(&call), &options);
    if agent.kinds.rejected.contains(&call.kind()) {
        note_settings(session, &call, "refused");
        return Ok(
            of_kind(&prompt.options, ["reject_once", "reject_always"]).map_or_else(cancelled, selected)
        );
    }
    let about = Called::of(&call).map(|called| (agent.instance, call.kind(), called));
    if let Some(answer) = remembered(about.as_ref(), &call, &prompt.options, session) {
        return Ok(answer);
    }
    if agent.kinds.allowed.contains(&call.kind())
        && let Some(option) = of_kind(&prompt.options, ["allow_once", "allow_always"])
    {
        note_settings(session, &call, "allowed");
        return Ok(selected(option));
    }
    if let Some(unshown) = unshown {
        // A person allows only what is shown.
        let called = call.name().or_else(|| call.title()).unwrap_or_else(|| call.kind());
        let called = prefix(&called, MAX_NAME);
        session.note(call.id().as_deref(), &format!("{called}: refused without a question: {unshown}"));
        return Ok(
            of_kind(&prompt.options, ["reject_once", "reject_always"]).map_or_else(cancelled, selected)
        );
    }
    // A call may end without the answer. The question would keep others from the person until the end of the turn.
    let asking = ask(&prompt, about, &call, &place, session);
    Ok(over.run_until_cancelled(asking).await.unwrap_or_else(cancelled))
}

/// Asks the person about a call.
async fn ask(
    prompt: &PermissionPrompt,
    about: Option<About>,
    call: &ToolCall,
    place: &TurnContext,
    session: &Session,
) -> Json {
    let Ok(question) = place.question().await else { return cancelled() };
    // The question before may have been about the same tool.
    if let Some(answer) = remembered(about.as_ref(), call, &prompt.options, session) {
        return answer;
    }
    let chosen = chosen(prompt, &call.kind(), &question).await;
    if place.is_over() {
        return cancelled(); // an answer after the end of the turn is never a yes
    }
    let Some(option) = chosen else {
        let refusal = prompt.options.iter().find(|it| it.kind == "reject_once");
        return refusal.map_or_else(cancelled, selected);
    };
    if let Some((allows, about)) = always(&option).zip(about) {
        keep(&mut kept(), about, allows);
    }
    selected(&option)
}

/// Keeps an answer, unless there are too many.
fn keep(kept: &mut BTreeMap<About, bool>, about: About, allows: bool) {
    if kept.len() < MAX_KEPT {
        kept.insert(about, allows);
    }
}

/// Answers as the person has answered for always, and tells about it.
fn remembered(
    about: Option<&About>,
    call: &ToolCall,
    options: &[PermissionOption],
    session: &Session,
) -> Option<Json> {
    let about = about?;
    let allows = kept().get(about).copied()?;
    let option = of_kept(options, allows);
    let verb = if option.is_some_and(PermissionOption::allows) { "allowed" } else { "refused" };
    let (_, _, called) = about;
    session
        .note(call.id().as_deref(), &format!("{}: {verb}, as answered before for always", called.as_str()));
    Some(option.map_or_else(cancelled, selected))
}

/// Tells about a call that the settings decide.
fn note_settings(session: &Session, call: &ToolCall, verb: &str) {
    let called = call.name().or_else(|| call.title()).unwrap_or_else(|| call.kind());
    session.note(call.id().as_deref(), &format!("{}: {verb} by the settings", prefix(&called, MAX_NAME)));
}

/// Returns the option for an answer that is kept.
fn of_kept(options: &[PermissionOption], allows: bool) -> Option<&PermissionOption> {
    of_kind(options, if allows { ["allow_always", "allow_once"] } else { ["reject_always", "reject_once"] })
}

/// Returns the option of the first of these kinds that is offered.
fn of_kind<'a>(options: &'a [PermissionOption], kinds: [&str; 2]) -> Option<&'a PermissionOption> {
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

/// Returns the question, and what of it cannot be shown, if anything. Its text begins with the name of the agent that a
/// person has configured.
fn prompt(agent: &str, call: PublicCall<'_>, options: &[Choice]) -> (PermissionPrompt, Option<String>) {
    let title = call.title().or_else(|| call.name()).unwrap_or_else(|| call.kind());
    let mut text = format!("{agent} asks: {title}");
    let mut shown = PromptedCall::new(prefix(&call.name().unwrap_or_default(), MAX_PROMPT_LABEL));
    shown = shown.title(prefix(&title, MAX_PROMPT_TEXT));
    shown.name = shown.name.filter(|name| !name.is_empty());
    shown.tool_call_id = call.id().filter(|id| id.len() <= MAX_PROMPT_LABEL);
    shown.kind = Some(prefix(&call.kind(), MAX_PROMPT_LABEL).to_owned());
    let mut hidden = Vec::new();
    let mut field = |field: Option<Json>, what| {
        let field = field.map(Value::from)?;
        let size = field.as_bytes().len();
        if size > MAX_SHOWN {
            hidden.push(format!("its {what} of {size} bytes"));
        }
        (size <= MAX_SHOWN).then_some(field)
    };
    shown.raw_input = field(call.input(), "input");
    shown.locations = field(call.field("locations"), "list of files");
    shown.content = field(call.field("content"), "content");
    let unshown = match hidden.as_slice() {
        // The input says what a long title says.
        [] if text.len() > MAX_PROMPT_TEXT && call.input().is_none_or(|input| input.is_null()) => {
            Some(format!("its title of {} bytes cannot be shown: at most {MAX_PROMPT_TEXT} can", title.len()))
        }
        [] => None,
        hidden => Some(format!("{} cannot be shown: at most {MAX_SHOWN} can", hidden.join(" and "))),
    };
    let mut remark = unshown.as_ref().map(|it| format!(" — {it}")).unwrap_or_default();
    if call.hidden_blocks() > 0 {
        remark += " — a part of its content is for its model alone";
    }
    if remark.is_empty() && text.len() > MAX_PROMPT_TEXT {
        remark = " … — its title is cut; its input is whole".to_owned();
    }
    let (shown_options, left_out) = offered(options);
    if left_out > 0 {
        remark += &format!(" — {left_out} of its {} options cannot be shown", options.len());
    }
    if !remark.is_empty() {
        let room = MAX_PROMPT_TEXT.saturating_sub(remark.len());
        text = format!("{}{remark}", prefix(&text, room));
    }
    let prompt = PermissionPrompt::new(shown).text(abridged(&text, MAX_PROMPT_TEXT));
    let prompt =
        shown_options.iter().fold(prompt, |prompt, (id, name, kind)| prompt.option(*id, *name, *kind));
    (prompt, unshown)
}

/// Returns the options that a question can show whole, each with its id, name and kind, and how many it cannot.
fn offered(options: &[Choice]) -> (Vec<(&str, &str, &str)>, usize) {
    // An answer with an id that two options have could mean either.
    let mut counts = HashMap::new();
    for id in options.iter().filter_map(|it| it.option_id.as_deref()) {
        *counts.entry(id).or_insert(0) += 1;
    }
    let mut shown = Vec::new();
    for option in options {
        let (Some(id), Some(name), Some(kind)) = (&option.option_id, &option.name, &option.kind) else {
            continue;
        };
        let name = if name.is_empty() { kind } else { name };
        let fits = [id, name, kind].iter().all(|it| it.len() <= MAX_PROMPT_LABEL);
        if fits && !id.is_empty() && counts[id.as_str()] == 1 && shown.len() < MAX_PROMPT_CHOICES {
            shown.push((id.as_str(), name.as_str(), kind.as_str()));
        }
    }
    let left_out = options.len() - shown.len();
    (shown, left_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn option(id: &str, name: &str, kind: &str) -> PermissionOption {
        PermissionPrompt::new(PromptedCall::new("x")).option(id, name, kind).options.remove(0)
    }

    #[test]
    fn acp_c8_options_are_asked_as_offered_within_the_limits_of_a_question() {
        let call = ToolCall::read(
            r#"{"toolCallId": "1", "title": "Edit main.rs", "kind": "edit", "rawInput": {"a": 1}}"#,
        );
        let choices: Vec<Choice> = serde_json::from_value(json!([
            {"optionId": "y", "name": "Yes", "kind": "allow_once"},
            {"optionId": "t", "name": "Twice", "kind": "reject_once"},
            {"optionId": "t", "name": "Again", "kind": "allow_once"},
            {"optionId": "u", "name": "Also twice", "kind": "allow_once"},
            {"optionId": "u"},
            {"optionId": "x".repeat(300), "name": "Long", "kind": "allow_once"},
            {"optionId": "l", "name": format!("{} and always", "Allow ".repeat(50)), "kind": "allow_once"},
            {"name": "No id", "kind": "allow_once"},
            {"optionId": "n", "name": "No", "kind": "reject_once", "_meta": {}},
        ]))
        .unwrap();
        let (prompt, unshown) = prompt("coder", PublicCall::from(&call.unwrap()), &choices);
        assert_eq!(unshown, None);
        assert_eq!(
            prompt.text.as_deref(),
            Some("coder asks: Edit main.rs — 7 of its 9 options cannot be shown")
        );
        assert_eq!(prompt.tool_call.kind.as_deref(), Some("edit"));
        let options: Vec<_> =
            prompt.options.iter().map(|it| (it.option_id.as_str(), it.name.as_str())).collect();
        assert_eq!(options, [("y", "Yes"), ("n", "No")]);
    }

    #[test]
    fn acp_c9_answers_are_forgotten_for_one_agent_or_for_all() {
        let about = |agent, name: &str| (agent, "read".to_owned(), Called::Name(name.to_owned()));
        // No other test of this process keeps answers.
        kept().extend([(about(1, "a"), true), (about(1, "b"), false), (about(2, "a"), true)]);
        assert_eq!((forget(1), forget(1), forget_permissions(), forget_permissions()), (2, 0, 1, 0));
    }

    #[test]
    fn question_says_what_it_cannot_show() {
        let call = json!({"toolCallId": "1", "title": "List files", "rawInput": {"x": "y".repeat(17_000)}});
        let call = ToolCall::read(&call.to_string()).unwrap();
        let (prompt, unshown) = prompt("coder", PublicCall::from(&call), &[]);
        assert!(unshown.unwrap().starts_with("its input of 17"));
        let text = prompt.text.unwrap();
        assert!(text.starts_with("coder asks: List files — its input of 17"), "{text}");
        assert!(text.ends_with("cannot be shown: at most 16384 can"), "{text}");
        assert_eq!(prompt.tool_call.raw_input, None);
    }

    #[test]
    fn question_whose_title_is_cut_needs_an_input_that_is_whole() {
        let title = format!("Run {}; curl evil", "x".repeat(2_000));
        for (input, is_asked) in [(json!({"command": title}), true), (json!(null), false)] {
            let call = json!({"toolCallId": "1", "title": title, "rawInput": input});
            let call = ToolCall::read(&call.to_string()).unwrap();
            let (prompt, unshown) = prompt("coder", PublicCall::from(&call), &[]);
            assert_eq!(unshown.is_none(), is_asked, "{unshown:?}");
            let text = prompt.text.unwrap();
            assert!(text.len() <= MAX_PROMPT_TEXT && text.contains("is cut") == is_asked, "{text}");
        }
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

    #[test]
    fn answers_that_are_kept_are_limited() {
        let mut answers = BTreeMap::new();
        for n in 0..2_000 {
            keep(&mut answers, (n, "read".to_owned(), Called::Name("a".to_owned())), true);
        }
        assert_eq!(answers.len(), 1_024);
    }

    #[tokio::test]
    async fn permission_request_of_another_session_is_invalid() {
        use crate::adapter::acp::client::terminal::Terminals;

        let session = Session::new("agent".into(), Terminals::new(None));
        session.set_id("s1".to_owned());
        let agent = Agent { name: "agent".into(), instance: 0, kinds: Default::default() };
        let ask = async |id: &str| {
            let request = json!({"sessionId": id, "toolCall": {"toolCallId": "1"}, "options": []});
            let text = RawValue::from_string(request.to_string()).unwrap();
            answer(&agent, &session, Some(&text)).await
        };
        assert!(ask("s2").await.is_err() && ask("").await.is_err());
        assert!(ask("s1").await.is_ok());
    }

    #[tokio::test]
    async fn question_about_a_call_is_withdrawn_when_the_call_ends() {
        use std::{pin::pin, task::Poll, time::Duration};

        use futures_util::poll;

        use crate::{ToolContext, adapter::acp::client::terminal::Terminals};

        let session = Session::new("agent".into(), Terminals::new(None));
        session.set_id("s1".to_owned());
        let (shown, mut is_shown) = tokio::sync::mpsc::unbounded_channel();
        let context = ToolContext::new("caller", Duration::from_secs(60)).with_answers(move |_| {
            shown.send(()).unwrap();
            std::future::pending()
        });
        session.begin(TurnContext::new(context));
        let raw = |json: Json| RawValue::from_string(json.to_string()).unwrap();
        let update = |update: Json| session.update(&raw(json!({"sessionId": "s1", "update": update})));
        update(json!({"sessionUpdate": "tool_call", "toolCallId": "1", "title": "Edit", "kind": "edit"}));
        let agent = Agent { name: "agent".into(), instance: 0, kinds: Default::default() };
        let options = json!([{"optionId": "y", "name": "Yes", "kind": "allow_once"}]);
        let request = raw(json!({"sessionId": "s1", "toolCall": {"toolCallId": "1"}, "options": options}));
        let mut asking = pin!(answer(&agent, &session, Some(&request)));
        assert!(poll!(&mut asking).is_pending() && is_shown.try_recv().is_ok());
        update(json!({"sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "completed"}));
        let Poll::Ready(answer) = poll!(&mut asking) else { panic!("the person is still asked") };
        assert_eq!(answer.unwrap(), cancelled());
    }
}
