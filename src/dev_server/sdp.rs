//! Answers the SDP of clients that offer media. Only the data section of an offer reaches str0m, which would
//! allocate codecs and header extensions for the others. The answer contains every offered section again:
//! media of the bundle as `inactive`.
//!
//! Sections and their order: [RFC 8829, section 5.3.1](https://www.rfc-editor.org/rfc/rfc8829#section-5.3.1).
//! Bundles: [RFC 9143, section 7.3](https://www.rfc-editor.org/rfc/rfc9143#section-7.3).

use std::collections::HashSet;

/// The maximum number of sections of an offer. The answer repeats the transport in each, so it can be larger than the offer.
const MAX_SECTIONS: usize = 256;

/// The prefix of the line that lists the bundled sections.
const BUNDLE: &str = "a=group:BUNDLE";
/// The prefixes of the lines that describe the transport, which is one for all bundled sections.
const TRANSPORT: [&str; 7] = [
    "a=ice-ufrag:",
    "a=ice-pwd:",
    "a=ice-options:",
    "a=fingerprint:",
    "a=setup:",
    "a=candidate:",
    "a=end-of-candidates",
];
/// The prefixes of the lines that describe codecs. An answer must contain a codec of the offer.
const CODECS: [&str; 3] = ["a=rtpmap:", "a=fmtp:", "a=rtcp-fb:"];

/// A client's offer.
#[derive(Debug)]
pub(super) struct Offer<'a> {
    session: Vec<&'a str>,
    sections: Vec<Section<'a>>,
    /// The index of the data section.
    data: usize,
    /// The `mid`s of the bundle that contains the data section.
    bundle: HashSet<&'a str>,
}

/// A section of an offer: an `m=` line and what follows it.
#[derive(Debug)]
struct Section<'a> {
    mid: &'a str,
    lines: Vec<&'a str>,
}

/// Why an offer cannot be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum OfferError {
    #[error("the offer has {count} sections; {MAX_SECTIONS} are allowed")]
    TooManySections { count: usize },
    #[error("a section of the offer has no a=mid, or one that another section has")]
    Mid,
    #[error("the offer has no section for data channels")]
    NoData,
    #[error("the offer does not bundle its section for data channels")]
    NoBundle,
}

impl<'a> Offer<'a> {
    /// Reads an offer as far as the server needs it.
    ///
    /// # Errors
    /// The sections are not those of a WebRTC offer with data channels.
    pub(super) fn parse(text: &'a str) -> Result<Self, OfferError> {
        let mut session = Vec::new();
        let mut sections: Vec<Vec<&str>> = Vec::new();
        for line in text.lines().filter(|line| !line.is_empty()) {
            match sections.last_mut() {
                _ if line.starts_with("m=") => sections.push(vec![line]),
                Some(section) => section.push(line),
                None => session.push(line),
            }
        }
        if sections.len() > MAX_SECTIONS {
            return Err(OfferError::TooManySections { count: sections.len() });
        }
        let mut mids = HashSet::new();
        let sections: Vec<_> = sections
            .into_iter()
            .map(|lines| {
                let mid = lines.iter().find_map(|line| line.strip_prefix("a=mid:")).unwrap_or_default();
                Section { mid: mid.trim(), lines }
            })
            .collect();
        if !sections.iter().all(|section| !section.mid.is_empty() && mids.insert(section.mid)) {
            return Err(OfferError::Mid);
        }
        let data = sections.iter().position(Section::is_data).ok_or(OfferError::NoData)?;
        let groups = session.iter().filter_map(|line| line.strip_prefix(BUNDLE));
        let bundle = groups
            .map(|mids| mids.split_ascii_whitespace().collect::<HashSet<_>>())
            .find(|mids| mids.contains(sections[data].mid))
            .ok_or(OfferError::NoBundle)?;
        Ok(Self { session, sections, data, bundle })
    }

    /// Returns the offer with its data section alone. Its transport is that of the bundle, which the
    /// first section describes.
    pub(super) fn data_only(&self) -> String {
        let data = &self.sections[self.data];
        let describes = |it: &&Section<'_>| it.lines.iter().any(|line| line.starts_with(TRANSPORT[0]));
        let first = self.bundled().find(describes).unwrap_or(data);
        let group = format!("{BUNDLE} {}", data.mid);
        let session = self.session.iter().copied().filter(|line| !line.starts_with("a=group:"));
        let own = data.lines.iter().copied().filter(|line| !is_transport(line));
        // A session may describe the transport of all its sections.
        let transport = first.lines.iter().copied().filter(|line| is_transport(line));
        text(session.chain([&*group]).chain(own).chain(transport))
    }

