"""Seeded generators of every skill, each with a checkable answer.

A sample: {"skill", "messages" (ends with the target assistant turn), "tools", "think", "check": (kind, value), "images"}.
"""
import json
import random
import re

from . import lexicon as L

SYSTEMS = ["You are a helpful assistant.", "You are Fledgling, a tiny assistant.", "Answer briefly.", "You are a careful assistant. Be concise.",
           "You are martlet's built-in helper.", "Be polite and precise."]


def an(s):
    return ("an " if s[0] in "aeiou" else "a ") + s


def join_and(xs, w="and"):
    xs = list(xs)
    return xs[0] if len(xs) == 1 else ", ".join(xs[:-1]) + " " + w + " " + xs[-1]


def qa(skill, q, a, think=None, reason="", check=None, sys=None, **kw):
    m = []
    if sys:
        m.append({"role": "system", "content": sys})
    m.append({"role": "user", "content": q})
    am = {"role": "assistant", "content": a}
    if think:
        am["reasoning_content"] = reason
    m.append(am)
    return dict(skill=skill, messages=m, tools=None, think=bool(think), check=check or ("exact", a), images=[], **kw)


def maybe_sys(r):
    return r.choice(SYSTEMS) if r.random() < 0.25 else None


# ---------------------------------------------------------------- 1 identity, greetings, small dictionary, copying
def gen_identity(r):
    t = r.random(); think = r.random() < 0.4
    if t < 0.5:
        lang = r.choice(list(L.CHAT)) if r.random() < 0.7 else "en"
        qs, a = r.choice(L.CHAT[lang]); q = r.choice(qs); n = r.choice(L.NAMES)
        q, a = q.replace("{n}", n), a.replace("{n}", n)
        return qa("identity", q, a, think, "A short friendly reply in the same language.", sys=maybe_sys(r))
    if t < 0.75:
        w = r.choice(list(L.TRANS)); i = r.randrange(7); tr = L.TRANS[w]
        if i == 6:
            q, a = r.choice([("Which emoji shows a %s?" % w, tr[6]), ("What does %s show?" % tr[6], "It shows a %s." % w)])
        elif r.random() < 0.6:
            q, a = r.choice(["How do you say %s in {}?", "Translate %s into {}.", "What is the {} word for %s?"]).replace("{}", L.LANGS[i]) % w, tr[i]
        else:
            q, a = "What does %s mean in English?" % tr[i], "It means %s." % w
        return qa("identity", q, a, think, "%s: %s." % (w, tr[i]), sys=maybe_sys(r))
    k = r.randint(2, 7)
    ws = [r.choice(L.SCRIPT_WORDS) if r.random() < 0.7 else (L.TRANS[r.choice(list(L.TRANS))][r.randrange(7)] if r.random() < 0.5 else L.pseudo(r)) for _ in range(k)]
    s = " ".join(ws)
    return qa("identity", r.choice(["Repeat exactly: %s", "Copy this text: %s", "Say this back to me: %s"]) % s, s, think, "I copy the text.", sys=maybe_sys(r))


# ---------------------------------------------------------------- 2 arithmetic
def add_steps(a, b):
    A, B = str(a)[::-1], str(b)[::-1]
    out, c = [], 0
    for i in range(max(len(A), len(B))):
        x, y = int(A[i]) if i < len(A) else 0, int(B[i]) if i < len(B) else 0
        s = x + y + c
        out.append("%d+%d%s=%d" % (x, y, "+1" if c else "", s)); c = s // 10
    return ", ".join(out) + ". %d+%d=%d." % (a, b, a + b)


def sub_steps(a, b):
    A, B = str(a)[::-1], str(b)[::-1]
    out, c = [], 0
    for i in range(len(A)):
        x, y = int(A[i]), (int(B[i]) if i < len(B) else 0) + c
        c = 1 if x < y else 0
        out.append("%d-%d=%d" % (x + 10 * c, y, x + 10 * c - y))
    return ", ".join(out) + ". %d-%d=%d." % (a, b, a - b)


def mul1_steps(a, d):
    A = str(a)[::-1]; out, c = [], 0
    for x in A:
        s = int(x) * d + c
        out.append("%s*%d%s=%d" % (x, d, "+%d" % c if c else "", s)); c = s // 10
    return ", ".join(out) + ". %d*%d=%d." % (a, d, a * d)


def arith(r, think):
    if think:
        op = r.choice("+++--**2c")
        if op == "+":
            a, b = r.randrange(10 ** r.randint(1, 5)), r.randrange(10 ** r.randint(1, 5)); return "%d + %d" % (a, b), a + b, add_steps(a, b)
        if op == "-":
            a, b = r.randrange(10 ** r.randint(1, 5)), r.randrange(10 ** r.randint(1, 5)); a, b = max(a, b), min(a, b)
            return "%d - %d" % (a, b), a - b, sub_steps(a, b)
        if op == "*":
            a, b = r.randrange(2, 10 ** r.randint(1, 4)) if r.random() < 0.9 else 7, r.randint(2, 9); return "%d * %d" % (a, b), a * b, mul1_steps(a, b)
        if op == "2":
            a, b = r.randint(11, 99), r.randint(11, 99); t, o = b // 10, b % 10
            s = "%d=%d+%d. %s " % (b, t * 10, o, mul1_steps(a, t)) + "So %d*%d=%d. " % (a, t * 10, a * t * 10)
            s += ("%s %s" % (mul1_steps(a, o), add_steps(a * t * 10, a * o))) if o else "Done."
            return "%d * %d" % (a, b), a * b, s
        a, b, c = r.randint(1, 99), r.randint(1, 99), r.randint(1, 99)
        s = add_steps(a, b)
        if r.random() < 0.5 and a + b >= c:
            return "%d + %d - %d" % (a, b, c), a + b - c, s + " Then " + sub_steps(a + b, c)
        return "%d + %d + %d" % (a, b, c), a + b + c, s + " Then " + add_steps(a + b, c)
    op = r.choice("++-*/")
    if op == "+":
        a, b = r.randint(0, 99), r.randint(0, 99); return "%d + %d" % (a, b), a + b, ""
    if op == "-":
        a, b = sorted((r.randint(0, 99), r.randint(0, 99)), reverse=True); return "%d - %d" % (a, b), a - b, ""
    a, b = r.randint(2, 12), r.randint(2, 12)
    return ("%d * %d" % (a, b), a * b, "") if op == "*" else ("%d / %d" % (a * b, b), a, "")


def word_problem(r, think):
    hi = 999 if think else 60
    n, n2 = r.sample(L.NAMES, 2); thing = r.choice(L.FOODS + L.OBJECTS); pl = thing + "s" if not thing.endswith(("s", "x", "h")) else thing + " pieces"
    a, b = r.randint(2, hi), r.randint(2, hi)
    t = r.randrange(3 if think else 2)
    if t == 0:
        return "%s has %d %s and %s %d more. How many %s does %s have now?" % (n, a, pl, r.choice(["buys", "finds", "gets"]), b, pl, n), a + b, add_steps(a, b), "%s has %d %s." % (n, a + b, pl)
    if t == 1:
        a, b = max(a, b), min(a, b)
        return "%s has %d %s and gives %d to %s. How many %s are left?" % (n, a, pl, b, n2, pl), a - b, sub_steps(a, b), "%d %s are left." % (a - b, pl)
    b = r.randint(2, 9)
    return "There are %d boxes with %d %s each. How many %s are there in total?" % (b, a, pl, pl), a * b, mul1_steps(a, b), "There are %d %s in total." % (a * b, pl)


