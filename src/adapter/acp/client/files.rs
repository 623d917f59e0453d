//! Serves the files of one folder to an agent that was given it.
//!
//! A path is resolved below the folder, and a link that leads out of it is refused, also if it is made while a file is
//! opened: Linux resolves the path in one step (`openat2` with `RESOLVE_BENEATH`). Other systems resolve it first, and
//! follow no link at its end.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use rustix::fs::{Mode, OFlags};
use serde::Deserialize;
use serde_json::{Value as Json, json};

use crate::adapter::jsonrpc::error::{self, RpcError};

/// The largest file that is read, and the largest text that is written, in bytes: a message has 8 MiB.
const MAX_FILE: u64 = 4 << 20;

/// A folder whose files an agent may read and write.
pub(super) struct Folder {
    /// As it was named, and with its links resolved: an agent may use both forms.
    names: [PathBuf; 2],
    folder: File,
}

#[derive(Deserialize)]
struct ReadFile {
    path: PathBuf,
    #[serde(default)]
    line: Option<usize>,
    #[serde(default)]
    limit: Option<usize>,
}

#[derive(Deserialize)]
struct WriteFile {
    path: PathBuf,
    content: String,
}

impl Folder {
    /// Opens the folder.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let named = std::path::absolute(path)?;
        let real = fs::canonicalize(path)?;
        let folder = File::open(&real)?;
        if !folder.metadata()?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(Self { names: [named, real], folder })
    }

    /// Answers `fs/read_text_file` and `fs/write_text_file`.
    pub(super) async fn answer(self: Arc<Self>, method: &str, params: Json) -> Result<Json, RpcError> {
        let is_read = method == "fs/read_text_file";
        let done =
            tokio::task::spawn_blocking(move || if is_read { self.read(params) } else { self.write(params) });
        done.await.unwrap_or_else(|_| Err(RpcError::new(error::INTERNAL, "the file could not be used")))
    }

    fn read(&self, params: Json) -> Result<Json, RpcError> {
        let request: ReadFile = serde_json::from_value(params).map_err(|_| unreadable())?;
        let file = self.file(&request.path, OFlags::RDONLY).map_err(|error| refused(&error))?;
        let mut text = String::new();
        let size = file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(|error| refused(&error))?;
        if size as u64 > MAX_FILE {
            return Err(RpcError::new(
                error::INVALID_PARAMS,
                format!("the file has more than {MAX_FILE} bytes"),
            ));
        }
        if request.line.is_some() || request.limit.is_some() {
            let skipped = request.line.unwrap_or(1).saturating_sub(1);
            let lines = text.split_inclusive('\n').skip(skipped).take(request.limit.unwrap_or(usize::MAX));
            text = lines.collect();
        }
        Ok(json!({ "content": text }))
    }

    fn write(&self, params: Json) -> Result<Json, RpcError> {
        let request: WriteFile = serde_json::from_value(params).map_err(|_| unreadable())?;
        let size = request.content.len() as u64;
        if size > MAX_FILE {
            let text = format!("the text has {size} bytes; the limit is {MAX_FILE}");
            return Err(RpcError::new(error::INVALID_PARAMS, text));
        }
        let written = self.file(&request.path, OFlags::WRONLY | OFlags::CREATE).and_then(|mut file| {
            file.set_len(0)?;
            file.write_all(request.content.as_bytes())
        });
        written.map(|()| json!({})).map_err(|error| refused(&error))
    }

    /// Opens a regular file below the folder.
    fn file(&self, path: &Path, flags: OFlags) -> io::Result<File> {
        let below = self.names.iter().find_map(|folder| path.strip_prefix(folder).ok());
        let below = below.filter(|_| path.is_absolute()).ok_or(io::ErrorKind::PermissionDenied)?;
        let is_plain = below.components().all(|part| matches!(part, Component::Normal(_)));
        if !is_plain || below.as_os_str().is_empty() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        // A pipe would wait for its other end.
        let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = self.open_below(below, flags)?;
        if !file.metadata()?.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(file)
    }

    #[cfg(target_os = "linux")]
    fn open_below(&self, below: &Path, flags: OFlags) -> io::Result<File> {
        use rustix::{
            fs::{ResolveFlags, openat2},
            io::Errno,
        };

        let mode = if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(0o666) } else { Mode::empty() };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        match openat2(&self.folder, below, flags, mode, resolve) {
            Ok(file) => Ok(file.into()),
            Err(Errno::NOSYS) => self.open_checked(below, flags), // before Linux 5.6, or forbidden by a sandbox
            Err(error) => Err(error.into()),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn open_below(&self, below: &Path, flags: OFlags) -> io::Result<File> {
        self.open_checked(below, flags)
    }

    /// Opens a file whose folder has no link that leads out, and which is not a link itself.
    fn open_checked(&self, below: &Path, flags: OFlags) -> io::Result<File> {
        let path = self.names[1].join(below);
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let parent = fs::canonicalize(parent)?;
        if !parent.starts_with(&self.names[1]) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let is_write = flags.contains(OFlags::WRONLY);
        let extra = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
        let mut options = File::options();
        options.read(!is_write).write(is_write).create(flags.contains(OFlags::CREATE));
        options.custom_flags(i32::try_from(extra).unwrap_or_default()).open(parent.join(name))
    }
}

fn unreadable() -> RpcError {
    RpcError::new(error::INVALID_PARAMS, "the parameters cannot be read")
}

