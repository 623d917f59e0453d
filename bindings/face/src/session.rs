//! One session in plain types.

use std::collections::VecDeque;

use toolbridge::{
    CallId, Identity,
    clock::Instant,
    engine::Engine,
    session::{self as core, JobKey, SelectionKey},
    tools::{Offer, ReportError},
    transport::{Form, StreamPart, TransportEvent},
    vocabulary::{
        CallError, Create, Event, Id, Input, Known, LateResult, LeftOut, Malformed, OfferedTool, Output,
        Participant, Peer, Query, Record, Reply, Role, Tool,
        clock::Clock,
        from_core,
        to_core::{self, Call},
    },
};

use crate::names::Names;

type Result<T> = std::result::Result<T, Malformed>;

/// One end of the protocol in plain types: see [`toolbridge::session::Session`].
///
/// After each [`handle`](Self::handle), a driver calls [`next_output`](Self::next_output) until it returns `None`, does what each
/// output says, and passes [`Input::Timeout`] at [`next_deadline`](Self::next_deadline).
#[derive(Debug)]
pub struct Session {
    engine: Engine,
    clock: Clock,
    names: Names,
    /// The outcomes of calls that were refused at once.
    refused: VecDeque<Output>,
    /// A larger packet is sent as a byte stream, in bytes.
    max_packet: usize,
    /// The events that are outputs; `None`: all. Each that nobody listens to would cost a text, and in a shell its reading.
    heard: Option<Vec<String>>,
}

impl Session {
    /// Creates a session. `at` is in milliseconds since the driver's zero point, as in all inputs.
    ///
    /// # Errors
    /// The seed does not have 32 bytes, or the configuration has an unknown name.
    pub fn create(at: f64, create: Create) -> Result<Self> {
        let clock = Clock::begin();
        let now = clock.instant(at)?;
        let seed = create.seed.try_into().map_err(|_| Malformed::new("has not 32 bytes").of("seed"))?;
        let local = create.local.into_core();
        let has_queue = create.config.has_queue;
        let config = create.config.into_core().map_err(|error| error.of("config"))?;
        let max_packet = config.caps.frames.max_packet;
        let role = match create.role {
            Role::Client => toolbridge::Role::Client,
            Role::Assistant => toolbridge::Role::Assistant,
        };
        let engine = Engine::new(now, role, local, config, seed, has_queue);
        Ok(Self { engine, clock, names: Names::default(), refused: VecDeque::new(), max_packet, heard: None })
    }

    /// Handles an input. Some inputs have a reply.
    ///
    /// # Errors
    /// The input is malformed. It had no effect.
    pub fn handle(&mut self, at: f64, input: Input) -> Result<Option<Reply>> {
        let now = self.clock.instant(at)?;
        let core = self.engine.session(now);
        match input {
            Input::ParticipantJoined { participant } => {
                core.handle_event(now, TransportEvent::Joined(participant.into_core()));
            }
            Input::ParticipantLeft { peer } => core.handle_event(now, TransportEvent::Left(peer.to_core())),
            Input::Connection { state } => core.handle_event(now, to_core::connection_state(state)),
            Input::Rejoined { local, present } => {
                let present = present.into_iter().map(Participant::into_core).collect();
                self.engine.handle_rejoined(now, local.into_core(), present);
            }
            Input::Closed { reason } => self.engine.handle_closed(now, reason.into_core()),
            Input::Packet { from, lane, topic, bytes } => {
                core.handle_event(now, to_core::packet(from.as_ref(), lane, topic, bytes));
            }
            Input::StreamHeader { from, id, topic, length, attributes } => {
                let part = to_core::header(&id, topic, length, attributes);
                return Ok(Some(self.stream(now, &from, part)));
            }
            Input::StreamChunk { from, id, index, bytes } => {
                return Ok(Some(self.stream(now, &from, to_core::chunk(&id, index, bytes))));
            }
            Input::StreamTrailer { from, id, reason } => {
                self.stream(now, &from, to_core::trailer(&id, reason));
            }
            Input::Unreadable { from, why } => {
                core.handle_event(now, to_core::unreadable(from.as_ref(), why))
            }
            Input::Backlog { size } => {
                core.handle_backlog(now, usize::try_from(size).unwrap_or(usize::MAX));
            }
            Input::SendFailed { packet, why, size, max, text } => {
                self.engine.handle_send_failed(now, packet, to_core::send_failure(why, size, max, text));
            }
            Input::Timeout {} => self.engine.handle_timeout(now),
            Input::Progress { key, status, message, content } => {
                let progress = to_core::progress(status, message, content.as_ref());
                core.progress(now, JobKey::from_number(key), progress);
            }
            Input::Settle { key, value, error } => {
                let outcome = to_core::outcome(value.as_ref(), error);
                self.engine.settle(now, JobKey::from_number(key), outcome);
            }
            Input::Consent { key, allowed } => core.consent(now, JobKey::from_number(key), allowed),
            Input::Select { key, identity } => {
                core.select(now, SelectionKey::from_number(key), identity.map(Into::into));
            }
            Input::Cancel { id } => {
                if let Some(key) = self.names.call(&id) {
                    core.cancel(now, key);
                }
            }
            Input::Detach { id } => {
                // No output tells the end of the call, so its name is free now.
                if let Some(key) = self.names.call(&id) {
                    core.detach(now, key);
                    self.names.end(key);
                }
            }
            Input::BargeIn { turn } => {
                let turn = self.names.turn(&turn, || core.turn());
                core.barge_in(now, turn);
            }
            Input::TurnEnd { turn } => {
                let turn = self.names.turn(&turn, || core.turn());
                core.end_turn(turn);
            }
            Input::Expect { identity } => core.expect_client(now, &identity.into()),
            Input::StopExpecting { identity } => core.stop_expecting(&identity.into()),
            Input::Probe { identity } => core.probe_client(now, &identity.into()),
            Input::Listen { events } => self.heard = Some(Event::checked(events, &[])?),
            Input::Drain {} => core.drain(now),
            Input::Close {} => self.engine.close(now),
            Input::Offer { tools, partial } => return self.offer(now, tools, partial).map(Some),
            Input::Call { id, tool, arguments, model, to, timeout, owner_wait, meta, turn } => {
                self.call(now, id, Call { tool, arguments, model, to, timeout, owner_wait, meta }, turn)?;
            }
            Input::AskToStop { call } => {
                let call = call.as_deref().map(to_core::call_id).transpose()?;
                return Ok(Some(done(core.ask_to_stop(now, call.as_ref()))));
            }
            Input::ShowView { view, content, text } => {
                let content = to_core::body(&content).map_err(ReportError::Arguments);
                let shown = content.and_then(|content| core.show_view(now, &view, content, text));
                return Ok(Some(done(shown)));
            }
        }
        Ok(None)
    }

