//! Random JSON texts for the round trips of documents, in every spelling that JSON allows.

/// Returns how many documents a test makes: `TOOLBRIDGE_RANDOM_DOCUMENTS`, otherwise a number that takes little time.
pub(crate) fn count() -> u64 {
    std::env::var("TOOLBRIDGE_RANDOM_DOCUMENTS").map_or(1_000, |count| count.parse().unwrap())
}

/// A key, and what writes its value.
pub(crate) type Member<'a> = (&'a str, &'a dyn Fn(&mut Random));

/// Writes one random document. The same seed gives the same document.
pub(crate) struct Random {
    state: u64,
    out: String,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d, out: String::new() }
    }

    /// Returns a number below the limit.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) % limit
    }

    pub(crate) fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[usize::try_from(self.below(of.len() as u64)).unwrap()]
    }

    pub(crate) fn raw(&mut self, text: &str) {
        self.out.push_str(text);
    }

    pub(crate) fn into_text(self) -> String {
        self.out
    }

    /// Writes an object with these members.
    pub(crate) fn object(&mut self, members: &[Member<'_>]) {
        self.raw("{");
        for (n, (key, value)) in members.iter().enumerate() {
            if n > 0 {
                self.raw(",");
            }
            self.space();
            self.raw(&format!("\"{key}\""));
            self.space();
            self.raw(":");
            self.space();
            value(self);
            self.space();
        }
        self.raw("}");
    }

    pub(crate) fn array(&mut self, length: u64, item: &dyn Fn(&mut Self)) {
        self.raw("[");
        for n in 0..length {
            if n > 0 {
                self.raw(",");
            }
            self.space();
            item(self);
            self.space();
        }
        self.raw("]");
    }

    pub(crate) fn space(&mut self) {
        let space = self.pick(&["", "", "", " ", "\n  ", "\t\r\n"]);
        self.raw(space);
    }

    pub(crate) fn string(&mut self) {
        self.raw("\"");
        // Some are longer than those that are written by reference.
        let length = if self.below(12) == 0 { 300 } else { self.below(6) };
        for _ in 0..length {
            let part = self.pick(&[
                "a",
                "text",
                " ",
                "é",
                "😀",
                "\\n",
                "\\\"",
                "\\\\",
                "\\/",
                "\\u00e9",
                "\\ud83d\\ude00",
                "\\u0000",
                "~",
                "/",
                "at",
                "\\ud800",
            ]);
            self.raw(part);
        }
        self.raw("\"");
    }

    /// Writes any value, with at most this many levels.
    pub(crate) fn value(&mut self, depth: u64) {
        match self.below(if depth == 0 { 5 } else { 8 }) {
            0 => {
                let word = self.pick(&["null", "true", "false"]);
                self.raw(word);
            }
            1 | 2 => {
                let number = self.pick(&[
                    "0",
                    "-0",
                    "1",
                    "1.0",
                    "-1.5e3",
                    "0.1",
                    "18446744073709551615",
                    "18446744073709551616",
                    "-9223372036854775808",
                    "1E+2",
                    "1e-400",
                    "1e400",
                    "3.141592653589793238",
                ]);
                self.raw(number);
            }
            3 | 4 => self.string(),
            5 => {
                let length = self.below(4);
                self.array(length, &|it| it.value(depth - 1));
            }
            _ => {
                let length = self.below(4);
                self.raw("{");
                for n in 0..length {
                    if n > 0 {
                        self.raw(",");
                    }
                    self.space();
                    match self.below(3) {
                        0 => self.string(),
                        _ => {
                            let key = self.pick(&[
                                "\"a\"",
                                "\"at\"",
                                "\"type\"",
                                "\"text\"",
                                "\"$bin\"",
                                "\"bridge.at\"",
                                "\"bridge.result\"",
                            ]);
                            self.raw(key);
                        }
                    }
                    self.raw(":");
                    self.space();
                    self.value(depth - 1);
                }
                self.raw("}");
            }
        }
    }
}
