"""Puts many mutations into one build, each behind a switch: the environment variable `MUTANT` has the number of the one
that is on. A function body becomes `if mutant(7) { its mutated copy } else { itself }`, so that one build serves all.

A mutation outside of a function's body, in a `const fn`, or in a function that returns `impl Trait` cannot be switched.
"""
import re

TOKEN = re.compile(
    r"""(?P<skip>//[^\n]*|/\*.*?\*/|[bc]?r(?P<hashes>\#*)".*?"(?P=hashes)|[bc]?"(?:\\.|[^"\\])*"
        |b?'(?:\\(?:x..|u\{[^}]*\}|.)|[^\\'\n])'|'\w+)
      |(?P<word>\w+)|(?P<sign>->|[^\s\w])""",
    re.X | re.S,
)
# Appended to src/lib.rs.
SWITCH = """
#[doc(hidden)]
#[allow(missing_docs, clippy::disallowed_methods)]
pub fn mutant(number: u32) -> bool {
    static ON: std::sync::OnceLock<Option<u32>> = std::sync::OnceLock::new();
    *ON.get_or_init(|| std::env::var("MUTANT").ok()?.parse().ok()) == Some(number)
}
"""
COPY = "/*copy {}*/"
END = "/*end of {}*/"


def bodies(text):
    """Yields the ends of each function's header and body: start of the header, opening brace, closing brace."""
    stack, header, depth, last = [], None, 0, ""
    for token in TOKEN.finditer(text):
        word, sign = token["word"], token["sign"]
        if token["skip"]:
            continue
        if last == "fn" and word:
            header, depth = token.start(), 0
        elif sign and sign in "([":
            depth += 1
        elif sign and sign in ")]":
            depth -= 1
        elif sign == ";" and depth == 0:
            header = None
        elif sign == "{":
            is_body = header is not None and depth == 0
            stack.append((header, token.start()) if is_body else None)
            if is_body:
                header = None
        elif sign == "}" and stack:
            begun = stack.pop()
            if begun:
                yield (*begun, token.start())
        last = word or sign


def can_switch(text, body):
    header, opening, _ = body
    is_const = re.search(r"\bconst\s+(async\s+|unsafe\s+)*fn\s+$", text[:header])
    return not is_const and not re.search(r"->[^{]*\bimpl\b", text[header:opening])


def switched(text, mutations):
    """Returns the text with these mutations (number, find, put) behind switches, and the numbers that it holds."""
    functions = sorted(bodies(text), key=lambda body: body[2] - body[1])
    groups = {}
    for number, find, put in mutations:
        start = text.find(find)
        inner = (body for body in functions if body[1] < start and start + len(find) <= body[2])
        body = next(inner, None)
        if body and can_switch(text, body):
            groups.setdefault(body, []).append((number, start, find, put))
    held, parts, place = set(), [], 0
    for body in sorted(groups, key=lambda body: body[1]):
        _, opening, closing = body
        if opening < place:  # inside a function that has mutations itself
            continue
        parts.append(text[place : opening + 1])
        for number, start, find, put in groups[body]:
            mutated = text[opening + 1 : start] + put + text[start + len(find) : closing]
            parts.append(f" if crate::mutant({number}) {{ {COPY.format(number)}{mutated}{END.format(number)} }} else ")
            held.add(number)
        parts.append("{" + text[opening + 1 : closing] + "}\n")
        place = closing
    return "".join(parts) + text[place:], held


def copies_at(text, line):
    """Returns the numbers of the copies that a line of the text belongs to; those of the line's function if it is outside."""
    spans, numbers = [], []
    for number in map(int, re.findall(r"/\*copy (\d+)\*/", text)):
        first, last = (text[: text.index(mark.format(number))].count("\n") + 1 for mark in (COPY, END))
        spans.append((number, first, last))
    inside = [number for number, first, last in spans if first <= line <= last]
    for _, opening, closing in bodies(text):
        first, last = (text[:at].count("\n") + 1 for at in (opening, closing))
        if first <= line <= last:
            numbers.append((last - first, [number for number, begin, end in spans if first <= begin and end <= last]))
    around = next((of_function for _, of_function in sorted(numbers) if of_function), [])
    return inside or around
