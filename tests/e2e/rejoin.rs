//! Rejoins after a loss: by cuts of either connection, and by a server that is restarted.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{bail, ensure};
use futures_util::future::join_all;
use libtest_mimic::Trial;
use serde_json::json;
use tokio::time::{interval, sleep};
use toolbridge::{
    CloseReason, ConnectionState,
    livekit::{AccessKey, ConnectOptions, LiveKitTransport},
    transport::{Participant, SendError, Transport, TransportEvent},
};

use crate::{
    relay::Relay,
    room::{closed, left, packet, to, until},
    server::{KEY, Server, shared},
    soon,
};

pub(crate) fn trials() -> Vec<Trial> {
    trials![rejoin:
        calls_survive_a_cut_of_both_for_20_s,
        calls_survive_a_cut_of_the_media_for_20_s,
        cut_of_the_signaling_for_20_s_causes_no_rejoin,
        calls_survive_a_cut_of_both_for_8_s,
        calls_survive_a_cut_of_both_for_3_s,
        cut_of_both_for_1_s_causes_no_rejoin,
        calls_over_tcp_survive_a_cut,
        participant_that_leaves_during_an_outage_is_gone,
        participant_that_times_out_during_an_outage_is_gone,
        kicked_participant_rejoins,
        restarted_server_is_rejoined,
        waiting_packet_is_interrupted_and_never_sent_later,
        no_packet_passes_between_down_and_up,
        room_state_is_reported_after_the_rejoin,
        refused_token_ends_the_participant,
        fresh_token_is_requested_when_the_newest_is_refused,
        fresh_token_of_another_identity_ends_the_participant,
        rejoin_limit_ends_the_participant,
    ]
}

/// The interval of asking whether packets pass again. Nothing depends on it.
const ASK: Duration = Duration::from_millis(50);

async fn one_and_two(
    server: &Server,
    relay: &Relay,
    room: &str,
    options: ConnectOptions,
) -> anyhow::Result<(LiveKitTransport, LiveKitTransport)> {
    let one = options.join(&relay.url(), &server.key().client(room, "one").sign()?).await?;
    Ok((one, LiveKitTransport::join(&server.url(), &server.key().client(room, "two").sign()?).await?))
}

async fn link(room: &mut LiveKitTransport, wanted: ConnectionState) -> anyhow::Result<()> {
    until(room, |event| {
        matches!(event, TransportEvent::ConnectionState(state) if state == wanted).then_some(())
    })
    .await
}

/// Waits until the connection was lost and restored.
async fn rejoined(room: &mut LiveKitTransport) -> anyhow::Result<Participant> {
    let before = room.local();
    link(room, ConnectionState::Reconnecting).await?;
    ensure!(room.local() == before, "the old join is reported until the connection is restored");
    link(room, ConnectionState::Connected).await?;
    ensure!(room.local().identity() == before.identity() && room.local().sid() != before.sid());
    Ok(room.local())
}

/// Asks until the other participant replies: packets sent during the cut may be lost.
async fn answered(one: &mut LiveKitTransport, two: LiveKitTransport) -> anyhow::Result<()> {
    let echo = tokio::spawn(async move {
        let mut two = two;
        while let Ok(question) = packet(&mut two).await {
            let _ = two.send(to("one", question.payload)).await;
        }
    });
    let mut again = interval(ASK);
    let search = async {
        loop {
            tokio::select! {
                _ = again.tick() => drop(tokio::spawn(one.send(to("two", "ping")))),
                event = one.recv() => match event {
                    Some(TransportEvent::Packet(_)) => return Ok(()),
                    None | Some(TransportEvent::Closed(_)) => bail!("the participant ended: {event:?}"),
                    Some(_) => {}
                },
            }
        }
    };
    let found = soon("a reply", search).await?;
    echo.abort();
    found
}

/// Cuts for this long. Returns whether there was a rejoin.
async fn cut(
    room: &str,
    options: ConnectOptions,
    cut: impl Fn(&Relay),
    length: Duration,
) -> anyhow::Result<bool> {
    let server = shared()?;
    let relay = Relay::start(&server).await?;
    let (mut one, two) = one_and_two(&server, &relay, room, options).await?;
    let before = one.local();
    cut(&relay);
    sleep(length).await;
    relay.restore();
    let began = Instant::now();
    answered(&mut one, two).await?;
    let rejoined = one.local().sid() != before.sid();
    println!("{room}: answered {:?} after a cut of {length:?}, rejoined: {rejoined}", began.elapsed());
    Ok(rejoined)
}

