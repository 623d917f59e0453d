//! An assistant as the agent of an editor: raw messages over in-memory pipes.

use std::{
    future::{IntoFuture as _, poll_fn},
    task::Poll,
    time::Duration,
};

use agent_client_protocol_schema::v1::{
    CreateElicitationRequest, InitializeResponse, NewSessionResponse, PromptResponse,
    RequestPermissionRequest, SessionNotification,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value as Json, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf},
    task::JoinHandle,
};
use toolbridge::{
    Assistant, Client, Consent, ErrorCode, Progress, ToolContext, ToolError, ToolOptions, ToolResult, Value,
    adapter::acp::{self, AcpServeError, AgentTurn, TurnEnd, UserPrompt},
    memory::MemoryRoom,
    prompt::{ChoicePrompt, FormPrompt, PermissionPrompt, PromptedCall},
    result::{Display, DisplayContent},
};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Said {
    text: String,
}

async fn echo(said: Said) -> Result<String, ToolError> {
    Ok(said.text)
}

async fn steps(context: ToolContext) -> Result<ToolResult, ToolError> {
    context.progress(
        Progress::from("half done").content(json!({"locations": [{"path": "a.rs", "line": 7}]}).into()),
    );
    let terminal =
        DisplayContent::Terminal { id: "t".into(), output: Some("ok\n".into()), exit_code: Some(0) };
    Ok(ToolResult::text("done").with_display(Display::new(terminal)).with_structured(json!({"n": 1})))
}

async fn hang(context: ToolContext) -> Result<(), ToolError> {
    context.cancelled().await;
    Err(ToolError::cancelled())
}

async fn fail() -> Result<(), ToolError> {
    Err(ToolError::new(ErrorCode::from("out_of_range"), "the watch is out of range"))
}

/// A tool of the assistant that asks.
async fn order(context: ToolContext) -> Result<String, ToolError> {
    let ask = ChoicePrompt::new("Which size?", ["small", "large"]);
    let answer = context.ask(ask.clone()).await?;
    Ok(format!("{:?}", ask.chosen(&answer)))
}

/// The author's loop of these tests: a JSON array of steps.
async fn script(prompt: UserPrompt, turn: AgentTurn) -> Result<TurnEnd, ToolError> {
    let text = prompt.text();
    let steps: Vec<Json> = serde_json::from_str(&text).unwrap_or_else(|_| vec![json!(["say", text])]);
    for step in steps {
        let word = |n: usize| step[n].as_str().unwrap_or_default().to_owned();
        match word(0).as_str() {
            "say" => turn.say(word(1)).await,
            "think" => turn.think(word(1)).await,
            "call" => {
                let arguments: Value = (&step[2]).into();
                let called =
                    if arguments.is_nil() { turn.call(&word(1), ()) } else { turn.call(&word(1), arguments) };
                let said = match called.location("src/main.rs", 3).await {
                    Ok(_) => "called".to_owned(),
                    Err(error) => error.code().to_string(),
                };
                turn.say(said).await;
            }
            "drop" => {
                let mut call = turn.call("hang", ()).into_future();
                // It begins at its first poll.
                poll_fn(|context| Poll::Ready(_ = call.as_mut().poll(context))).await;
            }
            "permit" => {
                let ask = PermissionPrompt::new(PromptedCall::new("erase").title("Erase all?"))
                    .option("yes", "Yes", "allow_once")
                    .option("odd", "Odd", "hologram");
                let answer = turn.ask(ask.clone()).await?;
                turn.say(format!("{:?}", ask.chosen(&answer).map(|it| it.option_id.clone()))).await;
            }
            "form" => {
                let schema = json!({"properties": {"name": {"type": "string"}}});
                let answer = turn.ask(FormPrompt::new(schema.into()).text("Who are you?")).await;
                let said = match answer {
                    Ok(answer) => {
                        format!("{:?} {:?}", answer.outcome, answer.data.map(|it| it.to_json().to_string()))
                    }
                    Err(error) => error.message().to_owned(),
                };
                turn.say(said).await;
            }
            "sign-in" => {
                let said = match turn
                    .ask(toolbridge::prompt::AuthorizePrompt::new("https://example.com/in?key=hunter2"))
                    .await
                {
                    Ok(answer) => format!("{:?}", answer.outcome),
                    Err(error) => error.message().to_owned(),
                };
                turn.say(said).await;
            }
            "deaf" => std::future::pending().await,
            "panic" => panic!("planted hunter2"),
            "refuse" => return Ok(TurnEnd::Refusal),
            "error" => return Err("the model cannot be reached".into()),
            other => panic!("unknown step {other}"),
        }
    }
    Ok(TurnEnd::EndTurn)
}

