//! Looking ahead: does what follows have a form, or may it have it once more output has come?

use super::types::Tools;
use super::{CALL_END, FUNCTION_END, MAX_SPACE, PARAMETER, PARAMETER_END};

const CALL: &str = "<tool_call>";
const FUNCTION: &str = "<function=";
/// Most bytes of a function's or parameter's name.
const MAX_NAME: usize = 256;

/// How the output ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// More may come.
    Open,
    /// The model ended it.
    Natural,
    Cut,
}

/// Why a form is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Miss {
    No,
    /// What there is agrees with it, and more may come.
    More,
}

type Found<T> = Result<T, Miss>;

/// A place in the output, and what lies behind it.
#[derive(Clone, Debug)]
pub(super) struct Look<'a> {
    text: &'a str,
    at: usize,
    end: End,
}

/// A call that begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Open {
    /// Up to the first parameter, or to the object.
    pub bytes: usize,
    /// Of the XML form.
    pub tool: Option<usize>,
    /// A JSON object follows.
    pub json: bool,
}

pub(super) fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

impl<'a> Look<'a> {
    pub fn new(text: &'a str, end: End) -> Look<'a> {
        Look { text, at: 0, end }
    }

    /// Bytes that were passed.
    pub fn bytes(&self) -> usize {
        self.at
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Where the output ends before a form is complete.
    fn more(&self) -> Miss {
        if self.end == End::Open { Miss::More } else { Miss::No }
    }

    pub fn tag(&mut self, tag: &str) -> Found<()> {
        let rest = self.rest();
        if rest.starts_with(tag) {
            self.at += tag.len();
            Ok(())
        } else if tag.starts_with(rest) {
            Err(self.more())
        } else {
            Err(Miss::No)
        }
    }

    /// One of several tags; gives its length.
    pub fn any_tag(&mut self, tags: &[&str]) -> Found<usize> {
        let mut miss = Miss::No;
        for tag in tags {
            match self.tag(tag) {
                Ok(()) => return Ok(tag.len()),
                Err(Miss::More) => miss = Miss::More,
                Err(Miss::No) => {}
            }
        }
        Err(miss)
    }

    /// White space, if any, up to what follows it.
    pub fn space(&mut self) -> Found<()> {
        let rest = self.rest();
        let space = rest.bytes().take(MAX_SPACE + 1).take_while(|b| is_space(*b as char)).count();
        if space > MAX_SPACE {
            return Err(Miss::No);
        }
        self.at += space;
        if space == rest.len() && self.end == End::Open { Err(Miss::More) } else { Ok(()) }
    }

    /// The model ended its answer here.
    fn ended(&self) -> Found<()> {
        match self.rest().is_empty() {
            true if self.end == End::Open => Err(Miss::More),
            true if self.end == End::Natural => Ok(()),
            _ => Err(Miss::No),
        }
    }

    /// The model ended its answer inside one of these tags. Nobody does so on purpose: it was meant to be one.
    fn ended_inside(&self, tags: &[&str]) -> bool {
        let rest = self.rest();
        let begins = |tag: &&str| tag.starts_with(rest) || (rest.starts_with(*tag) && !rest.contains('>'));
        self.end == End::Natural && !rest.is_empty() && tags.iter().any(begins)
    }

    /// The name behind `opening`, up to `>`, without quotes and white space around it.
    fn name(&mut self, opening: &str) -> Found<&'a str> {
        self.tag(opening)?;
        let rest = self.rest();
        let stop = rest.bytes().take(MAX_NAME + 1).position(|b| matches!(b, b'>' | b'<' | b'\n'));
        match stop {
            Some(n) if rest.as_bytes()[n] == b'>' => {
                let name = rest[..n].trim();
                let unquoted = ['"', '\''].iter().find_map(|&q| name.strip_prefix(q)?.strip_suffix(q));
                let name = unquoted.unwrap_or(name);
                self.at += n + 1;
                if name.is_empty() { Err(Miss::No) } else { Ok(name) }
            }
            None if rest.len() <= MAX_NAME => Err(self.more()),
            _ => Err(Miss::No),
        }
    }

    /// The beginning of a call of one of the tools.
    pub fn open(mut self, tools: &Tools) -> Found<Open> {
        if tools.is_empty() {
            return Err(Miss::No);
        }
        let framed = match self.tag(CALL) {
            Ok(()) => {
                self.space()?;
                true
            }
            Err(Miss::More) => return Err(Miss::More),
            Err(Miss::No) => false,
        };
        if framed && self.rest().starts_with('{') {
            return self.open_json();
        }
        let tool = tools.find(self.name(FUNCTION)?).ok_or(Miss::No)?;
        let before = self.at;
        self.space()?;
        if framed && self.ended().is_ok() {
            return Ok(Open { bytes: before, tool: Some(tool), json: false });
        }
        if self.rest().starts_with('{') {
            return Ok(Open { tool: Some(tool), ..self.open_json()? });
        }
        self.body_tag()?;
        Ok(Open { bytes: before, tool: Some(tool), json: false })
    }

    /// At `{`: an object with members.
    fn open_json(mut self) -> Found<Open> {
        let bytes = self.at;
        self.at += 1;
        self.space()?;
        self.any_tag(&["\"", "}"])?;
        Ok(Open { bytes, tool: None, json: true })
    }

    /// What stands between values: the key of the next, or the end of the call.
    pub fn body_tag(&mut self) -> Found<Option<String>> {
        let ends = match self.any_tag(&[FUNCTION_END, CALL_END]) {
            Ok(_) => return Ok(None),
            Err(miss) => miss,
        };
        match self.name(PARAMETER) {
            Ok(key) => Ok(Some(key.to_string())),
            Err(Miss::No) => Err(ends),
            Err(Miss::More) => Err(Miss::More),
        }
    }

    /// The end of a value, at `<`; gives the bytes of its tag.
    pub fn value_end(&self) -> Found<usize> {
        let closed = self.clone().closed_value();
        let unclosed = self.clone().unclosed_value();
        match (closed, unclosed) {
            (Ok(bytes), _) | (_, Ok(bytes)) => Ok(bytes),
            (Err(Miss::More), _) | (_, Err(Miss::More)) => Err(Miss::More),
            _ => Err(Miss::No),
        }
    }

    fn closed_value(mut self) -> Found<usize> {
        let rest = self.rest();
        if rest.len() > 2 && self.ended_inside(&[PARAMETER_END]) {
            return Ok(rest.len());
        }
        self.tag(PARAMETER_END)?;
        self.space()?;
        if self.ended().is_ok() || self.ended_inside(&[FUNCTION_END, CALL_END, PARAMETER]) {
            return Ok(PARAMETER_END.len());
        }
        let frame = self.clone().any_tag(&[FUNCTION_END]);
        let key = self.clone().name(PARAMETER);
        let unfinished = self.last_call_end();
        match (frame, key, unfinished) {
            (Ok(_), ..) | (_, Ok(_), _) | (.., Ok(())) => Ok(PARAMETER_END.len()),
            (Err(Miss::More), ..) | (_, Err(Miss::More), _) | (.., Err(Miss::More)) => Err(Miss::More),
            _ => Err(Miss::No),
        }
    }

    /// `</function>` without `</parameter>`.
    fn unclosed_value(mut self) -> Found<usize> {
        self.tag(FUNCTION_END)?;
        self.space()?;
        if self.ended().is_err() {
            self.last_call_end()?;
        }
        Ok(0)
    }

    /// `</tool_call>` with which the answer ends, or behind which the next call begins.
    fn last_call_end(mut self) -> Found<()> {
        self.tag(CALL_END)?;
        self.space()?;
        match (self.ended(), self.tag(CALL)) {
            (Ok(()), _) | (_, Ok(())) => Ok(()),
            (Err(Miss::More), _) | (_, Err(Miss::More)) => Err(Miss::More),
            _ => Err(Miss::No),
        }
    }
}
