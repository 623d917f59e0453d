//! Runs the commands of the controlling program: one result per call, and events.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    command::{self, BAD_COMMAND, COMMANDS, Command, CommandError, TOO_LONG},
    input::{self, MAX_LINE, Text},
};
use crate::cli::{
    room::{client, record_option::RecordOption},
    terminal::{
        failure::{hint, tool_failed},
        text,
    },
};
use toolbridge::{
    Assistant, CallError, CallId, CloseReason, Event, Events, Identity, Turn,
    adapter::acp,
    tools::Offer,
    transport::Peer,
    vocabulary::{
        self, Id, Input, Known, Line, LineEvent, LineLimits, OfferedTool, Output, Reply,
        clock::duration,
        from_core::{model_tools, tool_names},
        to_core::{body, of_model},
    },
};

/// The name of the line protocol.
const PROTOCOL: &str = "toolbridge-assistant";

/// The version of the line protocol. It changes only when a conforming controlling program would no longer work.
const VERSION: u64 = 2;

/// The maximum number of open calls, as in a session. While it is reached, no input line is read.
pub(super) const OPEN_CALLS: usize = 1024;

/// The maximum number of remembered turns. Older turns accept no calls and cannot be interrupted.
const TURNS: usize = 64;

/// Why a conversation ended.
#[derive(Debug)]
pub(super) enum End {
    /// The input ended and every call has its result.
    InputFinished,
    /// The room connection ended.
    Disconnected,
    /// Standard output was closed.
    OutputClosed,
    /// A signal interrupted the command.
    Interrupted,
}

/// The reader of standard output is gone.
struct OutputClosed;

/// What follows a command.
enum Next {
    /// The next line is read.
    Read,
    /// This is written, and then the next line is read.
    Say(String),
    /// No more lines are read.
    Stop,
}

/// A turn of the controlling program.
struct Named {
    name: Id,
    turn: Turn,
    /// Whether it accepts no more calls. A barge-in still ends those that are open.
    has_ended: bool,
}

/// A line that a call produces.
struct CallLine {
    line: String,
    /// The call's id, if this line is its result.
    ended: Option<Id>,
}

/// The maximum number of call lines that wait behind events.
const CALL_LINES: usize = 64;

/// One controlling program and one assistant.
pub(super) struct Conversation<'a> {
    assistant: Assistant,
    /// The option that the session is recorded with.
    record: Option<&'a RecordOption>,
    /// Whether `recording_stopped` was reported.
    recording_stop_reported: bool,
    events: Events,
    out: mpsc::Sender<String>,
    /// Calls without a result, with the token that cancels each.
    open: BTreeMap<Id, CancellationToken>,
    running: JoinSet<()>,
    /// The queue of call lines, which keeps events that happened earlier in front of them.
    tell: mpsc::Sender<CallLine>,
    lines: mpsc::Receiver<CallLine>,
    /// The controlling program's ids for the calls in the room, until the calls have settled.
    names: HashMap<CallId, Id>,
    /// The controlling program's turns, oldest first, including interrupted ones.
    turns: VecDeque<Named>,
    /// The events that are told; `None`: all.
    heard: Option<Vec<String>>,
    /// The participants reported as joined.
    present: BTreeSet<Peer>,
    /// The clients that offer tools.
    ready: BTreeSet<Identity>,
    /// Whether `not_allowed` was reported. It is reported once.
    not_allowed_reported: bool,
    /// Events to report after the first line.
    announcements: Vec<LineEvent>,
}

impl<'a> Conversation<'a> {
    pub(super) fn new(assistant: Assistant, out: mpsc::Sender<String>) -> Self {
        let events = assistant.events();
        for line in assistant.tool_notes().iter().filter_map(client::line) {
            hint(&line);
        }
        let (tell, lines) = mpsc::channel(CALL_LINES);
        Self {
            assistant,
            record: None,
            recording_stop_reported: false,
            events,
            out,
            open: BTreeMap::new(),
            running: JoinSet::new(),
            tell,
            lines,
            names: HashMap::new(),
            turns: VecDeque::new(),
            heard: None,
            present: BTreeSet::new(),
            ready: BTreeSet::new(),
            not_allowed_reported: false,
            announcements: Vec::new(),
        }
    }

    /// Sets the option that the session is recorded with. A recording that stops is also reported on stderr.
    pub(super) fn recorded(mut self, record: &'a RecordOption) -> Self {
        self.record = Some(record);
        self
    }

    /// Reports this event after the first line.
    pub(super) fn announce(mut self, event: LineEvent) -> Self {
        self.announcements.push(event);
        self
    }

    /// Runs until the input has ended and every call has its result, or until something else ends the conversation.
    pub(super) async fn run(&mut self, room: &str, input: mpsc::Receiver<input::Line>) -> End {
        self.talk(room, input).await.unwrap_or(End::OutputClosed)
    }

    /// Cancels the open calls and waits until their results are written.
    pub(super) async fn cancel_all(&mut self) {
        for stop in self.open.values() {
            stop.cancel();
        }
        // If the reader is gone, the lines are discarded, here and below.
        let _ = self.rest().await;
    }

