//! How calls end when a participant leaves, disappears or is killed, or the server ends.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::json;
use tokio::time::timeout;
use toolbridge::{
    Assistant, CallError, Client, CloseReason,
    livekit::{ConnectOptions, LiveKitTransport},
};

use crate::{
    ends::{Cuttable, Running, assistant, client, double, hang, pair, started},
    program::{Program, tools_file},
    room::{joined, left},
    server::{Server, shared},
    soon,
};

pub(crate) fn trials() -> Vec<Trial> {
    trials![endings:
        seventy_idle_seconds_and_a_call_still_works,
        killed_client_is_lost,
        disconnected_client_is_lost_after_the_grace_period,
        calls_of_a_disconnected_assistant_stop_after_the_grace_period,
        goodbye_of_the_owner_is_lost_at_once,
        call_to_a_dropped_client_is_lost_at_once,
        leaving_assistant_stops_its_calls,
        program_whose_host_goes_leaves_at_once,
        killed_server_ends_both_and_settles_open_calls,
        deleted_room_ends_both_and_settles_open_calls,
    ]
}

/// The loss of a killed client must be detected by then.
const NOTICED: Duration = Duration::from_secs(12);

/// Well below the grace period of 5 s, even on a busy machine: a goodbye needs no grace period.
const AT_ONCE: Duration = Duration::from_secs(2);

/// A server announces a participant that has left within 3 s, and one that has disappeared after 15 s.
const LEFT: Duration = Duration::from_secs(10);

fn is_lost<T>(result: &Result<T, CallError>) -> bool {
    matches!(result, Err(error @ CallError::Lost { owner, .. }) if owner == "phone" && error.may_have_run())
}

/// A host of `toolbridge mcp` closes its input, ends it, or both at once. The room must not keep a dead assistant.
async fn program_whose_host_goes_leaves_at_once() -> anyhow::Result<()> {
    let server = shared()?;
    let room = "host-goes";
    let token = server.key().client(room, "watcher").sign()?;
    let mut watcher = LiveKitTransport::join(&server.url(), &token).await?;
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "host", "version": "1"}}});
    for (identity, arguments, first) in
        [("mcp", &["mcp"][..], Some(hello.to_string())), ("brain", &["assistant"], None)]
    {
        for (closes, signal) in [(true, None), (false, Some(Signal::TERM)), (true, Some(Signal::TERM))] {
            let options = ["--room", room, "--identity", identity];
            let mut program = Program::toolbridge(&server, arguments).args(&options).start()?;
            if let Some(first) = &first {
                program.write(first).await?;
                program.json(json!({"id": 0})).await?;
            } else {
                program.json(json!({"type": "hello"})).await?;
            }
            joined(&mut watcher, identity).await?;
            if let Some(signal) = signal {
                program.signal(signal)?;
            }
            let ended = if closes { program.finish().await? } else { program.ended().await? };
            let gone = timeout(LEFT, left(&mut watcher, identity)).await;
            gone.with_context(|| format!("{identity} {closes} {signal:?}: {ended:?}"))??;
        }
    }
    Ok(())
}

async fn seventy_idle_seconds_and_a_call_still_works() -> anyhow::Result<()> {
    let server = shared()?;
    let (phone, brain) =
        pair(&server, "idle-pair", Client::builder().tool("double", "", double), Assistant::builder())
            .await?;
    ensure!(brain.call("double", json!({"n": 1})).await?.decode::<u64>()? == 2);
    let idle = timeout(Duration::from_secs(70), async { tokio::join!(phone.closed(), brain.closed()) }).await;
    ensure!(idle.is_err(), "{idle:?}");
    ensure!(brain.call("double", json!({"n": 2})).await?.decode::<u64>()? == 4);
    Ok(())
}

async fn killed_client_is_lost() -> anyhow::Result<()> {
    let server = shared()?;
    let file = tools_file("killed", &[("nap", "exec /bin/sleep 30")])?;
    let mut phone = Program::toolbridge(&server, &["client", "--room", "killed", "--identity", "phone"])
        .arg("--tools")
        .arg(&file)
        .start()?;
    phone.line("joined as phone").await?;
    let brain = assistant(&server, "killed", "assistant", Assistant::builder().client("phone")).await?;
    let mut call = brain.call("nap", ()).start();
    started(&mut call).await?;
    let began = Instant::now();
    phone.kill();
    let result = soon("the loss", call).await?;
    let took = began.elapsed();
    println!("a killed client is noticed after {took:?}");
    ensure!(is_lost(&result), "{result:?}");
    ensure!(took < NOTICED, "{took:?}");
    Ok(())
}

async fn disconnected_client_is_lost_after_the_grace_period() -> anyhow::Result<()> {
    let server = shared()?;
    let token = server.key().client("cut-off", "phone").sign()?;
    let (transport, cut) = Cuttable::new(LiveKitTransport::join(&server.url(), &token).await?);
    let running = Running::default();
    let phone = Client::builder().assistant("assistant").tools(running.tools()).join_over(transport).await?;
    let brain = assistant(&server, "cut-off", "assistant", Assistant::builder().client("phone")).await?;
    let call = brain.call("held", ()).start();
    running.until(1).await?;
    let began = Instant::now();
    cut.send(()).await?;
    ensure!(matches!(soon("the end", phone.closed()).await?, CloseReason::ConnectionLost(_)));
    running.until(0).await?;
    let result = soon("the loss", call).await?;
    let took = began.elapsed();
    println!("a client that was cut off is lost after {took:?}");
    ensure!(is_lost(&result) && took < NOTICED, "{result:?} after {took:?}");
    Ok(())
}

