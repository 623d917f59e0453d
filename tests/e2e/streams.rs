//! Frames larger than a packet, over a real server: toolbridge's as byte streams, and the official SDKs'.

use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use libtest_mimic::Trial;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use toolbridge::{
    Assistant, CallError, Client, State, ToolError, Tools,
    livekit::LiveKitTransport,
    transport::{Packet, StreamPart, Transport as _, TransportEvent},
};

use crate::{
    ends::{Running, assistant, pair, started},
    program::{Program, has_peers},
    server::{self, shared},
    soon, trial_with,
};

const MIB: usize = 1024 * 1024;

/// A frame is slightly larger than its text: this one is below the limit of 16 MiB.
const LARGEST: usize = 16 * MIB - 1_000;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = trials![streams:
        large_frames_cross_the_server_in_both_directions,
        cancel_reaches_the_handler_before_a_large_request_is_sent,
        cancelled_large_request_is_abandoned,
        dropped_send_notifies_its_receiver,
    ];
    for (language, program) in [("python", "client.py"), ("node", "client.mjs")] {
        let name = format!("streams::client_in_{language}_receives_and_sends_a_large_frame");
        trials.push(trial_with(&name, missing, move || of_theirs(program)));
    }
    trials
}

fn missing() -> Option<&'static str> {
    server::missing().or_else(|| (!has_peers()).then_some("tests/peers (scripts/parts peers)"))
}

#[derive(Deserialize, JsonSchema)]
struct Text {
    text: String,
}

#[derive(Deserialize, JsonSchema)]
struct Size {
    size: usize,
}

async fn length(text: Text) -> Result<usize, ToolError> {
    ensure(text.text.bytes().all(|it| it == b'x'))?;
    Ok(text.text.len())
}

fn ensure(holds: bool) -> Result<(), ToolError> {
    if holds { Ok(()) } else { Err("other bytes than were sent")? }
}

async fn novel(size: Size) -> Result<String, ToolError> {
    Ok("x".repeat(size.size))
}

fn rate(size: usize, took: Duration) -> String {
    format!("{size} B in {took:?}, {:.1} MB/s", size as f64 / 1e6 / took.as_secs_f64())
}

async fn large_frames_cross_the_server_in_both_directions() -> anyhow::Result<()> {
    let server = shared()?;
    let phone = Client::builder().tool("length", "", length).tool("novel", "", novel);
    let (phone, brain) = pair(&server, "large", phone, Assistant::builder()).await?;
    ensure!(brain.call("novel", json!({"size": 1})).await?.decode::<String>()? == "x");
    for size in [15_000, MIB, LARGEST] {
        let began = Instant::now();
        let came = brain.call("novel", json!({"size": size})).await?.decode::<String>()?;
        ensure!(came.len() == size && came.bytes().all(|it| it == b'x'), "{} of {size}", came.len());
        println!("a result: {}", rate(size, began.elapsed()));
        let text = "x".repeat(size);
        let began = Instant::now();
        ensure!(brain.call("length", json!({"text": text})).await?.decode::<usize>()? == size);
        println!("a request: {}", rate(size, began.elapsed()));
    }
    for end in [phone.stats(), brain.stats()] {
        for kind in ["stream_broken", "stream_refused", "stream_unknown", "send_failed", "malformed"] {
            ensure!(end.named(kind) == 0, "{end:?}");
        }
    }
    Ok(())
}

/// Counts the calls that arrived, in addition to what [`Running`] holds.
async fn arrived(State(running): State<Running>, text: Text) -> Result<bool, ToolError> {
    length(text).await?;
    Ok(running.count() == 0)
}

async fn cancel_reaches_the_handler_before_a_large_request_is_sent() -> anyhow::Result<()> {
    let (server, running) = (shared()?, Running::default());
    let tools = Tools::with_state(running.clone()).tool("arrived", "", arrived);
    let phone = Client::builder().tools(running.tools()).tools(tools);
    let (_phone, brain) = pair(&server, "overtakes", phone, Assistant::builder()).await?;
    let mut alone = brain.call("held", ()).start();
    started(&mut alone).await?;
    let began = Instant::now();
    alone.cancel();
    running.until(0).await?;
    println!("a cancel on an idle connection: {:?}", began.elapsed());

    let mut call = brain.call("held", ()).start();
    started(&mut call).await?;
    let large = brain.call("arrived", json!({"text": "x".repeat(LARGEST)})).start();
    let began = Instant::now();
    call.cancel();
    running.until(0).await?;
    println!("a cancel while {LARGEST} B are being sent: {:?}", began.elapsed());
    // The handler of the large call checks whether the other had been stopped when it started.
    ensure!(soon("the large call", large).await??.decode::<bool>()?);
    println!("the whole frame: {:?}", began.elapsed());
    Ok(())
}

