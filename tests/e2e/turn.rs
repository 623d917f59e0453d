//! Packets through relays, with a real relay and a real server.

use std::{sync::Arc, time::Duration};

use anyhow::{bail, ensure};
use libtest_mimic::Trial;
use serde_json::json;
use tokio::{
    io::{copy, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::{Notify, watch},
    task::{JoinHandle, JoinSet},
    time::timeout,
};
use toolbridge::{
    Assistant, Client, ConnectionState,
    livekit::{ConnectError, ConnectOptions, LiveKitTransport, RelayError, RelayFailure, Scenario},
    transport::{Transport, TransportEvent},
};

use crate::{
    ends::{assistant, client, double},
    program::Program,
    resume::{crosses, hears_by_signaling, sever},
    room::{packet, to, until},
    server::{self, Server},
    soon, trial_where, trial_with,
    turn_server::{self, PASSWORD, TurnServer},
};

/// Lists tests that need both servers.
macro_rules! trials {
    ($($test:ident),* $(,)?) => {
        vec![$(trial_with(concat!("turn::", stringify!($test)), missing, $test)),*]
    };
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = trials![
        allocation_outlives_its_lifetime_and_its_nonce,
        restarted_relay_is_used_again,
        unused_relay_may_die,
        cut_connection_to_a_relay_causes_no_rejoin,
        reliable_packets_survive_resumes_of_both_sides_through_a_relay,
        relay_over_udp_is_sufficient,
        relay_over_tcp_is_sufficient,
        relay_over_tls_is_sufficient_with_its_root,
        servers_own_relay_is_sufficient,
        relay_is_used_without_a_direct_path,
        one_of_several_relays_is_enough,
        missing_relay_is_reported_with_the_reason,
        wrong_credentials_are_reported,
        untrusted_relay_certificate_is_reported,
        unreachable_relay_is_reported,
        relay_that_refuses_the_server_is_reported,
        relay_only_option_of_the_program_is_honored,
    ];
    trials.push(trial_where(
        "turn::servers_own_relay_over_tls_is_sufficient_and_may_be_required",
        missing_for_tls,
        servers_own_relay_over_tls_is_sufficient_and_may_be_required,
    ));
    trials
}

fn missing_for_tls() -> Option<&'static str> {
    if server::binary().is_none() {
        return Some("livekit-server");
    }
    std::net::TcpListener::bind(FRONT).is_err().then_some("port 443")
}

fn missing() -> Option<&'static str> {
    if server::binary().is_none() {
        return Some("livekit-server");
    }
    turn_server::binary().is_none().then_some("coturn")
}

async fn relay_over_udp_is_sufficient() -> anyhow::Result<()> {
    passes("udp", |_| Ok(ConnectOptions::new())).await
}

async fn relay_over_tcp_is_sufficient() -> anyhow::Result<()> {
    passes("tcp", |_| Ok(ConnectOptions::new().tcp_only())).await
}

async fn relay_over_tls_is_sufficient_with_its_root() -> anyhow::Result<()> {
    passes("tls", |relay| Ok(ConnectOptions::new().root_certificates(relay.root.as_bytes())?)).await
}

async fn reliable_packets_survive_resumes_of_both_sides_through_a_relay() -> anyhow::Result<()> {
    let relay = TurnServer::start(&[])?;
    for protocol in ["udp", "tcp", "tls"] {
        let server = Server::start(&relay.config(&[protocol], PASSWORD))?;
        let options = ConnectOptions::new().root_certificates(relay.root.as_bytes())?.relay_only();
        crosses(&server, protocol, &options, sever).await?;
    }
    Ok(())
}

