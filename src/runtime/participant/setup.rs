//! Holds the settings of a participant, and starts it.

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use super::{
    CallBuilder, DRAIN, Handle, JoinError, Shared,
    consent::AskPerson,
    descriptions::{self, CutDescription},
    driver::{Driver, NoteEnd, Offering, Recorded},
    now,
    poll_both::run_both,
    report,
    rules::Rules,
    spans::Propagation,
};
use crate::{
    protocol::session::{Config, Session},
    runtime::{
        executor::{Executor, Reports},
        functions::Tools,
        source::{AnySource, Asker},
    },
    tool::{RegisterError, ToolName},
    transport::{Capabilities, Participant, Role, Transport, TransportEvent, send_queue::SendQueue},
};

pub(super) struct Setup {
    pub(super) functions: Tools<()>,
    pub(super) sources: Vec<Arc<dyn AnySource>>,
    /// The source that answers prompts: at a client those of the assistant, and of its tools; at an assistant those of its
    /// tools alone.
    pub(super) prompts: Option<Arc<dyn AnySource>>,
    pub(super) config: Config,
    /// The author's rules about participants.
    pub(super) rules: Rules,
    pub(super) drain: Duration,
    /// The handler that asks a person before a tool runs.
    pub(super) consent: Option<AskPerson>,
    /// The author's trace propagation.
    pub(super) propagation: Propagation,
    /// The first invalid setting, which is reported when joining.
    pub(super) problem: Option<RegisterError>,
    #[cfg(feature = "livekit")]
    pub(super) room: crate::livekit::ConnectOptions,
    /// The file to record to.
    #[cfg(feature = "record")]
    pub(super) record: Option<std::path::PathBuf>,
    #[cfg(feature = "record")]
    pub(super) record_options: crate::recording::RecorderOptions,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            functions: Tools::new(),
            sources: Vec::new(),
            prompts: None,
            config: Config::default(),
            rules: Rules::default(),
            drain: DRAIN,
            consent: None,
            propagation: Propagation::default(),
            problem: None,
            #[cfg(feature = "livekit")]
            room: crate::livekit::ConnectOptions::default(),
            #[cfg(feature = "record")]
            record: None,
            #[cfg(feature = "record")]
            record_options: crate::recording::RecorderOptions::default(),
        }
    }
}

impl Setup {
    /// Checks everything that does not need the room, and then creates the file of the recording: a participant that cannot join
    /// must not evict an earlier one of its identity, nor replace a file.
    pub(super) fn prepare(self, role: Role, capabilities: Capabilities) -> Result<Prepared, JoinError> {
        let tools = self.executor()?;
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(|error| {
            let system = error.raw_os_error().map(std::io::Error::from_raw_os_error);
            JoinError::Random(system.unwrap_or_else(|| std::io::Error::other(error.to_string())))
        })?;
        // A session for the check alone: the room is not known yet.
        let mut session =
            self.session(role, Participant::new("checked", ""), capabilities, String::new(), seed);
        offer(&mut session, &tools.0)?;
        #[cfg(feature = "record")]
        let recorder = match &self.record {
            Some(path) => {
                let options = recorded_as(self.record_options.clone(), role, &tools.0.tools());
                Some(crate::recording::Recorder::create(path, options)?)
            }
            None => None,
        };
        Ok(Prepared {
            setup: self,
            role,
            tools,
            seed,
            #[cfg(feature = "record")]
            recorder,
        })
    }

    fn session(
        &self,
        role: Role,
        local: Participant,
        capabilities: Capabilities,
        room: String,
        seed: [u8; 32],
    ) -> Session {
        let config = self
            .config
            .clone()
            .room(room)
            .max_packet(capabilities.max_packet)
            .streams(capabilities.streams)
            .lossy(capabilities.lossy)
            .compress(capabilities.compress)
            .overhead(capabilities.overhead)
            .consent_available(self.consent.is_some());
        match role {
            Role::Assistant => Session::assistant(now(), local, config, seed),
            Role::Client | Role::Observer => Session::client(now(), local, config, seed),
        }
    }

    /// Refuses a token with another role, and logs what limits its bearer in this one.
    #[cfg(feature = "livekit")]
    pub(super) fn check_token(&self, token: &str, wanted: Role) -> Result<(), JoinError> {
        let Some(part) = crate::livekit::token::access_token::TokenClaims::from_unverified(token) else {
            return Ok(());
        };
        if let Some(bearer) = part.conflict(wanted) {
            return Err(JoinError::WrongToken { bearer, wanted });
        }
        for warning in part.warnings(wanted) {
            tracing::warn!("{warning}");
        }
        Ok(())
    }

