#!/usr/bin/env python3
"""outputs.py INGLE [COUNT [SEED]]: no command line changes a file that it reads.

Random command lines whose outputs point into inputs, by their names, through links, hard links, '..' and as parts that do not exist
yet.  After each of them every input has the bytes that it had.  src/cli/files.inc names every option of src/engine/options.inc that is
a file."""
import hashlib, os, random, re, shutil, subprocess, sys, tempfile

INGLE = os.path.abspath(sys.argv[1])
COUNT = int(sys.argv[2]) if len(sys.argv) > 2 else 60
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else 1
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NANO = os.path.join(ROOT, "tests/data/nano/nano-gemma4-Q4_K_M.gguf")
V4 = os.path.join(ROOT, "tests/data/nano-v4/nano-v4-MXFP4.gguf")


def run(folder, *args, stdin=""):
    return subprocess.run([INGLE, *args], cwd=folder, input=stdin, capture_output=True, text=True, timeout=300)


def must(folder, *args, stdin=""):
    r = run(folder, *args, stdin=stdin)
    if r.returncode:
        sys.exit(f"outputs: {args}: {r.stderr}")


def check_list():
    """Every option with a file or a folder as its value is in files.inc."""
    options = open(os.path.join(ROOT, "src/engine/options.inc")).read()
    options = re.sub(r'#define EXPERIMENT.*?name "=", more\)\n', "", options, flags=re.S)
    options = re.sub(r'EXPERIMENT\("', 'OPTION("draft-', options)
    listed = set(re.findall(r'(?:READ|WRITE|OWN)\("([^"]+)"', open(os.path.join(ROOT, "src/cli/files.inc")).read()))
    named = {"draft"}  # its value is WHAT
    for name, value in re.findall(r'OPTION\("([^"]+)",[^"]*?(?:"[^"]*", |NULL, )??"(FILE|DIR|FILE\|DIR)"', options):
        named.add(name)
    for entry in options.split("OPTION(")[1:]:
        if re.search(r'"(FILE|DIR|FILE\|DIR)"', entry):
            named.add(re.match(r'"([^"]+)"', entry)[1])
    if named != listed:
        sys.exit(f"outputs: src/cli/files.inc lacks {named - listed}, has {listed - named} too many")


def make(folder):
    """Inputs of every kind."""
    for source, name in ((NANO, "g.gguf"), (V4, "v.gguf")):
        shutil.copy(source, os.path.join(folder, name))
    os.mkdir(os.path.join(folder, "s"))
    must(folder, "quantize", "-q", "g.gguf", "s/m.gguf", "Q8_0", "--split-max-size", "900K")
    must(folder, "convert", "-q", "g.gguf", "-o", "ck")
    with open(os.path.join(folder, "text"), "w") as f:
        f.write("Oslo is the capital of Norway. The river is cold and the winter is long. " * 4)
    open(os.path.join(folder, "ck/README.md"), "w").write("about it")
    open(os.path.join(folder, "ids"), "w").write("5 6 7 8 9 10")
    open(os.path.join(folder, "schema"), "w").write('{"type": "object"}')
    open(os.path.join(folder, "grammar"), "w").write('root ::= "a" | "b"')
    must(folder, "imatrix", "-q", "-m", "g.gguf", "-f", "text", "-o", "i", "--chunk-size", "32", "--chunks", "1")
    must(folder, "imatrix", "-q", "-m", "v.gguf", "-f", "text", "-o", "iv", "--chunk-size", "32", "--chunks", "1")
    must(folder, "eval", "-q", "-m", "g.gguf", "--tokens", "ids", "--taps", "taps")
    must(folder, "run", "-q", "-m", "v.gguf", "--expert-budget", "300K", "--experts-profile", "profile", "-n", "2", "Hi")
    must(folder, "chat", "-q", "-m", "g.gguf", stdin="/save chat.json\n/quit\n")
    links = os.path.join(folder, "l")
    os.mkdir(links)
    names = []
    for at, _, files in sorted(os.walk(folder)):
        names += [os.path.relpath(os.path.join(at, f), folder) for f in sorted(files)]
    for i, name in enumerate(names):
        os.symlink(os.path.join(folder, name), os.path.join(links, f"sym{i}"))
        os.link(os.path.join(folder, name), os.path.join(links, f"hard{i}"))
    os.symlink("s", os.path.join(folder, "sl"))
    return names


def sums(folder, names):
    return {n: hashlib.sha256(open(os.path.join(folder, n), "rb").read()).hexdigest() for n in names if os.path.exists(os.path.join(folder, n))}


def spelling(rng, folder, names, target):
    """Another path of the same file."""
    i = names.index(target)
    return rng.choice([target, target, "./" + target, os.path.join(folder, target), "l/../" + target, f"l/sym{i}", f"l/hard{i}",
                       target.replace("s/", "sl/", 1), "s/.././" + target])


