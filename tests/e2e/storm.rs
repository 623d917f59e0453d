//! Five hundred calls while their assistant is disconnected, signaling and media alike: each has one outcome, and
//! none runs twice.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use libtest_mimic::Trial;
use serde_json::json;
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{sleep, timeout},
};
use toolbridge::{Assistant, Call, CallError, CallId, Client, Config, State, ToolContext, ToolError, Tools};

use crate::{ends::Number, relay::Relay, server::shared, soon};

/// Calls that run when the cut begins; half of them end while it lasts.
const BEFORE: u64 = 300;
/// Calls that are made while it lasts: they can be delivered only after it.
const DURING: u64 = 150;
/// Calls that are made when it is over.
const AFTER: u64 = 50;
/// How many of the running calls are cancelled while the cut lasts.
const CANCELLED: u64 = 30;
/// Calls that are made while it lasts, and end before it does.
const SHORT: u64 = 30;
/// The timeout of those.
const SHORT_BUDGET: Duration = Duration::from_millis(200);
/// Longer than any cut and its consequences.
const BUDGET: Duration = Duration::from_secs(120);
/// The time within which everything must have ended after a cut.
const SETTLED: Duration = Duration::from_secs(60);

pub(crate) fn trials() -> Vec<Trial> {
    trials![storm:
        calls_in_a_cut_of_their_assistant_for_20_s,
        calls_in_a_cut_of_their_assistant_for_8_s,
        calls_in_a_cut_of_their_assistant_for_3_s,
        calls_in_a_cut_of_their_assistant_for_1_s,
    ]
}

async fn calls_in_a_cut_of_their_assistant_for_20_s() -> anyhow::Result<()> {
    storm("storm-20", Duration::from_secs(20)).await
}

async fn calls_in_a_cut_of_their_assistant_for_8_s() -> anyhow::Result<()> {
    storm("storm-8", Duration::from_secs(8)).await
}

async fn calls_in_a_cut_of_their_assistant_for_3_s() -> anyhow::Result<()> {
    storm("storm-3", Duration::from_secs(3)).await
}

async fn calls_in_a_cut_of_their_assistant_for_1_s() -> anyhow::Result<()> {
    storm("storm-1", Duration::from_secs(1)).await
}

/// How often each call ran, and the gate before the end of the calls that the test keeps waiting.
#[derive(Clone)]
struct Work {
    runs: Arc<Mutex<HashMap<CallId, usize>>>,
    running: Arc<watch::Sender<u64>>,
    may_end: Arc<Semaphore>,
}

impl Work {
    fn new() -> Self {
        Self { runs: Arc::default(), running: Arc::default(), may_end: Arc::new(Semaphore::new(0)) }
    }

    fn tools(&self) -> Tools<Work> {
        Tools::with_state(self.clone()).tool("gated", "Ends when it may", gated).tool("double", "", double)
    }

    fn began(&self, call: &CallId) {
        *self.runs.lock().unwrap().entry(call.clone()).or_default() += 1;
        self.running.send_modify(|count| *count += 1);
    }

    fn runs_of(&self, call: &CallId) -> usize {
        self.runs.lock().unwrap().get(call).copied().unwrap_or_default()
    }
}

async fn gated(context: ToolContext, State(work): State<Work>, number: Number) -> Result<u64, ToolError> {
    work.began(context.call_id());
    tokio::select! {
        () = context.cancelled() => Err(ToolError::cancelled()),
        opened = work.may_end.acquire() => {
            opened?.forget();
            Ok(2 * number.n)
        }
    }
}

async fn double(context: ToolContext, State(work): State<Work>, number: Number) -> Result<u64, ToolError> {
    work.began(context.call_id());
    Ok(2 * number.n)
}

/// Raises the limits, which are meant for a handful of calls of one model; here are hundreds.
fn many(config: &mut Config) {
    let most = (BEFORE + DURING + AFTER + SHORT) as usize;
    config.caps.requests.calls_per_second = 1_000_000;
    config.caps.calls.open_per_peer = most;
    config.caps.calls.open_calls = most;
    config.caps.requests.running_jobs = most;
}

/// The outcomes of the calls.
#[derive(Default)]
struct Tally {
    outcomes: BTreeMap<&'static str, usize>,
    runs: usize,
}

impl Tally {
    /// Counts one outcome. There can be no second one: the future has ended.
    fn count(&mut self, work: &Work, (n, id, outcome): Ended) -> anyhow::Result<()> {
        let runs = work.runs_of(&id);
        ensure!(runs <= 1, "call {n} ran {runs} times: {outcome:?}");
        let kind = match &outcome {
            Ok(answer) => {
                ensure!(*answer == 2 * n && runs == 1, "call {n}: result {answer} after {runs} runs");
                "ok"
            }
            Err(error) if !error.may_have_run() => {
                ensure!(runs == 0, "call {n} ran, but {error:?} states that it did not");
                "not run"
            }
            Err(CallError::Cancelled) => "cancelled",
            Err(CallError::Timeout { .. }) => "timeout",
            Err(CallError::Lost { .. }) => "lost",
            Err(other) => bail!("call {n}: {other:?}"),
        };
        *self.outcomes.entry(kind).or_default() += 1;
        self.runs += runs;
        Ok(())
    }

