//! What is mended within a join: a signaling connection that is lost, a way that changes.

use std::{future::Future, pin::Pin, time::Duration};

use anyhow::{bail, ensure};
use libtest_mimic::Trial;
use serde_json::json;
use tokio::sync::watch;
use toolbridge::{
    CloseReason, ConnectOptions, ConnectionState, LiveKitTransport, SendError, Token, Transport,
    TransportEvent, transport::livekit::Scenario,
};

use crate::{
    relay::Relay,
    room::{closed, packet, to, until},
    server::{Server, shared},
    soon,
};

pub(crate) fn trials() -> Vec<Trial> {
    trials![resume:
        a_severed_signaling_is_taken_up_again_and_nobody_is_told,
        who_left_meanwhile_is_told_as_gone,
        who_is_hidden_is_told_too_who_left_meanwhile,
        a_connection_over_tcp_that_is_reset_is_opened_again,
        a_server_that_wants_us_gone_is_heard_after_a_resume,
        who_leaves_while_the_signaling_is_down_leaves,
        a_reliable_stream_crosses_resumes_of_both_sides_over_udp,
        a_reliable_stream_crosses_resumes_of_both_sides_over_tcp,
        a_reliable_stream_crosses_short_cuts_of_both_connections_over_udp,
        a_reliable_stream_crosses_short_cuts_of_both_connections_over_tcp,
        a_reliable_stream_crosses_short_cuts_of_the_media,
        a_way_that_changes_is_found_again_without_a_new_join,
        a_way_that_changes_under_traffic_is_found_again,
        a_signaling_that_ends_as_soon_as_it_is_open_is_opened_again,
        a_participant_that_its_server_lost_joins_anew,
        a_server_that_lets_us_go_ends_it,
        a_server_that_wants_tcp_gets_it_at_the_next_beginning,
    ]
}

async fn pair(
    server: &Server,
    room: &str,
    options: &ConnectOptions,
) -> anyhow::Result<[(LiveKitTransport, Relay); 2]> {
    let join = async |who: &str| {
        let relay = Relay::start(server).await?;
        let token = server.key().client(room, who).sign()?;
        anyhow::Ok((options.clone().join(&relay.url(), &token).await?, relay))
    };
    Ok([join("one").await?, join("two").await?])
}

/// Changes what the room knows of somebody, and waits until this participant has heard of it by signaling.
pub(crate) async fn hears_by_signaling(
    server: &Server,
    one: &mut LiveKitTransport,
    of: &str,
) -> anyhow::Result<()> {
    let (room, value) = (one.room(), format!("{:?}", std::time::Instant::now()));
    let change = json!({"room": room, "identity": of, "attributes": {"seen": value}});
    server.room_service("UpdateParticipant", &room, change).await?;
    until(one, |event| match event {
        TransportEvent::Joined(who) if who.identity() == of && who.attribute("seen") == Some(&value) => {
            Some(Ok(()))
        }
        TransportEvent::ConnectionState(_) | TransportEvent::Left(_) => Some(Err(format!("{event:?}"))),
        _ => None,
    })
    .await?
    .map_err(anyhow::Error::msg)
}

async fn a_severed_signaling_is_taken_up_again_and_nobody_is_told() -> anyhow::Result<()> {
    let server = shared()?;
    let [(mut one, relay), (mut two, _relay)] = pair(&server, "taken-up", &ConnectOptions::new()).await?;
    let before = one.local();
    for n in 0..5_u8 {
        let connections = relay.signaling().connections();
        relay.signaling().sever();
        // Nothing is held up meanwhile.
        one.send(to("two", vec![n])).await?;
        ensure!(packet(&mut two).await?.payload[..] == [n]);
        soon("another connection", relay.signaling().until_connections(connections + 1)).await?;
        hears_by_signaling(&server, &mut one, "two").await?;
    }
    ensure!(one.local().sid() == before.sid());
    hears_by_signaling(&server, &mut two, "one").await
}