/// An editor at the other end of the pipe. It checks each message with the types of the protocol's crate.
struct Editor {
    room: MemoryRoom,
    _phone: Client,
    agent: JoinHandle<Result<(), AcpServeError>>,
    input: WriteHalf<DuplexStream>,
    output: Lines<BufReader<ReadHalf<DuplexStream>>>,
    session: String,
    id: u64,
}

impl Editor {
    async fn new() -> Self {
        Self::with(64 << 10, json!({"elicitation": {"form": {}, "url": {}}})).await
    }

    async fn with(pipe: usize, abilities: Json) -> Self {
        let mut editor = Self::closed(pipe).await;
        let params = json!({"protocolVersion": 1, "clientCapabilities": abilities});
        let answer = editor.ask("initialize", params).await["result"].take();
        assert_eq!(answer["protocolVersion"], 1);
        checked::<InitializeResponse>(&answer);
        editor.session = editor.open_session().await;
        editor
    }

    /// An editor that has not sent `initialize`.
    async fn closed(pipe: usize) -> Self {
        let room = MemoryRoom::new();
        let read = ToolOptions::default().read_only();
        let phone = Client::builder()
            .tool("echo", "Says it again", read.on(echo))
            .tool("steps", "", steps)
            .tool("hang", "", hang)
            .tool("fail", "", fail)
            .join_over(room.client("phone"))
            .await
            .unwrap();
        let person = acp::Editor::new();
        let erase = ToolOptions::default().consent(Consent::Always);
        let assistant = Assistant::builder()
            .tool("erase", "Erases all", erase.on(fail))
            .tool("order", "", order)
            .consent(person.consent())
            .prompt(person.prompt())
            .join_over(room.assistant("a"))
            .await
            .unwrap();
        assistant.ready("phone").await.unwrap();
        let (ours, theirs) = tokio::io::duplex(pipe);
        let (output, input) = tokio::io::split(ours);
        let (read, write) = tokio::io::split(theirs);
        let agent = tokio::spawn(acp::agent(assistant, script).editor(person).over(read, write));
        let output = BufReader::new(output).lines();
        Self { room, _phone: phone, agent, input, output, session: String::new(), id: 0 }
    }

    async fn open_session(&mut self) -> String {
        let params = json!({"cwd": "/home/ada", "mcpServers": []});
        let answer = self.ask("session/new", params).await["result"].take();
        checked::<NewSessionResponse>(&answer);
        answer["sessionId"].as_str().unwrap().to_owned()
    }

    async fn line(&mut self, line: &str) {
        self.input.write_all(line.as_bytes()).await.unwrap();
        self.input.write_all(b"\n").await.unwrap();
    }

    async fn send(&mut self, message: Json) {
        self.line(&message.to_string()).await;
    }

    /// Returns the next message.
    async fn next(&mut self) -> Json {
        let line = self.output.next_line().await.unwrap().expect("the agent has closed its output");
        let message: Json = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        assert_eq!(message["jsonrpc"], "2.0");
        match message["method"].as_str() {
            Some("session/update") => checked::<SessionNotification>(&message["params"]),
            Some("session/request_permission") => checked::<RequestPermissionRequest>(&message["params"]),
            Some("elicitation/create") => checked::<CreateElicitationRequest>(&message["params"]),
            Some("$/cancel_request") | None => {}
            Some(other) => panic!("unknown method {other}"),
        }
        message
    }

    /// Returns the next update.
    async fn update(&mut self) -> Json {
        let mut message = self.next().await;
        assert_eq!(message["method"], "session/update", "{message}");
        message["params"]["update"].take()
    }

    async fn said(&mut self) -> String {
        let update = self.update().await;
        assert_eq!(update["sessionUpdate"], "agent_message_chunk", "{update}");
        update["content"]["text"].as_str().unwrap().to_owned()
    }

