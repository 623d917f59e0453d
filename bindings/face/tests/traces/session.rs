//! Types with the methods of toolbridge's own, which record what they are given.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    mem,
    ops::Deref,
    time::{Duration, Instant},
};

use toolbridge::{
    CallError, Caps, Event, Identity, Outcome, Progress, Role, Times, Tool,
    engine::Engine,
    session::{self as core, CallKey, JobKey, Output, Request, SelectionKey, SendFailure, TurnKey},
    tools::{ProgressStatus as CoreStatus, RegisterError},
    transport::{Participant, TransportEvent},
};
use toolbridge_face as face;
use toolbridge_face::{Id, Input, Json, JsonSession, NumberSetting, Query, TimeSetting, trace::Recorder};

thread_local! {
    static TRACES: RefCell<Vec<Result<String, String>>> = const { RefCell::new(Vec::new()) };
}

/// Takes the traces of the sessions that have ended on this thread.
pub(crate) fn take_traces() -> Vec<Result<String, String>> {
    TRACES.with(|traces| mem::take(&mut *traces.borrow_mut()))
}

/// A configuration in both forms.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    core: toolbridge::Config,
    plain: face::Config,
    calls_rpc: bool,
}

impl Default for Config {
    fn default() -> Self {
        let plain = face::Config {
            room: None,
            assistant: None,
            admit: Vec::new(),
            admit_only_roles: false,
            pins: Vec::new(),
            choose: face::Choose::Nobody,
            prompts: false,
            consent_available: false,
            version: None,
            lossy: false,
            streams: false,
            fast_lane: true,
            compress: false,
            max_packet: None,
            overhead: 0,
            times: Vec::new(),
            has_queue: false,
            caps: Vec::new(),
        };
        Self { core: toolbridge::Config::default().expand(false), plain, calls_rpc: false }
    }
}

impl Config {
    pub(crate) fn room(mut self, name: &str) -> Self {
        self.plain.room = Some(name.to_owned());
        self.core = self.core.room(name);
        self
    }

    pub(crate) fn caps(mut self, caps: Caps) -> Self {
        self.plain.caps = caps_by_name(&caps);
        self.core = self.core.caps(caps);
        self
    }

    pub(crate) fn times(mut self, times: Times) -> Self {
        self.plain.times = times_by_name(&times);
        self.core = self.core.times(times);
        self
    }

    pub(crate) fn lossy(mut self, lossy: bool) -> Self {
        self.plain.lossy = lossy;
        self.core = self.core.lossy(lossy);
        self
    }

    pub(crate) fn streams(mut self, streams: bool) -> Self {
        self.plain.streams = streams;
        self.core = self.core.streams(streams);
        self
    }

    /// Does nothing: the bindings are built without the feature `deflate`.
    pub(crate) fn compress(self, _: bool) -> Self {
        self
    }

    pub(crate) fn consent_available(mut self, available: bool) -> Self {
        self.plain.consent_available = available;
        self.core = self.core.consent_available(available);
        self
    }

    pub(crate) fn prompts(mut self, answered: bool) -> Self {
        self.plain.prompts = answered;
        self.core = self.core.prompts(answered);
        self
    }

    pub(crate) fn admit_only_roles(mut self) -> Self {
        self.plain.admit_only_roles = true;
        self.core = self.core.admit_only_roles();
        self
    }

    pub(crate) fn assistant(mut self, identity: &str) -> Self {
        self.plain.assistant = Some(identity.to_owned());
        self.core = self.core.assistant(identity);
        self
    }

    pub(crate) fn admit(mut self, identity: String) -> Self {
        self.plain.admit.push(identity.clone());
        self.core = self.core.admit(identity);
        self
    }

    pub(crate) fn rpc_tool(mut self, owner: &str, tool: Tool) -> Self {
        self.calls_rpc = true;
        self.core = self.core.rpc_tool(owner, tool);
        self
    }

    pub(crate) fn rpc_probe(mut self, probes: bool) -> Self {
        self.core = self.core.rpc_probe(probes);
        self
    }
}

