//! An agent as a tool: what an agent may send, how it ends, and what it learns. The agents here are scripts, some of which
//! misbehave. `tests/e2e/acp_client.rs` has agents over the official SDKs, and a published one.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::json;
use toolbridge::{
    Assistant, CancellationToken, Consent, ErrorCode, Outcome, Progress, ToolContext, ToolError, ToolResult,
    ToolSource as _, Value,
    adapter::acp::{self, AcpTool},
    memory::MemoryRoom,
    tools::SourceHealth,
};

use crate::{acp_script::AgentScript, program_tools};

pub(crate) fn context() -> ToolContext {
    ToolContext::new("caller", Duration::from_secs(60))
}

pub(crate) async fn prompt(agent: &AcpTool, text: &str, context: ToolContext) -> Outcome {
    let tool = agent.list()[0].name().clone();
    agent.execute(&tool, Value::encode(&json!({ "prompt": text })).unwrap(), context).await
}

/// Returns what the model reads.
fn text(outcome: Outcome) -> String {
    ToolResult::of(&outcome.unwrap()).for_model(10_000).text.to_string()
}

/// Returns the texts of a result.
fn texts(result: &ToolResult) -> String {
    result.content().iter().filter_map(|it| it.as_text()).collect()
}

/// A context, and the texts of its progress.
fn watched() -> (ToolContext, Arc<Mutex<Vec<Progress>>>) {
    let seen: Arc<Mutex<Vec<Progress>>> = Arc::default();
    let theirs = Arc::clone(&seen);
    (context().with_progress(move |it| theirs.lock().unwrap().push(it)), seen)
}

fn messages(seen: &Mutex<Vec<Progress>>) -> Vec<String> {
    seen.lock().unwrap().iter().filter_map(|it| it.message.clone()).collect()
}

async fn up(agent: &AcpTool) {
    while agent.health() != SourceHealth::Up {
        agent.changed().await;
    }
}

#[tokio::test]
async fn result_is_what_the_agent_said_and_why_it_stopped() {
    let script = AgentScript::new("acp-says");
    let agent = script.agent(r#"say 'It is '; say 'done.'; ended "$1""#, "").folder("/tmp").await.unwrap();
    let result = prompt(&agent, "Do it", context()).await.unwrap();
    let result = ToolResult::of(&result);
    assert_eq!(texts(&result), "It is done.");
    assert_eq!(result.structured().unwrap().to_json(), json!({"stopReason": "end_turn"}));
    let session: serde_json::Value = serde_json::from_str(script.kept("session").trim()).unwrap();
    assert_eq!(session["params"], json!({"cwd": "/tmp", "mcpServers": []}));
    agent.close().await;
}

#[tokio::test]
async fn stop_reason_other_than_the_end_of_the_turn_is_said() {
    let script = AgentScript::new("acp-stops");
    let body = r#"say part; reason=${2#*STOP:}; answer "$1" '{"stopReason":"'"${reason%%\"*}"'"}'"#;
    let agent = script.agent(body, "").await.unwrap();
    let all = text(prompt(&agent, "STOP:max_tokens", context()).await);
    assert!(all.contains("part") && all.contains("limit of tokens"), "{all}");
    let refused = prompt(&agent, "STOP:refusal", context()).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (ErrorCode::EXECUTION_ERROR, "the agent refused to go on: part")
    );
    assert!(ToolResult::of_error(&refused).for_model(100).text.contains("part"));
    assert!(text(prompt(&agent, "STOP:bored", context()).await).contains("not known"));
    agent.close().await;
}

