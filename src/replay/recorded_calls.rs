//! Reads the tools and calls of a recording for a live replay.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use super::{LiveError, MAX_BYTES, MAX_ENTRIES, script::DecodedFrame, setup::tools};
use crate::{
    protocol::frame::{Message, ToolProgress, ToolUseRequest, ToolUseResult},
    recording::{CallUpdate, CallsBuilder, Entry, Happened, Moment, RPC_TOPIC, RecordedCall},
    tool::{CallId, DEFAULT_TIMEOUT, ErrorCode, Execution, Progress, ProgressStatus, Tool, ToolName},
    transport::{Identity, STREAM_TOPIC, TOPIC},
    value::Value,
};

/// A stop this shortly before the limit, or later, counts as the limit.
const AT_THE_LIMIT: Duration = Duration::from_millis(100);

/// The most tools that are kept of a file; a participant offers no more than 128.
const MAX_TOOLS: usize = 1_024;

/// Error codes with which a client leaves a call to others.
const DECLINED: [ErrorCode; 4] =
    [ErrorCode::UNKNOWN_TOOL, ErrorCode::BUSY, ErrorCode::CANCELLED, ErrorCode::LOST];

/// The client-executed calls of a recording, in the order in which they were asked.
#[derive(Debug, Default)]
pub(super) struct RecordedCalls {
    /// The last registered definition of each tool.
    pub(super) tools: Vec<Tool>,
    pub(super) calls: Vec<ClientCall>,
}

/// A recorded call to a client.
#[derive(Debug)]
pub(super) struct ClientCall {
    /// The place of its request in the file.
    pub(super) entry: usize,
    pub(super) id: CallId,
    pub(super) tool: String,
    /// The client that was asked, if the file shows it.
    pub(super) owner: Option<Identity>,
    pub(super) asked: Moment,
    /// None if redacted.
    pub(super) parameters: Option<Value>,
    pub(super) limit: Duration,
    /// The progress of its owner, with the time since the request.
    pub(super) steps: Vec<(Duration, Progress)>,
    /// When its caller stopped it.
    stopped: Option<Moment>,
    /// When it was answered, and what.
    answer: Option<(Moment, RecordedAnswer)>,
}

/// An owner's answer.
#[derive(Clone, Debug)]
pub(super) struct RecordedAnswer {
    pub(super) success: bool,
    pub(super) value: Option<Value>,
    pub(super) code: ErrorCode,
    pub(super) message: String,
    /// It is redacted.
    pub(super) redacted: bool,
    /// The tool had started, although the code suggests otherwise.
    began: bool,
}

/// How a call ended for its caller.
#[derive(Debug)]
pub(super) enum Ending<'a> {
    Answered(&'a RecordedAnswer),
    /// It reached its limit.
    TimedOut,
    /// Its caller stopped it.
    Stopped,
    /// The file has no end: its owner was lost, or the recording ended.
    Open,
}

impl RecordedCalls {
    pub(super) fn read(entries: impl IntoIterator<Item = Entry>) -> Result<Self, LiveError> {
        let (mut reader, mut bytes) = (Reader::default(), 0_usize);
        for (index, entry) in entries.into_iter().enumerate() {
            if let Happened::Packet(packet) = &entry.what {
                bytes = bytes.saturating_add(packet.payload.len());
            }
            if index >= MAX_ENTRIES || bytes > MAX_BYTES {
                return Err(LiveError::TooLarge { entries: MAX_ENTRIES, bytes: MAX_BYTES });
            }
            reader.push(index, &entry);
        }
        let recorded = reader.finish();
        if recorded.calls.is_empty() { Err(LiveError::NoCalls) } else { Ok(recorded) }
    }

    /// Whether a client registered this tool as destructive.
    pub(super) fn is_destructive(&self, tool: &str) -> bool {
        self.tools.iter().any(|it| it.name().as_str() == tool && it.tool_options().destructive)
    }
}

impl ClientCall {
    pub(super) fn ending(&self) -> Ending<'_> {
        match (self.stopped, &self.answer) {
            (Some(stopped), answer) if answer.as_ref().is_none_or(|(at, _)| stopped < *at) => {
                let at_limit = stopped.since(self.asked).saturating_add(AT_THE_LIMIT) >= self.limit;
                if at_limit { Ending::TimedOut } else { Ending::Stopped }
            }
            (_, Some((_, answer))) => Ending::Answered(answer),
            (_, None) => Ending::Open,
        }
    }

    /// Whether its tool began, as far as its caller knows: some failures prove that it did not (`wire.md`, section 5.10).
    pub(super) fn began(&self) -> bool {
        let proof = |it: &RecordedAnswer| !it.success && !it.began && it.code.proves_that_nothing_ran();
        !matches!(self.ending(), Ending::Answered(answer) if proof(answer))
    }

    /// When it ended for its caller, if the file has its end.
    pub(super) fn ended(&self) -> Option<Moment> {
        match (self.stopped, self.answer.as_ref().map(|(at, _)| *at)) {
            (Some(stopped), Some(answered)) => Some(stopped.min(answered)),
            (one, other) => one.or(other),
        }
    }

    /// How long it took.
    pub(super) fn took(&self) -> Option<Duration> {
        self.ended().map(|at| at.since(self.asked))
    }
}

/// Reads entries.
#[derive(Default)]
struct Reader {
    builder: CallsBuilder,
    calls: BTreeMap<u64, ClientCall>,
    tools: Vec<Tool>,
    /// The index of each tool.
    places: HashMap<ToolName, usize>,
    /// Progress already read: sent on two lanes, it occurs twice.
    heard: BTreeSet<(u64, u32)>,
}

