//! Handles requests of a client over signaling.

use std::time::{Duration, Instant};

use livekit_protocol::{
    self as proto, CandidateProtocol, DisconnectReason, RequestResponse, UpdateParticipantMetadata,
    leave_request::Action, request_response::Reason, signal_request::Message as Request,
    signal_response::Message, simulate_scenario::Scenario,
};

use super::{ConnectionId, Key, Output, Rooms, limits};

/// The time for which a simulated fault waits for a resume.
const SIMULATED: Duration = Duration::from_secs(5);

impl Rooms {
    /// Handles a signaling request. Requests that concern media are ignored.
    pub(in crate::dev_server) fn handle_request(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        request: Request,
    ) {
        let Some(key) = self.connections.get(&connection).copied() else { return };
        match request {
            Request::Offer(offer) => self.outputs.push_back(Output::Offer(key, offer)),
            Request::Answer(answer) => self.outputs.push_back(Output::Answer(key, answer)),
            Request::Trickle(trickle) => {
                if let Some(line) = candidate(&trickle.candidate_init) {
                    self.outputs.push_back(Output::Candidate((key, trickle.target()), line));
                }
            }
            Request::Leave(leave) => {
                let reason = match leave.reason() {
                    reason @ (DisconnectReason::UserUnavailable
                    | DisconnectReason::UserRejected
                    | DisconnectReason::AgentError) => reason,
                    _ => DisconnectReason::ClientInitiated,
                };
                self.remove(now, key, reason, Some(Action::Disconnect));
            }
            Request::Simulate(simulate) => {
                if let Some(scenario) = simulate.scenario {
                    self.simulate(now, key, scenario);
                }
            }
            Request::UpdateMetadata(update) => self.update_own(key, connection, update),
            _ => {}
        }
    }

    fn simulate(&mut self, now: Instant, key: Key, scenario: Scenario) {
        match scenario {
            Scenario::Migration(_) => self.remove(now, key, DisconnectReason::Migration, None),
            Scenario::NodeFailure(_) => self.remove(now, key, DisconnectReason::ServerShutdown, None),
            Scenario::ServerLeave(_) => {
                self.remove(now, key, DisconnectReason::ServerShutdown, Some(Action::Disconnect));
            }
            Scenario::LeaveRequestFullReconnect(_) => {
                self.remove(now, key, DisconnectReason::ClientInitiated, Some(Action::Reconnect));
            }
            Scenario::DisconnectSignalOnResume(_) => {
                if let Some(participant) = self.participant_mut(key) {
                    participant.cut_after_resume = Some(now + SIMULATED);
                }
            }
            Scenario::DisconnectSignalOnResumeNoMessages(_) => {
                if let Some(participant) = self.participant_mut(key) {
                    participant.refuse_resume = Some(now + SIMULATED);
                }
            }
            Scenario::SwitchCandidateProtocol(protocol) => {
                if let Some(participant) = self.participant_mut(key) {
                    participant.prefers_tcp = protocol == i32::from(CandidateProtocol::Tcp);
                }
            }
            // Scenarios for media are ignored.
            Scenario::SpeakerUpdate(_) | Scenario::SubscriberBandwidth(_) => {}
        }
    }

    fn update_own(&mut self, key: Key, connection: ConnectionId, update: UpdateParticipantMetadata) {
        let Some(participant) = self.participant(key) else { return };
        let reason = if participant.claims.video.can_update_own_metadata != Some(true) {
            Reason::NotAllowed
        } else if !limits::allow(
            &update.name,
            &update.metadata,
            &update.attributes,
            &participant.claims.attributes,
        ) {
            Reason::LimitExceeded
        } else {
            self.change(key, (&update.name, &update.metadata, &update.attributes), None);
            Reason::Ok
        };
        let response = RequestResponse {
            request_id: update.request_id,
            reason: reason.into(),
            request: Some(proto::request_response::Request::UpdateMetadata(update)),
            ..Default::default()
        };
        self.outputs.push_back(Output::Signal(connection, Box::new(Message::RequestResponse(response))));
    }
}

/// Returns the candidate line of a trickle request.
fn candidate(init: &str) -> Option<String> {
    let init: serde_json::Value = serde_json::from_str(init).ok()?;
    let line = init.get("candidate")?.as_str()?;
    (!line.is_empty()).then(|| line.to_owned())
}
