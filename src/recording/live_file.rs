//! Owns the file while a recorder writes it.

use std::{
    fs::{self, File, TryLockError},
    io::{self, BufReader, Seek as _, Write},
    path::{Path, PathBuf},
};

use super::{RecordError, Recording, rewrite, writer};

/// How often a file is opened again that another program replaces or removes at that moment.
const ATTEMPTS: usize = 8;

/// How many names are tried for a recording whose own name another program has taken.
const NAMES: usize = 100;

/// A file that no other recorder can write. Its content is replaced when the first bytes are written, not before.
#[derive(Debug)]
pub(super) struct LiveFile {
    file: File,
    path: PathBuf,
    /// Whether it did not exist before.
    is_new: bool,
    has_begun: bool,
}

impl LiveFile {
    /// Opens the file and locks it. `force` accepts an existing one, whose content stays until something is written.
    pub(super) fn open(path: &Path, force: bool) -> Result<Self, RecordError> {
        let failed = |error| RecordError::creating(path, error);
        for _ in 0..ATTEMPTS {
            let (file, is_new) = match writer::open(path, true) {
                Err(error) if force && error.kind() == io::ErrorKind::AlreadyExists => {
                    match writer::open(path, false) {
                        // It was removed in between.
                        Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                        opened => (opened.map_err(failed)?, false),
                    }
                }
                created => (created.map_err(failed)?, true),
            };
            lock(&file).map_err(failed)?;
            let live = Self { file, path: path.to_owned(), is_new, has_begun: false };
            // Another recorder may have finished its file, which has replaced this one.
            if live.has_its_name() {
                return Ok(live);
            }
        }
        Err(failed(io::Error::other("other programs replace it again and again")))
    }

    /// Whether anything was written.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Gives up a file to which nothing was written: a new one is removed, an old one stays as it was.
    pub(super) fn discard(self) {
        if self.is_new && !self.has_begun && self.has_its_name() {
            let _ = fs::remove_file(&self.path); // an empty file does no harm
        }
    }

    /// Replaces the file by a finished one with the same `messages`. If that fails, the file stays as it is.
    pub(super) fn finish(mut self, messages: u64) -> Result<(), RecordError> {
        self.file.rewind().map_err(RecordError::Read)?;
        let file = self.file.try_clone().map_err(RecordError::Read)?;
        let recording = Recording::read(BufReader::new(file))?;
        let (is_named, is_free) = (self.has_its_name(), self.path.symlink_metadata().is_err());
        if is_named || is_free {
            return rewrite::finish(recording, messages, &self.path, is_named);
        }
        // Another program has put its own file there.
        let kept = self.finish_elsewhere(messages)?;
        Err(RecordError::Replaced { path: self.path, kept })
    }

    /// Writes the finished file under another name.
    fn finish_elsewhere(&mut self, messages: u64) -> Result<PathBuf, RecordError> {
        let mut last = None;
        for number in 1..=NAMES {
            self.file.rewind().map_err(RecordError::Read)?;
            let file = self.file.try_clone().map_err(RecordError::Read)?;
            let path = self.path.with_extension(format!("{number}.mcap"));
            match rewrite::finish(Recording::read(BufReader::new(file))?, messages, &path, false) {
                Ok(()) => return Ok(path),
                Err(error @ RecordError::Exists { .. }) => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or(RecordError::NotMcap))
    }

    /// Whether its path leads to this file.
    fn has_its_name(&self) -> bool {
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt as _;
            let found = self.file.metadata().and_then(|own| Ok((own, self.path.symlink_metadata()?)));
            found.is_ok_and(|(own, named)| (own.dev(), own.ino()) == (named.dev(), named.ino()))
        }
        #[cfg(not(unix))]
        {
            self.path.exists()
        }
    }
}

impl Write for LiveFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.has_begun {
            #[cfg(unix)]
            self.file
                .set_permissions(<fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o600))?;
            self.file.set_len(0)?;
            self.has_begun = true;
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Returns whether a recorder writes the file with this name.
pub(super) fn is_being_recorded(path: &Path) -> bool {
    let Ok(file) = writer::open(path, false) else { return false };
    matches!(file.try_lock(), Err(TryLockError::WouldBlock))
}

/// Locks a file, where the file system has locks.
fn lock(file: &File) -> io::Result<()> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(in_use()),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

