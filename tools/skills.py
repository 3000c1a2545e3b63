"""fledgling's skills: the cases that its scores were taken on, and the checker.

    python3 tools/skills.py cases N FILE             N cases a skill, one JSON object a line (200 in results.json)
    python3 tools/skills.py score CASES ANSWERS      table beside results.json; exit 1 where a skill is over 2 points worse
    python3 tools/skills.py serve URL CASES ANSWERS  asks a server (chat completions) what calls tools; exit 1 where fewer
                                                     of its answers are right than of those in ANSWERS

The generators in tools/fledgling are those of the training recipe; pictures are left out. `tools/skills.sh` runs it all.
"""

import json
import random
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from fledgling import data  # noqa: E402

RESULTS = Path(__file__).parent.parent / "tests" / "fixtures" / "fledgling-results.json"
# Most tokens of an answer.
TOKENS = {"identity": 96, "arithmetic": 200, "story": 96, "reading": 80, "retrieval": 96, "json": 220, "tool": 420,
          "string": 160, "code": 160, "multi": 200, "reading_first": 80}
LENGTHS = (256, 512, 1024, 2048)  # longer ones take an hour on two cores: `cases N FILE long` adds 4096 and 8192
TOLERANCE = 0.02


def samples(skill, count, seed, **kw):
    """The same draws as the published scores: one generator for each skill and seed."""
    r = random.Random("eval-%s-%d" % (skill, seed))
    return [data.sample(r, skill, **kw) for _ in range(count)]


def cases(count, lengths):
    for skill in data.GENS:
        if skill != "retrieval":
            for sample in samples(skill, count, 0):
                yield skill, skill, sample
    for length in lengths:
        for i in range(4):  # four seeds a length, as in the published run
            for sample in samples("retrieval", (count + 3) // 4, length + i, n_tokens=length + i):
                yield "retrieval_%d" % length, "retrieval", sample


def write_cases(count, path, lengths):
    with open(path, "w") as out:
        for tag, skill, sample in cases(count, lengths):
            answer = max(i for i, m in enumerate(sample["messages"]) if m["role"] == "assistant")
            case = {"skill": tag, "max_tokens": TOKENS[skill], "check": sample["check"],
                    "chat": {"messages": sample["messages"][:answer], "tools": sample["tools"],
                             "enable_thinking": bool(sample["think"])}}
            out.write(json.dumps(case, ensure_ascii=False) + "\n")


def score(cases_path, answers_path):
    published = json.loads(RESULTS.read_text())
    counts, worse = {}, []
    with open(cases_path) as c, open(answers_path) as a:
        for case, answer in zip(map(json.loads, c), map(json.loads, a), strict=True):
            right, total = counts.get(case["skill"], (0, 0))
            counts[case["skill"]] = (right + bool(data.check(case, answer["text"])), total + 1)
    print("%-16s %7s %7s %7s %6s" % ("skill", "here", "bf16", "4-bit", "cases"))
    for skill, (right, total) in counts.items():
        here = right / total
        bf16, q4 = (published[k]["accuracy"][skill] for k in ("bf16", "q4"))
        print("%-16s %7.3f %7.3f %7.3f %6d" % (skill, here, bf16, q4, total))
        if here < bf16 - TOLERANCE:
            worse.append(skill)
    print("%d passed, %d failed" % (len(counts) - len(worse), len(worse)))
    for skill in worse:
        print("more than 2 points below bf16: " + skill)
    return 1 if worse else 0


def served(url, case):
    """Whether a server's answer is right; arguments of calls in their types."""
    body = {**case["chat"], "model": "fledgling", "temperature": 0, "max_tokens": case["max_tokens"]}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"content-type": "application/json"})
    with urllib.request.urlopen(request) as response:
        message = json.load(response)["choices"][0]["message"]
    kind, want = case["check"]
    if kind != "calls":
        return data.check(case, message["content"] or "")
    calls = [call["function"] for call in message.get("tool_calls") or []]
    return [(c["name"], json.loads(c["arguments"])) for c in calls] == [(w["name"], w["arguments"]) for w in want]


def compare_served(url, cases_path, answers_path):
    with open(cases_path) as c, open(answers_path) as a:
        pairs = list(zip(map(json.loads, c), map(json.loads, a), strict=True))
    pairs = [(case, answer) for case, answer in pairs if case["skill"] == "tool"]
    before = sum(data.check(case, answer["text"]) for case, answer in pairs)
    with ThreadPoolExecutor(8) as pool:
        now = sum(pool.map(lambda pair: served(url, pair[0]), pairs))
    print("tools, %d cases: %d right of the model alone, %d through the server" % (len(pairs), before, now))
    return 1 if now < before else 0


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["cases", count, path, *long]:
            write_cases(int(count), path, LENGTHS + ((4096, 8192) if long else ()))
        case ["score", cases_path, answers_path]:
            sys.exit(score(cases_path, answers_path))
        case ["serve", url, cases_path, answers_path]:
            sys.exit(compare_served(url, cases_path, answers_path))
        case _:
            sys.exit(__doc__)
