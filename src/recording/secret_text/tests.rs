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

/// Asserts what is left of each text, and that it stays so.
fn assert_redacted(texts: &[(&str, &str)]) {
    for (text, expected) in texts {
        assert_eq!(of(text), *expected, "{text:?}");
        assert_eq!(of(expected), *expected, "redacting twice changes nothing");
    }
}

#[test]
fn values_of_parameters_in_urls_and_forms_are_redacted() {
    assert_redacted(&[
        ("https://x/?token=hunter2", "https://x/?token=<redacted: 7 bytes>"),
        ("https://x/?a=1&token=hunter2&b=2#c", "https://x/?a=1&token=<redacted: 7 bytes>&b=2#c"),
        ("https://x/#access_token=hunter2&b=2", "https://x/#access_token=<redacted: 7 bytes>&b=2"),
        (
            "next=https%3A%2F%2Fx%2F%3Ftoken%3Dhunter2%26b%3D2",
            "next=https%3A%2F%2Fx%2F%3Ftoken%3D<redacted: 7 bytes>%26b%3D2",
        ),
        ("password=hunter2&user=a", "password=<redacted: 7 bytes>&user=a"),
        ("user=a&p%61ssword=hunter2", "user=a&p%61ssword=<redacted: 7 bytes>"),
        ("user[password]=hunter2&a=1", "user[password]=<redacted: 7 bytes>&a=1"),
        ("user%5Bpassword%5D=hunter2&a=1", "user%5Bpassword%5D=<redacted: 7 bytes>&a=1"),
    ]);
}

#[test]
fn values_of_lines_with_a_separator_are_redacted() {
    assert_redacted(&[
        ("Authorization: Bearer hunter2", "Authorization: <redacted: 14 bytes>"),
        (
            "GET / HTTP/1.1\r\nCookie: a=b; c=hunter2\r\nHost: x",
            "GET / HTTP/1.1\r\nCookie: <redacted: 14 bytes>\r\nHost: x",
        ),
        ("a: 1\npassword: hunter2\nb: 2", "a: 1\npassword: <redacted: 7 bytes>\nb: 2"),
        ("API_KEY=hunter2\nB=2", "API_KEY=<redacted: 7 bytes>\nB=2"),
        ("export DB_PASSWORD='hun ter2'", "export DB_PASSWORD='<redacted: 8 bytes>'"),
        ("db.password = hunter2 and more\nb = 2", "db.password = <redacted: 16 bytes>\nb = 2"),
        ("API KEY: hunter2", "API KEY: <redacted: 7 bytes>"),
        ("[1] password: hunter2", "[1] password: <redacted: 7 bytes>"),
        ("curl -H 'Authorization: Bearer hunter2' x", "curl -H 'Authorization: <redacted: 17 bytes>"),
        ("{password: 'hunter2', a: 1}", "{password: '<redacted: 7 bytes>', a: 1}"),
        ("password = \"hun\\\"ter2\" b", "password = \"<redacted: 9 bytes>\" b"),
    ]);
}