async fn calls_survive_a_cut_of_both_for_20_s() -> anyhow::Result<()> {
    ensure!(cut("both-20", ConnectOptions::new(), Relay::cut, Duration::from_secs(20)).await?);
    Ok(())
}

async fn calls_survive_a_cut_of_the_media_for_20_s() -> anyhow::Result<()> {
    let media = |relay: &Relay| relay.media().cut();
    ensure!(cut("media-20", ConnectOptions::new(), media, Duration::from_secs(20)).await?);
    Ok(())
}

async fn cut_of_the_signaling_for_20_s_causes_no_rejoin() -> anyhow::Result<()> {
    let signaling = |relay: &Relay| relay.signaling().cut();
    ensure!(!cut("signaling-20", ConnectOptions::new(), signaling, Duration::from_secs(20)).await?);
    Ok(())
}

async fn calls_survive_a_cut_of_both_for_8_s() -> anyhow::Result<()> {
    ensure!(cut("both-8", ConnectOptions::new(), Relay::cut, Duration::from_secs(8)).await?);
    Ok(())
}

/// Together with the silence before the cut it may exceed 5 s, or not.
async fn calls_survive_a_cut_of_both_for_3_s() -> anyhow::Result<()> {
    cut("both-3", ConnectOptions::new(), Relay::cut, Duration::from_secs(3)).await.map(drop)
}

async fn cut_of_both_for_1_s_causes_no_rejoin() -> anyhow::Result<()> {
    ensure!(!cut("both-1", ConnectOptions::new(), Relay::cut, Duration::from_secs(1)).await?);
    Ok(())
}

async fn calls_over_tcp_survive_a_cut() -> anyhow::Result<()> {
    ensure!(cut("tcp-8", ConnectOptions::new().tcp_only(), Relay::cut, Duration::from_secs(8)).await?);
    Ok(())
}

async fn kicked_participant_rejoins() -> anyhow::Result<()> {
    let server = shared()?;
    let relay = Relay::start(&server).await?;
    let (mut one, mut two) = one_and_two(&server, &relay, "severed", ConnectOptions::new()).await?;
    let before = one.local();
    relay.evict();
    let now = rejoined(&mut one).await?;
    ensure!(left(&mut two, "one").await? == *before.peer());
    one.send(to("two", "back")).await?;
    let heard = packet(&mut two).await?;
    ensure!(heard.payload == "back" && heard.from.as_ref() == Some(now.peer()), "{heard:?}");
    Ok(())
}

async fn restarted_server_is_rejoined() -> anyhow::Result<()> {
    let mut server = Server::start("")?;
    let mut one = LiveKitTransport::join(&server.url(), &server.key().client("again", "one").sign()?).await?;
    let mut two = LiveKitTransport::join(&server.url(), &server.key().client("again", "two").sign()?).await?;
    server.restart()?;
    tokio::try_join!(rejoined(&mut one), rejoined(&mut two))?;
    answered(&mut one, two).await
}

/// Sends more than the connection and the queue hold; then the connection is lost.
async fn waiting_packet_is_interrupted_and_never_sent_later() -> anyhow::Result<()> {
    const PACKETS: u32 = 60;
    let server = shared()?;
    let relay = Relay::start(&server).await?;
    let (mut one, mut two) = one_and_two(&server, &relay, "interrupted", ConnectOptions::new()).await?;
    relay.media().cut();
    let numbered = |n: u32| {
        let mut payload = vec![0; 14_000];
        payload[..4].copy_from_slice(&n.to_be_bytes());
        to("two", payload)
    };
    let sends: Vec<_> = (0..PACKETS).map(|n| tokio::spawn(one.send(numbered(n)))).collect();
    relay.cut();
    relay.signaling().sever();
    link(&mut one, ConnectionState::Reconnecting).await?;
    ensure!(matches!(one.send(to("two", "meanwhile")).await, Err(SendError::Interrupted)));
    ensure!(matches!(one.send(to("two", vec![0; 15_001])).await, Err(SendError::Interrupted)));
    let mut interrupted = HashSet::new();
    for (n, sent) in (0..).zip(join_all(sends).await) {
        match sent? {
            Ok(()) => {}
            Err(SendError::Interrupted) => drop(interrupted.insert(n)),
            Err(other) => bail!("{other:?}"),
        }
    }
    ensure!(interrupted.len() > 20, "{}", interrupted.len());
    relay.restore();
    link(&mut one, ConnectionState::Connected).await?;
    one.send(to("two", "the close")).await?;
    loop {
        let heard = packet(&mut two).await?.payload;
        if heard == "the close" {
            return Ok(());
        }
        let n = u32::from_be_bytes(heard[..4].try_into()?);
        ensure!(!interrupted.contains(&n), "packet {n} was reported as interrupted, but it arrived");
    }
}