    fn executor(&self) -> Result<(Executor, Reports), RegisterError> {
        if let Some(problem) = &self.problem {
            return Err(problem.clone());
        }
        let caps = &self.config.caps;
        let mut sources: Vec<Arc<dyn AnySource>> = vec![Arc::new(self.functions.clone())];
        sources.extend(self.sources.iter().cloned());
        let (mut executor, reports) =
            Executor::with_caps(sources, caps.requests.running_jobs, caps.requests.waiting_jobs)?;
        if let Some(prompts) = self.prompts.as_ref().filter(|_| self.config.prompts) {
            executor.answer_prompts(prompts);
        }
        Ok((executor, reports))
    }
}

/// The queue that a transport empties by itself, and the work that does it. It ends after the transport was dropped.
pub(super) type SelfSending = (SendQueue, Pin<Box<dyn Future<Output = ()> + Send>>);

#[expect(clippy::disallowed_methods, reason = "the participant's one task; it ends when it has left")]
fn spawn(work: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(work);
}

/// What a session does not show of the tools that it offers.
struct Offered {
    /// The tools that are left out.
    refused: Vec<(ToolName, RegisterError)>,
    /// The tools whose descriptions are cut.
    cut: Vec<CutDescription>,
}

/// Offers the tools.
fn offer(session: &mut Session, executor: &Executor) -> Result<Offered, RegisterError> {
    let mut tools = executor.tools();
    let cut = descriptions::cut(&mut tools, session.tool_caps(), |tool| executor.is_optional(tool));
    let refused = session.offer_and_explain(now(), tools, executor.left_out());
    // A limit that the user has set is an error even if the tool could be left out.
    let is_fatal = |(tool, why): &&(ToolName, RegisterError)| {
        !executor.is_optional(tool) || matches!(why, RegisterError::Patience { .. })
    };
    match refused.iter().find(is_fatal) {
        Some((_, why)) => Err(why.clone()),
        None => session.check_rpc_tools().map(|()| Offered { refused, cut }),
    }
}

/// A participant that can join: its settings are checked, and the file of its recording exists. Dropping it removes that again.
pub(super) struct Prepared {
    setup: Setup,
    role: Role,
    tools: (Executor, Reports),
    seed: [u8; 32],
    #[cfg(feature = "record")]
    recorder: Option<crate::recording::Recorder>,
}

impl Prepared {
    /// Starts the participant on a transport that is in its room.
    #[cfg_attr(not(feature = "record"), expect(unused_mut, reason = "only a recorder is taken out"))]
    pub(super) fn join<T: Transport>(
        mut self,
        transport: T,
        sending: Option<SelfSending>,
    ) -> Result<Arc<Handle>, JoinError> {
        #[cfg(feature = "record")]
        if let Some(recorder) = self.recorder.take() {
            let (outcome, hide, watch) = (recorder.outcome(), recorder.hiding(), recorder.watch());
            let offering: Offering = Box::new(move |tools| undisclosed(tools).for_each(&hide));
            let note = recorder.noting();
            let note_end: NoteEnd = Box::new(move |record, error| note(end_event(record, error)));
            let ended = recorder.outcome();
            let recorded: Recorded = Box::pin(async move { drop(ended.await) });
            let told = (Some(offering), Some(note_end), Some(recorded));
            let streams = transport.capabilities().streams;
            let rpc = self.setup.config.answer_rpc.then(|| crate::recording::RoomEvent::AnswersRpc {
                assistant: self.setup.config.assistant.clone(),
                callers: self.setup.config.rpc_callers.iter().cloned().collect(),
                streams,
            });
            let note_rpc = recorder.noting();
            let handle = self.enter(transport, sending, told, |transport| {
                let tap = recorder.tap(transport);
                rpc.map(note_rpc);
                tap
            })?;
            handle.0.lock().recorder = Some(watch);
            tell_of_its_end(&handle, outcome);
            return Ok(handle);
        }
        self.enter(transport, sending, (None, None, None), |transport| transport)
    }

