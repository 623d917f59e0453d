//! Sessions over the real server, recorded, one per kind of ending: the recording describes them correctly. With
//! `TOOLBRIDGE_MAKE_RECORDINGS=1` they become `fixtures/recordings`.

use std::{
    env, fs,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use anyhow::ensure;
use libtest_mimic::Trial;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{process::Command, sync::Notify};
use toolbridge::{
    Assistant, AssistantBuilder, CallError, Client, ClientBuilder, ConnectionState, Event, ToolContext,
    ToolError, ToolOptions,
};

use crate::{
    ends::{assistant, client, event, hang, offers, pair, started},
    program::{Program, folder, has_peers, tools_file},
    recorded::{SESSIONS, Session, wrong},
    relay::Relay,
    rpc,
    server::{self, Server, shared},
    soon, trial_with,
};

type Recorded = Pin<Box<dyn Future<Output = anyhow::Result<()>>>>;

/// A server and a file to record to.
struct Stage {
    server: Arc<Server>,
    room: String,
    folder: PathBuf,
    name: &'static str,
}

pub(crate) fn trials() -> Vec<Trial> {
    let of = |name: &str| SESSIONS.iter().find(|session| session.name == name);
    let mut trials = Vec::new();
    let mut add = |name: &'static str, record: fn(Stage) -> Recorded, names: &'static [&'static str]| {
        let sessions: Vec<&Session> = names.iter().filter_map(|name| of(name)).collect();
        assert_eq!(sessions.len(), names.len(), "{name}");
        let missing = move || missing(["plain-peer", "unknown-tool", "called-by-rpc"].contains(&name));
        trials.push(trial_with(&format!("recordings::{name}"), missing, move || {
            made(name, record, sessions.clone())
        }));
    };
    add("success", |it| Box::pin(success(it)), &["success", "success-phone"]);
    add("tool-error", |it| Box::pin(tool_error(it)), &["tool-error"]);
    add("unknown-tool", |it| Box::pin(unknown_tool(it)), &["unknown-tool"]);
    add("invalid-parameters", |it| Box::pin(invalid_parameters(it)), &["invalid-parameters"]);
    add("permission-denied", |it| Box::pin(permission_denied(it)), &["permission-denied"]);
    add("busy", |it| Box::pin(busy(it)), &["busy"]);
    add("result-too-large", |it| Box::pin(result_too_large(it)), &["result-too-large"]);
    add("cancel", |it| Box::pin(cancel(it)), &["cancel"]);
    add("timeout", |it| Box::pin(timeout(it)), &["timeout"]);
    add("plain-peer", |it| Box::pin(plain_peer(it)), &["plain-peer"]);
    add("called-by-rpc", |it| Box::pin(called_by_rpc(it)), &["called-by-rpc"]);
    add("server-executed", |it| Box::pin(server_executed(it)), &["server-executed"]);
    add("claimed", |it| Box::pin(claimed(it)), &["claimed"]);
    add("lost-peer", |it| Box::pin(lost_peer(it)), &["lost-peer"]);
    add("rejoin", |it| Box::pin(rejoin(it)), &["rejoin", "rejoin-phone"]);
    trials
}

fn missing(needs_peers: bool) -> Option<&'static str> {
    if server::binary().is_none() {
        return Some("livekit-server");
    }
    (needs_peers && !has_peers()).then_some("tests/peers (scripts/parts peers)")
}

/// Records a session and checks the recording.
async fn made(
    name: &'static str,
    record: fn(Stage) -> Recorded,
    sessions: Vec<&'static Session>,
) -> anyhow::Result<()> {
    let folder = folder(&format!("recorded-{name}"))?;
    let stage = Stage { server: shared()?, room: format!("recorded-{name}"), folder: folder.clone(), name };
    record(stage).await?;
    for session in sessions {
        let file = folder.join(format!("{}.mcap", session.name));
        let wrong = wrong(&file, session);
        if !wrong.is_empty() {
            // The folder is removed; whoever looks for the cause needs the file.
            let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.mcap", session.name));
            fs::copy(&file, kept)?;
        }
        ensure!(wrong.is_empty(), "{}: {wrong:#?}", file.display());
        if env::var_os("TOOLBRIDGE_MAKE_RECORDINGS").is_some_and(|value| value == "1") {
            keep(&file, session).await?;
        }
    }
    Ok(())
}