async fn calls_of_a_disconnected_assistant_stop_after_the_grace_period() -> anyhow::Result<()> {
    let server = shared()?;
    let running = Running::default();
    let builder = Client::builder().assistant("assistant").tools(running.tools());
    let phone = client(&server, "cut-brain", "phone", builder).await?;
    let token = server.key().assistant("cut-brain", "assistant").sign()?;
    let (transport, cut) = Cuttable::new(LiveKitTransport::join(&server.url(), &token).await?);
    let brain = Assistant::builder().client("phone").join_over(transport).await?;
    let call = brain.call("held", ()).start();
    running.until(1).await?;
    cut.send(()).await?;
    let result = soon("the loss", call).await?;
    ensure!(is_lost(&result), "{result:?}");
    running.until(0).await?;
    soon("the end of the binding", async {
        while phone.assistant().is_some() {
            tokio::task::yield_now().await;
        }
    })
    .await
}

async fn goodbye_of_the_owner_is_lost_at_once() -> anyhow::Result<()> {
    let server = shared()?;
    let phone = Client::builder().tool("hang", "", hang).drain(Duration::ZERO);
    let (phone, brain) = pair(&server, "goodbye", phone, Assistant::builder()).await?;
    let mut call = brain.call("hang", ()).start();
    started(&mut call).await?;
    let began = Instant::now();
    let (reason, result) = tokio::join!(phone.close(), soon("the loss", call));
    let took = began.elapsed();
    println!("a goodbye is noticed after {took:?}");
    let result = result?;
    ensure!(reason == CloseReason::Closed && is_lost(&result), "{reason:?} {result:?}");
    ensure!(took < AT_ONCE, "{took:?}");
    Ok(())
}

async fn call_to_a_dropped_client_is_lost_at_once() -> anyhow::Result<()> {
    let server = shared()?;
    let (phone, brain) =
        pair(&server, "dropped", Client::builder().tool("hang", "", hang), Assistant::builder()).await?;
    let mut call = brain.call("hang", ()).start();
    started(&mut call).await?;
    let began = Instant::now();
    drop(phone);
    let result = soon("the loss", call).await?;
    let took = began.elapsed();
    ensure!(is_lost(&result) && took < AT_ONCE, "{result:?} after {took:?}");
    Ok(())
}

async fn leaving_assistant_stops_its_calls() -> anyhow::Result<()> {
    let server = shared()?;
    let running = Running::default();
    let (phone, brain) = pair(
        &server,
        "brain-leaves",
        Client::builder().tools(running.tools()),
        Assistant::builder().drain(Duration::ZERO),
    )
    .await?;
    let call = brain.call("held", ()).start();
    running.until(1).await?;
    let (_, result) = tokio::join!(brain.close(), call);
    ensure!(matches!(result, Err(CallError::Closed(CloseReason::Closed))), "{result:?}");
    running.until(0).await?;
    ensure!(phone.assistant().is_none() && phone.open_jobs() == 0);
    Ok(())
}

async fn killed_server_ends_both_and_settles_open_calls() -> anyhow::Result<()> {
    let server = Server::start("")?;
    let running = Running::default();
    let once = ConnectOptions::new().rejoin_limit(Duration::ZERO);
    let phone = Client::builder().tools(running.tools()).connect_options(once.clone());
    let (phone, brain) =
        pair(&server, "server-killed", phone, Assistant::builder().connect_options(once)).await?;
    let call = brain.call("held", ()).start();
    running.until(1).await?;
    let began = Instant::now();
    server.kill();
    let result = soon("the loss", call).await?;
    ensure!(is_lost(&result), "{result:?}");
    for reason in [soon("the end", phone.closed()).await?, soon("the end", brain.closed()).await?] {
        ensure!(matches!(reason, CloseReason::ConnectionLost(_)), "{reason:?}");
    }
    println!("a killed server is noticed after {:?}", began.elapsed());
    running.until(0).await?;
    match brain.call("held", ()).await {
        Err(error @ CallError::NotInRoom(CloseReason::ConnectionLost(_))) => {
            println!("later calls: {error}");
            Ok(())
        }
        other => bail!("{other:?}"),
    }
}

async fn deleted_room_ends_both_and_settles_open_calls() -> anyhow::Result<()> {
    let server = shared()?;
    let running = Running::default();
    let (phone, brain) =
        pair(&server, "room-deleted", Client::builder().tools(running.tools()), Assistant::builder()).await?;
    let call = brain.call("held", ()).start();
    running.until(1).await?;
    server.room_service("DeleteRoom", "room-deleted", json!({"room": "room-deleted"})).await?;
    let result = soon("the loss", call).await?;
    ensure!(is_lost(&result), "{result:?}");
    ensure!(soon("the end", phone.closed()).await? == CloseReason::RoomDeleted);
    ensure!(soon("the end", brain.closed()).await? == CloseReason::RoomDeleted);
    running.until(0).await?;
    Ok(())
}
