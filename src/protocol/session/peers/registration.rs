//! Sends and handles registrations (types 70 and 71): the tools that clients offer.

use std::time::Duration;

use serde_json::Value as Json;

use super::{
    Context, Counter, Delivery, Feature, Peers, Recipients, Remote, Timer,
    admission::report_unaccepted,
    handshake::IN_FLIGHT,
    remote::{OfferState, Registration},
};
use crate::{
    protocol::{
        frame::{Frame, Message, Meta, RegisteredTool, ToolsRegister, ToolsRegisterAck},
        session::{Event, Unaccepted, codec, delivery::Unfit},
    },
    sorted::SortedSet,
    tool::{Consent, NotAdmitted, RegisterError, Tool, ToolName, ToolOptions, not_offered::shown},
    transport::Identity,
    value::Value,
};

/// The longest wait before an unanswered registration is sent again.
const LONGEST_WAIT: Duration = Duration::from_secs(8);

/// The number of registrations that one client may send per second.
const REGISTRATIONS_PER_SECOND: u32 = 10;

/// The number of refused tools that an answer names. It states how many more there are.
const NAMED_REFUSALS: usize = 8;

/// The longest title, and name of a source, in bytes.
const MAX_TITLE: usize = 256;

/// The space for annotations beside the schema of the result, in bytes.
const MAX_TEXTS: usize = 1024;

/// The number of refused tools of one client whose reasons are remembered, for calls of them.
const MAX_REFUSED: usize = 64;

impl Peers {
    /// Handles a change of the local tools. A client registers them. The assistant withdraws clients' tools whose names
    /// it now uses itself.
    pub(crate) fn announce_tools(&mut self, cx: &mut Context, delivery: &mut Delivery) {
        if !cx.is_client() {
            self.show_registration_to(cx, delivery, &self.observers());
            cx.event(Event::ToolsChanged { owner: cx.local.identity().clone() });
            return self.withdraw_taken_names(cx);
        }
        let mut registered = Vec::new();
        for (id, remote) in &mut self.remotes {
            // An unanswered registration counts too: its answer will be about tools that are no longer these.
            if std::mem::take(&mut remote.pair.registration) != Registration::Idle {
                registered.push(id.clone());
            }
        }
        let mut is_sent = false;
        for id in &registered {
            is_sent |= self.may_be_sent_tools(cx, id) && self.register(cx, delivery, id);
        }
        if !is_sent {
            self.show_registration_to(cx, delivery, &self.observers());
        }
    }

    /// Client: sends the registration to a peer that accepts it. Returns whether it was sent.
    pub(crate) fn register(&mut self, cx: &mut Context, delivery: &mut Delivery, id: &Identity) -> bool {
        let is_due = self.get(id).is_some_and(|remote| {
            let takes = !remote.is_configured() || remote.lists(Feature::Register);
            let is_idle = remote.pair.registration == Registration::Idle;
            is_idle && remote.pair.greetings > 0 && !remote.has_left() && takes
        });
        let is_sent = is_due && self.send_registration(cx, delivery, id, 1);
        if is_sent {
            let message = registration(&cx.local.tools);
            // Once for each registration and not for its repetitions, which are for the assistant alone.
            delivery.copy(cx, self, &left_out_meta(cx), &message);
        }
        is_sent
    }

    /// Client: withdraws the registration from all assistants but the bound one. It may have been sent before another one
    /// was bound, and this assistant would believe that it can call the tools.
    pub(super) fn withdraw_registrations(&mut self, cx: &mut Context, delivery: &mut Delivery) {
        let bound = self.bound.clone();
        let mut others = Vec::new();
        for (id, remote) in &mut self.remotes {
            if Some(id) == bound.as_ref() {
                continue;
            }
            remote.pair.registration = Registration::Idle;
            cx.timers.cancel(&Timer::Register(id.clone()));
            if std::mem::take(&mut remote.pair.may_have_tools) && remote.is_here() && !remote.has_left() {
                others.push(id.clone());
            }
        }
        for id in others {
            // Without tools: to an assistant that does not know the mark it is a registration of none.
            let message = registration(&[]);
            if let Err(error) = delivery.to(cx, self, &id).post(&codec::unbound(), &message, None) {
                tracing::warn!(to = %id, ?error, "the registration cannot be withdrawn");
            }
        }
    }

