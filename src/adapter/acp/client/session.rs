//! Holds the session with an agent: its turn, what it says, and its calls.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use serde::Deserialize;
use serde_json::{Value as Json, json, value::RawValue};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    calls::{self, Calls, Ignored},
    shown::TurnContext,
    terminal::Terminals,
};
use crate::{
    Progress, ToolError, ToolResult,
    adapter::{
        acp::ToolCall,
        json,
        jsonrpc::{inbox, rules::ACP},
    },
    tool::public::is_hidden,
    value::prefix,
};

/// The longest text that an agent says in one turn, in bytes. The rest is left out, and the result says so.
const MAX_SAID: usize = 1 << 20;

/// The most parts of what an agent says that differ in their audience, because each is a block of the result.
const MAX_PARTS: usize = 256;

/// The most decisions without a question that the result of a turn names.
const MAX_DECIDED: usize = 16;

/// The longest text in a progress update, in bytes.
const MAX_PROGRESS: usize = 1_024;

/// The state of a connection to an agent.
pub(super) struct Session {
    /// The name of the agent.
    agent: Arc<str>,
    state: Mutex<State>,
    /// The earliest end of a hold has changed.
    pub(super) held: Notify,
    /// What the agent has sent that is no message.
    pub(super) junk: Arc<inbox::Ignored>,
    pub(super) terminals: Terminals,
    /// Messages of other sessions.
    foreign: AtomicU64,
}

#[derive(Default)]
struct State {
    id: String,
    turn: Option<Turn>,
    calls: Calls,
    /// Where the plan is shown: until the next turn begins, or the connection ends.
    plan: Option<TurnContext>,
}

struct Turn {
    place: TurnContext,
    said: Said,
    /// How many messages were too long when it began.
    too_long: u64,
    is_cancelled: bool,
}

/// What a turn leaves for its result.
#[derive(Default)]
pub(super) struct Said {
    /// What the agent said, each part with whether it is for the model alone. Parts that follow each other differ in that.
    parts: Vec<(bool, String)>,
    /// The size of the parts, in bytes.
    size: usize,
    /// What was decided without a question, because a person had answered for always or by the settings.
    pub(super) decided: Vec<String>,
    left_out: LeftOut,
}

/// What an agent said that is not in the result.
#[derive(Default)]
struct LeftOut {
    /// The text beyond [`MAX_SAID`], in bytes.
    text: usize,
    /// The number of images, sounds and other parts without a text.
    parts: usize,
    /// The data of these parts, in bytes.
    data: usize,
    /// The number of messages that were too long to be read.
    messages: u64,
}

impl Said {
    /// Adds a text, at most [`MAX_SAID`] bytes in all.
    fn add(&mut self, text: &str, is_hidden: bool) {
        let kept = match self.left_out.text {
            0 => prefix(text, MAX_SAID.saturating_sub(self.size)),
            _ => "", // what follows a cut would seem to belong to what is before it
        };
        self.left_out.text += text.len() - kept.len();
        self.size += kept.len();
        let is_full = self.parts.len() == MAX_PARTS;
        match self.parts.last_mut() {
            Some((is_so, part)) if *is_so == is_hidden => part.push_str(kept),
            _ if kept.is_empty() => {}
            _ if is_full => self.left_out.text += kept.len(),
            _ => self.parts.push((is_hidden, kept.to_owned())),
        }
    }

    /// Returns the end of what anyone may see, at most [`MAX_PROGRESS`] bytes.
    pub(super) fn shown(&self) -> Option<String> {
        let mut shown = String::new();
        for (_, part) in self.parts.iter().rev().filter(|(is_hidden, _)| !is_hidden) {
            let start = part.len().saturating_sub(MAX_PROGRESS - shown.len());
            let start = (start..=part.len()).find(|at| part.is_char_boundary(*at)).unwrap_or(0);
            shown.insert_str(0, &part[start..]);
            if start > 0 {
                break;
            }
        }
        Some(shown).filter(|shown| !shown.is_empty())
    }

