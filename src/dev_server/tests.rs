//! Tests toolbridge participants with the embedded server over real sockets.

use std::time::Duration;

use tokio::time::timeout;

use super::{DevServer, event_loop::ServerInput, room::Rooms};
use crate::{
    Identity,
    livekit::{ConnectOptions, LiveKitTransport},
    transport::{Incoming, Lane, Packet, Transport, TransportEvent},
};

mod agents;
mod data;
mod disconnects;
mod faults;
mod pages;
mod service;

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
    async fn fail(&self, message: &'static str) {
        let fail = ServerInput::Inspect(Box::new(move |_| panic!("{message}")));
        assert!(self.inputs.send(fail).await.is_ok());
    }

    async fn join(&self, identity: &str) -> LiveKitTransport {
        // A fast rejoin keeps the tests short.
        let options = ConnectOptions::new().rejoin_wait(Duration::from_millis(10), Duration::from_millis(50));
        self.join_with(options, identity).await
    }

    async fn join_with(&self, options: ConnectOptions, identity: &str) -> LiveKitTransport {
        let token = self.key.client("kitchen", identity).sign().unwrap();
        options.join(&self.url(), &token).await.unwrap()
    }
}

async fn server() -> DevServer {
    DevServer::start().await.unwrap()
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

#[tokio::test]
async fn panic_of_the_server_is_reported_with_its_message() {
    let mut server = server().await;
    server.fail("planted").await;
    assert_eq!(timeout(BOUND, server.failed()).await.expect("the server goes on"), "planted");
}
