"""The Debian packages the text comes from, and how to read paragraphs out of each format.

Every reader yields documents; a document is a list of ("h" | "p" | "li", text) blocks.
"""

import glob
import gzip
import os
import re
import subprocess
import zlib

from lxml import html as lxml_html

DOC = "usr/share/doc/"

# package, licence, reader, glob patterns below the unpack root
SOURCES = [
    ("python3.11-doc", "PSF-2.0 and 0BSD", "html", [DOC + "python3.11/html/**/*.html"]),
    ("postgresql-doc-15", "PostgreSQL", "html", [DOC + "postgresql-doc-15/html/*.html"]),
    ("sqlite3-doc", "public domain", "html", [DOC + "sqlite3/**/*.html"]),
    ("linux-doc-6.1", "GPL-2", "html", [DOC + "linux-doc-6.1/html/**/*.html"]),
    ("git-doc", "GPL-2", "html", [DOC + "git/html/**/*.html"]),
    ("anarchism", "GPL-2", "html", [DOC + "anarchism/**/*.html"]),
    ("debian-handbook", "CC-BY-SA-3.0 or GPL-2+", "html", [DOC + "debian-handbook/html/en-US/*.html"]),
    ("debian-reference-en", "GPL-2+", "html", ["usr/share/debian-reference/*.en.html"]),
    ("developers-reference", "GPL-2+", "html", ["usr/share/developers-reference/*.html"]),
    ("installation-guide-amd64", "GPL-2", "html", [DOC + "installation-guide-amd64/en/*.html"]),
    ("harden-doc", "GPL-2+", "html", [DOC + "harden-doc/html/en-US/*.html"]),
    ("debian-policy", "GPL-2+", "html", [DOC + "debian-policy/**/*.html"]),
    ("debian-faq", "permissive copyleft notice", "html", [DOC + "debian/FAQ/*.en.html"]),
    ("debian-history", "GPL-2+", "html", [DOC + "debian-history/docs/*.html"]),
    ("maint-guide", "GPL-2+", "html", [DOC + "maint-guide/html/*.en.html"]),
    ("debmake-doc", "Expat", "html", [DOC + "debmake-doc/html/*.en.html", DOC + "debmake-doc/**/*.en.html"]),
    ("debian-edu-doc-en", "GPL-2+", "html", [DOC + "debian-edu-doc-en/**/*.html"]),
    ("apt-doc", "GPL-2+", "html", [DOC + "apt-doc/**/*.html"]),
    ("aptitude-doc-en", "GPL-2+", "html", [DOC + "aptitude/html/en/*.html"]),
    ("live-manual-html", "GPL-3+", "html", [DOC + "live-manual/html/*.en.html"]),
    ("freedombox-doc-en", "CC-BY-SA-4.0", "html", ["usr/share/freedombox/doc/manual/en/**/*.html", DOC + "freedombox/manual/en/*.html"]),
    ("python-django-doc", "BSD-3-clause", "html", [DOC + "python-django-doc/html/**/*.html"]),
    ("python-sqlalchemy-doc", "Expat", "html", [DOC + "python-sqlalchemy-doc/html/**/*.html"]),
    ("python-flask-doc", "BSD-3-clause", "html", [DOC + "python-flask-doc/html/**/*.html"]),
    ("python-celery-doc", "CC-BY-SA-4.0", "html", [DOC + "python-celery-doc/html/**/*.html"]),
    ("twisted-doc", "Expat", "html", [DOC + "twisted-doc/**/howto/**/*.html", DOC + "twisted-doc/**/development/**/*.html"]),
    ("sphinx-doc", "BSD-2-clause", "html", [DOC + "sphinx-doc/html/**/*.html"]),
    ("apache2-doc", "Apache-2.0", "html", [DOC + "apache2-doc/manual/en/**/*.html", "usr/share/doc/apache2-doc/manual/**/*.html.en"]),
    ("rust-doc", "Expat or Apache-2.0", "html", [DOC + f"rust-doc/html/{b}/**/*.html" for b in
        ("book", "reference", "cargo", "nomicon", "edition-guide", "rustc", "rustdoc", "rust-by-example", "embedded-book", "unstable-book")]),
    ("llvm-14-doc", "Apache-2.0 with LLVM exception", "html", [DOC + "llvm-14-doc/html/**/*.html"]),
    ("cmake-doc", "BSD-3-clause", "html", [DOC + "cmake-data/html/**/*.html"]),
    ("octave-doc", "GPL-3+", "html", [DOC + "octave/**/*.html"]),
    ("swi-prolog-doc", "BSD-2-clause", "html", [DOC + "swi-prolog-doc/**/*.html"]),
    ("racket-doc", "Apache-2.0 or Expat", "html", [DOC + "racket/**/*.html"]),
    ("csound-doc", "GFDL-1.2+", "html", [DOC + "csound-doc/**/*.html"]),
    ("gap-doc", "GPL-2+", "html", ["usr/share/gap/doc/**/*.html", DOC + "gap/**/*.html"]),
    ("gnuplot-doc", "gnuplot", "html", [DOC + "gnuplot/**/*.html"]),
    ("bind9-doc", "MPL-2.0", "html", [DOC + "bind9-doc/**/*.html"]),
    ("exim4-doc-html", "GPL-2+", "html", [DOC + "exim4-doc-html/**/*.html"]),
    ("postfix-doc", "IPL-1.0 or EPL-2.0", "html", [DOC + "postfix/html/*.html"]),
    ("libvirt-doc", "LGPL-2.1+", "html", [DOC + "libvirt-doc/**/*.html"]),
    ("varnish-doc", "BSD-2-clause", "html", [DOC + "varnish/html/**/*.html"]),
    ("nova-doc", "Apache-2.0", "html", [DOC + "nova-doc/**/*.html"]),
    ("cinder-doc", "Apache-2.0", "html", [DOC + "cinder-doc/**/*.html"]),
    ("libboost1.74-doc", "BSL-1.0", "html", [DOC + "libboost-doc/**/*.html", DOC + "libboost1.74-doc/**/*.html"]),
    ("erlang-doc", "Apache-2.0", "html", [DOC + "erlang-doc/**/*.html"]),
    ("zsh-doc", "zsh (permissive)", "html", [DOC + "zsh-common/html/*.html", DOC + "zsh-doc/*.html"]),
    ("r-doc-html", "GPL-2", "html", [DOC + "r-doc-html/**/*.html", "usr/share/R/doc/**/*.html"]),
    ("subversion", "Apache-2.0", "html", [DOC + "subversion/**/*.html"]),
    ("wesnoth-1.16-data", "GPL-2+", "wesnoth", ["usr/share/games/wesnoth/1.16/data/**/*.cfg"]),
    ("endless-sky-data", "GPL-3+", "endless_sky", ["usr/share/games/endless-sky/data/**/*.txt"]),
    ("crawl-common", "GPL-2+", "crawl", ["usr/share/crawl/dat/descript/*.txt", "usr/share/crawl/dat/database/*.txt"]),
    ("libreoffice-help-en-us", "MPL-2.0", "html", ["usr/share/libreoffice/help/en-US/**/*.html"]),
    ("gimp-help-en", "GFDL-1.2+", "html", ["usr/share/gimp/2.0/help/en/*.html"]),
    ("gnome-user-docs", "CC-BY-SA-3.0", "mallard", ["usr/share/help/C/**/*.page"]),
    ("perl-doc", "Artistic or GPL-1+", "pod", ["usr/share/perl/*/pod/*.pod"]),
    ("lyx-common", "GPL-2+", "lyx", ["usr/share/lyx/doc/*.lyx"]),
    ("bible-kjv-text", "public domain", "kjv", []),
    ("sword-text-web", "public domain", "sword_text", ["usr/share/sword/mods.d/engWEB*.conf"]),
    ("sword-comm-mhcc", "public domain", "sword_comm", ["usr/share/sword/mods.d/mhcc*.conf"]),
    ("sword-comm-tdavid", "public domain", "sword_comm", ["usr/share/sword/mods.d/tdavid*.conf"]),
    ("r-cran-janeaustenr", "public domain novels, Expat package", "austen", ["usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"]),
    ("fortunes", "BSD (compilation)", "fortunes", ["usr/share/games/fortunes/*.u8"]),
    ("fortunes-min", "BSD (compilation)", None, []),
    ("jargon-text", "public domain", "jargon", [DOC + "jargon-text/*.txt.gz"]),
    # dictionaries: read by chat.py and prepare_data.py, listed here for download and credit
    ("dict-foldoc", "GFDL-1.1+", None, []),
    ("wordnet-base", "WordNet 3.0 (permissive)", None, []),
    ("dict-gcide", "GPL-2+", None, []),
]
TOOLS = ["bible-kjv", "diatheke", "libsword-utils"]  # installed, to print the packed texts