/// Lists fields with their names.
macro_rules! by_name {
    ($entry:ident, $value:expr, $($group:expr => [$($field:ident),* $(,)?]),* $(,)?) => {
        vec![$($($entry { name: camel(stringify!($field)), value: $value($group.$field as _) },)*)*]
    };
}

fn caps_by_name(caps: &Caps) -> Vec<NumberSetting> {
    by_name!(NumberSetting, |number: u64| number,
        caps.frames => [
            max_packet, max_incoming, max_frame, max_frame_of_others, streams_per_peer, stream_bytes, held_frames,
            held_bytes, held_frames_of_all, retransmit_frames, retransmit_bytes, id_bytes,
        ],
        caps.calls => [open_per_peer, open_calls, open_bytes, equal_calls, late_results, late_bytes, call_log],
        caps.requests => [
            calls_per_second, table_entries, table_bytes, remembered_peers, running_jobs, waiting_jobs,
            progress_per_second, progress_bytes, message_bytes, open_questions, open_prompts,
        ],
        caps.tools => [count, description_bytes, schema_bytes, registration_bytes],
    )
}

/// Returns the name of a field as a key.
fn camel(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |key, word| format!("{key}{}{}", word[..1].to_uppercase(), &word[1..]))
}

fn times_by_name(times: &Times) -> Vec<TimeSetting> {
    let of = |name: &str, time: Duration| TimeSetting { name: camel(name) + "Ms", value: millis(time) };
    vec![
        of("call", times.call),
        of("longest_call", times.longest_call),
        of("owner_wait", times.owner_wait),
        of("grace", times.grace),
        of("heartbeat", times.heartbeat),
        of("memory", times.memory),
        of("hold", times.hold),
        of("silence", times.silence),
        of("rpc_silence", times.rpc_silence),
        of("announcement", times.announcement),
        of("stream_idle", times.stream_idle),
        of("stream", times.stream),
        of("claim", times.claim),
        of("denial", times.denial),
    ]
}

/// A session in both forms. What is only read is that of toolbridge's own.
#[derive(Debug)]
pub(crate) struct Session {
    core: Engine,
    now: Instant,
    /// How many calls were made.
    calls: u64,
    shadow: Option<Shadow>,
}

/// The session in plain types, which gets each input as JSON, and its trace.
#[derive(Debug)]
struct Shadow {
    /// The driver's zero point.
    zero: Instant,
    session: JsonSession,
    recorder: Recorder,
    /// The names of the calls.
    names: BTreeMap<CallKey, u64>,
    failure: Option<String>,
}

impl Deref for Session {
    type Target = core::Session;

    fn deref(&self) -> &core::Session {
        self.core.state()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(Shadow { recorder, failure, .. }) = self.shadow.take() {
            let trace = failure.map_or_else(|| Ok(recorder.finish()), Err);
            TRACES.with(|traces| traces.borrow_mut().push(trace));
        }
    }
}

impl Session {
    pub(crate) fn client(now: Instant, local: Participant, config: Config, seed: [u8; 32]) -> Self {
        let shadow = Shadow::new(now, face::Role::Client, &local, &config, seed);
        let core = Engine::new(now, Role::Client, local, config.core, seed, config.plain.has_queue);
        Self { core, now, calls: 0, shadow }
    }

    pub(crate) fn assistant(now: Instant, local: Participant, config: Config, seed: [u8; 32]) -> Self {
        let shadow = Shadow::new(now, face::Role::Assistant, &local, &config, seed);
        let core = Engine::new(now, Role::Assistant, local, config.core, seed, config.plain.has_queue);
        Self { core, now, calls: 0, shadow }
    }

    pub(crate) fn handle_event(&mut self, now: Instant, event: TransportEvent) {
        match Input::from_event(&event) {
            Some(input) => self.input(now, &input),
            None => self.shadow = None, // a message of LiveKit's RPC, which the bindings do not carry
        }
        match event {
            TransportEvent::Closed(reason) => self.core.handle_closed(now, reason),
            TransportEvent::Stream { from, part } => drop(self.core.handle_stream(now, &from, part)),
            event => self.core.session(now).handle_event(now, event),
        }
    }

