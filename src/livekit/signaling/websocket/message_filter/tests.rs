use livekit_protocol::{
    IceServer, JoinResponse, ParticipantInfo, ParticipantPermission, ParticipantUpdate, Pong, Room,
    ServerInfo, SessionDescription, SignalResponse, TrackInfo, TrickleRequest, signal_response::Message,
};
use prost::Message as _;

use super::*;

fn frame(message: Message) -> Vec<u8> {
    SignalResponse { message: Some(message) }.encode_to_vec()
}

fn filter(bytes: &[u8]) -> Option<Filtered> {
    super::filter(bytes, &BTreeSet::from(["named".to_owned()]))
}

fn through(bytes: &[u8]) -> Option<Message> {
    SignalResponse::decode(&*filter(bytes)?.frame).unwrap().message
}

fn participant() -> ParticipantInfo {
    ParticipantInfo {
        sid: "PA_1".into(),
        identity: "phone".into(),
        state: 2,
        version: 7,
        kind: 4,
        permission: Some(ParticipantPermission { can_publish_data: true, ..Default::default() }),
        attributes: [("toolbridge.role".to_owned(), "client".to_owned())].into(),
        client_protocol: 2,
        ..Default::default()
    }
}

fn join(others: usize) -> JoinResponse {
    JoinResponse {
        room: Some(Room { sid: "RM_1".into(), name: "kitchen".into(), ..Default::default() }),
        participant: Some(participant()),
        other_participants: vec![participant(); others],
        ice_servers: vec![IceServer {
            urls: vec!["turn:192.0.2.7:3478".into()],
            username: "u".into(),
            credential: "c".into(),
        }],
        ping_interval: 5,
        ping_timeout: 15,
        server_info: Some(ServerInfo { version: "1.13.5".into(), ..Default::default() }),
        ..Default::default()
    }
}