    /// Reports that a packet was sent: the next one can leave.
    ///
    /// # Errors
    /// The time is malformed.
    pub fn sent(&mut self, at: f64, packet: u64) -> Result<()> {
        self.engine.sent(self.clock.instant(at)?, packet);
        Ok(())
    }

    /// Reports that the function of a job begins. Returns false if the job has ended, and the function must not run.
    ///
    /// # Errors
    /// The time is malformed.
    pub fn start(&mut self, at: f64, job: u64) -> Result<bool> {
        Ok(self.engine.start(self.clock.instant(at)?, JobKey::from_number(job)))
    }

    /// Answers a question about the session's state.
    ///
    /// # Errors
    /// The question is malformed.
    pub fn query(&mut self, query: Query) -> Result<Reply> {
        let (core, clock) = (self.engine.state(), self.clock);
        Ok(match query {
            Query::Tools {} => {
                let offers = core.tools();
                let local = core.local().identity();
                let local = (core.role() == toolbridge::Role::Assistant).then_some(local);
                Reply::Tools { tools: offers.iter().map(|it| OfferedTool::from_core(it, local)).collect() }
            }
            Query::ModelTools {} => from_core::model_tools(&core.tools()),
            Query::Participants {} => {
                let participants = core.participants();
                Reply::Participants { participants: participants.iter().map(Participant::from).collect() }
            }
            Query::Stats {} => Reply::Stats { stats: from_core::stats(core.stats()) },
            Query::State {} => Reply::State {
                role: match core.role() {
                    toolbridge::Role::Assistant => Role::Assistant,
                    _ => Role::Client,
                },
                room: core.room().to_owned(),
                bound: core.bound().map(from_core::text),
                open_calls: core.open_calls() as u64,
                open_jobs: core.open_jobs() as u64,
                drained: core.is_drained(),
                registrations: core.registrations(),
            },
            Query::Records {} => {
                let records = core.records();
                Reply::Records { records: records.iter().map(|it| Record::from_core(it, clock)).collect() }
            }
            Query::Record { call } => {
                let record = core.record(&to_core::call_id(&call)?);
                Reply::Record { record: record.map(|it| Record::from_core(it, clock)) }
            }
            Query::Readiness { identity } => {
                let of = Identity::from(identity);
                from_core::readiness(&of, core.readiness(&of))
            }
            Query::WhyNotOffered { tool } => {
                Reply::WhyNotOffered { error: CallError::from(&core.why_not_offered(&tool)) }
            }
            Query::LateResults {} => {
                let results = self.engine.late_results();
                Reply::LateResults {
                    results: results.iter().map(|it| LateResult::from_core(it, None)).collect(),
                }
            }
            Query::IsWanted { packet } => Reply::IsWanted { wanted: core.is_wanted(packet) },
        })
    }

