//! Calls in progress while a participant, or the server, is away and returns.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::ensure;
use libtest_mimic::Trial;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{interval, sleep},
};
use toolbridge::{Assistant, Call, Client, Config, ConnectionState, Event, State, ToolError, Tools};

use crate::{
    ends::{event, started},
    relay::Relay,
    server::{Server, shared},
    soon,
};

pub(crate) fn trials() -> Vec<Trial> {
    trials![survival:
        call_survives_a_cut_of_its_caller_for_8_s,
        call_survives_a_cut_of_its_owner_for_8_s,
        call_survives_a_cut_of_its_caller_for_3_s,
        call_survives_a_cut_of_its_caller_for_1_s,
        call_survives_the_rejoin_of_its_caller,
        call_survives_the_rejoin_of_its_owner,
        call_survives_an_unannounced_rejoin_of_its_owner,
        call_survives_a_restarted_server,
        calls_survive_a_rolling_update_of_two_servers,
    ]
}

/// A tool that counts how often it runs, and ends when the test allows it.
#[derive(Clone)]
struct Slow {
    runs: Arc<AtomicUsize>,
    may_end: Arc<Semaphore>,
}

impl Slow {
    fn new() -> Self {
        Self { runs: Arc::default(), may_end: Arc::new(Semaphore::new(0)) }
    }

    fn tools(&self) -> Tools<Slow> {
        Tools::with_state(self.clone()).tool("slow", "Ends when it may", slow)
    }
}

async fn slow(State(it): State<Slow>) -> Result<usize, ToolError> {
    let run = it.runs.fetch_add(1, Ordering::Relaxed) + 1;
    it.may_end.acquire().await?.forget();
    Ok(run)
}

/// Two ends with one call between them that has started.
struct World {
    phone: Client,
    brain: Assistant,
    slow: Slow,
    call: Call,
}

impl World {
    async fn begin(server: &Server, room: &str, phone_url: &str, brain_url: &str) -> anyhow::Result<Self> {
        let grace = Config::default().times.grace;
        Self::begin_with(grace, server, room, phone_url, brain_url).await
    }

    async fn begin_with(
        grace: Duration,
        server: &Server,
        room: &str,
        phone_url: &str,
        brain_url: &str,
    ) -> anyhow::Result<Self> {
        let slow = Slow::new();
        let phone = Client::builder().assistant("assistant").tools(slow.tools());
        let brain = Assistant::builder().client("phone").configure(|config| config.times.grace = grace);
        let token = server.key().client(room, "phone").sign()?;
        let phone = async { phone.join(phone_url, &token).await };
        let token = server.key().assistant(room, "assistant").sign()?;
        let brain = async { brain.join(brain_url, &token).await };
        let (phone, brain) = tokio::try_join!(phone, brain)?;
        let mut call = brain.call("slow", ()).start();
        started(&mut call).await?;
        Ok(Self { phone, brain, slow, call })
    }

    /// Lets the tool end: the call has its result, and the tool ran once. The same for the next one.
    async fn end(self) -> anyhow::Result<()> {
        self.slow.may_end.add_permits(1);
        ensure!(soon("the result", self.call).await??.decode::<usize>()? == 1);
        self.slow.may_end.add_permits(1);
        ensure!(soon("the next call", self.brain.call("slow", ()).start()).await??.decode::<usize>()? == 2);
        ensure!(self.slow.runs.load(Ordering::Relaxed) == 2);
        ensure!(self.phone.open_jobs() == 0 && self.brain.open_calls() == 0);
        Ok(())
    }
}

async fn link(events: &mut toolbridge::Events, wanted: ConnectionState) -> anyhow::Result<()> {
    event(events, "the link", |event| {
        matches!(event, Event::ConnectionState(state) if state == wanted).then_some(())
    })
    .await
}

async fn cut_of_the_caller(room: &str, length: Duration) -> anyhow::Result<()> {
    let server = shared()?;
    let relay = Relay::start(&server).await?;
    let world = World::begin(&server, room, &server.url(), &relay.url()).await?;
    relay.cut();
    sleep(length).await;
    relay.restore();
    world.end().await
}

async fn call_survives_a_cut_of_its_caller_for_1_s() -> anyhow::Result<()> {
    cut_of_the_caller("caller-1", Duration::from_secs(1)).await
}

async fn call_survives_a_cut_of_its_caller_for_3_s() -> anyhow::Result<()> {
    cut_of_the_caller("caller-3", Duration::from_secs(3)).await
}

async fn call_survives_a_cut_of_its_caller_for_8_s() -> anyhow::Result<()> {
    cut_of_the_caller("caller-8", Duration::from_secs(8)).await
}

/// Its caller would consider a silence of 5 s a loss, so it gets a longer grace period.
async fn call_survives_a_cut_of_its_owner_for_8_s() -> anyhow::Result<()> {
    let server = shared()?;
    let relay = Relay::start(&server).await?;
    let patient = Duration::from_secs(20);
    let world = World::begin_with(patient, &server, "owner-8", &relay.url(), &server.url()).await?;
    relay.cut();
    sleep(Duration::from_secs(8)).await;
    relay.restore();
    world.end().await
}

