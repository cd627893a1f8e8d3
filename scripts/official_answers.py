#!/usr/bin/env python3
"""official_answers.py FILE - prints the prompts and answers of FILE as `ingle eval --official` reads them.

    scripts/official_answers.py tests/data/official/deepseek-v4-flash.json >answers.jsonl
    ingle eval -m MODEL --official answers.jsonl

FILE has a vendor's answers as facts: a prompt is a text, or a beginning, a line that is repeated with its number
for each "{}", and an end.  A SHA-256 says whether the text is the one that was sent."""
import hashlib, json, sys


def text_of(entry):
    """The text of a prompt as it was sent."""
    p = entry["prompt"]
    if isinstance(p, dict):
        lines = (p["line"].replace("{}", f"{i:0{p['digits']}}") for i in range(p["repeat"]))
        p = p["begin"] + "".join(lines) + p["end"]
    if "sha256" in entry and hashlib.sha256(p.encode()).hexdigest() != entry["sha256"]:
        raise ValueError(f"{entry['name']}: the text is not the one that was sent")
    return p


def read(path):
    """[(name, text, number of tokens of the rendered prompt, texts of the answer's tokens)]"""
    with open(path, encoding="utf-8") as f:
        return [(e["name"], text_of(e), e["prompt_tokens"], e["answer"]) for e in json.load(f)["prompts"]]


def line_of(name, text, answer):
    return json.dumps({"name": name, "messages": [{"role": "user", "content": text}],
                       "tokens": [{"token": t, "bytes": list(t.encode())} for t in answer]})


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for entry in read(sys.argv[1]):
        print(line_of(entry[0], entry[1], entry[3]))
