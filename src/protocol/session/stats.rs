//! Counts by kind what a session sent, received and rejected.

use std::fmt;

use crate::transport::Unreadable;

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// A kind of counted occurrence.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Counter {
            $($(#[$doc])* $variant,)*
        }

        impl Counter {
            /// All counters, in display order.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the counter's name in statistics and reports.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

counters! {
    /// Packets received.
    FramesIn = "frames_in",
    /// Packets sent.
    FramesOut = "frames_out",
    /// Bytes of received packets.
    BytesIn = "bytes_in",
    /// Bytes of sent packets.
    BytesOut = "bytes_out",
    /// Packets that the transport did not accept.
    SendFailed = "send_failed",
    /// Calls requested by the local participant.
    Calls = "calls",
    /// Jobs started by the local participant.
    Jobs = "jobs",
    /// Packets that are not frames, or frames that lack fields of their type.
    Malformed = "malformed",
    /// Frames from a sender without an identity.
    NoSender = "no_sender",
    /// Frames from a participant that has no role in the session.
    Unauthorized = "unauthorized",
    /// Frames from a known peer that had no right to send them.
    NotPermitted = "not_permitted",
    /// Results of calls that were settled before.
    Late = "late",
    /// Frames that repeat an accepted frame.
    Duplicate = "duplicate",
    /// Participants with a role that they could have set themselves. The role is ignored.
    UntrustedRole = "untrusted_role",
    /// Frames of types that the session does not handle.
    UnknownType = "unknown_type",
    /// Such frames that were too large for the application.
    FrameTooLarge = "frame_too_large",
    /// Frames from a sid that was replaced or has left.
    StaleSid = "stale_sid",
    /// Frames that came after their sender's goodbye.
    AfterGoodbye = "after_goodbye",
    /// Frames that waited for their sender's announcement or Configuration.
    Held = "held",
    /// Frames that waited too long or exceeded the limit on waiting frames.
    HoldExpired = "hold_expired",
    /// Requests refused with `busy`.
    Busy = "busy",
    /// Requests refused with code 301 or 304.
    Refused = "refused",
    /// Frames of another conversation.
    WrongRoom = "wrong_room",
    /// Progress dropped because it came too often or was too large.
    ProgressDropped = "progress_dropped",
    /// Registrations refused, wholly or in part.
    RegistrationRefused = "registration_refused",
    /// Pings sent.
    Pings = "pings",
    /// Byte streams refused: from an unknown sender, too many at once, or too long.
    StreamRefused = "stream_refused",
    /// Byte streams dropped: a chunk was missing, the length was wrong, or no chunk arrived in time.
    StreamBroken = "stream_broken",
    /// Byte streams whose payload is not the one that their header announces: another participant may have changed it.
    StreamChanged = "stream_changed",
    /// Byte streams that their sender abandoned.
    StreamAbandoned = "stream_abandoned",
    /// Chunks and trailers that belong to no accepted stream.
    StreamUnknown = "stream_unknown",
    /// Frames sent on the fast lane.
    FastFrames = "fast_frames",
    /// Packets on the fast lane that repeat a frame, because it was not answered in time.
    FastRetries = "fast_retries",
    /// Second packets of frames on the fast lane, sent soon after the first because packets were being lost.
    FastDoubles = "fast_doubles",
    /// Reliable copies of frames of the fast lane.
    FastCopies = "fast_copies",
    /// Reliable copies that were held back because too many bytes waited on the reliable lane.
    FastCopiesHeld = "fast_copies_held",
    /// Acknowledgements of results that requests on the fast lane carried.
    CarriedAcks = "carried_acks",
    /// Late results that were dropped before the application took them.
    LateDropped = "late_dropped",
    /// Reports of calls and views that exceeded a limit.
    ReportRefused = "report_refused",
    /// Unacknowledged frames that were sent again after their peer came back.
    Retransmitted = "retransmitted",
    /// Registrations, their answers and states of views that had no effect because a later one had arrived.
    OutOfOrder = "out_of_order",
    /// Packets that are encrypted end to end, although the local participant has no key.
    Encrypted = "encrypted",
    /// Packets that are not encrypted, although the local participant has a key.
    NotEncrypted = "not_encrypted",
    /// Encrypted packets that the local key does not open: of another key or key index, or changed.
    Undecryptable = "undecryptable",
}

impl Counter {
    /// Returns why packets cannot be read, if this counter is about that. Its text says what a person can do.
    pub fn unreadable(self) -> Option<Unreadable> {
        Self::UNREADABLE.into_iter().find(|(what, _)| *what == self).map(|(_, why)| why)
    }

    /// What counts packets that cannot be read.
    pub(super) const UNREADABLE: [(Self, Unreadable); 3] = [
        (Self::Encrypted, Unreadable::Encrypted),
        (Self::NotEncrypted, Unreadable::NotEncrypted),
        (Self::Undecryptable, Unreadable::Undecryptable),
    ];
}

/// The counters of one session. They start at 0 and never decrease.
#[derive(Clone, PartialEq, Eq)]
pub struct Stats([u64; Counter::ALL.len()]);

impl Stats {
    /// Returns the counter's value.
    pub fn count(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// Returns the value of the counter of this name, or 0 if there is none.
    pub fn named(&self, name: &str) -> u64 {
        Counter::ALL.iter().find(|counter| counter.as_str() == name).map_or(0, |counter| self.count(*counter))
    }

    /// Iterates over all counters and their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Counter::ALL.iter().map(|counter| (counter.as_str(), self.count(*counter)))
    }

    pub(super) fn add(&mut self, counter: Counter, times: usize) {
        let slot = &mut self.0[counter as usize];
        *slot = slot.saturating_add(times as u64);
    }
}

impl Default for Stats {
    fn default() -> Self {
        Self([0; Counter::ALL.len()])
    }
}

impl fmt::Debug for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().filter(|(_, count)| *count > 0)).finish()
    }
}

impl fmt::Display for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_names_and_start_at_zero() {
        let mut stats = Stats::default();
        stats.add(Counter::NotPermitted, 3);
        assert_eq!(
            (stats.count(Counter::NotPermitted), stats.named("not_permitted"), stats.named("nothing")),
            (3, 3, 0)
        );
        assert_eq!(format!("{stats:?}"), r#"{"not_permitted": 3}"#);
        assert_eq!(stats.iter().count(), Counter::ALL.len());
    }
}
