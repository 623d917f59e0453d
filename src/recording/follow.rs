//! Reads a file that is still being written.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use super::{RecordError, Recording};

impl Recording {
    /// Opens a file that may still be written. At its end, [`entries`](Recording::entries) calls `wait` and checks for
    /// more when it returns, until the recorder finishes the file or `wait` returns false. A finished file ends
    /// normally.
    ///
    /// If the writer crashed, reading ends only when `wait` returns false.
    ///
    /// ```no_run
    /// use std::{thread, time::Duration};
    ///
    /// use toolbridge::recording::{Recording, RecordError};
    ///
    /// # fn main() -> Result<(), RecordError> {
    /// let wait = || {
    ///     thread::sleep(Duration::from_millis(100));
    ///     true
    /// };
    /// for entry in Recording::follow("session.mcap", wait)?.entries() {
    ///     println!("{entry:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`open`](Recording::open).
    pub fn follow(
        path: impl AsRef<Path>,
        wait: impl FnMut() -> bool + Send + 'static,
    ) -> Result<Self, RecordError> {
        let path = path.as_ref();
        let recording = Self::open(path)?;
        if recording.about().finished {
            return Ok(recording);
        }
        let file = File::open(path).map_err(|error| RecordError::opening(path, error))?;
        Self::read(Following { file, path: path.to_owned(), wait })
    }
}

/// Reads a file and waits at its end.
struct Following<W> {
    file: File,
    path: PathBuf,
    wait: W,
}

impl<W: FnMut() -> bool> Read for Following<W> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            // Checked before reading, so that data written before the file was replaced is still read.
            let is_replaced = self.is_replaced();
            let count = self.file.read(buffer)?;
            if count > 0 || buffer.is_empty() || is_replaced || !(self.wait)() {
                return Ok(count);
            }
        }
    }
}

impl<W> Following<W> {
    /// Whether the file was replaced or removed: a recorder that finishes replaces it.
    fn is_replaced(&self) -> bool {
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let (Ok(there), Ok(ours)) = (fs::metadata(&self.path), self.file.metadata()) else { return true };
            (there.dev(), there.ino()) != (ours.dev(), ours.ino())
        }
        #[cfg(not(unix))]
        {
            fs::metadata(&self.path).is_err()
        }
    }
}
