//! Reads and writes plain types as JSON: field by field, in the order of the fields.
//!
//! The derives of serde would do the same in five times the code, which every web page that uses the module would load.

use std::{borrow::Cow, fmt};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde::de::IgnoredAny;

use super::clock;

/// The field that wrappers may carry beside the text.
pub const BYTES: &str = "bytes";

/// The largest number that JavaScript holds exactly.
const LARGEST: u64 = (1 << 53) - 1;

/// Why an input is malformed. It had no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The field, such as `tools[1].name`. Empty if the whole text is malformed.
    pub field: String,
    /// What is wrong with it.
    pub message: String,
}

impl Malformed {
    pub fn new(message: impl fmt::Display) -> Self {
        Self { field: String::new(), message: message.to_string() }
    }

    /// Puts this field before the path.
    pub fn of(mut self, field: &str) -> Self {
        let dot = if self.field.is_empty() || self.field.starts_with('[') { "" } else { "." };
        self.field = format!("{field}{dot}{}", self.field);
        self
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.field {
            "" => write!(f, "input: {}", self.message),
            field => write!(f, "{field}: {}", self.message),
        }
    }
}

impl std::error::Error for Malformed {}

/// The text of a JSON value. In what the core writes it is canonical JSON (`wire.md`, section 9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Json {
    /// The text.
    pub text: String,
}

/// A type that is read from JSON.
pub trait Read: Sized {
    /// Whether `null` is a value of the type, and not a missing one.
    const HAS_NULL: bool = false;

    fn read(text: &str) -> Result<Self, Malformed>;

    /// Returns what stands for a value that is malformed, until the error is returned.
    fn unread() -> Self;

    /// Returns the value of a missing field, if it may be missing.
    fn missing() -> Option<Self> {
        None
    }

    /// Returns the value if its bytes came beside the text.
    fn beside(_: Vec<u8>) -> Option<Self> {
        None
    }
}

/// A type that is written as JSON.
pub trait Write {
    fn write(&self, out: &mut Writer);

    fn write_field(&self, name: &str, out: &mut Writer) {
        if out.begin_field(name) {
            self.write(out);
        }
    }
}

/// Writes one object.
#[derive(Debug, Default)]
pub struct Writer {
    text: String,
    /// Whether the field `bytes` is left out.
    omits_bytes: bool,
}

impl Writer {
    pub fn omitting_bytes(omits_bytes: bool) -> Self {
        Self { omits_bytes, ..Self::default() }
    }

    pub fn finish(self) -> String {
        self.text
    }

    pub fn open(&mut self) {
        self.text.push('{');
    }

    pub fn close(&mut self) {
        self.text.push('}');
    }

    pub fn raw(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Begins a field, unless it is left out.
    pub fn begin_field(&mut self, name: &str) -> bool {
        if self.omits_bytes && name == BYTES {
            return false;
        }
        self.separate();
        self.string(name);
        self.text.push(':');
        true
    }

    pub fn named(&mut self, name: &str, value: &str) {
        if self.begin_field(name) {
            self.string(value);
        }
    }

    /// Begins the next field or item.
    fn separate(&mut self) {
        if !self.text.ends_with(['{', '[']) {
            self.text.push(',');
        }
    }

    fn number(&mut self, number: u64) {
        self.text.push_str(&number.to_string());
    }

    pub fn string(&mut self, text: &str) {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        self.text.push('"');
        let mut start = 0;
        for (at, byte) in text.bytes().enumerate() {
            let escape: &[u8] = match byte {
                b'"' => b"\\\"",
                b'\\' => b"\\\\",
                0x08 => b"\\b",
                0x09 => b"\\t",
                0x0a => b"\\n",
                0x0c => b"\\f",
                0x0d => b"\\r",
                0..0x20 => {
                    &[b'\\', b'u', b'0', b'0', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]
                }
                _ => continue,
            };
            self.text.push_str(&text[start..at]);
            self.text.extend(escape.iter().map(|byte| char::from(*byte)));
            start = at + 1;
        }
        self.text.push_str(&text[start..]);
        self.text.push('"');
    }
}

/// The fields of an object that are still to be read.
#[derive(Debug)]
pub struct Fields<'a> {
    fields: Vec<(Cow<'a, str>, &'a str)>,
    beside: Option<Vec<u8>>,
    /// The first field that is malformed.
    error: Option<Malformed>,
}

