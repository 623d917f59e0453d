//! Injects faults that cannot be provoked with livekit-server, for tests.

/// The injected faults; none by default.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// The ping interval and timeout in the join response, in seconds.
    pub(super) ping: Option<[i32; 2]>,
    /// Refuse every resume.
    pub(super) refuse_resume: bool,
    /// Report in a resume that no packets have arrived.
    pub(super) forget_sequences: bool,
    /// The number of reliable packets to drop after their delivery to the server was acknowledged.
    pub(super) drop_reliable: u32,
    /// Set the sequence of each forwarded packet to 1.
    pub(super) reset_sequences: bool,
    /// The number of SDP answers to send to each participant; later ones are dropped.
    pub(super) max_answers: Option<u32>,
    /// Neither read nor send datagrams.
    pub(super) frozen: bool,
    /// Ignore all signaling requests.
    pub(super) ignore_requests: bool,
}
