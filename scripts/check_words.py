#!/usr/bin/env python3
"""check_words.py [FILE...] - README.md and docs/ are in plain English: habits that can be found by pattern are refused.

Also: a page of docs/use/ has at most 120 lines, a line of prose at most 160 columns, and every link between pages leads
to a file and a heading that exist, docs/README.md names every page,
and what the rest of the tree names exists. Identifiers and comments of src/ use the words of the field, too: a name
says notify, report, check, poll, request, closed ... and not tell, look, ask, gone."""
import pathlib, re, subprocess, sys

LONGEST, LINES = 160, 120
GENERATED = {"docs/use/options-of-others.md", "docs/use/request-fields.md"}  # tables as long as they are
WORDS = [  # pattern, what to write
    (r"(?<!look-)\bbehind\b(?! (?:a|an|the|another|its|your) (?:\w+ )?(?:prox|router|address|server))", "after, under, or at the end of"),
    (r"(?<!\bit )(?<!\bthat )(?<!\bthem )(?<!\bmodel )(?<!\btext )(?<!\brun )(?<!\bruns )(?<!\bcomputed )(?<!\bleft )"
     r"(?<!\bleave )(?<!\bis )(?<!\bare )\balone\b(?!,? (?:and|or) in a batch)", "only"),
    (r"\bbut for\b", "except"),
    (r"\b(?:is|are|be|was|were) taken\b(?! (?:from|over|out|back|again|up))", "is accepted, is used, is chosen"),
    (r"\b(?:is|are) said\b", "is printed, is reported"),
    (r"\bin vain\b", "without success"),
    (r"\bfew, if\b|\bnever but\b|\bnothing but\b|\bas it comes\b", "say it directly"),
    (r"\b(?:is|are) drawn\b", "is sampled"),
    (r"\bis no (?:name|model|text|number|file|repository|key)\b", "is not a"),
    (r"\bare no (?:names|models|texts|numbers|files|repositories|keys)\b", "are not"),
    (r"\bof the like\b|\bits kin\b|\bof that kind alone\b", "say which"),
]
# Of src/: words of identifiers, and of comments. Names of the public headers stay.
NAMES = {"tell": "notify, report, send", "tells": "says", "told": "reported, sent", "telling": "reporting",
         "vain": "unsupported", "gone": "closed, dropped, removed",
         "beside": "next to, sibling, pair", "behind": "after", "alone": "only, single", "asker": "client",
         "hear": "receive", "heard": "received", "eyes": "vision", "ears": "audio", "lies": "is"}
COMMENTS = {"tell": "report, notify, send", "tells": "says, reports", "told": "reported, sent", "in vain": "without success",
            "lies": "is", "gone": "closed, dropped, removed", "twin": "copy, mirror", "twins": "copies",
            "but for": "except for", "lately": "recently"}
