//! Holds a peer connection of a participant: str0m's state machine and a queue in front of its data
//! channels.
//!
//! It performs no I/O: received datagrams are passed in with their source address, and outgoing ones are polled as [`Transmit`].

use std::{collections::VecDeque, net::SocketAddr, ops::RangeInclusive, time::Instant};

use livekit_protocol::SessionDescription;
use str0m::{
    Candidate, Event, IceConnectionState, Input, Output, Rtc, RtcError,
    change::{SdpAnswer, SdpOffer, SdpPendingOffer},
    channel::{ChannelConfig, ChannelId, Reliability},
    error::IceError,
    net::{Protocol, Receive, TcpType, Transmit},
};

use crate::transport::Lane;

use super::sdp::Offer;
use crate::livekit::path::crypto;

/// The maximum number of unacknowledged bytes of both channels.
const BUDGET: usize = 144 * 1024;
/// The part of [`BUDGET`] reserved for lossy packets, in bytes.
const LOSSY_RESERVE: usize = 16 * 1024;
/// The maximum number of bytes queued for a slow participant; beyond it, the participant is removed.
const MAX_QUEUED: usize = 32 * 1024 * 1024;
/// The maximum number of ICE candidates of a client.
const MAX_CANDIDATES: usize = 64;

/// The label of the channel for reliable packets.
const RELIABLE: &str = "_reliable";
/// The label of the channel for lossy packets.
const LOSSY: &str = "_lossy";

/// A peer connection.
pub(super) struct Peer {
    rtc: Rtc,
    /// The server's addresses over UDP and TCP.
    addresses: [SocketAddr; 2],
    candidates: usize,
    /// The source address of the client's last datagram over UDP.
    heard: Option<SocketAddr>,
    reliable: Option<ChannelId>,
    lossy: Option<ChannelId>,
    queue: VecDeque<Vec<u8>>,
    queued: usize,
    wake_at: Instant,
    events: VecDeque<PeerEvent>,
    transmits: VecDeque<Transmit>,
    /// The number of answered offers.
    pub(super) answers: u32,
    /// The number of own offers.
    offers: u32,
    /// The offer that waits for an answer.
    pending: Option<SdpPendingOffer>,
    /// Whether an own offer was answered.
    is_negotiated: bool,
    /// The client's candidates that came before its answer.
    early: Vec<Candidate>,
}

/// An event of a peer connection.
#[derive(Debug)]
pub(super) enum PeerEvent {
    /// ICE found a path, or found one again.
    Connected,
    /// Both data channels are open.
    Open,
    /// A message was received.
    Message(Lane, Vec<u8>),
    /// ICE lost its path.
    Lost,
    /// The client closed the connection.
    Closed,
    /// The queue for the client exceeds its limit.
    Overflow,
}

impl Peer {
    /// Creates a peer connection that waits for an offer. The addresses are the server's over UDP and TCP.
    pub(super) fn new(now: Instant, addresses: [SocketAddr; 2]) -> Self {
        Self {
            rtc: Rtc::builder()
                .set_crypto_provider(crypto::provider())
                .clear_codecs()
                .set_sctp_max_buffered_amount(BUDGET)
                .build(now),
            addresses,
            candidates: 0,
            heard: None,
            reliable: None,
            lossy: None,
            queue: VecDeque::new(),
            queued: 0,
            wake_at: now,
            events: VecDeque::new(),
            transmits: VecDeque::new(),
            answers: 0,
            offers: 0,
            pending: None,
            is_negotiated: false,
            early: Vec::new(),
        }
    }

    /// Answers an offer, the first or a later one. The candidates are returned separately, for trickle ICE as in livekit-server.
    ///
    /// # Errors
    /// The offer is invalid, or the connection has ended.
    pub(super) fn answer(
        &mut self,
        now: Instant,
        offer: &SessionDescription,
    ) -> Result<(SessionDescription, Vec<String>), RtcError> {
        if !self.rtc.is_alive() {
            return Err(RtcError::RemoteSdp("the peer connection has ended".into()));
        }
        let refused = |error: &dyn std::error::Error| RtcError::RemoteSdp(error.to_string());
        let whole = Offer::parse(&offer.sdp).map_err(|error| refused(&error))?;
        let sdp = SdpOffer::from_sdp_string(&whole.data_only()).map_err(|error| refused(&error))?;
        let answer = whole.answer(&self.rtc.sdp_api().accept_offer(sdp)?.to_sdp_string());
        self.drain();
        self.answers += 1;
        let candidates = self.add_own_candidates();
        self.handle_timeout(now);
        Ok((description("answer", &answer, offer.id), candidates))
    }

