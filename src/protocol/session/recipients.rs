//! What delivery has to know of the participants that it sends to. [`Peers`](super::peers::Peers) knows it.

use crate::transport::Identity;

/// The participants that frames are sent to. What is asked of an unknown one is false.
pub(super) trait Recipients {
    /// Whether anything but a Configuration may be sent to it.
    fn is_reachable(&self, id: &Identity) -> bool;

    /// Whether both Configurations have arrived.
    fn is_crossed(&self, id: &Identity) -> bool;

    /// Whether it has shown which run of its program it is.
    fn shows_instance(&self, id: &Identity) -> bool;

    /// Whether it speaks with the handshake and lists this feature.
    fn lists(&self, id: &Identity, feature: Feature) -> bool;

    /// Whether frames that exceed a packet may be sent to it, as byte streams.
    fn takes_large_frames(&self, id: &Identity) -> bool;

    /// The participants that are sent copies.
    fn observers(&self) -> Vec<Identity>;
}

/// An extension of the protocol that a peer may list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    /// Types 6 and 7, as everybody has them.
    Use = 1 << 0,
    /// Types 70 to 72.
    Register = 1 << 1,
    /// Type 1000.
    Progress = 1 << 2,
    /// Type 10 with a `targetId`.
    Cancel = 1 << 3,
    /// Type 8 for 6, 7 and 10.
    Ack = 1 << 4,
    /// Claims of `either` calls.
    Claim = 1 << 5,
    /// Prompts to a person.
    Prompt = 1 << 6,
    /// Frames as byte streams.
    Stream = 1 << 8,
    /// Small frames on `_lossy` first.
    FastLane = 1 << 7,
}

impl Feature {
    /// All features. The local participant lists those that its configuration allows.
    pub(crate) const ALL: &[Self] = &[
        Self::Use,
        Self::Register,
        Self::Progress,
        Self::Cancel,
        Self::Claim,
        Self::Ack,
        Self::Prompt,
        Self::Stream,
        Self::FastLane,
    ];

    /// Its name in a Configuration.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Use => "tool_use",
            Self::Register => "tool_register",
            Self::Progress => "tool_progress",
            Self::Cancel => "tool_cancel",
            Self::Ack => "tool_ack",
            Self::Stream => "frame_stream",
            Self::FastLane => "fast_lane",
            Self::Claim => "tool_claim",
            Self::Prompt => "tool_prompt",
        }
    }
}
