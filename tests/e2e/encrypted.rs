//! Rooms whose data is encrypted end to end: among toolbridge participants, and with the official SDKs.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    time::{Duration, Instant},
};

use anyhow::{bail, ensure};
use libtest_mimic::Trial;
use rustix::process::Signal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use toolbridge::{
    Assistant, CallError, Client, ToolError,
    livekit::{ConnectOptions, E2eeKey, E2eeKeys, LiveKitTransport},
    transport::{Packet, Transport as _, TransportEvent},
};

use crate::{
    ends::{assistant, client, double, pair, unhurried},
    peers::answers,
    program::{Program, folder, missing_for, tools_file},
    server::{Server, shared},
    soon, trial_with,
};

const KEY: &str = "correct horse";

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = trials![encrypted:
        participants_with_the_key_call_each_other,
        only_participants_with_the_key_read_a_packet,
        participant_with_another_key_is_not_called,
        command_line_says_which_key_to_pass,
        changed_key_file_is_read_again,
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
    let began = Instant::now();
    soon("both to be named", async {
        while [phone.stats(), brain.stats()].iter().any(|stats| stats.named("undecryptable") == 0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await?;
    println!("two keys are named at both ends after {:?}", began.elapsed());
    let call = brain.call("double", json!({"n": 21})).owner_wait(Duration::from_secs(1));
    let error = call.await.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(
        error.contains("phone may offer double, but encrypts its data with a key that this assistant"),
        "{error}"
    );
    // Each has tried to greet the other.
    ensure!(brain.stats().named("undecryptable") > 0, "{:?}", brain.stats());
    ensure!(phone.stats().named("undecryptable") > 0, "{:?}", phone.stats());
    // One without a key is counted at both ends, too.
    let plain =
        client(&server, "another-key", "tablet", Client::builder().tool("double", "", double)).await?;
    let call = brain.call("double", json!({"n": 21})).to("tablet").owner_wait(Duration::from_secs(4));
    let error = call.await.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(error.contains("tablet may offer double, but does not encrypt its data"), "{error}");
    ensure!(brain.stats().named("not_encrypted") > 0, "{:?}", brain.stats());
    ensure!(plain.stats().named("encrypted") > 0, "{:?}", plain.stats());
    Ok(())
}

async fn command_line_says_which_key_to_pass() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "encrypted-command-line");
    let phone = Client::builder().tool("double", "", double).connect_options(with_key(KEY));
    let _phone = client(&server, room, "phone", phone).await?;
    let call = async |key: Option<&str>| {
        let there = ["call", "double", r#"{"n": 21}"#, "--room", room, "--wait", "6s"];
        let mut planned = Program::toolbridge(&server, &there);
        if let Some(key) = key {
            let path = folder(room)?.join("shared.key");
            fs::write(&path, key)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
            planned = planned.arg("--e2ee-key-file").arg(path);
        }
        planned.run().await
    };
    let listing = Program::toolbridge(&server, &["tools", "--room", room, "--wait", "6s"]);
    let (without, other, listing) = tokio::try_join!(call(None), call(Some("another")), listing.run())?;
    let advice = "phone: the room is encrypted; pass --e2ee-key-file";
    ensure!(without.code != Some(0) && without.stderr.contains(advice), "{without:?}");
    let advice = "phone: its data is encrypted otherwise; check that all participants have the same key";
    ensure!(other.code != Some(0) && other.stderr.contains(advice), "{other:?}");
    // Of whoever sent first: an observer is advised once.
    ensure!(listing.stderr.matches("pass --e2ee-key-file").count() == 1, "{listing:?}");
    let with = call(Some(KEY)).await?;
    ensure!(with.code == Some(0) && with.stdout.trim() == r#"{"value":42}"#, "{with:?}");
    Ok(())
}

/// The command line reads a key file again that has changed, and takes the place and the ratchet of the others.
async fn changed_key_file_is_read_again() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "changed-key-file");
    let (path, tools) = (folder(room)?.join("shared.key"), tools_file(room, &[("double", "echo 42")])?);
    let write = |text: &str| {
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))
    };
    write("the first\n")?;
    let mut phone =
        Program::toolbridge(&server, &["client", "--room", room, "--identity", "phone", "--tools"])
            .arg(&tools)
            .args(&["--e2ee-salt", "sea", "--e2ee-ratchet-window", "2", "--e2ee-key-file"])
            .arg(&path)
            .start()?;
    phone.line("joined as phone").await?;
    let key = |secret: &str| E2eeKey::new(secret).salt("sea");
    let keys = E2eeKeys::new(key("the first").index(5)?);
    let brain = Assistant::builder().connect_options(ConnectOptions::new().e2ee_keys(&keys));
    let brain = assistant(&server, room, "assistant", brain).await?;
    let called = async || brain.call("double", ()).timeout(Duration::from_secs(3)).await;
    // A request that the other one could not read yet is lost.
    let soon_called = |what| soon(what, async { while called().await.is_err() {} });
    ensure!(called().await?.to_json() == json!({"value": 42}));
    write("the second\n")?;
    keys.set(key("the second").index(6)?);
    soon_called("the second key").await?;
    keys.ratchet();
    soon_called("the ratchet").await?;
    phone.signal(Signal::USR1)?;
    soon("a result that cannot be read", async { while called().await.is_ok() {} }).await?;
    keys.ratchet();
    soon_called("the ratchet of the command line").await
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
