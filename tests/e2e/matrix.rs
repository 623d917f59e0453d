//! Continuous calls while the network of their owner is cut (the media, only UDP, the signaling, or both), loses
//! packets, reorders them or is too narrow for them: each call has exactly one outcome and runs at most once. Where
//! no absence can exceed the grace period, each succeeds; otherwise none is lost before its end, and none that starts
//! once calls work again. How soon that is the case is measured by `scripts/bench cuts`.

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
use toolbridge::{Assistant, CallError, Client, Config, State, ToolError, Tools, livekit::ConnectOptions};

use crate::{
    ends::Number,
    relay::Relay,
    server::{binary, shared},
    soon, trial_with,
};

/// The time between two calls.
const PERIOD: Duration = Duration::from_millis(100);
/// How long calls continue after the network has recovered.
const AFTER: Duration = Duration::from_secs(1);
/// The timeout of a call: longer than any cut here and its consequences.
const LIMIT: Duration = Duration::from_secs(45);
/// How long a fault that is not a cut lasts.
const BAD: Duration = Duration::from_secs(5);
/// An outcome is seen within this time after it was decided, on a busy machine: less than the grace period, so that
/// no later outcome is mistaken for it.
const SEEN: Duration = Duration::from_secs(2);

/// By then calls use another path, if there is one: the path is suspected after 2 s, and the server repeats its
/// messages after 7 s.
const ELSEWHERE: Duration = Duration::from_secs(12);

/// How long the cuts last, in ms. Those of 3 s and more end between the server's second and third retransmission: a
/// participant that is back by then must not wait for the third.
const LENGTHS_MS: [u64; 9] = [30_000, 12_000, 5_000, 4_500, 4_000, 3_500, 3_000, 2_000, 500];

/// A fault of the network.
#[derive(Clone, Copy)]
enum Wrong {
    Media,
    Signaling,
    Both,
    /// UDP is cut: there is another path, and it is used.
    Udp,
    /// This many of a thousand datagrams are lost in each direction. A stream loses nothing: it is late.
    Loses(u32),
    /// Each datagram is randomly late by up to this many milliseconds: they overtake each other.
    Mixes(u64),
    /// Over TCP, data is randomly late by up to this many milliseconds, as if the network lost packets.
    Stutters(u64),
    /// This many bytes a second pass in each direction; the excess is lost.
    Narrow(u64),
}

impl Wrong {
    /// Returns whether an absence can exceed the grace period if the fault lasts this long. On the other path, data
    /// in flight arrives only when the server retransmits it, which takes as long as the outage was.
    fn takes_away(self, length: Duration) -> bool {
        matches!(self, Self::Media | Self::Both | Self::Udp) && length >= Config::default().times.grace
    }

    /// Returns whether calls work while the fault lasts.
    fn keeps_a_path(self) -> bool {
        !matches!(self, Self::Media | Self::Both)
    }

    fn options(self) -> ConnectOptions {
        match self {
            Self::Stutters(_) => ConnectOptions::new().tcp_only(),
            Self::Mixes(_) | Self::Narrow(_) => ConnectOptions::new().udp_only(),
            _ => ConnectOptions::new(),
        }
    }

    fn begin(self, relay: &Relay) {
        match self {
            Self::Media => relay.media().cut(),
            Self::Signaling => relay.signaling().cut(),
            Self::Both => relay.cut(),
            Self::Udp => relay.udp().cut(),
            Self::Loses(permille) => relay.udp().lose(permille),
            Self::Mixes(ms) => relay.udp().jitter(Duration::from_millis(ms)),
            Self::Stutters(ms) => relay.tcp().jitter(Duration::from_millis(ms)),
            Self::Narrow(rate) => relay.udp().rate(rate),
        }
    }

    fn end(self, relay: &Relay) -> anyhow::Result<()> {
        relay.restore();
        relay.media().lose(0);
        relay.media().jitter(Duration::ZERO);
        relay.media().rate(0);
        // Checks that the fault had its effect.
        match self {
            Self::Mixes(_) => ensure!(relay.udp().overtaking() > 0, "no datagram was reordered"),
            Self::Narrow(_) => ensure!(relay.udp().over_rate() > 0, "no datagram exceeded the rate"),
            Self::Udp => ensure!(relay.tcp().connections() > 0, "no other path was used"),
            _ => {}
        }
        Ok(())
    }
}

/// The longest first, so that they run in parallel with the others.
pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for ms in LENGTHS_MS {
        for (name, wrong) in [
            ("media", Wrong::Media),
            ("signaling", Wrong::Signaling),
            ("both", Wrong::Both),
            ("udp", Wrong::Udp),
        ] {
            let name = format!("cut_of_{name}_for_{ms}_ms");
            trials.push(one_outcome_each(&name, wrong, Duration::from_millis(ms)));
        }
    }
    for percent in [2, 5, 10] {
        trials.push(one_outcome_each(&format!("loss_of_{percent}_percent"), Wrong::Loses(10 * percent), BAD));
    }
    for ms in [20, 100, 400] {
        trials.push(one_outcome_each(&format!("datagrams_up_to_{ms}_ms_late"), Wrong::Mixes(ms), BAD));
    }
    trials.push(one_outcome_each("stream_up_to_400_ms_late", Wrong::Stutters(400), BAD));
    for rate in [5_000, 2_000] {
        trials.push(one_outcome_each(&format!("{rate}_bytes_a_second"), Wrong::Narrow(rate), BAD));
    }
    trials
}

