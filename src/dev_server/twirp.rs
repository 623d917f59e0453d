//! Serves the room service, the part of LiveKit's server API that concerns participants and data, and the one for the
//! dispatch of agents.
//!
//! `POST /twirp/livekit.RoomService/METHOD` or `/twirp/livekit.AgentDispatchService/METHOD`, in JSON or in protobuf ([Twirp](https://twitchtv.github.io/twirp/docs/spec_v7.html)).

use std::time::Instant;

use livekit_protocol::{
    CreateAgentDispatchRequest, CreateRoomRequest, DeleteAgentDispatchRequest, DeleteRoomRequest,
    DeleteRoomResponse, ListAgentDispatchRequest, ListAgentDispatchResponse, ListParticipantsRequest,
    ListParticipantsResponse, ListRoomsRequest, ListRoomsResponse, MuteRoomTrackRequest,
    MuteRoomTrackResponse, RemoveParticipantResponse, RoomParticipantIdentity, SendDataRequest,
    SendDataResponse, UpdateParticipantRequest, UpdateRoomMetadataRequest,
};
use livekit_token::VideoGrants;
use prost::Message;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::room::{Rooms, ServiceError};

/// A service with its methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    Room,
    AgentDispatch,
}

/// A request to a service.
#[derive(Debug)]
pub(super) struct ServiceCall {
    pub(super) service: Service,
    pub(super) grants: Option<VideoGrants>,
    pub(super) method: String,
    /// Whether the body is JSON instead of protobuf.
    pub(super) json: bool,
    pub(super) body: Vec<u8>,
}

/// The response: status, content type and body.
#[derive(Debug)]
pub(super) struct ServiceResponse {
    pub(super) status: u16,
    pub(super) kind: &'static str,
    pub(super) body: Vec<u8>,
}

