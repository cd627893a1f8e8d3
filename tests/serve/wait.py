"""wait.py - waits for what a test has caused.  A test may be stopped at any moment, for seconds, and so may a server: a test
waits only for what stays (a count that has grown, an answer that is over, one that is held until its client reads), or for one
of two outcomes.  Nothing here waits for ever."""
import time

LIMIT = 600  # seconds, on a machine many times slower than ours
# A server whose answer with LASTS stays at work until its client reads, or leaves.
STAYS = ("-c", "32768", "--limit", "stall-timeout=3600")
# As logit_bias: the built-in model does not end its answer.  With ignore_eos it draws tokens that have no text behind the end,
# and what is not sent fills no buffer.
NO_END = {"1": -100, "50": -100, "106": -100}
# Of a request for chat: kilobytes a token, so that some hundred tokens fill the buffers between server and client.
LASTS = {"stream": True, "max_tokens": 30000, "logit_bias": NO_END, "logprobs": True, "top_logprobs": 20}


def attempts(what, limit=LIMIT, pause=0.01):
    """For a loop that tries until it breaks; what: what it tries."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        yield
        time.sleep(pause)
    raise AssertionError(f"after {limit} s not yet: {what}")


def until(what, limit=LIMIT):
    """What what() returns as soon as that is true, which must be so from then on."""
    end = time.monotonic() + limit
    while not (seen := what()):
        if time.monotonic() > end:
            raise AssertionError(f"after {limit} s it is still {seen!r}")
        time.sleep(0.01)
    return seen


def read_until(s, *words):
    """What a socket brings until one of these is in it."""
    got = b""
    while not any(word in got for word in words):
        piece = s.recv(65536)
        if not piece:
            raise AssertionError(f"the answer ends without {words}: {got[-2000:]!r}")
        got += piece
    return got


def busy(server, key=None):
    """The slots that are at work."""
    return [s for s in server.get("/slots", {"X-Api-Key": key} if key else None)[2] if s["is_processing"]]
