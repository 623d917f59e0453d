//! Defines the facts about participants that delivery depends on. [`Peers`](super::peers::Peers) provides
//! them.

use crate::transport::Identity;

/// The recipients of frames. For an unknown participant each condition is false.
pub(super) trait Recipients {
    /// Returns whether frames other than a Configuration may be sent to it.
    fn is_reachable(&self, id: &Identity) -> bool;

    /// Returns whether both Configurations have arrived.
    fn is_crossed(&self, id: &Identity) -> bool;

    /// Returns whether it has shown its instance.
    fn shows_instance(&self, id: &Identity) -> bool;

    /// Returns whether it uses the handshake and lists this feature.
    fn lists(&self, id: &Identity, feature: Feature) -> bool;

    /// Returns whether frames that exceed a packet may be sent to it, as byte streams.
    fn takes_large_frames(&self, id: &Identity) -> bool;

    /// Returns the participants that are sent copies.
    fn observers(&self) -> Vec<Identity>;
}

/// An extension of the protocol that a peer may list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    /// Types 6 and 7, which every participant supports.
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
    /// The reason in type 10 with a `targetId`.
    StopReason = 1 << 9,
    /// Type 1001.
    View = 1 << 10,
    /// Compressed frames.
    Deflate = 1 << 11,
}

impl Feature {
    /// All features with their names in a Configuration. The local participant lists those that its configuration allows.
    pub(crate) const ALL: &[(Self, &str)] = &[
        (Self::Use, "tool_use"),
        (Self::Register, "tool_register"),
        (Self::Progress, "tool_progress"),
        (Self::Cancel, "tool_cancel"),
        (Self::Claim, "tool_claim"),
        (Self::Ack, "tool_ack"),
        (Self::Prompt, "tool_prompt"),
        (Self::Stream, "frame_stream"),
        (Self::FastLane, "fast_lane"),
        (Self::StopReason, "stop_reason"),
        (Self::View, "view_update"),
        (Self::Deflate, "deflate"),
    ];
}