/// A Twirp error: HTTP status, code and message.
#[derive(Debug)]
struct Error(u16, &'static str, String);

const NOT_ALLOWED: (u16, &str) = (401, "unauthenticated");

/// Returns the service and the method of a path.
pub(super) fn target(path: &str) -> Option<(Service, &str)> {
    let (service, method) = path.strip_prefix("/twirp/livekit.")?.split_once('/')?;
    let service = match service {
        "RoomService" => Service::Room,
        "AgentDispatchService" => Service::AgentDispatch,
        _ => return None,
    };
    Some((service, method))
}

impl ServiceResponse {
    /// Returns an error in Twirp's form.
    pub(super) fn error(status: u16, code: &str, msg: &str) -> Self {
        let body = serde_json::json!({"code": code, "msg": msg}).to_string().into_bytes();
        Self { status, kind: "application/json", body }
    }
}

impl ServiceCall {
    /// Performs the request. `new` is the sid and the time of a room that it creates.
    pub(super) fn perform(self, now: Instant, rooms: &mut Rooms, new: (String, i64)) -> ServiceResponse {
        let kind = if self.json { "application/json" } else { "application/protobuf" };
        let done = match self.service {
            Service::Room => self.room(now, rooms, new),
            Service::AgentDispatch => self.agent_dispatch(now, rooms, new),
        };
        match done {
            Ok(body) => ServiceResponse { status: 200, kind, body },
            Err(Error(status, code, msg)) => ServiceResponse::error(status, code, &msg),
        }
    }

    fn room(&self, now: Instant, rooms: &mut Rooms, new: (String, i64)) -> Result<Vec<u8>, Error> {
        match self.method.as_str() {
            "CreateRoom" => self.answer(|request: CreateRoomRequest| {
                self.check(|grants| grants.room_create)?;
                Ok(rooms.create_room(now, &request, new)?)
            }),
            "ListRooms" => self.answer(|request: ListRoomsRequest| {
                self.check(|grants| grants.room_list)?;
                Ok(ListRoomsResponse { rooms: rooms.list_rooms(&request.names) })
            }),
            "DeleteRoom" => self.answer(|request: DeleteRoomRequest| {
                self.check(|grants| grants.room_create)?;
                rooms.delete_room(now, &request.room)?;
                Ok(DeleteRoomResponse {})
            }),
            "ListParticipants" => self.answer(|request: ListParticipantsRequest| {
                self.check_admin(&request.room)?;
                Ok(ListParticipantsResponse { participants: rooms.list_participants(&request.room) })
            }),
            "GetParticipant" => self.answer(|request: RoomParticipantIdentity| {
                self.check_admin(&request.room)?;
                Ok(rooms.participant_info(&request.room, &request.identity)?)
            }),
            "RemoveParticipant" => self.answer(|request: RoomParticipantIdentity| {
                self.check_admin(&request.room)?;
                rooms.remove_participant(now, &request.room, &request.identity)?;
                Ok(RemoveParticipantResponse {})
            }),
            "UpdateParticipant" => self.answer(|request: UpdateParticipantRequest| {
                self.check_admin(&request.room)?;
                Ok(rooms.update_participant(&request)?)
            }),
            "UpdateRoomMetadata" => self.answer(|request: UpdateRoomMetadataRequest| {
                self.check_admin(&request.room)?;
                Ok(rooms.update_room_metadata(&request.room, request.metadata)?)
            }),
            "MutePublishedTrack" => self.answer(|request: MuteRoomTrackRequest| {
                self.check_admin(&request.room)?;
                rooms.mute_track(&request)?;
                Ok(MuteRoomTrackResponse { track: None })
            }),
            "SendData" => self.answer(|request: SendDataRequest| {
                self.check_admin(&request.room)?;
                rooms.send_data(request)?;
                Ok(SendDataResponse {})
            }),
            _ => Err(self.no_method()),
        }
    }

    fn agent_dispatch(&self, now: Instant, rooms: &mut Rooms, new: (String, i64)) -> Result<Vec<u8>, Error> {
        match self.method.as_str() {
            "CreateDispatch" => self.answer(|request: CreateAgentDispatchRequest| {
                self.check_admin(&request.room)?;
                Ok(rooms.create_dispatch(now, request, new)?)
            }),
            "DeleteDispatch" => self.answer(|request: DeleteAgentDispatchRequest| {
                self.check_admin(&request.room)?;
                Ok(rooms.delete_dispatch(now, &request.room, &request.dispatch_id)?)
            }),
            "ListDispatch" => self.answer(|request: ListAgentDispatchRequest| {
                self.check_admin(&request.room)?;
                let agent_dispatches = rooms.agents.list(&request.room, &request.dispatch_id);
                Ok(ListAgentDispatchResponse { agent_dispatches })
            }),
            _ => Err(self.no_method()),
        }
    }

    fn no_method(&self) -> Error {
        Error(404, "bad_route", format!("this development server has no method {:?}", self.method))
    }

    /// Decodes the request, runs `work` and encodes the response.
    fn answer<Q, A>(&self, work: impl FnOnce(Q) -> Result<A, Error>) -> Result<Vec<u8>, Error>
    where
        Q: Message + Default + DeserializeOwned,
        A: Message + Serialize,
    {
        let malformed = |error: String| Error(400, "malformed", error);
        let request = if self.json {
            serde_json::from_slice(&self.body).map_err(|error| malformed(error.to_string()))?
        } else {
            Q::decode(self.body.as_slice()).map_err(|error| malformed(error.to_string()))?
        };
        let answer = work(request)?;
        if self.json {
            let answer = serde_json::to_value(&answer).map(with_proto_names);
            let answer = answer.map_err(|error| Error(500, "internal", error.to_string()))?;
            Ok(answer.to_string().into_bytes())
        } else {
            Ok(answer.encode_to_vec())
        }
    }

    fn check(&self, may: impl FnOnce(&VideoGrants) -> bool) -> Result<(), Error> {
        let (status, code) = NOT_ALLOWED;
        let allowed = self.grants.as_ref().is_some_and(may);
        allowed.then_some(()).ok_or_else(|| Error(status, code, "permissions denied".into()))
    }

    fn check_admin(&self, room: &str) -> Result<(), Error> {
        self.check(|grants| grants.room_admin && grants.room == room)
    }
}

impl From<ServiceError> for Error {
    fn from(error: ServiceError) -> Self {
        match error {
            ServiceError::NotFound(what) => Self(404, "not_found", what.into()),
            ServiceError::Invalid(what) => Self(400, "invalid_argument", what.into()),
            ServiceError::Exists(what) => Self(409, "already_exists", what.into()),
            ServiceError::Precondition(what) => Self(412, "failed_precondition", what.into()),
            ServiceError::Unsupported(what) => Self(501, "unimplemented", what.into()),
        }
    }
}

/// Returns a message with the names of its fields as in the `.proto` files, which livekit-server writes: `empty_timeout`, not
/// `emptyTimeout`. The names of attributes are their owners'.
fn with_proto_names(message: Value) -> Value {
    match message {
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| match &*name {
                "attributes" => (name, value),
                _ => (snake_case(&name), with_proto_names(value)),
            })
            .collect(),
        Value::Array(list) => list.into_iter().map(with_proto_names).collect(),
        other => other,
    }
}

