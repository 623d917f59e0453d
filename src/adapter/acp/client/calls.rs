//! Tracks the tool calls of an agent in its turn: merges, shows and ends them.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value as Json, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::shown::{Shown, TurnContext};
use crate::{
    ErrorCode, Progress, ToolError, Value,
    adapter::acp::{CallStatus, ToolCall, document::PublicCall, result::TerminalOutput},
    value::prefix,
};

/// The most open calls of an agent: as many as a participant may have open.
const MAX_OPEN: usize = 64;

/// The most bytes in the documents of the open calls. An update that ends its call needs no room, because nothing of the
/// call is kept.
const MAX_BYTES: usize = 32 << 20;

/// The longest id of a call, in bytes.
const MAX_ID: usize = 128;

/// How many ended calls are remembered, so that a late update is recognized.
const MAX_ENDED: usize = 1_024;

/// How long an update waits for the call that it belongs to.
const HOLD: Duration = Duration::from_secs(5);

/// The most locations in one progress update, because such an update has 4 KiB.
const MAX_LOCATIONS: usize = 8;

/// The longest text in one progress update, in bytes.
const MAX_TEXT: usize = 512;

/// Updates that had no effect on a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ignored {
    /// They came after the end of their call.
    pub(super) late: u64,
    /// They have no valid id, exceed a limit, or came while no turn was open.
    pub(super) refused: u64,
}

/// The calls of one session.
#[derive(Default)]
pub(super) struct Calls {
    open: HashMap<String, Open>,
    /// The bytes in the documents of the open calls.
    bytes: usize,
    ended: Ended,
    pub(super) ignored: Ignored,
}

/// The ids of calls that ended, at most [`MAX_ENDED`].
#[derive(Default)]
struct Ended {
    ids: HashSet<Arc<str>>,
    /// The same, oldest first.
    order: VecDeque<Arc<str>>,
}

impl Ended {
    fn note(&mut self, id: String) {
        let id: Arc<str> = id.into();
        if !self.ids.insert(Arc::clone(&id)) {
            return;
        }
        self.order.push_back(id);
        if self.order.len() > MAX_ENDED
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }
}

#[derive(Default)]
struct Open {
    call: ToolCall,
    /// Until when the call itself is awaited: only updates of it have come.
    held: Option<Instant>,
    shown: Option<Shown>,
    /// Read once for each update that has them, because an update may change nothing but a status.
    lasting: Lasting,
    /// Cancelled when the call has ended, if a permission was asked for it.
    over: CancellationToken,
}

/// What progress shows of the larger fields of a call.
#[derive(Default)]
struct Lasting {
    locations: Vec<Json>,
    text: Option<String>,
}

impl Lasting {
    /// Reads the fields that an update has.
    fn read(&mut self, call: &ToolCall, update: &ToolCall) {
        let call = PublicCall::from(call);
        if update.has("locations") {
            let locations = call.field("locations");
            let locations = locations.iter().filter_map(Json::as_array).flatten();
            self.locations = locations.take(MAX_LOCATIONS).cloned().collect();
        }
        if update.has("content") {
            self.text = last_text(call);
        }
    }
}

impl Calls {
    /// Takes a `tool_call` (`is_new`) or a `tool_call_update`.
    pub(super) fn update(
        &mut self,
        is_new: bool,
        update: &ToolCall,
        place: Option<&TurnContext>,
        terminal: &dyn Fn(&str) -> TerminalOutput,
    ) {
        let (Some(id), Some(place)) = (usable_id(update), place) else {
            self.ignored.refused += 1;
            return;
        };
        if self.ended.ids.contains(&*id) {
            self.ignored.late += 1;
            let mut lasting = Lasting::default();
            lasting.read(update, update);
            place.progress(progress(update, &lasting, "after its end"));
            return;
        }
        let has_room = self.has_room(is_new, &id, update);
        if !has_room && !update.status().is_final() {
            self.ignored.refused += 1;
            return;
        }
        let open = self
            .open
            .entry(id.clone())
            .or_insert_with(|| Open { held: (!is_new).then(|| Instant::now() + HOLD), ..Open::default() });
        let size = open.call.size();
        if !has_room {
            open.held = None; // it ends now
        }
        if is_new && open.held.take().is_some() {
            // The call comes after an update of it, which counts all the same.
            let later = std::mem::replace(&mut open.call, update.clone());
            open.call.merge(&later);
        } else {
            open.call.merge(update);
        }
        self.bytes = self.bytes + open.call.size() - size;
        open.lasting.read(&open.call, update);
        if !place.has_absolute(update) {
            place.warn("a path that the agent names is not absolute");
        }
        self.advance(&id, place, terminal);
    }