PUBLIC = re.compile(r"(?:ingle|INGLE|engine)_\w*")
IN_NAME = re.compile(r"(?<![A-Za-z])(?:" + "|".join(NAMES) + r")(?![A-Za-z])", re.I)
IN_COMMENT = re.compile(r"\b(?:" + "|".join(w.replace(" ", r"(?:\s|\*)+") for w in COMMENTS) + r")\b", re.I)
TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|(/\*.*?\*/|//[^\n]*)|([A-Za-z_]\w*)', re.S)
OPENING = re.compile(r"(?:^|(?<=[.:;] ))(?:What|Whoever|Whatever) [^.?!:|]*\.")  # a clause as the subject


def prose(text):
    """Lines outside of fences and indented blocks, without code spans and addresses."""
    fenced = False
    for i, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            continue
        if not fenced and not line.startswith("    "):
            yield i, line, re.sub(r"`[^`]*`|\]\([^)]*\)|https?://\S+|\"[^\"]*\"", "_", line)


def words(name, text):
    for i, line, plain in prose(text):
        for pattern, better in WORDS:
            for m in re.finditer(pattern, plain, re.I):
                yield f"{name}:{i}: '{m[0]}': write {better}"
        if not line.startswith("#") and OPENING.search(re.sub(r"^[|*\s-]+", "", plain)):
            yield f"{name}:{i}: a sentence that begins with a clause ('What ... is'): begin with its subject"
        if len(line) > LONGEST and not line.startswith("|"):
            yield f"{name}:{i}: {len(line)} columns, at most {LONGEST}"


def slug(heading):
    return re.sub(r"[^\w\- ]", "", re.sub(r"[`*]|\]\([^)]*\)", "", heading).strip().lower()).replace(" ", "-")


def headings(path):
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    return {slug(h) for h in re.findall(r"^#+ (.*)$", text, re.M)}


def links(path, text):
    for i, _, _ in prose(text):
        line = text.split("\n")[i - 1]
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
            if "://" in target or target.startswith("mailto:"):
                continue
            file, _, part = target.partition("#")
            to = (path.parent / file) if file else path
            if not to.exists():
                yield f"{path}:{i}: the link to {target} leads nowhere"
            elif part and to.suffix == ".md" and part not in headings(to):
                yield f"{path}:{i}: {file or path.name} has no heading #{part}"


def named():
    """Pages that help texts, messages, comments and tests name."""
    out = subprocess.run(["git", "ls-files", "-z", ":!docs", ":!tests/data", ":!tests/fuzz/seeds"], capture_output=True, text=True, check=True)
    for name in filter(None, out.stdout.split("\0")):
        path = pathlib.Path(name)
        if not path.is_file() or path.suffix not in (".c", ".h", ".inc", ".py", ".sh", ".md", ".json", ".txt", ".conf", ".in", ""):
            continue
        for page in re.findall(r"(?<![\w/.])docs/[\w/-]+\.md", path.read_text(encoding="utf-8", errors="replace")):
            if not pathlib.Path(page).is_file():
                yield f"{name}: there is no page {page}"


def code(name, text):
    """Identifiers and comments; texts in quotes are other programs' or users'."""
    if not IN_NAME.search(text) and not IN_COMMENT.search(text):
        return
    for m in TOKEN.finditer(text):
        pattern, better = (IN_COMMENT, COMMENTS) if m[1] else (IN_NAME, NAMES)
        for hit in pattern.finditer(m[1] or m[2] or ""):
            word = re.sub(r"(?:\s|\*)+", " ", hit[0].lower())
            if m[1] or not PUBLIC.fullmatch(m[2]):
                line = text.count("\n", 0, m.start() + hit.start()) + 1
                yield f"{name}:{line}: '{hit[0]}' in {'a comment' if m[1] else m[2]}: write {better[word]}"


def main(args):
    bad = []
    pages = [pathlib.Path(a) for a in args] or [pathlib.Path("README.md"), *sorted(pathlib.Path("docs").rglob("*.md"))]
    for path in pages:
        text, name = path.read_text(encoding="utf-8"), path.as_posix()
        bad += links(path, text)
        bad += [b for b in words(name, text) if name not in GENERATED]
        if name.startswith("docs/use/") and name not in GENERATED and text.count("\n") > LINES:
            bad.append(f"{name}: {text.count(chr(10))} lines, at most {LINES}")
    if not args:
        bad += named()
        for path in sorted(p for end in ("c", "h", "inc", "cu") for p in pathlib.Path("src").rglob("*." + end)):
            bad += code(path.as_posix(), path.read_text(encoding="utf-8"))
        index = pathlib.Path("docs/README.md").read_text()
        bad += [f"docs/README.md: {p} is not in the index" for p in pages[1:]
                if p.name != "README.md" and f"]({p.relative_to('docs').as_posix()})" not in index]
    print("\n".join(bad) if bad else f"words: ok, {len(pages)} pages")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
