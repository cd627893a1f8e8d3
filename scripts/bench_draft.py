#!/usr/bin/env python3
"""bench_draft.py --target CODE=FILE ... --draft CODE=FILE ... [options] - how often the drafts of a model's drafters are right, by
the codes of both, the kind of text and the seed, with `ingle bench --draft`.

    bench_draft.py --target Q4_0=31b-it-Q4_0.gguf --target Q8_0=31b-it-Q8_0.gguf \\
                   --draft Q8_0=31b-it-DFlash-Q8_0.gguf --draft BF16=gemma-4-31B-it-DFlash --seeds 1,2,3

All pairs are measured; with --fix-target CODE or --fix-draft CODE only those with it.  Acceptance is from the raw counts of each
run (accepted over drafted); a pair's is the mean over its runs of all kinds and seeds, with the standard deviation over the seeds.
A difference between two pairs is 'real' when it is more than one deviation (the larger one of both), else 'within noise'.

Before anything runs the memory of each pair is planned: what does not fit is told, and nothing is started unless --skip leaves it
out.  A base model is refused under a drafter that was made for an instruction model.  Each run's output is kept in the folder of
logs.  The result is a dated Markdown table, with published figures beside it where there are any for this kind and model.
"""
import argparse, datetime, json, os, re, statistics, struct, subprocess, sys

KINDS = ("code", "prose", "list", "json", "repeat")
#  drafter, model -> (acceptance in %, mean length, text, source)
PUBLISHED = {
    ("dflash", "26b-a4b"): [(44.69, None, "HumanEval", "vLLM pull request 41703"), (21.68, None, "MT-Bench", "vLLM pull request 41703"),
                            (None, 2.88, "chat, 4 tokens", "beellama")],
    ("dflash", "31b"): [(42.9, None, "Python", "beellama, IQ4_XS"), (44.3, None, "code", "buun"), (28.6, None, "prose", "buun"),
                        (None, 5.95, "chat, 8 tokens", "beellama")],
}


# ---- what a file is ----

def gguf_keys(path):
    """The metadata of a GGUF file, without long arrays."""
    with open(path, "rb") as f:
        def number(form):
            return struct.unpack(form, f.read(struct.calcsize(form)))[0]

        def value(kind):
            forms = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
            if kind in forms:
                return number(forms[kind])
            if kind == 8:
                return f.read(number("<Q")).decode("utf-8", "replace")
            inner, n = number("<I"), number("<Q")
            return [value(inner) for _ in range(n)][:8]

        if f.read(4) != b"GGUF":
            return {}
        number("<I"), number("<Q")
        return {f.read(number("<Q")).decode("utf-8", "replace"): value(number("<I")) for _ in range(number("<Q"))}


def words_of(path):
    """Everything that names the model, in lower case: the file's and its folder's name, and what its metadata say."""
    names, keys = [os.path.basename(os.path.abspath(path))], {}
    if os.path.isdir(path):
        config = os.path.join(path, "config.json")
        keys = json.load(open(config, encoding="utf-8")) if os.path.exists(config) else {}
        names.append(str(keys.get("_name_or_path", "")))
    else:
        keys = gguf_keys(path)
        names += [str(v) for k, v in keys.items() if re.match(r"general\.(name|finetune|basename|base_model\.\d+\.name)$", k)]
    return " ".join(names).lower().replace("_", "-"), keys


def is_for_instructions(path):
    words, _ = words_of(path)
    return re.search(r"(^|[-\s.])(it|instruct|chat)($|[-\s.])", words) is not None


def is_base(path):
    """A model that was not trained to follow instructions, as far as its file tells."""
    words, keys = words_of(path)
    if is_for_instructions(path):
        return False
    has_template = "tokenizer.chat_template" in keys or os.path.exists(os.path.join(path, "chat_template.jinja"))
    return re.search(r"(^|[-\s.])(base|pt)($|[-\s.])", words) is not None or not has_template


# ---- runs ----

def plan(o, target, draft):
    """None if the pair fits in memory, else what the plan says."""
    r = subprocess.run([o.ingle, "inspect", "--plan", "-m", target, "--draft", draft, "-c", str(o.ctx)], capture_output=True, text=True)
    text = r.stdout + r.stderr
    return None if r.returncode == 0 and re.search(r"\bfits\b", text) and "does not fit" not in text else text.strip()[-400:]


