//! Handles the WebSocket of an agent worker.

use std::time::Duration;

use futures_util::StreamExt;
use livekit_protocol::WorkerMessage;
use prost::Message as _;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
    time,
};
use tokio_tungstenite::tungstenite::Message as Frame;

use super::{
    event_loop::{ServerInput, WorkerSession},
    web_socket,
};

/// The maximum size of a worker's message, in bytes. An answer to an offer has up to 128 kB of metadata and attributes.
const MAX_MESSAGE: usize = 256 * 1024;
/// The interval of WebSocket pings, as in livekit-server.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// The idle timeout. A worker answers each ping.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Transfers messages in both directions until one side ends, and reports the end to the server.
pub(super) async fn carry(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    session: WorkerSession,
    inputs: &mpsc::Sender<ServerInput>,
) {
    let WorkerSession { key, mut frames } = session;
    let (mut writer, mut reader) = web_socket::open(stream, MAX_MESSAGE).await.split();
    let reading = async {
        while let Ok(Some(Ok(frame))) = time::timeout(IDLE_TIMEOUT, reader.next()).await {
            let message = match frame {
                Frame::Close(_) => break,
                Frame::Ping(_) | Frame::Pong(_) | Frame::Frame(_) => continue,
                Frame::Text(_) => Err("messages in JSON are not supported; send binary protobuf"),
                Frame::Binary(bytes) => match WorkerMessage::decode(bytes) {
                    Ok(WorkerMessage { message: Some(message) }) => Ok(Box::new(message)),
                    Ok(WorkerMessage { message: None }) => Err("the message is empty or of an unknown type"),
                    Err(_) => Err("the message is not a WorkerMessage"),
                },
            };
            if inputs.send(ServerInput::WorkerMessage(key, message)).await.is_err() {
                break;
            }
        }
    };
    let writing = async {
        let mut ping = time::interval_at(time::Instant::now() + PING_INTERVAL, PING_INTERVAL);
        loop {
            let frame = tokio::select! {
                frame = frames.recv() => frame,
                _ = ping.tick() => Some(Frame::Ping(Default::default())),
            };
            let Some(frame) = frame else { break };
            let is_last = frame.is_close();
            if !web_socket::send(&mut writer, frame).await {
                return;
            }
            if is_last {
                break;
            }
        }
        web_socket::finish(&mut writer).await;
    };
    tokio::select! {
        () = reading => {}
        () = writing => {}
    }
    // Sending fails only if the server has ended.
    let _ = inputs.send(ServerInput::WorkerClosed(key)).await;
}
