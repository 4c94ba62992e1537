"""Decoding with guesses beside decoding without: python benchmarks/bench_speculation.py [MODEL] [--runs 7]

Each case is generated both ways in turn, and the replies must be the same. The ratio is that of tokens per second while
decoding, taken pair by pair; its median stands in the table, with the lowest and highest. Repetitive cases are what
guessing is for: a text to be copied, a list to be edited, code to be completed. In the others a random draw decides, so
that nothing repeats but by chance: there guessing must cost nothing.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

import pantheon

SOURCE = (
    "The harbour of the town lies in a bay that opens to the west. In winter the wind comes from the sea and brings "
    "rain; in summer the water is so calm that the fishermen mend their nets on the beach. There are two churches, one "
    "market and a school with four teachers. Most of the houses were built before 1900, and few of them have more than "
    "two floors. The oldest, beside the lighthouse, belongs to a family that has lived there for nine generations."
)
PEOPLE = """1. Anna Berger, Bremen, carpenter
2. Paul Lindt, Zurich, baker
3. Maria Rossi, Turin, doctor
4. John Smith, Leeds, teacher
5. Ines Costa, Porto, sailor
6. Olga Novak, Brno, painter
7. Erik Holm, Bergen, miner
8. Lea Martin, Lyon, lawyer"""
CODE = '''class Account:
    """An account with a balance in cents."""

    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("the amount must be positive")
        self.balance += amount
        return self.balance

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("the balance is too low")
        self.balance -= amount
        return self.balance
'''
CALM = {"temperature": 0.3, "top_p": 0.9}
LIVELY = {"temperature": 1.0, "top_p": 0.95}


@dataclass(frozen=True)
class Case:
    """What to continue, and how; `repeats`: guesses are expected to come true."""

    name: str
    prompt: str
    repeats: bool
    sampling: dict[str, float]


COPY = "Original:\n{}\n\nExact copy:\n"
SUMMARY = "<|im_start|>user\nSummarize in two sentences: {}<|im_end|>\n<|im_start|>assistant\n"
BULLETS = "\n\nThe list with bullets:\n- Anna Berger, Bremen, carpenter\n- Paul Lindt, Zurich, baker\n-"

CASES = (
    Case("copy a text, greedy", COPY.format(SOURCE), True, {}),
    Case("copy a text, temperature 0.3", COPY.format(SOURCE), True, CALM),
    Case("copy code, greedy", COPY.format(f"```python\n{CODE}```") + f"```python\n{CODE[:90]}", True, {}),
    Case("a list with other bullets, greedy", f"The list:\n{PEOPLE}{BULLETS}", True, {}),
    Case("summarize in a chat, greedy", SUMMARY.format(SOURCE), True, {}),
    Case("story, temperature 1", "Once upon a time, in a village by the sea,", False, LIVELY),
    Case("essay after a text, temperature 1", f"{SOURCE}\n\nWhat we can learn from this is", False, LIVELY),
    Case("list of facts, temperature 1", "Here are twenty facts about animals:\n1.", False, LIVELY),
)


def decode(model: pantheon.Model, case: Case, n: int, guesses: int, seed: int) -> tuple[pantheon.Reply, float]:
    """A reply and its tokens per second. Where nothing repeats the end of the text is forbidden: it may come soon."""
    bias = None if case.repeats else {token: float("-inf") for token in model.tokenizer.stop_ids}
    prompt = model.tokenizer.encode(case.prompt, special=True)
    reply = model.generate(prompt, max_tokens=n, speculate=guesses, seed=seed, logit_bias=bias, **case.sampling)
    return reply, (len(reply.tokens) - 1) / reply.timings.decode_s


def measure(model: pantheon.Model, case: Case, runs: int, n: int, guesses: int) -> str:
    """One row of the table."""
    ratios, plain_speeds, speeds, proposed, accepted = [], [], [], 0, 0
    for run in range(runs + 1):
        order = (0, guesses) if run % 2 else (guesses, 0)
        results = {k: decode(model, case, n, k, seed=run) for k in order}
        (plain, plain_speed), (reply, speed) = results[0], results[guesses]
        if reply.tokens != plain.tokens:
            raise SystemExit(f"{case.name}, seed {run}: the replies differ")
        if run == 0:
            continue  # warm-up
        plain_speeds.append(plain_speed)
        speeds.append(speed)
        ratios.append(speed / plain_speed)
        proposed += reply.usage.proposed_tokens
        accepted += reply.usage.accepted_tokens
    tried = f"{accepted / runs:.0f} of {proposed / runs:.0f}"
    spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    return (
        f"| {case.name} | {model.info.threads} | {statistics.median(plain_speeds):.1f} | "
        f"{statistics.median(speeds):.1f} | {tried} | {spread} |"
    )


def rows(options: argparse.Namespace) -> Iterator[str]:
    """The table, line by line."""
    yield "| | threads | plain | with guesses | guesses that came true | ratio |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for threads in options.threads:
        with pantheon.load(options.model, threads=threads, isa=options.isa) as model:
            for case in CASES:
                if options.only in case.name:
                    yield measure(model, case, options.runs, options.tokens, options.guesses)


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--guesses", type=int, default=8, help="at a time, at most")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--isa")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    for row in rows(parser.parse_args()):
        print(row, flush=True)


if __name__ == "__main__":
    main()
