//! One participant's peer connection: str0m's state machine and the queue in front of its channels.
//!
//! It has no socket: datagrams come in with the address that they came from, and go out as [`Transmit`].

use std::{collections::VecDeque, net::SocketAddr, ops::RangeInclusive, time::Instant};

use livekit_protocol::SessionDescription;
use str0m::{
    Candidate, Event, IceConnectionState, Input, Output, Rtc, RtcError,
    change::SdpOffer,
    channel::ChannelId,
    error::IceError,
    net::{Protocol, Receive, TcpType, Transmit},
};

use toolbridge::transport::Lane;

/// How many bytes of both channels may be on their way.
const BUDGET: usize = 144 * 1024;
/// What the reliable channel leaves of it, so that a full one cannot keep a lossy packet back.
const LOSSY_RESERVE: usize = 16 * 1024;
/// How many bytes wait for somebody who reads too slowly; beyond it he is put out.
const MAX_QUEUED: usize = 32 * 1024 * 1024;
/// How many addresses of a client are tried.
const MAX_CANDIDATES: usize = 64;

/// A peer connection.
pub(super) struct Peer {
    rtc: Rtc,
    /// Where we are reached, over UDP and over TCP.
    addresses: [SocketAddr; 2],
    candidates: usize,
    /// Where the client was last heard, over UDP.
    heard: Option<SocketAddr>,
    reliable: Option<ChannelId>,
    lossy: Option<ChannelId>,
    queue: VecDeque<Vec<u8>>,
    queued: usize,
    wake_at: Instant,
    events: VecDeque<PeerEvent>,
    transmits: VecDeque<Transmit>,
    /// How many offers were answered.
    pub(super) answers: u32,
}

/// What happened on a peer connection.
#[derive(Debug)]
pub(super) enum PeerEvent {
    /// A path was found, or found again.
    Connected,
    /// Both channels are open.
    Open,
    /// A message came.
    Message(Lane, Vec<u8>),
    /// No path works any more.
    Lost,
    /// The client has closed it.
    Closed,
    /// More waits for the client than is kept.
    Overflow,
}

impl Peer {
    /// Nothing was offered yet. The addresses are ours, over UDP and over TCP.
    pub(super) fn new(now: Instant, addresses: [SocketAddr; 2]) -> Self {
        Self {
            rtc: Rtc::builder().clear_codecs().set_sctp_max_buffered_amount(BUDGET).build(now),
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
        }
    }

    /// Answers an offer, the first or a later one. Our addresses are told apart, as the real server does.
    ///
    /// # Errors
    /// The offer cannot be understood, or the connection is at its end.
    pub(super) fn answer(
        &mut self,
        now: Instant,
        offer: &SessionDescription,
    ) -> Result<(SessionDescription, Vec<String>), RtcError> {
        if !self.rtc.is_alive() {
            return Err(RtcError::RemoteSdp("the peer connection has ended".into()));
        }
        let sdp =
            SdpOffer::from_sdp_string(&offer.sdp).map_err(|error| RtcError::RemoteSdp(error.to_string()))?;
        let answer = self.rtc.sdp_api().accept_offer(sdp)?.to_sdp_string();
        self.drain();
        let lines = answer.split_inclusive("\r\n");
        let sdp = lines
            .filter(|line| !line.starts_with("a=candidate:") && !line.starts_with("a=end-of-candidates"));
        let answer = SessionDescription {
            r#type: "answer".into(),
            sdp: sdp.collect(),
            id: offer.id,
            ..Default::default()
        };
        let mut candidates = Vec::new();
        for candidate in self.own_candidates() {
            match candidate {
                Ok(candidate) => {
                    candidates.push(candidate.to_sdp_string());
                    self.rtc.add_local_candidate(candidate);
                    self.drain();
                }
                Err(error) => tracing::debug!(%error, "an address of ours is unusable"),
            }
        }
        self.answers += 1;
        self.handle_timeout(now);
        Ok((answer, candidates))
    }

    fn own_candidates(&self) -> [Result<Candidate, IceError>; 2] {
        let [udp, tcp] = self.addresses;
        [
            Candidate::host(udp, Protocol::Udp),
            Candidate::builder().tcp().host(tcp).tcptype(TcpType::Passive).build(),
        ]
    }