#[test]
fn json_in_the_middle_of_a_line_is_redacted() {
    assert_redacted(&[
        (
            r#"data: {"a": 1, "password": "hunter2 \"}] x", "pin": 1234, "b": 2} and more"#,
            r#"data: {"a": 1, "password": "<redacted: 14 bytes>", "pin": <redacted: 4 bytes>, "b": 2} and more"#,
        ),
        ("\"password\":\n  \"hunter2\"", "\"password\":\n  \"<redacted: 7 bytes>\""),
        // The end of an object or of an escaped text is not looked for.
        (r#"x {"secret": {"x": "]hunter2"}, "b": 2}"#, r#"x {"secret": <redacted: 26 bytes>"#),
        (r#"x \"password\":\"hunter2\", b"#, r#"x \"password\":<redacted: 14 bytes>"#),
        (r#"x {"pass\u0077ord": "hunter2"}"#, r#"x {"pass\u0077ord": "<redacted: 7 bytes>"}"#),
    ]);
}

#[test]
fn text_is_searched_as_its_reader_sees_it() {
    assert_redacted(&[
        ("a：1 ｐａｓｓｗｏｒｄ： hunter2", "a：1 ｐａｓｓｗｏｒｄ： <redacted: 7 bytes>"),
        ("pin＝“hunter2 x” b", "pin＝“<redacted: 9 bytes>” b"),
        ("｛＂password＂：＂hunter2＂，＂a＂：1｝", "｛＂password＂：＂<redacted: 7 bytes>＂，＂a＂：1｝"),
        ("https：／／ada：hunter2＠host", "https：／／ada：<redacted: 7 bytes>＠host"),
        ("p\u{61c}i\u{fe0f}n: hunter2", "p\u{61c}i\u{fe0f}n: <redacted: 7 bytes>"),
        ("pass\u{7}word=hunter2", "pass\u{7}word=<redacted: 7 bytes>"),
        ("\u{1b}[31mpassword\u{1b}[0m: hunter2", "\u{1b}[31mpassword\u{1b}[0m: <redacted: 7 bytes>"),
        ("A=b\0PIN=hunter2\0B=2", "A=b\0PIN=<redacted: 7 bytes>\0B=2"),
    ]);
    let long = format!("p{}assword: hunter2", "\u{2060}".repeat(200));
    assert!(!of(&long).contains("hunter2"));
}

#[test]
fn passwords_in_urls_are_redacted() {
    assert_redacted(&[
        ("https://ada:hunter2@x/?q=1", "https://ada:<redacted: 7 bytes>@x/?q=1"),
        ("https://ada:pa@hunter2@host/x", "https://ada:<redacted: 10 bytes>@host/x"),
        ("see https://ada:\"it's/hunter2?#@host", "see https://ada:<redacted: 15 bytes>@host"),
        ("[x](https://ada:hunter2@host)", "[x](https://ada:<redacted: 7 bytes>@host)"),
        ("https:\\/\\/ada:hunter2@host", "https:\\/\\/ada:<redacted: 7 bytes>@host"),
        (
            "u=https%3A%2F%2Fada%3Ahunter2%40host%2F&a",
            "u=https%3A%2F%2Fada%3A<redacted: 7 bytes>%40host%2F&a",
        ),
        ("https://hunter2@host", "https://<redacted: 7 bytes>@host"),
    ]);
}

/// The guide says that these are not covered.
#[test]
fn other_forms_are_not_read() {
    for text in [
        "<password>hunter2</password>",
        "<key>password</key><string>hunter2</string>",
        "passwords:\n- hunter2",
        "password: |\n  hunter2",
        r#"set("password", "hunter2")"#,
        r#"log: ["password","hunter2"]"#,
        "form-data; name=\"password\"\r\n\r\nhunter2\r\n--b",
        "login --password hunter2",
        "name: password\nvalue: hunter2",
        "sent Bearer hunter2",
        "| password | hunter2 |",
    ] {
        assert!(of(text).contains("hunter2"), "{text}");
    }
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
        ":=%3D-->@ ",
        "http://localhost:3000/@vite/client and https://git@host/x",
        "log: {\"a\":\"https://x:80\",\"mail\":\"ada@example.com\"}",
        "name: lamp\nvalue: on",
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
        "]",
        "é",
        "\n",
        " ",
        "<",
        "@",
        "://",
        "%",
        "\u{1f512}",
        "\\u00",
        ",",
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
        r#"x["password"] = "y"; "#,
        "password：x＝",
        "password:\n",
        "https://ada:pa@ss@host ",
        "https://",
        "https://a:",
        "://a:b@",
        "@",
        "%3A%2F%2Fa%3Ab%40",
        "p\u{200b}in: x\n",
        "\u{200b}",
        "\u{1b}[",
        "password=x&",
        "password=\\",
        "\\",
        "password=\"",
        "password=''",
        "password: {",
        "password: ",
        "password ",
        "\"password\": 1",
        "a=",
        "a\u{3000}",
        "\n",
    ];
    for form in forms {
        let (text, begun) = (form.repeat(SIZE / form.len()), std::time::Instant::now());
        has_secret(&text, &mut Names);
        assert!(begun.elapsed() < LIMIT, "{form:?} takes {:?}", begun.elapsed());
    }
}