    /// Offers the data channels, or restarts ICE once they are negotiated. The candidates are returned separately.
    pub(super) fn offer(&mut self, now: Instant) -> Option<(SessionDescription, Vec<String>)> {
        let mut changes = self.rtc.sdp_api();
        if self.is_negotiated {
            changes.ice_restart(true);
        } else {
            changes.add_channel(RELIABLE.into());
            changes.add_channel_with_config(ChannelConfig {
                label: LOSSY.into(),
                ordered: false,
                reliability: Reliability::MaxRetransmits { retransmits: 0 },
                ..Default::default()
            });
        }
        let (offer, pending) = changes.apply()?;
        self.pending = Some(pending);
        self.drain();
        self.offers += 1;
        let candidates = self.add_own_candidates();
        self.handle_timeout(now);
        Some((description("offer", &offer.to_sdp_string(), self.offers), candidates))
    }

    /// Accepts the answer to the last offer. An answer to an earlier one is ignored, and so is one without an offer.
    ///
    /// # Errors
    /// The answer is invalid.
    pub(super) fn accept(&mut self, now: Instant, answer: &SessionDescription) -> Result<(), RtcError> {
        // Older clients do not repeat the id.
        let is_meant = answer.id == 0 || answer.id == self.offers;
        let Some(pending) = self.pending.take_if(|_| is_meant) else { return Ok(()) };
        let sdp = SdpAnswer::from_sdp_string(&answer.sdp)
            .map_err(|error| RtcError::RemoteSdp(error.to_string()))?;
        self.rtc.sdp_api().accept_answer(pending, sdp)?;
        self.is_negotiated = true;
        self.drain();
        for candidate in std::mem::take(&mut self.early) {
            self.rtc.add_remote_candidate(candidate);
            self.drain();
        }
        self.handle_timeout(now);
        Ok(())
    }

    /// Adds the server's candidates, and returns their lines.
    fn add_own_candidates(&mut self) -> Vec<String> {
        let mut candidates = Vec::new();
        for candidate in self.own_candidates() {
            match candidate {
                Ok(candidate) => {
                    candidates.push(candidate.to_sdp_string());
                    self.rtc.add_local_candidate(candidate);
                    self.drain();
                }
                Err(error) => tracing::debug!(%error, "a local address cannot be used as a candidate"),
            }
        }
        candidates
    }

    fn own_candidates(&self) -> [Result<Candidate, IceError>; 2] {
        let [udp, tcp] = self.addresses;
        [
            Candidate::host(udp, Protocol::Udp),
            Candidate::builder().tcp().host(tcp).tcptype(TcpType::Passive).build(),
        ]
    }

    /// Adds a candidate of the client. An unusable candidate is skipped: ICE checks reveal the address as well.
    pub(super) fn add_candidate(&mut self, line: &str) {
        if self.candidates >= MAX_CANDIDATES {
            return tracing::debug!(limit = MAX_CANDIDATES, "a candidate above the limit was skipped");
        }
        match Candidate::from_sdp_string(line) {
            Ok(candidate) => {
                self.candidates += 1;
                if self.pending.is_some() {
                    return self.early.push(candidate);
                }
                self.rtc.add_remote_candidate(candidate);
                self.drain();
            }
            Err(error) => tracing::debug!(%error, "an invalid candidate was ignored"),
        }
    }

