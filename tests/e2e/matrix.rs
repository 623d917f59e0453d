//! Calls all the time while the network of their owner is cut, for the media, the signalling, or both, or loses
//! packets: each has exactly one outcome, runs at most once, and is not given up early. How soon calls work again is a
//! benchmark's business (`scripts/bench-cuts`).

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use futures_util::future::join_all;
use libtest_mimic::Trial;
use tokio::{
    task::JoinHandle,
    time::{interval, sleep},
};
use toolbridge::{Assistant, CallError, Client, Config, State, ToolError, Tools};

use crate::{
    ends::Number,
    relay::Relay,
    server::{binary, shared},
    soon, trial_with,
};

/// Between two calls.
const PERIOD: Duration = Duration::from_millis(100);
/// How long calls go on after the network is well again.
const AFTER: Duration = Duration::from_secs(1);
/// How long a call may take: longer than any cut here.
const LIMIT: Duration = Duration::from_secs(25);

/// What is wrong with the network.
#[derive(Clone, Copy)]
enum Wrong {
    Media,
    Signalling,
    Both,
    /// So many of a thousand datagrams are lost, each way.
    Loses(u32),
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (name, wrong) in [("media", Wrong::Media), ("signalling", Wrong::Signalling), ("both", Wrong::Both)] {
        for ms in [500, 2_000, 5_000, 12_000] {
            let name = format!("a_cut_of_{name}_for_{ms}_ms");
            trials.push(one_outcome_each(&name, wrong, Duration::from_millis(ms)));
        }
    }
    for percent in [2, 5, 10] {
        let name = format!("a_loss_of_{percent}_percent");
        trials.push(one_outcome_each(&name, Wrong::Loses(10 * percent), Duration::from_secs(5)));
    }
    trials
}

fn one_outcome_each(name: &str, wrong: Wrong, length: Duration) -> Trial {
    let (name, room) = (format!("matrix::{name}"), format!("matrix-{name}"));
    trial_with(&name, || binary().is_none().then_some("livekit-server"), move || calls(room, wrong, length))
}

/// How often each call ran.
type Runs = Arc<Mutex<HashMap<u64, usize>>>;

async fn count(State(runs): State<Runs>, call: Number) -> Result<u64, ToolError> {
    *runs.lock().unwrap().entry(call.n).or_default() += 1;
    Ok(call.n)
}

async fn calls(room: String, wrong: Wrong, length: Duration) -> anyhow::Result<()> {
    let server = shared()?;
    let relay = Relay::start(&server).await?;
    let runs = Runs::default();
    let tools = Tools::with_state(runs.clone()).tool("count", "Counts how often it runs", count);
    // What was asked in a long cut comes all at once behind it.
    let phone = Client::builder().assistant("assistant").tools(tools).configure(|config| {
        config.caps.open_per_peer = 1_000;
        config.caps.calls_per_second = 1_000;
    });
    let brain = Assistant::builder().client("phone").configure(|config| config.caps.open_per_peer = 1_000);
    let token = server.key().client(&room, "phone").sign()?;
    let phone = async { phone.join(&relay.url(), &token).await };
    let token = server.key().assistant(&room, "assistant").sign()?;
    let brain = async { brain.join(&server.url(), &token).await };
    let (phone, brain) = tokio::try_join!(phone, brain)?;
    ensure!(ask(&brain, u64::MAX).await? == u64::MAX);

    let over = Arc::new(AtomicBool::new(false));
    let flow = tokio::spawn(flow(brain.clone(), over.clone()));
    let began = Instant::now();
    let (media, signalling) = (relay.media(), relay.signalling());
    match wrong {
        Wrong::Media => media.cut(),
        Wrong::Signalling => signalling.cut(),
        Wrong::Both => relay.cut(),
        Wrong::Loses(permille) => media.lose(permille),
    }
    sleep(length).await;
    media.lose(0);
    relay.restore();
    // Whatever was lost, calls work again.
    let again = async { while ask(&brain, u64::MAX).await.is_err() {} };
    soon("a call that works", again).await?;
    sleep(AFTER).await;
    over.store(true, Ordering::Relaxed);
    let outcomes = soon("all outcomes", flow).await???;

    let asked = outcomes.len();
    for (n, ended, outcome) in outcomes {
        match outcome {
            Ok(value) => ensure!(value == n, "call {n} was answered with {value}"),
            Err(CallError::Lost { .. }) => ensure!(
                ended.duration_since(began) >= Config::default().times.grace,
                "call {n} was given up after {:?}",
                ended.duration_since(began)
            ),
            // Nobody is there after a loss, until it is back.
            Err(CallError::UnknownTool { .. } | CallError::NotBound { .. }) => {}
            Err(other) => return Err(other).context(format!("call {n}")),
        }
    }
    let mut runs = runs.lock().unwrap().clone();
    runs.remove(&u64::MAX);
    ensure!(runs.values().all(|times| *times == 1), "{runs:?}");
    ensure!(runs.len() <= asked && brain.open_calls() == 0 && phone.open_jobs() == 0);
    println!("{room}: {asked} calls, {} ran", runs.len());
    Ok(())
}

async fn ask(brain: &Assistant, n: u64) -> Result<u64, CallError> {
    let value = brain.call("count", serde_json::json!({"n": n})).to("phone").timeout(LIMIT).await?;
    Ok(value.decode().unwrap_or_default())
}

type Ended = (u64, Instant, Result<u64, CallError>);

/// Calls until it is over, and waits for what is open then.
async fn flow(brain: Assistant, over: Arc<AtomicBool>) -> anyhow::Result<Vec<Ended>> {
    let (mut tick, mut open) = (interval(PERIOD), Vec::<JoinHandle<Ended>>::new());
    for n in 0.. {
        tick.tick().await;
        if over.load(Ordering::Relaxed) {
            break;
        }
        let brain = brain.clone();
        open.push(tokio::spawn(async move {
            let outcome = ask(&brain, n).await;
            (n, Instant::now(), outcome)
        }));
    }
    Ok(join_all(open).await.into_iter().collect::<Result<_, _>>()?)
}
