//! Datagrams from an attacker, at the port where a participant receives its packets.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use serde_json::json;
use tokio::net::UdpSocket;
use toolbridge::{Assistant, Client, Event, livekit::ConnectOptions};

use crate::{
    ends::{assistant, double, unhurried},
    server::shared,
    soon,
};

pub(crate) fn trials() -> Vec<Trial> {
    trials![forged: sixty_thousand_forged_datagrams_change_nothing]
}

/// How many are sent between two calls: few enough for the system's buffer, so that each is read.
const BURST: usize = 50;
const BURSTS: usize = 1_200;
/// The participant's own address.
const HERE: Ipv4Addr = Ipv4Addr::new(127, 33, 77, 11);

async fn sixty_thousand_forged_datagrams_change_nothing() -> anyhow::Result<()> {
    let server = shared()?;
    let phone = Client::builder()
        .tool("double", "", double)
        .configure(unhurried)
        .connect_options(ConnectOptions::new().bind_address(HERE.into()));
    let phone = phone.join(&server.url(), &server.key().client("forged", "phone").sign()?).await?;
    let brain = assistant(&server, "forged", "brain", Assistant::builder().configure(unhurried)).await?;
    let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let mut events = phone.events();
    let links = tokio::spawn(async move {
        let mut links = Vec::new();
        while let Some(event) = events.recv().await {
            if let Event::ConnectionState(state) = event {
                links.push(state);
            }
        }
        links
    });
    let (port, _) = media_port().await?;
    let mut sent = 0;
    for n in 0..BURSTS {
        // Its datagrams follow the forged ones: when it has been answered, those were read.
        ensure!(brain.call("double", json!({"n": n})).await?.decode::<usize>()? == 2 * n);
        for _ in 0..BURST {
            stranger.send_to(&forged(sent), port).await?;
            sent += 1;
        }
    }
    ensure!(brain.call("double", json!({"n": 21})).await?.decode::<u64>()? == 42);
    let (_, dropped) = media_port().await?;
    ensure!(sent == 60_000 && dropped == 0, "{sent} were sent, of which the system dropped {dropped}");
    phone.close().await;
    let links = links.await?;
    ensure!(links.is_empty(), "the connection state changed: {links:?}");
    Ok(())
}

/// Returns garbage, STUN, DTLS, RTP or TURN messages, each slightly different.
fn forged(n: usize) -> Vec<u8> {
    /// Heads of plausible datagrams.
    const HEADS: [&[u8]; 10] = [
        b"",
        b"\xff\xff\xff\xff",
        // A connectivity check, its response, an error response.
        b"\x00\x01\x00\x00\x21\x12\xa4\x42",
        b"\x01\x01\x00\x0c\x21\x12\xa4\x42",
        b"\x01\x11\x00\x00\x21\x12\xa4\x42",
        // A handshake, data and an alert of DTLS.
        b"\x16\xfe\xfd\x00\x00\x00\x00\x00\x00\x00\x00\x00\x20\x01",
        b"\x17\xfe\xfd\x00\x01\x00\x00\x00\x00\x00\x09\x00\x20",
        b"\x15\xfe\xfd\x00\x01\x00\x00\x00\x00\x00\x09\x00\x02\x02\x00",
        // A datagram on a channel, and one with its sender.
        b"\x40\x00\x00\x10",
        b"\x00\x17\x00\x10\x21\x12\xa4\x42",
    ];
    let mut datagram = HEADS[n % HEADS.len()].to_vec();
    datagram.extend((0..n % 200).map(|at| (n * 31 + at * 7) as u8));
    datagram
}

/// Returns where the participant receives its packets, and how many the system has dropped there.
async fn media_port() -> anyhow::Result<(SocketAddr, u64)> {
    let local = format!("{:08X}:", u32::from_ne_bytes(HERE.octets()));
    // The system writes this table in parts; a line may be missing while sockets are opened and closed.
    let found = async {
        loop {
            let table = fs::read_to_string("/proc/net/udp")?;
            match table.lines().find(|line| line.contains(&local)) {
                Some(line) => return anyhow::Ok(line.to_owned()),
                None => tokio::task::yield_now().await,
            }
        }
    };
    let line = soon("the participant's socket", found).await??;
    let fields: Vec<_> = line.split_whitespace().collect();
    let port = fields[1].rsplit(':').next().context("no port")?;
    let address = SocketAddrV4::new(HERE, u16::from_str_radix(port, 16)?);
    Ok((address.into(), fields.last().context("no count")?.parse()?))
}
