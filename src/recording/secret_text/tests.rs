//! Tests what is found in texts without a grammar, and what is not.

use super::{super::secret_names, *};

struct Names;

impl Secrets for Names {
    fn is_secret(&mut self, key: &[u8]) -> bool {
        secret_names::is_secret(&String::from_utf8_lossy(key))
    }

    fn is_suspect(&self, _: &[u8]) -> bool {
        false
    }
}

fn of(text: &str) -> String {
    redacted(text, &mut Names).unwrap_or_else(|| text.to_owned())
}

#[test]
fn values_beside_secret_names_are_redacted() {
    for (text, expected) in [
        ("https://x/?token=hunter2", "https://x/?token=<redacted: 7 bytes>"),
        ("https://x/?a=1&token=hunter2&b=2#c", "https://x/?a=1&token=<redacted: 7 bytes>&b=2#c"),
        ("https://x/#access_token=hunter2&b=2", "https://x/#access_token=<redacted: 7 bytes>&b=2"),
        ("https://ada:hunter2@x/?q=1", "https://ada:<redacted: 7 bytes>@x/?q=1"),
        (
            "next=https%3A%2F%2Fx%2F%3Ftoken%3Dhunter2%26b%3D2",
            "next=https%3A%2F%2Fx%2F%3Ftoken%3D<redacted: 7 bytes>%26b%3D2",
        ),
        ("password=hunter2&user=a", "password=<redacted: 7 bytes>&user=a"),
        ("user=a&p%61ssword=hunter2", "user=a&p%61ssword=<redacted: 7 bytes>"),
        ("user[password]=hunter2&a=1", "user[password]=<redacted: 7 bytes>&a=1"),
        ("user%5Bpassword%5D=hunter2&a=1", "user%5Bpassword%5D=<redacted: 7 bytes>&a=1"),
        ("Authorization: Bearer hunter2", "Authorization: <redacted: 14 bytes>"),
        (
            "GET / HTTP/1.1\r\nCookie: a=b; c=hunter2\r\nHost: x",
            "GET / HTTP/1.1\r\nCookie: <redacted: 14 bytes>\r\nHost: x",
        ),
        ("Authorization: Bearer\r\n hunter2\r\nHost: x", "Authorization: <redacted: 16 bytes>\r\nHost: x"),
        ("a: 1\npassword: hunter2\nb: 2", "a: 1\npassword: <redacted: 7 bytes>\nb: 2"),
        ("a:\n  password: |\n    hunter2\n    more\n  b: 2", "a:\n  password: <redacted: 22 bytes>\n  b: 2"),
        ("password:\n  hunter2\nb: 2", "password:\n  <redacted: 7 bytes>\nb: 2"),
        ("API_KEY=hunter2\nB=2", "API_KEY=<redacted: 7 bytes>\nB=2"),
        ("export DB_PASSWORD='hun ter2'", "export DB_PASSWORD='<redacted: 8 bytes>'"),
        ("db.password = hunter2 and more\nb = 2", "db.password = <redacted: 16 bytes>\nb = 2"),
        ("API KEY: hunter2", "API KEY: <redacted: 7 bytes>"),
        ("[1] password: hunter2", "[1] password: <redacted: 7 bytes>"),
        ("login --password hunter2 --user ada", "login --password <redacted: 7 bytes> --user ada"),
        ("curl -H 'Authorization: Bearer hunter2' x", "curl -H 'Authorization: <redacted: 17 bytes>"),
        ("sent Bearer hunter2.abc", "sent Bearer <redacted: 11 bytes>"),
        ("<a><password>hunter2</password></a>", "<a><password><redacted: 7 bytes></password></a>"),
        ("{password: 'hunter2', a: 1}", "{password: '<redacted: 7 bytes>', a: 1}"),
        ("password => \"hunter2\", a", "password => \"<redacted: 7 bytes>\", a"),
    ] {
        assert_eq!(of(text), expected);
        assert_eq!(of(expected), expected, "redacting twice changes nothing");
    }
}

/// Asserts what is left of each text, and that it stays so.
fn assert_redacted(texts: &[(&str, &str)]) {
    for (text, expected) in texts {
        assert_eq!(of(text), *expected, "{text:?}");
        assert_eq!(of(expected), *expected, "redacting twice changes nothing");
    }
}

