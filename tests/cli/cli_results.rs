//! Results with parts, as the command line shows them: on a screen, as speech, as JSON, and below the lines of `watch`.

use std::{
    io::Write as _,
    iter,
    process::{Child, Output, Stdio},
    thread,
};

use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use toolbridge::{
    Client, ToolError, ToolResult, Tools,
    livekit::AccessKey,
    result::{Diff, Display, DisplayContent, Widget},
};

use crate::{
    cli::{text, toolbridge},
    cli_dev::dev,
    cli_tools::{lines, terminal, until},
};

/// A change that is shown, and a text that is spoken, with an attempt to control the screen.
async fn edit() -> Result<ToolResult, ToolError> {
    let mut diff = Diff::default();
    diff.path = "src/\u{1b}[31mlamp.rs".into();
    (diff.old_text, diff.new_text) = (Some("off\n".into()), Some("on\n".into()));
    let display = Display::new(DisplayContent::Diff(diff));
    Ok(ToolResult::default()
        .with_person_text("The lamp is on.")
        .with_model_text("hidden")
        .with_display(display))
}

/// A form, whose title is spoken.
async fn ask() -> Result<ToolResult, ToolError> {
    let form = json!({"json_schema": {"properties": {"room": {"enum": ["kitchen", "hall"]}}}});
    Ok(ToolResult::default().with_widget(Widget::new(form).with_title("Which room?")))
}

async fn fail() -> Result<(), ToolError> {
    let partial = ToolResult::default().with_person_text("Half of it is done.");
    Err(ToolError::new("half", "the lamp broke").with_partial(partial.to_value()))
}

/// A server, and the client `phone` in its room.
struct Stage {
    server: Child,
    settings: Vec<(String, String)>,
    _phone: Client,
}

impl Stage {
    async fn new() -> Self {
        let (server, settings) = dev();
        let setting = |name: &str| settings.iter().find(|(it, _)| it == name).unwrap().1.clone();
        let key = AccessKey::new(setting("LIVEKIT_API_KEY"), setting("LIVEKIT_API_SECRET"));
        let tools = Tools::new().tool("edit", "", edit).tool("ask", "", ask).tool("fail", "", fail);
        let token = key.client("r", "phone").sign().unwrap();
        let phone = Client::builder().tools(tools).join(&setting("LIVEKIT_URL"), &token).await.unwrap();
        Self { server, settings, _phone: phone }
    }

    /// Calls a tool. The standard output of the call is this.
    async fn call_into(&self, arguments: &[&str], stdout: Stdio) -> Output {
        let all = [&["call", "--room", "r", "--to", "phone"], arguments].concat();
        let mut call = toolbridge(&all);
        call.env("TERM", "xterm").env_remove("NO_COLOR");
        call.envs(self.settings.clone()).stdout(stdout).stderr(Stdio::piped());
        let call = call.spawn().unwrap();
        spawn_blocking(|| call.wait_with_output().unwrap()).await.unwrap()
    }