/// The server does not tell a participant without signaling who leaves, but lists who is there afterwards.
async fn who_left_meanwhile_is_told_as_gone() -> anyhow::Result<()> {
    let server = shared()?;
    let token = server.key().client("left-meanwhile", "one");
    is_told_who_left_meanwhile(&server, "left-meanwhile", token).await
}

/// The list of all who are there does not have it.
async fn who_is_hidden_is_told_too_who_left_meanwhile() -> anyhow::Result<()> {
    let server = shared()?;
    let token = server.key().client("left-hidden", "one").hidden();
    is_told_who_left_meanwhile(&server, "left-hidden", token).await
}

async fn is_told_who_left_meanwhile(server: &Server, room: &str, token: Token) -> anyhow::Result<()> {
    let relay = Relay::start(server).await?;
    let mut one = LiveKitTransport::join(&relay.url(), &token.sign()?).await?;
    let [two, three] = ["two", "three"].map(|name| server.key().client(room, name).sign());
    let two = LiveKitTransport::join(&server.url(), &two?).await?;
    let mut three = LiveKitTransport::join(&server.url(), &three?).await?;
    while one.present().len() < 2 {
        until(&mut one, |event| matches!(event, TransportEvent::Joined(_)).then_some(())).await?;
    }
    relay.signaling().cut();
    relay.signaling().sever();
    let gone = three.local();
    three.close().await;
    let listed = async {
        let list = json!({"room": room});
        while server.room_service("ListParticipants", room, list.clone()).await?.contains("\"three\"") {}
        anyhow::Ok(())
    };
    soon("its end", listed).await??;
    relay.signaling().restore();
    let left = until(&mut one, |event| match event {
        TransportEvent::Left(who) => Some(who),
        _ => None,
    })
    .await?;
    ensure!(left == *gone.peer(), "{left:?}");
    ensure!(one.present().len() == 1 && one.present()[0].peer() == two.local().peer());
    Ok(())
}

/// As a firewall does that wants to be rid of it.
async fn a_connection_over_tcp_that_is_reset_is_opened_again() -> anyhow::Result<()> {
    let server = shared()?;
    let [(mut one, relay), (mut two, _relay)] =
        pair(&server, "tcp-reset", &ConnectOptions::new().tcp_only()).await?;
    let before = one.local();
    for n in 0..3_u8 {
        let connections = relay.tcp().connections();
        relay.tcp().sever();
        soon("another", relay.tcp().until_connections(connections + 1)).await?;
        one.send(to("two", vec![n])).await?;
        ensure!(packet(&mut two).await?.payload[..] == [n]);
        two.send(to("one", vec![n])).await?;
        ensure!(packet(&mut one).await?.payload[..] == [n]);
    }
    ensure!(one.local().sid() == before.sid(), "it joined anew");
    Ok(())
}

async fn a_server_that_wants_us_gone_is_heard_after_a_resume() -> anyhow::Result<()> {
    let server = shared()?;
    let [(mut one, relay), _two] = pair(&server, "gone-then", &ConnectOptions::new()).await?;
    relay.signaling().sever();
    soon("another connection", relay.signaling().until_connections(2)).await?;
    hears_by_signaling(&server, &mut one, "two").await?;
    let remove = json!({"room": "gone-then", "identity": "one"});
    server.room_service("RemoveParticipant", "gone-then", remove).await?;
    ensure!(closed(&mut one).await? == CloseReason::Removed);
    Ok(())
}

async fn who_leaves_while_the_signaling_is_down_leaves() -> anyhow::Result<()> {
    let server = shared()?;
    let [(mut one, relay), (mut two, _relay)] = pair(&server, "leaves-then", &ConnectOptions::new()).await?;
    relay.signaling().sever();
    one.send(to("two", "bye")).await?;
    one.close().await;
    ensure!(packet(&mut two).await?.payload == "bye");
    let left = until(&mut two, |event| match event {
        TransportEvent::Left(who) => Some(who),
        _ => None,
    });
    ensure!(*left.await?.identity() == *"one");
    Ok(())
}

