"""BLEU of random corpora by sacreBLEU, for tests/metrics_reference to compare with.

score_corpora.py FOLDER NUM_CORPORA SEED [SACREBLEU_1_2_10.py]
Writes into FOLDER, one JSON object a line: corpora.jsonl (2.x), old.jsonl (1.2.10, if given), systems.jsonl (intervals
and paired tests); and characters.bin, a byte for each code point, with lower.jsonl.
"""
import importlib.util
import json
import logging
import os
import random
import sys
import unicodedata

import regex
import sacrebleu
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

folder, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
draw = random.Random(seed)
logging.disable(logging.WARNING)

# Characters that the tokenisers and str.lower() have opinions on, and one of every script and category.
ODD = list("..,,--__''\"\"&;<>()[]{}\\/|~^`$%+=#@!?*:0123456789") + [
    "\u00a0", "\u3000", "\u2028", "\u0085", "\u001c", "\u001f", "\u200b", "\u00ad", "\t", "\x0b", "\r", "\ufeff", "\x00",
    "½", "²", "Ⅷ", "٣", "٤", "०", "€", "£", "©", "™", "→", "∑", "«", "»", "„", "“", "”", "‘", "’", "–", "—", "…", "、", "。",
    "「", "ー", "日", "本", "語", "é", "É", "ß", "ẞ", "İ", "ı", "Σ", "σ", "ς", "Ω", "Ǆ", "ǅ", "Ж", "א", "ا", "क", "\u0301",
    "\u0345", "ʰ", "😀", "🫨", "𝟘", "𐐀", "Ა", "\U0001f1e9"]
CHARACTERS = [chr(c) for c in range(1, 0x30000) if unicodedata.ucd_3_2_0.category(chr(c)) not in ("Cn", "Cs", "Co")]
PIECES = ["<skipped>", "&quot;", "&amp;", "&amp;lt;", "&lt;", "&gt;", "&apos;", "...", "U.S.", "1.000,5", "3-4", "-5", "5-",
          "ΑΣ", "don't", "a_b"]
WORDS = ["the", "a", "The", "man", "dog", "bit", "house", "was", "of", "A"]


def word():
    kind = draw.random()
    if kind < 0.6:
        return draw.choice(WORDS)
    if kind < 0.75:
        return draw.choice(WORDS) + draw.choice(ODD)
    if kind < 0.85:
        return draw.choice(PIECES)
    if kind < 0.95:
        return "".join(draw.choice(ODD) for _ in range(draw.randint(1, 5)))
    return "".join(draw.choice(CHARACTERS) for _ in range(draw.randint(1, 4)))


def sentence():
    length = draw.choice([0, 0, 1, 2, 3, 5, 8, 13, 30])
    return draw.choice(["", " "] if draw.random() < 0.1 else [" "]).join(word() for _ in range(length)) + draw.choice(
        ["", "", " ", "\u3000", " .", "."])


def noisy(text):
    words = text.split(" ")
    for _ in range(draw.choice([0, 0, 1, 2, 4])):
        place = draw.randrange(len(words) + 1)
        kind = draw.random()
        if kind < 0.4 and place < len(words):
            words[place] = word()
        elif kind < 0.7 and place < len(words):
            del words[place]
        else:
            words.insert(place, word())
    return " ".join(words)


def one_line(text):
    return text.replace("\n", " ")


def corpus(num_sentences, streams):
    references = [[one_line(sentence()) for _ in range(num_sentences)] for _ in range(streams)]
    hypotheses = [
        one_line(sentence() if draw.random() < 0.2 else noisy(draw.choice(references)[i])) for i in range(num_sentences)
    ]
    if streams > 1 and draw.random() < 0.4:  # not of every sentence as many
        for i in range(num_sentences):
            for stream in references[1:]:
                if draw.random() < 0.4:
                    stream[i] = None
    return hypotheses, references


def by_sentence(references):
    return [[text for text in texts if text is not None] for texts in zip(*references)]


def write(name, rows):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")


def numbers(score):
    return {
        "score": float(score.score), "counts": [float(c) for c in score.counts], "totals": [float(t) for t in score.totals],
        "precisions": [float(p) for p in score.precisions], "bp": float(score.bp), "sys_len": int(score.sys_len),
        "ref_len": int(score.ref_len)}


