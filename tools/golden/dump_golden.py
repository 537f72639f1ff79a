"""Writes tests/golden: tiny models with reference results, tokenizer and chat-template cases.

    python tools/golden/dump_golden.py [--only models|tokenizers|templates] [--out tests/golden]

The reference implementations are those of `transformers`, `tokenizers` and `jinja2` (see
requirements.txt). Everything is seeded: the same versions write the same files, up to the last bits of
floating-point results. The layout is described in tests/golden/README.md.
"""

import argparse
import pathlib

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["models", "tokenizers", "templates"])
    parser.add_argument("--out", type=pathlib.Path, default=REPOSITORY / "tests" / "golden")
    args = parser.parse_args()
    if args.only in (None, "tokenizers"):
        import golden_tokenizers

        golden_tokenizers.write_all(args.out / "tokenizers")
    if args.only in (None, "templates"):
        import golden_templates

        golden_templates.write_all(args.out / "templates")
    if args.only in (None, "models"):
        import golden_models

        golden_models.write_all(args.out)


if __name__ == "__main__":
    main()
