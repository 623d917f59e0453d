//! Defines the redaction rule: which keys and which tools are secret.

use std::collections::BTreeSet;

use super::secret_names::{self, folded};

/// What is redacted in a recording before it is written.
///
/// By default, two things are redacted: the values of secret names, in every frame and at any depth except in tool
/// definitions; and the data of the tools named here, which always include `bridge.authorize`. A participant's
/// builder adds its own tools that do not [disclose](crate::ToolOptions::disclose) everything.
///
/// # Secret names
///
/// A name is secret if it contains password, passwd, passphrase, passcode, pincode, secret, token, apikey, accesskey,
/// privatekey, authorization, bearer, cookie or credential, ignoring case and everything but letters and digits; or if
/// it is, or has as a word, auth, cvc, cvv, jwt, otp, pin, pwd or totp (`userPINCode`, `cvv2`). [`key`](Redact::key)
/// adds names. The value of such a name is redacted
///
/// - in a map, and in a text that is a JSON object or list; one that cannot be read and contains a secret name is
///   replaced as a whole;
/// - beside it, in a map or in JSON: `{"name": "Authorization", "value": …}`, and the element after it in a list;
/// - in any other text: after `=` and `:`, as in parameters of URLs and forms, header lines and configuration files, up to the end
///   of the value or of the line; and before the host of a URL.
///
/// Texts are searched as a person sees them: invisible characters and colors of a terminal are skipped, and full-width letters
/// and punctuation count as ASCII. In texts rather more than the value is redacted than less. Nothing else is covered: not markup,
/// YAML, source code, commands, multipart forms, texts inside texts, prose, or encodings such as base64 and compression. A file
/// that is given away should have no values at all: see [`everything`](Redact::everything).
///
/// # Hidden tools
///
/// Of a hidden tool's requests, progress, results, errors, stops and acknowledgements only ids, names, states and
/// numbers stay; all other fields are replaced, also in `meta`, and those that the protocol does not define are
/// removed. The same holds for what refers to such a tool: its events (`bridge.event`), and permissions for its calls.
/// [`everything`](Redact::everything) treats every frame so, including registrations, Configurations and views.
///
/// Of an event of a hidden tool, or with [`everything`](Redact::everything) of any event, the fields that this version knows
/// stay, and texts in them that are not toolbridge's own words are replaced. `everything` removes events that it does not
/// know.
///
/// # Other programs
///
/// [`redact`](crate::recording::redact()) removes what another program wrote into the file: its messages, channels and schemas, and
/// packets on topics of other applications. [`keep_foreign`](Redact::keep_foreign) keeps them.
///
/// # Limits
///
/// Calls are told apart by id and caller. Of a session with more than 16,384 calls, the latest are remembered, open
/// ones longest. What cannot be attributed after that, or after packets were not recorded, counts as hidden.
///
/// A text with its kind and size replaces each value, and the frame gets `bridge.redacted` in its `meta`. Readers
/// report the original sizes of packets, parameters and results. A payload that is not a frame but contains a secret
/// name is replaced as a whole. Everything else is recorded byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redact {
    on: bool,
    /// The hidden tools; if `all` is set, the tools that are not hidden.
    tools: BTreeSet<String>,
    all: bool,
    keys: Vec<String>,
    /// Whether messages of other programs stay.
    foreign: bool,
}

/// Keys of the wire format that most frames contain, most frequent first.
const HARMLESS: &[&[u8]] = &[
    b"type",
    b"meta",
    b"body",
    b"id",
    b"stanzaId",
    b"conversationId",
    b"success",
    b"result",
    b"toolName",
    b"parameters",
    b"execution",
    b"timeoutMs",
    b"acknowledgedStanzaId",
    b"acknowledgedMessageId",
    b"bridge.to",
];

/// The address of a sign-in must not be recorded (`wire.md`, section 4.10).
const AUTHORIZE: &str = "bridge.authorize";

impl Default for Redact {
    fn default() -> Self {
        Self {
            on: true,
            tools: BTreeSet::from([AUTHORIZE.to_owned()]),
            all: false,
            keys: Vec::new(),
            foreign: false,
        }
    }
}

impl Redact {
    /// Redacts nothing, and keeps messages of other programs.
    pub fn nothing() -> Self {
        Self { on: false, tools: BTreeSet::new(), all: false, keys: Vec::new(), foreign: false }
    }

    /// Redacts the data of all tools except those passed to [`keep`](Redact::keep), in addition to the default rule.
    pub fn everything() -> Self {
        Self { on: true, tools: BTreeSet::new(), all: true, keys: Vec::new(), foreign: false }
    }

    /// Redacts the data of this tool.
    #[must_use]
    pub fn tool(self, name: impl Into<String>) -> Self {
        self.listing(name.into(), false)
    }

