#!/usr/bin/env python3
"""long_context.py INGLE -m MODEL [--length N ...] [--sparse HOW] [--text FILE] [--times N] [--task NAME ...] [-- OPTION ...]

Is what stands in a long prompt found again?  Each prompt is answered twice by one `ingle daemon`, with "sparse": "off" and with
HOW (default: on), and the right answers are counted:

  needle1, needle4, needle8   numbers of 7 digits for names, at 11 depths: the value of one, of 4, of 8 of them
  variables                   chains of assignments: all names that have a value (as RULER's variable tracking)
  words                       the ten words that come most often (as RULER's common words)

--length: tokens of a prompt, about (8192; may be repeated).  --times: prompts of a task and length (11).  --text: what stands
around needles and assignments (default: sentences that are made up).  --json: a line for each task and length.
Behind "--" options for the daemon, such as --kv q8r."""
import argparse, json, random, re, subprocess, sys

NAMES = "amber birch cedar delta ember fjord grove heron iris jade kite lotus maple north olive pearl quartz river stone tulip".split()
WORDS = ("apple bridge candle desert engine forest garden hammer island jacket kettle ladder market needle orange pencil quarry ribbon "
         "saddle temple valley window yellow zipper anchor basket carpet dinner effort fabric guitar helmet insect jungle lemon mirror").split()
SENTENCES = ["The grass is green and the sky is blue.", "A boat went down the river in the morning.", "They walked to the market and back.",
             "The lamp on the table was still warm.", "Nobody knew when the train would come.", "Rain fell on the roof for an hour.",
             "She put the book on the shelf again.", "The dog slept beside the door."]