/// Packets of every size pass in both directions, and calls, through the relay alone: without it there is no path.
async fn passes(
    protocol: &str,
    options: impl FnOnce(&TurnServer) -> anyhow::Result<ConnectOptions>,
) -> anyhow::Result<()> {
    let mut relay = TurnServer::start(&[])?;
    let server = Server::start(&relay.config(&[protocol], PASSWORD))?;
    let options = options(&relay)?.relay_only();
    let mut one = options.clone().join(&server.url(), &server.key().client(protocol, "one").sign()?).await?;
    let mut two =
        LiveKitTransport::join(&server.url(), &server.key().client(protocol, "two").sign()?).await?;
    for size in [1, 2, 3, 4, 1_000, 15_000] {
        one.send(to("two", vec![7; size])).await?;
        ensure!(packet(&mut two).await?.payload.len() == size);
        two.send(to("one", vec![7; size])).await?;
        ensure!(packet(&mut one).await?.payload.len() == size);
    }

    let phone = Client::builder().tool("double", "", double).connect_options(options);
    let phone = phone.join(&server.url(), &server.key().client("calls", "phone").sign()?).await?;
    let brain = assistant(&server, "calls", "brain", Assistant::builder()).await?;
    for n in 0..50 {
        ensure!(brain.call("double", json!({"n": n})).await?.decode::<u64>()? == 2 * n);
    }
    drop(phone);

    relay.kill();
    link(&mut one, ConnectionState::Reconnecting).await
}

/// The server's own relay, which has its own kind of credentials and its own rules.
async fn servers_own_relay_is_sufficient() -> anyhow::Result<()> {
    let port = free_udp_port()?;
    let config = |more: &str| {
        format!(
            "turn: {{enabled: true, udp_port: {port}, relay_range_start: 30000, relay_range_end: 32000, \
             bind_addresses: [127.0.0.1]{more}}}"
        )
    };
    let server = Server::start(&config(", allow_restricted_peer_cidrs: [127.0.0.0/8]"))?;
    let token = server.key().client("own", "one").sign()?;
    let mut one = ConnectOptions::new().relay_only().join(&server.url(), &token).await?;
    let two = LiveKitTransport::join(&server.url(), &server.key().client("own", "two").sign()?).await?;
    two.send(to("one", "through the server's own")).await?;
    ensure!(packet(&mut one).await?.payload == "through the server's own");
    drop(server);

    // By default the relay reaches no private address, not even its own.
    let server = Server::start(&config(""))?;
    let options = ConnectOptions::new().relay_only().join_timeout(Duration::from_secs(2));
    match options.join(&server.url(), &token).await {
        Err(ConnectError::NoRelay { relays }) => {
            let refused = matches!(&relays[..], [it] if matches!(it.error, RelayError::Refused { .. }));
            ensure!(refused, "{relays:?}");
            Ok(())
        }
        other => bail!("{other:?}"),
    }
}

/// The address that the server announces for its relay over TLS: always at port 443, wherever it really listens. It
/// accepts this address as a domain.
const FRONT: (&str, u16) = ("127.0.3.1", 443);

/// For networks that allow only TLS. A server that has detected such a participant accepts it by no other path.
async fn servers_own_relay_over_tls_is_sufficient_and_may_be_required() -> anyhow::Result<()> {
    let home = std::env::temp_dir().join(format!("toolbridge-own-relay-{}", std::process::id()));
    std::fs::create_dir_all(&home)?;
    let root = turn_server::certificate(&home, FRONT.0)?;
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let server = Server::start(&format!(
        "turn: {{enabled: true, domain: {}, tls_port: {port}, cert_file: {home}/cert.pem, key_file: {home}/key.pem, \
         relay_range_start: 30000, relay_range_end: 32000, bind_addresses: [127.0.0.1], \
         allow_restricted_peer_cidrs: [127.0.0.0/8]}}",
        FRONT.0,
        home = home.display(),
    ))?;
    std::fs::remove_dir_all(&home)?;
    let front = Front::open(TcpListener::bind(FRONT).await?, port);
    let token = |name: &str| server.key().client("own-tls", name).sign();
    let two = LiveKitTransport::join(&server.url(), &token("two")?).await?;

    let rooted = ConnectOptions::new().root_certificates(root.as_bytes())?;
    let mut one = rooted.clone().relay_only().join(&server.url(), &token("one")?).await?;
    two.send(to("one", "by TLS alone")).await?;
    ensure!(packet(&mut one).await?.payload == "by TLS alone");
    front.until_open(1).await?;

    // This participant connects directly until the server decides that only TLS passes.
    let mut three = rooted.join(&server.url(), &token("three")?).await?;
    three.simulate(Scenario::SwitchToTls);
    hears_by_signaling(&server, &mut three, "two").await?;
    three.simulate(Scenario::NodeFailure);
    link(&mut three, ConnectionState::Reconnecting).await?;
    link(&mut three, ConnectionState::Connected).await?;
    two.send(to("three", "as the server wants it")).await?;
    ensure!(packet(&mut three).await?.payload == "as the server wants it");
    front.until_open(2).await?;
    drop(front);
    link(&mut one, ConnectionState::Reconnecting).await?;
    link(&mut three, ConnectionState::Reconnecting).await
}

