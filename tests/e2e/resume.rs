//! Recoveries within a join: a lost signaling connection, a changed path.

use std::{future::Future, pin::Pin, time::Duration};

use anyhow::{bail, ensure};
use libtest_mimic::Trial;
use serde_json::json;
use tokio::sync::watch;
use toolbridge::{
    CloseReason, ConnectionState,
    livekit::{ConnectOptions, LiveKitTransport, Scenario, Token},
    transport::{SendError, Transport, TransportEvent},
};

use crate::{
    relay::Relay,
    room::{closed, packet, to, until},
    server::{Server, shared},
    soon,
};

pub(crate) fn trials() -> Vec<Trial> {
    trials![resume:
        severed_signaling_is_resumed_silently,
        participant_that_left_meanwhile_is_reported_as_gone,
        hidden_participant_learns_who_left_meanwhile,
        reset_connection_over_tcp_is_opened_again,
        removal_by_the_server_is_received_after_a_resume,
        participant_can_leave_while_signaling_is_down,
        reliable_packets_survive_resumes_of_both_sides_over_udp,
        reliable_packets_survive_resumes_of_both_sides_over_tcp,
        reliable_packets_survive_short_cuts_of_both_connections_over_udp,
        reliable_packets_survive_short_cuts_of_both_connections_over_tcp,
        reliable_packets_survive_short_cuts_of_the_media,
        changed_path_is_found_without_a_rejoin,
        changed_path_is_found_under_traffic,
        signaling_that_closes_at_once_is_opened_again,
        participant_unknown_to_its_server_rejoins,
        participant_of_a_server_that_is_stopped_in_order_rejoins,
        switch_to_tcp_applies_at_the_next_ice_restart,
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

/// Changes a participant's attributes, and waits until this participant has received the change by signaling.
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

async fn severed_signaling_is_resumed_silently() -> anyhow::Result<()> {
    let server = shared()?;
    let [(mut one, relay), (mut two, _relay)] = pair(&server, "taken-up", &ConnectOptions::new()).await?;
    let before = one.local();
    for n in 0..5_u8 {
        let connections = relay.signaling().connections();
        relay.signaling().sever();
        // Packets pass meanwhile.
        one.send(to("two", vec![n])).await?;
        ensure!(packet(&mut two).await?.payload[..] == [n]);
        soon("another signaling connection", relay.signaling().until_connections(connections + 1)).await?;
        hears_by_signaling(&server, &mut one, "two").await?;
    }
    ensure!(one.local().sid() == before.sid());
    hears_by_signaling(&server, &mut two, "one").await
}

/// The server does not tell a participant without signaling who leaves, but lists the present participants
/// afterwards.
async fn participant_that_left_meanwhile_is_reported_as_gone() -> anyhow::Result<()> {
    let server = shared()?;
    let token = server.key().client("left-meanwhile", "one");
    is_told_who_left_meanwhile(&server, "left-meanwhile", token).await
}

/// The list of present participants does not contain it.
async fn hidden_participant_learns_who_left_meanwhile() -> anyhow::Result<()> {
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
    soon("its removal from the room", listed).await??;
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

/// As a firewall does that closes a connection.
async fn reset_connection_over_tcp_is_opened_again() -> anyhow::Result<()> {
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
    ensure!(one.local().sid() == before.sid(), "the participant rejoined");
    Ok(())
}

async fn removal_by_the_server_is_received_after_a_resume() -> anyhow::Result<()> {
    let server = shared()?;
    let [(mut one, relay), _two] = pair(&server, "gone-then", &ConnectOptions::new()).await?;
    relay.signaling().sever();
    soon("another signaling connection", relay.signaling().until_connections(2)).await?;
    hears_by_signaling(&server, &mut one, "two").await?;
    let remove = json!({"room": "gone-then", "identity": "one"});
    server.room_service("RemoveParticipant", "gone-then", remove).await?;
    ensure!(closed(&mut one).await? == CloseReason::Removed);
    Ok(())
}

async fn participant_can_leave_while_signaling_is_down() -> anyhow::Result<()> {
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
/// The number of faults on each side.
const TROUBLES: usize = 7;
/// How many packets are sent before the first fault, and may be sent during each.
const SLICE: usize = PACKETS / (TROUBLES + 1);

/// 128 packets of 4,096 B in each direction while faults occur on both sides again and again: none is lost or
/// duplicated, all arrive in order, and each time the same join continues with its signaling.
pub(crate) async fn crosses(
    server: &Server,
    room: &str,
    options: &ConnectOptions,
    trouble: impl AsyncFn(&Relay),
) -> anyhow::Result<()> {
    // After so many losses it would otherwise wait longer and longer before it retries.
    let options = options.clone().rejoin_wait(Duration::ZERO, Duration::from_millis(50));
    let [(one, one_relay), (two, two_relay)] = pair(server, room, &options).await?;
    let sides = [Side::default(), Side::default()];
    let all = async {
        tokio::try_join!(
            sides[0].flow(one, "two"),
            sides[1].flow(two, "one"),
            sides[0].recover(server, room, "two", &one_relay, &trouble),
            sides[1].recover(server, room, "one", &two_relay, &trouble),
        )
    };
    soon("all packets", all).await??;
    Ok(())
}

/// The progress of one side.
#[derive(Default)]
struct Side {
    sent: watch::Sender<usize>,
    /// How often it has recovered.
    recoveries: watch::Sender<usize>,
    /// The last value that it received by signaling.
    seen: watch::Sender<usize>,
}

impl Side {
    /// Sends and receives all packets, in one join. It sends at most one slice beyond a fault that is not over, so
    /// that each fault meets packets in flight.
    async fn flow(
        &self,
        mut room: LiveKitTransport,
        other: &'static str,
    ) -> anyhow::Result<LiveKitTransport> {
        let (before, mut recoveries) = (room.local().sid().clone(), self.recoveries.subscribe());
        let (mut sent, mut heard) = (0, 0);
        let mut sending = one_packet(&room, other, sent);
        while heard < PACKETS || sent < PACKETS || *self.recoveries.borrow() < TROUBLES {
            let may_send = sent < PACKETS.min((*self.recoveries.borrow() + 2) * SLICE);
            tokio::select! {
                done = &mut sending, if may_send => {
                    done?;
                    sent += 1;
                    self.sent.send_replace(sent);
                    if sent < PACKETS {
                        sending = one_packet(&room, other, sent);
                    }
                }
                _ = recoveries.changed() => {}
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
            ensure!(*room.local().sid() == before, "the participant rejoined");
        }
        drop(sending);
        Ok(room) // which stays until the other side has finished
    }

    /// Causes the fault as soon as the next slice has been sent, and waits until this side receives signaling again.
    async fn recover(
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
            self.recoveries.send_replace(n);
        }
        Ok(())
    }
}

type Sending = Pin<Box<dyn Future<Output = Result<(), SendError>> + Send>>;

fn one_packet(room: &LiveKitTransport, other: &'static str, n: usize) -> Sending {
    Box::pin(room.send(to(other, vec![n as u8; SIZE])))
}

/// Closes the signaling, and waits for another connection.
pub(crate) async fn sever(relay: &Relay) {
    let connections = relay.signaling().connections();
    relay.signaling().sever();
    relay.signaling().until_connections(connections + 1).await;
}

/// Cuts both for a while, and closes the signaling.
async fn cut_and_sever(relay: &Relay) {
    relay.cut();
    relay.signaling().sever();
    tokio::time::sleep(SHORT_CUT).await;
    relay.restore();
}

/// Shorter than any cut that causes a rejoin.
const SHORT_CUT: Duration = Duration::from_millis(500);

async fn reliable_packets_survive_resumes_of_both_sides_over_udp() -> anyhow::Result<()> {
    crosses(&*shared()?, "stream-udp", &ConnectOptions::new(), sever).await
}

async fn reliable_packets_survive_resumes_of_both_sides_over_tcp() -> anyhow::Result<()> {
    crosses(&*shared()?, "stream-tcp", &ConnectOptions::new().tcp_only(), sever).await
}

async fn reliable_packets_survive_short_cuts_of_both_connections_over_udp() -> anyhow::Result<()> {
    crosses(&*shared()?, "stream-cut-udp", &ConnectOptions::new(), cut_and_sever).await
}

async fn reliable_packets_survive_short_cuts_of_both_connections_over_tcp() -> anyhow::Result<()> {
    crosses(&*shared()?, "stream-cut-tcp", &ConnectOptions::new().tcp_only(), cut_and_sever).await
}

async fn reliable_packets_survive_short_cuts_of_the_media() -> anyhow::Result<()> {
    crosses(&*shared()?, "stream-cut", &ConnectOptions::new(), async |relay: &Relay| {
        relay.media().cut();
        tokio::time::sleep(SHORT_CUT).await;
        relay.media().restore();
    })
    .await
}

/// As when a NAT loses the mapping of a silent connection: packets arrive from another address, and packets to the
/// old one are lost.
async fn changed_path_is_found_without_a_rejoin() -> anyhow::Result<()> {
    let server = shared()?;
    let [(mut one, relay), (mut two, _relay)] = pair(&server, "rebound", &ConnectOptions::new()).await?;
    let before = one.local();
    for n in 0..2_u8 {
        relay.media().rebind();
        soon("a datagram under the new mapping", relay.media().until_heard_from_server()).await?;
        two.send(to("one", vec![n])).await?;
        ensure!(packet(&mut one).await?.payload[..] == [n]);
        one.send(to("two", vec![n])).await?;
        ensure!(packet(&mut two).await?.payload[..] == [n]);
    }
    ensure!(one.local() == before);
    Ok(())
}

async fn changed_path_is_found_under_traffic() -> anyhow::Result<()> {
    let server = shared()?;
    let [(mut one, relay), (mut two, _relay)] = pair(&server, "rebound-busy", &ConnectOptions::new()).await?;
    relay.media().rebind();
    one.send(to("two", "first")).await?;
    ensure!(packet(&mut two).await?.payload == "first");
    two.send(to("one", "second")).await?;
    let mut told = Vec::new();
    let answer = until(&mut one, |event| match event {
        TransportEvent::Packet(packet) => Some(packet),
        TransportEvent::ConnectionState(state) => {
            told.push(state);
            None
        }
        _ => None,
    });
    ensure!(answer.await?.payload == "second");
    ensure!(!told.contains(&ConnectionState::Reconnecting), "{told:?}");
    Ok(())
}

/// The server simulates this on request.
async fn signaling_that_closes_at_once_is_opened_again() -> anyhow::Result<()> {
    let server = shared()?;
    let [(mut one, relay), _two] = pair(&server, "ends-again", &ConnectOptions::new()).await?;
    let before = one.local();
    for (scenario, tries) in [(Scenario::SignalLostAtResume, 2), (Scenario::SignalLostBeforeResume, 1)] {
        let connections = relay.signaling().connections();
        one.simulate(scenario);
        // The request is handled before the end of the connection is detected.
        hears_by_signaling(&server, &mut one, "two").await?;
        one.simulate(Scenario::SignalLost);
        soon("the last signaling connection", relay.signaling().until_connections(connections + tries))
            .await?;
        hears_by_signaling(&server, &mut one, "two").await?;
    }
    ensure!(one.local().sid() == before.sid());
    Ok(())
}

async fn participant_unknown_to_its_server_rejoins() -> anyhow::Result<()> {
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

/// Only the development server supports this request.
pub(crate) async fn requested_rejoin_is_performed() -> anyhow::Result<()> {
    let server = shared()?;
    let [(mut one, _ways), (mut two, _relay)] = pair(&server, "asks-again", &ConnectOptions::new()).await?;
    for n in 0..3_u8 {
        let before = one.local();
        one.simulate(Scenario::FullReconnect);
        for wanted in [ConnectionState::Reconnecting, ConnectionState::Connected] {
            until(&mut one, |event| (event == TransportEvent::ConnectionState(wanted)).then_some(())).await?;
        }
        ensure!(one.local().sid() != before.sid());
        // The others see one participant leave and another join.
        let seen = until(&mut two, |event| match event {
            TransportEvent::Left(who) => Some(who),
            _ => None,
        });
        ensure!(seen.await? == *before.peer());
        one.send(to("two", vec![n])).await?;
        let heard = packet(&mut two).await?;
        ensure!(heard.payload[..] == [n] && heard.from.as_ref() == Some(one.local().peer()), "{heard:?}");
        two.send(to("one", vec![n])).await?;
        ensure!(packet(&mut one).await?.payload[..] == [n]);
    }
    Ok(())
}

async fn participant_of_a_server_that_is_stopped_in_order_rejoins() -> anyhow::Result<()> {
    let server = shared()?;
    let [(mut one, _relay), (mut two, _other)] = pair(&server, "let-go", &ConnectOptions::new()).await?;
    let before = one.local();
    one.simulate(Scenario::ServerLeave);
    until(&mut one, |event| {
        (event == TransportEvent::ConnectionState(ConnectionState::Connected)).then_some(())
    })
    .await?;
    ensure!(one.local().sid() != before.sid());
    one.send(to("two", "again")).await?;
    ensure!(packet(&mut two).await?.payload == "again");
    Ok(())
}

async fn switch_to_tcp_applies_at_the_next_ice_restart() -> anyhow::Result<()> {
    let server = shared()?;
    let [(mut one, relay), (mut two, _relay)] = pair(&server, "to-tcp", &ConnectOptions::new()).await?;
    let before = one.local();
    one.simulate(Scenario::SwitchToTcp);
    hears_by_signaling(&server, &mut one, "two").await?;
    // ICE restarts 2 s after the last datagram, over TCP; after 2.8 s there would be a rejoin.
    relay.media().lose_next(u32::MAX);
    two.send(to("one", "over TCP")).await?;
    ensure!(packet(&mut one).await?.payload == "over TCP");
    one.send(to("two", "here too")).await?;
    ensure!(packet(&mut two).await?.payload == "here too");
    ensure!(one.local() == before);
    Ok(())
}
