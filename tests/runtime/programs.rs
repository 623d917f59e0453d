//! Programs as tools, with real programs: input, output, and that no process is left behind.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::{
    error::Error as _,
    fs::{self, Permissions},
    io::{self},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use toolbridge::{
    Consent, ErrorCode, ToolError, ToolSource, Value,
    process::TrustError,
    programs::{ProgramTools, ToolsFileError},
    tools::RegisterError,
};

use crate::program_tools::{ProcessPipe, context, failure, file, folder, run, shell};

#[tokio::test]
async fn program_reads_and_writes_json() {
    let tools = shell("cat", "");
    let arguments = json!({"text": "ä\n\"", "n": [1, 2.5, null], "long": "x".repeat(400_000)});
    assert_eq!(run(&tools, &arguments).await.unwrap().to_json(), arguments);
    let silent = shell("cat >/dev/null", "");
    assert_eq!(run(&silent, &arguments).await.unwrap(), Value::empty());
    let deaf = shell("exec <&-; echo 7", "");
    assert_eq!(run(&deaf, &arguments).await.unwrap().decode::<u32>().unwrap(), 7);
}

#[tokio::test]
async fn failed_program_sends_only_its_last_line() {
    let failed = shell("echo secret; printf 'first\\n  no \\033[31msuch\\007 city \\n\\n' >&2; exit 3", "");
    assert_eq!(failure(&failed).await, (ErrorCode::EXECUTION_ERROR, "no such city".to_owned()));
    let long = shell("head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1", "");
    assert_eq!(failure(&long).await.1, format!("…{}", "x".repeat(299)));
    let bar = shell("printf '\\r\\033[2Kloading 1%%\\r\\033[2KError: disk full\\n' >&2; exit 1", "");
    assert_eq!(failure(&bar).await.1, "Error: disk full");
    let silent = shell("exit 3", "");
    assert_eq!(failure(&silent).await.1, "the program failed: exit status: 3");
    let killed = shell("kill -9 $$", "");
    assert!(failure(&killed).await.1.contains("signal: 9"));
    let no_json = shell("echo hunter2", "");
    let expected = "the program's output is not JSON that can be used: expected value at line 1 column 1";
    assert_eq!(failure(&no_json).await, (ErrorCode::EXECUTION_ERROR, expected.to_owned()));
}

#[tokio::test]
async fn output_that_cannot_be_used_is_told_apart() {
    for (script, says) in [
        ("printf '\\377'", "the program's output is not UTF-8, from byte 0 on"),
        ("printf '{\"a\": tru}'", "is not JSON that can be used: expected ident at line 1"),
        ("printf '[%.0s' $(seq 70); printf ']%.0s' $(seq 70)", "exceeds a limit: nesting depth 65"),
    ] {
        let (code, message) = failure(&shell(script, "")).await;
        assert_eq!(code, ErrorCode::EXECUTION_ERROR);
        assert!(message.contains(says), "{script}: {message}");
    }
}

#[tokio::test]
async fn output_with_half_of_a_surrogate_pair_or_a_huge_number_is_delivered() {
    let tools = shell(r#"printf '{"a": "x\\ud83d", "b": 1e999}'"#, "");
    let result = run(&tools, &json!({})).await.unwrap();
    assert_eq!(result.to_json(), json!({"a": "x\u{fffd}", "b": "1e999"}));
}

#[tokio::test]
async fn sec_x1_parameter_with_shell_syntax_stays_one_argument() {
    let tools = ProgramTools::from_toml(
        r#"
        [[tools]]
        name = "t"
        description = ""
        command = ["/bin/sh", "-c", 'printf "[%s, \"%s\"]" "$#" "$2"', "sh", "--", "{city}"]
        "#,
    )
    .unwrap();
    for text in ["; rm -rf .", "$(touch x)", "`touch x`", "--flag", "a b", "&& false", "*", "'", ""] {
        let result = run(&tools, &json!({"city": text})).await.unwrap();
        assert_eq!(result.to_json(), json!([2, text]));
    }
    for bad in [json!({"city": "a\0b"}), json!({"city": null}), json!({})] {
        let error = run(&tools, &bad).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::INVALID_PARAMETERS);
        assert!(error.message().contains("/city"), "{error}");
    }
}

