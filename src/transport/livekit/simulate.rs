//! What a server does to a participant that asks for it, to see how its app bears that.

use livekit_protocol::{CandidateProtocol, SimulateScenario, signal_request, simulate_scenario};

/// Something that goes wrong at the server, on request: [`Room::simulate`](super::Room::simulate).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scenario {
    /// The signaling connection ends. The join goes on.
    SignalLost,
    /// The next connection of the signaling ends as soon as it is open.
    SignalLostAtResume,
    /// The next three connections of the signaling end before the server says anything.
    SignalLostBeforeResume,
    /// The server loses the participant, as when its machine fails.
    NodeFailure,
    /// The server wants the participant to go to another machine.
    Migration,
    /// The server ends the join for good.
    ServerLeave,
    /// The server asks for a new join. LiveKit 1.13.5 ignores it.
    FullReconnect,
    /// From the next beginning of ICE on the server offers TCP only.
    SwitchToTcp,
    /// From the next join on the server wants everything to go through a relay over TLS, as it does by itself after
    /// other ways have failed. Only a LiveKit server with such a relay of its own should be asked.
    SwitchToTls,
}

impl Scenario {
    /// The request, if the server has a part in it.
    pub(super) fn request(self) -> Option<signal_request::Message> {
        use simulate_scenario::Scenario as Wire;
        let scenario = match self {
            Self::SignalLost => return None,
            Self::SignalLostAtResume => Wire::DisconnectSignalOnResume(true),
            Self::SignalLostBeforeResume => Wire::DisconnectSignalOnResumeNoMessages(true),
            Self::NodeFailure => Wire::NodeFailure(true),
            Self::Migration => Wire::Migration(true),
            Self::ServerLeave => Wire::ServerLeave(true),
            Self::FullReconnect => Wire::LeaveRequestFullReconnect(true),
            Self::SwitchToTcp => Wire::SwitchCandidateProtocol(CandidateProtocol::Tcp.into()),
            Self::SwitchToTls => Wire::SwitchCandidateProtocol(CandidateProtocol::Tls.into()),
        };
        Some(signal_request::Message::Simulate(SimulateScenario { scenario: Some(scenario) }))
    }
}