    /// Returns whether an update can be merged within the limits.
    fn has_room(&self, is_new: bool, id: &str, update: &ToolCall) -> bool {
        let (size, merged) = match self.open.get(id) {
            None if self.open.len() >= MAX_OPEN => return false,
            None => (0, update.size()),
            Some(Open { call, held: Some(_), .. }) if is_new => (call.size(), update.size_with(call)),
            Some(Open { call, .. }) => (call.size(), call.size_with(update)),
        };
        self.bytes - size + merged <= MAX_BYTES
    }

    /// Merges the update in a permission request, which some agents send first. Returns the merged call, and what is cancelled
    /// when it ends. The update stands for itself if its call has ended, or if it is too large to be merged.
    pub(super) fn asked(
        &mut self,
        update: &ToolCall,
        place: &TurnContext,
        terminal: &dyn Fn(&str) -> TerminalOutput,
    ) -> (ToolCall, CancellationToken) {
        let id = update.id().unwrap_or_default();
        let is_known = self.open.contains_key(&id);
        let is_usable = is_known || usable_id(update).is_some() && !self.ended.ids.contains(&*id);
        let has_room = self.has_room(false, &id, update) || is_known && update.status().is_final();
        if !is_usable || !has_room {
            self.ignored.refused += u64::from(is_usable);
            let over = self.open.get(&id).map(|open| open.over.clone());
            return (update.clone(), over.unwrap_or_default());
        }
        let open = self.open.entry(id.clone()).or_default();
        let over = open.over.clone();
        let size = open.call.size();
        open.call.merge(update);
        self.bytes = self.bytes + open.call.size() - size;
        open.lasting.read(&open.call, update);
        open.held = None;
        // Its input is known: a person is to decide about it.
        open.shown.get_or_insert_with(|| place.show(&open.call));
        let call = open.call.clone();
        self.advance(&id, place, terminal);
        (call, over)
    }

    /// Shows the calls that were held for too long, as they are.
    pub(super) fn release(&mut self, place: Option<&TurnContext>, terminal: &dyn Fn(&str) -> TerminalOutput) {
        let now = Instant::now();
        let due = |open: &Open| open.held.is_some_and(|until| until <= now);
        let ids: Vec<String> =
            self.open.iter().filter(|(_, open)| due(open)).map(|(id, _)| id.clone()).collect();
        for id in ids {
            if let Some(open) = self.open.get_mut(&id) {
                open.held = None;
            }
            if let Some(place) = place {
                self.advance(&id, place, terminal);
            }
        }
    }

    /// Returns when the next held call is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.open.values().filter_map(|open| open.held).min()
    }

    /// Ends all open calls: as their last status says, otherwise with this failure.
    pub(super) fn end_all(
        &mut self,
        place: &TurnContext,
        error: &ToolError,
        terminal: &dyn Fn(&str) -> TerminalOutput,
    ) {
        self.bytes = 0;
        for (id, open) in std::mem::take(&mut self.open) {
            let shown = open.shown.unwrap_or_else(|| place.show(&open.call));
            // One that was held has perhaps ended.
            let outcome = open.call.outcome_with(terminal).unwrap_or_else(|| {
                let partial = open.call.result_with(terminal).to_value();
                Err(ToolError::new(error.code(), error.message()).with_partial(partial))
            });
            shown.finish(outcome);
            self.ended.note(id);
        }
    }

    /// Forgets the ids of ended calls: those of another session.
    pub(super) fn forget_ended(&mut self) {
        self.ended = Ended::default();
    }

    /// Tells about a call that was decided without a question.
    pub(super) fn note(&self, id: Option<&str>, text: &str) {
        if let Some(Open { shown: Some(shown), .. }) = id.and_then(|id| self.open.get(id)) {
            shown.progress(Progress::from(text));
        }
    }

    /// Shows what is known of a call, and ends it if its status is final.
    fn advance(&mut self, id: &str, place: &TurnContext, terminal: &dyn Fn(&str) -> TerminalOutput) {
        let Some(open) = self.open.get_mut(id) else { return };
        let is_known = open.call.has_value("rawInput") || open.call.status() != CallStatus::Pending;
        if open.held.is_some() || open.shown.is_none() && !is_known {
            return;
        }
        let shown = open.shown.get_or_insert_with(|| place.show(&open.call));
        let progress = progress(&open.call, &open.lasting, "");
        place.progress(progress.clone());
        let Some(outcome) = open.call.outcome_with(terminal) else { return shown.progress(progress) };
        if let Some(Open { shown: Some(shown), call, over, .. }) = self.open.remove(id) {
            self.bytes -= call.size();
            over.cancel();
            shown.finish(outcome);
        }
        self.ended.note(id.to_owned());
    }
}

