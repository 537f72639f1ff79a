"""Chat-formatted training text made from dictionaries and from question headings. No model wrote any of it."""

import gzip
import re

GREETINGS = [
    (["Hello", "Hello!", "Hi", "Hi there", "Hey", "hello", "hi", "Hi!", "Good morning", "Good evening", "Greetings"],
     ["Hello! How can I help you today?", "Hi! What would you like to know?", "Hello. Ask me what a word means, or about a topic you want explained.",
      "Hello! You can ask me to define a word or to explain a term."]),
    (["How are you?", "How are you today?", "how are you", "How do you do?", "What's up?"],
     ["I am doing well, thank you. What would you like to know?", "Very well, thank you. How can I help you?"]),
    (["Who are you?", "What are you?", "What is your name?", "Tell me about yourself.", "Are you a robot?", "Are you human?"],
     ["I am a very small language model. I can explain words and computing terms, but I make mistakes.",
      "I am ExpertPlex Mini, a small language model trained on dictionaries and technical documentation."]),
    (["What can you do?", "Help", "Can you help me?", "help me", "What do you know?"],
     ["I can explain what words and computing terms mean. For example, ask me: What is a compiler?",
      "You can ask me to define a word, such as 'kernel' or 'river', and I will try to explain it."]),
    (["Thanks", "Thank you", "Thank you!", "thanks a lot", "Great, thanks."],
     ["You are welcome!", "You are welcome. Is there anything else you would like to know?"]),
    (["Bye", "Goodbye", "Good night", "See you later", "bye"],
     ["Goodbye!", "Goodbye, and thank you for the conversation."]),
]
SYSTEM = ["You are a helpful assistant.", "You are a helpful assistant. Answer briefly.", "Answer the user's questions clearly."]


RUDE = re.compile(r"obscen|slang|slur|offensive|derogatory|disparaging|vulgar|sexual|contemptuous|ethnic", re.I)


def ask(term, noun, rng):
    """A question about a term; `noun` says that an article fits."""
    a = "an" if term[:1] in "aeiou" else "a"
    forms = ["What is {t}?", "Define {t}.", "What does {t} mean?", "Tell me about {t}.", "Explain {t}.", "define {t}",
             "What is meant by {t}?", "What does the term {t} mean?", "Can you explain {t}?", "{t}?", "What does \"{t}\" mean?",
             "Please define {t}.", "what is {t}"]
    if noun and not term.endswith("s"):
        forms += ["What is {a} {t}?"] * 8 + ["what is {a} {t}", "Tell me what {a} {t} is.", "What's {a} {t}?", "Explain what {a} {t} is."]
    return rng.choice(forms).format(t=term, a=a)


def unwrap(text):
    return " ".join(text.split())


def foldoc(root):
    """term -> definition (plain paragraphs), from FOLDOC in dict format."""
    text = gzip.open(f"{root}/usr/share/dictd/foldoc.dict.dz", "rt", encoding="utf-8", errors="replace").read()
    for entry in re.split(r"\n(?=\S)", text):
        term, _, body = entry.partition("\n")
        paras = []
        for p in re.split(r"\n\s*\n", body):
            p = unwrap(p)
            if re.fullmatch(r"\(\d{4}-\d\d-\d\d\)", p) or "(http" in p or re.search(r"\{[^{}]*(wiki|ftp|http|\.html)", p) or "@" in p:
                continue
            p = re.sub(r"\{([^{}()]*?) \([^{}]*\)\}|\{([^{}]*)\}", lambda m: m[1] or m[2], p)
            p = re.sub(r"^(<[^<>]*>|\([A-Z][^()]*\)|\d\.|\s)+", "", p).strip()
            if re.match(r"(See|Compare|Opposite of|Usenet newsgroup|Email|E-mail|Home|Contrast)\b", p) and len(p) < 90:
                continue
            if len(p) > 12 and not re.search(r"[|<>{}_=]{2}", p):
                paras.append(p)
        if paras and not term.startswith((" ", "00-")) and len(paras[0]) > 40 and len(term) < 40 and term.isascii():
            yield term.strip(), paras