def gen_arithmetic(r):
    think = r.random() < 0.6
    if r.random() < 0.25:
        q, v, s, a = word_problem(r, think)
        return qa("arithmetic", q, a, think, s, sys=maybe_sys(r))
    if r.random() < 0.07:
        a, b = r.randint(1, 999), r.randint(1, 999)
        if a == b: b += 1
        return qa("arithmetic", "Which is larger, %d or %d?" % (a, b), "%d is larger." % max(a, b), think, "%d > %d." % (max(a, b), min(a, b)))
    e, v, s = arith(r, think)
    form = r.randrange(4)
    q = ["Compute %s.", "What is %s?", "Calculate %s. Answer with the number only.", "%s = ?"][form] % e
    a = ["%s = %d." % (e, v), "%s is %d." % (e, v), "%d" % v, "%d" % v][form]
    return qa("arithmetic", q, a, think, s, sys=maybe_sys(r))


# ---------------------------------------------------------------- 3 tiny stories
def _np(r):
    return "%s %s" % (r.choice(L.ADJ), r.choice(L.OBJECTS))


def story_sentence(r, c):
    """One sentence about the characters in c."""
    h, f, o, p = c["h"], c["f"], c["o"], c["p"]
    v = r.choice(L.VERBS); t = r.randrange(22)
    he = c["he"]; He = he.capitalize(); his = c["his"]
    if t == 0: return "%s, %s %s to the %s %s." % (r.choice(L.TIMES), h, r.choice(L.MOVES), r.choice(L.ADJ), r.choice(L.PLACES))
    if t == 1: return "%s %s the %s %s near the %s." % (He, v[1], r.choice(L.ADJ), o, p)
    if t == 2: return '"%s," %s %s.' % (r.choice(["We must hurry", "I am not afraid", "Look at this", "Please help me", "It is too dark here", "I know a secret", "What a fine day", "Wait for me", "This belongs to you", "Nobody lives here"]), r.choice(L.SAYS), r.choice([h, f, he]))
    if t == 3: return "%s met %s, who was %s %s." % (h, r.choice([f, "an old " + r.choice(L.JOBS)]), v[2], "a " + _np(r) if True else "")
    if t == 4: return "The %s was %s and %s." % (r.choice([o, p]), r.choice(L.ADJ), r.choice(L.ADJ))
    if t == 5: return "%s felt %s because the %s was %s." % (He, r.choice(L.FEELS), r.choice([o, p]), r.choice(L.ADJ))
    if t == 6: return "%s %s %s the %s to %s." % (r.choice(L.TIMES), f, v[1], o, r.choice(["a " + r.choice(L.JOBS), h, r.choice(L.NAMES)]))
    if t == 7: return "There was %s under the %s." % (an(_np(r)), r.choice(L.OBJECTS))
    if t == 8: return "%s and %s %s all the way to %s." % (h, f, r.choice(L.MOVES), r.choice(L.CITIES))
    if t == 9: return "%s wanted to %s the %s, but it was too %s." % (h, v[0], r.choice([o, r.choice(L.OBJECTS)]), r.choice(L.ADJ))
    if t == 10: return "A %s %s came out of the %s and %s at %s." % (r.choice(L.ADJ), r.choice(L.ANIMALS), r.choice(L.PLACES), r.choice(["smiled", "barked", "stared", "looked", "growled", "winked"]), he if he != "it" else "them")
    if t == 11: return "%s gave %s %s and some %s." % (f, c["him"], an(_np(r)), r.choice(L.FOODS))
    if t == 12: return "In %s bag there was %s, %s and %s." % (his, an(_np(r)), an(r.choice(L.OBJECTS)), an(r.choice(L.OBJECTS)))
    if t == 13: return "%s %s for %s days, eating only %s and %s." % (He, r.choice(L.MOVES), r.choice("two three four five six seven ten".split()), r.choice(L.FOODS), r.choice(L.FOODS))
    if t == 14: return "The %s in the %s was very %s that day." % (r.choice(L.JOBS), p, r.choice(L.FEELS))
    if t == 15: return "%s, %s %s the %s with %s %s." % (r.choice(L.TIMES), h, v[1], r.choice(L.OBJECTS), his, r.choice(["hands", "teeth", "best friend", "eyes closed", "old tools"]))
    if t == 16: return "It was a %s %s and the %s was covered with %s." % (r.choice(L.WEATHER), r.choice(L.DAYS), p, r.choice(["snow", "leaves", "mud", "flowers", "dust", "ice"]))
    if t == 17: return "%s asked %s about the %s, and %s told %s everything." % (h, f, o, f, c["him"])
    if t == 18: return "%s loved %s more than %s." % (f if r.random() < 0.5 else h, r.choice(L.HOBBIES), r.choice(L.HOBBIES))
    if t == 19: return "Someone had %s the %s in the %s." % (v[1] if v[1] not in ("took", "broke", "drew", "stole", "threw") else "left", r.choice([o, r.choice(L.OBJECTS)]), r.choice(L.PLACES))
    if t == 20: return "They shared the %s and %s until the %s sun went down." % (r.choice(L.FOODS), r.choice(["talked", "sang", "played", "laughed"]), r.choice(L.COLORS))
    return "%s never forgot the %s of the %s." % (h, r.choice(["smell", "colour", "sound", "story", "keeper"]), p)


ENDS = ["From that day on, {h} and {f} were best friends.", "And {h} kept the {o} for ever.", "So {h} went home and slept until morning.",
        "The {o} still stands in the {p} today.", "And nobody was {e} in the {p} again.", "That is how {h} learned to be {e}.",
        "In the end, {f} laughed, and {h} laughed too."]


def story(r, kw=None, n=None):
    animal = r.choice(L.ANIMALS)
    place, obj = r.choice(L.PLACES), r.choice(L.OBJECTS)
    if kw:
        animal, obj, place = kw
    name, friend = r.sample(L.NAMES, 2)
    fem = name[-1] in "ay" or name in ("Greta", "Beth", "Iris")
    he, him, his = ("she", "her", "her") if fem else ("he", "him", "his")
    c = dict(h=name, f=friend, o=obj, p=place, he=he, him=him, his=his)
    s = [r.choice(["Once upon a time, there was %s called %s.", "Long ago, %s named %s lived far away.", "There once was %s whose name was %s."]) % (an(r.choice(L.ADJ) + " " + animal), name)]
    s.append(r.choice(["%s lived in the %s %s and owned %s." % (name, r.choice(L.ADJ), place, an(r.choice(L.ADJ) + " " + obj)),
                       "%s home was the %s, and %s had only one treasure: %s." % (his.capitalize(), place, he, an(r.choice(L.ADJ) + " " + obj)),
                       "Every day %s went to the %s to look at the %s." % (he, place, obj)]))
    s.append("%s friend %s was %s." % (his.capitalize(), friend, an(r.choice(L.ADJ) + " " + r.choice(L.JOBS + L.ANIMALS))))
    for _ in range(n or r.randint(5, 14)):
        s.append(story_sentence(r, c))
    s.append(r.choice(ENDS).format(h=name, f=friend, o=obj, p=place, e=r.choice(L.FEELS)))
    out, cur = [], []
    for x in s:
        x = x[0].upper() + x[1:]
        cur.append(x)
        if len(cur) >= 4 and r.random() < 0.3:
            out.append(" ".join(cur)); cur = []
    if cur:
        out.append(" ".join(cur))
    return "\n\n".join(out)


def gen_story(r):
    kw = (r.choice(L.ANIMALS), r.choice(L.OBJECTS), r.choice(L.PLACES)); k = list(kw) if r.random() < 0.7 else list(kw[:2])
    think = r.random() < 0.4; st = story(r, kw)
    q = r.choice(["Write a tiny story about %s.", "Tell me a story with %s.", "Make up a short story about %s.", "Please write a story. Use these words: %s."])
    q = q % (", ".join(k) if "words" in q else join_and([an(x) for x in k]))
    return qa("story", q, st, think, "The story needs %s." % join_and([an(x) for x in k]), check=("words", k), sys=maybe_sys(r))


