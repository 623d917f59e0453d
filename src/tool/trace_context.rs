//! Reads and writes the position of a call in a distributed trace: W3C Trace Context, level 1.

use std::{fmt, str::FromStr, sync::Arc};

use crate::value::Value;

/// The W3C's names, which OpenTelemetry's propagators read and write.
pub(crate) const PARENT: &str = "traceparent";
pub(crate) const STATE: &str = "tracestate";

/// The names that other implementations of the protocol use.
pub(crate) const TRACE_ID: &str = "messaging.trace_id";
pub(crate) const SPAN_ID: &str = "messaging.span_id";

/// The length of a `traceparent` of version 00, in characters.
const PARENT_CHARS: usize = 55;

/// The longest `tracestate` that is sent, in characters: the length that the recommendation requires every system to
/// propagate.
const MAX_STATE: usize = 512;

/// The most members that a `tracestate` may have.
const MAX_MEMBERS: usize = 32;

/// The known flags: sampled, and (level 2) that the trace id is random.
const KNOWN_FLAGS: u8 = 0b11;

/// The position of a call in a distributed trace: the caller's span, as in W3C's `traceparent` and `tracestate`.
///
/// See [W3C Trace Context](https://www.w3.org/TR/trace-context/).
///
/// ```
/// use toolbridge::tools::TraceContext;
///
/// let context: TraceContext = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse()?;
/// assert!(context.is_sampled());
/// assert_eq!(context.span_id(), "00f067aa0ba902b7");
/// assert!("00-00000000000000000000000000000000-00f067aa0ba902b7-01".parse::<TraceContext>().is_err());
/// # Ok::<(), toolbridge::tools::InvalidTraceContext>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TraceContext {
    trace: [u8; 16],
    span: [u8; 8],
    flags: u8,
    state: Option<Arc<str>>,
}

/// Why a text is not a valid trace context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidTraceContext {
    /// A `traceparent` of this version has another length.
    #[error("the traceparent has {0} characters instead of 55")]
    Length(usize),
    /// The text is not `version-trace-span-flags` in lower-case hexadecimal digits.
    #[error("the traceparent is not four fields of lower-case hexadecimal digits separated by hyphens")]
    Form,
    /// Version ff is forbidden.
    #[error("traceparent version ff is forbidden")]
    Version,
    /// An id is all zeroes, which means that there is no id.
    #[error("the trace id or span id is all zeroes")]
    Zero,
    /// The `tracestate` is longer than 512 characters or has more than 32 members.
    #[error("the tracestate exceeds 512 characters or 32 members")]
    StateTooLarge,
    /// The `tracestate` is not a list of `key=value`, each key once.
    #[error("the tracestate is not a list of key=value members with unique keys")]
    State,
}

impl TraceContext {
    /// Reads the trace context in a request's metadata. A malformed one is ignored.
    pub(crate) fn of_meta(meta: &Value) -> Option<Self> {
        let text = |key: &str| meta.get(key).and_then(|value| value.as_str().map(str::to_owned));
        match text(PARENT) {
            Some(parent) => {
                let context: Self = parent.parse().ok()?;
                let state = text(STATE).and_then(|state| context.clone().with_state(&state).ok());
                Some(state.unwrap_or(context))
            }
            // A sender that writes ids without flags records its trace.
            None => Some(Self::of_ids(&text(TRACE_ID)?, &text(SPAN_ID)?).ok()?.sampled(true)),
        }
    }

    /// Creates a context with these ids, not sampled and without state.
    ///
    /// # Errors
    /// `Zero` if an id is all zeroes.
    pub fn new(trace_id: [u8; 16], span_id: [u8; 8]) -> Result<Self, InvalidTraceContext> {
        if trace_id == [0; 16] || span_id == [0; 8] {
            return Err(InvalidTraceContext::Zero);
        }
        Ok(Self { trace: trace_id, span: span_id, flags: 0, state: None })
    }

    /// Creates a context from ids in hexadecimal digits.
    pub(crate) fn of_ids(trace_id: &str, span_id: &str) -> Result<Self, InvalidTraceContext> {
        Self::new(digits(trace_id.as_bytes())?, digits(span_id.as_bytes())?)
    }

    /// Sets whether the caller may have recorded its span.
    #[must_use]
    pub fn sampled(mut self, sampled: bool) -> Self {
        self.flags = (self.flags & !1) | u8::from(sampled);
        self
    }

    /// Sets the `tracestate`; an empty one counts as none.
    ///
    /// # Errors
    /// `State` or `StateTooLarge`; the recommendation is to continue without a `tracestate` then.
    pub fn with_state(mut self, tracestate: &str) -> Result<Self, InvalidTraceContext> {
        check_state(tracestate)?;
        self.state = (!tracestate.trim_matches([' ', '\t', ',']).is_empty()).then(|| tracestate.into());
        Ok(self)
    }

