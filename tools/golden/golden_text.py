"""Text that the small vocabularies are trained on, and the strings that tokenizers get wrong."""

import random

TRAINING = [
    "The planner picks the server layout and the budget that maximise goodput, the requests per "
    "second that meet both targets. One kernel runs the tiles of both phases.",
    "It's what we'd expect: they'll say that I'm sure you're right, don't we've, he'd and she's.",
    "IT'S WHAT WE'D EXPECT. HTTPServer parseJSON camelCase PascalCase snake_case kConstant x2 v1.0.3",
    "def main(argv):\n    for i in range(10):\n        if i % 2 == 0:\n            print(i, 'even')\n"
    "\n\nclass Tile:\n\tdef __init__(self):\n\t\tself.count = 0\n",
    "int64_t total = 0; for (size_t i = 0; i < n; ++i) { total += values[i]; } // sum\r\nreturn total;\r\n",
    "12 345 6789 3.14159 2026-11-30 16:20:00 1,000,000 0xFF 100% $5.00 +49 30 1234567",
    "Die Straße führt über die Brücke nach Köln. L'été où j'étais à l'hôtel, ça va déjà très bien.",
    "El niño comió piñas mañana. Česká řeč je těžká. Zażółć gęślą jaźń. Việt Nam đẹp lắm.",
    "Привет мир, это проверка текста. Ελληνικά γράμματα είναι όμορφα. שלום עולם. مرحبا بالعالم.",
    "今天天气很好，我们去公园散步。模型的专家只存在一次。日本語のテキストも、カタカナとひらがなです。",
    "한국어 문장도 있습니다. हिन्दी में लिखा हुआ पाठ। ภาษาไทยไม่มีช่องว่าง",
    "😀 😃 👍🏽 👩‍👩‍👧‍👦 🇩🇪 ❤️ → ∑ ∞ ≠ ½ ² ³ … — – “quotes” ‘single’ «guillemets»",
    "<html><body class=\"x\">&nbsp;</body></html> https://example.org/a/b?c=d&e=f#g user@example.org",
    "    indented\n        more\n\n\n   \t mixed \t\t tabs   \n trailing   \n",
]