impl<'a> Fields<'a> {
    /// Reads an input, which [`repaired`] has returned. Only here a text is checked to be JSON: what is inside it is then, too.
    pub fn of_input(text: &'a str, beside: Option<Vec<u8>>) -> Result<Self, Malformed> {
        serde_json::from_str::<IgnoredAny>(text).map_err(Malformed::new)?;
        Ok(Self { beside, ..Self::read(text)? })
    }

    /// Reads an object inside a text that is JSON.
    pub fn read(text: &'a str) -> Result<Self, Malformed> {
        let mut parts = Parts::of(text, '{').ok_or_else(|| Malformed::new("is not an object"))?;
        let mut fields = Vec::new();
        while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
            fields.push((string(name).unwrap_or_default(), value));
        }
        Ok(Self { fields, beside: None, error: None })
    }

    /// Takes a field. If it is malformed, [`check`](Self::check) returns the error.
    ///
    /// An error that each field returned would need code that drops the fields before it.
    pub fn take<T: Read>(&mut self, name: &str, default: Option<T>) -> T {
        self.try_take(name, default).unwrap_or_else(|error| {
            self.error.get_or_insert(error);
            T::unread()
        })
    }

    fn try_take<T: Read>(&mut self, name: &str, default: Option<T>) -> Result<T, Malformed> {
        let text = self.take_text(name, T::HAS_NULL);
        let value = match (text, self.beside.take_if(|_| name == BYTES)) {
            (None, None) => default.or_else(T::missing).ok_or_else(|| Malformed::new("is missing")),
            (Some(text), None) => T::read(text),
            (None, Some(bytes)) => T::beside(bytes).ok_or_else(|| Malformed::new("is no field of bytes")),
            (Some(_), Some(_)) => Err(Malformed::new("is both in the text and beside it")),
        };
        value.map_err(|error| error.of(name))
    }

    fn take_text(&mut self, name: &str, has_null: bool) -> Option<&'a str> {
        let at = self.fields.iter().position(|(field, _)| field == name)?;
        let (_, text) = self.fields.swap_remove(at);
        (has_null || text != "null").then_some(text)
    }

    /// Fails if a field was malformed.
    pub fn check(&mut self) -> Result<(), Malformed> {
        self.error.take().map_or(Ok(()), Err)
    }

    /// Fails if a field was malformed, or if fields are left.
    pub fn finish(mut self) -> Result<(), Malformed> {
        self.check()?;
        let name = match (self.fields.first(), self.beside) {
            (Some((name, _)), _) => name,
            (None, Some(_)) => BYTES,
            (None, None) => return Ok(()),
        };
        Err(Malformed::new("is unknown here, or repeated").of(name))
    }
}

/// The texts of what an object or a list consists of: names, values, items. The text around them must be valid JSON.
struct Parts<'a> {
    rest: &'a str,
}

impl<'a> Parts<'a> {
    /// Returns the parts of a text, if this bracket opens it.
    fn of(text: &'a str, bracket: char) -> Option<Self> {
        text.trim_ascii_start().strip_prefix(bracket).map(|rest| Self { rest })
    }
}

impl<'a> Iterator for Parts<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let is_between = |byte: &u8| matches!(byte, b',' | b':' | b' ' | b'\n' | b'\r' | b'\t');
        let start = self.rest.as_bytes().iter().take_while(|byte| is_between(byte)).count();
        let rest = self.rest.get(start..)?;
        let (part, rest) = rest.split_at_checked(length(rest.as_bytes()))?;
        self.rest = rest;
        (!part.is_empty()).then_some(part)
    }
}

/// Returns the length of the value that a text starts with, or 0 if that is the end of a container.
fn length(text: &[u8]) -> usize {
    let (mut at, mut depth) = (0, 0);
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => at = string_end(text, at),
            b'{' | b'[' => (at, depth) = (at + 1, depth + 1),
            b'}' | b']' if depth > 0 => (at, depth) = (at + 1, depth - 1),
            b'}' | b']' => return at,
            b',' | b':' | b' ' | b'\n' | b'\r' | b'\t' if depth == 0 => return at,
            _ => {
                at += 1;
                continue; // within a word
            }
        }
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// Returns the position behind the string that starts here.
fn string_end(text: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    text.len()
}

