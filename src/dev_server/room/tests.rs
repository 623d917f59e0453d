//! Tests the rooms without I/O.

use livekit_protocol::{
    AvailabilityResponse, CandidateProtocol, ClientInfo, CreateRoomRequest, DataPacket,
    RegisterWorkerRequest, SimulateScenario, TrickleRequest, UpdateParticipantMetadata,
    UpdateParticipantRequest, UserPacket, data_packet::Value, request_response::Reason,
    server_message::Message as ToWorker, signal_request::Message as Request, simulate_scenario::Scenario,
    worker_message::Message as FromWorker,
};
use livekit_token::VideoGrants;
use prost::Message as _;

use super::{limits::MAX_ATTRIBUTES, *};
use crate::{dev_server::agents::AgentOutput, transport::ROLE_ATTRIBUTE};

const SECOND: Duration = Duration::from_secs(1);

struct World {
    rooms: Rooms,
    now: Instant,
    last: u64,
    /// Whether those who join use one peer connection.
    single_peer_connection: bool,
}

/// A joined participant.
#[derive(Clone, Copy)]
struct Who {
    key: Key,
    connection: ConnectionId,
}

impl Who {
    /// Returns its only peer connection.
    fn peer(self) -> PeerId {
        (self.key, SignalTarget::Publisher)
    }
}

impl World {
    fn new() -> Self {
        Self { rooms: Rooms::new("test", ""), now: Instant::now(), last: 0, single_peer_connection: true }
    }

    fn attempt(&mut self, claims: Claims, request: JoinRequest) -> (Who, Result<(), Refusal>) {
        self.last += 1;
        let who = Who { key: self.last, connection: 1000 + self.last };
        let sids = [format!("PA_{}", who.key), format!("RM_{}", who.key)];
        let Who { key, connection } = who;
        let attempt = JoinAttempt {
            key,
            connection,
            claims,
            request,
            single_peer_connection: self.single_peer_connection,
            sids,
            unix_ms: 1000,
        };
        (who, self.rooms.handle_join(self.now, attempt))
    }

    fn join(&mut self, identity: &str) -> Who {
        self.join_as(claims(identity))
    }

    fn join_as(&mut self, claims: Claims) -> Who {
        let (who, joined) = self.attempt(claims, JoinRequest::default());
        joined.unwrap();
        who
    }

    /// Joins with this protocol of a client.
    fn join_with(&mut self, claims: Claims, protocol: i32) -> Who {
        let client = ClientInfo { protocol, ..Default::default() };
        let (who, joined) =
            self.attempt(claims, JoinRequest { client_info: Some(client), ..Default::default() });
        joined.unwrap();
        who
    }

    /// Joins and connects a participant with both channels open, and discards the outputs.
    fn active(&mut self, identity: &str) -> Who {
        let who = self.join(identity);
        self.rooms.handle_connected(who.peer());
        self.rooms.handle_open(who.peer());
        self.read();
        who
    }

    fn resume(&mut self, identity: &str, sid: &str) -> (Who, Result<(), Refusal>) {
        self.resume_as(claims(identity), sid)
    }

    fn resume_as(&mut self, claims: Claims, sid: &str) -> (Who, Result<(), Refusal>) {
        let request = JoinRequest { reconnect: true, participant_sid: sid.into(), ..Default::default() };
        self.attempt(claims, request)
    }

    /// Returns the warnings since the last call, and discards the other outputs.
    fn warnings(&mut self) -> Vec<String> {
        let warning = |output| if let Output::Warn(text) = output { Some(text) } else { None };
        self.read().into_iter().filter_map(warning).collect()
    }

    fn read(&mut self) -> Vec<Output> {
        std::iter::from_fn(|| self.rooms.poll_output()).collect()
    }

    /// Returns the messages to a connection, and whether it was closed after them.
    fn told(&mut self, connection: ConnectionId) -> (Vec<Message>, bool) {
        let (mut told, mut ended) = (Vec::new(), false);
        for output in self.read() {
            match output {
                Output::Signal(to, message) if to == connection => told.push(*message),
                Output::CloseSignal(of) if of == connection => ended = true,
                _ => {}
            }
        }
        (told, ended)
    }

    /// Returns action and reason of the leave request, and asserts that the connection was closed after it.
    fn leave(&mut self, connection: ConnectionId) -> (Action, DisconnectReason) {
        let (told, ended) = self.told(connection);
        let leaves: Vec<_> = told
            .iter()
            .filter_map(|it| match it {
                Message::Leave(leave) => Some((leave.action(), leave.reason())),
                _ => None,
            })
            .collect();
        assert!(ended && leaves.len() == 1, "{told:?}");
        leaves[0]
    }

    fn say(&mut self, who: Who, sequence: u32, to: &[&str]) -> Vec<Key> {
        let packet = DataPacket {
            sequence,
            destination_identities: to.iter().map(ToString::to_string).collect(),
            value: Some(Value::User(UserPacket { payload: b"hello".to_vec(), ..Default::default() })),
            ..Default::default()
        };
        self.rooms.handle_message(who.key, Lane::Reliable, &packet.encode_to_vec());
        self.read()
            .into_iter()
            .map(|output| match output {
                Output::Data((key, _), Lane::Reliable, _) => key,
                other => panic!("{other:?}"),
            })
            .collect()
    }
}

