"""Interpolated Kneser-Ney bigram over the same tokens and windows: the baseline of the card.

    bigram.py TOKENS_DIR TRAINING_JSON

The discount is tuned on the held-out text itself, which favours the baseline.
"""

import json
import lzma
import sys

import numpy as np

from common import VOCAB, write_json

WINDOW = 2048


def read(path):
    with lzma.open(path) as f:
        return np.frombuffer(f.read(), dtype=np.uint16).astype(np.int32)


def main():
    folder, report = sys.argv[1:3]
    train, heldout = read(f"{folder}/train.bin.xz"), read(f"{folder}/heldout.bin.xz")
    pair = np.bincount(train[:-1] * VOCAB + train[1:], minlength=VOCAB * VOCAB).reshape(VOCAB, VOCAB)
    total = np.maximum(pair.sum(1), 1)
    kinds = (pair > 0).sum(1)
    before = (pair > 0).sum(0) + 0.5  # in how many contexts a token was seen
    lower = before / before.sum()
    n = (len(heldout) - 1) // WINDOW * WINDOW  # the model's windows: token i predicts token i + 1
    a, b = heldout[:n], heldout[1:n + 1]
    best = min((-np.log(np.maximum(pair[a, b] - d, 0) / total[a] + np.maximum(d * kinds[a], 1) / total[a] * lower[b]).mean(), d)
               for d in np.arange(0.3, 1.0, 0.05))
    unigram = np.bincount(train, minlength=VOCAB) + 0.5
    uni = -np.log((unigram / unigram.sum())[b]).mean()
    out = json.load(open(report))
    out.update(bigram_heldout_loss=float(best[0]), bigram_discount=round(float(best[1]), 2), unigram_heldout_loss=float(uni),
               below_bigram=float(best[0]) - out["heldout_loss"])
    write_json(report, out)
    print("bigram", best, "unigram", uni, "model", out["heldout_loss"])


main()