    pub(crate) fn handle_rejoined(&mut self, now: Instant, local: Participant, present: Vec<Participant>) {
        let input =
            Input::Rejoined { local: (&local).into(), present: present.iter().map(Into::into).collect() };
        self.input(now, &input);
        self.core.handle_rejoined(now, local, present);
    }

    pub(crate) fn handle_backlog(&mut self, now: Instant, bytes: usize) {
        self.input(now, &Input::Backlog { size: bytes as u64 });
        self.core.session(now).handle_backlog(now, bytes);
    }

    pub(crate) fn handle_send_failed(&mut self, now: Instant, id: u64, why: SendFailure) {
        self.input(now, &Input::from_failure(id, &why));
        self.core.handle_send_failed(now, id, why);
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.input(now, &Input::Timeout {});
        self.core.handle_timeout(now);
    }

    pub(crate) fn offer(&mut self, now: Instant, tools: Vec<Tool>) -> Result<(), RegisterError> {
        self.input(
            now,
            &Input::Offer { tools: tools.iter().map(|tool| Ok(tool.into())).collect(), partial: false },
        );
        self.core.session(now).offer(now, tools)
    }

    pub(crate) fn call(&mut self, now: Instant, request: Request) -> Result<CallKey, CallError> {
        assert!(request.meta.is_empty(), "the recorder does not write metadata");
        self.calls += 1;
        let id = self.calls;
        let input = Input::Call {
            id: Id::of_number(id),
            tool: request.tool.clone(),
            arguments: json(&request.arguments),
            model: false,
            to: request.owner.as_ref().map(|owner| owner.as_str().to_owned()),
            timeout: request.timeout.map(millis),
            owner_wait: request.owner_wait.map(millis),
            meta: Vec::new(),
            turn: request.turn.map(|turn| Id::of_number(turn.number())),
        };
        self.input(now, &input);
        let called = self.core.session(now).call(now, request);
        match (&called, &mut self.shadow) {
            (Ok(key), Some(shadow)) => drop(shadow.names.insert(*key, id)),
            (Err(error), Some(shadow)) => shadow.refused(id, error),
            (_, None) => {}
        }
        called
    }

    pub(crate) fn cancel(&mut self, now: Instant, key: CallKey) {
        if let Some(id) = self.id_of(key) {
            self.input(now, &Input::Cancel { id });
        }
        self.core.session(now).cancel(now, key);
    }

    pub(crate) fn detach(&mut self, now: Instant, key: CallKey) {
        if let Some(id) = self.id_of(key) {
            self.input(now, &Input::Detach { id });
        }
        self.core.session(now).detach(now, key);
    }

    fn id_of(&self, key: CallKey) -> Option<Id> {
        let id = self.shadow.as_ref()?.names.get(&key)?;
        Some(Id::of_number(*id))
    }

    pub(crate) fn settle(&mut self, now: Instant, key: JobKey, outcome: Outcome) {
        let key_number = key.number();
        let input = match &outcome {
            Ok(value) => Input::Settle { key: key_number, value: Some(json(value)), error: None },
            Err(error) => {
                let error = face::ToolFailure {
                    code: error.code().as_str().to_owned(),
                    message: error.message().to_owned(),
                    partial: error.partial().map(json),
                    cause: error.source().map(ToString::to_string),
                };
                Input::Settle { key: key_number, value: None, error: Some(Ok(error)) }
            }
        };
        self.input(now, &input);
        self.core.settle(now, key, outcome);
    }

