//! Handles signaling: the join request in the URL, and the WebSocket.

use std::{io::Read as _, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE};
use flate2::read::GzDecoder;
use futures_util::StreamExt;
use livekit_protocol::{
    ClientInfo, JoinRequest, SignalRequest, SignalResponse, WrappedJoinRequest, client_info::Capability,
    wrapped_join_request::Compression,
};
use prost::Message as _;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
    time,
};
use tokio_tungstenite::tungstenite::Message as Frame;

use super::{
    event_loop::{ServerInput, SignalSession},
    room::PING,
    web_socket,
};

/// The maximum size of a join request, in bytes, as in livekit-server.
const MAX_JOIN_REQUEST: usize = 1024 * 1024;
/// The maximum size of a client's WebSocket frame, in bytes.
const MAX_FRAME: usize = 256 * 1024;
/// The idle timeout. Clients send a ping every few seconds.
const IDLE_TIMEOUT: Duration = Duration::from_secs(PING[1] as u64);

/// Decodes the query parameter `join_request`.
///
/// # Errors
/// Why the value is invalid.
pub(super) fn join_request(text: &str) -> Result<JoinRequest, &'static str> {
    let wrapped = URL_SAFE.decode(text).map_err(|_| "cannot base64 decode wrapped join request")?;
    let wrapped = WrappedJoinRequest::decode(wrapped.as_slice())
        .map_err(|_| "cannot unmarshal wrapped join request")?;
    let bytes = match wrapped.compression() {
        Compression::None => wrapped.join_request,
        Compression::Gzip => {
            let mut bytes = Vec::new();
            // Read one byte more than the limit to detect a larger request.
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

/// Reads a join request from the query parameters that older clients send to `/rtc`.
///
/// # Errors
/// The attributes are invalid.
pub(super) fn older_join_request(
    parameter: impl Fn(&str) -> Option<String>,
) -> Result<JoinRequest, &'static str> {
    let is_set = |name: &str| matches!(parameter(name).as_deref(), Some("1" | "true"));
    let number = |name: &str| parameter(name).and_then(|text| text.parse().ok()).unwrap_or_default();
    let participant_attributes = match parameter("attributes").filter(|text| !text.is_empty()) {
        Some(text) => URL_SAFE
            .decode(text)
            .ok()
            .and_then(|json| serde_json::from_slice(&json).ok())
            .ok_or("cannot decode attributes")?,
        None => Default::default(),
    };
    let capabilities = parameter("capabilities").unwrap_or_default();
    let client = ClientInfo {
        protocol: number("protocol"),
        client_protocol: number("client_protocol"),
        capabilities: capabilities
            .split(',')
            .filter_map(|name| Capability::from_str_name(name.trim()))
            .map(Into::into)
            .collect(),
        ..Default::default()
    };
    let reconnect = is_set("reconnect");
    Ok(JoinRequest {
        client_info: Some(client),
        participant_attributes,
        reconnect,
        participant_sid: parameter("sid").filter(|_| reconnect).unwrap_or_default(),
        ..Default::default()
    })
}

/// Transfers messages in both directions until one side ends, and reports the end to the server.
pub(super) async fn carry(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    entry: SignalSession,
    inputs: &mpsc::Sender<ServerInput>,
) {
    let SignalSession { connection, mut messages } = entry;
    let (mut writer, mut reader) = web_socket::open(stream, MAX_FRAME).await.split();
    let reading = async {
        // An invalid frame ends the connection, like the idle timeout.
        while let Ok(Some(Ok(frame))) = time::timeout(IDLE_TIMEOUT, reader.next()).await {
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
            if !web_socket::send(&mut writer, Frame::Binary(frame.into())).await {
                return;
            }
        }
        web_socket::finish(&mut writer).await;
    };
    tokio::select! {
        () = reading => {}
        () = writing => {}
    }
    // Sending fails only if the server has ended.
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
    fn join_request_is_decoded_with_and_without_compression() {
        let request = JoinRequest { reconnect: true, participant_sid: "PA_1".into(), ..Default::default() };
        let bytes = request.encode_to_vec();
        for text in [wrap(Compression::None, bytes.clone()), wrap(Compression::Gzip, gzip(&bytes))] {
            assert_eq!(join_request(&text), Ok(request.clone()));
        }
    }

    #[test]
    fn invalid_join_request_is_refused() {
        let bomb = wrap(Compression::Gzip, gzip(&vec![0; 64 * MAX_JOIN_REQUEST]));
        assert_eq!(join_request(&bomb), Err("join request too large"));
        for bad in
            ["*", "____", &wrap(Compression::Gzip, b"plain".to_vec()), &wrap(Compression::None, vec![7; 9])]
        {
            assert!(join_request(bad).is_err(), "{bad}");
        }
    }
}
