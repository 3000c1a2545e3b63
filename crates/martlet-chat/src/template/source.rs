//! Preparing a template's source: newlines as jinja2 reads them, the tags that only transformers knows, and a check on
//! every assignment.

/// The filters that assignments go through; `template.rs` says what they refuse.
pub(super) const CHECKED: &str = "checked_value";
pub(super) const CHECKED_ATTRIBUTE: &str = "checked_attribute";

/// Gives all newlines the form `\n`, turns `{% generation %}` ... `{% endgeneration %}` into plain scopes, and sends
/// the values of `{% set %}` through a filter.
///
/// transformers uses generation blocks to mark what the assistant said; their content is rendered as it stands. The
/// number of lines does not change, so errors still name the line in the file.
pub(super) fn prepare(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(start) = rest.find('{') {
        let (text, tail) = rest.split_at(start);
        out.push_str(text);
        let length = match tail.as_bytes().get(1) {
            Some(b'#') => tail.find("#}").map_or(tail.len(), |at| at + 2),
            Some(b'{') => tag_length(tail, "}}"),
            Some(b'%') => match tag_word(tail) {
                "raw" => raw_length(tail),
                _ => tag_length(tail, "%}"),
            },
            _ => 1,
        };
        let (tag, after) = tail.split_at(length);
        match assignment(tag) {
            Some((target, value, close)) => {
                let filter = if target.contains('.') { CHECKED_ATTRIBUTE } else { CHECKED };
                out.push_str(&format!("{target}=({value})|{filter} {close}"));
            }
            None => match replacement(tag) {
                Some((word, scope)) => out.push_str(&tag.replacen(word, scope, 1)),
                None => out.push_str(tag),
            },
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// The parts of `{% set TARGET = VALUE %}`: all before the sign, the value, and the closing delimiter.
fn assignment(tag: &str) -> Option<(&str, &str, &str)> {
    if !tag.starts_with("{%") || tag_word(tag) != "set" {
        return None;
    }
    let inner = tag.strip_suffix("%}")?;
    let inner = inner.strip_suffix(['-', '+']).unwrap_or(inner);
    let (before, value) = inner.split_once('=')?;
    let target = before.trim_start_matches("{%").trim_start_matches(['-', '+']);
    let plain = |c: char| c.is_alphanumeric() || c.is_whitespace() || "_.,()".contains(c);
    target.chars().all(plain).then_some((before, value, &tag[inner.len()..]))
}

fn replacement(tag: &str) -> Option<(&'static str, &'static str)> {
    let inner = tag.strip_prefix("{%")?.strip_suffix("%}")?;
    match inner.trim_matches(['-', '+']).trim() {
        "generation" => Some(("generation", "with")),
        "endgeneration" => Some(("endgeneration", "endwith")),
        _ => None,
    }
}

/// The first word of a block tag.
fn tag_word(tag: &str) -> &str {
    let inner = tag.trim_start_matches("{%").trim_start_matches(['-', '+']).trim_start();
    inner.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

/// Bytes up to and with the closing delimiter, which does not count inside a string literal.
fn tag_length(tag: &str, close: &str) -> usize {
    let bytes = tag.as_bytes();
    let mut quote = None;
    let mut at = 2;
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(q), byte) if byte == q => quote = None,
            (Some(_), _) => {}
            (None, byte @ (b'\'' | b'"')) => quote = Some(byte),
            (None, _) if bytes[at..].starts_with(close.as_bytes()) => return at + close.len(),
            (None, _) => {}
        }
        at += 1;
    }
    tag.len()
}

/// Bytes of a whole `{% raw %}` block.
fn raw_length(tag: &str) -> usize {
    let mut at = tag_length(tag, "%}");
    while let Some(next) = tag[at..].find("{%") {
        at += next;
        let length = tag_length(&tag[at..], "%}");
        if tag_word(&tag[at..]) == "endraw" {
            return at + length;
        }
        at += 2;
    }
    tag.len()
}

#[cfg(test)]
mod tests {
    use super::prepare;

    #[test]
    fn only_real_generation_tags_are_replaced() {
        let cases = [
            ("{% generation %}a{%- endgeneration -%}", "{% with %}a{%- endwith -%}"),
            ("{%generation%}{%endgeneration%}", "{%with%}{%endwith%}"),
            ("{{ '{% generation %}' }}", "{{ '{% generation %}' }}"),
            ("{{ 'it\\'s }} {% generation %}' }}", "{{ 'it\\'s }} {% generation %}' }}"),
            ("{# {% generation %} #}", "{# {% generation %} #}"),
            (
                "{% raw %}{% generation %}{% endraw %}{% generation %}",
                "{% raw %}{% generation %}{% endraw %}{% with %}",
            ),
            ("{% if x == '%} {% generation %}' %}", "{% if x == '%} {% generation %}' %}"),
            ("generation { % {", "generation { % {"),
            ("a\r\nb\rc", "a\nb\nc"),
            ("{% gen", "{% gen"),
            ("{% raw %}ü{%", "{% raw %}ü{%"),
        ];
        for (source, expected) in cases {
            assert_eq!(prepare(source), expected);
        }
    }

    #[test]
    fn assignments_are_checked() {
        let cases = [
            ("{%- set x = a == b -%}", "{%- set x =( a == b )|checked_value -%}"),
            ("{% set n.x=[1,\n2]%}", "{% set n.x=([1,\n2])|checked_attribute %}"),
            ("{% set a, b = 1, '%}' +%}", "{% set a, b =( 1, '%}' )|checked_value +%}"),
            ("{% set x %}=1{% endset %}", "{% set x %}=1{% endset %}"),
            ("{% set x | replace(old='a') %}", "{% set x | replace(old='a') %}"),
            ("{% settle = 1 %}{{ set = 1 }}", "{% settle = 1 %}{{ set = 1 }}"),
        ];
        for (source, expected) in cases {
            assert_eq!(prepare(source), expected);
        }
    }
}
