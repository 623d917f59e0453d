//! Tests of toolbridge participants with the embedded server over real sockets.

use std::time::Duration;

use tokio::time::timeout;

use super::{DevServer, Key, event_loop::ServerInput, room::Rooms};
use toolbridge::{
    Identity, Incoming, Lane, Packet, Transport, TransportEvent,
    livekit::{AccessKey, ConnectOptions, LiveKitTransport},
};

mod data;
mod disconnects;
mod faults;

/// The time limit of every wait.
const BOUND: Duration = Duration::from_secs(30);

impl DevServer {
    /// Runs a closure on the rooms inside the server's task.
    async fn look<T: Send + 'static>(&self, look: impl FnOnce(&mut Rooms) -> T + Send + 'static) -> T {
        let (reply, seen) = tokio::sync::oneshot::channel();
        let look = ServerInput::Inspect(Box::new(move |rooms| drop(reply.send(look(rooms)))));
        assert!(self.inputs.send(look).await.is_ok());
        seen.await.unwrap()
    }

    /// Makes the server's task panic.
    pub(crate) async fn fail(&self, message: &'static str) {
        let fail = ServerInput::Inspect(Box::new(move |_| panic!("{message}")));
        assert!(self.inputs.send(fail).await.is_ok());
    }

    fn access(&self) -> AccessKey {
        AccessKey::new(self.key.name(), self.key.secret())
    }

    async fn join(&self, identity: &str) -> LiveKitTransport {
        // A fast rejoin keeps the tests short.
        let options = ConnectOptions::new().rejoin_wait(Duration::from_millis(10), Duration::from_millis(50));
        self.join_with(options, identity).await
    }

    async fn join_with(&self, options: ConnectOptions, identity: &str) -> LiveKitTransport {
        let token = self.access().client("kitchen", identity).sign().unwrap();
        options.join(&self.url(), &token).await.unwrap()
    }
}

async fn server() -> DevServer {
    DevServer::start(0, Key::new("devkey", "secretsecretsecretsecretsecretsecret"), Vec::new()).await.unwrap()
}

/// Waits for the first event that `wanted` accepts.
async fn until<T>(room: &mut LiveKitTransport, mut wanted: impl FnMut(TransportEvent) -> Option<T>) -> T {
    let search = async {
        loop {
            let event = room.recv().await.expect("the event stream ended");
            if let Some(found) = wanted(event) {
                return found;
            }
        }
    };
    timeout(BOUND, search).await.expect("no matching event in time")
}

async fn packet(room: &mut LiveKitTransport) -> Incoming {
    until(room, |event| match event {
        TransportEvent::Packet(packet) => Some(packet),
        _ => None,
    })
    .await
}

fn to(identity: &str, payload: impl Into<bytes::Bytes>) -> Packet {
    Packet::new([Identity::from(identity)], payload)
}

fn on(lane: Lane, mut packet: Packet) -> Packet {
    packet.lane = lane;
    packet
}