    pub(crate) fn progress(&mut self, now: Instant, key: JobKey, progress: Progress) {
        self.now = now;
        if self.start(key) {
            return; // the first progress of a job says that its function begins
        }
        let input = Input::Progress {
            key: key.number(),
            status: match progress.status {
                CoreStatus::Pending => face::ProgressStatus::Pending,
                CoreStatus::Completed => face::ProgressStatus::Completed,
                CoreStatus::Failed => face::ProgressStatus::Failed,
                _ => face::ProgressStatus::InProgress,
            },
            message: progress.message.clone(),
            content: progress.content.as_ref().map(json),
        };
        self.input(now, &input);
        self.core.session(now).progress(now, key, progress);
    }

    pub(crate) fn consent(&mut self, now: Instant, key: JobKey, allowed: bool) {
        self.input(now, &Input::Consent { key: key.number(), allowed });
        self.core.session(now).consent(now, key, allowed);
    }

    pub(crate) fn select(&mut self, now: Instant, key: SelectionKey, named: Option<Identity>) {
        let identity = named.as_ref().map(|named| named.as_str().to_owned());
        self.input(now, &Input::Select { key: key.number(), identity });
        self.core.session(now).select(now, key, named);
    }

    pub(crate) fn turn(&mut self) -> TurnKey {
        self.core.session(self.now).turn()
    }

    pub(crate) fn barge_in(&mut self, now: Instant, turn: TurnKey) {
        self.input(now, &Input::BargeIn { turn: Id::of_number(turn.number()) });
        self.core.session(now).barge_in(now, turn);
    }

    pub(crate) fn drain(&mut self, now: Instant) {
        self.input(now, &Input::Drain {});
        self.core.session(now).drain(now);
    }

    pub(crate) fn close(&mut self, now: Instant) {
        self.input(now, &Input::Close {});
        self.core.close(now);
        if let Some(shadow) = &mut self.shadow {
            // At the end, everything that can be asked.
            for query in
                [Query::Tools {}, Query::Participants {}, Query::Stats {}, Query::State {}, Query::Records {}]
            {
                shadow.input(&query.to_json());
            }
        }
    }

    pub(crate) fn poll_output(&mut self) -> Option<Output> {
        let output = self.core.poll_output();
        let deadline = self.core.poll_timeout();
        if let Some(shadow) = &mut self.shadow {
            shadow.compare(output.as_ref(), deadline);
        }
        if let Some(Output::Transmit(packet)) = &output {
            self.sent(packet.id); // it leaves at once
        }
        output
    }

    fn sent(&mut self, packet: u64) {
        self.core.sent(self.now, packet);
        if let Some(shadow) = &mut self.shadow {
            let at = millis(self.now.duration_since(shadow.zero));
            shadow.session.sent(at, packet).expect("the time is valid");
            shadow.recorder.sent(at, packet);
        }
    }

    fn start(&mut self, job: JobKey) -> bool {
        let may_start = self.core.start(self.now, job);
        if let Some(shadow) = &mut self.shadow {
            let at = millis(self.now.duration_since(shadow.zero));
            let started = shadow.session.start(at, job.number()).expect("the time is valid");
            shadow.recorder.start(at, job.number(), started);
            if started != may_start {
                shadow.fail(format!("job {} may start: {may_start}, and {started} is found", job.number()));
            }
        }
        may_start
    }

    fn input(&mut self, now: Instant, input: &Input) {
        self.now = now;
        if let Some(shadow) = &mut self.shadow {
            shadow.input(&input.to_timed_json(millis(now.duration_since(shadow.zero))));
        }
    }
}

impl Shadow {
    /// Creates the session. None if the configuration is one that the bindings do not have.
    fn new(
        now: Instant,
        role: face::Role,
        local: &Participant,
        config: &Config,
        seed: [u8; 32],
    ) -> Option<Self> {
        if config.calls_rpc {
            return None;
        }
        let create =
            face::Create { role, local: local.into(), seed: seed.into(), config: config.plain.clone() };
        // The zero point may be any moment before the first input.
        let offset = Duration::from_micros(1_234_567 + 1_001 * u64::from(seed[7]));
        let text = create.to_json(millis(offset));
        let session = JsonSession::create(&text).expect("it was written from plain types");
        let mut recorder = Recorder::default();
        recorder.input(&text);
        Some(Self { zero: now - offset, session, recorder, names: BTreeMap::new(), failure: None })
    }

