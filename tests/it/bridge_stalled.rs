//! A transport whose sending waits for its receiving, as two full queues that wait for each other do.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::sync::{Notify, watch};
use toolbridge::{
    Assistant, Value,
    protocol::{
        frame::{Kind, Meta},
        session::{Destination, Event},
    },
    transport::{Packet, Participant, SendError, Transport, TransportEvent},
};

/// It hands nothing over until what it has heard was read.
struct Stalled {
    comes: Arc<Notify>,
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
            // The transport lives as long as whoever sends by it.
            let _ = read.wait_for(|read| *read).await;
            Ok(())
        }
    }

    async fn recv(&mut self) -> Option<TransportEvent> {
        self.comes.notified().await;
        self.read.send_replace(true);
        Some(TransportEvent::Joined(Participant::new("phone", "PA_2")))
    }
}

#[tokio::test(start_paused = true)]
async fn what_waits_to_be_sent_never_waits_for_ever_on_what_waits_to_be_read() {
    let comes = Arc::new(Notify::new());
    let transport = Stalled { comes: Arc::clone(&comes), read: watch::Sender::new(false) };
    let assistant = Assistant::builder().join_over(transport).await.unwrap();
    let mut events = assistant.events();
    for _ in 0..2_000 {
        let sent = assistant.send_frame(Destination::Room, Kind::new(9_000), Meta::default(), Value::empty());
        sent.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(1)).await; // of a paused clock: all of it waits by now
    comes.notify_one();
    let heard = async { while !matches!(events.recv().await.unwrap(), Event::Joined(_)) {} };
    tokio::time::timeout(Duration::from_secs(60), heard).await.expect("it is read");
    assert_eq!(assistant.close().await, toolbridge::CloseReason::Closed);
}
