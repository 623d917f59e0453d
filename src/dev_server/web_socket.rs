//! Opens, writes and ends the WebSockets of clients and of agent workers.

use std::time::Duration;

use futures_util::{Sink, SinkExt};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message as Frame,
        protocol::{Role, WebSocketConfig},
    },
};

/// The time limit for sending a frame.
const SEND_LIMIT: Duration = Duration::from_secs(10);
/// The time that the other side has to close the connection after the server.
const LINGER: Duration = Duration::from_secs(2);

/// Makes a WebSocket of a connection whose request was answered. `max` is the size of its largest message, in bytes.
pub(super) async fn open<S: AsyncRead + AsyncWrite + Unpin>(stream: S, max: usize) -> WebSocketStream<S> {
    let config = WebSocketConfig::default().max_message_size(Some(max)).max_frame_size(Some(max));
    WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await
}

/// Sends a frame. Returns false if that fails or takes too long.
pub(super) async fn send(writer: &mut (impl Sink<Frame> + Unpin), frame: Frame) -> bool {
    matches!(time::timeout(SEND_LIMIT, writer.send(frame)).await, Ok(Ok(())))
}

/// Closes the connection after the last frame.
pub(super) async fn finish(writer: &mut (impl Sink<Frame> + Unpin)) {
    let _ = time::timeout(SEND_LIMIT, writer.close()).await;
    // Closing a socket with unread data discards sent data, here the last message. So keep reading until the other side
    // closes the connection.
    time::sleep(LINGER).await;
}
