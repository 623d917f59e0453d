//! A tool as it is offered, and who is to execute its calls.

use std::{fmt, sync::Arc, time::Duration};

use serde_json::Value;

use super::{BargeIn, ToolName};
use crate::transport::Identity;

/// A tool as it is offered: its name, what it says of itself, and how it wants to be called.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    name: ToolName,
    description: Arc<str>,
    schema: Option<Arc<Value>>,
    options: ToolOptions,
}

impl Tool {
    /// A tool without a schema: any map is a valid argument.
    pub fn new(name: ToolName, description: impl Into<String>) -> Self {
        Self { name, description: description.into().into(), schema: None, options: ToolOptions::default() }
    }

    /// With this JSON Schema for its arguments.
    #[must_use]
    pub fn schema(mut self, schema: Value) -> Self {
        self.schema = Some(Arc::new(schema));
        self
    }

    /// With these options.
    #[must_use]
    pub fn options(mut self, options: ToolOptions) -> Self {
        self.options = options;
        self
    }

    /// Under another name.
    #[must_use]
    pub fn renamed(mut self, name: ToolName) -> Self {
        self.name = name;
        self
    }

    /// Its name.
    pub fn name(&self) -> &ToolName {
        &self.name
    }

    /// What it says of itself, for a model or a person.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// The JSON Schema of its arguments, if it has one.
    pub fn input_schema(&self) -> Option<&Value> {
        self.schema.as_deref()
    }

    /// Its options.
    pub fn tool_options(&self) -> &ToolOptions {
        &self.options
    }
}

/// How a tool wants to be called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolOptions {
    /// It cannot be undone. Default: no.
    pub destructive: bool,
    /// Running it twice is as good as once. Default: no.
    pub idempotent: bool,
    /// Whether a person is asked before it runs. Default: never; always for a destructive one.
    pub consent: Option<Consent>,
    /// The longest one run may take, whatever the caller allows. Default: the caller's limit.
    pub timeout: Option<Duration>,
    /// How long a cancelled function that takes a context may go on, to tidy up. Default: 1 s.
    pub cancel_grace: Option<Duration>,
    /// How much of a server-executed call the room hears. Default: all of it.
    pub disclose: Visibility,
    /// Assistant: clients may run it in our place, if they offer a tool of its name. Default: no.
    pub prefer_client: bool,
    /// What becomes of a running call when its turn is interrupted. Default: it stops.
    pub barge_in: BargeIn,
}

impl ToolOptions {
    /// The time for tidying up, where none is set.
    pub const DEFAULT_CANCEL_GRACE: Duration = Duration::from_secs(1);

    /// A tool that cannot be undone: it asks for consent, always.
    pub fn destructive() -> Self {
        Self { destructive: true, ..Self::default() }
    }

    /// Running it twice is as good as once.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// Whether a person is asked before it runs.
    #[must_use]
    pub fn consent(mut self, consent: Consent) -> Self {
        self.consent = Some(consent);
        self
    }

    /// The longest one run may take.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// How long a cancelled function that takes a context may go on.
    #[must_use]
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.cancel_grace = Some(grace);
        self
    }

    /// How much of a server-executed call the room hears.
    #[must_use]
    pub fn disclose(mut self, level: Visibility) -> Self {
        self.disclose = level;
        self
    }

    /// Assistant: clients may run it in our place. A client that offers a tool of this name is asked first, and we
    /// run it ourselves if it does not take the call in time: [`Execution::Either`].
    #[must_use]
    pub fn prefer_client(mut self) -> Self {
        self.prefer_client = true;
        self
    }

    /// What becomes of a running call when its turn is interrupted.
    #[must_use]
    pub fn barge_in(mut self, rule: BargeIn) -> Self {
        self.barge_in = rule;
        self
    }

    /// The consent in force: what was set, else always for a destructive tool and never for others.
    pub fn effective_consent(&self) -> Consent {
        self.consent.unwrap_or(if self.destructive { Consent::Always } else { Consent::Never })
    }
}

/// Whether a person is asked before a tool runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Consent {
    /// No.
    #[default]
    Never,
    /// At its first call in a session.
    OncePerSession,
    /// At each call.
    Always,
}

/// How much of a server-executed call is broadcast to the room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Visibility {
    /// Arguments and result.
    #[default]
    Full,
    /// The tool's name and whether it succeeded.
    Name,
    /// Nothing.
    Nothing,
}

/// A tool and who offers it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Offer {
    /// The tool.
    pub tool: Tool,
    /// The participant that would execute it.
    pub owner: Identity,
}

impl Offer {
    /// A tool and who offers it.
    pub fn new(tool: Tool, owner: Identity) -> Self {
        Self { tool, owner }
    }
}

/// Who is to execute a call (`wire.md`, section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Execution {
    /// The assistant.
    Server,
    /// The client that offers the tool.
    Client,
    /// The client if it has the tool, else the assistant; never both.
    Either,
}

impl Execution {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
            Self::Either => "either",
        }
    }

    /// The execution that the word names.
    pub fn from_text(text: &str) -> Option<Self> {
        [Self::Server, Self::Client, Self::Either].into_iter().find(|it| it.as_str() == text)
    }
}

impl fmt::Display for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