    fn of(&self, kind: &str) -> u64 {
        self.outcomes.get(kind).copied().unwrap_or_default() as u64
    }
}

type Ended = (u64, CallId, Result<u64, CallError>);

/// Waits for the call's end in its own task.
fn follow(open: &mut JoinSet<anyhow::Result<Ended>>, n: u64, call: Call) {
    let id = call.id().cloned();
    open.spawn(async move {
        let outcome = match call.await {
            Ok(value) => Ok(value.decode::<u64>()?),
            Err(error) => Err(error),
        };
        Ok((n, id.context("no id")?, outcome))
    });
}

async fn storm(room: &str, length: Duration) -> anyhow::Result<()> {
    let (server, work) = (shared()?, Work::new());
    let relay = Relay::start(&server).await?;
    let phone = Client::builder().assistant("assistant").tools(work.tools()).configure(many);
    let brain = Assistant::builder().client("phone").configure(many);
    let (phone_token, brain_token) =
        (server.key().client(room, "phone").sign()?, server.key().assistant(room, "assistant").sign()?);
    let (phone, brain) = tokio::try_join!(async { phone.join(&server.url(), &phone_token).await }, async {
        brain.join(&relay.url(), &brain_token).await
    })?;
    ensure!(ask(&brain, "double", 0).await?.decode::<u64>()? == 0);
    let (mut open, mut short) = (JoinSet::new(), JoinSet::new());
    for n in 1..=BEFORE - CANCELLED {
        follow(&mut open, n, ask(&brain, "gated", n));
    }
    let mut cancelled: Vec<_> =
        (BEFORE - CANCELLED + 1..=BEFORE).map(|n| (n, ask(&brain, "gated", n))).collect();
    soon("all calls running", work.running.subscribe().wait_for(|count| *count == BEFORE + 1)).await??;

    relay.cut();
    let piece = length / DURING as u32;
    for n in 0..DURING {
        follow(&mut open, BEFORE + 1 + n, ask(&brain, "double", BEFORE + 1 + n));
        if n % 2 == 0 {
            work.may_end.add_permits(2);
        }
        if n < SHORT {
            let n = BEFORE + DURING + AFTER + n;
            let call = brain.call("double", json!({"n": n})).to("phone").timeout(SHORT_BUDGET);
            follow(&mut short, n, call.start());
        }
        if let Some((n, mut call)) = cancelled.pop() {
            call.cancel();
            follow(&mut open, n, call);
        }
        sleep(piece).await;
    }
    relay.restore();
    let restored = Instant::now();
    // The first call that works again, with as many attempts as needed.
    let again = async {
        loop {
            if let Ok(answer) = ask(&brain, "double", 1).await {
                return answer.decode::<u64>();
            }
        }
    };
    ensure!(soon("a call that succeeds again", again).await?? == 2);
    let works_again = restored.elapsed();
    work.may_end.add_permits(BEFORE as usize);
    for n in 0..AFTER {
        let n = BEFORE + DURING + 1 + n;
        follow(&mut open, n, ask(&brain, "double", n));
    }

    let mut tally = Tally::default();
    let mut ended_short = Tally::default();
    let all = async {
        while let Some(ended) = open.join_next().await {
            tally.count(&work, ended??)?;
        }
        while let Some(ended) = short.join_next().await {
            ended_short.count(&work, ended??)?;
        }
        anyhow::Ok(())
    };
    timeout(SETTLED, all).await.context("calls are still open")??;
    let total: usize = tally.outcomes.values().sum();
    println!(
        "{length:?} cut, {total} calls: {:?}, {} runs; {SHORT} of {SHORT_BUDGET:?}: {:?}, {} runs; calls worked \
         {works_again:?} after the link was back",
        tally.outcomes, tally.runs, ended_short.outcomes, ended_short.runs
    );
    ensure!(total as u64 == BEFORE + DURING + AFTER);
    ensure!(tally.of("cancelled") == CANCELLED, "{:?}", tally.outcomes);
    // The caller itself was disconnected: no absence counts, and no call ends needlessly.
    ensure!(tally.of("ok") == BEFORE + DURING + AFTER - CANCELLED, "{:?}", tally.outcomes);
    // Those could not be answered in time.
    ensure!(ended_short.of("timeout") + ended_short.of("not run") == SHORT, "{:?}", ended_short.outcomes);
    let drained = async {
        while phone.open_jobs() > 0 || brain.open_calls() > 0 {
            tokio::task::yield_now().await;
        }
    };
    soon("the end of the last job", drained).await?;
    ensure!(work.runs.lock().unwrap().values().all(|runs| *runs == 1));
    Ok(())
}

fn ask(brain: &Assistant, tool: &str, n: u64) -> Call {
    brain.call(tool, json!({"n": n})).to("phone").timeout(BUDGET).start()
}
