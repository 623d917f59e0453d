//! Infers the setup of the recorded sessions from the file.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use super::script::{DecodedFrame, RecordedPacket, Step, What};
use crate::{
    protocol::{
        frame::{Kind, Message, RegisteredTool, ToolUseResult},
        session::{Config, SelectionPolicy},
    },
    recording::{Direction, RoomEvent, RpcRecord},
    tool::{Consent, Execution, Tool, ToolError, ToolOptions, Visibility},
    transport::{Identity, Participant, Peer, ROLE_ATTRIBUTE, Role},
};

/// The assistant's text when it refuses a client's tool.
const TAKEN: &str = ": the assistant offers a tool of this name itself";

/// What the file shows of one participant.
#[derive(Default)]
pub(super) struct Shown {
    pub(super) role: Option<Role>,
    /// It is a toolbridge participant: it sent a Configuration with an instance.
    pub(super) is_ours: bool,
    features: Vec<String>,
    version: Option<String>,
    /// The tools of its first registration.
    pub(super) offered: Option<Vec<RegisteredTool>>,
    /// The receiver of its first registration.
    assistant: Option<Identity>,
    /// The receivers of its Configurations, and whether their joins were recorded before.
    greeted: BTreeMap<Identity, bool>,
    /// Entries of handshakes with participants that it does not admit, caused by calls to them.
    pub(super) called: BTreeMap<usize, Identity>,
    /// Tools that it runs itself.
    own: BTreeMap<String, Own>,
    /// Tools that it lets clients offer.
    let_offer: BTreeSet<String>,
    /// Its calls of those tools.
    own_calls: BTreeMap<String, String>,
    /// The participants whose stops it accepted.
    stoppers: BTreeSet<Identity>,
    /// It answers calls by RPC.
    rpc: Option<AnswersRpc>,
    /// The tools that it ran for calls by RPC.
    called_by_rpc: BTreeSet<String>,
    /// Requests that it refused because they were for another instance.
    pub(super) for_others: BTreeSet<String>,
}

/// How a client answers calls by RPC.
#[derive(Clone)]
struct AnswersRpc {
    assistant: Option<Identity>,
    callers: Vec<Identity>,
    streams: bool,
}

/// A tool that an assistant runs itself.
#[derive(Default)]
struct Own {
    prefers_client: bool,
    /// Whether its result was broadcast, and with or without data.
    with_data: bool,
    without: bool,
}

/// The rights that an assistant gave to others.
#[derive(Default)]
pub(super) struct Rights {
    admitted: BTreeSet<Identity>,
    stoppers: BTreeSet<Identity>,
}

impl Rights {
    /// Notes a participant's rights in its description.
    pub(super) fn give(&self, who: Participant) -> Participant {
        let (is_admitted, may_stop) =
            (self.admitted.contains(who.identity()), self.stoppers.contains(who.identity()));
        who.admitted(is_admitted).allowed_to_stop(may_stop)
    }
}

/// The owner of the next call that names none.
#[derive(Clone, Default)]
pub(super) struct NextOwner(Arc<Mutex<Option<Identity>>>);

impl NextOwner {
    pub(super) fn set(&self, owner: Option<Identity>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = owner;
    }

