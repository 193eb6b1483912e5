"""Which sentences say what the others say: LexRank over a sparse graph. Pure and deterministic.

Two sentences are alike by the rare words they share. Words that many have tell nothing and are skipped, which keeps
the graph sparse and the work near linear in the number of sentences.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from holdfast.compaction import time_slices

DAMPING = 0.85
ROUNDS = 12
ALIKE = 0.1
# A word in more sentences than this joins nothing: each of them would be compared with all others.
COMMON = 40

Graph = list[list[tuple[int, float]]]


def ranked(texts: Sequence[frozenset[str]]) -> list[float]:
    """How central each set of words is, from 0 to 1."""
    if not texts:
        return []
    graph = _graph(texts)
    sums = [sum(weight for _, weight in edges) for edges in graph]
    ranks = [1.0] * len(texts)
    for _ in range(ROUNDS):
        time_slices.breathe()
        given = [rank / total if total else 0.0 for rank, total in zip(ranks, sums, strict=True)]
        ranks = [1 - DAMPING + DAMPING * sum(given[other] * weight for other, weight in edges) for edges in graph]
    top = max(ranks)
    return [rank / top for rank in ranks]


def _graph(texts: Sequence[frozenset[str]]) -> Graph:
    counts = Counter(word for words in texts for word in words)
    rarity = {word: math.log(1 + len(texts) / count) ** 2 for word, count in counts.items()}
    lengths = [math.sqrt(sum(rarity[word] for word in words)) or 1.0 for words in texts]
    places: dict[str, list[int]] = {}
    graph: Graph = [[] for _ in texts]
    for index, words in enumerate(texts):
        time_slices.breathe()
        shared: dict[int, float] = {}
        # Sets have no order of their own; sums of floats do.
        for word in sorted(words):
            if 1 < counts[word] <= COMMON:
                for other in places.setdefault(word, []):
                    shared[other] = shared.get(other, 0.0) + rarity[word]
                places[word].append(index)
        for other, weight in shared.items():
            alike = weight / (lengths[index] * lengths[other])
            if alike >= ALIKE:
                graph[index].append((other, alike))
                graph[other].append((index, alike))
    return graph
