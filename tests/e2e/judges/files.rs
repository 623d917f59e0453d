//! The recordings that are judged, one per kind.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::ensure;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio::time::sleep;
use toolbridge::{
    Assistant, CallError, Client, Event, ToolError,
    livekit::LiveKitTransport,
    memory,
    recording::{Entry, Happened, Recorder, RecorderOptions, Redact, RoomEvent, redact, repair},
    transport::{Packet, Transport},
};

use crate::{
    ends::{event, hang},
    report_sample::{afternoon, long},
    server::shared,
    soon,
};

/// The stranger's last packet.
const LAST: &str = "and this is no frame either";

/// The participants of the session below, in the order of its arguments.
const NAMES: [&str; 4] = ["assistant", "phone", "tablet", "stranger"];

/// The interval of polling a file for an entry.
const LOOK: Duration = Duration::from_millis(5);

/// Codes of records.
const CHUNK: u8 = 0x06;
const DATA_END: u8 = 0x0f;

/// A finished recording of an in-memory session.
pub(super) async fn finished(folder: PathBuf) -> anyhow::Result<PathBuf> {
    let file = folder.join("session.mcap");
    let room = memory::MemoryRoom::named("kitchen");
    let join = |name| if name == "assistant" { room.assistant(name) } else { room.client(name) };
    session(&file, NAMES.map(join)).await?;
    Ok(file)
}

/// The same session in a room of the real server.
pub(super) async fn over_the_server(folder: PathBuf) -> anyhow::Result<PathBuf> {
    let (server, file) = (shared()?, folder.join("session.mcap"));
    let room = format!("judged-{}", folder.file_name().unwrap_or_default().display());
    let join = async |name: &str| {
        let key = server.key();
        let token = if name == "assistant" { key.assistant(&room, name) } else { key.client(&room, name) };
        anyhow::Ok(LiveKitTransport::join(&server.url(), &token.sign()?).await?)
    };
    let [assistant, phone, tablet, stranger] = NAMES;
    let all = tokio::try_join!(join(assistant), join(phone), join(tablet), join(stranger))?;
    session(&file, all.into()).await?;
    Ok(file)
}

/// A recording that was redacted afterwards.
pub(super) async fn redacted(folder: PathBuf) -> anyhow::Result<PathBuf> {
    let (whole, file) = (finished(folder.clone()).await?, folder.join("redacted.mcap"));
    redact(&whole, &file, Redact::everything(), false)?;
    Ok(file)
}

