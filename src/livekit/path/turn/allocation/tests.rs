//! Tests an allocation against a relay that the test plays, on virtual time.

use super::{super::frame::write_channel, super::stun::array, answers::MAX_STALE, *};

const PEER: &str = "192.0.2.9:7882";
const RELAYED: &str = "198.51.100.1:50000";
const SECOND: Duration = Duration::from_secs(1);

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// The relay's side: it checks requests and answers as the test says.
struct Relay {
    key: Key,
    nonce: &'static str,
    now: Instant,
    allocation: Allocation,
}

impl Relay {
    fn new() -> Self {
        Self::with_password("pass")
    }

    fn with_password(password: &str) -> Self {
        let now = Instant::now();
        let credentials = Credentials::new("user", password).unwrap();
        let allocation = Allocation::new(now, false, credentials, Ids::new([3; 32]));
        Self { key: Key::new("user", "realm", "pass"), nonce: "nonce", now, allocation }
    }

    /// A relay that has allocated an address for ten minutes.
    fn open() -> Self {
        let mut relay = Self::new();
        relay.challenge(401);
        let asked = relay.request(Method::Allocate);
        relay.grant(&asked, 600);
        assert_eq!(relay.allocation.poll_event(), Some(Event::Opened(vec![address(RELAYED)])));
        relay
    }

    /// Returns the next request, which must be of this method.
    fn request(&mut self, method: Method) -> Vec<u8> {
        let bytes = self.allocation.poll_transmit().unwrap();
        let message = Message::read(&bytes).unwrap();
        assert_eq!((message.class, message.method), (Class::Request, method));
        bytes
    }

    fn is_signed(&self, request: &[u8]) -> bool {
        let message = Message::read(request).unwrap();
        message.is_signed_with(&self.key) && message.text(attribute::NONCE, 99) == Some(self.nonce)
    }

    fn nothing_more(&mut self) {
        assert_eq!(self.allocation.poll_transmit(), None);
        assert_eq!(self.allocation.poll_event(), None);
    }

    fn answer(&self, to: &[u8], class: Class) -> Writer {
        let message = Message::read(to).unwrap();
        Writer::new(class, message.method, message.transaction())
    }

    fn say(&mut self, bytes: &[u8]) {
        assert_eq!(self.allocation.handle(self.now, bytes), None);
    }

    fn succeed(&mut self, to: &[u8]) {
        let answer = self.answer(to, Class::Success).sign(&self.key);
        self.say(&answer);
    }

    fn grant(&mut self, to: &[u8], seconds: u32) {
        let answer = self
            .answer(to, Class::Success)
            .address(attribute::XOR_RELAYED_ADDRESS, address(RELAYED))
            .put(attribute::LIFETIME, &seconds.to_be_bytes())
            .sign(&self.key);
        self.say(&answer);
    }

    fn refuse(&mut self, to: &[u8], code: u16) {
        let answer = self.error(to, code).finish();
        self.say(&answer);
    }

    fn error(&self, to: &[u8], code: u16) -> Writer {
        let digits = [0, 0, (code / 100) as u8, (code % 100) as u8];
        self.answer(to, Class::Error).put(attribute::ERROR_CODE, &digits)
    }

    /// Refuses the next request because its nonce is stale or missing.
    fn challenge(&mut self, code: u16) {
        let asked = self.allocation.poll_transmit().unwrap();
        let answer = self
            .error(&asked, code)
            .put(attribute::REALM, b"realm")
            .put(attribute::NONCE, self.nonce.as_bytes())
            .finish();
        self.say(&answer);
    }

    fn after(&mut self, time: Duration) {
        self.now += time;
        self.allocation.handle_timeout(self.now);
    }

    /// Binds the channel of a peer.
    fn bind(&mut self, peer: &str) -> u16 {
        self.allocation.permit(self.now, address(peer));
        let asked = self.request(Method::ChannelBind);
        assert!(self.is_signed(&asked));
        self.succeed(&asked);
        let number = Message::read(&asked).unwrap().get(attribute::CHANNEL_NUMBER).unwrap();
        array(number, 0).map(u16::from_be_bytes).unwrap()
    }
}

