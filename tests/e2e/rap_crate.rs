//! A toolset over the published crate `rap-protocol`, whose tools an assistant offers in a room.

use std::{net::TcpListener, path::PathBuf, process::Command, sync::OnceLock};

use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use serde_json::{Value as Json, json};
use toolbridge::{
    Assistant, CallError, Client, ErrorCode, Event, Events, ToolError, ToolResult,
    adapter::rap,
    prompt::{Prompt, PromptAnswer, PromptRequest},
    result::BlockKind,
    tools::SourceHealth,
};

use crate::{
    ends::{assistant, client, event},
    program::{Program, script},
    server::{self, Server, shared},
    soon, trial_with,
};

/// The address at which the person signs in.
const SIGN_IN: &str = "https://login.example/authorize?state=x";

pub(crate) fn trials() -> Vec<Trial> {
    type Test = fn() -> std::pin::Pin<Box<dyn Future<Output = anyhow::Result<()>>>>;
    let tests: [(&str, Test); 3] = [
        ("person_at_the_terminal_of_a_client_signs_in", || Box::pin(asked_at_a_terminal())),
        ("tools_of_the_published_crate_answer_in_a_room", || Box::pin(answers())),
        ("toolset_that_starts_later_is_offered_then_and_its_end_fails_calls", || Box::pin(starts_later())),
    ];
    tests.into_iter().map(|(name, test)| trial_with(&format!("rap_crate::{name}"), missing, test)).collect()
}

fn missing() -> Option<&'static str> {
    if server::kind() == server::Kind::LiveKit && server::binary().is_none() {
        return Some("livekit-server");
    }
    toolset().is_none().then_some("tests/peers/rap (scripts/parts rap-peers)")
}

/// Returns the built program.
fn toolset() -> Option<PathBuf> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        let found = Command::new(script()).args(["rap-peers", "find"]).output().ok()?;
        let folder = String::from_utf8(found.stdout).ok().filter(|_| found.status.success())?;
        Some(PathBuf::from(folder.trim()).join("toolset"))
    };
    FOUND.get_or_init(find).clone()
}

/// Starts the toolset at this port, and returns its address.
async fn start(server: &Server, port: u16) -> anyhow::Result<(Program, String)> {
    let program = toolset().context("no toolset")?;
    let mut program = Program::other(server, &program.to_string_lossy(), &[&port.to_string()]).start()?;
    let url = program.event("toolset").await?["url"].as_str().context("no URL")?.to_owned();
    Ok((program, url))
}

/// Joins with the tools of a toolset, whose person allows all.
async fn join(server: &Server, room: &str, url: &str) -> anyhow::Result<(Assistant, Client)> {
    let tools = rap::toolset(url).name("published").await?;
    let builder = Assistant::builder().tools(tools).consent(|_| async { true });
    let assistant = assistant(server, room, "assistant", builder).await?;
    // A person who signs in wherever it is asked.
    let phone = Client::builder().prompt(|request: PromptRequest| async move {
        let Prompt::Authorize(question) = request.prompt() else { return Err(ToolError::from("not asked")) };
        Ok(if question.url == SIGN_IN { PromptAnswer::done() } else { PromptAnswer::declined() })
    });
    let phone = client(server, room, "phone", phone).await?;
    assistant.ready("phone").await?;
    Ok((assistant, phone))
}

fn text(value: &toolbridge::Value) -> String {
    ToolResult::of(value).for_model(10_000).text.into_owned()
}

async fn play(assistant: &Assistant, steps: Json) -> Result<toolbridge::Value, CallError> {
    assistant.call("play", json!({ "steps": steps })).await
}

async fn view(events: &mut Events) -> anyhow::Result<Json> {
    let shown = |event: Event| match event {
        Event::View { view, .. } => Some(json!([view.view, view.content.to_json()])),
        _ => None,
    };
    event(events, "a view", shown).await
}