    /// Takes an address of the client's. One that cannot be used is skipped: its checks tell it as well.
    pub(super) fn add_candidate(&mut self, line: &str) {
        if self.candidates >= MAX_CANDIDATES {
            return tracing::debug!(limit = MAX_CANDIDATES, "a candidate too many was skipped");
        }
        match Candidate::from_sdp_string(line) {
            Ok(candidate) => {
                self.candidates += 1;
                self.rtc.add_remote_candidate(candidate);
                self.drain();
            }
            Err(error) => tracing::debug!(%error, "a candidate was skipped"),
        }
    }

    /// Whether a datagram is for this connection; if so it is taken. From a known address checks of this connection
    /// came already: what else comes from there may be ahead of the answers to our own checks, and is taken too.
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
        // The stack itself takes whatever comes from where its client was: somebody else may have that port by now.
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
            // One datagram is no reason to end a connection; if it was, the next poll says so.
            tracing::debug!(%from, %error, "a datagram was refused");
        }
        self.drain();
        true
    }

    /// Whether a check names this connection: what we call ourselves stands before what the client does.
    fn is_meant_by(&mut self, check: &[u8]) -> bool {
        let mut name = self.rtc.direct_api().local_ice_credentials().ufrag.into_bytes();
        name.push(b':');
        check.windows(name.len()).any(|it| it == name)
    }

    /// Lets the time pass.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if let Err(error) = self.rtc.handle_input(Input::Timeout(now)) {
            self.fail(&error);
        }
        self.drain();
    }

    /// When to let the time pass next.
    pub(super) fn poll_timeout(&self) -> Instant {
        self.wake_at
    }

    /// What happened next.
    pub(super) fn poll_event(&mut self) -> Option<PeerEvent> {
        self.events.pop_front()
    }

    /// What is to be sent next.
    pub(super) fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// Sends a packet. A lossy one for which there is no room now is lost.
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

    /// How many bytes wait for the client.
    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    /// Writes the next reliable packet that waits, if there is room for it.
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

    /// Says goodbye. What is to be sent for that can be polled once more.
    pub(super) fn close(&mut self) {
        if let Err(error) = self.rtc.close() {
            tracing::debug!(%error, "a peer connection ended without a goodbye");
        }
        self.drain();
    }

    /// Takes all that the stack has to say, until it only wants to be woken again.
    fn drain(&mut self) {
        loop {
            match self.rtc.poll_output() {
                Ok(Output::Timeout(at)) => {
                    self.wake_at = at;
                    // An acknowledgement may have made room. After each packet the stack has its say again.
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

    /// The stack keeps to an address for 20 s after the client was heard from another one, as happens behind a router
    /// that forgets; the real server follows at once. Checks go where they are meant to.
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
                    "_reliable" => self.reliable = Some(id),
                    "_lossy" => self.lossy = Some(id),
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

/// Whether a datagram is one of ICE's.
fn is_check(datagram: &[u8]) -> bool {
    /// The first byte of a STUN message ([RFC 7983](https://www.rfc-editor.org/rfc/rfc7983)).
    const STUN: RangeInclusive<u8> = 0..=3;
    datagram.first().is_some_and(|first| STUN.contains(first))
}

/// Whether a datagram is a question of ICE's, not an answer.
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

    /// A client at an address of ours.
    struct Client {
        rtc: Rtc,
        at: SocketAddr,
    }

    impl Client {
        fn new(now: Instant, peer: &mut Peer, at: SocketAddr) -> Self {
            let mut rtc = Rtc::builder().clear_codecs().build(now);
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

        /// What it sends until it waits.
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

    /// A process that was killed says no goodbye, and the system gives its port to whoever asks next.
    #[test]
    fn a_port_of_somebody_who_has_gone_is_not_his_any_more() {
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

    #[test]
    fn who_reads_nothing_is_told_apart_and_costs_a_capped_queue() {
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
    fn what_is_no_offer_is_an_error() {
        let mut peer = peer();
        for sdp in ["", "v=0\r\n", "nonsense"] {
            let offer = SessionDescription { sdp: sdp.into(), ..Default::default() };
            assert!(peer.answer(Instant::now(), &offer).is_err(), "{sdp}");
        }
        peer.close();
        assert!(peer.answer(Instant::now(), &SessionDescription::default()).is_err());
    }

    #[test]
    fn a_datagram_of_nobody_is_not_taken() {
        let mut peer = peer();
        for datagram in [&[][..], &[0; 20], &[22; 40], &[255; 1200]] {
            let from = "127.0.0.1:11".parse().unwrap();
            assert!(!peer.receive(Instant::now(), Protocol::Udp, from, false, datagram));
        }
    }
}
