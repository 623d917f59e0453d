//! Builds the requests that open a signaling connection: the URL with the join request in it.

use std::{
    env::consts::OS,
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE};
use flate2::{Compression as Level, write::GzEncoder};
use livekit_protocol::{
    ClientInfo, ConnectionSettings, JoinRequest, ReconnectReason, SessionDescription, WrappedJoinRequest,
    client_info::{Capability, Sdk},
    wrapped_join_request::Compression,
};
use prost::Message as _;
use rustls::pki_types::CertificateDer;
use url::Url;

use super::{address::ServerUrl, first::First, open_link::KeepAlive};

/// The protocol version announced to the server. From version 18 data channels would be negotiated out of band.
const PROTOCOL: i32 = 17;
/// The client protocol announced to other participants: streams of text, with their content in the header.
const CLIENT_PROTOCOL: i32 = 2;
/// The time limit of opening a socket. A longer join timeout also extends it.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// What is the same for all connections of a participant.
pub(crate) struct SignalOptions {
    pub(crate) url: ServerUrl,
    pub(crate) roots: Vec<CertificateDer<'static>>,
    /// Whether the participant announces that it takes part in RPC.
    pub(crate) has_rpc: bool,
    /// The identities that the participant knows before all others.
    pub(crate) first: First,
}

#[cfg(test)]
impl From<&ServerUrl> for SignalOptions {
    fn from(url: &ServerUrl) -> Self {
        Self { url: url.clone(), roots: Vec::new(), has_rpc: false, first: First::default() }
    }
}

/// The parameters with which a connection is opened.
pub(super) struct Request {
    pub(super) options: Arc<SignalOptions>,
    pub(super) token: String,
    pub(super) purpose: Purpose,
    /// The time limit of opening the socket.
    pub(super) connect_limit: Duration,
    pub(super) sent: Sent,
}

/// Whether a request was sent: only then can a server that does not answer have accepted it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sent(Arc<AtomicBool>);

impl Sent {
    pub(super) fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The purpose of a connection.
pub(super) enum Purpose {
    /// To join with this SDP offer.
    Join(SessionDescription),
    /// To resume the participant with this sid. The server repeats the times of its keepalives only at a join.
    Resume(String, KeepAlive),
}

impl Request {
    /// Returns the URL of the endpoint for participants with a single peer connection.
    pub(super) fn endpoint(&self) -> Url {
        let mut url = self.endpoint_at(&["rtc", "v1"]);
        url.query_pairs_mut().append_pair("join_request", &wrapped(&self.join_request()));
        url
    }

    /// Returns the URL of the endpoint that servers before LiveKit 1.9.11 have, too.
    ///
    /// A server that lacks the other one is asked there for its version.
    pub(super) fn old_endpoint(&self) -> Url {
        let mut url = self.endpoint_at(&["rtc"]);
        url.query_pairs_mut()
            .append_pair("sdk", "rust")
            .append_pair("version", env!("CARGO_PKG_VERSION"))
            .append_pair("protocol", &PROTOCOL.to_string())
            .append_pair("auto_subscribe", "0");
        url
    }

    fn endpoint_at(&self, path: &[&str]) -> Url {
        let mut url = self.options.url.websocket_url();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.extend(path);
        }
        url
    }

    fn join_request(&self) -> JoinRequest {
        let request = JoinRequest {
            client_info: Some(client_info(self.options.has_rpc)),
            // Tracks would need media sections in the offer, which has only one for data.
            connection_settings: Some(ConnectionSettings { auto_subscribe: false, ..Default::default() }),
            ..Default::default()
        };
        match &self.purpose {
            Purpose::Join(offer) => JoinRequest { publisher_offer: Some(offer.clone()), ..request },
            Purpose::Resume(sid, _) => JoinRequest {
                reconnect: true,
                reconnect_reason: ReconnectReason::RrSignalDisconnected.into(),
                participant_sid: sid.clone(),
                ..request
            },
        }
    }
}

/// Returns the time limit of opening a socket within a join or resume of this limit.
pub(super) fn connect_limit(limit: Duration) -> Duration {
    CONNECT_LIMIT.max(limit / 3)
}

/// Returns what the server and its dashboards learn of this program. The model of the device is not
/// disclosed. With RPC, its requests and results may come as streams of text, compressed and in their headers.
fn client_info(has_rpc: bool) -> ClientInfo {
    ClientInfo {
        sdk: Sdk::Rust.into(),
        version: env!("CARGO_PKG_VERSION").into(),
        protocol: PROTOCOL,
        os: OS.into(),
        other_sdks: concat!(env!("CARGO_PKG_NAME"), ":", env!("CARGO_PKG_VERSION")).into(),
        client_protocol: if has_rpc { CLIENT_PROTOCOL } else { 0 },
        capabilities: has_rpc.then_some(Capability::CapCompressionDeflateRaw.into()).into_iter().collect(),
        ..Default::default()
    }
}