    fn input(&mut self, text: &str) {
        let result = self.session.handle(text, None);
        if let Err(error) = &result {
            self.fail(format!("{text} is malformed: {error}"));
        }
        self.recorder.input(text);
        self.recorder.result(&result);
    }

    /// Compares and records the next output of both sessions.
    fn compare(&mut self, output: Option<&Output>, deadline: Option<Instant>) {
        let text = self.session.next_output();
        let expected = match output {
            Some(Output::Transmit(packet)) => {
                Some(format!("{{\"type\":\"transmit\",\"packet\":{},", packet.id))
            }
            Some(Output::Execute(job)) => Some(format!(
                "{{\"type\":\"execute\",\"key\":{},\"call\":\"{}\",\"caller\":\"{}\",\"tool\":\"{}\",\"arguments\":{},\"endsAtMs\":{},",
                job.key.number(),
                job.call.as_str(),
                job.caller,
                job.tool,
                job.arguments.to_json(),
                self.time(job.deadline),
            )),
            Some(Output::Ask(question)) => {
                Some(format!("{{\"type\":\"ask\",\"key\":{},", question.key.number()))
            }
            Some(Output::Select(selection)) => {
                Some(format!("{{\"type\":\"select\",\"key\":{},", selection.key.number()))
            }
            Some(Output::Abort { key, reason }) => Some(format!(
                "{{\"type\":\"abort\",\"key\":{},\"reason\":\"{}\"}}",
                key.number(),
                reason.as_str()
            )),
            Some(Output::Settled { key, result: Ok(value) }) => Some(format!(
                "{{\"type\":\"result\",\"id\":{},\"value\":{}",
                self.name(*key),
                value.to_json()
            )),
            Some(Output::Settled { key, result: Err(error) }) => Some(format!(
                "{{\"type\":\"result\",\"id\":{},\"error\":{{\"kind\":\"{}\",\"code\":\"{}\",",
                self.name(*key),
                face::CallError::from(error).kind.as_str(),
                error.code()
            )),
            Some(Output::Event(Event::Progress { key: Some(key), .. })) => {
                Some(format!("{{\"type\":\"progress\",\"id\":{},", self.name(*key)))
            }
            Some(Output::Event(_)) => Some("{\"type\":\"event\",\"event\":\"".to_owned()),
            None => None,
        };
        let is_equal = match (&expected, &text) {
            (Some(expected), Some(text)) => text.starts_with(expected),
            (None, None) => deadline.map(|deadline| self.time(deadline)) == self.session.next_deadline(),
            _ => false,
        };
        if !is_equal {
            self.fail(format!("{expected:?} is expected, and {text:?} is found"));
        }
        self.recorder.output(&mut self.session, text.as_deref());
    }

    /// Compares and records the outcome of a call that was refused at once.
    fn refused(&mut self, id: u64, error: &CallError) {
        let text = self.session.next_output();
        let kind = face::CallError::from(error).kind;
        let expected =
            format!("{{\"type\":\"result\",\"id\":{id},\"error\":{{\"kind\":\"{}\",", kind.as_str());
        if !text.as_ref().is_some_and(|text| text.starts_with(&expected)) {
            self.fail(format!("{expected:?} is expected, and {text:?} is found"));
        }
        self.recorder.output(&mut self.session, text.as_deref());
    }

    fn name(&self, key: CallKey) -> u64 {
        self.names.get(&key).copied().unwrap_or_default()
    }

    fn time(&self, at: Instant) -> f64 {
        at.duration_since(self.zero).as_nanos().div_ceil(1_000) as f64 / 1_000.0
    }

    fn fail(&mut self, failure: String) {
        self.failure.get_or_insert(failure);
    }
}

fn json(value: &toolbridge::Value) -> Json {
    Json { text: value.to_json_text() }
}

fn millis(time: Duration) -> f64 {
    time.as_micros() as f64 / 1_000.0
}