#[tokio::test]
async fn sec_x2_program_inherits_only_allowed_variables() {
    let folder = folder("inherits");
    let text = r#"
        [[tools]]
        name = "t"
        description = ""
        command = ["/bin/sh", "-c", 'printf "[\"%s\", \"%s\", \"%s\", \"%s\"]" "$PATH" "$CARGO_PKG_NAME$HOME" "$LANG" "$PWD"']
        env = { LANG = "C" }
        "#;
    let tools = ProgramTools::from_file(file(&folder, text)).unwrap();
    let result = run(&tools, &json!({})).await.unwrap().to_json();
    let folder = folder.canonicalize().unwrap();
    assert_eq!(result, json!(["/usr/local/bin:/usr/bin:/bin", "", "C", folder.to_str().unwrap()]));
}

#[tokio::test]
async fn sec_x2_program_with_endless_output_is_ended() {
    let pipe = ProcessPipe::new("yes");
    let tools = pipe.tool("echo begun >&3; yes", "");
    assert_eq!(
        failure(&tools).await,
        (ErrorCode::RESULT_TOO_LARGE, "the program wrote more than 1048576 bytes".to_owned())
    );
    pipe.all_processes_ended().await;
}

#[tokio::test]
async fn sec_x2_child_process_ends_with_its_program() {
    for (test, child) in [("quiet-child", "sleep 1000 >/dev/null 2>&1 &"), ("child", "sleep 1000 &")] {
        let pipe = ProcessPipe::new(test);
        let tools = pipe.tool(&format!("echo begun >&3; {child} echo 7"), "");
        assert_eq!(run(&tools, &json!({})).await.unwrap().decode::<u32>().unwrap(), 7);
        pipe.all_processes_ended().await;
    }
}

#[tokio::test]
async fn sec_x2_program_that_ignores_sigterm_is_killed() {
    let mut pipe = ProcessPipe::new("ignores");
    let tools = pipe.tool("trap '' TERM; sleep 1000 & echo begun >&3; while :; do sleep 1000; done", "");
    let token = CancellationToken::new();
    let name = "t".parse().unwrap();
    let call = tools.execute(&name, Value::empty(), context().with_cancellation(token.clone()));
    let cancel = async {
        pipe.begun().await;
        token.cancel();
    };
    let (outcome, ()) = tokio::join!(call, cancel);
    assert_eq!(outcome.unwrap_err().code(), ErrorCode::CANCELLED);
    pipe.all_processes_ended().await;
}

#[tokio::test]
async fn program_that_handles_sigterm_may_clean_up() {
    let mut pipe = ProcessPipe::new("tidies");
    let done = pipe.path.with_file_name("tidied");
    let trap =
        format!("trap 'touch {}; exit 1' TERM; echo begun >&3; while :; do sleep 0.01; done", done.display());
    let tools = pipe.tool(&trap, "");
    let token = CancellationToken::new();
    let name = "t".parse().unwrap();
    let call = tools.execute(&name, Value::empty(), context().with_cancellation(token.clone()));
    let cancel = async {
        pipe.begun().await;
        token.cancel();
    };
    tokio::join!(call, cancel).0.unwrap_err();
    assert!(done.exists());
    pipe.all_processes_ended().await;
}

#[tokio::test]
async fn sec_x2_timeout_ends_all_processes_and_names_its_limit() {
    let pipe = ProcessPipe::new("timeout");
    let tools = pipe.tool("echo begun >&3; sleep 1000 & sleep 1000", "timeout = \"200ms\"");
    let expected = "the program took longer than its limit of 200 ms";
    assert_eq!(failure(&tools).await, (ErrorCode::TIMEOUT, expected.to_owned()));
    pipe.all_processes_ended().await;
}

#[tokio::test]
async fn sec_x2_dropped_call_ends_all_processes() {
    let mut pipe = ProcessPipe::new("dropped");
    let tools = pipe.tool("trap '' TERM; echo begun >&3; sleep 1000 & wait", "");
    let arguments = json!({});
    tokio::select! {
        _ = run(&tools, &arguments) => panic!("the program ended by itself"),
        _ = pipe.begun() => {}
    }
    pipe.all_processes_ended().await;
}

const CAT: &str = "[[tools]]\nname = \"t\"\ndescription = \"\"\ncommand = [\"/bin/cat\"]\n";