#[tokio::test]
async fn result_says_what_the_agent_said_without_a_text() {
    let script = AgentScript::new("acp-image");
    let body = r#"
        update '{"sessionUpdate":"agent_message_chunk","content":{"type":"image","mimeType":"image/png","data":"aGVsbG8="}}'
        case "$2" in *fail*) fail "$1" -32603 'no quota left' ;; *) ended "$1" ;; esac"#;
    let agent = script.agent(body, "").await.unwrap();
    let remark = "What the agent said is not complete. Left out: 1 part that is not text (5 bytes).";
    let result = prompt(&agent, "Draw", context()).await.unwrap();
    assert_eq!(texts(&ToolResult::of(&result)), remark);
    let error = prompt(&agent, "fail", context()).await.unwrap_err();
    assert_eq!(texts(&ToolResult::of_error(&error)), remark);
    agent.close().await;
}

#[tokio::test]
async fn result_says_that_a_message_was_too_long() {
    let script = AgentScript::new("acp-long");
    let body = r#"case "$2" in *long*) say "$(yes xxxxxxxx | tr -d '\n' | head -c 9000000)" ;; esac; say end; ended "$1""#;
    let agent = script.agent(body, "").await.unwrap();
    let remark = "What the agent said is not complete. Left out: 1 message of more than 8388608 bytes.";
    let result = prompt(&agent, "long", context()).await.unwrap();
    assert_eq!(texts(&ToolResult::of(&result)), format!("end{remark}"));
    let result = prompt(&agent, "short", context()).await.unwrap();
    assert_eq!(texts(&ToolResult::of(&result)), "end");
    agent.close().await;
}

#[tokio::test]
async fn prompt_that_is_not_a_text_is_refused() {
    let script = AgentScript::new("acp-no-text");
    let agent = script.agent(r#"ended "$1""#, "").await.unwrap();
    let tool = agent.list()[0].name().clone();
    for arguments in
        [json!({}), json!({"prompt": ""}), json!({"prompt": 7}), json!({"prompt": "x".repeat(300_000)})]
    {
        let error = agent.execute(&tool, Value::encode(&arguments).unwrap(), context()).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::INVALID_PARAMETERS);
    }
    agent.close().await;
}

#[tokio::test]
async fn acp_c14_agent_of_another_version_is_left_with_a_message() {
    let script = AgentScript::new("acp-version");
    let name = script.name();
    for (version, shown) in [("2", "2"), ("0", "0"), ("1.0", "1.0"), ("\"1\"", "\"1\"")] {
        let more = format!("initialize() {{ answer \"$1\" '{{\"protocolVersion\":{version}}}'; }}");
        let error = script.agent("", &more).await.unwrap_err().to_string();
        let expected = format!("it speaks version {shown} of the protocol, and not version 1");
        assert_eq!(error, format!("agent \"{name}\": {expected}"));
    }
    let kept = script.kept("initialize");
    let initialize: serde_json::Value = serde_json::from_str(kept.lines().next().unwrap()).unwrap();
    assert_eq!(initialize["params"]["protocolVersion"], 1);
    let off = json!({"readTextFile": false, "writeTextFile": false});
    assert_eq!(initialize["params"]["clientCapabilities"]["fs"], off);
    assert_eq!(initialize["params"]["clientCapabilities"]["terminal"], false);
}

#[tokio::test]
async fn acp_c14_agent_that_names_no_version_is_left_with_a_message() {
    let script = AgentScript::new("acp-no-version");
    let error = script.agent("", "initialize() { answer \"$1\" '{}'; }").await.unwrap_err().to_string();
    assert!(error.ends_with("it names no version of the protocol in its answer to `initialize`"), "{error}");
}