/// Makes a fixture of it.
async fn keep(file: &Path, session: &Session) -> anyhow::Result<()> {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/recordings");
    fs::create_dir_all(&kept)?;
    let info = Command::new(env!("CARGO_BIN_EXE_toolbridge")).arg("info").arg(file).arg("--json").output();
    let info = soon("info", info).await??;
    ensure!(info.status.success(), "{info:?}");
    let info: Value = serde_json::from_slice(&info.stdout)?;
    fs::write(kept.join(format!("{}.json", session.name)), format!("{info:#}\n"))?;
    // Only its bytes: a recording is private to its owner, a fixture is public.
    fs::write(kept.join(format!("{}.mcap", session.name)), fs::read(file)?)?;
    Ok(())
}

impl Stage {
    fn file(&self) -> PathBuf {
        self.folder.join(format!("{}.mcap", self.name))
    }

    /// A phone, and an assistant that is recorded.
    async fn pair(
        &self,
        phone: ClientBuilder,
        brain: AssistantBuilder,
    ) -> anyhow::Result<(Client, Assistant)> {
        pair(&self.server, &self.room, phone, brain.record(self.file())).await
    }

    /// The recorded assistant, with a phone of another implementation.
    async fn assistant(&self) -> anyhow::Result<Assistant> {
        let brain = Assistant::builder().client("phone").record(self.file());
        assistant(&self.server, &self.room, "assistant", brain).await
    }

    /// A client over the official SDK for Python.
    async fn plain_phone(&self) -> anyhow::Result<Program> {
        let token = self.server.key().client(&self.room, "phone").sign()?;
        let mut phone = Program::peer(&self.server, &token, "client.py", &[])?.start()?;
        phone.event("ready").await?;
        Ok(phone)
    }
}

#[derive(Serialize)]
struct Battery {
    level: f32,
    charging: bool,
}

async fn get_battery() -> Result<Battery, ToolError> {
    Ok(Battery { level: 0.8, charging: true })
}

async fn export_album(cx: ToolContext) -> Result<u32, ToolError> {
    cx.progress("half way");
    cx.progress("nearly there");
    Ok(214)
}

#[derive(Deserialize, JsonSchema)]
struct Name {
    name: String,
}

async fn find_contact(who: Name) -> Result<String, ToolError> {
    Err(ToolError::new("no_such_contact", format!("there is no {}", who.name)))
}

/// The text of its error stays local.
async fn read_diary() -> Result<String, ToolError> {
    Err(std::io::Error::other("the key does not turn").into())
}

#[derive(Deserialize, JsonSchema)]
struct Lamp {
    on: bool,
}

async fn set_lamp(lamp: Lamp) -> Result<bool, ToolError> {
    Ok(lamp.on)
}

async fn erase_album(album: Name) -> Result<String, ToolError> {
    Ok(album.name)
}

/// Larger than any frame.
async fn take_photo() -> Result<String, ToolError> {
    Ok("x".repeat(17 << 20))
}

async fn search_web(query: Name) -> Result<Vec<String>, ToolError> {
    Ok(vec![format!("all about {}", query.name)])
}

fn battery() -> ClientBuilder {
    Client::builder().tool("get_battery", "Battery level (0 to 1) and charging state", get_battery)
}

async fn success(stage: Stage) -> anyhow::Result<()> {
    let phone = battery().tool("export_album", "Exports all pictures", export_album);
    let phone = phone.record(stage.folder.join("success-phone.mcap"));
    let (phone, brain) = stage.pair(phone, Assistant::builder()).await?;
    brain.call("get_battery", ()).await?;
    brain.call("export_album", ()).await?;
    brain.close().await;
    phone.close().await;
    Ok(())
}

async fn tool_error(stage: Stage) -> anyhow::Result<()> {
    let phone = Client::builder().tool("find_contact", "Looks a contact up", find_contact);
    let phone = phone.tool("read_diary", "Today's page", read_diary);
    let (phone, brain) = stage.pair(phone, Assistant::builder()).await?;
    for (tool, arguments) in [("find_contact", json!({"name": "Ada"})), ("read_diary", json!({}))] {
        let failed = brain.call(tool, arguments).await;
        ensure!(matches!(failed, Err(CallError::Tool(_))), "{failed:?}");
    }
    phone.close().await;
    brain.close().await;
    Ok(())
}

