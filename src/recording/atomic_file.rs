//! Writes a file under a temporary name, which becomes its own only when it is complete.

use std::{
    ffi::OsStr,
    fmt,
    fs::{self, File, Metadata},
    io::{self, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use super::{RecordError, live_file, writer};

/// How many temporary names are tried. One is enough unless the random numbers repeat.
const ATTEMPTS: usize = 8;

/// The random part of a temporary name, in characters of 6 bits: two programs never share one.
const RANDOM: usize = 16;

/// A file that appears under its name when it is complete.
///
/// What is written goes to a hidden file beside it, which has a unique name and is readable by its owner alone.
/// [`finish`](Self::finish) renames it. Without that, as after an error or on a full disk, the hidden file is removed,
/// and an existing file stays as it was. Errors of writing name the file.
///
/// ```
/// use std::io::Write;
///
/// use toolbridge::recording::AtomicFile;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = std::env::temp_dir().join(format!("toolbridge-atomic-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// # let path = folder.join("page.html");
/// let mut file = AtomicFile::create(&path, false)?;
/// file.write_all(b"<!doctype html>")?;
/// assert!(!path.exists());
/// file.finish()?;
/// assert_eq!(std::fs::read(&path)?, b"<!doctype html>");
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok(())
/// # }
/// ```
pub struct AtomicFile {
    file: File,
    temporary: Temporary,
    path: PathBuf,
    force: bool,
    /// Whether the caller's own recorder writes the file that this one replaces.
    is_own: bool,
}

impl AtomicFile {
    /// Starts a file. `force` lets it replace an existing regular file; a link, a device or a pipe is never replaced.
    ///
    /// # Errors
    /// [`RecordError::Exists`] if the file exists and `force` is false, else [`RecordError::Create`].
    pub fn create(path: impl AsRef<Path>, force: bool) -> Result<Self, RecordError> {
        let path = path.as_ref();
        check_replaceable(path, force)?;
        let (file, temporary) = create_temporary(path).map_err(|error| RecordError::creating(path, error))?;
        Ok(Self { file, temporary: Temporary(temporary), path: path.to_owned(), force, is_own: false })
    }

    /// Like [`create`](Self::create), for a file in place of that of the caller's own recorder.
    pub(super) fn replacing(path: &Path) -> Result<Self, RecordError> {
        let (file, temporary) = create_temporary(path).map_err(|error| RecordError::creating(path, error))?;
        Ok(Self { file, temporary: Temporary(temporary), path: path.to_owned(), force: true, is_own: true })
    }

    /// Gives the complete file its name.
    ///
    /// # Errors
    /// [`RecordError::Exists`] if another program has created the file meanwhile and `force` was false, else
    /// [`RecordError::Create`].
    pub fn finish(self) -> Result<(), RecordError> {
        let Self { file, temporary, path, force, is_own } = self;
        if !is_own {
            check_replaceable(&path, force)?;
        }
        let finished = file.sync_all().and_then(|()| {
            drop(file);
            if force { fs::rename(&temporary.0, &path) } else { rename_new(&temporary.0, &path) }
        });
        finished.map_err(|error| RecordError::creating(&path, error))?;
        std::mem::forget(temporary);
        Ok(())
    }

    fn named<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.map_err(|error| {
            let text = format!("cannot write `{}`: {error}", self.path.display());
            io::Error::new(error.kind(), text)
        })
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes);
        self.named(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.file.flush();
        self.named(flushed)
    }
}

impl Seek for AtomicFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = self.file.seek(to);
        self.named(at)
    }
}

impl fmt::Debug for AtomicFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtomicFile")
            .field("path", &self.path)
            .field("force", &self.force)
            .finish_non_exhaustive()
    }
}

/// The temporary file, which is removed unless it has got its final name.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0); // a leftover file does no harm
    }
}