/// Returns JSON in which each half of a surrogate pair is U+FFFD: texts come from authors, who cut them in the middle of an emoji, and
/// from names of files that are no Unicode. A text that is not JSON stays none.
pub fn repaired(text: &str) -> Cow<'_, str> {
    if !text.contains("\\ud") && !text.contains("\\uD") {
        return text.into();
    }
    let unit = |at: usize| {
        let digits = text.get(at..at + 6).and_then(|escape| escape.strip_prefix("\\u"));
        digits.and_then(|digits| u16::from_str_radix(digits, 16).ok())
    };
    let (mut whole, mut at, mut copied) = (String::with_capacity(text.len()), 0, 0);
    while let Some(next) = text[at..].find('\\') {
        at += next;
        match (unit(at), unit(at + 6)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => at += 12,
            (Some(0xd800..=0xdfff), _) => {
                whole.push_str(&text[copied..at]);
                whole.push_str("\\ufffd");
                (at, copied) = (at + 6, at + 6);
            }
            // What follows the backslash may be of several bytes in a text that is not JSON.
            _ => at += 1 + text[at + 1..].chars().next().map_or(0, char::len_utf8),
        }
    }
    whole.push_str(&text[copied..]);
    whole.into()
}

/// Returns the text of a string, which is valid JSON.
fn string(quoted: &str) -> Option<Cow<'_, str>> {
    let inside = quoted.strip_prefix('"')?.strip_suffix('"')?;
    if !inside.contains('\\') {
        return Some(inside.into());
    }
    match serde_json::from_str(quoted) {
        Ok(serde_json::Value::String(text)) => Some(text.into()),
        _ => None,
    }
}

/// Returns the texts of the items of a list.
fn items(text: &str) -> Result<Parts<'_>, Malformed> {
    Parts::of(text, '[').ok_or_else(|| Malformed::new("is not a list"))
}

/// Reads the entries of an object.
pub fn read_entries<V: Read, E>(text: &str, entry: impl Fn(String, V) -> E) -> Result<Vec<E>, Malformed> {
    let read = |(name, value): (Cow<'_, str>, &str)| {
        let value = V::read(value).map_err(|error| error.of(&name))?;
        Ok(entry(name.into_owned(), value))
    };
    Fields::read(text)?.fields.into_iter().map(read).collect()
}

pub fn write_entries<'a, V: Write + 'a>(out: &mut Writer, entries: impl Iterator<Item = (&'a str, &'a V)>) {
    out.open();
    for (name, value) in entries {
        out.separate();
        out.string(name);
        out.raw(":");
        value.write(out);
    }
    out.close();
}

impl Read for String {
    fn read(text: &str) -> Result<Self, Malformed> {
        string(text).map(Cow::into_owned).ok_or_else(|| Malformed::new("is not a text"))
    }

    fn unread() -> Self {
        Self::new()
    }
}

impl Write for String {
    fn write(&self, out: &mut Writer) {
        out.string(self);
    }
}

impl Read for bool {
    fn read(text: &str) -> Result<Self, Malformed> {
        match text {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(Malformed::new("is neither true nor false")),
        }
    }

    fn unread() -> Self {
        false
    }
}

impl Write for bool {
    fn write(&self, out: &mut Writer) {
        out.raw(if *self { "true" } else { "false" });
    }
}

/// A key, a size or a count.
impl Read for u64 {
    fn read(text: &str) -> Result<Self, Malformed> {
        let number = text.parse().ok().filter(|number| *number <= LARGEST);
        number.ok_or_else(|| Malformed::new("is not a whole number from 0 to 9007199254740991"))
    }

    fn unread() -> Self {
        0
    }
}

impl Write for u64 {
    fn write(&self, out: &mut Writer) {
        out.number(*self);
    }
}

/// A signed number: the code of a peer's error.
impl Read for i32 {
    fn read(text: &str) -> Result<Self, Malformed> {
        text.parse().map_err(|_| Malformed::new("is not a whole number of 32 bits"))
    }

    fn unread() -> Self {
        0
    }
}

impl Write for i32 {
    fn write(&self, out: &mut Writer) {
        if *self < 0 {
            out.raw("-");
        }
        out.number(u64::from(self.unsigned_abs()));
    }
}