    fn get(&self) -> Option<Identity> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// LiveKit's code for a method that is not offered.
const UNSUPPORTED: u32 = 1400;

/// An assistant sends a handshake to each participant it admits as soon as its join is reported.
const AT_ONCE: Duration = Duration::from_millis(500);

/// Returns a participant with the kind and the role that the file has of it.
pub(super) fn described(who: Participant, agent: bool, role: Option<&str>) -> Participant {
    let who = who.agent(agent);
    match role {
        Some(role) => who.attributes([(ROLE_ATTRIBUTE, role)]).can_update_metadata(false),
        None => who,
    }
}

/// What the file shows of each sender, by identity.
pub(super) fn survey(steps: &[Step], home: &Identity) -> BTreeMap<Identity, Shown> {
    let mut all = BTreeMap::<Identity, Shown>::new();
    let (mut announced, mut eligible) = (BTreeMap::new(), BTreeSet::new());
    let mut stops = BTreeSet::<(Identity, Option<u32>)>::new();
    let mut registered = BTreeMap::<Identity, Vec<String>>::new();
    let mut methods = BTreeMap::<(Identity, String), String>::new();
    for step in steps {
        match &step.what {
            What::Event(RoomEvent::Joined { identity, agent, role, .. }) => {
                let is_client = role.as_deref().and_then(Role::from_text) == Some(Role::Client);
                announced.entry(identity.clone()).or_insert((step.at, is_client));
                let who = described(Participant::new(identity.clone(), ""), *agent, role.as_deref());
                if who.is_eligible_assistant() {
                    eligible.insert(identity.clone());
                }
            }
            What::Event(RoomEvent::AnswersRpc { assistant, callers, streams }) => {
                let shown = all.entry(home.clone()).or_default();
                let (assistant, callers) = (assistant.clone(), callers.clone());
                shown.rpc = Some(AnswersRpc { assistant, callers, streams: *streams });
                shown.role.get_or_insert(Role::Client);
            }
            What::Packet(packet) => {
                let (speaker, to) = ends_of(packet, home);
                let Some(decoded) = &packet.decoded else { continue };
                if let Some(rpc) = &packet.rpc {
                    match (rpc, packet.direction) {
                        (RpcRecord::Request { request, .. }, Direction::Heard) => {
                            let key = (speaker.clone(), request.id.clone());
                            methods.insert(key, request.method.clone());
                        }
                        (RpcRecord::Response(it), Direction::Sent) => {
                            let method = to.first().and_then(|to| methods.get(&(to.clone(), it.id.clone())));
                            let is_unknown =
                                it.outcome.as_ref().is_err_and(|error| error.code == UNSUPPORTED);
                            if let (Some(method), false) = (method, is_unknown) {
                                all.entry(home.clone()).or_default().called_by_rpc.insert(method.clone());
                            }
                        }
                        _ => {}
                    }
                    continue;
                }
                if let Message::ControlStop(_) = &decoded.message {
                    stops.insert((speaker.clone(), decoded.stanza()));
                }
                let shown = all.entry(speaker.clone()).or_default();
                shown.learn(decoded, to);
                match &decoded.message {
                    Message::ToolsRegister(it) => {
                        let names = it.tools.iter().map(|tool| tool.name.clone()).collect();
                        registered.insert(speaker.clone(), names);
                    }
                    Message::ToolsRegisterAck(it) => {
                        let error = it.error.as_deref().unwrap_or_default();
                        let is_refused =
                            |name: &String| error.split("; ").any(|it| it.starts_with(&format!("{name}: ")));
                        let names = to.iter().filter_map(|to| registered.get(to)).flatten();
                        shown.let_offer.extend(names.filter(|name| it.success && !is_refused(name)).cloned());
                    }
                    _ => {}
                }
                for to in to {
                    let late = announced.get(to).is_some_and(|(at, is_client)| {
                        !is_client && packet.at.since(*at) > AT_ONCE && shown.role == Some(Role::Assistant)
                    });
                    if decoded.kind() == Kind::CONFIGURATION
                        && packet.direction == Direction::Sent
                        && late
                        && !shown.greeted.contains_key(to)
                    {
                        shown.called.insert(packet.entry, to.clone());
                    } else if decoded.kind() == Kind::CONFIGURATION
                        && !shown.called.values().any(|it| it == to)
                    {
                        // An assistant greets participants that it admits; a client greets possible assistants.
                        let expected = match shown.role {
                            Some(Role::Client) if packet.direction == Direction::Sent => {
                                eligible.contains(to)
                            }
                            _ => packet.direction == Direction::Heard || announced.contains_key(to),
                        };
                        shown.greeted.entry(to.clone()).or_insert(expected);
                    }
                    if let Message::Acknowledgement(it) = &decoded.message
                        && stops.contains(&(to.clone(), it.acknowledged_stanza_id.map(i32::unsigned_abs)))
                    {
                        shown.stoppers.insert(to.clone());
                    }
                }
            }
            _ => {}
        }
    }
    all
}

/// The sender and the receivers; no receivers mean a broadcast. A packet that was heard has a sender.
pub(super) fn ends_of<'a>(packet: &'a RecordedPacket, home: &'a Identity) -> (&'a Identity, &'a [Identity]) {
    match packet.direction {
        Direction::Sent => (home, &packet.to),
        Direction::Heard => (packet.from.as_ref().map_or(home, Peer::identity), std::slice::from_ref(home)),
    }
}

impl Shown {
    fn learn(&mut self, decoded: &DecodedFrame, to: &[Identity]) {
        if let (None, Some(stanza)) = (self.role, decoded.frame.stanza_id().filter(|stanza| *stanza != 0)) {
            self.role = Some(if stanza < 0 { Role::Assistant } else { Role::Client });
        }
        match &decoded.message {
            Message::Configuration(it) if !self.is_ours => {
                self.is_ours = decoded.instance().is_some();
                self.features = it.features.clone().unwrap_or_default();
                self.version.clone_from(&it.client_version);
            }
            Message::ToolsRegister(it) => {
                self.offered.get_or_insert_with(|| it.tools.clone());
                self.assistant = self.assistant.take().or_else(|| to.first().cloned());
            }
            Message::ToolsRegisterAck(it) => {
                let refused = it.error.as_deref().unwrap_or_default().split("; ");
                for name in refused.filter_map(|text| text.strip_suffix(TAKEN)) {
                    self.own.entry(name.to_owned()).or_default();
                }
            }
            Message::ToolUseRequest(it) => match it.execution {
                Ok(Execution::Server) if decoded.frame.meta_bool("bridge.reported") => {}
                Ok(Execution::Server) => {
                    self.own_calls.insert(it.id.to_string(), it.tool_name.clone());
                    let own = self.own.entry(it.tool_name.clone()).or_default();
                    own.with_data |= !it.parameters.is_empty();
                }
                Ok(Execution::Either) => {
                    self.own.entry(it.tool_name.clone()).or_default().prefers_client = true;
                }
                _ => {}
            },
            Message::ToolUseResult(it) => {
                if let Some(own) = self.own_calls.get(it.id.as_str()).and_then(|tool| self.own.get_mut(tool))
                {
                    let is_bare = is_bare(it);
                    own.without |= is_bare;
                    own.with_data |= !is_bare;
                }
            }
            Message::Error(it) if it.code == 304 && it.message == "the request is for another instance" => {
                self.for_others.extend(it.originating_id.clone());
            }
            _ => {}
        }
    }

