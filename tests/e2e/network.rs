//! The relay behaves as the other tests assume.

use std::{net::Ipv6Addr, time::Duration};

use anyhow::{bail, ensure};
use libtest_mimic::Trial;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout},
};
use toolbridge::{
    livekit::{ConnectOptions, LiveKitTransport},
    transport::Transport,
};

use crate::{
    BOUND,
    relay::Relay,
    room::{packet, to},
    server::{Server, shared},
};

pub(crate) fn trials() -> Vec<Trial> {
    trials![network:
        packets_pass_through_the_relay_over_udp,
        packets_pass_through_the_relay_over_tcp,
        severed_connection_ends_and_another_is_used,
        restarted_server_has_the_same_address,
        packets_pass_over_ipv6,
    ]
}

async fn packets_pass_through_the_relay_over_udp() -> anyhow::Result<()> {
    passes("relay-udp", ConnectOptions::new()).await
}

async fn packets_pass_through_the_relay_over_tcp() -> anyhow::Result<()> {
    passes("relay-tcp", ConnectOptions::new().tcp_only()).await
}

/// It is slow when the relay is, and nothing passes when it is cut.
async fn passes(room: &str, options: ConnectOptions) -> anyhow::Result<()> {
    const DELAY: Duration = Duration::from_millis(100);
    let server = shared()?;
    let relay = Relay::start(&server).await?;
    let one = options.join(&relay.url(), &server.key().client(room, "one").sign()?).await?;
    let mut two = LiveKitTransport::join(&server.url(), &server.key().client(room, "two").sign()?).await?;
    relay.media().delay(DELAY);
    let began = Instant::now();
    one.send(to("two", "late")).await?;
    ensure!(packet(&mut two).await?.payload == "late");
    ensure!(began.elapsed() >= DELAY, "{:?}", began.elapsed());
    relay.media().delay(Duration::ZERO);
    // Both ends retransmit lost data.
    for n in 0..3 {
        relay.media().lose_next(1);
        one.send(to("two", vec![n])).await?;
        ensure!(packet(&mut two).await?.payload[..] == [n]);
    }
    relay.cut();
    one.send(to("two", "held up")).await?;
    // The relay forwards at once; after a second the packet would not have been forwarded.
    if let Ok(early) = timeout(Duration::from_secs(1), packet(&mut two)).await {
        bail!("a packet passed through a cut: {early:?}");
    }
    relay.restore();
    ensure!(timeout(BOUND, packet(&mut two)).await??.payload == "held up");
    Ok(())
}

async fn severed_connection_ends_and_another_is_used() -> anyhow::Result<()> {
    let server = shared()?;
    let relay = Relay::start(&server).await?;
    let address = relay.url().replace("ws://", "");
    let ask = async |stream: &mut TcpStream| {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await?;
        ensure!(answer == *b"HTTP/1.1 200");
        Ok(())
    };
    let mut first = TcpStream::connect(&address).await?;
    ask(&mut first).await?;
    relay.signaling().sever();
    let mut rest = Vec::new();
    let _end_or_reset = timeout(BOUND, first.read_to_end(&mut rest)).await?;
    ask(&mut TcpStream::connect(&address).await?).await
}

async fn restarted_server_has_the_same_address() -> anyhow::Result<()> {
    let mut server = Server::start("")?;
    let relay = Relay::start(&server).await?;
    let token = server.key().client("restarted", "one").sign()?;
    let before = LiveKitTransport::join(&relay.url(), &token).await?.local();
    server.restart()?;
    ensure!(LiveKitTransport::join(&relay.url(), &token).await?.local().sid() != before.sid());
    Ok(())
}

async fn packets_pass_over_ipv6() -> anyhow::Result<()> {
    for (room, options) in [("v6-udp", ConnectOptions::new()), ("v6-tcp", ConnectOptions::new().tcp_only())] {
        let server = shared()?;
        // All visible addresses of the server are of the other family.
        let relay = Relay::start_for(&server, Ipv6Addr::LOCALHOST.into()).await?;
        let mut one = options.join(&relay.url(), &server.key().client(room, "one").sign()?).await?;
        let two = LiveKitTransport::join(&server.url(), &server.key().client(room, "two").sign()?).await?;
        two.send(to("one", room)).await?;
        ensure!(packet(&mut one).await?.payload == room);
    }
    Ok(())
}
