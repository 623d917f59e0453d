//! Reads a file that lists the programs to run, unless another user could have changed the file or the programs.
//!
//! The rule is that of sshd's `StrictModes`: each file, and each folder on the path to it, belongs to root or to this
//! user, and only its owner can write it. There are two differences. The path is followed up to `/`, not to the home
//! folder, because programs may be anywhere; and symbolic links are followed one by one, because whoever can replace
//! a link chooses the program. A folder above with the sticky bit, such as `/tmp`, is accepted although others can
//! write it: they cannot rename or remove files of other users. The folder that holds the file itself is not accepted
//! with the sticky bit, because many programs load files from their own folder.

use std::{
    env,
    ffi::OsString,
    fs::File,
    io::{self, Read},
    os::unix::ffi::OsStringExt as _,
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{FileType, Mode, OFlags, Stat, fstat, lstat, open, openat, readlink},
    io::Errno,
    process::geteuid,
};

/// The most symbolic links on the path to one file; Linux has the same limit.
const MAX_LINKS: u32 = 40;

/// Why a file is not read, or a program not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    /// The file cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file is a symbolic link, a folder, a pipe or a device.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// Other users could change which programs run.
    #[error("{} can be written by other users (mode {mode:03o}); run `chmod go-w` on it", path.display())]
    Writable {
        /// The file, a program, or a folder that contains one of them.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Another user could change which programs run.
    #[error("{} belongs to user {owner}; it must belong to this user or to root", path.display())]
    Owner {
        /// The file, a program, or a folder or symbolic link on the path to one of them.
        path: PathBuf,
        /// The owner's user id.
        owner: u32,
    },
    /// The file is larger than the limit.
    #[error("{} has more than {limit} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit in bytes.
        limit: u64,
    },
}

/// Returns the file's text and its folder. The limit is in bytes.
///
/// The folder is opened first and the file by its name in that folder, so that the file that is checked is the file
/// that is read.
pub(crate) fn read_trusted(path: &Path, limit: u64) -> Result<(String, PathBuf), TrustError> {
    let unreadable = |error: io::Error| unreadable(path, error);
    let not_a_file = || TrustError::NotAFile { path: path.into() };
    let name = path.file_name().ok_or_else(not_a_file)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = follow(parent.unwrap_or_else(|| Path::new(".")), path)?;

    let read_only = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let opened = open(&folder, read_only | OFlags::DIRECTORY, Mode::empty())
        .map_err(|error| unreadable(error.into()))?;
    only_ours(&fstat(&opened).map_err(|error| unreadable(error.into()))?, &folder)?;

    // Without NONBLOCK, opening a pipe of that name would block.
    let file = match openat(&opened, name, read_only | OFlags::NONBLOCK, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::LOOP) => return Err(not_a_file()),
        Err(error) => return Err(unreadable(error.into())),
    };
    let stat = fstat(&file).map_err(|error| unreadable(error.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(not_a_file());
    }
    only_ours(&stat, path)?;

    let mut text = String::new();
    File::from(file).take(limit + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > limit {
        return Err(TrustError::TooLarge { path: path.into(), limit });
    }
    Ok((text, folder))
}

/// Checks a program and the path to it.
pub(crate) fn check_program(program: &Path) -> Result<(), TrustError> {
    let file = follow(program, program)?;
    for path in [file.as_path(), file.parent().unwrap_or(&file)] {
        let stat = lstat(path).map_err(|error| unreadable(path, error))?;
        only_ours(&stat, path)?;
    }
    Ok(())
}

/// Follows a path from the root, and checks each folder and link on it. The last component is not checked. An error
/// names `named`.
fn follow(path: &Path, named: &Path) -> Result<PathBuf, TrustError> {
    let absolute = env::current_dir().map_err(|error| unreadable(named, error))?.join(path);
    let mut ahead: Vec<OsString> = Vec::new();
    let add = |ahead: &mut Vec<OsString>, path: &Path| {
        ahead.extend(path.components().rev().map(|part| part.as_os_str().to_owned()));
    };
    add(&mut ahead, &absolute);
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    while let Some(part) = ahead.pop() {
        match Path::new(&part).components().next() {
            Some(Component::RootDir) => at = PathBuf::from("/"),
            Some(Component::ParentDir) => drop(at.pop()),
            Some(Component::Normal(name)) => at.push(name),
            _ => continue,
        }
        let stat = lstat(&at).map_err(|error| unreadable(named, error))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(unreadable(named, Errno::LOOP));
                }
                ours(&stat, &at)?;
                let target = readlink(&at, Vec::new()).map_err(|error| unreadable(named, error))?;
                at.pop();
                add(&mut ahead, Path::new(&OsString::from_vec(target.into_bytes())));
            }
            FileType::Directory if !ahead.is_empty() => on_the_way(&stat, &at)?,
            _ => {}
        }
    }
    Ok(at)
}

fn unreadable(path: &Path, error: impl Into<io::Error>) -> TrustError {
    TrustError::Read { path: path.into(), source: error.into() }
}

/// Checks a folder above the one that holds the file.
fn on_the_way(stat: &Stat, path: &Path) -> Result<(), TrustError> {
    if Mode::from_raw_mode(stat.st_mode).contains(Mode::SVTX) {
        ours(stat, path)
    } else {
        only_ours(stat, path)
    }
}