#[tokio::test]
async fn acp_c14_agent_of_a_file_gets_its_folder_environment_and_what_it_may_use() {
    let script = AgentScript::new("acp-file");
    let more = r#"env > "$0.env"; pwd > "$0.pwd""#;
    drop(script.agent(r#"ended "$1""#, more));
    let command = script.command();
    let (_, path) = command.split_once(' ').unwrap();
    let folder = program_tools::folder("acp-file-settings").canonicalize().unwrap();
    std::fs::create_dir_all(folder.join("work")).unwrap();
    let entry = format!(
        "[[acp]]\nname = \"coder\"\ncommand = [\"/bin/sh\", {path:?}]\ndescription = \"Codes.\"\ncwd = \"work\"\n\
         env = {{ OWN = \"a b\", PATH = true }}\nconsent = \"always\"\ntimeout = \"2m\"\n"
    );
    for (more, may) in [("", false), ("allow_fs = \"work\"\nallow_terminal = true\n", true)] {
        let file = program_tools::file(&folder, &format!("{entry}{more}"));
        let agent = acp::from_file(&file).unwrap().remove(0).await.unwrap();
        let tool = &agent.list()[0];
        assert_eq!((tool.name().as_str(), tool.description()), ("coder", "Codes."));
        let options = tool.tool_options();
        assert_eq!(
            (options.consent, options.timeout),
            (Some(Consent::Always), Some(Duration::from_secs(120)))
        );
        agent.close().await;
        let last = |kept: &str| -> serde_json::Value {
            serde_json::from_str(script.kept(kept).lines().last().unwrap()).unwrap()
        };
        let (session, initialize) = (last("session"), last("initialize"));
        assert_eq!(session["params"]["cwd"], json!(folder.join("work")));
        let abilities = &initialize["params"]["clientCapabilities"];
        assert_eq!(abilities["fs"], json!({"readTextFile": may, "writeTextFile": may}));
        assert_eq!(abilities["terminal"], may);
        assert_eq!(script.kept("pwd").trim(), folder.join("work").to_str().unwrap());
        let env = script.kept("env");
        assert!(env.contains("OWN=a b") && env.contains("PATH=") && !env.contains("HOME="), "{env}");
    }
}

#[tokio::test]
async fn agent_that_demands_a_sign_in_is_left_with_the_ways_it_offers() {
    let script = AgentScript::new("acp-sign-in");
    let more = r#"
        initialize() { answer "$1" '{"protocolVersion":1,"authMethods":[{"id":"a","name":"Log in with a browser"},{"id":"key"},{"type":"env_var","id":"v","name":"Use a key","vars":[{"name":"API_KEY"}]}]}'; }
        new_session() { fail "$1" -32000 'Authentication required'; }"#;
    let error = script.agent("", more).await.unwrap_err().to_string();
    assert!(error.ends_with(
        "demands a sign-in: sign in with the agent's own program, or pass an API key on to it (`env` of a tools.toml, \
         --agent-env on the command line), then start this again; it offers: Log in with a browser, key, \
         Use a key (pass API_KEY on to the agent); it says: Authentication required"
    ), "{error}");
}

#[tokio::test]
async fn agent_that_demands_a_sign_in_at_a_prompt_or_at_its_start_is_understood() {
    let script = AgentScript::new("acp-sign-in-late");
    let agent = script.agent(r#"fail "$1" -32000 'the license\n\u001b[2J has expired'"#, "").await.unwrap();
    let error = prompt(&agent, "hello", context()).await.unwrap_err();
    assert!(error.message().contains("demands a sign-in: sign in with"), "{error:?}");
    assert!(error.message().ends_with("; it says: the license [2J has expired"), "{error:?}");
    let script = AgentScript::new("acp-sign-in-first");
    let more = r#"initialize() { fail "$1" -32000 'Authentication required'; }"#;
    let error = script.agent("", more).await.unwrap_err().to_string();
    assert!(error.contains("demands a sign-in: sign in with"), "{error}");
}

#[tokio::test]
async fn program_that_is_no_agent_is_named_with_what_it_wrote() {
    let script = AgentScript::new("acp-no-agent");
    let more = "echo 'no key' >&2; exit 3";
    let error = script.agent("", more).await.unwrap_err().to_string();
    assert!(error.contains("ended (exit status: 3); it wrote: no key"), "{error}");
}

#[tokio::test]
async fn agent_that_opens_no_session_is_told_apart_from_one_that_refuses() {
    let script = AgentScript::new("acp-no-session");
    for (new_session, says) in [
        // It lives on, but nothing more comes from it.
        ("exec 1>&-; sleep 1000", "it closed its output before it answered session/new"),
        ("exit 0", "ended (exit status: 0)"),
        // The words of a refusal say more than the status after them.
        (r#"fail "$1" 7 'no license'; exit 3"#, "it refused session/new: no license (7)"),
    ] {
        let error =
            script.agent("", &format!("new_session() {{ {new_session}; }}")).await.unwrap_err().to_string();
        assert!(error.contains(says) && !error.contains("transport"), "{error}");
    }
}

#[tokio::test]
async fn words_of_an_agent_that_fails_a_prompt_and_ends_are_kept() {
    let script = AgentScript::new("acp-last-words");
    let agent = script.agent(r#"fail "$1" 7 'out of credit'; exit 3"#, "").await.unwrap();
    let error = prompt(&agent, "hello", context()).await.unwrap_err();
    assert!(error.message().ends_with("failed: out of credit (7)"), "{}", error.message());
    agent.close().await;
}

#[tokio::test]
async fn acp_c13_agent_that_dies_fails_its_prompt_and_is_started_again() {
    let script = AgentScript::new("acp-dies");
    let body = r#"case "$2" in *die*) call '"toolCallId":"1","title":"Look","status":"in_progress"'; say 'one more'; echo 'no key' >&2; exit 3 ;; esac; say back; ended "$1""#;
    let agent = script.agent(body, "").await.unwrap();
    let error = prompt(&agent, "die", context()).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::EXECUTION_ERROR);
    assert_eq!(
        error.message(),
        format!("the agent {:?} has ended: it ended (exit status: 3)", script.name())
    );
    assert_eq!(text(Ok(strip(error.partial().unwrap()))), "one more");
    // What it wrote to stderr may hold secrets: it is for this machine.
    while agent.last_failure().is_none() {
        agent.changed().await;
    }
    let failure = agent.last_failure().unwrap();
    assert!(failure.contains("it ended (exit status: 3); it wrote: no key"), "{failure}");
    assert!(
        matches!(agent.health(), SourceHealth::Down { .. } | SourceHealth::Starting),
        "{:?}",
        agent.health()
    );
    up(&agent).await;
    assert_eq!(text(prompt(&agent, "again", context()).await.map(|it| strip(&it))), "back");
    agent.close().await;
}

#[tokio::test]
async fn acp_c13_agent_whose_connection_fails_is_started_again() {
    let script = AgentScript::new("acp-broken-pipe");
    // It reads no more, but does not end: the next prompt cannot be written.
    let body = r#"case "$2" in *deaf*) exec 0<&-; ended "$1"; sleep 1000 ;; esac; say back; ended "$1""#;
    let agent = script.agent(body, "").await.unwrap();
    prompt(&agent, "be deaf", context()).await.unwrap();
    let error = prompt(&agent, "next", context()).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::EXECUTION_ERROR);
    assert!(
        error.message().contains("has ended: the connection to it failed: Broken pipe"),
        "{}",
        error.message()
    );
    while agent.health() == SourceHealth::Up {
        agent.changed().await;
    }
    up(&agent).await;
    assert_eq!(text(prompt(&agent, "again", context()).await.map(|it| strip(&it))), "back");
    agent.close().await;
}

/// Returns the result without its structured data, of which the model reads JSON.
fn strip(value: &Value) -> Value {
    ToolResult::text(texts(&ToolResult::of(value))).to_value()
}

#[tokio::test]
async fn second_prompt_is_busy_while_one_runs() {
    let script = AgentScript::new("acp-busy");
    let agent = script.agent(r#"say first; read -r line; ended "$1""#, "").await.unwrap();
    let (started, mut has_started) = tokio::sync::mpsc::unbounded_channel();
    let first = context().with_progress(move |it: Progress| _ = started.send(it));
    let token = CancellationToken::new();
    let first = prompt(&agent, "first", first.with_cancellation(token.clone()));
    let second = async {
        while has_started.recv().await.unwrap().message.is_none() {}
        let busy = prompt(&agent, "second", context()).await.unwrap_err();
        assert_eq!(busy.code(), ErrorCode::BUSY);
        token.cancel(); // the script reads the cancel as its line
    };
    let (outcome, ()) = tokio::join!(first, second);
    assert_eq!(outcome.unwrap_err().code(), ErrorCode::CANCELLED);
    // The agent ends its turn late, and the next prompt waits for that.
    let third = prompt(&agent, "third", CancelSoon::context()).await;
    assert_eq!(third.unwrap_err().code(), ErrorCode::CANCELLED);
    agent.close().await;
}

#[tokio::test]
async fn acp_c12_stop_cancels_the_turn_and_its_open_calls() {
    let script = AgentScript::new("acp-stop");
    let body = r#"
        call '"toolCallId":"1","title":"Look","status":"in_progress"'
        IFS= read -r line; cancelled "$line"
        change '"toolCallId":"1","status":"completed"'
        fail "$1" -32603 aborted"#;
    let agent = script.agent(body, "").await.unwrap();
    let token = CancellationToken::new();
    let (context, seen) = watched();
    let stop = Arc::clone(&seen);
    let cancel = token.clone();
    let context = context.with_cancellation(token);
    let running = prompt(&agent, "Look", context);
    let stopping = async {
        while !messages(&stop).iter().any(|it| it.starts_with("Look: in_progress")) {
            tokio::task::yield_now().await;
        }
        cancel.cancel();
    };
    let (outcome, ()) = tokio::join!(running, stopping);
    assert_eq!(outcome.unwrap_err().code(), ErrorCode::CANCELLED);
    // The next prompt waits for the end of the turn, so the script has the cancel.
    let next = prompt(&agent, "Next", CancelSoon::context());
    let _ = next.await;
    let cancelled = script.kept("cancelled");
    assert!(
        cancelled.contains(r#""method":"session/cancel""#) && cancelled.contains(r#""sessionId":"s1""#),
        "{cancelled}"
    );
    let completed: Vec<_> = messages(&seen).into_iter().filter(|it| it.contains("completed")).collect();
    assert_eq!(completed, ["other: completed (after its end)"]);
    agent.close().await;
}

#[tokio::test]
async fn acp_c12_prompt_that_is_cancelled_before_it_is_sent_is_never_sent() {
    let script = AgentScript::new("acp-unsent");
    let agent = script.agent(r#"keep prompts "$2"; ended "$1""#, "").await.unwrap();
    let token = CancellationToken::new();
    token.cancel();
    let stopped = context().with_cancellation(token);
    assert_eq!(prompt(&agent, "stopped", stopped).await.unwrap_err().code(), ErrorCode::CANCELLED);
    {
        let mut dropped = Box::pin(prompt(&agent, "dropped", context()));
        assert!(futures_util::poll!(&mut dropped).is_pending());
    }
    prompt(&agent, "sent", context()).await.unwrap();
    agent.close().await;
    let prompts = script.kept("prompts");
    assert!(prompts.lines().count() == 1 && prompts.contains("sent"), "{prompts}");
}

#[tokio::test]
async fn acp_c12_prompt_is_cancelled_while_its_session_is_opened() {
    let script = AgentScript::new("acp-slow-session");
    // It does not answer the second session.
    let more = r#"new_session() { n=$((${n:-0}+1)); [ "$n" = 2 ] || answer "$1" '{"sessionId":"s1"}'; }"#;
    let agent = script.agent(r#"keep prompts "$2"; ended "$1""#, more).await.unwrap();
    let room = MemoryRoom::new();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    agent.offer_tools(&assistant).await.unwrap();
    let token = CancellationToken::new();
    let opening = prompt(&agent, "stopped", context().with_cancellation(token.clone()));
    let stopping = async {
        while script.kept("session").lines().count() < 2 {
            tokio::task::yield_now().await;
        }
        token.cancel();
    };
    let (outcome, ()) = tokio::join!(opening, stopping);
    assert_eq!(outcome.unwrap_err().code(), ErrorCode::CANCELLED);
    prompt(&agent, "sent", context()).await.unwrap();
    agent.close().await;
    assert_eq!(script.kept("prompts").lines().count(), 1);
}

/// A context that is cancelled as soon as its call has started.
struct CancelSoon;

impl CancelSoon {
    fn context() -> ToolContext {
        let token = CancellationToken::new();
        let cancel = token.clone();
        context().with_cancellation(token).with_progress(move |_| cancel.cancel())
    }
}

#[tokio::test]
async fn acp_c12_agent_that_ignores_a_cancel_is_killed_after_5_s() {
    let script = AgentScript::new("acp-deaf");
    let body = r#"say working; sleep 1000 & echo $! > "$0.pid"; wait"#;
    let agent = script.agent(body, "").await.unwrap();
    let begun = tokio::time::Instant::now();
    let token = CancellationToken::new();
    let cancel = token.clone();
    let context = context().with_cancellation(token).with_progress(move |it| {
        if it.message.is_some() {
            cancel.cancel();
        }
    });
    let outcome = prompt(&agent, "Work", context).await;
    assert_eq!(outcome.unwrap_err().code(), ErrorCode::CANCELLED);
    while agent.health() == SourceHealth::Up {
        agent.changed().await;
    }
    let SourceHealth::Down { reason, .. } = agent.health() else { panic!("{:?}", agent.health()) };
    assert!(reason.contains("did not end its turn within 5 s"), "{reason}");
    assert!(begun.elapsed() >= Duration::from_secs(5));
    up(&agent).await;
    let child: i32 = script.kept("pid").trim().parse().unwrap();
    assert!(is_gone(child), "its child still runs");
    agent.close().await;
}

/// Returns whether a process has ended. Its parent may not have read its status.
pub(crate) fn is_gone(process: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{process}/stat")) else { return true };
    stat.rsplit(") ").next().is_none_or(|rest| rest.starts_with(['Z', 'X']))
}

#[tokio::test]
async fn acp_c15_method_that_was_not_offered_is_refused() {
    let script = AgentScript::new("acp-methods");
    let body = r#"
        for method in fs/read_text_file fs/write_text_file terminal/create _vendor/do session/list; do
          ask "$method" '{"sessionId":"s1","path":"/etc/passwd","command":"id"}'; keep replies "$reply"
        done
        printf '{"jsonrpc":"2.0","method":"_vendor/tell"}\n'; printf '[]\n'; IFS= read -r reply; keep replies "$reply"
        ended "$1""#;
    let agent = script.agent(body, "").await.unwrap();
    prompt(&agent, "Ask", context()).await.unwrap();
    let replies: Vec<serde_json::Value> =
        script.kept("replies").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(replies.len(), 6);
    assert!(replies[..5].iter().all(|it| it["error"]["code"] == -32_601), "{replies:?}");
    assert_eq!(replies[5]["error"]["code"], -32_600);
    agent.close().await;
}

#[tokio::test]
async fn acp_c13_junk_embedded_newlines_and_half_lines_leave_the_turn_as_it_is() {
    let script = AgentScript::new("acp-junk");
    // A message with a line break in it is two lines, of which none is a message.
    let body = r#"
        echo 'Loading model…'; printf '{"jsonrpc":"2.0","method":"session/update",\n"params":{}}\n'
        printf '\377\376\n\n17\n{}\n'; say one
        printf '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1",'
        printf '"update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":" two"}}}}\n'
        printf '{"jsonrpc":"2.0","method":"_vendor/tell","params":{}}\n'
        printf '{"jsonrpc":"2.0","id":99,"result":{"stopReason":"refusal"}}\n'
        ended "$1""#;
    let agent = script.agent(body, "").await.unwrap();
    let result = prompt(&agent, "Work", context()).await.unwrap();
    assert_eq!(texts(&ToolResult::of(&result)), "one two");
    agent.close().await;
}

#[tokio::test]
async fn acp_c20_calls_and_their_later_locations_are_progress_at_a_client() {
    let script = AgentScript::new("acp-progress");
    let body = r#"
        call '"toolCallId":"1","title":"Edit main.rs","kind":"edit","status":"pending"'
        change '"toolCallId":"1","rawInput":{"path":"/x"},"locations":[{"path":"/x","line":3}]'
        change '"toolCallId":"1","status":"in_progress","locations":[{"path":"/y"}]'
        change '"toolCallId":"1","status":"completed","content":[{"type":"content","content":{"type":"text","text":"2 lines"}}]'
        change '"toolCallId":"1","status":"failed","title":"Late"'
        update '{"sessionUpdate":"plan","entries":[{"content":"Look","priority":"high","status":"completed"},{"content":"Edit","priority":"low","status":"pending"}]}'
        ended "$1""#;
    let agent = script.agent(body, "").await.unwrap();
    let (context, seen) = watched();
    prompt(&agent, "Edit", context).await.unwrap();
    assert_eq!(
        messages(&seen),
        [
            "Edit main.rs: pending /x:3",
            "Edit main.rs: in_progress /y",
            "Edit main.rs: completed /y · 2 lines",
            "Late: failed (after its end)",
            "✓ Look\n· Edit",
        ]
    );
    let content = seen.lock().unwrap()[1].content.as_ref().unwrap().to_json();
    assert_eq!(
        content,
        json!({"toolCallId": "1", "kind": "edit", "status": "pending", "locations": [{"path": "/x", "line": 3}]})
    );
    agent.close().await;
}

#[tokio::test]
async fn sec_a3_agent_gets_no_tokens_from_the_environment() {
    let script = AgentScript::new("acp-env");
    let agent = script.agent(r#"ended "$1""#, r#"env > "$0.env""#).env("OWN", "1").await.unwrap();
    let env = script.kept("env");
    assert!(env.contains("OWN=1") && !env.contains("LIVEKIT") && !env.contains("CARGO"), "{env}");
    agent.close().await;
    let refused = script.agent("", "").inherit("LIVEKIT_API_SECRET").await.unwrap_err().to_string();
    assert!(refused.contains("LIVEKIT_API_SECRET is not passed on"), "{refused}");
}

#[tokio::test]
async fn answer_without_an_id_or_in_a_batch_fails_the_prompt_at_once() {
    let script = AgentScript::new("acp-no-id");
    for (answer, says) in [
        (
            r#"'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no parse"}}\n'"#,
            "no parse (-32700)",
        ),
        (
            r#"'[{"jsonrpc":"2.0","id":%s,"result":{}}]\n' "$1""#,
            "the answer cannot be read: batches are not supported",
        ),
        (
            r#"'{"jsonrpc":"2.0","id":%s,"error":{"code":"ENOENT","message":"no such file"}}\n' "$1""#,
            "no such file (ENOENT)",
        ),
    ] {
        let agent = script.agent(&format!("printf {answer}"), "").await.unwrap();
        let error = prompt(&agent, "Work", context()).await.unwrap_err();
        assert!(error.message().ends_with(&format!("failed: {says}")), "{}", error.message());
        agent.close().await;
    }
}

#[tokio::test]
async fn failure_of_the_agent_is_the_outcome_of_the_prompt() {
    let script = AgentScript::new("acp-fails");
    let agent = script.agent(r#"say before; fail "$1" -32603 'no quota left'"#, "").await.unwrap();
    let error: ToolError = prompt(&agent, "Work", context()).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::EXECUTION_ERROR);
    assert!(error.message().ends_with("failed: no quota left (-32603)"), "{}", error.message());
    assert_eq!(texts(&ToolResult::of_error(&error)), "before");
    agent.close().await;
}