const PACKETS: usize = 128;
const SIZE: usize = 4_096;
/// So often something happens to each side meanwhile.
const TROUBLES: usize = 7;
/// So many packets are sent before the first of it, and may be sent beside each.
const SLICE: usize = PACKETS / (TROUBLES + 1);

/// 128 packets of 4,096 B each way while something happens to both sides again and again, and nobody waits for that: none
/// is lost, none comes twice, all come in order, and each time the same join goes on with its signaling.
pub(crate) async fn crosses(
    server: &Server,
    room: &str,
    options: &ConnectOptions,
    trouble: impl AsyncFn(&Relay),
) -> anyhow::Result<()> {
    // So often lost, it would else wait longer and longer before it tries again.
    let options = options.clone().rejoin_wait(Duration::ZERO, Duration::from_millis(50));
    let [(one, one_relay), (two, two_relay)] = pair(server, room, &options).await?;
    let sides = [Side::default(), Side::default()];
    let all = async {
        tokio::try_join!(
            sides[0].flow(one, "two"),
            sides[1].flow(two, "one"),
            sides[0].suffer(server, room, "two", &one_relay, &trouble),
            sides[1].suffer(server, room, "one", &two_relay, &trouble),
        )
    };
    soon("all of them", all).await??;
    Ok(())
}

/// How far one side is.
#[derive(Default)]
struct Side {
    sent: watch::Sender<usize>,
    /// How often it has recovered.
    mended: watch::Sender<usize>,
    /// What it last heard by signaling.
    seen: watch::Sender<usize>,
}

impl Side {
    /// Sends and hears all packets, in one join. It sends no further than a slice beyond a trouble that is not over: so
    /// each has packets on their way.
    async fn flow(
        &self,
        mut room: LiveKitTransport,
        other: &'static str,
    ) -> anyhow::Result<LiveKitTransport> {
        let (before, mut mended) = (room.local().sid().clone(), self.mended.subscribe());
        let (mut sent, mut heard) = (0, 0);
        let mut sending = one_packet(&room, other, sent);
        while heard < PACKETS || sent < PACKETS || *self.mended.borrow() < TROUBLES {
            let may_send = sent < PACKETS.min((*self.mended.borrow() + 2) * SLICE);
            tokio::select! {
                done = &mut sending, if may_send => {
                    done?;
                    sent += 1;
                    self.sent.send_replace(sent);
                    if sent < PACKETS {
                        sending = one_packet(&room, other, sent);
                    }
                }
                _ = mended.changed() => {}
                event = room.recv() => match event {
                    Some(TransportEvent::Packet(packet)) => {
                        ensure!(packet.payload.len() == SIZE && packet.payload[0] as usize == heard,
                            "packet {} after {heard}", packet.payload[0]);
                        heard += 1;
                    }
                    Some(TransportEvent::Joined(who)) => {
                        if let Some(value) = who.attribute("trouble").filter(|_| who.identity() == other) {
                            self.seen.send_replace(value.parse()?);
                        }
                    }
                    other => bail!("{other:?}"),
                },
            }
            ensure!(*room.local().sid() == before, "it joined anew");
        }
        drop(sending);
        Ok(room) // which stays for as long as the other one is not through
    }

    /// Lets it happen as soon as the next slice has been sent, and waits until this side hears by signaling again.
    async fn suffer(
        &self,
        server: &Server,
        room: &str,
        other: &str,
        relay: &Relay,
        trouble: &impl AsyncFn(&Relay),
    ) -> anyhow::Result<()> {
        for n in 1..=TROUBLES {
            self.sent.subscribe().wait_for(|sent| *sent >= n * SLICE).await?;
            trouble(relay).await;
            let change = json!({"room": room, "identity": other, "attributes": {"trouble": n.to_string()}});
            server.room_service("UpdateParticipant", room, change).await?;
            self.seen.subscribe().wait_for(|seen| *seen == n).await?;
            self.mended.send_replace(n);
        }
        Ok(())
    }
}

