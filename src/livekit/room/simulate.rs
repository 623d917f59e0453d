//! Names failures that the server simulates on request.

use livekit_protocol::{CandidateProtocol, SimulateScenario, signal_request, simulate_scenario};

/// A failure to simulate with [`LiveKitTransport::simulate`](crate::livekit::LiveKitTransport::simulate).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scenario {
    /// The signaling connection is closed. It is resumed under the same sid.
    SignalLost,
    /// The server closes the next signaling connection as soon as it is open.
    SignalLostAtResume,
    /// The server closes the next three signaling connections before it sends a message.
    SignalLostBeforeResume,
    /// The server drops the participant's state, as if its node had failed.
    NodeFailure,
    /// The server asks the participant to migrate to another node.
    Migration,
    /// The server disconnects the participant as it does when it is stopped in order.
    ServerLeave,
    /// The server asks for a full reconnect. LiveKit 1.13.5 ignores this request.
    FullReconnect,
    /// The server offers only TCP candidates, starting with the next ICE restart.
    SwitchToTcp,
    /// The server requires a TURN relay over TLS, starting with the next join. It does this by itself when other paths have
    /// failed. Use this only with a LiveKit server that has its own TURN/TLS relay.
    SwitchToTls,
}

impl Scenario {
    /// Returns the request to send, or `None` if the client simulates the failure itself.
    pub(crate) fn request(self) -> Option<signal_request::Message> {
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
