"""Train the byte-level BPE tokenizer and encode the text.

    train_tokenizer.py WORK MODEL_DIR -> MODEL_DIR/tokenizer.json, tokenizer_config.json,
                                         WORK/tokens/{train,heldout}.bin.xz (uint16 ids)
"""

import json
import lzma
import os
import sys

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from common import END_OF_TEXT, SPECIAL, TOKENIZER_CONFIG, VOCAB, write_json

SPLIT = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def main():
    work, folder = sys.argv[1:3]
    text = {n: [json.loads(line) for line in open(f"{work}/{n}.jsonl")] for n in ("train", "heldout")}
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB - len(SPECIAL), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    sample = (t.replace("<|im_start|>", "").replace("<|im_end|>", "") for t in text["train"][::2])
    tok.train_from_iterator(sample, trainer)
    tok.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIAL])
    assert tok.token_to_id(SPECIAL[0]) == END_OF_TEXT and tok.get_vocab_size() == VOCAB
    os.makedirs(folder, exist_ok=True)
    tok.save(f"{folder}/tokenizer.json")
    write_json(f"{folder}/tokenizer_config.json", TOKENIZER_CONFIG)
    os.makedirs(f"{work}/tokens", exist_ok=True)
    for name, docs in text.items():
        ids = []
        for i in range(0, len(docs), 2000):
            for e in tok.encode_batch_fast(docs[i:i + 2000]):
                ids.append(np.array([END_OF_TEXT, *e.ids], dtype=np.uint16))
        ids = np.concatenate(ids)
        with lzma.open(f"{work}/tokens/{name}.bin.xz", "wb", preset=1) as f:
            f.write(ids.tobytes())
        chars = sum(map(len, docs))
        print(name, "documents", len(docs), "tokens", len(ids), "chars/token", round(chars / len(ids), 3),
              "packed MB", os.path.getsize(f"{work}/tokens/{name}.bin.xz") / 1e6)


main()
