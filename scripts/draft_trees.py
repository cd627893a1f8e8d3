#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""draft_trees.py - what branches beside a chain of drafts can bring, computed from probabilities: no model runs.

A step of r rows takes 1 + ROW * (r - 1) plain steps, the round before it ROUND of one.  A drafted token is right with a probability that
the drafter tells (EASY for a part of the places, HARD for the others); where it is wrong, the second guess is right with probability SECOND.  Of
all chains, and of all trees of chain and branches of one token, those with most tokens in a unit of time are taken.  A branch costs a row for each
of its tokens and COPY plain steps for the page that it copies; `repeated`: rows that it shares with the chain, too."""
import random

PLACES, LEN = 4000, 15


def steps(easy, hard, part, seed=1):
    """For each step the probabilities of the drafter's tokens."""
    dice = random.Random(seed)
    return [[easy if dice.random() < part else hard for _ in range(LEN)] for _ in range(PLACES)]


def nodes(p, second, repeated):
    """Of a step: (likelihood, rows) of what may be added to the chain, and of the chain."""
    reach, chain, branches = 1.0, [], []
    for depth, q in enumerate(p):
        branches.append((reach * (1 - q) * second, 2 + depth if repeated else 1, depth))
        reach *= q
        chain.append(reach)
    return chain, branches


def best(all_steps, row, round_, second, copy, kind):
    """Tokens a plain step takes, rows and branches of a step, at the rate that reproduces itself."""
    rate = 1.0
    for _ in range(60):
        tokens = time = rows = n_branches = 0.0
        for p in all_steps:
            chain, branches = nodes(p, second, kind == "repeated")
            width = sum(1 for r in chain if r > rate * row)
            t, n = 1 + sum(chain[:width]), width
            b = [x for x in branches[:width] if kind != "chain" and x[0] > rate * (row * x[1] + copy)]
            t += sum(x[0] for x in b)
            n += sum(x[1] for x in b)
            tokens, rows, n_branches = tokens + t, rows + n, n_branches + len(b)
            time += 1 + row * n + copy * len(b) + (round_ if width else 0)
        if abs(tokens / time - rate) < 1e-6:
            break
        rate = tokens / time
    return max(rate, 1.0), rows / len(all_steps), n_branches / len(all_steps)


def main():
    texts = [("0.85", 0.85, 0.85), ("0.7", 0.7, 0.7), ("0.5", 0.5, 0.5), ("0.3", 0.3, 0.3), ("0.97 or 0.6", 0.97, 0.6), ("0.95 or 0.4", 0.95, 0.4),
             ("0.9 or 0.2", 0.9, 0.2)]
    print("| a row, steps | right | second right | chain | rows | tree | rows | branches | a page copied | rows repeated |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for row in (0.035, 0.07, 0.2):
        for name, easy, hard in texts:
            for second in (0.3, 0.5):
                s = steps(easy, hard, 0.6)
                chain, n, _ = best(s, row, 0.15, second, 0, "chain")
                tree, m, k = best(s, row, 0.15, second, 0, "tree")
                copied, _, _ = best(s, row, 0.15, second, 0.02, "tree")
                repeated, _, _ = best(s, row, 0.15, second, 0, "repeated")
                print(f"| {row} | {name} | {second} | {chain:.2f} | {n:.1f} | {100 * (tree / chain - 1):+.1f} % | {m:.1f} | {k:.1f} | "
                      f"{100 * (copied / chain - 1):+.1f} % | {100 * (repeated / chain - 1):+.1f} % |")


if __name__ == "__main__":
    main()