/// A time in milliseconds, with at most three decimals.
impl Read for f64 {
    fn read(text: &str) -> Result<Self, Malformed> {
        let number = match serde_json::from_str(text) {
            Ok(serde_json::Value::Number(number)) => number.as_f64(),
            _ => None,
        };
        let millis = number.ok_or_else(|| Malformed::new("is not a number"))?;
        clock::duration(millis).map(|_| millis)
    }

    fn unread() -> Self {
        0.0
    }
}

impl Write for f64 {
    fn write(&self, out: &mut Writer) {
        let micros = clock::micros(*self);
        out.number(micros / 1_000);
        let mut rest = micros % 1_000;
        if rest > 0 {
            let mut digits = 3;
            while rest.is_multiple_of(10) {
                (rest, digits) = (rest / 10, digits - 1);
            }
            out.raw(".");
            out.raw(&format!("{rest:0digits$}"));
        }
    }
}

impl Read for Json {
    const HAS_NULL: bool = true;

    fn read(text: &str) -> Result<Self, Malformed> {
        Ok(Self { text: text.to_owned() })
    }

    fn unread() -> Self {
        Self { text: String::new() }
    }
}

impl Write for Json {
    fn write(&self, out: &mut Writer) {
        out.raw(&self.text);
    }
}

/// The caller's name of a call or a turn, as JSON: a text of 1 to 128 bytes, or a whole number of 64 bits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    text: String,
}

impl Id {
    const MOST_BYTES: usize = 128;

    /// Returns the id with this number.
    pub fn of_number(number: u64) -> Self {
        Self { text: number.to_string() }
    }

    /// Returns it as JSON.
    pub fn as_json(&self) -> &str {
        &self.text
    }
}

impl Read for Id {
    fn read(text: &str) -> Result<Self, Malformed> {
        let fits = match string(text) {
            Some(text) => (1..=Self::MOST_BYTES).contains(&text.len()),
            None => text.parse::<u64>().is_ok() || text.parse::<i64>().is_ok(),
        };
        let id = fits.then(|| Self { text: text.to_owned() });
        id.ok_or_else(|| Malformed::new("is neither a text of 1 to 128 bytes nor a whole number of 64 bits"))
    }

    fn unread() -> Self {
        Self::of_number(0)
    }
}

impl Write for Id {
    fn write(&self, out: &mut Writer) {
        out.raw(&self.text);
    }
}

impl Read for Vec<u8> {
    fn read(text: &str) -> Result<Self, Malformed> {
        let text = String::read(text)?;
        BASE64.decode(text).map_err(|_| Malformed::new("is not base64 with padding"))
    }

    fn unread() -> Self {
        Self::new()
    }

    fn beside(bytes: Vec<u8>) -> Option<Self> {
        Some(bytes)
    }
}

impl Write for Vec<u8> {
    fn write(&self, out: &mut Writer) {
        out.raw("\"");
        BASE64.encode_string(self, &mut out.text);
        out.raw("\"");
    }
}

impl<T: Read> Read for Option<T> {
    const HAS_NULL: bool = T::HAS_NULL;

    fn read(text: &str) -> Result<Self, Malformed> {
        T::read(text).map(Some)
    }

    fn unread() -> Self {
        None
    }

    fn missing() -> Option<Self> {
        Some(None)
    }

    fn beside(bytes: Vec<u8>) -> Option<Self> {
        T::beside(bytes).map(Some)
    }
}

impl<T: Write> Write for Option<T> {
    fn write(&self, out: &mut Writer) {
        if let Some(value) = self {
            value.write(out);
        }
    }

    fn write_field(&self, name: &str, out: &mut Writer) {
        if let Some(value) = self {
            value.write_field(name, out);
        }
    }
}

impl<T: Read> Read for Vec<T> {
    fn read(text: &str) -> Result<Self, Malformed> {
        let read = |(at, item): (usize, &str)| T::read(item).map_err(|error| error.of(&format!("[{at}]")));
        items(text)?.enumerate().map(read).collect()
    }

    fn unread() -> Self {
        Self::new()
    }
}

impl<T: Write> Write for Vec<T> {
    fn write(&self, out: &mut Writer) {
        out.raw("[");
        for item in self {
            out.separate();
            item.write(out);
        }
        out.raw("]");
    }
}

/// An item that may be malformed by itself.
impl<T: Read> Read for Result<T, Malformed> {
    fn read(text: &str) -> Result<Self, Malformed> {
        Ok(T::read(text))
    }