    /// Returns the trace id as 32 hexadecimal digits.
    pub fn trace_id(&self) -> String {
        hex(&self.trace)
    }

    /// Returns the caller's span id as 16 hexadecimal digits.
    pub fn span_id(&self) -> String {
        hex(&self.span)
    }

    /// Returns the trace id in bytes, most significant first.
    pub fn trace_id_bytes(&self) -> [u8; 16] {
        self.trace
    }

    /// Returns the caller's span id in bytes, most significant first.
    pub fn span_id_bytes(&self) -> [u8; 8] {
        self.span
    }

    /// Returns whether the caller may have recorded its span.
    pub fn is_sampled(&self) -> bool {
        self.flags & 1 == 1
    }

    /// Returns the trace flags: bit 0 is sampled.
    pub fn flags(&self) -> u8 {
        self.flags
    }

    /// Returns the `tracestate`, if there is one.
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }
}

/// Writes the `traceparent`, in version 00.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace_id(), self.span_id(), self.flags)
    }
}

/// Parses a `traceparent`. From a later version it reads the fields that this version has.
impl FromStr for TraceContext {
    type Err = InvalidTraceContext;

    fn from_str(text: &str) -> Result<Self, InvalidTraceContext> {
        let bytes = text.as_bytes();
        let Some((parent, rest)) = bytes.split_at_checked(PARENT_CHARS) else {
            return Err(InvalidTraceContext::Length(bytes.len()));
        };
        let [version]: [u8; 1] = digits(&parent[..2])?;
        match (version, rest.first()) {
            (0xff, _) => return Err(InvalidTraceContext::Version),
            (_, None) => {}
            (0, Some(_)) => return Err(InvalidTraceContext::Length(bytes.len())),
            (_, Some(b'-')) => {}
            (_, Some(_)) => return Err(InvalidTraceContext::Form),
        }
        if [2, 35, 52].iter().any(|at| parent[*at] != b'-') {
            return Err(InvalidTraceContext::Form);
        }
        let [flags]: [u8; 1] = digits(&parent[53..])?;
        let read = Self::new(digits(&parent[3..35])?, digits(&parent[36..52])?)?;
        Ok(Self { flags: flags & KNOWN_FLAGS, ..read })
    }
}

fn digits<const N: usize>(text: &[u8]) -> Result<[u8; N], InvalidTraceContext> {
    let mut read = [0; N];
    if text.len() != 2 * N {
        return Err(InvalidTraceContext::Form);
    }
    for (slot, pair) in read.iter_mut().zip(text.chunks_exact(2)) {
        let [high, low] = [digit(pair[0])?, digit(pair[1])?];
        *slot = high << 4 | low;
    }
    Ok(read)
}

fn digit(letter: u8) -> Result<u8, InvalidTraceContext> {
    match letter {
        b'0'..=b'9' => Ok(letter - b'0'),
        b'a'..=b'f' => Ok(letter - b'a' + 10),
        _ => Err(InvalidTraceContext::Form),
    }
}

fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
        text
    })
}

fn check_state(text: &str) -> Result<(), InvalidTraceContext> {
    if text.len() > MAX_STATE {
        return Err(InvalidTraceContext::StateTooLarge);
    }
    let mut keys: Vec<&str> = Vec::new();
    for member in text.split(',').map(|member| member.trim_matches([' ', '\t'])) {
        if member.is_empty() {
            continue; // allowed between commas
        }
        let (key, value) = member.split_once('=').ok_or(InvalidTraceContext::State)?;
        if !is_key(key) || !is_value(value) || keys.contains(&key) {
            return Err(InvalidTraceContext::State);
        }
        if keys.len() == MAX_MEMBERS {
            return Err(InvalidTraceContext::StateTooLarge);
        }
        keys.push(key);
    }
    Ok(())
}

/// Whether the text is the name of a system, or of a tenant in a system.
fn is_key(key: &str) -> bool {
    let rest = |part: &str| {
        part.bytes().all(|it| matches!(it, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'*' | b'/'))
    };
    let letter = |part: &str| part.starts_with(|first: char| first.is_ascii_lowercase());
    match key.split_once('@') {
        None => key.len() <= 256 && letter(key) && rest(key),
        Some((tenant, system)) => {
            let begins = letter(tenant) || tenant.starts_with(|first: char| first.is_ascii_digit());
            let fits = tenant.len() <= 241 && system.len() <= 14;
            fits && begins && rest(tenant) && letter(system) && rest(system)
        }
    }
}