def run(o, names, target, draft, seed):
    """The scenarios of one pair and seed: a list of objects."""
    log = os.path.join(o.logs, f"{names[0]}-{names[1]}-{seed}.log")
    command = [o.ingle, "bench", "-m", target, "--draft", draft, "--json", "-g", str(o.answer_tokens), "-r", "1", "-c", str(o.ctx),
               "--temp", str(o.temp), "--seed", str(seed), *[x for k in o.kind for x in ("--kind", k)], *o.more]
    with open(log, "w", encoding="utf-8") as f:
        f.write(" ".join(command) + "\n")
        r = subprocess.run(command, capture_output=True, text=True)
        f.write(r.stdout + r.stderr)
    if r.returncode:
        sys.exit(f"bench_draft: {names[0]} with {names[1]}, seed {seed}: status {r.returncode}, see {log}\n{r.stderr.strip()[-400:]}")
    found = [json.loads(line) for line in r.stdout.splitlines() if line.startswith("{")]
    return [e for e in found if e.get("test") == "draft"]


class Pair:
    """What the runs of one target and drafter came to."""

    def __init__(self, target, draft):
        self.target, self.draft, self.runs = target, draft, {}  # seed -> scenarios

    def of(self, seed, kind=None):
        return [e for e in self.runs[seed] if kind in (None, e["kind"])]

    def acceptance(self, kind=None):
        """Mean over all seeds, from counts, and the deviation of the seeds; None: nothing was drafted."""
        drafted = {s: sum(e["drafted"] for e in self.of(s, kind)) for s in self.runs}
        accepted = {s: sum(e["accepted"] for e in self.of(s, kind)) for s in self.runs}
        each = [accepted[s] / drafted[s] for s in self.runs if drafted[s]]
        if not each:
            return None
        return sum(accepted.values()) / sum(drafted.values()), statistics.stdev(each) if len(each) > 1 else 0.0

    def length(self):
        drafts = sum(e["drafts"] for s in self.runs for e in self.of(s))
        return 1 + sum(e["accepted"] for s in self.runs for e in self.of(s)) / drafts if drafts else 1.0

    def speed_up(self):
        return statistics.median(e["speed_up"] for s in self.runs for e in self.of(s))


# ---- the table ----

def percent(a):
    return "-" if a is None else f"{100 * a[0]:.1f} ± {100 * a[1]:.1f}"


def verdict(a, b):
    """Of two acceptances, whether they differ by more than one deviation."""
    if a is None or b is None:
        return "not drafted"
    return "real" if abs(a[0] - b[0]) > max(a[1], b[1]) else "within noise"


def machine():
    text = open("/proc/cpuinfo", encoding="utf-8").read() if os.path.exists("/proc/cpuinfo") else ""
    m = re.search(r"model name\s*:\s*(.*)", text)
    return f"{m[1] if m else 'unknown processor'}, {os.cpu_count()} processors"


def table(o, pairs, kind_of_drafter):
    lines = [f"## Drafting, {datetime.date.today()}", "",
             f"{machine()}; answers of {o.answer_tokens} tokens, temperature {o.temp}, seeds {', '.join(map(str, o.seeds))}. "
             "Acceptance in percent of drafted tokens, ± the deviation over seeds.", "",
             "| target | drafter | " + " | ".join(o.kind) + " | all | mean length | times as fast |",
             "|---|---|" + "---|" * (len(o.kind) + 3)]
    for p in pairs:
        lines.append(f"| {p.target} | {p.draft} | " + " | ".join(percent(p.acceptance(k)) for k in o.kind) +
                     f" | {percent(p.acceptance())} | {p.length():.2f} | {p.speed_up():.2f} |")
    if len(pairs) > 1:
        lines += ["", "| difference | acceptance | |", "|---|---|---|"]
    for i, p in enumerate(pairs):
        for q in pairs[i + 1:]:
            if p.target != q.target and p.draft != q.draft:
                continue  # two things at once tell nothing
            a, b = p.acceptance(), q.acceptance()
            by = f"{100 * (b[0] - a[0]):+.1f}" if a and b else "-"
            lines.append(f"| {p.target} + {p.draft} to {q.target} + {q.draft} | {by} | {verdict(a, b)} |")
    text = " ".join(words_of(f)[0] for f in o.files)
    published = [row for (kind, model), rows in PUBLISHED.items() if kind == kind_of_drafter and model in text for row in rows]
    if published:
        lines += ["", "| published | acceptance, % | mean length |", "|---|---|---|"]
        lines += [f"| {what} ({source}) | {share or '-'} | {length or '-'} |" for share, length, what, source in published]
    return "\n".join(lines) + "\n"


