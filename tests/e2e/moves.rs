//! A participant whose address goes away, on a network of its own: a namespace, with this machine's own TCP and UDP.
//!
//! Needs to be root on Linux: where namespaces or tunnels are not allowed, these are skipped by name.

use std::{
    fs::OpenOptions,
    io::{BufRead, BufReader, Write},
    os::unix::{net::UnixStream, process::CommandExt as _},
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use toolbridge::{AccessKey, Assistant, Room, TransportEvent};

use crate::{
    program::tools_file,
    room::{joined, until},
    server::{KEY, SECRET},
    soon, trial_where,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial_where("moves::who_gets_another_address_goes_on_in_the_same_join", impossible, || {
        who_gets_another_address_goes_on_in_the_same_join()
    })]
}

/// What is not allowed here.
fn impossible() -> Option<&'static str> {
    let tunnels = OpenOptions::new().read(true).write(true).open("/dev/net/tun").is_ok();
    let namespaces = Command::new("ip").args(["netns", "exec", "none", "true"]).output();
    // Who may not do it is told so before it is looked for.
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

    fn start() -> anyhow::Result<Self> {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
        let mut child = Command::new(scripts.join("network.py"))
            .arg("with")
            .arg(scripts.join("livekit-server"))
            .args(["with", "sh", "-c", r#"echo "$LIVEKIT_URL"; echo "$TOOLBRIDGE_NETWORK"; read -r _"#])
            .envs([("NETWORK_NAME", Self::NAME), ("NETWORK", "10.78.0"), ("HOST", "10.78.0.1")])
            .envs([("INTERFACE", "tb-moves-far"), ("PORT", "7880"), ("SIGNALLING_PORT", "7880")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
        let mut line = || anyhow::Ok(lines.next().context("the network did not come up")??);
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
        // Its command ends with this, and it tidies up behind that.
        drop(self.child.stdin.take());
        if !matches!(self.child.wait(), Ok(status) if status.success())
            && let Some(pid) = Pid::from_raw(self.child.id() as i32)
        {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

async fn who_gets_another_address_goes_on_in_the_same_join() -> anyhow::Result<()> {
    let mut hosts = tokio::task::spawn_blocking(Hosts::start).await??;
    let (key, room) = (AccessKey::new(KEY, SECRET), "moves");
    let file = tools_file("moves", &[("where_is", r#"echo "{\"room\": \"kitchen\"}""#)])?;
    let near = format!("{}-near", Hosts::NAME);
    // Before the phone, whose coming it waits for.
    let mut watcher = Room::join(&hosts.url, &key.observer(room, "watcher").sign()?).await?;
    let _phone = tokio::process::Command::new("ip")
        .args(["netns", "exec", &near, env!("CARGO_BIN_EXE_toolbridge"), "client", "--tools"])
        .arg(&file)
        .envs([("LIVEKIT_URL", &hosts.url), ("LIVEKIT_TOKEN", &key.client(room, "phone").sign()?)])
        .env("RUST_LOG", "toolbridge=debug")
        .env_remove("LIVEKIT_API_KEY")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let phone = joined(&mut watcher, "phone").await?;
    let assistant = Assistant::builder().join(&hosts.url, &key.assistant(room, "assistant").sign()?).await?;
    let call = async || {
        let call = assistant.call("where_is", json!({})).to("phone");
        Ok::<_, anyhow::Error>(soon("an answer", call.into_future()).await??.to_json())
    };
    call().await?;
    hosts.order(&json!({"near": false}))?;
    hosts.order(&json!({"near": true}))?;
    let value = call().await?;
    ensure!(value == json!({"room": "kitchen"}), "{value:?}");
    call().await?;
    // What the room tells comes in order: had it left, that would have come before this.
    let end = Room::join(&hosts.url, &key.client(room, "end").sign()?).await?;
    let gone = until(&mut watcher, |event| match event {
        TransportEvent::Left(who) if who == *phone.peer() => Some(true),
        TransportEvent::Joined(who) if who.identity() == "end" => Some(false),
        _ => None,
    })
    .await?;
    ensure!(!gone, "it joined anew");
    drop(end);
    Ok(())
}
