//! Appends MessagePack values in their shortest form to a buffer.

/// A value that can be appended.
pub(crate) trait Write {
    fn nil(&mut self);
    fn bool(&mut self, value: bool);
    fn unsigned(&mut self, value: u64);
    fn signed(&mut self, value: i64);
    fn f32(&mut self, value: f32);
    fn f64(&mut self, value: f64);
    fn str(&mut self, text: &str);
    fn bin(&mut self, data: &[u8]);
    fn ext(&mut self, kind: i8, data: &[u8]);
    fn array(&mut self, count: usize);
    fn map(&mut self, count: usize);
}

impl Write for Vec<u8> {
    #[inline]
    fn nil(&mut self) {
        self.push(0xc0);
    }

    #[inline]
    fn bool(&mut self, value: bool) {
        self.push(0xc2 + u8::from(value));
    }

    #[inline]
    fn unsigned(&mut self, value: u64) {
        match value {
            0..=0x7f => self.push(value as u8),
            0x80..=0xff => self.extend_from_slice(&[0xcc, value as u8]),
            0x100..=0xffff => head(self, 0xcd, &(value as u16).to_be_bytes()),
            0x1_0000..=0xffff_ffff => head(self, 0xce, &(value as u32).to_be_bytes()),
            _ => head(self, 0xcf, &value.to_be_bytes()),
        }
    }

    #[inline]
    fn signed(&mut self, value: i64) {
        match value {
            0.. => self.unsigned(value as u64),
            -32..=-1 => self.push(value as u8),
            -0x80..=-33 => head(self, 0xd0, &(value as i8).to_be_bytes()),
            -0x8000..=-0x81 => head(self, 0xd1, &(value as i16).to_be_bytes()),
            -0x8000_0000..=-0x8001 => head(self, 0xd2, &(value as i32).to_be_bytes()),
            _ => head(self, 0xd3, &value.to_be_bytes()),
        }
    }

    fn f32(&mut self, value: f32) {
        head(self, 0xca, &value.to_be_bytes());
    }

    fn f64(&mut self, value: f64) {
        head(self, 0xcb, &value.to_be_bytes());
    }

    #[inline]
    fn str(&mut self, text: &str) {
        match text.len() {
            length @ 0..=31 => self.push(0xa0 | length as u8),
            length => sized(self, Some(0xd9), 0xda, length),
        }
        self.extend_from_slice(text.as_bytes());
    }

    fn bin(&mut self, data: &[u8]) {
        sized(self, Some(0xc4), 0xc5, data.len());
        self.extend_from_slice(data);
    }

    fn ext(&mut self, kind: i8, data: &[u8]) {
        match data.len() {
            1 => self.push(0xd4),
            2 => self.push(0xd5),
            4 => self.push(0xd6),
            8 => self.push(0xd7),
            16 => self.push(0xd8),
            length => sized(self, Some(0xc7), 0xc8, length),
        }
        self.push(kind as u8);
        self.extend_from_slice(data);
    }

    #[inline]
    fn array(&mut self, count: usize) {
        match count {
            0..=15 => self.push(0x90 | count as u8),
            _ => sized(self, None, 0xdc, count),
        }
    }

    #[inline]
    fn map(&mut self, count: usize) {
        match count {
            0..=15 => self.push(0x80 | count as u8),
            _ => sized(self, None, 0xde, count),
        }
    }
}

fn head(out: &mut Vec<u8>, mark: u8, bytes: &[u8]) {
    out.push(mark);
    out.extend_from_slice(bytes);
}

/// Appends a length of one, two or four bytes; the marker for four follows that for two. A length beyond `u32` is
/// truncated, and the size limit rejects the value later.
fn sized(out: &mut Vec<u8>, one: Option<u8>, two: u8, length: usize) {
    match (length, one) {
        (0..=0xff, Some(mark)) => head(out, mark, &[length as u8]),
        (0..=0xffff, _) => head(out, two, &(length as u16).to_be_bytes()),
        _ => head(out, two + 1, &(length as u32).to_be_bytes()),
    }
}
