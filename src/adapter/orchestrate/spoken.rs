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
        return date_from(year, month, day);
    }
    match split('/') {
        Some([day, month, year]) if day > 12 => return date_from(year, month, day),
        Some([month, day, year]) if day > 12 || day == month => return date_from(year, month, day),
        Some(_) => return None,
        None => {}
    }
    let words = words(said);
    let month = words.iter().find_map(|word| {
        let of = MONTHS.iter().position(|month| word.len() >= 3 && month.starts_with(word.as_str()))?;
        u32::try_from(of + 1).ok()
    })?;
    let suffixes = ["st", "nd", "rd", "th"];
    let plain = |word: &str| number(suffixes.iter().find_map(|it| word.strip_suffix(it)).unwrap_or(word));
    let numbers: Vec<u32> = words.iter().filter_map(|word| plain(word)).collect();
    match numbers[..] {
        [day, year] if year > 31 => date_from(year, month, day),
        [year, day] if year > 31 => date_from(year, month, day),
        _ => None,
    }
}

/// Reads a time of day: `15:30`, `3 pm`, `3:15 p.m.`, `8 o'clock`, `noon`. Returns `hh:mm`.
pub(super) fn time(said: &str) -> Option<String> {
    let words = words(&said.replace("a.m", "am").replace("p.m", "pm").replace("o'clock", ""));
    let words: Vec<&str> = words.iter().map(String::as_str).filter(|word| *word != "at").collect();
    let (clock, half) = match words[..] {
        ["noon"] => return Some("12:00".into()),
        ["midnight"] => return Some("00:00".into()),
        [clock] => (
            clock.trim_end_matches(['a', 'p', 'm']),
            clock.trim_start_matches(|it: char| !it.is_alphabetic()),
        ),
        [clock, half] => (clock, half),
        _ => return None,
    };
    let (hour, minute) = clock.split_once([':', '.']).unwrap_or((clock, "0"));
    let hour = number(hour).or_else(|| whole(hour).and_then(|it| u32::try_from(it).ok()))?;
    let hour = match half {
        "" => hour,
        "am" if (1..=12).contains(&hour) => hour % 12,
        "pm" if (1..=12).contains(&hour) => hour % 12 + 12,
        _ => return None,
    };
    time_of(Some(hour), number(minute))
}

/// Reads a date and a time of day. Returns `YYYY-MM-DDThh:mm`.
pub(super) fn datetime(said: &str) -> Option<String> {
    let said = said.trim();
    let (day, clock) =
        said.split_once('T').or_else(|| said.split_once(" at ")).or_else(|| said.rsplit_once(' '))?;
    Some(format!("{}T{}", date(day)?, time(clock)?))
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
    let digits = text.replace(',', "");
    let is_grouped = text.split('.').next()?.split(',').skip(1).all(|group| group.len() == 3);
    if is_grouped && digits.starts_with(|it: char| it.is_ascii_digit()) {
        return serde_json::from_str(&format!("{sign}{digits}")).ok();
    }
    let (before, after) = text.split_once(" point ").unwrap_or((text, ""));
    let whole = whole(before)?;
    let after: Option<String> =
        after.split_whitespace().map(|word| unit(word).map(|it| it.to_string())).collect();
    let after = after.filter(|after| !after.is_empty()).map_or_else(String::new, |after| format!(".{after}"));
    serde_json::from_str(&format!("{sign}{whole}{after}")).ok()
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

/// Reads a whole number in words, below one billion.
pub(super) fn whole(said: &str) -> Option<u64> {
    let (mut sum, mut part, mut is_empty) = (0_u64, 0_u64, true);
    for word in said.split([' ', '-']).filter(|word| !word.is_empty() && *word != "and") {
        is_empty = false;
        match word {
            "hundred" if part < 100 => part = part.max(1) * 100,
            "thousand" if sum.is_multiple_of(1_000_000) => (sum, part) = (sum + part.max(1) * 1_000, 0),
            "million" if sum == 0 => (sum, part) = (part.max(1) * 1_000_000, 0),
            _ => part = part.checked_add(unit(word)?)?,
        }
        if part >= 1_000 {
            return None;
        }
    }
    (!is_empty).then_some(sum + part)
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
        for odd in
            ["3/4/2026", "2026-02-29", "5 March", "tomorrow", "", "31 april 2026", "2026-3-5", "99999.1.1"]
        {
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
            ("9.05", "09:05"),
        ] {
            assert_eq!(time(said).as_deref(), Some(expected), "{said}");
        }
        for odd in ["25:00", "13 pm", "soon", "", "3:99"] {
            assert_eq!(time(odd), None, "{odd}");
        }
        for said in ["2026-03-05T15:30", "5 March 2026 at 3:30 pm", "2026-03-05 15:30"] {
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
        ] {
            assert_eq!(decimal(said).map(|it| it.to_string()).as_deref(), Some(expected), "{said}");
        }
        for odd in ["", "many", "1,2", "five hundred hundred", "1e", "0x10", "point"] {
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
