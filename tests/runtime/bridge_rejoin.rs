//! A transport that rejoins its room, under the driver.

use std::future::Future;

use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use toolbridge::{
    Assistant, ConnectionState, Event, Value,
    frame::{Kind, Meta},
    session::Destination,
    transport::{Packet, Participant, SendError, Transport, TransportEvent},
};

/// A packet passed to the transport: its join, and the sender waiting for the result.
struct Handed {
    sid: String,
    packet: Packet,
    answer: oneshot::Sender<Result<(), SendError>>,
}

/// A transport whose events and results the test writes.
struct Scripted {
    local: Participant,
    events: mpsc::Receiver<(TransportEvent, Option<Participant>)>,
    handed: mpsc::UnboundedSender<Handed>,
}

impl Transport for Scripted {
    fn local(&self) -> Participant {
        self.local.clone()
    }

    fn room(&self) -> String {
        "scripted".into()
    }

    fn present(&self) -> Vec<Participant> {
        vec![Participant::new("phone", "PA_P")]
    }

    fn send(&self, packet: Packet) -> impl Future<Output = Result<(), SendError>> + Send + 'static {
        let (answer, answered) = oneshot::channel();
        let _ = self.handed.send(Handed { sid: self.local.sid().to_string(), packet, answer });
        async { answered.await.unwrap_or(Err(SendError::Interrupted)) }
    }

    async fn recv(&mut self) -> Option<TransportEvent> {
        let (event, local) = self.events.recv().await?;
        if let Some(local) = local {
            self.local = local;
        }
        Some(event)
    }
}

fn text(packet: &Packet) -> String {
    String::from_utf8_lossy(&packet.payload).into_owned()
}

#[tokio::test]
async fn packet_queued_in_one_join_is_not_sent_in_the_next() {
    let (tell, events) = mpsc::channel(8);
    let (handed, mut sent) = mpsc::unbounded_channel();
    let local = Participant::new("assistant", "PA_1").agent(true);
    let transport = Scripted { local, events, handed };
    let assistant = Assistant::builder().client("phone").join_over(transport).await.unwrap();
    let mut news = assistant.events();

    // The Configuration is being sent, which takes long; later packets wait behind it.
    let greeting = sent.recv().await.unwrap();
    assert_eq!(greeting.sid, "PA_1");
    let say = |text: &str| {
        let body = Value::from(json!({"text": text}));
        assistant.send_frame(Destination::Room, Kind::new(33), Meta::new(), body).unwrap();
    };
    for _ in 0..10 {
        say("before");
    }
    tell.send((TransportEvent::ConnectionState(ConnectionState::Reconnecting), None)).await.unwrap();
    while !matches!(news.recv().await.unwrap(), Event::ConnectionState(ConnectionState::Reconnecting)) {}
    say("meanwhile");
    let rejoined = Participant::new("assistant", "PA_2").agent(true);
    tell.send((TransportEvent::ConnectionState(ConnectionState::Connected), Some(rejoined))).await.unwrap();
    while !matches!(news.recv().await.unwrap(), Event::ConnectionState(ConnectionState::Connected)) {}
    greeting.answer.send(Err(SendError::Interrupted)).unwrap();
    say("after");

    let mut log = Vec::new();
    loop {
        let Handed { sid, packet, answer } = sent.recv().await.unwrap();
        let text = text(&packet);
        assert!(
            !text.contains("before") && !text.contains("meanwhile"),
            "a packet of the previous join was sent as {sid}"
        );
        assert_eq!(sid, "PA_2");
        log.push(text.clone());
        let _ = answer.send(Ok(()));
        if text.contains("after") {
            break;
        }
    }
    assert!(log.len() >= 2, "the new join starts with a Configuration");
    // The Configuration and eleven test packets.
    assert!(assistant.stats().count(toolbridge::session::Counter::SendFailed) >= 12);
}
