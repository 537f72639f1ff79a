"""Download, unpack, clean, de-duplicate and split the training text.

    prepare_data.py WORK          -> WORK/train.jsonl, WORK/heldout.jsonl, WORK/sources.json
"""

import collections
import glob
import gzip
import hashlib
import json
import multiprocessing
import os
import random
import re
import subprocess
import sys

import chat
import sources

STOP = set("the of and to in a is that it for as be with are on this or by not an if from can at you was have he which but "
           "has will when his all they no i there we their one him so do who your any may more then my her our what she had were "
           "used use its these only must should than into also them other".split())
HELD_OUT = 0.012  # of documents and of headwords
MAX_SOURCE_CHARS = 30_000_000


def download(work):
    debs, root = f"{work}/debs", f"{work}/root"
    os.makedirs(debs, exist_ok=True)
    for name in sorted({s[0] for s in sources.SOURCES}):
        if not glob.glob(f"{debs}/{name}_*.deb"):
            subprocess.run(["apt-get", "download", "-q", name], cwd=debs, check=True)
    for deb in glob.glob(f"{debs}/*.deb"):
        if not os.path.exists(deb + ".done"):
            subprocess.run(["dpkg", "-x", deb, root], check=True)
            open(deb + ".done", "w").close()
    subprocess.run(["apt-get", "install", "-y", "-qq", *sources.TOOLS], check=True, stdout=subprocess.DEVNULL)


def plain(text):
    text = text.translate({0x2018: "'", 0x2019: "'", 0x201c: '"', 0x201d: '"', 0xa0: " ", 0xad: None, 0x2013: "-", 0x2014: " - ",
                           0x2026: "...", 0x2022: None, 0xb6: None, 0x200b: None, 0xfeff: None, 0x2190: None, 0x2192: "->", 0xf0c1: None, 0x2212: "-"})
    text = re.sub(r"\{([\w .,'/-]+)\}", r"\1", text)
    return re.sub(r"\s+([,.;:)])(?=\s|$)", r"\1", " ".join(text.split())).replace("( ", "(")


def readable(text):
    """English prose, not a table row, code or a list of names."""
    if len(text) < 30 or len(text) > 6000 or "\ufffd" in text:
        return False
    letters = sum(c.isalpha() and c.isascii() or c == " " for c in text)
    words = re.findall(r"[a-z']+", text.lower())
    stops = sum(w in STOP for w in words)
    return letters / len(text) > .82 and len(words) > 4 and stops / len(words) > (.2 if len(words) > 14 else .12)


def clean(blocks):
    """Blocks -> text; headings stay only before readable text. Also returns heading-question pairs."""
    out, heading, qa = [], None, []
    for kind, text in blocks:
        text = plain(text)
        if kind == "h":
            text = re.sub(r"^[\d.]+\s+|[#¶]", "", text).strip()
            heading = text if 3 < len(text) < 120 and text.isascii() else None
        elif readable(text):
            if heading:
                out.append(("h", heading))
                if heading.endswith("?") and len(text) < 900 and text[-1] in ".!?:)":
                    qa.append((re.sub(r"^(Q:|FAQ|\w\.\d[\d.]*)\s*", "", heading), text.rstrip(":")))
            out.append((kind, text))
            heading = None
    return out, qa


def read_source(job):
    root, source = job
    docs = []
    try:
        for blocks in sources.documents(root, source):
            body, qa = clean(blocks)
            if sum(len(t) for _, t in body) >= 250:
                docs.append((body, qa))
    except Exception as e:
        print("failed:", source[0], repr(e), flush=True)
    return source[0], docs


def held(key):
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") / 2**32 < HELD_OUT


def gcide(root, rng):
    """Webster 1913 entries, cleaned to 'Headword: definition' paragraphs."""
    text = gzip.open(f"{root}/usr/share/dictd/gcide.dict.dz", "rt", encoding="utf-8", errors="replace").read()
    for entry in re.split(r"\n(?=[A-Z][\w'-]* \\)", text):
        term = entry.split(" ", 1)[0]
        body = entry.partition("\n")[2]
        for part in re.split(r"\n\s*\n", body):
            if "[1913 Webster]" not in part:
                continue
            p = re.sub(r"\[[^\[\]]*\]|\{|\}", "", part)
            p = re.sub(r"^\s*(\d+\.\s*)?(\([^()]*\)\s*)*", "", p)
            p = plain(re.sub(r"\s--\s?[A-Z][\w. ]*$|\s--[A-Z]\w+\.?", "", p.strip()))
            if readable(p) and p[0].isupper() and "]" not in p:
                yield term, f"{term}: {p}"


