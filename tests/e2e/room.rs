//! The transport by itself: joining, packets, leaving, and every way in which a connection ends.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use libtest_mimic::Trial;
use livekit_token::Claims;
use serde_json::json;
use sha2::Sha256;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinSet,
    time::{sleep, timeout},
};
use toolbridge::{
    CloseReason, ConnectionState, Identity, Role,
    livekit::{AccessKey, ConnectError, ConnectOptions, LiveKitTransport},
    transport::{
        Capabilities, Incoming, Lane, Packet, Peer, ROLE_ATTRIBUTE, SendError, Transport, TransportEvent,
    },
};

use crate::{
    BOUND,
    server::{KEY, SECRET, Server, shared},
    soon,
    tls::TlsProxy,
};

pub(crate) fn trials() -> Vec<Trial> {
    trials![room:
        // The long ones first: they only wait.
        seventy_idle_seconds_cut_nothing,
        seventy_idle_seconds_cut_nothing_of_an_ice_lite_server,
        slow_reader_slows_the_sender_and_stays_connected,
        permanently_silent_server_is_lost,
        full_queue_ends_with_the_close_over_a_silent_server,
        full_queue_empties_after_the_rejoin,
        temporarily_silent_server_is_reported_down_then_up,
        packets_pass_in_both_directions_on_both_lanes,
        packet_reaches_only_named_destinations,
        packet_without_destinations_is_refused,
        packet_above_the_size_limit_is_refused,
        many_packets_stay_in_order,
        accepted_packets_arrive_before_the_leave,
        wrong_secret_is_unauthorized,
        expired_token_is_unauthorized,
        missing_token_is_malformed,
        closed_port_is_unreachable,
        server_that_never_answers_times_out,
        server_other_than_livekit_is_refused,
        missing_network_path_is_reported_with_the_ports,
        untrusted_certificate_is_refused_and_its_root_accepted,
        server_with_tcp_only_is_reachable,
        client_with_tcp_only_connects,
        second_join_of_an_identity_kicks_the_first,
        missing_grant_prevents_sending,
        revoked_grant_applies_at_once,
        deleted_room_is_reported,
        removal_is_reported_to_the_participant,
        killed_server_is_detected,
        killed_server_ends_a_participant_without_rejoin,
        failed_join_leaves_no_participant,
        leave_is_announced,
        drop_is_announced_as_leave,
        attributes_and_permissions_are_reported,
        participant_kind_is_reported,
    ]
}

async fn join(server: &Server, room: &str, identity: &str) -> anyhow::Result<LiveKitTransport> {
    let token = server.key().client(room, identity).sign()?;
    Ok(LiveKitTransport::join(&server.url(), &token).await?)
}

/// Two participants in a room that know of each other.
async fn pair(server: &Server, room: &str) -> anyhow::Result<(LiveKitTransport, LiveKitTransport)> {
    let mut one = join(server, room, "one").await?;
    let two = join(server, room, "two").await?;
    ensure!(two.present().iter().any(|it| it.identity() == "one"), "{:?}", two.present());
    joined(&mut one, "two").await?;
    Ok((one, two))
}

/// Waits for the first event that `wanted` accepts.
pub(crate) async fn until<T>(
    room: &mut LiveKitTransport,
    mut wanted: impl FnMut(TransportEvent) -> Option<T>,
) -> anyhow::Result<T> {
    let search = async {
        while let Some(event) = room.recv().await {
            if let Some(found) = wanted(event) {
                return Ok(found);
            }
        }
        bail!("the room ended")
    };
    timeout(BOUND, search).await.context("timed out waiting for the event")?
}

pub(crate) async fn joined(
    room: &mut LiveKitTransport,
    identity: &str,
) -> anyhow::Result<toolbridge::transport::Participant> {
    until(room, |event| match event {
        TransportEvent::Joined(who) if who.identity() == identity => Some(who),
        _ => None,
    })
    .await
}

pub(crate) async fn left(room: &mut LiveKitTransport, identity: &str) -> anyhow::Result<Peer> {
    until(room, |event| match event {
        TransportEvent::Left(who) if who.identity() == identity => Some(who),
        _ => None,
    })
    .await
}