/// A toolbridge client never gets a request for a tool that it does not offer.
async fn unknown_tool(stage: Stage) -> anyhow::Result<()> {
    let brain = stage.assistant().await?;
    let phone = stage.plain_phone().await?;
    let unknown = brain.call("open_garage", ()).to("phone").await;
    ensure!(matches!(unknown, Err(CallError::UnknownTool { .. })), "{unknown:?}");
    brain.close().await;
    drop(phone);
    Ok(())
}

async fn invalid_parameters(stage: Stage) -> anyhow::Result<()> {
    let phone = Client::builder().tool("set_lamp", "Switches the lamp", set_lamp);
    let (phone, brain) = stage.pair(phone, Assistant::builder()).await?;
    let failed = brain.call("set_lamp", json!({"on": "bright"})).await;
    ensure!(matches!(failed, Err(CallError::Tool(_))), "{failed:?}");
    brain.close().await;
    phone.close().await;
    Ok(())
}

async fn permission_denied(stage: Stage) -> anyhow::Result<()> {
    let phone = Client::builder()
        .tool("erase_album", "Deletes an album", ToolOptions::destructive().on(erase_album))
        .consent(|_| async { false });
    let (phone, brain) = stage.pair(phone, Assistant::builder()).await?;
    let denied = brain.call("erase_album", json!({"name": "Rome"})).await;
    ensure!(matches!(denied, Err(CallError::Tool(_))), "{denied:?}");
    brain.close().await;
    phone.close().await;
    Ok(())
}

async fn busy(stage: Stage) -> anyhow::Result<()> {
    let phone = battery().configure(|config| config.caps.requests.calls_per_second = 1);
    let (phone, brain) = stage.pair(phone, Assistant::builder()).await?;
    let calls = [(); 3].map(|()| brain.call("get_battery", ()).start());
    let mut refused = 0;
    for call in calls {
        refused += usize::from(matches!(call.await, Err(CallError::Busy { .. })));
    }
    ensure!(refused == 2, "{refused}");
    brain.close().await;
    phone.close().await;
    Ok(())
}

async fn result_too_large(stage: Stage) -> anyhow::Result<()> {
    let phone = Client::builder().tool("take_photo", "A picture", take_photo);
    let (phone, brain) = stage.pair(phone, Assistant::builder()).await?;
    let failed = brain.call("take_photo", ()).await;
    ensure!(matches!(failed, Err(CallError::Tool(_))), "{failed:?}");
    brain.close().await;
    phone.close().await;
    Ok(())
}

async fn cancel(stage: Stage) -> anyhow::Result<()> {
    let (phone, brain) =
        stage.pair(battery().tool("hang", "Never answers", hang), Assistant::builder()).await?;
    let mut call = brain.call("hang", ()).start();
    started(&mut call).await?;
    call.cancel();
    ensure!(matches!(call.await, Err(CallError::Cancelled)));
    brain.call("get_battery", ()).await?;
    brain.close().await;
    phone.close().await;
    Ok(())
}

async fn timeout(stage: Stage) -> anyhow::Result<()> {
    let (phone, brain) =
        stage.pair(battery().tool("hang", "Never answers", hang), Assistant::builder()).await?;
    offers(&brain, "phone").await?;
    let late = brain.call("hang", ()).timeout(Duration::from_millis(400)).await;
    ensure!(matches!(late, Err(CallError::Timeout { .. })), "{late:?}");
    brain.call("get_battery", ()).await?;
    brain.close().await;
    phone.close().await;
    Ok(())
}

async fn plain_peer(stage: Stage) -> anyhow::Result<()> {
    let brain = stage.assistant().await?;
    let phone = stage.plain_phone().await?;
    brain.call("get_battery", ()).to("phone").await?;
    let failed = brain.call("fail", ()).to("phone").await;
    ensure!(matches!(failed, Err(CallError::Tool(_))), "{failed:?}");
    let late = brain.call("hang", ()).to("phone").timeout(Duration::from_millis(400)).await;
    ensure!(matches!(late, Err(CallError::Timeout { .. })), "{late:?}");
    brain.close().await;
    drop(phone);
    Ok(())
}