async fn answers() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "rap-crate");
    let (mut program, url) = start(&server, 0).await?;
    let (assistant, phone) = join(&server, room, &url).await?;
    let mut seen = phone.events();

    // The second call overtakes the first, and its result comes twice.
    let first = assistant.call("play", json!({"steps": [["hold"], ["result", "first"]]})).start();
    program.event("/invoke").await?;
    let second = play(&assistant, json!([["twice", "second"]])).await?;
    ensure!(text(&second) == "second", "{}", text(&second));
    program.write("release").await?;
    let first = first.await?;
    ensure!(text(&first) == "first", "{}", text(&first));

    let pictured = play(&assistant, json!([["image"]])).await?;
    let pictured = ToolResult::of(&pictured);
    let [_, image] = pictured.content() else { anyhow::bail!("the image is missing: {pictured:?}") };
    ensure!(matches!(image.kind(), BlockKind::Image(image) if image.size() == 1 << 20), "{pictured:?}");

    let failed = play(&assistant, json!([["result", "Error: the disk is full"]])).await;
    ensure!(matches!(&failed, Err(CallError::Tool(error)) if error.message() == "Error: the disk is full"));

    let signed_in = play(&assistant, json!([["sign-in", SIGN_IN], ["result", "signed in"]])).await?;
    ensure!(text(&signed_in) == "signed in", "{}", text(&signed_in));
    let declined = play(&assistant, json!([["sign-in", "https://other.example/"], ["hold"]])).await;
    ensure!(matches!(&declined, Err(CallError::Tool(error)) if error.code() == ErrorCode::PERMISSION_DENIED));
    program.event("/cancel_tool_call").await?;
    program.write("release").await?;

    // An event before the result, others after it, and views before and after.
    let steps = json!([
        ["view", "plan", {"step": 1}],
        ["event", "early"],
        ["subscribed", "Watching."],
        ["event", "opened"],
        ["view", "plan", {"step": 2}],
        ["event", "closed", true],
        ["event", "after the end"],
        ["view", "plan", {"step": 3}],
    ]);
    let watching = play(&assistant, steps).await?;
    ensure!(text(&watching).starts_with("Watching."), "{}", text(&watching));
    // Only its latest state counts.
    while view(&mut seen).await? != json!(["published/plan", {"step": 3}]) {}
    let events: Vec<String> = assistant
        .late_results()
        .iter()
        .map(|it| it.result.as_ref().as_ref().map_or_else(ToString::to_string, text))
        .collect();
    ensure!(events == ["early", "opened", "closed"], "{events:?}");

    assistant.close().await;
    program.event("/close_thread").await?;
    ensure!(program.finish().await?.code == Some(0));
    Ok(())
}

async fn asked_at_a_terminal() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "rap-crate-terminal");
    let (mut program, url) = start(&server, 0).await?;
    let command =
        format!("toolbridge client --room {room} --identity phone --rap published={url} --yes 'published.*'");
    // It gives the command a terminal.
    let mut phone = Program::other(&server, "script", &["-qec", &command, "/dev/null"]).start()?;
    phone.line("joined as phone").await?;
    let assistant = assistant(&server, room, "assistant", Assistant::builder().client("phone")).await?;
    assistant.ready("phone").await?;
    let steps = json!([["sign-in", SIGN_IN], ["hold"], ["result", "signed in"]]);
    let call = assistant.call("play", json!({ "steps": steps })).start();
    phone.line("published asks you to sign in").await?;
    phone.line(&format!("published asks to open {SIGN_IN}")).await?;
    phone.write("yes").await?;
    program.write("release").await?;
    ensure!(text(&soon("the result", call).await??) == "signed in");
    assistant.close().await;
    phone.kill();
    Ok(())
}

async fn starts_later() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "rap-crate-later");
    // A port that is free again.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let (assistant, _phone) = join(&server, room, &format!("http://127.0.0.1:{port}")).await?;
    let health = || assistant.sources().first().map(|it| it.health.clone());
    ensure!(matches!(health(), Some(SourceHealth::Down { .. } | SourceHealth::Starting)), "{:?}", health());
    let mut events = assistant.events();
    let (program, _) = start(&server, port).await?;
    let is_up = |it: &Event| matches!(it, Event::Source(status) if status.health == SourceHealth::Up);
    event(&mut events, "the toolset", |it| is_up(&it).then_some(())).await?;
    let answered = play(&assistant, json!([["result", "here"]])).await?;
    ensure!(text(&answered) == "here");

    program.kill();
    let failed = soon("a failure", play(&assistant, json!([["result", "gone"]]))).await?;
    ensure!(
        matches!(&failed, Err(CallError::Tool(error)) if error.message().contains("cannot be reached")),
        "{failed:?}"
    );
    Ok(())
}
