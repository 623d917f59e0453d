//! Records the packets that a subcommand receives into a file.

use std::{
    collections::{HashSet, VecDeque},
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{task::spawn_blocking, time::Instant};

use crate::cli::terminal::{failure::Failure, file, text};
use toolbridge::{
    CallId, Role,
    frame::{Frame, Message},
    recording::{Recorder, RecorderOptions, RecorderStats, Tap},
    transport::{Transport, TransportEvent},
};

/// The maximum number of remembered calls: more than can be open at once.
const MAX_REMEMBERED: usize = 4_096;

/// The maximum length of the id of a counted call, in bytes; readers of the file ignore longer ones too.
const MAX_ID: usize = 256;

/// A recording in progress.
pub(in crate::cli) struct RecordingFile {
    path: PathBuf,
    recorder: Recorder,
    began: Instant,
    calls: Counted,
}

impl RecordingFile {
    /// Creates the file.
    pub(in crate::cli) fn begin(
        path: &Path,
        options: RecorderOptions,
        hidden: bool,
    ) -> Result<Self, Failure> {
        let options = options.role(Role::Observer);
        let options = if hidden { options.hidden() } else { options };
        let recorder = Recorder::create(path, options).map_err(|error| file::refused(path, &error))?;
        Ok(Self { path: path.to_owned(), recorder, began: Instant::now(), calls: Counted::default() })
    }

    /// Wraps a transport so that its packets are recorded.
    pub(in crate::cli) fn tap<T: Transport>(&self, transport: T) -> Tap<T> {
        self.recorder.tap(transport)
    }

    /// Counts the call of a received packet. A byte stream counts as one packet.
    pub(in crate::cli) fn count(&mut self, event: &TransportEvent) {
        let TransportEvent::Packet(packet) = event else { return };
        match Frame::decode(packet.payload.clone()).and_then(|frame| frame.message()) {
            Ok(Message::ToolUseRequest(request)) => self.calls.see(&request.id),
            Ok(Message::ToolUseResult(result)) => self.calls.see(&result.id),
            _ => {}
        }
    }

    /// Describes the recording so far.
    pub(in crate::cli) fn status(&self) -> String {
        let stats = self.recorder.stats();
        let held = self.held(stats.recorded);
        format!("{held}, {} unrecorded{}", stats.unrecorded, left_out(&stats))
    }

    /// Waits until the recorder stops, for example because the disk is full.
    pub(in crate::cli) async fn stopped(&self) {
        self.recorder.ended().await;
    }

    /// Finishes the file and returns a summary.
    pub(in crate::cli) async fn finish(self) -> Result<String, Failure> {
        let recorder = self.recorder.clone();
        // Finishing rewrites the whole file; a second signal does not wait for it.
        let finished = spawn_blocking(move || recorder.finish()).await.map_err(Failure::failed)?;
        let path = self.path.display();
        finished.map_err(|error| Failure::Failed(format!("{path}: {error}{}", file::left_of(&self.path))))?;
        let stats = self.recorder.stats();
        let size = size(self.path.metadata()?.len());
        let missing = match stats.unrecorded {
            0 => String::new(),
            missing => format!("; {} not recorded", text::counted(missing, "frame")),
        };
        Ok(format!("{path}: {}, {size}{missing}{}", self.held(stats.recorded), left_out(&stats)))
    }

    fn held(&self, frames: u64) -> String {
        let (frames, calls) = (text::counted(frames, "frame"), text::counted(self.calls.count, "call"));
        format!("{frames}, {calls}, {}", span(self.began.elapsed()))
    }
}

/// Says how many packets of participants without rights were left out, if any.
fn left_out(stats: &RecorderStats) -> String {
    match stats.left_out {
        0 => String::new(),
        count => format!("; {count} of participants without rights left out"),
    }
}

/// Counts calls. A call is counted twice if a frame of it arrives long after its end.
#[derive(Debug, Default)]
struct Counted {
    count: u64,
    ids: HashSet<CallId>,
    oldest: VecDeque<CallId>,
}

impl Counted {
    fn see(&mut self, id: &CallId) {
        if id.as_str().len() > MAX_ID || !self.ids.insert(id.clone()) {
            return;
        }
        self.count += 1;
        self.oldest.push_back(id.clone());
        if self.oldest.len() > MAX_REMEMBERED
            && let Some(oldest) = self.oldest.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }
}

fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    match (seconds / 3_600, seconds / 60 % 60, seconds % 60) {
        (0, 0, _) => format!("{:.1} s", span.as_secs_f64()),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_once_with_bounded_memory() {
        let mut calls = Counted::default();
        for n in 0..10_000 {
            let id = CallId::try_from(format!("call {n}")).unwrap();
            calls.see(&id);
            calls.see(&id);
        }
        calls.see(&CallId::try_from("x".repeat(MAX_ID + 1)).unwrap());
        assert_eq!(
            (calls.count, calls.ids.len(), calls.oldest.len()),
            (10_000, MAX_REMEMBERED, MAX_REMEMBERED)
        );
    }

    #[test]
    fn durations_and_sizes_are_formatted_for_people() {
        assert_eq!(
            (text::counted(1, "frame"), text::counted(0, "call")),
            ("1 frame".to_owned(), "0 calls".to_owned())
        );
        let spans = [1_250, 59_940, 61_000, 7_380_000].map(|millis| span(Duration::from_millis(millis)));
        assert_eq!(spans, ["1.2 s", "59.9 s", "1 min 1 s", "2 h 3 min"]);
        assert_eq!([512, 12_345, 3_000_000].map(size), ["512 B", "12.3 kB", "3.0 MB"]);
    }
}