/// Carries connections to a port of this machine, until it is dropped.
struct Front {
    carry: JoinHandle<()>,
    open: watch::Receiver<usize>,
}

impl Front {
    fn open(listener: TcpListener, port: u16) -> Self {
        let (count, open) = watch::channel(0);
        let carry = tokio::spawn(async move {
            let mut carried = JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                let count = count.clone();
                carried.spawn(async move {
                    count.send_modify(|it| *it += 1);
                    if let Ok(mut far) = TcpStream::connect(("127.0.0.1", port)).await {
                        let ((mut up, mut down), (mut back, mut forth)) = (near.split(), far.split());
                        // The server leaves a connection open if the other end did not trust it.
                        tokio::select! {
                            _ = copy(&mut up, &mut forth) => {}
                            _ = copy(&mut back, &mut down) => {}
                        }
                    }
                    count.send_modify(|it| *it -= 1);
                });
            }
        });
        Self { carry, open }
    }

    /// Connections whose certificate is not trusted close by themselves.
    async fn until_open(&self, count: usize) -> anyhow::Result<()> {
        soon("the connections", self.open.clone().wait_for(|open| *open == count)).await??;
        Ok(())
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.carry.abort();
    }
}

/// The participant has only IPv6, and the server has none. The relay has both.
async fn relay_is_used_without_a_direct_path() -> anyhow::Result<()> {
    let relay = TurnServer::start(&["--listening-ip=::1"])?;
    let config = relay.config(&["udp"], PASSWORD).replace("127.0.0.1", "\"[::1]\"");
    let server = Server::start(&config)?;
    let here = ConnectOptions::new().bind_address("::1".parse()?);
    let mut one = here.join(&server.url(), &server.key().client("v6", "one").sign()?).await?;
    let two = LiveKitTransport::join(&server.url(), &server.key().client("v6", "two").sign()?).await?;
    two.send(to("one", "from the other family")).await?;
    ensure!(packet(&mut one).await?.payload == "from the other family");
    Ok(())
}

async fn one_of_several_relays_is_enough() -> anyhow::Result<()> {
    let relay = TurnServer::start(&[])?;
    // An untrusted relay, an unreachable one, and a usable one.
    let nowhere = format!(
        "{}\n    - {{host: 127.0.0.1, port: {}, protocol: tcp, username: a, credential: b}}\n    - \
         {{host: nowhere.invalid, port: 1, protocol: udp, username: a, credential: b}}",
        relay.config(&["tls", "udp"], PASSWORD),
        free_udp_port()?,
    );
    let server = Server::start(&nowhere)?;
    let token = server.key().client("several", "one").sign()?;
    ConnectOptions::new().relay_only().join(&server.url(), &token).await?;
    Ok(())
}

/// Joins through relays alone, which must fail.
async fn refused(server: &Server, options: ConnectOptions) -> anyhow::Result<Vec<RelayFailure>> {
    let token = server.key().client("refused", "one").sign()?;
    match options.relay_only().join(&server.url(), &token).await {
        Err(ConnectError::NoRelay { relays }) => Ok(relays),
        Err(other) => bail!("{other:?}"),
        Ok(_) => bail!("the join succeeded"),
    }
}

async fn missing_relay_is_reported_with_the_reason() -> anyhow::Result<()> {
    let relays = refused(&*server::shared()?, ConnectOptions::new()).await?;
    ensure!(relays.is_empty(), "{relays:?}");
    let text = ConnectError::NoRelay { relays }.to_string();
    ensure!(text.contains("the server provided none"), "{text}");
    Ok(())
}

