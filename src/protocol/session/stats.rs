//! Counters by kind: what a session saw, and what it would not take.

use std::fmt;

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// What is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Counter {
            $($(#[$doc])* $variant,)*
        }

        impl Counter {
            /// All counters, in the order in which they are shown.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Its name, as statistics and reports show it.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

counters! {
    /// Packets that came in.
    FramesIn = "frames_in",
    /// Packets that went out.
    FramesOut = "frames_out",
    /// Bytes of the packets that came in.
    BytesIn = "bytes_in",
    /// Bytes of the packets that went out.
    BytesOut = "bytes_out",
    /// Packets that the transport would not take.
    SendFailed = "send_failed",
    /// Calls that we asked for.
    Calls = "calls",
    /// Jobs that we began.
    Jobs = "jobs",
    /// Bytes that are no frame, or a frame without what its type needs.
    Malformed = "malformed",
    /// Frames from a sender without an identity.
    NoSender = "no_sender",
    /// Frames from somebody who has no part in what we do.
    Unauthorized = "unauthorized",
    /// Frames from a known peer that had no right to send them.
    NotPermitted = "not_permitted",
    /// Results of calls that were settled before.
    Late = "late",
    /// Frames that repeat what was taken before.
    Duplicate = "duplicate",
    /// Participants with a role that they could have given themselves: it is not believed.
    UntrustedRole = "untrusted_role",
    /// Frames of types that are not ours.
    UnknownType = "unknown_type",
    /// Such frames that were too large to be handed to the application.
    FrameTooLarge = "frame_too_large",
    /// Frames from a sid that was replaced or left.
    StaleSid = "stale_sid",
    /// Frames that came after their sender's goodbye.
    AfterGoodbye = "after_goodbye",
    /// Frames that waited for their sender's announcement or Configuration.
    Held = "held",
    /// Frames that waited too long, or found no place to wait.
    HoldExpired = "hold_expired",
    /// Requests refused with `busy`.
    Busy = "busy",
    /// Requests refused with 301 or 304.
    Refused = "refused",
    /// Frames of another conversation.
    WrongRoom = "wrong_room",
    /// Progress dropped because it came too often or was too large.
    ProgressDropped = "progress_dropped",
    /// Registrations refused, wholly or in part.
    RegistrationRefused = "registration_refused",
    /// Signs of life that were asked for.
    Pings = "pings",
    /// Byte streams refused: of nobody whom we know, too many at once, or too long.
    StreamRefused = "stream_refused",
    /// Byte streams given up: a chunk was missing, the length was wrong, or they did not go on.
    StreamBroken = "stream_broken",
    /// Byte streams that their sender abandoned.
    StreamAbandoned = "stream_abandoned",
    /// Chunks and trailers of no stream that was taken.
    StreamUnknown = "stream_unknown",
    /// Frames that went out on the fast lane.
    FastFrames = "fast_frames",
    /// Packets on the fast lane that repeat a frame.
    FastRetries = "fast_retries",
    /// Reliable copies of frames of the fast lane.
    FastCopies = "fast_copies",
    /// Reliable copies that were held back, since too much waited on the reliable lane.
    FastCopiesHeld = "fast_copies_held",
    /// Late results that nobody took in time.
    LateDropped = "late_dropped",
    /// Frames that were sent again because their peer came back and had not acknowledged them.
    Retransmitted = "retransmitted",
    /// Frames whose stanza was not higher than all before under this pair of sids: repeated, replayed or overtaken.
    /// They are judged by what they say, not by their stanza.
    OutOfOrder = "out_of_order",
}

/// The counters of one session. All begin at 0 and only rise.
#[derive(Clone, PartialEq, Eq)]
pub struct Stats([u64; Counter::ALL.len()]);

impl Stats {
    /// How often this was seen.
    pub fn count(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// How often the counter of this name was seen; 0 for a name that is none.
    pub fn named(&self, name: &str) -> u64 {
        Counter::ALL.iter().find(|counter| counter.as_str() == name).map_or(0, |counter| self.count(*counter))
    }

    /// All counters and their names.
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
    fn counters_have_names_and_begin_at_zero() {
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