/// Returns the id of an update, if a call can have it.
fn usable_id(update: &ToolCall) -> Option<String> {
    update.id().filter(|id| !id.is_empty() && id.len() <= MAX_ID && !id.contains(char::is_control))
}

/// Returns the failure of calls whose turn was cancelled.
pub(super) fn cancelled() -> ToolError {
    ToolError::new(ErrorCode::CANCELLED, "the agent's turn was cancelled")
}

/// Describes the state of a call in one line, with its kind, status and locations as content.
fn progress<'a>(call: impl Into<PublicCall<'a>>, lasting: &Lasting, remark: &str) -> Progress {
    let call: PublicCall<'_> = call.into();
    let (title, kind, status) = (call.title(), call.kind(), call.status());
    let locations = &lasting.locations;
    let name = title.or_else(|| call.name()).unwrap_or_else(|| kind.clone());
    let mut line = format!("{}: {}", prefix(&name, MAX_TEXT), prefix(status.as_str(), 32));
    if let Some(place) = locations.last().and_then(|it| it["path"].as_str().map(|path| (path, &it["line"]))) {
        let (path, number) = place;
        line += &match number.as_u64() {
            Some(number) => format!(" {}:{number}", prefix(path, MAX_TEXT)),
            None => format!(" {}", prefix(path, MAX_TEXT)),
        };
    }
    if let Some(text) = &lasting.text {
        line += &format!(" · {}", prefix(text, MAX_TEXT));
    }
    if !remark.is_empty() {
        line += &format!(" ({remark})");
    }
    let mut content =
        json!({"toolCallId": call.id(), "kind": kind, "status": status.as_str(), "locations": locations});
    if content.to_string().len() > 3 << 10 {
        content["locations"] = json!([]);
    }
    Progress::from(line).content(Value::from(content))
}