    /// Writes the remaining results and the last line.
    pub(super) async fn finish(mut self, reason: &CloseReason) {
        let _ = self.rest().await;
        // The recording may have failed after the last event.
        let failed = self.assistant.recording().and_then(|stats| stats.failed);
        if let Some(event) = failed.and_then(|reason| self.recording_stopped(&reason)) {
            let _ = self.note(event).await;
        }
        let event = vocabulary::Event::Closed { reason: reason.into() };
        let _ = self.say(&Output::Event { event }.to_json()).await;
    }

    async fn talk(
        &mut self,
        room: &str,
        mut input: mpsc::Receiver<input::Line>,
    ) -> Result<End, OutputClosed> {
        let hello = Line::Hello {
            protocol: PROTOCOL.to_owned(),
            version: VERSION,
            program: concat!("toolbridge/", env!("CARGO_PKG_VERSION")).to_owned(),
            identity: self.assistant.identity().to_string(),
            room: room.to_owned(),
            commands: COMMANDS.iter().map(ToString::to_string).collect(),
            limits: LineLimits { line_bytes: MAX_LINE as u64, open_calls: OPEN_CALLS as u64 },
        };
        self.say(&hello.to_json()).await?;
        for event in std::mem::take(&mut self.announcements) {
            self.note(event).await?;
        }
        self.report_current_state().await?;
        let mut listening = true;
        while listening || !self.open.is_empty() {
            let room_for_more = self.open.len() < OPEN_CALLS;
            tokio::select! {
                biased;
                () = self.out.closed() => return Err(OutputClosed),
                event = self.events.recv() => match event {
                    Some(event) => self.tell(event).await?,
                    None => return Ok(End::Disconnected),
                },
                Some(line) = self.lines.recv() => self.pass(line).await?,
                Some(_) = self.running.join_next() => {}
                line = input.recv(), if listening && room_for_more => match line {
                    Some(line) => listening = self.obey(line).await?,
                    None => listening = false,
                },
            }
        }
        Ok(End::InputFinished)
    }

    /// Runs the command of a line. Returns whether to read more lines.
    async fn obey(&mut self, line: input::Line) -> Result<bool, OutputClosed> {
        let command = match &line.text {
            Text::Plain(text) if text.trim().is_empty() => return Ok(true),
            Text::Plain(text) => command::parse(text),
            Text::TooLong { size, start, end } => {
                let message = format!("the line has {size} bytes; the limit is {MAX_LINE}");
                command::unreadable(start, end, CommandError::new(TOO_LONG, message))
            }
            Text::NotUtf8(line) => {
                command::unreadable(line, &[], CommandError::new("not_utf8", "the line is not UTF-8"))
            }
        };
        let next = match command {
            Ok(Command::Input(input)) => self.input(input),
            Ok(Command::Refused(id, _)) if self.open.contains_key(&id) => Err(in_use(id)),
            Ok(Command::Refused(id, error)) => Ok(Next::Say(Output::refused(id, error).to_json())),
            Ok(Command::Tools) => {
                let (offers, local) = (self.assistant.tools(), self.assistant.identity());
                let tools = offers.iter().map(|offer| OfferedTool::from_core(offer, Some(local))).collect();
                Ok(Next::Say(Reply::Tools { tools }.to_json()))
            }
            Ok(Command::ModelTools) => Ok(Next::Say(model_tools(&self.assistant.tools()).to_json())),
            Ok(Command::ForgetPermissions) => {
                let event = LineEvent::PermissionsForgotten { count: acp::forget_permissions() as u64 };
                Ok(Next::Say(Line::Event { event }.to_json()))
            }
            Err(wrong) => Err(wrong),
        };
        let answer = match next {
            Ok(Next::Read) => return Ok(true),
            Ok(Next::Stop) => return Ok(false),
            Ok(Next::Say(answer)) => answer,
            Err(CommandError { code, message, id }) => {
                Line::Error { line: line.number, code: code.to_owned(), message, id }.to_json()
            }
        };
        self.say(&answer).await?;
        Ok(true)
    }