async fn wrong_credentials_are_reported() -> anyhow::Result<()> {
    let relay = TurnServer::start(&[])?;
    let server = Server::start(&relay.config(&["udp", "tcp"], "a-wrong-password"))?;
    let relays = refused(&server, ConnectOptions::new()).await?;
    ensure!(relays.len() == 2, "{relays:?}");
    for failure in &relays {
        ensure!(matches!(failure.error, RelayError::Unauthorized { code: 401, .. }), "{failure:?}");
        ensure!(failure.relay.starts_with(&format!("turn:127.0.0.1:{}", relay.port())), "{failure}");
    }
    let text = ConnectError::NoRelay { relays }.to_string();
    ensure!(text.contains("credentials rejected (401") && !text.contains("password"), "{text}");
    Ok(())
}

async fn untrusted_relay_certificate_is_reported() -> anyhow::Result<()> {
    let (relay, another) = (TurnServer::start(&[])?, TurnServer::start(&[])?);
    let server = Server::start(&relay.config(&["tls"], PASSWORD))?;
    for options in [ConnectOptions::new(), ConnectOptions::new().root_certificates(another.root.as_bytes())?]
    {
        let relays = refused(&server, options).await?;
        let told =
            |error: &RelayError| matches!(error, RelayError::Tls(text) if text.contains("certificate"));
        ensure!(relays.len() == 1 && told(&relays[0].error), "{relays:?}");
    }
    Ok(())
}

async fn unreachable_relay_is_reported() -> anyhow::Result<()> {
    let mut relay = TurnServer::start(&[])?;
    let server = Server::start(&relay.config(&["udp", "tcp", "tls"], PASSWORD))?;
    relay.kill();
    let relays = refused(&server, ConnectOptions::new()).await?;
    let unreachable = |it: &RelayFailure| matches!(it.error, RelayError::Unreachable(_));
    ensure!(relays.len() == 3 && relays.iter().all(unreachable), "{relays:?}");
    // Without UDP the first is not even tried.
    ensure!(refused(&server, ConnectOptions::new().tcp_only()).await?.len() == 2);
    Ok(())
}

async fn relay_that_refuses_the_server_is_reported() -> anyhow::Result<()> {
    let relay = TurnServer::start(&["--denied-peer-ip=127.0.0.0-127.255.255.255"])?;
    let server = Server::start(&relay.config(&["tcp"], PASSWORD))?;
    let relays = refused(&server, ConnectOptions::new().join_timeout(Duration::from_secs(2))).await?;
    let told = |error: &RelayError| matches!(error, RelayError::Refused { code: 403, .. });
    ensure!(relays.len() == 1 && told(&relays[0].error), "{relays:?}");
    Ok(())
}