/// Under a steady flow of packets: packets of the old join arrive before the connection is reported lost, those of
/// the new one after it is restored, and the sid does not change in between.
async fn no_packet_passes_between_down_and_up() -> anyhow::Result<()> {
    const TIMES: usize = 5;
    let server = shared()?;
    let relay = Relay::start(&server).await?;
    let options = ConnectOptions::new().rejoin_wait(Duration::ZERO, Duration::from_millis(50));
    let (mut one, two) = one_and_two(&server, &relay, "between", options).await?;
    let flow = tokio::spawn(async move {
        loop {
            let _ = two.send(to("one", vec![7; 5_000])).await;
            tokio::task::yield_now().await;
        }
    });
    let (mut sid, mut down, mut times, mut heard) = (one.local().sid().clone(), false, 0, 0);
    let search = async {
        while let Some(event) = one.recv().await {
            match event {
                TransportEvent::ConnectionState(ConnectionState::Reconnecting) => {
                    ensure!(!down, "the connection was reported down twice");
                    down = true;
                }
                TransportEvent::ConnectionState(ConnectionState::Connected) => {
                    ensure!(
                        down && one.local().sid() != &sid,
                        "the connection was reported up twice or with the old sid"
                    );
                    (down, heard, times) = (false, 0, times + 1);
                    sid = one.local().sid().clone();
                }
                other => {
                    ensure!(!down, "an event while the connection is down: {other:?}");
                    heard += usize::from(matches!(other, TransportEvent::Packet(_)));
                    if heard == 20 && times == TIMES {
                        return Ok(());
                    }
                    if heard == 20 {
                        relay.evict();
                    }
                }
            }
            ensure!(one.local().sid() == &sid, "a later join is reported too early");
        }
        bail!("the participant ended")
    };
    let found = soon("the last join", search).await?;
    flow.abort();
    found
}

async fn room_state_is_reported_after_the_rejoin() -> anyhow::Result<()> {
    let server = shared()?;
    let relay = Relay::start(&server).await?;
    let (mut one, _two) = one_and_two(&server, &relay, "as-it-is", ConnectOptions::new()).await?;
    let token = |who| server.key().client("as-it-is", who).attribute("floor", "2").sign();
    let gone = LiveKitTransport::join(&server.url(), &token("gone")?).await?;
    until(&mut one, |event| {
        matches!(event, TransportEvent::Joined(who) if who.identity() == "gone").then_some(())
    })
    .await?;
    relay.cut();
    relay.signaling().sever();
    link(&mut one, ConnectionState::Reconnecting).await?;
    drop(gone);
    let came = LiveKitTransport::join(&server.url(), &token("came")?).await?;
    let forgotten = async {
        let list = json!({"room": "as-it-is"});
        while server.room_service("ListParticipants", "as-it-is", list.clone()).await?.contains("\"gone\"") {
            sleep(ASK).await;
        }
        anyhow::Ok(())
    };
    soon("its removal from the room", forgotten).await??;
    ensure!(
        one.present().iter().any(|who| who.identity() == "gone"),
        "the leave is reported before the connection is restored"
    );
    relay.restore();
    link(&mut one, ConnectionState::Connected).await?;
    let present = one.present();
    ensure!(present.iter().all(|who| who.identity() != "gone" && who.identity() != "one"), "{present:?}");
    let seen = present.iter().find(|who| who.peer() == came.local().peer());
    ensure!(seen.is_some_and(|who| who.attribute("floor") == Some("2")), "{present:?}");
    Ok(())
}

