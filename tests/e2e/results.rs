//! 128 results of 4,096 B in flight while one end rejoins again and again, or the server is killed and started again:
//! each call has exactly one outcome, its own result, and none runs twice.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use serde_json::json;
use tokio::{sync::watch, task::JoinSet};
use toolbridge::{
    Assistant, Client, Config, ConnectionState, Event, Events, State, ToolError, Tools,
    livekit::ConnectOptions,
};

use crate::{
    ends::{Number, event},
    relay::Relay,
    server::{Server, shared},
    soon,
};

pub(crate) fn trials() -> Vec<Trial> {
    trials![results:
        results_in_flight_survive_rejoins_of_their_owner,
        results_in_flight_survive_rejoins_of_their_caller,
        results_in_flight_survive_killed_servers,
    ]
}

const CALLS: usize = 128;
const SIZE: usize = 4_096;
/// Longer than all faults together.
const BUDGET: Duration = Duration::from_secs(120);
/// The delay in each direction, so that most results are in flight when the first one arrives.
const DELAY: Duration = Duration::from_millis(30);
/// The fault occurs when this many calls have ended.
const WHEN: [usize; 4] = [1, 32, 64, 96];

/// How often each call ran, and the gate before their end.
#[derive(Clone, Default)]
struct Work {
    runs: Arc<Mutex<HashMap<u64, usize>>>,
    running: Arc<watch::Sender<usize>>,
    may_end: Arc<watch::Sender<bool>>,
}

async fn large(State(work): State<Work>, Number { n }: Number) -> Result<String, ToolError> {
    *work.runs.lock().unwrap().entry(n).or_default() += 1;
    work.running.send_modify(|running| *running += 1);
    work.may_end.subscribe().wait_for(|may| *may).await?;
    Ok(result(n))
}

fn result(n: u64) -> String {
    format!("{n:0>SIZE$}")
}

/// Raises the limits, which are meant for a handful of calls of one model.
fn many(config: &mut Config) {
    config.caps.requests.calls_per_second = 1_000_000;
    config.caps.calls.open_per_peer = CALLS;
    config.caps.calls.open_calls = CALLS;
    config.caps.requests.running_jobs = CALLS;
}

/// Which end's network is the relay.
#[derive(Clone, Copy, PartialEq)]
enum Behind {
    Owner,
    Caller,
}

async fn results_in_flight_survive_rejoins_of_their_owner() -> anyhow::Result<()> {
    Ends::join(&*shared()?, "results-owner", Behind::Owner).await?.survive(Relay::evict).await
}

async fn results_in_flight_survive_rejoins_of_their_caller() -> anyhow::Result<()> {
    Ends::join(&*shared()?, "results-caller", Behind::Caller).await?.survive(Relay::evict).await
}

async fn results_in_flight_survive_killed_servers() -> anyhow::Result<()> {
    let mut server = Server::start("")?;
    let ends = Ends::join(&server, "results-killed", Behind::Owner).await?;
    ends.survive(|_| server.restart().unwrap()).await
}

/// Both ends, one of them behind a relay.
struct Ends {
    relay: Relay,
    phone: Client,
    brain: Assistant,
    /// The events of the end behind the relay.
    events: Events,
    work: Work,
}

impl Ends {
    async fn join(server: &Server, room: &str, behind: Behind) -> anyhow::Result<Self> {
        let (relay, work) = (Relay::start(server).await?, Work::default());
        let url = |who| if who == behind { relay.url() } else { server.url() };
        // After so many losses they would otherwise wait longer and longer before they retry.
        let quick = || ConnectOptions::new().rejoin_wait(Duration::ZERO, Duration::from_millis(50));
        let tools = Tools::with_state(work.clone()).tool("large", "Ends when it may", large);
        let phone = Client::builder().assistant("assistant").tools(tools).configure(many);
        let brain = Assistant::builder().client("phone").configure(many).connect_options(quick());
        let token = server.key().assistant(room, "assistant").sign()?;
        let brain = brain.join(&url(Behind::Caller), &token).await?;
        let token = server.key().client(room, "phone").sign()?;
        let phone = phone.connect_options(quick()).join(&url(Behind::Owner), &token).await?;
        let events = if behind == Behind::Owner { phone.events() } else { brain.events() };
        Ok(Self { relay, phone, brain, events, work })
    }

    async fn survive(mut self, mut trouble: impl FnMut(&Relay)) -> anyhow::Result<()> {
        let mut open = JoinSet::new();
        for n in 0..CALLS as u64 {
            let call = self.brain.call("large", json!({"n": n})).to("phone").timeout(BUDGET).start();
            open.spawn(async move { (n, call.await) });
        }
        let running = self.work.running.subscribe();
        soon("all calls running", { running }.wait_for(|running| *running == CALLS)).await??;
        self.relay.media().delay(DELAY);
        self.work.may_end.send_replace(true);

        let (mut ended, mut met) = (0, Vec::new());
        while let Some(outcome) = soon("all outcomes", open.join_next()).await? {
            let (n, outcome) = outcome?;
            let value = outcome.with_context(|| format!("call {n}"))?.decode::<String>()?;
            ensure!(value == result(n), "call {n}: {} bytes of another result", value.len());
            ended += 1;
            if WHEN.contains(&ended) {
                met.push(self.brain.open_calls());
                trouble(&self.relay);
                link(&mut self.events, ConnectionState::Reconnecting).await?;
                link(&mut self.events, ConnectionState::Connected).await?;
            }
        }
        println!("it happened with {met:?} calls open");
        ensure!(ended == CALLS && met.len() == WHEN.len() && met[0] > CALLS / 2, "{met:?}");
        let drained = async {
            while self.phone.open_jobs() > 0 || self.brain.open_calls() > 0 {
                tokio::task::yield_now().await;
            }
        };
        soon("the end of the last job", drained).await?;
        let runs = self.work.runs.lock().unwrap().clone();
        ensure!(runs.len() == CALLS && runs.values().all(|times| *times == 1), "{runs:?}");
        Ok(())
    }
}

async fn link(events: &mut Events, wanted: ConnectionState) -> anyhow::Result<()> {
    event(events, "the link", |event| {
        matches!(event, Event::ConnectionState(state) if state == wanted).then_some(())
    })
    .await
}