async fn relay_only_option_of_the_program_is_honored() -> anyhow::Result<()> {
    let relay = TurnServer::start(&[])?;
    let with = Server::start(&relay.config(&["udp"], PASSWORD))?;
    let without = server::shared()?;
    let question = ["call", "double", r#"{"n": 21}"#, "--room", "relay-cli", "--relay-only"];
    let phone = Client::builder().tool("double", "", double);
    let _phone = client(&with, "relay-cli", "phone", phone).await?;
    let output = Program::toolbridge(&with, &question).run().await?;
    ensure!(output.code == Some(0) && output.stdout.contains(r#""value":42"#), "{output:?}");
    let output = Program::toolbridge(&without, &question).run().await?;
    ensure!(output.code == Some(4) && output.stderr.contains("only relays are allowed"), "{output:?}");
    Ok(())
}

async fn link(room: &mut LiveKitTransport, wanted: ConnectionState) -> anyhow::Result<()> {
    until(room, |event| {
        matches!(event, TransportEvent::ConnectionState(state) if state == wanted).then_some(())
    })
    .await
}

async fn restarted_relay_is_used_again() -> anyhow::Result<()> {
    for protocol in ["udp", "tcp"] {
        let mut relay = TurnServer::start(&[])?;
        let server = Server::start(&relay.config(&[protocol], PASSWORD))?;
        let token = server.key().client(protocol, "one").sign()?;
        let mut one = ConnectOptions::new().relay_only().join(&server.url(), &token).await?;
        let two =
            LiveKitTransport::join(&server.url(), &server.key().client(protocol, "two").sign()?).await?;
        relay.kill();
        link(&mut one, ConnectionState::Reconnecting).await?;
        relay.restart()?;
        link(&mut one, ConnectionState::Connected).await?;
        two.send(to("one", "again")).await?;
        ensure!(packet(&mut one).await?.payload == "again");
    }
    Ok(())
}

/// Simulates a NAT that has lost a connection's mapping. The relay itself works.
async fn cut_connection_to_a_relay_causes_no_rejoin() -> anyhow::Result<()> {
    let relay = TurnServer::start(&[])?;
    let between = TcpListener::bind("127.0.0.1:0").await?;
    let (port, cut) = (between.local_addr()?.port(), Arc::new(Notify::new()));
    let carry = tokio::spawn({
        let (cut, relay) = (cut.clone(), relay.port());
        async move {
            while let Ok((mut near, _)) = between.accept().await {
                let cut = cut.clone();
                tokio::spawn(async move {
                    let mut far = TcpStream::connect(("127.0.0.1", relay)).await?;
                    tokio::select! {
                        carried = copy_bidirectional(&mut near, &mut far) => carried.map(drop),
                        () = cut.notified() => Ok(()),
                    }
                });
            }
        }
    });
    let config = relay.config(&["tcp"], PASSWORD).replace(&relay.port().to_string(), &port.to_string());
    let server = Server::start(&config)?;
    let token = server.key().client("cut-off", "one").sign()?;
    let mut one = ConnectOptions::new().relay_only().join(&server.url(), &token).await?;
    let mut two =
        LiveKitTransport::join(&server.url(), &server.key().client("cut-off", "two").sign()?).await?;
    let before = one.local();
    for n in 0..3_u8 {
        cut.notify_waiters();
        two.send(to("one", vec![n])).await?;
        // The next event is the packet: nothing is lost, and the connection was never reported down.
        let event = until(&mut one, |event| match event {
            TransportEvent::Joined(_) => None,
            event => Some(event),
        });
        match event.await? {
            TransportEvent::Packet(packet) => ensure!(packet.payload[..] == [n], "{packet:?}"),
            other => bail!("{other:?}"),
        }
        // Both directions work again before the next cut.
        one.send(to("two", vec![n])).await?;
        ensure!(packet(&mut two).await?.payload[..] == [n]);
    }
    ensure!(one.local().sid() == before.sid(), "the participant rejoined");
    carry.abort();
    Ok(())
}

/// An unused relay must not cause a failure.
async fn unused_relay_may_die() -> anyhow::Result<()> {
    let mut relay = TurnServer::start(&[])?;
    let server = Server::start(&relay.config(&["udp", "tcp"], PASSWORD))?;
    let mut one = LiveKitTransport::join(&server.url(), &server.key().client("spare", "one").sign()?).await?;
    let two = LiveKitTransport::join(&server.url(), &server.key().client("spare", "two").sign()?).await?;
    relay.kill();
    stays(&mut one, Duration::from_secs(12)).await?;
    two.send(to("one", "all the same")).await?;
    ensure!(packet(&mut one).await?.payload == "all the same");
    Ok(())
}

/// Asserts that the connection stays up for this long.
async fn stays(room: &mut LiveKitTransport, time: Duration) -> anyhow::Result<()> {
    let lost = async {
        loop {
            match room.recv().await {
                Some(TransportEvent::Joined(_)) => {}
                other => return other,
            }
        }
    };
    match timeout(time, lost).await {
        Ok(event) => bail!("{event:?}"),
        Err(_) => Ok(()),
    }
}

async fn allocation_outlives_its_lifetime_and_its_nonce() -> anyhow::Result<()> {
    // Six seconds and three: each expires several times.
    let relay = TurnServer::start(&["--max-allocate-lifetime=6", "--stale-nonce=3"])?;
    let server = Server::start(&relay.config(&["udp"], PASSWORD))?;
    let token = server.key().client("long", "one").sign()?;
    let mut one = ConnectOptions::new().relay_only().join(&server.url(), &token).await?;
    let two = LiveKitTransport::join(&server.url(), &server.key().client("long", "two").sign()?).await?;
    stays(&mut one, Duration::from_secs(20)).await?;
    two.send(to("one", "still here")).await?;
    ensure!(packet(&mut one).await?.payload == "still here");
    Ok(())
}

/// Returns a free UDP port.
fn free_udp_port() -> anyhow::Result<u16> {
    Ok(std::net::UdpSocket::bind("127.0.0.1:0")?.local_addr()?.port())
}
