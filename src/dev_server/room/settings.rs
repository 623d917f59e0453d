//! Holds what a new room gets from `CreateRoom`, or from the `roomConfig` of the token that opens it.

use livekit_protocol::{CreateRoomRequest, RoomAgentDispatch, RoomConfiguration};

use super::{
    DEPARTURE_TIMEOUT, EMPTY_TIMEOUT, ServiceError,
    limits::{METADATA_TOO_LARGE, is_metadata_allowed},
};
use crate::dev_server::agents;

const NO_EGRESS: &str = "this development server records nothing: leave out `egress`, or use livekit-server";
const NO_PRESET: &str = "this development server has no room presets: leave out `room_preset`";

/// The settings of a room, with LiveKit's defaults. An existing room keeps its own, as in livekit-server.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) metadata: String,
    /// The number of participants that may be in the room, without agents and recorders. 0 means no limit.
    pub(super) max_participants: u32,
    empty_timeout: u32,
    departure_timeout: u32,
}

impl Settings {
    /// Returns how long the room waits for its first participant, in seconds.
    pub(super) fn empty_timeout(&self) -> u32 {
        if self.empty_timeout == 0 { EMPTY_TIMEOUT } else { self.empty_timeout }
    }

    /// Returns how long the room stays open after its last participant left, in seconds.
    pub(super) fn departure_timeout(&self) -> u32 {
        if self.departure_timeout == 0 { DEPARTURE_TIMEOUT } else { self.departure_timeout }
    }

    /// Reads the settings of a request.
    ///
    /// # Errors
    /// It asks for what the server does not have, or exceeds a limit.
    pub(super) fn of_request(request: &CreateRoomRequest) -> Result<Self, ServiceError> {
        if request.egress.is_some() {
            return Err(ServiceError::Unsupported(NO_EGRESS));
        }
        if !request.room_preset.is_empty() {
            return Err(ServiceError::Invalid(NO_PRESET));
        }
        check(&request.metadata, &request.agents).map_err(ServiceError::Invalid)?;
        Ok(Self {
            metadata: request.metadata.clone(),
            max_participants: request.max_participants,
            empty_timeout: request.empty_timeout,
            departure_timeout: request.departure_timeout,
        })
    }

    /// Reads the settings of a token, which [`check_config`] has checked.
    pub(super) fn of_config(config: &RoomConfiguration) -> Self {
        Self {
            metadata: config.metadata.clone(),
            max_participants: config.max_participants,
            empty_timeout: config.empty_timeout,
            departure_timeout: config.departure_timeout,
        }
    }
}

/// Checks the room configuration of a token.
///
/// # Errors
/// It asks for what the server does not have, or exceeds a limit.
pub(in crate::dev_server) fn check_config(config: &RoomConfiguration) -> Result<(), &'static str> {
    if config.egress.is_some() {
        return Err(NO_EGRESS);
    }
    check(&config.metadata, &config.agents)
}

fn check(metadata: &str, agents: &[RoomAgentDispatch]) -> Result<(), &'static str> {
    if !is_metadata_allowed(metadata) {
        return Err(METADATA_TOO_LARGE);
    }
    agents::check(agents)
}