# ---- the whole ----

def named(p, values, what):
    out = {}
    for v in values:
        name, _, path = v.partition("=")
        if not path or name in out:
            p.error(f"--{what} is NAME=FILE, each name once, not '{v}'")
        if not os.path.exists(path):
            p.error(f"--{what} {name}: there is no file or folder '{path}'")
        out[name] = path
    return out


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--target", action="append", default=[], metavar="CODE=FILE")
    p.add_argument("--draft", action="append", default=[], metavar="CODE=FILE")
    p.add_argument("--fix-target", metavar="CODE")
    p.add_argument("--fix-draft", metavar="CODE")
    p.add_argument("--kind", action="append", choices=KINDS)
    p.add_argument("--seeds", default="1,2,3")
    p.add_argument("--temp", type=float, default=1.0)
    p.add_argument("--answer-tokens", type=int, default=128)
    p.add_argument("--ctx", type=int, default=4096)
    p.add_argument("--ingle", default="out/release/ingle")
    p.add_argument("--logs", default="out/bench_draft")
    p.add_argument("--table", metavar="FILE", help="append the table to it; default: only print it")
    p.add_argument("--skip", action="store_true", help="leave out pairs that do not fit in memory")
    p.add_argument("more", nargs="*", help="further options of ingle bench, behind --")
    o = p.parse_args()
    o.targets, o.drafts = named(p, o.target, "target"), named(p, o.draft, "draft")
    for fixed, names, what in ((o.fix_target, o.targets, "target"), (o.fix_draft, o.drafts, "draft")):
        if fixed and fixed not in names:
            p.error(f"--fix-{what} {fixed}: no --{what} has that name")
    if not o.targets or not o.drafts:
        p.error("at least one --target and one --draft are needed")
    try:
        o.seeds = [int(s) for s in o.seeds.split(",")]
    except ValueError:
        p.error(f"--seeds is a list of numbers, not '{o.seeds}'")
    o.kind = o.kind or list(KINDS)
    o.targets = {o.fix_target: o.targets[o.fix_target]} if o.fix_target else o.targets
    o.drafts = {o.fix_draft: o.drafts[o.fix_draft]} if o.fix_draft else o.drafts
    o.files = [*o.targets.values(), *o.drafts.values()]
    return o


def main():
    o = arguments()
    for draft, d in o.drafts.items():
        for target, t in o.targets.items():
            if is_for_instructions(d) and is_base(t):
                sys.exit(f"bench_draft: {t} is a base model, and {d} drafts for an instruction model: what it accepts says nothing")
    short = {}
    for target, t in o.targets.items():
        for draft, d in o.drafts.items():
            why = plan(o, t, d)
            if why:
                short[target, draft] = why
                print(f"bench_draft: {target} with {draft} cannot run: {why}", file=sys.stderr)
    if short and not o.skip:
        sys.exit("bench_draft: nothing was started; --skip leaves these pairs out")
    os.makedirs(o.logs, exist_ok=True)
    pairs = [Pair(t, d) for t in o.targets for d in o.drafts if (t, d) not in short]
    for seed in o.seeds:  # pairs in turn, so that a machine that changes does so for all
        for p in pairs:
            p.runs[seed] = run(o, (p.target, p.draft), o.targets[p.target], o.drafts[p.draft], seed)
    if not pairs:
        sys.exit("bench_draft: no pair is left")
    info = subprocess.run([o.ingle, "inspect", "-m", o.targets[pairs[0].target], "--draft", o.drafts[pairs[0].draft], "--plan"],
                          capture_output=True, text=True)
    kind = re.search(r"\b(dflash2?|dspark|mtp|model)\b drafts", info.stdout + info.stderr)
    text = table(o, pairs, kind[1] if kind else "")
    print(text)
    if o.table:
        with open(o.table, "a", encoding="utf-8") as f:
            f.write("\n" + text)


if __name__ == "__main__":
    main()