/// The official SDK for Python calls the phone, which is recorded.
async fn called_by_rpc(stage: Stage) -> anyhow::Result<()> {
    let ours = rpc::ours().answer_rpc().record(stage.file());
    let phone = client(&stage.server, &stage.room, "phone", ours).await?;
    let asked = json!([
        {"method": "double", "payload": r#"{"n": 21}"#},
        {"method": "echo", "bytes": 500},
        {"method": "echo", "bytes": 20_000},
        {"method": "fail", "payload": ""},
        {"method": "fly", "payload": ""},
    ]);
    let results = rpc::calls(&stage.room, "rpc_calls.py", true, None, asked).await?;
    ensure!(results[0]["payload"] == "42", "{results:?}");
    phone.close().await;
    Ok(())
}

async fn server_executed(stage: Stage) -> anyhow::Result<()> {
    let brain = Assistant::builder().tool("search_web", "Searches the web", search_web);
    let (phone, brain) = stage.pair(battery(), brain).await?;
    // After a call both know each other; otherwise the broadcast would come from an unknown sender.
    brain.call("get_battery", ()).await?;
    brain.call("search_web", json!({"name": "carbonara"})).await?;
    brain.close().await;
    phone.close().await;
    Ok(())
}

/// The assistant would run it itself if the phone did not.
async fn claimed(stage: Stage) -> anyhow::Result<()> {
    let options = ToolOptions::default().prefer_client();
    let brain = Assistant::builder().tool("search_web", "Searches the web", options.on(search_web));
    let phone = Client::builder().tool("search_web", "Searches on the phone", search_web);
    let (phone, brain) = stage.pair(phone, brain).await?;
    offers(&brain, "phone").await?;
    brain.call("search_web", json!({"name": "carbonara"})).await?;
    brain.close().await;
    phone.close().await;
    Ok(())
}

async fn lost_peer(stage: Stage) -> anyhow::Result<()> {
    let file = tools_file(&stage.room, &[("get_battery", "echo 0.8"), ("nap", "exec /bin/sleep 30")])?;
    let arguments = ["client", "--room", &stage.room, "--identity", "phone"];
    let mut phone = Program::toolbridge(&stage.server, &arguments).arg("--tools").arg(&file).start()?;
    phone.line("joined as phone").await?;
    let brain = stage.assistant().await?;
    brain.call("get_battery", ()).await?;
    let mut call = brain.call("nap", ()).start();
    started(&mut call).await?;
    phone.kill();
    let lost = soon("the loss", call).await?;
    ensure!(matches!(lost, Err(CallError::Lost { .. })), "{lost:?}");
    brain.close().await;
    Ok(())
}

/// Lets `wait` return.
static GO: Notify = Notify::const_new();

async fn wait() -> Result<u32, ToolError> {
    GO.notified().await;
    Ok(7)
}

/// The assistant loses its connection while a call is open, and rejoins.
async fn rejoin(stage: Stage) -> anyhow::Result<()> {
    let relay = Relay::start(&stage.server).await?;
    let phone = battery().tool("wait", "Answers when it is told to", wait).assistant("assistant");
    let phone = phone.record(stage.folder.join("rejoin-phone.mcap"));
    let phone = client(&stage.server, &stage.room, "phone", phone).await?;
    let token = stage.server.key().assistant(&stage.room, "assistant").sign()?;
    let brain = Assistant::builder().client("phone").record(stage.file()).join(&relay.url(), &token).await?;
    brain.call("get_battery", ()).await?;
    let mut call = brain.call("wait", ()).start();
    started(&mut call).await?;
    let mut events = brain.events();
    relay.evict();
    for state in [ConnectionState::Reconnecting, ConnectionState::Connected] {
        event(&mut events, "the link", |event| {
            matches!(event, Event::ConnectionState(it) if it == state).then_some(())
        })
        .await?;
    }
    GO.notify_one();
    ensure!(call.await?.decode::<u32>()? == 7);
    brain.call("get_battery", ()).await?;
    brain.close().await;
    phone.close().await;
    Ok(())
}
