// Colours for code: one scanner, and a short table of what languages call comments, strings and keywords. It only cuts
// the text into pieces, so that a mistake costs a colour and never a character.

/** Longer code is shown plain: while an answer streams, its last block is coloured again and again. */
const LONGEST = 50000;

const SLASH = String.raw`//[^\n]*|/\*[^]*?(?:\*/|$)`;
const HASH = String.raw`#[^\n]*`;
const DASH = String.raw`--[^\n]*`;
const DOUBLE = String.raw`"(?:\\[^]|[^"\\\n])*"?`;
const SINGLE = String.raw`'(?:\\[^]|[^'\\\n])*'?`;
const TEMPLATE = "`(?:\\\\[^]|[^`\\\\])*`?";
/** A character, but not a lifetime or a label such as 'a. */
const CHARACTER = String.raw`'(?:\\[^\n][^'\n]{0,8}|[^'\\\n])'`;
const TRIPLE = String.raw`"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)`;

const C_WORDS =
  "if else for while do switch case default break continue return const static struct enum void true false";

const LANGUAGES = [
  {
    names: "js javascript jsx ts typescript tsx mjs",
    comment: SLASH,
    string: `${DOUBLE}|${SINGLE}|${TEMPLATE}`,
    words: `${C_WORDS} let var function class extends new this super import export from as async await yield of in typeof instanceof try catch finally throw null undefined interface type implements readonly delete`,
  },
  {
    names: "rust rs",
    comment: SLASH,
    string: `${DOUBLE}|${CHARACTER}`,
    words: `${C_WORDS} fn let mut pub use mod crate self Self super impl trait where match loop in as ref move dyn async await unsafe type extern`,
  },
  {
    names: "python py python3",
    comment: HASH,
    string: `${TRIPLE}|${DOUBLE}|${SINGLE}`,
    words:
      "def class return if elif else for while in not and or is import from as with try except finally raise pass break continue lambda yield global nonlocal assert del async await match case None True False self",
  },
  {
    names:
      "c h cpp c++ cc hpp cuda cu objc java kotlin kt scala swift cs csharp c# dart go golang zig php proto wgsl glsl",
    comment: SLASH,
    string: `${TRIPLE}|${DOUBLE}|${SINGLE}|${TEMPLATE}`,
    words: `${C_WORDS} auto int long short char float double bool unsigned signed class public private protected virtual override new delete this namespace using template typename try catch throw null nullptr NULL import package func fn fun let var val in is as interface implements extends final abstract go defer chan map range type select string byte nil guard self init extension protocol include define pub comptime`,
  },
  {
    names: "sh bash shell zsh console fish",
    comment: String.raw`(?<![^\s;])#[^\n]*`,
    string: String.raw`"(?:\\[^]|[^"\\])*"?|'[^']*'?`,
    words:
      "if then else elif fi for while until do done case esac in function return local export set unset cd echo exit source sudo",
  },
  {
    names: "ruby rb perl pl r elixir ex julia jl toml yaml yml ini conf dockerfile docker makefile make cmake nix",
    comment: HASH,
    string: `${TRIPLE}|${DOUBLE}|${SINGLE}`,
    words:
      "if else elsif end def class module return do while for in function begin rescue ensure require my use sub true false nil null FROM RUN COPY CMD ENV WORKDIR ENTRYPOINT",
  },
  {
    names: "sql sqlite postgres postgresql mysql lua haskell hs",
    comment: `${DASH}|${String.raw`/\*[^]*?(?:\*/|$)`}`,
    string: `${DOUBLE}|${SINGLE}`,
    words:
      "select from where and or not in is null as join left right inner outer on group by order having limit offset insert into values update set delete create table index primary key foreign references drop alter distinct union all case when then else end exists between like function local return if for while do data type instance module import let with",
    anyCase: true,
  },
  { names: "json jsonc json5", comment: SLASH, string: `${DOUBLE}|${SINGLE}`, words: "true false null" },
  {
    names: "css scss less",
    comment: SLASH,
    string: `${DOUBLE}|${SINGLE}`,
    words: "important inherit initial none auto from to and not",
    name: "@?-?-?[A-Za-z_][\\w-]*",
  },
  {
    names: "html xml svg vue xhtml",
    comment: "<!--[^]*?(?:-->|$)",
    string: `${DOUBLE}|${SINGLE}`,
    words: "",
    // A tag's name; the brackets are left as they are.
    keyword: "(?<=</?)[A-Za-z][\\w:-]*",
  },
];

const TABLE = new Map();
for (const language of LANGUAGES) {
  const known = { ...language, words: new Set(language.words.split(" ")) };
  for (const name of language.names.split(" ")) TABLE.set(name, known);
}

/** Compiled on first use: most pages show two or three languages. */
function scanner(language) {
  language.scanner ??= new RegExp(
    [
      `(?<comment>${language.comment})`,
      `(?<string>${language.string})`,
      ...(language.keyword ? [`(?<keyword>${language.keyword})`] : []),
      `(?<number>\\b\\d[\\w.]*)`,
      `(?<name>${language.name ?? "[A-Za-z_$][\\w$]*"})`,
    ].join("|"),
    "g",
  );
  return language.scanner;
}

function classOf(language, groups, text, end) {
  if (groups.comment !== undefined) return "comment";
  if (groups.keyword !== undefined) return "keyword";
  if (groups.number !== undefined) return "number";
  // A string before a colon is a key.
  if (groups.string !== undefined)
    return language === TABLE.get("json") && /^\s*:/.test(text.slice(end, end + 20)) ? "call" : "string";
  const word = language.anyCase ? groups.name.toLowerCase() : groups.name;
  if (language.words.has(word)) return "keyword";
  return text[end] === "(" ? "call" : undefined;
}

function piece(text, kind) {
  const span = document.createElement("span");
  span.className = `code-${kind}`;
  span.textContent = text;
  return span;
}

function diff(code, parent) {
  for (const line of code.split(/(?<=\n)/)) {
    const kind = { "+": "added", "-": "removed", "@": "keyword" }[line[0]];
    parent.append(kind ? piece(line, kind) : line);
  }
}

/** Appends `code` to `parent`, in colours if the language is known. */
export function highlight(code, name, parent) {
  const language = TABLE.get(name.toLowerCase());
  if (code.length > LONGEST) parent.append(code);
  else if (name === "diff" || name === "patch") diff(code, parent);
  else if (!language) parent.append(code);
  else {
    let done = 0;
    for (const match of code.matchAll(scanner(language))) {
      const end = match.index + match[0].length;
      const kind = classOf(language, match.groups, code, end);
      if (!kind) continue;
      parent.append(code.slice(done, match.index), piece(match[0], kind));
      done = end;
    }
    parent.append(code.slice(done));
  }
}
