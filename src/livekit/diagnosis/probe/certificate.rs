//! Reads the expiry date of a certificate that TLS has accepted.

/// The ASN.1 tags of the enclosing elements ([X.690](https://www.itu.int/rec/T-REC-X.690)).
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Returns the end of a certificate's validity, in seconds since 1970, or `None` if it is not where [RFC
/// 5280](https://www.rfc-editor.org/rfc/rfc5280#section-4.1) has it.
pub(super) fn valid_until(der: &[u8]) -> Option<i64> {
    let (_, certificate, _) = element(der)?;
    let (_, mut fields, _) = element(certificate)?;
    if let (VERSION, _, rest) = element(fields)? {
        fields = rest;
    }
    // Serial number, algorithm, issuer.
    for _ in 0..3 {
        fields = element(fields)?.2;
    }
    let (SEQUENCE, validity, _) = element(fields)? else { return None };
    let (_, _, rest) = element(validity)?;
    let (tag, time, _) = element(rest)?;
    seconds(tag, std::str::from_utf8(time).ok()?)
}

/// Splits off the first element: its tag, its content, and the bytes after it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
        if length.is_empty() || length.len() > 4 {
            return None;
        }
        (length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// Reads `YYMMDDhhmmssZ` or `YYYYMMDDhhmmssZ`.
fn seconds(tag: u8, time: &str) -> Option<i64> {
    let digits = time.strip_suffix('Z').filter(|it| it.bytes().all(|byte| byte.is_ascii_digit()))?;
    let (year, rest) = match (tag, digits.len()) {
        (UTC_TIME, 12) => {
            let year = digits[..2].parse::<i64>().ok()?;
            // The pivot of RFC 5280, section 4.1.2.5.1.
            (if year < 50 { 2000 + year } else { 1900 + year }, &digits[2..])
        }
        (GENERALIZED_TIME, 14) => (digits[..4].parse().ok()?, &digits[4..]),
        _ => return None,
    };
    let part = |at: usize| rest[2 * at..2 * at + 2].parse::<i64>().ok();
    let days = super::http::days_since_1970(year, part(0)?, part(1)?);
    Some(((days * 24 + part(2)?) * 60 + part(3)?) * 60 + part(4)?)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn expiry_of_a_certificate_is_read() {
        for (year, expected) in [(2030, 1_893_456_000), (1999, 915_148_800), (2060, 2_840_140_800)] {
            let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
            params.not_after = date_time_ymd(year, 1, 1);
            let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
            assert_eq!(valid_until(certificate.der()), Some(expected), "{year}");
        }
    }

    #[test]
    fn invalid_certificate_has_no_expiry() {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_after = date_time_ymd(2030, 1, 1);
        let whole = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        for end in 0..whole.der().len() {
            assert_eq!(valid_until(&whole.der()[..end]), None);
        }
        for bytes in [&b""[..], b"\x30", b"\x30\x84\xff\xff\xff\xff", b"\x30\x80", b"\x30\x02\x30\x00"] {
            assert_eq!(valid_until(bytes), None);
        }
    }
}