    /// Client: handles the timer of an unanswered registration.
    pub(crate) fn register_again(&mut self, cx: &mut Context, delivery: &mut Delivery, id: &Identity) {
        let Some(remote) = self.get(id) else { return };
        let Registration::Sent(times) = remote.pair.registration else { return };
        let takes = if remote.is_configured() {
            self.is_bound(cx, id) && remote.lists(Feature::Register)
        } else {
            let may_bind = self.bound.as_ref().is_none_or(|bound| bound == id);
            times < 5 && self.is_candidate(cx, id, remote) && may_bind
        };
        if takes && !remote.has_left() {
            self.send_registration(cx, delivery, id, times + 1);
        } else if let Some(remote) = self.remotes.get_mut(id) {
            remote.pair.registration = Registration::Idle; // it is sent when this assistant is bound
        }
    }

    /// Client: handles an assistant's answer to the registration.
    pub(crate) fn handle_registration_answer(
        &mut self,
        cx: &mut Context,
        id: &Identity,
        answer: ToolsRegisterAck,
    ) {
        if !self.is_bound(cx, id) {
            let is_candidate = self.get(id).is_some_and(|remote| self.is_candidate(cx, id, remote));
            // An assistant that does not admit the client sends this answer without a handshake. It is only reported.
            if !is_candidate || answer.success {
                return cx.complain(id, Counter::Unauthorized);
            }
        }
        let Some(remote) = self.remotes.get_mut(id) else { return };
        let is_configured = remote.is_configured();
        remote.pair.may_have_tools &= answer.success || answer.tool_count > 0;
        let registration = &mut remote.pair.registration;
        match registration {
            // An assistant that refuses the registration before the handshake may admit the client later. The
            // registration is then sent again.
            Registration::Sent(_) if !is_configured && !answer.success => *registration = Registration::Idle,
            Registration::Sent(_) => *registration = Registration::Answered,
            Registration::Idle if !answer.success => {} // the assistant states why it would accept none
            // The assistant had accepted the tools and no longer does.
            Registration::Answered if !answer.success && answer.tool_count == 0 => {}
            // The registration was sent in an earlier join. The present join has no record of it.
            Registration::Idle | Registration::Answered => return cx.count(Counter::Duplicate),
        }
        cx.timers.cancel(&Timer::Register(id.clone()));
        let refused = answer.error.filter(|_| !answer.success);
        let tools = usize::try_from(answer.tool_count).unwrap_or(0);
        let none = refused.clone().filter(|_| tools == 0 && !cx.local.tools.is_empty());
        cx.event(Event::Registered { by: id.clone(), tools, refused });
        if let Some(reason) = none {
            report_unaccepted(cx, Unaccepted::Refused { by: id.clone(), reason });
        }
    }

    /// Assistant: handles a client's tools, which replace its earlier ones. Returns whether waiting calls may find an
    /// owner now.
    pub(crate) fn handle_registration(
        &mut self,
        cx: &mut Context,
        delivery: &mut Delivery,
        id: &Identity,
        offered: ToolsRegister,
        left_out: Vec<(Box<str>, Box<str>)>,
    ) -> bool {
        let is_admitted = self.get(id).is_some_and(|remote| self.is_admitted(cx, id, remote));
        if !is_admitted {
            cx.complain(id, Counter::Unauthorized);
            self.note_refused_tools(id, &offered.tools);
            self.deny_registration(cx, delivery, id);
            return false;
        }
        if !self.admits_request(cx, id, REGISTRATIONS_PER_SECOND) {
            cx.complain(id, Counter::RegistrationRefused);
            return false;
        }
        let (tools, refused) = check_tools(cx, offered.tools);
        if !refused.is_empty() {
            cx.complain(id, Counter::RegistrationRefused);
        }
        let answer = ToolsRegisterAck {
            success: refused.is_empty(),
            tool_count: i32::try_from(tools.len()).unwrap_or(i32::MAX),
            error: (!refused.is_empty()).then(|| summary(&refused)),
        };
        let Some(remote) = self.remotes.get_mut(id) else { return false };
        remote.pair.offer = OfferState::Registered;
        let has_changed = remote.tools != tools;
        remote.tools = tools;
        remote.left_out = left_out;
        // Of a tool that was refused twice, the first reason counts.
        let refused = refused
            .into_iter()
            .take(MAX_REFUSED)
            .filter_map(|it| it.0.map(|name| (name.into(), it.1.into())));
        remote.left_out.extend(refused);
        self.rank(id);
        let message = Message::ToolsRegisterAck(answer);
        delivery.to(cx, self, id).post_small(&message, None);
        delivery.copy(cx, self, &Meta::default(), &message);
        if has_changed {
            cx.event(Event::ToolsChanged { owner: id.clone() });
        }
        true
    }