    /// Returns what the agent said as a result, which has no content if it said nothing.
    pub(super) fn result(&self) -> ToolResult {
        if self.parts.iter().all(|(_, part)| part.trim().is_empty()) {
            return ToolResult::default();
        }
        self.parts.iter().fold(ToolResult::default(), |result, (is_hidden, part)| match is_hidden {
            true => result.with_model_text(part.as_str()),
            false => result.with_text(part.as_str()),
        })
    }

    /// Says what was left out, if anything was.
    pub(super) fn remark(&self) -> Option<String> {
        let LeftOut { text, parts, data, messages } = self.left_out;
        let text = (text > 0).then(|| format!("{text} bytes of text beyond {MAX_SAID}"));
        let parts = (parts > 0).then(|| {
            let noun = if parts == 1 { "part that is" } else { "parts that are" };
            format!("{parts} {noun} not text ({data} bytes)")
        });
        let messages = (messages > 0).then(|| {
            let noun = if messages == 1 { "message" } else { "messages" };
            format!("{messages} {noun} of more than {} bytes", ACP.max_line)
        });
        let left_out: Vec<String> = text.into_iter().chain(parts).chain(messages).collect();
        (!left_out.is_empty())
            .then(|| format!("What the agent said is not complete. Left out: {}.", left_out.join(" and ")))
    }
}

/// The parameters of `session/update`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Update<'a> {
    session_id: String,
    #[serde(borrow)]
    update: &'a RawValue,
}

/// The part of an update that says what it is.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kind {
    session_update: String,
}