#[test]
fn credentials_are_sent_once_they_are_requested() {
    let mut relay = Relay::new();
    let first = relay.allocation.out[0].clone();
    let first = Message::read(&first).unwrap();
    assert_eq!(first.get(attribute::USERNAME), None, "the relay has not requested credentials yet");
    assert_eq!(first.get(attribute::REQUESTED_TRANSPORT), Some(&[17, 0, 0, 0][..]));
    relay.challenge(401);
    let asked = relay.request(Method::Allocate);
    assert!(relay.is_signed(&asked));
    relay.grant(&asked, 600);
    assert_eq!(relay.allocation.poll_event(), Some(Event::Opened(vec![address(RELAYED)])));
    relay.nothing_more();
}

#[test]
fn relay_without_authentication_is_usable() {
    let mut relay = Relay::new();
    let asked = relay.request(Method::Allocate);
    relay.grant(&asked, 600);
    assert!(matches!(relay.allocation.poll_event(), Some(Event::Opened(_))));
}

#[test]
fn wrong_credentials_are_reported_and_not_retried() {
    let mut relay = Relay::with_password("wrong");
    relay.challenge(401);
    relay.challenge(401);
    let failed = Event::Failed(RelayError::Unauthorized { code: 401, words: String::new() });
    assert_eq!(relay.allocation.poll_event(), Some(failed));
    relay.nothing_more();
    assert_eq!(relay.allocation.poll_timeout(), None);
}

#[test]
fn refusal_and_redirect_are_reported_with_their_code() {
    for code in [300, 403, 437, 442, 486, 508] {
        let mut relay = Relay::new();
        relay.challenge(401);
        let asked = relay.request(Method::Allocate);
        relay.refuse(&asked, code);
        let failed = Event::Failed(RelayError::Refused { code, words: String::new() });
        assert_eq!(relay.allocation.poll_event(), Some(failed));
        relay.nothing_more();
    }
}

#[test]
fn relay_without_ipv4_is_asked_for_ipv6() {
    let mut relay = Relay::new();
    relay.challenge(401);
    let asked = relay.request(Method::Allocate);
    relay.refuse(&asked, 440);
    let asked = relay.request(Method::Allocate);
    let family = Message::read(&asked).unwrap().get(attribute::REQUESTED_ADDRESS_FAMILY);
    assert_eq!(family, Some(&[2, 0, 0, 0][..]));
    relay.refuse(&asked, 440);
    assert!(matches!(relay.allocation.poll_event(), Some(Event::Failed(_))));
}

#[test]
fn silent_relay_is_asked_again_and_then_times_out() {
    let mut relay = Relay::new();
    let first = relay.request(Method::Allocate);
    let mut again = 0;
    while let Some(due) = relay.allocation.poll_timeout() {
        relay.now = due;
        relay.after(Duration::ZERO);
        while let Some(bytes) = relay.allocation.poll_transmit() {
            assert_eq!(bytes, first, "the same request, so that it is one");
            again += 1;
        }
    }
    assert_eq!(again, 4);
    assert_eq!(relay.allocation.poll_event(), Some(Event::Failed(RelayError::Silent(Request::LIMIT))));
}

#[test]
fn datagrams_contain_the_address_until_a_channel_is_bound() {
    let (mut relay, peer) = (Relay::open(), address(PEER));
    let sent = relay.allocation.send(relay.now, peer, b"early").unwrap();
    let message = Message::read(&sent).unwrap();
    assert_eq!((message.class, message.method), (Class::Indication, Method::Send));
    assert_eq!(message.address(attribute::XOR_PEER_ADDRESS), Some(peer));
    assert_eq!(message.get(attribute::DATA), Some(&b"early"[..]));
    let asked = relay.request(Method::ChannelBind);
    relay.succeed(&asked);
    assert_eq!(relay.allocation.send(relay.now, peer, b"late"), write_channel(0x4000, b"late"));
    let back = write_channel(0x4000, b"back").unwrap();
    assert_eq!(relay.allocation.handle(relay.now, &back), Some((peer, &b"back"[..])));
    let data = Writer::new(Class::Indication, Method::Data, [1; 12])
        .address(attribute::XOR_PEER_ADDRESS, peer)
        .put(attribute::DATA, b"back too")
        .finish();
    assert_eq!(relay.allocation.handle(relay.now, &data), Some((peer, &b"back too"[..])));
}

