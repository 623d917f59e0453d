//! Registrations (types 70 and 71): what clients offer.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use serde_json::Value as Json;

use super::{
    Counter, Event, Session, Timer, codec,
    event::Unaccepted,
    peer::{Feature, Registration, Remote},
    send::Unfit,
};
use crate::{
    protocol::frame::{Message, Meta, RegisteredTool, ToolsRegister, ToolsRegisterAck},
    tool::{BargeIn, Consent, NotAdmitted, RegisterError, Tool, ToolName, ToolOptions, not_offered::shown},
    transport::{Identity, Role},
    value::Value,
};

/// The longest wait before an unanswered registration is sent again.
const LONGEST_WAIT: Duration = Duration::from_secs(8);

/// Registrations that one client may send in a second.
const REGISTRATIONS_PER_SECOND: u32 = 10;

/// Refused tools that an answer names; it says how many more there are.
const NAMED_REFUSALS: usize = 8;

impl Session {
    pub(super) fn offer_tools(&mut self, now: Instant, tools: Vec<Tool>) -> Result<(), RegisterError> {
        self.check_offer(&tools)?;
        self.tools = tools;
        self.withdraw_consents();
        if self.is_client() {
            let told: Vec<_> = self
                .peers
                .iter_mut()
                .filter(|(_, remote)| remote.pair.registration != Registration::Idle)
                .map(|(id, remote)| {
                    remote.pair.registration = Registration::Idle;
                    id.clone()
                })
                .collect();
            let mut sent = false;
            for id in &told {
                sent |= self.may_be_sent_our_tools(id) && self.register(now, id);
            }
            if !sent {
                self.show_registration_to(&self.observers());
            }
        } else {
            self.show_registration_to(&self.observers());
            self.event(Event::ToolsChanged { owner: self.local.identity().clone() });
            self.withdraw_taken_names();
        }
        Ok(())
    }

    /// Assistant: a name that we offer now is no client's any more.
    fn withdraw_taken_names(&mut self) {
        let alone = self.tools.iter().filter(|tool| !tool.tool_options().prefer_client);
        let ours: BTreeSet<_> = alone.map(|tool| tool.name().clone()).collect();
        let mut changed = Vec::new();
        for (id, remote) in &mut self.peers {
            let before = remote.tools.len();
            remote.tools.retain(|tool| !ours.contains(tool.name()));
            if remote.tools.len() < before {
                changed.push(id.clone());
            }
        }
        for owner in changed {
            self.event(Event::ToolsChanged { owner });
        }
    }

    /// Client: sends our registration to a peer that can be asked to take it.
    /// Returns whether it was sent.
    pub(super) fn register(&mut self, now: Instant, id: &Identity) -> bool {
        let due = self.peers.get(id).is_some_and(|remote| {
            let takes = !remote.pair.heard || remote.lists(Feature::Register);
            remote.pair.registration == Registration::Idle
                && remote.pair.greetings > 0
                && !remote.pair.left
                && takes
        });
        let sent = due && self.send_registration(now, id, 1);
        if sent {
            self.copy(&Meta::default(), &Message::ToolsRegister(self.registration()));
        }
        sent
    }

    /// Client: the registration may follow our Configuration at once if no other assistant is possible, nor one
    /// bound that may still come back.
    pub(super) fn register_early(&mut self, now: Instant, id: &Identity) {
        if self.is_client() && self.may_be_sent_our_tools(id) {
            self.register(now, id);
        }
    }

    /// Client: whether this is our assistant, or, while none is bound, the only one that it can be.
    fn may_be_sent_our_tools(&self, id: &Identity) -> bool {
        let is_other_candidate =
            |(other, it): (&Identity, &Remote)| other != id && it.is_here() && self.is_candidate(other, it);
        match &self.bound {
            Some(bound) => bound == id,
            None => !self.peers.iter().any(is_other_candidate),
        }
    }

    /// Client: this assistant says that it knows nothing of us under this pair of sids: an announcement may
    /// have come after our Configuration and undone it. So our registration goes again, answered or not.
    pub(super) fn register_once_more(&mut self, now: Instant, id: &Identity) {
        let remote = self.peers.get_mut(id);
        let sent = remote.filter(|remote| remote.pair.registration != Registration::Idle);
        let Some(remote) = sent.filter(|_| self.role == Role::Client) else { return };
        if self.bound.as_ref().is_none_or(|bound| bound == id) {
            self.send_registration(now, id, 1);
        } else {
            remote.pair.registration = Registration::Idle; // should it be bound one day
        }
    }

