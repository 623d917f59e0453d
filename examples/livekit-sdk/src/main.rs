//! Tool calls over a room that the app has joined with the official LiveKit SDK, and that also carries audio.
//!
//! ```sh
//! LIVEKIT_URL=wss://… LIVEKIT_TOKEN=… cargo run
//! ```
//! Its build downloads libwebrtc. `scripts/run-examples livekit-sdk` does not: it only checks the types.

use std::{env, sync::Arc, time::Duration};

use livekit::{Room, RoomEvent, RoomOptions};
use tokio::sync::mpsc::UnboundedReceiver;
use toolbridge::Assistant;

mod sdk_transport;

use sdk_transport::SdkTransport;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let (url, token) = (env::var("LIVEKIT_URL")?, env::var("LIVEKIT_TOKEN")?);
    let (room, events) = Room::connect(&url, &token, RoomOptions::default()).await?;
    let room = Arc::new(room);
    tokio::spawn(listen(events));

    let assistant = Assistant::builder().join_over(SdkTransport::new(Arc::clone(&room))).await?;
    let battery = assistant.call("get_battery", ()).timeout(Duration::from_secs(5)).await?;
    println!("{}", battery.to_json());

    assistant.close().await;
    room.close().await?;
    Ok(())
}

/// The app's own use of the room is not affected.
async fn listen(mut events: UnboundedReceiver<RoomEvent>) {
    while let Some(event) = events.recv().await {
        if let RoomEvent::TrackSubscribed { participant, track, .. } = event {
            println!("{} sends {:?}", participant.identity(), track.kind());
        }
    }
}