    /// Assistant: handles the statement of a client that it is bound to another assistant, or to none.
    pub(crate) fn handle_unbound(&mut self, cx: &mut Context, id: &Identity) {
        match self.get(id).is_some_and(|remote| self.is_admitted(cx, id, remote)) {
            true => self.forget_unbound(cx, id),
            false => cx.complain(id, Counter::Unauthorized),
        }
    }

    /// Assistant: forgets the tools of a client that is bound to another assistant, or to none.
    pub(crate) fn forget_unbound(&mut self, cx: &mut Context, id: &Identity) {
        self.forget_registration(cx, id);
        if let Some(remote) = self.remotes.get_mut(id) {
            remote.pair.settled = true; // no registration is in transit
        }
    }

    /// Assistant: handles a heartbeat timeout of a client. Its tools are withdrawn until one of its packets arrives.
    pub(crate) fn withdraw_silent_client(&mut self, cx: &mut Context, id: &Identity) {
        let Some(remote) = self.remotes.get_mut(id).filter(|remote| remote.is_registered()) else {
            return self.forget_registration(cx, id);
        };
        // The tools are kept aside, and its position and what it does not offer as they are: any packet revives the client,
        // which does not register again for that (`wire.md`, section 4.7).
        let tools = std::mem::take(&mut remote.tools);
        if !tools.is_empty() {
            cx.event(Event::ToolsChanged { owner: id.clone() });
        }
        remote.pair.offer = OfferState::Silenced(tools);
    }

    /// Assistant: restores the tools of a client whose heartbeat had timed out and whose packet arrived. Returns
    /// whether it did.
    pub(crate) fn restore_registration(&mut self, cx: &mut Context, id: &Identity) -> bool {
        let Some(remote) = self.remotes.get_mut(id) else { return false };
        let OfferState::Silenced(tools) = &mut remote.pair.offer else { return false };
        tracing::info!(peer = %id, "the peer's packets arrive again");
        let mut tools = std::mem::take(tools);
        tools.retain(|tool| !cx.local.reserves(tool.name()));
        remote.pair.offer = OfferState::Registered;
        remote.tools = tools;
        if !remote.tools.is_empty() {
            cx.event(Event::ToolsChanged { owner: id.clone() });
        }
        true
    }

    /// Assistant: refuses a participant's registration with the reason why it is not admitted.
    pub(crate) fn deny_registration(&mut self, cx: &mut Context, delivery: &mut Delivery, id: &Identity) {
        if cx.is_client() {
            return;
        }
        self.report_not_admitted(cx, id);
        if !self.may_deny(cx, id) {
            return;
        }
        let why = self.get(id).and_then(|remote| self.refusal_of(cx, id, remote));
        let why = why.unwrap_or(NotAdmitted::NoRole { admitted: None });
        let error = format!("not admitted: {}", why.explain(&shown(id.as_str())));
        let answer = ToolsRegisterAck { success: false, tool_count: 0, error: Some(error) };
        delivery.to(cx, self, id).post_small(&Message::ToolsRegisterAck(answer), None);
    }

    /// Forgets the tools of a peer that has gone or whose instance was replaced.
    pub(crate) fn forget_registration(&mut self, cx: &mut Context, id: &Identity) {
        let Some(remote) = self.remotes.get_mut(id) else { return };
        remote.pair.offer = OfferState::Unregistered;
        remote.lose_rank();
        remote.left_out.clear();
        if !std::mem::take(&mut remote.tools).is_empty() {
            cx.event(Event::ToolsChanged { owner: id.clone() });
        }
    }