    /// Keeps the data of this tool, except values of secret keys.
    #[must_use]
    pub fn keep(self, name: impl Into<String>) -> Self {
        self.listing(name.into(), true)
    }

    fn listing(mut self, name: String, kept: bool) -> Self {
        if kept == self.all {
            self.tools.insert(name);
        } else {
            self.tools.remove(&name);
        }
        self
    }

    /// Redacts the values of keys that contain this text, ignoring case, in any script, and everything but letters and digits.
    #[must_use]
    pub fn key(mut self, part: &str) -> Self {
        self.keys.push(folded(part));
        self
    }

    /// Keeps the messages, channels and schemas of other programs in a file as they are. Nothing in them is searched.
    #[must_use]
    pub fn keep_foreign(mut self) -> Self {
        self.foreign = true;
        self
    }

    /// Like `tool`, unless redaction is off.
    pub(crate) fn hiding(self, tool: &str) -> Self {
        if self.on { self.tool(tool) } else { self }
    }

    /// Whether nothing can be redacted.
    pub(super) fn is_idle(&self) -> bool {
        !self.on && !self.all && self.tools.is_empty() && self.keys.is_empty()
    }

    /// Whether no tool's data and no message of another program stays.
    pub(super) fn hides_everything(&self) -> bool {
        self.all && self.tools.is_empty() && !self.foreign
    }

    /// Whether messages of other programs stay.
    pub(super) fn keeps_foreign_messages(&self) -> bool {
        self.foreign || self.is_idle()
    }

    pub(super) fn is_hidden(&self, tool: &str) -> bool {
        self.tools.contains(tool) != self.all
    }

    /// Whether a text is the name of a listed tool.
    pub(super) fn names(&self, text: &[u8]) -> bool {
        self.tools.iter().any(|tool| tool.as_bytes() == text)
    }

    /// Whether a key is a frequent key of the wire format and no keys were added, so that it needs no check.
    pub(super) fn is_harmless(&self, key: &[u8]) -> bool {
        self.keys.is_empty() && HARMLESS.contains(&key)
    }

    /// Whether the data of an unknown call is redacted.
    pub(super) fn hides_all(&self) -> bool {
        self.all
    }

    /// Whether any tool is not hidden although the others are.
    pub(super) fn keeps_any(&self) -> bool {
        self.all && !self.tools.is_empty()
    }

    /// Whether a tool is hidden that the user named. The results of `bridge.authorize` hold no secrets.
    pub(super) fn hides_named(&self) -> bool {
        !self.all && self.tools.iter().any(|tool| tool != AUTHORIZE)
    }

    /// Whether the value of this key is redacted.
    pub(super) fn is_secret(&self, key: &[u8]) -> bool {
        let name = String::from_utf8_lossy(key);
        if self.on && secret_names::is_secret(&name) {
            return true;
        }
        if self.keys.is_empty() {
            return false;
        }
        let plain = folded(&name);
        self.keys.iter().any(|part| !part.is_empty() && plain.contains(part))
    }

    /// Whether bytes that are not a frame contain the name of a secret.
    pub(super) fn is_suspect(&self, bytes: &[u8]) -> bool {
        let named = |tool: &String| bytes.windows(tool.len().max(1)).any(|it| it == tool.as_bytes());
        self.all || self.is_secret(bytes) || self.tools.iter().any(named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_keys_are_secret_whatever_their_case() {
        let redact = Redact::default().key("mother_maiden");
        for secret in ["password", "PINCode", "motherMaidenName"] {
            assert!(redact.is_secret(secret.as_bytes()), "{secret}");
        }
        assert!(!redact.is_secret(b"name") && !redact.is_secret(b""));
        let own = Redact::nothing().key("schlüssel").key("пароль").key("---");
        for secret in ["SCHLÜSSEL", "Auto-Schlüssel", "Пароль", "мойПароль"] {
            assert!(own.is_secret(secret.as_bytes()), "{secret}");
        }
        assert!(!own.is_secret(b"password"));
        for key in HARMLESS {
            assert!(!redact.is_secret(key) && !redact.is_harmless(key) && Redact::default().is_harmless(key));
        }
        assert!(redact.clone().tool("lamp").names(b"lamp") && !redact.names(b"lamp"));
        assert!(Redact::nothing().is_idle() && !Redact::nothing().is_secret(b"password"));
        assert!(redact.is_hidden("bridge.authorize") && !redact.is_hidden("get_battery"));
        let all = Redact::everything().keep("get_battery");
        assert!(all.is_hidden("bridge.authorize") && !all.is_hidden("get_battery") && all.is_secret(b"pin"));
        assert!(all.tool("get_battery").is_hidden("get_battery"));
    }
}