SKIP = re.compile(r"genindex|py-modindex|/translations/|/search\.html|changelog|/ChangeLog|release-\d|/whatsnew/changelog|bookindex|index-all|copyright|license", re.I)
BLOCKS = {"h1": "h", "h2": "h", "h3": "h", "h4": "h", "h5": "h", "p": "p", "dd": "p", "blockquote": "p", "li": "li", "dt": None}
DROP = {"script", "style", "nav", "table", "pre", "form", "footer", "svg", "head", "header", "button", "math", "sup", "dt"}
DROP_CLASS = re.compile(r"\b(toc|sphinxsidebar|related|navheader|navfooter|highlight|literal-block|sidebar|menu|footer|contents|breadcrumb|headerlink|footnote|document-nav|navsettop|versionbox|SIntrapara)\b", re.I)


def text_of(node):
    """Inline text of a node, leaving out nested block elements (they come on their own)."""
    out = [node.text or ""]
    for c in node:
        if isinstance(c.tag, str) and c.tag not in DROP and c.tag not in BLOCKS and c.tag not in ("ul", "ol", "dl", "div", "section"):
            if not DROP_CLASS.search(c.get("class") or ""):
                out.append(" " if c.tag == "br" else text_of(c))
        out.append(c.tail or "")
    return "".join(out)


