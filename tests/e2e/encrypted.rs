//! Rooms whose data is encrypted end to end: among toolbridge participants, and with the official SDKs.

use std::time::Duration;

use anyhow::{bail, ensure};
use libtest_mimic::Trial;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use toolbridge::{
    Assistant, CallError, Client, ToolError,
    livekit::{ConnectOptions, E2eeKey, LiveKitTransport},
    transport::{Packet, Transport as _, TransportEvent},
};

use crate::{
    ends::{assistant, client, double, pair, unhurried},
    peers::answers,
    program::{Program, missing_for},
    server::{Server, shared},
    soon, trial_with,
};

const KEY: &str = "correct horse";

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = trials![encrypted:
        participants_with_the_key_call_each_other,
        only_participants_with_the_key_read_a_packet,
        participant_with_another_key_is_not_called,
    ];
    for (language, program) in
        [("python", "client.py"), ("node", "client.mjs"), ("a_browser", "browser.mjs client")]
    {
        let missing = move || missing_for(program);
        let name = format!("encrypted::client_in_{language}_is_called");
        trials.push(trial_with(&name, missing, move || called(program)));
        let name = format!("encrypted::client_in_{language}_with_another_key_is_not_called");
        trials.push(trial_with(&name, missing, move || not_called(program)));
    }
    trials
}

fn with_key(key: &str) -> ConnectOptions {
    ConnectOptions::new().e2ee_key(E2eeKey::new(key))
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Text {
    text: String,
}

async fn echo(text: Text) -> Result<Text, ToolError> {
    Ok(text)
}

async fn participants_with_the_key_call_each_other() -> anyhow::Result<()> {
    // 51 calls within a second exceed the client's own rate limit.
    let phone = Client::builder().configure(unhurried).tool("double", "", double).tool("echo", "", echo);
    let brain = Assistant::builder().connect_options(with_key(KEY));
    let (server, phone) = (shared()?, phone.connect_options(with_key(KEY)));
    let (_phone, brain) = pair(&server, "encrypted", phone, brain).await?;
    for n in 0..50 {
        ensure!(brain.call("double", json!({"n": n})).await?.decode::<u64>()? == 2 * n);
    }
    let text = "x".repeat(1 << 20);
    let echoed: Text = brain.call("echo", json!({"text": text})).await?.decode()?;
    ensure!(echoed.text == text, "a stream in each direction");
    Ok(())
}

async fn only_participants_with_the_key_read_a_packet() -> anyhow::Result<()> {
    let server = shared()?;
    let join = async |name: &str, options: ConnectOptions| {
        let token = server.key().client("readers", name).sign()?;
        anyhow::Ok(options.join(&server.url(), &token).await?)
    };
    let (sender, mut reader) = (join("sender", with_key(KEY)).await?, join("reader", with_key(KEY)).await?);
    let mut other = join("other", with_key("another")).await?;
    let (stranger, mut open) =
        (join("stranger", ConnectOptions::new()).await?, join("open", ConnectOptions::new()).await?);
    sender.send(Packet::broadcast("secret")).await?;
    stranger.send(Packet::broadcast("plain")).await?;
    sender.send(Packet::broadcast("last")).await?;
    stranger.send(Packet::broadcast("last")).await?;
    ensure!(until_last(&mut reader).await? == ["secret"]);
    ensure!(until_last(&mut open).await? == ["plain"]);
    let lone = join("lone", with_key("another")).await?;
    lone.send(Packet::broadcast("last")).await?;
    ensure!(until_last(&mut other).await?.is_empty());
    Ok(())
}

/// Returns the packets that arrive before the one that says `last`.
async fn until_last(room: &mut LiveKitTransport) -> anyhow::Result<Vec<String>> {
    let mut read = Vec::new();
    loop {
        match soon("a packet", room.recv()).await? {
            Some(TransportEvent::Packet(packet)) => match std::str::from_utf8(&packet.payload)? {
                "last" => return Ok(read),
                text => read.push(text.to_owned()),
            },
            Some(_) => {}
            None => bail!("the connection ended"),
        }
    }
}

async fn participant_with_another_key_is_not_called() -> anyhow::Result<()> {
    let phone = Client::builder().tool("double", "", double).connect_options(with_key("another"));
    let brain = Assistant::builder().connect_options(with_key(KEY));
    let server = shared()?;
    let (phone, brain) = pair(&server, "another-key", phone, brain).await?;
    let call = brain.call("double", json!({"n": 21})).timeout(Duration::from_secs(3));
    ensure!(matches!(call.await, Err(CallError::UnknownTool { .. })));
    // Each has tried to greet the other.
    ensure!(brain.stats().named("undecryptable") > 0, "{:?}", brain.stats());
    ensure!(phone.stats().named("undecryptable") > 0, "{:?}", phone.stats());
    // One without a key is counted at both ends, too.
    let plain =
        client(&server, "another-key", "tablet", Client::builder().tool("double", "", double)).await?;
    let call = brain.call("double", json!({"n": 21})).to("tablet").timeout(Duration::from_secs(3));
    ensure!(call.await.is_err());
    ensure!(brain.stats().named("not_encrypted") > 0, "{:?}", brain.stats());
    ensure!(plain.stats().named("encrypted") > 0, "{:?}", plain.stats());
    Ok(())
}

/// Starts an SDK client with this key in the room.
async fn their_client(server: &Server, room: &str, program: &str, key: &str) -> anyhow::Result<Program> {
    let token = server.key().client(room, "phone").sign()?;
    let mut peer = Program::peer(server, &token, program, &[])?.env("E2EE_KEY", key).start()?;
    peer.event("ready").await?;
    Ok(peer)
}

async fn called(program: &str) -> anyhow::Result<()> {
    let (server, room) = (shared()?, format!("encrypted-{program}"));
    let brain = Assistant::builder().connect_options(with_key(KEY));
    let brain = assistant(&server, &room, "assistant", brain).await?;
    let _phone = their_client(&server, &room, program, KEY).await?;
    answers(&brain).await
}

async fn not_called(program: &str) -> anyhow::Result<()> {
    let (server, room) = (shared()?, format!("wrong-key-{program}"));
    let brain = Assistant::builder().connect_options(with_key(KEY));
    let brain = assistant(&server, &room, "assistant", brain).await?;
    let _phone = their_client(&server, &room, program, "another").await?;
    let limit = Duration::from_secs(6);
    let call = brain.call("get_battery", ()).to("phone").timeout(limit).await;
    ensure!(matches!(call, Err(CallError::Timeout { .. })), "{call:?}");
    Ok(())
}