    fn input(&mut self, input: Input) -> Result<Next, CommandError> {
        let refuse = |id: Id, error: CallError| {
            Ok(Next::Say(Output::refused(id, vocabulary::CallError::from(&error)).to_json()))
        };
        match input {
            Input::Call { id, .. } if self.open.contains_key(&id) => return Err(in_use(id)),
            Input::Call { id, mut tool, arguments, model, to, timeout, owner_wait, meta, turn } => {
                let offers = model.then(|| self.assistant.tools());
                let turn = turn.map(|name| self.turn(name));
                let values = body(&arguments).and_then(|arguments| {
                    let meta = meta.into_iter().map(|it| body(&it.value).map(|value| (it.name, value)));
                    Ok((arguments, meta.collect::<Result<Vec<_>, _>>()?))
                });
                let (mut arguments, meta) = match values {
                    Ok(values) => values,
                    Err(error) => return refuse(id, CallError::from(error)),
                };
                let mut to = to.map(Identity::from);
                if let Some(offers) = offers {
                    let owner;
                    (tool, owner, arguments) = match of_model(offers, &tool, arguments) {
                        Ok(meant) => meant,
                        Err(error) => return refuse(id, error),
                    };
                    to = to.or(owner);
                }
                let mut asked = match turn {
                    Some(Named { has_ended: true, .. }) => return refuse(id, CallError::TurnOver),
                    Some(Named { turn, .. }) => turn.call(&tool, arguments),
                    None => self.assistant.call(&tool, arguments),
                };
                if let Some(owner) = to {
                    asked = asked.to(owner);
                }
                // Times were checked when they were read.
                if let Some(limit) = timeout.and_then(|millis| duration(millis).ok()) {
                    asked = asked.timeout(limit);
                }
                if let Some(wait) = owner_wait.and_then(|millis| duration(millis).ok()) {
                    asked = asked.owner_wait(wait);
                }
                for (key, value) in meta {
                    asked = asked.meta(&key, value);
                }
                self.start(id, asked.start());
            }
            Input::Cancel { id } => {
                // A call that has ended has its result, or the result is queued.
                if let Some(stop) = self.open.get(&id) {
                    stop.cancel();
                }
            }
            Input::BargeIn { turn } => self.turn(turn).turn.barge_in(),
            Input::TurnEnd { turn } => self.turn(turn).has_ended = true,
            Input::Listen { events } => {
                let events = vocabulary::Event::checked(events, LineEvent::NAMES);
                self.heard = Some(events.map_err(|error| CommandError::new(BAD_COMMAND, error))?);
            }
            Input::Close {} => return Ok(Next::Stop),
            _ => {} // is no command
        }
        Ok(Next::Read)
    }

    fn start(&mut self, id: Id, call: toolbridge::Call) {
        if self.names.len() >= 2 * OPEN_CALLS {
            // Forget detached calls that never reported an end.
            self.names.retain(|_, name| self.open.contains_key(name));
        }
        if let Some(call) = call.id() {
            self.names.insert(call.clone(), id.clone());
        }
        let stop = CancellationToken::new();
        self.open.insert(id.clone(), stop.clone());
        self.running.spawn(follow(id, call, stop, self.tell.clone()));
    }

    /// Returns the turn with this name, which begins when it is first named.
    fn turn(&mut self, name: Id) -> &mut Named {
        let at = self.turns.iter().position(|known| known.name == name).unwrap_or_else(|| {
            if self.turns.len() == TURNS {
                self.turns.pop_front();
            }
            self.turns.push_back(Named { name, turn: self.assistant.turn(), has_ended: false });
            self.turns.len() - 1
        });
        &mut self.turns[at]
    }

    /// Writes a line of a call: its result, after which the id can be used again, or progress that is heard.
    async fn pass(&mut self, line: CallLine) -> Result<(), OutputClosed> {
        match line.ended {
            Some(id) => {
                self.open.remove(&id);
            }
            None if !self.hears("progress") => return Ok(()),
            None => {}
        }
        self.say(&line.line).await
    }

    /// Waits for all results.
    async fn rest(&mut self) -> Result<(), OutputClosed> {
        while !self.open.is_empty() {
            // This struct holds a sender, so the channel never closes.
            let Some(line) = self.lines.recv().await else { break };
            self.pass(line).await?;
        }
        Ok(())
    }

    /// Reports the participants and tools that are present at the start.
    async fn report_current_state(&mut self) -> Result<(), OutputClosed> {
        for who in self.assistant.participants() {
            self.tell(Event::Joined(who)).await?;
        }
        let owners: BTreeSet<_> = self.assistant.tools().into_iter().map(|offer| offer.owner).collect();
        for owner in owners {
            self.tell(Event::ToolsChanged { owner }).await?;
        }
        Ok(())
    }

    async fn tell(&mut self, event: Event) -> Result<(), OutputClosed> {
        if matches!(event, Event::LateResult { .. } | Event::Missed(_)) {
            for late in self.assistant.late_results() {
                let event = vocabulary::Event::late(&late, self.names.remove(&late.id));
                self.event(event).await?;
            }
        }
        let ready = self.ready(&event);
        match event {
            Event::LateResult { .. } => {}
            Event::Missed(events) => {
                // The missed events may include the ends of these calls.
                self.names.retain(|_, id| self.open.contains_key(id));
                self.note(LineEvent::Missed { events }).await?;
            }
            Event::RecordingStopped { reason } => {
                if let Some(event) = self.recording_stopped(&reason) {
                    self.note(event).await?;
                }
            }
            event => self.event_of(event).await?,
        }
        match ready {
            Some(event) => self.note(event).await,
            None => Ok(()),
        }
    }