#[track_caller]
fn assert_is(error: &ToolsFileError, expected: &ToolsFileError) {
    assert_eq!(format!("{error:?}"), format!("{expected:?}"));
}

#[test]
fn sec_x3_file_that_others_can_write_is_refused() {
    let folder = folder("writable");
    let path = file(&folder, CAT);
    assert!(ProgramTools::from_file(&path).is_ok());
    for mode in [0o666, 0o620, 0o602] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let error = ProgramTools::from_file(&path).unwrap_err();
        assert_is(&error, &TrustError::Writable { path: path.clone(), mode }.into());
    }
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
    let error = ProgramTools::from_file(&path).unwrap_err();
    assert_is(&error, &TrustError::Writable { path: folder.canonicalize().unwrap(), mode: 0o777 }.into());
}

/// A file with one tool in its own folder, and the program in a folder next to it.
fn file_and_program(test: &str) -> (PathBuf, PathBuf) {
    let top = folder(test);
    let bin = top.join("bin");
    fs::create_dir_all(&bin).unwrap();
    fs::set_permissions(&bin, Permissions::from_mode(0o755)).unwrap();
    let program = bin.join("program");
    fs::copy("/bin/cat", &program).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    (file(&top, &CAT.replace("/bin/cat", program.to_str().unwrap())), program)
}

#[test]
fn sec_x3_program_that_others_can_write_is_refused() {
    let (file, program) = file_and_program("writable-program");
    assert!(ProgramTools::from_file(&file).is_ok());
    let mode_of = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    for mode in [0o775, 0o757] {
        mode_of(&program, mode);
        let error = ProgramTools::from_file(&file).unwrap_err();
        assert_is(&error, &TrustError::Writable { path: program.canonicalize().unwrap(), mode }.into());
        assert!(error.to_string().contains("chmod go-w"), "{error}");
    }
    mode_of(&program, 0o755);
    let bin = program.parent().unwrap().canonicalize().unwrap();
    // The sticky bit does not protect a program from a file that is put next to it.
    for mode in [0o775, 0o757, 0o1777] {
        mode_of(&bin, mode);
        let error = ProgramTools::from_file(&file).unwrap_err();
        assert_is(&error, &TrustError::Writable { path: bin.clone(), mode: mode & 0o777 }.into());
    }
    mode_of(&bin, 0o755);
    assert!(ProgramTools::from_file(&file).is_ok());
}

#[test]
fn sec_x3_folder_above_that_others_can_write_is_refused_unless_it_is_sticky() {
    let (file, _) = file_and_program("writable-above");
    let above = folder("writable-above").canonicalize().unwrap();
    let inner = above.join("inner");
    fs::create_dir_all(&inner).unwrap();
    fs::set_permissions(&inner, Permissions::from_mode(0o755)).unwrap();
    let (moved, programs) = (inner.join("tools.toml"), file);
    fs::copy(programs, &moved).unwrap();
    fs::set_permissions(&above, Permissions::from_mode(0o777)).unwrap();
    let error = ProgramTools::from_file(&moved).unwrap_err();
    assert_is(&error, &TrustError::Writable { path: above.clone(), mode: 0o777 }.into());
    fs::set_permissions(&above, Permissions::from_mode(0o1777)).unwrap();
    assert!(ProgramTools::from_file(&moved).is_ok());
    fs::set_permissions(&above, Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn sec_x3_link_to_a_program_is_followed_through_folders_that_only_its_owner_can_write() {
    let (file, program) = file_and_program("linked-program");
    let links = folder("linked-program").canonicalize().unwrap().join("links");
    fs::create_dir_all(&links).unwrap();
    fs::set_permissions(&links, Permissions::from_mode(0o755)).unwrap();
    let link = links.join("link");
    let _ = fs::remove_file(&link);
    symlink(Path::new("../bin").join(program.file_name().unwrap()), &link).unwrap();
    let text = fs::read_to_string(&file).unwrap().replace(program.to_str().unwrap(), link.to_str().unwrap());
    fs::write(&file, text).unwrap();
    assert!(ProgramTools::from_file(&file).is_ok());
    fs::set_permissions(&links, Permissions::from_mode(0o777)).unwrap();
    let error = ProgramTools::from_file(&file).unwrap_err();
    assert_is(&error, &TrustError::Writable { path: links.clone(), mode: 0o777 }.into());
    fs::set_permissions(&links, Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o777)).unwrap();
    let error = ProgramTools::from_file(&file).unwrap_err();
    assert_is(&error, &TrustError::Writable { path: program.canonicalize().unwrap(), mode: 0o777 }.into());
}

/// Only root can give a file to another user.
#[test]
fn sec_x3_program_or_link_of_another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (file, program) = file_and_program("owner");
    let other = |path: &Path, owner| std::os::unix::fs::lchown(path, Some(owner), None).unwrap();
    let bin = program.parent().unwrap().canonicalize().unwrap();
    for path in [program.canonicalize().unwrap(), bin.clone()] {
        other(&path, 12_345);
        let error = ProgramTools::from_file(&file).unwrap_err();
        assert_is(&error, &TrustError::Owner { path: path.clone(), owner: 12_345 }.into());
        other(&path, 0);
    }
    let link = bin.join("link");
    let _ = fs::remove_file(&link);
    symlink(&program, &link).unwrap();
    let text = fs::read_to_string(&file).unwrap().replace(program.to_str().unwrap(), link.to_str().unwrap());
    fs::write(&file, text).unwrap();
    assert!(ProgramTools::from_file(&file).is_ok());
    other(&link, 12_345);
    assert_is(
        &ProgramTools::from_file(&file).unwrap_err(),
        &TrustError::Owner { path: link, owner: 12_345 }.into(),
    );
}