    fn unread() -> Self {
        Ok(T::unread())
    }
}

impl<T: Write> Write for Result<T, Malformed> {
    fn write(&self, out: &mut Writer) {
        match self {
            Ok(value) => value.write(out),
            Err(_) => out.raw("null"),
        }
    }
}

/// Defines an enum of names.
macro_rules! names {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$doc])* $variant,)*
        }

        impl $name {
            const NAMES: &[(&str, Self)] = &[$(($text, Self::$variant),)*];

            /// Returns the name.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl $crate::vocabulary::form::Read for $name {
            fn read(text: &str) -> Result<Self, $crate::vocabulary::form::Malformed> {
                let text = String::read(text)?;
                let named = Self::NAMES.iter().find(|(name, _)| *name == text);
                named.map(|(_, value)| *value).ok_or_else(|| $crate::vocabulary::form::unknown_name(&text))
            }

            fn unread() -> Self {
                Self::NAMES[0].1
            }
        }

        impl $crate::vocabulary::form::Write for $name {
            fn write(&self, out: &mut $crate::vocabulary::form::Writer) {
                out.string(self.as_str());
            }
        }

        impl $crate::vocabulary::describe::Describe for $name {
            fn describe(table: &mut $crate::vocabulary::describe::Table) -> $crate::vocabulary::describe::Type {
                table.names(stringify!($name), &[$(stringify!($meta)),*], &[$(($text, &[$(stringify!($doc)),*])),*])
            }
        }
    };
}

/// Returns the error of a name that is none of the possible ones.
pub fn unknown_name(name: &str) -> Malformed {
    Malformed::new(format_args!("{name:?} is not one of its names"))
}

