//! Checks a value against what its input asks for, beyond the schema.

use std::{cmp::Ordering, collections::HashSet};

use serde_json::Value as Json;

use super::{
    input::{Input, InputKind},
    spoken::{is_date, is_time},
};

/// Checks a value; the error says what it must be.
pub(super) fn value(input: &Input, value: &Json, range: &[Option<String>; 2]) -> Result<(), String> {
    let is_one_of = |value: &Json| input.choices().iter().any(|choice| choice.value == *value);
    let all_are_choices = || {
        let Some(values) = value.as_array() else { return false };
        let choices: HashSet<String> =
            input.choices().iter().map(|choice| canonical(&choice.value)).collect();
        values.iter().all(|value| choices.contains(&canonical(value)))
    };
    let is = |holds: fn(&str) -> bool| value.as_str().is_some_and(holds);
    let (fits, rule) = match &input.kind {
        InputKind::Text | InputKind::TextArea => (value.is_string(), "it must be a text"),
        InputKind::Checkbox => (value.is_boolean(), "it must be true or false"),
        InputKind::Number => (value.is_number(), "it must be a number"),
        InputKind::Radio(_) | InputKind::ComboBox(_) => (is_one_of(value), "it must be one of the choices"),
        InputKind::Several(_) => (all_are_choices(), "it must be a list of the choices"),
        InputKind::Table { is_selectable: true, .. } => {
            (all_are_choices(), "it must be a list of the table's rows")
        }
        InputKind::Date => (is(is_date), "it must be a date, YYYY-MM-DD"),
        InputKind::Time => (is(is_time), "it must be a time of day, hh:mm"),
        InputKind::DateTime => (is(is_datetime), "it must be a date and a time of day, YYYY-MM-DDThh:mm"),
        InputKind::DateRange => (is_range(value), "it must be two dates, YYYY-MM-DD, the earlier one first"),
        InputKind::Digits { min, max } => return digits(value, *min, *max),
        _ => return Ok(()),
    };
    if !fits {
        return Err(rule.to_owned());
    }
    match (&input.kind, value.as_str()) {
        (InputKind::Date | InputKind::Time | InputKind::DateTime, Some(text)) => in_range(text, range),
        _ => Ok(()),
    }
}

/// Writes a value so that equal ones have one form: the members of maps are sorted.
fn canonical(value: &Json) -> String {
    match value {
        Json::Object(map) => {
            let mut members: Vec<String> = map
                .iter()
                .map(|(key, value)| format!("{}:{}", Json::from(key.as_str()), canonical(value)))
                .collect();
            members.sort_unstable();
            format!("{{{}}}", members.join(","))
        }
        Json::Array(list) => format!("[{}]", list.iter().map(canonical).collect::<Vec<_>>().join(",")),
        other => other.to_string(),
    }
}

fn is_datetime(text: &str) -> bool {
    text.split_once('T').is_some_and(|(date, time)| is_date(date) && is_time(time))
}

fn is_range(value: &Json) -> bool {
    let dates: Option<Vec<&str>> =
        value.as_array().map(|dates| dates.iter().filter_map(Json::as_str).collect());
    matches!(dates.as_deref(), Some([first, last]) if is_date(first) && is_date(last) && first <= last)
}

/// These texts have the order of the times that they name. A bound may have more or fewer parts than the value: only what
/// both have is compared.
fn in_range(text: &str, range: &[Option<String>; 2]) -> Result<(), String> {
    let compared = |bound: &str| {
        // A bound of a time of day may have a date before it, or be a date alone.
        let bound = match (is_time(text), bound.split_once('T')) {
            (true, Some((_, time))) => time,
            (true, None) if !bound.contains(':') => return Ordering::Equal,
            _ => bound,
        };
        let both = text.len().min(bound.len());
        text.as_bytes()[..both].cmp(&bound.as_bytes()[..both])
    };
    match range {
        [Some(first), _] if compared(first).is_lt() => Err(format!("it must not be before {first}")),
        [_, Some(last)] if compared(last).is_gt() => Err(format!("it must not be after {last}")),
        _ => Ok(()),
    }
}

fn digits(value: &Json, min: Option<usize>, max: Option<usize>) -> Result<(), String> {
    let text = value.as_str().unwrap_or_default();
    let count = text.bytes().filter(u8::is_ascii_digit).count();
    if count == 0 || !text.bytes().all(|it| it.is_ascii_digit() || b"+-() ".contains(&it)) {
        return Err("it must be digits".into());
    }
    match (min, max) {
        (Some(min), _) if count < min => Err(format!("it must have at least {min} digits")),
        (_, Some(max)) if count > max => Err(format!("it must have at most {max} digits")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_another_precision_are_compared_in_what_both_have() {
        let fits = |value: &str, first: Option<&str>, last: Option<&str>| {
            in_range(value, &[first, last].map(|it| it.map(str::to_owned))).is_ok()
        };
        for (value, first, last) in [
            ("2026-03-31T10:00", None, Some("2026-03-31")),
            ("2026-03-31", Some("2026-03-31T00:00"), Some("2026-03-31T00:00")),
            ("2026-03-31T10:00", Some("2026-03-31T10:00:00Z"), None),
            ("15:00", Some("2026-03-31T08:00"), Some("2026-03-31T18:00")),
            ("15:00", Some("2026-03-31"), Some("2026-03-31")),
        ] {
            assert!(fits(value, first, last), "{value} {first:?} {last:?}");
        }
        for (value, first, last) in [
            ("2026-04-01T00:00", None, Some("2026-03-31")),
            ("2026-03-30", Some("2026-03-31T00:00"), None),
            ("2026-03-31T09:59", Some("2026-03-31T10:00:00Z"), None),
            ("07:59", Some("2026-03-31T08:00"), None),
            ("18:01", None, Some("18:00")),
        ] {
            assert!(!fits(value, first, last), "{value} {first:?} {last:?}");
        }
    }

    #[test]
    fn equal_values_have_one_form() {
        let (one, two): (Json, Json) = (
            serde_json::from_str(r#"{"a":[1,{"x":1,"y":2}],"b":"c"}"#).unwrap(),
            serde_json::from_str(r#"{"b":"c","a":[1,{"y":2,"x":1}]}"#).unwrap(),
        );
        assert_eq!(one, two);
        assert_eq!(canonical(&one), canonical(&two));
        for (one, other) in [("1", "1.0"), ("\"1\"", "1"), ("[1,2]", "[2,1]"), ("{\"a\":1}", "{\"b\":1}")] {
            let read = |text: &str| canonical(&serde_json::from_str(text).unwrap());
            assert_ne!(read(one), read(other));
        }
    }
}