def corpora():
    for index in range(count):
        hypotheses, references = corpus(draw.choice([1, 1, 2, 3, 5, 12]), draw.choice([1, 1, 1, 2, 3, 10]))
        smooth = ["exp", "floor", "add-k", "none"][index % 4]
        options = {
            "tokenize": ["13a", "intl", "char", "none"][index // 4 % 4], "smooth_method": smooth,
            "smooth_value": draw.choice([None, None, 0.01, 0.5, 2.0]) if smooth in ("floor", "add-k") else None,
            "lowercase": index // 16 % 2 == 1, "max_ngram_order": draw.choice([4, 4, 4, 1, 2, 6, 16]),
            "effective_order": draw.random() < 0.3}
        metric = BLEU(force=True, **options)
        score = metric.corpus_score(hypotheses, references)
        yield {"hypotheses": hypotheses, "references": by_sentence(references), "options": options, **numbers(score),
               "verbose": score._verbose, "signature": metric.get_signature().format(),
               "short": metric.get_signature().format(short=True)}


def old_corpora(path):
    spec = importlib.util.spec_from_file_location("sacrebleu_1_2_10", path)
    old = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(old)
    for index in range(count // 2):
        streams = draw.choice([1, 1, 2, 3])
        hypotheses, references = corpus(draw.choice([1, 2, 5]), streams)
        references = [[text or "" for text in stream] for stream in references]
        options = {
            "tokenize": ["13a", "intl", "none"][index % 3], "smooth_method": ["exp", "floor", "none"][index // 3 % 3],
            "smooth_value": draw.choice([0.0, 0.01, 0.5]), "lowercase": index // 9 % 2 == 1, "max_ngram_order": 4,
            "effective_order": draw.random() < 0.3}
        # It reads categories from the interpreter: keep to characters that every Unicode version agrees on.
        plain = lambda text: "".join(c for c in text if unicodedata.ucd_3_2_0.category(c) == unicodedata.category(c)
                                     and bool(regex.match(r"\p{P}", c)) == unicodedata.category(c).startswith("P")
                                     and bool(regex.match(r"\p{S}", c)) == unicodedata.category(c).startswith("S"))
        hypotheses = [plain(text) for text in hypotheses]
        references = [[plain(text) for text in stream] for stream in references]
        score = old.corpus_bleu(hypotheses, references, smooth=options["smooth_method"],
                                smooth_floor=options["smooth_value"], force=True, lowercase=options["lowercase"],
                                tokenize=options["tokenize"], use_effective_order=options["effective_order"])
        yield {"hypotheses": hypotheses, "references": by_sentence(references), "options": options, **numbers(score),
               "verbose": ""}


def systems():
    os.environ["SACREBLEU_SEED"] = "12345"
    for index in range(24):
        hypotheses, references = corpus(draw.choice([1, 2, 7, 40, 130]), draw.choice([1, 2]))
        systems = [hypotheses] + [[one_line(noisy(text)) for text in hypotheses] for _ in range(2)]
        if index % 5 == 0:
            systems[2] = list(hypotheses)
        options = {
            "tokenize": ["13a", "intl"][index % 2], "smooth_method": ["exp", "floor", "add-k", "none"][index % 4],
            "smooth_value": None, "lowercase": False, "max_ngram_order": draw.choice([4, 4, 2]), "effective_order": False}
        samples = draw.choice([1, 39, 150, 333])
        row = {"references": by_sentence(references), "systems": systems, "options": options, "samples": samples}
        if samples > 1:
            metric = BLEU(force=True, **options)
            score = metric.corpus_score(hypotheses, references, n_bootstrap=samples)
            row["interval"] = [score._mean, score._ci]
            row["signature"] = metric.get_signature().format()
        for kind in ("bs", "ar"):
            test = PairedTest([(str(i), texts) for i, texts in enumerate(systems)], {"BLEU": BLEU(force=True, **options)},
                              references, test_type=kind, n_samples=samples)
            signatures, scores = test()
            row[kind] = [{"score": r.score, "p_value": r.p_value, "mean": None if r.mean is None else float(r.mean),
                          "ci": None if r.ci is None else float(r.ci)} for r in scores["BLEU"]]
            row[kind + "_signature"] = signatures["BLEU"].format()
        yield row


def characters():
    """Bits of a code point: P, S, N, white space; whether a sigma is final after it, after a and it, between a and it; whether it is unassigned."""
    lower = []
    classes = bytearray(sys.maxunicode + 1)
    patterns = [regex.compile(r"\p{%s}" % name) for name in "PSN"]
    for code in range(sys.maxunicode + 1):
        if 0xD800 <= code < 0xE000:
            continue
        character = chr(code)
        facts = [bool(pattern.match(character)) for pattern in patterns] + [
            character.isspace(), (character + "Σ").lower()[-1] == "ς", ("a" + character + "Σ").lower()[-1] == "ς",
            ("aΣ" + character).lower()[1] == "ς", unicodedata.category(character) == "Cn"]
        classes[code] = sum(fact << place for place, fact in enumerate(facts))
        if character.lower() != character:
            lower.append({"text": character, "lower": character.lower()})
    with open(os.path.join(folder, "characters.bin"), "wb") as file:
        file.write(classes)
    write("lower.jsonl", [{"unicode": unicodedata.unidata_version, "sacrebleu": sacrebleu.__version__}, *lower])


characters()
write("corpora.jsonl", corpora())
write("systems.jsonl", systems())
if len(sys.argv) > 4:
    write("old.jsonl", old_corpora(sys.argv[4]))