# ---------------------------------------------------------------- 4 reading
ATTR = {
    "city": (L.CITIES, ["{n} lives in {v}.", "The home of {n} is in {v}.", "{n} moved to {v} a while ago."], "Where does {n} live?", "{n} lives in {v}.", "Who lives in {v}?"),
    "job": (L.JOBS, ["{n} works as a {v}.", "{n} is a {v} by trade.", "For a living, {n} is a {v}."], "What is the job of {n}?", "{n} is a {v}.", "Who is a {v}?"),
    "pet": (L.ANIMALS, ["{n} has a pet {v}.", "The pet of {n} is a {v}.", "{n} keeps a {v} at home."], "What pet does {n} have?", "{n} has a pet {v}.", "Who has a pet {v}?"),
    "food": (L.FOODS, ["{n} loves to eat {v}.", "The favourite food of {n} is {v}.", "{n} eats {v} every day."], "What is the favourite food of {n}?", "{n} likes {v} best.", "Who likes {v} best?"),
    "hobby": (L.HOBBIES, ["In the evening {n} enjoys {v}.", "The hobby of {n} is {v}.", "{n} spends weekends with {v}."], "What is the hobby of {n}?", "The hobby of {n} is {v}.", "Whose hobby is {v}?"),
    "age": ([str(i) for i in range(11, 90)], ["{n} is {v} years old.", "The age of {n} is {v}."], "How old is {n}?", "{n} is {v} years old.", "Who is {v} years old?"),
    "item": (L.OBJECTS, ["{n} bought a {v} yesterday.", "Yesterday {n} got a new {v}.", "There is a {v} in the room of {n}."], "What did {n} get yesterday?", "{n} got a {v}.", "Who got a {v}?"),
    "day": (L.DAYS, ["{n} was born on a {v}.", "The birthday of {n} falls on a {v}."], "On which day was {n} born?", "{n} was born on a {v}.", None),
}


def make_facts(r, nper, nattr):
    names = r.sample(L.NAMES, nper); facts = []
    for a in r.sample(list(ATTR), nattr):
        vals = r.sample(ATTR[a][0], nper) if len(ATTR[a][0]) >= nper else [r.choice(ATTR[a][0]) for _ in names]
        for n, v in zip(names, vals):
            facts.append((n, a, v, r.choice(ATTR[a][1]).format(n=n, v=v)))
    r.shuffle(facts)
    return facts


def fact_q(r, facts):
    n, a, v, s = r.choice(facts); _, _, q, ans, inv = ATTR[a]
    t = r.random()
    if t < 0.2 and inv and sum(1 for f in facts if f[1] == a and f[2] == v) == 1:
        return inv.format(v=v), ans.format(n=n, v=v), s
    if t < 0.35:
        w = v if r.random() < 0.5 else r.choice([f[2] for f in facts if f[1] == a])
        return "True or false: %s" % ans.format(n=n, v=w), ("True." if w == v else "False."), s
    if t < 0.43:
        m = r.choice([x for x in L.NAMES if all(f[0] != x for f in facts)])
        return q.format(n=m), "The text does not say.", "There is nothing about %s in the text." % m
    return q.format(n=n), ans.format(n=n, v=v), s


def gen_reading(r, first=False):
    """first: the question stands before the text (much harder for two attention layers; scored as a skill of its own)"""
    facts = make_facts(r, r.randint(2, 5), r.randint(2, 4)); sents = [f[3] for f in facts]
    for _ in range(r.randint(0, 4)):
        sents.insert(r.randrange(len(sents) + 1), "The %s was %s on that %s day." % (r.choice(L.PLACES), r.choice(L.ADJ), r.choice(L.WEATHER)))
    text = " ".join(sents); think = r.random() < 0.5
    q, a, s = fact_q(r, facts)
    head = r.choice(["Read the text and answer.\n\n%s\n\nQuestion: %s", "%s\n\n%s", "Text: %s\n\n%s"]) if not first else "Question about a text: {q}\n\n%s"
    user = head.replace("{q}", q) % text if "{q}" in head else head % (text, q)
    reason = 'The text says: "%s"' % s if not s.startswith("There is nothing") else s
    smp = qa("reading", user, a, think, reason, sys=maybe_sys(r))
    if r.random() < 0.35 and "{q}" not in head:  # more questions on the same text
        more = []
        for _ in range(r.randint(1, 4)):
            q2, a2, s2 = fact_q(r, facts)
            more.append((q2, a2, s2))
        extend_turns(smp, [(x[0], x[1], 'The text says: "%s"' % x[2] if not x[2].startswith("There is nothing") else x[2]) for x in more])
    return smp


def extend_turns(smp, more):
    m = smp["messages"]
    for q, a, s in more:
        m[-1].pop("reasoning_content", None)
        m.append({"role": "user", "content": q}); m.append({"role": "assistant", "content": a})
        if smp["think"]:
            m[-1]["reasoning_content"] = s
    smp["check"] = ("exact", m[-1]["content"])


# ---------------------------------------------------------------- 5 retrieval in long contexts
def filler(r):
    t = r.randrange(8)
    if t == 0: return "The %s %s %s past the %s." % (r.choice(L.ADJ), r.choice(L.ANIMALS), r.choice(L.MOVES), r.choice(L.PLACES))
    if t == 1: return "%s bought %s %s in %s." % (r.choice(L.NAMES), r.choice(L.ADJ), r.choice(L.FOODS), r.choice(L.CITIES))
    if t == 2: return "It was %s on %s, and the %s stayed %s." % (r.choice(L.WEATHER), r.choice(L.DAYS), r.choice(L.PLACES), r.choice(L.ADJ))
    if t == 3: return "A %s %s the %s near the %s." % (r.choice(L.JOBS), r.choice(L.VERBS)[1], r.choice(L.OBJECTS), r.choice(L.PLACES))
    if t == 4: return "%s and %s like %s." % (r.choice(L.NAMES), r.choice(L.NAMES), r.choice(L.HOBBIES))
    if t == 5: return "The %s is %s and the %s is %s." % (r.choice(L.OBJECTS), r.choice(L.ADJ), r.choice(L.OBJECTS), r.choice(L.COLORS))
    if t == 6: return "Train %d leaves for %s at %d:%02d." % (r.randint(1, 999), r.choice(L.CITIES), r.randint(0, 23), r.randint(0, 59))
    return "In %s the %s %s slowly." % (r.choice(L.MONTHS), r.choice(L.ANIMALS), r.choice(L.MOVES))


def rkey(r):
    t = r.random()
    if t < 0.5: return "%s-%s" % (r.choice(L.ADJ), r.choice(L.OBJECTS + L.ANIMALS))
    if t < 0.8: return L.pseudo(r, 2, 3)
    return "%s %s" % (r.choice(L.COLORS), r.choice(L.ANIMALS))


def rval(r):
    t = r.random()
    if t < 0.55: return str(r.randint(10 ** 3, 10 ** r.randint(4, 7) - 1))
    if t < 0.75: return "".join(r.choice("0123456789abcdef") for _ in range(8))
    return "%s %s" % (r.choice(L.ADJ), r.choice(L.OBJECTS))


# average tokens of a filler sentence / needle / bare "key: value" line, used to hit a target length
TOK = {"filler": 9.4, "needle": 14.8, "ruler": 18.6, "kv": 10.9}


