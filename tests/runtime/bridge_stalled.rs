//! A transport that sends only after its events were read, like two full queues that wait for each other.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::sync::{Notify, watch};
use toolbridge::{
    Assistant, Client, Event, ToolError, Value,
    frame::{Kind, Meta},
    memory::{MemoryRoom, MemoryTransport},
    session::Destination,
    transport::{Capabilities, Packet, Participant, SendError, Transport, TransportEvent},
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

/// Sends small packets at once, and large ones never.
struct NeverLarge(MemoryTransport);

impl Transport for NeverLarge {
    fn local(&self) -> Participant {
        self.0.local()
    }

    fn room(&self) -> String {
        self.0.room()
    }

    fn present(&self) -> Vec<Participant> {
        self.0.present()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn send(&self, packet: Packet) -> impl Future<Output = Result<(), SendError>> + Send + 'static {
        let small = (packet.payload.len() <= Capabilities::MAX_PACKET).then(|| self.0.send(packet));
        async move {
            match small {
                Some(sending) => sending.await,
                None => std::future::pending().await,
            }
        }
    }

    async fn recv(&mut self) -> Option<TransportEvent> {
        self.0.recv().await
    }

    async fn close(&mut self) {
        self.0.close().await;
    }
}

/// What is not sent when the drain is over is dropped, so that the goodbye leaves.
#[tokio::test(start_paused = true)]
async fn large_packet_does_not_delay_the_goodbye() {
    let room = MemoryRoom::new();
    let tool = async || Ok::<_, ToolError>(1);
    let _phone =
        Client::builder().tool("t", "for a test", tool).join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(NeverLarge(room.assistant("a"))).await.unwrap();
    assistant.ready("phone").await.unwrap();
    let (to, large) = (Destination::Peers(vec!["phone".into()]), "x".repeat(100_000));
    assistant
        .send_frame(to, Kind::new(9_000), Meta::default(), Value::from(serde_json::Value::from(large)))
        .unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await; // on a paused clock: it is being sent
    let began = tokio::time::Instant::now();
    assert_eq!(assistant.close().await, toolbridge::CloseReason::Closed);
    assert_eq!(began.elapsed(), Duration::from_secs(5), "the drain, and no more");
}