def dictionaries(root, rng):
    """(split key, source, text): chat pairs and dictionary prose, both split by headword."""
    pairs = list(chat.definition_pairs(root, rng))
    rng.shuffle(pairs)
    for hold in (False, True):
        side = [p for p in pairs if held(p[0].lower()) == hold]
        at = 0
        while at < len(side):
            n = rng.choice((1, 1, 1, 1, 2, 2, 3))
            yield hold, "chat: dict-foldoc, wordnet-base", chat.conversation([(q, a) for _, q, a in side[at:at + n]], rng)
            at += n
    for q, a in [(q, a) for qs, ans in chat.GREETINGS for q in qs for a in ans for _ in range(10)]:
        yield False, "chat: greetings", chat.conversation([(q, a)], rng)
    entries = {"dict-gcide": list(gcide(root, rng)),
               "dict-foldoc": [(t, t + "\n\n" + "\n\n".join(p)) for t, p in chat.foldoc(root)]}
    for name, items in entries.items():
        for hold in (False, True):
            side = [t for k, t in items if held(k.lower()) == hold]
            for i in range(0, len(side), 15):
                yield hold, name, "\n\n".join(side[i:i + 15])


def main():
    work = sys.argv[1]
    if "--no-download" not in sys.argv:
        download(work)
    root, rng = f"{work}/root", random.Random(1)
    jobs = [(root, s) for s in sources.SOURCES if s[2]]
    with multiprocessing.Pool(2) as pool:
        read = dict(pool.imap_unordered(read_source, jobs))
    seen, out = set(), {False: [], True: []}
    stats = collections.defaultdict(lambda: [0, 0, 0])  # documents, training characters, held-out characters

    def emit(hold, source, text):
        out[hold].append(text)
        s = stats[source]
        s[0], s[1], s[2] = s[0] + 1, s[1] + (not hold) * len(text), s[2] + hold * len(text)

    questions = []
    for name, *_ in sources.SOURCES:
        docs = read.get(name, [])
        rng.shuffle(docs)
        for body, qa in docs:
            if stats[name][1] > MAX_SOURCE_CHARS:
                break
            kept, fresh, pending = [], 0, None
            for kind, text in body:
                if kind == "h":
                    pending = text
                    continue
                digest = hashlib.sha256(re.sub(r"\W+", "", text.lower()).encode()).digest()[:10]
                if digest in seen:
                    continue
                seen.add(digest)
                if pending:
                    kept.append(pending)
                    pending = None
                kept.append("- " + text if kind == "li" else text)
                fresh += len(text)
            if fresh >= 200:
                text = "\n\n".join(kept).replace("\n\n- ", "\n- ")
                hold = held(text)
                emit(hold, name, text)
                questions += [(hold, q, a) for q, a in qa]
    for hold, q, a in {x: 0 for x in questions}:
        for _ in range(1 if hold else 2):
            emit(hold, "chat: question headings", chat.conversation([(q, a)], rng))
    for hold, source, text in dictionaries(root, rng):
        emit(hold, source, text)
    for hold, name in ((False, "train"), (True, "heldout")):
        rng.shuffle(out[hold])
        with open(f"{work}/{name}.jsonl", "w") as f:
            f.writelines(json.dumps(t, ensure_ascii=False) + "\n" for t in out[hold])
    version = {os.path.basename(d).split("_")[0]: os.path.basename(d).split("_")[1].replace("%3a", ":") for d in glob.glob(f"{work}/debs/*.deb")}
    table = [{"package": n, "version": version.get(n), "licence": lic} for n, lic, *_ in sources.SOURCES]
    by_source = {n: dict(zip(("documents", "train_chars", "heldout_chars"), s)) for n, s in stats.items()}
    json.dump({"packages": table, "text": by_source}, open(f"{work}/sources.json", "w"), indent=1)
    for n, s in sorted(by_source.items(), key=lambda x: -x[1]["train_chars"]):
        print(f"{n:32} {s}")
    print("total chars", sum(s["train_chars"] for s in by_source.values()), sum(s["heldout_chars"] for s in by_source.values()))


main()