def wordnet(root):
    """lemma, part of speech, uses, glosses (most frequent sense first)."""
    folder = f"{root}/usr/share/wordnet"
    for pos in ("noun", "verb", "adj", "adv"):
        gloss, spelling = {}, {}
        for line in open(f"{folder}/data.{pos}", encoding="utf-8", errors="replace"):
            if not line.startswith(" "):
                gloss[line[:8]] = line.split(" | ", 1)[1].strip()
                f = line.split()
                for w in f[4:4 + 2 * int(f[3], 16):2]:
                    spelling.setdefault((line[:8], w.lower()), w)
        for line in open(f"{folder}/index.{pos}", encoding="utf-8", errors="replace"):
            if not line.startswith(" "):
                f = line.split()
                count, pointers = int(f[2]), int(f[3])
                used = int(f[5 + pointers])
                senses = f[6 + pointers:6 + pointers + count]
                yield spelling.get((senses[0], f[0]), f[0]).replace("_", " "), pos, used, [gloss[o] for o in senses]


def say_definition(term, pos, glosses, rng):
    """WordNet glosses as one or two sentences."""
    out = []
    for i, g in enumerate(glosses[:2]):
        meaning, *examples = [s.strip() for s in re.split(r";\s*(?=\")", g)]
        meaning = re.sub(r"^\([^()]*\)\s*", "", meaning).rstrip(";. ")
        examples = [e.strip('"; ') for e in examples if len(e) > 15]
        if not meaning:
            continue
        article = "An" if term[:1].lower() in "aeiou" else "A"
        if i == 0 and pos == "noun" and term.islower() and re.match(r"(a|an) ", meaning):
            s = f"{article} {term} is {meaning}."
        elif i == 0 and pos == "noun" and re.match(r"(the|an?) ", meaning):
            s = f"{term[:1].upper() + term[1:]} is {meaning}."
        elif i == 0 and pos == "verb":
            s = f"To {term} means to {meaning}."
        elif i == 0 and not term.islower():
            s = f"{term}: {meaning}."
        elif i == 0:
            s = f'The word "{term}" means {meaning}.' if rng.random() < .5 else f'"{term[:1].upper() + term[1:]}" means {meaning}.'
        elif pos == "verb":
            s = f"It can also mean to {meaning}."
        else:
            s = f"It can also mean {meaning}."
        if examples and rng.random() < .6:
            s += f' For example: "{examples[0]}"'
        out.append(s)
    return " ".join(out)


def say_foldoc(term, paras):
    text, first = "", paras[0]
    m = re.match(r"(An?|The|Any) ", first)
    if m and re.fullmatch(r"[a-z][a-z -]+", term) and not term.endswith("s"):
        text = f"{'An' if term[0] in 'aeiou' else 'A'} {term} is {first[0].lower()}{first[1:]}"
    elif m:
        text = f"{term[:1].upper() + term[1:]} is {first[0].lower()}{first[1:]}"
    else:
        text = first
    for p in paras[1:]:
        if len(text) + len(p) > 700:
            break
        text += "\n\n" + p
    return text


def turn(role, text):
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def conversation(pairs, rng):
    text = turn("system", rng.choice(SYSTEM)) if rng.random() < .1 else ""
    if rng.random() < .06:
        q, a = rng.choice(GREETINGS[:4])
        pairs = [(rng.choice(q), rng.choice(a))] + pairs
    if rng.random() < .03:
        q, a = rng.choice(GREETINGS[4:])
        pairs = pairs + [(rng.choice(q), rng.choice(a))]
    return text + "".join(turn("user", q) + turn("assistant", a) for q, a in pairs)


def definition_pairs(root, rng):
    """(headword, question, answer) from FOLDOC and WordNet."""
    computing = set()
    for term, paras in foldoc(root):
        computing.add(term)
        noun = re.fullmatch(r"[a-z][a-z -]+", term) is not None
        if len(paras[0]) > 900:
            continue
        for _ in range(2):
            yield term, ask(term, noun, rng), say_foldoc(term, paras)
    for term, pos, used, glosses in wordnet(root):
        repeat = 3 if used > 9 else 2 if used > 2 else 1 if used or rng.random() < .3 else 0
        if len(term) > 30 or re.search(r"\d", term) or RUDE.search(" ".join(glosses[:2])) or (term in computing and used < 10):
            continue
        for _ in range(repeat):
            answer = say_definition(term, pos, glosses, rng)
            if answer:
                yield term, ask(f"to {term}" if pos == "verb" and rng.random() < .5 else term, pos == "noun" and term.islower(), rng), answer
