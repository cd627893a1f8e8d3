#!/usr/bin/env python3
"""stages_peer.py INGLE [--rounds N] [--saves N] [--named] [--seed S] - peers that are wrong, with right checksums: whoever stands between an engine and a
stage changes any message.  Neither end dies, hangs or takes memory for what the other says, and without changes answers are right."""
import argparse, ctypes, random, re, shutil, struct, sys, tempfile, threading, time

from client import TIMEOUT, Server
from worker import MODEL, Proxy, Worker, end_both

INGLE = sys.argv[1]
HASH = ctypes.CDLL("libxxhash.so.0")
HASH.XXH3_64bits.restype = HASH.XXH3_64bits_withSeed.restype = ctypes.c_uint64
HASH.XXH3_64bits.argtypes = ctypes.c_char_p, ctypes.c_size_t
HASH.XXH3_64bits_withSeed.argtypes = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64
FAIL, BYE, CANCEL, JOIN, STEP, ROWS, PAGES, PAGE, NEXT, CHAIN, TRY, KEEP = 4, 5, 6, 11, 12, 13, 14, 15, 16, 17, 18, 19
KINDS = {FAIL, BYE, CANCEL, JOIN, STEP, ROWS, PAGES, PAGE, NEXT, TRY, KEEP}
SAVE, READ, DROP, LIST, DONE = 1, 2, 3, 4, 5  # of KEEP
NAN = struct.pack("<I", 0x7FC00000)


def message(kind, payload=b"", rows=0, flags=0, tag=0):
    head = struct.pack("<IHHQIIIIQ", 0x58676E69, 2, kind, 0, 0, rows, 0, flags, tag)
    return sealed(head, payload)


def sealed(head, payload):
    """A frame with the checksum that its bytes have."""
    head, payload = bytes(head[:40]), bytes(payload)
    s = HASH.XXH3_64bits_withSeed(payload, len(payload), HASH.XXH3_64bits(head, 40))
    return b"ing\2" + struct.pack("<I", len(payload)) + head + struct.pack("<Q", s) + payload


class Between(Proxy):
    """edit(kind, head, payload, to_engine): the bytes that go on instead, or None: as they are."""
    number = 0  # of the last JOIN

    def __init__(self, to):
        self.edit, self.edits = None, 0
        super().__init__(to)

    def copy(self, source, to, to_engine):
        try:
            with source.makefile("rb") as f:
                to.sendall(f.read(64))
                while len(frame := f.read(8)) == 8:
                    n = struct.unpack_from("<I", frame, 4)[0]
                    body = f.read(48 + n) if frame[3] == 2 else b""
                    edit, new = self.edit, None
                    if body and body[6] == JOIN and not to_engine:
                        Between.number = struct.unpack_from("<Q", body, 32)[0]
                    if edit and body:
                        new = edit(struct.unpack_from("<H", body, 6)[0], bytearray(body[:48]), bytearray(body[48:]), to_engine)
                    self.edits += new is not None
                    to.sendall(frame + body if new is None else new)
        except OSError:
            pass
        end_both(source, to)


def only(kind, change, to_engine, times=1 << 30):
    """Of messages of a kind in one direction: change(head, payload) edits both, and says what comes instead, if anything."""
    left = [times]

    def edit(k, head, payload, direction):
        if k != kind or direction != to_engine or not left[0]:
            return None
        left[0] -= 1
        new = change(head, payload)
        return sealed(head, payload) if new is None else new
    return edit


def put(fmt, at, value, where="payload"):
    """A field of a head or payload is another one."""
    def change(head, payload):
        struct.pack_into("<" + fmt, payload if where == "payload" else head, at, *(value if isinstance(value, tuple) else (value,)))
    return change


def grow(head, payload, n=4):
    payload.extend(bytes(n))


def cut(head, payload, n=4):
    del payload[-n:]


def no_number(head, payload):
    payload[16:20] = NAN


def also(extra):
    """Something else comes first."""
    return lambda head, payload: (extra(head, payload) if callable(extra) else extra) + sealed(head, payload)


