//! A participant that is lost, or joins and leaves, again and again: its use of resources does not grow.

use std::{env, fs, process::Command, time::Duration};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use tokio::{runtime::Handle, time::sleep};
use toolbridge::{
    ConnectionState,
    livekit::{ConnectOptions, LiveKitTransport},
    transport::{Transport, TransportEvent},
};

use crate::{
    dev,
    relay::Relay,
    room::{packet, to, until},
    server::Server,
    soon,
};

pub(crate) fn trials() -> Vec<Trial> {
    trials![flat:
        forced_rejoins_leave_nothing_behind,
        forced_resumes_leave_nothing_behind,
        joins_and_leaves_leave_nothing_behind,
    ]
}

/// The variable with the number of repetitions, 60 by default (200 rejoins take a minute and a half).
const TIMES: &str = "TOOLBRIDGE_TIMES";
/// The variable that marks the test's own process, in which no other test opens files.
const ALONE: &str = "TOOLBRIDGE_ALONE";
/// After this many repetitions all one-time setup is done: the relay keeps its last eight paths open.
const WARM: usize = 12;
/// How much memory may grow per repetition, in KiB, on average over the second or the last third; one-time growth
/// happens in the first. The handle of an ended participant with its queues alone is 70 if it is leaked, in both
/// thirds; the allocator's fluctuations are up to 35 in one of them.
const GROWTH: usize = 32;

/// Repeats an action in its own process, and checks that its use of resources does not grow.
async fn flat<F, Fut>(test: &str, begin: F) -> anyhow::Result<()>
where
    F: AsyncFnOnce(&Server, &Relay) -> anyhow::Result<Fut>,
    Fut: AsyncFnMut(&Server, &Relay, usize) -> anyhow::Result<()>,
{
    if env::var_os(ALONE).is_none() {
        let mut alone = Command::new(env::current_exe()?);
        alone.args(["--exact", &dev::name(&format!("flat::{test}")), "--nocapture"]).env(ALONE, "1");
        let output = tokio::task::spawn_blocking(move || alone.output()).await??;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        println!("{}", said.lines().filter(|line| line.contains("before")).collect::<Vec<_>>().join("\n"));
        ensure!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        return Ok(());
    }
    let times: usize = env::var(TIMES).ok().map_or(Ok(60), |text| text.parse())?;
    let third = times.div_ceil(3);
    let server = Server::start("")?;
    let relay = Relay::start(&server).await?;
    let mut once = begin(&server, &relay).await?;
    let mut needs = Vec::new();
    for n in 1..=WARM + 3 * third {
        once(&server, &relay, n).await?;
        if n == WARM {
            needs.push(Needs::settled(Needs { files: 0, tasks: 0, memory: 0 }).await?);
        } else if n > WARM && (n - WARM).is_multiple_of(third) {
            needs.push(Needs::settled(needs[0]).await?);
        }
    }
    println!("{test}, before, after {third} times, after as many again, and once more: {needs:?}");
    let grows = |before: usize, after: usize| needs[after].memory > needs[before].memory + third * GROWTH;
    ensure!(!(grows(1, 2) && grows(2, 3)), "the use of resources grows: {needs:?}");
    Ok(())
}

/// A participant behind the relay, and one that echoes its packets.
async fn with_an_echo(server: &Server, relay: &Relay) -> anyhow::Result<LiveKitTransport> {
    let quick = ConnectOptions::new().rejoin_wait(Duration::ZERO, Duration::from_millis(20));
    let one = quick.join(&relay.url(), &server.key().client("flat", "one").sign()?).await?;
    let mut two = LiveKitTransport::join(&server.url(), &server.key().client("flat", "two").sign()?).await?;
    tokio::spawn(async move {
        while let Ok(heard) = packet(&mut two).await {
            let _ = two.send(to("one", heard.payload)).await;
        }
    });
    Ok(one)
}

async fn still_there(one: &mut LiveKitTransport) -> anyhow::Result<()> {
    one.send(to("two", "still there?")).await?;
    while packet(one).await?.payload != "still there?" {}
    Ok(())
}

async fn forced_rejoins_leave_nothing_behind() -> anyhow::Result<()> {
    flat("forced_rejoins_leave_nothing_behind", async |server, relay| {
        let mut one = with_an_echo(server, relay).await?;
        Ok(async move |_: &Server, relay: &Relay, n: usize| {
            // Sometimes only the media are cut, with a packet in flight: detecting that takes 2.5 s.
            if n.is_multiple_of(8) {
                relay.media().cut();
                one.send(to("two", "lost")).await?;
            } else {
                relay.evict();
            }
            for wanted in [ConnectionState::Reconnecting, ConnectionState::Connected] {
                until(&mut one, |event| (event == TransportEvent::ConnectionState(wanted)).then_some(()))
                    .await?;
                relay.restore();
            }
            still_there(&mut one).await
        })
    })
    .await
}

async fn forced_resumes_leave_nothing_behind() -> anyhow::Result<()> {
    flat("forced_resumes_leave_nothing_behind", async |server, relay| {
        let mut one = with_an_echo(server, relay).await?;
        let sid = one.local().sid().clone();
        Ok(async move |_: &Server, relay: &Relay, _: usize| {
            let connections = relay.signaling().connections();
            relay.signaling().sever();
            soon("another signaling connection", relay.signaling().until_connections(connections + 1))
                .await?;
            still_there(&mut one).await?;
            ensure!(*one.local().sid() == sid, "the participant rejoined");
            Ok(())
        })
    })
    .await
}

async fn joins_and_leaves_leave_nothing_behind() -> anyhow::Result<()> {
    flat("joins_and_leaves_leave_nothing_behind", async |_, _| {
        Ok(async move |server: &Server, relay: &Relay, _: usize| {
            let mut one =
                LiveKitTransport::join(&relay.url(), &server.key().client("flat", "one").sign()?).await?;
            one.close().await;
            Ok(())
        })
    })
    .await
}

/// The resources of this process.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Needs {
    files: usize,
    tasks: usize,
    /// Resident memory, in KiB.
    memory: usize,
}

impl Needs {
    fn now() -> anyhow::Result<Self> {
        let status = fs::read_to_string("/proc/self/status")?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(Self {
            files: fs::read_dir("/proc/self/fd")?.count(),
            tasks: Handle::current().metrics().num_alive_tasks(),
            memory: resident.trim().trim_end_matches(" kB").trim().parse()?,
        })
    }

    /// Waits until no more files and tasks are used than given; without a given value, until nothing has changed for
    /// a second. What a join leaves behind, such as its closing socket, ends within seconds.
    async fn settled(than: Needs) -> anyhow::Result<Self> {
        let settling = async {
            let mut last = Self::now()?;
            loop {
                sleep(Duration::from_secs(1)).await;
                let now = Self::now()?;
                let same = (now.files, now.tasks) == (last.files, last.tasks);
                let less = now.files <= than.files && now.tasks <= than.tasks;
                if if than.files == 0 { same } else { less } {
                    return anyhow::Ok(now);
                }
                if now != last {
                    println!("{now:?}");
                }
                last = now;
            }
        };
        soon(&format!("as little as {than:?}"), settling).await?
    }
}
