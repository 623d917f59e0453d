//! Describes the vocabulary: the types, their fields and what the fields mean, of which the JSON Schema and the types of other languages
//! are made.

use super::form::{Id, Json, Malformed, Write, Writer};

/// The type of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// A text.
    Text,
    /// `true` or `false`.
    Flag,
    /// A whole number from 0.
    Count,
    /// A whole number of 32 bits.
    Signed,
    /// A time in milliseconds.
    Time,
    /// Any JSON.
    Json,
    /// A text of 1 to 128 bytes, or a whole number.
    Id,
    /// Bytes, as base64.
    Bytes,
    /// A list.
    List(Box<Self>),
    /// An object whose keys are names.
    Map(Box<Self>),
    /// The type of this name in the table.
    Named(&'static str),
}

/// A field of a record or a message.
#[derive(Clone, Debug)]
pub struct Field {
    /// Its key.
    pub key: &'static str,
    /// What it means.
    pub doc: String,
    /// Its type.
    pub of: Type,
    /// Whether it may be missing in what is written.
    pub may_be_missing: bool,
    /// Whether it may be missing in what is read.
    pub may_be_left_out: bool,
    /// What it is if it is left out, as JSON.
    pub default: Option<String>,
}

impl Field {
    /// Describes the field of this type.
    pub(crate) fn of<T: Describe + Write>(
        table: &mut Table,
        key: &'static str,
        doc: &[&str],
        default: Option<&T>,
    ) -> Self {
        let default = default.map(|value| {
            let mut out = Writer::default();
            value.write(&mut out);
            out.finish()
        });
        Self {
            key,
            doc: text_of(doc),
            of: T::describe(table),
            may_be_missing: T::IS_OPTIONAL,
            may_be_left_out: T::IS_OPTIONAL || T::MAY_BE_MISSING || default.is_some(),
            default: default.filter(|text| !text.is_empty()),
        }
    }
}

/// A variant of a message.
#[derive(Clone, Debug)]
pub struct Variant {
    /// The value of the tag.
    pub tag: &'static str,
    /// What it means.
    pub doc: String,
    /// Its fields.
    pub fields: Vec<Field>,
}

/// What a named type is.
#[derive(Clone, Debug)]
pub enum Shape {
    /// One of these names, with what they mean.
    Names(Vec<(&'static str, String)>),
    /// An object.
    Record(Vec<Field>),
    /// One of these objects, which this key tells.
    Messages(&'static str, Vec<Variant>),
}

/// A named type.
#[derive(Clone, Debug)]
pub struct Named {
    /// The name.
    pub name: &'static str,
    /// What it means.
    pub doc: String,
    /// What it is.
    pub shape: Shape,
}

/// The named types, each after those that it uses.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// The types.
    pub types: Vec<Named>,
}

impl Table {
    pub(crate) fn names(
        &mut self,
        name: &'static str,
        doc: &[&str],
        names: &[(&'static str, &[&str])],
    ) -> Type {
        self.add(name, doc, |_| Shape::Names(names.iter().map(|(name, doc)| (*name, text_of(doc))).collect()))
    }

    pub(crate) fn record(
        &mut self,
        name: &'static str,
        doc: &[&str],
        fields: impl FnOnce(&mut Self) -> Vec<Field>,
    ) -> Type {
        self.add(name, doc, |table| Shape::Record(fields(table)))
    }

    pub(crate) fn messages(
        &mut self,
        name: &'static str,
        tag: &'static str,
        doc: &[&str],
        variants: impl FnOnce(&mut Self) -> Vec<(&'static str, Vec<&'static str>, Vec<Field>)>,
    ) -> Type {
        self.add(name, doc, |table| {
            let variant = |(tag, doc, fields): (_, Vec<_>, _)| Variant { tag, doc: text_of(&doc), fields };
            Shape::Messages(tag, variants(table).into_iter().map(variant).collect())
        })
    }

    pub(crate) fn entries<T: Describe>(&mut self) -> Type {
        Type::Map(Box::new(T::describe(self)))
    }

    fn add(&mut self, name: &'static str, doc: &[&str], shape: impl FnOnce(&mut Self) -> Shape) -> Type {
        if !self.types.iter().any(|it| it.name == name) {
            let shape = shape(self);
            self.types.push(Named { name, doc: text_of(doc), shape });
        }
        Type::Named(name)
    }
}

/// A type that can be described.
pub trait Describe {
    /// Whether it is left out of what is written if there is none.
    const IS_OPTIONAL: bool = false;
    /// Whether it may be left out of what is read, although it is always written.
    const MAY_BE_MISSING: bool = false;

    /// Puts the named types of which it consists into the table, and returns what it is.
    fn describe(table: &mut Table) -> Type;
}

macro_rules! plain {
    ($($type:ty: $of:ident,)*) => {
        $(impl Describe for $type {
            fn describe(_: &mut Table) -> Type {
                Type::$of
            }
        })*
    };
}

plain! {
    String: Text,
    bool: Flag,
    u64: Count,
    i32: Signed,
    f64: Time,
    Json: Json,
    Id: Id,
    Vec<u8>: Bytes,
}

impl<T: Describe> Describe for Option<T> {
    const IS_OPTIONAL: bool = true;

    fn describe(table: &mut Table) -> Type {
        T::describe(table)
    }
}

impl<T: Describe> Describe for Vec<T> {
    fn describe(table: &mut Table) -> Type {
        Type::List(Box::new(T::describe(table)))
    }
}

impl<T: Describe> Describe for Result<T, Malformed> {
    fn describe(table: &mut Table) -> Type {
        T::describe(table)
    }
}

/// Returns the text of documentation comments, each of which is an attribute such as `doc = r" A text."`.
fn text_of(attributes: &[&str]) -> String {
    let line = |attribute: &&str| {
        let text = attribute.split_once('"').map_or("", |(_, text)| text).trim_end_matches('#');
        text.strip_suffix('"').unwrap_or(text).trim().to_owned()
    };
    attributes.iter().filter(|it| it.starts_with("doc")).map(line).collect::<Vec<_>>().join(" ")
}