CURATED = [
    "", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\r\n\r\n", "\r", "\t", "\t\t ", " \n ", "  \n\n  x",
    "a", " a", "a ", "  a", "a  b", "a   b", "a\nb", "a \n b", "a\n\n\nb", "a\r\nb", "x \r\n\t y", "\u00a0",
    "a\u00a0b", "\u00a0\u00a0a", "\u2003wide\u2003space", "\u3000全角\u3000空白", "\u200bzero\u200bwidth",
    "\u180emongolian", "a\u180eb c", "\u0085next\u0085line", "a\u0085\u0085b", "\u2028line\u2029para",
    "\ufeffbom", "\u202f\u205f\u1680 narrow", "\x1c\x1d\x1e\x1f separators", "a\x0bb\x0cc", "nul\x00byte",
    "\x01\x02\x7f", "\u0080\u009f", "Hello, world!", "hello world", "HELLO WORLD", "HelloWorld", "helloWorld",
    "helloWORLD", "HELLOworld", "iPhone", "McDonald's", "XMLHttpRequest", "aB", "AB", "Ab", "aBC dEF", "ǅungla ǅ",
    "it's", "IT'S", "It'S", "we'll we're we've I'm he'd don't", "WE'LL WE'RE WE'VE I'M HE'D DON'T", "'s", "'S", "'ſ",
    "x'ſ y", "'ll'll", "''s", "rock'n'roll", "l'été", "o’clock it’s", "'t 'T 't", "d'accord'd", "'", "''", "'''",
    "1", "12", "123", "1234", "12345", "1234567890", "1 2 3", " 1", " 12", "  123", "3.14", "1,000,000", "0x1F", "1a2b",
    "٣٤٥", "१२३४", "①②③", "½ ⅓ ¾", "²³¹", "Ⅷ Ⅻ ⅷ", "〇一二三", "１２３４", "x²+y³", "H₂O", "1st 2nd", "v1.2.3-rc4",
    "!", "!!", "!!!", " !", "a!b", "...", "…", "--", "—", "=>", "->", "::", "()", "[]{}", "a/b/c", "//", "\\", "/\n/", "a/\n",
    "#!/bin/sh\n", "$x", "€5", "£", "a_b", "__init__", "a-b", "@user", "&amp;", "<|>", "`code`", "~", "^", "|", "*/", "/*",
    "😀", "😀😀", " 😀", "a😀b", "👍🏽", "👩‍👩‍👧‍👦", "🇩🇪🇫🇷", "❤️", "❤", "☃", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "𝕳𝖊𝖑𝖑𝖔", "𝟘𝟙𝟚", "𐍈", "𠜎𠜱",
    "今天天气很好", "今天 天气", "日本語テスト", "カタカナひらがな漢字", "한국어 텍스트", "ไทย", "中文,英文 mixed 文字", "，。！？",
    "「引用」", "Привет мир", "ПРИВЕТ", "Ελληνικά", "שלום עולם", "مرحبا", "שָׁלוֹם", "مُحَمَّد", "हिन्दी", "नमस्ते दुनिया", "தமிழ்",
    "é", "e\u0301", "e\u0301e\u0301", "ñ", "n\u0303", "Å", "\u212b", "A\u030a", "ﬁ", "ﬃ", "ǆ", "q\u0307\u0323", "q\u0323\u0307",
    "\u0301", " \u0301", "a\u0301\u0302\u0303", "1\u0301", "!\u0301", "\u1e9b\u0323", "가", "\u1100\u1161", "각", "\u1100\u1161\u11a8",
    "Ω", "\u2126", "\u0344", "\u0958", "\ufb1d", "\u2adc", "\U0001d15e", "İstanbul ıI", "ß ẞ SS", "ŉ ǰ", "ﬀ ﬆ 'ﬅ",
    "\ufffd", "\ufffe", "\uffff", "\U0010ffff", "\ue000 private", "\U000e0001tag", "ªº", "ʰʲ modifier", "ⓐⓑ", "ʼn",
    "<|begin|>", "<|end|>", "a<|end|>b", " <|end|> ", "<|end|><|end|>", "<|end", "<|begin|>user\nhi<|end|>", "<<|end|>>",
    "<think>", "</think>", "<think>x</think>", "a <think> b", "< think>", "<|END|>", "<|end|>\n\n<|begin|>", "café<|end|>",
    "[L]x", "x [L] y", "x  [L]  y", "[R]x", "x [R]   y", "x\n[R]\n y", "word", "a word here", "words", "sword", "word!", "word_", "wordé",
    "Ünï", "U\u0308ni\u0308", "xÜnïx", "xU\u0308ni\u0308x", "NORM", "xNORMy", " NORM ", "[L][R][L]", "[R] [L]", "[R]  word  [L]",
    "foo.bar", "foo..bar", "..foo", "foo..", ".", "a-b--c", "--", "-a", "a-", "a.b-c.d",
    "The quick brown fox jumps over the lazy dog.", "    def f(x):\n        return x\n", "\tif (a && b) {\n\t\treturn;\n\t}\n",
    "https://example.org/path?q=1&r=%20#frag", "user@example.org", "2026-11-30T16:20:00Z", "{\"a\": [1, 2, {\"b\": null}]}",
]


def generated(count, seed):
    """Random mixtures of pieces and of code points from many blocks."""
    rng = random.Random(seed)
    pieces = [c for c in CURATED if c]
    blocks = [(0x20, 0x7E), (0x20, 0x7E), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x6FF),
              (0x900, 0xDFF), (0x1100, 0x11FF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x20A0, 0x2BFF),
              (0x3000, 0x30FF), (0x4E00, 0x4FFF), (0xAC00, 0xACFF), (0xFB00, 0xFDFF), (0xFF00, 0xFFEF),
              (0x10300, 0x1034A), (0x1D400, 0x1D7FF), (0x1F300, 0x1F6FF)]
    texts = []
    for i in range(count):
        if i % 2:
            texts.append("".join(rng.choice(pieces) for _ in range(rng.randint(2, 9))))
        else:
            points = []
            for _ in range(rng.randint(1, 40)):
                low, high = rng.choice(blocks)
                points.append(rng.randint(low, high) if rng.random() < 0.8 else rng.choice([32, 10, 9, 13, 39]))
            texts.append("".join(map(chr, points)))
    return texts


LONG = ["ab" * 1500, " " * 1000 + "x", "\n" * 700, "é" * 400, "今天" * 400, "1234567" * 150, "aB" * 700,
        "the planner " * 100, "!?" * 700, "😀" * 200]


def all_texts():
    return CURATED + generated(120, seed=7) + LONG
