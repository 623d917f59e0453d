//! Recordings for reports: an afternoon's session, a malicious one, and a long one.

use std::{path::Path, time::Duration};

use bytes::Bytes;
use serde_json::{Value, json};
use toolbridge::{
    Identity, Role,
    frame::Frame,
    recording::{
        Direction, Entry, Happened, Moment, Recorded, RecordedCall, RecordedOutcome, Recorder,
        RecorderOptions, RoomEvent, report,
    },
    tools::Execution,
    transport::{Lane, Peer},
};

/// 2026-03-14 15:09:26 UTC.
const BEGUN: u64 = 1_773_500_966_000_000_000;
const MS: u64 = 1_000_000;

const ROOM: &str = "kitchen";
const ASSISTANT: &str = "assistant";

/// The id of the call that the assistant reports for an agent.
pub(crate) const REPORTED: &str = "reported-1";

/// A text that would act as markup, script, terminal control and right-to-left override if it were not escaped.
pub(crate) const HOSTILE: &str =
    "</script><img src=x onerror=alert(1)>\u{202e}\u{1b}[31m\u{2028}&lt;<!--\u{200b}'\"`{{%DATA%}}";

/// Entries, and the calls that they form.
#[derive(Default)]
pub(crate) struct Sample {
    entries: Vec<(u64, Happened, Option<usize>)>,
    pub(crate) calls: Vec<RecordedCall>,
    stanza: i32,
}

/// One call, in milliseconds after its request.
struct Plan {
    at: u64,
    tool: &'static str,
    owner: &'static str,
    delivered: Option<u64>,
    started: Option<u64>,
    stopped: Option<u64>,
    settled: Option<u64>,
    ending: Ending,
}

enum Ending {
    Ok,
    Failed(&'static str, &'static str),
    Stopped,
    Open,
}

impl Sample {
    /// The page about it.
    pub(crate) fn page(mut self, title: &str) -> String {
        let entries = self.entries();
        report(entries, &self.calls, title)
    }

    /// The entries in the order of their times; the calls get their positions.
    pub(crate) fn entries(&mut self) -> Vec<Entry> {
        self.entries.sort_by_key(|(at, ..)| *at);
        let mut entries = Vec::new();
        for (place, (at, what, call)) in self.entries.drain(..).enumerate() {
            if let Some(call) = call {
                self.calls[call].entries.push(place);
            }
            entries.push(Entry::new(Moment(at), what));
        }
        entries
    }

    pub(crate) fn event(&mut self, ms: u64, event: RoomEvent) {
        self.entries.push((BEGUN + ms * MS, Happened::Event(event), None));
    }

    fn joined(&mut self, ms: u64, identity: &str, sid: &str, role: &str) {
        let role = Some(role.to_owned());
        self.event(
            ms,
            RoomEvent::Joined { identity: identity.into(), sid: sid.into(), agent: false, role, protocol: 0 },
        );
    }

    pub(crate) fn packet(&mut self, at: u64, from: &str, to: &[&str], payload: Bytes, call: Option<usize>) {
        let direction = if from == ASSISTANT { Direction::Sent } else { Direction::Heard };
        let size = payload.len();
        let packet = with!(
            Recorded::new(direction, Peer::new(from, format!("PA_{from}")), payload),
            to = to.iter().map(|to| Identity::from(*to)).collect(),
            lane = if size < 1200 { Lane::Lossy } else { Lane::Reliable },
            stream = size > 15_000,
            channel = 1
        );
        self.entries.push((at, Happened::Packet(packet), call));
    }

