//! Tests agent workers over real WebSockets: a pretended worker, whose agents join as toolbridge participants.

use futures_util::{SinkExt as _, StreamExt as _};
use livekit_protocol::{
    AgentDispatch, AvailabilityResponse, Job, JobAssignment, ListAgentDispatchResponse,
    ParticipantPermission, RegisterWorkerRequest, RegisterWorkerResponse, Room, RoomAgentDispatch,
    RoomConfiguration, ServerMessage, UpdateWorkerStatus, WorkerMessage, WorkerPing, WorkerPong,
    WorkerStatus, participant_info::Kind, server_message::Message as ToWorker,
    worker_message::Message as FromWorker,
};
use livekit_token::{AccessToken, TokenVerifier, VideoGrants};
use prost::Message as _;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{self, Message as Frame, client::IntoClientRequest as _, http::header::AUTHORIZATION},
};

use super::*;

/// The time that a worker and its agent have to come back.
const RETURN_LIMIT: Duration = Duration::from_secs(2);
/// The time before which no participant is removed because its path is lost.
const ICE_LIMIT: Duration = Duration::from_secs(20);

/// A worker that does as it is told.
struct Worker {
    socket: WebSocketStream<TcpStream>,
}

impl DevServer {
    pub(super) fn token(&self, video: VideoGrants, config: Option<RoomConfiguration>) -> String {
        let token = AccessToken::with_api_key(self.key.key(), self.key.secret()).with_identity("phone");
        let token = token.with_grants(video);
        config.into_iter().fold(token, AccessToken::with_room_config).to_jwt().unwrap()
    }