    /// Splits the tools that the local participant wants to offer into those that it may offer, and the others with the
    /// reasons.
    pub(crate) fn check_offer(cx: &Context, wanted: Vec<Tool>) -> (Vec<Tool>, Vec<LeftOut>) {
        let (count, limit) = (wanted.len(), cx.config.caps.tools.count);
        let mut names = SortedSet::new();
        let (mut tools, mut left_out) = (Vec::new(), Vec::new());
        for tool in wanted {
            let name = tool.name().clone();
            let tool = with_limits(cx, tool);
            let checked = match check_own_tool(cx, &tool) {
                Ok(()) if names.contains(&name) => Err(RegisterError::Duplicate { name: name.clone() }),
                Ok(()) if tools.len() >= limit => Err(RegisterError::TooMany { count, limit }),
                checked => checked,
            };
            match checked {
                Ok(()) => {
                    names.insert(name);
                    tools.push(tool);
                }
                Err(why) => left_out.push((name, why)),
            }
        }
        while cx.is_client()
            && let Err(why) = check_registration_fits(cx, &tools, &left_out)
            && let Some(last) = tools.pop()
        {
            left_out.push((last.name().clone(), why));
        }
        (tools, left_out)
    }

    /// Client: sends the registration right after the first Configuration if no other assistant is possible and no
    /// bound one may return.
    pub(super) fn register_early(&mut self, cx: &mut Context, delivery: &mut Delivery, id: &Identity) {
        if cx.is_client() && self.may_be_sent_tools(cx, id) {
            self.register(cx, delivery, id);
        }
    }

    /// Client: handles an assistant's report that it has no state for the client under this pair of sids. An
    /// announcement after the Configuration may have reset it. The registration is sent again, answered or not.
    pub(super) fn register_once_more(&mut self, cx: &mut Context, delivery: &mut Delivery, id: &Identity) {
        let remote = self.remotes.get_mut(id);
        let sent = remote.filter(|remote| remote.pair.registration != Registration::Idle);
        let Some(remote) = sent.filter(|_| cx.is_client()) else { return };
        let sent = remote.pair.registered_at.map(|at| cx.now.saturating_duration_since(at));
        if self.bound.as_ref().is_some_and(|bound| bound != id) {
            remote.pair.registration = Registration::Idle; // it is sent if this assistant is bound later
        } else if let Some(left) = sent.and_then(|sent| IN_FLIGHT.checked_sub(sent)) {
            // One registration answers all reports of a moment.
            remote.pair.registration = Registration::Sent(0);
            cx.set_timer(Timer::Register(id.clone()), left);
        } else {
            self.send_registration(cx, delivery, id, 1);
        }
    }

    /// Sends an observer the local registration, once in each of its joins.
    pub(super) fn show_registration(&mut self, cx: &mut Context, delivery: &mut Delivery, id: &Identity) {
        let Some(remote) = self.remotes.get_mut(id) else { return };
        let is_due = remote.is_observer() && remote.is_here();
        if is_due && !std::mem::replace(&mut remote.join.shown, true) {
            self.show_registration_to(cx, delivery, std::slice::from_ref(id));
        }
    }

    /// Assistant: withdraws clients' tools whose names it now offers itself.
    fn withdraw_taken_names(&mut self, cx: &mut Context) {
        let mut changed = Vec::new();
        for (id, remote) in &mut self.remotes {
            let before = remote.tools.len();
            remote.tools.retain(|tool| !cx.local.reserves(tool.name()));
            if remote.tools.len() < before {
                changed.push(id.clone());
            }
        }
        for owner in changed {
            cx.event(Event::ToolsChanged { owner });
        }
    }

    /// Client: returns whether this is the assistant, or the only possible one while none is bound.
    fn may_be_sent_tools(&self, cx: &Context, id: &Identity) -> bool {
        let is_other_candidate =
            |(other, it): (&Identity, &Remote)| other != id && self.is_candidate(cx, other, it);
        match &self.bound {
            Some(bound) => bound == id,
            None => !self.present().any(is_other_candidate),
        }
    }

    fn show_registration_to(&self, cx: &mut Context, delivery: &mut Delivery, observers: &[Identity]) {
        // An empty registration also shows the observer that no tools are offered.
        let message = registration(&cx.local.tools);
        for observer in observers {
            delivery.to(cx, self, observer).post_small(&message, None);
        }
    }