async fn participant_that_leaves_during_an_outage_is_gone() -> anyhow::Result<()> {
    let (relay, mut one) = down("leaves-down").await?;
    soon("the close", one.close()).await?;
    ensure!(closed(&mut one).await? == CloseReason::Closed);
    ensure!(matches!(one.send(to("two", "x")).await, Err(SendError::Closed(CloseReason::Closed))));
    relay.restore();
    is_gone("leaves-down").await
}

async fn participant_that_times_out_during_an_outage_is_gone() -> anyhow::Result<()> {
    let (relay, one) = down("dropped-down").await?;
    drop(one);
    relay.restore();
    is_gone("dropped-down").await
}

/// A participant that is disconnected and cannot reconnect.
async fn down(room: &str) -> anyhow::Result<(Relay, LiveKitTransport)> {
    let server = shared()?;
    let relay = Relay::start(&server).await?;
    let token = server.key().client(room, "one").sign()?;
    let mut one = ConnectOptions::new().join(&relay.url(), &token).await?;
    relay.cut();
    relay.signaling().sever();
    link(&mut one, ConnectionState::Reconnecting).await?;
    Ok((relay, one))
}

/// Waits until the server has no participant left, and checks that none joins late.
async fn is_gone(room: &str) -> anyhow::Result<()> {
    let server = shared()?;
    let gone = async {
        while server.room_service("ListParticipants", room, json!({"room": room})).await?.contains("\"one\"")
        {
            sleep(ASK).await;
        }
        anyhow::Ok(())
    };
    soon("its removal from the room", gone).await?
}

/// The restarted server has another secret, so it accepts no earlier token.
async fn of_another_secret(options: ConnectOptions) -> anyhow::Result<(Server, LiveKitTransport)> {
    let mut server = Server::start("")?;
    let room = options.join(&server.url(), &server.key().client("secret", "one").sign()?).await?;
    server.restart_with(ANOTHER)?;
    Ok((server, room))
}

const ANOTHER: &str = "anothersecretanothersecretanothersecret";

async fn refused_token_ends_the_participant() -> anyhow::Result<()> {
    let (_server, mut room) = of_another_secret(ConnectOptions::new()).await?;
    let token = room.token();
    match closed(&mut room).await? {
        CloseReason::Refused(why) => ensure!(why.contains("401") && !why.contains(&token[..20]), "{why}"),
        other => bail!("{other:?}"),
    }
    Ok(())
}

async fn fresh_token_is_requested_when_the_newest_is_refused() -> anyhow::Result<()> {
    let asked = Arc::new(AtomicUsize::new(0));
    let source = {
        let asked = asked.clone();
        move || {
            let first = asked.fetch_add(1, Ordering::Relaxed) == 0;
            async move {
                if first {
                    return Err(anyhow::anyhow!("the token server is away"));
                }
                Ok(AccessKey::new(KEY, ANOTHER).client("secret", "one").sign()?)
            }
        }
    };
    let (_server, mut room) = of_another_secret(ConnectOptions::new().token_source(source)).await?;
    rejoined(&mut room).await?;
    ensure!(asked.load(Ordering::Relaxed) == 2);
    Ok(())
}

async fn fresh_token_of_another_identity_ends_the_participant() -> anyhow::Result<()> {
    let source = || async { AccessKey::new(KEY, ANOTHER).client("secret", "two").sign() };
    let (_server, mut room) = of_another_secret(ConnectOptions::new().token_source(source)).await?;
    match closed(&mut room).await? {
        CloseReason::Refused(why) => ensure!(why.contains("another identity"), "{why}"),
        other => bail!("{other:?}"),
    }
    Ok(())
}

async fn rejoin_limit_ends_the_participant() -> anyhow::Result<()> {
    let server = Server::start("")?;
    let token = server.key().client("limit", "one").sign()?;
    let options = ConnectOptions::new().rejoin_limit(Duration::from_secs(1));
    let mut room = options.join(&server.url(), &token).await?;
    server.kill();
    match closed(&mut room).await? {
        CloseReason::ConnectionLost(why) => ensure!(why.contains("not reconnected within 1 s"), "{why}"),
        other => bail!("{other:?}"),
    }
    Ok(())
}