/// Returns the last text that the call shows, its first line.
fn last_text(call: PublicCall<'_>) -> Option<String> {
    let content = call.field("content")?;
    let mut texts = content.as_array()?.iter().filter_map(|item| item["content"]["text"].as_str());
    texts.next_back().and_then(|text| text.lines().next()).map(|line| prefix(line, MAX_TEXT).to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::time::advance;

    use super::*;
    use crate::ToolContext;

    /// A place at a client, and what it shows and warns about.
    fn place() -> (TurnContext, Arc<Mutex<Vec<String>>>) {
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let (shown, warned) = (Arc::clone(&seen), Arc::clone(&seen));
        let context = ToolContext::new("caller", Duration::from_secs(60))
            .with_progress(move |it| shown.lock().unwrap().extend(it.message))
            .with_warnings(move |it| warned.lock().unwrap().push(format!("warning: {it}")));
        (TurnContext::new(context), seen)
    }

    fn no_terminal(_: &str) -> TerminalOutput {
        TerminalOutput::default()
    }

    fn take(calls: &mut Calls, is_new: bool, json: &str, place: Option<&TurnContext>) {
        calls.update(is_new, &ToolCall::read(json).unwrap(), place, &no_terminal);
    }

    fn drain(seen: &Mutex<Vec<String>>) -> Vec<String> {
        std::mem::take(&mut *seen.lock().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn acp_c18_update_before_its_call_is_held_for_5_s_and_merged() {
        let ((place, seen), mut calls) = (place(), Calls::default());
        take(&mut calls, false, r#"{"toolCallId":"1","status":"in_progress","kind":"edit"}"#, Some(&place));
        assert_eq!(calls.due(), Some(Instant::now() + HOLD));
        advance(HOLD - Duration::from_millis(1)).await;
        calls.release(Some(&place), &no_terminal);
        assert!(drain(&seen).is_empty(), "it is held");
        take(&mut calls, true, r#"{"toolCallId":"1","title":"Look","kind":"read"}"#, Some(&place));
        // The update was sent later than the call, so its values count.
        assert_eq!(calls.open["1"].call.kind(), "edit");
        assert_eq!((drain(&seen), calls.due()), (vec!["Look: in_progress".to_owned()], None));
        // A call that does not come is shown by its updates.
        take(&mut calls, false, r#"{"toolCallId":"2","title":"Alone","status":"completed"}"#, Some(&place));
        advance(HOLD).await;
        calls.release(Some(&place), &no_terminal);
        assert_eq!(drain(&seen), ["Alone: completed"]);
        assert_eq!((calls.open.len(), calls.ignored), (1, Ignored::default()));
    }

    #[test]
    fn permission_request_counts_for_the_bytes_of_open_calls() {
        let ((place, _), mut calls) = (place(), Calls::default());
        take(&mut calls, true, r#"{"toolCallId":"1","title":"Look","status":"in_progress"}"#, Some(&place));
        let text = "x".repeat(MAX_BYTES / 4);
        for n in 0..8 {
            let update = format!(r#"{{"toolCallId":"1","title":"Ask {n}","part{n}":"{text}"}}"#);
            let (asked, _) = calls.asked(&ToolCall::read(&update).unwrap(), &place, &no_terminal);
            assert_eq!(asked.title().as_deref(), Some(&*format!("Ask {n}")), "it is asked all the same");
        }
        assert!(calls.open["1"].call.size() <= MAX_BYTES);
        assert_eq!(calls.ignored, Ignored { late: 0, refused: 5 });
        assert_eq!(calls.bytes, calls.open["1"].call.size());
        // The bytes of a call that has ended are free.
        take(&mut calls, false, r#"{"toolCallId":"1","status":"completed"}"#, Some(&place));
        assert_eq!(calls.bytes, 0);
    }

    #[test]
    fn update_that_ends_a_call_is_taken_whatever_the_other_calls_have() {
        const MIB: usize = 1 << 20;
        let content = |size: usize, starts: &str| {
            let text = format!("{starts}\\n{}", "x".repeat(size));
            format!(r#""content":[{{"type":"content","content":{{"type":"text","text":"{text}"}}}}]"#)
        };
        let ((place, seen), mut calls) = (place(), Calls::default());
        for n in 0..4 {
            let parts = content(7 * MIB, "a part");
            let call = format!(r#"{{"toolCallId":"{n}","title":"Look","status":"in_progress",{parts}}}"#);
            take(&mut calls, true, &call, Some(&place));
        }
        drain(&seen);
        // It has room, because it replaces what is there.
        let all = content(5 * MIB, "all");
        take(&mut calls, false, &format!(r#"{{"toolCallId":"0",{all}}}"#), Some(&place));
        assert_eq!(drain(&seen), ["Look: in_progress · all"]);
        let more = format!(r#"{{"toolCallId":"1","rawOutput":"{}"}}"#, "x".repeat(7 * MIB));
        take(&mut calls, false, &more, Some(&place));
        assert_eq!((calls.open["1"].call.size() / MIB, calls.ignored.refused), (7, 1), "it has no room");
        // The end of a call needs none, also if the call itself has not come.
        let ended = more.replace("\"rawOutput\"", r#""title":"Done","status":"completed","rawOutput""#);
        let ended_as = |id: &str| ended.replace("\"1\"", &format!("\"{id}\""));
        take(&mut calls, false, &ended_as("4"), Some(&place));
        assert_eq!((drain(&seen), calls.open.len()), (vec!["Done: completed".to_owned()], 4));
        take(&mut calls, false, &ended, Some(&place));
        assert_eq!((drain(&seen), calls.open.len()), (vec!["Done: completed · a part".to_owned()], 3));
        take(&mut calls, false, &ended_as("5"), Some(&place));
        assert!(drain(&seen).is_empty() && calls.due().is_some(), "it has room, and waits for its call");
        assert_eq!((calls.open.len(), calls.ignored), (4, Ignored { late: 0, refused: 1 }));
        assert_eq!(calls.bytes, calls.open.values().map(|it| it.call.size()).sum::<usize>());
    }

    #[test]
    fn bytes_and_ended_calls_are_counted_without_looking_at_all_of_them() {
        let ((place, _), mut calls) = (place(), Calls::default());
        for n in 0..2 * MAX_ENDED {
            let new =
                format!(r#"{{"toolCallId":"{n}","title":"Look","kind":"read","status":"in_progress"}}"#);
            take(&mut calls, false, &format!(r#"{{"toolCallId":"{n}","kind":"edit"}}"#), Some(&place));
            take(&mut calls, true, &new, Some(&place));
            take(&mut calls, false, &format!(r#"{{"toolCallId":"{n}","title":"L"}}"#), Some(&place));
            assert_eq!(calls.bytes, calls.open.values().map(|it| it.call.size()).sum::<usize>());
            if n % 2 == 0 {
                take(
                    &mut calls,
                    false,
                    &format!(r#"{{"toolCallId":"{n}","status":"failed"}}"#),
                    Some(&place),
                );
            } else {
                calls.end_all(&place, &cancelled(), &no_terminal);
            }
            assert_eq!((calls.bytes, calls.open.len()), (0, 0));
        }
        let remembered = |n: usize| calls.ended.ids.contains(&*n.to_string());
        assert_eq!((calls.ended.ids.len(), calls.ended.order.len()), (MAX_ENDED, MAX_ENDED));
        assert!(!remembered(MAX_ENDED - 1) && remembered(MAX_ENDED) && remembered(2 * MAX_ENDED - 1));
    }

    #[test]
    fn acp_c18_input_that_is_null_is_not_known() {
        let ((place, seen), mut calls) = (place(), Calls::default());
        take(&mut calls, true, r#"{"toolCallId":"1","title":"Look","rawInput":null}"#, Some(&place));
        assert!(drain(&seen).is_empty());
        take(&mut calls, false, r#"{"toolCallId":"1","rawInput":0}"#, Some(&place));
        assert_eq!(drain(&seen), ["Look: pending"]);
    }

    #[test]
    fn acp_c7_update_after_the_end_is_shown_and_changes_nothing() {
        let ((place, seen), mut calls) = (place(), Calls::default());
        take(&mut calls, true, r#"{"toolCallId":"1","title":"Look","status":"failed"}"#, Some(&place));
        take(&mut calls, false, r#"{"toolCallId":"1","title":"Late","status":"completed"}"#, Some(&place));
        take(&mut calls, true, r#"{"toolCallId":"1","title":"Again"}"#, Some(&place));
        assert_eq!(
            drain(&seen),
            ["Look: failed", "Late: completed (after its end)", "Again: pending (after its end)"]
        );
        assert_eq!((calls.open.len(), calls.ignored), (0, Ignored { late: 2, refused: 0 }));
        // The ids of another session are other calls.
        calls.forget_ended();
        take(&mut calls, true, r#"{"toolCallId":"1","title":"New","status":"in_progress"}"#, Some(&place));
        assert_eq!(drain(&seen), ["New: in_progress"]);
    }

    #[test]
    fn acp_c1_same_id_again_is_one_call() {
        let ((place, seen), mut calls) = (place(), Calls::default());
        for title in ["Look", "Look again"] {
            let call = format!(r#"{{"toolCallId":"1","title":"{title}","status":"in_progress"}}"#);
            take(&mut calls, true, &call, Some(&place));
        }
        assert_eq!(calls.open.len(), 1);
        assert_eq!(drain(&seen), ["Look: in_progress", "Look again: in_progress"]);
    }

    #[test]
    fn acp_c6_relative_path_of_an_agent_is_kept_and_warned_about() {
        let ((place, seen), mut calls) = (place(), Calls::default());
        let call = r#"{"toolCallId":"1","title":"Edit","status":"in_progress","locations":[{"path":"src/a.rs","line":3}]}"#;
        take(&mut calls, true, call, Some(&place));
        let warning = "warning: a path that the agent names is not absolute";
        assert_eq!(drain(&seen), [warning, "Edit: in_progress src/a.rs:3"]);
        assert_eq!(calls.open["1"].call.field("locations").unwrap()[0]["path"], "src/a.rs");
        let diff =
            r#"{"toolCallId":"1","locations":[],"content":[{"type":"diff","path":"b.rs","newText":""}]}"#;
        take(&mut calls, false, diff, Some(&place));
        assert_eq!(drain(&seen), [warning, "Edit: in_progress"]);
    }

    #[test]
    fn update_without_a_valid_id_or_a_turn_or_beyond_a_limit_is_counted() {
        let ((place, seen), mut calls) = (place(), Calls::default());
        for json in [r#"{"title":"No id"}"#, r#"{"toolCallId":""}"#, r#"{"toolCallId":"a\nb"}"#] {
            take(&mut calls, true, json, Some(&place));
        }
        take(&mut calls, true, &format!(r#"{{"toolCallId":"{}"}}"#, "x".repeat(MAX_ID + 1)), Some(&place));
        take(&mut calls, true, r#"{"toolCallId":"1"}"#, None);
        assert_eq!((calls.ignored.refused, calls.open.len()), (5, 0));
        for n in 0..=MAX_OPEN {
            take(&mut calls, true, &format!(r#"{{"toolCallId":"{n}"}}"#), Some(&place));
        }
        assert_eq!((calls.ignored.refused, calls.open.len()), (6, MAX_OPEN));
        assert!(drain(&seen).is_empty());
    }
}