def keep(what, tag=1 << 40, length=9, have=0, tables=None, tokens=None, more=b"", groups=None):
    """A KEEP beside a STEP, of as many groups; tables: of each first, end, pages."""
    def extra(head, payload):
        n = struct.unpack_from("<I", payload, 8)[0] if groups is None else groups
        t = b"".join(struct.pack("<II", *x[:2]) + struct.pack(f"<{len(x) - 2}Q", *x[2:]) for x in tables or [(0, 0)] * min(n, 64))
        return message(KEEP, struct.pack("<QQQQI", 0, 77, length, have, n) + t + bytes(4 * (min(length, 9999) if tokens is None else tokens)) + more,
                       flags=what, tag=tag)
    return also(extra)


def keys(new, gone, anew=0, more=b""):
    """A list of what a stage has saved, beside its rows."""
    payload = struct.pack("<QQIII", 1, 2, anew, new, gone) + bytes(16 * min(new + gone, 1 << 21)) + more
    return also(lambda head, p: message(KEEP, payload, flags=LIST, tag=Between.number))


# what a stage may say to its engine
STAGE_SAYS = {
    "a row that is no number": (ROWS, no_number),
    "4 GB": (ROWS, lambda h, p: b"ing\2\xff\xff\xff\xff" + bytes(100)),
    "255 MB that do not come": (ROWS, lambda h, p: b"ing\2" + struct.pack("<I", 255 << 20) + bytes(100)),
    "more rows": (ROWS, put("I", 8, 1000)), "other rows": (ROWS, put("I", 20, 99, "head")), "another width": (ROWS, put("I", 12, 7)),
    "centuries": (ROWS, put("Q", 0, 1 << 62)), "a width of 4 G": (ROWS, put("I", 12, 0xFFFFFFFF)), "bytes too many": (ROWS, grow), "bytes too few": (ROWS, cut),
    "no bytes": (ROWS, lambda h, p: p.clear()), "of no step": (ROWS, put("Q", 32, 1 << 60, "head")),
    "a kind that is none": (ROWS, put("H", 6, 99, "head")), "another kind": (ROWS, put("H", 6, PAGE, "head")),
    "a worker's greeting": (ROWS, also(message(1, bytes(280)))), "a step": (ROWS, also(message(STEP, bytes(100), rows=1))),
    "a reason": (ROWS, also(message(FAIL, b"x" * 400))), "a reason that is too long": (ROWS, also(message(FAIL, b"x" * 401))),
    "the next stage": (ROWS, also(message(NEXT, b"gone", tag=1))), "the stage before": (ROWS, also(message(NEXT, b"gone", flags=2, tag=1))),
    "an old answer": (ROWS, also(lambda h, p: sealed(h, p))), "a page": (ROWS, also(message(PAGE, bytes(4096), tag=7))),
    "another version": (ROWS, put("H", 4, 9, "head")), "other bytes": (ROWS, lambda h, p: bytes(200)),
    "half a list": (ROWS, keys(9, 0, more=b"x")), "4 G keys": (ROWS, keys(0xFFFFFFFF, 0xFFFFFFFF)), "a million keys and more": (ROWS, keys((1 << 20) + 1, 0)),
    "a million keys go": (ROWS, keys(0, (1 << 20) + 1)), "keys that are none go": (ROWS, keys(0, 9)), "a list again": (ROWS, keys(9, 0, 1)),
    "a prefix that nobody asked for": (ROWS, also(message(KEEP, flags=DONE, rows=1, tag=3))), "a KEEP to an engine": (ROWS, also(message(KEEP, bytes(99), flags=READ))),
    "it ends": (ROWS, also(message(BYE))), "a CANCEL": (ROWS, also(message(CANCEL, tag=1))), "a JOIN": (ROWS, also(message(JOIN, bytes(640)))),
    "a TRY": (ROWS, also(message(TRY, bytes(99)))), "pages": (ROWS, also(message(PAGES, bytes(28)))), "a stage before": (ROWS, also(message(CHAIN, bytes(16)))),
    "only old answers": (ROWS, lambda h, p: sealed(h, p) * 50 if struct.pack_into("<Q", h, 32, 1) is None else None),
}
# what an engine may say to its stage
ENGINE_SAYS = {
    "4 GB": (STEP, lambda h, p: b"ing\2\xff\xff\xff\xff" + bytes(100)),
    "no rows": (STEP, put("I", 20, 0, "head")), "65,536 rows": (STEP, put("I", 20, 65536, "head")), "4 G rows": (STEP, put("I", 20, 0xFFFFFFFF, "head")),
    "4 G spans": (STEP, put("I", 0, 0xFFFFFFFF)), "mirrors": (STEP, put("I", 4, 1)), "4 G mirrors": (STEP, put("I", 4, 0xFFFFFFFF)),
    "other groups": (STEP, put("I", 8, 1)), "other logits": (STEP, put("I", 12, 9)), "4 G taps": (STEP, put("I", 16, 0xFFFFFFFF)),
    "a far position": (STEP, put("Q", 20, 1 << 62)), "another position": (STEP, put("Q", 20, 300)), "another row": (STEP, put("I", 28, 1)),
    "4 G rows of a span": (STEP, put("I", 32, 0xFFFFFFFF)), "other tokens before": (STEP, put("Q", 52, 12345)),
    "4 G media": (STEP, put("I", 44, 0xFFFFFFFF)), "pages that are none": (STEP, lambda h, p: p.__setitem__(slice(68, 120), b"\xff" * 52)),
    "bytes too few": (STEP, cut), "bytes too many": (STEP, grow), "no bytes": (STEP, lambda h, p: p.clear()),
    "rows that come later": (STEP, put("I", 28, 2, "head")), "a step twice": (STEP, also(lambda h, p: sealed(h, p))),
    "pages of 1 TB": (STEP, also(message(PAGES, struct.pack("<IQQQ", 1, 4096, 1 << 40, 1 << 20)))),
    "pages of a byte": (STEP, also(message(PAGES, struct.pack("<IQQQ", 1, 1 << 50, 1 << 26, 1)))),
    "pages of no bytes": (STEP, also(message(PAGES, struct.pack("<IQQQ", 1, 4096, 0, 0)))),
    "pages that are not there": (STEP, also(message(PAGES, struct.pack("<IQQQ", 2, 4096, 0, 0)))),
    "a copy of none": (STEP, also(message(PAGES, struct.pack("<IQQQ", 3, 1, 2, 0)))),
    "a page's bytes": (STEP, also(message(PAGES, struct.pack("<IQQQ", 4, 4096, 1 << 40, 0)))),
    "half a change": (STEP, also(message(PAGES, b"\1\0\0\0\0"))), "a change that is none": (STEP, also(message(PAGES, struct.pack("<IQQQ", 77, 1, 2, 3)))),
    "a page of 1 TB": (STEP, also(message(PAGE, struct.pack("<QQ", 4096, 1 << 40), tag=9))), "half a page": (STEP, also(message(PAGE, b"\1", tag=9))),
    "a next stage that is no address": (STEP, also(message(NEXT, b"\xff" * 300, tag=1))), "a test of 4 GB": (STEP, also(message(TRY, struct.pack("<Q", 1 << 32)))),
    "a stage before it": (STEP, also(message(CHAIN, bytes(16), tag=1))), "rows": (STEP, also(message(ROWS, bytes(16), tag=1 << 50))),
    "rows of 65 steps": (STEP, also(b"".join(message(ROWS, bytes(16), tag=(1 << 50) + i) for i in range(65)))),
    "100,000 changes": (STEP, also(message(PAGES, struct.pack("<IQQQ", 3, 1, 1, 0) * 100000))),
    "a step that is not known is dropped": (STEP, also(message(CANCEL, tag=1 << 50))), "the engine ends": (STEP, also(message(BYE))),
    "a JOIN of zeros": (STEP, also(message(JOIN, bytes(640)))), "half a JOIN": (STEP, also(message(JOIN, bytes(64)))),
    "a FAIL": (STEP, also(message(FAIL, b"why", tag=1))), "a worker's rows": (STEP, also(message(2, bytes(64), rows=1))),
    "a KEEP of no kind": (STEP, keep(9)), "a KEEP of a stage": (STEP, keep(DONE)), "a list": (STEP, keep(LIST)), "nothing is kept": (STEP, also(message(KEEP, flags=SAVE))),
    "4 G tokens": (STEP, keep(SAVE, length=1 << 32)), "no tokens": (STEP, keep(READ, length=0)), "more than the context": (STEP, keep(READ, length=513)),
    "4 G pages are there": (STEP, keep(READ, have=1 << 40)), "other groups of a KEEP": (STEP, keep(SAVE, groups=1)), "4 G groups": (STEP, keep(SAVE, groups=0xFFFFFFFF)),
    "pages 1 to 0": (STEP, keep(SAVE, tables=[(1, 0)] * 16)), "pages to 4 G": (STEP, keep(READ, tables=[(0, 0xFFFFFFFF)] * 16)),
    "tokens too few": (STEP, keep(READ, tokens=3)), "tokens too many": (STEP, keep(SAVE, more=bytes(4))), "a KEEP of 8 MB": (STEP, keep(READ, more=bytes(8 << 20))),
    "two of a number": (STEP, also(lambda h, p: keep(READ)(h, p)[:-len(sealed(h, p))] * 2)),
    "a thousand are kept": (STEP, also(lambda h, p: b"".join(keep(SAVE + i % 2, tag=(1 << 40) + i, length=i % 500 + 1)(h, p)[:-len(sealed(h, p))] for i in range(1000)))),
    "what is not kept is dropped": (STEP, keep(DROP)), "tokens that are none": (STEP, keep(READ, length=500, tokens=0, more=b"\xff" * 2000)),
}
# how a stage may greet, and what the engine says of it
GREETINGS = (("version", "I", 0, 99, "protocol 5, .* 99, "), ("layers", "I", 20, 9, "6 layers here, 9 there"), ("width", "I", 24, 64, "128 here, 64 there"),
             ("quantisation", "Q", 44, 5, "0000000000000005 there"), ("no layers", "II", 8, (3, 3), "a JOIN has layers 3 to 3 of 6"),
             ("beyond the model", "I", 12, 7, "a JOIN has layers 3 to 7 of 6"), ("first", "II", 8, (0, 6), "the engine has the embedding"),
             ("context", "I", 28, 0, "context 0: outside"), ("rows", "I", 32, 1 << 31, "2147483648 rows"), ("name", "B", 148, 7, "no printable ASCII"),
             ("numerics", "B", 100, 120, "the numerics are 'exact' here, 'xxact' there"), ("memory", "Q", 68, 1, "a shorter --ctx here, or more memory there"),
             ("pages", "Q", 60, 3, "0000000000000003 there"))

