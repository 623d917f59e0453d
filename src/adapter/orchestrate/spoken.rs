//! Reads what a person said or typed: dates, times, numbers, yes and no.

use crate::value::prefix;

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];

const UNITS: [&str; 20] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];

const TENS: [&str; 8] = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];

const YES: [&str; 17] = [
    "yes",
    "yes please",
    "yes i do",
    "yes i confirm",
    "yes go ahead",
    "yeah",
    "yep",
    "sure",
    "of course",
    "ok",
    "okay",
    "okay go ahead",
    "confirm",
    "i confirm",
    "confirmed",
    "go ahead",
    "true",
];

const NO: [&str; 11] = [
    "no",
    "no thanks",
    "no thank you",
    "no i do not",
    "no cancel it",
    "no cancel that",
    "nope",
    "cancel",
    "cancel it",
    "cancel that",
    "false",
];

/// The longest answer that is read, in bytes.
const MAX_SAID: usize = 200;

/// Returns whether it is a date that exists, `YYYY-MM-DD`.
pub(super) fn is_date(text: &str) -> bool {
    date_of(text).is_some()
}

/// Returns whether it is a time of day, `hh:mm`.
pub(super) fn is_time(text: &str) -> bool {
    text.split_once(':').is_some_and(|(hour, minute)| {
        [hour.len(), minute.len()] == [2, 2] && time_of(number(hour), number(minute)).is_some()
    })
}

fn date_of(text: &str) -> Option<String> {
    let parts: Vec<&str> = text.split('-').collect();
    let [year, month, day] = parts[..] else { return None };
    let sizes = [year.len(), month.len(), day.len()];
    if sizes == [4, 2, 2] { date_from(number(year)?, number(month)?, number(day)?) } else { None }
}

fn date_from(year: u32, month: u32, day: u32) -> Option<String> {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap => 29,
        2 => 28,
        1..=12 => 31,
        _ => return None,
    };
    let exists = (1..=9999).contains(&year) && (1..=days).contains(&day);
    exists.then(|| format!("{year:04}-{month:02}-{day:02}"))
}

fn time_of(hour: Option<u32>, minute: Option<u32>) -> Option<String> {
    let (hour, minute) = (hour?, minute?);
    (hour < 24 && minute < 60).then(|| format!("{hour:02}:{minute:02}"))
}

