//! Defines tools, and which participant executes a call.

use std::{fmt, sync::Arc, time::Duration};

use serde_json::Value;

use super::{BargeIn, ToolName};
use crate::transport::Identity;

/// The longest name of a method of LiveKit's RPC that is called, in bytes.
const MAX_RPC_METHOD: usize = 512;

/// A tool's definition: its name, its description, the schema of its arguments and its options.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    name: ToolName,
    description: Arc<str>,
    schema: Option<Arc<Value>>,
    options: ToolOptions,
    details: Option<Arc<Details>>,
}

/// What few tools have.
#[derive(Clone, Debug, Default, PartialEq)]
struct Details {
    title: Option<String>,
    output_schema: Option<Value>,
    source: Option<String>,
    /// The hints that are known to be false.
    denied: ToolHints,
    short_title: Option<String>,
    meta: Option<Value>,
    rpc_method: Option<Arc<str>>,
}

/// What is known of a tool's effect. `None`: nothing is known, which is other than no.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolHints {
    /// Whether its effect cannot be undone.
    pub destructive: Option<bool>,
    /// Whether a second run has no further effect.
    pub idempotent: Option<bool>,
    /// Whether it changes nothing.
    pub read_only: Option<bool>,
    /// Whether it reaches systems that its author does not know, such as the web.
    pub open_world: Option<bool>,
}

impl Tool {
    /// Creates a tool without a schema: any map is a valid argument.
    pub fn new(name: ToolName, description: impl Into<String>) -> Self {
        let (description, options) = (description.into().into(), ToolOptions::default());
        Self { name, description, schema: None, options, details: None }
    }

    /// Sets the JSON Schema of its arguments.
    #[must_use]
    pub fn schema(mut self, schema: Value) -> Self {
        self.schema = Some(Arc::new(schema));
        self
    }

    /// Sets its options.
    #[must_use]
    pub fn options(mut self, options: ToolOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets its name for people.
    #[must_use]
    pub fn with_title(mut self, title: impl Into<String>) -> Self {
        self.details().title = Some(title.into());
        self
    }

    /// Sets the JSON Schema of its result. It is shown to callers and not checked.
    #[must_use]
    pub fn with_output_schema(mut self, schema: Value) -> Self {
        self.details().output_schema = Some(schema);
        self
    }

    /// Sets the name of the system or server that it comes from, for people.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<String>) -> Self {
        self.details().source = Some(source.into());
        self
    }

    /// Sets its description.
    #[must_use]
    pub fn with_description(mut self, description: impl Into<String>) -> Self {
        self.description = description.into().into();
        self
    }

    /// Sets what is known of its effect. What is true is an option, too; what is unknown changes no option.
    #[must_use]
    pub fn with_hints(mut self, hints: ToolHints) -> Self {
        let ToolHints { destructive, idempotent, read_only, open_world } = hints;
        let options = &mut self.options;
        let mut denied = ToolHints::default();
        for (hint, option, denied) in [
            (destructive, &mut options.destructive, &mut denied.destructive),
            (idempotent, &mut options.idempotent, &mut denied.idempotent),
            (read_only, &mut options.read_only, &mut denied.read_only),
            (open_world, &mut options.open_world, &mut denied.open_world),
        ] {
            *option = hint.unwrap_or(*option);
            *denied = hint.filter(|is_true| !is_true);
        }
        if denied != ToolHints::default() || self.details.is_some() {
            self.details().denied = denied;
        }
        self
    }

    /// Sets the title that the hints of its system have beside its own.
    #[must_use]
    pub fn with_short_title(mut self, title: impl Into<String>) -> Self {
        self.details().short_title = Some(title.into());
        self
    }

    /// Sets what its system says of it beyond all this: an object.
    #[must_use]
    pub fn with_meta(mut self, meta: Value) -> Self {
        self.details().meta = Some(meta);
        self
    }

    /// Sets the method of LiveKit's RPC that runs it, if that has another name: any text of 1 to 512 bytes that does not begin
    /// with `lk.`, such as `lamp/on`. Callers call the tool, and only [`rpc_tool`](crate::AssistantBuilder::rpc_tool) reads it.
    #[must_use]
    pub fn with_rpc_method(mut self, method: impl Into<Arc<str>>) -> Self {
        self.details().rpc_method = Some(method.into());
        self
    }

    /// Sets its name.
    #[must_use]
    pub fn renamed(mut self, name: ToolName) -> Self {
        self.name = name;
        self
    }