pub(crate) async fn packet(room: &mut LiveKitTransport) -> anyhow::Result<Incoming> {
    until(room, |event| match event {
        TransportEvent::Packet(packet) => Some(packet),
        _ => None,
    })
    .await
}

pub(crate) async fn closed(room: &mut LiveKitTransport) -> anyhow::Result<CloseReason> {
    let reason = until(room, |event| match event {
        TransportEvent::Closed(reason) => Some(reason),
        _ => None,
    })
    .await?;
    ensure!(room.recv().await.is_none(), "an event followed the end");
    Ok(reason)
}

pub(crate) fn to(identity: &str, payload: impl Into<bytes::Bytes>) -> Packet {
    Packet::new([Identity::from(identity)], payload)
}

pub(crate) fn on(lane: Lane, mut packet: Packet) -> Packet {
    packet.lane = lane;
    packet
}

/// Signs claims that no token server would issue.
fn sign(claims: &Claims) -> anyhow::Result<String> {
    let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let signed =
        format!("{}.{}", text(br#"{"alg":"HS256","typ":"JWT"}"#), text(&serde_json::to_vec(claims)?));
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes())?;
    mac.update(signed.as_bytes());
    Ok(format!("{signed}.{}", text(&mac.finalize().into_bytes())))
}

fn refusal<T>(joined: Result<T, ConnectError>) -> anyhow::Result<ConnectError> {
    joined.err().context("the join succeeded")
}

async fn packets_pass_in_both_directions_on_both_lanes() -> anyhow::Result<()> {
    let server = shared()?;
    let start = Instant::now();
    let one = join(&server, "both-ways", "warm-up").await?;
    println!("join: {:?}", start.elapsed());
    drop(one);
    let (mut one, mut two) = pair(&server, "both-ways").await?;
    ensure!(one.room() == "both-ways" && one.capabilities().lossy);
    for lane in [Lane::Reliable, Lane::Lossy] {
        for (from, to_whom) in [(0, 1), (1, 0)] {
            let names = ["one", "two"];
            let rooms = [&mut one, &mut two];
            let [sender, receiver] = if from == 0 {
                rooms
            } else {
                let [a, b] = rooms;
                [b, a]
            };
            sender.send(on(lane, to(names[to_whom], format!("{lane:?} from {from}")))).await?;
            let got = packet(receiver).await?;
            ensure!(got.payload == format!("{lane:?} from {from}"), "{got:?}");
            ensure!(
                got.lane == lane
                    && got.topic == toolbridge::transport::TOPIC
                    && got.from.as_ref() == Some(sender.local().peer()),
                "{got:?}"
            );
        }
    }
    Ok(())
}

async fn packet_reaches_only_named_destinations() -> anyhow::Result<()> {
    let server = shared()?;
    let (one, mut two) = pair(&server, "named").await?;
    let mut three = join(&server, "named", "three").await?;
    one.send(to("two", "for two")).await?;
    one.send(to("three", "for three")).await?;
    one.send(Packet::broadcast("for all")).await?;
    for (room, own) in [(&mut two, "for two"), (&mut three, "for three")] {
        ensure!(packet(room).await?.payload == own);
        ensure!(packet(room).await?.payload == "for all");
    }
    Ok(())
}

async fn packet_without_destinations_is_refused() -> anyhow::Result<()> {
    let room = join(&*shared()?, "meant", "one").await?;
    ensure!(matches!(room.send(Packet::new([], "x")).await, Err(SendError::NoDestination)));
    Ok(())
}

async fn packet_above_the_size_limit_is_refused() -> anyhow::Result<()> {
    let (one, mut two) = pair(&*shared()?, "sizes").await?;
    let limit = Capabilities::MAX_PACKET;
    one.send(on(Lane::Reliable, to("two", vec![7; limit]))).await?;
    ensure!(packet(&mut two).await?.payload.len() == limit);
    // A lossy packet of this size has many parts, any of which may be lost.
    let arrived = loop {
        one.send(on(Lane::Lossy, to("two", vec![7; limit]))).await?;
        if let Ok(arrived) = timeout(Duration::from_secs(1), packet(&mut two)).await {
            break arrived?;
        }
    };
    ensure!(arrived.payload.len() == limit);
    // On the reliable lane it is a stream.
    match one.send(on(Lane::Lossy, to("two", vec![7; limit + 1]))).await {
        Err(SendError::TooLarge { size: 15_001, limit: 15_000 }) => {}
        other => bail!("{other:?}"),
    }
    let crowd = (0..5000).map(|n| Identity::from(format!("somebody-{n:06}")));
    match one.send(Packet::new(crowd, "x")).await {
        Err(SendError::TooLarge { size, limit: 64_000 }) => ensure!(size > 64_000),
        other => bail!("{other:?}"),
    }
    Ok(())
}

async fn many_packets_stay_in_order() -> anyhow::Result<()> {
    const PACKETS: u32 = 600;
    let (one, mut two) = pair(&*shared()?, "order").await?;
    let start = Instant::now();
    let sending = tokio::spawn(async move {
        for n in 0..PACKETS {
            let mut payload = vec![0; 15_000];
            payload[..4].copy_from_slice(&n.to_be_bytes());
            one.send(to("two", payload)).await?;
        }
        Ok::<_, SendError>(one)
    });
    for n in 0..PACKETS {
        ensure!(packet(&mut two).await?.payload[..4] == n.to_be_bytes(), "packet {n}");
    }
    println!("{} MB/s", f64::from(PACKETS) * 15e-3 / start.elapsed().as_secs_f64());
    sending.await??;
    Ok(())
}

async fn accepted_packets_arrive_before_the_leave() -> anyhow::Result<()> {
    const PACKETS: usize = 40;
    let (mut one, mut two) = pair(&*shared()?, "flush").await?;
    let sends: Vec<_> =
        (0..PACKETS).map(|n| tokio::spawn(one.send(to("two", vec![n as u8; 10_000])))).collect();
    // The first 32 have a slot in the queue; the others get one when they are polled.
    for send in sends {
        send.await??;
    }
    one.close().await;
    ensure!(closed(&mut one).await? == CloseReason::Closed);
    ensure!(matches!(one.send(to("two", "late")).await, Err(SendError::Closed(CloseReason::Closed))));
    // The leave event takes another path, and may arrive before its last packets.
    let (mut heard, mut is_gone) = (Vec::new(), false);
    while heard.len() < PACKETS || !is_gone {
        let event = until(&mut two, Some).await?;
        match event {
            TransportEvent::Packet(packet) => heard.push(usize::from(packet.payload[0])),
            TransportEvent::Left(who) if who.identity() == "one" => is_gone = true,
            _ => {}
        }
    }
    // Those that waited for a slot arrived in the order in which they were polled.
    heard.sort_unstable();
    ensure!(heard.iter().copied().eq(0..PACKETS), "{heard:?}");
    Ok(())
}

async fn wrong_secret_is_unauthorized() -> anyhow::Result<()> {
    let server = shared()?;
    let token = AccessKey::new(KEY, "anothersecretanothersecretanothersecret").client("no", "one").sign()?;
    let error = refusal(LiveKitTransport::join(&server.url(), &token).await)?;
    ensure!(matches!(error, ConnectError::Unauthorized { status: 401, .. }), "{error:?}");
    ensure!(!format!("{error:?} {error}").contains(&token[..20]), "the error contains the token");
    Ok(())
}

async fn expired_token_is_unauthorized() -> anyhow::Result<()> {
    let server = shared()?;
    let mut claims = Claims::from_unverified(&server.key().client("no", "one").sign()?)?;
    claims.exp -= 3600;
    claims.nbf -= 3600;
    let error = refusal(LiveKitTransport::join(&server.url(), &sign(&claims)?).await)?;
    ensure!(matches!(error, ConnectError::Unauthorized { status: 401, .. }), "{error:?}");
    Ok(())
}

async fn missing_token_is_malformed() -> anyhow::Result<()> {
    let error = refusal(LiveKitTransport::join(&shared()?.url(), "not a\ntoken").await)?;
    ensure!(matches!(error, ConnectError::MalformedToken), "{error:?}");
    Ok(())
}

async fn closed_port_is_unreachable() -> anyhow::Result<()> {
    let server = shared()?;
    let port = TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port();
    let token = server.key().client("no", "one").sign()?;
    let error = refusal(LiveKitTransport::join(&format!("ws://127.0.0.1:{port}"), &token).await)?;
    match error {
        ConnectError::Unreachable { server, .. } => ensure!(server == format!("127.0.0.1:{port}")),
        other => bail!("{other:?}"),
    }
    Ok(())
}

async fn server_other_than_livekit_is_refused() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("ws://{}", listener.local_addr()?);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let _ = stream
                .write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                .await;
        }
    });
    let token = shared()?.key().client("no", "one").sign()?;
    let error = refusal(LiveKitTransport::join(&url, &token).await)?;
    ensure!(matches!(error, ConnectError::Refused { status: 404, .. }), "{error:?}");
    Ok(())
}

