"""The papers' updates in one process, on numpy arrays: nothing of fairshard's is used here.

A node is a matrix of parameters x (its rows are parameters of a model: see ``gradient``). Every class does one
algorithm's share of a call, after the inner steps.
"""

import numpy as np

RATE = np.float32(0.05)
SHAPES = [(6, 5), (6,), (3, 6), (3,)]


def gradient(parameters: list, rank: int, step: int) -> list:
    """Of the loss of a network with one hidden layer of tanh units, as backward would take it."""
    w1, b1, w2, b2 = parameters
    x, target = data(rank, step)
    hidden = np.tanh(x @ w1.T + b1)
    output = hidden @ w2.T + b2
    d_output = (2 * (output - target) / output.size).astype(np.float32)
    d_hidden = (d_output @ w2) * (1 - hidden**2)
    return [d_hidden.T @ x, d_hidden.sum(0), d_output.T @ hidden, d_output.sum(0)]


def data(rank: int, step: int) -> tuple:
    x = np.sin(np.arange(20, dtype=np.float32).reshape(4, 5) * 0.7 + rank * 1.3 + step * 0.37)
    return x.astype(np.float32), np.float32(np.sin(rank + 0.2 * step))


def start() -> list:
    return [
        np.cos(np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + i) / 2 for i, shape in enumerate(SHAPES)
    ]


def mean(arrays: list) -> np.ndarray:
    return sum(arrays[1:], arrays[0]) / np.float32(len(arrays))


class LocalSgd:
    """Averages every third call."""

    def __init__(self, nodes: int) -> None:
        self.x = [start() for _ in range(nodes)]
        self.x0 = start()
        self.u = [np.zeros_like(x) for x in self.x0]

    def model(self, node: int) -> list:
        return self.x[node]

    def move(self, node: int, changes: list) -> None:
        self.x[node] = [x + change for x, change in zip(self.x[node], changes, strict=True)]

    def set(self, i: int, value: np.ndarray) -> None:
        for x in self.x:
            x[i] = value

    def call(self, k: int) -> None:
        if k % 3 == 0:
            for i in range(len(self.x0)):
                self.set(i, mean([x[i] for x in self.x]))


class SlowMo(LocalSgd):
    """Slow momentum 0.6, slow learning rate 0.9, every eighth call."""

    def slow(self, i: int, average: np.ndarray) -> np.ndarray:
        self.u[i] = np.float32(0.6) * self.u[i] + (self.x0[i] - average) / RATE
        self.x0[i] = self.x0[i] - np.float32(0.9) * RATE * self.u[i]
        return self.x0[i]

    def call(self, k: int) -> None:
        if k % 8:
            super().call(k)
            return
        for i in range(len(self.x0)):
            self.set(i, self.slow(i, mean([x[i] for x in self.x])))


class DiLoCo(LocalSgd):
    """Nesterov's momentum 0.9, learning rate 0.7, every tenth call."""

    def outer(self, i: int, difference: np.ndarray) -> None:
        self.u[i] = np.float32(0.9) * self.u[i] + difference
        self.x0[i] = self.x0[i] - np.float32(0.7) * (difference + np.float32(0.9) * self.u[i])

    def call(self, k: int) -> None:
        if k % 10 == 0:
            for i in range(len(self.x0)):
                self.outer(i, self.x0[i] - mean([x[i] for x in self.x]))
                self.set(i, self.x0[i])


class Int8DiLoCo(DiLoCo):
    """Nodes send their differences as 8-bit codes of one scale, and what these leave out with the next ones."""

    def __init__(self, nodes: int) -> None:
        super().__init__(nodes)
        self.left_out = [np.float32(0)] * nodes

    def call(self, k: int) -> None:
        if k % 10:
            return
        decoded = []
        for node, x in enumerate(self.x):
            wanted = np.concatenate([(x0 - values).ravel() for x0, values in zip(self.x0, x, strict=True)])
            wanted = wanted + self.left_out[node]
            scale = np.abs(wanted).max() / np.float32(127)
            decoded.append(np.round(wanted / scale) * scale)
            self.left_out[node] = wanted - decoded[-1]
        ends = np.cumsum([x0.size for x0 in self.x0])[:-1]
        for i, difference in enumerate(np.split(mean(decoded), ends)):
            self.outer(i, difference.reshape(self.x0[i].shape))
            self.set(i, self.x0[i])


class Streaming(DiLoCo):
    """The first parameter and the others take turns in rounds of 10; taken in 3 calls later, half and half."""

    def __init__(self, nodes: int) -> None:
        super().__init__(nodes)
        self.sent: dict = {}

    def call(self, k: int) -> None:
        for i in range(len(self.x0)):
            turn = 5 if i == 0 else 0
            if (k - 3) % 10 == turn and i in self.sent:
                self.outer(i, self.sent.pop(i))
                for x in self.x:
                    x[i] = np.float32(0.5) * x[i] + np.float32(0.5) * self.x0[i]
            if k % 10 == turn:
                self.sent[i] = self.x0[i] - mean([x[i] for x in self.x])


class Sgp(SlowMo):
    """Push-sum on two nodes: numerators x and weights w; the model is x / w. Slow steps are exact averages."""

    def __init__(self, nodes: int, overlapped: bool, slow: bool) -> None:
        super().__init__(nodes)
        self.w = [1.0] * nodes
        self.overlapped, self.has_slow = overlapped, slow
        self.under_way: list | None = None

    def model(self, node: int) -> list:
        return [x / np.float32(self.w[node]) for x in self.x[node]]

    def call(self, k: int) -> None:
        nodes = range(len(self.x))
        if self.has_slow and k % 8 == 0:
            for i in range(len(self.x0)):
                total = sum(self.x[n][i] for n in nodes)
                if self.under_way is not None:
                    total = total + sum(message[0][i] for message in self.under_way)
                self.set(i, self.slow(i, total / np.float32(len(self.x))))
            self.w, self.under_way = [1.0 for _ in nodes], None
            return
        halves = [([x / 2 for x in self.x[n]], self.w[n] / 2) for n in nodes]
        taken = self.under_way if self.overlapped else halves
        for n in nodes:
            numerators, weight = halves[n]
            if taken is not None:
                other, other_weight = taken[1 - n]
                numerators, weight = [a + b for a, b in zip(numerators, other, strict=True)], weight + other_weight
            self.x[n], self.w[n] = numerators, weight
        self.under_way = halves if self.overlapped else None


def run(algorithm: LocalSgd, calls: int, ranks_per_node: int = 2) -> list:
    """The model of each node after so many calls with plain SGD inside."""
    nodes = len(algorithm.x)
    for k in range(1, calls + 1):
        for node in range(nodes):
            ranks = range(node * ranks_per_node, (node + 1) * ranks_per_node)
            gradients = [gradient(algorithm.model(node), rank, k) for rank in ranks]
            algorithm.move(node, [-RATE * mean(list(parts)) for parts in zip(*gradients, strict=True)])
        algorithm.call(k)
    return [algorithm.model(node) for node in range(nodes)]
