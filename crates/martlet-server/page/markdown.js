// Markdown as models write it, to elements. What a model writes is untrusted: every element is made here by name, text
// is only ever text, HTML in it is shown as it stands, nothing is loaded, and links lead to the web or to mail alone.
// All searches are bounded, so that no text takes more than time linear in its length.

import { copyButton, el } from "./dom.js";
import { highlight } from "./highlight.js";

/** Quotes in lists in quotes; what lies deeper is a paragraph. */
const DEEPEST = 12;
/** Emphasis in links in emphasis. */
const DEEPEST_INLINE = 8;
/** How far a closing mark may be from its opening one. */
const FARTHEST = 2000;
/** A longer paragraph is no prose; it is shown plain. */
const LONGEST_PARAGRAPH = 30000;
const MOST_COLUMNS = 64;

const FENCE = /^( {0,3})(`{3,}|~{3,})[ \t]*([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:( +)(\S.*)?)?$/;
const MATHS = /^ {0,3}(\$\$|\\\[)/;

/**
 * Shows `text` in `parent`. Called again with more text it keeps the elements of blocks that did not change, so that a
 * long answer streams at the cost of its last block, and a selection in it stays. Gives the elements of all blocks.
 */
export function showMarkdown(text, parent) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const shown = (parent.blocks ??= []);
  const blocks = parse(lines, 0);
  blocks.forEach((block, i) => {
    const source = lines.slice(block.from, block.to).join("\n");
    if (shown[i]?.source === source) return;
    const element = build(block);
    if (shown[i]) shown[i].element.replaceWith(element);
    else parent.append(element);
    shown[i] = { source, element };
  });
  shown.splice(blocks.length).forEach((block) => block.element.remove());
  return shown.map((block) => block.element);
}

// ---- blocks ----

function parse(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const block = blockAt(lines, at, depth);
    blocks.push({ ...block, from: at });
    at = block.to;
  }
  return blocks;
}

function blockAt(lines, at, depth) {
  const line = lines[at];
  const heading = HEADING.exec(line);
  if (heading)
    return {
      kind: "heading",
      level: heading[1].length,
      // One blank is enough to see where closing signs begin: "[ \t]+" would look at each of many blanks from each of them.
      text: (heading[2] ?? "").trimEnd().replace(/(?:^|[ \t])#+$/, "").trimEnd(),
      to: at + 1,
    };
  if (FENCE.test(line)) return fence(lines, at);
  if (MATHS.test(line)) return maths(lines, at);
  if (RULE.test(line)) return { kind: "rule", to: at + 1 };
  if (depth < DEEPEST && QUOTE.test(line)) return quote(lines, at, depth);
  if (depth < DEEPEST && ITEM.test(line)) return list(lines, at, depth);
  return table(lines, at) ?? paragraph(lines, at);
}

/** Whether a line ends a paragraph before it. Of numbers only 1 does: a year may begin a line. */
function interrupts(line) {
  const item = ITEM.exec(line);
  return (
    HEADING.test(line) ||
    FENCE.test(line) ||
    RULE.test(line) ||
    QUOTE.test(line) ||
    MATHS.test(line) ||
    (item?.[4] !== undefined && /^(?:[-*+]|1[.)])$/.test(item[2]))
  );
}

function fence(lines, at) {
  const [, indent, mark, language] = FENCE.exec(lines[at]);
  const closes = (line) => {
    const bare = line.trim();
    return bare.length >= mark.length && bare === mark[0].repeat(bare.length);
  };
  let to = at + 1;
  while (to < lines.length && !closes(lines[to])) to += 1;
  const code = lines.slice(at + 1, to).map((line) => dedent(line, indent.length));
  // While it streams there is no closing mark yet.
  return { kind: "code", language, text: code.join("\n"), to: Math.min(to + 1, lines.length) };
}

/** Formulas are not set here; they are kept from being read as emphasis. */
function maths(lines, at) {
  const close = MATHS.exec(lines[at])[1] === "$$" ? "$$" : "\\]";
  const rest = lines[at].trim().slice(2);
  let to = at + 1;
  if (!rest.includes(close)) {
    while (to < lines.length && !lines[to].includes(close)) to += 1;
    to += 1;
  }
  to = Math.min(to, lines.length);
  return { kind: "maths", text: lines.slice(at, to).join("\n"), to };
}

function quote(lines, at, depth) {
  const inner = [];
  let to = at;
  while (to < lines.length && lines[to].trim() && (QUOTE.test(lines[to]) || !interrupts(lines[to]))) {
    inner.push(lines[to].replace(QUOTE, ""));
    to += 1;
  }
  return { kind: "quote", blocks: parse(inner, depth + 1), to };
}

/** Columns before the first word; a tab is four. */
function indentOf(line) {
  const blanks = /^[ \t]*/.exec(line)[0];
  return blanks.length + 3 * (blanks.split("\t").length - 1);
}

function dedent(line, columns) {
  let at = 0;
  for (let left = columns; left > 0 && (line[at] === " " || line[at] === "\t"); at += 1)
    left -= line[at] === "\t" ? 4 : 1;
  return line.slice(at);
}

/** Bullets of another sign, and numbers after bullets, are another list. */
const signOf = (marker) => (/\d/.test(marker) ? marker.at(-1) : marker);

function list(lines, at, depth) {
  const [, base, first] = ITEM.exec(lines[at]);
  const items = [];
  let [to, blanks, loose] = [at, 0, false];
  while (to < lines.length) {
    const begin = ITEM.exec(lines[to]);
    if (!begin || begin[1].length > base.length + 1 || signOf(begin[2]) !== signOf(first) || RULE.test(lines[to]))
      break;
    const item = itemAt(lines, to, begin);
    items.push(parse(item.lines, depth + 1));
    // Blank lines between items, or in one; those behind the last say nothing.
    loose ||= blanks > 0 || item.gap;
    blanks = item.blanks;
    to = item.to;
  }
  const start = /\d/.test(first) ? Number.parseInt(first, 10) : undefined;
  return { kind: "list", start, items, loose, to };
}

/** The lines of one item, without its indent. */
function itemAt(lines, at, [, base, marker, gap = " ", text = ""]) {
  // Models often indent by two under a number, where three would be right; both are inside.
  const inside = base.length + 2;
  const content = base.length + marker.length + (gap.length > 4 ? 1 : gap.length);
  const inner = [text];
  let [to, blanks, hasGap] = [at + 1, 0, false];
  for (; to < lines.length; to += 1) {
    const line = lines[to];
    if (!line.trim()) {
      blanks += 1;
    } else if (indentOf(line) >= inside || (blanks === 0 && !ITEM.test(line) && !interrupts(line))) {
      hasGap ||= blanks > 0 && !ITEM.test(line);
      inner.push(...Array(blanks).fill(""), dedent(line, content));
      blanks = 0;
    } else {
      break;
    }
  }
  return { lines: inner, to, blanks, gap: hasGap };
}

function cells(line) {
  const bare = line
    .trim()
    .replace(/^\|/, "")
    .replace(/(?<!\\)\|$/, "");
  return bare.split(/(?<!\\)\|/, MOST_COLUMNS).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function table(lines, at) {
  const under = lines[at + 1];
  if (!lines[at].includes("|") || !under?.includes("-")) return undefined;
  const [head, marks] = [cells(lines[at]), cells(under)];
  if (head.length !== marks.length || !marks.every((mark) => /^:?-+:?$/.test(mark))) return undefined;
  const align = marks.map((mark) => (mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "end") : undefined));
  const rows = [];
  let to = at + 2;
  while (to < lines.length && lines[to].includes("|")) {
    rows.push(cells(lines[to]));
    to += 1;
  }
  return { kind: "table", head, align, rows, to };
}

function paragraph(lines, at) {
  let to = at + 1;
  while (to < lines.length && lines[to].trim() && !interrupts(lines[to]) && !table(lines, to)) to += 1;
  return {
    kind: "paragraph",
    text: lines
      .slice(at, to)
      .map((line) => line.trimStart())
      .join("\n"),
    to,
  };
}

// ---- elements ----

function build(block) {
  switch (block.kind) {
    case "heading":
      // Below the page's own headings, which name who speaks.
      return inlineInto(el(`h${Math.min(block.level + 2, 6)}`), block.text);
    case "rule":
      return el("hr");
    case "code":
      return codeBlock(block);
    case "maths":
      return el("pre", { class: "maths" }, block.text);
    case "quote":
      return el("blockquote", {}, ...block.blocks.map(build));
    case "list":
      return buildList(block);
    case "table":
      return buildTable(block);
    default:
      return inlineInto(el("p"), block.text);
  }
}

function codeBlock({ language, text }) {
  const code = el("code");
  highlight(text, language, code);
  const name = language.slice(0, 30);
  const head = el(
    "div",
    { class: "code-head" },
    el("span", {}, name),
    copyButton("Copy code", () => text),
  );
  return el(
    "div",
    { class: "code" },
    head,
    el("pre", { tabindex: "0", "aria-label": name ? `Code, ${name}` : "Code" }, code),
  );
}

function buildList({ start, items, loose }) {
  const list = el(start === undefined ? "ul" : "ol", { start: start === 1 ? undefined : start });
  for (const blocks of items) {
    const item = el("li");
    for (const block of blocks) {
      if (block.kind !== "paragraph") {
        item.append(build(block));
        continue;
      }
      const place = loose ? item.appendChild(el("p")) : item;
      inlineInto(place, block === blocks[0] ? task(block.text, item, place) : block.text);
    }
    list.append(item);
  }
  return list;
}

/** Takes the box off a task such as "[x] done", and puts one into its place. */
function task(text, item, place) {
  const box = /^\[([ xX])\][ \t]/.exec(text);
  if (!box) return text;
  const done = box[1] !== " ";
  item.classList.add("task");
  place.append(el("input", { type: "checkbox", disabled: true, checked: done, "aria-label": done ? "done" : "to do" }));
  return text.slice(4);
}

function buildTable({ head, align, rows }) {
  const row = (tag, texts) =>
    el(
      "tr",
      {},
      ...head.map((_, i) => inlineInto(el(tag, { class: align[i], scope: tag === "th" && "col" }), texts[i] ?? "")),
    );
  const table = el(
    "table",
    {},
    el("thead", {}, row("th", head)),
    el("tbody", {}, ...rows.map((texts) => row("td", texts))),
  );
  return el("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" }, table);
}

// ---- inside a paragraph ----

const PLAIN = /[^\\`*_~<[!\nhm$]+/y;
const BARE_LINK = /(?:https?:\/\/|mailto:)[^\s<>"'`|\\^{}]+/y;
const ANGLE_LINK = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/y;
const LINK_TARGET =
  /\((?:<([^<>\n]{0,2000})>|([^\s()]{0,2000}(?:\([^\s()]{0,2000}\)[^\s()]{0,2000}){0,4}))(?:\s+(?:"[^"]{0,500}"|'[^']{0,500}'))?\s*\)/y;

const WORD = /[\p{L}\p{N}_]/u;
const BLANK = /\s/;

function inlineInto(parent, text, depth = 0) {
  if (text.length > LONGEST_PARAGRAPH || depth > DEEPEST_INLINE) {
    parent.append(text);
    return parent;
  }
  let plain = "";
  let at = 0;
  while (at < text.length) {
    PLAIN.lastIndex = at;
    const run = PLAIN.exec(text);
    if (run) {
      plain += run[0];
      at += run[0].length;
      continue;
    }
    const found = inlineAt(text, at, depth);
    if (!found) {
      plain += text[at];
      at += 1;
    } else if (typeof found.node === "string") {
      plain += found.node;
      at = found.to;
    } else {
      // A break makes blanks before it needless.
      parent.append(found.node.tagName === "BR" ? plain.trimEnd() : plain, found.node);
      plain = "";
      at = found.to;
    }
  }
  parent.append(plain);
  return parent;
}

/** What begins at a special character: an element or text, and where it ends. */
function inlineAt(text, at, depth) {
  switch (text[at]) {
    case "\\":
      return escaped(text, at);
    case "`":
      return codeSpan(text, at);
    case "*":
    case "_":
      return emphasis(text, at, depth);
    case "~":
      return text[at + 1] === "~" ? marked(text, at, "~~", "s", depth) : undefined;
    case "<":
      return angled(text, at);
    case "[":
      return link(text, at, at, depth);
    case "!":
      // Pictures are not loaded: the address would tell others what was said. A link can be followed by choice.
      return text[at + 1] === "[" ? link(text, at + 1, at, depth) : undefined;
    case "\n":
      return text.endsWith("  ", at) || text[at - 1] === "\\" ? { node: el("br"), to: at + 1 } : undefined;
    case "$":
      return text[at + 1] === "$" ? formula(text, at, "$$", "$$") : undefined;
    default:
      return bareLink(text, at);
  }
}

function escaped(text, at) {
  const next = text[at + 1];
  if (next === "(") return formula(text, at, "\\(", "\\)") ?? { node: "(", to: at + 2 };
  if (next === "[") return formula(text, at, "\\[", "\\]") ?? { node: "[", to: at + 2 };
  if (next === "\n") return { node: el("br"), to: at + 2 };
  return next && /[!-/:-@[-`{-~]/.test(next) ? { node: next, to: at + 2 } : undefined;
}

/** Where `mark` stands next, if that is near. */
function near(text, mark, from) {
  const found = text.slice(from, from + FARTHEST).indexOf(mark);
  return found < 0 ? -1 : from + found;
}

function formula(text, at, open, close) {
  const end = near(text, close, at + open.length);
  return end < 0
    ? undefined
    : { node: el("code", { class: "maths" }, text.slice(at, end + close.length)), to: end + close.length };
}

function runAt(text, at) {
  let to = at;
  while (text[to] === text[at] && to - at < 64) to += 1;
  return to - at;
}

/** The end of a code span that begins at `at`: a run of as many backticks. */
function codeEnd(text, at, length) {
  let end = near(text, "`", at + length);
  while (end >= 0) {
    const run = runAt(text, end);
    if (run === length) return end;
    end = near(text, "`", end + run);
    if (end - at > FARTHEST) return -1;
  }
  return -1;
}

function codeSpan(text, at) {
  const length = runAt(text, at);
  const end = codeEnd(text, at, length);
  if (end < 0) return { node: text.slice(at, at + length), to: at + length };
  let code = text.slice(at + length, end).replaceAll("\n", " ");
  if (/^ .*[^ ].* $/.test(code)) code = code.slice(1, -1);
  return { node: el("code", {}, code), to: end + length };
}

function emphasis(text, at, depth) {
  const length = runAt(text, at);
  const sign = text[at];
  for (const [marks, tag] of [
    [3, "both"],
    [2, "strong"],
    [1, "em"],
  ]) {
    const found = marks <= length && marked(text, at, sign.repeat(marks), tag, depth);
    if (found) return found;
  }
  return { node: text.slice(at, at + length), to: at + length };
}

/** Text between two marks. A mark is none beside a blank, and an underscore is none inside a word. */
function marked(text, at, mark, tag, depth) {
  const from = at + mark.length;
  const inWord = mark[0] === "_" && WORD.test(text[at - 1] ?? " ");
  if (inWord || BLANK.test(text[from] ?? " ")) return undefined;
  const end = closing(text, from, mark);
  if (end < 0) return undefined;
  const inner = text.slice(from, end);
  const node =
    tag === "both" ? el("strong", {}, inlineInto(el("em"), inner, depth + 1)) : inlineInto(el(tag), inner, depth + 1);
  return { node, to: end + mark.length };
}

function closing(text, from, mark) {
  const last = Math.min(text.length, from + FARTHEST);
  let at = from;
  while (at < last) {
    if (text[at] === "\\") {
      at += 2;
    } else if (text[at] === "`") {
      const length = runAt(text, at);
      const end = codeEnd(text, at, length);
      at = end < 0 ? at + length : end + length;
    } else if (text[at] === mark[0]) {
      const run = runAt(text, at);
      const after = text[at + run] ?? " ";
      const fits = mark.length === 1 ? run % 2 === 1 : run >= mark.length;
      const closes = at > from && !BLANK.test(text[at - 1]) && !(mark[0] === "_" && WORD.test(after));
      if (fits && closes) return at + run - mark.length;
      at += run;
    } else {
      at += 1;
    }
  }
  return -1;
}

/** The address if it is one of the web or of mail, whole, and readable. */
function safeAddress(address) {
  if (!/^(?:https?:\/\/|mailto:)/i.test(address)) return undefined;
  try {
    const url = new URL(address);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : undefined;
  } catch {
    return undefined;
  }
}

/** The page tells the other side nothing, and the other side can not reach back. The address shows on hover. */
function anchor(href) {
  return el("a", { href, title: href, target: "_blank", rel: "noopener noreferrer", referrerpolicy: "no-referrer" });
}

function angled(text, at) {
  ANGLE_LINK.lastIndex = at;
  const match = ANGLE_LINK.exec(text);
  const href = match && safeAddress(match[1]);
  if (href) {
    const node = anchor(href);
    node.append(match[1]);
    return { node, to: at + match[0].length };
  }
  // The one piece of HTML that models put into tables for want of another way.
  const br = /^<br ?\/?>/i.exec(text.slice(at, at + 6));
  return br ? { node: el("br"), to: at + br[0].length } : undefined;
}

function bareLink(text, at) {
  if (at > 0 && WORD.test(text[at - 1])) return undefined;
  BARE_LINK.lastIndex = at;
  const match = BARE_LINK.exec(text);
  if (!match) return undefined;
  let address = match[0].slice(0, FARTHEST).replace(/[.,;:!?*_~\]]+$/, "");
  // A closing bracket belongs to the sentence unless the address opened it.
  while (address.endsWith(")") && address.split(")").length > address.split("(").length) address = address.slice(0, -1);
  const href = safeAddress(address);
  if (!href) return undefined;
  const node = anchor(href);
  node.append(address);
  return { node, to: at + address.length };
}

/** [text](address). Where the address is of another kind, the source is shown. */
function link(text, open, at, depth) {
  const close = bracketEnd(text, open);
  if (close < 0 || text[close + 1] !== "(") return undefined;
  LINK_TARGET.lastIndex = close + 1;
  const match = LINK_TARGET.exec(text);
  if (!match) return undefined;
  const to = close + 1 + match[0].length;
  const href = safeAddress(match[1] ?? match[2]);
  if (!href) return { node: text.slice(at, to), to };
  const words = text.slice(open + 1, close);
  const node = anchor(href);
  if (words) inlineInto(node, words, depth + 1);
  else node.append(href);
  // No links in links.
  node.querySelectorAll("a").forEach((inner) => inner.replaceWith(...inner.childNodes));
  return { node, to };
}

function bracketEnd(text, open) {
  let depth = 0;
  const last = Math.min(text.length, open + FARTHEST);
  for (let at = open; at < last; at += 1) {
    if (text[at] === "\\") at += 1;
    else if (text[at] === "[") depth += 1;
    else if (text[at] === "]" && (depth -= 1) === 0) return at;
  }
  return -1;
}