fn one_outcome_each(name: &str, wrong: Wrong, length: Duration) -> Trial {
    let (name, room) = (format!("matrix::{name}"), format!("matrix-{name}"));
    trial_with(
        &name,
        || binary().is_none().then_some("livekit-server"),
        move || calls(room.clone(), wrong, length),
    )
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
    // Calls made during a long cut are all sent together after it.
    let phone = Client::builder().assistant("assistant").tools(tools).connect_options(wrong.options());
    let phone = phone.configure(|config| {
        config.caps.calls.open_per_peer = 1_000;
        config.caps.requests.calls_per_second = 1_000;
    });
    let brain =
        Assistant::builder().client("phone").configure(|config| config.caps.calls.open_per_peer = 1_000);
    // The participant with the stable network joins first: so the other knows of it from its own join, and not only
    // through signaling that the cut may delay.
    let brain = brain.join(&server.url(), &server.key().assistant(&room, "assistant").sign()?).await?;
    let phone = phone.join(&relay.url(), &server.key().client(&room, "phone").sign()?).await?;
    ensure!(ask(&brain, u64::MAX).await? == u64::MAX);

    let over = Arc::new(AtomicBool::new(false));
    let flow = tokio::spawn(flow(brain.clone(), over.clone()));
    let began = Instant::now();
    wrong.begin(&relay);
    // Whatever was lost, calls work again: at once with another path, otherwise when the network is back.
    let again = async {
        while ask(&brain, u64::MAX).await.is_err() {}
        Instant::now()
    };
    let ends = async {
        sleep(length).await;
        wrong.end(&relay)
    };
    let again = if wrong.keeps_a_path() {
        let (again, ended) = tokio::join!(soon("a call that succeeds during the fault", again), ends);
        ended.and(again)?
    } else {
        ends.await?;
        soon("a call that succeeds", again).await?
    };
    if matches!(wrong, Wrong::Udp) && length >= ELSEWHERE {
        ensure!(again < began + length, "the other path was not used: {:?}", again.duration_since(began));
    }
    sleep(AFTER).await;
    over.store(true, Ordering::Relaxed);
    let outcomes = soon("all outcomes", flow).await???;

    let (asked, mut given_up) = (outcomes.len(), 0);
    for Ended { n, asked, ended, outcome } in outcomes {
        let when = format!(
            "call {n}, asked {:?} after the beginning and ended {:?}; calls worked again {:?}",
            asked.saturating_duration_since(began),
            ended.duration_since(began),
            again.duration_since(began)
        );
        match outcome {
            Ok(value) => ensure!(value == n, "{when}: {value}"),
            // The call was lost, or had no owner.
            Err(
                error @ (CallError::Lost { .. } | CallError::UnknownTool { .. } | CallError::NotBound { .. }),
            ) if wrong.takes_away(length) => {
                let early = ended.duration_since(began) < Config::default().times.grace;
                let late = asked >= again || ended >= again + SEEN;
                ensure!(!early && !late, "{when}: {error}");
                given_up += 1;
            }
            Err(other) => return Err(other).context(when),
        }
    }
    let mut runs = runs.lock().unwrap().clone();
    runs.remove(&u64::MAX);
    ensure!(runs.values().all(|times| *times == 1), "{runs:?}");
    ensure!(runs.len() <= asked && brain.open_calls() == 0 && phone.open_jobs() == 0);
    println!("{room}: {asked} calls, {} ran, {given_up} given up", runs.len());
    Ok(())
}

async fn ask(brain: &Assistant, n: u64) -> Result<u64, CallError> {
    let value = brain.call("count", serde_json::json!({"n": n})).to("phone").timeout(LIMIT).await?;
    Ok(value.decode().unwrap_or_default())
}

/// A call that has its outcome.
struct Ended {
    n: u64,
    asked: Instant,
    ended: Instant,
    outcome: Result<u64, CallError>,
}

/// Calls until the fault is over, and waits for the open calls.
async fn flow(brain: Assistant, over: Arc<AtomicBool>) -> anyhow::Result<Vec<Ended>> {
    let (mut tick, mut open) = (interval(PERIOD), Vec::<JoinHandle<Ended>>::new());
    for n in 0.. {
        tick.tick().await;
        if over.load(Ordering::Relaxed) {
            break;
        }
        let brain = brain.clone();
        open.push(tokio::spawn(async move {
            let asked = Instant::now();
            let outcome = ask(&brain, n).await;
            Ended { n, asked, ended: Instant::now(), outcome }
        }));
    }
    Ok(join_all(open).await.into_iter().collect::<Result<_, _>>()?)
}