    pub(super) fn register_again(&mut self, now: Instant, id: &Identity) {
        let Some(remote) = self.peers.get(id) else { return };
        let Registration::Sent(times) = remote.pair.registration else { return };
        let takes = if remote.pair.heard {
            self.bound.as_ref() == Some(id) && remote.lists(Feature::Register)
        } else {
            times < 5 && self.is_candidate(id, remote) && self.bound.as_ref().is_none_or(|bound| bound == id)
        };
        if takes && !remote.pair.left {
            self.send_registration(now, id, times + 1);
        } else if let Some(remote) = self.peers.get_mut(id) {
            remote.pair.registration = Registration::Idle; // so that it is sent when we are bound to this assistant
        }
    }

    /// Client: the assistant answered.
    pub(super) fn registration_answered(&mut self, now: Instant, id: &Identity, answer: ToolsRegisterAck) {
        if self.bound.as_ref() != Some(id) {
            let named = self.peers.get(id).is_some_and(|remote| self.is_candidate(id, remote));
            // One that does not admit us says so without shaking hands: worth telling, and no more.
            if !named || answer.success {
                return self.complain(now, id, Counter::Stranger);
            }
        }
        let Some(remote) = self.peers.get_mut(id) else { return };
        match remote.pair.registration {
            // One that refuses it before the handshake may admit us later, and is sent it again then.
            Registration::Sent(_) if !remote.pair.heard && !answer.success => {
                remote.pair.registration = Registration::Idle;
            }
            Registration::Sent(_) => remote.pair.registration = Registration::Answered,
            Registration::Idle if !answer.success => {} // it tells why it would take none
            // It took our tools before, and does not any more.
            Registration::Answered if !answer.success && answer.tool_count == 0 => {}
            // It was sent to us in an earlier join: of this one the assistant knows nothing.
            Registration::Idle | Registration::Answered => return self.stats.add(Counter::Duplicate, 1),
        }
        self.timers.cancel(&Timer::Register(id.clone()));
        let refused = answer.error.filter(|_| !answer.success);
        let tools = usize::try_from(answer.tool_count).unwrap_or(0);
        let none = refused.clone().filter(|_| tools == 0 && !self.tools.is_empty());
        self.event(Event::Registered { by: id.clone(), tools, refused });
        if let Some(reason) = none {
            self.unaccepted(Unaccepted::Refused { by: id.clone(), reason });
        }
    }

    /// Assistant: a client offers its tools, in place of those before.
    pub(super) fn registration_came(&mut self, now: Instant, id: &Identity, offered: ToolsRegister) {
        let admitted = self.peers.get(id).is_some_and(|remote| self.is_admitted(id, remote));
        if !admitted {
            self.complain(now, id, Counter::Stranger);
            self.note_refused_tools(id, &offered.tools);
            return self.deny_registration(now, id);
        }
        let Some(remote) = self.peers.get_mut(id) else { return };
        if !remote.rate.admits(now, REGISTRATIONS_PER_SECOND) {
            return self.complain(now, id, Counter::RegistrationRefused);
        }
        let (tools, refused) = self.judge_tools(offered.tools);
        if !refused.is_empty() {
            self.complain(now, id, Counter::RegistrationRefused);
        }
        let Some(remote) = self.peers.get_mut(id) else { return };
        let answer = ToolsRegisterAck {
            success: refused.is_empty(),
            tool_count: i32::try_from(tools.len()).unwrap_or(i32::MAX),
            error: (!refused.is_empty()).then(|| summary(&refused)),
        };
        remote.pair.registered = true;
        let changed = remote.tools != tools;
        remote.tools = tools;
        self.came_forward(id);
        let message = Message::ToolsRegisterAck(answer);
        self.post_small(id, &message);
        self.copy(&Meta::default(), &message);
        if changed {
            self.event(Event::ToolsChanged { owner: id.clone() });
        }
        self.look_for_owners(now);
    }

    /// Assistant: tells one that wants to offer tools what it lacks.
    pub(super) fn deny_registration(&mut self, now: Instant, id: &Identity) {
        if self.is_client() {
            return;
        }
        self.tell_not_admitted(id);
        if !self.may_deny(now, id) {
            return;
        }
        let why = self.peers.get(id).and_then(|remote| self.refusal_of(id, remote));
        let why = why.unwrap_or(NotAdmitted::NoRole { admitted: None });
        let error = format!("not admitted: {}", why.explain(&shown(id.as_str())));
        let answer = ToolsRegisterAck { success: false, tool_count: 0, error: Some(error) };
        self.post_small(id, &Message::ToolsRegisterAck(answer));
    }

