//! The queues while connected and while reconnecting.

use super::*;
use crate::transport::{ConnectionState, Incoming, Lane, Packet, Participant, Peer, SendError, StreamHeader};

fn packet(size: usize) -> TaskEvent {
    TaskEvent::Event(TransportEvent::Packet(Incoming::new(
        Peer::new("a", "PA_1"),
        Lane::Reliable,
        "",
        vec![0; size],
    )))
}

fn new_queues() -> (Queues, UserQueues) {
    Queues::new("PA_1".into(), State { can_publish_data: true, token: String::new() })
}

#[test]
fn inbox_is_full_by_bytes_or_by_number_and_empties_again() {
    let mut inbox = Inbox::default();
    inbox.push(packet(INBOX_BYTES - 2 * EVENT_BYTES));
    assert!(!inbox.is_full());
    inbox.push(packet(0));
    assert!(inbox.is_full());
    while inbox.pop().is_some() {}
    assert_eq!(inbox.bytes, 0);
    for _ in 0..INBOX_EVENTS {
        assert!(!inbox.is_full());
        inbox.event(TransportEvent::ConnectionState(ConnectionState::Connected));
    }
    assert!(inbox.is_full());
}

#[test]
fn long_field_of_a_stream_part_fills_the_inbox() {
    const LONG: usize = 60_000;
    let long = || "x".repeat(LONG);
    let peer = Peer::new("a", "PA_1");
    for (from, part) in [
        (peer.clone(), StreamPart::Header(StreamHeader::new("s", long(), None))),
        (peer.clone(), StreamPart::Header(StreamHeader::new(long(), "", None))),
        (peer.clone(), StreamPart::Trailer { id: "s".into(), reason: long() }),
        (peer, StreamPart::Chunk { id: "s".into(), index: 0, bytes: vec![0; LONG].into() }),
        (Peer::new(long(), ""), StreamPart::Trailer { id: "s".into(), reason: String::new() }),
    ] {
        let mut inbox = Inbox::default();
        while !inbox.is_full() {
            inbox.event(TransportEvent::Stream { from: from.clone(), part: part.clone() });
        }
        assert!(inbox.waiting.len() <= INBOX_BYTES / LONG + 1, "{}", inbox.waiting.len());
        while inbox.pop().is_some() {}
        assert_eq!(inbox.bytes, 0);
    }
}

#[test]
fn unread_rejoins_fill_the_inbox_by_their_participants() {
    let crowd = (0..1000).map(|n| Participant::new(format!("p{n}"), "PA")).collect();
    let (snapshot, mut inbox) =
        (Snapshot::new(String::new(), Participant::new("me", "PA"), crowd), Inbox::default());
    while !inbox.is_full() {
        inbox.push(TaskEvent::Rejoined(snapshot.clone()));
    }
    assert!(inbox.waiting.len() < 10, "{}", inbox.waiting.len());
}

#[test]
fn attribute_changes_fill_the_inbox_by_their_size() {
    let who = Participant::new("p", "PA_2").attributes([("notes", "x".repeat(64 * 1024))]);
    let mut inbox = Inbox::default();
    while !inbox.is_full() {
        inbox.event(TransportEvent::Joined(who.clone()));
    }
    assert!(inbox.waiting.len() < 70, "{}", inbox.waiting.len());
    while inbox.pop().is_some() {}
    assert_eq!(inbox.bytes, 0);
}

#[tokio::test]
async fn queued_and_later_packets_are_interrupted_when_the_connection_is_lost() {
    let (mut queues, _ends) = new_queues();
    let queue = queues.shared.queue.clone();
    let send = || queue.send(Packet::broadcast("hello"), &"PA_1".into());
    let first = send();
    queues.interrupt();
    for sent in [first, send()] {
        assert!(matches!(sent.await, Err(SendError::Interrupted)));
    }
    drop(queues);
    assert!(matches!(send().await, Err(SendError::Closed(CloseReason::ConnectionLost(_)))));
}

#[tokio::test]
async fn events_are_delivered_while_reconnecting() {
    let (mut queues, mut ends) = new_queues();
    for _ in 0..INBOX_EVENTS {
        queues.inbox.event(TransportEvent::ConnectionState(ConnectionState::Reconnecting));
    }
    let reading = async { while ends.events.recv().await.is_some() {} };
    tokio::select! {
        read = queues.wait_until_read() => read.unwrap(),
        () = reading => panic!("the queues were closed"),
    }
    assert!(!queues.inbox.is_full());
}

#[tokio::test]
async fn leave_and_drop_are_noticed_while_reconnecting() {
    let (mut queues, ends) = new_queues();
    let (left, done) = oneshot::channel();
    assert!(ends.leave.try_send(Leave { left }).is_ok());
    assert!(queues.serve(std::future::pending::<()>()).await.is_err());
    tokio::join!(queues.close(CloseReason::Closed).deliver(), async { done.await.unwrap() });

    let (mut queues, ends) = new_queues();
    drop(ends);
    assert!(queues.serve(std::future::pending::<()>()).await.is_err());
}