#[test]
fn names_in_brackets_and_emphasis_are_read() {
    assert_redacted(&[
        (r#"x["password"] = "hunter2""#, r#"x["password"] = "<redacted: 7 bytes>""#),
        ("x['password']['old']='hunter2'", "x['password']['old']='<redacted: 7 bytes>'"),
        (r#"x["password"] := hunter2"#, r#"x["password"] := <redacted: 7 bytes>"#),
        ("password (required): hunter2", "password (required): <redacted: 7 bytes>"),
        ("- **API key**: `hunter2`", "- **API key**: `<redacted: 7 bytes>`"),
        ("<b>Password</b>: hunter2", "<b>Password</b>: <redacted: 7 bytes>"),
        ("&quot;password&quot;:&quot;hunter2&quot;", "&quot;password&quot;:<redacted: 19 bytes>"),
    ]);
}

#[test]
fn value_beside_a_field_or_a_word_with_its_name_is_redacted() {
    assert_redacted(&[
        (
            r#"log: {"headers":[{"name":"password","value":"hunter2"},{"name":"a","value":"b"}]} done"#,
            r#"log: {"headers":[{"name":"password","value":"<redacted: 7 bytes>"},{"name":"a","value":"b"}]} done"#,
        ),
        (r#"log: ["password","hunter2"] done"#, r#"log: ["password","<redacted: 7 bytes>"] done"#),
        (r#"x.set("API key", {"a": "hunter2"})"#, r#"x.set("API key", <redacted: 16 bytes>)"#),
        (
            "env:\n- name: PIN\n  value: hunter2\n  a: b",
            "env:\n- name: PIN\n  value: <redacted: 7 bytes>\n  a: b",
        ),
        ("- value: hunter2\n  name: PIN\n", "- value: <redacted: 7 bytes>\n  name: PIN\n"),
        (
            r#"<input name="a" value="b"><input value="hunter2" name="password">"#,
            r#"<input name="a" value="b"><input value="<redacted: 7 bytes>" name="password">"#,
        ),
        ("login -password hunter2 x", "login -password <redacted: 7 bytes> x"),
        ("'--password' 'hunter2'", "'--password' '<redacted: 7 bytes>'"),
    ]);
}

#[test]
fn parts_of_forms_are_redacted_up_to_their_boundary() {
    assert_redacted(&[
        (
            "--b\r\nContent-Disposition: form-data; name=\"password\"\r\n\r\nhunter2\r\n--b\r\nContent-Disposition: form-data; \
             name=\"user\"\r\n\r\nada\r\n--b--",
            "--b\r\nContent-Disposition: form-data; name=\"password\"\r\n\r\n<redacted: 7 bytes>\r\n--b\r\nContent-Disposition: \
             form-data; name=\"user\"\r\n\r\nada\r\n--b--",
        ),
        (
            "content-disposition: form-data; name=pin; filename=x\nContent-Type: a\n\nhunter2\n\nmore\n--b",
            "content-disposition: form-data; name=pin; filename=x\nContent-Type: a\n\n<redacted: 13 bytes>\n--b",
        ),
    ]);
}

#[test]
fn blocks_lists_and_continued_values_are_redacted() {
    assert_redacted(&[
        ("passwords:\n- hunter2\n- x\nb: 2", "passwords:\n<redacted: 13 bytes>\nb: 2"),
        ("a:\n- passwords:\n  - hunter2\n  b: 2", "a:\n- passwords:\n  <redacted: 9 bytes>\n  b: 2"),
        ("password: |\n\n  hunter2\n\n  x\nb: 2", "password: <redacted: 17 bytes>\nb: 2"),
        ("password: >-\n  hunter2\nb: 2", "password: <redacted: 12 bytes>\nb: 2"),
        ("- password: hunter2\n  user: ada", "- password: <redacted: 7 bytes>\n  user: ada"),
        ("password=\\\nhunter2\nb=2", "password=<redacted: 9 bytes>\nb=2"),
        ("password =\n  hunter2\nb=2", "password =\n  <redacted: 7 bytes>\nb=2"),
        ("\"password\":\n  \"hunter2\"", "\"password\":\n  \"<redacted: 7 bytes>\""),
        ("password='a''hunter2' b", "password='<redacted: 10 bytes>' b"),
        ("password = \"\"\"\nhunter2\n\"\"\"\nb", "password = \"<redacted: 13 bytes>\"\nb"),
    ]);
}

#[test]
fn markup_with_secret_names_is_redacted() {
    assert_redacted(&[
        ("<a password=\"hunter2\">", "<a password=\"<redacted: 7 bytes>\">"),
        ("<x:password>hunter2</x:password>", "<x:password><redacted: 7 bytes></x:password>"),
        (
            "<key>password</key>\n\t<string>hunter2</string><key>a</key><string>b</string>",
            "<key>password</key>\n\t<string><redacted: 7 bytes></string><key>a</key><string>b</string>",
        ),
        (
            "<key>pin</key><array><array>a</array><array>hunter2</array></array>",
            "<key>pin</key><array><redacted: 38 bytes></array>",
        ),
        ("<td>Password</td> <td><i>hunter2</i></td>", "<td>Password</td> <td><redacted: 14 bytes></td>"),
        (
            "<string name=\"password\">hunter2</string>",
            "<string name=\"password\"><redacted: 7 bytes></string>",
        ),
    ]);
    let long = format!("<tokens hint=\"{0}\"><t>{0}</t><t>hunter2</t></tokens>", "q".repeat(3_000));
    assert!(!of(&long).contains("hunter2"));
}

#[test]
fn text_is_searched_as_its_reader_sees_it() {
    assert_redacted(&[
        ("a：1 ｐａｓｓｗｏｒｄ： hunter2", "a：1 ｐａｓｓｗｏｒｄ： <redacted: 7 bytes>"),
        ("pin＝“hunter2 x” b", "pin＝“<redacted: 9 bytes>” b"),
        ("｛＂password＂：＂hunter2＂，＂a＂：1｝", "｛＂password＂：＂<redacted: 7 bytes>＂，＂a＂：1｝"),
        ("https：／／ada：hunter2＠host", "https：／／ada：<redacted: 7 bytes>＠host"),
        ("p\u{61c}i\u{fe0f}n: hunter2", "p\u{61c}i\u{fe0f}n: <redacted: 7 bytes>"),
        ("--pass\u{200b}word hunter2 x", "--pass\u{200b}word <redacted: 7 bytes> x"),
        ("pass\u{7}word=hunter2", "pass\u{7}word=<redacted: 7 bytes>"),
        ("Bea\u{200b}rer\u{a0}hunter2", "Bea\u{200b}rer\u{a0}<redacted: 7 bytes>"),
        ("\u{1b}[31mpassword\u{1b}[0m: hunter2", "\u{1b}[31mpassword\u{1b}[0m: <redacted: 7 bytes>"),
        ("A=b\0PIN=hunter2\0B=2", "A=b\0PIN=<redacted: 7 bytes>\0B=2"),
    ]);
    let long = format!("p{}assword: hunter2", "\u{2060}".repeat(200));
    assert!(!of(&long).contains("hunter2"));
}

#[test]
fn passwords_in_urls_and_tokens_after_bearer_are_redacted() {
    assert_redacted(&[
        ("https://ada:pa@hunter2@host/x", "https://ada:<redacted: 10 bytes>@host/x"),
        ("see https://ada:\"it's/hunter2?#@host", "see https://ada:<redacted: 15 bytes>@host"),
        ("[x](https://ada:hunter2@host)", "[x](https://ada:<redacted: 7 bytes>@host)"),
        ("https:\\/\\/ada:hunter2@host", "https:\\/\\/ada:<redacted: 7 bytes>@host"),
        (
            "u=https%3A%2F%2Fada%3Ahunter2%40host%2F&a",
            "u=https%3A%2F%2Fada%3A<redacted: 7 bytes>%40host%2F&a",
        ),
        ("https://hunter2@host", "https://<redacted: 7 bytes>@host"),
        ("Bearer  hunter2", "Bearer  <redacted: 7 bytes>"),
        ("bearer\t hunter2 x", "bearer\t <redacted: 7 bytes> x"),
        ("BEARER\r\n\"hunter2\"", "BEARER\r\n\"<redacted: 7 bytes>\""),
        ("a=Bearer%20hunter2&b", "a=Bearer%20<redacted: 7 bytes>&b"),
    ]);
}

#[test]
fn json_inside_a_text_is_redacted_at_every_level() {
    let object =
        r#"{"a": 1, "password": "hunter2 \"}] x", "pin": 1234, "secret": {"x": "]hunter2"}, "b": 2}"#;
    let mut text = format!("data: {object} and more");
    for level in 0..5 {
        let shown = of(&text);
        assert!(!shown.contains("hunter2") && !shown.contains("1234"), "level {level}: {shown}");
        assert!(shown.contains("and more"), "level {level}: {shown}");
        text = format!("{level}: {}", serde_json::Value::from(text));
    }
    assert!(!of(r#"x {"pass\u0077ord": "hunter2"}"#).contains("hunter2"));
    assert!(!of("{\"text\": \"line\\npin: 1234\"}").contains("1234"));
}

#[test]
fn text_without_secrets_is_unchanged() {
    for text in [
        "",
        "the token is x",
        "lamp=on&level=3",
        "at 10:30: shipping",
        "crate::token::Token",
        "a bearer of news",
        "mail to ada@example.com",
        "https://example.com/pin/3?q=1",
        "the pin is round",
        "x = y",
        "password=",
        "password: ",
        "{\"password\": null}",
        "--token",
        ":=%3D-->@ ",
        "http://localhost:3000/@vite/client and https://git@host/x",
        "log: {\"a\":\"https://x:80\",\"mail\":\"ada@example.com\"}",
        "\"password\", then press OK",
        "name: lamp\nvalue: on",
        "<key>lamp</key><string>on</string>",
        "login <user> <password>",
        "form-data; name=\"user\"\r\n\r\nada",
        "| token | size |",
        "Пароль – 密码",
    ] {
        assert_eq!(redacted(text, &mut Names), None, "{text}");
    }
}

#[test]
fn any_text_is_searched_without_a_panic() {
    let pieces = [
        "password",
        "=",
        ":",
        "%3D",
        "\\",
        "\"",
        "'",
        "{",
        "[",
        "]",
        "é",
        "\n",
        " ",
        "<",
        ">",
        "--",
        "@",
        "://",
        "%",
        "\u{1f512}",
        "\\u00",
        ",",
        "name",
        "value",
        "form-data",
        "\n\n",
        "</",
        "- ",
        "Bearer",
        "：",
        "\u{200b}",
        "\u{1b}[0m",
    ];
    let mut seed = 7_u64;
    for _ in 0..20_000 {
        let mut text = String::new();
        for _ in 0..12 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            text.push_str(pieces[(seed >> 33) as usize % pieces.len()]);
        }
        assert_eq!(redacted(&text, &mut Names).is_some(), has_secret(&text, &mut Names), "{text:?}");
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a quadratic search is recognized by its time")]
fn long_text_of_any_form_is_searched_in_linear_time() {
    /// A quadratic search of it takes minutes in a debug build, and a linear one less than a second.
    const SIZE: usize = 128 * 1024;
    const LIMIT: std::time::Duration = std::time::Duration::from_secs(20);
    let forms = [
        r#"{"password":"x"} "#,
        "form-data; name=\"password\"\r\n",
        "form-data; name=\"password\"\n\nx\n--b\n",
        r#"x["password"] = "y"; "#,
        "x[(\"",
        "password：x＝",
        "passwords:\n- x\n",
        "password: |\n  x\n\n",
        "password:\n",
        "Bearer  x1 ",
        "bearer ",
        "Bearer\t",
        "https://ada:pa@ss@host ",
        "https://",
        "https://a:",
        "://a:b@",
        "@",
        "%3A%2F%2Fa%3Ab%40",
        "<a password=\"x\">",
        "<password>x</password>",
        "<password>",
        "</password>",
        "<a>password</a>",
        "<key>password</key><string>",
        "<key>password</key><string>x</string>",
        "[\"password\",\"x\"],",
        "\"password\",",
        "\"a\",",
        "p\u{200b}in: x\n",
        "\u{200b}",
        "\u{1b}[",
        "name: password ",
        "name=password&value=x&",
        "value: ",
        "name: ",
        "value: x name: password ",
        "password=\\",
        "\\",
        "password=\\\n",
        "password=\"",
        "password=''",
        "password: {",
        "[",
        "-",
        "--password x ",
        "password: ",
        "password ",
        "a=",
        "&quot;",
        "a\u{3000}",
        "<",
        ">",
        ",",
        "\n",
        "\n\n",
    ];
    for form in forms {
        let (text, begun) = (form.repeat(SIZE / form.len()), std::time::Instant::now());
        has_secret(&text, &mut Names);
        assert!(begun.elapsed() < LIMIT, "{form:?} takes {:?}", begun.elapsed());
    }
}
