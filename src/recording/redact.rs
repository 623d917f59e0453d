//! The redaction rule: which keys and which tools are secret.

use std::collections::BTreeSet;

/// What is redacted in a recording before it is written.
///
/// By default, two things are redacted: the value of every map key with a secret name, in every frame and at any
/// depth except in tool definitions; and the parameters, progress and results of the tools named here, which always
/// include `bridge.authorize`. A participant's builder adds its own tools that do not
/// [disclose](crate::ToolOptions::disclose) everything.
///
/// A name is secret if it contains password, passwd, secret, token, apikey, authorization, cookie, credential or
/// privatekey, ignoring case, `-` and `_`; or if it is, or has as a word, otp, cvv or pin.
///
/// Texts that are JSON objects or lists, such as the document of another system in a result, are searched too; one that
/// cannot be read and contains a secret name is replaced as a whole.
///
/// A text with its kind and size replaces each value, and the frame gets `bridge.redacted` in its `meta`. Readers
/// report the original sizes of packets, parameters and results. A payload that is not a frame but contains such a
/// name is replaced as a whole. Everything else is recorded byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redact {
    on: bool,
    /// The hidden tools; if `all` is set, the tools that are not hidden.
    tools: BTreeSet<String>,
    all: bool,
    keys: Vec<String>,
}

/// Substrings of secret keys.
const PARTS: &[&str] = &[
    "password",
    "passwd",
    "secret",
    "token",
    "apikey",
    "authorization",
    "cookie",
    "credential",
    "privatekey",
];

/// Secret only as separate words, since these letters are frequent elsewhere.
const WORDS: &[&str] = &["otp", "cvv", "pin"];

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
        Self { on: true, tools: BTreeSet::from([AUTHORIZE.to_owned()]), all: false, keys: Vec::new() }
    }
}

impl Redact {
    /// Redacts nothing except instances.
    pub fn nothing() -> Self {
        Self { on: false, tools: BTreeSet::new(), all: false, keys: Vec::new() }
    }

    /// Redacts the data of all tools except those passed to [`keep`](Redact::keep), in addition to the default rule.
    pub fn everything() -> Self {
        Self { on: true, tools: BTreeSet::new(), all: true, keys: Vec::new() }
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

    /// Redacts the values of keys that contain this text, ignoring case, `-` and `_`.
    #[must_use]
    pub fn key(mut self, part: &str) -> Self {
        self.keys.push(squeezed(part.as_bytes()));
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

    /// Whether the value of this key is redacted.
    pub(super) fn is_secret(&self, key: &[u8]) -> bool {
        let plain = squeezed(key);
        let parts = PARTS.iter().copied().filter(|_| self.on).chain(self.keys.iter().map(String::as_str));
        parts.into_iter().any(|part| !part.is_empty() && plain.contains(part))
            || (self.on
                && words(key).any(|word| WORDS.iter().any(|it| word.eq_ignore_ascii_case(it.as_bytes()))))
    }

    /// Whether bytes that are not a frame contain the name of a secret.
    pub(super) fn is_suspect(&self, bytes: &[u8]) -> bool {
        let named = |tool: &String| bytes.windows(tool.len().max(1)).any(|it| it == tool.as_bytes());
        self.all || self.is_secret(bytes) || self.tools.iter().any(named)
    }
}

/// A name in lower case without `-`, `_`, space and dot. Other bytes are kept.
fn squeezed(name: &[u8]) -> String {
    let kept = name.iter().filter(|byte| !matches!(byte, b'-' | b'_' | b' ' | b'.'));
    kept.map(|byte| byte.to_ascii_lowercase() as char).collect()
}

/// The words of a name: `user-pin`, `userPin` and `USER_PIN` have two.
fn words(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    name.split(|byte| !byte.is_ascii_alphanumeric())
        .flat_map(|part| part.chunk_by(|one, two| !(one.is_ascii_lowercase() && two.is_ascii_uppercase())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_keys_match_by_substring_and_short_ones_by_word() {
        let redact = Redact::default().key("mother_maiden");
        for secret in [
            "password",
            "userPassword",
            "PASSWD",
            "client_secret",
            "accessToken",
            "api_key",
            "x-api-key",
            "apiKey",
            "Authorization",
            "Set-Cookie",
            "credentials",
            "private_key",
            "privateKey",
            "otp",
            "OTP",
            "card_cvv",
            "pin",
            "pinCode",
            "user-pin",
            "motherMaidenName",
        ] {
            assert!(redact.is_secret(secret.as_bytes()), "{secret}");
        }
        for plain in
            ["", "name", "shipping", "spin", "pinned", "option", "toolName", "traceparent", "pass", "keys"]
        {
            assert!(!redact.is_secret(plain.as_bytes()), "{plain}");
        }
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
