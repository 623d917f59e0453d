//! Limits workers, dispatches and what they say.

use std::time::Duration;

use livekit_protocol::{AvailabilityResponse, RoomAgentDispatch};

use crate::dev_server::limits::{self, MAX_NAME, Refusal};

/// The maximum number of connected workers.
pub(super) const MAX_WORKERS: usize = 32;
/// The maximum number of dispatches of one room.
pub(super) const MAX_PER_ROOM: usize = 16;
/// The maximum number of dispatches in all rooms: each keeps up to 128 kB of metadata and attributes.
pub(super) const MAX_DISPATCHES: usize = 512;
/// The maximum length of the error of a job that is kept, in characters.
pub(super) const MAX_ERROR: usize = 1000;
/// The time in which a worker must register, as in livekit-server.
pub(super) const REGISTER_LIMIT: Duration = Duration::from_secs(10);
/// The time in which a worker must answer an offer, as measured with livekit-server.
pub(super) const OFFER_LIMIT: Duration = Duration::from_secs(3);
/// The time that a worker and its agent have to come back when the connections of both have ended. Then the agent is removed,
/// and its job is offered again.
pub(super) const RETURN_LIMIT: Duration = Duration::from_secs(2);
/// The time after which an agent leaves whose dispatch was deleted, as in livekit-server.
pub(super) const REMOVE_DELAY: Duration = Duration::from_secs(3);

/// Checks the agents that are dispatched to a new room.
///
/// # Errors
/// They exceed a limit.
pub(in crate::dev_server) fn check(agents: &[RoomAgentDispatch]) -> Result<(), &'static str> {
    if agents.len() > MAX_PER_ROOM {
        return Err("too many agents: at most 16 can be dispatched to a room");
    }
    agents.iter().try_for_each(check_agent)
}

pub(super) fn check_agent(agent: &RoomAgentDispatch) -> Result<(), &'static str> {
    check_names(&agent.agent_name, &agent.deployment)?;
    limits::check(&agent.metadata, &agent.attributes).map_err(|Refusal(_, why)| why)
}

pub(super) fn check_names(agent: &str, deployment: &str) -> Result<(), &'static str> {
    let fits = agent.len() <= MAX_NAME && deployment.len() <= MAX_NAME;
    if fits { Ok(()) } else { Err("the agent's name or deployment exceeds 256 bytes") }
}

/// Returns whether the identity, name, metadata and attributes of an agent are within the limits.
pub(super) fn allow(answer: &AvailabilityResponse) -> bool {
    answer.participant_identity.len() <= MAX_NAME
        && answer.participant_name.len() <= MAX_NAME
        && limits::check(&answer.participant_metadata, &answer.participant_attributes).is_ok()
}