    /// The session's settings.
    pub(super) fn config(&self, room: &str, next: &NextOwner) -> Config {
        let has = |feature: &str| self.features.iter().any(|it| it == feature);
        let mut config =
            Config::default().room(room).streams(has("frame_stream")).prompts(has("tool_prompt"));
        (config.fast_lane, config.lossy) = (has("fast_lane"), has("fast_lane"));
        config.trusts_instances = true;
        config.listed = Some(self.features.clone()).filter(|features| !features.is_empty());
        if let Some(version) = &self.version {
            config.version.clone_from(version);
        }
        let (assistant, next) = (self.assistant.clone(), next.clone());
        config = config.choose(SelectionPolicy::by(move |tool, among| {
            let wanted = if tool.is_some() { next.get() } else { assistant.clone() };
            wanted.filter(|wanted| among.iter().any(|it| it.identity == *wanted))
        }));
        let named = || self.greeted.iter().filter(|(_, expected)| !**expected).map(|(id, _)| id.clone());
        match self.role {
            Some(Role::Assistant) => {
                config.admitted = named().collect();
                config.admit_only_roles()
            }
            _ => {
                config.assistant = named().next();
                if let Some(rpc) = &self.rpc {
                    config.assistant = rpc.assistant.clone().or(config.assistant);
                    config.streams |= rpc.streams;
                    config = rpc.callers.iter().cloned().fold(config.answer_rpc(), Config::rpc_caller);
                }
                config
            }
        }
    }

    /// The rights that it gave to others.
    pub(super) fn rights(&self) -> Rights {
        match self.role {
            Some(Role::Assistant) => {
                Rights { admitted: self.greeted.keys().cloned().collect(), stoppers: self.stoppers.clone() }
            }
            _ => Rights::default(),
        }
    }

    /// The tools that it offered from the start.
    pub(super) fn tools(&self) -> Vec<Tool> {
        match self.role {
            // Observers are sent its definitions. Tools that it used without an observer have none.
            Some(Role::Assistant) => {
                let mut all = tools(self.offered.as_deref().unwrap_or_default());
                for (name, own) in &self.own {
                    let Some(used) = own.tool(name, self.let_offer.contains(name)) else { continue };
                    match all.iter_mut().find(|tool| tool.name() == used.name()) {
                        Some(tool) => {
                            let mut options = tool.tool_options().clone();
                            options.disclose = used.tool_options().disclose;
                            options.prefer_client = used.tool_options().prefer_client;
                            *tool = tool.clone().options(options);
                        }
                        None => all.push(used),
                    }
                }
                all
            }
            _ => {
                let mut all = tools(self.offered.as_deref().unwrap_or_default());
                for name in &self.called_by_rpc {
                    // The file has no definition of a tool that was called by RPC alone.
                    if !all.iter().any(|tool| tool.name().as_str() == name)
                        && let Ok(name) = name.parse()
                    {
                        let options = ToolOptions::default().consent(Consent::Never);
                        all.push(Tool::new(name, "").options(options));
                    }
                }
                all
            }
        }
    }
}

impl Own {
    /// An assistant that lets a client offer its own tool prefers the client.
    fn tool(&self, name: &str, let_offer: bool) -> Option<Tool> {
        let disclose = if self.without && !self.with_data { Visibility::Name } else { Visibility::Full };
        let mut options = ToolOptions::default().disclose(disclose);
        options.prefer_client = self.prefers_client || let_offer;
        Some(Tool::new(name.parse().ok()?, "").options(options))
    }
}

/// The tools of a registration. Consent is not requested: the recorded outcome contains the answer.
pub(super) fn tools(registered: &[RegisteredTool]) -> Vec<Tool> {
    let read = |it: &RegisteredTool| {
        let tool = it.tool().ok()?;
        let options = tool.tool_options().clone().consent(Consent::Never);
        Some(tool.options(options))
    };
    registered.iter().filter_map(read).collect()
}

/// Whether a broadcast result contains only the outcome.
fn is_bare(result: &ToolUseResult) -> bool {
    let text = result.error_message.as_deref();
    result.result.is_none() && text.is_none_or(|text| text == ToolError::LOCAL_MESSAGE)
}