type Sending = Pin<Box<dyn Future<Output = Result<(), SendError>> + Send>>;

fn one_packet(room: &LiveKitTransport, other: &'static str, n: usize) -> Sending {
    Box::pin(room.send(to(other, vec![n as u8; SIZE])))
}

/// The signaling ends, and another connection is taken.
pub(crate) async fn sever(relay: &Relay) {
    let connections = relay.signaling().connections();
    relay.signaling().sever();
    relay.signaling().until_connections(connections + 1).await;
}

/// Both are cut for a while, and the signaling ends.
async fn cut_and_sever(relay: &Relay) {
    relay.cut();
    relay.signaling().sever();
    tokio::time::sleep(SHORT_CUT).await;
    relay.restore();
}

/// Shorter than any after which somebody joins anew.
const SHORT_CUT: Duration = Duration::from_millis(500);

async fn a_reliable_stream_crosses_resumes_of_both_sides_over_udp() -> anyhow::Result<()> {
    crosses(&*shared()?, "stream-udp", &ConnectOptions::new(), sever).await
}

async fn a_reliable_stream_crosses_resumes_of_both_sides_over_tcp() -> anyhow::Result<()> {
    crosses(&*shared()?, "stream-tcp", &ConnectOptions::new().tcp_only(), sever).await
}

async fn a_reliable_stream_crosses_short_cuts_of_both_connections_over_udp() -> anyhow::Result<()> {
    crosses(&*shared()?, "stream-cut-udp", &ConnectOptions::new(), cut_and_sever).await
}

async fn a_reliable_stream_crosses_short_cuts_of_both_connections_over_tcp() -> anyhow::Result<()> {
    crosses(&*shared()?, "stream-cut-tcp", &ConnectOptions::new().tcp_only(), cut_and_sever).await
}

async fn a_reliable_stream_crosses_short_cuts_of_the_media() -> anyhow::Result<()> {
    crosses(&*shared()?, "stream-cut", &ConnectOptions::new(), async |relay: &Relay| {
        relay.media().cut();
        tokio::time::sleep(SHORT_CUT).await;
        relay.media().restore();
    })
    .await
}

/// As when a router forgets a connection that was silent: our packets come from another address, and what is sent to
/// the old one is lost.
async fn a_way_that_changes_is_found_again_without_a_new_join() -> anyhow::Result<()> {
    let server = shared()?;
    let [(mut one, relay), (mut two, _relay)] = pair(&server, "rebound", &ConnectOptions::new()).await?;
    let before = one.local();
    for n in 0..2_u8 {
        relay.media().rebind();
        soon("another beginning", relay.media().until_heard_from_server()).await?;
        two.send(to("one", vec![n])).await?;
        ensure!(packet(&mut one).await?.payload[..] == [n]);
        one.send(to("two", vec![n])).await?;
        ensure!(packet(&mut two).await?.payload[..] == [n]);
    }
    ensure!(one.local() == before);
    Ok(())
}

async fn a_way_that_changes_under_traffic_is_found_again() -> anyhow::Result<()> {
    let server = shared()?;
    let [(mut one, relay), (mut two, _relay)] = pair(&server, "rebound-busy", &ConnectOptions::new()).await?;
    relay.media().rebind();
    one.send(to("two", "is there a way?")).await?;
    ensure!(packet(&mut two).await?.payload == "is there a way?");
    two.send(to("one", "there is")).await?;
    let mut told = Vec::new();
    let answer = until(&mut one, |event| match event {
        TransportEvent::Packet(packet) => Some(packet),
        TransportEvent::ConnectionState(state) => {
            told.push(state);
            None
        }
        _ => None,
    });
    ensure!(answer.await?.payload == "there is");
    ensure!(!told.contains(&ConnectionState::Reconnecting), "{told:?}");
    Ok(())
}