/// Describes a failure without a path.
fn refused(failure: &io::Error) -> RpcError {
    let text = match failure.kind() {
        io::ErrorKind::NotFound => "there is no such file",
        io::ErrorKind::InvalidData => "the file is not text",
        io::ErrorKind::InvalidInput | io::ErrorKind::IsADirectory => "it is not a regular file",
        // Out of the folder: EXDEV.
        io::ErrorKind::PermissionDenied | io::ErrorKind::CrossesDevices => {
            "the path is outside of the allowed folder, or may not be used"
        }
        _ => "the file could not be used",
    };
    RpcError::new(error::INVALID_PARAMS, text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct WorkFolder {
        root: PathBuf,
        folder: Folder,
    }

    impl WorkFolder {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("toolbridge-acp-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            fs::create_dir_all(root.join("work/sub")).unwrap();
            fs::write(root.join("work/a.txt"), "one\ntwo\nthree\n").unwrap();
            fs::write(root.join("secret.txt"), "hunter2").unwrap();
            let folder = Folder::open(&root.join("work")).unwrap();
            Self { root, folder }
        }

        fn read(&self, path: impl AsRef<Path>) -> Result<Json, RpcError> {
            self.folder.read(json!({ "path": path.as_ref() }))
        }

        fn write(&self, path: impl AsRef<Path>) -> Result<Json, RpcError> {
            self.folder.write(json!({ "path": path.as_ref(), "content": "new" }))
        }
    }

    impl Drop for WorkFolder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.root);
        }
    }

    #[test]
    fn files_of_the_folder_are_read_and_written() {
        let place = WorkFolder::new("files");
        let work = place.root.join("work");
        assert_eq!(place.read(work.join("a.txt")).unwrap(), json!({"content": "one\ntwo\nthree\n"}));
        let part = place.folder.read(json!({"path": work.join("a.txt"), "line": 2, "limit": 1})).unwrap();
        assert_eq!(part, json!({"content": "two\n"}));
        place.write(work.join("sub/b.txt")).unwrap();
        place.write(work.join("a.txt")).unwrap();
        assert_eq!(fs::read_to_string(work.join("sub/b.txt")).unwrap(), "new");
        assert_eq!(fs::read_to_string(work.join("a.txt")).unwrap(), "new");
        // A link inside the folder may lead inside the folder.
        symlink("sub/b.txt", work.join("link")).unwrap();
        assert_eq!(place.read(work.join("link")).unwrap(), json!({"content": "new"}));
    }

    #[test]
    fn sec_a3_path_that_leads_out_of_the_folder_is_refused() {
        let place = WorkFolder::new("out");
        let work = place.root.join("work");
        let secret = place.root.join("secret.txt");
        symlink(&secret, work.join("absolute")).unwrap();
        symlink("../secret.txt", work.join("relative")).unwrap();
        symlink("..", work.join("up")).unwrap();
        symlink("/proc/self/cwd", work.join("magic")).unwrap();
        symlink("/proc/self/root", work.join("sub/root")).unwrap();
        let id = std::process::id();
        let paths = [
            secret.clone(),
            work.join("../secret.txt"),
            work.join("sub/../../secret.txt"),
            work.join("absolute"),
            work.join("relative"),
            work.join("up/secret.txt"),
            work.join("magic/secret.txt"),
            work.join("sub/root").join(secret.strip_prefix("/").unwrap()),
            PathBuf::from(format!("/proc/{id}/environ")),
            PathBuf::from(format!("/proc/self/root{}", secret.display())),
            PathBuf::from("a.txt"),
            PathBuf::new(),
            work.clone(),
            place.root.join("workaround/x"),
        ];
        for path in paths {
            let error = place.read(&path).unwrap_err();
            assert!(!error.message.contains("hunter2") && !error.message.contains('/'), "{error:?}");
            assert!(place.write(&path).is_err(), "{}", path.display());
        }
        assert_eq!(fs::read_to_string(secret).unwrap(), "hunter2");
    }

    #[test]
    fn what_is_not_a_file_is_refused_without_waiting() {
        let place = WorkFolder::new("pipe");
        let work = place.root.join("work");
        rustix::fs::mknodat(rustix::fs::CWD, work.join("pipe"), rustix::fs::FileType::Fifo, Mode::RWXU, 0)
            .unwrap();
        for name in ["pipe", "sub", "missing"] {
            assert!(place.read(work.join(name)).is_err(), "{name}");
        }
        assert!(place.write(work.join("pipe")).is_err() && place.write(work.join("sub")).is_err());
        fs::write(work.join("bytes"), [0xff, 0xfe]).unwrap();
        assert!(place.read(work.join("bytes")).unwrap_err().message.contains("not text"));
        fs::write(work.join("large"), vec![b'x'; MAX_FILE as usize + 1]).unwrap();
        assert!(place.read(work.join("large")).unwrap_err().message.contains("bytes"));
    }

    /// Without `openat2`, as on other systems.
    fn opened(place: &WorkFolder, below: &str) -> io::Result<File> {
        place.folder.open_checked(Path::new(below), OFlags::RDONLY)
    }

    #[test]
    fn sec_a3_parent_that_leads_out_of_the_folder_is_refused_without_openat2() {
        let place = WorkFolder::new("parents");
        symlink("..", place.root.join("work/up")).unwrap();
        assert!(opened(&place, "a.txt").is_ok() && opened(&place, "sub/../a.txt").is_ok());
        for out in ["up/secret.txt", "../secret.txt", "sub/../../secret.txt"] {
            assert_eq!(opened(&place, out).unwrap_err().kind(), io::ErrorKind::PermissionDenied, "{out}");
        }
    }

    #[test]
    fn sec_a3_link_at_the_end_is_not_followed_without_openat2() {
        let place = WorkFolder::new("links");
        symlink("../secret.txt", place.root.join("work/link")).unwrap();
        assert!(opened(&place, "link").is_err());
    }
}