async fn untrusted_certificate_is_refused_and_its_root_accepted() -> anyhow::Result<()> {
    let server = shared()?;
    let proxy = TlsProxy::start(server.port()).await?;
    let token = server.key().client("tls", "one").sign()?;
    let error = refusal(LiveKitTransport::join(&proxy.url(), &token).await)?;
    ensure!(
        matches!(&error, ConnectError::Tls { source, .. } if source.to_string().contains("certificate")),
        "{error:?}"
    );
    let stranger = TlsProxy::start(server.port()).await?;
    let error = refusal(
        ConnectOptions::new().root_certificates(stranger.root.as_bytes())?.join(&proxy.url(), &token).await,
    )?;
    ensure!(matches!(error, ConnectError::Tls { .. }), "{error:?}");

    let room =
        ConnectOptions::new().root_certificates(proxy.root.as_bytes())?.join(&proxy.url(), &token).await?;
    let mut plain = join(&server, "tls", "two").await?;
    room.send(to("two", "over TLS")).await?;
    ensure!(packet(&mut plain).await?.payload == "over TLS");
    Ok(())
}

async fn server_with_tcp_only_is_reachable() -> anyhow::Result<()> {
    let server = Server::start("  force_tcp: true")?;
    let (one, mut two) = pair(&server, "tcp").await?;
    one.send(to("two", vec![1; 15_000])).await?;
    ensure!(packet(&mut two).await?.payload.len() == 15_000);
    Ok(())
}