/// Fails if the file exists and must not be replaced.
fn check_replaceable(path: &Path, force: bool) -> Result<(), RecordError> {
    match fs::symlink_metadata(path) {
        Ok(_) if !force => Err(RecordError::Exists { path: path.to_owned() }),
        Ok(_) if live_file::is_being_recorded(path) => {
            Err(RecordError::Create { path: path.to_owned(), source: live_file::in_use() })
        }
        Ok(found) if !is_plain(&found) => {
            let source =
                io::Error::other("it is not a regular file, but a folder, a device, a pipe or a link");
            Err(RecordError::Create { path: path.to_owned(), source })
        }
        _ => Ok(()), // creating the file reports other errors
    }
}

/// Whether this is a regular file with one name.
fn is_plain(found: &Metadata) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        found.is_file() && found.nlink() == 1
    }
    #[cfg(not(unix))]
    {
        found.is_file()
    }
}

/// Creates a file in the same folder, so that a rename suffices. Its name does not contain the final one, which may be
/// as long as names can be.
fn create_temporary(path: &Path) -> io::Result<(File, PathBuf)> {
    if path.file_name().is_none_or(OsStr::is_empty) {
        return Err(io::Error::other("the path has no file name"));
    }
    let mut attempts = 0;
    loop {
        attempts += 1;
        let temporary = path.with_file_name(format!(".toolbridge-{}.tmp", nanoid::nanoid!(RANDOM)));
        match writer::open(&temporary, true) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempts < ATTEMPTS => {}
            created => return created.map(|file| (file, temporary)),
        }
    }
}

/// Renames a file unless the new name exists.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Ok(()) => {
            let _ = fs::remove_file(from); // a leftover name does no harm
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
        // Some file systems have no links. Whether the name is free was checked a moment ago.
        Err(_) => fs::rename(from, to),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates an empty folder.
    fn folder() -> PathBuf {
        let folder = std::env::temp_dir().join(format!("toolbridge-atomic-{}", nanoid::nanoid!(RANDOM)));
        fs::create_dir(&folder).unwrap();
        folder
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn unfinished_file_leaves_the_old_one_unchanged() {
        let folder = folder();
        let path = folder.join("page.html");
        fs::write(&path, "old").unwrap();
        let mut file = AtomicFile::create(&path, true).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), names(&folder).len()), ("old", 2));
        drop(file);
        assert_eq!(
            (fs::read_to_string(&path).unwrap().as_str(), names(&folder)),
            ("old", vec!["page.html".into()])
        );
    }

    #[test]
    fn two_writers_of_one_file_do_not_touch_each_other() {
        let folder = folder();
        let path = folder.join("out");
        let (mut first, mut second) =
            (AtomicFile::create(&path, false).unwrap(), AtomicFile::create(&path, false).unwrap());
        first.write_all(b"first").unwrap();
        second.write_all(b"second").unwrap();
        first.finish().unwrap();
        assert!(matches!(second.finish(), Err(RecordError::Exists { .. })));
        assert_eq!(
            (fs::read_to_string(&path).unwrap().as_str(), names(&folder)),
            ("first", vec!["out".into()])
        );
    }

    #[test]
    fn file_that_appears_in_the_last_moment_is_not_replaced() {
        let folder = folder();
        let (from, to) = (folder.join("from"), folder.join("to"));
        fs::write(&from, "new").unwrap();
        fs::write(&to, "old").unwrap();
        assert_eq!(rename_new(&from, &to).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&to).unwrap(), "old");
    }

    #[test]
    fn longest_name_can_be_written() {
        let path = folder().join("x".repeat(255));
        AtomicFile::create(&path, false).unwrap().finish().unwrap();
        assert!(path.exists());
    }

    #[cfg(unix)]
    #[test]
    fn link_is_never_replaced_or_followed() {
        let folder = folder();
        let (path, link) = (folder.join("old"), folder.join("link"));
        fs::write(&path, "old").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(AtomicFile::create(&link, true), Err(RecordError::Create { .. })));
        assert!(matches!(AtomicFile::create(&link, false), Err(RecordError::Exists { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    }
}
