//! A transport that sends only after its events were read, like two full queues that wait for each other.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::sync::{Notify, watch};
use toolbridge::{
    Assistant, Event, Value,
    frame::{Kind, Meta},
    session::Destination,
    transport::{Packet, Participant, SendError, Transport, TransportEvent},
};

/// Sends nothing until its received events were read.
struct Stalled {
    arrived: Arc<Notify>,
    read: watch::Sender<bool>,
}

impl Transport for Stalled {
    fn local(&self) -> Participant {
        Participant::new("assistant", "PA_1")
    }

    fn room(&self) -> String {
        "stalled".to_owned()
    }

    fn present(&self) -> Vec<Participant> {
        Vec::new()
    }

    fn send(&self, _: Packet) -> impl Future<Output = Result<(), SendError>> + Send + 'static {
        let mut read = self.read.subscribe();
        async move {
            // The transport lives as long as its sender.
            let _ = read.wait_for(|read| *read).await;
            Ok(())
        }
    }

    async fn recv(&mut self) -> Option<TransportEvent> {
        self.arrived.notified().await;
        self.read.send_replace(true);
        Some(TransportEvent::Joined(Participant::new("phone", "PA_2")))
    }
}

#[tokio::test(start_paused = true)]
async fn full_send_queue_and_full_event_queue_do_not_deadlock() {
    let arrived = Arc::new(Notify::new());
    let transport = Stalled { arrived: Arc::clone(&arrived), read: watch::Sender::new(false) };
    let assistant = Assistant::builder().join_over(transport).await.unwrap();
    let mut events = assistant.events();
    for _ in 0..2_000 {
        let sent = assistant.send_frame(Destination::Room, Kind::new(9_000), Meta::default(), Value::empty());
        sent.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(1)).await; // on a paused clock: everything waits by now
    arrived.notify_one();
    let heard = async { while !matches!(events.recv().await.unwrap(), Event::Joined(_)) {} };
    tokio::time::timeout(Duration::from_secs(60), heard).await.expect("all events are read");
    assert_eq!(assistant.close().await, toolbridge::CloseReason::Closed);
}