async fn client_with_tcp_only_connects() -> anyhow::Result<()> {
    let server = shared()?;
    let token = server.key().client("tcp-client", "one").sign()?;
    let mut one = ConnectOptions::new().tcp_only().join(&server.url(), &token).await?;
    let two = join(&server, "tcp-client", "two").await?;
    two.send(to("one", "hello")).await?;
    ensure!(packet(&mut one).await?.payload == "hello");
    Ok(())
}

async fn second_join_of_an_identity_kicks_the_first() -> anyhow::Result<()> {
    let server = shared()?;
    let (mut one, mut two) = pair(&server, "twice").await?;
    let again = join(&server, "twice", "one").await?;
    ensure!(closed(&mut one).await? == CloseReason::DuplicateIdentity);
    let old = left(&mut two, "one").await?;
    ensure!(old == *one.local().peer() && old != *again.local().peer());
    again.send(to("two", "it is me again")).await?;
    let got = packet(&mut two).await?;
    ensure!(got.from.as_ref() == Some(again.local().peer()), "{got:?}");
    Ok(())
}

async fn missing_grant_prevents_sending() -> anyhow::Result<()> {
    let server = shared()?;
    let mut two = join(&server, "grant", "two").await?;
    let token = server.key().participant("grant", "one").listen_only().sign()?;
    let mut one = LiveKitTransport::join(&server.url(), &token).await?;
    ensure!(matches!(one.send(to("two", "x")).await, Err(SendError::NotAllowed)));
    joined(&mut two, "one").await?;
    two.send(to("one", "hearing is free")).await?;
    ensure!(packet(&mut one).await?.payload == "hearing is free");
    Ok(())
}

async fn revoked_grant_applies_at_once() -> anyhow::Result<()> {
    let server = shared()?;
    let (one, mut two) = pair(&server, "revoked").await?;
    one.send(to("two", "x")).await?;
    let permission = json!({"can_publish_data": false, "can_subscribe": true});
    let body = json!({"room": "revoked", "identity": "one", "permission": permission});
    server.room_service("UpdateParticipant", "revoked", body).await?;
    // Only the refusal itself reports it; packets sent before it arrive.
    let refused = async {
        loop {
            match one.send(to("two", "y")).await {
                Ok(()) => tokio::task::yield_now().await,
                Err(error) => return error,
            }
        }
    };
    tokio::select! {
        error = timeout(BOUND, refused) => ensure!(matches!(error?, SendError::NotAllowed)),
        () = async { while two.recv().await.is_some() {} } => bail!("the other participant ended"),
    }
    Ok(())
}