fn claims(identity: &str) -> Claims {
    Claims {
        sub: identity.into(),
        video: VideoGrants { room_join: true, room: "kitchen".into(), ..Default::default() },
        ..Claims::from_unverified("eyJhbGciOiJIUzI1NiJ9.eyJleHAiOjEsImlzcyI6ImEiLCJuYmYiOjB9.c2ln").unwrap()
    }
}

fn updates(told: &[Message]) -> Vec<ParticipantInfo> {
    let mut infos = Vec::new();
    for message in told {
        if let Message::Update(update) = message {
            infos.extend(update.participants.iter().cloned());
        }
    }
    infos
}

#[test]
fn join_response_contains_the_state_of_the_room() {
    let mut world = World::new();
    world.active("one");
    let client = ClientInfo { client_protocol: 1, ..Default::default() };
    let request = JoinRequest { client_info: Some(client), ..Default::default() };
    let (two, joined) = world.attempt(claims("two"), request);
    joined.unwrap();
    let outputs = world.read();
    let Output::Signal(to, first) = &outputs[0] else { panic!("{outputs:?}") };
    let Message::Join(response) = &**first else { panic!("{first:?}") };
    let own = response.participant.as_ref().unwrap();
    assert_eq!((*to, &*own.sid, own.client_protocol), (two.connection, "PA_2", 1));
    assert_eq!((response.ping_interval, response.ping_timeout, response.subscriber_primary), (5, 15, false));
    assert_eq!(response.other_participants.len(), 1);
    assert_eq!(response.room.as_ref().unwrap().sid, "RM_1");
    assert!(matches!(&outputs[1], Output::RefreshToken(to, _) if *to == two.connection));
}

#[test]
fn each_state_is_announced_with_a_higher_version() {
    let mut world = World::new();
    let one = world.active("one");
    let two = world.join("two");
    world.rooms.handle_connected(two.peer());
    world.rooms.handle_request(world.now, two.connection, Request::Leave(LeaveRequest::default()));
    world.rooms.handle_timeout(world.rooms.poll_timeout().unwrap());
    let (told, _) = world.told(one.connection);
    let seen: Vec<_> = updates(&told).iter().map(|info| (info.state(), info.version)).collect();
    assert_eq!(seen, [(State::Joined, 1), (State::Active, 2), (State::Disconnected, 3)]);
}

#[test]
fn duplicate_packet_is_dropped() {
    let mut world = World::new();
    let (one, two) = (world.active("one"), world.active("two"));
    assert_eq!(world.say(one, 1, &[]), [two.key]);
    assert!(world.say(one, 1, &[]).is_empty());
    assert_eq!(world.say(one, 5, &["two"]), [two.key], "gaps are allowed");
    assert!(world.say(one, 4, &["two"]).is_empty());
    assert_eq!(world.say(one, 0, &["two"]), [two.key], "a packet without a sequence is forwarded");
    assert!(world.say(one, 6, &["three"]).is_empty());
}

#[test]
fn packets_without_publish_permission_are_dropped() {
    let mut world = World::new();
    world.active("one");
    let mut mute = claims("mute");
    mute.video.can_publish_data = Some(false);
    let mute = world.join_as(mute);
    world.rooms.handle_connected(mute.peer());
    world.rooms.handle_open(mute.peer());
    world.read();
    assert!(world.say(mute, 1, &[]).is_empty());
    let permission = world.rooms.participant_info("kitchen", "mute").unwrap().permission;
    let permission =
        livekit_protocol::ParticipantPermission { can_publish_data: true, ..permission.unwrap() };
    let update = UpdateParticipantRequest {
        room: "kitchen".into(),
        identity: "mute".into(),
        permission: Some(permission),
        ..Default::default()
    };
    assert!(world.rooms.update_participant(&update).unwrap().permission.unwrap().can_publish_data);
    world.read();
    assert_eq!(world.say(mute, 1, &[]).len(), 1, "a dropped packet does not advance the sequence");
}