    fn frame(&mut self, at: u64, from: &str, to: &[&str], kind: u16, body: &Value, call: Option<usize>) {
        let meta = if kind == 6 {
            json!({"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"})
        } else {
            json!({})
        };
        self.frame_with(at, from, to, kind, &meta, body, call);
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a frame, each under its name")]
    fn frame_with(
        &mut self,
        at: u64,
        from: &str,
        to: &[&str],
        kind: u16,
        meta: &Value,
        body: &Value,
        call: Option<usize>,
    ) {
        self.stanza += 1;
        let stanza = if from == ASSISTANT { -self.stanza } else { self.stanza };
        let text =
            json!({"stanzaId": stanza, "conversationId": ROOM, "type": kind, "meta": meta, "body": body});
        let payload = Frame::from_json(&text.to_string()).unwrap().to_bytes();
        self.packet(at, from, to, payload, call);
    }

    fn call(&mut self, plan: &Plan) {
        let number = self.calls.len();
        let id = format!("V1StGXR8_Z5jdHi6B-m{number:02}");
        let at = BEGUN + plan.at * MS;
        let after = |ms: u64| at + ms * MS;
        let server = plan.owner == ASSISTANT;
        let (ends, to): (&str, &[&str]) = if server { (ASSISTANT, &[]) } else { (plan.owner, &[ASSISTANT]) };
        let parameters = parameters(plan.tool, number);
        let request = json!({
            "id": id, "toolName": plan.tool, "parameters": parameters, "timeoutMs": 8000, "conversationId": ROOM,
            "execution": if server { "server" } else { "client" },
        });
        let asked: &[&str] = if server { &[] } else { &[plan.owner] };
        self.frame(at, ASSISTANT, asked, 6, &request, Some(number));
        if let Some(ms) = plan.delivered {
            let body =
                json!({"acknowledgedStanzaId": -self.stanza, "acknowledgedMessageId": id, "success": true});
            self.frame(after(ms), plan.owner, &[ASSISTANT], 8, &body, Some(number));
        }
        if let Some(ms) = plan.started
            && !server
        {
            let body = json!({"id": id, "status": "in_progress", "message": "began"});
            self.frame(after(ms), plan.owner, &[ASSISTANT], 1000, &body, Some(number));
        }
        if let Some(ms) = plan.stopped {
            let body = json!({"targetId": id, "reason": "the user spoke", "stopType": "generation"});
            self.frame(after(ms), ASSISTANT, asked, 10, &body, Some(number));
        }
        let mut result = None;
        let outcome = match plan.ending {
            Ending::Ok => {
                let data = data(plan.tool, number);
                let body = json!({"id": id, "success": true, "result": data, "requestId": id});
                result = Some(data.to_string().len());
                self.frame(after(plan.settled.unwrap()), ends, to, 7, &body, Some(number));
                RecordedOutcome::Ok
            }
            Ending::Failed(code, message) => {
                if !matches!(code, "timeout" | "lost") {
                    let body = json!({
                        "id": id, "success": false, "errorCode": code, "errorMessage": message, "requestId": id,
                    });
                    self.frame(after(plan.settled.unwrap()), ends, to, 7, &body, Some(number));
                }
                RecordedOutcome::Failed { code: code.into(), message: Some(message.to_owned()) }
            }
            Ending::Stopped => RecordedOutcome::Stopped,
            Ending::Open => RecordedOutcome::Open,
        };
        let moment = |ms: Option<u64>| ms.map(|ms| Moment(after(ms)));
        let mut call = recorded(&id, plan.tool, plan.owner, at);
        call.parameters = Some(parameters.to_string().len());
        call.result = result;
        call.delivered = moment(plan.delivered);
        call.started = moment(plan.started);
        call.stopped = moment(plan.stopped);
        call.settled = moment(plan.settled);
        call.outcome = outcome;
        self.calls.push(call);
    }
}

/// A call of which only caller, owner, tool and time are known.
fn recorded(id: &str, tool: &str, owner: &str, at: u64) -> RecordedCall {
    let mut call = RecordedCall::new(id.parse().unwrap(), Identity::from(ASSISTANT));
    call.tool = tool.to_owned();
    call.execution = Some(if owner == ASSISTANT { Execution::Server } else { Execution::Client });
    call.owner = Some(owner.into());
    call.limit = Some(Duration::from_secs(8));
    call.requested = Some(Moment(at));
    call
}

fn parameters(tool: &str, number: usize) -> Value {
    match tool {
        "set_alarm" => {
            json!({"time": format!("{:02}:{:02}", 6 + number % 4, number * 7 % 60), "label": "Pasta"})
        }
        "find_contact" => json!({"name": "Ada"}),
        "send_message" => json!({"to": "Ada Lovelace", "text": "Dinner is at eight, bring Größenwahn 🍝"}),
        "export_album" => json!({"album": "Rome", "quality": 0.85, "since": 1_700_000_000_000_u64}),
        "search_web" => json!({"query": "carbonara without cream", "results": 5}),
        "show_recipe" => json!({"title": "Spaghetti alla carbonara", "servings": 4}),
        _ => json!({}),
    }
}

fn data(tool: &str, number: usize) -> Value {
    match tool {
        "get_battery" => json!({"level": 0.8, "charging": number.is_multiple_of(2)}),
        "find_contact" => json!({"name": "Ada Lovelace", "numbers": ["+44 20 7946 0018"], "starred": true}),
        "search_web" => {
            let hit = |n: usize| json!({"rank": n, "title": format!("Carbonara, {n}"), "score": 1.0 / (n + 1) as f64});
            json!({"results": (0..5).map(hit).collect::<Vec<_>>()})
        }
        "show_recipe" => recipe(),
        "edit_note" => edited_note(),
        "book_table" => table_form(),
        "take_photo" => {
            json!({"width": 4032, "height": 3024, "thumbnail": {"$bin": "iVBORw0KGgoAAAANSUhEUgAA"}})
        }
        _ => json!({"value": null}),
    }
}

/// Markdown and an image, with a text that is spoken.
fn recipe() -> Value {
    let text = "# Spaghetti alla carbonara\n\nFor **four**, in *20 minutes*. From [the archive](https://recipes.example/17).\n\n\
        - 400 g spaghetti\n- 150 g guanciale\n  - or pancetta\n\n> No cream.\n\n```sh\nset_timer --minutes 9\n```";
    json!({
        "bridge.result": 1,
        "text": "The recipe for carbonara is on your screen.",
        "content": [
            {"type": "text", "text": "The recipe for carbonara is on your screen.", "annotations": {"audience": ["user"]}},
            {"type": "text", "text": "Offer to set a timer.", "annotations": {"audience": ["assistant"]}},
            {"type": "image", "data": "iVBORw0KGgo".repeat(1_500), "mimeType": "image/png"},
        ],
        "display": [{"type": "markdown", "text": text}],
    })
}

/// Changes of two files, and the output of a terminal, with the document of the server that they come from.
fn edited_note() -> Value {
    let old = "Shopping\n\n- eggs\n- guanciale\n- cream\n- pepper\n";
    let new = "Shopping\n\n- eggs\n- guanciale\n- pecorino\n- pepper\n- wine\n";
    let native =
        json!({"content": [{"type": "text", "text": "2 lines changed"}], "structuredContent": {"lines": 2}});
    json!({
        "bridge.result": 1,
        "text": "2 lines changed",
        "content": [
            {"type": "text", "text": "2 lines changed"},
            {"type": "resource_link", "uri": "https://notes.example/shopping", "name": "Shopping list"},
        ],
        "display": [
            {"type": "diff", "path": "notes/shopping.md", "oldText": old, "newText": new},
            {"type": "terminal", "terminalId": "t1", "output": "1 note sorted", "exitCode": 0},
            {"type": "diff", "path": "notes/index.md", "patch": "@@ -1 +1 @@\n-5 entries\n+6 entries"},
        ],
        "native": {"system": "mcp", "json": native.to_string()},
    })
}

/// A form, whose title is spoken.
fn table_form() -> Value {
    let schema = json!({
        "type": "object", "required": ["guests", "time"],
        "properties": {
            "guests": {"type": "integer", "title": "Guests", "minimum": 1, "maximum": 12, "default": 2},
            "time": {"type": "string", "format": "time", "title": "Time"},
            "seat": {"type": "string", "title": "Where", "enum": ["inside", "terrace"], "description": "The terrace closes at ten."},
        },
    });
    json!({
        "bridge.result": 1,
        "text": "When and for how many?",
        "content": [],
        "widget": {"title": "When and for how many?", "value": {
            "json_schema": schema, "ui_schema": {"ui:submitButtonOptions": {"submitText": "Book"}},
        }},
    })
}

/// About three minutes with two phones and a tablet: every outcome, a rejoin, an outage.
pub(crate) fn afternoon() -> Sample {
    let mut sample = Sample::default();
    let here = RoomEvent::Here { identity: ASSISTANT.into(), sid: "PA_9fK2".into(), room: ROOM.to_owned() };
    sample.event(0, here);
    sample.joined(420, "ada-phone", "PA_ada1", "client");
    sample.joined(1_900, "ben-phone", "PA_ben1", "client");
    sample.joined(21_000, "dashboard", "PA_obs1", "observer");
    for (ms, identity) in [(450, "ada-phone"), (1_930, "ben-phone"), (96_300, "ada-phone")] {
        let at = BEGUN + ms * MS;
        let body = json!({"conversationId": ROOM, "clientVersion": "toolbridge/0.1.0", "features": ["tool_use", "tool_ack"]});
        sample.frame(at, identity, &[ASSISTANT], 12, &body, None);
        sample.frame(at + 8 * MS, ASSISTANT, &[identity], 12, &body, None);
    }
    sample.event(92_000, RoomEvent::Left { identity: "ada-phone".into(), sid: "PA_ada1".into() });
    sample.joined(96_200, "ada-phone", "PA_ada2", "client");
    sample.event(131_000, RoomEvent::Link { up: false });
    sample.event(136_500, RoomEvent::Link { up: true });
    sample.event(171_800, RoomEvent::Left { identity: "ben-phone".into(), sid: "PA_ben1".into() });
    let tools = ["get_battery", "set_alarm", "find_contact", "show_recipe", "take_photo", "play_music"];
    // Every six seconds, a turn of the model calls one to four tools at once.
    let (mut seed, mut calls) = (7_u64, 0);
    let mut draw = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for turn in 0..25_u64 {
        let start = 3_000 + turn * 6_400 + draw(900);
        if (92_000..97_000).contains(&start) || (130_000..137_000).contains(&start) {
            continue;
        }
        for _ in 0..=draw(4).min(2) {
            let owner = match draw(5) {
                0 | 1 => "ada-phone",
                2 | 3 => "ben-phone",
                _ => ASSISTANT,
            };
            let tool = if owner == ASSISTANT { "search_web" } else { tools[draw(6) as usize] };
            let (delivered, took) = (18 + draw(40), 60 + draw(600) + 1_700 * u64::from(draw(4) == 0));
            let settled = Some(delivered + took);
            let ending = match draw(9) {
                0 if owner != ASSISTANT => Ending::Failed("execution_error", "the lamp is broken"),
                1 if tool == "find_contact" => Ending::Failed("no_such_contact", "nobody of that name"),
                _ => Ending::Ok,
            };
            let delivered = (owner != ASSISTANT).then_some(delivered);
            let started = delivered.map(|ms| ms + 9 + draw(30));
            let at = start + draw(700);
            sample.call(&Plan { at, tool, owner, delivered, started, stopped: None, settled, ending });
            calls += 1;
        }
    }
    assert!((35..60).contains(&calls), "{calls}");
    let plan = |at, tool, owner, times: [Option<u64>; 4], ending| {
        let [delivered, started, stopped, settled] = times;
        Plan { at, tool, owner, delivered, started, stopped, settled, ending }
    };
    let late = "no result within 8000 ms";
    for plan in [
        plan(14_000, "export_album", "ada-phone", [Some(31), Some(60), None, Some(21_400)], Ending::Ok),
        plan(
            30_500,
            "play_music",
            "ben-phone",
            [Some(25), Some(300), Some(8_000), Some(8_000)],
            Ending::Failed("timeout", late),
        ),
        plan(
            52_000,
            "export_album",
            "ada-phone",
            [Some(28), Some(55), Some(9_100), Some(9_160)],
            Ending::Failed("cancelled", "the user spoke"),
        ),
        plan(
            66_400,
            "erase_album",
            "ben-phone",
            [Some(33), None, None, Some(6_900)],
            Ending::Failed("permission_denied", "the user said no"),
        ),
        plan(
            70_000,
            "export_albun",
            "ada-phone",
            [Some(22), None, None, Some(24)],
            Ending::Failed("unknown_tool", "there is no export_albun"),
        ),
        plan(
            88_000,
            "export_album",
            "ada-phone",
            [Some(29), Some(61), None, Some(9_000)],
            Ending::Failed("lost", "ada-phone left and did not come back in time"),
        ),
        plan(
            104_000,
            "set_alarm",
            "ada-phone",
            [Some(26), None, None, Some(31)],
            Ending::Failed("invalid_parameters", "/time: \"soon\" is not a time"),
        ),
        plan(128_000, "take_photo", "ben-phone", [None, None, Some(8_000), None], Ending::Stopped),
        plan(150_000, "export_album", "ada-phone", [Some(27), Some(70), None, Some(15_300)], Ending::Ok),
        plan(140_000, "edit_note", "ada-phone", [Some(24), Some(52), None, Some(160)], Ending::Ok),
        plan(145_000, "book_table", "ada-phone", [Some(24), Some(52), None, Some(140)], Ending::Ok),
        plan(168_500, "play_music", "ben-phone", [Some(30), Some(44), None, None], Ending::Open),
    ] {
        sample.call(&plan);
    }
    plan_of_an_agent(&mut sample);
    edit_of_an_agent(&mut sample);
    sample.event(174_000, RoomEvent::Closed { reason: "left".to_owned() });
    sample
}

/// The plan of an agent, as the assistant shows it: two states, the second one also to a client that joins later. Then the
/// state of an oven.
fn plan_of_an_agent(sample: &mut Sample) {
    let step =
        |content: &str, status: &str| json!({"content": content, "status": status, "priority": "medium"});
    let plan = |second: &str, text: &str| {
        let entries = [step("Find the recipe", "completed"), step("Write it down", second)];
        json!({"view": "coder/plan", "content": {"entries": entries}, "text": text})
    };
    let begun = plan("in_progress", "✓ Find the recipe\n→ Write it down");
    let done = plan("completed", "✓ Find the recipe\n✓ Write it down");
    let oven = json!({"view": "oven", "content": {"celsius": 180}, "text": "The oven has 180 °C."});
    for (ms, state) in [(60_000, &begun), (80_000, &done), (96_400, &done), (97_000, &oven)] {
        sample.frame(BEGUN + ms * MS, ASSISTANT, &["ada-phone"], 1001, state, None);
    }
}

/// A call that the assistant reports for an agent: its metadata say what it does, and its progress names a further file.
fn edit_of_an_agent(sample: &mut Sample) {
    let (number, id, at) = (sample.calls.len(), REPORTED, BEGUN + 62_000 * MS);
    let request = json!({"id": id, "toolName": "Edit_recipe", "parameters": {}, "execution": "server"});
    let meta = json!({
        "bridge.acp.kind": "edit", "bridge.acp.title": "Edit the recipe",
        "bridge.acp.locations": json!([{"path": "/srv/recipe.md", "line": 3}]).to_string(),
    });
    let places = json!([{"path": "/srv/recipe.md", "line": 3}, {"path": "/srv/index.md"}]);
    let progress = json!({"id": id, "status": "in_progress", "content": {"locations": places}});
    let result = json!({"id": id, "success": true, "result": {}, "requestId": id});
    sample.frame_with(at, ASSISTANT, &[], 6, &meta, &request, Some(number));
    sample.frame(at + 40 * MS, ASSISTANT, &[], 1000, &progress, Some(number));
    sample.frame(at + 90 * MS, ASSISTANT, &[], 7, &result, Some(number));
    let mut call = recorded(id, "Edit_recipe", ASSISTANT, at);
    call.settled = Some(Moment(at + 90 * MS));
    call.outcome = RecordedOutcome::Ok;
    sample.calls.push(call);
}

/// Every text that a stranger can choose is [`HOSTILE`], and one packet is not a frame.
pub(crate) fn hostile() -> Sample {
    let mut sample = Sample::default();
    let text = || HOSTILE.to_owned();
    sample.event(0, RoomEvent::Here { identity: ASSISTANT.into(), sid: HOSTILE.into(), room: text() });
    sample.joined(10, HOSTILE, HOSTILE, HOSTILE);
    sample.event(20, RoomEvent::Unsent { channel: 1, sequence: 0, reason: text() });
    sample.event(30, RoomEvent::Closed { reason: text() });
    let body = json!({"id": HOSTILE, "toolName": HOSTILE, "parameters": {HOSTILE: [HOSTILE]}, "execution": "client"});
    let text_of = json!({"stanzaId": -1, "conversationId": HOSTILE, "type": 6, "meta": {HOSTILE: HOSTILE}, "body": body});
    let payload = Frame::from_json(&text_of.to_string()).unwrap().to_bytes();
    sample.packet(BEGUN, HOSTILE, &[HOSTILE], payload, Some(0));
    sample.packet(BEGUN + MS, HOSTILE, &[ASSISTANT], HOSTILE.as_bytes().to_vec().into(), Some(0));
    sample.packet(BEGUN + 2 * MS, HOSTILE, &[ASSISTANT], hostile_result(), Some(0));
    sample.packet(BEGUN + 3 * MS, HOSTILE, &[ASSISTANT], hostile_view(), Some(0));
    let mut call = recorded(HOSTILE, HOSTILE, HOSTILE, BEGUN);
    call.caller = Some(HOSTILE.into());
    call.settled = Some(Moment(BEGUN + 5 * MS));
    call.outcome = RecordedOutcome::Failed { code: HOSTILE.into(), message: Some(text()) };
    sample.calls.push(call);
    sample
}

/// A result with each kind of part.
fn hostile_result() -> Bytes {
    let link = format!("[{HOSTILE}](https://{HOSTILE}) [b](javascript:alert(1)) <https://a.b/c>");
    let display = json!({"type": "markdown", "title": HOSTILE, "text": format!("# {HOSTILE}\n{link}")});
    let result = json!({
        "bridge.result": 1,
        "content": [
            {"type": "text", "text": HOSTILE, "annotations": {"audience": ["user"]}},
            {"type": "image", "data": "AAAA", "mimeType": HOSTILE},
            {"type": "resource_link", "uri": HOSTILE, "name": HOSTILE},
            {"type": "resource", "resource": {"uri": HOSTILE, "mimeType": HOSTILE, "text": HOSTILE}},
        ],
        "display": [display],
        "widget": {"title": HOSTILE, "value": {"json_schema": {"properties": {HOSTILE: {"enum": [HOSTILE]}}}}},
        "native": {"system": HOSTILE, "json": json!({HOSTILE: HOSTILE}).to_string()},
    });
    let body = json!({"id": HOSTILE, "success": true, "result": result});
    let text = json!({"stanzaId": 1, "conversationId": HOSTILE, "type": 7, "meta": {}, "body": body});
    Frame::from_json(&text.to_string()).unwrap().to_bytes()
}

/// A plan.
fn hostile_view() -> Bytes {
    let steps = [json!({"content": HOSTILE, "status": "in_progress", "priority": HOSTILE})];
    let body = json!({"view": HOSTILE, "content": {"entries": steps}, "text": HOSTILE});
    let text = json!({"stanzaId": 2, "conversationId": HOSTILE, "type": 1001, "meta": {}, "body": body});
    Frame::from_json(&text.to_string()).unwrap().to_bytes()
}

/// This many calls of 40 tools over an hour, each with its request and its result.
pub(crate) fn long(calls: usize) -> Sample {
    let mut sample = Sample::default();
    for number in 0..calls {
        let at = BEGUN + number as u64 * 3_600_000 * MS / calls as u64;
        let settled = at + (20 + number as u64 % 977) * MS;
        let (id, owner) = (format!("call-{number}"), ["ada-phone", "ben-phone", ASSISTANT][number % 3]);
        let tool = format!("tool_{}", number % 40);
        let request = json!({"id": id, "toolName": tool, "parameters": {"n": number}, "execution": "client"});
        let result = json!({"id": id, "requestId": id, "success": true, "result": {"text": "x".repeat(300)}});
        sample.frame(at, ASSISTANT, &[owner], 6, &request, Some(number));
        sample.frame(settled, owner, &[ASSISTANT], 7, &result, Some(number));
        let mut call = recorded(&id, &tool, owner, at);
        call.settled = Some(Moment(settled));
        call.outcome = match number % 50 {
            0 => RecordedOutcome::Failed { code: "timeout".into(), message: None },
            _ => RecordedOutcome::Ok,
        };
        sample.calls.push(call);
    }
    sample
}

/// Writes a finished recording of these entries.
pub(crate) fn write_recording(path: &Path, entries: Vec<Entry>) {
    let recorder = Recorder::create(path, RecorderOptions::default().role(Role::Assistant)).unwrap();
    for entry in entries {
        recorder.record(entry);
    }
    recorder.finish().unwrap();
}