#[test]
fn messages_for_a_data_only_participant_pass_unchanged() {
    let answer =
        SessionDescription { r#type: "answer".into(), sdp: "v=0".into(), id: 3, ..Default::default() };
    let trickle = TrickleRequest { candidate_init: "{}".into(), target: 1, r#final: true };
    for message in [
        Message::Join(join(2)),
        Message::Answer(answer),
        Message::Trickle(trickle),
        Message::Update(ParticipantUpdate { participants: vec![participant(), ParticipantInfo::default()] }),
        Message::RefreshToken("a.b.c".into()),
        Message::PongResp(Pong { last_ping_timestamp: 1, timestamp: 2 }),
    ] {
        assert_eq!(through(&frame(message.clone())), Some(message));
    }
}

#[test]
fn tracks_and_metadata_are_removed() {
    let busy =
        ParticipantInfo { tracks: vec![TrackInfo::default(); 9], metadata: "m".repeat(99), ..participant() };
    let update = Message::Update(ParticipantUpdate { participants: vec![busy] });
    let expected = Message::Update(ParticipantUpdate { participants: vec![participant()] });
    assert_eq!(through(&frame(update)), Some(expected));
}

#[test]
fn irrelevant_messages_are_dropped() {
    for other in [
        Message::SpeakersChanged(Default::default()),
        Message::ConnectionQuality(Default::default()),
        Message::Offer(Default::default()),
        Message::Pong(1),
        Message::RequestResponse(Default::default()),
    ] {
        assert_eq!(filter(&frame(other)), None);
    }
    assert_eq!(filter(b""), None);
}

#[test]
fn several_messages_in_one_frame_are_dropped() {
    let token = frame(Message::RefreshToken("t".into()));
    assert_eq!(filter(&[&token[..], &token].concat()), None);
    assert_eq!(filter(&[&frame(Message::Join(join(0)))[..], &token].concat()), None);
}

/// Participants of two bytes each, as many as one frame of 16 MiB can hold.
fn eight_million() -> Vec<u8> {
    let inner = [0x0a, 0x00].repeat((16 << 20) / 2 - 8);
    let mut bytes = vec![0x2a];
    varint(&mut bytes, inner.len() as u64);
    bytes.extend(inner);
    bytes
}

#[test]
fn participants_in_one_frame_are_limited_to_8192() {
    let filtered = filter(&eight_million()).unwrap();
    assert!(filtered.frame.len() < 20_000);
    let Some(Message::Join(joined)) = through(&frame(Message::Join(join(100_000)))) else { panic!() };
    assert_eq!(joined.other_participants.len(), 8_192);
    assert_eq!(joined.ping_timeout, 15, "what follows them is there");
    let many = JoinResponse { ice_servers: vec![join(0).ice_servers[0].clone(); 500], ..join(0) };
    let Some(Message::Join(joined)) = through(&frame(Message::Join(many))) else { panic!() };
    assert_eq!(joined.ice_servers.len(), ICE_SERVERS);
}

#[test]
fn attributes_are_counted_over_all_participants() {
    let attributes = |count: usize| (0..count).map(|n| (n.to_string(), String::new())).collect();
    let crowded = ParticipantInfo { attributes: attributes(1000), ..participant() };
    let crowd = Message::Update(ParticipantUpdate { participants: vec![crowded; 1000] });
    let Some(Message::Update(update)) = through(&frame(crowd)) else { panic!() };
    assert!(update.participants.iter().all(|one| one.attributes.len() <= ATTRIBUTES));
    let total: usize = update.participants.iter().map(|one| one.attributes.len()).sum();
    assert_eq!(total, ALL_ATTRIBUTES);
}

#[test]
fn named_ones_and_those_with_a_role_pass_before_the_crowd() {
    let stranger = |n: usize| ParticipantInfo { identity: format!("p{n}"), ..Default::default() };
    let mut crowd: Vec<_> = (0..2 * PARTICIPANTS).map(stranger).collect();
    crowd.push(ParticipantInfo { identity: "agent".into(), kind: 4, ..Default::default() });
    let role = [(ROLE_ATTRIBUTE.to_owned(), "client".to_owned())].into();
    crowd.push(ParticipantInfo { identity: "phone".into(), attributes: role, ..Default::default() });
    crowd.push(stranger(2 * PARTICIPANTS));
    crowd.push(ParticipantInfo { identity: "named".into(), ..Default::default() });
    let update = Message::Update(ParticipantUpdate { participants: crowd });
    let Some(Message::Update(update)) = through(&frame(update)) else { panic!() };
    let passed: Vec<_> = update.participants.iter().map(|it| it.identity.as_str()).collect();
    assert_eq!(passed.len(), PARTICIPANTS);
    assert_eq!(passed[PARTICIPANTS - 4..], [&*format!("p{}", PARTICIPANTS - 4), "agent", "phone", "named"]);
}

#[test]
fn role_passes_among_more_attributes_than_may() {
    let role = (ROLE_ATTRIBUTE.to_owned(), "client".to_owned());
    let many = |size: usize| {
        let attributes = (0..2 * ATTRIBUTES).map(|n| (n.to_string(), "v".repeat(size))).chain([role.clone()]);
        ParticipantInfo { attributes: attributes.collect(), ..participant() }
    };
    // The order of the attributes is another one each time.
    for size in [1, 1, 1, 1, 2_000, 2_000, 2_000, 2_000] {
        let update = Message::Update(ParticipantUpdate { participants: vec![many(size)] });
        let Some(Message::Update(update)) = through(&frame(update)) else { panic!() };
        let attributes = &update.participants[0].attributes;
        assert_eq!(attributes.get(ROLE_ATTRIBUTE), Some(&role.1), "{}", attributes.len());
        assert!(attributes.len() <= ATTRIBUTES + 1);
    }
}

#[test]
fn participants_of_a_large_room_keep_their_roles() {
    let role = || (ROLE_ATTRIBUTE.to_owned(), "client".to_owned());
    let attributes = || (0..ATTRIBUTES - 1).map(|n| (n.to_string(), "v".into())).chain([role()]).collect();
    let one = |n: usize| ParticipantInfo {
        sid: format!("PA_{n}"),
        attributes: attributes(),
        permission: participant().permission,
        ..Default::default()
    };
    let crowd = ParticipantUpdate { participants: (0..PARTICIPANTS).map(one).collect() };
    let Some(Message::Update(update)) = through(&frame(Message::Update(crowd))) else { panic!() };
    assert_eq!(update.participants.len(), PARTICIPANTS);
    for (n, one) in update.participants.iter().enumerate() {
        assert_eq!((&*one.sid, one.permission.is_some()), (&*format!("PA_{n}"), true));
        assert_eq!(one.attributes.get(ROLE_ATTRIBUTE).map(String::as_str), Some("client"), "{n}");
    }
    let total: usize = update.participants.iter().map(|one| one.attributes.len()).sum();
    assert_eq!(total, ALL_ATTRIBUTES + PARTICIPANTS);
}

#[test]
fn repeated_role_counts_as_an_ordinary_attribute() {
    let attribute = [&[0x7a, 17, 0x0a, 15][..], ROLE_ATTRIBUTE.as_bytes()].concat();
    let one = attribute.repeat(ATTRIBUTES);
    let mut crowd = Vec::new();
    for _ in 0..1_000 {
        bytes_field(&mut crowd, 1, &one);
    }
    let mut bytes = Vec::new();
    bytes_field(&mut bytes, 5, &crowd);
    let filtered = filter(&bytes).unwrap();
    assert!(
        filtered.frame.len() < (ALL_ATTRIBUTES + 1_000) * attribute.len() + 8 * 1_000,
        "{}",
        filtered.frame.len()
    );
}

#[test]
fn attributes_of_one_participant_share_a_size_limit() {
    let sent = |attributes: Vec<(String, String)>| {
        let one = ParticipantInfo { attributes: attributes.into_iter().collect(), ..participant() };
        match through(&frame(Message::Update(ParticipantUpdate { participants: vec![one; 2] }))) {
            Some(Message::Update(update)) => update.participants,
            other => panic!("{other:?}"),
        }
    };
    let size =
        |one: &ParticipantInfo| one.attributes.iter().map(|(key, value)| key.len() + value.len()).sum();
    let of =
        |count: usize, value: usize| (0..count).map(|n| (format!("{n:04}"), "v".repeat(value))).collect();
    // The maximum that LiveKit allows, in one and in many.
    for most in [of(1, 64 * 1024 - 4), of(ATTRIBUTES, 64 * 1024 / ATTRIBUTES - 4)] {
        let sizes: Vec<usize> = sent(most).iter().map(size).collect();
        assert_eq!(sizes, [64 * 1024; 2]);
    }
    for one in sent(of(ATTRIBUTES, VALUE)) {
        assert_eq!(one.attributes.len(), 1, "the first has taken nearly all");
        assert_eq!((&*one.sid, one.permission.is_some()), ("PA_1", true), "the other fields are kept");
    }
    let size = size(&sent(of(ATTRIBUTES, 1000))[0]);
    assert!((63 * 1024..=ATTRIBUTES_SIZE).contains(&size), "{size}");
}

#[test]
fn texts_above_their_limit_are_removed() {
    let update = |identity: usize| {
        let long = ParticipantInfo { identity: "i".repeat(identity), ..participant() };
        through(&frame(Message::Update(ParticipantUpdate { participants: vec![long] })))
    };
    let Some(Message::Update(kept)) = update(NAME) else { panic!() };
    assert_eq!(kept.participants[0].identity.len(), NAME);
    let Some(Message::Update(cut)) = update(NAME + 1) else { panic!() };
    assert_eq!((&*cut.participants[0].identity, &*cut.participants[0].sid), ("", "PA_1"));
    assert_eq!(filter(&frame(Message::RefreshToken("t".repeat(VALUE + 1)))), None);
}

#[test]
fn negative_times_are_removed() {
    let pong = Pong { last_ping_timestamp: i64::MIN, timestamp: -1 };
    assert_eq!(through(&frame(Message::PongResp(pong))), Some(Message::PongResp(Pong::default())));
}

#[test]
fn malformed_bytes_are_dropped_without_a_panic() {
    let whole = frame(Message::Join(join(3)));
    for end in 1..whole.len() {
        assert_eq!(filter(&whole[..end]), None, "{end}");
    }
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..1 + random() % 4 {
            let at = random() as usize % bytes.len();
            bytes[at] = random() as u8;
        }
        if let Some(filtered) = filter(&bytes) {
            assert!(filtered.frame.len() <= bytes.len() + 16, "it only gets less");
            // The rest may contain invalid UTF-8 and other undecodable parts.
            if let Err(error) = SignalResponse::decode(&*filtered.frame) {
                assert!(error.to_string().contains("UTF-8"), "{error}");
            }
        }
    }
}