#[test]
fn packets_are_held_for_a_joining_participant_up_to_a_limit() {
    let mut world = World::new();
    let one = world.active("one");
    let two = world.join("two");
    world.read();
    for n in 1..=3000 {
        assert!(world.say(one, n, &[]).is_empty());
    }
    world.say(one, 0, &[]);
    world.rooms.handle_open(two.peer());
    let kept: Vec<_> = world
        .read()
        .into_iter()
        .map(|output| match output {
            Output::Data(peer, Lane::Reliable, packet) if peer == two.peer() => {
                DataPacket::decode(&*packet).unwrap().sequence
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(kept.len() < 3000 && *kept.last().unwrap() == 3000, "{}", kept.len());
    assert!(kept.is_sorted());
}

#[test]
fn duplicate_identity_removes_the_older_participant_silently() {
    let mut world = World::new();
    let (one, other) = (world.active("one"), world.active("other"));
    let again = world.join("one");
    let outputs = world.read();
    let leave = outputs.iter().find_map(|output| match output {
        Output::Signal(to, message) if *to == one.connection => match &**message {
            Message::Leave(leave) => Some((leave.action(), leave.reason())),
            _ => None,
        },
        _ => None,
    });
    assert_eq!(leave, Some((Action::Disconnect, DisconnectReason::DuplicateIdentity)));
    world.rooms.handle_timeout(world.now + LEAVE_DELAY);
    assert!(world.read().is_empty());
    let told_other: Vec<_> = outputs
        .iter()
        .filter_map(|output| match output {
            Output::Signal(to, message) if *to == other.connection => Some((**message).clone()),
            _ => None,
        })
        .collect();
    let seen: Vec<_> = updates(&told_other).iter().map(|info| info.sid.clone()).collect();
    assert_eq!(seen, [format!("PA_{}", again.key)]);
    world.rooms.handle_signal_closed(world.now, one.connection);
    assert!(
        world.rooms.participant_info("kitchen", "one").is_ok(),
        "the end of the older connection does not affect the newer"
    );
}

#[test]
fn resume_keeps_the_participant_and_reports_the_last_sequence() {
    let mut world = World::new();
    let (one, two) = (world.active("one"), world.active("two"));
    world.say(one, 7, &[]);
    world.rooms.handle_signal_closed(world.now, one.connection);
    assert_eq!(world.read().len(), 0, "the participant stays");
    let (back, resumed) = world.resume("one", "PA_1");
    assert_eq!(resumed, Ok(()));
    let (told, ended) = world.told(back.connection);
    let Message::Reconnect(response) = &told[0] else { panic!("{told:?}") };
    assert_eq!((response.last_message_seq, ended), (7, false));
    let seen: Vec<_> = updates(&told).iter().map(|info| info.identity.clone()).collect();
    assert_eq!(seen, ["one", "two"]);
    assert_eq!(world.say(one, 8, &[]), [two.key], "the peer connection is the same");
    world.rooms.handle_signal_closed(world.now, one.connection);
    world.rooms.handle_request(
        world.now,
        back.connection,
        Request::Trickle(TrickleRequest {
            candidate_init: r#"{"candidate":"candidate:1"}"#.into(),
            ..Default::default()
        }),
    );
    assert!(matches!(&world.read()[..], [Output::Candidate(peer, _)] if *peer == one.peer()));
}

/// A client of livekit-server's protocol 3 or later that uses two peer connections receives on the one that the server offers.
#[test]
fn client_with_two_peer_connections_receives_on_the_servers() {
    let mut world = World::new();
    let one = world.active("one");
    world.single_peer_connection = false;
    let two = world.join_with(claims("two"), 15);
    let (own, servers) = (two.peer(), (two.key, SignalTarget::Subscriber));
    let negotiates =
        |outputs: &[Output]| outputs.iter().any(|it| matches!(it, Output::Negotiate(key) if *key == two.key));
    let outputs = world.read();
    let joined = |it: &Output| match it {
        Output::Signal(_, message) => match &**message {
            Message::Join(join) => Some((join.subscriber_primary, join.fast_publish)),
            _ => None,
        },
        _ => None,
    };
    assert!(negotiates(&outputs));
    assert_eq!(outputs.iter().find_map(joined), Some((true, true)));

    // Its own connection makes it neither active nor ready to receive.
    world.rooms.handle_connected(own);
    world.rooms.handle_open(own);
    assert_eq!(world.rooms.participant_info("kitchen", "two").unwrap().state(), State::Joined);
    world.read();
    assert!(world.say(one, 1, &[]).is_empty());
    world.rooms.handle_connected(servers);
    assert_eq!(world.rooms.participant_info("kitchen", "two").unwrap().state(), State::Active);
    world.read();
    world.rooms.handle_open(servers);
    assert!(matches!(&world.read()[..], [Output::Data(peer, Lane::Reliable, _)] if *peer == servers));
    assert_eq!(world.say(two, 1, &[]), [one.key]);

    // Each lost path is found again before the participant may stay, and a resume restarts ICE.
    world.rooms.handle_path_lost(world.now, own);
    world.rooms.handle_path_lost(world.now, servers);
    world.read();
    let (back, _) = world.resume("two", "PA_2");
    assert!(negotiates(&world.read()));
    let request = TrickleRequest {
        candidate_init: r#"{"candidate":"candidate:1"}"#.into(),
        target: SignalTarget::Subscriber.into(),
        ..Default::default()
    };
    world.rooms.handle_request(world.now, back.connection, Request::Trickle(request));
    let answer = proto::SessionDescription { r#type: "answer".into(), ..Default::default() };
    world.rooms.handle_request(world.now, back.connection, Request::Answer(answer));
    let outputs = world.read();
    assert!(
        matches!(&outputs[..], [Output::Candidate(peer, _), Output::Answer(key, _)] if *peer == servers && *key == two.key),
        "{outputs:?}"
    );
    world.rooms.handle_connected(servers);
    world.rooms.handle_timeout(world.now + RESUME_LIMIT);
    assert!(world.rooms.participant_info("kitchen", "two").is_err(), "one path is still lost");
}

#[test]
fn client_that_may_not_subscribe_or_is_too_old_receives_on_its_own() {
    let mut mute = claims("mute");
    mute.video.can_subscribe = Some(false);
    for (claims, protocol) in [(mute, 15), (claims("old"), 2)] {
        let mut world = World::new();
        world.single_peer_connection = false;
        let who = world.join_with(claims, protocol);
        assert!(!world.read().iter().any(|it| matches!(it, Output::Negotiate(_))));
        world.rooms.handle_connected(who.peer());
        let identity = world.rooms.locations[&who.key].identity.clone();
        assert_eq!(world.rooms.participant_info("kitchen", &identity).unwrap().state(), State::Active);
    }
}

#[test]
fn unknown_participant_is_asked_to_rejoin() {
    let mut world = World::new();
    let one = world.active("one");
    for (identity, sid) in [("nobody", "PA_1"), ("one", "PA_other")] {
        let (back, resumed) = world.resume(identity, sid);
        assert_eq!(resumed, Ok(()));
        assert_eq!(world.leave(back.connection), (Action::Reconnect, DisconnectReason::StateMismatch));
    }
    assert_eq!(world.rooms.list_participants("kitchen").len(), 1);
    world.rooms.handle_connected(one.peer());
}

#[test]
fn lost_path_removes_the_participant_after_5_s_unless_it_resumes() {
    let mut world = World::new();
    let one = world.active("one");
    let other = world.active("other");
    world.rooms.handle_path_lost(world.now, one.peer());
    assert_eq!(world.leave(one.connection), (Action::Resume, DisconnectReason::ConnectionTimeout));
    world.now += 4 * SECOND;
    world.rooms.handle_timeout(world.now);
    let (back, _) = world.resume("one", "PA_1");
    world.now += 4 * SECOND;
    world.rooms.handle_timeout(world.now);
    assert!(world.rooms.participant_info("kitchen", "one").is_ok());
    world.rooms.handle_connected(one.peer());
    world.now += 60 * SECOND;
    world.rooms.handle_timeout(world.now);
    assert!(world.rooms.participant_info("kitchen", "one").is_ok());

    world.rooms.handle_path_lost(world.now, one.peer());
    world.rooms.handle_signal_closed(world.now, back.connection);
    world.read();
    let due = world.rooms.poll_timeout().unwrap();
    assert_eq!(due, world.now + PATH_GRACE);
    world.rooms.handle_timeout(due);
    assert!(updates(&world.told(other.connection).0).is_empty(), "its last packets are delivered first");
    world.rooms.handle_timeout(due + LEAVE_DELAY);
    let (told, _) = world.told(other.connection);
    assert_eq!(updates(&told)[0].state(), State::Disconnected);
}

/// Lets a worker accept the job of the kitchen, and its agent join.
fn agent(world: &mut World) -> Who {
    let say = |world: &mut World, message| {
        world.rooms.agents.handle_message((world.now, 1000), 1, Ok(Box::new(message)));
        world.rooms.agents.poll_output()
    };
    world.rooms.agents.handle_worker(world.now, 1).unwrap();
    say(world, FromWorker::Register(RegisterWorkerRequest::default()));
    let Some(AgentOutput::Send(_, offer)) = world.rooms.agents.poll_output() else { panic!() };
    let ToWorker::Availability(offer) = *offer else { panic!("{offer:?}") };
    let answer = AvailabilityResponse {
        job_id: offer.job.unwrap().id,
        available: true,
        participant_identity: "agent".into(),
        ..Default::default()
    };
    assert!(matches!(say(world, FromWorker::Availability(answer)), Some(AgentOutput::Assign(..))));
    world.active("agent")
}

#[test]
fn agent_killed_with_its_worker_is_removed_after_2_s() {
    for worker_first in [true, false] {
        let mut world = World::new();
        let [phone, other] = ["phone", "other"].map(|identity| world.active(identity));
        let who = agent(&mut world);
        // Other participants that lose their signaling stay.
        world.rooms.handle_signal_closed(world.now, other.connection);
        for of_the_worker in [worker_first, !worker_first] {
            world.rooms.handle_timeout(world.now + 20 * SECOND);
            assert!(world.rooms.participant_info("kitchen", "agent").is_ok());
            if of_the_worker {
                world.rooms.agents.handle_worker_closed(world.now, 1);
            } else {
                world.rooms.handle_signal_closed(world.now, who.connection);
            }
        }
        let due = world.now + 2 * SECOND;
        assert_eq!(world.rooms.poll_timeout(), Some(due));
        world.rooms.handle_timeout(due - Duration::from_millis(1));
        assert!(world.rooms.participant_info("kitchen", "agent").is_ok());
        world.read();
        world.rooms.handle_timeout(due);
        assert!(matches!(&world.read()[..], [Output::Close(key)] if *key == who.key));
        assert_eq!(world.rooms.list_participants("kitchen").len(), 2);
        world.rooms.handle_timeout(due + LEAVE_DELAY);
        let told = updates(&world.told(phone.connection).0);
        let told: Vec<_> =
            told.iter().map(|it| (&*it.identity, it.state(), it.disconnect_reason())).collect();
        assert_eq!(told, [("agent", State::Disconnected, DisconnectReason::SignalClose)]);
    }
}

#[test]
fn agent_whose_worker_is_gone_stays_if_it_resumes() {
    let resumed = |world: &mut World| {
        let (back, resumed) = world.resume("agent", "");
        assert_eq!(resumed, Ok(()));
        back
    };
    let mut world = World::new();
    let phone = world.active("phone");
    let who = agent(&mut world);
    world.rooms.handle_signal_closed(world.now, who.connection);
    world.rooms.agents.handle_worker_closed(world.now, 1);
    world.now += 2 * SECOND - Duration::from_millis(1);
    let back = resumed(&mut world);
    // It resumes before the end of its connection is noticed.
    let again = resumed(&mut world);
    world.rooms.handle_signal_closed(world.now, back.connection);
    world.now += 20 * SECOND;
    world.rooms.handle_timeout(world.now);
    world.read();
    assert_eq!(world.say(phone, 1, &["agent"]), [who.key]);
    // It is lost once more, and rejoins.
    world.rooms.handle_signal_closed(world.now, again.connection);
    world.now += SECOND;
    world.active("agent");
    world.now += 2 * SECOND;
    world.rooms.handle_timeout(world.now);
    assert!(world.rooms.participant_info("kitchen", "agent").is_ok());
}

#[test]
fn participant_that_never_connects_is_removed() {
    let mut world = World::new();
    let one = world.join("one");
    world.rooms.handle_path_lost(world.now, one.peer());
    world.rooms.handle_signal_closed(world.now, one.connection);
    assert!(world.rooms.participant_info("kitchen", "one").is_err());
    let two = world.join("two");
    world.read();
    world.rooms.handle_timeout(world.now + JOIN_LIMIT);
    assert_eq!(world.leave(two.connection), (Action::Disconnect, DisconnectReason::JoinFailure));
}

#[test]
fn simulated_scenarios_have_their_effects() {
    for (scenario, leave) in [
        (Scenario::ServerLeave(true), Some((Action::Disconnect, DisconnectReason::ServerShutdown))),
        (
            Scenario::LeaveRequestFullReconnect(true),
            Some((Action::Reconnect, DisconnectReason::ClientInitiated)),
        ),
        (Scenario::Migration(true), None),
        (Scenario::NodeFailure(true), None),
    ] {
        let mut world = World::new();
        let one = world.active("one");
        let simulate = Request::Simulate(SimulateScenario { scenario: Some(scenario) });
        world.rooms.handle_request(world.now, one.connection, simulate);
        let outputs = world.read();
        let told = outputs.iter().find_map(|output| match output {
            Output::Signal(_, message) => match &**message {
                Message::Leave(leave) => Some((leave.action(), leave.reason())),
                _ => None,
            },
            _ => None,
        });
        assert_eq!(told, leave, "{scenario:?}");
        assert!(outputs.iter().any(|it| matches!(it, Output::Close(key) if *key == one.key)));
        assert!(world.rooms.participant_info("kitchen", "one").is_err());
    }
}

#[test]
fn simulated_resume_faults_apply_once() {
    let simulate = |scenario| Request::Simulate(SimulateScenario { scenario: Some(scenario) });
    let mut world = World::new();
    let one = world.active("one");
    let cut = simulate(Scenario::DisconnectSignalOnResume(true));
    world.rooms.handle_request(world.now, one.connection, cut);
    let (back, _) = world.resume("one", "PA_1");
    let (told, ended) = world.told(back.connection);
    assert!(ended && matches!(told[0], Message::Reconnect(_)), "{told:?}");
    let (back, _) = world.resume("one", "PA_1");
    assert!(!world.told(back.connection).1);
    let silent = simulate(Scenario::DisconnectSignalOnResumeNoMessages(true));
    world.rooms.handle_request(world.now, back.connection, silent);
    assert_eq!(world.resume("one", "PA_1").1.unwrap_err().0, 500);
    let (back, resumed) = world.resume("one", "PA_1");
    assert_eq!(resumed, Ok(()));
    world.rooms.handle_request(
        world.now,
        back.connection,
        simulate(Scenario::DisconnectSignalOnResume(true)),
    );
    world.now += 6 * SECOND;
    world.read();
    let (back, _) = world.resume("one", "PA_1");
    assert!(!world.told(back.connection).1, "a simulated fault expires after 5 s");
}

#[test]
fn switch_to_tcp_sends_only_tcp_candidates() {
    let mut world = World::new();
    let one = world.active("one");
    let lines = ["candidate:1 1 udp 9 127.0.0.1 9 typ host", "candidate:2 1 tcp 8 127.0.0.1 8 typ host"];
    for (protocol, told) in [(CandidateProtocol::Tcp, 1), (CandidateProtocol::Udp, 2)] {
        let scenario = Scenario::SwitchCandidateProtocol(protocol.into());
        let simulate = Request::Simulate(SimulateScenario { scenario: Some(scenario) });
        world.rooms.handle_request(world.now, one.connection, simulate);
        let answer = livekit_protocol::SessionDescription::default();
        world.rooms.handle_description(one.peer(), answer, lines.map(str::to_owned).to_vec());
        let (messages, _) = world.told(one.connection);
        let trickled: Vec<_> = messages
            .iter()
            .filter_map(|it| match it {
                Message::Trickle(trickle) => Some(trickle.r#final),
                _ => None,
            })
            .collect();
        assert_eq!(trickled.len(), told);
        assert!(trickled.ends_with(&[true]) && trickled.iter().filter(|it| **it).count() == 1);
    }
}

#[test]
fn own_attributes_change_only_with_the_grant() {
    let mut world = World::new();
    let update = |value: &str| {
        Request::UpdateMetadata(UpdateParticipantMetadata {
            attributes: [("floor".to_owned(), value.to_owned())].into(),
            ..Default::default()
        })
    };
    let reason = |told: &[Message]| {
        told.iter().find_map(|it| match it {
            Message::RequestResponse(response) => Some(response.reason()),
            _ => None,
        })
    };
    for (grant, said, expected) in [
        (None, "2", Reason::NotAllowed),
        (Some(true), "2", Reason::Ok),
        (Some(true), &"x".repeat(MAX_ATTRIBUTES), Reason::LimitExceeded),
    ] {
        let mut claims = claims("one");
        claims.video.can_update_own_metadata = grant;
        let one = world.join_as(claims);
        world.read();
        world.rooms.handle_request(world.now, one.connection, update(said));
        let (told, _) = world.told(one.connection);
        assert_eq!(reason(&told), Some(expected));
        let known = world.rooms.participant_info("kitchen", "one").unwrap();
        assert_eq!(known.attributes.contains_key("floor"), expected == Reason::Ok);
    }
}

#[test]
fn attributes_are_limited_in_total() {
    let mut world = World::new();
    let mut claims = claims("one");
    claims.video.can_update_own_metadata = Some(true);
    let one = world.join_as(claims);
    let of = |name: usize, value: usize| [(format!("{name:04}"), "x".repeat(value))].into();
    let mut said = |attributes: HashMap<String, String>| {
        let update = UpdateParticipantMetadata { attributes: attributes.clone(), ..Default::default() };
        world.read();
        world.rooms.handle_request(world.now, one.connection, Request::UpdateMetadata(update));
        let (told, _) = world.told(one.connection);
        let reason = told.iter().find_map(|it| match it {
            Message::RequestResponse(response) => Some(response.reason()),
            _ => None,
        });
        // The room service applies the same limits.
        let (room, identity) = ("kitchen".into(), "one".into());
        let request = UpdateParticipantRequest { room, identity, attributes, ..Default::default() };
        let by_service = world.rooms.update_participant(&request).is_ok();
        assert_eq!(by_service, reason == Some(Reason::Ok));
        let known = world.rooms.participant_info("kitchen", "one").unwrap().attributes;
        (by_service, known.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>())
    };
    for n in 0..16 {
        assert_eq!(said(of(n, 4092)), (true, (n + 1) * 4096));
    }
    assert_eq!(said(of(16, 1)), (false, MAX_ATTRIBUTES), "one more");
    assert_eq!(said(of(3, 4093)), (false, MAX_ATTRIBUTES), "a longer value");
    assert_eq!(said(of(3, 0)), (true, MAX_ATTRIBUTES - 4096), "an empty value removes the attribute");
    assert_eq!(said(of(16, 4092)), (true, MAX_ATTRIBUTES));
}

#[test]
fn room_closes_20_s_after_its_last_participant_left() {
    let mut world = World::new();
    let one = world.active("one");
    let mut agent = claims("agent");
    agent.kind = "agent".into();
    let agent = world.join_as(agent);
    world.rooms.handle_connected(agent.peer());
    world.rooms.handle_request(world.now, one.connection, Request::Leave(LeaveRequest::default()));
    world.read();
    world.rooms.handle_timeout(world.now + 19 * SECOND);
    assert_eq!(world.rooms.list_rooms(&[]).len(), 1);
    world.rooms.handle_timeout(world.now + 20 * SECOND);
    assert_eq!(world.leave(agent.connection), (Action::Disconnect, DisconnectReason::RoomClosed));
    assert!(world.rooms.list_rooms(&[]).is_empty());
    assert_eq!(world.rooms.poll_timeout(), None);
}

#[test]
fn settings_of_a_room_limit_its_participants_and_its_lifetime() {
    let mut world = World::new();
    let request = CreateRoomRequest {
        name: "kitchen".into(),
        max_participants: 1,
        empty_timeout: 77,
        departure_timeout: 33,
        ..Default::default()
    };
    world.rooms.create_room(world.now, &request, ("RM_1".into(), 1000)).unwrap();
    let closes = |world: &World| world.rooms.rooms["kitchen"].ends.map(|it| it - world.now);
    assert_eq!(closes(&world), Some(77 * SECOND));
    world.active("one");
    let full = Refusal(500, "connection closed by media: room has exceeded its max participants");
    assert_eq!(world.attempt(claims("two"), JoinRequest::default()).1, Err(full));
    assert_eq!(world.attempt(claims("one"), JoinRequest::default()).1, Ok(()), "it takes its own place");
    let mut agent = claims("agent");
    agent.kind = "agent".into();
    assert_eq!(world.attempt(agent, JoinRequest::default()).1, Ok(()), "agents do not count");
    world.rooms.remove_participant(world.now, "kitchen", "one").unwrap();
    assert_eq!(closes(&world), Some(33 * SECOND));
    assert_eq!(world.attempt(claims("two"), JoinRequest::default()).1, Ok(()));
}

#[test]
fn agents_of_a_token_for_an_open_room_get_no_job_and_are_warned_of() {
    let mut world = World::new();
    let with = |identity: &str, agents: &[&str]| {
        let agent = |name: &&str| RoomAgentDispatch { agent_name: (*name).into(), ..Default::default() };
        let config =
            proto::RoomConfiguration { agents: agents.iter().map(agent).collect(), ..Default::default() };
        Claims { room_config: Some(config), ..claims(identity) }
    };
    world.join_as(with("one", &["cook"]));
    assert!(world.warnings().is_empty());
    world.join_as(with("two", &["cook"]));
    world.join_as(with("three", &[]));
    assert!(world.warnings().is_empty(), "the room has this agent");
    world.join_as(with("four", &["cook", "waiter"]));
    let warnings = world.warnings();
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(warning.contains("[\"waiter\"]") && warning.contains("CreateDispatch"), "{warning}");
    world.join_as(with("five", &["waiter"]));
    assert!(world.warnings().is_empty(), "once");
    let dispatched = world.rooms.agents.list("kitchen", "");
    assert_eq!(dispatched.iter().map(|it| &*it.agent_name).collect::<Vec<_>>(), ["cook"]);
}

#[test]
fn changed_room_metadata_is_sent_to_all_participants() {
    let mut world = World::new();
    let mut hidden = claims("hidden");
    hidden.video.hidden = true;
    let all = [world.active("one"), world.active("two"), world.join_as(hidden)];
    world.read();
    for metadata in ["soup", ""] {
        let room = world.rooms.update_room_metadata("kitchen", metadata.into()).unwrap();
        assert_eq!(room.metadata, metadata);
        let told: Vec<_> = world.read().into_iter().collect();
        for who in all {
            let is_told = told.iter().any(|output| {
                matches!(output, Output::Signal(to, message) if *to == who.connection
                    && matches!(&**message, Message::RoomUpdate(update) if update.room.as_ref() == Some(&room)))
            });
            assert!(is_told, "{told:?}");
        }
    }
    let large = world.rooms.update_room_metadata("kitchen", "x".repeat(64_001));
    assert!(matches!(large, Err(ServiceError::Invalid(why)) if why.contains("64000")));
    assert!(matches!(
        world.rooms.update_room_metadata("cellar", String::new()),
        Err(ServiceError::NotFound(_))
    ));
}

#[test]
fn service_removes_participants_and_deletes_rooms() {
    let mut world = World::new();
    let (one, two) = (world.active("one"), world.active("two"));
    world.rooms.remove_participant(world.now, "kitchen", "one").unwrap();
    assert_eq!(world.leave(one.connection), (Action::Disconnect, DisconnectReason::ParticipantRemoved));
    assert!(world.rooms.remove_participant(world.now, "kitchen", "one").is_err());
    world.rooms.delete_room(world.now, "kitchen").unwrap();
    assert_eq!(world.leave(two.connection), (Action::Disconnect, DisconnectReason::RoomDeleted));
    assert!(world.rooms.delete_room(world.now, "kitchen").is_err());
}

#[test]
fn rooms_and_participants_are_limited() {
    let mut world = World::new();
    for n in 0..MAX_PARTICIPANTS {
        world.join(&format!("p{n}"));
    }
    assert_eq!(world.attempt(claims("one more"), JoinRequest::default()).1.unwrap_err().0, 503);
    world.join("p0");
    assert_eq!(world.rooms.list_participants("kitchen").len(), MAX_PARTICIPANTS);

    let mut world = World::new();
    let join = |world: &mut World, n: usize| {
        let mut claims = claims("one");
        claims.video.room = format!("room {n}");
        world.attempt(claims, JoinRequest::default())
    };
    let all: Vec<_> = (0..MAX_ROOMS).map(|n| join(&mut world, n)).collect();
    assert!(all.iter().all(|(_, joined)| joined.is_ok()) && MAX_PARTICIPANTS >= MAX_ROOMS);
    world.rooms.handle_signal_closed(world.now, all[7].0.connection);
    assert_eq!(world.rooms.list_rooms(&[]).len(), MAX_ROOMS, "an empty room stays open for a while");
    assert_eq!(join(&mut world, MAX_ROOMS).1, Ok(()));
    let names: Vec<_> = world.rooms.list_rooms(&[]).into_iter().map(|room| room.name).collect();
    assert!(names.len() == MAX_ROOMS && !names.contains(&"room 7".to_owned()));
    let dispatched = |n: usize| world.rooms.agents.list(&format!("room {n}"), "").len();
    assert_eq!((dispatched(7), dispatched(8)), (0, 1), "its dispatch ends with it");
}

#[test]
fn slow_participant_is_asked_to_rejoin() {
    let mut world = World::new();
    let one = world.active("one");
    world.rooms.handle_overflow(world.now, one.key);
    assert_eq!(world.leave(one.connection), (Action::Reconnect, DisconnectReason::StateMismatch));
    let two = world.active("two");
    world.rooms.handle_bad_description(world.now, two.key);
    assert_eq!(world.leave(two.connection), (Action::Reconnect, DisconnectReason::StateMismatch));
}

#[test]
fn token_is_refreshed_every_5_minutes() {
    let mut world = World::new();
    let one = world.active("one");
    assert_eq!(world.rooms.poll_timeout(), Some(world.now + REFRESH_INTERVAL));
    world.rooms.handle_timeout(world.now + REFRESH_INTERVAL);
    assert!(matches!(&world.read()[..], [Output::RefreshToken(to, _)] if *to == one.connection));
}

/// The claims of a token with this role.
fn with_role(identity: &str, role: &str) -> Claims {
    let mut claims = claims(identity);
    claims.attributes.insert(ROLE_ATTRIBUTE.into(), role.into());
    claims
}

/// The claims of tokens for an assistant's identity that have other rights than the assistant's.
fn tokens_with_other_rights() -> Vec<(Claims, &'static str)> {
    let with = |change: fn(&mut Claims)| {
        let mut claims = with_role("brain", "assistant");
        change(&mut claims);
        claims
    };
    vec![
        (claims("brain"), "role was \"assistant\" and is none"),
        (with_role("brain", "client"), "role was \"assistant\" and is \"client\""),
        (with(|it| it.kind = "agent".into()), "kind was standard and is agent"),
        (with(|it| it.video.can_publish_data = Some(false)), "canPublishData was yes and is no"),
        (with(|it| it.video.can_update_own_metadata = Some(true)), "canUpdateOwnMetadata was no and is yes"),
        (with(|it| it.video.hidden = true), "hidden was no and is yes"),
        (with(|it| it.video.room_admin = true), "roomAdmin was no and is yes"),
    ]
}

/// livekit-server gives a connection that resumes the claims of the participant with the identity, and so a token with them.
#[test]
fn sec_i13_resume_with_a_token_of_other_rights_must_rejoin_and_is_warned_of() {
    for (weak, difference) in tokens_with_other_rights() {
        for sid in ["", "PA_1"] {
            let mut world = World::new();
            let brain = world.join_as(with_role("brain", "assistant"));
            world.read();
            let (who, result) = world.resume_as(weak.clone(), sid);
            result.unwrap();
            let outputs = world.read();
            let is_token = |it: &Output| matches!(it, Output::RefreshToken(..));
            assert!(!outputs.iter().any(is_token), "{difference}: {outputs:?}");
            let leave = outputs.iter().find_map(|it| match it {
                Output::Signal(to, message) if *to == who.connection => match &**message {
                    Message::Leave(leave) => Some(leave.action()),
                    _ => None,
                },
                _ => None,
            });
            assert_eq!(leave, Some(Action::Reconnect), "{difference}");
            let warned = |it: &Output| matches!(it, Output::Warn(text) if text.contains("\"brain\"") && text.contains(difference));
            assert!(outputs.iter().any(warned), "{difference}: {outputs:?}");
            assert!(world.rooms.participant(brain.key).is_some_and(|it| it.connection.is_some()));
        }
    }
}

#[test]
fn sec_i13_join_with_a_token_of_other_rights_is_warned_of_once() {
    for (weak, difference) in tokens_with_other_rights() {
        for leaves in [true, false] {
            let mut world = World::new();
            let other = world.join("other"); // keeps the room open
            let brain = world.join_as(with_role("brain", "assistant"));
            if leaves {
                world.rooms.remove(world.now, brain.key, DisconnectReason::ClientInitiated, None);
                world.now += 59 * SECOND;
            }
            world.read();
            world.join_as(weak.clone());
            let warnings = world.warnings();
            let [warning] = &warnings[..] else { panic!("{difference}: {warnings:?}") };
            assert!(warning.contains("\"brain\" joins the room \"kitchen\"") && warning.contains(difference));
            world.join_as(with_role("brain", "assistant"));
            world.warnings();
            world.join_as(weak.clone());
            assert!(world.warnings().is_empty(), "{difference}: the same again");
            assert!(world.rooms.participant(other.key).is_some());
        }
    }
}

#[test]
fn participant_resumes_and_rejoins_with_every_token_that_it_has() {
    let mut world = World::new();
    world.join("other");
    let first = with_role("brain", "assistant");
    let brain = world.join_as(first.clone());
    world.read();
    let mut own = first.clone();
    own.attributes.insert("lk.agent.state".into(), "listening".into());
    own.exp += 600; // of another time, with attributes that are not rights
    // The room service takes the role, and the server refreshes the token.
    world
        .rooms
        .participant_mut(brain.key)
        .unwrap()
        .claims
        .attributes
        .insert(ROLE_ATTRIBUTE.into(), String::new());
    world.rooms.renew(brain.key);
    let refreshed = with_role("brain", "");
    for token in [&first, &own, &refreshed] {
        let (who, result) = world.resume_as(token.clone(), "");
        result.unwrap();
        let resumed = |it: &Message| matches!(it, Message::Reconnect(_));
        assert!(world.told(who.connection).0.iter().any(resumed));
    }
    for token in [refreshed, own, first] {
        world.join_as(token);
        assert!(world.warnings().is_empty());
    }
}

#[test]
fn rights_of_a_participant_that_left_long_ago_are_forgotten() {
    let mut world = World::new();
    world.join("other");
    let brain = world.join_as(with_role("brain", "assistant"));
    world.rooms.remove(world.now, brain.key, DisconnectReason::ClientInitiated, None);
    world.now += 61 * SECOND;
    world.read();
    world.join("brain");
    assert!(world.warnings().is_empty());
    for n in 0..1000 {
        let who = world.join(&format!("p{n}"));
        world.rooms.remove(world.now, who.key, DisconnectReason::ClientInitiated, None);
        world.join_as(with_role(&format!("p{n}"), "client"));
        let key =
            world.rooms.locations.iter().find(|(_, it)| it.identity == format!("p{n}")).map(|(key, _)| *key);
        world.rooms.remove(world.now, key.unwrap(), DisconnectReason::ClientInitiated, None);
    }
    assert_eq!(world.warnings().len(), 64, "warnings of one room are limited");
}