    /// Sends a request, and returns its answer, which is the next message.
    async fn ask(&mut self, method: &str, params: Json) -> Json {
        self.id += 1;
        let id = self.id;
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await;
        let answer = self.next().await;
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    /// Begins a turn.
    async fn prompt(&mut self, steps: Json) {
        self.id += 1;
        let prompt = json!([{"type": "text", "text": steps.to_string()}]);
        let params = json!({"sessionId": self.session, "prompt": prompt});
        self.send(json!({"jsonrpc": "2.0", "id": self.id, "method": "session/prompt", "params": params}))
            .await;
    }

    /// Returns the answer to the prompt, which is the next message.
    async fn stopped(&mut self) -> Json {
        let answer = self.next().await;
        assert_eq!(answer["id"], self.id, "{answer}");
        if let Some(result) = answer.get("result") {
            checked::<PromptResponse>(result);
        }
        answer
    }

    async fn reason(&mut self) -> String {
        let answer = self.stopped().await;
        answer["result"]["stopReason"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    async fn cancel(&mut self) {
        let params = json!({"sessionId": self.session});
        self.send(json!({"jsonrpc": "2.0", "method": "session/cancel", "params": params})).await;
    }

    /// Answers a question.
    async fn answer(&mut self, question: &Json, result: Json) {
        self.send(json!({"jsonrpc": "2.0", "id": question["id"], "result": result})).await;
    }
}

/// Checks that the protocol's type has each member of a message.
fn checked<T: DeserializeOwned + Serialize>(message: &Json) {
    let typed: T =
        serde_json::from_value(message.clone()).unwrap_or_else(|error| panic!("{error}: {message}"));
    let typed = serde_json::to_value(typed).unwrap();
    assert!(is_in(message, &typed), "{message}\n{typed}");
}

fn is_in(part: &Json, whole: &Json) -> bool {
    match (part, whole) {
        (Json::Null, _) => true,
        (Json::Object(part), Json::Object(whole)) => part.iter().all(|(key, value)| {
            // What equals the default is left out.
            whole.get(key).map_or_else(|| is_default(value), |it| is_in(value, it))
        }),
        (Json::Array(part), Json::Array(whole)) => {
            part.len() == whole.len() && part.iter().zip(whole).all(|(part, whole)| is_in(part, whole))
        }
        _ => part == whole,
    }
}

fn is_default(value: &Json) -> bool {
    [json!(null), json!([]), json!("other"), json!("pending"), json!(false)].contains(value)
}

#[tokio::test]
async fn acp_c1_call_is_reported_once_with_a_title_and_updates_follow() {
    let mut editor = Editor::new().await;
    editor.prompt(json!([["call", "steps"], ["call", "echo", {"text": "hi"}]])).await;
    let begun = editor.update().await;
    assert_eq!(begun["sessionUpdate"], "tool_call", "{begun}");
    assert_eq!(
        (&begun["title"], &begun["kind"], &begun["status"]),
        (&json!("steps"), &json!("other"), &json!("pending"))
    );
    assert_eq!(begun["locations"], json!([{"path": "/home/ada/src/main.rs", "line": 3}]));
    let id = begun["toolCallId"].clone();
    let mut states = Vec::new();
    loop {
        let update = editor.update().await;
        assert_eq!((&update["sessionUpdate"], &update["toolCallId"]), (&json!("tool_call_update"), &id));
        let state = update["status"].as_str().unwrap().to_owned();
        states.push(state.clone());
        if update["content"].to_string().contains("half done") {
            assert_eq!(update["locations"], json!([{"path": "/home/ada/a.rs", "line": 7}]));
        }
        if state == "completed" {
            assert_eq!(update["rawOutput"], json!({"n": 1}));
            let text = update["content"][0]["content"]["text"].as_str().unwrap();
            assert_eq!(text, "```\nok\n```\nexit code 0");
            break;
        }
    }
    // acp_c7: pending, then in progress, then the end.
    assert!(
        states[..states.len() - 1].iter().all(|it| it == "in_progress") && states.len() > 1,
        "{states:?}"
    );
    assert_eq!(editor.said().await, "called");
    let second = editor.update().await;
    assert_ne!(second["toolCallId"], id);
    // acp_c2, acp_c4: its kind, and its input as it is.
    assert_eq!((&second["kind"], &second["rawInput"]), (&json!("read"), &json!({"text": "hi"})));
    while editor.update().await["status"] != "completed" {}
    assert_eq!(editor.said().await, "called");
    assert_eq!(editor.reason().await, "end_turn");
}

#[tokio::test]
async fn acp_c7_failed_call_has_its_code_and_nothing_follows_it() {
    let mut editor = Editor::new().await;
    editor.prompt(json!([["call", "fail"], ["call", "no_such_tool"]])).await;
    for code in ["out_of_range", "unknown_tool"] {
        let id = editor.update().await["toolCallId"].clone();
        let failed = loop {
            let update = editor.update().await;
            assert_eq!(update["toolCallId"], id);
            if update["status"] == "failed" {
                break update;
            }
        };
        assert_eq!(failed["_meta"]["dev.toolbridge/errorCode"], code, "{failed}");
        assert_eq!(editor.said().await, code);
    }
    assert_eq!(editor.reason().await, "end_turn");
}

#[tokio::test]
async fn acp_c7_call_that_its_loop_gives_up_has_an_end() {
    let mut editor = Editor::new().await;
    editor.prompt(json!([["drop"], ["say", "after"]])).await;
    let id = editor.update().await["toolCallId"].clone();
    let mut end = Json::Null;
    loop {
        let message = editor.next().await;
        if message["id"] == editor.id {
            break;
        }
        let update = &message["params"]["update"];
        if update["toolCallId"] == id {
            assert_ne!(end, "failed");
            end = update["status"].clone();
        }
    }
    assert_eq!(end, "failed");
}

#[tokio::test]
async fn acp_c8_only_an_option_that_was_offered_and_allows_is_a_yes() {
    let mut editor = Editor::new().await;
    for (answer, is_yes) in [
        (json!({"outcome": {"outcome": "selected", "optionId": "allow"}}), true),
        (json!({"outcome": {"outcome": "selected", "optionId": "reject"}}), false),
        (json!({"outcome": {"outcome": "selected", "optionId": "Allow"}}), false),
        (json!({"outcome": {"outcome": "selected"}}), false),
        (json!({"outcome": {"outcome": "approved", "optionId": "allow"}}), false),
        (json!({"outcome": {"outcome": "cancelled"}}), false),
        (json!({"optionId": "allow"}), false),
        (json!(null), false),
    ] {
        editor.prompt(json!([["call", "erase", {"album": "Rome"}]])).await;
        let call = editor.update().await;
        let question = editor.next().await;
        assert_eq!(question["method"], "session/request_permission", "{question}");
        let about = &question["params"]["toolCall"];
        assert_eq!(
            (&about["toolCallId"], &about["rawInput"]),
            (&call["toolCallId"], &json!({"album": "Rome"}))
        );
        let kinds: Vec<_> =
            question["params"]["options"].as_array().unwrap().iter().map(|it| &it["kind"]).collect();
        assert_eq!(kinds, ["allow_once", "reject_once"]);
        editor.answer(&question, answer.clone()).await;
        while editor.update().await["status"] != "failed" {}
        let code = editor.said().await;
        assert_eq!(code == "out_of_range", is_yes, "{answer}: {code}"); // the tool's own code: it has run
        assert_eq!(editor.reason().await, "end_turn");
    }
}

#[tokio::test]
async fn acp_c8_answer_to_another_question_is_no_answer() {
    let mut editor = Editor::new().await;
    editor.prompt(json!([["permit"]])).await;
    let question = editor.next().await;
    // An option of a kind that is not known allows nothing.
    assert_eq!(question["params"]["options"][1]["kind"], "reject_once");
    let yes = json!({"outcome": {"outcome": "selected", "optionId": "yes"}});
    for id in [json!(999), json!("1"), json!(-1)] {
        editor.send(json!({"jsonrpc": "2.0", "id": id, "result": yes})).await;
    }
    editor.answer(&question, json!({"outcome": {"outcome": "selected", "optionId": "odd"}})).await;
    assert_eq!(editor.said().await, r#"Some("odd")"#);
    assert_eq!(editor.reason().await, "end_turn");
    // An error is not a yes either.
    editor.prompt(json!([["permit"]])).await;
    let question = editor.next().await;
    editor
        .send(json!({"jsonrpc": "2.0", "id": question["id"], "error": {"code": -32601, "message": "no"}}))
        .await;
    assert!(editor.stopped().await["error"]["message"].as_str().unwrap().contains("refuses"));
}

#[tokio::test]
async fn acp_c10_cancelled_turn_ends_its_question_and_a_late_yes_has_no_effect() {
    let mut editor = Editor::new().await;
    editor.prompt(json!([["call", "erase", {}]])).await;
    let call = editor.update().await;
    let question = editor.next().await;
    editor.cancel().await;
    let mut end = Json::Null;
    loop {
        let message = editor.next().await;
        if message["id"] == editor.id {
            assert_eq!(message["result"]["stopReason"], "cancelled", "{message}");
            break;
        }
        let update = &message["params"]["update"];
        if update["toolCallId"] == call["toolCallId"] {
            end = update["_meta"]["dev.toolbridge/errorCode"].clone();
        }
    }
    assert_eq!(end, "cancelled");
    editor.answer(&question, json!({"outcome": {"outcome": "selected", "optionId": "allow"}})).await;
    editor.prompt(json!([["say", "next"]])).await;
    assert_eq!(editor.said().await, "next");
    assert_eq!(editor.reason().await, "end_turn");
}

#[tokio::test(start_paused = true)]
async fn acp_c11_person_who_does_not_answer_allows_nothing() {
    let mut editor = Editor::new().await;
    editor.prompt(json!([["call", "erase", {}]])).await;
    editor.update().await;
    let question = editor.next().await;
    loop {
        let message = editor.next().await;
        if message["method"] == "$/cancel_request" {
            assert_eq!(message["params"]["requestId"], question["id"]);
        }
        let update = &message["params"]["update"];
        if update["status"] == "failed" {
            assert_ne!(update["_meta"]["dev.toolbridge/errorCode"], "out_of_range", "{update}");
            break;
        }
    }
}

#[tokio::test]
async fn acp_c12_cancelled_turn_cancels_its_calls_and_is_answered_cancelled() {
    let mut editor = Editor::new().await;
    editor.prompt(json!([["call", "hang"], ["say", "after"]])).await;
    editor.update().await;
    while editor.update().await["status"] != "in_progress" {}
    editor.cancel().await;
    let failed = editor.update().await;
    assert_eq!(
        (&failed["status"], &failed["_meta"]["dev.toolbridge/errorCode"]),
        (&json!("failed"), &json!("cancelled"))
    );
    loop {
        let message = editor.next().await;
        if message["id"] == editor.id {
            assert_eq!(message["result"], json!({"stopReason": "cancelled"}));
            break;
        }
    }
}

#[tokio::test]
async fn acp_c12_request_of_a_prompt_that_is_cancelled_cancels_its_turn() {
    let mut editor = Editor::new().await;
    editor.prompt(json!([["say", "begun"], ["call", "hang"]])).await;
    assert_eq!(editor.said().await, "begun");
    editor.update().await;
    while editor.update().await["status"] != "in_progress" {}
    let prompt = editor.id;
    // Other requests, and ids of another type, are others.
    for id in [json!(prompt - 1), json!(prompt.to_string()), Json::Null, json!(prompt)] {
        let params = json!({ "requestId": id });
        editor.send(json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": params})).await;
        if id != prompt {
            // This session has no turn to cancel, and its answer comes before any end of the other one.
            editor.session = editor.open_session().await;
        }
    }
    loop {
        let message = editor.next().await;
        if message["id"] == prompt {
            assert_eq!(message["result"], json!({"stopReason": "cancelled"}));
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn acp_c12_loop_that_ignores_the_cancellation_is_ended_after_5_seconds() {
    let mut editor = Editor::new().await;
    editor.prompt(json!([["say", "begun"], ["deaf"]])).await;
    assert_eq!(editor.said().await, "begun");
    let begun = tokio::time::Instant::now();
    editor.cancel().await;
    assert_eq!(editor.reason().await, "cancelled");
    assert_eq!(begun.elapsed().as_secs(), 5);
    // A cancellation without a turn, or of another session, has no effect.
    editor.cancel().await;
    editor.send(json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "none"}})).await;
    editor.prompt(json!([["say", "next"]])).await;
    assert_eq!(editor.said().await, "next");
    assert_eq!(editor.reason().await, "end_turn");
}

#[tokio::test]
async fn acp_c12_failure_and_panic_of_the_loop_are_errors_and_their_text_stays_here() {
    let mut editor = Editor::new().await;
    editor.prompt(json!([["error"]])).await;
    let error = editor.stopped().await["error"].take();
    assert_eq!((&error["code"], &error["message"]), (&json!(-32603), &json!("the model cannot be reached")));
    editor.prompt(json!([["panic"]])).await;
    let error = editor.stopped().await["error"].take();
    assert_eq!(error["code"], -32603);
    assert!(!error.to_string().contains("hunter2"), "{error}");
    editor.prompt(json!([["refuse"]])).await;
    assert_eq!(editor.reason().await, "refusal");
}

#[tokio::test]
async fn acp_c13_junk_is_skipped_and_half_lines_are_joined() {
    let mut editor = Editor::new().await;
    for junk in [
        "not json",
        "",
        "17",
        "{}",
        r#"{"jsonrpc":"1.0","id":1,"method":"x"}"#,
        r#"{"jsonrpc":"2.0","id":1.5,"method":"x"}"#,
    ] {
        editor.line(junk).await;
    }
    editor.input.write_all(b"\xff\xfe\n").await.unwrap();
    let deep = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{}}}"#, "[".repeat(200_000));
    editor.line(&deep).await;
    editor
        .line(&format!(r#"{{"jsonrpc":"2.0","id":2,"method":"x","params":["{}"]}}"#, "x".repeat(8 << 20)))
        .await;
    editor.line(r#"[{"jsonrpc":"2.0","id":1,"method":"initialize"}]"#).await;
    // Whoever sent a request with an id that can be read waits for an answer.
    for (id, code, says) in [
        (json!(1), -32600, "not a JSON-RPC 2.0 request"),
        (json!(1.5), -32601, "not offered"),
        (json!(1), -32700, "200001 levels deep; the limit is 120"),
        (json!(2), -32700, "the limit is 8388608"),
        (json!(null), -32600, "batches are not supported"),
    ] {
        let refused = editor.next().await;
        assert_eq!((&refused["id"], &refused["error"]["code"]), (&id, &json!(code)), "{refused}");
        assert!(refused["error"]["message"].as_str().unwrap().contains(says), "{refused}");
    }
    let request = json!({"jsonrpc": "2.0", "id": "half", "method": "no/such"}).to_string();
    let (first, second) = request.split_at(20);
    editor.input.write_all(first.as_bytes()).await.unwrap();
    tokio::task::yield_now().await;
    editor.line(second).await;
    assert_eq!(editor.next().await["id"], "half");
    // A newline in a text is escaped.
    editor.prompt(json!([["say", "two\nlines"]])).await;
    assert_eq!(editor.said().await, "two\nlines");
    assert_eq!(editor.reason().await, "end_turn");
}

#[tokio::test]
async fn acp_c13_request_is_answered_with_its_id_wherever_it_stands() {
    let mut editor = Editor::new().await;
    let long = "x".repeat(8 << 20);
    for (line, id, says) in [
        (r#"{"jsonrpc":"2.0","\u0069d":1.5,"method":"x"}"#, json!(1.5), "not offered"),
        (r#"{"jsonrpc":"2.0","method":"x","params":tru,"\u0069d":"a"}"#, json!("a"), "not JSON"),
        (
            &*format!(r#"{{"params":"{long}","id":7,"method":"x","jsonrpc":"2.0"}}"#),
            json!(7),
            "the limit is 8388608",
        ),
        (
            &*format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"x"}}"#, "x".repeat(300)),
            json!(null),
            "the id of the message has 302 bytes; the limit is 256",
        ),
    ] {
        editor.line(line).await;
        let refused = editor.next().await;
        assert_eq!(refused["id"], id, "{refused}");
        assert!(refused["error"]["message"].as_str().unwrap().contains(says), "{refused}");
    }
}

#[tokio::test]
async fn acp_c13_question_ends_with_an_error_without_its_id_or_a_batch() {
    let mut editor = Editor::new().await;
    editor.prompt(json!([["form"], ["form"]])).await;
    editor.next().await;
    editor.line(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no parse"}}"#).await;
    let said = editor.said().await;
    assert!(said.contains("no parse"), "{said}");
    let question = editor.next().await;
    editor.send(json!([{"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}}])).await;
    let mut messages = [editor.next().await, editor.next().await];
    messages.sort_by_key(|it| it["error"].is_object());
    assert!(messages[0].to_string().contains("batches are not supported"), "{messages:?}");
    assert_eq!(messages[1]["error"]["message"], "batches are not supported");
    assert_eq!(editor.reason().await, "end_turn");
}

#[tokio::test]
async fn acp_c13_connection_ends_with_the_editor_and_its_calls_are_cancelled() {
    let mut editor = Editor::new().await;
    editor.prompt(json!([["call", "hang"]])).await;
    while editor.update().await["status"] != "in_progress" {}
    editor.input.shutdown().await.unwrap();
    let mut last = Json::Null;
    while let Some(line) = editor.output.next_line().await.unwrap() {
        last = serde_json::from_str(&line).unwrap();
    }
    assert_eq!(last["result"]["stopReason"], "cancelled", "{last}");
    editor.agent.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn acp_c13_editor_that_stops_reading_stops_the_agent_and_nothing_grows() {
    let mut editor = Editor::with(1 << 10, json!({})).await;
    let many: Vec<Json> = (0..10_000).map(|n| json!(["say", format!("{n} {}", "x".repeat(100))])).collect();
    // The steps are longer than the pipe, so they are written while nothing is read.
    editor.prompt(many.into()).await;
    // Requests that are sent meanwhile wait in the pipe, which holds 1 KiB: the agent reads no more.
    let params = json!({"padding": "y".repeat(100)});
    let request =
        json!({"jsonrpc": "2.0", "id": 77, "method": "no/such", "params": params}).to_string() + "\n";
    let mut sent = 0;
    while sent < 1_000 {
        match tokio::time::timeout(Duration::from_millis(200), editor.input.write_all(request.as_bytes()))
            .await
        {
            Ok(written) => written.unwrap(),
            Err(_) => break,
        }
        sent += 1;
    }
    assert!(sent < 100, "{sent} requests were read");
    drop(editor.output);
    drop(editor.input);
    editor.agent.await.unwrap().unwrap();
}

#[tokio::test]
async fn acp_c15_unknown_methods_are_refused_and_unknown_notifications_ignored() {
    let mut editor = Editor::new().await;
    for method in ["session/load", "session/set_mode", "authenticate", "_vendor/ask", "fs/read_text_file"] {
        let answer = editor.ask(method, json!({"sessionId": editor.session})).await;
        assert_eq!(answer["error"]["code"], -32601, "{method}: {answer}");
    }
    for method in ["_vendor/hello", "$/progress", "session/unknown"] {
        editor.send(json!({"jsonrpc": "2.0", "method": method, "params": {}})).await;
    }
    assert_eq!(editor.ask("no/such", json!(null)).await["error"]["code"], -32601);
}

#[tokio::test]
async fn acp_c17_sessions_are_not_loaded_and_an_unknown_one_is_refused() {
    let mut editor = Editor::closed(64 << 10).await;
    let early = editor.ask("session/new", json!({"cwd": "/", "mcpServers": []})).await;
    assert_eq!(early["error"]["code"], -32600, "{early}");
    for (version, code) in [
        (json!(1), None),
        (json!(7), None),
        (json!(0), None),
        (json!("1"), Some(-32602)),
        (json!(null), Some(-32602)),
    ] {
        let answer = editor.ask("initialize", json!({"protocolVersion": version})).await;
        match code {
            None => {
                assert_eq!(answer["result"]["protocolVersion"], 1, "{answer}");
                assert_eq!(answer["result"]["agentCapabilities"]["loadSession"], false);
            }
            Some(code) => assert_eq!(answer["error"]["code"], code, "{answer}"),
        }
    }
    for cwd in [json!("relative"), json!(null), json!(7)] {
        let answer = editor.ask("session/new", json!({"cwd": cwd, "mcpServers": []})).await;
        assert_eq!(answer["error"]["code"], -32602, "{cwd}: {answer}");
    }
    let unknown = editor.ask("session/prompt", json!({"sessionId": "none", "prompt": []})).await;
    assert_eq!(unknown["error"]["code"], -32002, "{unknown}");
    let first = editor.open_session().await;
    let wrong = editor.ask("session/prompt", json!({"sessionId": first, "prompt": "text"})).await;
    assert_eq!(wrong["error"]["code"], -32602, "{wrong}");
    // The oldest of 65 idle sessions is forgotten.
    for _ in 0..64 {
        editor.session = editor.open_session().await;
    }
    let forgotten = editor.ask("session/prompt", json!({"sessionId": first, "prompt": []})).await;
    assert_eq!(forgotten["error"]["code"], -32002, "{forgotten}");
    editor.prompt(json!([["say", "still here"]])).await;
    assert_eq!(editor.said().await, "still here");
    assert_eq!(editor.reason().await, "end_turn");
}

#[tokio::test]
async fn second_prompt_of_a_session_is_busy_until_the_first_is_answered() {
    let mut editor = Editor::new().await;
    editor.prompt(json!([["call", "hang"]])).await;
    let first = editor.id;
    while editor.update().await["status"] != "in_progress" {}
    editor.prompt(json!([["say", "too early"]])).await;
    let busy = editor.stopped().await;
    assert_eq!(busy["error"]["code"], -32600, "{busy}");
    // Another session is free.
    let held = std::mem::take(&mut editor.session);
    editor.session = editor.open_session().await;
    editor.prompt(json!([["think", "hm"]])).await;
    assert_eq!(editor.update().await["sessionUpdate"], "agent_thought_chunk");
    assert_eq!(editor.reason().await, "end_turn");
    editor.session = held;
    editor.cancel().await;
    editor.id = first;
    while editor.next().await["id"] != first {}
}

#[tokio::test]
async fn acp_c22_questions_of_tools_and_of_the_loop_go_to_the_editor_as_elicitation() {
    let mut editor = Editor::new().await;
    editor.prompt(json!([["call", "order"], ["form"], ["form"], ["form"], ["sign-in"], ["sign-in"]])).await;
    let call = editor.update().await;
    let question = loop {
        let message = editor.next().await;
        if message["method"] == "elicitation/create" {
            break message;
        }
    };
    let params = &question["params"];
    assert_eq!((&params["mode"], &params["message"]), (&json!("form"), &json!("Which size?")));
    assert_eq!(params["toolCallId"], call["toolCallId"]);
    let titles = params["requestedSchema"]["properties"]["choice"]["oneOf"].as_array().unwrap();
    assert_eq!(titles.iter().map(|it| &it["title"]).collect::<Vec<_>>(), ["small", "large"]);
    editor.answer(&question, json!({"action": "accept", "content": {"choice": "1"}})).await;
    let done = loop {
        let update = editor.update().await;
        if update["status"] == "completed" {
            break update;
        }
    };
    assert_eq!(done["rawOutput"], "Some(1)", "{done}");
    editor.said().await;
    for (answer, said) in [
        (json!({"action": "accept", "content": {"name": "Ada"}}), r#"Submitted Some("{\"name\":\"Ada\"}")"#),
        (json!({"action": "decline"}), "Declined None"),
        (json!({"action": "hologram", "content": {"name": "Eve"}}), "Cancelled None"),
    ] {
        let question = editor.next().await;
        editor.answer(&question, answer).await;
        assert_eq!(editor.said().await, said);
    }
    for (answer, said) in [(json!({"action": "accept"}), "Done"), (json!({"action": "cancel"}), "Cancelled")]
    {
        let question = editor.next().await;
        assert_eq!(question["params"]["url"], "https://example.com/in?key=hunter2");
        editor.answer(&question, answer).await;
        assert_eq!(editor.said().await, said);
    }
    assert_eq!(editor.reason().await, "end_turn");
}

#[tokio::test]
async fn acp_c22_editor_without_elicitation_gets_a_choice_as_options_and_other_questions_are_errors() {
    let mut editor = Editor::with(64 << 10, json!({})).await;
    editor.prompt(json!([["call", "order"], ["form"], ["sign-in"]])).await;
    editor.update().await;
    let question = loop {
        let message = editor.next().await;
        if message["method"] == "session/request_permission" {
            break message;
        }
    };
    let names: Vec<_> =
        question["params"]["options"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["small", "large", "None of these"]);
    editor.answer(&question, json!({"outcome": {"outcome": "selected", "optionId": "none"}})).await;
    loop {
        let update = editor.update().await;
        if update["status"] == "completed" {
            assert_eq!(update["rawOutput"], "None");
            break;
        }
    }
    editor.said().await;
    assert_eq!(editor.said().await, "the editor cannot show forms");
    let said = editor.said().await;
    assert!(said.contains("sign-in") && !said.contains("hunter2"), "{said}");
    assert_eq!(editor.reason().await, "end_turn");
}

#[tokio::test]
async fn agent_whose_assistant_leaves_says_why() {
    let editor = Editor::new().await;
    editor.room.leave("a");
    let ended = editor.agent.await.unwrap();
    assert!(matches!(ended, Err(AcpServeError::Left(_))), "{ended:?}");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn output_that_cannot_be_written_is_an_error() {
    let room = MemoryRoom::new();
    let assistant = Assistant::builder().join_over(room.assistant("a")).await.unwrap();
    let full = tokio::fs::OpenOptions::new().write(true).open("/dev/full").await.unwrap();
    let (mut editor, input) = tokio::io::duplex(1 << 10);
    let initialize =
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}});
    editor.write_all(format!("{initialize}\n").as_bytes()).await.unwrap();
    let ended = acp::agent(assistant, script).over(input, full).await;
    let is_full = |error: &std::io::Error| error.kind() == std::io::ErrorKind::StorageFull;
    assert!(matches!(&ended, Err(AcpServeError::Write(error)) if is_full(error)), "{ended:?}");
}