/// A recording that is still being written: all messages are there, and nothing after them.
pub(super) async fn live(folder: PathBuf) -> anyhow::Result<PathBuf> {
    let (written, file) = (folder.join("session.mcap"), folder.join("live.mcap"));
    let entries = afternoon().entries();
    let recorder = told(&written, &entries)?;
    while recorder.stats().recorded + recorder.stats().unrecorded < packets(&entries)
        || !fs::read(&written)?.ends_with(br#""reason":"left"}"#)
    {
        sleep(LOOK).await;
    }
    fs::copy(&written, &file)?;
    recorder.finish()?;
    Ok(file)
}

/// A recording whose writer died within a message, repaired.
pub(super) async fn repaired(folder: PathBuf) -> anyhow::Result<PathBuf> {
    let (torn, file) = (live(folder.clone()).await?, folder.join("repaired.mcap"));
    let bytes = fs::read(&torn)?;
    fs::write(&torn, &bytes[..bytes.len() - 7])?;
    let repaired = repair(&torn, &file, false)?;
    ensure!(repaired.entries + 1 == afternoon().entries().len() as u64 && repaired.damage.is_some());
    Ok(file)
}

/// A recording of 20,000 frames, in several chunks.
pub(super) async fn of_many_chunks(folder: PathBuf) -> anyhow::Result<PathBuf> {
    let file = folder.join("long.mcap");
    let mut sample = long(10_000);
    let here =
        RoomEvent::Here { identity: "assistant".into(), sid: "PA_1".into(), room: "kitchen".to_owned() };
    sample.event(0, here);
    sample.event(3_700_000, RoomEvent::Closed { reason: "left".to_owned() });
    told(&file, &sample.entries())?.finish()?;
    let chunks = chunks(&file)?;
    ensure!(chunks >= 10, "{chunks} chunks");
    Ok(file)
}

/// A copy with a wrong checksum: of its first chunk, or of all its data.
pub(super) fn with_wrong_checksum(file: &Path, of_chunk: bool) -> anyhow::Result<PathBuf> {
    let (wanted, behind) = if of_chunk { (CHUNK, 33) } else { (DATA_END, 9) };
    let (mut bytes, mut at) = (fs::read(file)?, mcap::MAGIC.len());
    while bytes[at] != wanted {
        let length: [u8; 8] = bytes[at + 1..at + 9].try_into()?;
        at += 9 + usize::try_from(u64::from_le_bytes(length))?;
    }
    ensure!(bytes[at + behind..at + behind + 4] != [0; 4], "the file has no checksum there");
    bytes[at + behind] ^= 1;
    let copy = file.with_extension(if of_chunk { "chunk.mcap" } else { "data.mcap" });
    fs::write(&copy, bytes)?;
    Ok(copy)
}

/// Returns how many chunks the index of a file lists.
pub(super) fn chunks(file: &Path) -> anyhow::Result<usize> {
    Ok(mcap::Summary::read(&fs::read(file)?)?.map_or(0, |summary| summary.chunk_indexes.len()))
}

/// A recorder that has received all of these entries.
fn told(file: &Path, entries: &[Entry]) -> anyhow::Result<Recorder> {
    let recorder = Recorder::create(file, RecorderOptions::default().queue(100_000, 64 << 20))?;
    entries.iter().cloned().for_each(|entry| recorder.record(entry));
    Ok(recorder)
}

fn packets(entries: &[Entry]) -> u64 {
    let is_packet = |entry: &&Entry| matches!(entry.what, Happened::Packet(_));
    entries.iter().filter(is_packet).count() as u64
}

#[derive(Deserialize, JsonSchema)]
struct Text {
    text: String,
}

async fn echo(text: Text) -> Result<String, ToolError> {
    Ok(text.text)
}

async fn fail() -> Result<(), ToolError> {
    Err(ToolError::new("out_of_range", "the watch is out of range"))
}

/// An assistant, two clients of which one leaves, and a stranger that sends packets that are not frames: calls that
/// succeed and that fail, and frames large enough for a stream.
async fn session<T: Transport>(file: &Path, [brain, one, two, mut stranger]: [T; 4]) -> anyhow::Result<()> {
    let phone = Client::builder().tool("echo", "Says it again", echo).tool("fail", "Fails", fail);
    let tablet = Client::builder().tool("hang", "Never answers", hang);
    let brain = Assistant::builder().client("phone").client("tablet").record(file).join_over(brain).await?;
    let mut events = brain.events();
    let phone = phone.assistant("assistant").join_over(one).await?;
    let tablet = tablet.assistant("assistant").join_over(two).await?;

    for size in [1, 5_000, 60_000] {
        let said = "ä".repeat(size);
        ensure!(brain.call("echo", json!({"text": said})).await?.decode::<String>()? == said);
    }
    for (tool, arguments) in [("fail", json!({})), ("echo", json!({"text": 1}))] {
        let failed = brain.call(tool, arguments).await;
        ensure!(matches!(failed, Err(CallError::Tool(_))), "{tool}: {failed:?}");
    }
    let silent = brain.call("hang", ()).timeout(Duration::from_millis(100)).await;
    ensure!(matches!(silent, Err(CallError::Timeout { .. })), "{silent:?}");
    // A participant that was never announced does not leave either.
    for name in ["tablet", "stranger"] {
        let joined =
            |event: Event| matches!(event, Event::Joined(who) if who.identity() == name).then_some(());
        if !brain.participants().iter().any(|who| who.identity() == name) {
            event(&mut events, "who joined", joined).await?;
        }
    }
    tablet.close().await;
    event(&mut events, "who left", |event| match event {
        Event::Left(peer) if peer.identity() == "tablet" => Some(()),
        _ => None,
    })
    .await?;

    for payload in [&b""[..], b"\xc1", b"no frame", b"\x84\xa8stanzaId", LAST.as_bytes()] {
        stranger.send(Packet::new(["assistant".into()], payload.to_vec())).await?;
    }
    let heard = async {
        while !fs::read(file)?.windows(LAST.len()).any(|part| part == LAST.as_bytes()) {
            sleep(LOOK).await;
        }
        anyhow::Ok(())
    };
    soon("the stranger's last packet", heard).await??;
    stranger.close().await;
    brain.close().await;
    phone.close().await;
    Ok(())
}
