//! Rooms with several clients: which one is called, and which frames each receives.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{bail, ensure};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use toolbridge::{
    Assistant, AssistantBuilder, CallError, Client, ConnectionState, Event, State, ToolError, Tools,
    session::SelectionPolicy,
};

use crate::{
    ends::{assistant, client, event},
    program::{Program, has_peers},
    relay::Relay,
    server::{self, Server, shared},
    soon, trial_with,
};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = trials![several:
        two_clients_with_one_tool_are_ambiguous_unless_one_is_named_pinned_or_left,
        policy_selects_among_two_clients_with_one_tool,
    ];
    trials.push(trial_with(
        "several::plain_clients_are_unaffected_by_frames_between_others",
        missing,
        plain_clients_are_unaffected_by_frames_between_others,
    ));
    trials
}

fn missing() -> Option<&'static str> {
    server::missing().or_else(|| (!has_peers()).then_some("tests/peers (scripts/parts peers)"))
}

/// Returns the name of the client that runs it.
async fn who(State(name): State<&'static str>) -> Result<&'static str, ToolError> {
    Ok(name)
}

/// Two clients with the same tool, the kitchen's registered first, and an assistant that knows both.
async fn two_clients(
    server: &Server,
    room: &str,
    brain: AssistantBuilder,
) -> anyhow::Result<(Client, Client, Assistant)> {
    let brain = assistant(server, room, "assistant", brain.client("kitchen").client("hall")).await?;
    let join = async |name: &'static str| {
        let tools = Tools::with_state(name).tool("who", "", who).tool("pinned", "", who);
        let joined = client(server, room, name, Client::builder().assistant("assistant").tools(tools)).await;
        soon("the registration", async {
            while !brain.tools().iter().any(|offer| offer.owner == name) {
                tokio::task::yield_now().await;
            }
        })
        .await?;
        joined
    };
    let (kitchen, hall) = (join("kitchen").await?, join("hall").await?);
    Ok((kitchen, hall, brain))
}

async fn asked(brain: &Assistant) -> anyhow::Result<String> {
    Ok(brain.call("who", ()).await?.decode()?)
}

async fn two_clients_with_one_tool_are_ambiguous_unless_one_is_named_pinned_or_left() -> anyhow::Result<()> {
    let server = shared()?;
    let builder = Assistant::builder().pin("pinned", "kitchen");
    let (kitchen, hall, brain) = two_clients(&server, "household", builder).await?;
    match brain.call("who", ()).await {
        Err(CallError::Ambiguous { owners, .. }) => ensure!(owners == ["hall", "kitchen"], "{owners:?}"),
        other => bail!("{other:?}"),
    }
    for name in ["hall", "kitchen"] {
        ensure!(brain.call("who", ()).to(name).await?.decode::<String>()? == name);
    }
    ensure!(brain.call("pinned", ()).await?.decode::<String>()? == "kitchen");
    // A named client is never replaced by another.
    ensure!(brain.call("pinned", ()).to("kitchen").await?.decode::<String>()? == "kitchen");
    let jobs = hall.stats().named("jobs");
    kitchen.close().await;
    soon("the goodbye", async {
        while brain.tools().iter().any(|offer| offer.owner == "kitchen") {
            tokio::task::yield_now().await;
        }
    })
    .await?;
    ensure!(asked(&brain).await? == "hall", "the only remaining client");
    let gone = brain.call("pinned", ()).owner_wait(Duration::ZERO).await;
    ensure!(matches!(gone, Err(CallError::UnknownTool { .. })), "{gone:?}");
    ensure!(hall.stats().named("jobs") == jobs + 1);
    Ok(())
}

/// How often a policy may be misled by a frame that arrives late.
const TRIES: usize = 5;

async fn policy_selects_among_two_clients_with_one_tool() -> anyhow::Result<()> {
    let server = shared()?;
    let by = SelectionPolicy::by(|tool, among| {
        let wanted = among.iter().find(|it| tool == Some("who") && it.identity == "hall");
        wanted.map(|it| it.identity.clone())
    });
    let policies = [
        ("first", SelectionPolicy::First),
        ("last", SelectionPolicy::Last),
        ("heard", SelectionPolicy::LastHeard),
        ("by", by),
    ];
    for (name, policy) in policies {
        let room = format!("household-{name}");
        let (kitchen, hall, brain) = two_clients(&server, &room, Assistant::builder().choose(policy)).await?;
        for talks in ["kitchen", "hall", "kitchen"] {
            let expected = match name {
                "first" => "kitchen",
                "last" | "by" => "hall",
                _ => talks,
            };
            // A result that was sent a second time is a later frame, of the other client.
            let mut tries = if name == "heard" { TRIES } else { 1 };
            loop {
                brain.call("who", ()).to(talks).await?;
                let answer = asked(&brain).await?;
                if answer == expected {
                    break;
                }
                tries -= 1;
                ensure!(tries > 0, "{name}, after {talks}: {answer}");
            }
        }
        // The client that would be selected leaves: the other one is called, as the only one.
        let (leaves, stays) = match name {
            "last" | "by" => (&hall, "kitchen"),
            _ => (&kitchen, "hall"),
        };
        leaves.close().await;
        soon("the goodbye", async {
            while brain.tools().iter().any(|offer| offer.owner != stays) {
                tokio::task::yield_now().await;
            }
        })
        .await?;
        ensure!(asked(&brain).await? == stays, "{name}");
    }
    Ok(())
}

/// A client of an official SDK, with everything that it received.
struct Plain {
    name: &'static str,
    program: Program,
    /// The calls that it received.
    calls: Vec<String>,
}