impl Session {
    pub(super) fn new(agent: Arc<str>, terminals: Terminals) -> Self {
        Self {
            agent,
            state: Mutex::default(),
            held: Notify::new(),
            junk: Arc::default(),
            terminals,
            foreign: AtomicU64::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the session that follows. Its calls may have the ids of earlier ones.
    pub(super) fn set_id(&self, id: String) {
        let state = &mut *self.state();
        state.id = id;
        state.calls.forget_ended();
    }

    pub(super) fn id(&self) -> String {
        self.state().id.clone()
    }

    /// Returns whether the message belongs to this session. Others are counted.
    pub(super) fn is_own(&self, id: Option<&str>) -> bool {
        let is_own = id.is_some_and(|id| !id.is_empty() && *id == self.state().id);
        if !is_own {
            self.foreign.fetch_add(1, Ordering::Relaxed);
        }
        is_own
    }

    /// Returns the number of messages of other sessions.
    pub(super) fn foreign(&self) -> u64 {
        self.foreign.load(Ordering::Relaxed)
    }

    pub(super) fn ignored(&self) -> Ignored {
        self.state().calls.ignored
    }

    /// Begins the turn of a prompt.
    pub(super) fn begin(&self, place: TurnContext) {
        self.end_plan();
        self.terminals.begin_turn();
        let too_long = self.junk.too_long();
        self.state().turn = Some(Turn { place, said: Said::default(), too_long, is_cancelled: false });
    }

    /// Ends the view of the last plan.
    pub(super) fn end_plan(&self) {
        let shown = self.state().plan.take();
        if let Some(place) = shown {
            place.end_plan(&self.agent);
        }
    }

    /// Marks the turn as cancelled, ends its open calls as cancelled, and kills its commands.
    pub(super) fn cancel(&self) {
        let state = &mut *self.state();
        if let Some(turn) = &mut state.turn {
            turn.is_cancelled = true;
            turn.place.end();
            state.calls.end_all(&turn.place, &calls::cancelled(), &|id| self.terminals.shown(id));
            self.terminals.kill_turn();
        }
    }

    /// Ends the turn: its open calls end with this failure.
    pub(super) fn end(&self, error: &ToolError) -> Said {
        let state = &mut *self.state();
        let Some(mut turn) = state.turn.take() else { return Said::default() };
        turn.said.left_out.messages = self.junk.too_long().saturating_sub(turn.too_long);
        turn.place.end();
        state.calls.end_all(&turn.place, error, &|id| self.terminals.shown(id));
        turn.said
    }

    /// Returns the open turn's place, unless the turn was cancelled.
    pub(super) fn place(&self) -> Option<TurnContext> {
        let state = self.state();
        state.turn.as_ref().filter(|turn| !turn.is_cancelled).map(|turn| turn.place.clone())
    }

    /// Merges the update in a permission request, and returns the merged call, what is cancelled when it ends, and the place of
    /// its turn.
    pub(super) fn asked(&self, update: &ToolCall) -> Option<(ToolCall, CancellationToken, TurnContext)> {
        let state = &mut *self.state();
        let turn = state.turn.as_ref().filter(|turn| !turn.is_cancelled)?;
        let (call, over) = state.calls.asked(update, &turn.place, &|id| self.terminals.shown(id));
        Some((call, over, turn.place.clone()))
    }

    /// Tells about a call that was decided without a question: at once, and in the result, because progress may be skipped.
    pub(super) fn note(&self, id: Option<&str>, text: &str) {
        let state = &mut *self.state();
        state.calls.note(id, text);
        if let Some(turn) = &mut state.turn {
            turn.place.progress(Progress::from(text));
            let decided = &mut turn.said.decided;
            if decided.len() < MAX_DECIDED && !decided.iter().any(|it| it == text) {
                decided.push(text.to_owned());
            }
        }
    }

    /// Shows the calls that were held for too long.
    pub(super) fn release(&self) {
        let state = &mut *self.state();
        let place = state.turn.as_ref().map(|turn| &turn.place);
        state.calls.release(place, &|id| self.terminals.shown(id));
    }

    /// Returns when the next held call is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.state().calls.due()
    }

    /// Handles the parameters of a `session/update`.
    pub(super) fn update(&self, params: &RawValue) {
        let Ok(update) = serde_json::from_str::<Update<'_>>(params.get()) else {
            return self.refuse();
        };
        if !self.is_own(Some(&update.session_id)) {
            return;
        }
        let text = update.update.get();
        let Ok(kind) = serde_json::from_str::<Kind>(text) else { return self.refuse() };
        match kind.session_update.as_str() {
            is @ ("tool_call" | "tool_call_update") => match serde_json::from_str(text) {
                Ok(call) => self.call(is == "tool_call", &call),
                Err(_) => self.refuse(),
            },
            "agent_message_chunk" => self.say(text),
            "plan" => self.plan(text),
            _ => {} // thoughts, commands and modes are not shown
        }
    }

    fn call(&self, is_new: bool, call: &ToolCall) {
        let state = &mut *self.state();
        let before = state.calls.due();
        let place = state.turn.as_ref().map(|turn| &turn.place);
        state.calls.update(is_new, call, place, &|id| self.terminals.shown(id));
        if state.calls.due() != before {
            self.held.notify_one();
        }
    }

    fn say(&self, update: &str) {
        let Some(update) = read(update) else { return self.refuse() };
        let content = &update["content"];
        let text = content["text"].as_str().or_else(|| content["resource"]["text"].as_str());
        let link = || content["uri"].as_str().map(|uri| format!("<{uri}>"));
        let text = text.map(str::to_owned).or_else(link);
        let mut state = self.state();
        let Some(turn) = &mut state.turn else { return self.count_refused(&mut state) };
        let said = &mut turn.said;
        let Some(text) = text else {
            said.left_out.parts += 1;
            said.left_out.data += size(content);
            return;
        };
        let is_hidden = is_hidden(content);
        said.add(&text, is_hidden);
        if let Some(shown) = said.shown().filter(|_| !is_hidden) {
            // Whoever shows the result may leave this out, because the result has all of it.
            turn.place.progress(Progress::from(shown).content(json!({"said": true}).into()));
        }
    }