#[test]
fn no_datagram_is_sent_before_or_after_the_allocation() {
    let mut relay = Relay::new();
    assert_eq!(relay.allocation.send(relay.now, address(PEER), b"early"), None);
    let mut relay = Relay::open();
    relay.bind(PEER);
    assert!(relay.allocation.release().is_some());
    assert_eq!(relay.allocation.send(relay.now, address(PEER), b"late"), None);
    assert_eq!(relay.allocation.release(), None, "one goodbye is enough");
}

#[test]
fn release_frees_the_address() {
    let mut relay = Relay::open();
    let goodbye = relay.allocation.release().unwrap();
    assert!(relay.is_signed(&goodbye));
    let message = Message::read(&goodbye).unwrap();
    assert_eq!((message.method, message.number(attribute::LIFETIME)), (Method::Refresh, Some(0)));
}

/// Three hours, of which the relay grants ten minutes at a time.
#[test]
fn allocation_and_channels_are_refreshed_beyond_their_lifetime() {
    let mut relay = Relay::open();
    relay.bind(PEER);
    let (start, mut refreshed, mut bound) = (relay.now, Vec::new(), Vec::new());
    while relay.now < start + Duration::from_secs(3 * 3600) {
        relay.now = relay.allocation.poll_timeout().unwrap();
        relay.after(Duration::ZERO);
        while let Some(asked) = relay.allocation.poll_transmit() {
            assert!(relay.is_signed(&asked));
            match Message::read(&asked).unwrap().method {
                Method::Refresh => {
                    refreshed.push(relay.now);
                    relay.grant(&asked, 600);
                }
                Method::ChannelBind => {
                    bound.push(relay.now);
                    relay.succeed(&asked);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(relay.allocation.poll_event(), None);
        assert!(relay.allocation.requests.is_empty());
    }
    for (times, limit) in [(refreshed, 600), (bound, 300)] {
        assert!(times.windows(2).all(|two| two[1] - two[0] < limit * SECOND));
        assert!(times.len() < 60, "{}", times.len());
    }
}

#[test]
fn stale_nonce_is_replaced_in_every_request() {
    let mut relay = Relay::open();
    relay.nonce = "second";
    relay.allocation.permit(relay.now, address(PEER));
    relay.challenge(438);
    let asked = relay.request(Method::ChannelBind);
    assert!(relay.is_signed(&asked));
    relay.succeed(&asked);
    relay.nonce = "third";
    relay.after(Duration::from_secs(541));
    let asked = relay.allocation.out.len();
    for _ in 0..asked {
        relay.challenge(438);
    }
    assert_eq!(relay.allocation.out.len(), asked);
    while let Some(again) = relay.allocation.poll_transmit() {
        assert!(relay.is_signed(&again));
    }
    // A relay that always asks for a new nonce is abandoned.
    let mut relay = Relay::new();
    relay.challenge(401);
    for _ in 0..MAX_STALE {
        relay.challenge(438);
    }
    relay.challenge(438);
    assert!(matches!(
        relay.allocation.poll_event(),
        Some(Event::Failed(RelayError::Refused { code: 438, .. }))
    ));
    relay.nothing_more();
}

#[test]
fn lost_refresh_is_retried_until_the_allocation_expires() {
    let mut relay = Relay::open();
    relay.after(540 * SECOND);
    relay.request(Method::Refresh);
    relay.after(Request::LIMIT);
    relay.after(MIN_RENEWAL);
    let again = relay.request(Method::Refresh);
    relay.grant(&again, 600);
    // No response at all this time.
    while let Some(due) = relay.allocation.poll_timeout() {
        relay.now = due;
        relay.after(Duration::ZERO);
        while relay.allocation.poll_transmit().is_some() {}
    }
    assert!(matches!(relay.allocation.poll_event(), Some(Event::Failed(RelayError::Closed(_)))));
}

#[test]
fn allocation_unknown_to_the_relay_ends() {
    let mut relay = Relay::open();
    relay.after(540 * SECOND);
    let asked = relay.request(Method::Refresh);
    relay.refuse(&asked, 437);
    assert!(matches!(
        relay.allocation.poll_event(),
        Some(Event::Failed(RelayError::Refused { code: 437, .. }))
    ));
}

#[test]
fn denied_address_is_reported_and_sent_nothing() {
    let (mut relay, peer) = (Relay::open(), address(PEER));
    relay.allocation.permit(relay.now, peer);
    let asked = relay.request(Method::ChannelBind);
    relay.refuse(&asked, 403);
    let error = RelayError::Refused { code: 403, words: String::new() };
    assert_eq!(relay.allocation.poll_event(), Some(Event::Denied(peer, error)));
    assert_eq!(relay.allocation.send(relay.now, peer, b"no"), None);
    relay.nothing_more();
}

#[test]
fn permission_suffices_without_a_channel() {
    let (mut relay, peer) = (Relay::open(), address(PEER));
    relay.allocation.permit(relay.now, peer);
    let asked = relay.request(Method::ChannelBind);
    relay.refuse(&asked, 508);
    let asked = relay.request(Method::CreatePermission);
    relay.succeed(&asked);
    let sent = relay.allocation.send(relay.now, peer, b"by address").unwrap();
    assert_eq!(Message::read(&sent).unwrap().method, Method::Send);
    relay.nothing_more();
    relay.after(RENEW_PEER);
    relay.request(Method::CreatePermission);
    let on_channel = write_channel(0x4000, b"back").unwrap();
    assert_eq!(relay.allocation.handle(relay.now, &on_channel), None);
}

#[test]
fn addresses_of_an_unsupported_family_are_ignored() {
    let mut relay = Relay::open();
    relay.allocation.permit(relay.now, address("[2001:db8::9]:7882"));
    relay.nothing_more();
}

#[test]
fn peers_are_bounded_and_the_oldest_is_replaced() {
    let mut relay = Relay::open();
    let peer = |port: usize| SocketAddr::new(address(PEER).ip(), port as u16);
    for port in 1..=MAX_PEERS {
        relay.allocation.permit(relay.now, peer(port));
        relay.now += SECOND;
    }
    assert_eq!((relay.allocation.peers.len(), relay.allocation.out.len()), (MAX_PEERS, MAX_PEERS));
    while relay.allocation.poll_transmit().is_some() {}
    relay.allocation.send(relay.now, peer(1), b"in use").unwrap();
    // The second one is replaced. Its channel cannot be reused at once, so a permission must suffice.
    let sent = relay.allocation.send(relay.now, peer(MAX_PEERS + 1), b"new").unwrap();
    assert_eq!(Message::read(&sent).unwrap().address(attribute::XOR_PEER_ADDRESS), Some(peer(MAX_PEERS + 1)));
    let asked = relay.request(Method::CreatePermission);
    relay.succeed(&asked);
    relay.nothing_more();
    assert_eq!(relay.allocation.peers.len(), MAX_PEERS);
    assert_eq!(relay.allocation.requests.len(), MAX_PEERS - 1, "what was asked for it is forgotten");
    let on_its_channel = write_channel(0x4001, b"late").unwrap();
    assert_eq!(relay.allocation.handle(relay.now, &on_its_channel), None);
}

#[test]
fn unexpected_and_unsigned_responses_are_ignored() {
    let mut relay = Relay::open();
    relay.allocation.permit(relay.now, address(PEER));
    let asked = relay.request(Method::ChannelBind);
    let wrong_key = relay.answer(&asked, Class::Success).sign(&Key::new("user", "realm", "another"));
    let unsigned = relay.answer(&asked, Class::Success).finish();
    let wrong_transaction = Writer::new(Class::Success, Method::ChannelBind, [9; 12]).sign(&relay.key);
    let transaction = Message::read(&asked).unwrap().transaction();
    let wrong_method = Writer::new(Class::Success, Method::Allocate, transaction)
        .address(attribute::XOR_RELAYED_ADDRESS, address("203.0.113.1:1"))
        .put(attribute::LIFETIME, &600_u32.to_be_bytes())
        .sign(&relay.key);
    let forged_error = relay.error(&asked, 403).sign(&Key::new("user", "realm", "another"));
    let request = Writer::new(Class::Request, Method::Binding, [9; 12]).finish();
    let forged = [wrong_key, unsigned, wrong_transaction, wrong_method, forged_error, request];
    for bytes in &forged {
        relay.say(bytes);
    }
    assert_eq!(relay.allocation.ignored(), forged.len() as u64);
    relay.nothing_more();
    relay.succeed(&asked);
    assert!(relay.allocation.peers[0].bound, "the true one counts all the same");
}

#[test]
fn datagrams_without_a_permission_are_dropped() {
    let mut relay = Relay::open();
    relay.bind(PEER);
    let data = |from: &str| {
        let data = Writer::new(Class::Indication, Method::Data, [1; 12]);
        data.address(attribute::XOR_PEER_ADDRESS, address(from)).put(attribute::DATA, b"forged")
    };
    let nobody = Writer::new(Class::Indication, Method::Data, [1; 12]).put(attribute::DATA, b"forged");
    let nothing = Writer::new(Class::Indication, Method::Data, [1; 12])
        .address(attribute::XOR_PEER_ADDRESS, address(PEER));
    for bytes in [
        data("192.0.2.10:7882").finish(),
        data("[2001:db8::1]:7882").finish(),
        nobody.finish(),
        nothing.finish(),
        write_channel(0x4001, b"no such channel").unwrap(),
        b"\x40\x00\x00\x09cut".to_vec(),
    ] {
        relay.say(&bytes);
    }
    assert_eq!(relay.allocation.ignored(), 6);
    // Another port of the same host has the permission; ICE rejects the datagram later.
    let other_port = data("192.0.2.9:1").finish();
    let from = relay.allocation.handle(relay.now, &other_port);
    assert_eq!(from, Some((address("192.0.2.9:1"), &b"forged"[..])));
}

#[test]
fn response_without_address_or_lifetime_fails() {
    for (relayed, seconds) in
        [(None, 600_u32), (Some("0.0.0.0:1"), 600), (Some("192.0.2.1:0"), 600), (Some(RELAYED), 0)]
    {
        let mut relay = Relay::new();
        let asked = relay.request(Method::Allocate);
        let answer = relay.answer(&asked, Class::Success).put(attribute::LIFETIME, &seconds.to_be_bytes());
        let answer = match relayed {
            Some(relayed) => answer.address(attribute::XOR_RELAYED_ADDRESS, address(relayed)),
            None => answer,
        };
        let answer = answer.finish();
        relay.say(&answer);
        assert!(matches!(relay.allocation.poll_event(), Some(Event::Failed(RelayError::Malformed(_)))));
    }
}

#[test]
fn extreme_lifetimes_are_clamped() {
    for (seconds, between) in [(1, 1..=2), (u32::MAX, 3000..=3600)] {
        let mut relay = Relay::new();
        let asked = relay.request(Method::Allocate);
        relay.grant(&asked, seconds);
        let due = relay.allocation.poll_timeout().unwrap() - relay.now;
        assert!(between.contains(&due.as_secs()), "{due:?}");
    }
}

/// Whatever a relay sends causes no panic and no growth.
#[test]
fn ten_thousand_mutated_responses_do_no_harm() {
    let mut relay = Relay::open();
    relay.bind(PEER);
    relay.allocation.permit(relay.now, address("192.0.2.9:1"));
    let asked = relay.request(Method::ChannelBind);
    let samples = [
        relay.error(&asked, 438).put(attribute::REALM, b"realm").put(attribute::NONCE, b"next").finish(),
        relay.answer(&asked, Class::Success).sign(&relay.key),
        write_channel(0x4000, b"a datagram").unwrap(),
    ];
    let mut ids = Ids::new([9; 32]);
    for _ in 0..10_000 {
        let random = ids.next();
        let mut bytes = samples[usize::from(random[0]) % samples.len()].clone();
        let at = usize::from(random[1]) % bytes.len();
        bytes[at] = random[2];
        bytes.truncate(bytes.len() - usize::from(random[3] % 4));
        relay.allocation.handle(relay.now, &bytes);
        while relay.allocation.poll_transmit().is_some() {}
        while relay.allocation.poll_event().is_some() {}
        assert!(relay.allocation.requests.len() <= 2 && relay.allocation.peers.len() == 2);
    }
}