    /// Returns the next output, or `None` if there is none.
    pub fn next_output(&mut self) -> Option<Output> {
        if let Some(refused) = self.refused.pop_front() {
            return Some(refused);
        }
        loop {
            let output = match self.engine.poll_output()? {
                // No configuration of this crate makes a session call by LiveKit's RPC.
                core::Output::Transmit(packet) if packet.form != Form::Data => continue,
                core::Output::Transmit(packet) => Output::transmit(packet, self.max_packet),
                core::Output::Execute(job) => Output::execute(&job, self.clock),
                core::Output::Ask(question) => Output::ask(&question, self.clock),
                core::Output::Select(selection) => Output::select(&selection),
                core::Output::Abort { key, reason } => {
                    Output::Abort { key: key.number(), reason: reason.into() }
                }
                core::Output::Settled { key, result } => match self.names.end(key) {
                    Some(id) => Output::result(id, &result),
                    None => continue,
                },
                core::Output::Event(event) => match self.told(event) {
                    Some(output) => output,
                    None => continue,
                },
            };
            return Some(output);
        }
    }

    /// Returns the output for an event, if somebody hears it.
    fn told(&self, event: toolbridge::Event) -> Option<Output> {
        if let toolbridge::Event::Progress { key: Some(key), call, progress } = event {
            let id = self.names.of(key).filter(|_| self.hears("progress"))?;
            return Some(Output::progress(id.clone(), &call, progress));
        }
        let known = Open { names: &self.names, core: self.engine.state() };
        let event = Event::from_core(event, &known)?;
        self.hears(event.name()).then_some(Output::Event { event })
    }

    /// Returns when [`Input::Timeout`] is due, in milliseconds since the driver's zero point.
    pub fn next_deadline(&self) -> Option<f64> {
        self.engine.poll_timeout().map(|at| self.clock.time(at))
    }

    fn stream(&mut self, now: Instant, from: &Peer, part: StreamPart) -> Reply {
        Reply::Stream { wanted: self.engine.handle_stream(now, &from.to_core(), part) }
    }

    fn hears(&self, event: &str) -> bool {
        self.heard.as_ref().is_none_or(|heard| heard.iter().any(|name| name == event))
    }

    fn offer(&mut self, now: Instant, tools: Vec<Result<Tool>>, partial: bool) -> Result<Reply> {
        let (mut read, mut malformed) = (Vec::new(), Vec::new());
        for (at, tool) in tools.into_iter().enumerate() {
            let name = tool.as_ref().ok().map(|tool| tool.name.clone());
            match tool.and_then(Tool::into_core).map_err(|error| error.of(&format!("[{at}]")).of("tools")) {
                Ok(tool) => read.push(tool),
                Err(error) if partial => malformed.push(LeftOut { tool: name, why: error.to_string() }),
                Err(error) => return Err(error),
            }
        }
        let tools = read;
        let left_out = if partial {
            let left_out = self.engine.session(now).offer_allowed(now, tools);
            let left_out = left_out.iter().map(|(tool, why)| LeftOut {
                tool: Some(tool.as_str().to_owned()),
                ..LeftOut::from_core(why)
            });
            malformed.into_iter().chain(left_out).collect()
        } else {
            self.engine.session(now).offer(now, tools).err().iter().map(LeftOut::from_core).collect()
        };
        Ok(Reply::Offered { left_out })
    }

    fn call(&mut self, now: Instant, id: Id, call: Call, turn: Option<Id>) -> Result<()> {
        if self.names.call(&id).is_some() {
            return Err(Malformed::new("is that of an open call").of("id"));
        }
        let core = self.engine.session(now);
        let request = call.into_core(|| core.tools())?;
        let turn = turn.map(|turn| self.names.turn(&turn, || core.turn()));
        let asked = request.and_then(|mut request| {
            request.turn = turn;
            core.call(now, request)
        });
        match asked {
            Ok(key) => {
                let call = core.call_id(key).cloned();
                self.names.begin(id, key, call);
            }
            Err(error) => self.refused.push_back(Output::result(id, &Err(error))),
        }
        Ok(())
    }
}

/// What a session knows of an event.
struct Open<'a> {
    names: &'a Names,
    core: &'a core::Session,
}

impl Known for Open<'_> {
    fn id_of(&self, call: &CallId) -> Option<Id> {
        self.names.of_call(call)
    }

    fn offers(&self) -> Vec<Offer> {
        self.core.tools()
    }
}

fn done<E: std::fmt::Display>(result: std::result::Result<(), E>) -> Reply {
    match result {
        Ok(()) => Reply::Done {},
        Err(error) => Reply::Failed { message: error.to_string() },
    }
}