#[test]
fn sec_x3_symbolic_link_or_pipe_is_refused() {
    let folder = folder("link");
    let path = file(&folder, CAT);
    let link = folder.join("link.toml");
    let _ = fs::remove_file(&link);
    symlink(&path, &link).unwrap();
    assert_is(&ProgramTools::from_file(&link).unwrap_err(), &TrustError::NotAFile { path: link }.into());
    let pipe = folder.join("pipe.toml");
    let _ = fs::remove_file(&pipe);
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    assert_is(&ProgramTools::from_file(&pipe).unwrap_err(), &TrustError::NotAFile { path: pipe }.into());
    assert_is(
        &ProgramTools::from_file(&folder).unwrap_err(),
        &TrustError::NotAFile { path: folder.clone() }.into(),
    );
    let none = ProgramTools::from_file(folder.join("none.toml"));
    assert!(matches!(none, Err(ToolsFileError::Untrusted(TrustError::Read { .. }))), "{none:?}");
    let source = none.as_ref().unwrap_err().source().and_then(|source| source.downcast_ref::<io::Error>());
    assert_eq!(source.unwrap().kind(), io::ErrorKind::NotFound);
    let large = file(&folder, &"#".repeat(1 << 21));
    assert!(matches!(
        ProgramTools::from_file(large),
        Err(ToolsFileError::Untrusted(TrustError::TooLarge { .. }))
    ));
}

#[tokio::test]
async fn tools_of_a_file_are_offered() {
    let twice = ProgramTools::from_toml(&CAT.repeat(2)).unwrap_err();
    assert_is(&twice, &ToolsFileError::Register(RegisterError::Duplicate { name: "t".parse().unwrap() }));
    let tools = shell(
        "cat",
        "consent = \"always\"\ntimeout = \"5s\"\n[tools.input_schema]\ntype = \"object\"\nrequired = [\"a\"]\n",
    );
    let [tool] = tools.list().try_into().unwrap();
    assert_eq!(tool.input_schema(), Some(&json!({"type": "object", "required": ["a"]})));
    assert_eq!(tool.tool_options().effective_consent(), Consent::Always);
    assert_eq!(tool.tool_options().timeout, Some(Duration::from_secs(5)));
    let unknown = tools.execute(&"u".parse().unwrap(), Value::empty(), context()).await;
    assert_eq!(unknown.unwrap_err().code(), ErrorCode::UNKNOWN_TOOL);
}

#[tokio::test]
async fn program_that_cannot_start_reports_the_reason_only_locally() {
    let folder = folder("no-start");
    let program = folder.join("program");
    fs::write(&program, "no program").unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o600)).unwrap();
    let text = CAT.replace("/bin/cat", program.to_str().unwrap());
    let error = run(&ProgramTools::from_toml(&text).unwrap(), &json!({})).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (ErrorCode::EXECUTION_ERROR, ToolError::LOCAL_MESSAGE));
    assert!(error.source().is_some());
}