/// What the server simulates for whoever asks.
async fn a_signaling_that_ends_as_soon_as_it_is_open_is_opened_again() -> anyhow::Result<()> {
    let server = shared()?;
    let [(mut one, relay), _two] = pair(&server, "ends-again", &ConnectOptions::new()).await?;
    let before = one.local();
    for (scenario, tries) in [(Scenario::SignalLostAtResume, 2), (Scenario::SignalLostBeforeResume, 1)] {
        let connections = relay.signaling().connections();
        one.simulate(scenario);
        // What was asked is done before the end of the connection is seen.
        hears_by_signaling(&server, &mut one, "two").await?;
        one.simulate(Scenario::SignalLost);
        soon("the last connection", relay.signaling().until_connections(connections + tries)).await?;
        hears_by_signaling(&server, &mut one, "two").await?;
    }
    ensure!(one.local().sid() == before.sid());
    Ok(())
}

async fn a_participant_that_its_server_lost_joins_anew() -> anyhow::Result<()> {
    let server = shared()?;
    let [(mut one, _ways), (mut two, _relay)] = pair(&server, "lost-there", &ConnectOptions::new()).await?;
    for (n, scenario) in [Scenario::NodeFailure, Scenario::Migration].into_iter().enumerate() {
        let before = one.local();
        one.simulate(scenario);
        for wanted in [ConnectionState::Reconnecting, ConnectionState::Connected] {
            until(&mut one, |event| (event == TransportEvent::ConnectionState(wanted)).then_some(())).await?;
        }
        ensure!(one.local().sid() != before.sid());
        one.send(to("two", vec![n as u8])).await?;
        ensure!(packet(&mut two).await?.payload[..] == [n as u8]);
    }
    Ok(())
}

/// Only the development server does what is asked for.
pub(crate) async fn who_asks_for_a_new_join_gets_one() -> anyhow::Result<()> {
    let server = shared()?;
    let [(mut one, _ways), (mut two, _relay)] = pair(&server, "asks-anew", &ConnectOptions::new()).await?;
    for n in 0..3_u8 {
        let before = one.local();
        one.simulate(Scenario::FullReconnect);
        for wanted in [ConnectionState::Reconnecting, ConnectionState::Connected] {
            until(&mut one, |event| (event == TransportEvent::ConnectionState(wanted)).then_some(())).await?;
        }
        ensure!(one.local().sid() != before.sid());
        // The others see one go and another come.
        let seen = until(&mut two, |event| match event {
            TransportEvent::Left(who) => Some(who),
            _ => None,
        });
        ensure!(seen.await? == *before.peer());
        one.send(to("two", vec![n])).await?;
        let heard = packet(&mut two).await?;
        ensure!(heard.payload[..] == [n] && heard.from == *one.local().peer(), "{heard:?}");
        two.send(to("one", vec![n])).await?;
        ensure!(packet(&mut one).await?.payload[..] == [n]);
    }
    Ok(())
}

async fn a_server_that_lets_us_go_ends_it() -> anyhow::Result<()> {
    let server = shared()?;
    let [(mut one, _relay), _two] = pair(&server, "let-go", &ConnectOptions::new()).await?;
    one.simulate(Scenario::ServerLeave);
    let reason = closed(&mut one).await?;
    ensure!(matches!(reason, CloseReason::Server(_) | CloseReason::ServerShutdown), "{reason:?}");
    Ok(())
}

async fn a_server_that_wants_tcp_gets_it_at_the_next_beginning() -> anyhow::Result<()> {
    let server = shared()?;
    let [(mut one, relay), (mut two, _relay)] = pair(&server, "to-tcp", &ConnectOptions::new()).await?;
    let before = one.local();
    one.simulate(Scenario::SwitchToTcp);
    hears_by_signaling(&server, &mut one, "two").await?;
    // 2 s after the last datagram ICE begins anew, over TCP; after 2.8 s there would be a new join.
    relay.media().lose_next(u32::MAX);
    two.send(to("one", "over TCP")).await?;
    ensure!(packet(&mut one).await?.payload == "over TCP");
    one.send(to("two", "here too")).await?;
    ensure!(packet(&mut two).await?.payload == "here too");
    ensure!(one.local() == before);
    Ok(())
}
