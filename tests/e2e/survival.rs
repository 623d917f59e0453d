//! Calls in progress while a participant, or the server, is away and returns.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::ensure;
use libtest_mimic::Trial;
use tokio::{sync::Semaphore, time::sleep};
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