async fn deleted_room_is_reported() -> anyhow::Result<()> {
    let server = shared()?;
    let (mut one, mut two) = pair(&server, "deleted").await?;
    server.room_service("DeleteRoom", "deleted", json!({"room": "deleted"})).await?;
    ensure!(closed(&mut one).await? == CloseReason::RoomDeleted);
    ensure!(closed(&mut two).await? == CloseReason::RoomDeleted);
    Ok(())
}

async fn removal_is_reported_to_the_participant() -> anyhow::Result<()> {
    let server = shared()?;
    let (mut one, mut two) = pair(&server, "removed").await?;
    server
        .room_service("RemoveParticipant", "removed", json!({"room": "removed", "identity": "one"}))
        .await?;
    ensure!(closed(&mut one).await? == CloseReason::Removed);
    left(&mut two, "one").await?;
    Ok(())
}

async fn killed_server_is_detected() -> anyhow::Result<()> {
    let server = Server::start("")?;
    let (mut one, mut two) = pair(&server, "killed").await?;
    let start = Instant::now();
    server.kill();
    for room in [&mut one, &mut two] {
        ensure!(link(room).await? == ConnectionState::Reconnecting);
    }
    println!("noticed after {:?}", start.elapsed());
    ensure!(matches!(one.send(to("two", "x")).await, Err(SendError::Interrupted)));
    Ok(())
}

async fn killed_server_ends_a_participant_without_rejoin() -> anyhow::Result<()> {
    let server = Server::start("")?;
    let token = server.key().client("killed", "one").sign()?;
    let mut one = ConnectOptions::new().rejoin_limit(Duration::ZERO).join(&server.url(), &token).await?;
    server.kill();
    let reason = closed(&mut one).await?;
    ensure!(matches!(reason, CloseReason::ConnectionLost(_)), "{reason:?}");
    ensure!(matches!(one.send(to("two", "x")).await, Err(SendError::Closed(CloseReason::ConnectionLost(_)))));
    Ok(())
}

/// Returns the next change of the connection state.
async fn link(room: &mut LiveKitTransport) -> anyhow::Result<ConnectionState> {
    until(room, |event| match event {
        TransportEvent::ConnectionState(link) => Some(link),
        _ => None,
    })
    .await
}

async fn temporarily_silent_server_is_reported_down_then_up() -> anyhow::Result<()> {
    let server = Server::start("")?;
    let (mut one, mut two) = pair(&server, "pause").await?;
    server.pause();
    for room in [&mut one, &mut two] {
        ensure!(link(room).await? == ConnectionState::Reconnecting);
    }
    ensure!(matches!(one.send(to("two", "said into the silence")).await, Err(SendError::Interrupted)));
    server.resume();
    for room in [&mut one, &mut two] {
        ensure!(link(room).await? == ConnectionState::Connected);
    }
    one.send(to("two", "back")).await?;
    ensure!(packet(&mut two).await?.payload == "back");
    Ok(())
}

/// More packets than the queue and the channel take. The later ones wait.
fn flood(room: &LiveKitTransport) -> JoinSet<Result<(), SendError>> {
    (0..5_000).map(|_| room.send(Packet::new(["two".into()], vec![7; 1_000]))).collect()
}

/// Waits for all sends, and returns how many were sent and how many were not.
async fn ended(mut sends: JoinSet<Result<(), SendError>>) -> anyhow::Result<(usize, usize)> {
    let (mut sent, mut failed) = (0, 0);
    while let Some(result) = soon("each send ends", sends.join_next()).await? {
        match result? {
            Ok(()) => sent += 1,
            Err(SendError::Closed(_) | SendError::Interrupted) => failed += 1,
            Err(other) => return Err(other.into()),
        }
    }
    Ok((sent, failed))
}