def command(rng, folder, names):
    """(arguments, standard input, files that are read); the output is one of all files, those that are read above all."""
    first = next(n for n in names if n.startswith("s/") and "-00001-" in n)
    parts = [n for n in names if n.startswith("s/")]
    checkpoint = [n for n in names if n.startswith("ck/")]
    out = lambda reads: spelling(rng, folder, names, rng.choice(reads if rng.random() < 0.75 else names))
    code = rng.choice(["Q4_0", "Q8_0", "Q4_K_M"])
    force = ["--force"] if rng.random() < 0.3 else []
    split = ["--split-max-size", "900K"] if rng.random() < 0.4 else []
    kind = rng.randrange(13)
    if kind == 0:
        return ["quantize", "-q", first, out(parts), code, *split, *force], "", parts
    if kind == 1:
        reads = ["g.gguf", "i"]
        return ["quantize", "-q", "g.gguf", out(reads), code, "--imatrix", "i", *split, *force], "", reads
    if kind == 2:
        return ["quantize", "-q", "g.gguf", out(parts), "--like", first, *split, *force], "", parts + ["g.gguf"]
    if kind == 3:
        return ["convert", "-q", "ck", "-o", out(checkpoint), *split, *force], "", checkpoint
    if kind == 4:  # a folder, or names of parts that do not exist yet
        to = rng.choice(["ck", "s", ".", "./ck/", "l/../ck", out(["g.gguf"])])
        return ["convert", "-q", rng.choice(["g.gguf", first]), "-o", to, *split, *force], "", names
    if kind == 5:
        return ["quantize", "-q", first, rng.choice(["s/m.gguf", "sl/m.gguf", "s/../s/m.gguf", os.path.join(folder, "s/m.gguf")]),
                "Q8_0", "--split-max-size", "900K", *force], "", parts
    if kind == 6:
        reads = ["g.gguf", "text", "i"]
        return ["imatrix", "-q", "-m", "g.gguf", "-f", "text", "--in-file", "i", "-o", out(reads), "--chunk-size", "32", "--chunks", "1",
                *force], "", reads
    if kind == 7:
        one = rng.choice(["i", "iv"])
        return ["imatrix", "-q", "--in-file", one, "--in-file", "i", "-o", out([one, "i"]), *force], "", [one, "i"]
    if kind == 8:
        reads = ["ids", "taps", "g.gguf"]
        where = rng.choice(["--taps", "--logits", "--html"])
        return ["eval", "-q", "-m", "g.gguf", "--tokens", "ids", "--against", "taps", where, out(reads)], "", reads
    if kind == 9:
        reads = ["v.gguf", "text"]
        where = rng.choice(["--experts-trace", "--experts-profile", "--experts"])
        return ["run", "-q", "-m", "v.gguf", "--expert-budget", "300K", where, out(reads + ["profile"]), "-n", "1", "-f", "text"], "", reads
    if kind == 10:
        reads = checkpoint
        return ["run", "-q", "-m", "ck", rng.choice(["--experts-trace", "--experts-profile"]), out(reads), "-n", "1", "Hi"], "", reads
    if kind == 11:
        reads = ["g.gguf", "schema"]
        return ["chat", "-q", "-m", "g.gguf", "--json-schema", "schema"], f"/save {out(reads)}\n/quit\n", reads
    reads = ["g.gguf", "grammar", "text"]
    return ["daemon", "-q", "-m", "g.gguf"], f'{{"id": 1, "do": "generate", "session": "a", "prompt": "Hi", "max_tokens": 1}}\n{{"id": 2, "do": "save", "session": "a", "file": "{out(reads)}"}}\n', reads


# Kinds that another output of the same kind may replace, where the call does not read them.
def may_change(args, target):
    state = {"imatrix": ("i", "iv"), "chat": ("chat.json",), "run": ("profile",), "eval": ("taps",)}.get(args[0], ())
    if target in state or "--force" in args:
        return True
    return args[0] in ("quantize", "convert") and target.endswith(".gguf")


def main():
    check_list()
    rng = random.Random(SEED)
    with tempfile.TemporaryDirectory() as top:
        kept = os.path.join(top, "kept")
        os.mkdir(kept)
        names = make(kept)
        before = sums(kept, names)
        refused = 0
        for i in range(COUNT):
            folder = os.path.join(top, "now")
            shutil.copytree(kept, folder, symlinks=True)
            links = os.path.join(folder, "l")
            for k, name in enumerate(names):
                for link in (f"sym{k}", f"hard{k}"):
                    os.unlink(os.path.join(links, link))
                os.symlink(os.path.join(folder, name), os.path.join(links, f"sym{k}"))
                os.link(os.path.join(folder, name), os.path.join(links, f"hard{k}"))
            args, stdin, reads = command(rng, folder, names)
            r = run(folder, *args, stdin=stdin)
            after = sums(folder, names)
            for name in names:
                if after.get(name) != before[name] and (name in reads or not may_change(args, name)):
                    sys.exit(f"outputs: number {i}: {args} {stdin!r} (status {r.returncode}) changed {name}\n{r.stderr}")
            if r.returncode < 0 or "BUG" in r.stderr:
                sys.exit(f"outputs: number {i}: {args}: status {r.returncode}\n{r.stderr}")
            refused += r.returncode != 0
            shutil.rmtree(folder)
    print(f"outputs: {COUNT} command lines, {refused} refused, no input changed (seed {SEED})")


main()