    /// Handles a datagram if it belongs to this connection, and returns whether it does. `known` means that ICE checks for this
    /// connection already came from the address; then other datagrams from it are accepted even before the server's own checks
    /// are answered.
    pub(super) fn receive(
        &mut self,
        now: Instant,
        protocol: Protocol,
        from: SocketAddr,
        known: bool,
        datagram: &[u8],
    ) -> bool {
        let local = self.addresses[usize::from(protocol != Protocol::Udp)];
        let Ok(receive) = Receive::new(protocol, from, local, datagram) else { return false };
        let input = Input::Receive(now, receive);
        // The stack accepts any datagram from its client's address, but another client may use that port by now.
        if is_request(datagram) && !self.is_meant_by(datagram) {
            return false;
        }
        if (!known || is_check(datagram)) && !self.rtc.accepts(&input) {
            return false;
        }
        if protocol == Protocol::Udp {
            self.heard = Some(from);
        }
        if let Err(error) = self.rtc.handle_input(input) {
            // One bad datagram does not end the connection; if it did, the next poll reports it.
            tracing::debug!(%from, %error, "a datagram was refused");
        }
        self.drain();
        true
    }

    /// Returns whether an ICE check names this connection: the server's ufrag comes before the client's.
    fn is_meant_by(&mut self, check: &[u8]) -> bool {
        let mut name = self.rtc.direct_api().local_ice_credentials().ufrag.into_bytes();
        name.push(b':');
        check.windows(name.len()).any(|it| it == name)
    }

    /// Advances the time.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if let Err(error) = self.rtc.handle_input(Input::Timeout(now)) {
            self.fail(&error);
        }
        self.drain();
    }

    /// Returns when to call `handle_timeout` next.
    pub(super) fn poll_timeout(&self) -> Instant {
        self.wake_at
    }

    /// Returns the next event.
    pub(super) fn poll_event(&mut self) -> Option<PeerEvent> {
        self.events.pop_front()
    }

    /// Returns the next datagram to send.
    pub(super) fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// Sends a packet. A lossy packet is dropped if the buffer is full.
    pub(super) fn send(&mut self, lane: Lane, packet: Vec<u8>) {
        if lane == Lane::Lossy {
            self.write(lane, &packet);
            return self.drain();
        }
        self.queued += packet.len();
        self.queue.push_back(packet);
        self.drain();
        if self.queued > MAX_QUEUED {
            self.queue.clear();
            self.queued = 0;
            self.events.push_back(PeerEvent::Overflow);
        }
    }

    /// Returns the number of bytes queued for the client.
    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    /// Writes the next queued reliable packet if the buffer has space.
    fn write_next(&mut self) -> bool {
        let Some(packet) = self.queue.pop_front() else { return false };
        let written = self.write(Lane::Reliable, &packet);
        if written {
            self.queued -= packet.len();
        } else {
            self.queue.push_front(packet);
        }
        written
    }

    fn write(&mut self, lane: Lane, packet: &[u8]) -> bool {
        let id = if lane == Lane::Reliable { self.reliable } else { self.lossy };
        let Some(mut channel) = id.and_then(|id| self.rtc.channel(id)) else { return false };
        if lane == Lane::Reliable && channel.buffered_amount() + packet.len() > BUDGET - LOSSY_RESERVE {
            return false;
        }
        channel.write(true, packet).unwrap_or_else(|error| {
            tracing::debug!(%error, "a packet was not written");
            false
        })
    }

    /// Closes the connection. The datagrams of the closing can still be polled.
    pub(super) fn close(&mut self) {
        if let Err(error) = self.rtc.close() {
            tracing::debug!(%error, "closing a peer connection failed");
        }
        self.drain();
    }

    /// Polls the stack until it only waits for a timeout.
    fn drain(&mut self) {
        loop {
            match self.rtc.poll_output() {
                Ok(Output::Timeout(at)) => {
                    self.wake_at = at;
                    // An acknowledgement may have freed buffer space. Poll the stack again after each packet.
                    if !self.write_next() {
                        return;
                    }
                }
                Ok(Output::Transmit(transmit)) => self.transmit(transmit),
                Ok(Output::Event(event)) => self.handle_event(event),
                Err(error) => return self.fail(&error),
            }
        }
    }

    /// Queues a datagram for the address that the client last used. The stack keeps the old address for 20 s after the client's
    /// address changes, as happens with NAT rebinding; livekit-server follows at once. ICE checks keep their destination.
    fn transmit(&mut self, mut transmit: Transmit) {
        if transmit.proto == Protocol::Udp && !is_check(&transmit.contents) {
            transmit.destination = self.heard.unwrap_or(transmit.destination);
        }
        self.transmits.push_back(transmit);
    }

    fn fail(&mut self, error: &RtcError) {
        tracing::debug!(%error, "a peer connection failed");
        self.rtc.disconnect();
        self.events.push_back(PeerEvent::Lost);
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::IceConnectionStateChange(
                IceConnectionState::Connected | IceConnectionState::Completed,
            ) => {
                self.events.push_back(PeerEvent::Connected);
            }
            Event::IceConnectionStateChange(IceConnectionState::Disconnected) => {
                self.events.push_back(PeerEvent::Lost);
            }
            Event::Closed => self.events.push_back(PeerEvent::Closed),
            Event::ChannelOpen(id, label) => {
                match label.as_str() {
                    RELIABLE => self.reliable = Some(id),
                    LOSSY => self.lossy = Some(id),
                    _ => return,
                }
                if self.reliable.is_some() && self.lossy.is_some() {
                    self.events.push_back(PeerEvent::Open);
                }
            }
            Event::ChannelData(data) if Some(data.id) == self.reliable => {
                self.events.push_back(PeerEvent::Message(Lane::Reliable, data.data));
            }
            Event::ChannelData(data) if Some(data.id) == self.lossy => {
                self.events.push_back(PeerEvent::Message(Lane::Lossy, data.data));
            }
            _ => {}
        }
    }
}

