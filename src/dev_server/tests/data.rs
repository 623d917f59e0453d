//! Tests joins and packets.

use super::*;

#[tokio::test]
async fn packets_pass_in_both_directions_on_both_channels() {
    let server = server().await;
    let (mut one, mut two) = (server.join("one").await, server.join("two").await);
    assert_eq!(two.present().iter().map(|it| it.identity().as_str()).collect::<Vec<_>>(), ["one"]);
    for lane in [Lane::Reliable, Lane::Lossy] {
        one.send(on(lane, to("two", format!("{lane:?}")))).await.unwrap();
        let got = packet(&mut two).await;
        let said = format!("{lane:?}");
        assert_eq!(
            (got.lane, got.from.as_ref(), &*got.payload),
            (lane, Some(one.local().peer()), said.as_bytes())
        );
        two.send(on(lane, to("one", "back"))).await.unwrap();
        assert_eq!(packet(&mut one).await.from.as_ref(), Some(two.local().peer()));
    }
}

#[tokio::test]
async fn packets_pass_over_tcp() {
    let server = server().await;
    let mut one = server.join_with(ConnectOptions::new().tcp_only(), "one").await;
    let mut two = server.join("two").await;
    two.send(to("one", vec![1; 15_000])).await.unwrap();
    assert_eq!(packet(&mut one).await.payload.len(), 15_000);
    one.send(to("two", "over TCP")).await.unwrap();
    assert_eq!(packet(&mut two).await.payload, "over TCP");
}

#[tokio::test]
async fn a_thousand_large_packets_stay_in_order() {
    const PACKETS: u32 = 1000;
    let server = server().await;
    let (one, mut two) = (server.join("one").await, server.join("two").await);
    let sending = tokio::spawn(async move {
        for n in 0..PACKETS {
            let mut payload = vec![0; 10_000];
            payload[..4].copy_from_slice(&n.to_be_bytes());
            one.send(to("two", payload)).await.unwrap();
        }
        one
    });
    for n in 0..PACKETS {
        assert_eq!(packet(&mut two).await.payload[..4], n.to_be_bytes());
    }
    sending.await.unwrap();
}

#[tokio::test]
async fn packets_reach_only_their_destinations() {
    let server = server().await;
    let (mut one, mut two) = (server.join("one").await, server.join("two").await);
    let mut three = server.join("three").await;
    one.send(to("two", "for two")).await.unwrap();
    one.send(Packet::broadcast("for all")).await.unwrap();
    two.send(to("one", "back")).await.unwrap();
    assert_eq!(packet(&mut two).await.payload, "for two");
    assert_eq!(packet(&mut two).await.payload, "for all");
    assert_eq!(packet(&mut three).await.payload, "for all");
    assert_eq!(packet(&mut one).await.payload, "back");
}

#[tokio::test]
async fn hidden_participant_receives_packets_but_is_not_listed() {
    let server = server().await;
    let mut one = server.join("one").await;
    let token = server.key().participant("kitchen", "ear").hidden().sign().unwrap();
    let mut ear = LiveKitTransport::join(&server.url(), &token).await.unwrap();
    let two = server.join("two").await;
    assert_eq!(two.present().len(), 1, "{:?}", two.present());
    one.send(Packet::broadcast("for all")).await.unwrap();
    assert_eq!(packet(&mut ear).await.payload, "for all");
    ear.send(to("one", "boo")).await.unwrap();
    assert_eq!(packet(&mut one).await.from, None);
}