    /// Returns the answer to the whole offer, given the one to its data section.
    pub(super) fn answer(&self, to_data: &str) -> String {
        let lines: Vec<_> = to_data.lines().filter(|line| !line.is_empty()).collect();
        let (session, data) =
            lines.split_at(lines.iter().position(|it| it.starts_with("m=")).unwrap_or(lines.len()));
        let bundled: Vec<_> = self.bundled().map(|section| section.mid).collect();
        let group = format!("{BUNDLE} {}", bundled.join(" "));
        let mut answer = Vec::new();
        for line in session {
            answer.push(if line.starts_with(BUNDLE) { group.clone() } else { (*line).to_owned() });
        }
        for (index, section) in self.sections.iter().enumerate() {
            if index == self.data {
                answer.extend(data.iter().map(|line| (*line).to_owned()));
                continue;
            }
            let is_bundled = bundled.contains(&section.mid);
            answer.push(section.media_line(if is_bundled { "9" } else { "0" }));
            answer.extend(["c=IN IP4 0.0.0.0".to_owned(), format!("a=mid:{}", section.mid)]);
            answer.push("a=inactive".to_owned());
            if is_bundled {
                let of_data =
                    data.iter().filter(|line| is_transport(line) && !line.starts_with("a=candidate:"));
                let own =
                    section.lines.iter().filter(|line| is_codec(line) || line.starts_with("a=rtcp-rsize"));
                answer.push("a=rtcp-mux".to_owned());
                answer.extend(of_data.chain(own).map(|line| (*line).to_owned()));
            }
        }
        text(answer.iter().map(String::as_str))
    }

    /// Returns the sections of the bundle, in the order of the offer, without those that the offer rejects.
    fn bundled(&self) -> impl Iterator<Item = &Section<'a>> {
        self.sections.iter().filter(|it| self.bundle.contains(it.mid) && (it.is_data() || !it.is_rejected()))
    }
}

impl Section<'_> {
    /// Returns whether this is the section for data channels.
    fn is_data(&self) -> bool {
        self.lines[0].starts_with("m=application ") && self.lines[0].ends_with(" webrtc-datachannel")
    }

    /// Returns whether the offer rejects the section: port 0, unless it merely shares the transport of the bundle.
    fn is_rejected(&self) -> bool {
        self.lines[0].split(' ').nth(1) == Some("0") && !self.lines.contains(&"a=bundle-only")
    }

    /// Returns the `m=` line with another port.
    fn media_line(&self, port: &str) -> String {
        let mut words: Vec<_> = self.lines[0].split(' ').collect();
        if let Some(offered) = words.get_mut(1) {
            *offered = port;
        }
        words.join(" ")
    }
}

fn is_transport(line: &str) -> bool {
    TRANSPORT.iter().any(|prefix| line.starts_with(prefix))
}

fn is_codec(line: &str) -> bool {
    CODECS.iter().any(|prefix| line.starts_with(prefix))
}