fn number(text: &str) -> Option<u32> {
    text.bytes().all(|it| it.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Splits an answer into its words, in lower case.
fn words(said: &str) -> Vec<String> {
    let said = prefix(said, MAX_SAID).to_lowercase();
    let words = said.split(|it: char| it.is_whitespace() || it == ',');
    words
        .map(|word| word.trim_end_matches(['.', '!', '?']).to_owned())
        .filter(|word| !word.is_empty())
        .collect()
}

/// Reads a date: `2026-03-05`, `5.3.2026`, `5 March 2026`, `March 5th, 2026`; with slashes only if one number must be
/// the day. Returns `YYYY-MM-DD`.
pub(super) fn date(said: &str) -> Option<String> {
    let said = said.trim();
    if let Some(date) = date_of(said) {
        return Some(date);
    }
    let split = |by: char| -> Option<[u32; 3]> {
        let numbers: Option<Vec<u32>> = said.trim_end_matches('.').split(by).map(number).collect();
        numbers?.try_into().ok()
    };
    if let Some([day, month, year]) = split('.') {
        return said_date(year, month, day);
    }
    match split('/') {
        Some([day, month, year]) if day > 12 => return said_date(year, month, day),
        Some([month, day, year]) if day > 12 || day == month => return said_date(year, month, day),
        Some(_) => return None,
        None => {}
    }
    let words = words(said);
    let mut months = words.iter().filter_map(|word| {
        let of = MONTHS.iter().position(|month| word.len() >= 3 && month.starts_with(word.as_str()))?;
        u32::try_from(of + 1).ok()
    });
    let (Some(month), None) = (months.next(), months.next()) else { return None };
    let suffixes = ["st", "nd", "rd", "th"];
    let plain = |word: &str| number(suffixes.iter().find_map(|it| word.strip_suffix(it)).unwrap_or(word));
    let numbers: Vec<u32> = words.iter().filter_map(|word| plain(word)).collect();
    match numbers[..] {
        [day, year] if year > 31 => said_date(year, month, day),
        [year, day] if year > 31 => said_date(year, month, day),
        _ => None,
    }
}

/// Returns a date unless its year is short: "26" may be 1926 or 2026.
fn said_date(year: u32, month: u32, day: u32) -> Option<String> {
    date_from(year, month, day).filter(|_| year >= 1_000)
}

/// Reads a time of day: `15:30`, `3 pm`, `3:15 p.m.`, `eight o'clock`, `noon`. Returns `hh:mm`.
pub(super) fn time(said: &str) -> Option<String> {
    let said = prefix(said, MAX_SAID).to_lowercase().replace('’', "'");
    let words = words(&said.replace("a.m", "am").replace("p.m", "pm").replace("o'clock", ""));
    let words: Vec<&str> = words.iter().map(String::as_str).filter(|word| *word != "at").collect();
    let (clock, half) = match words[..] {
        ["noon"] => return Some("12:00".into()),
        ["midnight"] => return Some("00:00".into()),
        [clock] => {
            let half = ["am", "pm"].into_iter().find(|half| clock.ends_with(half)).unwrap_or_default();
            (&clock[..clock.len() - half.len()], half)
        }
        [clock, half @ ("am" | "pm")] => (clock, half),
        _ => return None,
    };
    let (hour, minute) = clock.split_once([':', '.']).unwrap_or((clock, "0"));
    let hour = number(hour).or_else(|| whole(hour).and_then(|it| u32::try_from(it).ok()))?;
    let hour = match half {
        "" => hour,
        half if (1..=12).contains(&hour) => hour % 12 + if half == "pm" { 12 } else { 0 },
        _ => return None,
    };
    time_of(Some(hour), number(minute))
}

/// Reads a date and a time of day. Returns `YYYY-MM-DDThh:mm`.
pub(super) fn datetime(said: &str) -> Option<String> {
    let said = prefix(said.trim(), MAX_SAID).to_lowercase();
    let parts = |(day, clock): (&str, &str)| Some(format!("{}T{}", date(day)?, time(clock)?));
    if let Some(split) = said.split_once('t').filter(|(day, _)| date_of(day).is_some()) {
        return parts(split);
    }
    if let Some(split) = said.split_once(" at ") {
        return parts(split);
    }
    // The time of day has one or two words.
    said.rmatch_indices(' ').take(2).find_map(|(at, _)| parts(said.split_at(at)))
}

/// Reads a number: `1,234.5`, `€ 5`, `12 %`, `minus three`, `two hundred and five`, `three point five`.
pub(super) fn decimal(said: &str) -> Option<serde_json::Number> {
    let said = said.trim().to_lowercase();
    let negated = said.strip_prefix("minus ").or_else(|| said.strip_prefix('-'));
    let text = negated.unwrap_or(&said).trim_matches(['$', '€', '£', '%', ' ', '.']);
    let text = ["percent", "dollars", "euros", "pounds"]
        .iter()
        .find_map(|it| text.strip_suffix(it))
        .unwrap_or(text)
        .trim();
    let sign = if negated.is_some() { "-" } else { "" };
    if text.starts_with(|it: char| it.is_ascii_digit()) {
        let digits = ungrouped(text)?;
        return serde_json::from_str(&format!("{sign}{digits}")).ok();
    }
    let number = match text.split_once(" point ") {
        Some((before, after)) => format!("{sign}{}.{}", whole(before)?, decimals(after)?),
        None => format!("{sign}{}", whole(text)?),
    };
    serde_json::from_str(&number).ok()
}

/// Removes the commas between the digits of a number: each has three digits after it, and none is after the point.
fn ungrouped(text: &str) -> Option<String> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let mut groups = whole.split(',');
    let first = groups.next()?;
    let has_commas = whole.len() > first.len();
    let is_grouped = groups.all(|group| group.len() == 3) && (first.len() <= 3 || !has_commas);
    (is_grouped && !decimals.contains(',')).then(|| text.replace(',', ""))
}

/// Reads what is said after the point: digit by digit, or as one number below 100.
fn decimals(said: &str) -> Option<String> {
    let digit = |word: &str| unit(word).filter(|unit| *unit < 10).map(|unit| unit.to_string());
    let digits: Option<String> = said.split_whitespace().map(digit).collect();
    digits.or_else(|| whole(said).filter(|it| *it < 100).map(|it| it.to_string()))
}

/// Reads digits, which may be spoken one by one or typed with other signs between them.
pub(super) fn digits(said: &str) -> Option<String> {
    let mut digits = String::new();
    for word in words(said) {
        match unit(&word).filter(|unit| *unit < 10) {
            Some(unit) => digits.push_str(&unit.to_string()),
            None => {
                let is_sign = |it: char| "+-()/".contains(it);
                if !word.chars().all(|it| it.is_ascii_digit() || is_sign(it)) {
                    return None;
                }
                digits.extend(word.chars().filter(char::is_ascii_digit));
            }
        }
    }
    (!digits.is_empty()).then_some(digits)
}

/// Reads a whole number in words, below one billion. Each word must be less than the one before it: "twenty eleven" is a
/// year or two numbers, and not 31.
pub(super) fn whole(said: &str) -> Option<u64> {
    let mut words = said.split([' ', '-']).filter(|word| !word.is_empty() && *word != "and").peekable();
    if words.peek() == Some(&"zero") {
        return (words.count() == 1).then_some(0);
    }
    words.peek()?;
    // What is complete, the part since then, and what the next word of each must be less than.
    let (mut sum, mut part, mut scale_limit, mut unit_limit) = (0_u64, 0_u64, u64::MAX, u64::MAX);
    for word in words {
        // "Hundred" alone is one hundred.
        let count = if sum + part == 0 { 1 } else { part };
        match word {
            "hundred" if (1..10).contains(&count) => (part, unit_limit) = (count * 100, 100),
            "thousand" | "million" => {
                let scale = if word == "thousand" { 1_000 } else { 1_000_000 };
                if count == 0 || scale >= scale_limit {
                    return None;
                }
                (sum, part, scale_limit, unit_limit) = (sum + count * scale, 0, scale, u64::MAX);
            }
            _ => {
                let unit = unit(word).filter(|unit| (1..unit_limit).contains(unit))?;
                part += unit;
                unit_limit = if unit >= 20 { 10 } else { 1 };
            }
        }
    }
    Some(sum + part)
}

fn unit(word: &str) -> Option<u64> {
    let of = |list: &[&str]| list.iter().position(|it| *it == word).and_then(|at| u64::try_from(at).ok());
    of(&UNITS).or_else(|| of(&TENS).map(|tens| (tens + 2) * 10))
}

/// Reads yes or no. The whole answer must be one of a few phrases: one that goes on may take back how it began.
pub(super) fn yes_or_no(said: &str) -> Option<bool> {
    if said.len() > MAX_SAID || said.contains('?') {
        return None;
    }
    let said = words(said).join(" ");
    let is_one_of = |phrases: &[&str]| phrases.contains(&said.as_str());
    match is_one_of(&YES) {
        true => Some(true),
        false => is_one_of(&NO).then_some(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spoken_dates_and_times_are_normalised() {
        for said in [
            "2026-03-05",
            "5.3.2026",
            "5 March 2026",
            "March 5th, 2026",
            "the 5th of March 2026",
            "5 mar 2026.",
        ] {
            assert_eq!(date(said).as_deref(), Some("2026-03-05"), "{said}");
        }
        assert_eq!(date("3/25/2026").as_deref(), Some("2026-03-25"));
        for odd in [
            "3/4/2026",
            "2026-02-29",
            "5 March",
            "tomorrow",
            "",
            "31 april 2026",
            "2026-3-5",
            "99999.1.1",
            "5.3.26",
            "3/25/26",
            "5 March 99",
            "5 March 2026 or May",
        ] {
            assert_eq!(date(odd), None, "{odd}");
        }
        for (said, expected) in [
            ("15:30", "15:30"),
            ("3:15 p.m.", "15:15"),
            ("3pm", "15:00"),
            ("12 am", "00:00"),
            ("8 o'clock", "08:00"),
            ("noon", "12:00"),
            ("at seven am", "07:00"),
            ("eight o'clock", "08:00"),
            ("Eight O’Clock", "08:00"),
            ("eight", "08:00"),
            ("3 P.M.", "15:00"),
            ("3PM", "15:00"),
            ("9.05", "09:05"),
        ] {
            assert_eq!(time(said).as_deref(), Some(expected), "{said}");
        }
        for odd in ["25:00", "13 pm", "soon", "", "3:99", "thirty", "3 pmpm", "not 3 pm"] {
            assert_eq!(time(odd), None, "{odd}");
        }
        for said in [
            "2026-03-05T15:30",
            "5 March 2026 at 3:30 pm",
            "2026-03-05 15:30",
            "The 5th of March 2026 at 3:30 P.M.",
            "Thursday, 5 March 2026, 3:30 pm",
        ] {
            assert_eq!(datetime(said).as_deref(), Some("2026-03-05T15:30"), "{said}");
        }
        assert!(
            is_date("2024-02-29")
                && !is_date("2023-02-29")
                && is_time("00:00")
                && !is_time("24:00")
                && !is_time("0:000")
        );
    }

    #[test]
    fn spoken_numbers_are_normalised() {
        for (said, expected) in [
            ("5", "5"),
            ("1,234.5", "1234.5"),
            ("€ 5", "5"),
            ("12 %", "12"),
            ("minus three", "-3"),
            ("-7", "-7"),
            ("two hundred and five", "205"),
            ("three point one four", "3.14"),
            ("forty-two thousand", "42000"),
            ("one million two", "1000002"),
            ("ten dollars", "10"),
            ("three point fourteen", "3.14"),
            ("zero point zero five", "0.05"),
            ("nine hundred ninety-nine thousand nine hundred and ninety-nine", "999999"),
            ("1,234,567.25", "1234567.25"),
        ] {
            assert_eq!(decimal(said).map(|it| it.to_string()).as_deref(), Some(expected), "{said}");
        }
        for odd in ["", "many", "1,2", "five hundred hundred", "1e", "0x10", "point"] {
            assert_eq!(decimal(odd), None, "{odd}");
        }
        // Not the sum of its words, and not a number with another comma.
        for odd in [
            "1.234,50",
            "1.234,567",
            "1234,567",
            "four two",
            "four and two",
            "twenty eleven",
            "twenty zero",
            "two twenty",
            "one hundred two hundred",
            "two thousand three thousand",
            "zero hundred",
            "zero thousand",
            "three point twenty one zero",
            "three point one forty",
        ] {
            assert_eq!(decimal(odd), None, "{odd}");
        }
        assert_eq!(digits("zero four-two").as_deref(), None);
        assert_eq!(digits("zero four 42").as_deref(), Some("0442"));
        assert_eq!(digits("+39 (06) 123-4").as_deref(), Some("39061234"));
    }

    #[test]
    fn only_a_whole_phrase_is_yes_or_no() {
        for yes in ["Yes, please.", "yes", "OK!", "Sure", " go  ahead", "I confirm", "true"] {
            assert_eq!(yes_or_no(yes), Some(true), "{yes}");
        }
        for no in ["no.", "No, thanks", "cancel", "No, cancel that!"] {
            assert_eq!(yes_or_no(no), Some(false), "{no}");
        }
        let late_no = format!("yes{}but not now", " ".repeat(MAX_SAID));
        for unclear in [
            "Okay, cancel that",
            "Sure, but not now",
            "1 moment",
            "1",
            "2",
            "yes or no",
            "No problem, go ahead",
            "okay?",
            "please",
            "maybe",
            "",
            &late_no,
        ] {
            assert_eq!(yes_or_no(unclear), None, "{unclear}");
        }
    }
}