impl Reader {
    fn push(&mut self, index: usize, entry: &Entry) {
        let told = self.builder.push_decoded(index, entry, None);
        let Happened::Packet(packet) = &entry.what else { return };
        if !["", TOPIC, STREAM_TOPIC, RPC_TOPIC].contains(&packet.topic.as_str()) {
            return;
        }
        let Some(decoded) = DecodedFrame::read(&packet.payload) else { return };
        match (&decoded.message, told) {
            (Message::ToolsRegister(it), _) => {
                let some = &it.tools[..it.tools.len().min(MAX_TOOLS)];
                tools(some).into_iter().for_each(|it| self.offer(it));
            }
            (
                Message::ToolUseRequest(it),
                Some((serial, CallUpdate::Requested | CallUpdate::RequestRepeated)),
            ) => {
                self.calls.entry(serial).or_insert_with(|| ClientCall::new(index, entry.at, it, &decoded));
            }
            (Message::ToolUseResult(it), Some((serial, CallUpdate::Settled | CallUpdate::ResultChanged))) => {
                if let Some(call) = self.calls.get_mut(&serial).filter(|call| call.answer.is_none()) {
                    call.answer = Some((entry.at, RecordedAnswer::new(it, &decoded)));
                }
            }
            (Message::ToolProgress(it), Some((serial, CallUpdate::Other))) => {
                self.step(serial, entry.at, it, &decoded)
            }
            (Message::ControlStop(_), Some((serial, CallUpdate::Stopped))) => {
                if let Some(call) = self.calls.get_mut(&serial) {
                    call.stopped.get_or_insert(entry.at);
                }
            }
            _ => {}
        }
    }

    fn offer(&mut self, tool: Tool) {
        if let Some(known) = self.places.get(tool.name()).and_then(|place| self.tools.get_mut(*place)) {
            *known = tool;
        } else if !tool.name().is_reserved() && self.tools.len() < MAX_TOOLS {
            self.places.insert(tool.name().clone(), self.tools.len());
            self.tools.push(tool);
        }
    }

    fn step(&mut self, serial: u64, at: Moment, it: &ToolProgress, decoded: &DecodedFrame) {
        let Some(call) = self.calls.get_mut(&serial).filter(|call| call.answer.is_none()) else { return };
        // A start is reported by the runner itself, and redacted progress has no content.
        let is_bare = it.status == ProgressStatus::InProgress && it.message.is_none() && it.content.is_none();
        let is_new = decoded.stanza().is_none_or(|stanza| self.heard.insert((serial, stanza)));
        if is_bare || decoded.is_redacted() || !is_new {
            return;
        }
        let mut step = Progress::started();
        (step.status, step.message, step.content) = (it.status, it.message.clone(), it.content.clone());
        call.steps.push((at.since(call.asked), step));
    }

    fn finish(mut self) -> RecordedCalls {
        let mut calls = Vec::new();
        for (serial, mut call) in std::mem::take(&mut self.calls) {
            let folded = self.builder.call(serial).filter(|it| is_of_a_client(it, &call));
            let Some(folded) = folded else { continue };
            call.owner.clone_from(&folded.owner);
            calls.push(call);
        }
        calls.sort_by_key(|call| call.entry);
        // If recording started after the registration, or by an observer, only the name is known.
        for call in &calls {
            let runs = matches!(call.ending(), Ending::Answered(it) if it.code != ErrorCode::UNKNOWN_TOOL);
            if let Some(name) = call.tool.parse::<ToolName>().ok().filter(|_| runs)
                && !self.places.contains_key(&name)
            {
                self.offer(Tool::new(name, ""));
            }
        }
        RecordedCalls { tools: self.tools, calls }
    }
}

impl ClientCall {
    fn new(entry: usize, asked: Moment, it: &ToolUseRequest, decoded: &DecodedFrame) -> Self {
        let limit = it.timeout_ms.map(|limit| Duration::from_millis(u64::try_from(limit).unwrap_or(0)));
        Self {
            entry,
            id: it.id.clone(),
            tool: it.tool_name.clone(),
            owner: None,
            asked,
            parameters: (!decoded.is_redacted()).then(|| it.parameters.clone()),
            limit: limit.unwrap_or(DEFAULT_TIMEOUT),
            steps: Vec::new(),
            stopped: None,
            answer: None,
        }
    }
}

impl RecordedAnswer {
    fn new(it: &ToolUseResult, decoded: &DecodedFrame) -> Self {
        Self {
            success: it.success,
            value: it.result.clone(),
            code: it.error_code.clone().unwrap_or(ErrorCode::EXECUTION_ERROR),
            message: it.error_message.clone().unwrap_or_default(),
            redacted: decoded.is_redacted(),
            began: decoded.frame.meta_bool("bridge.began"),
        }
    }
}

/// Whether a client was to run it and, if the assistant could have run it as well, accepted it.
fn is_of_a_client(call: &RecordedCall, client_call: &ClientCall) -> bool {
    match call.execution {
        Some(Execution::Client) => true,
        Some(Execution::Either)
            if call.owner.as_ref().is_some_and(|owner| Some(owner) != call.caller.as_ref()) =>
        {
            // A call that the assistant then ran itself may be missing from the file if its tool discloses nothing.
            let says_no = |it: &RecordedAnswer| !it.success && DECLINED.contains(&it.code);
            call.started.is_some() || client_call.answer.as_ref().is_some_and(|(_, it)| !says_no(it))
        }
        _ => false,
    }
}
