//! `--mcp` of the command line: what is started, what is printed, and what is refused. The server is a shell script.

use std::{
    io::{BufRead as _, BufReader},
    net::TcpListener,
    process::Stdio,
};

use crate::{
    cli::{complaint, feed, run, text, toolbridge},
    cli_dev::dev,
    mcp_script::Script,
    program_tools::ProcessPipe,
};

/// A server `lamps` with one tool.
fn lamps(test: &str) -> Script {
    offering(test, "lamp")
}

fn offering(test: &str, tool: &str) -> Script {
    let script = Script::new(test);
    let tools = format!(r#"{{"tools":[{{"name":"{tool}","description":"Switches the lamp"}}]}}"#);
    script.serve(":", &format!("version=2025-06-18; tools='{tools}'"));
    script
}

#[test]
fn tools_of_a_server_are_listed_with_its_health_and_without_a_room() {
    let script = lamps("cli-listed");
    let listed =
        run(&["tools", "--mcp", &script.command(), "--mcp", &format!("second={}", script.command())]);
    assert_eq!(listed.status.code(), Some(0), "{listed:?}");
    let warned = text(&listed.stderr);
    assert!(warned.contains("lamps is up") && warned.contains("second is up"), "{warned}");
    let lines: Vec<_> =
        text(&listed.stdout).lines().filter(|line| line.contains("Switches the lamp")).collect();
    assert!(
        lines.len() == 2 && lines[0].starts_with("lamps ") && lines[1].starts_with("second "),
        "{lines:?}"
    );
    let json = run(&["tools", "--json", "--mcp", &script.command()]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&json[0]["owner"], &json[0]["name"]), (&"lamps".into(), &"lamp".into()));
}