class Daemon:
    def __init__(self, ingle, model, options):
        self.p = subprocess.Popen([ingle, "daemon", "-m", model, "-q", *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ready = self.event()

    def event(self):
        line = self.p.stdout.readline()
        if not line:
            sys.exit("long_context: the daemon has ended")
        return json.loads(line)

    def ask(self, **command):
        """The text of an answer and its last event."""
        self.p.stdin.write(json.dumps({"do": "generate", "id": "q", "temperature": 0, **command}) + "\n")
        self.p.stdin.flush()
        text = ""
        while True:
            e = self.event()
            text += e["text"] if e["event"] == "text" else ""
            if e["event"] == "error":
                sys.exit("long_context: " + e["error"])
            if e["event"] == "end":
                return text, e

    def close(self):
        self.p.stdin.close()
        self.p.wait()


def filler(rng, text, n):
    """n characters, whole sentences."""
    if text:
        at = rng.randrange(max(1, len(text) - n))
        return re.split(r"(?<=[.!?])\s+", text[at:at + n])
    out, size = [], 0
    while size < n:
        out.append(rng.choice(SENTENCES))
        size += len(out[-1]) + 1
    return out


def put_in(lines, what, where):
    """Each line of `what` at its share of the text."""
    lines = list(lines)
    for line, at in sorted(zip(what, where), key=lambda x: -x[1]):
        lines.insert(round(at * len(lines)), line)
    return " ".join(lines)


def needles(n):
    def make(rng, i, text, size):
        names = rng.sample(NAMES, n)
        numbers = {k: str(rng.randrange(10**6, 10**7)) for k in names}
        where = [(i % 11) / 10] if n == 1 else [rng.random() for _ in names]
        body = put_in(filler(rng, text, size), [f"The number for {k} is {v}." for k, v in numbers.items()], where)
        return body, f"What are the numbers for {', '.join(names)}? Answer with the numbers alone.", list(numbers.values())
    return make


def variables(rng, i, text, size):
    value = str(rng.randrange(10**4, 10**5))
    names = ["VAR" + "".join(rng.choice("ABCDEFGHJKLMNPQR") for _ in range(3)) for _ in range(15)]
    chain, others = names[:5], names[5:]
    lines = [f"{chain[0]} = {value}."] + [f"{b} = {a}." for a, b in zip(chain, chain[1:])]
    where = sorted(rng.random() for _ in lines)
    lines += [f"{k} = {rng.randrange(10**4, 10**5)}." for k in others]
    where += [rng.random() for _ in others]
    return put_in(filler(rng, text, size), lines, where), f"Which variables have the value {value}? Answer with their names.", chain


def words(rng, i, text, size):
    often = rng.sample(WORDS, 10)
    rare = [w for w in WORDS if w not in often]
    n = max(20, size // 8)
    bag = [often[k % 10] for k in range(n * 3 // 4)] + [rare[k % len(rare)] for k in range(n // 4)]
    rng.shuffle(bag)
    return " ".join(bag), "Which ten words come most often in this list? Answer with the words.", often


TASKS = {"needle1": needles(1), "needle4": needles(4), "needle8": needles(8), "variables": variables, "words": words}


def score(answer, wanted):
    return sum(re.search(rf"\b{re.escape(w)}\b", answer) is not None for w in wanted) / len(wanted)


def prompt_of(body, question):
    return [{"role": "user", "content": f"{body}\n\n{question}"}]


def characters(daemon, task, n_tokens):
    """How many characters of a task's text make so many tokens: measured with a short one."""
    rng = random.Random(0)
    body, question, _ = task(rng, 0, None, 2000)
    _, end = daemon.ask(messages=prompt_of(body, question), max_tokens=1)
    return max(100, int(n_tokens * 0.97 * (len(body) + len(question)) / end["prompt_tokens"]) - len(question))


def main():
    options = sys.argv[1:]
    at = options.index("--") if "--" in options else len(options)
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("ingle")
    p.add_argument("-m", "--model", required=True)
    p.add_argument("--length", type=int, action="append")
    p.add_argument("--sparse", default="on")
    p.add_argument("--text")
    p.add_argument("--times", type=int, default=11)
    p.add_argument("--task", action="append", choices=TASKS)
    p.add_argument("--tokens", type=int, default=160, help="of an answer, at most")
    p.add_argument("--json", action="store_true")
    a = p.parse_args(options[:at])
    text = open(a.text, encoding="utf-8", errors="replace").read() if a.text else None
    daemon = Daemon(a.ingle, a.model, options[at + 1:])
    if not a.json:
        print(f"{'task':<10} {'tokens':>8} {'times':>5} {'off':>8} {'sparse':>8} {'lost':>5} {'missed':>8} {'at most':>8} {'read':>7}  (sparse: {a.sparse})")
    for name in a.task or TASKS:
        for length in a.length or [8192]:
            size, sums = characters(daemon, TASKS[name], length), [0.0, 0.0]
            lost = pairs = n_prompt = 0
            missed = most = read = 0.0
            for i in range(a.times):
                body, question, wanted = TASKS[name](random.Random(f"{name} {length} {i}"), i, text, size)
                got = []
                for how in ("off", a.sparse):
                    answer, end = daemon.ask(messages=prompt_of(body, question), max_tokens=a.tokens, sparse=how)
                    got.append(score(answer, wanted))
                    n_prompt = max(n_prompt, end["prompt_tokens"])
                    s = end.get("sparse")
                    if s:
                        pairs += 1
                        missed, most, read = missed + s["missed_mean"], max(most, s["missed_most"]), read + s["values_read"]
                sums = [x + y for x, y in zip(sums, got)]
                lost += got[1] < got[0]
            row = {"task": name, "tokens": n_prompt, "times": a.times, "off": sums[0] / a.times, "sparse": sums[1] / a.times, "lost": lost,
                   "missed_mean": missed / max(1, pairs), "missed_most": most, "values_read": read / pairs if pairs else 1.0}
            if not pairs and a.sparse != "off":
                print(f"long_context: {name} of {n_prompt} tokens: no row was sparse with {a.sparse} (without 'from=': from 4,096 on)", file=sys.stderr)
            if a.json:
                print(json.dumps(row), flush=True)
            else:
                print(f"{name:<10} {n_prompt:>8} {a.times:>5} {100 * row['off']:>6.1f} % {100 * row['sparse']:>6.1f} % {lost:>5} "
                      f"{100 * row['missed_mean']:>6.2f} % {100 * most:>6.2f} % {100 * row['values_read']:>5.1f} %", flush=True)
    daemon.close()


if __name__ == "__main__":
    main()