    /// `tap` is called when nothing can fail any more.
    fn enter<T: Transport, U: Transport>(
        self,
        transport: T,
        sending: Option<SelfSending>,
        (offering, note_end, recorded): (Option<Offering>, Option<NoteEnd>, Option<Recorded>),
        tap: impl FnOnce(T) -> U,
    ) -> Result<Arc<Handle>, JoinError> {
        let Self { setup, role, tools: (mut executor, reports), seed, .. } = self;
        let (local, room) = (transport.local(), transport.room());
        let mut session = setup.session(role, local, transport.capabilities(), room, seed);
        // `prepare` has checked the same tools; only what the transport says is new.
        let Offered { refused, cut } = match offer(&mut session, &executor) {
            Ok(offered) => offered,
            Err(why) => {
                // It leaves the room, because the transport is dropped.
                let _ = sending.map(|(_, work)| spawn(work));
                return Err(why.into());
            }
        };
        let transport = tap(transport);
        for participant in transport.present() {
            session.handle_event(now(), TransportEvent::Joined(setup.rules.evaluate(participant)));
        }
        let shared = Shared::new(session, setup.propagation);
        shared.set_left_out([executor.left_out(), &refused].concat());
        shared.set_renamed(executor.renamed());
        shared.set_cut(cut);
        shared.set_unchecked(executor.unchecked());
        shared.set_notes(executor.notes());
        shared.set_sources(executor.statuses());
        let handle = Arc::new(Handle(Arc::clone(&shared)));
        executor.ask_with(asker(role, setup.prompts, &handle));
        executor.report_with((role == Role::Assistant).then(|| report::reporter(&shared)));
        let (queue, work) = sending.unzip();
        let driver = Driver::new(Arc::clone(&shared), transport, queue, (executor, reports), setup.drain)
            .with_rules(setup.rules)
            .with_consent(setup.consent)
            .on_changed_tools(offering)
            .on_unasked_call(note_end)
            .with_recording_end(recorded);
        match work {
            Some(work) => spawn(run_both(Box::pin(driver.run()), work)),
            None => spawn(driver.run()),
        }
        Ok(handle)
    }
}

/// Returns what asks a person on behalf of a running tool: the prompt function, or, at an assistant without one, a client.
fn asker(role: Role, prompts: Option<Arc<dyn AnySource>>, handle: &Arc<Handle>) -> Option<Asker> {
    if role != Role::Assistant || prompts.is_some() {
        let prompts = prompts?;
        return Some(Arc::new(move |tool, parameters, context| {
            let prompts = Arc::clone(&prompts);
            Box::pin(async move { prompts.execute(&tool, parameters, context).await })
        }));
    }
    // A handle would keep the participant in the room.
    let handle = Arc::downgrade(handle);
    Some(Arc::new(move |tool, parameters, context| {
        let handle = handle.upgrade();
        Box::pin(async move {
            let handle = handle.ok_or("nobody can be asked: the assistant is leaving")?;
            let limit = context.time_left().min(handle.0.lock().session.longest_call());
            Ok(CallBuilder::new(handle, tool.as_str(), &parameters).timeout(limit).await?)
        })
    }))
}

/// Returns the recording's metadata: this participant, and which of its tools are not disclosed.
#[cfg(feature = "record")]
fn recorded_as(
    mut options: crate::recording::RecorderOptions,
    role: Role,
    tools: &[crate::tool::Tool],
) -> crate::recording::RecorderOptions {
    options.role.get_or_insert(role);
    for tool in undisclosed(tools) {
        options.redact = options.redact.hiding(tool);
    }
    options
}

/// Records a call that ended before a participant was asked, or without its owner's answer.
#[cfg(feature = "record")]
fn end_event(
    record: &crate::protocol::session::CallRecord,
    error: &crate::tool::CallError,
) -> crate::recording::RoomEvent {
    let code = crate::tool::ToolError::code_of(error).to_string();
    if record.owner.is_some() {
        return crate::recording::RoomEvent::Ended { call: record.id.to_string(), code };
    }
    let took = record.settled.map(|settled| settled.saturating_duration_since(record.requested));
    crate::recording::RoomEvent::Unasked {
        call: record.id.to_string(),
        tool: record.tool.clone(),
        code,
        message: error.to_string(),
        took_ms: took.map_or(0, |took| u64::try_from(took.as_millis()).unwrap_or(u64::MAX)),
    }
}

/// Returns the tools that do not disclose everything to observers.
#[cfg(feature = "record")]
fn undisclosed(tools: &[crate::tool::Tool]) -> impl Iterator<Item = &str> {
    let hides = |tool: &&crate::tool::Tool| tool.tool_options().disclose != crate::tool::Visibility::Full;
    tools.iter().filter(hides).map(|tool| tool.name().as_str())
}

/// Reports a recording that ended early as an event.
#[cfg(feature = "record")]
fn tell_of_its_end(handle: &Handle, outcome: impl Future<Output = Option<String>> + Send + 'static) {
    let shared = Arc::downgrade(&handle.0);
    #[expect(
        clippy::disallowed_methods,
        reason = "it ends with the recording, which ends with the transport"
    )]
    tokio::spawn(async move {
        if let (Some(reason), Some(shared)) = (outcome.await, shared.upgrade()) {
            let event = crate::protocol::session::Event::RecordingStopped { reason };
            let mut inner = shared.lock();
            if let Some(events) = &inner.events {
                let _ = events.send(event.clone()); // there may be no receiver
            }
            inner.recording_stopped = Some(event);
        }
    });
}

impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setup")
            .field("functions", &self.functions)
            .field("sources", &self.sources.len())
            .field("prompts", &self.prompts.is_some())
            .field("config", &self.config)
            .field("drain", &self.drain)
            .field("consent", &self.consent.is_some())
            .finish_non_exhaustive()
    }
}