    /// Returns its name.
    pub fn name(&self) -> &ToolName {
        &self.name
    }

    /// Returns its description, for a model or a person.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Returns the JSON Schema of its arguments, if it has one.
    pub fn input_schema(&self) -> Option<&Value> {
        self.schema.as_deref()
    }

    /// Returns its name for people, if it has one.
    pub fn title(&self) -> Option<&str> {
        self.details.as_ref()?.title.as_deref()
    }

    /// Returns the JSON Schema of its result, if it has one.
    pub fn output_schema(&self) -> Option<&Value> {
        self.details.as_ref()?.output_schema.as_ref()
    }

    /// Returns the name of the system or server that it comes from, if it is known.
    pub fn source(&self) -> Option<&str> {
        self.details.as_ref()?.source.as_deref()
    }

    /// Returns what is known of its effect. An option that is not set says nothing.
    pub fn hints(&self) -> ToolHints {
        let denied = self.details.as_ref().map(|details| details.denied).unwrap_or_default();
        let hint = |option: bool, denied: Option<bool>| if option { Some(true) } else { denied };
        ToolHints {
            destructive: hint(self.options.destructive, denied.destructive),
            idempotent: hint(self.options.idempotent, denied.idempotent),
            read_only: hint(self.options.read_only, denied.read_only),
            open_world: hint(self.options.open_world, denied.open_world),
        }
    }

    /// Returns the title that the hints of its system have, if there is one.
    pub fn short_title(&self) -> Option<&str> {
        self.details.as_ref()?.short_title.as_deref()
    }

    /// Returns what its system says of it beyond all this, if it does.
    pub fn meta(&self) -> Option<&Value> {
        self.details.as_ref()?.meta.as_ref()
    }

    /// Returns the method of LiveKit's RPC that runs it: its own name, or [another](Self::with_rpc_method).
    pub fn rpc_method(&self) -> &str {
        let other = self.details.as_ref().and_then(|details| details.rpc_method.as_deref());
        other.unwrap_or(self.name.as_str())
    }

    /// Returns whether its method of LiveKit's RPC can be called.
    pub(crate) fn can_call_rpc_method(&self) -> bool {
        let method = self.rpc_method();
        !method.starts_with("lk.") && (1..=MAX_RPC_METHOD).contains(&method.len())
    }

    /// Returns its options.
    pub fn tool_options(&self) -> &ToolOptions {
        &self.options
    }

    fn details(&mut self) -> &mut Details {
        Arc::make_mut(self.details.get_or_insert_default())
    }
}

/// Options of a tool: consent, timeouts, visibility and interruption.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolOptions {
    /// Whether its effect cannot be undone. Default: no.
    pub destructive: bool,
    /// Whether a second run has no further effect, so that a call may be repeated. Default: no.
    pub idempotent: bool,
    /// Whether it changes nothing. Default: no.
    pub read_only: bool,
    /// Whether it reaches systems that its author does not know, such as the web. Default: no.
    pub open_world: bool,
    /// Whether a person is asked before it runs. Default: always for a destructive tool, otherwise never.
    pub consent: Option<Consent>,
    /// The longest time that one run may take, whatever the caller allows. Default: the caller's limit.
    pub timeout: Option<Duration>,
    /// The time limit of a call whose caller sets none, for a tool that needs longer than
    /// [`DEFAULT_TIMEOUT`](crate::tools::DEFAULT_TIMEOUT), for example because a person reads a question. Default: the caller's.
    ///
    /// It may be at most [`Times::longest_call`](crate::Times::longest_call) of the participant that offers the tool; more
    /// is an error when joining. [`ToolOptions::LONGEST`] stands for that limit. A caller applies at most its own maximum.
    /// For a tool that takes hours, raise the limit at both.
    pub patience: Option<Duration>,
    /// How long a cancelled function that takes a context may continue, to clean up. Default: 1 s.
    pub cancel_grace: Option<Duration>,
    /// How much of a call that the assistant executes is broadcast to the room. Default: all of it.
    pub disclose: Visibility,
    /// Assistant: clients that offer a tool of this name may run the call instead. Default: no.
    pub prefer_client: bool,
    /// What happens to a running call when its turn is interrupted. Default: it stops.
    pub barge_in: BargeIn,
}

impl ToolOptions {
    /// The default time for cleaning up.
    pub const DEFAULT_CANCEL_GRACE: Duration = Duration::from_secs(1);

