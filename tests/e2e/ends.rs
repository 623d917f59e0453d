//! A toolbridge client and assistant in a room of a real server, and tools for them.

use std::{
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::bail;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::{mpsc, oneshot, watch};
use toolbridge::{
    Assistant, AssistantBuilder, Client, ClientBuilder, Config, Event, Events, State, ToolError, Tools,
};

use crate::{server::Server, soon};

/// The arguments of [`double`] and [`gate`].
#[derive(Deserialize, JsonSchema)]
pub(crate) struct Number {
    pub(crate) n: u64,
}

pub(crate) async fn double(number: Number) -> Result<u64, ToolError> {
    Ok(2 * number.n)
}

pub(crate) async fn hang() -> Result<(), ToolError> {
    std::future::pending().await
}

/// How many calls of [`held`] are running, for a test to wait for.
#[derive(Clone, Default)]
pub(crate) struct Running(Arc<watch::Sender<usize>>);

impl Running {
    pub(crate) async fn until(&self, count: usize) -> anyhow::Result<()> {
        let mut running = self.0.subscribe();
        soon(&format!("{count} running"), running.wait_for(|now| *now == count)).await??;
        Ok(())
    }

    pub(crate) fn count(&self) -> usize {
        *self.0.borrow()
    }

    pub(crate) fn tools(&self) -> Tools<Running> {
        Tools::with_state(self.clone()).tool("held", "Runs until it is stopped", held)
    }
}

/// Decrements the count when the function is dropped.
struct Entered(Running);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

async fn held(State(running): State<Running>) -> Result<(), ToolError> {
    running.0.send_modify(|count| *count += 1);
    let _entered = Entered(running);
    std::future::pending().await
}

/// A gate that opens when this many calls wait, for the last first.
#[derive(Clone)]
pub(crate) struct Gate {
    size: usize,
    waiting: Arc<Mutex<Vec<oneshot::Sender<()>>>>,
}

impl Gate {
    pub(crate) fn tools(size: usize) -> Tools<Gate> {
        let gate = Self { size, waiting: Arc::default() };
        Tools::with_state(gate).tool("gate", "Answers the last first", gate_of_many)
    }
}

async fn gate_of_many(State(gate): State<Gate>, number: Number) -> Result<u64, ToolError> {
    let (open, opened) = oneshot::channel();
    let all = {
        let mut waiting = gate.waiting.lock().unwrap();
        waiting.push(open);
        if waiting.len() == gate.size { std::mem::take(&mut *waiting) } else { Vec::new() }
    };
    // One after the other, each answered before the next continues.
    for open in all.into_iter().rev() {
        let _ = open.send(());
        tokio::task::yield_now().await;
    }
    opened.await?;
    Ok(2 * number.n)
}

/// Removes the limits of 50 calls a second and of 4,096 remembered ones, which a test can reach.
pub(crate) fn unhurried(config: &mut Config) {
    config.caps.requests.calls_per_second = 1_000_000;
    config.caps.requests.table_entries = 100_000;
}

/// Sets a grace period longer than any test.
pub(crate) fn patient(config: &mut Config) {
    config.times.grace = Duration::from_secs(600);
}

/// Waits until this owner has registered tools.
pub(crate) async fn offers(brain: &Assistant, owner: &str) -> anyhow::Result<()> {
    let mut events = brain.events();
    while brain.tools().iter().all(|offer| offer.owner != owner) {
        event(&mut events, "its tools", |event| matches!(event, Event::ToolsChanged { .. }).then_some(()))
            .await?;
    }
    Ok(())
}

/// Waits until no tools are offered: for a [`patient`] assistant, only goodbyes cause that.
pub(crate) async fn nothing_offered(brain: &Assistant) -> anyhow::Result<()> {
    let mut events = brain.events();
    while !brain.tools().is_empty() {
        event(&mut events, "its goodbye", |event| matches!(event, Event::ToolsChanged { .. }).then_some(()))
            .await?;
    }
    Ok(())
}

pub(crate) async fn client(
    server: &Server,
    room: &str,
    identity: &str,
    builder: ClientBuilder,
) -> anyhow::Result<Client> {
    Ok(builder.join(&server.url(), &server.key().client(room, identity).sign()?).await?)
}

pub(crate) async fn assistant(
    server: &Server,
    room: &str,
    identity: &str,
    builder: AssistantBuilder,
) -> anyhow::Result<Assistant> {
    Ok(builder.join(&server.url(), &server.key().assistant(room, identity).sign()?).await?)
}

/// A client `phone` and an assistant `assistant` that know each other's name, so that nothing waits for an
/// announcement.
pub(crate) async fn pair(
    server: &Server,
    room: &str,
    phone: ClientBuilder,
    brain: AssistantBuilder,
) -> anyhow::Result<(Client, Assistant)> {
    let phone = client(server, room, "phone", phone.assistant("assistant"));
    let brain = assistant(server, room, "assistant", brain.client("phone"));
    tokio::try_join!(phone, brain)
}

/// Returns the first event that `wanted` accepts.
pub(crate) async fn event<T>(
    events: &mut Events,
    what: &str,
    mut wanted: impl FnMut(Event) -> Option<T>,
) -> anyhow::Result<T> {
    let search = async {
        while let Some(event) = events.recv().await {
            if let Some(found) = wanted(event) {
                return Ok(found);
            }
        }
        bail!("{what}: the participant left")
    };
    soon(what, search).await?
}

/// Waits until the call runs at its owner.
pub(crate) async fn started(call: &mut toolbridge::Call) -> anyhow::Result<()> {
    match soon("the start", call.progress()).await? {
        Some(_) => Ok(()),
        None => bail!("the call ended before it started"),
    }
}

/// A transport that can be disconnected without a goodbye.
pub(crate) struct Cuttable<T> {
    inner: T,
    cut: mpsc::Receiver<()>,
}

impl<T> Cuttable<T> {
    pub(crate) fn new(inner: T) -> (Self, mpsc::Sender<()>) {
        let (cut, when) = mpsc::channel(1);
        (Self { inner, cut: when }, cut)
    }
}

impl<T: toolbridge::transport::Transport> toolbridge::transport::Transport for Cuttable<T> {
    fn local(&self) -> toolbridge::transport::Participant {
        self.inner.local()
    }

    fn room(&self) -> String {
        self.inner.room()
    }

    fn present(&self) -> Vec<toolbridge::transport::Participant> {
        self.inner.present()
    }

    fn capabilities(&self) -> toolbridge::transport::Capabilities {
        self.inner.capabilities()
    }

    fn send(
        &self,
        packet: toolbridge::transport::Packet,
    ) -> impl Future<Output = Result<(), toolbridge::transport::SendError>> + Send + 'static {
        self.inner.send(packet)
    }

    async fn recv(&mut self) -> Option<toolbridge::transport::TransportEvent> {
        tokio::select! {
            biased;
            _ = self.cut.recv() => None,
            event = self.inner.recv() => event,
        }
    }

    async fn close(&mut self) {
        self.inner.close().await;
    }
}