    fn plan(&self, update: &str) {
        let Some(update) = read(update) else { return self.refuse() };
        let state = &mut *self.state();
        if let Some(turn) = &state.turn {
            turn.place.plan(&self.agent, &update["entries"]);
            state.plan = Some(turn.place.clone());
        }
    }

    fn refuse(&self) {
        self.count_refused(&mut self.state());
    }

    fn count_refused(&self, state: &mut State) {
        state.calls.ignored.refused += 1;
    }
}

/// Returns the size of the data in a part of a message, which is base64.
fn size(content: &Json) -> usize {
    let data = content["data"].as_str().or_else(|| content["resource"]["blob"].as_str());
    data.map_or(0, |data| data.trim_end_matches('=').len() * 3 / 4)
}

/// Reads an update. Programs cut texts between the halves of a surrogate pair, which JSON values cannot hold: such a half is
/// replaced.
fn read(update: &str) -> Option<Json> {
    json::object(update).ok().map(Json::Object)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ToolContext;

    fn update(session: &Session, params: &str) {
        session.update(serde_json::from_str(params).unwrap());
    }

    #[test]
    fn what_is_left_out_of_a_message_is_counted() {
        let session = Session::new("agent".into(), Terminals::new(None));
        session.set_id("s1".to_owned());
        session.begin(TurnContext::new(ToolContext::new("caller", Duration::from_secs(60))));
        let said = |content: &str| {
            let say = format!(r#"{{"sessionUpdate":"agent_message_chunk","content":{content}}}"#);
            update(&session, &format!(r#"{{"sessionId":"s1","update":{say}}}"#));
        };
        let text = |text: &str| said(&format!(r#"{{"type":"text","text":"{text}"}}"#));
        text(&"x".repeat(MAX_SAID - 1));
        said(r#"{"type":"resource_link","name":"a","uri":"x"}"#); // 3 bytes: the first is kept
        text("after");
        said(r#"{"type":"image","mimeType":"image/png","data":"aGVsbG8="}"#);
        said(r#"{"type":"resource","resource":{"uri":"file:///a","blob":"aGVsbG8="}}"#);
        said(r#"{"type":"hologram"}"#);
        let said = session.end(&calls::cancelled());
        let [(false, text)] = &said.parts[..] else { panic!("{:?}", said.parts) };
        assert_eq!(text.len(), MAX_SAID);
        assert!(text.ends_with("x<"));
        assert_eq!(
            said.remark().as_deref(),
            Some(
                "What the agent said is not complete. Left out: 7 bytes of text beyond 1048576 and 3 parts that are not text (10 bytes)."
            )
        );
        assert_eq!(Said::default().remark(), None);
    }

    #[test]
    fn update_of_an_unknown_session_is_counted_and_has_no_effect() {
        let session = Session::new("agent".into(), Terminals::new(None));
        session.set_id("s1".to_owned());
        session.begin(TurnContext::new(ToolContext::new("caller", Duration::from_secs(60))));
        let say = r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"hello"}}"#;
        for id in ["s2", "", "S1"] {
            update(&session, &format!(r#"{{"sessionId":"{id}","update":{say}}}"#));
        }
        assert_eq!((session.foreign(), session.ignored()), (3, Ignored::default()));
        for params in ["7", "{}", r#"{"sessionId":"s1"}"#, r#"{"sessionId":"s1","update":{}}"#] {
            update(&session, params);
        }
        update(&session, r#"{"sessionId":"s1","update":{"sessionUpdate":"tool_call","toolCallId":7}}"#);
        assert_eq!(session.ignored().refused, 5);
        update(&session, r#"{"sessionId":"s1","update":{"sessionUpdate":"from_another_version","x":[]}}"#);
        update(&session, &format!(r#"{{"sessionId":"s1","update":{say}}}"#));
        assert_eq!(session.end(&calls::cancelled()).parts, [(false, "hello".to_owned())]);
        // No turn is open any longer.
        update(&session, &format!(r#"{{"sessionId":"s1","update":{say}}}"#));
        assert_eq!((session.foreign(), session.ignored().refused), (3, 6));
    }
}