    /// Sends the registration and returns whether it was sent. A large one waits for the Configuration that states
    /// whether the peer accepts it.
    fn send_registration(
        &mut self,
        cx: &mut Context,
        delivery: &mut Delivery,
        id: &Identity,
        times: u32,
    ) -> bool {
        let message = registration(&cx.local.tools);
        let meta = left_out_meta(cx);
        match delivery.to(cx, self, id).post(&meta, &message, None) {
            Ok(_) => {}
            Err(Unfit::TooLarge { size, limit }) => {
                self.refuse_large_registration(cx, id, size, limit);
                return false;
            }
            Err(error) => tracing::warn!(to = %id, ?error, "the registration cannot be sent"),
        }
        if let Some(remote) = self.remotes.get_mut(id) {
            remote.pair.registration = Registration::Sent(times);
            (remote.pair.registered_at, remote.pair.may_have_tools) = (Some(cx.now), true);
        }
        let wait = Duration::from_secs(1 << (times - 1).min(3)).min(LONGEST_WAIT);
        cx.set_timer(Timer::Register(id.clone()), wait);
        true
    }

    /// Client: reports that the registration is too large for this assistant, unless its Configuration is still
    /// missing.
    fn refuse_large_registration(&mut self, cx: &mut Context, id: &Identity, size: usize, limit: usize) {
        let Some(remote) = self.remotes.get_mut(id).filter(|remote| remote.is_configured()) else { return };
        remote.pair.registration = Registration::Answered;
        cx.timers.cancel(&Timer::Register(id.clone()));
        let refused =
            format!("the registration has {size} bytes; the limit for this assistant is {limit} bytes");
        cx.event(Event::Registered { by: id.clone(), tools: 0, refused: Some(refused) });
    }
}

/// A tool that is not offered, and the reason.
pub(crate) type LeftOut = (ToolName, RegisterError);

/// Puts the participant's limit in place of [`ToolOptions::LONGEST`].
fn with_limits(cx: &Context, tool: Tool) -> Tool {
    let mut options = tool.tool_options().clone();
    if options.patience != Some(ToolOptions::LONGEST) {
        return tool;
    }
    options.patience = Some(cx.config.times.longest_call);
    tool.options(options)
}

/// Checks one of the tools that the local participant wants to offer.
fn check_own_tool(cx: &Context, tool: &Tool) -> Result<(), RegisterError> {
    let caps = &cx.config.caps.tools;
    let name = tool.name().clone();
    if name.is_reserved() {
        return Err(RegisterError::Reserved { name });
    }
    if tool.tool_options().effective_consent() != Consent::Never && !cx.config.consent_available {
        return Err(RegisterError::NoConsent { name });
    }
    let limit = cx.config.times.longest_call;
    if let Some(patience) = tool.tool_options().patience.filter(|patience| *patience > limit) {
        return Err(RegisterError::Patience { name, patience, limit });
    }
    let size_of = |schema: Option<&Json>| schema.map_or(0, |schema| schema.to_string().len());
    let text = caps.description_bytes;
    let parts = [
        ("description", tool.description().len(), text),
        ("title", tool.title().map_or(0, str::len), (text / 4).min(MAX_TITLE)),
        ("source", tool.source().map_or(0, str::len), (text / 4).min(MAX_TITLE)),
        ("schema", size_of(tool.input_schema()), caps.schema_bytes),
        ("output schema", size_of(tool.output_schema()), caps.schema_bytes),
    ];
    match parts.into_iter().find(|(_, size, limit)| size > limit) {
        Some((part, size, limit)) => Err(RegisterError::TooLarge { name, part, size, limit }),
        None => Ok(()),
    }
}

fn registration(tools: &[Tool]) -> Message {
    Message::ToolsRegister(ToolsRegister { tools: tools.iter().map(RegisteredTool::from).collect() })
}

/// Returns the `meta` of the local registration.
fn left_out_meta(cx: &Context) -> Meta {
    codec::left_out_meta(cx.local.left_out.iter().map(|(name, why)| (name, why.as_str())))
}

