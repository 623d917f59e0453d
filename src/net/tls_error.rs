//! Describes errors of TLS in words. Those of `rustls` are partly the names of its types.

use std::{error::Error, io};

use rustls::{AlertDescription, CertificateError, Error as TlsError};

/// Describes the first cause of an error, because those above it repeat that something failed.
pub(crate) fn cause(error: &(dyn Error + 'static)) -> String {
    match of_tls(error) {
        Some(tls) => in_words(tls),
        None => chain(error).last().unwrap_or(error).to_string(),
    }
}

/// Returns the fault of the certificate that an error is about.
#[cfg(feature = "livekit")]
pub(crate) fn certificate_fault<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a CertificateError> {
    match of_tls(error) {
        Some(TlsError::InvalidCertificate(fault)) => Some(fault),
        _ => None,
    }
}

/// Returns whether the server closed the connection where it should have answered the handshake, as one without TLS may.
#[cfg(feature = "livekit")]
pub(crate) fn ended_the_handshake(error: &(dyn Error + 'static)) -> bool {
    let mut kinds = chain(error).filter_map(|error| error.downcast_ref::<io::Error>()).map(io::Error::kind);
    kinds.any(|kind| kind == io::ErrorKind::UnexpectedEof)
}

/// Returns the error of TLS that an error is, or that caused it.
pub(crate) fn of_tls<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a TlsError> {
    chain(error).find_map(|error| error.downcast_ref())
}

/// Returns an error and those below it.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| below(*error))
}

fn below<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    // The source of an `io::Error` is that of the error in it.
    let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    inner.map(|inner| inner as &(dyn Error + 'static)).or_else(|| error.source())
}

/// Describes an error of TLS.
pub(crate) fn in_words(error: &TlsError) -> String {
    match error {
        TlsError::InvalidCertificate(fault) => certificate(fault),
        TlsError::InvalidMessage(_) => "the port does not speak TLS".to_owned(),
        TlsError::NoCertificatesPresented => "the server sent no certificate".to_owned(),
        TlsError::AlertReceived(AlertDescription::CertificateRequired) => {
            "the server demands a certificate of its clients, which toolbridge has not".to_owned()
        }
        TlsError::AlertReceived(alert) => {
            format!("the server ended the handshake ({})", spaced(&format!("{alert:?}")))
        }
        TlsError::PeerIncompatible(why) => {
            format!(
                "the server supports no suitable version or cipher of TLS ({})",
                spaced(&format!("{why:?}"))
            )
        }
        TlsError::PeerMisbehaved(why) => {
            format!("the server violates the protocol of TLS ({})", spaced(&format!("{why:?}")))
        }
        other => spaced(&other.to_string()),
    }
}

/// Describes the fault of a certificate.
pub(crate) fn certificate(fault: &CertificateError) -> String {
    use CertificateError as Fault;
    let text = match fault {
        Fault::Expired | Fault::ExpiredContext { .. } => "the certificate has expired",
        Fault::NotValidYet | Fault::NotValidYetContext { .. } => "the certificate is not valid yet",
        Fault::UnknownIssuer => "the certificate is signed by an unknown authority",
        Fault::NotValidForName => "the certificate is for another name",
        Fault::NotValidForNameContext { presented, .. } if presented.is_empty() => {
            "the certificate is for no name"
        }
        Fault::NotValidForNameContext { presented, .. } => {
            let names: Vec<_> = presented.iter().map(|name| in_dns(name)).collect();
            return format!("the certificate is for another name: {}", names.join(", "));
        }
        Fault::Revoked => "the certificate was revoked",
        Fault::BadEncoding => "the certificate cannot be read",
        Fault::BadSignature => "the signature of the certificate is wrong",
        Fault::UnhandledCriticalExtension => "the certificate has a critical extension that is not supported",
        Fault::InvalidPurpose | Fault::InvalidPurposeContext { .. } => "the certificate is not for servers",
        Fault::Other(other) => match &*other.to_string() {
            "CaUsedAsEndEntity" => {
                "the certificate is a CA certificate, and a server needs one that a CA has signed"
            }
            "EndEntityUsedAsCa" => "the certificate is signed by one that is not a CA certificate",
            "UnsupportedCertVersion" => "the certificate is not of version 3",
            other => return format!("the certificate cannot be used ({})", spaced(other)),
        },
        other => {
            let name = format!("{other:?}");
            if name.starts_with("UnsupportedSignatureAlgorithm") {
                "the certificate is signed by an algorithm that is not supported"
            } else {
                return format!("the certificate cannot be used ({})", spaced(&name));
            }
        }
    };
    text.to_owned()
}

/// Returns a name of a certificate without the type that `rustls` shows: `DnsName("a.example")` is a.example.
pub(crate) fn in_dns(name: &str) -> &str {
    name.split_once("(\"").and_then(|(_, rest)| rest.split_once("\")")).map_or(name, |(name, _)| name)
}

/// Writes the name of a type as words, without its fields: `CaUsedAsEndEntity` is "ca used as end entity".
fn spaced(name: &str) -> String {
    let name = name.split([' ', '{']).map(|word| {
        let word = word.split_once('(').map_or(word, |(name, _)| if name.is_empty() { word } else { name });
        let is_type = word.chars().next().is_some_and(char::is_uppercase)
            && word.chars().skip(1).any(char::is_uppercase)
            && word.chars().any(char::is_lowercase);
        if !is_type {
            return word.to_owned();
        }
        let mut spaced = String::new();
        for letter in word.chars() {
            if letter.is_uppercase() && spaced.ends_with(char::is_lowercase) {
                spaced.push(' ');
            }
            spaced.extend(letter.to_lowercase());
        }
        spaced
    });
    let words: Vec<_> = name.take_while(|word| !word.is_empty()).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::{AlertDescription, OtherError};

    use super::*;

    fn other(name: &'static str) -> TlsError {
        CertificateError::Other(OtherError(Arc::new(io::Error::other(name)))).into()
    }

    #[test]
    fn error_of_tls_names_no_type() {
        for (error, said) in [
            (other("CaUsedAsEndEntity"), "is a CA certificate"),
            (other("EndEntityUsedAsCa"), "not a CA certificate"),
            (other("MaximumPathDepthExceeded"), "maximum path depth exceeded"),
            (other("UnsupportedNameType"), "unsupported name type"),
            (CertificateError::UnknownIssuer.into(), "unknown authority"),
            (CertificateError::BadEncoding.into(), "cannot be read"),
            (CertificateError::ApplicationVerificationFailure.into(), "application verification failure"),
            (TlsError::AlertReceived(AlertDescription::HandshakeFailure), "handshake failure"),
            (TlsError::AlertReceived(AlertDescription::CertificateRequired), "demands a certificate"),
            (TlsError::General("the disk is full".into()), "the disk is full"),
        ] {
            let text = in_words(&error);
            assert!(text.contains(said), "{text}");
            let mut words = text.split(|it: char| !it.is_alphanumeric());
            let has_type =
                words.any(|word| word.chars().skip(1).any(char::is_uppercase) && word.to_uppercase() != word);
            assert!(!has_type, "{text}");
        }
    }

    #[test]
    fn cause_is_found_below_other_errors() {
        let inner = io::Error::other(other("CaUsedAsEndEntity"));
        let error = io::Error::other(inner);
        assert!(cause(&error).contains("is a CA certificate"), "{}", cause(&error));
        assert_eq!(cause(&io::Error::other("refused")), "refused");
    }

    #[test]
    fn names_of_a_certificate_are_shown_without_their_type() {
        assert_eq!(in_dns("DnsName(\"a.example\")"), "a.example");
        assert_eq!(in_dns("a.example"), "a.example");
    }
}