/// Joins lines as SDP.
fn text<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    lines.flat_map(|line| [line, "\r\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sections of an SDP text, each with its lines.
    fn sections(text: &str) -> Vec<Vec<&str>> {
        let mut sections = vec![Vec::new()];
        for line in text.split_terminator("\r\n") {
            if line.starts_with("m=") {
                sections.push(Vec::new());
            }
            sections.last_mut().unwrap().push(line);
        }
        sections
    }

    const SESSION: &str = "v=0\r\no=- 1 2 IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\na=group:BUNDLE 0 1 2\r\n";
    const AUDIO: &str = "m=audio 9 UDP/TLS/RTP/SAVPF 111 0\r\nc=IN IP4 0.0.0.0\r\na=ice-ufrag:first\r\na=ice-pwd:one\r\n\
        a=mid:0\r\na=extmap:1 urn:ietf:params:rtp-hdrext:ssrc-audio-level\r\na=recvonly\r\na=rtcp-mux\r\n\
        a=rtpmap:111 opus/48000/2\r\na=rtcp-fb:111 transport-cc\r\na=fmtp:111 useinbandfec=1\r\n";
    const DATA: &str = "m=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\nc=IN IP4 0.0.0.0\r\na=ice-ufrag:second\r\n\
        a=ice-pwd:two\r\na=mid:1\r\na=sctp-port:5000\r\n";
    const VIDEO: &str =
        "m=video 0 UDP/TLS/RTP/SAVPF 96\r\nc=IN IP4 0.0.0.0\r\na=mid:2\r\na=bundle-only\r\na=sendrecv\r\n";
    const ANSWER: &str = "v=0\r\no=- 3 4 IN IP4 0.0.0.0\r\ns=-\r\nt=0 0\r\na=group:BUNDLE 1\r\n\
        m=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\na=ice-ufrag:own\r\na=setup:passive\r\n\
        a=candidate:1 1 udp 1 127.0.0.1 9 typ host\r\na=mid:1\r\n";

    #[test]
    fn only_the_data_section_remains_with_the_transport_of_the_bundle() {
        let whole = [SESSION, AUDIO, DATA, VIDEO].concat();
        let reduced = Offer::parse(&whole).unwrap().data_only();
        let [session, data] = &sections(&reduced)[..] else { panic!("{reduced}") };
        assert!(session.contains(&"a=group:BUNDLE 1"), "{reduced}");
        assert!(data[0].starts_with("m=application") && data.contains(&"a=sctp-port:5000"), "{reduced}");
        assert!(data.contains(&"a=ice-ufrag:first") && data.contains(&"a=ice-pwd:one"), "{reduced}");
        assert!(!reduced.contains("second") && !reduced.contains("opus"), "{reduced}");
    }

    #[test]
    fn answer_has_each_offered_section_with_media_of_the_bundle_inactive() {
        let whole = [SESSION, AUDIO, DATA, VIDEO].concat();
        let answer = Offer::parse(&whole).unwrap().answer(ANSWER);
        let [session, audio, data, video] = &sections(&answer)[..] else { panic!("{answer}") };
        assert!(session.contains(&"a=group:BUNDLE 0 1 2"), "{answer}");
        assert_eq!(audio[0], "m=audio 9 UDP/TLS/RTP/SAVPF 111 0");
        assert_eq!(video[0], "m=video 9 UDP/TLS/RTP/SAVPF 96", "a bundled section shares a transport");
        assert!(data.contains(&"a=candidate:1 1 udp 1 127.0.0.1 9 typ host"), "{answer}");
        for (media, mid) in [(audio, "a=mid:0"), (video, "a=mid:2")] {
            for line in [mid, "a=inactive", "a=rtcp-mux", "a=ice-ufrag:own", "a=setup:passive"] {
                assert!(media.contains(&line), "{line}: {answer}");
            }
        }
        for codec in ["a=rtpmap:111 opus/48000/2", "a=rtcp-fb:111 transport-cc", "a=fmtp:111 useinbandfec=1"]
        {
            assert!(audio.contains(&codec), "{codec}: {answer}");
        }
    }

    #[test]
    fn sections_outside_the_bundle_and_rejected_ones_are_rejected() {
        let alone = SESSION.replace("0 1 2", "1");
        let stopped = AUDIO.replace("m=audio 9", "m=audio 0");
        for offer in [[&alone, AUDIO, DATA].concat(), [SESSION, &stopped, DATA].concat()] {
            let answer = Offer::parse(&offer).unwrap().answer(ANSWER);
            let [session, audio, _] = &sections(&answer)[..] else { panic!("{answer}") };
            assert!(session.contains(&"a=group:BUNDLE 1"), "{answer}");
            assert_eq!(audio[0], "m=audio 0 UDP/TLS/RTP/SAVPF 111 0");
            assert!(!answer.contains("opus"), "{answer}");
        }
    }

    #[test]
    fn offer_without_usable_sections_is_refused() {
        let many = [SESSION, DATA, &VIDEO.repeat(MAX_SECTIONS)].concat();
        for (offer, error) in [
            ("", OfferError::NoData),
            ("m=", OfferError::Mid),
            (&[SESSION, AUDIO].concat(), OfferError::NoData),
            (&[SESSION, DATA, DATA].concat(), OfferError::Mid),
            (&[SESSION, DATA, &AUDIO.replace("a=mid:0", "a=mid:")].concat(), OfferError::Mid),
            (DATA, OfferError::NoBundle),
            (&many, OfferError::TooManySections { count: MAX_SECTIONS + 1 }),
        ] {
            assert_eq!(Offer::parse(offer).err(), Some(error), "{offer:.80}");
        }
    }
}
