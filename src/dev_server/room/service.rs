//! Implements the methods of the room service.

use std::{collections::HashMap, time::Instant};

use livekit_protocol::{
    self as proto, AgentDispatch, CreateAgentDispatchRequest, CreateRoomRequest, DataPacket,
    DisconnectReason, MuteRoomTrackRequest, ParticipantInfo, ParticipantPermission, RoomAgentDispatch,
    RoomUpdate, SendDataRequest, UpdateParticipantRequest, UserPacket, data_packet, leave_request::Action,
    signal_response::Message,
};

use super::{Key, MAX_NAME, Output, Room, Rooms, limits, settings::Settings, update};
use crate::dev_server::{
    agents::{self, DispatchError},
    grant,
};
use crate::transport::Lane;

/// Why a method of the room service failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dev_server) enum ServiceError {
    /// The room or participant does not exist.
    NotFound(&'static str),
    /// The request exceeds a limit.
    Invalid(&'static str),
    /// An agent with this name has been dispatched to the room.
    Exists(&'static str),
    /// The server is not configured for it, as livekit-server by default.
    Precondition(&'static str),
    /// The server has no such feature.
    Unsupported(&'static str),
}

const NO_ROOM: ServiceError = ServiceError::NotFound("requested room does not exist");
const NO_PARTICIPANT: ServiceError = ServiceError::NotFound("participant does not exist");

impl Rooms {
    /// Returns the rooms with these names, or all rooms if there are no names.
    pub(in crate::dev_server) fn list_rooms(&self, names: &[String]) -> Vec<proto::Room> {
        let rooms = self.rooms.values().map(|room| &room.info);
        rooms.filter(|info| names.is_empty() || names.contains(&info.name)).cloned().collect()
    }

    /// Returns the room with this name. If there is none, it creates one with this sid, at this time in milliseconds since
    /// 1970, with the settings of the request, which closes when nobody joins it. Its agents get their jobs at once.
    pub(in crate::dev_server) fn create_room(
        &mut self,
        now: Instant,
        request: &CreateRoomRequest,
        (sid, unix_ms): (String, i64),
    ) -> Result<proto::Room, ServiceError> {
        let name = request.name.as_str();
        let settings = Settings::of_request(request)?;
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(ServiceError::Invalid("the room's name must have 1 to 256 bytes"));
        }
        if !self.has_place_for(now, name) {
            return Err(ServiceError::Invalid("the server has reached its limit of rooms"));
        }
        if let Some(room) = self.rooms.get(name) {
            return Ok(room.info.clone());
        }
        let room = Room::new(now, (name, sid), unix_ms, settings);
        let info = room.info.clone();
        self.rooms.insert(name.to_owned(), room);
        self.agents.open((now, unix_ms), &info, &request.agents);
        Ok(info)
    }

    /// Dispatches an agent to a room. As in livekit-server, a room that does not exist is created, and a worker without a
    /// name gets a job for it as well.
    pub(in crate::dev_server) fn create_dispatch(
        &mut self,
        now: Instant,
        request: CreateAgentDispatchRequest,
        (sid, unix_ms): (String, i64),
    ) -> Result<AgentDispatch, ServiceError> {
        let CreateAgentDispatchRequest { agent_name, room, metadata, restart_policy, deployment, attributes } =
            request;
        let agent = RoomAgentDispatch { agent_name, metadata, restart_policy, deployment, attributes };
        agents::check(std::slice::from_ref(&agent)).map_err(ServiceError::Invalid)?;
        let room = CreateRoomRequest { name: room, ..Default::default() };
        let room = self.create_room(now, &room, (sid, unix_ms))?;
        self.agents.create((now, unix_ms), &room, agent).map_err(|error| match error {
            DispatchError::Invalid(why) => ServiceError::Invalid(why),
            DispatchError::Exists => {
                ServiceError::Exists("this agent has been dispatched to the room, and its job has not ended")
            }
        })
    }

    /// Deletes a dispatch and ends its job.
    pub(in crate::dev_server) fn delete_dispatch(
        &mut self,
        now: Instant,
        room: &str,
        id: &str,
    ) -> Result<AgentDispatch, ServiceError> {
        self.agents.delete(now, room, id).ok_or(ServiceError::NotFound("dispatch does not exist"))
    }

    /// Returns the participants of a room, including hidden ones; none if the room does not exist.
    pub(in crate::dev_server) fn list_participants(&self, room: &str) -> Vec<ParticipantInfo> {
        let room = self.rooms.get(room).into_iter();
        let all = room.flat_map(|room| room.participants.values());
        all.map(|it| it.info(DisconnectReason::UnknownReason)).collect()
    }

    /// Returns one participant.
    pub(in crate::dev_server) fn participant_info(
        &self,
        room: &str,
        identity: &str,
    ) -> Result<ParticipantInfo, ServiceError> {
        let key = self.find(room, identity)?;
        self.participant(key).map(|it| it.info(DisconnectReason::UnknownReason)).ok_or(NO_PARTICIPANT)
    }

    /// Removes a participant.
    pub(in crate::dev_server) fn remove_participant(
        &mut self,
        now: Instant,
        room: &str,
        identity: &str,
    ) -> Result<(), ServiceError> {
        let key = self.find(room, identity)?;
        self.remove(now, key, DisconnectReason::ParticipantRemoved, Some(Action::Disconnect));
        Ok(())
    }

    /// Removes all participants and deletes the room.
    pub(in crate::dev_server) fn delete_room(
        &mut self,
        now: Instant,
        room: &str,
    ) -> Result<(), ServiceError> {
        if !self.rooms.contains_key(room) {
            return Err(NO_ROOM);
        }
        self.end_room(now, room, DisconnectReason::RoomDeleted);
        Ok(())
    }

    /// Sets the metadata of a room, and sends it to all participants. An empty text removes it, as in livekit-server.
    pub(in crate::dev_server) fn update_room_metadata(
        &mut self,
        name: &str,
        metadata: String,
    ) -> Result<proto::Room, ServiceError> {
        if !limits::is_metadata_allowed(&metadata) {
            return Err(ServiceError::Invalid(limits::METADATA_TOO_LARGE));
        }
        let room = self.rooms.get_mut(name).ok_or(NO_ROOM)?;
        room.info.metadata = metadata;
        self.agents.handle_room_updated(&room.info);
        for connection in room.participants.values().filter_map(|it| it.connection) {
            let update = Message::RoomUpdate(RoomUpdate { room: Some(room.info.clone()) });
            self.outputs.push_back(Output::Signal(connection, Box::new(update)));
        }
        Ok(room.info.clone())
    }

    /// Answers a request to mute a track as livekit-server does for a track that does not exist: participants publish none.
    pub(in crate::dev_server) fn mute_track(
        &self,
        request: &MuteRoomTrackRequest,
    ) -> Result<(), ServiceError> {
        self.find(&request.room, &request.identity)?;
        if request.muted { Ok(()) } else { Err(ServiceError::Precondition("remote unmute not enabled")) }
    }

    /// Changes a participant's name, metadata, attributes or permissions.
    pub(in crate::dev_server) fn update_participant(
        &mut self,
        request: &UpdateParticipantRequest,
    ) -> Result<ParticipantInfo, ServiceError> {
        let key = self.find(&request.room, &request.identity)?;
        let before = &self.participant(key).ok_or(NO_PARTICIPANT)?.claims.attributes;
        if !limits::allow(&request.name, &request.metadata, &request.attributes, before) {
            return Err(ServiceError::Invalid("name, metadata or attributes are too large"));
        }
        let said = (request.name.as_str(), request.metadata.as_str(), &request.attributes);
        self.change(key, said, request.permission.as_ref());
        self.participant_info(&request.room, &request.identity)
    }

    /// Sends a packet without a sender.
    pub(in crate::dev_server) fn send_data(&mut self, request: SendDataRequest) -> Result<(), ServiceError> {
        if !self.rooms.contains_key(&request.room) {
            return Err(NO_ROOM);
        }
        let lane = match request.kind() {
            data_packet::Kind::Reliable => Lane::Reliable,
            data_packet::Kind::Lossy => Lane::Lossy,
        };
        #[expect(deprecated, reason = "older clients read the kind and the destinations there")]
        let packet = DataPacket {
            kind: request.kind,
            destination_identities: request.destination_identities.clone(),
            value: Some(data_packet::Value::User(UserPacket {
                payload: request.data,
                destination_sids: request.destination_sids,
                destination_identities: request.destination_identities,
                topic: request.topic,
                nonce: request.nonce,
                ..Default::default()
            })),
            ..Default::default()
        };
        self.forward(None, lane, &packet, Some(&request.room));
        Ok(())
    }

    /// Changes a participant and announces it. Empty texts change nothing; an empty attribute value removes the attribute.
    pub(super) fn change(
        &mut self,
        key: Key,
        (name, metadata, attributes): (&str, &str, &HashMap<String, String>),
        permission: Option<&ParticipantPermission>,
    ) {
        let Some(participant) = self.participant_mut(key) else { return };
        let claims = &mut participant.claims;
        if !name.is_empty() {
            name.clone_into(&mut claims.name);
        }
        if !metadata.is_empty() {
            metadata.clone_into(&mut claims.metadata);
        }
        for (name, value) in attributes {
            if value.is_empty() {
                claims.attributes.remove(name);
            } else {
                claims.attributes.insert(name.clone(), value.clone());
            }
        }
        if let Some(permission) = permission {
            grant::permit(&mut claims.video, permission);
        }
        participant.version += 1;
        // Only the participant itself is notified of changes to a hidden participant.
        let hidden = participant.connection.filter(|_| participant.is_hidden());
        let info = participant.info(DisconnectReason::UnknownReason);
        if let Some(connection) = hidden {
            self.outputs.push_back(Output::Signal(connection, Box::new(update(vec![info]))));
        }
        self.announce(key, DisconnectReason::UnknownReason);
        self.renew(key);
    }

    pub(super) fn find(&self, room: &str, identity: &str) -> Result<Key, ServiceError> {
        let room = self.rooms.get(room).ok_or(NO_ROOM)?;
        room.participants.get(identity).map(|it| it.key).ok_or(NO_PARTICIPANT)
    }
}