    /// A [`patience`](Self::patience) that is as long as the participant lets any call take.
    pub const LONGEST: Duration = Duration::MAX;

    /// Creates the options of a tool whose effect cannot be undone: it always asks for consent.
    pub fn destructive() -> Self {
        Self { destructive: true, ..Self::default() }
    }

    /// Declares that a second run has no further effect.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// Declares that it changes nothing.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Declares that it reaches systems that its author does not know, such as the web.
    #[must_use]
    pub fn open_world(mut self) -> Self {
        self.open_world = true;
        self
    }

    /// Sets whether a person is asked before it runs.
    #[must_use]
    pub fn consent(mut self, consent: Consent) -> Self {
        self.consent = Some(consent);
        self
    }

    /// Sets the longest time that one run may take.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Sets the time limit of a call whose caller sets none.
    #[must_use]
    pub fn patience(mut self, limit: Duration) -> Self {
        self.patience = Some(limit);
        self
    }

    /// Sets how long a cancelled function that takes a context may continue.
    #[must_use]
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.cancel_grace = Some(grace);
        self
    }

    /// Sets how much of a call that the assistant executes is broadcast to the room.
    #[must_use]
    pub fn disclose(mut self, level: Visibility) -> Self {
        self.disclose = level;
        self
    }

    /// Assistant: lets clients run the call. A client that offers a tool of this name gets the request first; if it
    /// does not claim the call in time, the assistant runs it ([`Execution::Either`]).
    #[must_use]
    pub fn prefer_client(mut self) -> Self {
        self.prefer_client = true;
        self
    }

    /// Sets what happens to a running call when its turn is interrupted.
    #[must_use]
    pub fn barge_in(mut self, rule: BargeIn) -> Self {
        self.barge_in = rule;
        self
    }

    /// Returns the consent that applies: the value that was set, otherwise `Always` for a destructive tool and
    /// `Never` for others.
    pub fn effective_consent(&self) -> Consent {
        self.consent.unwrap_or(if self.destructive { Consent::Always } else { Consent::Never })
    }
}

/// Whether a person is asked before a tool runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Consent {
    /// Never.
    #[default]
    Never,
    /// At the tool's first call in a session.
    OncePerSession,
    /// At each call.
    Always,
}

/// How much of a call that the assistant executes is broadcast to the room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Visibility {
    /// Arguments and result.
    #[default]
    Full,
    /// The tool's name and whether it succeeded.
    Name,
    /// Nothing.
    Nothing,
}

/// A tool and the participant that offers it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Offer {
    /// The tool.
    pub tool: Tool,
    /// The participant that would execute it.
    pub owner: Identity,
    /// How the owner is called now. `None` for the local participant, and for one that cannot be called now. Default:
    /// `None`.
    pub reach: Option<Reach>,
    /// Whether the owner is the local participant. Default: no.
    pub is_local: bool,
}

impl Offer {
    /// Creates a pair of a tool and the participant that offers it.
    pub fn new(tool: Tool, owner: Identity) -> Self {
        Self { tool, owner, reach: None, is_local: false }
    }

    /// Creates the offer of a tool of the local participant.
    pub(crate) fn local(tool: Tool, owner: Identity) -> Self {
        Self { is_local: true, ..Self::new(tool, owner) }
    }
}

/// How an assistant calls a participant (`wire.md`, sections 7 and 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reach {
    /// By frames, after the handshake.
    Toolbridge,
    /// By frames, without the handshake.
    Plain,
    /// By LiveKit's RPC in packets: version 1.
    Rpc1,
    /// By LiveKit's RPC in streams of text: version 2.
    Rpc2,
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Toolbridge => "toolbridge",
            Self::Plain => "plain",
            Self::Rpc1 => "rpc 1",
            Self::Rpc2 => "rpc 2",
        })
    }
}

/// Which participant executes a call (`wire.md`, section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Execution {
    /// The assistant.
    Server,
    /// The client that offers the tool.
    Client,
    /// The client if it claims the call in time, otherwise the assistant; never both.
    Either,
}

impl Execution {
    /// Returns the value on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
            Self::Either => "either",
        }
    }

    /// Returns the execution with this value on the wire.
    pub fn from_text(text: &str) -> Option<Self> {
        [Self::Server, Self::Client, Self::Either].into_iter().find(|it| it.as_str() == text)
    }
}

impl fmt::Display for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