/// The tool ends while its caller is away.
async fn call_survives_the_rejoin_of_its_caller() -> anyhow::Result<()> {
    let server = shared()?;
    let relay = Relay::start(&server).await?;
    let world = World::begin(&server, "caller-rejoin", &server.url(), &relay.url()).await?;
    let mut events = world.brain.events();
    relay.evict();
    link(&mut events, ConnectionState::Reconnecting).await?;
    world.end().await
}

async fn call_survives_the_rejoin_of_its_owner() -> anyhow::Result<()> {
    let server = shared()?;
    let relay = Relay::start(&server).await?;
    let world = World::begin(&server, "owner-rejoin", &relay.url(), &server.url()).await?;
    let mut events = world.phone.events();
    relay.evict();
    link(&mut events, ConnectionState::Reconnecting).await?;
    world.end().await
}

/// A participant without signaling gets no announcements. The room takes up to 3 s to announce another participant.
async fn call_survives_an_unannounced_rejoin_of_its_owner() -> anyhow::Result<()> {
    let server = shared()?;
    let relays = [Relay::start(&server).await?, Relay::start(&server).await?];
    let [phone, brain] = &relays;
    let world = World::begin(&server, "owner-untold", &phone.url(), &brain.url()).await?;
    let (mut of_phone, mut of_brain) = (world.phone.events(), world.brain.events());
    brain.signaling().cut();
    brain.signaling().sever();
    phone.evict();
    link(&mut of_phone, ConnectionState::Connected).await?;
    sleep(Duration::from_secs(12)).await;
    world.end().await?;
    while let Some(told) = of_brain.recv().await {
        ensure!(!matches!(told, Event::ConnectionState(_)), "{told:?}");
    }
    Ok(())
}

async fn call_survives_a_restarted_server() -> anyhow::Result<()> {
    let mut server = Server::start("")?;
    let world = World::begin(&server, "restarted", &server.url(), &server.url()).await?;
    let mut events = [world.phone.events(), world.brain.events()];
    server.restart()?;
    for events in &mut events {
        link(events, ConnectionState::Connected).await?;
    }
    world.end().await
}

/// One address in front of servers that replace each other, as a load balancer has.
struct Balancer {
    url: String,
    target: Arc<AtomicU16>,
}

impl Balancer {
    async fn start(first: &Server) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("ws://{}", listener.local_addr()?);
        let target = Arc::new(AtomicU16::new(first.port()));
        let current = Arc::clone(&target);
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let port = current.load(Ordering::Relaxed);
                tokio::spawn(async move {
                    if let Ok(mut far) = TcpStream::connect(("127.0.0.1", port)).await {
                        let _ = copy_bidirectional(&mut near, &mut far).await; // until one of them ends it
                    }
                });
            }
        });
        Ok(Self { url, target })
    }
}

/// An old server is stopped in order, while calls are open and others begin, and both participants go on at a new one. Twice.
async fn calls_survive_a_rolling_update_of_two_servers() -> anyhow::Result<()> {
    const CALLS: usize = 20;
    let mut servers = [Server::start("")?, Server::start("")?];
    let balancer = Balancer::start(&servers[0]).await?;
    let World { phone, brain, slow, call } =
        World::begin(&servers[0], "rolling", &balancer.url, &balancer.url).await?;
    let mut calls = vec![call];
    for update in 0..2 {
        let mut events = [phone.events(), brain.events()];
        let [old, new] = &servers;
        balancer.target.store(new.port(), Ordering::Relaxed);
        // A stopped server waits until everybody has left. Asked again, it disconnects them.
        let stopping = async {
            let mut again = interval(Duration::from_millis(200));
            loop {
                again.tick().await;
                old.terminate();
            }
        };
        let going_on = async {
            for events in &mut events {
                link(events, ConnectionState::Connected).await?;
            }
            anyhow::Ok(())
        };
        let calling = async {
            let mut next = interval(Duration::from_millis(50));
            for _ in 0..CALLS {
                next.tick().await;
                calls.push(brain.call("slow", ()).start());
            }
        };
        tokio::select! {
            () = stopping => {}
            (on, ()) = async { tokio::join!(going_on, calling) } => on?,
        }
        servers.swap(0, 1);
        if update == 0 {
            servers[1].restart()?;
        }
    }
    slow.may_end.add_permits(calls.len());
    let mut runs = BTreeSet::new();
    let all = calls.len();
    for call in calls {
        runs.insert(soon("a result", call).await??.decode::<usize>()?);
    }
    // Each call has run, and none of them twice.
    ensure!(runs == (1..=all).collect() && slow.runs.load(Ordering::Relaxed) == all, "{runs:?}");
    ensure!(phone.open_jobs() == 0 && brain.open_calls() == 0);
    Ok(())
}