    /// Tells an event that a session emits.
    async fn event_of(&mut self, event: Event) -> Result<(), OutputClosed> {
        let is_told = match &event {
            Event::Joined(who) => self.present.insert(who.peer().clone()),
            Event::Left(who) => self.present.remove(who),
            Event::NotAllowed => !std::mem::replace(&mut self.not_allowed_reported, true),
            Event::ToolFailed { tool, reason, .. } => {
                tool_failed(tool, reason);
                true
            }
            Event::ToolRenamed { .. }
            | Event::ToolLeftOut { .. }
            | Event::DescriptionCut { .. }
            | Event::PatternUnchecked { .. }
            | Event::SourceNote { .. } => {
                if let Some(line) = client::line(&event) {
                    hint(&line);
                }
                false
            }
            Event::Closed(_) => false, // the last line says it
            _ => true,
        };
        let ended = match &event {
            // One that goes on is reported under its id when it has ended.
            Event::Settled { call, outcome, .. } if !matches!(outcome, Err(code) if code.as_str() == "detached") => {
                Some(call.clone())
            }
            _ => None,
        };
        let known = Room { names: &self.names, assistant: &self.assistant };
        let plain = vocabulary::Event::from_core(event, &known);
        if let Some(call) = ended {
            self.names.remove(&call);
        }
        match plain.filter(|_| is_told) {
            Some(event) => self.event(event).await,
            None => Ok(()),
        }
    }

    /// Returns the `ready` event that follows the `tools_changed` of a client that offered no tools before.
    fn ready(&mut self, event: &Event) -> Option<LineEvent> {
        let Event::ToolsChanged { owner } = event else { return None };
        let tools = tool_names(&self.assistant.tools(), owner);
        if owner == self.assistant.identity() || tools.is_empty() {
            self.ready.remove(owner);
            return None;
        }
        let is_new = self.ready.insert(owner.clone());
        is_new.then(|| LineEvent::Ready { owner: owner.to_string(), tools })
    }

    /// Reports a recording that stopped, once: on stderr, and as the line that is returned.
    fn recording_stopped(&mut self, reason: &str) -> Option<LineEvent> {
        if let Some(record) = self.record {
            record.stopped(reason);
        }
        let is_new = !std::mem::replace(&mut self.recording_stop_reported, true);
        is_new.then(|| LineEvent::RecordingStopped { message: reason.to_owned() })
    }

    /// Writes an event that is heard.
    async fn event(&self, event: vocabulary::Event) -> Result<(), OutputClosed> {
        match self.hears(event.name()) {
            true => self.say(&Output::Event { event }.to_json()).await,
            false => Ok(()),
        }
    }

    fn hears(&self, event: &str) -> bool {
        self.heard.as_ref().is_none_or(|heard| heard.iter().any(|name| name == event))
    }

    /// Writes an event of the line protocol.
    async fn note(&self, event: LineEvent) -> Result<(), OutputClosed> {
        self.say(&Line::Event { event }.to_json()).await
    }

    async fn say(&self, line: &str) -> Result<(), OutputClosed> {
        self.out.send(text::json_text(line).into_owned()).await.map_err(|_| OutputClosed)
    }
}

/// What is known of an event.
struct Room<'a> {
    names: &'a HashMap<CallId, Id>,
    assistant: &'a Assistant,
}

impl Known for Room<'_> {
    fn id_of(&self, call: &CallId) -> Option<Id> {
        self.names.get(call).cloned()
    }

    fn offers(&self) -> Vec<Offer> {
        self.assistant.tools()
    }
}

fn in_use(id: Id) -> CommandError {
    let message = format!("the call {} is still open; choose another `id`", id.as_json());
    CommandError { id: Some(id), ..CommandError::new("id_in_use", message) }
}

