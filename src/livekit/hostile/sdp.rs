//! Tests mutated answers and candidates: str0m may reject them, and nothing else may happen.

use std::time::Instant;

use str0m::{Rtc, change::SdpOffer};

use crate::livekit::path::{crypto, peer_connection::PeerConnection};

/// How many mutated answers are tried. Each needs a peer connection.
const ROUNDS: u64 = 600;

/// Numbers that are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }
}

/// Removes a line, duplicates it, swaps two, or changes letters within one.
fn changed(text: &str, random: &mut Random) -> String {
    let mut lines: Vec<_> = text.split("\r\n").map(str::to_owned).collect();
    for _ in 0..=random.below(3) {
        let (one, other) = (random.below(lines.len()), random.below(lines.len()));
        match random.below(5) {
            0 => drop(lines.remove(one)),
            1 => lines.insert(other, lines[one].clone()),
            2 => lines.swap(one, other),
            3 => {
                let mut letters: Vec<char> = lines[one].chars().collect();
                if !letters.is_empty() {
                    let at = random.below(letters.len());
                    letters[at] = [' ', '0', '9', ':', '=', '-', 'x', '\u{e9}', '\n'][random.below(9)];
                }
                lines[one] = letters.into_iter().collect();
            }
            _ => {
                let long = ["4294967296", "-1", "99999999999999999999", ""][random.below(4)];
                lines[one] = lines[one].replace(|it: char| it.is_ascii_digit(), long);
            }
        }
        if lines.is_empty() {
            lines.push(String::new());
        }
    }
    lines.join("\r\n")
}

#[tokio::test]
async fn mutated_answers_and_candidates_are_accepted_or_refused() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut taken, mut refused) = (0, 0);
    let candidate = "candidate:1 1 udp 2130706431 127.0.0.1 9 typ host raddr 0.0.0.0 rport 0 ufrag abcd";
    for _ in 0..ROUNDS {
        let now = Instant::now();
        let (mut connection, offer) = PeerConnection::new(now, None, true, true).unwrap();
        let mut remote = Rtc::builder().set_crypto_provider(crypto::provider()).clear_codecs().build(now);
        let answer = remote.sdp_api().accept_offer(SdpOffer::from_sdp_string(&offer).unwrap()).unwrap();
        match connection.handle_answer(&changed(&answer.to_sdp_string(), &mut random), 1) {
            Ok(()) => taken += 1,
            Err(_) => refused += 1,
        }
        for _ in 0..8 {
            connection.handle_candidate(
                &changed(&candidate.replace(' ', "\r\n"), &mut random).replace("\r\n", " "),
            );
        }
    }
    assert!(taken > 0 && refused > 0, "{taken} taken, {refused} refused");
}