    async fn open_worker(&self, token: &str) -> Result<Worker, tungstenite::Error> {
        let mut request = format!("{}/agent", self.url()).into_client_request().unwrap();
        request.headers_mut().insert(AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
        let stream = TcpStream::connect(self.address).await.unwrap();
        client_async(request, stream).await.map(|(socket, _)| Worker { socket })
    }

    /// Connects a worker and registers it.
    async fn worker(&self, agent_name: &str) -> Worker {
        let token = self.token(VideoGrants { agent: true, ..Default::default() }, None);
        let mut worker = self.open_worker(&token).await.unwrap();
        let request = RegisterWorkerRequest { agent_name: agent_name.into(), ..Default::default() };
        let registered = worker.register(request).await;
        assert!(
            registered.worker_id.starts_with("AW_") && registered.server_info.is_some(),
            "{registered:?}"
        );
        worker
    }

    /// Joins the kitchen with a token that has these agents.
    async fn join_with_agents(&self, agents: &[&str]) -> LiveKitTransport {
        let agents = agents.iter().map(|name| RoomAgentDispatch {
            agent_name: (*name).into(),
            metadata: "soup".into(),
            ..Default::default()
        });
        let config = RoomConfiguration { agents: agents.collect(), ..Default::default() };
        let video = VideoGrants { room_join: true, room: "kitchen".into(), ..Default::default() };
        let token = self.token(video, Some(config));
        ConnectOptions::new().join(&self.url(), &token).await.unwrap()
    }

    async fn join_as_agent(&self, assignment: &JobAssignment) -> LiveKitTransport {
        ConnectOptions::new().join(&self.url(), &assignment.token).await.unwrap()
    }

    /// Calls a method of the API. Returns the status and the body.
    pub(super) async fn call(&self, method: &str, body: serde_json::Value) -> (u16, String) {
        let video =
            VideoGrants { room_admin: true, room_create: true, room: "kitchen".into(), ..Default::default() };
        let (token, body) = (self.token(video, None), body.to_string());
        let head = format!(
            "POST /twirp/livekit.{method} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        timeout(BOUND, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// Waits until so many workers are connected.
    async fn has_workers(&self, count: usize) {
        let connected = || self.look(|rooms| rooms.agents.workers());
        timeout(BOUND, async { while connected().await != count {} }).await.unwrap();
    }
}

impl Worker {
    async fn say(&mut self, message: FromWorker) {
        let bytes = WorkerMessage { message: Some(message) }.encode_to_vec();
        self.socket.send(Frame::Binary(bytes.into())).await.unwrap();
    }

    /// Returns the next frame that is no ping.
    async fn frame(&mut self) -> Option<Frame> {
        let next = async {
            loop {
                match self.socket.next().await {
                    Some(Ok(Frame::Ping(_))) => {}
                    frame => return frame.and_then(Result::ok),
                }
            }
        };
        timeout(BOUND, next).await.expect("no frame in time")
    }

    async fn hear(&mut self) -> ToWorker {
        match self.frame().await {
            Some(Frame::Binary(bytes)) => ServerMessage::decode(bytes).unwrap().message.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    async fn register(&mut self, request: RegisterWorkerRequest) -> RegisterWorkerResponse {
        self.say(FromWorker::Register(request)).await;
        match self.hear().await {
            ToWorker::Register(response) => response,
            other => panic!("{other:?}"),
        }
    }

    async fn offer(&mut self) -> Job {
        match self.hear().await {
            ToWorker::Availability(request) if !request.resuming => request.job.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// Answers an offer, as livekit-agents does it.
    async fn answer(&mut self, job: &Job, available: bool) {
        let answer = AvailabilityResponse {
            job_id: job.id.clone(),
            available,
            participant_identity: format!("agent-{}", job.id),
            participant_name: "Cook".into(),
            participant_attributes: [("lk.agent.name".to_owned(), job.agent_name.clone())].into(),
            ..Default::default()
        };
        self.say(FromWorker::Availability(answer)).await;
    }

    async fn accept(&mut self) -> JobAssignment {
        let job = self.offer().await;
        self.answer(&job, true).await;
        match self.hear().await {
            ToWorker::Assignment(assignment) => assignment,
            other => panic!("{other:?}"),
        }
    }

    async fn termination(&mut self) -> String {
        match self.hear().await {
            ToWorker::Termination(termination) => termination.job_id,
            other => panic!("{other:?}"),
        }
    }

    /// Asserts that nothing was sent to it before the answer to a ping.
    async fn hears_nothing(&mut self) {
        self.say(FromWorker::Ping(WorkerPing { timestamp: 7 })).await;
        let pong = self.hear().await;
        assert!(matches!(pong, ToWorker::Pong(WorkerPong { last_timestamp: 7, .. })), "{pong:?}");
    }

    /// Returns the reason for which the server closed the connection.
    async fn close_reason(&mut self) -> String {
        match self.frame().await {
            Some(Frame::Close(Some(close))) => close.reason.as_str().to_owned(),
            other => panic!("{other:?}"),
        }
    }
}

fn job_id(assignment: &JobAssignment) -> &str {
    &assignment.job.as_ref().unwrap().id
}

#[tokio::test]
async fn agent_joins_a_new_room_and_its_job_ends_when_it_leaves() {
    let server = server().await;
    let mut worker = server.worker("").await;
    let mut phone = server.join("phone").await;
    let assignment = worker.accept().await;
    let room = assignment.job.as_ref().unwrap().room.clone().unwrap();
    assert!(room.name == "kitchen" && room.sid.starts_with("RM_") && assignment.url.is_none(), "{room:?}");
    let claims = TokenVerifier::with_api_key(server.key.key(), server.key.secret());
    let claims = claims.verify(&assignment.token).unwrap();
    assert_eq!((&*claims.sub, &*claims.name), (&*format!("agent-{}", job_id(&assignment)), "Cook"));
    let video = VideoGrants {
        room_join: true,
        room: "kitchen".into(),
        agent: true,
        can_publish: Some(true),
        can_subscribe: Some(true),
        can_publish_data: Some(true),
        can_update_own_metadata: Some(true),
        ..Default::default()
    };
    assert_eq!(claims.video, video);
    assert!((3590..=3600).contains(&(claims.exp as u64 - super::super::clock::unix_seconds())));

    let mut agent = server.join_as_agent(&assignment).await;
    let joined = until(&mut phone, |event| match event {
        TransportEvent::Joined(who) if who.is_agent() => Some(who),
        _ => None,
    });
    let joined = joined.await;
    assert!(joined.identity().as_str().starts_with("agent-AJ_"), "{joined:?}");
    assert_eq!((joined.attribute("lk.agent_name"), joined.attribute("lk.agent.name")), (Some(""), Some("")));
    let infos = server.look(|rooms| rooms.list_participants("kitchen")).await;
    assert_eq!(infos.iter().filter(|info| info.kind() == Kind::Agent).count(), 1);
    // A second participant changes nothing.
    let _tablet = server.join("tablet").await;
    worker.hears_nothing().await;
    agent.close().await;
    assert_eq!(worker.termination().await, job_id(&assignment));
    worker.hears_nothing().await;
    server.close().await;
}

#[tokio::test]
async fn permissions_of_a_worker_are_those_of_its_agents() {
    let server = server().await;
    let token = server.token(VideoGrants { agent: true, ..Default::default() }, None);
    let mut worker = server.open_worker(&token).await.unwrap();
    let allowed = ParticipantPermission { can_subscribe: true, can_publish_data: true, ..Default::default() };
    let request = RegisterWorkerRequest { allowed_permissions: Some(allowed), ..Default::default() };
    worker.register(request).await;
    let _phone = server.join("phone").await;
    let assignment = worker.accept().await;
    let claims = livekit_token::Claims::from_unverified(&assignment.token).unwrap();
    assert_eq!(claims.kind, "agent");
    assert_eq!((claims.video.can_publish, claims.video.can_update_own_metadata), (Some(false), Some(false)));
    assert_eq!((claims.video.can_subscribe, claims.video.can_publish_data), (Some(true), Some(true)));
}

#[tokio::test]
async fn token_that_opens_a_room_names_its_agents() {
    let server = server().await;
    let mut unnamed = server.worker("").await;
    let (mut cook, mut guard) = (server.worker("cook").await, server.worker("guard").await);
    let _phone = server.join_with_agents(&["cook"]).await;
    let assignment = cook.accept().await;
    let job = assignment.job.as_ref().unwrap();
    assert_eq!((&*job.agent_name, &*job.metadata), ("cook", "soup"));
    let claims = livekit_token::Claims::from_unverified(&assignment.token).unwrap();
    assert_eq!(claims.attributes["lk.agent_name"], "cook");
    // The token of a later join names none.
    let _again = server.join_with_agents(&["guard"]).await;
    guard.hears_nothing().await;
    unnamed.hears_nothing().await;
}

#[tokio::test]
async fn api_dispatches_lists_and_deletes() {
    let server = server().await;
    let (mut cook, mut unnamed) = (server.worker("cook").await, server.worker("").await);
    // A room is created with its agents.
    let (status, body) = server
        .call("RoomService/CreateRoom", json!({"name": "kitchen", "agents": [{"agent_name": "cook"}]}))
        .await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(serde_json::from_str::<Room>(&body).unwrap().name, "kitchen");
    let assignment = cook.accept().await;
    unnamed.hears_nothing().await;
    let mut agent = server.join_as_agent(&assignment).await;
    let service = |method: &str| format!("AgentDispatchService/{method}");
    let list = |body: &str| serde_json::from_str::<ListAgentDispatchResponse>(body).unwrap().agent_dispatches;
    let (_, body) = server.call(&service("ListDispatch"), json!({"room": "kitchen"})).await;
    let listed = list(&body);
    let jobs = &listed[0].state.as_ref().unwrap().jobs;
    assert_eq!((listed.len(), &*listed[0].agent_name, &*jobs[0].id), (1, "cook", job_id(&assignment)));
    // Another one is dispatched to the running room.
    let mut guard = server.worker("guard").await;
    let request = json!({"room": "kitchen", "agentName": "guard", "metadata": "door"});
    let (status, body) = server.call(&service("CreateDispatch"), request.clone()).await;
    let created: AgentDispatch = serde_json::from_str(&body).unwrap();
    assert!(status == 200 && created.id.starts_with("AD_"), "{body}");
    let job = guard.offer().await;
    assert_eq!((&*job.dispatch_id, &*job.metadata), (&*created.id, "door"));
    let (status, body) = server.call(&service("CreateDispatch"), request).await;
    assert!(status == 409 && body.contains("already_exists"), "{body}");
    // A deleted dispatch ends the job, and the agent is removed.
    let delete = json!({"room": "kitchen", "dispatch_id": listed[0].id});
    assert_eq!(server.call(&service("DeleteDispatch"), delete.clone()).await.0, 200);
    assert_eq!(cook.termination().await, job_id(&assignment));
    let closed = until(&mut agent, |event| {
        matches!(event, TransportEvent::Closed(crate::CloseReason::Removed)).then_some(())
    });
    closed.await;
    assert_eq!(server.call(&service("DeleteDispatch"), delete).await.0, 404);
    let (_, body) = server.call(&service("ListDispatch"), json!({"room": "kitchen"})).await;
    assert_eq!(list(&body).len(), 1);
    // Bad requests.
    assert_eq!(server.call(&service("CreateDispatch"), json!({"room": "cellar"})).await.0, 401);
    assert_eq!(server.call(&service("Explode"), json!({})).await.0, 404);
    let long = json!({"room": "kitchen", "agent_name": "x".repeat(300)});
    assert_eq!(server.call(&service("CreateDispatch"), long).await.0, 400);
}

#[tokio::test]
async fn dispatch_to_a_missing_room_opens_it_for_the_unnamed_worker_too() {
    let server = server().await;
    let (mut cook, mut unnamed) = (server.worker("cook").await, server.worker("").await);
    let request = json!({"room": "kitchen", "agent_name": "cook"});
    assert_eq!(server.call("AgentDispatchService/CreateDispatch", request).await.0, 200);
    assert_eq!(cook.offer().await.agent_name, "cook");
    assert_eq!(unnamed.offer().await.agent_name, "");
}

#[tokio::test]
async fn worker_that_declines_or_disconnects_gives_the_job_to_another() {
    let server = server().await;
    let (mut one, mut two) = (server.worker("").await, server.worker("").await);
    let mut three = server.worker("").await;
    // Offers go to the least loaded worker first.
    for (worker, load) in [(&mut one, 0.1), (&mut two, 0.2), (&mut three, 0.3)] {
        worker.say(FromWorker::UpdateWorker(UpdateWorkerStatus { load, ..Default::default() })).await;
        worker.hears_nothing().await;
    }
    let _phone = server.join("phone").await;
    let job = one.offer().await;
    one.answer(&job, false).await;
    assert_eq!(two.offer().await.id, job.id);
    drop(two);
    let assignment = three.accept().await;
    assert_eq!(job_id(&assignment), job.id);
    one.hears_nothing().await;
}

#[tokio::test]
async fn full_worker_gets_no_job_until_it_is_available() {
    let server = server().await;
    let mut worker = server.worker("").await;
    let status = |status: WorkerStatus| {
        let status = Some(status.into());
        FromWorker::UpdateWorker(UpdateWorkerStatus { status, load: 0.9, ..Default::default() })
    };
    worker.say(status(WorkerStatus::WsFull)).await;
    worker.hears_nothing().await;
    let _phone = server.join("phone").await;
    worker.hears_nothing().await;
    worker.say(status(WorkerStatus::WsAvailable)).await;
    assert_eq!(worker.offer().await.room.unwrap().name, "kitchen");
}

#[tokio::test]
async fn worker_that_starts_late_or_again_gets_the_open_rooms() {
    let server = server().await;
    let _phone = server.join("phone").await;
    let mut worker = server.worker("").await;
    let assignment = worker.accept().await;
    let mut agent = server.join_as_agent(&assignment).await;
    // A second worker has nothing to do, also when the first one is gone: its agent is in the room.
    let mut second = server.worker("").await;
    drop(worker);
    server.has_workers(1).await;
    second.hears_nothing().await;
    agent.close().await;
    // The agent does not come back.
    let assignment = second.accept().await;
    let mut agent = server.join_as_agent(&assignment).await;
    // The worker is stopped: first its agent leaves, then its connection ends.
    agent.close().await;
    second.termination().await;
    drop(second);
    server.has_workers(0).await;
    let mut third = server.worker("").await;
    assert_ne!(third.offer().await.id, job_id(&assignment));
}

#[tokio::test]
async fn agent_killed_with_its_worker_is_replaced_within_seconds() {
    let server = server().await;
    let mut worker = server.worker("").await;
    let mut phone = server.join("phone").await;
    let assignment = worker.accept().await;
    // The agent's process: the end of its runtime closes its sockets, and sends no leave request.
    let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (url, token) = (server.url(), assignment.token.clone());
    let agent = process.spawn(async move { ConnectOptions::new().join(&url, &token).await.unwrap() });
    let agent = agent.await.unwrap();
    let mut second = server.worker("").await;
    second.hears_nothing().await;
    let killed = std::time::Instant::now();
    process.shutdown_background();
    drop(worker);
    until(&mut phone, |event| match event {
        TransportEvent::Left(who) if who.identity() == agent.local().identity() => Some(()),
        _ => None,
    })
    .await;
    assert_ne!(second.offer().await.id, job_id(&assignment));
    let took = killed.elapsed();
    assert!(took >= RETURN_LIMIT && took < ICE_LIMIT, "{took:?}");
}

#[tokio::test]
async fn jobs_end_with_their_room_and_with_the_server() {
    let server = server().await;
    let mut worker = server.worker("").await;
    let _phone = server.join("phone").await;
    let assignment = worker.accept().await;
    let _agent = server.join_as_agent(&assignment).await;
    assert_eq!(server.call("RoomService/DeleteRoom", json!({"room": "kitchen"})).await.0, 200);
    assert_eq!(worker.termination().await, job_id(&assignment));
    let _phone = server.join("phone").await;
    let assignment = worker.accept().await;
    let _agent = server.join_as_agent(&assignment).await;
    server.close().await;
    assert_eq!(worker.termination().await, job_id(&assignment));
    assert!(matches!(worker.frame().await, None | Some(Frame::Close(_))));
}

#[tokio::test]
async fn agent_that_joins_again_keeps_its_job() {
    let server = server().await;
    let mut worker = server.worker("").await;
    let _phone = server.join("phone").await;
    let assignment = worker.accept().await;
    let mut agent = server.join_as_agent(&assignment).await;
    let mut again = server.join_as_agent(&assignment).await;
    until(&mut agent, |event| {
        matches!(event, TransportEvent::Closed(crate::CloseReason::DuplicateIdentity)).then_some(())
    })
    .await;
    worker.hears_nothing().await;
    again.close().await;
    assert_eq!(worker.termination().await, job_id(&assignment));
}

#[tokio::test]
async fn connection_without_the_grant_is_refused() {
    let server = server().await;
    for token in [
        server.token(VideoGrants::default(), None),
        server.key.client("kitchen", "phone").agent().sign().unwrap(),
        "nonsense".to_owned(),
    ] {
        match server.open_worker(&token).await {
            Err(tungstenite::Error::Http(response)) => assert_eq!(response.status(), 401),
            other => panic!("{:?}", other.err()),
        }
    }
}

#[tokio::test]
async fn invalid_message_closes_the_connection_with_a_reason() {
    let server = server().await;
    for (frame, why) in [
        (Frame::Text(r#"{"ping": {}}"#.into()), "JSON"),
        (Frame::Binary(Vec::new().into()), "empty"),
        (Frame::Binary(vec![0xff].into()), "WorkerMessage"),
    ] {
        let mut worker = server.worker("").await;
        worker.socket.send(frame).await.unwrap();
        let reason = worker.close_reason().await;
        assert!(reason.contains(why), "{reason}");
    }
    let mut worker = server.worker("").await;
    worker.say(FromWorker::Register(RegisterWorkerRequest::default())).await;
    assert!(worker.close_reason().await.contains("already registered"));
    // A message that is too large ends the connection.
    let mut worker = server.worker("").await;
    let large = Frame::Binary(vec![0; 300 * 1024].into());
    // The server may close it before the message has been sent.
    let _ = worker.socket.send(large).await;
    while let Some(Frame::Binary(_)) = worker.frame().await {}
}

#[tokio::test]
async fn token_with_too_many_agents_is_refused() {
    let server = server().await;
    let names = vec!["cook"; 17];
    let agents =
        names.iter().map(|name| RoomAgentDispatch { agent_name: (*name).into(), ..Default::default() });
    let config = RoomConfiguration { agents: agents.collect(), ..Default::default() };
    let video = VideoGrants { room_join: true, room: "kitchen".into(), ..Default::default() };
    let token = server.token(video, Some(config));
    let refused = LiveKitTransport::join(&server.url(), &token).await.err().unwrap();
    assert!(refused.to_string().contains("too many agents"), "{refused}");
}