fn check_registration_fits(cx: &Context, tools: &[Tool], left_out: &[LeftOut]) -> Result<(), RegisterError> {
    let reasons: Vec<_> = left_out.iter().map(|(name, why)| (name, why.to_string())).collect();
    let meta = codec::left_out_meta(reasons.iter().map(|(name, why)| (*name, why.as_str())));
    let caps = &cx.config.caps;
    let streamed = if cx.config.streams { caps.frames.largest_of(false) } else { 0 };
    let limit = caps.frames.max_packet.max(streamed);
    // Under the largest stanza, so that it fits whatever its stanza will be.
    match Frame::write(i32::MAX, &cx.config.room, &meta, &registration(tools)) {
        Ok(payload) if payload.len() > limit => {
            Err(RegisterError::RegistrationTooLarge { size: payload.len(), limit })
        }
        _ => Ok(()),
    }
}

/// Returns the tools of a registration that are accepted, and the reasons for refusing the others.
fn check_tools(cx: &Context, offered: Vec<RegisteredTool>) -> (Vec<Tool>, Vec<RefusedTool>) {
    let caps = &cx.config.caps;
    let (mut tools, mut refused, mut bytes) = (Vec::<Tool>::new(), Vec::new(), 0);
    for tool in offered {
        let size =
            tool.description.len() + size_of(tool.input_schema.as_ref()) + size_of(tool.annotations.as_ref());
        match check_tool(cx, &tool) {
            Ok(read) if tools.iter().any(|other| other.name() == read.name()) => {
                refused.push(RefusedTool(None, format!("{}: registered twice", read.name())));
            }
            Ok(read) if tools.len() >= caps.tools.count || bytes + size > caps.tools.registration_bytes => {
                let limits = &caps.tools;
                let why = format!(
                    "the tools exceed the limit of {} tools or {} bytes in all",
                    limits.count, limits.registration_bytes
                );
                refused.push(RefusedTool::of(read.name().as_str(), &why));
            }
            Ok(read) => {
                bytes += size;
                tools.push(read);
            }
            Err(reason) => refused.push(RefusedTool::of(&tool.name, &reason)),
        }
    }
    (tools, refused)
}

fn check_tool(cx: &Context, tool: &RegisteredTool) -> Result<Tool, String> {
    let caps = &cx.config.caps;
    let name: ToolName = tool.name.parse().map_err(|error| format!("{error}"))?;
    let schema = tool.input_schema.as_ref();
    if name.is_reserved() {
        return Err(format!("{name}: the name is reserved"));
    }
    if cx.local.reserves(&name) {
        return Err(format!("{name}: the assistant offers a tool of this name itself"));
    }
    if tool.description.len() > caps.tools.description_bytes {
        return Err(format!(
            "{name}: the description exceeds the limit of {} bytes",
            caps.tools.description_bytes
        ));
    }
    if size_of(schema) > caps.tools.schema_bytes {
        return Err(format!("{name}: the schema exceeds the limit of {} bytes", caps.tools.schema_bytes));
    }
    if schema.is_some_and(|schema| !schema.is_map()) {
        return Err(format!("{name}: the schema is not a map"));
    }
    let limit = caps.tools.schema_bytes + caps.tools.description_bytes.min(MAX_TEXTS);
    if size_of(tool.annotations.as_ref()) > limit {
        return Err(format!("{name}: the annotations exceed the limit of {limit} bytes"));
    }
    tool.tool().map_err(|error| error.to_string())
}

fn size_of(value: Option<&Value>) -> usize {
    value.map_or(0, |value| value.as_bytes().len())
}

/// A tool that the assistant has refused: its name, unless it offers that name anyway, and a line about it.
struct RefusedTool(Option<String>, String);

impl RefusedTool {
    fn of(name: &str, line: &str) -> Self {
        let name = shown(name);
        let line = if line.starts_with(&name) { line.to_owned() } else { format!("{name}: {line}") };
        Self(Some(name), line)
    }
}

fn summary(refused: &[RefusedTool]) -> String {
    let named = refused.iter().take(NAMED_REFUSALS).map(|it| it.1.as_str()).collect::<Vec<_>>().join("; ");
    match refused.len().saturating_sub(NAMED_REFUSALS) {
        0 => named,
        more => format!("{named}; and {more} more"),
    }
}