fn is_value(value: &str) -> bool {
    let printable = |letter: u8| (0x20..=0x7e).contains(&letter) && letter != b',' && letter != b'=';
    (1..=256).contains(&value.len()) && value.bytes().all(printable) && !value.ends_with(' ')
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    const UNSAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

    fn of(meta: Json) -> Option<TraceContext> {
        TraceContext::of_meta(&Value::from(meta))
    }

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn error(text: &str) -> InvalidTraceContext {
        text.parse::<TraceContext>().unwrap_err()
    }

    #[test]
    fn traceparent_round_trips() {
        let context: TraceContext = GOOD.parse().unwrap();
        assert_eq!(context.to_string(), GOOD);
        assert_eq!(context.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert!(context.is_sampled() && !context.clone().sampled(false).is_sampled());
        assert_eq!(TraceContext::new(context.trace_id_bytes(), [0; 8]), Err(InvalidTraceContext::Zero));
        let unknown = GOOD.replace("-01", "-fc").parse::<TraceContext>().unwrap();
        assert_eq!(unknown.flags(), 0, "flags that nobody knows are not passed on");
    }

    #[test]
    fn later_version_may_have_more_after_a_hyphen() {
        let later = GOOD.replacen("00", "cc", 1);
        for text in [later.clone(), format!("{later}-"), format!("{later}-what-the-future-brings")] {
            assert_eq!(text.parse::<TraceContext>().unwrap().to_string(), GOOD);
        }
        assert_eq!(error(&format!("{later}.what")), InvalidTraceContext::Form);
    }

    #[test]
    fn invalid_traceparent_is_refused() {
        assert_eq!(error(""), InvalidTraceContext::Length(0));
        assert_eq!(error(&GOOD[..54]), InvalidTraceContext::Length(54));
        assert_eq!(error(&format!("{GOOD}-00")), InvalidTraceContext::Length(58));
        assert_eq!(error(&GOOD.replacen("00", "ff", 1)), InvalidTraceContext::Version);
        assert_eq!(error(&GOOD.replace("00f067aa0ba902b7", "0000000000000000")), InvalidTraceContext::Zero);
        assert_eq!(
            error(&GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32))),
            InvalidTraceContext::Zero
        );
        for bad in
            [GOOD.to_uppercase(), GOOD.replace('-', "_"), GOOD.replace('7', "g"), GOOD.replace("4b", "ä")]
        {
            assert_eq!(error(&bad), InvalidTraceContext::Form, "{bad}");
        }
        assert_eq!(error(&"é".repeat(28)), InvalidTraceContext::Form, "no character is cut");
    }

    #[test]
    fn tracestate_is_validated() {
        let context: TraceContext = GOOD.parse().unwrap();
        let with = |state: &str| context.clone().with_state(state);
        for good in ["congo=t61rcWkgMzE", "rojo=00f067aa0ba902b7, congo=x", "0tenant@sys=1,,a=b", "a= b"] {
            assert_eq!(with(good).unwrap().state(), Some(good));
        }
        assert_eq!(with(" , ").unwrap().state(), None);
        for bad in ["a", "a=", "=b", "A=b", "a=b=c", "a=ä", "0a=b", "a=1,a=2", "a@0b=c", "a@b@c=d"] {
            assert_eq!(with(bad), Err(InvalidTraceContext::State), "{bad}");
        }
        let members = |count: usize| (0..count).map(|n| format!("k{n}=v")).collect::<Vec<_>>().join(",");
        assert!(with(&members(32)).is_ok());
        assert_eq!(with(&members(33)), Err(InvalidTraceContext::StateTooLarge));
        assert_eq!(with(&format!("a={}", "x".repeat(511))), Err(InvalidTraceContext::StateTooLarge));
    }

    #[test]
    fn invalid_state_is_left_out_and_invalid_parent_is_ignored() {
        let good: TraceContext = UNSAMPLED.parse().unwrap();
        assert_eq!(of(json!({"traceparent": UNSAMPLED, "tracestate": "A=b"})), Some(good.clone()));
        let with = of(json!({"traceparent": UNSAMPLED, "tracestate": "a=b"})).unwrap();
        assert_eq!(with.state(), Some("a=b"));
        let ids = json!({"messaging.trace_id": good.trace_id(), "messaging.span_id": good.span_id()});
        assert_eq!(of(ids), Some(good.clone().sampled(true)));
        let odd = json!({"traceparent": "nonsense", "messaging.trace_id": good.trace_id(), "messaging.span_id": good.span_id()});
        for none in
            [odd, json!({}), json!({"traceparent": 7}), json!({"messaging.trace_id": good.trace_id()})]
        {
            assert_eq!(of(none.clone()), None, "{none}");
        }
    }
}