def gen_retrieval(r, lo=100, hi=2048, n_tokens=None):
    import math
    target = n_tokens or int(math.exp(r.uniform(math.log(lo), math.log(hi))))
    target = max(60, target - 45)
    style = r.choice(["needle", "needle", "kv", "ruler"]); think = r.random() < 0.35
    multi = r.random() < 0.25
    nkeys = r.randint(1, 6) if style != "kv" else max(3, int(target / TOK["kv"]))
    keys = []
    seen = set()
    while len(keys) < nkeys:
        k = rkey(r)
        if k not in seen:
            seen.add(k); keys.append(k)
        elif len(seen) > 4000: break
    pairs = [(k, rval(r)) for k in keys]
    if multi and style != "kv":  # several values for one key
        k = r.choice(keys)
        for _ in range(r.randint(1, 3)):
            pairs.append((k, rval(r)))
    r.shuffle(pairs)
    fmt = {"needle": "The secret code of %s is %s.", "ruler": "One of the special magic numbers for %s is: %s.", "kv": "%s: %s"}[style]
    if style == "kv":
        lines = [fmt % p for p in pairs]; text = "\n".join(lines)
    else:
        nf = max(1, int((target - TOK[style] * len(pairs)) / TOK["filler"]))
        slots = sorted(r.randrange(nf + 1) for _ in pairs); lines = []
        j = 0
        par = r.randint(3, 9)
        for i in range(nf + 1):
            while j < len(pairs) and slots[j] == i:
                lines.append(fmt % pairs[j]); j += 1
            if i < nf:
                lines.append(filler(r))
        text = "\n".join(" ".join(lines[i:i + par]) for i in range(0, len(lines), par))
    dic = {}
    for k, v in pairs:
        dic.setdefault(k, []).append(v)

    def question(first):
        if r.random() < 0.06:
            while True:
                k = rkey(r)
                if k not in dic: break
            vs = []
        else:
            k = r.choice(list(dic)) if r.random() < 0.6 or not multi else max(dic, key=lambda x: len(dic[x]))
            vs = dic[k]
        word = {"needle": "secret code", "ruler": "special magic number", "kv": "value"}[style]
        if multi and style != "kv":
            q = "What are all the %ss of %s?" % (word, k)
        elif len(dic) > 2 and vs and r.random() < 0.15:
            k2 = r.choice([x for x in dic if x != k]); vs = vs[:1] + dic[k2][:1]
            return "What are the %ss of %s and %s?" % (word, k, k2), "%s and %s." % tuple(vs), "%s: %s. %s: %s." % (k, vs[0], k2, vs[1])
        else:
            q = "What is the %s of %s?" % (word, k)
        if not vs:
            return q, "There is none.", "%s is not in the text." % k
        return q, ", ".join(vs) + ".", "%s: %s." % (k, ", ".join(vs))

    q, a, s = question(True)
    head = r.choice(["Remember this text.\n\n%s\n\n%s", "%s\n\n%s", "Here is a long list of facts:\n%s\n\nQuestion: %s"])
    smp = qa("retrieval", head % (text, q), a, think, s)
    extra = (1 + min(6, target // 400)) if r.random() < 0.85 and n_tokens is None else 0
    if extra:
        extend_turns(smp, [question(False) for _ in range(r.randint(1, extra))])
    return smp


# ---------------------------------------------------------------- 6 JSON extraction
def _email(r, n): return "%s@%s.%s" % (n.lower(), L.pseudo(r, 2, 2), r.choice(["com", "org", "net", "io"]))


def json_case(r):
    t = r.randrange(5)
    if t == 0:
        n = r.choice(L.NAMES); d = dict(name=n, age=r.randint(5, 99), city=r.choice(L.CITIES), job=r.choice(L.JOBS), email=_email(r, n), married=r.random() < 0.5,
                                        hobbies=r.sample(L.HOBBIES, r.randint(1, 3)))
        s = ["%s is %d years old." % (n, d["age"]), "%s lives in %s." % (n, d["city"]), "%s works as a %s." % (n, d["job"]), "You can write to %s." % d["email"],
             "%s is %s." % (n, "married" if d["married"] else "not married"), "%s likes %s." % (n, join_and(d["hobbies"]))]
        ty = dict(name="string", age="integer", city="string", job="string", email="string", married="boolean", hobbies="array")
    elif t == 1:
        n = r.choice(L.NAMES); it = r.choice(L.OBJECTS)
        d = dict(order_id="%s%d" % (r.choice("ABCDXYZ"), r.randint(100, 99999)), customer=n, item=it, quantity=r.randint(1, 40), price=r.randint(1, 200) + r.choice([0.25, 0.5, 0.75, 0.99]),
                 express=r.random() < 0.5, address=dict(city=r.choice(L.CITIES), zip=str(r.randint(10000, 99999))))
        s = ["Order %s was placed by %s." % (d["order_id"], n), "It is for %d times the %s." % (d["quantity"], it), "Each one costs %s euros." % d["price"],
             "Please send it by %s mail." % ("express" if d["express"] else "normal"), "The address is in %s, zip code %s." % (d["address"]["city"], d["address"]["zip"])]
        ty = dict(order_id="string", customer="string", item="string", quantity="integer", price="number", express="boolean", address="object")
    elif t == 2:
        d = dict(title="%s %s" % (r.choice(L.ADJ).capitalize(), r.choice(L.HOBBIES)), day=r.choice(L.DAYS), time="%d:%02d" % (r.randint(8, 22), r.choice([0, 15, 30, 45])), place=r.choice(L.PLACES),
                 city=r.choice(L.CITIES), guests=r.sample(L.NAMES, r.randint(1, 4)), free=r.random() < 0.5, seats=r.randint(5, 500))
        s = ["The event %s is on %s at %s." % (d["title"], d["day"], d["time"]), "It takes place in the %s in %s." % (d["place"], d["city"]), "The guests are %s." % join_and(d["guests"]),
             "Entry is %s." % ("free" if d["free"] else "not free"), "There are %d seats." % d["seats"]]
        ty = dict(title="string", day="string", time="string", place="string", city="string", guests="array", free="boolean", seats="integer")
    elif t == 3:
        d = dict(product=r.choice(L.OBJECTS), color=r.choice(L.COLORS), price=r.randint(1, 900) + r.choice([0.1, 0.5, 0.95]), stock=r.randint(0, 900), weight_kg=r.randint(1, 90) / 10,
                 tags=r.sample(L.ADJ, r.randint(1, 3)), available=r.random() < 0.5, code=L.pseudo(r, 2, 2).upper() + str(r.randint(1, 99)))
        s = ["Our %s %s costs %s dollars." % (d["color"], d["product"], d["price"]), "We have %d of them in stock." % d["stock"], "It weighs %s kg." % d["weight_kg"],
             "Customers call it %s." % join_and(d["tags"]), "It is %s for delivery." % ("available" if d["available"] else "not available"), "The code is %s." % d["code"]]
        ty = dict(product="string", color="string", price="number", stock="integer", weight_kg="number", tags="array", available="boolean", code="string")
    else:
        d = dict(city=r.choice(L.CITIES), weather=r.choice(L.WEATHER), temperature=r.randint(-20, 40), wind_kmh=r.randint(0, 120), warning=r.random() < 0.5,
                 rain_mm=r.randint(0, 400) / 10, date="%d %s" % (r.randint(1, 28), r.choice(L.MONTHS)), station=dict(id=r.randint(1, 999), height=r.randint(1, 3000)))
        s = ["Report from %s for %s." % (d["city"], d["date"]), "The weather is %s with %d degrees." % (d["weather"], d["temperature"]), "The wind blows at %d km/h." % d["wind_kmh"],
             "There is %s storm warning." % ("a" if d["warning"] else "no"), "The rain measured %s mm." % d["rain_mm"], "The station has number %d and lies at %d m." % (d["station"]["id"], d["station"]["height"])]
        ty = dict(city="string", weather="string", temperature="integer", wind_kmh="integer", warning="boolean", rain_mm="number", date="string", station="object")
    s = s[:1] + r.sample(s[1:], len(s) - 1)
    return d, s, ty


def gen_json(r):
    d, s, ty = json_case(r); ks = r.sample(list(d), r.randint(2, len(d)))
    missing = None
    schema = {}
    for k in ks:
        schema[k] = {x: ("string" if isinstance(v, str) else "integer") for x, v in d[k].items()} if ty[k] == "object" else ty[k]
    out = {k: d[k] for k in ks}
    if r.random() < 0.15:
        missing = r.choice(["phone", "notes", "website", "owner"]); schema[missing] = "string or null"; out[missing] = None
    text = " ".join(s)
    sch = json.dumps(schema)
    q = r.choice(["Extract the data as JSON.\nSchema: {s}\n\nText: {t}", "{t}\n\nReturn JSON with this schema: {s}", "Fill this JSON schema from the text.\n{s}\n\n{t}"]).replace("{s}", sch).replace("{t}", text)
    think = r.random() < 0.4
    return qa("json", q, json.dumps(out, ensure_ascii=False), think, "Fields: %s." % ", ".join(schema), check=("json", out), sys=maybe_sys(r))


# ---------------------------------------------------------------- 7 tools
def P(t, d, **k):
    return dict(type=t, description=d, **k)


def _city(r): return r.choice(L.CITIES)


def _path(r): return "%s/%s.%s" % (r.choice(["src", "docs", "notes", "web", "lib/core", "a b", "."]), L.pseudo(r, 2, 3), r.choice(["py", "md", "html", "json", "rs", "txt"]))


def _line(r):
    x, y = L.pseudo(r, 1, 2), L.pseudo(r, 1, 2)
    return r.choice(["%s = %d" % (x, r.randint(0, 999)), 'print("%s")' % x, "%s(%s, '%s')" % (x, y, r.choice(L.FOODS)), "<b>%s</b>" % x, "if %s < %s && %s > 2 {" % (x, y, x), "// %s %s" % (r.choice(L.ADJ), r.choice(L.OBJECTS)), "let %s = \"%s\\n\";" % (x, y)])


def _content(r):
    """several lines, as files have them: indentation, quotes, tags, backslashes, empty lines"""
    t = r.randrange(5); n = r.randint(1, 4); f, x = L.pseudo(r, 2, 2), L.pseudo(r, 1, 2)
    if t == 0: return "def %s(%s):\n" % (f, x) + "".join("    %s\n" % _line(r) for _ in range(n)) + "    return %s" % x
    if t == 1: return "<ul>\n" + "".join('  <li class="%s">%s</li>\n' % (r.choice(L.COLORS), r.choice(L.FOODS)) for _ in range(n)) + "</ul>"
    if t == 2: return json.dumps({r.choice(L.ADJ): r.choice([r.randint(0, 99), r.choice(L.NAMES), r.random() < 0.5, [r.randint(0, 9), r.randint(0, 9)]]) for _ in range(n)}, indent=2)
    if t == 3: return "# %s\n\n" % r.choice(L.PLACES) + "\n".join("- %s %s" % (r.choice(L.ADJ), r.choice(L.OBJECTS)) for _ in range(n))
    return "\n".join("  " * r.choice([0, 0, 1, 2]) * (i > 0) + _line(r) for i in range(n))


STATIC = [  # name, description, params {name: (schema, sampler)}, required, requests, response sampler, final answer
    ("get_weather", "Get the current weather of a city.", {"city": (P("string", "Name of the city"), _city), "unit": (P("string", "Temperature unit", enum=["celsius", "fahrenheit"]), lambda r: r.choice(["celsius", "fahrenheit"]))}, ["city"],
     ["What is the weather in {city}{unit? in }?", "How is the weather in {city} today{unit?, in }?"], lambda r, a: dict(temperature=r.randint(-9, 35), condition=r.choice(L.WEATHER)), "It is {condition} in [city] with {temperature} degrees."),
    ("get_time", "Get the local time of a city.", {"city": (P("string", "Name of the city"), _city)}, ["city"], ["What time is it in {city}?", "Tell me the time in {city}."],
     lambda r, a: dict(time="%d:%02d" % (r.randint(0, 23), r.randint(0, 59))), "It is {time} in [city]."),
    ("send_email", "Send an email to a person.", {"to": (P("string", "Email address"), lambda r: _email(r, r.choice(L.NAMES))), "subject": (P("string", "Subject line"), lambda r: _np(r)), "urgent": (P("boolean", "Mark as urgent"), lambda r: r.random() < 0.5)}, ["to", "subject"],
     ["Send an email to {to} with the subject {subject}{urgent? that is urgent: }.", "Write to {to} about {subject}{urgent?, urgent: }."], lambda r, a: dict(status="sent", id=r.randint(1, 9999)), "The email to [to] was sent with id {id}."),
    ("set_timer", "Start a timer.", {"minutes": (P("integer", "Duration in minutes"), lambda r: r.randint(1, 180)), "label": (P("string", "Name of the timer"), lambda r: r.choice(L.FOODS))}, ["minutes"],
     ["Set a timer for {minutes} minutes{label? called }.", "Start a {minutes} minute timer{label? for }."], lambda r, a: dict(ok=True, ends="%d:%02d" % (r.randint(0, 23), r.randint(0, 59))), "The timer ends at {ends}."),
    ("calculator", "Evaluate an arithmetic expression.", {"expression": (P("string", "The expression"), lambda r: "%d %s %d" % (r.randint(100, 99999), r.choice("+-*"), r.randint(100, 9999)))}, ["expression"],
     ["Use the calculator for {expression}.", "Calculate {expression} with the tool."], lambda r, a: dict(result=r.randint(100, 9999999)), "The result is {result}."),
    ("book_flight", "Book a flight between two cities.", {"origin": (P("string", "Departure city"), _city), "destination": (P("string", "Arrival city"), _city), "passengers": (P("integer", "Number of passengers"), lambda r: r.randint(1, 9)), "direct": (P("boolean", "Only direct flights"), lambda r: r.random() < 0.5)}, ["origin", "destination", "passengers"],
     ["Book a flight from {origin} to {destination} for {passengers} people{direct?, direct: }.", "I need a flight for {passengers} from {origin} to {destination}{direct?, direct: }."], lambda r, a: dict(booking="%s%d" % (r.choice("KLMNP"), r.randint(100, 999)), price=r.randint(50, 900)), "Your flight to [destination] is booked under {booking} for {price} euros."),
    ("play_music", "Play a song or playlist.", {"title": (P("string", "Title"), lambda r: "%s %s" % (r.choice(L.ADJ), r.choice(L.PLACES))), "volume": (P("integer", "Volume from 0 to 100"), lambda r: r.randint(0, 100))}, ["title"],
     ["Play {title}{volume? at volume }.", "Please put on {title}{volume? with volume }."], lambda r, a: dict(playing=True), "Now playing [title]."),
    ("set_light", "Set the light of a room.", {"room": (P("string", "Room"), lambda r: r.choice(["kitchen", "cellar", "attic", "library", "barn", "museum"])), "on": (P("boolean", "Switch on or off"), lambda r: r.random() < 0.5), "brightness": (P("number", "Brightness from 0 to 1"), lambda r: r.randint(1, 9) / 10)}, ["room", "on"],
     ["Set the light in the {room} to on: {on}{brightness? and brightness }.", "Light in the {room}, on: {on}{brightness?, brightness }."], lambda r, a: dict(status="ok"), "The light in the [room] is set."),
    ("search_web", "Search the web.", {"query": (P("string", "Search query"), lambda r: "%s %s %s" % (r.choice(L.ADJ), r.choice(L.ANIMALS), r.choice(L.PLACES))), "limit": (P("integer", "Number of results"), lambda r: r.randint(1, 20))}, ["query"],
     ["Search the web for {query}{limit? with limit }.", "Look up {query} online{limit?, limit }."], lambda r, a: dict(results=["%s %s" % (r.choice(L.ADJ), r.choice(L.OBJECTS)) for _ in range(2)]), "The search for [query] found {results}."),
    ("add_items", "Add items to the shopping list.", {"items": (P("array", "Things to buy", items={"type": "string"}), lambda r: r.sample(L.FOODS, r.randint(2, 4)))}, ["items"],
     ["Add {items} to my shopping list.", "Please buy {items}."], lambda r, a: dict(count=r.randint(3, 40)), "Your shopping list now has {count} items."),
    ("create_user", "Create a user account.", {"name": (P("string", "User name"), lambda r: r.choice(L.NAMES)), "age": (P("integer", "Age"), lambda r: r.randint(10, 90)), "admin": (P("boolean", "Has admin rights"), lambda r: r.random() < 0.5)}, ["name", "age"],
     ["Create a user named {name}, age {age}{admin?, admin: }.", "New account for {name} who is {age}{admin?, admin: }."], lambda r, a: dict(user_id=r.randint(1, 99999)), "The account of [name] has the id {user_id}."),
    ("move_robot", "Move the robot to a point.", {"target": (P("object", "Coordinates", properties={"x": {"type": "integer"}, "y": {"type": "integer"}}), lambda r: dict(x=r.randint(-50, 50), y=r.randint(-50, 50))), "speed": (P("number", "Speed in m/s"), lambda r: r.randint(1, 40) / 10)}, ["target"],
     ["Move the robot to {target}{speed? with speed }.", "Robot, go to {target}{speed? at speed }."], lambda r, a: dict(arrived=r.random() < 0.5, battery=r.randint(1, 100)), "The robot has {battery} percent battery."),
    ("write_file", "Write a text file.", {"path": (P("string", "Path of the file"), _path), "content": (P("string", "The whole text"), _content)}, ["path", "content"],
     ["Save this as {path}:\n{content}", "Write {path} with this text:\n\n{content}"], lambda r, a: dict(written=len(a["content"].encode())), "[path] is written, {written} bytes."),
    ("edit_file", "Replace one passage of a file.", {"path": (P("string", "Path of the file"), _path), "old": (P("string", "Text to replace"), _content), "new": (P("string", "Text to put there"), _line)}, ["path", "old", "new"],
     ["In {path} replace\n{old}\nby\n{new}", "Change {path}: instead of\n```\n{old}\n```\nwrite\n```\n{new}\n```"], lambda r, a: dict(changed=r.random() < 0.9), "[path], changed: {changed}."),
    ("run_command", "Run a command in the shell.", {"command": (P("string", "Command line"), lambda r: r.choice(["ls -la %s", "grep -n '%s' *.py", "cat %s | wc -l", "git commit -m \"%s\"", "cargo test %s", "rm -f ./%s"]) % L.pseudo(r, 2, 3)), "timeout": (P("number", "Seconds"), lambda r: r.choice([0.5, 10, 60, 2.5]))}, ["command"],
     ["Run `{command}`{timeout? with a timeout of }.", "Please execute {command}{timeout? and stop it after }."], lambda r, a: dict(exit=r.randint(0, 3), lines=r.randint(0, 400)), "The command ended with {exit} and printed {lines} lines."),
    ("convert_currency", "Convert money between currencies.", {"amount": (P("number", "Amount"), lambda r: r.randint(1, 9000) / r.choice([1, 2, 10])), "source": (P("string", "Source currency"), lambda r: r.choice(["euro", "dollar", "yen", "pound"])), "target": (P("string", "Target currency"), lambda r: r.choice(["franc", "krona", "peso", "won"]))}, ["amount", "source", "target"],
     ["Convert {amount} {source} to {target}.", "How much is {amount} {source} in {target}?"], lambda r, a: dict(value=r.randint(1, 99999)), "That is {value} [target]."),
]
CVERB = "update create delete fetch check rename start stop archive schedule order reserve scan import export sync".split()
CNOUN = "record report invoice device camera ticket room table garden boat account folder server sensor contract parcel".split()
CPARAM = {"name": ("string", "Name", lambda r: r.choice(L.NAMES)), "city": ("string", "City", _city), "count": ("integer", "How many", lambda r: r.randint(1, 500)), "code": ("string", "Code", lambda r: L.pseudo(r, 2, 2) + str(r.randint(1, 99))),
          "color": ("string", "Colour", lambda r: r.choice(L.COLORS)), "active": ("boolean", "Active or not", lambda r: r.random() < 0.5), "ratio": ("number", "Ratio", lambda r: r.randint(1, 99) / 10), "day": ("string", "Day of the week", lambda r: r.choice(L.DAYS)),
          "tags": ("array", "List of tags", lambda r: r.sample(L.ADJ, r.randint(1, 3))), "size": ("object", "Width and height", lambda r: dict(width=r.randint(1, 99), height=r.randint(1, 99))), "note": ("string", "A note", lambda r: "%s the %s %s" % (r.choice(L.VERBS)[0], r.choice(L.ADJ), r.choice(L.OBJECTS))),
          "priority": ("integer", "Priority", lambda r: r.randint(1, 9)), "ids": ("array", "List of ids", lambda r: [r.randint(1, 99) for _ in range(r.randint(1, 4))])}


def phrase(v):
    if isinstance(v, bool): return "yes" if v else "no"
    if isinstance(v, list): return join_and([str(x) for x in v])
    if isinstance(v, dict): return join_and(["%s %s" % kv for kv in v.items()])
    return str(v)


def make_tool(r):
    """-> (spec, request(r) -> (text, args), respond(r, args) -> (json, answer))"""
    if r.random() < 0.55:
        name, desc, params, req, reqs, resp, ans = r.choice(STATIC)
        spec = {"type": "function", "function": {"name": name, "description": desc, "parameters": {"type": "object", "properties": {k: p[0] for k, p in params.items()}, "required": req}}}

        def request(r):
            args = {}
            for k, p in params.items():
                if k in req or r.random() < 0.5:
                    args[k] = p[1](r)
            t = r.choice(reqs)
            t = re.sub(r"\{(\w+)\?([^}]*)\}", lambda m: m.group(2) + phrase(args[m.group(1)]) if m.group(1) in args else "", t)
            t = re.sub(r"\{(\w+)\}", lambda m: phrase(args[m.group(1)]), t)
            return t, args

        def respond(r, args):
            d = resp(r, args)
            a = re.sub(r"\{(\w+)\}", lambda m: phrase(d[m.group(1)]), ans)
            a = re.sub(r"\[(\w+)\]", lambda m: phrase(args[m.group(1)]), a)
            return d, a
        return spec, request, respond
    verb, noun = r.choice(CVERB), r.choice(CNOUN); name = "%s_%s" % (verb, noun)
    ps = r.sample(list(CPARAM), r.randint(1, 4)); nreq = r.randint(1, len(ps))
    props = {}
    for k in ps:
        t, d, _ = CPARAM[k]; props[k] = P(t, d)
        if t == "array": props[k]["items"] = {"type": "integer" if k == "ids" else "string"}
    spec = {"type": "function", "function": {"name": name, "description": "%s a %s." % (verb.capitalize(), noun), "parameters": {"type": "object", "properties": props, "required": ps[:nreq]}}}

    def request(r):
        use = ps[:nreq] + [k for k in ps[nreq:] if r.random() < 0.5]; args = {k: CPARAM[k][2](r) for k in use}
        items = list(args.items())
        body = join_and(["%s %s" % (k, phrase(v)) for k, v in items]) if r.random() < 0.5 else "; ".join("%s: %s" % (k, phrase(v)) for k, v in items)
        return r.choice(["Please %s the %s with %s.", "%s the %s, %s.", "I want to %s a %s with %s."]) % (verb, noun, body), args

    def respond(r, args):
        st = r.choice(["ok", "done", "queued", "failed"]); i = r.randint(1, 99999)
        return dict(status=st, id=i), ("Sorry, the call failed with id %d." % i if st == "failed" else "The %s is %s and has the id %d." % (noun, st, i))
    return spec, request, respond


def gen_tool(r):
    tools, names = [], set()
    n = r.choice([1, 1, 2, 2, 3, 4, 5])
    while len(tools) < n:
        t = make_tool(r)
        if t[0]["function"]["name"] not in names:
            names.add(t[0]["function"]["name"]); tools.append(t)
    specs = [t[0] for t in tools]; think = r.random() < 0.5; sys = maybe_sys(r)
    m = [{"role": "system", "content": sys}] if sys else []
    u = r.random()
    if u < 0.12:  # no fitting tool
        s = r.choice([gen_identity, gen_arithmetic, gen_string])(r)
        q, a = s["messages"][-2]["content"], s["messages"][-1]["content"]
        m += [{"role": "user", "content": q}, {"role": "assistant", "content": a}]
        rs = s["messages"][-1].get("reasoning_content")
        if rs: m[-1]["reasoning_content"] = "No tool fits. " + rs
        return dict(skill="tool", messages=m, tools=specs, think=bool(rs), check=("exact", a), images=[])
    par = r.choice([1, 1, 1, 2, 2, 3]) if u < 0.75 else 1
    reqs = []
    for _ in range(par):
        t = r.choice(tools); q, a = t[1](r); reqs.append((t, q, a))
    user = " ".join(x[1] for x in reqs)
    calls = [{"name": x[0][0]["function"]["name"], "arguments": x[2]} for x in reqs]
    m.append({"role": "user", "content": user})
    am = {"role": "assistant", "content": "", "tool_calls": calls}
    if think: am["reasoning_content"] = "I call %s." % join_and([c["name"] for c in calls])
    m.append(am)
    check = ("calls", calls)
    if r.random() < 0.5:
        ans = []
        for x in reqs:
            d, a = x[0][2](r, x[2]); ans.append(a)
            m.append({"role": "tool", "content": json.dumps(d, ensure_ascii=False)})
        a = " ".join(ans); fm = {"role": "assistant", "content": a}
        if think: fm["reasoning_content"] = "The tool answered."
        m.append(fm); check = ("exact", a)
    return dict(skill="tool", messages=m, tools=specs, think=think, check=check, images=[])


# ---------------------------------------------------------------- 8 strings
def sp(w): return " ".join(w)


def gen_string(r):
    think = r.random() < 0.6
    w = r.choice(L.ANIMALS + L.OBJECTS + L.FOODS + L.PLACES) if r.random() < 0.5 else L.pseudo(r, 2, 4 if think else 3)
    t = r.randrange(9)
    if t == 0:
        q, a, s = r.choice(["Reverse the word %s.", "Write %s backwards.", "Spell %s in reverse."]) % w, w[::-1], "%s -> %s" % (sp(w), sp(w[::-1]))
    elif t == 1:
        k = " ".join([w] + [r.choice(L.ADJ) for _ in range(r.randint(0, 2))]); q, a, s = r.choice(["Write in upper case: %s", "Convert to uppercase: %s"]) % k, k.upper(), "Every letter becomes a capital."
    elif t == 2:
        ws = r.sample(L.ANIMALS + L.FOODS + L.OBJECTS, r.randint(3, 6)); srt = sorted(ws)
        q, a, s = r.choice(["Sort these words alphabetically: %s", "Put in alphabetical order: %s"]) % ", ".join(ws), ", ".join(srt), "First letters in order: %s." % ", ".join(x[0] for x in srt)
    elif t == 3:
        ch = r.choice(w) if r.random() < 0.8 else r.choice("aeioust"); n = w.count(ch)
        q, a = r.choice(["How many times does the letter %s occur in %s?", "Count the letter %s in the word %s."]) % (ch, w), str(n) + "."
        s = ", ".join("%s %s" % (c, "yes" if c == ch else "no") for c in w) + ". That is %d." % n
    elif t == 4:
        q, a = r.choice(["How many letters does %s have?", "How long is the word %s?"]) % w, str(len(w)) + "."
        s = ", ".join("%s%d" % (c, i + 1) for i, c in enumerate(w)) + "."
    elif t == 5:
        q, a, s = "What is the %s letter of %s?" % (r.choice(["first"]), w), w[0] + ".", sp(w)
        if r.random() < 0.5: q, a = "What is the last letter of %s?" % w, w[-1] + "."
    elif t == 6:
        q, a, s = r.choice(["Spell the word %s with dashes.", "Put a dash between the letters of %s."]) % w, "-".join(w), sp(w)
    elif t == 7:
        x = sorted(r.randint(0, 99) for _ in range(r.randint(3, 7))); y = x[:]; r.shuffle(y)
        desc = r.random() < 0.4
        if desc: x = x[::-1]
        q, a, s = "Sort these numbers %s: %s" % ("from high to low" if desc else "from low to high", ", ".join(map(str, y))), ", ".join(map(str, x)), "The %s is %d." % ("largest" if desc else "smallest", x[0])
    else:
        o, n = r.choice(w), r.choice("aeioubdz"); q, a, s = "Replace every %s with %s in %s." % (o, n, w), w.replace(o, n), "%s -> %s" % (sp(w), sp(w.replace(o, n)))
    return qa("string", q, a, think, s, sys=maybe_sys(r))


# ---------------------------------------------------------------- 9 code
def gen_code(r):
    f = r.choice(L.VERBS)[0] + "_" + r.choice(["all", "items", "values", "numbers", "words", "list", "text"]) if r.random() < 0.7 else L.pseudo(r)
    k = r.randint(2, 20); x = r.choice(["xs", "values", "items", "numbers", "data"]); s = r.choice(["s", "text", "word"]); n = r.choice(["n", "num", "x"])
    nums = [r.randint(-20, 30) for _ in range(6)]; w = r.choice(L.OBJECTS) + " " + r.choice(L.ANIMALS)
    op, opn = r.choice([("+", "adds"), ("*", "multiplies"), ("-", "subtracts")])
    cases = [
        ("takes a list of numbers and returns their sum", x, "    return sum(%s)" % x, [nums]),
        ("takes a list of numbers and returns the largest", x, "    return max(%s)" % x, [nums]),
        ("takes a list of numbers and returns the smallest", x, "    return min(%s)" % x, [nums]),
        ("takes a list and returns it reversed", x, "    return %s[::-1]" % x, [nums]),
        ("takes a list and returns it sorted", x, "    return sorted(%s)" % x, [nums]),
        ("takes a list and returns it sorted in descending order", x, "    return sorted(%s, reverse=True)" % x, [nums]),
        ("takes a list of numbers and returns the even ones", x, "    return [v for v in %s if v %% 2 == 0]" % x, [nums]),
        ("takes a list of numbers and returns the odd ones", x, "    return [v for v in %s if v %% 2 == 1]" % x, [nums]),
        ("takes a list of numbers and returns those greater than %d" % k, x, "    return [v for v in %s if v > %d]" % (x, k), [nums]),
        ("takes a list of numbers and returns those less than %d" % k, x, "    return [v for v in %s if v < %d]" % (x, k), [nums]),
        ("takes a list of numbers and %s %d %s each" % (opn, k, {"+": "to", "*": "with", "-": "from"}[op]), x, "    return [v %s %d for v in %s]" % (op, k, x), [nums]),
        ("takes a list of numbers and returns the average", x, "    return sum(%s) / len(%s)" % (x, x), [nums]),
        ("takes a list and returns the number of elements", x, "    return len(%s)" % x, [nums]),
        ("takes a list and returns the first %d elements" % (k % 5 + 1), x, "    return %s[:%d]" % (x, k % 5 + 1), [nums]),
        ("takes a list and returns the last %d elements" % (k % 5 + 1), x, "    return %s[-%d:]" % (x, k % 5 + 1), [nums]),
        ("takes a list and removes duplicates but keeps the order", x, "    out = []\n    for v in %s:\n        if v not in out:\n            out.append(v)\n    return out" % x, [nums + nums[:2]]),
        ("takes a list of numbers and returns the product", x, "    p = 1\n    for v in %s:\n        p *= v\n    return p" % x, [nums]),
        ("takes a string and returns it reversed", s, "    return %s[::-1]" % s, [w]),
        ("takes a string and returns it in upper case", s, "    return %s.upper()" % s, [w]),
        ("takes a string and counts the vowels", s, "    return sum(c in 'aeiou' for c in %s)" % s, [w]),
        ("takes a string and counts the words", s, "    return len(%s.split())" % s, [w]),
        ("takes a string and returns the longest word", s, "    return max(%s.split(), key=len)" % s, [w]),
        ("takes a string and tells whether it is a palindrome", s, "    return %s == %s[::-1]" % (s, s), [r.choice(["level", "noon", w])]),
        ("takes a string and repeats it %d times" % k, s, "    return %s * %d" % (s, k), [w]),
        ("takes a string and removes all spaces", s, "    return %s.replace(' ', '')" % s, [w]),
        ("takes a string and returns a dict that counts each letter", s, "    out = {}\n    for c in %s:\n        out[c] = out.get(c, 0) + 1\n    return out" % s, [w]),
        ("takes a number and returns its factorial", n, "    p = 1\n    for i in range(2, %s + 1):\n        p *= i\n    return p" % n, [k % 9]),
        ("takes a number and tells whether it is even", n, "    return %s %% 2 == 0" % n, [k]),
        ("takes a number and tells whether it is prime", n, "    if %s < 2:\n        return False\n    for i in range(2, %s):\n        if %s %% i == 0:\n            return False\n    return True" % (n, n, n), [k]),
        ("takes a number and returns the list of its divisors", n, "    return [i for i in range(1, %s + 1) if %s %% i == 0]" % (n, n), [k]),
        ("takes a number and returns its square plus %d" % k, n, "    return %s * %s + %d" % (n, n, k), [k]),
        ("takes a number n and returns the n-th Fibonacci number", n, "    a, b = 0, 1\n    for _ in range(%s):\n        a, b = b, a + b\n    return a" % n, [k % 12]),
        ("takes a number and returns the sum of its digits", n, "    return sum(int(d) for d in str(%s))" % n, [k * 37]),
        ("takes a number and returns the numbers from 1 up to it", n, "    return list(range(1, %s + 1))" % n, [k]),
        ("takes two numbers and returns their greatest common divisor", "a, b", "    while b:\n        a, b = b, a %% b\n    return a".replace("%%", "%"), [k * 6, 18]),
        ("takes two numbers and returns the larger one", "a, b", "    return a if a > b else b", [k, 7]),
        ("takes two lists and returns the common elements", "a, b", "    return [v for v in a if v in b]", [nums, nums[:3] + [99]]),
        ("takes two lists and returns a list of pairs", "a, b", "    return list(zip(a, b))", [nums, nums]),
    ]
    desc, par, body, args = r.choice(cases)
    think = r.random() < 0.3
    q = r.choice(["Write a Python function %s that %s.", "Python: define %s. It %s.", "Implement a Python function called %s which %s."]) % (f, desc)
    if ", " not in par and par not in ("s", "n") and r.random() < 0.7:
        q += " Name the parameter %s." % par
    elif ", " not in par:
        body = re.sub(r"\b%s\b" % par, {"xs": "xs", "values": "xs", "items": "xs", "numbers": "xs", "data": "xs", "s": "s", "text": "s", "word": "s", "n": "n", "num": "n", "x": "n"}[par], body)
        par = {"xs": "xs", "values": "xs", "items": "xs", "numbers": "xs", "data": "xs", "s": "s", "text": "s", "word": "s", "n": "n", "num": "n", "x": "n"}[par]
    code = "def %s(%s):\n%s" % (f, par, body)
    env = {}
    exec(code, env)
    want = repr(env[f](*args))
    return qa("code", q, "```python\n%s\n```" % code, think, "The function %s %s." % (f, desc), check=("code", (f, args, want)), sys=maybe_sys(r))


# ---------------------------------------------------------------- 11 multi-turn
def gen_multi(r):
    m = []; sys = maybe_sys(r)
    if sys: m.append({"role": "system", "content": sys})
    name = None; think = r.random() < 0.5; first = None
    for _ in range(r.randint(1, 4)):
        u = r.random()
        if u < 0.25 and not name:
            name = r.choice(L.NAMES); q, a = "My name is %s." % name, "Nice to meet you, %s! How can I help you today?" % name
        else:
            s = r.choice([gen_identity, gen_arithmetic, gen_string, gen_reading, gen_json])(r)
            i = next(j for j, x in enumerate(s["messages"]) if x["role"] == "user")
            q, a = s["messages"][i]["content"], s["messages"][i + 1]["content"]
        first = first or q
        m += [{"role": "user", "content": q}, {"role": "assistant", "content": a}]
    t = r.random()
    if name and t < 0.5:
        q, a, s = r.choice(["What is my name?", "Do you remember my name?"]), "Your name is %s." % name, "The user said the name %s." % name
    elif t < 0.6 and len(first) < 200:
        q, a, s = "Repeat my first message.", first, "I copy the first message."
    elif t < 0.75:
        q, a, s = "Repeat your last answer.", m[-1]["content"], "I copy my last answer."
    else:
        while True:
            x = r.choice([gen_arithmetic, gen_string, gen_reading, gen_identity])(r)
            if x["think"] == think and len(x["messages"]) <= 3: break
        q, a, s = x["messages"][-2]["content"], x["messages"][-1]["content"], x["messages"][-1].get("reasoning_content", "")
    m.append({"role": "user", "content": q}); am = {"role": "assistant", "content": a}
    if think: am["reasoning_content"] = s or "I answer."
    m.append(am)
    return dict(skill="multi", messages=m, tools=None, think=think, check=("exact", a), images=[])


GENS = {"identity": gen_identity, "arithmetic": gen_arithmetic, "story": gen_story, "reading": gen_reading, "retrieval": gen_retrieval, "json": gen_json,
        "tool": gen_tool, "string": gen_string, "code": gen_code, "multi": gen_multi,
        "reading_first": lambda r: gen_reading(r, True)}
# share of samples (not tokens) in the mixture
MIX = {"identity": 6, "arithmetic": 16, "story": 9, "reading": 9, "reading_first": 3, "retrieval": 9, "json": 8, "tool": 10, "string": 16, "code": 5, "multi": 7}


def sample(r, skill=None, hi=2048, **kw):
    skill = skill or r.choices(list(MIX), list(MIX.values()))[0]
    if skill == "retrieval":
        return gen_retrieval(r, hi=hi, **kw)
    return GENS[skill](r)


# ---------------------------------------------------------------- checkers
def split_output(text):
    """generated text -> (final answer, had </think>)"""
    text = text.split("<|im_end|>")[0]
    if "</think>" in text:
        text = text.split("</think>")[-1]
    return text.strip()


def parse_calls(text):
    calls = []
    for blk in re.findall(r"<tool_call>\n(.*?)\n</tool_call>", text, re.S):
        m = re.match(r"<function=(.*?)>\n(.*)</function>", blk, re.S)
        if not m: return None
        calls.append((m.group(1), dict(re.findall(r"<parameter=(.*?)>\n(.*?)\n</parameter>\n", m.group(2), re.S))))
    return calls


def check(smp, text):
    """True when the generated text (all that follows the prompt) answers the sample."""
    kind, want = smp["check"]; got = split_output(text)
    if kind == "exact":
        return got == want
    if kind == "words":
        return all(w in got for w in want)
    if kind == "json":
        try:
            return json.loads(got) == want
        except Exception:
            return False
    if kind == "calls":
        c = parse_calls(got)
        if c is None or len(c) != len(want): return False
        for (n, a), w in zip(c, want):
            exp = {k: (v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)) for k, v in w["arguments"].items()}
            if n != w["name"] or a != exp: return False
        return True
    if kind == "code":
        f, args, res = want
        m = re.match(r"```python\n(.*)\n```$", got, re.S)
        if not m or "import" in m.group(1) or "while True" in m.group(1): return False
        try:
            import copy, signal
            signal.setitimer(signal.ITIMER_REAL, 1.0)
            env = {}
            exec(m.group(1), env)
            ok = repr(env[f](*copy.deepcopy(args))) == res
        except BaseException:
            ok = False
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return ok
    raise ValueError(kind)