def html(path):
    data = open(path, "rb").read()
    if len(data) > 6_000_000:
        return
    try:
        root = lxml_html.document_fromstring(data, parser=lxml_html.HTMLParser(encoding="latin-1" if b"iso-8859-1" in data[:600].lower() else "utf-8"))
    except Exception:
        return
    blocks = []

    def walk(node):
        for c in node:
            if not isinstance(c.tag, str) or c.tag in DROP or DROP_CLASS.search(c.get("class") or "") or c.get("id") in ("sidebar", "menu", "toc"):
                continue
            kind = BLOCKS.get(c.tag) or ("p" if c.tag in ("div", "section", "body", "td") and (c.text or "").strip() else None)
            if kind:
                blocks.append((kind, text_of(c)))
            walk(c)

    walk(root)
    yield blocks


def mallard(path):
    data = re.sub(rb"<(code|screen|info|links)\b.*?</\1>", b"", open(path, "rb").read(), flags=re.S)
    root = lxml_html.document_fromstring(data, parser=lxml_html.HTMLParser(encoding="utf-8"))
    yield [("h" if n.tag == "title" else "p", " ".join(n.text_content().split())) for n in root.iter("title", "p")]


def pod(path):
    blocks = []
    for para in re.split(r"\n\s*\n", open(path, encoding="utf-8", errors="replace").read()):
        if para.startswith("=head"):
            blocks.append(("h", para.split(None, 1)[-1]))
        elif para and not para.startswith(("=", " ", "\t")):
            blocks.append(("p", para))
    clean = lambda t: re.sub(r"[A-Z]<<+ (.*?) >>+|[A-Z]<([^<>]*)>", lambda m: (m[1] or m[2]).split("|")[0], re.sub(r"E<lt>", "<", re.sub(r"E<gt>", ">", t)))
    yield [(k, clean(clean(t))) for k, t in blocks]


def lyx(path):
    blocks = []
    for kind, body in re.findall(r"\\begin_layout (\w+)\n(.*?)\\end_layout", open(path, encoding="utf-8").read(), re.S):
        if kind in ("Standard", "Section", "Subsection", "Chapter", "Itemize", "Enumerate", "Description"):
            body = re.sub(r"\\begin_inset .*?\\end_inset", "", body, flags=re.S)
            blocks.append(("h" if "ection" in kind or kind == "Chapter" else "p", re.sub(r"^\\.*$", "", body, flags=re.M)))
    yield blocks