async fn full_queue_ends_with_the_close_over_a_silent_server() -> anyhow::Result<()> {
    let server = Server::start("")?;
    let mut room = join(&server, "full", "one").await?;
    server.pause();
    let sends = flood(&room);
    soon("the close", room.close()).await?;
    drop(room);
    let (sent, failed) = ended(sends).await?;
    println!("{sent} sent, {failed} not");
    ensure!(sent + failed == 5_000 && failed > 0);
    Ok(())
}

async fn full_queue_empties_after_the_rejoin() -> anyhow::Result<()> {
    let server = Server::start("")?;
    let (mut one, mut two) = pair(&server, "refill").await?;
    server.pause();
    let sends = flood(&one);
    ensure!(link(&mut one).await? == ConnectionState::Reconnecting);
    server.resume();
    ensure!(link(&mut one).await? == ConnectionState::Connected);
    let more = one.send(to("two", "last"));
    let reading = tokio::spawn(async move {
        while packet(&mut two).await?.payload != "last" {}
        anyhow::Ok(())
    });
    let (sent, failed) = ended(sends).await?;
    println!("{sent} sent, {failed} not");
    ensure!(sent + failed == 5_000 && failed > 0);
    more.await?;
    reading.await?
}

async fn permanently_silent_server_is_lost() -> anyhow::Result<()> {
    let server = Server::start("")?;
    let token = server.key().client("silent", "one").sign()?;
    let options = ConnectOptions::new().rejoin_limit(Duration::from_secs(2));
    let mut room = options.join(&server.url(), &token).await?;
    let start = Instant::now();
    server.pause();
    let reason = closed(&mut room).await?;
    println!("{reason} after {:?}", start.elapsed());
    // 2.5 s if the server was paused before it had acknowledged all data of the join.
    let is_reason = |why: &str| why.contains("for 2.8 s") || why.contains("for 2.5 s");
    ensure!(matches!(&reason, CloseReason::ConnectionLost(why) if is_reason(why)), "{reason:?}");
    Ok(())
}

async fn seventy_idle_seconds_cut_nothing() -> anyhow::Result<()> {
    idle(&*shared()?).await
}

/// Such a server never checks the path itself: it only answers the client's checks.
async fn seventy_idle_seconds_cut_nothing_of_an_ice_lite_server() -> anyhow::Result<()> {
    idle(&Server::start("  use_ice_lite: true")?).await
}

async fn idle(server: &Server) -> anyhow::Result<()> {
    let (one, mut two) = pair(server, "idle").await?;
    // The only event is that the room has announced the participant.
    let nothing = timeout(Duration::from_secs(70), async {
        loop {
            match two.recv().await {
                Some(TransportEvent::Joined(who)) if who.identity() == "two" => {}
                other => return other,
            }
        }
    });
    let nothing = nothing.await;
    ensure!(nothing.is_err(), "{nothing:?}");
    one.send(to("two", "still here")).await?;
    ensure!(packet(&mut two).await?.payload == "still here");
    Ok(())
}

async fn missing_network_path_is_reported_with_the_ports() -> anyhow::Result<()> {
    let server = shared()?;
    let token = server.key().client("no-path", "one").sign()?;
    let options = ConnectOptions::new().bind_address("::1".parse()?).join_timeout(Duration::from_secs(2));
    match refusal(options.join(&server.url(), &token).await)? {
        ConnectError::NoNetworkPath { tried, .. } => {
            ensure!(tried.iter().any(|it| it.ip().is_loopback()), "{tried:?}");
        }
        other => bail!("{other:?}"),
    }
    Ok(())
}

async fn server_that_never_answers_times_out() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("ws://{}", listener.local_addr()?);
    let token = shared()?.key().client("no", "one").sign()?;
    let options = ConnectOptions::new().join_timeout(Duration::from_secs(1));
    let error = refusal(options.join(&url, &token).await)?;
    ensure!(
        matches!(error, ConnectError::Timeout { phase: toolbridge::livekit::JoinPhase::Signaling, .. }),
        "{error:?}"
    );
    Ok(())
}

async fn leave_is_announced() -> anyhow::Result<()> {
    let (mut one, mut two) = pair(&*shared()?, "leave").await?;
    let start = Instant::now();
    one.close().await;
    println!("left after {:?}", start.elapsed());
    ensure!(left(&mut two, "one").await? == *one.local().peer());
    ensure!(two.present().is_empty());
    Ok(())
}