impl Plain {
    async fn join(server: &Server, room: &str, name: &'static str, program: &str) -> anyhow::Result<Self> {
        let token = server.key().client(room, name).sign()?;
        let mut program = Program::peer(server, &token, program, &["--show"])?.start()?;
        program.event("ready").await?;
        Ok(Self { name, program, calls: Vec::new() })
    }

    async fn answers(&mut self, brain: &Assistant) -> anyhow::Result<()> {
        let said = json!({"text": "grüß dich 👋", "list": [1, -2, 2.5, null, true]});
        let call = brain.call("echo", &said).to(self.name).start();
        self.calls.extend(call.id().map(ToString::to_string));
        let heard = soon("the result", call).await??;
        ensure!(heard.to_json() == said, "{}: {}", self.name, heard.to_json());
        Ok(())
    }

    /// A call that is stopped before it is answered.
    async fn is_stopped(&mut self, brain: &Assistant) -> anyhow::Result<()> {
        let mut call = brain.call("hang", ()).to(self.name).start();
        self.calls.extend(call.id().map(ToString::to_string));
        call.cancel();
        ensure!(matches!(call.await, Err(CallError::Cancelled)));
        Ok(())
    }

    /// Asserts that it received its own requests, and only frame types of the base protocol.
    async fn heard(self) -> anyhow::Result<BTreeMap<u64, usize>> {
        let name = self.name;
        let output = self.program.finish().await?;
        ensure!(output.code == Some(0), "{output:?}");
        let mut kinds = BTreeMap::new();
        let mut asked = Vec::new();
        for line in output.stdout.lines() {
            let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
            if line["event"] != "heard" {
                continue;
            }
            let kind = line["type"].as_u64().unwrap_or_default();
            ensure!([6, 7, 8, 10, 12].contains(&kind), "{name} received {line}");
            ensure!(line["from"] == "assistant", "{name} received {line}");
            ensure!(line["bytes"].as_u64().is_some_and(|bytes| bytes < 1_500), "{name} received {line}");
            *kinds.entry(kind).or_default() += 1;
            if kind == 6 || kind == 7 {
                asked.push(line["id"].as_str().unwrap_or_default().to_owned());
            }
        }
        ensure!(asked == self.calls, "{name} got the requests {asked:?}, not {:?}", self.calls);
        Ok(kinds)
    }
}

/// Frames as streams, heartbeats of calls, registrations, observers and a rejoin: all of it happens between others.
async fn plain_clients_are_unaffected_by_frames_between_others() -> anyhow::Result<()> {
    const LARGE: usize = 1_000_000;
    let (server, room) = (shared()?, "unharmed");
    let relay = Relay::start(&server).await?;
    let mut watch = Program::toolbridge(&server, &["watch", "--json", "--room", room]).start()?;
    let (let_go, may_go) = mpsc::channel::<()>(1);
    let waits = std::sync::Arc::new(tokio::sync::Mutex::new(may_go));
    let tools = Tools::with_state(waits).tool("long", "Runs through it all", long);
    let ours = Client::builder().assistant("assistant").tools(tools).tool("large", "", large);
    let ours = client(&server, room, "ours", ours).await?;
    let token = server.key().assistant(room, "assistant").sign()?;
    let brain = Assistant::builder().client("ours").join(&relay.url(), &token).await?;
    let mut python = Plain::join(&server, room, "python", "client.py").await?;
    let mut node = Plain::join(&server, room, "node", "client.mjs").await?;

    let through_it_all = brain.call("long", ()).start();
    let large = async |brain: &Assistant| -> anyhow::Result<()> {
        let text = brain.call("large", json!({"text": "x".repeat(LARGE)})).await?.decode::<String>()?;
        ensure!(text.len() == LARGE);
        Ok(())
    };
    for plain in [&mut python, &mut node] {
        plain.answers(&brain).await?;
        large(&brain).await?;
        plain.answers(&brain).await?;
    }

    let mut events = brain.events();
    relay.evict();
    for wanted in [ConnectionState::Reconnecting, ConnectionState::Connected] {
        event(&mut events, "the link", |event| match event {
            Event::ConnectionState(state) if state == wanted => Some(()),
            _ => None,
        })
        .await?;
    }
    for plain in [&mut python, &mut node] {
        plain.answers(&brain).await?;
        large(&brain).await?;
        plain.is_stopped(&brain).await?;
        plain.answers(&brain).await?;
    }
    let_go.send(()).await?;
    ensure!(soon("the long call", through_it_all).await??.decode::<u64>()? == 1);

    // The observer saw their requests, and they received nothing from the observer.
    watch
        .find("a request to a plain one", |line| {
            let value: Value = serde_json::from_str(line).ok()?;
            (value["frame"]["name"] == "ToolUseRequest"
                && value["frame"]["body"]["id"] == *node.calls.last()?)
            .then_some(())
        })
        .await?;
    for plain in [python, node] {
        let name = plain.name;
        let kinds = plain.heard().await?;
        println!("{name} heard, by type: {kinds:?}");
        ensure!(kinds.get(&6) == Some(&5) && kinds.get(&10) == Some(&1), "{name}: {kinds:?}");
    }
    for end in [brain.stats(), ours.stats()] {
        for kind in ["malformed", "not_permitted", "unauthorized", "late", "wrong_room"] {
            ensure!(end.named(kind) == 0, "{end:?}");
        }
    }
    Ok(())
}

type MayGo = std::sync::Arc<tokio::sync::Mutex<mpsc::Receiver<()>>>;

async fn long(State(may_go): State<MayGo>) -> Result<u64, ToolError> {
    may_go.lock().await.recv().await;
    Ok(1)
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Text {
    text: String,
}

async fn large(text: Text) -> Result<String, ToolError> {
    Ok(text.text)
}