def wesnoth(path):
    text = open(path, encoding="utf-8", errors="replace").read()
    found = re.findall(r"\b(?:message|story|description|text|help_text|_topic)\s*=\s*_\s*\"((?:[^\"]|\"\")*)\"", text)
    yield [("p", re.sub(r"<[^>]*>|\$[\w.|]+", "", t.replace('""', '"'))) for t in found]


def endless_sky(path):
    text = open(path, encoding="utf-8", errors="replace").read()
    yield [("p", t) for t in re.findall(r"`([^`]{60,})`", text) if "<" not in t]


def crawl(path):
    for entry in re.split(r"^%%%%$", open(path, encoding="utf-8").read(), flags=re.M):
        yield [("p", t) for t in re.split(r"\n\s*\n", entry)[1:] if "{{" not in t and "@" not in t]


def kjv(_):
    out = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, text=True).stdout
    yield from chapters(re.findall(r"^(\w+?)(\d+):\d+ (.*)$", out, re.M))


def sword_path(conf):
    return dict(os.environ, SWORD_PATH=os.path.dirname(os.path.dirname(conf)))


def sword_text(path):
    module = re.search(r"^\[(.*)\]", open(path, errors="replace").read(), re.M)[1]
    out = subprocess.run(["diatheke", "-b", module, "-f", "plain", "-k", "Gen-Rev"], capture_output=True, text=True, env=sword_path(path)).stdout
    yield from chapters(re.findall(r"^([\w ]+?) (\d+):\d+: (.*)$", out, re.M))


def chapters(verses):
    group = {}
    for book, chapter, text in verses:
        group.setdefault((book, chapter), []).append(text)
    for vs in group.values():
        yield [("p", " ".join(vs[i:i + 8])) for i in range(0, len(vs), 8)]


def sword_comm(path):
    module = re.search(r"^\[(.*)\]", open(path, errors="replace").read(), re.M)[1]
    out = subprocess.run(["mod2imp", module], capture_output=True, env=sword_path(path)).stdout.decode("utf-8", "replace")
    for entry in out.split("$$$")[1:]:
        body = entry.partition("\n")[2]
        paras = re.split(r"<(?:br ?/?|/?p|lb ?/?|/?div|title)[^>]*>|\n\s*\n", body)
        yield [("p", re.sub(r"<[^>]*>", "", p)) for p in paras]


def austen(path):
    """R's lazy-load file: zlib blocks holding character vectors, one string a line of a novel."""
    data, at = open(path, "rb").read(), 0
    while at < len(data):
        stream = zlib.decompressobj()
        block = stream.decompress(data[at + 4:])  # 4 bytes of length come first
        at = len(data) - len(stream.unused_data)
        lines, pos = [], 0
        while (m := re.compile(rb"\x00[\x00\x04][\x00\x80]\x09(\x00\x00..)", re.S).search(block, pos)):
            pos = m.end() + int.from_bytes(m[1], "big")
            lines.append(block[m.end():pos].decode("utf-8", "replace"))
        for chapter in re.split(r"\n(?=CHAPTER |Chapter |VOLUME )", "\n".join(lines)):
            yield [("p", p) for p in re.split(r"\n\s*\n", chapter)]


def fortunes(path):
    if os.path.basename(path) in ("ascii-art.u8", "art.u8", "debian.u8", "zippy.u8", "translate-me.u8", "ethnic.u8", "drugs.u8", "men-women.u8"):
        return
    for entry in open(path, encoding="utf-8", errors="replace").read().split("\n%\n"):
        yield [("p", p) for p in re.split(r"\n\s*\n", entry)]


def jargon(path):
    text = gzip.open(path, "rt", encoding="utf-8", errors="replace").read()
    paras = [("p", p) for p in re.split(r"\n\s*\n", text)]
    for i in range(0, len(paras), 40):
        yield paras[i:i + 40]


def documents(root, source):
    _, _, reader, patterns = source
    read = globals()[reader]
    paths = sorted({p for g in patterns for p in glob.glob(f"{root}/{g}", recursive=True) if os.path.isfile(p)}) if patterns else [None] * (reader == "kjv")
    for path in paths:
        if not path or not SKIP.search(path):
            yield from read(path)