/// Sends the progress of a call and then its result.
async fn follow(id: Id, mut call: toolbridge::Call, stop: CancellationToken, tell: mpsc::Sender<CallLine>) {
    let mut stopped = false;
    loop {
        let step = tokio::select! {
            biased;
            step = call.progress() => step,
            () = stop.cancelled(), if !stopped => {
                stopped = true;
                call.cancel();
                continue;
            }
        };
        let Some(step) = step else { break };
        // The receiver is gone when the conversation is over.
        let Some(of) = call.id().cloned() else { continue };
        let line = Output::progress(id.clone(), &of, step).to_json();
        let _ = tell.send(CallLine { line, ended: None }).await;
    }
    let line = Output::result(id.clone(), &call.await).to_json();
    let _ = tell.send(CallLine { line, ended: Some(id) }).await;
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value as Json, json};

    use super::*;
    use toolbridge::{
        BargeIn, Client, Outcome, Tool, ToolContext, ToolError, ToolName, ToolOptions, ToolSource, Value,
        memory::MemoryRoom,
    };

    /// A controlling program and its assistant in an in-memory room.
    struct Driver {
        input: mpsc::Sender<input::Line>,
        out: mpsc::Receiver<String>,
        number: u64,
        talk: tokio::task::JoinHandle<(Conversation<'static>, End)>,
    }

    impl Driver {
        async fn new(room: &MemoryRoom, waiting: usize) -> Self {
            async fn ours() -> Result<&'static str, ToolError> {
                Ok("ours")
            }
            let builder = Assistant::builder().client("phone").tool("ours", "Runs here", ours);
            let assistant = builder.join_over(room.assistant("brain")).await.unwrap();
            let (out, lines) = mpsc::channel(waiting);
            let (input, commands) = mpsc::channel(1);
            let mut conversation = Conversation::new(assistant, out);
            #[expect(clippy::disallowed_methods, reason = "a test may")]
            let talk = tokio::spawn(async move {
                let end = conversation.run("home", commands).await;
                (conversation, end)
            });
            Self { input, out: lines, number: 0, talk }
        }

        async fn write(&mut self, line: &Json) {
            self.text(Text::Plain(line.to_string())).await;
        }

        async fn text(&mut self, text: Text) {
            self.number += 1;
            self.input.send(input::Line { number: self.number, text }).await.unwrap();
        }

        /// Returns the next line that has these values.
        async fn until(&mut self, wanted: Json) -> Json {
            while let Some(line) = self.out.recv().await {
                let line: Json = serde_json::from_str(&line).unwrap();
                let wanted = wanted.as_object().unwrap();
                if wanted.iter().all(|(key, value)| line[key] == *value) {
                    return line;
                }
            }
            panic!("no {wanted}");
        }
    }

    async fn sleep(cx: ToolContext) -> Result<(), ToolError> {
        cx.cancelled().await;
        Err(ToolError::cancelled())
    }

    async fn odd() -> Result<Value, ToolError> {
        Ok(Value::from_json(r#"{"$map":[[1,{"$bin":"AAEC"}]]}"#)?)
    }

    async fn phone(room: &MemoryRoom) -> Client {
        let client = Client::builder().assistant("brain").tool("sleep", "", sleep).tool("odd", "", odd);
        client.join_over(room.client("phone")).await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn every_call_has_one_result_and_non_json_values_survive() {
        let room = MemoryRoom::new();
        let _phone = phone(&room).await;
        let mut driver = Driver::new(&room, 64).await;
        let hello = driver.until(json!({"type": "hello"})).await;
        assert_eq!((&hello["version"], &hello["room"]), (&json!(2), &json!("home")), "{hello}");
        driver.write(&json!({"type": "call", "id": "a", "tool": "odd"})).await;
        driver.write(&json!({"type": "call", "id": 2, "tool": "ours"})).await;
        driver.write(&json!({"type": "call", "id": 3, "tool": "no_such", "to": "phone"})).await;
        driver.write(&json!({"type": "call", "id": 4, "tool": "odd", "timeoutMs": 0})).await;
        driver.write(&json!({"type": "call", "id": 5, "tool": "odd", "arguments": [1]})).await;
        drop(driver.input);
        let mut results = BTreeMap::new();
        while let Some(line) = driver.out.recv().await {
            let line: Json = serde_json::from_str(&line).unwrap();
            if line["type"] == "result" {
                assert!(results.insert(line["id"].to_string(), line).is_none(), "two results");
            }
            if results.len() == 5 {
                break;
            }
        }
        let (conversation, end) = driver.talk.await.unwrap();
        assert!(matches!(end, End::InputFinished) && conversation.open.is_empty(), "{end:?}");
        assert_eq!(results["\"a\""]["value"].to_string(), r#"{"$map":[[1,{"$bin":"AAEC"}]]}"#);
        assert_eq!(results["2"]["value"], json!({"value": "ours"}));
        for (id, code) in [("3", "unknown_tool"), ("4", "invalid_parameters"), ("5", "invalid_parameters")] {
            let error = &results[id]["error"];
            assert!(error["code"] == code && error["mayHaveRun"] == false, "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn arguments_in_all_forms_are_read_in_one_way() {
        async fn echo(given: serde_json::Map<String, Json>) -> Result<Json, ToolError> {
            Ok(given.into())
        }
        let room = MemoryRoom::new();
        let client = Client::builder().assistant("brain").tool("echo", "", echo);
        let _phone = client.join_over(room.client("phone")).await.unwrap();
        let mut driver = Driver::new(&room, 64).await;
        for (written, meant) in [
            (json!(null), json!({})),
            (json!([]), json!({})),
            (json!(""), json!({})),
            (json!("{}"), json!({})),
            (json!("{\"on\":true}"), json!({"on": true})),
            (json!([1]), Json::Null),
            (json!("on"), Json::Null),
        ] {
            for model in [false, true] {
                driver
                    .write(&json!({"type": "call", "id": 1, "tool": "echo", "model": model, "arguments": written}))
                    .await;
                let result = driver.until(json!({"type": "result", "id": 1})).await;
                assert_eq!(result["value"], meant, "{written}: {result}");
                let code = &result["error"]["code"];
                assert_eq!(code == "invalid_parameters", meant.is_null(), "{written}: {result}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_offers_tools_is_ready_once_until_it_leaves() {
        let room = MemoryRoom::new();
        let mut driver = Driver::new(&room, 64).await;
        for _ in 0..2 {
            let phone = phone(&room).await;
            let ready = driver.until(json!({"event": "ready"})).await;
            assert_eq!(ready["owner"], "phone", "{ready}");
            assert!(ready["tools"].as_array().unwrap().contains(&json!("sleep")), "{ready}");
            phone.close().await;
            driver.until(json!({"event": "tools_changed", "owner": "phone", "tools": []})).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn invalid_command_has_an_error_code_of_its_own() {
        let room = MemoryRoom::new();
        let _phone = phone(&room).await;
        let mut driver = Driver::new(&room, 64).await;
        driver.write(&json!({"type": "call", "id": 1, "tool": "odd", "args": {}})).await;
        let result = driver.until(json!({"type": "result", "id": 1})).await;
        assert_eq!(result["error"]["code"], "bad_command", "{result}");
        let message = result["error"]["message"].as_str().unwrap();
        assert!(message.starts_with("args: is unknown here"), "{message}");
    }

    /// A program that wants few lines names the events that it reads.
    #[tokio::test(start_paused = true)]
    async fn events_that_nobody_listens_to_are_no_lines() {
        let room = MemoryRoom::new();
        let _phone = phone(&room).await;
        let mut driver = Driver::new(&room, 64).await;
        driver.until(json!({"event": "ready"})).await;
        driver.write(&json!({"type": "listen", "events": ["delivered"]})).await;
        driver.write(&json!({"type": "tools"})).await;
        driver.until(json!({"type": "tools"})).await;
        driver.write(&json!({"type": "call", "id": 1, "tool": "odd"})).await;
        let delivered = driver.until(json!({"type": "event"})).await;
        assert_eq!((&delivered["event"], &delivered["id"]), (&json!("delivered"), &json!(1)), "{delivered}");
        driver.until(json!({"type": "result", "id": 1})).await;
        driver.write(&json!({"type": "call", "id": 2, "tool": "sleep"})).await;
        driver.until(json!({"event": "delivered", "id": 2})).await;
        driver.write(&json!({"type": "cancel", "id": 2})).await;
        let next = driver.until(json!({"id": 2})).await;
        assert_eq!(next["type"], "result", "progress is not heard: {next}");
        driver.write(&json!({"type": "listen", "events": ["ready", "gone"]})).await;
        let error = driver.until(json!({"type": "error", "code": "bad_command"})).await;
        assert_eq!(error["message"], "events[1]: \"gone\" is no event", "{error}");
        driver.write(&json!({"type": "listen", "events": ["progress"]})).await;
        driver.write(&json!({"type": "call", "id": 3, "tool": "sleep"})).await;
        driver.until(json!({"type": "progress", "id": 3})).await;
    }

    #[tokio::test(start_paused = true)]
    async fn turn_that_has_ended_accepts_no_calls_and_its_calls_go_on() {
        let room = MemoryRoom::new();
        let _phone = phone(&room).await;
        let mut driver = Driver::new(&room, 64).await;
        driver.write(&json!({"type": "call", "id": 1, "tool": "sleep", "turn": "t"})).await;
        driver.until(json!({"type": "progress", "id": 1})).await;
        driver.write(&json!({"type": "turn_end", "turn": "t"})).await;
        driver.write(&json!({"type": "call", "id": 2, "tool": "odd", "turn": "t"})).await;
        let refused = driver.until(json!({"type": "result"})).await;
        assert!(refused["id"] == 2 && refused["error"]["kind"] == "turn_over", "{refused}");
        driver.write(&json!({"type": "barge_in", "turn": "t"})).await;
        let result = driver.until(json!({"type": "result", "id": 1})).await;
        assert_eq!(result["error"]["code"], "cancelled", "the barge-in ends what goes on: {result}");
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_call_frees_its_id() {
        let room = MemoryRoom::new();
        let _phone = phone(&room).await;
        let mut driver = Driver::new(&room, 64).await;
        for _ in 0..2 {
            driver.write(&json!({"type": "call", "id": 1, "tool": "sleep"})).await;
            driver.until(json!({"type": "progress", "id": 1})).await;
            driver.write(&json!({"type": "call", "id": 1, "tool": "sleep"})).await;
            driver.until(json!({"type": "error", "code": "id_in_use"})).await;
            driver.write(&json!({"type": "cancel", "id": 1})).await;
            let result = driver.until(json!({"type": "result"})).await;
            assert!(result["id"] == 1 && result["error"]["code"] == "cancelled", "{result}");
        }
        driver.write(&json!({"type": "cancel", "id": 1})).await; // it has ended: no effect
        let start = br#"{"type":"call","id":70,"arguments":{"a":"xx"#.to_vec();
        driver.text(Text::TooLong { size: MAX_LINE + 1, start: start.clone(), end: Vec::new() }).await;
        let result = driver.until(json!({"type": "result", "id": 70})).await;
        let error = json!({
            "kind": "too_large",
            "code": "too_large",
            "message": "the line has 25165825 bytes; the limit is 25165824",
            "mayHaveRun": false,
        });
        assert_eq!(result["error"], error, "{result}");
        driver.text(Text::NotUtf8([&start[..], b"\xff"].concat())).await;
        let result = driver.until(json!({"type": "result", "id": 70})).await;
        assert_eq!(result["error"]["message"], "the line is not UTF-8", "{result}");
        driver.text(Text::TooLong { size: MAX_LINE + 1, start: b"{".to_vec(), end: Vec::new() }).await;
        driver.text(Text::NotUtf8(b"\xff".to_vec())).await;
        let last = driver.number;
        let error = driver.until(json!({"type": "error"})).await;
        assert_eq!((&error["line"], &error["code"]), (&json!(last - 1), &json!("too_long")), "{error}");
        driver.until(json!({"type": "error", "line": last, "code": "not_utf8"})).await;
        driver.write(&json!({"type": "close"})).await;
        assert!(matches!(driver.talk.await.unwrap().1, End::InputFinished));
    }

    #[tokio::test(start_paused = true)]
    async fn barge_in_ends_a_turn_and_detached_calls_report_later() {
        async fn export(cx: ToolContext) -> Result<u32, ToolError> {
            tokio::time::sleep(cx.time_left() / 2).await;
            Ok(12)
        }
        let room = MemoryRoom::new();
        let reports = ToolOptions::default().barge_in(BargeIn::Report);
        let client = Client::builder().assistant("brain").tool("sleep", "", sleep);
        let client = client.tool("export", "", reports.on(export));
        let _phone = client.join_over(room.client("phone")).await.unwrap();
        let mut driver = Driver::new(&room, 64).await;
        for (id, tool, turn) in
            [(1, "sleep", json!("t")), (2, "export", json!("t")), (3, "sleep", json!(null))]
        {
            driver.write(&json!({"type": "call", "id": id, "tool": tool, "turn": turn})).await;
            driver.until(json!({"type": "progress", "id": id})).await;
        }
        driver.write(&json!({"type": "barge_in", "turn": "unknown"})).await;
        driver.write(&json!({"type": "barge_in", "turn": "t"})).await;
        let mut codes = BTreeMap::new();
        for _ in 0..2 {
            let result = driver.until(json!({"type": "result"})).await;
            codes.insert(result["id"].to_string(), result["error"]["code"].as_str().unwrap().to_owned());
        }
        assert_eq!((codes["1"].as_str(), codes["2"].as_str()), ("cancelled", "detached"));
        driver.write(&json!({"type": "call", "id": 4, "tool": "sleep", "turn": "t"})).await;
        let refused = driver.until(json!({"type": "result"})).await;
        assert!(refused["id"] == 4 && refused["error"]["kind"] == "turn_over", "{refused}");
        let late = driver.until(json!({"event": "late_result"})).await;
        assert_eq!((&late["id"], &late["value"]), (&json!(2), &json!({"value": 12})), "{late}");
        driver.write(&json!({"type": "cancel", "id": 3})).await; // the barge-in did not affect a call outside the turn
        driver.until(json!({"type": "result", "id": 3})).await;
    }

    #[tokio::test(start_paused = true)]
    async fn input_is_not_read_while_too_many_calls_are_open() {
        let room = MemoryRoom::new();
        let mut driver = Driver::new(&room, 4096).await;
        for id in 0..OPEN_CALLS + 1 {
            // No participant offers the tool, so each call waits for an owner.
            let line =
                json!({"type": "call", "id": id, "tool": "t", "timeoutMs": 60_000, "ownerWaitMs": 60_000});
            driver.write(&line).await;
        }
        // The last call waits in the channel, which holds one line, so the next line does not fit.
        let next = input::Line { number: 0, text: Text::Plain(String::new()) };
        let full = tokio::time::timeout(Duration::from_secs(50), driver.input.send(next)).await;
        assert!(full.is_err(), "it was read");
        for _ in 0..OPEN_CALLS {
            driver.until(json!({"type": "result"})).await;
        }
        // The last call is read then and has a result like the others.
        let last = driver.until(json!({"type": "result", "id": OPEN_CALLS})).await;
        assert_eq!(last["error"]["code"], "unknown_tool");
    }

    #[tokio::test(start_paused = true)]
    async fn closed_output_ends_the_conversation() {
        let room = MemoryRoom::new();
        let mut driver = Driver::new(&room, 1).await;
        driver.write(&json!({"type": "call", "id": 0, "tool": "ours"})).await;
        driver.until(json!({"type": "result", "id": 0})).await;
        drop(driver.out);
        let line = json!({"type": "tools"}).to_string();
        let _ = driver.input.send(input::Line { number: 9, text: Text::Plain(line) }).await;
        assert!(matches!(driver.talk.await.unwrap().1, End::OutputClosed));
    }

    #[tokio::test(start_paused = true)]
    async fn present_participants_and_tools_are_reported_once() {
        let room = MemoryRoom::new();
        let phone = phone(&room).await;
        let mut driver = Driver::new(&room, 64).await;
        driver.write(&json!({"type": "call", "id": 1, "tool": "odd"})).await;
        let mut joined = 0;
        while let Some(line) = driver.out.recv().await {
            let line: Json = serde_json::from_str(&line).unwrap();
            joined += usize::from(line["event"] == "joined" && line["participant"]["identity"] == "phone");
            if line["event"] == "tools_changed" && line["owner"] == "phone" {
                assert_eq!(line["tools"], json!(["sleep", "odd"]));
            }
            if line["type"] == "result" {
                break;
            }
        }
        assert_eq!(joined, 1);
        driver.write(&json!({"type": "tools"})).await;
        let tools = driver.until(json!({"type": "tools"})).await;
        let all: Vec<_> = tools["tools"].as_array().unwrap().iter().map(|it| &it["execution"]).collect();
        assert_eq!(all, ["server", "client", "client"], "{tools}");
        phone.close().await;
        driver.until(json!({"event": "tools_changed", "owner": "phone", "tools": []})).await;
        let left = driver.until(json!({"event": "left"})).await;
        assert_eq!(left["peer"]["identity"], "phone");
    }

    /// The tools that model APIs refuse, and one that no model can call. They return their arguments.
    struct Refused;

    impl ToolSource for Refused {
        fn list(&self) -> Vec<Tool> {
            let properties =
                json!({"größe": {"type": "number"}, "in": {"properties": {"$filter": {"type": "string"}}}});
            let tool = |name: &str| Tool::new(name.parse().unwrap(), "Does it");
            let object = |properties: Json| json!({"type": "object", "properties": properties});
            let mut find = object(json!({"id": {"type": "integer"}}));
            find["anyOf"] = json!([{"required": ["id"]}, {"required": ["name"]}]);
            vec![
                tool("no_arguments"),
                tool("3d_print").schema(object(json!({"file": {"type": "string"}}))),
                tool("find").schema(find),
                tool("measure").schema(object(properties)),
                tool("only_texts").schema(json!({"type": "string"})),
            ]
        }

        async fn execute(&self, _: &ToolName, arguments: Value, _: ToolContext) -> Outcome {
            Ok(arguments)
        }

        fn validates_arguments(&self) -> bool {
            true
        }
    }

    #[tokio::test(start_paused = true)]
    async fn tools_that_model_apis_refuse_are_listed_in_a_form_that_fits() {
        let room = MemoryRoom::new();
        let client = Client::builder().assistant("brain").tools(std::sync::Arc::new(Refused));
        let _phone = client.join_over(room.client("phone")).await.unwrap();
        let mut driver = Driver::new(&room, 64).await;
        driver.until(json!({"event": "ready"})).await;
        driver.write(&json!({"type": "model_tools"})).await;
        let listed = driver.until(json!({"type": "model_tools"})).await;
        let shown = |tool: &Json| json!([tool["name"], tool["tool"], tool["inputSchema"]["properties"]]);
        let tools: Vec<Json> = listed["tools"].as_array().unwrap().iter().map(shown).collect();
        let size = json!({"type": "number", "description": "The tool calls it \"größe\"."});
        let filter = json!({"type": "string", "description": "The tool calls it \"$filter\"."});
        let inner = json!({"type": "object", "properties": {"_filter": filter}});
        let expected = json!([
            ["_3d_print", "3d_print", {"file": {"type": "string"}}],
            ["find", "find", {"id": {"type": "integer"}}],
            ["measure", "measure", {"gr__e": size, "in": inner}],
            ["no_arguments", "no_arguments", {}],
            ["ours", "ours", {}],
        ]);
        assert_eq!(Json::from(tools), expected);
        assert_eq!(listed["tools"][0]["owners"], json!(["phone"]));
        assert_eq!(listed["leftOut"][0]["tool"], "only_texts", "{listed}");
        for (tool, model, given, own) in [
            (
                "measure",
                true,
                json!({"gr__e": 1, "in": {"_filter": "a"}}),
                json!({"größe": 1, "in": {"$filter": "a"}}),
            ),
            ("measure", false, json!({"gr__e": 1}), json!({"gr__e": 1})),
            ("_3d_print", true, json!({"file": "x"}), json!({"file": "x"})),
        ] {
            driver
                .write(&json!({"type": "call", "id": 1, "tool": tool, "model": model, "arguments": given}))
                .await;
            assert_eq!(driver.until(json!({"type": "result", "id": 1})).await["value"], own);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn interrupt_cancels_open_calls_and_reports_their_results() {
        let room = MemoryRoom::new();
        let _phone = phone(&room).await;
        let assistant =
            Assistant::builder().client("phone").join_over(room.assistant("brain")).await.unwrap();
        let (out, mut lines) = mpsc::channel(64);
        let (input, commands) = mpsc::channel(1);
        let mut conversation = Conversation::new(assistant.clone(), out);
        let line = json!({"type": "call", "id": 1, "tool": "sleep"}).to_string();
        input.send(input::Line { number: 1, text: Text::Plain(line) }).await.unwrap();
        let started = async { while !lines.recv().await.unwrap().contains("in_progress") {} };
        tokio::select! {
            _ = conversation.run("home", commands) => panic!("it ended by itself"),
            () = started => {}
        }
        conversation.cancel_all().await;
        let reason = assistant.close().await;
        conversation.finish(&reason).await;
        let mut rest = Vec::new();
        while let Some(line) = lines.recv().await {
            rest.push(line);
        }
        let (last, before) = rest.split_last().unwrap();
        assert!(before.iter().any(|line| line.contains(r#""code":"cancelled""#)), "{rest:?}");
        assert!(last.contains(r#""event":"closed","reason":{"kind":"closed""#), "{rest:?}");
    }
}