#[test]
fn list_says_what_is_left_out() {
    let script = Script::new("cli-left-out");
    script.serve(":", r#"tools='{"tools":[{"name":"lamp"},{"name":"lamp"},{"name":"later","execution":{"taskSupport":"required"}}]}'"#);
    let listed = run(&["tools", "--mcp", &script.command()]);
    assert_eq!(listed.status.code(), Some(0), "{listed:?}");
    let warned = text(&listed.stderr);
    for says in ["lamps: lamp is listed 2 times", "lamps: later is not offered: it runs as a task only"] {
        assert!(warned.contains(says), "{warned}");
    }
}

#[test]
fn server_starts_in_the_current_folder() {
    let script = lamps("cli-folder");
    let listed =
        toolbridge(&["tools", "--mcp", "sh lamps.sh"]).current_dir(script.folder()).output().unwrap();
    assert_eq!(listed.status.code(), Some(0), "{listed:?}");
    assert!(text(&listed.stdout).contains("Switches the lamp"), "{listed:?}");
}

#[test]
fn server_that_does_not_start_is_reported_with_its_status() {
    let script = Script::new("cli-ended");
    script.write("echo 'no such module' >&2; exit 4");
    let failed = complaint(&run(&["tools", "--mcp", &script.command()]), 1);
    assert!(failed.contains("\"lamps\" ended (exit status: 4); it wrote: no such module"), "{failed}");
    for (wrong, why) in [
        ("", "a command or a URL is missing"),
        ("name=", "a command or a URL is missing"),
        ("no-such-program-here", "there is no program no-such-program-here"),
        ("'unbalanced", "a quote that is not closed"),
        ("http://mcp.example.com/?key=hunter2", "plain http"),
    ] {
        let refused = complaint(&run(&["tools", "--mcp", wrong]), 2);
        assert!(refused.contains(why) && !refused.contains("hunter2"), "{refused}");
    }
}

#[test]
fn tool_of_a_server_needs_consent_or_a_yes() {
    let script = lamps("cli-consent");
    let there = ["client", "--url", "ws://127.0.0.1:1", "--token", "x.y.z", "--mcp", &script.command()];
    // Standard input is not a terminal here.
    let refused = complaint(&feed(&there, b""), 2);
    assert!(refused.contains("--yes lamp") && refused.contains("--yes 'lamps.*'"), "{refused}");
    let unknown = complaint(&feed(&[&there[..], &["--yes", "lump"]].concat(), b""), 2);
    assert!(unknown.contains("there is no tool with this name"), "{unknown}");
    for yes in ["lamp", "la*", "lamps.*"] {
        let allowed = feed(&[&there[..], &["--yes", yes]].concat(), b"");
        assert!(!text(&allowed.stderr).contains("needs consent"), "{allowed:?}");
    }
    let useless = complaint(&feed(&["client", "--yes", "lamp"], b""), 2);
    assert!(useless.contains("--rap or --acp"), "{useless}");
}

#[test]
fn server_that_does_not_start_is_missing_at_first_and_offered_later() {
    let (script, other) = (Script::new("cli-missing"), offering("cli-present", "ring"));
    script.write("echo 'no such module' >&2; exit 4");
    let (mut server, settings) = dev();
    let servers = ["--mcp", &script.command(), "--mcp", &format!("other={}", other.command())];
    let arguments = [&["client", "--room", "r", "--yes", "lamp", "--yes", "other.*"][..], &servers].concat();
    let mut client =
        toolbridge(&arguments).envs(settings).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(client.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut until = |what: &str| said.find(|line| line.contains(what)).unwrap_or_else(|| panic!("no {what}"));
    until("joined as");
    script.serve(":", r#"tools='{"tools":[{"name":"lamp"}]}'"#);
    until("lamps is up");
    client.kill().unwrap();
    let output = client.wait_with_output().unwrap();
    let warned = text(&output.stderr);
    assert!(warned.contains("\"lamps\" ended (exit status: 4); it wrote: no such module"), "{warned}");
    assert!(warned.contains("it is missing now, is started again until it works"), "{warned}");
    server.kill().unwrap();
    server.wait().unwrap();
}

#[tokio::test]
async fn sec_x2_killed_process_leaves_no_server_and_none_of_its_children() {
    let mut pipe = ProcessPipe::new("mcp-killed");
    let script = Script::new("cli-killed");
    // Neither the server nor its child holds a stream of the client once it has listed its tools.
    let deaf =
        "list() { answer \"$1\" \"$tools\"; trap '' TERM; exec </dev/null >/dev/null 2>&1; echo begun >&3
        while :; do sleep 1000; done; }";
    let more = format!("exec 3>'{}'; sleep 1000 </dev/null >/dev/null 2>&1 & {deaf}", pipe.path.display());
    script.serve(":", &more);
    let (mut server, settings) = dev();
    let mut client = toolbridge(&["client", "--room", "r", "--mcp", &script.command(), "--yes", "t"]);
    let mut client = client.envs(settings).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    assert_eq!(pipe.begun().await, "begun");
    client.kill().unwrap();
    client.wait().unwrap();
    pipe.all_processes_ended().await;
    server.kill().unwrap();
    server.wait().unwrap();
}

/// A proxy would read the bearer token: the connection to this machine is not encrypted.
#[test]
fn sec_a2_server_on_this_machine_is_not_reached_through_a_proxy() {
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", proxy.local_addr().unwrap());
    for server in ["http://127.0.0.1:9/mcp", "http://localhost:9/mcp", "http://[::1]:9/mcp"] {
        for source in ["--mcp", "--rap"] {
            let listed = toolbridge(&["tools", source, server])
                .envs(["http_proxy", "HTTP_PROXY", "ALL_PROXY"].map(|name| (name, &url)))
                .output()
                .unwrap();
            assert_eq!(listed.status.code(), Some(1), "{listed:?}");
        }
    }
    proxy.set_nonblocking(true).unwrap();
    assert!(proxy.accept().is_err(), "the request went to the proxy");
}

#[test]
fn sec_i10_yes_for_a_server_is_not_for_a_tool_of_another_with_such_a_name() {
    let files = lamps("cli-files");
    let other = offering("cli-other", "files.delete");
    let servers =
        ["--mcp", &format!("files={}", files.command()), "--mcp", &format!("other={}", other.command())];
    let there = [&["client", "--url", "ws://127.0.0.1:1", "--token", "x.y.z"][..], &servers].concat();
    let refused = complaint(&feed(&[&there[..], &["--yes", "files.*"]].concat(), b""), 2);
    assert!(refused.contains("--yes files.delete") && refused.contains("--yes 'other.*'"), "{refused}");
    for yes in [["files.*", "other.*"], ["files.*", "files.delete"], ["lamp", "files.d*"]] {
        let allowed = feed(&[&there[..], &["--yes", yes[0], "--yes", yes[1]]].concat(), b"");
        assert!(!text(&allowed.stderr).contains("--yes"), "{yes:?}: {allowed:?}");
    }
}

#[test]
fn yes_names_a_tool_as_it_is_offered() {
    let script = lamps("cli-renamed");
    let second = format!("second={}", script.command());
    let there = [
        "client",
        "--url",
        "ws://127.0.0.1:1",
        "--token",
        "x.y.z",
        "--mcp",
        &script.command(),
        "--mcp",
        &second,
    ];
    let refused = complaint(&feed(&[&there[..], &["--yes", "lamp"]].concat(), b""), 2);
    assert!(refused.contains("--yes second.lamp"), "{refused}");
    let allowed = feed(&[&there[..], &["--yes", "lamp", "--yes", "second.lamp"]].concat(), b"");
    assert!(!text(&allowed.stderr).contains("--yes"), "{allowed:?}");
    let unknown = complaint(&feed(&[&there[..], &["--yes", "lamps.lamp"]].concat(), b""), 2);
    assert!(unknown.contains("there is no tool with this name"), "{unknown}");
}