/// Defines a struct with a form as JSON. `as` gives a field another key than its name, and a default is that of a missing field.
macro_rules! record {
    (
        $(#[$meta:meta])*
        $name:ident { $($(#[$doc:meta])* $field:ident $(as $key:literal)?: $type:ty $(= $default:expr)?,)* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl $crate::vocabulary::form::Read for $name {
            fn read(text: &str) -> Result<Self, $crate::vocabulary::form::Malformed> {
                let mut fields = $crate::vocabulary::form::Fields::read(text)?;
                let it = Self { $($field: fields.take(key!($field $($key)?), default!($($default)?)),)* };
                fields.finish()?;
                Ok(it)
            }

            fn unread() -> Self {
                Self { $($field: $crate::vocabulary::form::Read::unread(),)* }
            }
        }

        impl $crate::vocabulary::form::Write for $name {
            fn write(&self, out: &mut $crate::vocabulary::form::Writer) {
                out.open();
                $($crate::vocabulary::form::Write::write_field(&self.$field, key!($field $($key)?), out);)*
                out.close();
            }
        }

        impl $crate::vocabulary::describe::Describe for $name {
            fn describe(table: &mut $crate::vocabulary::describe::Table) -> $crate::vocabulary::describe::Type {
                table.record(stringify!($name), &[$(stringify!($meta)),*], |table| {
                    vec![$(field!(table, [$(#[$doc])*] $type, key!($field $($key)?), default!($($default)?)),)*]
                })
            }
        }
    };
}

macro_rules! key {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $key:literal) => {
        $key
    };
}

macro_rules! default {
    () => {
        None
    };
    ($default:expr) => {
        Some($default)
    };
}

/// Describes a field.
macro_rules! field {
    ($table:ident, [$(#[$doc:meta])*] $type:ty, $key:expr, $default:expr) => {{
        let default: Option<$type> = $default;
        $crate::vocabulary::describe::Field::of::<$type>($table, $key, &[$(stringify!($doc)),*], default.as_ref())
    }};
}

/// Defines an enum whose variants have a name and fields. It is written with the name as this field. `read` makes it readable, too;
/// `as` gives a field another key than its name, and a default is that of a missing field.
macro_rules! messages {
    ($(#[$meta:meta])* read $name:ident ($tag:literal) { $($body:tt)* }) => {
        messages! { $(#[$meta])* write $name ($tag) { $($body)* } }
        messages! { @read $name { $($body)* } }
    };
    (
        $(#[$meta:meta])*
        write $name:ident ($tag:literal) {
            $(
                $(#[$doc:meta])*
                $variant:ident = $text:literal {
                    $($(#[$field_doc:meta])* $field:ident $(as $key:literal)?: $type:ty $(= $default:expr)?,)*
                },
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        #[allow(clippy::large_enum_variant, reason = "each is read or written at once, and dropped")]
        pub enum $name {
            $(
                $(#[$doc])*
                $variant {
                    $($(#[$field_doc])* $field: $type,)*
                },
            )*
        }

        impl $name {
            /// The names of all variants.
            #[allow(dead_code, reason = "only those of events are looked up")]
            pub const NAMES: &'static [&'static str] = &[$($text),*];

            /// Returns the variant's name.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant { .. } => $text,)*
                }
            }

            /// Writes it as JSON.
            pub fn to_json(&self) -> String {
                self.written($crate::vocabulary::form::Writer::default())
            }

            fn written(&self, mut out: $crate::vocabulary::form::Writer) -> String {
                out.open();
                self.write_fields(&mut out);
                out.close();
                out.finish()
            }

            /// Writes the name and the fields.
            pub fn write_fields(&self, out: &mut $crate::vocabulary::form::Writer) {
                out.named($tag, self.name());
                match self {
                    $(Self::$variant { $($field,)* } => {
                        $($crate::vocabulary::form::Write::write_field($field, key!($field $($key)?), out);)*
                    })*
                }
            }
        }

        impl $crate::vocabulary::describe::Describe for $name {
            fn describe(table: &mut $crate::vocabulary::describe::Table) -> $crate::vocabulary::describe::Type {
                table.messages(stringify!($name), $tag, &[$(stringify!($meta)),*], |table| {
                    let _ = &table; // no message may have a field
                    vec![$((
                        $text,
                        vec![$(stringify!($doc)),*],
                        vec![$(field!(table, [$(#[$field_doc])*] $type, key!($field $($key)?), default!($($default)?)),)*],
                    ),)*]
                })
            }
        }
    };
    (
        @read $name:ident {
            $(
                $(#[$doc:meta])*
                $variant:ident = $text:literal {
                    $($(#[$field_doc:meta])* $field:ident $(as $key:literal)?: $type:ty $(= $default:expr)?,)*
                },
            )*
        }
    ) => {
        impl $name {
            /// Takes the fields of the variant with this name, if there is one.
            pub fn read_fields(name: &str, fields: &mut $crate::vocabulary::form::Fields<'_>) -> Option<Self> {
                let _ = &fields; // no message may have a field
                Some(match name {
                    $($text => Self::$variant {
                        $($field: fields.take(key!($field $($key)?), default!($($default)?)),)*
                    },)*
                    _ => return None,
                })
            }
        }
    };
}

/// Writes the fields of these messages among those of the object that they are in.
macro_rules! inlined {
    ($name:ident) => {
        impl $crate::vocabulary::form::Write for $name {
            fn write(&self, out: &mut $crate::vocabulary::form::Writer) {
                self.write_fields(out);
            }

            fn write_field(&self, _: &str, out: &mut $crate::vocabulary::form::Writer) {
                self.write_fields(out);
            }
        }
    };
}

/// Defines the entry of a list that is an object in JSON.
macro_rules! entries {
    ($(#[$meta:meta])* $name:ident: $type:ty) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            /// The name.
            pub name: String,
            /// The value.
            pub value: $type,
        }

        impl $crate::vocabulary::form::Read for Vec<$name> {
            fn read(text: &str) -> Result<Self, $crate::vocabulary::form::Malformed> {
                $crate::vocabulary::form::read_entries(text, |name, value| $name { name, value })
            }

            fn unread() -> Self {
                Vec::new()
            }

            fn missing() -> Option<Self> {
                Some(Vec::new())
            }
        }

        impl $crate::vocabulary::form::Write for Vec<$name> {
            fn write(&self, out: &mut $crate::vocabulary::form::Writer) {
                $crate::vocabulary::form::write_entries(
                    out,
                    self.iter().map(|entry| (&*entry.name, &entry.value)),
                );
            }
        }

        impl $crate::vocabulary::describe::Describe for Vec<$name> {
            const MAY_BE_MISSING: bool = true;

            fn describe(table: &mut $crate::vocabulary::describe::Table) -> $crate::vocabulary::describe::Type {
                table.entries::<$type>()
            }
        }
    };
}