/// Returns a description without candidates.
fn description(kind: &str, sdp: &str, id: u32) -> SessionDescription {
    let is_candidate =
        |line: &&str| line.starts_with("a=candidate:") || line.starts_with("a=end-of-candidates");
    let sdp = sdp.split_inclusive("\r\n").filter(|line| !is_candidate(line)).collect();
    SessionDescription { r#type: kind.into(), sdp, id, ..Default::default() }
}

/// Returns whether a datagram is a STUN message of ICE.
fn is_check(datagram: &[u8]) -> bool {
    /// The first byte of a STUN message ([RFC 7983](https://www.rfc-editor.org/rfc/rfc7983)).
    const STUN: RangeInclusive<u8> = 0..=3;
    datagram.first().is_some_and(|first| STUN.contains(first))
}

/// Returns whether a datagram is a STUN binding request.
fn is_request(datagram: &[u8]) -> bool {
    datagram.starts_with(&[0, 1])
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, time::Duration};

    use str0m::change::SdpAnswer;

    use super::*;

    const HERE: [SocketAddr; 2] = [
        SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9),
        SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10),
    ];

    fn peer() -> Peer {
        Peer::new(Instant::now(), HERE)
    }

    /// A client with a local address.
    struct Client {
        rtc: Rtc,
        at: SocketAddr,
    }

    impl Client {
        fn new(now: Instant, peer: &mut Peer, at: SocketAddr) -> Self {
            let mut rtc = Rtc::builder().set_crypto_provider(crypto::provider()).clear_codecs().build(now);
            let mut api = rtc.sdp_api();
            api.add_channel("_reliable".into());
            let (offer, pending) = api.apply().unwrap();
            let offer = SessionDescription { sdp: offer.to_sdp_string(), ..Default::default() };
            let (answer, _) = peer.answer(now, &offer).unwrap();
            rtc.sdp_api().accept_answer(pending, SdpAnswer::from_sdp_string(&answer.sdp).unwrap()).unwrap();
            rtc.add_local_candidate(Candidate::host(at, Protocol::Udp).unwrap());
            rtc.add_remote_candidate(Candidate::host(HERE[0], Protocol::Udp).unwrap());
            Self { rtc, at }
        }

        /// Returns the datagrams that the client sends.
        fn says(&mut self, now: Instant) -> Vec<Vec<u8>> {
            self.rtc.handle_input(Input::Timeout(now)).unwrap();
            let mut said = Vec::new();
            loop {
                match self.rtc.poll_output().unwrap() {
                    Output::Transmit(transmit) => said.push(transmit.contents.into()),
                    Output::Event(_) => {}
                    Output::Timeout(_) => return said,
                }
            }
        }

        fn hear(&mut self, now: Instant, datagram: &[u8]) {
            let receive = Receive::new(Protocol::Udp, HERE[0], self.at, datagram).unwrap();
            self.rtc.handle_input(Input::Receive(now, receive)).unwrap();
        }
    }

    /// A killed process does not close its connection, and the system may reuse its port.
    #[test]
    fn reused_port_of_a_killed_client_reaches_the_new_connection() {
        let (mut now, at) = (Instant::now(), "127.0.0.1:5000".parse().unwrap());
        let mut gone = peer();
        let mut client = Client::new(now, &mut gone, at);
        let mut connected = false;
        while !connected {
            now += Duration::from_millis(50);
            for datagram in client.says(now) {
                assert!(gone.receive(now, Protocol::Udp, at, false, &datagram));
            }
            gone.handle_timeout(now);
            while let Some(transmit) = gone.poll_transmit() {
                client.hear(now, &transmit.contents);
            }
            connected |=
                std::iter::from_fn(|| gone.poll_event()).any(|it| matches!(it, PeerEvent::Connected));
        }
        let mut next = peer();
        let mut client = Client::new(now, &mut next, at);
        let mut checks = 0;
        while checks < 3 {
            now += Duration::from_millis(50);
            for datagram in client.says(now) {
                assert!(!gone.receive(now, Protocol::Udp, at, true, &datagram), "known");
                assert!(!gone.receive(now, Protocol::Udp, at, false, &datagram), "unknown");
                assert!(next.receive(now, Protocol::Udp, at, false, &datagram));
                checks += 1;
            }
        }
    }

    /// Answers the server's offer, and exchanges datagrams until its channels are open.
    fn open_offered(now: &mut Instant, peer: &mut Peer, client: &mut Client) -> bool {
        let at = client.at;
        let (offer, candidates) = peer.offer(*now).unwrap();
        assert!(!offer.sdp.contains("a=candidate") && candidates.len() == 2, "{}", offer.sdp);
        let sdp = SdpOffer::from_sdp_string(&offer.sdp).unwrap();
        let answer = client.rtc.sdp_api().accept_offer(sdp).unwrap().to_sdp_string();
        // The client's candidates may come before its answer.
        peer.add_candidate(&Candidate::host(at, Protocol::Udp).unwrap().to_sdp_string());
        client.rtc.add_local_candidate(Candidate::host(at, Protocol::Udp).unwrap());
        client.rtc.add_remote_candidate(Candidate::host(HERE[0], Protocol::Udp).unwrap());
        let late = SessionDescription { sdp: "v=0".into(), id: offer.id + 1, ..Default::default() };
        peer.accept(*now, &late).unwrap();
        assert!(peer.pending.is_some(), "an answer to another offer is ignored");
        peer.accept(*now, &SessionDescription { sdp: answer, id: offer.id, ..Default::default() }).unwrap();
        let mut connected = false;
        for _ in 0..200 {
            *now += Duration::from_millis(50);
            for datagram in client.says(*now) {
                peer.receive(*now, Protocol::Udp, at, false, &datagram);
            }
            peer.handle_timeout(*now);
            while let Some(transmit) = peer.poll_transmit() {
                client.hear(*now, &transmit.contents);
            }
            for event in std::iter::from_fn(|| peer.poll_event()) {
                connected |= matches!(event, PeerEvent::Connected);
            }
            if connected && peer.reliable.is_some() && peer.lossy.is_some() {
                return true;
            }
        }
        false
    }

    #[test]
    fn offered_connection_opens_its_channels_and_restarts_ice() {
        let (mut now, at) = (Instant::now(), "127.0.0.1:5000".parse().unwrap());
        let mut peer = peer();
        let rtc = Rtc::builder().set_crypto_provider(crypto::provider()).clear_codecs().build(now);
        let mut client = Client { rtc, at };
        // An offer without an answer is made again, as after a resume before the first answer.
        assert!(peer.offer(now).is_some());
        assert!(open_offered(&mut now, &mut peer, &mut client));
        let ufrag = |peer: &mut Peer| peer.rtc.direct_api().local_ice_credentials().ufrag;
        let before = ufrag(&mut peer);
        assert!(open_offered(&mut now, &mut peer, &mut client));
        assert_ne!(ufrag(&mut peer), before);
        let answer = SessionDescription { sdp: "nonsense".into(), ..Default::default() };
        assert!(peer.accept(now, &answer).is_ok(), "no offer waits for it");
        peer.offer(now).unwrap();
        assert!(peer.accept(now, &answer).is_err());
    }

    #[test]
    fn client_that_does_not_read_overflows_a_bounded_queue() {
        let mut peer = peer();
        for _ in 0..MAX_QUEUED / 60_000 {
            peer.send(Lane::Reliable, vec![0; 60_000]);
        }
        assert!(peer.poll_event().is_none());
        peer.send(Lane::Reliable, vec![0; 60_000]);
        assert!(matches!(peer.poll_event(), Some(PeerEvent::Overflow)));
        assert!(peer.queue.is_empty() && peer.queued == 0);
    }

    #[test]
    fn invalid_offer_is_an_error() {
        let mut peer = peer();
        for sdp in ["", "v=0\r\n", "nonsense"] {
            let offer = SessionDescription { sdp: sdp.into(), ..Default::default() };
            assert!(peer.answer(Instant::now(), &offer).is_err(), "{sdp}");
        }
        peer.close();
        assert!(peer.answer(Instant::now(), &SessionDescription::default()).is_err());
    }

    /// An offer of a client with a data channel and one section of audio before it, as LiveKit's SDKs make it.
    fn offer_with_audio() -> String {
        let mut rtc =
            Rtc::builder().set_crypto_provider(crypto::provider()).clear_codecs().build(Instant::now());
        let mut api = rtc.sdp_api();
        api.add_channel("_reliable".into());
        let offer = api.apply().unwrap().0.to_sdp_string();
        let (session, data) = offer.split_at(offer.find("m=application").unwrap());
        let session = session.replace("BUNDLE ", "BUNDLE audio ");
        let transport =
            data.lines().filter(|line| line.starts_with("a=ice-") || line.starts_with("a=fingerprint"));
        let transport: String = transport.flat_map(|line| [line, "\r\n"]).collect();
        let audio = "m=audio 9 UDP/TLS/RTP/SAVPF 111 0\r\nc=IN IP4 0.0.0.0\r\na=setup:actpass\r\na=mid:audio\r\n\
            a=extmap:14 urn:ietf:params:rtp-hdrext:ssrc-audio-level\r\na=sendrecv\r\na=rtcp-mux\r\n\
            a=rtpmap:111 opus/48000/2\r\na=fmtp:111 minptime=10;useinbandfec=1\r\n";
        [&*session, audio, &transport, data].concat()
    }

    #[test]
    fn offered_audio_is_answered_as_inactive() {
        let sdp = offer_with_audio();
        let mut peer = peer();
        for _ in 0..2 {
            let offer = SessionDescription { sdp: sdp.clone(), ..Default::default() };
            let (answer, candidates) = peer.answer(Instant::now(), &offer).unwrap();
            assert!(answer.sdp.contains("m=audio 9 UDP/TLS/RTP/SAVPF 111 0\r\n"), "{}", answer.sdp);
            assert!(answer.sdp.contains("a=mid:audio\r\na=inactive\r\n"), "{}", answer.sdp);
            assert!(!answer.sdp.contains("a=candidate"), "{}", answer.sdp);
            assert_eq!(candidates.len(), 2);
        }
    }

    #[test]
    fn damaged_offer_is_an_error_or_answered() {
        let whole = offer_with_audio();
        let lines: Vec<_> = whole.split_inclusive("\r\n").collect();
        for (n, line) in lines.iter().enumerate() {
            let (before, after) = (lines[..n].concat(), lines[n + 1..].concat());
            let cut = &line[..line.len() / 2];
            for damaged in [
                [&*before, &after].concat(),
                [&*before, line, line, &after].concat(),
                [&*before, cut, "\r\n", &after].concat(),
                [&*before, cut].concat(),
            ] {
                let offer = SessionDescription { sdp: damaged, ..Default::default() };
                // Neither result matters, only that there is one.
                let _ = peer().answer(Instant::now(), &offer);
            }
        }
    }

    #[test]
    fn datagram_of_unknown_origin_is_rejected() {
        let mut peer = peer();
        for datagram in [&[][..], &[0; 20], &[22; 40], &[255; 1200]] {
            let from = "127.0.0.1:11".parse().unwrap();
            assert!(!peer.receive(Instant::now(), Protocol::Udp, from, false, datagram));
        }
    }
}