    /// A peer that is gone, or another instance, offers nothing.
    pub(super) fn forget_registration(&mut self, id: &Identity) {
        let Some(remote) = self.peers.get_mut(id) else { return };
        remote.pair.registered = false;
        remote.pair.silenced = None;
        remote.came = None;
        if !std::mem::take(&mut remote.tools).is_empty() {
            self.event(Event::ToolsChanged { owner: id.clone() });
        }
    }

    /// An observer is shown what we offer when it is first seen.
    pub(super) fn show_registration(&mut self, id: &Identity) {
        let Some(remote) = self.peers.get_mut(id) else { return };
        let observes = remote.who.as_ref().is_some_and(|who| who.token_role() == Some(Role::Observer));
        if observes && remote.is_here() && !std::mem::replace(&mut remote.shown, true) {
            self.show_registration_to(std::slice::from_ref(id));
        }
    }

    fn show_registration_to(&mut self, observers: &[Identity]) {
        // Nothing offered is an answer too: the observer need not wait for more.
        let message = Message::ToolsRegister(self.registration());
        for observer in observers {
            self.post_small(observer, &message);
        }
    }

    /// Whether it left. A large one waits for the Configuration that says that it can be taken.
    fn send_registration(&mut self, now: Instant, id: &Identity, times: u32) -> bool {
        let message = Message::ToolsRegister(self.registration());
        match self.post(id, &Meta::default(), &message) {
            Ok(_) => {}
            Err(Unfit::TooLarge { size, limit }) => {
                self.registration_too_large(id, size, limit);
                return false;
            }
            Err(error) => tracing::warn!(to = %id, ?error, "our registration cannot be sent"),
        }
        if let Some(remote) = self.peers.get_mut(id) {
            remote.pair.registration = Registration::Sent(times);
        }
        let wait = Duration::from_secs(1 << (times - 1).min(3)).min(LONGEST_WAIT);
        self.timers.set(now, Timer::Register(id.clone()), wait);
        true
    }

    /// Client: this assistant cannot be sent our registration, unless it has still to say that it can.
    fn registration_too_large(&mut self, id: &Identity, size: usize, limit: usize) {
        let Some(remote) = self.peers.get_mut(id).filter(|remote| remote.pair.heard) else { return };
        remote.pair.registration = Registration::Answered;
        self.timers.cancel(&Timer::Register(id.clone()));
        let refused = format!("the registration has {size} bytes, {limit} can be carried to this assistant");
        self.event(Event::Registered { by: id.clone(), tools: 0, refused: Some(refused) });
    }

    fn registration(&self) -> ToolsRegister {
        ToolsRegister { tools: self.tools.iter().map(written).collect() }
    }

    pub(super) fn check_offer(&self, tools: &[Tool]) -> Result<(), RegisterError> {
        let limits = &self.config.caps;
        if tools.len() > limits.tools {
            return Err(RegisterError::TooMany { count: tools.len(), limit: limits.tools });
        }
        let mut names = BTreeSet::new();
        for tool in tools {
            let name = tool.name().clone();
            if name.is_reserved() {
                return Err(RegisterError::Reserved { name });
            }
            if !names.insert(tool.name()) {
                return Err(RegisterError::Duplicate { name });
            }
            if tool.tool_options().effective_consent() != Consent::Never && !self.config.asks {
                return Err(RegisterError::NoConsent { name });
            }
            let schema = tool.input_schema().map_or(0, |schema| schema.to_string().len());
            let parts = [
                ("description", tool.description().len(), limits.description_bytes),
                ("schema", schema, limits.schema_bytes),
            ];
            for (part, size, limit) in parts {
                if size > limit {
                    return Err(RegisterError::TooLarge { name, part, size, limit });
                }
            }
        }
        if self.is_client() {
            self.check_registration_fits(tools)?;
        }
        Ok(())
    }

    fn check_registration_fits(&self, tools: &[Tool]) -> Result<(), RegisterError> {
        let message = Message::ToolsRegister(ToolsRegister { tools: tools.iter().map(written).collect() });
        let caps = &self.config.caps;
        let streamed = if self.config.streams { caps.max_frame_of_others.min(caps.max_frame) } else { 0 };
        let limit = caps.max_packet.max(streamed);
        match codec::encode(i32::MAX, &self.config.room, &Meta::default(), &message) {
            Ok(payload) if payload.len() > limit => {
                Err(RegisterError::RegistrationTooLarge { size: payload.len(), limit })
            }
            _ => Ok(()),
        }
    }

