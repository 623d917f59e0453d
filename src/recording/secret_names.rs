//! Decides which names are those of secrets.

use unicode_normalization::{UnicodeNormalization as _, char::is_combining_mark};

use crate::escape::is_dangerous;

/// Substrings of secret names, folded.
pub(super) const PARTS: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "pincode",
    "secret",
    "token",
    "apikey",
    "accesskey",
    "privatekey",
    "authorization",
    "bearer",
    "cookie",
    "credential",
    "sessionid",
    "sessid",
];

/// Secret only as separate words, since these letters are frequent elsewhere.
const WORDS: &[&str] = &["auth", "cvc", "cvv", "jwt", "otp", "pin", "pwd", "totp"];

/// The longest text that counts as a name beside its value, in characters, and the most words in it. A longer one is prose.
const MAX_NAME: usize = 64;
const MAX_NAME_WORDS: usize = 3;

/// Returns whether a name contains one of [`PARTS`] or one of [`WORDS`] as a word.
pub(super) fn is_secret(name: &str) -> bool {
    let plain = folded(name);
    PARTS.iter().any(|part| plain.contains(part)) || has_secret_word(name)
}

/// Returns whether a text is short enough for a name. What a reader does not see does not count.
pub(super) fn may_be_name(text: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(text) else { return false };
    let visible = text.chars().filter(|letter| !is_invisible(*letter));
    let words = || text.split_whitespace().take(MAX_NAME_WORDS + 1).count();
    visible.take(MAX_NAME + 1).count() <= MAX_NAME && (1..=MAX_NAME_WORDS).contains(&words())
}

/// Returns a name as names are compared: its letters and digits alone, without case, width, and accents.
pub(super) fn folded(name: &str) -> String {
    // Upper case first: then `ß` equals `SS`, and both forms of the Greek sigma are one.
    let letters = visible(name).filter(|letter| letter.is_alphanumeric());
    letters.flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
}

/// Returns what a reader tells apart in a name: full-width letters and those with accents are their plain forms.
fn visible(name: &str) -> impl Iterator<Item = char> {
    name.nfkd().filter(|letter| !is_combining_mark(*letter) && !is_invisible(*letter))
}

/// Returns whether one of the words of a name is secret: `user-pin`, `userPin`, `USER_PIN`, `userPINCode` and `pin1` have the
/// word `pin`.
fn has_secret_word(name: &str) -> bool {
    let letters: Vec<char> = visible(name).collect();
    let parts = letters.chunk_by(|one, two| one.is_alphabetic() == two.is_alphabetic());
    parts.filter(|part| part[0].is_alphabetic()).flat_map(words).any(|word| {
        let word = folded(&word.iter().collect::<String>());
        WORDS.contains(&word.as_str())
    })
}

/// Splits letters before an upper-case letter that follows a lower-case one or begins a capitalized word.
fn words(letters: &[char]) -> impl Iterator<Item = &[char]> {
    let is_upper = |at: usize| letters.get(at).is_some_and(|letter| letter.is_uppercase());
    let is_lower = |at: usize| letters.get(at).is_some_and(|letter| !letter.is_uppercase());
    // The plural of an acronym: `PINs` is not `PI` and `Ns`.
    let is_plural = move |at: usize| letters.get(at) == Some(&'s') && !is_lower(at + 1);
    let begins = move |at: usize| {
        is_upper(at) && (is_lower(at - 1) || (is_lower(at + 1) && !is_plural(at + 1)))
            || (is_plural(at) && at > 1 && is_upper(at - 1) && is_upper(at - 2))
    };
    let mut start = 0;
    let ends = (1..=letters.len()).filter(move |at| *at == letters.len() || begins(*at));
    ends.map(move |at| &letters[std::mem::replace(&mut start, at)..at])
}

/// Returns whether a reader does not see a character: what may not reach a terminal, fillers, and variants of the letter before.
pub(super) fn is_invisible(letter: char) -> bool {
    is_dangerous(letter)
        || matches!(letter,
            '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{2800}'
            | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' | '\u{e0100}'..='\u{e01ef}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_names_match_whatever_their_spelling() {
        let parts = [
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
            "passphrase",
            "bearer",
            "access_key",
            "AWS_ACCESS_KEY_ID",
            "api:key",
            "api/key",
            "API KEY",
            "pass\u{200b}word",
            "pass\u{3164}word",
            "ｐａｓｓｗｏｒｄ",
            "pássword",
            "pa\u{301}ssword",
            "𝐩𝐚𝐬𝐬𝐰𝐨𝐫𝐝",
            "sessionid",
            "Mcp-Session-Id",
            "PHPSESSID",
            "PIN-Code",
            "pincode",
        ];
        let words = [
            "otp",
            "OTP",
            "card_cvv",
            "pin",
            "pinCode",
            "user-pin",
            "PINCode",
            "OTPCode",
            "smsOTPCode",
            "CVVNumber",
            "userPINCode",
            "cvv2",
            "CVV2Code",
            "pin1",
            "otp6",
            "PINs",
            "backupOTPs",
            "PIN",
            "jwt",
            "idJWT",
            "x-auth",
            "dbPwd",
            "my.pin",
            "p\u{200b}in",
            "p\u{2066}i\u{fe0f}n",
            "p\u{7}in",
            "ＰＩＮ",
            "pîn",
        ];
        for secret in parts.into_iter().chain(words) {
            assert!(is_secret(secret), "{secret}");
        }
        for plain in [
            "",
            "name",
            "shipping",
            "spin",
            "pinned",
            "option",
            "toolName",
            "traceparent",
            "pass",
            "keys",
            "pins",
            "SPINE",
            "opinion",
            "Pinot",
            "author",
            "cvvx",
            "adopt",
            "12",
            "-",
            "PInG",
        ] {
            assert!(!is_secret(plain), "{plain}");
        }
    }

    #[test]
    fn names_are_equal_without_case_and_separators() {
        for (one, two) in [
            ("Schlüssel", "SCHLÜSSEL"),
            ("schlüssel", "Schlu\u{308}ssel"),
            ("straße", "STRASSE"),
            ("пароль", "ПАРОЛЬ"),
            ("Пароль", "пароль"),
            ("ΚΩΔΙΚΟΣ", "κωδικος"),
            ("κωδικός", "ΚΩΔΙΚΌΣ"),
            ("mother_maiden", "motherMaiden"),
        ] {
            assert_eq!(folded(one), folded(two));
        }
        assert_ne!(folded("pin1"), folded("pin2"));
    }

    #[test]
    fn prose_is_not_a_name() {
        assert!(may_be_name(b"Authorization") && may_be_name(b"private key"));
        assert!(may_be_name(format!("p{}in", "\u{200b}".repeat(MAX_NAME)).as_bytes()));
        assert!(!may_be_name(b"") && !may_be_name(b" ") && !may_be_name(b"the token of my bank"));
        assert!(!may_be_name(&[b'a'; MAX_NAME + 1]));
    }
}