    async fn call(&self, arguments: &[&str]) -> Output {
        self.call_into(arguments, Stdio::piped()).await
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn result_is_json_for_programs_and_rendered_on_a_terminal() {
    let stage = Stage::new().await;
    let piped = stage.call(&["edit"]).await;
    assert_eq!(text(&piped.stdout).lines().count(), 1, "{piped:?}");
    let value: Value = serde_json::from_slice(&piped.stdout).unwrap();
    assert_eq!(value["bridge.result"], 1);
    assert!(!text(&piped.stdout).contains("hidden"), "what is for the model alone is not shown: {piped:?}");
    assert_eq!(value["cut"], json!([{"part": "content", "pointer": "/1"}]));
    let whole = stage.call(&["edit", "--json"]).await;
    assert!(whole.status.success() && !text(&whole.stdout).contains("hidden"), "{whole:?}");

    let expected = "The lamp is on.\n\n── src/\\u{1b}[31mlamp.rs · +1 −1\n@@ -1 +1 @@\n-off\n+on\n";
    let shown = stage.call(&["edit", "--view", "screen"]).await;
    assert_eq!(text(&shown.stdout), expected, "{shown:?}");
    let (screen, stdout) = terminal();
    let seen = thread::spawn(move || {
        let lines = lines(screen);
        iter::repeat_with(|| lines.recv().unwrap()).take(6).collect::<Vec<_>>()
    });
    let call = stage.call_into(&["edit"], stdout).await;
    assert!(call.status.success(), "{call:?}");
    let seen = seen.join().unwrap();
    assert_eq!(seen[0].trim_end(), "The lamp is on.");
    assert_eq!(seen[5].trim_end(), "\u{1b}[32m+on\u{1b}[0m", "{seen:?}");
    assert!(!seen.join("\n").contains("\u{1b}[31mlamp"), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn client_without_a_screen_says_the_short_text() {
    let stage = Stage::new().await;
    for (tool, spoken, needs_model) in [("edit", "The lamp is on.\n", true), ("ask", "Which room?\n", false)]
    {
        let said = stage.call(&[tool, "--view", "voice"]).await;
        assert_eq!(text(&said.stdout), spoken, "{said:?}");
        assert_eq!(text(&said.stderr).contains("a model speaks"), needs_model, "{said:?}");
    }
    let form = stage.call(&["ask", "--view", "screen"]).await;
    let shown = text(&form.stdout);
    assert_eq!(shown, "── Which room? · form\n1. room\n   • kitchen\n   • hall\n", "{form:?}");
    // What a failed tool has done so far is shown, too.
    let failed = stage.call(&["fail", "--view", "screen"]).await;
    assert_eq!(text(&failed.stdout), "Half of it is done.\n", "{failed:?}");
    assert!(failed.status.code() == Some(1) && text(&failed.stderr).contains("the lamp broke"), "{failed:?}");
    let failed = stage.call(&["fail"]).await;
    assert!(failed.stdout.is_empty(), "{failed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn program_that_drives_an_assistant_gets_the_short_text() {
    let stage = Stage::new().await;
    let mut assistant = toolbridge(&["assistant", "--room", "r", "--client", "phone"]);
    assistant.envs(stage.settings.clone()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut assistant = assistant.spawn().unwrap();
    let mut commands = assistant.stdin.take().unwrap();
    for tool in ["edit", "ask"] {
        writeln!(commands, "{}", json!({"type": "call", "id": tool, "tool": tool})).unwrap();
    }
    let seen = lines(assistant.stdout.take().unwrap());
    let results = spawn_blocking(move || {
        let mut results = [until(&seen, "\"type\":\"result\""), until(&seen, "\"type\":\"result\"")];
        results.sort_by_key(|line| line.contains("\"id\":\"ask\""));
        results.map(|line| serde_json::from_str::<Value>(&line).unwrap())
    });
    let [edit, ask] = results.await.unwrap();
    let views = |line: &Value| ["forModel", "needsModel", "spoken"].map(|key| line[key].clone());
    assert_eq!(views(&edit), [json!("hidden"), json!(true), json!("The lamp is on.")], "{edit}");
    assert_eq!(views(&ask), [json!(""), json!(false), json!("Which room?")], "{ask}");
    drop(commands);
    assistant.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_shows_a_result_in_a_few_lines() {
    let stage = Stage::new().await;
    let mut watch = toolbridge(&["watch", "--room", "r"])
        .envs(stage.settings.clone())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (seen, ready) = (lines(watch.stdout.take().unwrap()), lines(watch.stderr.take().unwrap()));
    spawn_blocking(move || until(&ready, "watching r")).await.unwrap();
    let call = stage.call(&["edit"]).await;
    assert!(call.status.success(), "{call:?}");
    let shown = spawn_blocking(move || {
        let result = until(&seen, "ToolUseResult");
        iter::once(result).chain(seen.iter().take(5)).collect::<Vec<_>>()
    });
    let shown = shown.await.unwrap();
    assert!(shown[0].contains("\"success\":true") && !shown[0].contains("bridge.result"), "{shown:#?}");
    let below = ["The lamp is on.", "── src/\\u{1b}[31mlamp.rs · +1 −1", "@@ -1 +1 @@", "-off", "+on"];
    assert_eq!(shown[1..], below.map(|line| format!("    {line}")));
    watch.kill().unwrap();
    watch.wait().unwrap();
}
