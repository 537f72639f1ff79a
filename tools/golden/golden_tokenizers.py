"""tokenizer.json files of the styles that models use, trained on a little text, and the ids that the
`tokenizers` library gives for many strings."""

import json

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers

import golden_text

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + CONTRACTIONS + "?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + CONTRACTIONS + "?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
SINGLE_DIGITS = "|".join([
    CONTRACTIONS, r"[^\r\n\p{L}\p{N}]?\p{L}+", r"\p{N}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+",
    r"\s+(?!\S)", r"\s+"])
POSSESSIVE = "|".join([
    r"'(?i:[sdmt]|ll|ve|re)", r"[^\r\n\p{L}\p{N}]?+\p{L}+", r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]++[\r\n]*",
    r"\s*[\r\n]", r"\s+(?!\S)", r"\s+"])
CJK_RUNS = "[一-龥぀-ゟ゠-ヿ]+"
THREE_SPLITS_MAIN = "|".join([
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""", r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
    r" ?[\p{P}\p{S}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


def split(pattern, behavior="isolated", invert=False):
    pattern = pattern if isinstance(pattern, str) and len(pattern) < 3 else Regex(pattern)
    return pre_tokenizers.Split(pattern, behavior, invert=invert)


def byte_level(**options):
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, "use_regex": False, **options})


def sequence(*parts):
    return pre_tokenizers.Sequence(list(parts))


def train(pre_tokenizer, normalizer=None, vocab_size=700):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, min_frequency=1,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(golden_text.TRAINING * 3, trainer)
    assert tokenizer.get_vocab_size() == vocab_size, tokenizer.get_vocab_size()
    return tokenizer


def add_turn_tokens(tokenizer):
    tokenizer.add_special_tokens(["<|begin|>", "<|end|>"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])


def bos(tokenizer):
    begin = tokenizer.token_to_id("<|begin|>")
    return processors.TemplateProcessing(single="<|begin|> $A", pair="<|begin|> $A <|begin|> $B",
                                         special_tokens=[("<|begin|>", begin)])


def styles():
    """Name to (tokenizer, changes to its JSON)."""
    out = {}
    gpt2 = train(byte_level(use_regex=True))
    add_turn_tokens(gpt2)
    gpt2.post_processor = processors.ByteLevel(trim_offsets=False)
    out["gpt2"] = (gpt2, "string merges")

    o200k = train(sequence(split(O200K), byte_level()))
    add_turn_tokens(o200k)
    o200k.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), bos(o200k)])
    out["o200k"] = (o200k, None)

    qwen = train(sequence(split(SINGLE_DIGITS), byte_level()), normalizers.NFC())
    add_turn_tokens(qwen)
    qwen.post_processor = processors.ByteLevel(trim_offsets=False)
    out["single_digits_nfc"] = (qwen, None)

    llama = train(sequence(split(POSSESSIVE), byte_level()))
    add_turn_tokens(llama)
    llama.post_processor = bos(llama)
    out["possessive_ignore_merges"] = (llama, "ignore merges")

    three = train(sequence(split(r"\p{N}{1,3}"), split(CJK_RUNS), split(THREE_SPLITS_MAIN), byte_level()))
    add_turn_tokens(three)
    out["three_splits"] = (three, None)

    digits = train(sequence(pre_tokenizers.Digits(individual_digits=True),
                            byte_level(use_regex=True, add_prefix_space=True)))
    add_turn_tokens(digits)
    out["digits_prefix_space"] = (digits, None)

    flags = train(sequence(split(SINGLE_DIGITS), byte_level()),
                  normalizers.Sequence([normalizers.NFC()]))
    add_turn_tokens(flags)
    flags.add_tokens([AddedToken("[L]", lstrip=True, normalized=False),
                      AddedToken("[R]", rstrip=True, normalized=False),
                      AddedToken("word", single_word=True, normalized=False),
                      AddedToken("Ünï", normalized=True), AddedToken("NORM", normalized=True),
                      AddedToken("caf\u00e9", normalized=False), AddedToken("foo bar", normalized=False)])
    flags.add_special_tokens([AddedToken("<|end|>\n", normalized=False, rstrip=True)])
    flags.post_processor = bos(flags)
    out["added_token_flags"] = (flags, None)

    behaviors = [("removed", False), ("merged_with_previous", False), ("merged_with_next", False),
                 ("contiguous", False), ("isolated", True), ("removed", True)]
    for behavior, invert in behaviors:
        tokenizer = train(byte_level(use_regex=True), vocab_size=300)
        patterns = [r"\p{L}+"] if (behavior, invert) == ("removed", True) else [".", "[-a-c]"]
        tokenizer.pre_tokenizer = sequence(*(split(p, behavior, invert) for p in patterns),
                                           pre_tokenizers.Digits(individual_digits=False), byte_level())
        out[f"split_{behavior}{'_inverted' if invert else ''}"] = (tokenizer, None)
    return out


def write_tokenizer(tokenizer, change, path):
    value = json.loads(tokenizer.to_str())
    if change == "string merges":
        value["model"]["merges"] = [" ".join(pair) for pair in value["model"]["merges"]]
    if change == "ignore merges":
        value["model"]["ignore_merges"] = True
        # A word that no sequence of merges reaches, in place of the last merge: only ignore_merges
        # finds it.
        last = "".join(value["model"]["merges"].pop())
        value["model"]["vocab"]["planner"] = value["model"]["vocab"].pop(last)
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    return Tokenizer.from_str(path.read_text())


def cases(tokenizer):
    for text in golden_text.all_texts():
        tokenizer.encode_special_tokens = False
        special = tokenizer.encode(text, add_special_tokens=False).ids
        both = tokenizer.encode(text, add_special_tokens=True).ids
        tokenizer.encode_special_tokens = True
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        case = {"ids": plain}
        if special != plain:
            case["special_ids"] = special
        if both != special:
            case["added_ids"] = both
        case["decoded"] = tokenizer.decode(special, skip_special_tokens=False)
        skipped = tokenizer.decode(special, skip_special_tokens=True)
        if case["decoded"] == text:
            del case["decoded"]
        if skipped != case.get("decoded", text):
            case["decoded_skip"] = skipped
        yield case


def write_all(out):
    out.mkdir(parents=True, exist_ok=True)
    texts = [json.dumps(text) for text in golden_text.all_texts()]
    (out / "texts.jsonl").write_text("\n".join(texts) + "\n")
    for name, (tokenizer, change) in styles().items():
        directory = out / name
        directory.mkdir(parents=True, exist_ok=True)
        tokenizer = write_tokenizer(tokenizer, change, directory / "tokenizer.json")
        lines = [json.dumps(case, separators=(",", ":")) for case in cases(tokenizer)]
        (directory / "cases.jsonl").write_text("\n".join(lines) + "\n")
        print("tokenizer", name, len(lines), "cases")
    print("tokenizers", tokenizers.__version__)


CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|role|>{{ message.role }}\n{{ message.content }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|role|>assistant\n{% endif %}")


def write_model_tokenizer(directory):
    """The tokenizer of the tiny models: 380 byte-level entries and four special tokens."""
    tokenizer = train(sequence(split(SINGLE_DIGITS), byte_level()), normalizers.NFC(), vocab_size=380)
    tokenizer.add_special_tokens(["<|begin|>", "<|role|>", "<|end|>", "<|pad|>"])
    write_tokenizer(tokenizer, None, directory / "tokenizer.json")
    config = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "pad_token": "<|pad|>",
              "chat_template": CHAT_TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