fn only_ours(stat: &Stat, path: &Path) -> Result<(), TrustError> {
    let mode = Mode::from_raw_mode(stat.st_mode);
    if mode.intersects(Mode::WGRP | Mode::WOTH) {
        return Err(TrustError::Writable { path: path.into(), mode: mode.bits() & 0o777 });
    }
    ours(stat, path)
}

fn ours(stat: &Stat, path: &Path) -> Result<(), TrustError> {
    if stat.st_uid != 0 && stat.st_uid != geteuid().as_raw() {
        return Err(TrustError::Owner { path: path.into(), owner: stat.st_uid });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::{PermissionsExt as _, symlink},
        process,
    };

    use super::*;

    /// A folder that only this user can write, with a file.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let root = env::temp_dir().join(format!("toolbridge-trust-{name}-{}", process::id()));
            let _ = fs::remove_dir_all(&root);
            fs::create_dir_all(root.join("in")).unwrap();
            let place = Self(root);
            fs::write(place.file(), "text").unwrap();
            place.allow("", 0o755);
            place.allow("in", 0o755);
            place.allow("in/file", 0o644);
            place
        }

        fn file(&self) -> PathBuf {
            self.0.join("in/file")
        }

        fn allow(&self, path: &str, mode: u32) {
            fs::set_permissions(self.0.join(path), Permissions::from_mode(mode)).unwrap();
        }

        fn read(&self) -> Result<String, TrustError> {
            read_trusted(&self.file(), 100).map(|(text, _)| text)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn is_writable<T>(checked: &Result<T, TrustError>) -> bool {
        matches!(checked, Err(TrustError::Writable { .. }))
    }

    #[test]
    fn sec_x3_file_that_others_could_change_is_not_read() {
        let place = Place::new("others");
        assert_eq!(place.read().unwrap(), "text");
        place.allow("in/file", 0o646);
        assert!(is_writable(&place.read()) && is_writable(&check_program(&place.file())));
    }

    #[test]
    fn sec_x3_file_that_its_group_could_change_is_not_read() {
        let place = Place::new("group");
        place.allow("in/file", 0o664);
        assert!(is_writable(&place.read()) && is_writable(&check_program(&place.file())));
    }

    #[test]
    fn sec_x3_folder_of_the_file_may_not_have_the_sticky_bit() {
        let place = Place::new("sticky");
        place.allow("in", 0o1757);
        assert!(is_writable(&place.read()) && is_writable(&check_program(&place.file())));
    }

    #[test]
    fn sec_x3_folder_above_that_others_could_change_is_not_trusted() {
        let place = Place::new("above");
        place.allow("", 0o757);
        assert!(is_writable(&place.read()) && is_writable(&check_program(&place.file())));
        // With the sticky bit it is one such as /tmp.
        place.allow("", 0o1757);
        assert_eq!(place.read().unwrap(), "text");
        assert!(check_program(&place.file()).is_ok());
    }

    #[test]
    fn sec_x3_file_of_another_user_is_not_trusted() {
        let place = Place::new("owner");
        let mut stat = lstat(place.file()).unwrap();
        stat.st_uid = geteuid().as_raw() + 1;
        assert!(matches!(ours(&stat, &place.0), Err(TrustError::Owner { .. })));
        stat.st_uid = 0;
        assert!(ours(&stat, &place.0).is_ok());
    }

    #[test]
    fn sec_x3_link_in_place_of_the_file_is_not_read() {
        let place = Place::new("link");
        fs::rename(place.file(), place.0.join("in/real")).unwrap();
        symlink("real", place.file()).unwrap();
        assert!(matches!(place.read(), Err(TrustError::NotAFile { .. })));
    }

    #[test]
    fn pipe_or_folder_in_place_of_the_file_is_not_read() {
        let place = Place::new("kinds");
        fs::remove_file(place.file()).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, place.file(), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .unwrap();
        assert!(matches!(place.read(), Err(TrustError::NotAFile { .. })), "it would wait for a writer");
        fs::remove_file(place.file()).unwrap();
        fs::create_dir(place.file()).unwrap();
        assert!(matches!(place.read(), Err(TrustError::NotAFile { .. })));
    }

    #[test]
    fn file_above_the_limit_is_refused() {
        let place = Place::new("limit");
        fs::write(place.file(), "x".repeat(100)).unwrap();
        assert_eq!(place.read().unwrap().len(), 100);
        fs::write(place.file(), "x".repeat(101)).unwrap();
        assert!(matches!(place.read(), Err(TrustError::TooLarge { limit: 100, .. })));
    }

    #[test]
    fn links_are_followed_and_their_folders_are_checked() {
        let place = Place::new("links");
        symlink("loop", place.0.join("in/loop")).unwrap();
        assert!(matches!(check_program(&place.0.join("in/loop")), Err(TrustError::Read { .. })));
        fs::create_dir(place.0.join("open")).unwrap();
        fs::write(place.0.join("open/program"), "").unwrap();
        place.allow("open/program", 0o755);
        symlink("../open/program", place.0.join("in/program")).unwrap();
        assert!(check_program(&place.0.join("in/program")).is_ok());
        place.allow("open", 0o777);
        assert!(is_writable(&check_program(&place.0.join("in/program"))));
    }
}