/// Returns the request as the value of a query parameter. It is compressed if that is shorter: with the SDP offer, the URL of
/// a join would exceed a network packet.
fn wrapped(request: &JoinRequest) -> String {
    let plain = request.encode_to_vec();
    let mut gzip = GzEncoder::new(Vec::new(), Level::default());
    // Writing to memory does not fail; if it did, the request would go as it is.
    let gzipped = gzip.write_all(&plain).and_then(|()| gzip.finish());
    let (join_request, compression) = match gzipped {
        Ok(gzipped) if gzipped.len() < plain.len() => (gzipped, Compression::Gzip),
        _ => (plain, Compression::None),
    };
    URL_SAFE.encode(WrappedJoinRequest { join_request, compression: compression.into() }.encode_to_vec())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;

    fn request(url: &str, purpose: Purpose) -> Request {
        Request {
            options: Arc::new((&ServerUrl::parse(url).unwrap()).into()),
            token: "a.b.c".into(),
            purpose,
            connect_limit: CONNECT_LIMIT,
            sent: Sent::default(),
        }
    }

    /// Reads a URL as the server does.
    fn read(url: &Url) -> (JoinRequest, Compression) {
        let (_, value) = url.query_pairs().find(|(name, _)| name == "join_request").unwrap();
        let wrapped = WrappedJoinRequest::decode(&URL_SAFE.decode(&*value).unwrap()[..]).unwrap();
        let mut bytes = Vec::new();
        match wrapped.compression() {
            Compression::None => bytes.clone_from(&wrapped.join_request),
            Compression::Gzip => {
                GzDecoder::new(&wrapped.join_request[..]).read_to_end(&mut bytes).map(drop).unwrap();
            }
        }
        (JoinRequest::decode(&bytes[..]).unwrap(), wrapped.compression())
    }

    fn offer(sdp: &str) -> SessionDescription {
        SessionDescription { r#type: "offer".into(), sdp: sdp.into(), id: 1, ..Default::default() }
    }

    #[test]
    fn join_carries_its_offer_and_no_sid() {
        let sdp = "a=candidate:1 1 udp 1 127.0.0.1 9 typ host\r\n".repeat(20);
        let (read, compression) = read(&request("ws://sfu", Purpose::Join(offer(&sdp))).endpoint());
        assert_eq!(read.publisher_offer, Some(offer(&sdp)));
        assert_eq!((read.reconnect, read.participant_sid.as_str()), (false, ""));
        assert_eq!(compression, Compression::Gzip);
        let client = read.client_info.unwrap();
        assert_eq!((client.sdk(), client.protocol), (Sdk::Rust, PROTOCOL));
        assert_eq!(client.other_sdks, concat!("toolbridge:", env!("CARGO_PKG_VERSION")));
        assert!(!read.connection_settings.unwrap().auto_subscribe, "tracks are not for this participant");
    }

    #[test]
    fn rpc_is_announced_only_by_participants_that_take_part_in_it() {
        for (has_rpc, protocol, capabilities) in [(false, 0, vec![]), (true, 2, vec![2])] {
            let options = SignalOptions { has_rpc, ..(&ServerUrl::parse("ws://sfu").unwrap()).into() };
            let request =
                Request { options: Arc::new(options), ..request("ws://sfu", Purpose::Join(offer(""))) };
            let client = read(&request.endpoint()).0.client_info.unwrap();
            assert_eq!((client.client_protocol, client.capabilities), (protocol, capabilities));
        }
    }

    #[test]
    fn resume_names_the_sid_and_the_reason() {
        let (read, _) =
            read(&request("ws://sfu", Purpose::Resume("PA_1".into(), KeepAlive::default())).endpoint());
        assert_eq!((read.reconnect, read.participant_sid.as_str()), (true, "PA_1"));
        assert_eq!(read.reconnect_reason(), ReconnectReason::RrSignalDisconnected);
        assert_eq!(read.publisher_offer, None);
    }

    #[test]
    fn short_request_is_not_compressed() {
        let plain = JoinRequest { participant_sid: "PA_1".into(), ..Default::default() };
        let url = Url::parse(&format!("ws://sfu/?join_request={}", wrapped(&plain))).unwrap();
        assert_eq!(read(&url), (plain, Compression::None));
    }

    #[test]
    fn endpoint_is_below_the_path_of_the_url() {
        for (given, expected) in [
            ("ws://sfu:7880", "ws://sfu:7880/rtc/v1"),
            ("http://sfu:7880/", "ws://sfu:7880/rtc/v1"),
            ("https://sfu/lk/", "wss://sfu/lk/rtc/v1"),
            ("wss://sfu/a/b", "wss://sfu/a/b/rtc/v1"),
        ] {
            let request = request(given, Purpose::Join(offer("")));
            let mut endpoint = request.endpoint();
            endpoint.set_query(None);
            assert_eq!(endpoint.as_str(), expected);
            let old = request.old_endpoint();
            assert_eq!(format!("{}/v1", old.as_str().split('?').next().unwrap()), expected);
            assert!(old.query().unwrap().contains("protocol=17"), "{old}");
        }
    }

    #[test]
    fn connection_timeout_is_5_s_or_more_with_a_longer_join_timeout() {
        let limit = |join| connect_limit(Duration::from_secs(join)).as_secs();
        assert_eq!((limit(1), limit(15), limit(60)), (5, 5, 20));
    }
}
