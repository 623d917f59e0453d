//! Signalling: the join request in a URL, and the WebSocket that follows.

use std::{io::Read as _, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE};
use flate2::read::GzDecoder;
use futures_util::{SinkExt, StreamExt};
use livekit_protocol::{
    JoinRequest, SignalRequest, SignalResponse, WrappedJoinRequest, wrapped_join_request::Compression,
};
use prost::Message as _;
use tokio::{net::TcpStream, sync::mpsc, time};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message as Frame,
        protocol::{Role, WebSocketConfig},
    },
};

use super::{
    event_loop::{ServerInput, SignalSession},
    room::PING,
};

/// The largest join request, in bytes: the real server's own limit.
const MAX_JOIN_REQUEST: usize = 1024 * 1024;
/// The largest frame that a client sends, in bytes.
const MAX_FRAME: usize = 256 * 1024;
/// How many messages wait for a client; who takes none is cut off.
pub(super) const MAX_WAITING: usize = 256;
/// How long one frame may take to be sent.
const SEND_LIMIT: Duration = Duration::from_secs(10);
/// How long a client has to close its end after ours.
const LINGER: Duration = Duration::from_secs(2);
/// A client asks every few seconds whether we are there. One that does not is gone.
const SILENCE: Duration = Duration::from_secs(PING[1] as u64);

/// The join request in the value of `join_request`.
///
/// # Errors
/// What is wrong with it.
pub(super) fn join_request(text: &str) -> Result<JoinRequest, &'static str> {
    let wrapped = URL_SAFE.decode(text).map_err(|_| "cannot base64 decode wrapped join request")?;
    let wrapped = WrappedJoinRequest::decode(wrapped.as_slice())
        .map_err(|_| "cannot unmarshal wrapped join request")?;
    let bytes = match wrapped.compression() {
        Compression::None => wrapped.join_request,
        Compression::Gzip => {
            let mut bytes = Vec::new();
            // One byte more than the limit shows that there is more.
            let limit = MAX_JOIN_REQUEST as u64 + 1;
            GzDecoder::new(wrapped.join_request.as_slice())
                .take(limit)
                .read_to_end(&mut bytes)
                .map_err(|_| "cannot read decompressed join request")?;
            bytes
        }
    };
    if bytes.len() > MAX_JOIN_REQUEST {
        return Err("join request too large");
    }
    JoinRequest::decode(bytes.as_slice()).map_err(|_| "cannot unmarshal join request")
}

/// Carries messages both ways until either side ends, and tells the server of it.
pub(super) async fn carry(stream: TcpStream, entry: SignalSession, inputs: &mpsc::Sender<ServerInput>) {
    let SignalSession { connection, mut messages } = entry;
    let config = WebSocketConfig::default().max_message_size(Some(MAX_FRAME)).max_frame_size(Some(MAX_FRAME));
    let socket = WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await;
    let (mut writer, mut reader) = socket.split();
    let reading = async {
        // A client that says what it may not ends as one that is silent does.
        while let Ok(Some(Ok(frame))) = time::timeout(SILENCE, reader.next()).await {
            let request = match frame {
                Frame::Binary(bytes) => SignalRequest::decode(bytes).ok().and_then(|it| it.message),
                Frame::Close(_) => break,
                _ => None,
            };
            if let Some(request) = request
                && inputs.send(ServerInput::SignalRequest(connection, Box::new(request))).await.is_err()
            {
                break;
            }
        }
    };
    let writing = async {
        while let Some(message) = messages.recv().await {
            let frame = SignalResponse { message: Some(*message) }.encode_to_vec();
            let sent = time::timeout(SEND_LIMIT, writer.send(Frame::Binary(frame.into()))).await;
            if !matches!(sent, Ok(Ok(()))) {
                return;
            }
        }
        let _ = time::timeout(SEND_LIMIT, writer.close()).await;
        // A socket that is closed with something unread in it takes back what it has sent: the last word, here. So the
        // client is read until it has closed its end.
        time::sleep(LINGER).await;
    };
    tokio::select! {
        () = reading => {}
        () = writing => {}
    }
    // An error means that the server has ended.
    let _ = inputs.send(ServerInput::SignalClosed(connection)).await;
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::{Compression as Level, write::GzEncoder};

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Level::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn wrap(compression: Compression, join_request: Vec<u8>) -> String {
        let wrapped = WrappedJoinRequest { compression: compression.into(), join_request };
        URL_SAFE.encode(wrapped.encode_to_vec())
    }

    #[test]
    fn a_join_request_is_read_with_and_without_compression() {
        let request = JoinRequest { reconnect: true, participant_sid: "PA_1".into(), ..Default::default() };
        let bytes = request.encode_to_vec();
        for text in [wrap(Compression::None, bytes.clone()), wrap(Compression::Gzip, gzip(&bytes))] {
            assert_eq!(join_request(&text), Ok(request.clone()));
        }
    }

    #[test]
    fn what_is_no_join_request_is_refused() {
        let bomb = wrap(Compression::Gzip, gzip(&vec![0; 64 * MAX_JOIN_REQUEST]));
        assert_eq!(join_request(&bomb), Err("join request too large"));
        for bad in
            ["*", "____", &wrap(Compression::Gzip, b"plain".to_vec()), &wrap(Compression::None, vec![7; 9])]
        {
            assert!(join_request(bad).is_err(), "{bad}");
        }
    }
}