# after which nobody says anything more: 10 s each time
LATE = {"255 MB that do not come", "of no step", "another kind", "rows that come later"}


def memory(pid, which="VmRSS"):
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(which + r":\s+(\d+)", f.read())[1]) << 10


class Peers:
    """One stage, one engine, and somebody between them; each has a store."""

    def __init__(self, *options):
        plain = ("-t", "1", "--ctx", "512", "--no-pack-cache")
        self.folder = tempfile.mkdtemp()
        store = lambda name: ("--store", f"{self.folder}/{name}")
        self.stage = Worker("127.0.0.1:0", "--stage", "3:6", "--ctx", "512", "--no-pack-cache", *store("stage"))
        options = (*store("engine"), "--store-tokens", "64", *options)
        self.between = Between(int(self.stage.address.rsplit(":", 1)[1]))
        self.start = lambda: Server(INGLE, "-m", MODEL, *plain, "--draft", "off", "--stages", f"127.0.0.1:{self.between.port}", "--stage-wait", "100", *options)
        self.server = self.start()
        self.want = self.ask()

    def ask(self, n=6, prompt="one two three", server=None):
        status, _, r = (server or self.server).post("/v1/completions", {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True})
        return r["choices"][0]["text"] if status == 200 else (status, r["error"]["message"])

    def save(self, edit, plain):
        """The same of prompts that are saved and read again; plain: a server without stages."""
        prompts = [f"{x} " + "one two three four five " * 20 for x in random.sample(range(10 ** 9), 3)]
        want = [self.ask(prompt=x, server=plain) for x in prompts]
        self.between.edit, self.between.edits = edit, 0
        got = [self.ask(prompt=x) for x in prompts]
        self.server.get("/metrics")
        self.between.edit = None
        self.server.close()  # what is in memory is gone
        self.server = self.start()
        assert [self.ask(prompt=x) for x in prompts] == want
        assert self.ask() == self.want and self.stage.process.poll() is None
        assert all(x == y or x[0] in (500, 503) for x, y in zip(got, want)), (got, want)
        return [x == y for x, y in zip(got, want)]

    def one(self, edit):
        """What is answered with it; then all is well again."""
        self.between.edit, self.between.edits = edit, 0
        for _ in range(20):
            got = self.ask()
            if self.between.edits:
                break
        self.between.edit = None
        assert self.between.edits, "nothing was changed"
        again = self.ask()
        assert again == self.want, again
        assert self.stage.process.poll() is None and self.server.process.poll() is None
        return got

    def close(self):
        self.server.close()
        self.stage.end()
        self.between.close()
        shutil.rmtree(self.folder)


