//! A participant whose address is removed, on its own network: a namespace, with this machine's TCP and UDP.
//!
//! Requires root on Linux: where namespaces or tunnels are not allowed, these tests are skipped by name.

use std::{
    fs::{self, OpenOptions},
    io::{BufRead, BufReader, Write},
    os::unix::{net::UnixStream, process::CommandExt as _},
    path::Path,
    process::{Child, Command, Stdio},
    time::Instant,
};

use anyhow::{Context, bail, ensure};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::io::AsyncBufReadExt as _;
use toolbridge::{
    Assistant, Call,
    livekit::{AccessKey, LiveKitTransport},
    transport::{Transport as _, TransportEvent},
};

use crate::{
    ends::started,
    program::{folder, tools_file},
    room::{joined, until},
    server::{KEY, SECRET},
    soon, trial_where,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial_where("moves::changed_address_continues_in_the_same_join", impossible, || {
        changed_address_continues_in_the_same_join()
    })]
}

/// Returns what is not allowed here.
fn impossible() -> Option<&'static str> {
    let tunnels = OpenOptions::new().read(true).write(true).open("/dev/net/tun").is_ok();
    let namespaces = Command::new("ip").args(["netns", "exec", "none", "true"]).output();
    // Permission is checked before the namespace is looked up.
    let allowed = namespaces.is_ok_and(|said| String::from_utf8_lossy(&said.stderr).contains("No such file"));
    (!(tunnels && allowed)).then_some("network namespaces")
}

/// Two hosts with a server on the far one.
struct Hosts {
    child: Child,
    url: String,
    orders: BufReader<UnixStream>,
}

impl Hosts {
    const NAME: &str = "tb-moves";
    const PORT: &str = "7890";

    fn start() -> anyhow::Result<Self> {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
        let mut child = Command::new(scripts.join("lib/network.py"))
            .arg("with")
            .arg(scripts.join("parts"))
            .args([
                "livekit-server",
                "with",
                "sh",
                "-c",
                r#"echo "$LIVEKIT_URL"; echo "$TOOLBRIDGE_NETWORK"; read -r _"#,
            ])
            .envs([("NETWORK_NAME", Self::NAME), ("NETWORK", "10.78.0"), ("HOST", "10.78.0.1")])
            .envs([("INTERFACE", "tb-moves-far"), ("PORT", Self::PORT), ("SIGNALING_PORT", Self::PORT)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
        let mut line = || anyhow::Ok(lines.next().context("the network did not start")??);
        let (url, path) = (line()?, line()?);
        let orders = BufReader::new(UnixStream::connect(path)?);
        Ok(Self { child, url, orders })
    }

    fn order(&mut self, order: &serde_json::Value) -> anyhow::Result<()> {
        writeln!(self.orders.get_mut(), "{order}")?;
        let mut answer = String::new();
        self.orders.read_line(&mut answer)?;
        ensure!(answer == "ok\n", "{answer}");
        Ok(())
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // This ends its command, which then cleans up.
        drop(self.child.stdin.take());
        if !matches!(self.child.wait(), Ok(status) if status.success())
            && let Some(pid) = Pid::from_raw(self.child.id() as i32)
        {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

/// The delay in each direction, in seconds: as between a phone and a nearby server.
const DELAY: f64 = 0.05;

/// With one call that runs all the time, and one that is made while there is no address.
async fn changed_address_continues_in_the_same_join() -> anyhow::Result<()> {
    let mut hosts = tokio::task::spawn_blocking(Hosts::start).await??;
    let (key, room) = (AccessKey::new(KEY, SECRET), "moves");
    let folder = folder("moves-slow")?;
    let (runs, may_end) = (folder.join("runs"), folder.join("may-end"));
    let slow = format!(
        r#"echo >>{runs:?}; until [ -e {may_end:?} ]; do sleep 0.05; done; echo "{{\"room\": \"cellar\"}}""#
    );
    let file = tools_file("moves", &[("where_is", r#"echo "{\"room\": \"kitchen\"}""#), ("slow", &slow)])?;
    let near = format!("{}-near", Hosts::NAME);
    hosts.order(&json!({"class": "all", "delay": DELAY}))?;
    // Joins before the phone, whose join it waits for.
    let mut watcher = LiveKitTransport::join(&hosts.url, &key.observer(room, "watcher").sign()?).await?;
    let mut phone = tokio::process::Command::new("ip")
        .args(["netns", "exec", &near, env!("CARGO_BIN_EXE_toolbridge"), "client", "--tools"])
        .arg(&file)
        .envs([("LIVEKIT_URL", &hosts.url), ("LIVEKIT_TOKEN", &key.client(room, "phone").sign()?)])
        .env("RUST_LOG", "toolbridge::livekit=debug")
        .env_remove("LIVEKIT_API_KEY")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut said = tokio::io::BufReader::new(phone.stdout.take().context("no output")?).lines();
    let here = joined(&mut watcher, "phone").await?;
    let assistant = Assistant::builder().join(&hosts.url, &key.assistant(room, "assistant").sign()?).await?;
    let call = |tool: &str| assistant.call(tool, json!({})).to("phone").start();
    let answer = async |call: Call| Ok::<_, anyhow::Error>(soon("a result", call).await??.to_json());
    let (kitchen, cellar) = (json!({"room": "kitchen"}), json!({"room": "cellar"}));
    ensure!(answer(call("where_is")).await? == kitchen);
    let mut slow = call("slow");
    started(&mut slow).await?;

    // It reports its connection state.
    let mut reports = async |wanted: &str| {
        let search = async {
            while let Some(line) = said.next_line().await? {
                if line.contains(wanted) {
                    return Ok(());
                }
            }
            bail!("the phone ended")
        };
        soon(wanted, search).await?
    };
    let moved = Instant::now();
    hosts.order(&json!({"near": false}))?;
    hosts.order(&json!({"near": true}))?;
    let meanwhile = call("where_is");
    reports("connection lost").await?;
    let down = moved.elapsed();
    reports("reconnected").await?;
    let up = moved.elapsed();
    ensure!(answer(meanwhile).await? == kitchen);
    let answered = moved.elapsed();
    println!("after the move: {down:?} to the loss, {up:?} to the reconnect, {answered:?} to a result");
    fs::write(&may_end, "")?;
    ensure!(answer(slow).await? == cellar);
    ensure!(fs::read_to_string(&runs)?.lines().count() == 1, "the slow tool ran twice");
    ensure!(answer(call("where_is")).await? == kitchen);

    // Room events arrive in order: a leave event would have arrived before this one.
    let end = LiveKitTransport::join(&hosts.url, &key.client(room, "end").sign()?).await?;
    let gone = until(&mut watcher, |event| match event {
        TransportEvent::Left(who) if who == *here.peer() => Some(true),
        TransportEvent::Joined(who) if who.identity() == "end" => Some(false),
        _ => None,
    })
    .await?;
    ensure!(!gone && watcher.present().iter().any(|who| who.peer() == here.peer()), "the phone rejoined");
    drop(end);
    Ok(())
}
