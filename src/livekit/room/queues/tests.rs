//! Tests the queues while connected and while reconnecting.

use super::*;
use crate::transport::{Packet, SendError};

fn new_queues() -> (Queues, UserQueues) {
    Queues::new("PA_1".into(), State { can_publish_data: true, token: String::new() })
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
async fn events_are_read_while_reconnecting_and_after_the_end() {
    let (mut queues, ends) = new_queues();
    while !queues.inbox.is_full() {
        queues.inbox.event(TransportEvent::ConnectionState(ConnectionState::Reconnecting));
    }
    let (waited, read) = tokio::join!(queues.wait_until_read(), ends.inbox.next());
    assert!(waited.is_ok() && read.is_some());
    drop(queues.close(CloseReason::Closed));
    let mut last = None;
    while let Some(event) = ends.inbox.next().await {
        last = Some(event);
    }
    assert!(matches!(last, Some(TaskEvent::Event(TransportEvent::Closed(_)))));
}

#[tokio::test]
async fn leave_and_drop_are_noticed_while_reconnecting() {
    let (mut queues, ends) = new_queues();
    let (left, done) = oneshot::channel();
    assert!(ends.leave.try_send(Leave { left }).is_ok());
    assert!(queues.serve(std::future::pending::<()>()).await.is_err());
    queues.close(CloseReason::Closed).unwrap().send(()).unwrap();
    done.await.unwrap();

    let (mut queues, ends) = new_queues();
    drop(ends);
    assert!(queues.serve(std::future::pending::<()>()).await.is_err());
}
