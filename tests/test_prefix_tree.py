"""The radix tree against the plainest model of it: a dictionary of sequences."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from llamaserve._core import PrefixTree

HOLDERS = st.integers(-3, 5)
TOKENS = st.lists(st.integers(0, 2), max_size=8)


def common(a: list[int], b: list[int]) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


class TreeMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tree = PrefixTree()
        self.model: dict[int, list[int]] = {}

    @rule(holder=HOLDERS, tokens=TOKENS)
    def insert(self, holder: int, tokens: list[int]) -> None:
        self.tree.insert(holder, tokens)
        self.model[holder] = tokens

    @rule(holder=HOLDERS)
    def erase(self, holder: int) -> None:
        self.tree.erase(holder)
        self.model.pop(holder, None)

    @rule(holder=HOLDERS, more=TOKENS)
    def grow(self, holder: int, more: list[int]) -> None:
        tokens = self.model.get(holder, []) + more
        self.tree.insert(holder, tokens)
        self.model[holder] = tokens

    @rule(tokens=TOKENS, min_length=st.integers(0, 4))
    def matches(self, tokens: list[int], min_length: int) -> None:
        found = self.tree.matches(tokens, min_length)
        expected = {h: n for h, t in self.model.items() if (n := common(t, tokens)) >= max(1, min_length)}
        assert dict(found) == expected
        assert len(found) == len(expected)
        lengths = [n for _, n in found]
        assert lengths == sorted(lengths, reverse=True)

    @invariant()
    def consistent(self) -> None:
        self.tree.check()
        assert self.tree.n_holders == len(self.model)
        for holder, tokens in self.model.items():
            assert self.tree.tokens(holder) == tokens
            others = [t for h, t in self.model.items() if h != holder]
            assert self.tree.covered(holder) == any(t[: len(tokens)] == tokens for t in others)
        prefixes = {tuple(t[:i]) for t in self.model.values() for i in range(1, len(t) + 1)}
        assert self.tree.n_tokens == len(prefixes)


TestPrefixTree = TreeMachine.TestCase
TestPrefixTree.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