def damage(rnd, said, times=4, only=None):
    """Any bytes of some messages but rows of floats, which nobody can check."""
    left = [times]

    def edit(kind, head, payload, to_engine):
        if rnd.random() > 0.3 or kind not in KINDS or not left[0] or (only and kind != only):
            return None
        left[0] -= 1
        for _ in range(rnd.randrange(1, 4)):
            part = head if rnd.random() < 0.3 or not payload else payload
            most = min(len(part), 16 if kind == ROWS else 120 if kind == STEP else len(part))
            at, value = rnd.randrange(most), rnd.choice((0, 1, 127, 128, 255, rnd.randrange(256)))
            said.append(f"{'stage' if to_engine else 'engine'} kind {kind}, {'head' if part is head else len(part)}: {at} = {value}")
            part[at] = value
        if rnd.random() < 0.1 and payload:
            del payload[rnd.randrange(len(payload)):]
        new = sealed(head, payload)
        return rnd.choice((new, new, new + new))
    return edit


def run(peers, rnd, o):
    begin = [memory(x.pid) for x in (peers.stage.process, peers.server.process)]
    for says, to_engine in ((STAGE_SAYS, True), (ENGINE_SAYS, False)) if o.named else ():
        for name, (kind, change) in says.items():
            start = time.monotonic()
            once = peers.one(only(kind, change, to_engine, 1))
            always = "not tried" if name in LATE else peers.one(only(kind, change, to_engine))
            print(f"{'stage' if to_engine else 'engine'}: {name}: {time.monotonic() - start:.1f} s, once {once == peers.want}, always {always}", flush=True)
    plain = Server(INGLE, "-m", MODEL, "-t", "1", "--ctx", "512", "--no-pack-cache", "--draft", "off") if o.saves else None
    for i in range(o.saves):
        said = []
        print(f"saved {i}: {peers.save(damage(rnd, said, only=KEEP), plain)} {said}", flush=True)
    if plain:
        plain.close()
    for i in range(o.rounds):
        start, said = time.monotonic(), []
        try:
            got = peers.one(damage(rnd, said))
        except Exception:
            print(i, said, "".join(peers.server.log[-20:]))
            raise
        s = time.monotonic() - start
        print(f"damage {i}: {s:.1f} s, {got == peers.want or got}{f' {said}' if s > 5 else ''}", flush=True)
    print("memory", begin, [memory(x.pid) for x in (peers.stage.process, peers.server.process)])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("ingle")
    p.add_argument("--rounds", type=int, default=100)
    p.add_argument("--saves", type=int, default=0, help="rounds of damage to what is said of stores")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--named", action="store_true", help="the named ones, too")
    o = p.parse_args()
    peers = Peers()
    try:
        run(peers, random.Random(o.seed), o)
    finally:
        peers.close()


if __name__ == "__main__":
    main()