fn snake_case(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 2);
    for character in name.chars() {
        if character.is_ascii_uppercase() {
            text.push('_');
        }
        text.push(character.to_ascii_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(grants: Option<VideoGrants>, method: &str, json: bool, body: Vec<u8>) -> ServiceResponse {
        let call = ServiceCall { service: Service::Room, grants, method: method.into(), json, body };
        call.perform(Instant::now(), &mut Rooms::new("test", ""), ("RM_1".into(), 2_000))
    }

    fn admin() -> Option<VideoGrants> {
        Some(VideoGrants { room_admin: true, room: "kitchen".into(), room_list: true, ..Default::default() })
    }

    #[test]
    fn response_has_the_encoding_of_the_request() {
        let answer = call(admin(), "ListRooms", true, b"{}".to_vec());
        assert_eq!((answer.status, answer.kind, &*answer.body), (200, "application/json", &b"{}"[..]));
        let request = ListParticipantsRequest { room: "kitchen".into() };
        let answer = call(admin(), "ListParticipants", false, request.encode_to_vec());
        assert_eq!((answer.status, answer.kind), (200, "application/protobuf"));
        assert_eq!(ListParticipantsResponse::decode(&*answer.body), Ok(ListParticipantsResponse::default()));
    }

    #[test]
    fn created_room_is_listed_and_created_once() {
        let mut rooms = Rooms::new("test", "");
        let grants = || Some(VideoGrants { room_create: true, room_list: true, ..Default::default() });
        let mut sids = ["RM_1", "RM_2", "RM_3"].into_iter();
        let mut call = |method: &str, body: &[u8]| {
            let call = ServiceCall {
                service: Service::Room,
                grants: grants(),
                method: method.into(),
                json: true,
                body: body.to_vec(),
            };
            let answer =
                call.perform(Instant::now(), &mut rooms, (sids.next().unwrap_or_default().into(), 2_000));
            (answer.status, String::from_utf8_lossy(&answer.body).into_owned())
        };
        for _ in 0..2 {
            let (status, body) = call("CreateRoom", br#"{"name": "home"}"#);
            assert!(status == 200 && body.contains("RM_1") && body.contains("home"), "{body}");
        }
        assert!(call("ListRooms", br#"{"names": ["home"]}"#).1.contains("RM_1"));
        assert_eq!(call("CreateRoom", br#"{"name": ""}"#).0, 400);
    }

    #[test]
    fn request_without_the_grant_is_refused() {
        let other = br#"{"room": "cellar"}"#;
        for (grants, method, body) in [
            (None, "ListRooms", &b"{}"[..]),
            (admin(), "CreateRoom", br#"{"name": "kitchen"}"#),
            (admin(), "ListParticipants", other),
            (admin(), "DeleteRoom", other),
            (Some(VideoGrants { room: "cellar".into(), ..Default::default() }), "RemoveParticipant", other),
        ] {
            assert_eq!(call(grants, method, true, body.to_vec()).status, 401, "{method}");
        }
    }

    #[test]
    fn unknown_target_and_malformed_request_are_errors() {
        let missing = br#"{"room": "kitchen", "identity": "nobody"}"#;
        assert_eq!(call(admin(), "RemoveParticipant", true, missing.to_vec()).status, 404);
        assert_eq!(call(admin(), "UpdateSubscriptions", true, missing.to_vec()).status, 404);
        assert_eq!(call(admin(), "ListRooms", true, b"{".to_vec()).status, 400);
        assert_eq!(call(admin(), "ListRooms", false, vec![0xff]).status, 400);
    }
}