async fn cancelled_large_request_is_abandoned() -> anyhow::Result<()> {
    let (server, running) = (shared()?, Running::default());
    let tools = Tools::with_state(running.clone()).tool("arrived", "", arrived);
    let (phone, brain) =
        pair(&server, "abandoned", Client::builder().tools(tools), Assistant::builder()).await?;
    brain.call("arrived", json!({"text": "x"})).await?;
    for _ in 0..5 {
        let mut large = brain.call("arrived", json!({"text": "x".repeat(LARGEST)})).start();
        tokio::task::yield_now().await;
        large.cancel();
        ensure!(matches!(large.await, Err(CallError::Cancelled)));
    }
    let began = Instant::now();
    ensure!(brain.call("arrived", json!({"text": "x"})).await?.decode::<bool>()?);
    println!("a call after five large ones that were cancelled: {:?}", began.elapsed());
    let stats = phone.stats();
    ensure!(stats.named("jobs") == 2 && stats.named("stream_broken") == 0, "{stats:?}");
    Ok(())
}

async fn dropped_send_notifies_its_receiver() -> anyhow::Result<()> {
    let server = shared()?;
    let join = async |identity: &str| -> anyhow::Result<LiveKitTransport> {
        Ok(LiveKitTransport::join(&server.url(), &server.key().client("dropped", identity).sign()?).await?)
    };
    let (one, mut two) = (join("one").await?, join("two").await?);
    let mut sending = Box::pin(one.send(Packet::new(["two".into()], vec![7; LARGEST])));
    let mut part = async || loop {
        match two.recv().await {
            Some(TransportEvent::Stream { from, part }) if from == *one.local().peer() => return Ok(part),
            Some(_) => {}
            None => bail!("the room ended"),
        }
    };
    let first = tokio::select! {
        first = part() => first?,
        sent = &mut sending => bail!("{LARGEST} B were sent before any arrived: {sent:?}"),
    };
    ensure!(matches!(first, StreamPart::Header(_)), "{first:?}");
    drop(sending);
    let mut bytes = 0;
    let reason = loop {
        match soon("the trailer", part()).await?? {
            StreamPart::Chunk { bytes: more, .. } => bytes += more.len(),
            StreamPart::Trailer { reason, .. } => break reason,
            other => bail!("{other:?}"),
        }
    };
    println!("{bytes} of {LARGEST} B of the dropped packet arrived");
    ensure!(!reason.is_empty() && bytes < LARGEST, "{reason:?} after {bytes}");
    // Later packets are not blocked by it.
    one.send(Packet::new(["two".into()], "small")).await?;
    Ok(())
}

async fn of_theirs(program: &'static str) -> anyhow::Result<()> {
    let (server, room) = (shared()?, format!("streams-{program}"));
    let brain = assistant(&server, &room, "assistant", Assistant::builder()).await?;
    let token = server.key().client(&room, "phone").sign()?;
    let mut peer = Program::peer(&server, &token, program, &["--streams"])?.start()?;
    peer.event("ready").await?;
    // It lists streams when it gets a Configuration.
    peer.event("greeted").await?;
    ensure!(brain.call("get_battery", ()).to("phone").await?.to_json() == json!({"level": 0.8}));
    let said = json!({"text": "grüß dich 👋".repeat(MIB / 16), "n": [1, 2, 3]});
    let began = Instant::now();
    let heard = brain.call("echo", &said).to("phone").await?;
    ensure!(heard.to_json() == said, "{} B were returned", heard.as_bytes().len());
    let size = heard.as_bytes().len();
    ensure!(size > MIB, "{size}");
    println!("{size} B to {program} and back: {:?}", began.elapsed());
    let stats = brain.stats();
    ensure!(stats.named("stream_broken") + stats.named("stream_refused") == 0, "{stats:?}");
    Ok(())
}