/// The error of a file that a recorder writes.
pub(super) fn in_use() -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, "another recorder is writing it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::{Entry, Happened, Moment, Recorder, RecorderOptions, RoomEvent};

    /// An empty folder, and a file in it.
    fn place(name: &str) -> (PathBuf, PathBuf) {
        let folder = std::env::temp_dir().join(format!("toolbridge-live-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        let path = folder.join("session.mcap");
        (folder, path)
    }

    fn names(folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    fn forced(path: &Path) -> Recorder {
        Recorder::create(path, RecorderOptions::default().force(true)).unwrap()
    }

    fn entry(number: u64) -> Entry {
        let here =
            RoomEvent::Here { identity: "phone".into(), sid: "PA_1".into(), room: "kitchen".to_owned() };
        let event = if number == 0 { here } else { RoomEvent::Link { up: number.is_multiple_of(2) } };
        Entry::new(Moment(number), Happened::Event(event))
    }

    fn entries(path: &Path) -> usize {
        Recording::open(path).unwrap().entries().count()
    }

    /// Waits until the file has its first entry.
    fn has_begun(path: &Path) {
        while fs::metadata(path).map_or(0, |it| it.len()) == 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn second_recorder_of_a_file_is_refused_and_the_first_one_loses_nothing() {
        let (folder, path) = place("second");
        let first = forced(&path);
        first.record(entry(0));
        has_begun(&path);
        let second = Recorder::create(&path, RecorderOptions::default().force(true)).unwrap_err();
        assert_eq!(
            second.to_string(),
            format!("cannot write `{}`: another recorder is writing it", path.display())
        );
        first.record(entry(1));
        first.finish().unwrap();
        assert_eq!((entries(&path), names(&folder)), (2, vec!["session.mcap".to_owned()]));
        // The finished file is nobody's.
        let third = forced(&path);
        third.record(entry(0));
        third.finish().unwrap();
        assert_eq!(entries(&path), 1);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn recorder_that_recorded_nothing_leaves_the_folder_as_it_was() {
        let (folder, path) = place("nothing");
        drop(Recorder::create(&path, RecorderOptions::default()).unwrap());
        assert_eq!(names(&folder), [""; 0]);
        fs::write(&path, "an old recording").unwrap();
        drop(forced(&path));
        assert!(!is_being_recorded(&path));
        assert_eq!(fs::read_to_string(&path).unwrap(), "an old recording");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn damaged_live_file_is_a_failure_and_stays() {
        let (folder, path) = place("damaged");
        let recorder = forced(&path);
        recorder.record(entry(0));
        recorder.record(entry(1));
        has_begun(&path);
        while entries(&path) < 2 {
            std::thread::yield_now();
        }
        // Another program writes into the file.
        let mut other = File::options().append(true).open(&path).unwrap();
        other.write_all(&[0xff; 40]).unwrap();
        let text = recorder.finish().unwrap_err().to_string();
        assert!(text.contains("could not be indexed") && text.contains("at byte"), "{text}");
        assert_eq!(recorder.stats().failed.map(|it| text.contains(&it)), Some(true));
        assert_eq!((entries(&path), names(&folder)), (2, vec!["session.mcap".to_owned()]));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn cut_live_file_is_a_failure() {
        let (folder, path) = place("cut");
        let mut live = LiveFile::open(&path, false).unwrap();
        live.write_all(
            &fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/recordings/success.mcap")).unwrap(),
        )
        .unwrap();
        let error = live.finish(1_000_000).unwrap_err();
        assert!(error.to_string().contains("of 1000000 messages"), "{error}");
        assert_eq!(names(&folder), ["session.mcap"]);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn file_of_another_program_under_the_name_is_not_overwritten() {
        let (folder, path) = place("replaced");
        let recorder = forced(&path);
        recorder.record(entry(0));
        has_begun(&path);
        fs::write(folder.join("other"), "of another program").unwrap();
        fs::rename(folder.join("other"), &path).unwrap();
        recorder.record(entry(1));
        let text = recorder.finish().unwrap_err().to_string();
        let kept = folder.join("session.1.mcap");
        assert!(text.contains(&kept.display().to_string()), "{text}");
        assert_eq!(
            (entries(&kept), fs::read_to_string(&path).unwrap()),
            (2, "of another program".to_owned())
        );
        // A file that was only removed is written under its name.
        let path = folder.join("removed.mcap");
        let recorder = forced(&path);
        recorder.record(entry(0));
        has_begun(&path);
        fs::remove_file(&path).unwrap();
        recorder.finish().unwrap();
        assert_eq!(entries(&path), 1);
        fs::remove_dir_all(folder).unwrap();
    }
}
