//! String methods and filters as Python has them, where the engine's own differ: what is white space, what ends a line,
//! how titles are written.

use minijinja::value::{Kwargs, Rest, Value};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::python::{check_length, to_str};

/// Methods of strings, dicts and lists; those that are not here are the engine's.
pub(super) fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return unknown_method_callback(state, value, name, args);
    };
    let one = || -> Result<Option<&str>, Error> {
        match args {
            [] => Ok(None),
            [arg] if arg.is_none() => Ok(None),
            [arg] if arg.as_str().is_some() => Ok(arg.as_str()),
            _ => Err(Error::new(ErrorKind::InvalidOperation, format!("{name} takes one string at most"))),
        }
    };
    match name {
        "strip" => Ok(strip(text, one()?, true, true).into()),
        "lstrip" => Ok(strip(text, one()?, true, false).into()),
        "rstrip" => Ok(strip(text, one()?, false, true).into()),
        "removeprefix" => Ok(text.strip_prefix(one()?.unwrap_or_default()).unwrap_or(text).into()),
        "removesuffix" => Ok(text.strip_suffix(one()?.unwrap_or_default()).unwrap_or(text).into()),
        "isspace" => Ok((!text.is_empty() && text.chars().all(is_space)).into()),
        "title" if args.is_empty() => Ok(title(text).into()),
        "split" if args.is_empty() => {
            Ok(text.split(is_space).filter(|piece| !piece.is_empty()).map(Value::from).collect())
        }
        "splitlines" if args.is_empty() => Ok(lines(text).into_iter().map(Value::from).collect()),
        _ => unknown_method_callback(state, value, name, args),
    }
}

/// The `trim` filter, which takes any value.
pub(super) fn trim(value: &Value, chars: Option<&str>) -> Result<String, Error> {
    Ok(strip(&to_str(value)?, chars, true, true).to_string())
}

/// The `join(d="", attribute=none)` filter.
pub(super) fn join(value: &Value, glue: Option<&str>, kwargs: Kwargs) -> Result<String, Error> {
    let glue = match glue {
        Some(glue) => glue,
        None => kwargs.get::<Option<&str>>("d")?.unwrap_or_default(),
    };
    let attribute = kwargs.get::<Option<&str>>("attribute")?;
    kwargs.assert_all_used()?;
    let mut out = String::new();
    for (i, item) in value.try_iter()?.enumerate() {
        if i > 0 {
            out.push_str(glue);
        }
        match attribute {
            Some(name) => out.push_str(&to_str(&item.get_attr(name)?)?),
            None => out.push_str(&to_str(&item)?),
        }
        check_length(&out)?;
    }
    Ok(out)
}

/// The `indent(width=4, first=false, blank=false)` filter; `width` may be the text to indent with.
pub(super) fn indent(text: &str, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let option = |index: usize, name: &str| match args.get(index) {
        Some(value) => Ok(Some(value.clone())),
        None => kwargs.get::<Option<Value>>(name),
    };
    let (width, first, blank) = (option(0, "width")?, option(1, "first")?, option(2, "blank")?);
    kwargs.assert_all_used()?;
    let by = width.map_or_else(|| Ok("    ".to_string()), |width| indentation(&width))?;
    let (first, blank) = (first.is_some_and(|v| v.is_true()), blank.is_some_and(|v| v.is_true()));
    let mut out = String::new();
    // A newline at the end stays, as one empty line more.
    let text = format!("{text}\n");
    for (i, line) in lines(&text).into_iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if if i == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&by);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// One level of indentation: a text, or a number of spaces.
pub(super) fn indentation(width: &Value) -> Result<String, Error> {
    const WIDEST: i64 = 64;
    match (width.as_str(), width.as_i64()) {
        (Some(text), _) => Ok(text.to_string()),
        (_, Some(width)) if width <= WIDEST => Ok(" ".repeat(width.max(0) as usize)),
        _ => Err(Error::new(ErrorKind::InvalidOperation, "an indentation is a text, or a number up to 64")),
    }
}

/// Python's `strip` family; without `chars` it takes away white space.
fn strip<'a>(text: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let unwanted = |c: char| chars.map_or_else(|| is_space(c), |set| set.contains(c));
    let text = if left { text.trim_start_matches(unwanted) } else { text };
    if right { text.trim_end_matches(unwanted) } else { text }
}

/// `str.isspace`: Unicode white space and the four ASCII information separators.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// `str.title`: a letter that follows no letter is upper case, any other lower case.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_word = false;
    for c in text.chars() {
        if in_word {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        in_word = c.is_lowercase() || c.is_uppercase();
    }
    out
}

/// `str.splitlines`: without the line ends, and without an empty line after the last.
fn lines(text: &str) -> Vec<&str> {
    let ends_line = |c: char| matches!(c, '\n'..='\r' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(ends_line) {
        let (line, end) = rest.split_at(at);
        out.push(line);
        let length = if end.starts_with("\r\n") { 2 } else { end.chars().next().map_or(0, char::len_utf8) };
        rest = &end[length..];
    }
    if !rest.is_empty() {
        out.push(rest);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_where_python_ends_them() {
        assert_eq!(lines("a\nb\r\nc\rd\x0be\x0cf\x1cg\u{85}h\u{2028}i"), ["a", "b", "c", "d", "e", "f", "g", "h", "i"]);
        assert_eq!(lines("a\n\n"), ["a", ""]);
        assert!(lines("").is_empty());
    }

    #[test]
    fn titles_are_those_of_python() {
        assert_eq!(title("they're bill's </think> x1y"), "They'Re Bill'S </Think> X1Y");
    }
}