async fn drop_is_announced_as_leave() -> anyhow::Result<()> {
    let (one, mut two) = pair(&*shared()?, "drop").await?;
    let peer = one.local().peer().clone();
    drop(one);
    ensure!(left(&mut two, "one").await? == peer);
    Ok(())
}

async fn attributes_and_permissions_are_reported() -> anyhow::Result<()> {
    let server = shared()?;
    let mut phone = join(&server, "roles", "phone").await?;
    let assistant = server.key().assistant("roles", "assistant").attribute("floor", "2").sign()?;
    let assistant = LiveKitTransport::join(&server.url(), &assistant).await?;
    ensure!(assistant.local().token_role() == Some(Role::Assistant));
    let seen = joined(&mut phone, "assistant").await?;
    ensure!(
        seen.token_role() == Some(Role::Assistant) && seen.is_eligible_assistant() && !seen.is_agent(),
        "{seen:?}"
    );
    ensure!(seen.attribute("floor") == Some("2") && seen.attribute(ROLE_ATTRIBUTE) == Some("assistant"));

    let free = server.key().participant("roles", "free").can_update_own_metadata().sign()?;
    let _free = LiveKitTransport::join(&server.url(), &free).await?;
    ensure!(joined(&mut phone, "free").await?.may_update_metadata());

    let body = json!({"room": "roles", "identity": "assistant", "attributes": {"floor": "3"}});
    server.room_service("UpdateParticipant", "roles", body).await?;
    let changed = joined(&mut phone, "assistant").await?;
    ensure!(changed.attribute("floor") == Some("3") && changed.peer() == seen.peer(), "{changed:?}");
    ensure!(phone.present().iter().any(|it| it.attribute("floor") == Some("3")));
    Ok(())
}

async fn participant_kind_is_reported() -> anyhow::Result<()> {
    let server = shared()?;
    let mut phone = join(&server, "kind", "phone").await?;
    let agent = server.key().participant("kind", "agent").agent().sign()?;
    let _agent = LiveKitTransport::join(&server.url(), &agent).await?;
    ensure!(joined(&mut phone, "agent").await?.is_agent());
    Ok(())
}

/// Sends more than the queues hold, and does not read for longer than ICE waits for a silent peer.
async fn slow_reader_slows_the_sender_and_stays_connected() -> anyhow::Result<()> {
    const PACKETS: u32 = 1000;
    let (one, mut two) = pair(&*shared()?, "slow").await?;
    let reading_nothing = sleep(Duration::from_secs(17));
    let sending = tokio::spawn(async move {
        for n in 0..PACKETS {
            let mut payload = vec![0; 15_000];
            payload[..4].copy_from_slice(&n.to_be_bytes());
            one.send(to("two", payload)).await?;
        }
        one.send(to("two", "the end")).await?;
        Ok::<_, SendError>(one)
    });
    reading_nothing.await;
    let mut last = None;
    // The server may drop packets of a slow reader, but it never reorders them.
    loop {
        match timeout(BOUND, two.recv()).await?.context("the room ended")? {
            TransportEvent::Packet(packet) if packet.payload == "the end" => break,
            TransportEvent::Packet(packet) => {
                let n = u32::from_be_bytes(packet.payload[..4].try_into()?);
                ensure!(last.is_none_or(|last| last < n), "{n} after {last:?}");
                last = Some(n);
            }
            TransportEvent::Joined(who) if who.identity() == "two" => {} // the participant was announced
            other => bail!("{other:?}"),
        }
    }
    println!("the last of {PACKETS} that a slow reader heard: {last:?}");
    sending.await??;
    Ok(())
}

async fn failed_join_leaves_no_participant() -> anyhow::Result<()> {
    let server = shared()?;
    let token = server.key().client("nobody", "one").sign()?;
    let options = ConnectOptions::new().bind_address("::1".parse()?).join_timeout(Duration::from_secs(1));
    refusal(options.join(&server.url(), &token).await)?;
    let gone = async {
        while server
            .room_service("ListParticipants", "nobody", json!({"room": "nobody"}))
            .await?
            .contains("\"one\"")
        {
            tokio::task::yield_now().await;
        }
        anyhow::Ok(())
    };
    timeout(BOUND, gone).await.context("the participant is still in the room")?
}