    /// The tools of a registration that can be taken, and what is wrong with the others.
    fn judge_tools(&self, offered: Vec<RegisteredTool>) -> (Vec<Tool>, Vec<String>) {
        let limits = &self.config.caps;
        let (mut tools, mut refused, mut bytes) = (Vec::<Tool>::new(), Vec::new(), 0);
        for tool in offered {
            let size =
                tool.description.len() + tool.input_schema.as_ref().map_or(0, |it| it.as_bytes().len());
            match self.judge_tool(&tool) {
                Ok(name) if tools.iter().any(|other| *other.name() == name) => {
                    refused.push(format!("{name}: registered twice"));
                }
                Ok(name) if tools.len() >= limits.tools || bytes + size > limits.registration_bytes => {
                    refused.push(format!("{name}: too many tools, or too large together"));
                }
                Ok(name) => {
                    bytes += size;
                    tools.push(read(name, &tool));
                }
                Err(reason) => refused.push(reason),
            }
        }
        (tools, refused)
    }

    fn judge_tool(&self, tool: &RegisteredTool) -> Result<ToolName, String> {
        let limits = &self.config.caps;
        let name: ToolName = tool.name.parse().map_err(|error| format!("{error}"))?;
        let schema = tool.input_schema.as_ref();
        if name.is_reserved() {
            return Err(format!("{name}: the name is reserved"));
        }
        if self.tools.iter().any(|ours| is_ours_alone(ours, &name)) {
            return Err(format!("{name}: the assistant offers a tool of this name itself"));
        }
        if tool.description.len() > limits.description_bytes {
            return Err(format!("{name}: a description may have {} bytes", limits.description_bytes));
        }
        if schema.is_some_and(|schema| schema.as_bytes().len() > limits.schema_bytes) {
            return Err(format!("{name}: a schema may have {} bytes", limits.schema_bytes));
        }
        if schema.is_some_and(|schema| !codec::is_map(schema)) {
            return Err(format!("{name}: the schema is not a map"));
        }
        Ok(name)
    }
}

/// Whether a tool that we offer leaves its name to no client.
pub(super) fn is_ours_alone(ours: &Tool, name: &ToolName) -> bool {
    ours.name() == name && !ours.tool_options().prefer_client
}

/// A tool as it travels.
fn written(tool: &Tool) -> RegisteredTool {
    let options = tool.tool_options();
    let mut annotations = std::collections::BTreeMap::new();
    if options.destructive {
        annotations.insert("destructive", Json::from(true));
    }
    if options.idempotent {
        annotations.insert("idempotent", Json::from(true));
    }
    if options.barge_in != BargeIn::default() {
        annotations.insert("onBargeIn", Json::from(options.barge_in.as_str()));
    }
    RegisteredTool {
        name: tool.name().to_string(),
        description: tool.description().to_owned(),
        input_schema: tool.input_schema().and_then(|schema| Value::encode(schema).ok()),
        annotations: if annotations.is_empty() { None } else { Value::encode(&annotations).ok() },
    }
}

/// A tool as a client wrote it.
fn read(name: ToolName, tool: &RegisteredTool) -> Tool {
    let annotations = tool.annotations.as_ref().map(Value::to_json).unwrap_or_default();
    let says = |key: &str| annotations.get(key).and_then(Json::as_bool).unwrap_or(false);
    let mut options = if says("destructive") { ToolOptions::destructive() } else { ToolOptions::default() };
    if says("idempotent") {
        options = options.idempotent();
    }
    let rule = annotations.get("onBargeIn").and_then(Json::as_str).and_then(BargeIn::from_text);
    options = options.barge_in(rule.unwrap_or_default());
    let read = Tool::new(name, tool.description.as_str()).options(options);
    match &tool.input_schema {
        Some(schema) => read.schema(schema.to_json()),
        None => read,
    }
}

fn summary(refused: &[String]) -> String {
    let named = refused.iter().take(NAMED_REFUSALS).map(String::as_str).collect::<Vec<_>>().join("; ");
    match refused.len().saturating_sub(NAMED_REFUSALS) {
        0 => named,
        more => format!("{named}; and {more} more"),
    }
}
