//! What is secret in a recording: which keys, and which tools.

use std::collections::BTreeSet;

/// What is taken out of a recording before it is written.
///
/// By default the value of every map key whose name says that it is secret, in whatever frame and at whatever depth
/// but in definitions of tools; and the parameters, progress and results of tools that are named here, of which
/// `bridge.authorize` always is one. A participant's builder names those of its own tools that do not
/// [disclose](crate::ToolOptions::disclose) everything.
///
/// Names that say so contain, without regard to case, `-` and `_`: password, passwd, secret, token, apikey,
/// authorization, cookie, credential or privatekey; or are otp, cvv or pin, or have it as a word.
///
/// In the place of a value stands a text with its kind and its size, and the frame says `bridge.redacted` in its `meta`.
/// Readers show the sizes of the original: of packets, parameters and results.
/// What is no frame but has such a name in it is replaced as a whole. Everything else is byte for byte as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redact {
    on: bool,
    /// The tools that are hidden; of all tools, those that are not.
    tools: BTreeSet<String>,
    all: bool,
    keys: Vec<String>,
}

/// What a key contains that is secret.
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

/// What is secret as a word of its own: elsewhere these letters are frequent.
const WORDS: &[&str] = &["otp", "cvv", "pin"];

/// Keys of the wire that are in most frames, the most frequent ones first.
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

/// A sign-in's address is not for records (`wire.md`, section 4).
const AUTHORIZE: &str = "bridge.authorize";

impl Default for Redact {
    fn default() -> Self {
        Self { on: true, tools: BTreeSet::from([AUTHORIZE.to_owned()]), all: false, keys: Vec::new() }
    }
}

impl Redact {
    /// Takes nothing out but instances.
    pub fn nothing() -> Self {
        Self { on: false, tools: BTreeSet::new(), all: false, keys: Vec::new() }
    }

    /// Takes out all that goes to any tool and comes from it, but for [`keep`](Redact::keep); and what the default
    /// takes out.
    pub fn everything() -> Self {
        Self { on: true, tools: BTreeSet::new(), all: true, keys: Vec::new() }
    }

    /// Takes out all that goes to this tool and comes from it.
    #[must_use]
    pub fn tool(self, name: impl Into<String>) -> Self {
        self.listing(name.into(), false)
    }

    /// Leaves what goes to this tool and comes from it, but for secrets by their key.
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

    /// Takes out the values of keys whose name contains this, without regard to case, `-` and `_`.
    #[must_use]
    pub fn key(mut self, part: &str) -> Self {
        self.keys.push(squeezed(part.as_bytes()));
        self
    }

    /// What `tool` says, unless nothing is to be taken out.
    pub(crate) fn hiding(self, tool: &str) -> Self {
        if self.on { self.tool(tool) } else { self }
    }

    /// Whether nothing is looked for.
    pub(super) fn is_idle(&self) -> bool {
        !self.on && !self.all && self.tools.is_empty() && self.keys.is_empty()
    }

    pub(super) fn is_hidden(&self, tool: &str) -> bool {
        self.tools.contains(tool) != self.all
    }

    /// Whether a text is the name of a tool that was named here.
    pub(super) fn names(&self, text: &[u8]) -> bool {
        self.tools.iter().any(|tool| tool.as_bytes() == text)
    }

    /// Whether a key is one of the wire's own that are in every frame, and nobody named keys: what need not be judged.
    pub(super) fn is_harmless(&self, key: &[u8]) -> bool {
        self.keys.is_empty() && HARMLESS.contains(&key)
    }

    /// Whether what comes of a call of which nothing is known is taken out.
    pub(super) fn hides_all(&self) -> bool {
        self.all
    }

    /// Whether the value behind this key is taken out.
    pub(super) fn is_secret(&self, key: &[u8]) -> bool {
        let plain = squeezed(key);
        let parts = PARTS.iter().copied().filter(|_| self.on).chain(self.keys.iter().map(String::as_str));
        parts.into_iter().any(|part| !part.is_empty() && plain.contains(part))
            || (self.on
                && words(key).any(|word| WORDS.iter().any(|it| word.eq_ignore_ascii_case(it.as_bytes()))))
    }

    /// Whether bytes that are no frame have the name of a secret in them.
    pub(super) fn is_suspect(&self, bytes: &[u8]) -> bool {
        let named = |tool: &String| bytes.windows(tool.len().max(1)).any(|it| it == tool.as_bytes());
        self.all || self.is_secret(bytes) || self.tools.iter().any(named)
    }
}

/// The letters and digits of a name in lower case; other bytes beside `-`, `_`, space and dot stand for themselves.
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
    fn keys_are_judged_by_what_they_contain_and_short_ones_by_words() {
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
